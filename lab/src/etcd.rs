//! The store, and looking into it past the API server.

mod cluster;

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;

use crate::{
    Error, Process, Result, Tool,
    ports::{Port, retry_taken_port},
    process,
};

pub use cluster::EtcdCluster;

/// One etcd. It does not wait for the disk (`--unsafe-no-fsync`): its data lives as long as the
/// test, and survives a kill of etcd, though not one of the machine.
#[derive(Debug)]
pub struct Etcd {
    tool: Tool,
    data: PathBuf,
    log: PathBuf,
    client: Port,
    peer: Port,
    process: Mutex<Process>,
}

impl Etcd {
    /// Starts an empty one with its data and log in `run`.
    pub(crate) fn create(tool: Tool, data: &Path, log: &Path) -> Result<Self> {
        retry_taken_port(|| {
            let (client, peer) = (Port::claim()?, Port::claim()?);
            let process = launch(tool, data, log, &client, &peer, &[])?;
            Ok(Self {
                tool,
                data: data.to_owned(),
                log: log.to_owned(),
                client,
                peer,
                process: Mutex::new(process),
            })
        })
    }

    /// Where clients find it, as `http://127.0.0.1:…`.
    pub fn endpoint(&self) -> String {
        url(&self.client)
    }

    /// Its data folder.
    pub fn data_dir(&self) -> &Path {
        &self.data
    }

    /// The running process, or the one that ran last.
    pub fn process(&self) -> Process {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends it with SIGTERM, if it runs.
    pub fn stop(&self) -> Result<()> {
        self.process().terminate().map(drop)
    }

    /// Starts it again where it was, on the data that it had, and waits until it answers.
    pub fn start(&self) -> Result<()> {
        self.start_with(&[])
    }

    /// The same with more flags.
    pub fn start_with(&self, flags: &[&str]) -> Result<()> {
        let started = launch(self.tool, &self.data, &self.log, &self.client, &self.peer, flags)?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = started;
        Ok(())
    }

    /// The value of one key, as its bytes are stored.
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let found = self.read(&[key])?;
        Ok(found.into_iter().next().map(|(_, value)| value))
    }

    /// Keys and values of everything that begins with `prefix`, in the order of the keys.
    pub fn list(&self, prefix: &str) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.read(&[prefix, "--prefix"])
    }

    /// Writes a value past the API server, to plant what no API server would write.
    pub fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        let mut command = etcdctl(&self.endpoint())?;
        // Without a value on the command line it is read from standard input, byte for byte.
        command.args(["put", "--", key]);
        process::run_checked(&command, value).map(drop)
    }

    /// Saves a snapshot to `path`, as a backup does, by the etcdctl of its own version.
    pub fn snapshot(&self, path: &Path) -> Result<()> {
        let tool = if self.tool == Tool::Etcd35 { Tool::Etcdctl35 } else { Tool::Etcdctl };
        let mut command = etcdctl_of(tool, &self.endpoint())?;
        command.args(["snapshot", "save"]).arg(path);
        process::run_checked(&command, b"").map(drop)
    }

    /// Has everything forgotten that was overwritten or deleted up to `revision`, and waits until it is gone.
    pub fn compact(&self, revision: u64) -> Result<()> {
        let mut command = etcdctl(&self.endpoint())?;
        command.args(["compact", "--physical"]).arg(revision.to_string());
        process::run_checked(&command, b"").map(drop)
    }

    /// Writes its file anew without what is free in it.
    pub fn defragment(&self) -> Result<()> {
        let mut command = etcdctl(&self.endpoint())?;
        command.arg("defrag");
        process::run_checked(&command, b"").map(drop)
    }

    fn read(&self, what: &[&str]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(default)]
            kvs: Vec<KeyValue>,
        }
        // Both in base64; an empty value is left out.
        #[derive(Deserialize)]
        struct KeyValue {
            key: String,
            #[serde(default)]
            value: String,
        }

        let mut command = etcdctl(&self.endpoint())?;
        command.args(["get", "--write-out=json"]).args(what);
        let unreadable = |found: String| Error::Answer { command: process::as_typed(&command), found };
        let answer = process::run_checked(&command, b"")?;
        let answer: Answer =
            serde_json::from_slice(&answer).map_err(|error| unreadable(error.to_string()))?;
        let bytes = |text: &str| STANDARD.decode(text).map_err(|error| unreadable(error.to_string()));
        answer.kvs.iter().map(|pair| Ok((bytes(&pair.key)?, bytes(&pair.value)?))).collect()
    }
}

fn url(port: &Port) -> String {
    format!("http://127.0.0.1:{}", port.number())
}

pub(crate) fn etcdctl(endpoint: &str) -> Result<Command> {
    etcdctl_of(Tool::Etcdctl, endpoint)
}

fn etcdctl_of(tool: Tool, endpoint: &str) -> Result<Command> {
    let mut command = Command::new(tool.path()?);
    command.args(["--endpoints", endpoint, "--dial-timeout=5s", "--command-timeout=30s"]);
    Ok(command)
}

fn launch(
    tool: Tool,
    data: &Path,
    log: &Path,
    client: &Port,
    peer: &Port,
    flags: &[&str],
) -> Result<Process> {
    let (client, peer) = (url(client), url(peer));
    let mut command = Command::new(tool.path()?);
    command
        .args(["--name", "lab", "--unsafe-no-fsync", "--log-level", "warn"])
        // What it takes without its warning of a large database: a benchmark's.
        .arg("--quota-backend-bytes=8589934592")
        .arg("--data-dir")
        .arg(data)
        .args(["--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("lab={peer}")])
        .args(flags);
    let process = Process::spawn("etcd", &command, log)?;

    let mut look = Command::new(Tool::Etcdctl.path()?);
    look.args(["--endpoints", &client, "--dial-timeout=1s"]).args([
        "--command-timeout=1s",
        "get",
        "lab-looks",
    ]);
    process.wait_until("it answered a read", || process::run_checked(&look, b"").is_ok())?;
    Ok(process)
}
