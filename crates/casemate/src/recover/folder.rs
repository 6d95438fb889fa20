//! The folder that manifests are written to: of nobody but who runs this, and each file whole or not there.
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use casemate_census::recover::place::Place;
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use crate::output::{Exit, Failure};

/// A folder that was empty.
pub(super) struct Folder {
    path: PathBuf,
    files: u64,
}

/// No place begins so.
const PARTIAL: &str = ".partial";
/// Stands in the folder until all is written. No place begins so, either: `_` is written as `%5F`.
const INCOMPLETE: &str = "_INCOMPLETE.txt";
const INCOMPLETE_TEXT: &[u8] =
    b"This recovery did not come to its end: objects are missing here. What is here is whole. Do it again, \
    into a new folder.\n";
const STICKY: u32 = 0o1000;

impl Folder {
    /// Makes it, or takes one that is there, empty, and open to nobody else.
    pub(super) fn make(path: &Path) -> Result<Self, Failure> {
        check_parent(path)?;
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check_empty(path)?,
            Err(error) => return Err(usage(path, &format_args!("can't be made: {error}"))),
            // Whatever the umask took away or an ACL of the parent added.
            Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o700))
                .map_err(|error| usage(path, &format_args!("can't be closed to others: {error}")))?,
        }
        let marker = path.join(INCOMPLETE);
        write_new(&marker, INCOMPLETE_TEXT)
            .and_then(|()| sync(&marker))
            .and_then(|()| sync(path))
            .map_err(|error| usage(path, &format_args!("nothing can be written there: {error}")))?;
        Ok(Self { path: path.to_owned(), files: 0 })
    }

    /// Where it is, for people.
    pub(super) fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Whether a file stands there already; on a file system that does not tell capital letters, also that of a similar
    /// name.
    pub(super) fn has(&self, place: &Place, extension: &str) -> bool {
        self.file(place, extension).symlink_metadata().is_ok()
    }

    fn file(&self, place: &Place, extension: &str) -> PathBuf {
        self.path.join(&place.namespace).join(&place.resource).join(format!("{}.{extension}", place.name))
    }

    /// Writes one file: under another name first, so that half of one is never taken for a whole.
    pub(super) fn write(&mut self, place: &Place, extension: &str, bytes: &[u8]) -> Result<(), Failure> {
        let folder = self.path.join(&place.namespace).join(&place.resource);
        let file = self.file(place, extension);
        let partial = self.path.join(PARTIAL);
        let written = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .and_then(|()| write_new(&partial, bytes))
            .and_then(|()| rename_new(&partial, &file));
        written.map_err(|error| {
            // It was not there before.
            let _ = fs::remove_file(&partial);
            let remedy = match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "there is no room: make some, and give another folder"
                }
                _ => "give a folder on another file system",
            };
            let text = format_args!(
                "{}: {error}; {remedy}. {} files are whole in {}",
                file.display(),
                self.files,
                self.path.display()
            );
            Failure::new(Exit::Unknown, &text)
        })?;
        self.files += 1;
        Ok(())
    }

    /// Waits until all of it is on the disk.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let synced = File::open(&self.path)
            .and_then(|folder| Ok(rustix::fs::syncfs(folder)?))
            .and_then(|()| fs::remove_file(self.path.join(INCOMPLETE)))
            .and_then(|()| sync(&self.path));
        synced.map_err(|error| {
            let text = format_args!(
                "{}: {error}: what was written may not be on the disk; give a folder on another one",
                self.path.display()
            );
            Failure::new(Exit::Unknown, &text)
        })
    }
}

/// Whoever may rename what is in it could put a folder of its own there.
fn check_parent(path: &Path) -> Result<(), Failure> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = fs::metadata(parent).map_err(|error| {
        usage(parent, &format_args!("{error}; the folder is made, what it stands in is not"))
    })?;
    if found.mode() & 0o002 != 0 && found.mode() & STICKY == 0 {
        let text =
            "everybody may write there, and so replace what is made in it; chmod o-w, or give another place";
        return Err(usage(parent, &text));
    }
    Ok(())
}

fn check_empty(path: &Path) -> Result<(), Failure> {
    let found = fs::symlink_metadata(path).map_err(|error| usage(path, &error))?;
    if !found.is_dir() {
        return Err(usage(path, &"is there and is no folder; give a new name"));
    }
    let mode = found.mode() & 0o7777;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(usage(path, &"belongs to another user; give a new name"));
    }
    if mode & 0o077 != 0 {
        let text = format_args!(
            "has mode {mode:04o}, so that others may look into it; chmod 700, or give a new name"
        );
        return Err(usage(path, &text));
    }
    let mut inside = fs::read_dir(path).map_err(|error| usage(path, &error))?;
    match inside.next() {
        None => Ok(()),
        Some(_) => Err(usage(path, &"has something in it, and nothing is ever overwritten; give a new name")),
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can tell; names differ, and nobody else writes here.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) if to.symlink_metadata().is_err() => {
            fs::rename(from, to)
        }
        done => Ok(done?),
    }
}

fn usage(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Usage, &format_args!("--out: {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn said<T>(result: Result<T, Failure>) -> String {
        result.map(drop).unwrap_err().text().to_owned()
    }

    #[test]
    fn it_is_new_or_empty_and_closed_to_others() {
        let place = Place { namespace: "a".into(), resource: "secrets".into(), name: "one".into() };
        let around = tempfile::tempdir().unwrap();
        let at = |name: &str| around.path().join(name);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;

        let mut folder = Folder::make(&at("new")).unwrap();
        folder.write(&place, "yaml", b"first").unwrap();
        let file = at("new/a/secrets/one.yaml");
        assert_eq!((mode(&at("new")), mode(&at("new/a/secrets")), mode(&file)), (0o700, 0o700, 0o600));
        // Two objects never have one place; if they had, the first one would stay.
        assert!(said(folder.write(&place, "yaml", b"second")).contains("1 files are whole"));
        assert_eq!(fs::read(&file).unwrap(), b"first");
        assert!(!at("new/.partial").exists());
        assert!(folder.has(&place, "yaml") && !folder.has(&place, "json"));
        assert!(at("new/_INCOMPLETE.txt").exists());
        folder.finish().unwrap();
        assert!(!at("new/_INCOMPLETE.txt").exists());
        assert!(said(Folder::make(&at("new"))).contains("nothing is ever overwritten"));

        fs::create_dir(at("open")).unwrap();
        fs::set_permissions(at("open"), fs::Permissions::from_mode(0o750)).unwrap();
        assert!(said(Folder::make(&at("open"))).contains("mode 0750"));
        fs::set_permissions(at("open"), fs::Permissions::from_mode(0o700)).unwrap();
        // One that was broken off is as it was, and taken for what it is.
        drop(Folder::make(&at("open")).unwrap());
        assert!(fs::read_to_string(at("open/_INCOMPLETE.txt")).unwrap().contains("objects are missing"));
        assert!(said(Folder::make(&at("open"))).contains("nothing is ever overwritten"));
        fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink(at("open"), at("link")).unwrap();
        for other in ["file", "link"] {
            assert!(said(Folder::make(&at(other))).contains("is no folder"));
        }
        assert!(said(Folder::make(&at("absent/new"))).contains("what it stands in is not"));
        fs::create_dir(at("everybodys")).unwrap();
        fs::set_permissions(at("everybodys"), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(said(Folder::make(&at("everybodys/new"))).contains("everybody may write there"));
        fs::set_permissions(at("everybodys"), fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(Folder::make(&at("everybodys/new")).is_ok());
    }
}
