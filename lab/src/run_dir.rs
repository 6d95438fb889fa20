//! The folder of one run: gone after it, however it ended, but for the logs of a failed one.

use std::{
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    time::SystemTime,
};

use tempfile::TempDir;

use crate::{
    Error, Result,
    cache::{self, say},
};

/// How many failed runs' logs are kept.
const KEPT: usize = 10;

/// A folder under the one for temporary files.
///
/// Our own process removes it. For the case that we are killed, a small shell waits for the end of
/// a pipe that only we hold open, and removes the folder then.
#[derive(Debug)]
pub(crate) struct RunDir {
    dir: TempDir,
    janitor: Option<Child>,
    lifeline: Option<ChildStdin>,
}

impl RunDir {
    pub(crate) fn make(name: &str) -> Result<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        use std::os::unix::process::CommandExt as _;

        // The servers of a killed process may still be writing when the janitor starts.
        const JANITOR: &str =
            r#"cat; for try in 1 2 3 4 5 6 7 8 9; do rm -rf -- "$0" && exit; sleep 0.2; done"#;

        // The path of a socket has room for 107 bytes, and tests put sockets here.
        let name: String = name.chars().take(24).collect();
        let parent = std::env::temp_dir();
        let dir = tempfile::Builder::new()
            .prefix(&format!("casemate-lab-{name}-"))
            // Keys and an administrator's token are in it.
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir()
            .map_err(Error::file("make a folder in", parent))?;
        let mut janitor = Command::new("sh")
            .args(["-c", JANITOR])
            .arg(dir.path())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C on a terminal is not for it.
            .process_group(0)
            .spawn()
            .map_err(|source| Error::Spawn {
                program: "sh".into(),
                source,
                remedy: "see that processes and open files are not at their limit".into(),
            })?;
        let run = Self { lifeline: janitor.stdin.take(), janitor: Some(janitor), dir };
        let logs = run.logs();
        fs::create_dir(&logs).map_err(Error::file("make", logs))?;
        Ok(run)
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.dir.path().join("logs")
    }

    /// Copies logs and configuration files to the cache and says where.
    pub(crate) fn keep_logs(&self, name: &str) {
        let kept = cache::cache_dir().map_err(|error| error.to_string()).and_then(|cache| {
            keep(self.path(), &cache.join("failed"), name).map_err(|error| error.to_string())
        });
        match kept {
            Ok(kept) => say(&format!("{name} failed; its logs are kept in {}", kept.display())),
            Err(error) => say(&format!("{name} failed, and its logs can't be kept: {error}")),
        }
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // First the janitor, so that nobody removes a folder that has got the same name since.
        drop(self.lifeline.take());
        if let Some(mut janitor) = self.janitor.take() {
            let _ = janitor.wait();
        }
        // The folder is gone now unless the janitor was killed; `dir` looks again when it drops.
    }
}

/// Copies what tells about the run at `run` to a new folder in `failed`, and makes room there.
fn keep(run: &Path, failed: &Path, name: &str) -> io::Result<PathBuf> {
    fs::create_dir_all(failed)?;
    let pid = std::process::id();
    let mut kept = failed.join(format!("{name}-{pid}"));
    let mut again = 1;
    while let Err(error) = fs::create_dir(&kept) {
        if error.kind() != ErrorKind::AlreadyExists {
            return Err(error);
        }
        again += 1;
        kept = failed.join(format!("{name}-{pid}-{again}"));
    }
    copy_telling(run, &kept)?;
    prune(failed, KEPT)?;
    Ok(kept)
}

/// Logs and configuration; not etcd's data, not keys.
fn copy_telling(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let Some(name) = path.file_name() else {
            continue;
        };
        if path.is_dir() {
            copy_telling(&path, &to.join(name))?;
        } else if path.is_file() && path.extension().is_some_and(|kind| kind == "log" || kind == "yaml") {
            fs::create_dir_all(to)?;
            fs::copy(&path, to.join(name))?;
        }
    }
    Ok(())
}

/// Removes the oldest folders in `failed` until only `count` are left.
fn prune(failed: &Path, count: usize) -> io::Result<()> {
    let mut folders: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(failed)? {
        let entry = entry?;
        // Another run may be pruning too.
        if let Ok(modified) = entry.metadata().and_then(|about| about.modified()) {
            folders.push((modified, entry.path()));
        }
    }
    folders.sort();
    let surplus = folders.len().saturating_sub(count);
    for (_, folder) in folders.into_iter().take(surplus) {
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::*;

    #[test]
    fn nobody_else_looks_into_a_run() {
        use std::os::unix::fs::PermissionsExt as _;
        let run = RunDir::make("closed").unwrap();
        assert_eq!(fs::metadata(run.path()).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn logs_and_configuration_are_kept_and_data_is_not() {
        let (run, failed) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        for (path, text) in [
            ("logs/etcd.log", "said"),
            ("apiserver-0/encryption.yaml", "kind"),
            ("apiserver-0/apiserver.key", "secret"),
            ("etcd/member/snap/db", "data"),
        ] {
            let path = run.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let kept = keep(run.path(), failed.path(), "story").unwrap();
        assert_eq!(fs::read(kept.join("logs/etcd.log")).unwrap(), b"said");
        assert!(kept.join("apiserver-0/encryption.yaml").is_file());
        assert!(!kept.join("apiserver-0/apiserver.key").exists());
        assert!(!kept.join("etcd").exists());
        assert_ne!(keep(run.path(), failed.path(), "story").unwrap(), kept);
    }

    #[test]
    fn only_the_newest_failed_runs_are_kept() {
        let failed = TempDir::new().unwrap();
        for age in 0..5 {
            let folder = failed.path().join(format!("aged-{age}"));
            fs::create_dir(&folder).unwrap();
            let when = SystemTime::now() - Duration::from_secs(60 * age);
            fs::File::open(&folder).unwrap().set_modified(when).unwrap();
        }
        prune(failed.path(), 2).unwrap();
        let mut left: Vec<_> = fs::read_dir(failed.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["aged-0", "aged-1"]);
    }
}
