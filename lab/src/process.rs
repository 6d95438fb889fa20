//! Programs that never outlive the process that started them.
//!
//! Rust's own ways to end a child (drop, signal handlers) do not run when a test is killed, so the
//! kernel does it: every child starts through `setpriv --pdeathsig KILL` of util-linux. Two things
//! make this watertight. The signal is sent when the *thread* that started the child ends, so one
//! thread, which lives as long as the process, starts all of them. And a child whose parent died
//! before the request was made would never be told: it compares its parent with the one it
//! expects before it becomes the program.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::{Error, Result};

/// How often a program that should get ready is looked at, and the rest between two looks.
const READY_LOOKS: u32 = 600;
/// The same for one that should end.
const END_LOOKS: u32 = 600;
const REST: Duration = Duration::from_millis(50);
/// How many of a log's last lines an error shows.
const TAIL_LINES: usize = 15;

/// A running (or ended) program of a lab. Clones name the same program; it is killed when the lab
/// goes, at the latest.
#[derive(Clone, Debug)]
pub struct Process(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    pid: u32,
    child: Mutex<Child>,
    log: PathBuf,
    /// Where this start's part of the log begins: a restarted program appends.
    log_start: u64,
}

impl Process {
    /// Starts `command` with nothing on standard input and both outputs appended to `log`.
    ///
    /// Program, arguments, environment changes and working folder of `command` count; what it says
    /// about standard streams does not.
    pub(crate) fn spawn(name: &str, command: &Command, log: &Path) -> Result<Self> {
        Self::spawn_with_input(name, command, Stdio::null(), log)
    }

    /// The same with something on standard input.
    pub(crate) fn spawn_with_input(name: &str, command: &Command, input: Stdio, log: &Path) -> Result<Self> {
        let sink = File::options().create(true).append(true).open(log).map_err(Error::file("open", log))?;
        let log_start = sink.metadata().map_err(Error::file("read", log))?.len();
        let errors = sink.try_clone().map_err(Error::file("open", log))?;

        let mut command = tied_to_us(command);
        command.stdin(input).stdout(sink).stderr(errors);
        let child = spawn_on_lasting_thread(command).map_err(cant_spawn(name))?;
        Ok(Self(Arc::new(Inner {
            name: name.to_owned(),
            pid: child.id(),
            child: Mutex::new(child),
            log: log.to_owned(),
            log_start,
        })))
    }

    /// The process id, also after it ended.
    pub fn pid(&self) -> u32 {
        self.0.pid
    }

    /// The name it was started under.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Where its standard output and standard error go.
    pub fn log(&self) -> &Path {
        &self.0.log
    }

    /// The last `lines` lines that it wrote since this start.
    pub fn log_tail(&self, lines: usize) -> String {
        let read = || -> io::Result<String> {
            let mut file = File::open(&self.0.log)?;
            file.seek(SeekFrom::Start(self.0.log_start))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(tail(&String::from_utf8_lossy(&bytes), lines))
        };
        read().unwrap_or_else(|error| format!("(its log can't be read: {error})"))
    }

    /// Whether it has not ended yet.
    pub fn is_running(&self) -> bool {
        self.exit_status().is_none()
    }

    /// How it ended, if it has.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        // An error here means that the child is not ours any more; nothing to wait for then.
        self.0.child().try_wait().ok().flatten()
    }

    /// SIGKILL to the program and what it started, and waits for its end.
    pub fn kill9(&self) {
        self.0.kill();
    }

    /// SIGTERM, and waits for the end. One that does not end is killed, and that is an error.
    pub fn terminate(&self) -> Result<ExitStatus> {
        self.ask_to_end();
        self.ended("SIGTERM")
    }

    /// Waits for it to end by itself. One that does not end is killed, and that is an error.
    pub fn wait_exit(&self) -> Result<ExitStatus> {
        self.ended("nothing but waiting")
    }

    /// Looks at `ready` again and again until it is true. A program that ends meanwhile, or that
    /// does not get there in 600 looks (half a minute and more), is an error that shows its last log lines.
    ///
    /// `awaited` completes the sentences "it ended before …" and "not enough until …", as in "its
    /// socket was there".
    pub fn wait_until(&self, awaited: &str, mut ready: impl FnMut() -> bool) -> Result<()> {
        for _ in 0..READY_LOOKS {
            let is_ready = ready();
            // Looked at after `ready`, so that an answer from somebody else on the same port does
            // not pass for ours.
            if let Some(status) = self.exit_status() {
                return Err(Error::EndedEarly {
                    program: self.0.name.clone(),
                    status,
                    awaited: awaited.to_owned(),
                    log_tail: self.log_tail(TAIL_LINES),
                    log: self.0.log.as_path().into(),
                    remedy: remedy(&self.log_tail(TAIL_LINES)).to_owned(),
                });
            }
            if is_ready {
                return Ok(());
            }
            thread::sleep(REST);
        }
        Err(Error::NotReady {
            program: self.0.name.clone(),
            awaited: awaited.to_owned(),
            looks: READY_LOOKS,
            log_tail: self.log_tail(TAIL_LINES),
            log: self.0.log.as_path().into(),
            remedy: remedy(&self.log_tail(TAIL_LINES)).to_owned(),
        })
    }

    /// SIGTERM without waiting; nothing if it has ended.
    pub(crate) fn ask_to_end(&self) {
        let mut child = self.0.child();
        if let (Ok(None), Some(pid)) = (child.try_wait(), self.0.kernel_pid()) {
            // Not reaped, so the id is still this child's; it may end before the signal comes.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    fn ended(&self, asked: &'static str) -> Result<ExitStatus> {
        for _ in 0..END_LOOKS {
            if let Some(status) = self.exit_status() {
                return Ok(status);
            }
            thread::sleep(REST);
        }
        self.kill9();
        Err(Error::DidNotEnd {
            program: self.0.name.clone(),
            asked,
            looks: END_LOOKS,
            log_tail: self.log_tail(TAIL_LINES),
        })
    }
}

impl Inner {
    fn child(&self) -> MutexGuard<'_, Child> {
        // A panic of another holder leaves the child as it is.
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kernel_pid(&self) -> Option<Pid> {
        i32::try_from(self.pid).ok().and_then(Pid::from_raw)
    }

    fn kill(&self) {
        let mut child = self.child();
        if let (Ok(None), Some(pid)) = (child.try_wait(), self.kernel_pid()) {
            // The group and not only the leader, for programs that start others.
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = child.wait();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs `command` to its end with `stdin` on its standard input. It ends with us, like any other.
pub(crate) fn run(command: &Command, stdin: &[u8]) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut tied = tied_to_us(command);
    tied.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn_on_lasting_thread(tied).map_err(cant_spawn(&name))?;
    let pipe = child.stdin.take();
    thread::scope(|scope| {
        // Aside, so that a program that answers before it has read everything can't block us.
        scope.spawn(move || {
            if let Some(mut pipe) = pipe {
                // A program that does not want its input closes the pipe: its own business.
                let _ = pipe.write_all(stdin);
            }
        });
        child.wait_with_output().map_err(cant_spawn(&name))
    })
}

/// `run`, with an end other than success as an error; answers standard output.
pub(crate) fn run_checked(command: &Command, stdin: &[u8]) -> Result<Vec<u8>> {
    let output = run(command, stdin)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(Error::Command {
        command: as_typed(command),
        status: output.status,
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// The last `lines` lines of `text`.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// A log file's last lines, for an error.
pub(crate) fn file_tail(log: &Path) -> String {
    match fs::read(log) {
        Ok(bytes) => tail(&String::from_utf8_lossy(&bytes), TAIL_LINES),
        Err(error) => format!("(its log can't be read: {error})"),
    }
}

/// A command as one would type it, for messages.
pub(crate) fn as_typed(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// `command`, made to die with this process; see the module's text. It leads a process group of its
/// own, so that Ctrl-C on a terminal reaches only us.
pub(crate) fn tied_to_us(command: &Command) -> Command {
    use std::os::unix::process::CommandExt as _;

    const FOREIGN: [&str; 3] = ["ETCD_", "ETCDCTL_", "KUBECONFIG"];
    const BECOME: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;

    let mut tied = Command::new("setpriv");
    tied.args(["--pdeathsig", "KILL", "--", "sh", "-c", BECOME])
        .arg(std::process::id().to_string())
        .arg(command.get_program())
        .args(command.get_args())
        .process_group(0);
    if let Some(dir) = command.get_current_dir() {
        tied.current_dir(dir);
    }
    // Who works with a cluster has these in the shell; they would speak for another server than the lab's.
    for (name, _) in std::env::vars_os() {
        if FOREIGN.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes())) {
            tied.env_remove(name);
        }
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => tied.env(name, value),
            None => tied.env_remove(name),
        };
    }
    tied
}

/// Starts `command` from the one thread that lives as long as the process.
pub(crate) fn spawn_on_lasting_thread(command: Command) -> io::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static ORDERS: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        // If the system gives no thread, `inbox` is dropped and each order below fails.
        let _ = thread::Builder::new().name("lab-spawner".into()).spawn(move || {
            for (mut command, answer) in inbox {
                let _ = answer.send(command.spawn());
            }
        });
        orders
    });

    let (answer, spawned) = mpsc::channel();
    let gone = || io::Error::other("the thread that starts programs is gone");
    ORDERS.send((command, answer)).map_err(|_| gone())?;
    spawned.recv().map_err(|_| gone())?
}

fn cant_spawn(program: &str) -> impl FnOnce(io::Error) -> Error {
    let program = program.to_owned();
    move |source| Error::Spawn {
        program,
        source,
        remedy: "the lab starts programs through setpriv, of Debian's package util-linux; see that \
                 it is on PATH, and that processes and open files are not at their limit"
            .into(),
    }
}

/// What helps, judged by what a program said last.
fn remedy(log_tail: &str) -> &'static str {
    if log_tail.contains("address already in use") {
        "another program took the port; find it with `ss -ltnp`"
    } else if log_tail.contains("no space left on device") {
        "make room in the folder for temporary files, or set TMPDIR to another one"
    } else if log_tail.contains(": not found") || log_tail.contains("Permission denied") {
        "see that the program's path is right and that it may be executed"
    } else {
        "the lines above say why; correct that, and start again"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_the_end_of_the_text() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a\n", 2), "a");
        assert_eq!(tail("", 2), "");
    }
}
