//! Our own programs beside the servers: a `casemate-kms` with a root key in whatever key service, and the `casemate`
//! command line.

use std::env;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::Value;

use crate::{Encryption, Error, Lab, Process, Result, process};

mod key_service;

pub use key_service::{KeyService, TokenRoot, TransitRoot, documented_policy};

/// Looks for a new key id: the plugin observes its key file every 10 s and wants to see a change twice.
const SWITCH_LOOKS: u32 = 600;
const SWITCH_REST: Duration = Duration::from_millis(100);

/// A running `casemate-kms` with its own configuration, and files that it names, in its own folder.
pub struct Plugin<'lab> {
    lab: &'lab Lab,
    name: String,
    folder: PathBuf,
    /// Of one that is activated: held here, as systemd does.
    listener: Option<UnixListener>,
    process: Mutex<Process>,
}

impl<'lab> Plugin<'lab> {
    /// Starts a plugin on a new root key in a file.
    pub fn start(lab: &'lab Lab, name: &str) -> Result<Self> {
        Self::start_on(lab, name, KeyService::File)
    }

    /// Starts a plugin that writes with the root key in `service`.
    pub fn start_on(lab: &'lab Lab, name: &str, service: KeyService<'_>) -> Result<Self> {
        Self::start_with(lab, name, writes_with(service))
    }

    /// Starts a plugin whose provider has what `fill` gives it: root keys, and whatever else. `fill` gets the node's
    /// folder, for files that it is to have, and the configuration, a document with one provider.
    pub fn start_with(
        lab: &'lab Lab,
        name: &str,
        fill: impl FnOnce(&Path, &mut Value) -> Result<()>,
    ) -> Result<Self> {
        let folder = Self::folder(lab, name, fill)?;
        Self::start_in(lab, name, folder, None)
    }

    /// As [`Plugin::start`], with a socket that is held here and passed to each of its processes, as systemd does.
    pub fn start_activated(lab: &'lab Lab, name: &str) -> Result<Self> {
        let folder = Self::folder(lab, name, writes_with(KeyService::File))?;
        let listener = listen(&folder)?;
        Self::start_in(lab, name, folder, Some(listener))
    }

    /// Starts a plugin with a copy of `other`'s configuration, and of all files that were delivered to it, as on another
    /// node of the cluster; activated if that one is.
    pub fn start_beside(other: &Plugin<'lab>, name: &str) -> Result<Self> {
        let folder = other.lab.dir().join(name);
        fs::create_dir(&folder).map_err(Error::file("make", &folder))?;
        for entry in fs::read_dir(&other.folder).map_err(Error::file("read", &other.folder))? {
            let path = entry.map_err(Error::file("read", &other.folder))?.path();
            if let (true, Some(name)) = (path.is_file(), path.file_name()) {
                copy(&path, &folder.join(name))?;
            }
        }
        let path = folder.join(CONFIG);
        let config = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        let here = |folder: &Path| format!("{}/", folder.display());
        let config = config.replace(&here(&other.folder), &here(&folder));
        fs::write(&path, config).map_err(Error::file("write", &path))?;
        let listener = other.listener.is_some().then(|| listen(&folder)).transpose()?;
        Self::start_in(other.lab, name, folder, listener)
    }

    fn folder(lab: &Lab, name: &str, fill: impl FnOnce(&Path, &mut Value) -> Result<()>) -> Result<PathBuf> {
        let folder = lab.dir().join(name);
        fs::create_dir(&folder).map_err(Error::file("make", &folder))?;
        // A JSON text is a YAML text.
        let mut config = serde_json::json!({
            "apiVersion": "casemate.dev/v1alpha1",
            "kind": "KmsConfiguration",
            "clusterId": "lab",
            "stateDirectory": folder.join("state"),
            "admin": {"endpoint": format!("unix://{}", folder.join(ADMIN).display())},
            "providers": [{
                "name": PROVIDER,
                "endpoint": format!("unix://{}", folder.join(SOCKET).display()),
            }],
        });
        fill(&folder, &mut config)?;
        let path = folder.join(CONFIG);
        fs::write(&path, format!("{config:#}\n")).map_err(Error::file("write", &path))?;
        Ok(folder)
    }

    fn start_in(lab: &'lab Lab, name: &str, folder: PathBuf, listener: Option<UnixListener>) -> Result<Self> {
        let process = launch(lab, name, &folder, listener.as_ref(), &product("casemate-kms")?)?;
        named_a_key_id(&process, &folder)?;
        Ok(Self { lab, name: name.to_owned(), folder, listener, process: Mutex::new(process) })
    }

    /// What kube-apiserver is to be configured with.
    pub fn encryption(&self) -> Encryption {
        Encryption::kms(PROVIDER, &self.socket())
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join(SOCKET)
    }

    /// What its admin socket tells: `/status`, also of one that does not write, which the command line says by its
    /// exit code too.
    pub fn status(&self) -> Result<Value> {
        let mut command = Command::new(product("casemate")?);
        command.args(["kms", "status", "--output", "json", "--admin"]);
        command.arg(format!("unix://{}", text(&self.admin_socket())));
        let printed = process::run(&command, b"")?;
        serde_json::from_slice(&printed.stdout).map_err(|_| Error::Answer {
            command: "casemate kms status --admin".into(),
            found: String::from_utf8_lossy(&printed.stderr).into_owned(),
        })
    }

    /// Where `/livez`, `/readyz`, `/metrics` and `/status` are.
    pub fn admin_socket(&self) -> PathBuf {
        self.folder.join(ADMIN)
    }

    /// The folder with all that is its own.
    pub fn dir(&self) -> &Path {
        &self.folder
    }

    /// Its own copy of the key file.
    pub fn key_file(&self) -> PathBuf {
        self.folder.join(KEY_FILE)
    }

    /// Its configuration.
    pub fn config(&self) -> PathBuf {
        self.folder.join(CONFIG)
    }

    /// Delivers a changed configuration and waits until it holds. One that does not is an error that says why.
    pub fn reconfigure(&self, change: impl FnOnce(&mut Value)) -> Result<()> {
        let text = self.changed(change)?;
        self.deliver_configuration(&text)?;
        let wanted = hex::encode(digest(&SHA256, text.as_bytes()));
        let mut held = Value::Null;
        for _ in 0..SWITCH_LOOKS {
            held = self.status()?["configuration"].take();
            if held["sha256"] == wanted {
                return Ok(());
            }
            thread::sleep(SWITCH_REST);
        }
        Err(Error::Answer {
            command: "casemate-kms".into(),
            found: format!("another configuration holds: {held}"),
        })
    }

    fn changed(&self, change: impl FnOnce(&mut Value)) -> Result<String> {
        let bytes = fs::read(self.config()).map_err(Error::file("read", self.config()))?;
        let mut config = serde_json::from_slice(&bytes).map_err(|error| Error::Answer {
            command: "the plugin's configuration".into(),
            found: error.to_string(),
        })?;
        change(&mut config);
        Ok(format!("{config:#}\n"))
    }

    /// Replaces the configuration by this text, right or wrong; the plugin sees it within some seconds.
    pub fn deliver_configuration(&self, text: &str) -> Result<()> {
        let (path, aside) = (self.config(), self.folder.join("config.delivered"));
        fs::write(&aside, text).map_err(Error::file("write", &aside))?;
        fs::rename(&aside, &path).map_err(Error::file("replace", &path))
    }

    /// The running program.
    pub fn process(&self) -> Process {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The key id that Status names now.
    pub fn key_id(&self) -> Result<String> {
        key_id(&self.socket())
    }

    /// Stages a version and activates it at once: a lab has nobody to deliver to first. Returns its number.
    pub fn rotate(&self) -> Result<u64> {
        let version = self.stage()?;
        self.activate(version)?;
        Ok(version)
    }

    /// Stages a version in this copy of the key file. Returns its number.
    pub fn stage(&self) -> Result<u64> {
        let done = casemate_json(&["key", "add-version", "--file", &text(&self.key_file())])?;
        done["version"].as_u64().ok_or_else(|| Error::Answer {
            command: "casemate key add-version".into(),
            found: done.to_string(),
        })
    }

    /// Activates a version in this copy of the key file.
    pub fn activate(&self, version: u64) -> Result<()> {
        let version = version.to_string();
        casemate(&["key", "activate", &version, "--file", &text(&self.key_file()), "--now"]).map(drop)
    }

    /// Delivers this copy of the key file to `other`.
    pub fn deliver_to(&self, other: &Plugin<'_>) -> Result<()> {
        copy(&self.key_file(), &other.key_file())
    }

    /// Waits until Status names another key id than `before`; returns it.
    pub fn wait_for_switch(&self, before: &str) -> Result<String> {
        for _ in 0..SWITCH_LOOKS {
            let now = self.key_id()?;
            if now != before {
                return Ok(now);
            }
            thread::sleep(SWITCH_REST);
        }
        Err(self.no_switch(before))
    }

    /// The same for root keys in a key service, which is not asked so often that one could wait for it: has it looked at
    /// all the time.
    pub fn refresh_until_switch(&self, before: &str) -> Result<String> {
        for _ in 0..SWITCH_LOOKS {
            self.refresh()?;
            // Nothing may write meanwhile, and then nothing is named.
            match self.key_id() {
                Ok(now) if now != before => return Ok(now),
                _ => thread::sleep(SWITCH_REST),
            }
        }
        Err(self.no_switch(before))
    }

    /// Has its root keys looked at, and doesn't wait for the end of it. Whoever asks too often waits with it: it looks when
    /// it may, or by itself.
    pub fn refresh(&self) -> Result<()> {
        let socket = self.admin_socket();
        let ask = || -> std::io::Result<String> {
            let mut stream = UnixStream::connect(&socket)?;
            stream.write_all(b"POST /refresh HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = ask().map_err(Error::file("POST /refresh to", &socket))?;
        match answer.split(' ').nth(1) {
            Some("202" | "429") => Ok(()),
            _ => Err(Error::Answer { command: "POST /refresh".into(), found: answer }),
        }
    }

    fn no_switch(&self, before: &str) -> Error {
        Error::Answer {
            command: "casemate kms status".into(),
            found: format!(
                "still key id {before} after {SWITCH_LOOKS} looks; its log ends:\n{}",
                self.process().log_tail(20)
            ),
        }
    }

    /// SIGKILL.
    pub fn kill9(&self) {
        self.process().kill9();
    }

    /// SIGTERM, and waits for the end.
    pub fn terminate(&self) -> Result<ExitStatus> {
        self.process().terminate()
    }

    /// Starts it again, after it ended in whatever way.
    pub fn start_again(&self) -> Result<()> {
        self.start_as(&product("casemate-kms")?)
    }

    /// The same, and waits only until it answers on its admin socket: it may have nothing to write with.
    pub fn start_again_in_trouble(&self) -> Result<()> {
        let program = product("casemate-kms")?;
        let process = launch(self.lab, &self.name, &self.folder, self.listener.as_ref(), &program)?;
        process.wait_until("it answered", || self.status().is_ok())?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = process;
        Ok(())
    }

    /// Starts it again with a changed configuration: one that needs what the running process has given up.
    pub fn restart_with(&self, change: impl FnOnce(&mut Value)) -> Result<()> {
        self.terminate()?;
        let text = self.changed(change)?;
        self.deliver_configuration(&text)?;
        self.start_again()
    }

    /// Ends it, and starts `program` in its place.
    pub fn upgrade_to(&self, program: &Path) -> Result<()> {
        let ended = self.terminate()?;
        if !ended.success() {
            let found = format!("it ended with {ended}:\n{}", self.process().log_tail(20));
            return Err(Error::Answer { command: "casemate-kms".into(), found });
        }
        self.start_as(program)
    }

    fn start_as(&self, program: &Path) -> Result<()> {
        let process = launch(self.lab, &self.name, &self.folder, self.listener.as_ref(), program)?;
        named_a_key_id(&process, &self.folder)?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = process;
        Ok(())
    }
}

const KEY_FILE: &str = "root.key";
const SOCKET: &str = "kms.sock";
const ADMIN: &str = "admin.sock";
const CONFIG: &str = "config.yaml";
/// The provider's name here and in the `EncryptionConfiguration`.
const PROVIDER: &str = "casemate";

/// Runs the `casemate` command line; answers what it printed.
pub fn casemate(args: &[&str]) -> Result<String> {
    let mut command = Command::new(product("casemate")?);
    command.args(args);
    let printed = process::run_checked(&command, b"")?;
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

/// Runs the `casemate` command line with `--output json`.
pub fn casemate_json(args: &[&str]) -> Result<Value> {
    let printed = casemate(&[args, &["--output", "json"]].concat())?;
    serde_json::from_str(&printed).map_err(|error| Error::Answer {
        command: format!("casemate {}", args.join(" ")),
        found: error.to_string(),
    })
}

/// A program of this workspace: from `CASEMATE_BIN`, which `./dev` sets, else from where this one was built to.
pub fn product(name: &str) -> Result<PathBuf> {
    let path = match env::var_os("CASEMATE_BIN") {
        Some(folder) => Path::new(&folder).join(name),
        None => {
            let this = env::current_exe().map_err(Error::file("find", Path::new(name)))?;
            let folder = this.parent().unwrap_or(Path::new("."));
            let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
            folder.join(name)
        }
    };
    if path.exists() {
        return Ok(path);
    }
    Err(Error::Spawn {
        program: path.display().to_string(),
        source: std::io::ErrorKind::NotFound.into(),
        remedy: "build it: cargo build --workspace, or run tests by ./dev test".into(),
    })
}

fn launch(
    lab: &Lab,
    name: &str,
    folder: &Path,
    listener: Option<&UnixListener>,
    program: &Path,
) -> Result<Process> {
    let mut command = Command::new(program);
    command.args(["serve", "--config"]).arg(folder.join(CONFIG));
    match listener {
        Some(listener) => lab.spawn_on(name, &command, listener, PROVIDER),
        None => lab.spawn(name, &command),
    }
}

fn named_a_key_id(process: &Process, folder: &Path) -> Result<()> {
    let socket = folder.join(SOCKET);
    process.wait_until("its Status named a key id", || key_id(&socket).is_ok())
}

/// What fills a configuration with one root key.
fn writes_with(service: KeyService<'_>) -> impl FnOnce(&Path, &mut Value) -> Result<()> {
    move |folder, config| {
        config["providers"][0]["rootKeys"] = Value::from(vec![service.root_key("main", folder)?]);
        Ok(())
    }
}

fn listen(folder: &Path) -> Result<UnixListener> {
    let socket = folder.join(SOCKET);
    UnixListener::bind(&socket).map_err(Error::file("bind", &socket))
}

fn key_id(socket: &Path) -> Result<String> {
    let endpoint = format!("unix://{}", socket.display());
    let status = casemate_json(&["kms", "status", "--socket", &endpoint])?;
    let key_id = status["key_id"].as_str();
    key_id
        .map(str::to_owned)
        .ok_or_else(|| Error::Answer { command: "casemate kms status".into(), found: status.to_string() })
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    // As an admin would deliver it: whole, or not at all.
    let aside = to.with_extension("delivered");
    fs::copy(from, &aside).map_err(Error::file("copy", from))?;
    fs::rename(&aside, to).map_err(Error::file("replace", to))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
