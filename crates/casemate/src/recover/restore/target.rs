//! A fresh etcd, written to. Nothing else of Casemate does.
use casemate_census::etcd::{Client, Settings};
use casemate_wire::etcd::RangeRequest;
use casemate_wire::etcd_write::compare::{CompareResult, CompareTarget, TargetUnion};
use casemate_wire::etcd_write::kv_client::KvClient;
use casemate_wire::etcd_write::request_op::Request;
use casemate_wire::etcd_write::{Compare, PutRequest, RequestOp, TxnRequest};
use prost::bytes::Bytes;
use tonic::transport::Channel;
use zeroize::Zeroizing;

use crate::output::{Exit, Failure, Output};

/// Most keys of a transaction: etcd's default is 128 operations.
const MOST_KEYS: usize = 100;
/// Most bytes of one, unless one value has more: etcd's default is 1.5 MiB a request.
const MOST_BYTES: usize = 512 * 1024;

/// An etcd that had nothing below a prefix when it was first asked.
pub(super) struct Target {
    reads: Client,
    writes: KvClient<Channel>,
    prefix: String,
    timeout: std::time::Duration,
    batch: Vec<(Vec<u8>, Bytes)>,
    batch_bytes: usize,
    written: u64,
}

impl Target {
    /// Connects, and refuses an etcd that has anything below `prefix`.
    pub(super) async fn connect(settings: Settings, prefix: &str, output: &Output) -> Result<Self, Failure> {
        if settings.user.is_some() {
            let text = "--user: a fresh etcd has no users; restore first, then turn authentication on";
            return Err(Failure::new(Exit::Usage, &text));
        }
        let timeout = settings.timeout;
        let of_command_line = |error: casemate_census::etcd::Error| Failure::new(Exit::Usage, &error);
        let mut reads = Client::new(settings.clone()).map_err(of_command_line)?;
        let unreachable = |error: casemate_census::etcd::Error| Failure::new(Exit::Unknown, &error);
        for failure in reads.connect(prefix).await.map_err(unreachable)? {
            output.note(format_args!("{failure}; the other endpoints are asked"));
        }
        let endpoint = settings.endpoint(reads.endpoint()).map_err(of_command_line)?;
        let writes = KvClient::new(endpoint.connect_lazy());
        let (prefix, batch) = (prefix.to_owned(), Vec::new());
        let mut target = Self { reads, writes, prefix, timeout, batch, batch_bytes: 0, written: 0 };
        match target.count().await? {
            0 => Ok(target),
            found => {
                let text = format_args!(
                    "{}: it has {found} keys below {}, and only an empty etcd is restored to: start one with a new data folder",
                    target.endpoint(),
                    target.prefix
                );
                Err(Failure::new(Exit::No, &text))
            }
        }
    }

    /// Who is asked.
    pub(super) fn endpoint(&self) -> &str {
        self.reads.endpoint()
    }

    /// How many keys are there.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Writes a key that is not there, together with others.
    pub(super) async fn put(&mut self, key: &[u8], mut value: Zeroizing<Vec<u8>>) -> Result<(), Failure> {
        let bytes = key.len() + value.len();
        if self.batch.len() == MOST_KEYS || self.batch_bytes + bytes > MOST_BYTES {
            self.flush().await?;
        }
        self.batch_bytes += bytes;
        self.batch.push((key.to_vec(), std::mem::take(&mut *value).into()));
        Ok(())
    }

    /// Writes what waits, and looks whether all of it is there.
    pub(super) async fn finish(&mut self) -> Result<(), Failure> {
        self.flush().await?;
        let found = self.count().await?;
        if found != self.written {
            let text =
                format!("{} keys were written, and it has {found}: somebody else writes to it", self.written);
            return Err(self.broken(&text));
        }
        Ok(())
    }

    /// What to do when it ends before all is there.
    pub(super) fn broken(&self, error: &dyn std::fmt::Display) -> Failure {
        let text = format_args!(
            "{}: {error}. At least {} keys are written, and not all: this etcd is no cluster yet. Start one with a new data \
             folder, and restore again",
            self.endpoint(),
            self.written
        );
        Failure::new(Exit::Unknown, &text)
    }

    /// One transaction, of all or nothing.
    async fn flush(&mut self) -> Result<(), Failure> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        if batch.is_empty() {
            return Ok(());
        }
        let count = batch.len() as u64;
        let mut request = TxnRequest::default();
        if self.written == 0 {
            // Nothing is below the prefix even now.
            request.compare.push(is_absent(below(&self.prefix), end_of(&self.prefix)));
        }
        for (key, value) in batch {
            let key = Bytes::from(key);
            request.compare.push(is_absent(key.clone(), Bytes::new()));
            let put = PutRequest { key, value, lease: 0 };
            request.success.push(RequestOp { request: Some(Request::RequestPut(put)) });
        }
        let answer = tokio::time::timeout(self.timeout, self.writes.txn(request)).await;
        let answer = answer
            .map_err(|_| {
                self.broken(&"it did not answer in time, so that the last keys may be there or not")
            })?
            .map_err(|status| {
                self.broken(&format_args!("{} ({:?})", status.message().escape_debug(), status.code()))
            })?;
        if !answer.into_inner().succeeded {
            return Err(self.broken(&"it has a key that was not there before: somebody else writes to it"));
        }
        self.written += count;
        Ok(())
    }

    async fn count(&mut self) -> Result<u64, Failure> {
        let request = RangeRequest {
            key: below(&self.prefix),
            range_end: end_of(&self.prefix),
            count_only: true,
            ..RangeRequest::default()
        };
        let answer = self.reads.range(&request).await;
        let answer = answer.map_err(|error| Failure::new(Exit::Unknown, &error))?;
        Ok(u64::try_from(answer.count).unwrap_or_default())
    }
}

fn below(prefix: &str) -> Bytes {
    format!("{prefix}/").into()
}

/// The first key behind those below `prefix`: `0` follows `/`.
fn end_of(prefix: &str) -> Bytes {
    format!("{prefix}0").into()
}

/// Holds if none of these keys is there.
fn is_absent(key: Bytes, range_end: Bytes) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Version.into(),
        key,
        range_end,
        target_union: Some(TargetUnion::Version(0)),
    }
}
