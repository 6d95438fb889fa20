//! What goes wrong with a running etcd. Classes come from codes and types, never from texts.
use std::error::Error as _;
use std::{fmt, io};

use rustls::{AlertDescription, CertificateError};
use tonic::{Code, Status};

use super::PageFault;
use crate::classify::Name;

/// Why a running etcd can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An endpoint that can't be one.
    #[error("endpoint {endpoint}: {what}")]
    Endpoint {
        /// As it was given.
        endpoint: String,
        /// What is wrong, and what to write.
        what: &'static str,
    },
    /// None at all.
    #[error("no endpoint of etcd was given: name at least one as https://HOST:PORT")]
    NoEndpoint,
    /// No member answers.
    #[error("no endpoint of etcd answers: {}", Listed(failures))]
    Unanswered {
        /// Each endpoint's.
        failures: Vec<Failure>,
    },
    /// Members of different clusters.
    #[error(
        "{one} is of etcd cluster {one_id:x}, and {other} of {other_id:x}: give endpoints of one cluster only"
    )]
    Clusters {
        /// An endpoint.
        one: String,
        /// Its cluster's number.
        one_id: u64,
        /// Another.
        other: String,
        /// Its cluster's number.
        other_id: u64,
    },
    /// A user that may not read.
    #[error(
        "{endpoint}: {} may not read {range} of etcd. Grant it (etcdctl role grant-permission ROLE read FROM TO), or \
         come as another user or with another client certificate",
        Who(user)
    )]
    Denied {
        /// Who said so.
        endpoint: String,
        /// Who may not; `None` if the client certificate says who it is.
        user: Option<String>,
        /// What.
        range: KeyRange,
    },
    /// A user or password that etcd does not know.
    #[error("{endpoint}: etcd does not take the password of user {user}: look at name and password file")]
    WrongUser {
        /// Who said so.
        endpoint: String,
        /// Who was not let in.
        user: String,
    },
    /// No user where one is needed.
    #[error(
        "{endpoint}: authentication is on in this etcd, and nobody was named: give --user and --password-file, or a \
         client certificate whose common name is a user"
    )]
    NoUser {
        /// Who said so.
        endpoint: String,
    },
    /// A revision that is not there.
    #[error(
        "{endpoint}: etcd no longer has revision {asked}, its newest is {newest}: it was restored from a backup \
         meanwhile. Begin again"
    )]
    NoRevision {
        /// Who said so.
        endpoint: String,
        /// Which was asked for.
        asked: u64,
        /// The newest that there is.
        newest: u64,
    },
    /// A member that does not catch up.
    #[error(
        "{endpoint}: has not come to revision {asked} that other members have: it lags, or is cut off. Name others"
    )]
    Lags {
        /// Who.
        endpoint: String,
        /// Which revision was asked for.
        asked: u64,
    },
    /// One value larger than a message may be.
    #[error("{endpoint}: a value behind key {key} is larger than the {} MiB that are taken of one answer", limit >> 20)]
    TooLarge {
        /// Who has it.
        endpoint: String,
        /// The key where the page with it begins.
        key: String,
        /// Bytes.
        limit: usize,
    },
    /// An answer that can't be.
    #[error("{endpoint}: answered wrongly: {fault}. Nothing of it is used: it is no etcd, or a broken one")]
    Page {
        /// Who.
        endpoint: String,
        /// What is wrong with it.
        fault: PageFault,
    },
    /// Anything else that etcd refuses with.
    #[error("{endpoint}: refused with code {code:?}: {message}")]
    Refused {
        /// Who.
        endpoint: String,
        /// gRPC's code.
        code: Code,
        /// What it says, for people.
        message: String,
    },
    /// The system gives no randomness, or the like.
    #[error(transparent)]
    Store(#[from] crate::mvcc::Error),
}

/// Keys from one to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first.
    pub from: String,
    /// The one behind the last; `None` for one key.
    pub to: Option<String>,
}

/// Why one endpoint does not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{endpoint}: {fault}")]
pub struct Failure {
    /// Which.
    pub endpoint: String,
    /// Why.
    pub fault: Fault,
}

/// Why a connection or a request comes to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Nobody listens.
    #[error(
        "connection refused: nothing listens there. Look whether etcd runs, and for its --listen-client-urls"
    )]
    Refused,
    /// The network says no.
    #[error("can't be reached ({0}): look at host, port and network")]
    Network(io::ErrorKind),
    /// The name is unknown, or there is another fault before any byte of TLS.
    #[error("can't be reached: look at host, port and network")]
    Unreachable,
    /// No answer in time.
    #[error("did not answer in time: it hangs, or is cut off")]
    Silent,
    /// Its certificate is of nobody that is trusted.
    #[error("its certificate is not by an authority that --cacert names: give that of etcd's own authority")]
    Untrusted,
    /// Its certificate's time is over, or is not yet.
    #[error(
        "its certificate is expired or not yet valid, or this host's clock is wrong: renew etcd's certificate"
    )]
    Expired,
    /// Its certificate has other names.
    #[error("its certificate has another name: ask by a name that it has, or give that as --tls-server-name")]
    WrongName,
    /// Its certificate is wrong in another way.
    #[error("its certificate can't be used: {0}")]
    Certificate(String),
    /// It does not take our certificate.
    #[error(
        "does not take our client certificate ({0}): it is missing, expired, or not by the authority that etcd trusts; \
         give --cert and --key of one that is"
    )]
    OurCertificate(String),
    /// No TLS where it should be, or the other way round.
    #[error("does not speak TLS as it should: look whether it is http or https, and for the port ({0})")]
    NoTls(String),
    /// It is there, and says that it can't.
    #[error(
        "is there, but can't answer now: the cluster has no leader, or this member stops or is overloaded"
    )]
    Unavailable,
    /// The connection broke.
    #[error(
        "the connection broke. If it does so each time, look whether it is http or https, and for the port"
    )]
    Broken,
}

impl Fault {
    /// Whether trying again is of no use.
    pub fn is_lasting(&self) -> bool {
        matches!(
            self,
            Self::Untrusted
                | Self::Expired
                | Self::WrongName
                | Self::Certificate(_)
                | Self::OurCertificate(_)
                | Self::NoTls(_)
        )
    }

    /// Why a request did not come to an answer of etcd's; `None` if it did.
    pub(super) fn of(status: &Status) -> Option<Self> {
        match causes(status) {
            Some(fault) => Some(fault),
            None if status.code() == Code::Unavailable => Some(Self::Unavailable),
            None if matches!(status.code(), Code::DeadlineExceeded | Code::ResourceExhausted) => {
                Some(Self::Unavailable)
            }
            None if matches!(status.code(), Code::Cancelled | Code::Unknown | Code::Internal)
                && status.source().is_some() =>
            {
                Some(Self::Broken)
            }
            None => None,
        }
    }
}

impl Fault {
    /// Of a connection.
    pub(super) fn of_io(error: &io::Error) -> Self {
        // What an io::Error carries is not among its sources.
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(error) => tls(error),
            None => network(error.kind()),
        }
    }
}

/// The first cause that says what it is.
fn causes(status: &Status) -> Option<Fault> {
    let mut cause = status.source();
    let mut is_connecting = false;
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<rustls::Error>() {
            return Some(tls(error));
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(Fault::of_io(error));
        }
        is_connecting |= error.is::<tonic::ConnectError>();
        cause = error.source();
    }
    is_connecting.then_some(Fault::Unreachable)
}

fn network(kind: io::ErrorKind) -> Fault {
    match kind {
        io::ErrorKind::ConnectionRefused => Fault::Refused,
        io::ErrorKind::TimedOut => Fault::Silent,
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof
        | io::ErrorKind::NotConnected => Fault::Broken,
        kind => Fault::Network(kind),
    }
}

fn tls(error: &rustls::Error) -> Fault {
    match error {
        rustls::Error::InvalidCertificate(found) => match found {
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => Fault::Expired,
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Fault::Untrusted,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Fault::WrongName
            }
            other => Fault::Certificate(other.to_string()),
        },
        rustls::Error::AlertReceived(
            alert @ (AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied),
        ) => Fault::OurCertificate(format!("{alert:?}")),
        other => Fault::NoTls(other.to_string()),
    }
}

impl KeyRange {
    pub(super) fn new(key: &[u8], end: &[u8]) -> Self {
        let shown = |key: &[u8]| match key {
            [0] => "\\0".to_owned(),
            // A page begins right behind the last key of the one before.
            key => Name::new(key.strip_suffix(&[0]).unwrap_or(key)).to_string(),
        };
        Self { from: shown(key), to: (!end.is_empty()).then(|| shown(end)) }
    }
}

impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            Some(to) => write!(f, "keys from {} up to {to}", self.from),
            None => write!(f, "key {}", self.from),
        }
    }
}

struct Listed<'a>(&'a [Failure]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, failure) in self.0.iter().enumerate() {
            write!(f, "{}{failure}", if place == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

struct Who<'a>(&'a Option<String>);

impl fmt::Display for Who<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(user) => write!(f, "user {user}"),
            None => f.write_str("who the client certificate names"),
        }
    }
}
