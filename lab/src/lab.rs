//! The servers of one run.

use std::{
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use crate::{Apiserver, Encryption, Error, Etcd, Process, Result, Tool, identity::Identity, run_dir::RunDir};

/// One etcd, API servers on it, and whatever daemons a test puts beside them. All of it ends with
/// this value; see the crate's text for what is promised.
#[derive(Debug)]
pub struct Lab {
    name: String,
    // Servers before the folder they write to: fields drop in this order.
    etcd: Etcd,
    apiservers: Mutex<Vec<Arc<Apiserver>>>,
    /// How many were begun, also in vain: each has a name and a folder of its own.
    begun: AtomicUsize,
    daemons: Mutex<Vec<Process>>,
    identity: Identity,
    failed: AtomicBool,
    run: RunDir,
}

/// What a lab starts with.
#[derive(Clone, Debug)]
pub struct Builder {
    name: String,
    etcd: Tool,
    apiservers: usize,
    encryption: Encryption,
}

impl Builder {
    /// How many API servers, on one etcd; 1 if not said. With 0, daemons can be started first and API
    /// servers added when those listen.
    #[must_use]
    pub fn apiservers(mut self, count: usize) -> Self {
        self.apiservers = count;
        self
    }

    /// Another etcd than today's.
    #[must_use]
    pub fn etcd(mut self, tool: Tool) -> Self {
        self.etcd = tool;
        self
    }

    /// What each of the API servers does to Secrets and ConfigMaps; nothing if not said.
    #[must_use]
    pub fn encryption(mut self, encryption: Encryption) -> Self {
        self.encryption = encryption;
        self
    }

    /// Starts all of it and waits until it is ready.
    pub fn start(self) -> Result<Lab> {
        let run = RunDir::make(&self.name)?;
        let etcd = Etcd::create(self.etcd, &run.path().join("etcd"), &run.logs().join("etcd.log"));
        let (etcd, identity) = match (etcd, Identity::make(run.path())) {
            (Ok(etcd), Ok(identity)) => (etcd, identity),
            (Err(error), _) | (_, Err(error)) => {
                run.keep_logs(&self.name);
                return Err(error);
            }
        };
        let lab = Lab {
            name: self.name,
            etcd,
            apiservers: Mutex::default(),
            begun: AtomicUsize::new(0),
            daemons: Mutex::default(),
            identity,
            failed: AtomicBool::new(false),
            run,
        };
        for _ in 0..self.apiservers {
            if let Err(error) = lab.add_apiserver(self.encryption.clone()) {
                lab.failed.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(lab)
    }
}

impl Lab {
    /// A lab with one API server that encrypts nothing.
    pub fn start(name: &str) -> Result<Self> {
        Self::builder(name).start()
    }

    /// `name` is what the test is about, in few words; it becomes part of folder names.
    pub fn builder(name: &str) -> Builder {
        let in_a_path = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        Builder {
            name: name.chars().map(in_a_path).collect(),
            etcd: Tool::Etcd,
            apiservers: 1,
            encryption: Encryption::Identity,
        }
    }

    /// The run's folder: short enough for sockets, gone with the lab.
    pub fn dir(&self) -> &Path {
        self.run.path()
    }

    /// The store.
    pub fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    /// One of the API servers, counted from 0 in the order of their start.
    pub fn apiserver(&self, index: usize) -> Result<Arc<Apiserver>> {
        let servers = self.apiserver_list();
        servers.get(index).cloned().ok_or(Error::NoApiserver { index, count: servers.len() })
    }

    /// All API servers, in the order of their start.
    pub fn apiservers(&self) -> Vec<Arc<Apiserver>> {
        self.apiserver_list().clone()
    }

    /// Starts one more API server on the same etcd and waits until it is ready. One that does not start
    /// leaves the others as they are.
    pub fn add_apiserver(&self, encryption: Encryption) -> Result<Arc<Apiserver>> {
        self.add_apiserver_of(Tool::KubeApiserver, encryption)
    }

    /// The same with an API server of another version.
    pub fn add_apiserver_of(&self, tool: Tool, encryption: Encryption) -> Result<Arc<Apiserver>> {
        self.start_apiserver(tool, &self.etcd.endpoint(), encryption)
    }

    /// The same on another store than the lab's etcd, of this address.
    pub fn add_apiserver_on(&self, store: &str, encryption: Encryption) -> Result<Arc<Apiserver>> {
        self.start_apiserver(Tool::KubeApiserver, store, encryption)
    }

    fn start_apiserver(&self, tool: Tool, store: &str, encryption: Encryption) -> Result<Arc<Apiserver>> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let name = format!("apiserver-{number}");
        let server = Arc::new(Apiserver::create(
            tool,
            &name,
            self.run.path(),
            &self.run.logs().join(format!("{name}.log")),
            store,
            &self.identity,
            encryption,
        )?);
        self.apiserver_list().push(server.clone());
        Ok(server)
    }

    /// Starts one more API server, configured as `index` is: one that has never seen anything, beside
    /// those that have it in their caches.
    pub fn start_fresh(&self, index: usize) -> Result<Arc<Apiserver>> {
        let like = self.apiserver(index)?;
        self.add_apiserver_of(like.tool(), like.encryption())
    }

    /// kubectl as the administrator, at API server `index`; answers what it printed.
    pub fn kubectl(&self, index: usize, args: &[&str]) -> Result<String> {
        self.apiserver(index)?.kubectl(args)
    }

    /// `kubectl`, with `input` on its standard input (`-f -`).
    pub fn kubectl_with_input(&self, index: usize, args: &[&str], input: &[u8]) -> Result<String> {
        self.apiserver(index)?.kubectl_with_input(args, input)
    }

    /// Starts a daemon beside the servers, with its output in a log of that name. It ends with the lab,
    /// and is supervised like the servers. The same name again appends to the same log.
    ///
    /// Program, arguments, environment changes and working folder of `command` count.
    pub fn spawn(&self, name: &str, command: &Command) -> Result<Process> {
        self.keep(Process::spawn(name, command, &self.log(name))?)
    }

    /// The same, with `socket` passed on under the name `called`, as systemd passes one (sd_listen_fds(3)): it stays
    /// when the daemon ends.
    pub fn spawn_on(
        &self,
        name: &str,
        command: &Command,
        socket: &UnixListener,
        called: &str,
    ) -> Result<Process> {
        const PASS: &str =
            r#"exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES="$0" exec "$@""#;

        let mut passing = Command::new("sh");
        passing.args(["-c", PASS, called]).arg(command.get_program()).args(command.get_args());
        let socket = socket.try_clone().map_err(Error::file("pass the socket to", name))?;
        let input = Stdio::from(OwnedFd::from(socket));
        self.keep(Process::spawn_with_input(name, &passing, input, &self.log(name))?)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.run.logs().join(format!("{name}.log"))
    }

    fn keep(&self, daemon: Process) -> Result<Process> {
        self.daemons.lock().unwrap_or_else(PoisonError::into_inner).push(daemon.clone());
        Ok(daemon)
    }

    fn apiserver_list(&self) -> MutexGuard<'_, Vec<Arc<Apiserver>>> {
        self.apiservers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Nobody needs the data any more, and a polite end of an API server takes seconds. Daemons of
        // ours get the chance to end well, since leaving something behind would be a fault of theirs.
        let daemons: Vec<Process> = {
            let mut daemons = self.daemons.lock().unwrap_or_else(PoisonError::into_inner);
            daemons.drain(..).rev().collect()
        };
        for server in self.apiservers() {
            server.kill9();
        }
        for daemon in &daemons {
            if daemon.is_running() && daemon.terminate().is_err() {
                self.failed.store(true, Ordering::Relaxed);
            }
        }
        self.etcd.process().kill9();
        if thread::panicking() || self.failed.load(Ordering::Relaxed) {
            self.run.keep_logs(&self.name);
        }
    }
}
