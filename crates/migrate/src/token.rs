//! Where a list goes on. Pure.
//!
//! `continue` is opaque to clients, but kube-apiserver treats its form as a public one that can't change: unpadded base64
//! of `{"v":"meta.k8s.io/v1","rv":…,"start":…}`, where `start` is the next key below that of the list, and `rv` −1 stands
//! for the newest moment: it hands such tokens out itself when a list expires. A migration makes them to go on behind an
//! object that it knows: after it was killed, and behind one that can't be read. A server that refuses one is asked from
//! the beginning, which costs time and nothing else.
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// A list that goes on behind `after`, a name or `NAMESPACE/NAME`, at the newest moment.
pub fn behind(after: &str) -> String {
    let token = serde_json::json!({"v": "meta.k8s.io/v1", "rv": -1, "start": format!("{after}\0")});
    URL_SAFE_NO_PAD.encode(token.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_a_server_makes() {
        let read = URL_SAFE_NO_PAD.decode(behind("a/b")).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&read).unwrap();
        assert_eq!(read, serde_json::json!({"v": "meta.k8s.io/v1", "rv": -1, "start": "a/b\u{0}"}));
        assert!(behind("a?/>ü").chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)));
    }
}
