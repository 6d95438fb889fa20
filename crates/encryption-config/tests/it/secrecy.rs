//! Keys are shown nowhere.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use casemate_encryption_config::EncryptionConfiguration;

use super::corpus::{FLAGS, files};

/// Whatever is wrong with a file, neither the refusal nor the value shows twelve characters of what its keys are made of.
#[test]
fn no_key_is_shown() {
    let mut seen = 0;
    for (name, file) in files() {
        let text = String::from_utf8_lossy(&file);
        let of_base64 = |next: char| next.is_ascii_alphanumeric() || "+/=".contains(next);
        let keys: Vec<&str> = text
            .split(|next: char| !of_base64(next))
            .filter(|word| word.len() >= 20 && STANDARD.decode(format!("{word:=<44}")).is_ok())
            .filter(|word| !word.chars().all(|next| next.is_ascii_lowercase()))
            .collect();
        for flags in FLAGS {
            let shown = match EncryptionConfiguration::read(&file, flags) {
                Ok(config) => format!("{config:?}{config:#?}"),
                Err(refused) => format!("{refused}{refused:?}"),
            };
            for key in &keys {
                seen += 1;
                assert!(!shown.contains(&key[..12]), "{name}: {shown}");
            }
        }
    }
    assert!(seen > 200, "{seen}");
}
