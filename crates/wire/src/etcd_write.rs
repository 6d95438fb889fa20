//! etcd's v3 API, as far as it writes keys: messages and client of `/etcdserverpb.KV/{Put,DeleteRange,Txn}`.
//!
//! Apart from [`etcd`](crate::etcd), so that what only reads can't be made to write. The messages and their fields are
//! explained in `proto/etcd_write.proto`, from which they are generated. A value is in no `Debug` output.
use std::fmt;

use crate::hidden::Hidden;

#[allow(missing_docs, unreachable_pub, clippy::all)]
#[rustfmt::skip]
mod generated;

pub use generated::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RequestOp, ResponseHeader,
    ResponseOp, TxnRequest, TxnResponse, compare, kv_client, kv_server, request_op, response_op,
};

impl fmt::Debug for PutRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutRequest")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("value", &Hidden(self.value.len()))
            .field("lease", &self.lease)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_values() {
        let put = PutRequest { key: "/a".into(), value: "SECRET".into(), lease: 0 };
        let request = RequestOp { request: Some(request_op::Request::RequestPut(put)) };
        let shown = format!("{:?}", TxnRequest { success: vec![request], ..TxnRequest::default() });
        assert!(
            shown.contains("/a") && shown.contains("<6 bytes hidden>") && !shown.contains("SECRET"),
            "{shown}"
        );
    }
}
