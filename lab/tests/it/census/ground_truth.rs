//! Writes to a real etcd, and remembers what it wrote.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use casemate_lab::Etcd;
use serde_json::{Value, json};

/// Of a value: enough to tell it from every other.
pub(super) type Sha256 = [u8; 32];

pub(super) fn sha256(value: &[u8]) -> Sha256 {
    digest(&SHA256, value).as_ref().try_into().unwrap()
}

/// One change, as etcd should have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) revision: (u64, u64),
    pub(super) key: String,
    /// `None` for a deletion.
    pub(super) value: Option<Sha256>,
    pub(super) lease: i64,
}

/// A writer with a memory.
pub(super) struct GroundTruth {
    endpoint: String,
    client: reqwest::Client,
    runtime: tokio::runtime::Runtime,
    pub(super) changes: Vec<Change>,
    pub(super) compacted: u64,
}

/// What one transaction does.
#[derive(Default)]
pub(super) struct Transaction {
    requests: Vec<Value>,
    changes: Vec<(String, Option<Sha256>, i64)>,
}

impl Transaction {
    pub(super) fn put(&mut self, key: impl Into<String>, value: &[u8], lease: i64) {
        let key = key.into();
        let request =
            json!({ "key": STANDARD.encode(&key), "value": STANDARD.encode(value), "lease": lease });
        self.requests.push(json!({ "requestPut": request }));
        self.changes.push((key, Some(sha256(value)), lease));
    }

    pub(super) fn delete(&mut self, key: impl Into<String>) {
        let key = key.into();
        self.requests.push(json!({ "requestDeleteRange": { "key": STANDARD.encode(&key) } }));
        self.changes.push((key, None, 0));
    }
}

impl GroundTruth {
    pub(super) fn of(etcd: &Etcd) -> Self {
        Self::at(&etcd.endpoint())
    }

    pub(super) fn at(endpoint: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (endpoint, client) = (endpoint.to_owned(), reqwest::Client::new());
        Self { endpoint, client, runtime, changes: Vec::new(), compacted: 0 }
    }

    /// Does all of it in one revision.
    pub(super) fn commit(&mut self, transaction: Transaction) -> u64 {
        let answer = self.post("kv/txn", &json!({ "success": transaction.requests }));
        let main = number(&answer["header"]["revision"]);
        for (sub, (key, value, lease)) in (0..).zip(transaction.changes) {
            self.changes.push(Change { revision: (main, sub), key, value, lease });
        }
        main
    }

    pub(super) fn lease(&self) -> i64 {
        number(&self.post("lease/grant", &json!({ "TTL": 3600 }))["ID"]) as i64
    }

    /// Waits until what was overwritten up to `revision` is gone.
    pub(super) fn compact(&mut self, revision: u64) {
        self.post("kv/compaction", &json!({ "revision": revision, "physical": true }));
        self.compacted = revision;
    }

    /// Each key as it should be now.
    pub(super) fn live(&self) -> BTreeMap<String, Change> {
        let mut live = BTreeMap::new();
        for change in &self.changes {
            match change.value {
                Some(_) => live.insert(change.key.clone(), change.clone()),
                None => live.remove(&change.key),
            };
        }
        live
    }

    /// What a compaction leaves: the newest value of each key at it, and every change after it.
    pub(super) fn uncompacted(&self) -> Vec<Change> {
        let (before, after): (Vec<Change>, Vec<Change>) =
            self.changes.iter().cloned().partition(|change| change.revision.0 <= self.compacted);
        let newest: BTreeMap<String, Change> =
            before.into_iter().map(|change| (change.key.clone(), change)).collect();
        let mut left: Vec<Change> = newest.into_values().filter(|change| change.value.is_some()).collect();
        left.extend(after);
        left.sort_by_key(|change| change.revision);
        left
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let request = self.client.post(format!("{}/v3/{path}", self.endpoint)).body(body.to_string());
        let text = self.runtime.block_on(async { request.send().await?.error_for_status()?.text().await });
        serde_json::from_str(&text.unwrap()).unwrap()
    }
}

/// Numbers of 64 bits are text in etcd's JSON.
fn number(value: &Value) -> u64 {
    value.as_str().unwrap().parse().unwrap()
}
