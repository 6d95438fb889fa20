//! The process of a server: how it is configured, and where its data is.

use std::{
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use serde_json::json;

use super::{api::Api, certify};
use crate::{Authority, Error, Lab, Process, Result, ports::Port, python};

pub(super) const DEV_ROOT: &str = "root-of-the-lab";
const DATA: &str = "data";
const BACKUPS: &str = "backups";

/// What init gave.
#[derive(Clone, Default)]
pub(super) struct Keys {
    pub(super) root_token: String,
    pub(super) unseal: String,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) enum Kind {
    Dev,
    Real {
        authority: Arc<Authority>,
        /// Where nodes find each other.
        cluster: Port,
    },
}

impl Kind {
    pub(super) fn real(authority: &Arc<Authority>) -> Result<Self> {
        Ok(Self::Real { authority: authority.clone(), cluster: Port::claim()? })
    }

    pub(super) fn address(&self, port: &Port) -> String {
        let scheme = match self {
            Self::Dev => "http",
            Self::Real { .. } => "https",
        };
        format!("{scheme}://127.0.0.1:{}", port.number())
    }

    pub(super) fn authority(&self) -> Option<&Authority> {
        match self {
            Self::Dev => None,
            Self::Real { authority, .. } => Some(authority),
        }
    }

    pub(super) fn api(&self, port: &Port) -> Api {
        Api::new(self.address(port), self.authority().map(Authority::certificate))
    }

    /// Starts the server and waits until it answers, be it sealed.
    pub(super) fn launch(&self, lab: &Lab, name: &str, folder: &Path, port: &Port) -> Result<Process> {
        let mut command = Command::new(python::bao()?);
        command.arg("server").current_dir(folder).env("HOME", folder);
        // Who works with a server of either name has these in the shell.
        for (name, _) in std::env::vars_os() {
            let name_bytes = name.as_encoded_bytes();
            if name_bytes.starts_with(b"BAO_") || name_bytes.starts_with(b"VAULT_") {
                command.env_remove(name);
            }
        }
        match self {
            Self::Dev => command
                .args(["-dev", "-dev-no-store-token", "-dev-root-token-id", DEV_ROOT])
                .args(["-dev-listen-address", &format!("127.0.0.1:{}", port.number())]),
            Self::Real { authority, cluster } => {
                let config = self.configuration(name, folder, port, authority, cluster)?;
                command.arg("-config").arg(config)
            }
        };
        let process = lab.spawn(name, &command)?;
        let api = self.api(port);
        let answers =
            || api.request("GET", "sys/seal-status", None, None).is_ok_and(|answer| answer.status == 200);
        process.wait_until("it answered", answers)?;
        Ok(process)
    }

    fn configuration(
        &self,
        name: &str,
        folder: &Path,
        port: &Port,
        authority: &Authority,
        cluster: &Port,
    ) -> Result<PathBuf> {
        let data = folder.join(DATA);
        fs::create_dir_all(&data).map_err(Error::file("make", &data))?;
        let own = certify(authority, port)?;
        let config = json!({
            // The one durable storage that is built in.
            "storage": {"raft": {
                "path": data,
                "node_id": name,
                // Twice as patient as the least, for a machine that has more to do.
                "performance_multiplier": 2,
                // Else a node that joins waits twenty seconds for its vote.
                "autopilot_update_interval": "250ms",
                "autopilot_reconcile_interval": "500ms",
            }},
            "listener": [{"tcp": {
                "address": format!("127.0.0.1:{}", port.number()),
                "cluster_address": format!("127.0.0.1:{}", cluster.number()),
                "tls_cert_file": own.certificate,
                "tls_key_file": own.key,
            }}],
            "api_addr": self.address(port),
            "cluster_addr": format!("https://127.0.0.1:{}", cluster.number()),
        });
        let path = folder.join("config.json");
        fs::write(&path, format!("{config:#}\n")).map_err(Error::file("write", &path))?;
        Ok(path)
    }
}

/// The first `prefix-N` that nobody else in the lab has, and its folder.
pub(super) fn own_folder(lab: &Lab, prefix: &str) -> Result<(String, PathBuf)> {
    let mut number = 0;
    loop {
        let name = format!("{prefix}-{number}");
        let folder = lab.dir().join(&name);
        match fs::create_dir(&folder) {
            Ok(()) => return Ok((name, folder)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(Error::file("make", folder)(error)),
        }
    }
}

/// A copy of the data of a server that does not run.
pub(super) fn copy_aside(folder: &Path) -> Result<PathBuf> {
    let backups = folder.join(BACKUPS);
    fs::create_dir_all(&backups).map_err(Error::file("make", &backups))?;
    let copy = tempfile::Builder::new().prefix("data-").tempdir_in(&backups);
    let copy = copy.map_err(Error::file("make a folder in", backups))?.keep();
    copy_tree(&folder.join(DATA), &copy).map_err(Error::file("copy", &copy))?;
    Ok(copy)
}

/// Makes the data of a server that does not run what it was.
pub(super) fn put_back(folder: &Path, backup: &Path) -> Result<()> {
    let data = folder.join(DATA);
    fs::remove_dir_all(&data).map_err(Error::file("remove", &data))?;
    copy_tree(backup, &data).map_err(Error::file("restore", data))
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        if path.is_dir() {
            copy_tree(&path, &to.join(name))?;
        } else {
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}
