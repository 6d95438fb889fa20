//! What k3s has in place of etcd.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::{Mutex, PoisonError},
};

use crate::{Error, Lab, Process, Result, Tool, etcd::etcdctl, ports::Port, process};

/// A kine with its own `state.db`. It ends with the lab.
///
/// It compacts when it is asked to, and keeps no thousand revisions.
#[derive(Debug)]
pub struct Kine<'lab> {
    lab: &'lab Lab,
    name: String,
    folder: PathBuf,
    port: Port,
    process: Mutex<Option<Process>>,
}

impl<'lab> Kine<'lab> {
    /// Starts one with an empty store, and waits until it answers.
    pub fn start(lab: &'lab Lab, name: &str) -> Result<Self> {
        let folder = lab.dir().join(name);
        fs::create_dir_all(&folder).map_err(Error::file("make", &folder))?;
        let kine =
            Self { lab, name: name.to_owned(), folder, port: Port::claim()?, process: Mutex::default() };
        kine.restart()?;
        Ok(kine)
    }

    /// Starts it on what it kept, after it was stopped or killed.
    pub fn restart(&self) -> Result<()> {
        let mut command = Command::new(Tool::Kine.path()?);
        let options = "_journal_mode=WAL&_busy_timeout=30000&_txlock=immediate&cache=shared";
        command
            .args(["--listen-address", &format!("127.0.0.1:{}", self.port.number())])
            .args(["--metrics-bind-address", "0", "--compact-min-retain", "0"])
            .args(["--endpoint", &format!("sqlite://{}?{options}", self.file().display())]);
        let process = self.lab.spawn(&format!("kine-{}", self.name), &command)?;
        process.wait_until("it answered", || self.etcdctl(&["get", "/"], b"").is_ok())?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
        Ok(())
    }

    /// Ends it as k3s ends it: its log is empty then.
    pub fn stop(&self) -> Result<()> {
        self.process().map_or(Ok(()), |process| process.terminate().map(drop))
    }

    /// Kills it: its log stays.
    pub fn kill9(&self) {
        if let Some(process) = self.process() {
            process.kill9();
        }
    }

    /// The program that runs.
    pub fn process(&self) -> Option<Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// For an API server's `--etcd-servers`.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.number())
    }

    /// Its file of SQLite.
    pub fn file(&self) -> PathBuf {
        self.folder.join("state.db")
    }

    /// What `etcdctl` prints, with `input` on its standard input.
    pub fn etcdctl(&self, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>> {
        let mut command = etcdctl(&self.endpoint())?;
        command.args(arguments);
        process::run_checked(&command, input)
    }
}
