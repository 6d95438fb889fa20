//! Ports on loopback that no other lab on this machine uses.

use std::{
    net::{Ipv4Addr, TcpListener},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
};

use crate::{Error, Result};

/// Below Linux's ephemeral range (from 32768), so that no outgoing connection takes a port while
/// its server restarts.
const FIRST: u16 = 20_000;
const LAST: u16 = 29_999;

/// A port that is ours until this is dropped.
///
/// The claim is a socket in the abstract namespace, named after the port: all labs of this machine
/// see it, whatever their user and cache, it leaves no file, and the kernel drops it when its
/// process ends. A server can so be restarted on its port without losing it to another lab.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _claim: UnixListener,
}

impl Port {
    /// The first port that no lab has claimed and nobody else listens on.
    pub(crate) fn claim() -> Result<Self> {
        for number in FIRST..=LAST {
            let name = format!("casemate-lab/port/{number}");
            let Ok(claim) = SocketAddr::from_abstract_name(name).and_then(|at| UnixListener::bind_addr(&at))
            else {
                continue;
            };
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _claim: claim });
            }
        }
        Err(Error::NoPort { first: FIRST, last: LAST })
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

/// Calls `start`, which claims its ports itself, and again when a program that is no lab took one
/// of them between the claim and the start.
pub(crate) fn retry_taken_port<T>(mut start: impl FnMut() -> Result<T>) -> Result<T> {
    const TRIES: u32 = 5;
    let mut tried = 0;
    loop {
        tried += 1;
        match start() {
            Err(error) if error.is_taken_port() && tried < TRIES => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{os::unix::process::ExitStatusExt as _, path::Path, process::ExitStatus};

    use super::*;

    fn taken() -> Error {
        Error::EndedEarly {
            program: "etcd".into(),
            status: ExitStatus::from_raw(256),
            awaited: "it listened".into(),
            log_tail: "listen tcp 127.0.0.1:20000: bind: address already in use".into(),
            log: Path::new("etcd.log").into(),
            remedy: String::new(),
        }
    }

    #[test]
    fn two_claims_never_share_a_port() {
        let (one, two) = (Port::claim().unwrap(), Port::claim().unwrap());
        assert_ne!(one.number(), two.number());
    }

    #[test]
    fn a_port_that_somebody_listens_on_is_passed_over() {
        let claim = Port::claim().unwrap();
        let number = claim.number();
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).unwrap();
        drop(claim);
        assert_ne!(Port::claim().unwrap().number(), number);
    }

    #[test]
    fn a_taken_port_is_tried_again_and_any_other_error_is_not() {
        let mut seen = 0;
        let done = retry_taken_port(|| {
            seen += 1;
            if seen < 3 { Err(taken()) } else { Ok(seen) }
        });
        assert_eq!(done.unwrap(), 3);

        let mut seen = 0;
        let done: Result<()> = retry_taken_port(|| {
            seen += 1;
            Err(Error::NoCache)
        });
        assert!(done.is_err());
        assert_eq!(seen, 1);

        let mut seen = 0;
        let done: Result<()> = retry_taken_port(|| {
            seen += 1;
            Err(taken())
        });
        assert!(done.unwrap_err().is_taken_port());
        assert_eq!(seen, 5);
    }
}
