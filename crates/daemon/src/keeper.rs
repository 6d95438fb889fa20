//! Starts other processes for a daemon that can't any more: confinement forbids it that, for good.
//!
//! A *keeper* is the same program, started while the daemon may still start one. It is told at its start which programs
//! there are; later it starts the first, the second, … of them and ends them, and nothing else that whoever breaks into
//! the daemon may ask. A started program gets one socket, as its standard input; the daemon has the other end.
//!
//! * [`Keeper`]: the daemon's side. [`keep`]: the keeper. [`take_over`]: what a started program begins with.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};

use crate::confine::Profile;

/// A message, and an answer.
const LONGEST: usize = 256;

/// How long the daemon waits for the keeper, which has little to do.
const DEADLINE: Duration = Duration::from_secs(5);

/// How long one that seems to be ending is given to say how.
const LAST_BREATH: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// As many processes are kept at once.
const MOST: usize = 64;

/// What a keeper may start.
#[derive(Clone, Debug)]
pub struct Program {
    /// The arguments of this same program.
    pub arguments: Vec<OsString>,
    /// All of its environment.
    pub environment: Vec<(OsString, OsString)>,
}

/// The daemon's side.
#[derive(Clone, Debug)]
pub struct Keeper(Arc<Link>);

#[derive(Debug)]
struct Link {
    /// One question at a time.
    control: Mutex<OwnedFd>,
    // Not waited for: it ends after its daemon.
    _process: Child,
}

/// A process that a keeper started.
#[derive(Debug)]
pub struct Started {
    keeper: Keeper,
    number: u64,
}

impl Keeper {
    /// Starts `command`, which is to come to [`keep`]. Before the daemon is confined, and from a thread that lives as
    /// long as it does.
    ///
    /// # Errors
    /// As of starting a program.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&ours, direction, Some(DEADLINE))?;
        }
        command.env_clear().current_dir("/").stdin(Stdio::from(theirs)).stdout(Stdio::null());
        let process = command.spawn()?;
        Ok(Self(Arc::new(Link { control: Mutex::new(ours), _process: process })))
    }

    /// Starts the keeper's program number `index`: the process, and our end of its socket.
    ///
    /// # Errors
    /// The keeper can't, or is gone.
    pub fn launch(&self, index: usize) -> io::Result<(Started, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let said = self.ask(&format!("start {index}"), Some(theirs.as_fd()))?;
        let number = said.parse().map_err(|_| io::Error::other(format!("the keeper answers {said:?}")))?;
        Ok((Started { keeper: self.clone(), number }, ours))
    }

    fn ask(&self, question: &str, passed: Option<BorrowedFd<'_>>) -> io::Result<String> {
        let control = self.0.control.lock().unwrap_or_else(PoisonError::into_inner);
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let passed: Vec<BorrowedFd<'_>> = passed.into_iter().collect();
        if !passed.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&passed)) {
            return Err(io::Error::other("there is no room for a descriptor"));
        }
        let gone = |errno: Errno| match errno {
            Errno::PIPE | Errno::CONNRESET => io::Error::other("the keeper has ended; restart the daemon"),
            errno => errno.into(),
        };
        let bytes = [IoSlice::new(question.as_bytes())];
        retry_on_intr(|| sendmsg(&*control, &bytes, &mut ancillary, SendFlags::NOSIGNAL)).map_err(gone)?;
        let mut answer = [0; LONGEST];
        let (read, _) =
            retry_on_intr(|| recv(&*control, &mut answer[..], RecvFlags::empty())).map_err(gone)?;
        let answer = String::from_utf8_lossy(&answer[..read]);
        match answer.split_once(' ') {
            Some(("ok", said)) => Ok(said.to_owned()),
            Some(("no", why)) => Err(io::Error::other(why.to_owned())),
            _ => Err(gone(Errno::PIPE)),
        }
    }
}

impl Started {
    /// Ends the process, at once. Says how it had ended by itself, if it had.
    ///
    /// # Errors
    /// The keeper is gone, and so is the process.
    pub fn end(&self) -> io::Result<Option<String>> {
        let said = self.keeper.ask(&format!("end {}", self.number), None)?;
        Ok(Some(said).filter(|said| !said.is_empty()))
    }
}

/// Keeps processes until the daemon is gone; then they are, too. All there is to a keeper's life.
///
/// `profile` is what it and all that it starts are confined to; it names this program as one to start.
///
/// # Errors
/// It can't be confined, or its daemon can't be heard.
pub fn keep(programs: &[Program], profile: &Profile) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let control = inherited()?;
    profile.confine().map_err(io::Error::other)?;
    let mut kept = Kept { programs, processes: Vec::new(), next: 0 };
    loop {
        kept.wait(&control)?;
        let mut bytes = [0; LONGEST];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let message = match recvmsg(&control, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
            Ok(message) => message,
            Err(Errno::AGAIN | Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        if message.bytes == 0 {
            return Ok(());
        }
        let mut passed = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let whole = !message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        let question = std::str::from_utf8(&bytes[..message.bytes]).ok().filter(|_| whole);
        let done = kept.answer(question.unwrap_or_default(), passed.next());
        let mut answer = done.map_or_else(|why| format!("no {why}"), |said| format!("ok {said}"));
        while answer.len() > LONGEST {
            answer.pop();
        }
        send(&control, answer.as_bytes(), SendFlags::NOSIGNAL)?;
    }
}

/// What a process that a keeper started begins with: its socket. Nothing else that was open remains so.
///
/// # Errors
/// Standard input is no socket.
pub fn take_over() -> io::Result<UnixStream> {
    let stream = UnixStream::from(inherited()?);
    stream.peer_addr()?;
    Ok(stream)
}

/// Standard input, with nothing in its place, and nothing else that came along but two streams for messages.
fn inherited() -> io::Result<OwnedFd> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        open.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    for descriptor in
        open.into_iter().filter(|descriptor| *descriptor > 2 && *descriptor != input.as_raw_fd())
    {
        // The one that listed them is closed already.
        let _ = nix::unistd::close(descriptor);
    }
    Ok(input)
}

struct Kept<'a> {
    programs: &'a [Program],
    processes: Vec<Process>,
    next: u64,
}

struct Process {
    number: u64,
    child: Child,
    /// Readable when it has ended.
    ended: OwnedFd,
    status: Option<ExitStatus>,
}

impl Kept<'_> {
    /// Until there is a message. What ends meanwhile is reaped.
    fn wait(&mut self, control: &OwnedFd) -> io::Result<()> {
        loop {
            let running: Vec<usize> =
                (0..self.processes.len()).filter(|place| self.processes[*place].status.is_none()).collect();
            let mut watched = vec![PollFd::new(control, PollFlags::IN)];
            watched.extend(
                running.iter().map(|place| PollFd::new(&self.processes[*place].ended, PollFlags::IN)),
            );
            retry_on_intr(|| poll(&mut watched, None))?;
            let ready: Vec<bool> = watched.iter().map(|watched| !watched.revents().is_empty()).collect();
            for (place, _) in running.iter().zip(&ready[1..]).filter(|(_, ready)| **ready) {
                let process = &mut self.processes[*place];
                process.status = process.child.try_wait()?;
            }
            if ready[0] {
                return Ok(());
            }
        }
    }

    fn answer(&mut self, question: &str, passed: Option<OwnedFd>) -> Result<String, String> {
        let number = |text: &str| text.parse().map_err(|_| "that is no number".to_owned());
        match question.split_once(' ') {
            Some(("start", index)) => {
                let index: u64 = number(index)?;
                let program = usize::try_from(index).ok().and_then(|index| self.programs.get(index));
                let program =
                    program.ok_or("there is no such program: it was not configured at the start")?;
                let socket = passed.ok_or("there is no socket for it")?;
                self.forget_ended();
                if self.processes.len() >= MOST {
                    return Err(format!("{MOST} processes are kept already"));
                }
                let process = start(program, socket, self.next).map_err(|error| error.to_string())?;
                self.next += 1;
                let number = process.number;
                self.processes.push(process);
                Ok(number.to_string())
            }
            Some(("end", wanted)) => {
                let wanted: u64 = number(wanted)?;
                let place = self.processes.iter().position(|process| process.number == wanted);
                let Some(place) = place else { return Ok(String::new()) };
                let mut process = self.processes.swap_remove(place);
                if process.status.is_none() {
                    // Its socket may be closed a little before it has ended.
                    let _ = poll(&mut [PollFd::new(&process.ended, PollFlags::IN)], Some(&LAST_BREATH));
                    process.status = process.child.try_wait().map_err(|error| error.to_string())?;
                }
                match process.status {
                    Some(status) => Ok(Ended(status).to_string()),
                    None => {
                        process.child.kill().map_err(|error| error.to_string())?;
                        process.child.wait().map_err(|error| error.to_string())?;
                        Ok(String::new())
                    }
                }
            }
            _ => Err("that is no question".into()),
        }
    }

    /// The daemon may never ask about one that ended. Of the last few it can be told how.
    fn forget_ended(&mut self) {
        while self.processes.len() >= MOST / 2 {
            let Some(oldest) = self.processes.iter().position(|process| process.status.is_some()) else {
                return;
            };
            self.processes.remove(oldest);
        }
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}

fn start(program: &Program, socket: OwnedFd, number: u64) -> io::Result<Process> {
    // Not by its path: another version may be there by now.
    let mut child = Command::new("/proc/self/exe")
        .args(&program.arguments)
        .env_clear()
        .envs(program.environment.iter().map(|(name, value)| (name, value)))
        .current_dir("/")
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let ended = pid.ok_or(Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
    match ended {
        Ok(ended) => Ok(Process { number, child, ended, status: None }),
        Err(errno) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(errno.into())
        }
    }
}

struct Ended(ExitStatus);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.signal(), self.0.code()) {
            (Some(signal), _) => write!(f, "signal {signal} ended it"),
            (None, Some(code)) => write!(f, "it ended with code {code}"),
            (None, None) => write!(f, "{}", self.0),
        }
    }
}
