//! etcd's v3 API, as far as it reads: messages and clients of `/etcdserverpb.KV/Range`, `Watch`, `Authenticate`,
//! `Status` and `MemberList`.
//!
//! The messages and their fields, and the codes that etcd refuses with, are explained in `proto/etcd.proto`, from which
//! they are generated. Nothing here can write: that is [`etcd_write`](crate::etcd_write), a feature of its own. Values
//! of keys, passwords and tokens are in no `Debug` output. The servers are for stand-ins in tests.
use std::fmt;

use crate::hidden::Hidden;

#[allow(missing_docs, unreachable_pub, clippy::all)]
#[rustfmt::skip]
mod generated;

pub use generated::{
    AuthenticateRequest, AuthenticateResponse, Event, KeyValue, Member, MemberListRequest,
    MemberListResponse, RangeRequest, RangeResponse, ResponseHeader, StatusRequest, StatusResponse,
    WatchCreateRequest, WatchRequest, WatchResponse, auth_client, auth_server, cluster_client,
    cluster_server, event, kv_client, kv_server, maintenance_client, maintenance_server, watch_client,
    watch_request, watch_server,
};

/// The header that carries the token of a user.
pub const TOKEN: &str = "token";

/// `range_end` of a range without an end; as `key`, the first of all keys.
pub const UNBOUNDED: &[u8] = &[0];

impl fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValue")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("create_revision", &self.create_revision)
            .field("mod_revision", &self.mod_revision)
            .field("version", &self.version)
            .field("value", &Hidden(self.value.len()))
            .field("lease", &self.lease)
            .finish()
    }
}

impl fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateRequest")
            .field("name", &self.name)
            .field("password", &Hidden(self.password.len()))
            .finish()
    }
}

impl fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateResponse")
            .field("header", &self.header)
            .field("token", &Hidden(self.token.len()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_values_passwords_and_tokens() {
        let pair = KeyValue { key: "/a".into(), value: "SECRET".into(), ..KeyValue::default() };
        let answer = RangeResponse { kvs: vec![pair.clone()], ..RangeResponse::default() };
        let event = Event { kv: Some(pair.clone()), prev_kv: Some(pair), ..Event::default() };
        let request = AuthenticateRequest { name: "reader".into(), password: "SECRET".into() };
        let token = AuthenticateResponse { header: None, token: "SECRET".into() };
        let shown = format!("{answer:?} {event:#?} {request:?} {token:?}");
        assert!(!shown.contains("SECRET"), "{shown}");
        assert!(
            shown.contains("<6 bytes hidden>") && shown.contains("/a") && shown.contains("reader"),
            "{shown}"
        );
    }

    #[test]
    fn methods_stand_where_etcd_has_them() {
        assert_eq!(kv_server::SERVICE_NAME, "etcdserverpb.KV");
        assert_eq!(watch_server::SERVICE_NAME, "etcdserverpb.Watch");
        assert_eq!(auth_server::SERVICE_NAME, "etcdserverpb.Auth");
    }
}
