//! OpenBao, whose Transit and API are Vault's: the real server, in development mode, alone with TLS,
//! or as several nodes on raft.
//!
//! What is set up goes through its HTTP API, by path, as in its documentation: `write`, `read`,
//! `delete`, always with the root token.

mod api;
mod setup;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

use serde_json::Value;

use self::api::Api;
pub use self::{
    api::Answer,
    setup::{AppRole, Transit},
};
use crate::{
    Error, Lab, Process, Result,
    ports::{Port, retry_taken_port},
    python,
};

/// One server, on a port that stays its own. It ends with the lab.
#[derive(Debug)]
pub struct OpenBao<'lab> {
    lab: &'lab Lab,
    name: String,
    folder: PathBuf,
    port: Port,
    process: Mutex<Process>,
    root_token: String,
}

impl<'lab> OpenBao<'lab> {
    /// A server in development mode: plain HTTP, unsealed, everything in memory. Started again, it is
    /// another one that knows nothing, with the same root token.
    pub fn dev(lab: &'lab Lab) -> Result<Self> {
        const ROOT: &str = "root-of-the-lab";

        let (name, folder) = own_folder(lab)?;
        retry_taken_port(|| {
            let port = Port::claim()?;
            let process = launch(lab, &name, &dev_command(&folder, &port, ROOT)?, &Api::plain(&port))?;
            Ok(Self {
                lab,
                name: name.clone(),
                folder: folder.clone(),
                port,
                process: Mutex::new(process),
                root_token: ROOT.to_owned(),
            })
        })
    }

    /// Where clients find it, as `http://127.0.0.1:…`.
    pub fn address(&self) -> String {
        self.api().address()
    }

    /// The token that may everything.
    pub fn root_token(&self) -> &str {
        &self.root_token
    }

    /// Its folder, for files that belong to it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The running process, or the one that ran last.
    pub fn process(&self) -> Process {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends it with SIGTERM, if it runs.
    pub fn stop(&self) -> Result<()> {
        self.process().terminate().map(drop)
    }

    /// Kills it.
    pub fn kill9(&self) {
        self.process().kill9();
    }

    /// Starts it again on its port, and waits until it answers.
    pub fn start_again(&self) -> Result<()> {
        let command = dev_command(&self.folder, &self.port, &self.root_token)?;
        let started = launch(self.lab, &self.name, &command, &self.api())?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = started;
        Ok(())
    }

    /// POST to `path`, without `/v1/` before it. The answer is null if there was none.
    pub fn write(&self, path: &str, body: &Value) -> Result<Value> {
        self.checked("POST", path, Some(body))
    }

    /// GET of `path`; `…?list=true` lists.
    pub fn read(&self, path: &str) -> Result<Value> {
        self.checked("GET", path, None)
    }

    /// DELETE of `path`.
    pub fn delete(&self, path: &str) -> Result<()> {
        self.checked("DELETE", path, None).map(drop)
    }

    /// A request with any token, or none; any status is an answer.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Answer> {
        self.api().request(method, path, token, body)
    }

    fn checked(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        self.api().checked(method, path, &self.root_token, body)
    }

    fn api(&self) -> Api {
        Api::plain(&self.port)
    }
}

/// The first `openbao-N` that no other server of the lab has.
fn own_folder(lab: &Lab) -> Result<(String, PathBuf)> {
    let mut number = 0;
    loop {
        let name = format!("openbao-{number}");
        let folder = lab.dir().join(&name);
        match fs::create_dir(&folder) {
            Ok(()) => return Ok((name, folder)),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(Error::file("make", folder)(error)),
        }
    }
}

fn dev_command(folder: &Path, port: &Port, root_token: &str) -> Result<Command> {
    let mut command = server(folder)?;
    command
        .args(["-dev", "-dev-no-store-token", "-dev-root-token-id", root_token])
        .args(["-dev-listen-address", &format!("127.0.0.1:{}", port.number())]);
    Ok(command)
}

fn server(folder: &Path) -> Result<Command> {
    let mut command = Command::new(python::bao()?);
    command.arg("server").current_dir(folder).env("HOME", folder);
    // Who works with a server of either name has these in the shell.
    for (name, _) in std::env::vars_os() {
        if ["BAO_", "VAULT_"].iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes())) {
            command.env_remove(name);
        }
    }
    Ok(command)
}

/// Starts the server and waits until it answers, be it sealed.
fn launch(lab: &Lab, name: &str, command: &Command, api: &Api) -> Result<Process> {
    let process = lab.spawn(name, command)?;
    let answers =
        || api.request("GET", "sys/seal-status", None, None).is_ok_and(|answer| answer.status == 200);
    process.wait_until("it answered", answers)?;
    Ok(process)
}
