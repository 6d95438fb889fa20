//! Secrets and ConfigMaps, as kube-apiserver encodes and encrypts them, written to etcd in large transactions.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use anyhow::Context as _;
use casemate_wire::etcd_write::kv_client::KvClient;
use casemate_wire::etcd_write::{PutRequest, RequestOp, TxnRequest, request_op};
use prost::Message;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tonic::transport::Endpoint;

use super::super::daemon::Stored;
use crate::Lab;

/// Below which key they are. Not where an API server has its objects: one on the same etcd would keep all of these in its
/// caches.
pub(super) const PREFIX: &str = "/bench";
/// Bytes of an object.
pub(super) const OBJECT: usize = 1024;
/// In one transaction: etcd takes 128.
const TOGETHER: usize = 100;
/// Transactions at a time.
const IN_FLIGHT: usize = 8;

pub(super) fn fill(
    lab: &Lab,
    runtime: &Runtime,
    sources: &Arc<Vec<Stored>>,
    objects: Range<usize>,
) -> anyhow::Result<()> {
    let endpoint = lab.etcd().endpoint();
    runtime.block_on(async {
        let client = KvClient::new(Endpoint::from_shared(endpoint)?.connect().await?);
        let mut writers = JoinSet::new();
        for begin in objects.clone().step_by(TOGETHER) {
            if writers.len() == IN_FLIGHT {
                writers.join_next().await.context("no writer")???;
            }
            let (mut client, sources) = (client.clone(), sources.clone());
            let end = objects.end.min(begin + TOGETHER);
            writers.spawn(async move {
                let puts = (begin..end).map(|number| put(&sources[number % sources.len()], number));
                let success = puts.collect::<anyhow::Result<_>>()?;
                client.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
                anyhow::Ok(())
            });
        }
        while let Some(written) = writers.join_next().await {
            written??;
        }
        Ok(())
    })
}

/// The key in etcd of object `number`.
pub(super) fn key(number: usize) -> String {
    let resource = ["secrets", "configmaps"][number % 2];
    format!("{PREFIX}/{resource}/{}/{}", namespace(number), name(number))
}

fn namespace(number: usize) -> String {
    format!("team-{:04}", number % 1000)
}

fn name(number: usize) -> String {
    format!("object-{number:08}")
}

fn put(source: &Stored, number: usize) -> anyhow::Result<RequestOp> {
    let (key, kind) = (key(number), ["Secret", "ConfigMap"][number % 2]);
    let value = source.encrypt(&key, &object(kind, &namespace(number), &name(number)))?;
    let put = PutRequest { key: key.into_bytes().into(), value: value.into(), lease: 0 };
    Ok(RequestOp { request: Some(request_op::Request::RequestPut(put)) })
}

/// Of exactly [`OBJECT`] bytes.
fn object(kind: &str, namespace: &str, name: &str) -> Vec<u8> {
    let with = |filler: usize| {
        let metadata = ObjectMeta { name: name.to_owned(), namespace: namespace.to_owned() };
        let data = BTreeMap::from([("value".to_owned(), vec![b'.'; filler])]);
        let raw = Data { metadata: Some(metadata), data }.encode_to_vec();
        let type_meta = TypeMeta { api_version: "v1".to_owned(), kind: kind.to_owned() };
        let mut object = b"k8s\0".to_vec();
        // Writing to a Vec can't fail.
        let _ = Unknown { type_meta: Some(type_meta), raw }.encode(&mut object);
        object
    };
    // All lengths in it have two bytes, with the one filler and with the other.
    const ABOUT: usize = OBJECT - 150;
    with(ABOUT + OBJECT - with(ABOUT).len())
}

/// `runtime.Unknown` of Kubernetes, and so on.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

/// What a Secret and a ConfigMap have alike.
#[derive(Clone, PartialEq, Message)]
struct Data {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(btree_map = "string, bytes", tag = "2")]
    data: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct ObjectMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_has_the_size_that_is_told() {
        for kind in ["Secret", "ConfigMap"] {
            assert_eq!(object(kind, "team-0001", "object-00000001").len(), OBJECT);
        }
    }
}
