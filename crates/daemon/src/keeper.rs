//! Starts other processes for a daemon that can't any more: confinement forbids it that, for good.
//!
//! A *keeper* is the same program, started while the daemon may still start one. It is told at its start which programs
//! there are; later it starts the first, the second, … of them and ends them, and nothing else that whoever breaks into
//! the daemon may ask. A started program gets one socket, as its standard input; the daemon has the other end.
//!
//! Questions are numbered, and so are their answers: a keeper that was slow is not taken to answer a later question.
//! It waits for no process that it ends: one that hangs in the kernel is gone only when that lets go of it.
//!
//! What programs there are is the first message, not an argument: anyone on the host can read those of a process.
//!
//! * [`Keeper`]: the daemon's side. [`Post`]: the keeper. [`take_over`]: what a started program begins with.

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
use std::thread;
use std::time::{Duration, Instant};

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

/// What a keeper is told at its start.
const LONGEST_ORDERS: usize = 64 * 1024;

/// How long the daemon waits for the keeper, which has little to do.
const DEADLINE: Duration = Duration::from_secs(5);

/// How long one that seems to be ending is given to say how.
const LAST_BREATH: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// As many processes are kept at once.
const MOST: usize = 64;

/// What a keeper may start.
#[derive(Clone)]
pub struct Program {
    /// The arguments of this same program. Anyone on the host can read them.
    pub arguments: Vec<OsString>,
    /// All of its environment, which only its user and root can read: there may be secrets in it.
    pub environment: Vec<(OsString, OsString)>,
}

/// A keeper that was started: where it is asked, and what it was told.
#[derive(Debug)]
pub struct Post {
    control: OwnedFd,
}

/// The daemon's side.
#[derive(Clone, Debug)]
pub struct Keeper(Arc<Link>);

#[derive(Debug)]
struct Link {
    /// One question at a time.
    control: Mutex<Control>,
    // Not waited for: it ends after its daemon.
    _process: Child,
}

/// Where the keeper is asked.
#[derive(Debug)]
struct Control {
    socket: OwnedFd,
    /// The number of the last question.
    asked: u64,
}

/// A process that a keeper started.
#[derive(Debug)]
pub struct Started {
    keeper: Keeper,
    number: u64,
}

impl Keeper {
    /// Starts `command`, which is to come to [`Post::take_up`] and be given `orders` there. Before the daemon is confined,
    /// and from a thread that lives as long as it does.
    ///
    /// # Errors
    /// As of starting a program; or `orders` are too long.
    pub fn start(mut command: Command, orders: &[u8]) -> io::Result<Self> {
        if orders.len() > LONGEST_ORDERS {
            let what = format!("a keeper is told {LONGEST_ORDERS} bytes at most, not {}", orders.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&ours, Timeout::Send, Some(DEADLINE))?;
        command.env_clear().current_dir("/").stdin(Stdio::from(theirs)).stdout(Stdio::null());
        let process = command.spawn()?;
        // Else this process would hold the keeper's end, too, and not see that it is gone.
        drop(command);
        retry_on_intr(|| send(&ours, orders, SendFlags::NOSIGNAL)).map_err(gone)?;
        let control = Mutex::new(Control { socket: ours, asked: 0 });
        Ok(Self(Arc::new(Link { control, _process: process })))
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
        self.0.control.lock().unwrap_or_else(PoisonError::into_inner).ask(question, passed, DEADLINE)
    }
}

impl Control {
    fn ask(
        &mut self,
        question: &str,
        passed: Option<BorrowedFd<'_>>,
        within: Duration,
    ) -> io::Result<String> {
        let ends = Instant::now() + within;
        self.asked += 1;
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let passed: Vec<BorrowedFd<'_>> = passed.into_iter().collect();
        if !passed.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&passed)) {
            return Err(io::Error::other("there is no room for a descriptor"));
        }
        let question = format!("{} {question}", self.asked);
        let bytes = [IoSlice::new(question.as_bytes())];
        retry_on_intr(|| sendmsg(&self.socket, &bytes, &mut ancillary, SendFlags::NOSIGNAL)).map_err(gone)?;
        loop {
            let mut bytes = [0; LONGEST];
            let answer = String::from_utf8_lossy(self.receive(&mut bytes, ends)?);
            let (number, answer) = answer.split_once(' ').unwrap_or_default();
            // One that nobody waits for any more. If it says that a process was started, that one's socket is closed
            // on this side, so that it ends by itself.
            if number != self.asked.to_string() {
                continue;
            }
            return match answer.split_once(' ') {
                Some(("ok", said)) => Ok(said.to_owned()),
                Some(("no", why)) => Err(io::Error::other(why.to_owned())),
                _ => Err(io::Error::other(format!("the keeper answers {answer:?}"))),
            };
        }
    }

    /// The next message.
    fn receive<'a>(&self, bytes: &'a mut [u8], ends: Instant) -> io::Result<&'a [u8]> {
        loop {
            // Also if there is no time left: what has come is read.
            let left = Timespec::try_from(ends.saturating_duration_since(Instant::now())).ok();
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], left.as_ref()) {
                Ok(0) => return Err(gone(Errno::AGAIN)),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            match recv(&self.socket, &mut *bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(gone(Errno::PIPE)),
                Ok((read, _)) => return Ok(&bytes[..read]),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(gone(errno)),
            }
        }
    }
}

fn gone(errno: Errno) -> io::Error {
    match errno {
        Errno::PIPE | Errno::CONNRESET => io::Error::other("the keeper has ended; restart the daemon"),
        Errno::AGAIN => {
            io::Error::new(io::ErrorKind::TimedOut, "the keeper of processes did not answer in time")
        }
        errno => errno.into(),
    }
}

impl Started {
    /// Ends the process, as soon as the kernel does. Says how it had ended by itself, if it had.
    ///
    /// # Errors
    /// The keeper is gone, and so is the process.
    pub fn end(&self) -> io::Result<Option<String>> {
        let said = self.keeper.ask(&format!("end {}", self.number), None)?;
        Ok(Some(said).filter(|said| !said.is_empty()))
    }
}

impl Post {
    /// What a keeper begins with: itself, and its orders. It ends with its daemon.
    ///
    /// # Errors
    /// Standard input is no socket, or nothing whole comes from there.
    pub fn take_up() -> io::Result<(Self, Vec<u8>)> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        let control = inherited()?;
        let orders = orders(&control)?;
        Ok((Self { control }, orders))
    }

    /// Keeps processes until the daemon is gone; then they are, too. All there is to a keeper's life.
    ///
    /// `profile` is what it and all that it starts are confined to; it names this program as one to start.
    ///
    /// # Errors
    /// It can't be confined, or its daemon can't be heard.
    pub fn keep(&self, programs: &[Program], profile: &Profile) -> io::Result<()> {
        profile.confine().map_err(io::Error::other)?;
        let mut kept = Kept { programs, processes: Vec::new(), next: 0 };
        loop {
            kept.wait(&self.control)?;
            let mut bytes = [0; LONGEST];
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let message =
                match recvmsg(&self.control, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
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
            let (number, question) =
                question.and_then(|question| question.split_once(' ')).unwrap_or_default();
            let done = kept.answer(question, passed.next());
            let mut answer =
                done.map_or_else(|why| format!("{number} no {why}"), |said| format!("{number} ok {said}"));
            while answer.len() > LONGEST {
                answer.pop();
            }
            send(&self.control, answer.as_bytes(), SendFlags::NOSIGNAL)?;
        }
    }
}

fn orders(control: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; LONGEST_ORDERS];
    let (_, length) = retry_on_intr(|| recv(control, &mut bytes[..], RecvFlags::TRUNC))?;
    if length == 0 || length > bytes.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "there are no orders for this keeper"));
    }
    bytes.truncate(length);
    Ok(bytes)
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
    /// It was told to end, and nobody will ask about it.
    killed: bool,
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
            self.processes.retain(|process| !process.killed || process.status.is_none());
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
                let place =
                    self.processes.iter().position(|process| process.number == wanted && !process.killed);
                let Some(place) = place else { return Ok(String::new()) };
                let process = &mut self.processes[place];
                if process.status.is_none() {
                    // Its socket may be closed a little before it has ended.
                    let _ = poll(&mut [PollFd::new(&process.ended, PollFlags::IN)], Some(&LAST_BREATH));
                    process.status = process.child.try_wait().map_err(|error| error.to_string())?;
                }
                if let Some(status) = process.status {
                    self.processes.swap_remove(place);
                    return Ok(Ended(status).to_string());
                }
                process.child.kill().map_err(|error| error.to_string())?;
                // It may take the kernel as long as a device does not answer.
                process.killed = true;
                Ok(String::new())
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
            // Reaped by whoever inherits them: this process is about to end.
            let _ = process.child.kill();
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
        Ok(ended) => Ok(Process { number, child, ended, status: None, killed: false }),
        Err(errno) => {
            let _ = child.kill();
            // It has hardly begun. One that is not gone by then stays a zombie, rather than be waited for.
            let until = Instant::now() + Duration::from_millis(200);
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                thread::sleep(Duration::from_millis(5));
            }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn say(socket: &OwnedFd, text: &str) {
        send(socket, text.as_bytes(), SendFlags::NOSIGNAL).unwrap();
    }

    #[test]
    fn an_answer_that_comes_late_answers_no_other_question() {
        let (ours, theirs) = pair();
        let mut control = Control { socket: ours, asked: 0 };
        let unanswered = control.ask("start 0", None, Duration::ZERO).unwrap_err();
        assert_eq!(unanswered.kind(), io::ErrorKind::TimedOut);
        // The answer to the one that gave up, and to the next, are there before it is asked.
        say(&theirs, "1 ok 7");
        say(&theirs, "2 ok 8");
        assert_eq!(control.ask("start 1", None, LONG).unwrap(), "8");
        say(&theirs, "3 no room");
        assert_eq!(control.ask("start 2", None, LONG).unwrap_err().to_string(), "room");
        // Late answers alone don't make it wait longer.
        say(&theirs, "2 ok 8");
        assert_eq!(control.ask("end 8", None, Duration::ZERO).unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(theirs);
        assert!(control.ask("end 8", None, LONG).unwrap_err().to_string().contains("has ended"));
    }

    #[test]
    fn orders_come_whole_or_not_at_all() {
        let (ours, theirs) = pair();
        let longest = "x".repeat(LONGEST_ORDERS);
        say(&ours, &longest);
        assert_eq!(orders(&theirs).unwrap(), longest.as_bytes());
        say(&ours, &"x".repeat(LONGEST_ORDERS + 1));
        assert_eq!(orders(&theirs).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(ours);
        assert_eq!(orders(&theirs).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let mut command = Command::new("/bin/true");
        command.arg("unused");
        let refused = Keeper::start(command, &[0; LONGEST_ORDERS + 1]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn what_is_ended_is_not_waited_for_and_reaped_later() {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let ended = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let process = Process { number: 5, child, ended, status: None, killed: false };
        let mut kept = Kept { programs: &[], processes: vec![process], next: 6 };
        assert_eq!(kept.answer("end 5", None), Ok(String::new()));
        // The kernel may not have let go of it yet, and a second time is no trouble.
        assert!(kept.processes[0].killed && kept.processes[0].status.is_none());
        assert_eq!(kept.answer("end 5", None), Ok(String::new()));
        let within = Timespec::try_from(LONG).unwrap();
        assert_eq!(poll(&mut [PollFd::new(&kept.processes[0].ended, PollFlags::IN)], Some(&within)), Ok(1));
        let (control, other) = pair();
        say(&other, "6 end 5");
        kept.wait(&control).unwrap();
        assert!(kept.processes.is_empty());
        assert!(!std::path::Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists());
    }
}
