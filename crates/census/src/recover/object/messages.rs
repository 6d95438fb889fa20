//! Messages of Kubernetes, by the names and numbers of its `generated.proto` files (`runtime`, `meta/v1`, `core/v1`).
//! Strings are optional, so that what was written empty is told from what was not written.
//!
//! None has `Debug`: they hold secrets.
use std::collections::BTreeMap;

use prost::Message;

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct Unknown {
    #[prost(message, optional, tag = "1")]
    pub(crate) type_meta: Option<TypeMeta>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(crate) raw: Option<Vec<u8>>,
    #[prost(string, optional, tag = "3")]
    pub(crate) content_encoding: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(crate) content_type: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub(crate) struct TypeMeta {
    #[prost(string, optional, tag = "1")]
    pub(crate) api_version: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(crate) kind: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct Secret {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<ObjectMeta>,
    #[prost(btree_map = "string, bytes", tag = "2")]
    pub(crate) data: BTreeMap<String, Vec<u8>>,
    #[prost(string, optional, tag = "3")]
    pub(crate) r#type: Option<String>,
    #[prost(bool, optional, tag = "5")]
    pub(crate) immutable: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct ConfigMap {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<ObjectMeta>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub(crate) data: BTreeMap<String, String>,
    #[prost(btree_map = "string, bytes", tag = "3")]
    pub(crate) binary_data: BTreeMap<String, Vec<u8>>,
    #[prost(bool, optional, tag = "4")]
    pub(crate) immutable: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct ObjectMeta {
    #[prost(string, optional, tag = "1")]
    pub(crate) name: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(crate) generate_name: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(crate) namespace: Option<String>,
    #[prost(string, optional, tag = "5")]
    pub(crate) uid: Option<String>,
    #[prost(int64, optional, tag = "7")]
    pub(crate) generation: Option<i64>,
    #[prost(message, optional, tag = "8")]
    pub(crate) creation_timestamp: Option<Time>,
    #[prost(message, optional, tag = "9")]
    pub(crate) deletion_timestamp: Option<Time>,
    #[prost(int64, optional, tag = "10")]
    pub(crate) deletion_grace_period_seconds: Option<i64>,
    #[prost(btree_map = "string, string", tag = "11")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    pub(crate) owner_references: Vec<OwnerReference>,
    #[prost(string, repeated, tag = "14")]
    pub(crate) finalizers: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub(crate) struct Time {
    #[prost(int64, optional, tag = "1")]
    pub(crate) seconds: Option<i64>,
    #[prost(int32, optional, tag = "2")]
    pub(crate) nanos: Option<i32>,
}

#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub(crate) struct OwnerReference {
    #[prost(string, optional, tag = "1")]
    pub(crate) kind: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(crate) name: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(crate) uid: Option<String>,
    #[prost(string, optional, tag = "5")]
    pub(crate) api_version: Option<String>,
    #[prost(bool, optional, tag = "6")]
    pub(crate) controller: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    pub(crate) block_owner_deletion: Option<bool>,
}
