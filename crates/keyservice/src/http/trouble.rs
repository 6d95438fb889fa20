//! Why there is no answer.

use std::error::Error;
use std::io;

use rustix::io::Errno;
use rustls::{AlertDescription, InvalidMessage};

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Our certificate files can't be used: nobody was asked.
    Files(String),
    /// TLS was begun, and what answers speaks none: nothing was sent.
    NoTls,
    /// We don't accept the server's certificate, or it does not accept ours.
    Protection(String),
    /// It sends more than anybody needs.
    TooLong,
    /// The connection does not come about: nothing was sent.
    Unconnected(String),
    /// This machine has no way there, or does not let us take it: nothing was sent.
    Barred(String),
    /// The connection breaks: whoever is there may have done what was asked.
    Unreachable(String),
}

impl Trouble {
    /// Whether the server may have done what was asked. Not where either side does not accept the other.
    pub(crate) fn may_be_done(&self) -> bool {
        matches!(self, Self::TooLong | Self::Unreachable(_))
    }

    /// Whether other certificate files may help.
    pub(super) fn is_of_certificates(&self) -> bool {
        matches!(self, Self::Files(_) | Self::Protection(_))
    }

    /// Says what is wrong with certificate files too, where it may be the reason.
    pub(super) fn with(self, complaint: Option<String>) -> Self {
        match (self, complaint) {
            (Self::Protection(what), Some(complaint)) if what != complaint => {
                Self::Protection(format!("{what} ({complaint})"))
            }
            (trouble, _) => trouble,
        }
    }
}

impl From<reqwest::Error> for Trouble {
    fn from(error: reqwest::Error) -> Self {
        // The address is said by who calls; what else stands in a URL is nobody's business.
        let error = error.without_url();
        let what = match tls_error(&error) {
            Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) if error.is_connect() => {
                return Self::NoTls;
            }
            Some(tls) if is_protection(tls) => return Self::Protection(format!("TLS: {tls}")),
            Some(tls) => format!("TLS: {tls}"),
            None => chain(&error),
        };
        match error.is_connect() {
            true if is_barred(&error) => Self::Barred(what),
            true => Self::Unconnected(what),
            false => Self::Unreachable(what),
        }
    }
}

/// Whether this error comes of TLS that the server speaks: it shows a certificate, or says no in the way of TLS.
pub(super) fn is_of_a_server_with_tls(error: &reqwest::Error) -> bool {
    tls_error(error).is_some_and(|tls| is_protection(tls) || matches!(tls, rustls::Error::AlertReceived(_)))
}

/// What a unit's PrivateNetwork=, RestrictAddressFamilies= and IPAddressDeny= come to.
fn is_barred(error: &(dyn Error + 'static)) -> bool {
    let errno = error.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
    matches!(errno, Some(Errno::NETUNREACH | Errno::AFNOSUPPORT | Errno::PERM))
        || error.source().is_some_and(is_barred)
}

fn is_protection(error: &rustls::Error) -> bool {
    use AlertDescription::{
        AccessDenied, BadCertificate, BadCertificateStatusResponse, CertificateExpired, CertificateRequired,
        CertificateRevoked, CertificateUnknown, CertificateUnobtainable, DecryptError, HandshakeFailure,
        InsufficientSecurity, NoCertificate, ProtocolVersion, UnknownCA, UnsupportedCertificate,
    };
    match error {
        rustls::Error::InvalidCertificate(_)
        | rustls::Error::NoCertificatesPresented
        | rustls::Error::UnsupportedNameType
        | rustls::Error::PeerIncompatible(_) => true,
        rustls::Error::AlertReceived(alert) => matches!(
            alert,
            AccessDenied
                | BadCertificate
                | BadCertificateStatusResponse
                | CertificateExpired
                | CertificateRequired
                | CertificateRevoked
                | CertificateUnknown
                | CertificateUnobtainable
                | DecryptError
                | HandshakeFailure
                | InsufficientSecurity
                | NoCertificate
                | ProtocolVersion
                | UnknownCA
                | UnsupportedCertificate
        ),
        _ => false,
    }
}

/// The error of the TLS library below `error`. An `io::Error` hides the one that it carries from `source`.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(found) = error.downcast_ref() {
        return Some(found);
    }
    let carried = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    carried
        .and_then(|carried| tls_error(carried))
        .or_else(|| error.source().and_then(|source| tls_error(source)))
}

/// All that is said from `error` down, each sentence once.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut said = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let text = error.to_string();
        if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
        next = error.source();
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);

    #[test]
    fn what_bars_a_connection_is_told_by_its_number_wherever_it_stands() {
        let of = |errno: Errno| Outer(io::Error::from(errno));
        for errno in [Errno::NETUNREACH, Errno::AFNOSUPPORT, Errno::PERM] {
            assert!(is_barred(&of(errno)), "{errno:?}");
            assert!(is_barred(&io::Error::from(errno)), "{errno:?}");
        }
        // Confinement of our own (EACCES), a service that is down, a firewall far away.
        for errno in [Errno::ACCESS, Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::TIMEDOUT] {
            assert!(!is_barred(&of(errno)), "{errno:?}");
        }
        assert!(!is_barred(&Outer(io::Error::other("Network is unreachable (os error 101)"))));
    }
}
