//! `casemate-kms` as a process, with a configuration and a key file of its own.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use casemate_keyservice::file::{FileKeyId, Haste, KeyFile, Keyring, Secret};
use casemate_wire::kms_v2::{EncryptRequest, StatusRequest};
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::node::{Client, Stored, connect};

/// Looks at something until it is so; more than this many mean that it will never be.
const LOOKS: u32 = 1500;
const BETWEEN: Duration = Duration::from_millis(20);

/// The program, in the folder that `./dev test` names, else where cargo has built it.
pub(crate) fn program() -> PathBuf {
    match std::env::var_os("CASEMATE_BIN") {
        Some(folder) => PathBuf::from(folder).join("casemate-kms"),
        None => PathBuf::from(env!("CARGO_BIN_EXE_casemate-kms")),
    }
}

/// What an admin would set up on one host.
pub(crate) struct Host {
    folder: TempDir,
    socket: PathBuf,
}

impl Host {
    /// With a key file of one version.
    pub(crate) fn new() -> Self {
        let (folder, id) = (tempfile::tempdir().unwrap(), FileKeyId::generate());
        let socket = folder.path().join("kms.sock");
        let host = Self { folder, socket };
        let keyring = Keyring::new(id, None, Secret::generate(), Timestamp::now());
        KeyFile::at(host.key()).create(&keyring).unwrap();
        let config = format!(
            "apiVersion: casemate.dev/v1alpha1\nkind: KmsConfiguration\nclusterId: prod\nstateDirectory: {}\n\
             providers:\n  - name: casemate\n    endpoint: unix://{}\n    rootKeys:\n      - name: main\n        \
             file: {{path: {}, id: \"{id}\"}}\n",
            host.state().display(),
            host.socket().display(),
            host.key().display(),
        );
        fs::write(host.config(), config).unwrap();
        host
    }

    /// Sets fields of its provider.
    pub(crate) fn set(&self, fields: &str) {
        let text = fs::read_to_string(self.config()).unwrap();
        fs::write(self.config(), text.replace("    rootKeys:", &format!("    {fields}\n    rootKeys:")))
            .unwrap();
    }

    /// Puts its socket elsewhere in the folder.
    pub(crate) fn move_socket(&mut self, to: &str) {
        let (from, to) = (self.socket(), self.folder().join(to));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        let text = fs::read_to_string(self.config()).unwrap();
        fs::write(self.config(), text.replace(&*from.to_string_lossy(), &to.to_string_lossy())).unwrap();
        self.socket = to;
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("config.yaml")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.folder.path().join("main.key")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// Stages a version and activates it.
    pub(crate) fn rotate(&self) {
        KeyFile::at(self.key())
            .update(|keyring| {
                let number = keyring.stage(Secret::generate(), Timestamp::now()).unwrap();
                keyring.activate(number, Timestamp::now(), Haste::Now).unwrap();
                Ok::<_, casemate_keyservice::file::StoreError>(())
            })
            .unwrap();
    }

    /// All files below the state directory with what is in them.
    pub(crate) fn state_files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files: Vec<_> = fs::read_dir(self.state().join("casemate"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect();
        files.sort();
        files
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        Command::new(program()).args(arguments).arg("--config").arg(self.config()).output().unwrap()
    }

    /// Starts to serve.
    pub(crate) fn serve(&self) -> Daemon {
        let mut command = Command::new(program());
        command.arg("serve").arg("--config").arg(self.config());
        self.serve_by(command)
    }

    /// Starts to serve with no file allowed to grow: what a full disk does to a process.
    pub(crate) fn serve_on_a_full_disk(&self) -> Daemon {
        let mut command = Command::new("sh");
        command.args(["-c", r#"trap "" XFSZ; exec prlimit --fsize=0 "$0" serve --config "$1""#]);
        command.arg(program()).arg(self.config());
        self.serve_by(command)
    }

    pub(crate) fn serve_by(&self, mut command: Command) -> Daemon {
        // A pipe and not a file: nothing that it writes may meet the limit above.
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let stderr = child.stderr.take().unwrap();
        Daemon { child, log: Log::of(stderr), socket: self.socket() }
    }
}

/// A running `casemate-kms`; killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    log: Log,
    socket: PathBuf,
}

/// What it writes to the log, while it does and afterwards.
struct Log {
    text: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Log {
    fn of(mut stderr: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let kept = text.clone();
        let reader = std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(length @ 1..) = stderr.read(&mut part) {
                kept.lock().unwrap().extend(&part[..length]);
            }
        });
        Self { text, reader: Some(reader) }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }

    /// All of it, once the process has ended.
    fn whole(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.so_far()
    }
}

impl Daemon {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// What it has logged until now.
    pub(crate) fn log(&self) -> String {
        self.log.so_far()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end; gives how it ended and what it logged.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let status = (0..LOOKS).find_map(|_| {
            std::thread::sleep(BETWEEN);
            self.child.try_wait().unwrap()
        });
        if status.is_none() {
            let _ = self.child.kill();
        }
        let log = self.log.whole();
        (status.unwrap_or_else(|| panic!("it does not end\n{log}")), log)
    }

    /// SIGKILL; gives what it logged.
    pub(crate) fn kill(self) -> String {
        self.signal(Signal::KILL);
        self.end().1
    }

    /// A client, once it answers Status with a key id.
    pub(crate) async fn healthy(&mut self) -> Client {
        let mut last = String::new();
        for _ in 0..LOOKS {
            if !self.is_running() {
                panic!("it has ended\n{}", self.log.whole());
            }
            match connect(&self.socket).await {
                Ok(mut client) => match client.status(StatusRequest {}).await {
                    Ok(_) => return client,
                    Err(status) => last = status.to_string(),
                },
                Err(error) => last = format!("{error:?}"),
            }
            tokio::time::sleep(BETWEEN).await;
        }
        let _ = self.child.kill();
        panic!("it never gets healthy: {last}\n{}", self.log.whole());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    for _ in 0..LOOKS {
        if so().await {
            return;
        }
        tokio::time::sleep(BETWEEN).await;
    }
    panic!("never: {what}");
}

/// Why Status is refused, once the first look at root keys has ended.
pub(crate) async fn refusal(client: &mut Client) -> tonic::Status {
    for _ in 0..LOOKS {
        match client.status(StatusRequest {}).await {
            Err(status) if status.message().contains("it is starting") => {}
            other => return other.unwrap_err(),
        }
        tokio::time::sleep(BETWEEN).await;
    }
    panic!("it never ends to start");
}

pub(crate) async fn encrypt(client: &mut Client, dek_source: &[u8]) -> Result<Stored, tonic::Status> {
    let request = EncryptRequest { plaintext: dek_source.to_vec().into(), uid: String::new() };
    let reply = client.encrypt(request).await?.into_inner();
    let annotation = reply.annotations.into_values().next().unwrap().to_vec();
    Ok(Stored { ciphertext: reply.ciphertext.to_vec(), key_id: reply.key_id, annotation })
}

pub(crate) async fn opens(client: &mut Client, stored: &Stored, dek_source: &[u8]) {
    let plaintext = client.decrypt(stored.request()).await.unwrap().into_inner().plaintext;
    assert_eq!(plaintext, dek_source);
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Replaces a file as a delivery does: whole, by a rename.
pub(crate) fn deliver(bytes: &[u8], path: &Path) {
    let aside = path.with_extension("delivery");
    fs::write(&aside, bytes).unwrap();
    set_mode(&aside, 0o600);
    fs::rename(aside, path).unwrap();
}
