//! Tries from inside what confinement must refuse.
//!
//! A program runs itself once for each [`Attempt`], because some end the process: [`Attempt::prepare`], then
//! [`crate::confine::confine`] as it does when it serves, then [`Prepared::go`]. Whoever started it judges what came of
//! it with [`Attempt::outcome`], and asks the [`KernelLog`] whether it is written there. Nothing that succeeds does
//! harm.

mod kernel_log;

use std::env;
use std::fs::{self, File};
use std::io::{self, IoSlice, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, Output, Stdio, id};

use nix::sys::ptrace;
use nix::unistd::Pid;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketType, connect, sendmsg_addr, sendto, socket,
};
use rustix::process::{
    PidfdFlags, PidfdGetfdFlags, getpid, getppid, pidfd_getfd, pidfd_open, test_kill_process,
};

pub use self::kernel_log::{KernelLog, Record};
use crate::confine::Folders;

const FAST_OPEN: SendFlags = SendFlags::from_bits_retain(libc::MSG_FASTOPEN.cast_unsigned());
/// What a [`Prepared::go`] prints that was not refused.
const SUCCEEDED: &str = "succeeded";

/// Something that a confined process can't do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Connect to an abstract socket of a process that is not confined.
    ConnectAbstract,
    /// Connect a TCP socket that was made before.
    ConnectTcp,
    /// Make a UDP socket.
    Datagram,
    /// Become another program.
    Execute,
    /// Connect such a socket by sending to an address: Landlock does not see it.
    FastOpen,
    /// The same, with a message.
    FastOpenMessage,
    /// Make a TCP socket.
    Internet,
    /// Make a socket that talks to the kernel.
    Netlink,
    /// Read a file outside the declared folders.
    Read,
    /// Send a signal to another process.
    Signal,
    /// Start another program.
    Spawn,
    /// Take an open file out of another process, as a debugger could.
    Take,
    /// Become the debugger of another process.
    Trace,
    /// Make a file outside the declared folders.
    Write,
}

/// What must come of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Must {
    /// The process is ended by the kernel.
    End,
    /// An error.
    Fail,
}

/// An attempt, with what it needs that can only be had before.
#[derive(Debug)]
pub enum Prepared {
    /// Needs nothing.
    Ready(Attempt),
    /// A listener, and its name.
    Abstract(UnixListener, String),
    /// A listener, and a socket for its port.
    Tcp(Attempt, TcpListener, OwnedFd),
    /// Another process.
    Process(OwnedFd),
}

/// What came of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether it is what must come of it.
    pub held: bool,
    /// For people.
    pub detail: String,
}

impl Attempt {
    /// Each one.
    pub const ALL: [Self; 14] = [
        Self::Execute,
        Self::Spawn,
        Self::Trace,
        Self::Take,
        Self::Signal,
        Self::Internet,
        Self::Datagram,
        Self::Netlink,
        Self::ConnectTcp,
        Self::FastOpen,
        Self::FastOpenMessage,
        Self::ConnectAbstract,
        Self::Read,
        Self::Write,
    ];

    /// Its word on a command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::ConnectAbstract => "connect-abstract",
            Self::ConnectTcp => "connect-tcp",
            Self::Datagram => "udp-socket",
            Self::Execute => "execute",
            Self::FastOpen => "fast-open",
            Self::FastOpenMessage => "fast-open-message",
            Self::Internet => "internet-socket",
            Self::Netlink => "netlink-socket",
            Self::Read => "read-outside",
            Self::Signal => "signal",
            Self::Spawn => "spawn",
            Self::Take => "take-descriptor",
            Self::Trace => "trace",
            Self::Write => "write-outside",
        }
    }

    /// The one of that word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|attempt| attempt.word() == word)
    }

    /// What must come of it in a process that is confined to `folders`; `None` if it may do that.
    pub fn must(self, folders: &Folders) -> Option<Must> {
        match self {
            Self::Datagram if folders.use_names() => None,
            // A library may try it.
            Self::Datagram if folders.use_network() => Some(Must::Fail),
            Self::Internet if folders.use_network() => None,
            Self::Datagram
            | Self::Execute
            | Self::FastOpen
            | Self::FastOpenMessage
            | Self::Internet
            | Self::Take
            | Self::Trace => Some(Must::End),
            Self::ConnectAbstract
            | Self::ConnectTcp
            | Self::Netlink
            | Self::Read
            | Self::Signal
            | Self::Spawn
            | Self::Write => Some(Must::Fail),
        }
    }

    /// To be called before the process is confined.
    ///
    /// # Errors
    /// If what it needs can't be had.
    pub fn prepare(self) -> io::Result<Prepared> {
        Ok(match self {
            Self::ConnectAbstract => {
                let name = format!("casemate-probe-{}", id());
                let address = UnixAddress::from_abstract_name(&name)?;
                Prepared::Abstract(UnixListener::bind_addr(&address)?, name)
            }
            Self::ConnectTcp | Self::FastOpen | Self::FastOpenMessage => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                Prepared::Tcp(self, listener, socket(AddressFamily::INET, SocketType::STREAM, None)?)
            }
            Self::Take => {
                let process = getppid().unwrap_or_else(getpid);
                Prepared::Process(pidfd_open(process, PidfdFlags::empty())?)
            }
            other => Prepared::Ready(other),
        })
    }

    /// Judges how the process ended that tried it, of which `must` was to come.
    pub fn outcome(must: Must, ended: &Output) -> Outcome {
        let printed = String::from_utf8_lossy(&ended.stdout);
        let printed = printed.trim();
        let failed = printed.strip_prefix("failed: ");
        match (must, ended.status.signal(), failed) {
            (Must::End, Some(libc::SIGSYS), _) => {
                Outcome { held: true, detail: "ended by the kernel".into() }
            }
            (Must::Fail, None, Some(error)) => Outcome { held: true, detail: format!("failed: {error}") },
            (_, None, None) if ended.status.success() => Outcome { held: false, detail: SUCCEEDED.into() },
            (_, None, Some(error)) => {
                Outcome { held: false, detail: format!("failed, but was to end the process: {error}") }
            }
            _ => {
                let told = String::from_utf8_lossy(&ended.stderr);
                Outcome { held: false, detail: format!("not tried: {}; {}", ended.status, told.trim()) }
            }
        }
    }
}

impl Prepared {
    /// Tries it, and prints what came of it for [`Attempt::outcome`].
    pub fn go(self) {
        match self.try_it() {
            Ok(()) => println!("{SUCCEEDED}"),
            Err(error) => println!("failed: {error}"),
        }
    }

    fn try_it(self) -> io::Result<()> {
        let other_program = || -> io::Result<Command> {
            let mut command = Command::new(env::current_exe()?);
            // With what is open already: to open anything else would fail for another reason.
            command.arg("version").stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit());
            Ok(command)
        };
        match self {
            Self::Abstract(_listener, name) => {
                UnixStream::connect_addr(&UnixAddress::from_abstract_name(name)?).map(drop)
            }
            Self::Tcp(attempt, listener, socket) => {
                let SocketAddr::V4(address) = listener.local_addr()? else { return Ok(()) };
                match attempt {
                    Attempt::FastOpen => sendto(&socket, b"0", FAST_OPEN, &address).map(drop)?,
                    Attempt::FastOpenMessage => {
                        let (bytes, mut none) = ([IoSlice::new(b"0")], SendAncillaryBuffer::default());
                        sendmsg_addr(&socket, &address, &bytes, &mut none, FAST_OPEN).map(drop)?;
                    }
                    _ => connect(&socket, &address)?,
                }
                Ok(())
            }
            Self::Process(process) => Ok(pidfd_getfd(process, 0, PidfdGetfdFlags::empty()).map(drop)?),
            Self::Ready(Attempt::Execute) => Err(other_program()?.exec()),
            Self::Ready(Attempt::Spawn) => other_program()?.status().map(drop),
            // It is not stopped, and free again when this process ends.
            Self::Ready(Attempt::Trace) => Ok(ptrace::seize(Pid::parent(), ptrace::Options::empty())?),
            Self::Ready(Attempt::Signal) => Ok(test_kill_process(getppid().unwrap_or_else(getpid))?),
            Self::Ready(Attempt::Internet) => {
                Ok(socket(AddressFamily::INET, SocketType::STREAM, None).map(drop)?)
            }
            Self::Ready(Attempt::Datagram) => UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map(drop),
            Self::Ready(Attempt::Netlink) => {
                Ok(socket(AddressFamily::NETLINK, SocketType::RAW, None).map(drop)?)
            }
            Self::Ready(Attempt::Read) => File::open("/proc/version").map(drop),
            Self::Ready(Attempt::Write) => {
                let file = env::temp_dir().join(format!("casemate-probe-{}", id()));
                File::create_new(&file)?.write_all(b"confinement did not hold\n")?;
                fs::remove_file(file)
            }
            Self::Ready(
                Attempt::ConnectAbstract
                | Attempt::ConnectTcp
                | Attempt::FastOpen
                | Attempt::FastOpenMessage
                | Attempt::Take,
            ) => Err(io::Error::other("was not prepared")),
        }
    }
}
