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

/// `program`, which lives in the folder `home` of the cache and is called `what`; made by `make` if it is
/// not there. `make` writes to the path that it gets. Whoever comes meanwhile waits for that.
pub(crate) fn made_once(
    home: &Path,
    program: &str,
    what: &str,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let whole = home.join(program);
    // Programs get their name by a rename only, so one that is there is whole.
    if whole.is_file() {
        return Ok(whole);
    }
    let _lock = lock(home, what)?;
    if !whole.is_file() {
        let partial = home.join(format!("{program}.partial"));
        make(&partial)?;
        fs::rename(&partial, &whole).map_err(Error::file("rename", partial))?;
    }
    Ok(whole)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        thread,
        time::Duration,
    };

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn who_comes_at_once_makes_it_once() {
        let home = TempDir::new().unwrap();
        // What a build that was killed left.
        fs::write(home.path().join("tool.partial"), "half").unwrap();
        let made = AtomicUsize::new(0);
        let make = |partial: &Path| {
            made.fetch_add(1, Ordering::Relaxed);
            fs::write(partial, "begun").unwrap();
            // Long enough for the others to come.
            thread::sleep(Duration::from_millis(50));
            fs::write(partial, "whole").unwrap();
            Ok(())
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let tool = made_once(home.path(), "tool", "a tool", make).unwrap();
                    assert_eq!(fs::read(tool).unwrap(), b"whole");
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }

    #[test]
    fn what_could_not_be_made_is_made_the_next_time() {
        let home = TempDir::new().unwrap();
        let fail = |partial: &Path| {
            fs::write(partial, "half").unwrap();
            Err(Error::NoCache)
        };
        made_once(home.path(), "tool", "a tool", fail).unwrap_err();
        let make = |partial: &Path| {
            fs::write(partial, "whole").unwrap();
            Ok(())
        };
        let tool = made_once(home.path(), "tool", "a tool", make).unwrap();
        assert_eq!(fs::read(tool).unwrap(), b"whole");
    }
}
