//! The one folder that outlives a run: built tools, the Python environment, logs of failed runs.

use std::{
    env,
    fs::{self, File, TryLockError},
    io::Write as _,
    path::{Path, PathBuf},
};

use crate::{Error, Result};

/// The cache folder: `$CASEMATE_CACHE`, else `$XDG_CACHE_HOME/casemate`, else `~/.cache/casemate`.
pub fn cache_dir() -> Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    let dir = if let Some(dir) = set("CASEMATE_CACHE") {
        PathBuf::from(dir)
    } else if let Some(dir) = set("XDG_CACHE_HOME") {
        PathBuf::from(dir).join("casemate")
    } else if let Some(home) = set("HOME") {
        PathBuf::from(home).join(".cache/casemate")
    } else {
        return Err(Error::NoCache);
    };
    std::path::absolute(&dir).map_err(Error::file("find", dir))
}

/// Makes `dir` and holds its lock until the returned file is dropped or the process ends, however
/// it ends. Says so when somebody else has it.
pub(crate) fn lock(dir: &Path, what: &str) -> Result<File> {
    fs::create_dir_all(dir).map_err(Error::file("make", dir))?;
    let path = dir.join(".lock");
    let file = File::create(&path).map_err(Error::file("make", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            say(&format!("waiting for another run that makes {what}"));
            file.lock().map_err(Error::file("lock", &path))?;
            Ok(file)
        }
        Err(TryLockError::Error(source)) => Err(Error::file("lock", &path)(source)),
    }
}

/// One line on standard error. Written directly, because `eprintln!` in a test is kept back until
/// the test has failed, and somebody who waits for a build must see that it goes on.
pub(crate) fn say(line: &str) {
    // A closed standard error must not stop a run.
    let _ = writeln!(std::io::stderr(), "lab: {line}");
}
