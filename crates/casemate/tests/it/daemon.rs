//! What serves `casemate-kms`, in this process: with a configuration, a key file and sockets in a folder of its own.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use casemate_keyservice::file::{FileKeyId, Haste, KeyFile, Keyring, Secret, StoreError};
use casemate_kms::config::Source;
use casemate_kms::serve::{Start, serve};
use jiff::Timestamp;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::program::casemate;

/// More than anything takes that ends at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an admin would set up on one host: provider `casemate`, root key `main` in a file.
pub(crate) struct Host {
    folder: TempDir,
}

impl Host {
    pub(crate) fn new() -> Self {
        let host = Self { folder: tempfile::tempdir().unwrap() };
        // As a folder of the system is.
        fs::set_permissions(host.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let id = FileKeyId::generate();
        KeyFile::at(host.file("main.key"))
            .create(&Keyring::new(id, None, Secret::generate(), Timestamp::now()))
            .unwrap();
        host.configure(&format!(
            "apiVersion: casemate.dev/v1alpha1\nkind: KmsConfiguration\nclusterId: prod\nstateDirectory: {}\n\
             admin:\n  endpoint: {}\nproviders:\n  - name: casemate\n    endpoint: {}\n    rootKeys:\n      - name: main\n        \
             file: {{path: {}, id: \"{id}\"}}\n",
            host.file("state").display(),
            host.admin(),
            host.socket(),
            host.file("main.key").display(),
        ));
        host
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.file("config.yaml")
    }

    pub(crate) fn admin(&self) -> String {
        format!("unix://{}", self.file("admin.sock").display())
    }

    pub(crate) fn socket(&self) -> String {
        format!("unix://{}", self.file("kms.sock").display())
    }

    pub(crate) fn configure(&self, text: &str) {
        fs::write(self.config(), text).unwrap();
        fs::set_permissions(self.config(), fs::Permissions::from_mode(0o644)).unwrap();
    }

    /// Puts `to` where `from` stands in the configuration.
    pub(crate) fn change(&self, from: &str, to: &str) {
        let text = fs::read_to_string(self.config()).unwrap();
        assert!(text.contains(from), "{from} is not in\n{text}");
        self.configure(&text.replace(from, to));
    }

    /// Stages a version and activates it.
    pub(crate) fn rotate(&self) {
        KeyFile::at(self.file("main.key"))
            .update(|keyring| {
                let number = keyring.stage(Secret::generate(), Timestamp::now()).unwrap();
                keyring.activate(number, Timestamp::now(), Haste::Now).unwrap();
                Ok::<_, StoreError>(())
            })
            .unwrap();
    }

    /// Serves until the answer is dropped; comes back when it writes.
    pub(crate) fn serve(&self) -> Daemon {
        let daemon = Daemon::start(&self.config());
        self.until("it writes", || self.status().is_some_and(|told| told.contains("key id")));
        daemon
    }

    /// What `casemate kms status` says of the KMS socket, if it is well.
    pub(crate) fn status(&self) -> Option<String> {
        let done = casemate("kms status --socket").arg(self.socket()).output().unwrap();
        done.status.success().then(|| String::from_utf8(done.stdout).unwrap())
    }

    pub(crate) fn until(&self, what: &str, mut so: impl FnMut() -> bool) {
        let since = Instant::now();
        while !so() {
            assert!(since.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// It serves in a thread of this process, not confined.
pub(crate) struct Daemon {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    fn start(config: &Path) -> Self {
        let (source, stop) = (Source::read(config).unwrap(), CancellationToken::new());
        let (config, stopped) = (source.config().unwrap(), stop.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            // Nobody asks it to reload.
            let (_ask, asked) = mpsc::channel(1);
            runtime.unwrap().block_on(serve(source, config, Start::default(), asked, stopped)).unwrap();
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
