//! What one provider served, in atomics alone: counting costs no lock and no allocation, whatever a client sends.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

/// Upper bounds of the latency histogram, in microseconds: a call is answered from memory, or waits for a key service.
const BOUNDS: [u64; 14] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 250_000, 1_000_000, 2_500_000,
    10_000_000,
];
const CODES: usize = 17;

tokio::task_local! {
    /// Whether a handler counts the call that runs.
    static BEGUN: Cell<bool>;
}

/// The calls of KMS v2, and what is none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Which key id would write.
    Status,
    /// Seal.
    Encrypt,
    /// Open.
    Decrypt,
    /// Whatever else a client asks for.
    Other,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Status, Self::Encrypt, Self::Decrypt, Self::Other];

    /// The one that is called at this path.
    pub fn at(path: &str) -> Self {
        match path {
            "/v2.KeyManagementService/Status" => Self::Status,
            "/v2.KeyManagementService/Encrypt" => Self::Encrypt,
            "/v2.KeyManagementService/Decrypt" => Self::Decrypt,
            _ => Self::Other,
        }
    }

    /// As in logs, in metrics and in the interface definition.
    pub fn name(self) -> &'static str {
        match self {
            Self::Status => "Status",
            Self::Encrypt => "Encrypt",
            Self::Decrypt => "Decrypt",
            Self::Other => "other",
        }
    }
}

/// What was served since the start.
#[derive(Debug, Default)]
pub struct Traffic {
    calls: [Calls; Method::ALL.len()],
    in_flight: AtomicU64,
    connections: Connections,
}

#[derive(Debug, Default)]
struct Calls {
    by_code: [AtomicU64; CODES],
    /// One more than bounds: what took longer than all.
    by_latency: [AtomicU64; BOUNDS.len() + 1],
    microseconds: AtomicU64,
}

/// Latencies of one method.
#[derive(Clone, Debug, PartialEq)]
pub struct Latencies {
    /// Of all calls together, in seconds.
    pub sum: f64,
    /// Upper bound in seconds (the last one infinite), and the calls in this bucket alone.
    pub buckets: Vec<(f64, u64)>,
}

impl Traffic {
    /// A call has begun. It counts when the answer is told with [`Call::end`], or as cancelled when it is dropped
    /// before: the client went away or its deadline passed.
    pub fn begin(&self, method: Method) -> Call<'_> {
        // Elsewhere than in `and_whether_begun` nobody asks.
        let _ = BEGUN.try_with(|begun| begun.set(true));
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let calls = &self.calls[method as usize];
        Call { calls, in_flight: &self.in_flight, started: Instant::now(), code: Code::Cancelled }
    }

    /// A call has ended that nobody began.
    pub fn count(&self, method: Method, code: Code, took: Duration) {
        self.calls[method as usize].count(code, took);
    }

    /// Calls of `method` by code; codes that never occurred are left out.
    pub fn by_code(&self, method: Method) -> Vec<(Code, u64)> {
        let counts = self.calls[method as usize].by_code.iter().enumerate();
        counts
            .map(|(code, count)| (Code::from(code as i32), count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    /// How long calls of `method` took.
    pub fn latencies(&self, method: Method) -> Latencies {
        let calls = &self.calls[method as usize];
        let bounds = BOUNDS.iter().map(|micros| *micros as f64 / 1e6).chain([f64::INFINITY]);
        let counts = calls.by_latency.iter().map(|count| count.load(Ordering::Relaxed));
        Latencies {
            sum: calls.microseconds.load(Ordering::Relaxed) as f64 / 1e6,
            buckets: bounds.zip(counts).collect(),
        }
    }

    /// Calls that have begun and not ended.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Calls that have ended, whatever came of them.
    pub fn answered(&self) -> u64 {
        let counts = self.calls.iter().flat_map(|calls| &calls.by_code);
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Connections of its socket.
    pub fn connections(&self) -> &Connections {
        &self.connections
    }
}

impl Calls {
    fn count(&self, code: Code, took: Duration) {
        let took = micros(took);
        let bucket = BOUNDS.iter().position(|bound| took <= *bound).unwrap_or(BOUNDS.len());
        self.by_latency[bucket].fetch_add(1, Ordering::Relaxed);
        self.microseconds.fetch_add(took, Ordering::Relaxed);
        if let Some(count) = self.by_code.get(code as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A call that is being served.
#[derive(Debug)]
pub struct Call<'a> {
    calls: &'a Calls,
    in_flight: &'a AtomicU64,
    started: Instant,
    code: Code,
}

impl Call<'_> {
    /// The answer is known.
    pub fn end(mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.calls.count(self.code, self.started.elapsed());
    }
}

/// Runs `call`, within which [`begun`] tells whether it was begun; also while it is dropped.
pub(crate) fn and_whether_begun<F: Future>(call: F) -> impl Future<Output = F::Output> {
    BEGUN.scope(Cell::new(false), call)
}

/// Whether the call that runs here was begun with [`Traffic::begin`].
pub(crate) fn begun() -> bool {
    BEGUN.try_with(Cell::get).unwrap_or(false)
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

/// The name of a code as gRPC and kube-apiserver's metrics write it.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

/// Connections of one socket.
#[derive(Debug, Default)]
pub struct Connections {
    accepted: AtomicU64,
    open: AtomicU64,
    refused_peers: AtomicU64,
    refused_excess: AtomicU64,
}

impl Connections {
    /// Accepted since the start.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Open now.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Closed at once since the start, because the peer is not on the list.
    pub fn refused_peers(&self) -> u64 {
        self.refused_peers.load(Ordering::Relaxed)
    }

    /// Closed at once since the start, because all places were taken.
    pub fn refused_excess(&self) -> u64 {
        self.refused_excess.load(Ordering::Relaxed)
    }

    pub(crate) fn refuse_peer(&self) {
        self.refused_peers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refuse_excess(&self) {
        self.refused_excess.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts one connection as long as it lives.
#[derive(Debug)]
pub struct Counted(Arc<Traffic>);

impl Counted {
    /// One more.
    pub fn new(traffic: Arc<Traffic>) -> Self {
        traffic.connections.accepted.fetch_add(1, Ordering::Relaxed);
        traffic.connections.open.fetch_add(1, Ordering::Relaxed);
        Self(traffic)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_place_and_a_name() {
        let traffic = Traffic::default();
        let mut names = std::collections::BTreeSet::new();
        for number in 0..CODES as i32 {
            traffic.begin(Method::Decrypt).end(Code::from(number));
            names.insert(code_name(Code::from(number)));
        }
        assert_eq!(names.len(), CODES);
        let counted = traffic.by_code(Method::Decrypt);
        assert_eq!(counted.len(), CODES);
        assert!(counted.iter().all(|(_, count)| *count == 1));
        assert!(traffic.by_code(Method::Encrypt).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_falls_into_the_bucket_of_its_time() {
        let traffic = Traffic::default();
        for millis in [0, 3, 20_000] {
            let call = traffic.begin(Method::Encrypt);
            tokio::time::advance(Duration::from_millis(millis)).await;
            call.end(Code::Ok);
        }
        let latencies = traffic.latencies(Method::Encrypt);
        let hit: Vec<f64> = latencies.buckets.iter().filter(|(_, n)| *n == 1).map(|(le, _)| *le).collect();
        assert_eq!((hit, latencies.sum), (vec![0.000_05, 0.005, f64::INFINITY], 20.003));
    }

    #[test]
    fn a_call_that_is_given_up_was_cancelled() {
        let traffic = Traffic::default();
        drop(traffic.begin(Method::Status));
        assert_eq!(traffic.by_code(Method::Status), [(Code::Cancelled, 1)]);
    }

    #[test]
    fn connections_are_counted_while_they_live() {
        let traffic = Arc::new(Traffic::default());
        let both = [Counted::new(traffic.clone()), Counted::new(traffic.clone())];
        assert_eq!((traffic.connections().open(), traffic.connections().accepted()), (2, 2));
        drop(both);
        assert_eq!((traffic.connections().open(), traffic.connections().accepted()), (0, 2));
    }
}
