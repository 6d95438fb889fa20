//! OpenBao, whose Transit and API are Vault's: the real server, in development mode, alone with TLS,
//! or as several nodes.
//!
//! What is set up goes through its HTTP API, by path, as in its documentation: `write`, `read`,
//! `delete`, always with the root token.

mod api;
mod jwt;
mod raft;
mod server;
mod setup;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::{Value, json};

pub use self::{
    api::Answer,
    jwt::JwtIssuer,
    raft::Raft,
    setup::{AppRole, Transit},
};
use self::{
    api::Api,
    server::{Keys, Kind},
};
use crate::{
    Authority, Lab, Process, Result,
    authority::{Certified, Validity},
    ports::{Port, retry_taken_port},
};

/// One server, on a port that stays its own. It ends with the lab.
#[derive(Debug)]
pub struct OpenBao<'lab> {
    lab: &'lab Lab,
    name: String,
    folder: PathBuf,
    port: Port,
    kind: Kind,
    process: Mutex<Process>,
    keys: Keys,
}

impl<'lab> OpenBao<'lab> {
    /// A server in development mode: plain HTTP, unsealed, everything in memory. Started again, it is
    /// another one that knows nothing, with the same root token.
    pub fn dev(lab: &'lab Lab) -> Result<Self> {
        let bao = Self::launch(lab, || Ok(Kind::Dev))?;
        Ok(Self { keys: Keys { root_token: server::DEV_ROOT.to_owned(), unseal: String::new() }, ..bao })
    }

    /// A server as it is run for real: TLS, with a certificate of an authority of its own for `127.0.0.1`
    /// and `localhost`, data on disk; initialized, with one unseal key, and unsealed.
    pub fn start(lab: &'lab Lab) -> Result<Self> {
        let authority = Arc::new(own_authority(lab)?);
        let bao = Self::sealed(lab, &authority)?;
        bao.initialize()
    }

    /// `nodes` servers with TLS on one raft, all unsealed, with one root token.
    pub fn raft(lab: &'lab Lab, nodes: usize) -> Result<Raft<'lab>> {
        Raft::start(lab, nodes)
    }

    /// One that is neither initialized nor joined to others.
    fn sealed(lab: &'lab Lab, authority: &Arc<Authority>) -> Result<Self> {
        Self::launch(lab, || Kind::real(authority))
    }

    fn launch(lab: &'lab Lab, kind: impl Fn() -> Result<Kind>) -> Result<Self> {
        let (name, folder) = server::own_folder(lab, "openbao")?;
        retry_taken_port(|| {
            let (port, kind) = (Port::claim()?, kind()?);
            let process = kind.launch(lab, &name, &folder, &port)?;
            let (name, folder, process) = (name.clone(), folder.clone(), Mutex::new(process));
            Ok(Self { lab, name, folder, port, kind, process, keys: Keys::default() })
        })
    }

    /// Where clients find it, as `https://127.0.0.1:…`, or `http` in development mode.
    pub fn address(&self) -> String {
        self.kind.address(&self.port)
    }

    /// Who signed its certificate, and can sign those of clients; nobody in development mode.
    pub fn authority(&self) -> Option<&Authority> {
        self.kind.authority()
    }

    /// The token that may everything.
    pub fn root_token(&self) -> &str {
        &self.keys.root_token
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

    /// Starts it again on its port and data, unseals it, and waits until it serves.
    pub fn start_again(&self) -> Result<()> {
        self.start_sealed()?;
        self.unseal()
    }

    /// The same without unsealing, as a server comes back by itself.
    pub fn start_sealed(&self) -> Result<()> {
        let started = self.kind.launch(self.lab, &self.name, &self.folder, &self.port)?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = started;
        Ok(())
    }

    /// Seals it: it answers 503 until it is unsealed.
    pub fn seal(&self) -> Result<()> {
        self.write("sys/seal", &Value::Null).map(drop)
    }

    /// Unseals it, and waits until it serves. Nothing if it is not sealed.
    pub fn unseal(&self) -> Result<()> {
        if matches!(self.kind, Kind::Real { .. }) {
            let key = json!({"key": self.keys.unseal});
            self.api().checked("POST", "sys/unseal", "", Some(&key))?;
        }
        self.process().wait_until("it served", || self.serves())
    }

    /// A copy of what is on disk. It stops meanwhile.
    pub fn back_up(&self) -> Result<PathBuf> {
        self.stop()?;
        let copy = server::copy_aside(&self.folder)?;
        self.start_again()?;
        Ok(copy)
    }

    /// Goes back to `backup`, as who restores an older one. It stops meanwhile.
    pub fn restore(&self, backup: &Path) -> Result<()> {
        self.stop()?;
        server::put_back(&self.folder, backup)?;
        self.start_again()
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

    /// POST to `path` by a client with this certificate and no token; any status is an answer.
    pub fn write_certified(&self, by: &Certified, path: &str, body: &Value) -> Result<Answer> {
        self.api().certified(by).request("POST", path, None, Some(body))
    }

    fn checked(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        self.api().checked(method, path, &self.keys.root_token, body)
    }

    fn api(&self) -> Api {
        self.kind.api(&self.port)
    }

    fn initialize(self) -> Result<Self> {
        let asked = json!({"secret_shares": 1, "secret_threshold": 1});
        let made = self.write("sys/init", &asked)?;
        let keys =
            Keys { root_token: setup::text(&made, "/root_token")?, unseal: setup::text(&made, "/keys/0")? };
        let bao = Self { keys, ..self };
        bao.unseal()?;
        Ok(bao)
    }

    /// Whether it is unsealed, and leads or follows one that leads.
    fn serves(&self) -> bool {
        let health = self.request("GET", "sys/health?standbyok=true&perfstandbyok=true", None, None);
        health.is_ok_and(|answer| answer.status == 200) && self.leader_address().is_some()
    }

    /// Who leads, as this node sees it; itself, if it does not share its storage.
    fn leader_address(&self) -> Option<String> {
        let seen = self.request("GET", "sys/leader", None, None).ok()?.body;
        if seen["ha_enabled"] == false {
            return Some(self.address());
        }
        seen["leader_address"].as_str().filter(|address| !address.is_empty()).map(str::to_owned)
    }
}

/// An authority, in a folder of its own.
fn own_authority(lab: &Lab) -> Result<Authority> {
    let (_, folder) = server::own_folder(lab, "openbao-tls")?;
    Authority::create(&folder.join("authority"), "lab")
}

/// The certificate of a server on loopback.
fn certify(authority: &Authority, port: &Port) -> Result<Certified> {
    authority.server(&format!("server-{}", port.number()), &["127.0.0.1", "localhost"], Validity::Now)
}
