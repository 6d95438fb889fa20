//! What can go wrong while a lab starts or runs, said so that the reader knows what to do next.

use std::{
    fmt, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitStatus,
};

/// Why the lab could not do what it was asked for.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tool or the Python environment is neither here nor could it be made.
    #[error(
        "{tool} could not be built: `{command}` ended with {status}\n{log_tail}\n\
         what to do: {remedy}"
    )]
    Build {
        /// Name and version.
        tool: String,
        /// The command that failed.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// Its last lines.
        log_tail: String,
        /// What helps most often.
        remedy: String,
    },

    /// `CASEMATE_CACHE`, `XDG_CACHE_HOME` and `HOME` are all unset.
    #[error(
        "no place for the cache: CASEMATE_CACHE, XDG_CACHE_HOME and HOME are all unset\n\
         what to do: set CASEMATE_CACHE to a folder of your own with about 1 GiB free"
    )]
    NoCache,

    /// A program ended while the lab waited for it.
    #[error(
        "{program} ended with {status} before {awaited}\n{log_tail}\n\
         the whole log is {}; a run that fails keeps it\nwhat to do: {remedy}",
        log.display()
    )]
    EndedEarly {
        /// Which program.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// What was waited for.
        awaited: String,
        /// Its last lines.
        log_tail: String,
        /// Where its log is.
        log: Box<Path>,
        /// What helps most often.
        remedy: String,
    },

    /// A program runs but did not get there within the bounded number of looks.
    #[error(
        "{program} runs, but {looks} looks were not enough until {awaited}\n{log_tail}\n\
         the whole log is {}; a run that fails keeps it\nwhat to do: {remedy}",
        log.display()
    )]
    NotReady {
        /// Which program.
        program: String,
        /// What was waited for.
        awaited: String,
        /// How often it was looked at.
        looks: u32,
        /// Its last lines.
        log_tail: String,
        /// Where its log is.
        log: Box<Path>,
        /// What helps most often.
        remedy: String,
    },

    /// A program did not end when it was asked to, and was killed.
    #[error(
        "{program} did not end within {looks} looks after {asked}, so it was killed\n{log_tail}\n\
         what to do: find what it waits for at the end of its log"
    )]
    DidNotEnd {
        /// Which program.
        program: String,
        /// How it was asked.
        asked: &'static str,
        /// How often it was looked at.
        looks: u32,
        /// Its last lines.
        log_tail: String,
    },

    /// A one-shot command failed.
    #[error("`{command}` ended with {status}: {stderr}")]
    Command {
        /// The command as typed.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it wrote to standard error.
        stderr: String,
    },

    /// A server did not do what it was asked for, or did not answer.
    #[error("`{request}` failed: {found}")]
    Request {
        /// Method and address.
        request: String,
        /// The status of the answer; nothing if there was none.
        status: Option<u16>,
        /// What it said, or why nobody answered.
        found: String,
    },

    /// A one-shot command answered what the lab can't read.
    #[error("`{command}` answered what the lab can't read: {found}")]
    Answer {
        /// The command as typed.
        command: String,
        /// What was wrong with the answer.
        found: String,
    },

    /// A program could not be started at all.
    #[error("{program} can't be started: {source}\nwhat to do: {remedy}")]
    Spawn {
        /// Which program.
        program: String,
        /// What the system said.
        source: io::Error,
        /// What helps most often.
        remedy: String,
    },

    /// A file or folder of the lab.
    #[error("can't {action} {}: {source}", path.display())]
    File {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// Every port that the lab uses is taken.
    #[error(
        "no free port on 127.0.0.1 between {first} and {last}\nwhat to do: end what listens there (`ss -ltnp`)"
    )]
    NoPort {
        /// First port looked at.
        first: u16,
        /// Last port looked at.
        last: u16,
    },

    /// A server of the lab's own can't listen.
    #[error("can't listen on {address}: {source}\nwhat to do: find who does with `ss -ltnp`")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },

    /// No API server has this number.
    #[error("the lab has no API server {index}: it has {count}, counted from 0")]
    NoApiserver {
        /// The number asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },

    /// The cryptographic library could not make a key or random bytes.
    #[error("can't make {what}: the cryptographic library refused")]
    Crypto {
        /// What was to be made.
        what: &'static str,
    },
}

/// What the lab's calls return.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// For `map_err` on a file operation.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::File { action, path, source }
    }

    /// Adds what a program that does not get ready answered last.
    pub(crate) fn with_last_answer(mut self, said: &str) -> Self {
        if let Error::NotReady { log_tail, .. } = &mut self {
            log_tail.push('\n');
            log_tail.push_str(said);
        }
        self
    }

    /// Somebody else took the port between our look and the server's start: worth another try
    /// with another port.
    pub(crate) fn is_taken_port(&self) -> bool {
        match self {
            Error::EndedEarly { log_tail, .. } => log_tail.contains("address already in use"),
            Error::Listen { source, .. } => source.kind() == io::ErrorKind::AddrInUse,
            _ => false,
        }
    }
}

/// As `Display`: what a test's `unwrap` prints is read by people, log lines and all.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
