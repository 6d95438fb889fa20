//! A process gives up what it does not need, for good, before it has threads.
//!
//! Four layers. None needs a privilege; each is inherited by every thread that is started later.
//! * no new privileges, no core file, and no other process of the same user may look into this one;
//! * Landlock: files in declared folders only, no TCP, no abstract socket and no process from outside;
//! * system calls: those of [`calls`], and no others.

pub mod calls;
mod folders;
mod profile;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::set_no_new_privs;

use self::calls::{ALLOWED, CallsError, FATAL, Networks};
use self::folders::{FilesError, Held, Kept, Landlock};
pub use self::folders::{Folders, Lacking, OutOfReach};
pub use self::profile::Profile;

/// Confinement failed. What was enforced until then stays.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfineError {
    /// The process itself.
    #[error("the process can't be {action}: {source}")]
    Process {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Landlock.
    #[error("files can't be confined: {0}")]
    Files(#[from] FilesError),
    /// System calls.
    #[error("system calls can't be confined: {0}")]
    Calls(#[from] CallsError),
}

/// What this kernel enforces on this process from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Enforced {
    files: Kept,
}

/// One line of what is enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// What it is about.
    pub subject: &'static str,
    /// Whether all of it is enforced.
    pub whole: bool,
    /// What is enforced; what is not, and why.
    pub detail: String,
}

/// Confines the calling process to `folders`. To be called while it has one thread: others would go free.
///
/// A kernel without Landlock, or with an old one, is no error: the answer says what is missing.
///
/// # Errors
/// [`ConfineError`]; then the process should end.
pub fn confine(folders: &Folders) -> Result<Enforced, ConfineError> {
    keep_private()?;
    let files = folders::confine(folders)?;
    calls::confine(folders.networks())?;
    Ok(Enforced { files })
}

/// What every process of ours gives up, whatever it does.
fn keep_private() -> Result<(), ConfineError> {
    let failed =
        |action| move |errno: rustix::io::Errno| ConfineError::Process { action, source: errno.into() };
    set_no_new_privs(true).map_err(failed("kept from new privileges"))?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(failed("kept from core files"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("hidden from debuggers"))
}

impl Enforced {
    /// Layer by layer.
    pub fn layers(&self) -> Vec<Layer> {
        let layer = |subject, whole, detail| Layer { subject, whole, detail };
        let count = |groups: &[calls::Group]| groups.iter().map(|group| group.calls.len()).sum::<usize>();
        let landlock = self.files.landlock;
        vec![
            layer("process", true, "no new privileges, no core file, no debugger of the same user".into()),
            layer("files", landlock.files(), self.files.to_string()),
            layer(
                "network",
                self.files.ports().is_none() || landlock.tcp(),
                match (self.files.ports(), landlock.tcp()) {
                    (None, true) => "an internet socket ends the process, and Landlock refuses TCP".into(),
                    (None, false) => "an internet socket ends the process".into(),
                    (Some(ports), true) => {
                        format!("may connect to {ports} of any host; may bind none{}", self.udp())
                    }
                    (Some(_), false) => {
                        format!(
                            "may connect to and bind any TCP port (Linux 6.7 is needed to restrict it){}",
                            self.udp()
                        )
                    }
                },
            ),
            layer(
                "other processes",
                landlock.scoped(),
                either(
                    landlock.scoped(),
                    "no signal to them, no abstract socket of theirs",
                    "no signal to them; their abstract sockets can be reached (Linux 6.12 is needed)",
                ),
            ),
            layer(
                "system calls",
                true,
                format!(
                    "{} are allowed, {} end the process, all others fail; sockets are {}",
                    count(ALLOWED),
                    count(FATAL),
                    match self.files.networks {
                        Networks::None => "local",
                        Networks::Tcp => "local, or TCP",
                        Networks::TcpAndNames => "local, TCP, or UDP",
                    },
                ),
            ),
        ]
    }

    fn udp(&self) -> &'static str {
        if self.files.networks == Networks::TcpAndNames { "; UDP to any (names are looked up)" } else { "" }
    }

    /// What the process is confined to, as far as this kernel can.
    pub fn folders(&self) -> Folders {
        self.files.folders()
    }

    /// Declared folders that are not there: if they are made later, this process can't use them.
    pub fn absent(&self) -> &[PathBuf] {
        &self.files.absent
    }

    /// Whether this process can still read `path`, as far as confinement goes; permissions are another matter.
    ///
    /// # Errors
    /// [`OutOfReach`] says why not, and what can be read.
    pub fn reaches(&self, path: &Path) -> Result<(), OutOfReach> {
        self.files.reaches(path)
    }

    /// Whether this process can still bind `socket`, as far as confinement goes.
    ///
    /// # Errors
    /// [`OutOfReach`]: its folder is not the one of the start. Nobody can come to this process any more.
    pub fn binds(&self, socket: &Path) -> Result<(), OutOfReach> {
        self.files.binds(socket)
    }

    /// Writes a line about each layer to the log.
    pub fn log(&self) {
        for Layer { subject, whole, detail } in self.layers() {
            if whole {
                tracing::info!("confined, {subject}: {detail}");
            } else {
                tracing::warn!("confined in part, {subject}: {detail}");
            }
        }
        for folder in self.absent() {
            tracing::warn!(
                folder = %folder.display(),
                "this folder is not there; if it is made later, it can't be used before a restart"
            );
        }
    }
}

fn either(so: bool, text: &str, otherwise: &str) -> String {
    if so { text } else { otherwise }.to_owned()
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.landlock {
            Landlock::Absent(why) => write!(f, "not confined to folders: {why}"),
            Landlock::Version(version) => {
                write!(f, "Landlock {version}")?;
                let mut said = "";
                for Held { access, folder, .. } in &self.folders {
                    let separator = if said == access.verb() { ", " } else { "; " };
                    said = access.verb();
                    match separator {
                        ", " => write!(f, ", {}", folder.display())?,
                        _ => write!(f, "; {said} {}", folder.display())?,
                    }
                }
                if !self.landlock.files() {
                    f.write_str("; files elsewhere can be truncated (Linux 6.2 is needed)")?;
                }
                Ok(())
            }
        }
    }
}
