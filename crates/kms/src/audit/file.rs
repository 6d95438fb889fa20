//! The file of the audit log: appended to in whole lines, rotated, found again after a kill.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::format::{Cut, Head, Line, MAX_LINE_LEN};

/// How much of the end of a file is looked at, at a time.
const WINDOW: u64 = 64 * 1024;

/// A log that can't be written to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// Another program writes it.
    #[error("{}: another program writes this audit log; stop it, or configure another path", path.display())]
    InUse {
        /// Which file.
        path: PathBuf,
    },
    /// A folder, pipe or device.
    #[error("{}: this is no file; move it away, or configure another path", path.display())]
    NotAFile {
        /// Which.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{}: can't be {action}: {source}", path.display())]
    System {
        /// Which file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl FileError {
    /// Whether there is no room: that passes, and is no reason not to start.
    pub fn is_full(&self) -> bool {
        let Self::System { source, .. } = self else { return false };
        matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
    }
}

/// An open log.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    identity: (u64, u64),
    length: u64,
    /// A write failed half-way and its beginning is still there.
    half_written: bool,
}

/// A log as it was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) log: LogFile,
    /// Its last line, or that of the file that it follows.
    pub(super) head: Head,
    pub(super) cut: Option<Cut>,
    pub(super) damaged: Option<String>,
}

/// What others did to an open log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    AsLeft,
    Moved,
    Changed,
}

impl LogFile {
    /// Opens the log at `path` to go on with it, or makes it. What a kill left of a line is set aside; a file whose
    /// last line is damaged otherwise is moved aside whole.
    pub(super) fn find(path: &Path) -> Result<Found, FileError> {
        let mut log = Self::open(path)?;
        let cut = log.set_rest_of_line_aside()?;
        if log.length == 0 {
            // Moved away while nothing ran, or killed in the middle of a rotation.
            let head = last_line(&rotated(path, 1)).ok().flatten().unwrap_or(Head::EMPTY);
            return Ok(Found { log, head, cut, damaged: None });
        }
        if let Some(head) = last_line(path).map_err(log.failed("read"))? {
            return Ok(Found { log, head, cut, damaged: None });
        }
        let aside = aside(path, "damaged");
        let name = name_of(&aside);
        fs::rename(path, aside).map_err(log.failed("moved aside"))?;
        Ok(Found { log: Self::open(path)?, head: Head::EMPTY, cut, damaged: Some(name) })
    }

    /// Opens the file at `path`, whatever is in it, or makes it.
    pub(super) fn open(path: &Path) -> Result<Self, FileError> {
        let failed = |action| {
            let path = path.to_owned();
            move |source| FileError::System { path, action, source }
        };
        // Before it is opened: to open a pipe may hang.
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(FileError::NotAFile { path: path.to_owned() });
        }
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .map_err(failed("opened"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(FileError::InUse { path: path.to_owned() }),
            Err(errno) => return Err(failed("locked")(errno.into())),
        }
        let found = file.metadata().map_err(failed("looked at"))?;
        let (identity, length) = ((found.dev(), found.ino()), found.len());
        Ok(Self { path: path.to_owned(), file, identity, length, half_written: false })
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Whether the open file is still the one at its path, and as long as this process left it.
    pub(super) fn place(&self) -> Place {
        let here = fs::metadata(&self.path).map(|found| (found.dev(), found.ino()));
        if here.ok() != Some(self.identity) {
            return Place::Moved;
        }
        match self.file.metadata() {
            Ok(found) if found.len() != self.length && !self.half_written => Place::Changed,
            _ => Place::AsLeft,
        }
    }

    /// Goes on at the end of what is there now, on a line of its own.
    pub(super) fn take_as_it_is(&mut self) -> Result<(), FileError> {
        self.length = self.file.metadata().map_err(self.failed("looked at"))?.len();
        let last = read_at(&mut self.file, self.length.saturating_sub(1), 1).map_err(self.failed("read"))?;
        if !matches!(last.as_slice(), [] | [b'\n']) {
            self.append(b"\n")?;
        }
        Ok(())
    }

    /// Appends all of `bytes` or nothing.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        if self.half_written {
            self.file.set_len(self.length).map_err(self.failed("shortened after a write that failed"))?;
            self.half_written = false;
        }
        if let Err(error) = self.file.write_all(bytes) {
            self.half_written = self.file.set_len(self.length).is_err();
            return Err(self.failed("written")(error));
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// So that a power failure does not take what was written.
    pub(super) fn sync(&self) -> Result<(), FileError> {
        self.file.sync_data().map_err(self.failed("synced"))
    }

    /// Moves the file to `….1`, those before it one further, and removes what is older than `keep` of them.
    pub(super) fn move_on(&self, keep: u32) -> Result<(), FileError> {
        let failed = self.failed("rotated");
        let gone = |result: io::Result<()>| match result {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        };
        gone(fs::remove_file(rotated(&self.path, keep)))?;
        for number in (1..keep).rev() {
            gone(fs::rename(rotated(&self.path, number), rotated(&self.path, number + 1)))?;
        }
        fs::rename(&self.path, rotated(&self.path, 1)).map_err(&failed)
    }

    fn set_rest_of_line_aside(&mut self) -> Result<Option<Cut>, FileError> {
        let end = end_of_last_line(&mut self.file, self.length).map_err(self.failed("read"))?;
        if end == self.length {
            return Ok(None);
        }
        let aside = aside(&self.path, "torn");
        // Zeros that a power failure left may be many; nobody needs them all.
        let rest = read_at(&mut self.file, end, WINDOW).map_err(self.failed("read"))?;
        let copied = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&aside)
            .and_then(|mut kept| kept.write_all(&rest));
        copied.map_err(|source| {
            let _ = fs::remove_file(&aside);
            FileError::System { path: aside.clone(), action: "written", source }
        })?;
        self.file.set_len(end).map_err(self.failed("shortened"))?;
        let cut = Cut { bytes: self.length - end, file: name_of(&aside) };
        self.length = end;
        Ok(Some(cut))
    }

    fn failed(&self, action: &'static str) -> impl Fn(io::Error) -> FileError + use<> {
        let path = self.path.clone();
        move |source| FileError::System { path: path.clone(), action, source }
    }
}

/// `audit.log.1` of `audit.log`.
fn rotated(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// A name in the same folder that no file has, and that `audit.log*` does not match.
fn aside(path: &Path, why: &str) -> PathBuf {
    let name = name_of(path);
    let mut names = (1..u32::MAX).map(|number| path.with_file_name(format!("{why}-{number}-{name}")));
    names.find(|path| fs::symlink_metadata(path).is_err()).unwrap_or_else(|| path.with_extension(why))
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The last line of a file, if it is as it was written. What is after the last line's end is passed over.
fn last_line(path: &Path) -> io::Result<Option<Head>> {
    if !fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let end = end_of_last_line(&mut file, length)?;
    let start = end.saturating_sub(MAX_LINE_LEN as u64);
    let tail = read_at(&mut file, start, end - start)?;
    let Some(lines) = tail.strip_suffix(b"\n") else { return Ok(None) };
    let line = lines.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(Line::parse(line).ok().and_then(|line| line.head()))
}

/// Where the byte after the last line's end is; 0 if there is none.
fn end_of_last_line(file: &mut File, length: u64) -> io::Result<u64> {
    let mut end = length;
    while end > 0 {
        let start = end.saturating_sub(WINDOW);
        let bytes = read_at(file, start, end - start)?;
        if let Some(at) = bytes.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

fn read_at(file: &mut File, start: u64, length: u64) -> io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}
