//! What peers may take: of one connection, and of the process's descriptors.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tonic::transport::Server;

/// Calls at a time on one connection. kube-apiserver has one connection; more calls wait on its side, where they cost
/// it CPU and us the tail: with 256, and 500 in flight, its own CPU a call was 1.05 to 1.2 times what it is before a
/// plugin without a limit, and p99 1.05 to 1.3 times. So it is more than the most that we measure.
///
/// What the worst peer can make us hold: for each call its headers ([`MAX_HEADERS_LEN`]), a message that never ends
/// (64 KiB, a longer one is refused at its length), and a frame; 88 KiB, so 44 MiB a connection, until [`CALL_WITHIN`]
/// ends them. All `maxConnections` (128 if nothing is said) together: 5.5 GiB. Who may connect may also decrypt, so this
/// is a bound for programs that fail rather than for enemies; `MemoryMax=` in a unit is one for all.
pub const MAX_STREAMS: u32 = 512;
/// How often a silent peer is asked whether it lives. It costs an idle one a frame of 17 bytes.
pub const ALIVE_EVERY: Duration = Duration::from_secs(30);
/// How long it may take to say so.
pub const ALIVE_WITHIN: Duration = Duration::from_secs(20);
/// How long one call may take, its message that never comes too; kube-apiserver waits 3 s unless it is told to wait
/// longer.
pub const CALL_WITHIN: Duration = Duration::from_secs(60);
/// The largest frame; the least that HTTP/2 allows.
const MAX_FRAME_LEN: u32 = 16 * 1024;
/// All headers of a call; kube-apiserver sends less than 300 bytes.
const MAX_HEADERS_LEN: u32 = 8 * 1024;
/// What may be under way to us in one call: the largest message that is read.
const STREAM_WINDOW: u32 = 128 * 1024;
/// The same on a whole connection.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Descriptors for all that is no connection of kube-apiserver: admin socket, key files, state, runtime.
const OTHER_DESCRIPTORS: u64 = 96;

/// The transport with all its limits, for one provider.
pub fn transport() -> Server {
    Server::builder()
        .timeout(CALL_WITHIN)
        .max_concurrent_streams(MAX_STREAMS)
        .http2_keepalive_interval(Some(ALIVE_EVERY))
        .http2_keepalive_timeout(Some(ALIVE_WITHIN))
        .http2_max_header_list_size(MAX_HEADERS_LEN)
        .max_frame_size(MAX_FRAME_LEN)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
}

/// More connections are configured than this process may have descriptors.
#[derive(Debug, thiserror::Error)]
#[error(
    "maxConnections of all providers and what else is open need {needed} file descriptors, and this process may have \
     {allowed}; lower maxConnections, or raise the limit (LimitNOFILE= of the unit)"
)]
pub struct TooFewDescriptors {
    /// So many are needed.
    pub needed: u64,
    /// The hard limit.
    pub allowed: u64,
}

impl TooFewDescriptors {
    /// Of a process that is started with the same limits as this one; changes nothing.
    pub fn foreseen(connections: u64) -> Option<Self> {
        let needed = needed(connections);
        getrlimit(Resource::Nofile)
            .maximum
            .filter(|allowed| *allowed < needed)
            .map(|allowed| Self { needed, allowed })
    }
}

/// Raises the limit of open files as far as the system lets us, and sees that so many connections fit.
///
/// # Errors
/// [`TooFewDescriptors`].
pub fn make_room(connections: u64) -> Result<(), TooFewDescriptors> {
    let limit = getrlimit(Resource::Nofile);
    let needed = needed(connections);
    if let Some(foreseen) = TooFewDescriptors::foreseen(connections) {
        return Err(foreseen);
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    match (raised, limit.current) {
        // Without it, what was allowed before is.
        (Err(_), Some(allowed)) if allowed < needed => Err(TooFewDescriptors { needed, allowed }),
        _ => Ok(()),
    }
}

fn needed(connections: u64) -> u64 {
    connections.saturating_add(OTHER_DESCRIPTORS)
}
