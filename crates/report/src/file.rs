//! Where a report goes: a file that is replaced at once or not at all.
//!
//! cron writes the same file each night, so one that is there is replaced, if it is a report: a typing error must not cost
//! somebody's snapshot. A symbolic link is not followed, for who may write the folder could point it anywhere.
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// Mode of a file that was not there.
const MODE: u32 = 0o600;

/// A place for reports of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    path: PathBuf,
    mark: &'static str,
}

/// Why a report does not go there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something else is there.
    #[error("{path}: {what} is there, which is not replaced by a report; name another file, or remove it", path = .path.display())]
    Occupied {
        /// Where.
        path: PathBuf,
        /// What is there.
        what: &'static str,
    },
    /// Reading or writing failed.
    #[error("{path}: the report can't be written: {source}; see that its folder exists, can be written and has room", path = .path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Destination {
    /// For reports that begin with `mark`.
    pub fn new(path: impl Into<PathBuf>, mark: &'static str) -> Self {
        Self { path: path.into(), mark }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a report may go there, to be asked before the work that it tells of.
    ///
    /// # Errors
    /// If there is something that is no such report, or no folder for one.
    pub fn check(&self) -> Result<(), Error> {
        self.before().map(drop)
    }

    /// Writes `text`, which begins with the mark. A file that was there keeps its owner, group and mode, by which somebody
    /// chose who reads it; a new one can be read by its owner alone.
    ///
    /// # Errors
    /// If it can't be written: then what was there is as it was.
    pub fn write(&self, text: &str) -> Result<(), Error> {
        debug_assert!(text.starts_with(self.mark));
        let before = self.before()?;
        let put = || -> io::Result<()> {
            let private = Permissions::from_mode(MODE);
            let mut file = tempfile::Builder::new()
                .prefix(".casemate-report-")
                .permissions(private)
                .tempfile_in(self.folder())?;
            if let Some(before) = before {
                let made = file.as_file().metadata()?;
                if (made.uid(), made.gid()) != (before.uid(), before.gid()) {
                    fchown(file.as_file(), Some(before.uid()), Some(before.gid()))?;
                }
                file.as_file().set_permissions(Permissions::from_mode(before.mode() & 0o777))?;
            }
            file.write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(&self.path)?;
            File::open(self.folder())?.sync_all()
        };
        put().map_err(|source| self.failed(source))
    }

    fn folder(&self) -> &Path {
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        }
    }

    /// The report that is there.
    fn before(&self) -> Result<Option<Metadata>, Error> {
        let occupied = |what| Err(Error::Occupied { path: self.path.clone(), what });
        let found = match fs::symlink_metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::metadata(self.folder()).map_err(|source| self.failed(source))?;
                return Ok(None);
            }
            found => found.map_err(|source| self.failed(source))?,
        };
        if found.is_symlink() {
            return occupied("a symbolic link");
        } else if found.is_dir() {
            return occupied("a folder");
        } else if !found.is_file() {
            return occupied("no regular file");
        }
        let mut begin = Vec::new();
        let read =
            File::open(&self.path).and_then(|file| file.take(self.mark.len() as u64).read_to_end(&mut begin));
        read.map_err(|source| self.failed(source))?;
        if !begin.is_empty() && begin != self.mark.as_bytes() {
            return occupied("something that is no such report");
        }
        Ok(Some(found))
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Io { path: self.path.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::symlink;

    use tempfile::tempdir;

    use super::*;

    const MARK: &str = "# report\n";

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_report_replaces_a_report_and_keeps_who_reads_it() {
        let folder = tempdir().unwrap();
        let place = Destination::new(folder.path().join("report"), MARK);
        place.check().unwrap();
        place.write("# report\none").unwrap();
        assert_eq!(mode(place.path()), 0o600);
        // An empty file of the right mode says who may read what is to come.
        fs::write(place.path(), "").unwrap();
        fs::set_permissions(place.path(), Permissions::from_mode(0o666)).unwrap();
        // Only root can give a file away.
        let of_others = fchown(File::open(place.path()).unwrap(), Some(65_534), Some(65_533));
        let owner = |path: &Path| fs::metadata(path).map(|found| (found.uid(), found.gid())).unwrap();
        let before = owner(place.path());
        assert!(of_others.is_err() || before == (65_534, 65_533));
        place.write("# report\ntwo").unwrap();
        place.write("# report\nthree").unwrap();
        assert_eq!(fs::read(place.path()).unwrap(), b"# report\nthree");
        assert_eq!((mode(place.path()), owner(place.path())), (0o666, before));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "something was left beside it");
    }

    #[test]
    fn what_is_no_report_stays() {
        let folder = tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("snapshot.db"), "a snapshot").unwrap();
        fs::write(at("short"), "# rep").unwrap();
        fs::write(at("report"), MARK).unwrap();
        symlink(at("report"), at("link")).unwrap();
        symlink(at("absent"), at("dangling")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        make_fifo(&at("fifo"));
        for (name, what) in [
            ("snapshot.db", "no such report"),
            ("short", "no such report"),
            ("link", "symbolic link"),
            ("dangling", "symbolic link"),
            ("folder", "a folder"),
            ("fifo", "no regular file"),
            ("absent/report", "see that its folder exists"),
        ] {
            let place = Destination::new(at(name), MARK);
            for refused in [place.check(), place.write(MARK)] {
                let error = refused.unwrap_err().to_string();
                assert!(error.contains(what) && error.contains(name), "{error}");
            }
        }
        assert_eq!(fs::read(at("snapshot.db")).unwrap(), b"a snapshot");
        assert_eq!(fs::read(at("report")).unwrap(), MARK.as_bytes());
    }

    fn make_fifo(path: &Path) {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    #[test]
    fn a_relative_path_is_in_the_working_folder() {
        assert_eq!(Destination::new("report", MARK).folder(), Path::new("."));
    }
}
