//! What is on the host: files, folders, and the process that serves.
use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use casemate_kms::config::{Config, Place, ProviderConfig, ReadKeyConfig, WriteKeyConfig};
use tokio::net::UnixStream;

use super::PATIENCE;
use crate::doctor::facts::{Access, FileFacts, Limits, Role, User};
use crate::kms::socket::Socket;

/// The program, as the system shortens names.
const PROGRAM: &str = "casemate-kms";
/// Deeper nothing is kept in a state directory.
const DEPTH: usize = 3;
/// What the system says where there is no limit is about this.
const NO_LIMIT: u64 = 1 << 60;

/// All that `config`, in the file `path`, names, and what the plugin has written.
pub(super) fn files(path: &Path, config: &Config, sockets_are_passed: bool) -> Vec<FileFacts> {
    let public: BTreeSet<PathBuf> = places(config).into_iter().flat_map(certificates).collect();
    let named: BTreeSet<PathBuf> = config.files(path).into_iter().collect();
    let role = |one: &PathBuf| match () {
        () if one == path => Role::Configuration,
        () if public.contains(one) => Role::Public,
        () => Role::Secret,
    };
    let mut files: Vec<FileFacts> = named.iter().map(|one| FileFacts::of(one, role(one), 4)).collect();
    let state = &*config.state_directory;
    files.push(FileFacts::of(state, Role::State, 7));
    files.extend(below(state, DEPTH).into_iter().map(|(path, found)| FileFacts {
        path,
        role: Role::Kept,
        needs: if found.is_dir() { 7 } else { 6 },
        found: Ok(Access::from(&found)),
        folders: Vec::new(),
    }));
    let sockets: BTreeSet<&Path> = config.sockets().filter_map(Path::parent).collect();
    // Whoever gets them from systemd makes none.
    let needs = if sockets_are_passed { 0 } else { 3 };
    files.extend(sockets.into_iter().map(|folder| FileFacts::of(folder, Role::Sockets, needs)));
    let log = config.audit.as_ref().and_then(|audit| audit.path.parent());
    files.extend(log.map(|folder| FileFacts::of(folder, Role::Log, 3)));
    files
}

fn places(config: &Config) -> Vec<Place<'_>> {
    let mut places = Vec::new();
    for provider in &config.providers {
        places.extend(provider.root_keys.iter().map(WriteKeyConfig::place));
        places.extend(provider.read_keys.iter().map(ReadKeyConfig::place));
    }
    places
}

fn certificates(place: Place<'_>) -> Vec<PathBuf> {
    let Place::Transit(transit) = place else { return Vec::new() };
    let tls = &transit.tls;
    [&tls.ca_file, &tls.client_certificate_file].into_iter().flatten().map(|path| path.0.clone()).collect()
}

/// All files and folders below `folder`; what can't be looked at is left out.
fn below(folder: &Path, depth: usize) -> Vec<(PathBuf, Metadata)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        // Not what a link leads to.
        let (path, Ok(found)) = (entry.path(), entry.metadata()) else { continue };
        if found.is_dir() && depth > 1 {
            all.extend(below(&path, depth - 1));
        }
        all.push((path, found));
    }
    all
}

/// What was changed last below `folder`, and when, in seconds since 1970: the clock of this host said so.
pub(super) fn newest(folder: &Path) -> Option<(PathBuf, u64)> {
    let changed = below(folder, DEPTH).into_iter().filter_map(|(path, found)| {
        let at = found.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some((path, at.as_secs()))
    });
    changed.max_by_key(|(_, at)| *at)
}

impl FileFacts {
    fn of(path: &Path, role: Role, needs: u32) -> Self {
        Self { path: path.to_owned(), role, needs, found: Access::of(path), folders: above(path) }
    }
}

fn above(path: &Path) -> Vec<(PathBuf, Access)> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folders = path.ancestors().skip(1);
    folders.filter_map(|folder| Some((folder.to_owned(), Access::of(folder).ok()?))).collect()
}

impl Access {
    pub(super) fn of(path: &Path) -> Result<Self, String> {
        fs::metadata(path).map(|found| Self::from(&found)).map_err(|error| error.to_string())
    }

    pub(super) fn owner(self) -> User {
        User { uid: self.uid, gid: self.gid }
    }
}

impl From<&Metadata> for Access {
    fn from(found: &Metadata) -> Self {
        Self { uid: found.uid(), gid: found.gid(), mode: found.mode() & 0o7777 }
    }
}

/// Whom the socket is made for, and the first folder above it that does not let that one in.
pub(super) fn barred(provider: &ProviderConfig) -> Option<(User, PathBuf, Access)> {
    let access = provider.admission().access;
    let path = provider.endpoint.path()?;
    // Nobody's number, where one of both is not said.
    let nobody = u32::MAX;
    let meant = match (access.owner, access.group) {
        (None | Some(0), None | Some(0)) => return None,
        (uid, gid) => User { uid: uid.unwrap_or(nobody), gid: gid.unwrap_or(nobody) },
    };
    let (folder, found) = above(path).into_iter().find(|(_, folder)| !folder.lets(meant, 1))?;
    Some((meant, folder, found))
}

/// The process that serves.
pub(super) struct Process {
    pub(super) user: User,
    pid: i32,
    /// Whether somebody else has bound its socket: systemd.
    pub(super) sockets_are_passed: bool,
}

impl Process {
    /// Behind this socket; of one that systemd has bound the system names systemd, so then the one that was started
    /// with this configuration.
    pub(super) async fn find(socket: &Socket, config: &Path) -> Option<Self> {
        let connected = tokio::time::timeout(PATIENCE, UnixStream::connect(socket.address())).await;
        let peer = connected.ok()?.ok()?.peer_cred().ok()?;
        let (user, pid) = (User { uid: peer.uid(), gid: peer.gid() }, peer.pid()?);
        if name(pid)? == PROGRAM {
            return Some(Self { user, pid, sockets_are_passed: false });
        }
        let processes = fs::read_dir("/proc").ok()?.flatten();
        let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let pid = pids.find(|pid| serves(*pid, config))?;
        Some(Self { user: user_of(pid)?, pid, sockets_are_passed: true })
    }

    pub(super) fn limits(&self, needed_files: u64) -> Option<Limits> {
        let text = fs::read_to_string(format!("/proc/{}/limits", self.pid)).ok()?;
        // Name, soft limit, hard limit: the plugin raises the first to the second.
        let hard = |name: &str| -> Option<u64> {
            text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().nth(1)?.parse().ok())
        };
        Some(Limits {
            open_files: hard("Max open files"),
            needed_files,
            locked_memory: hard("Max locked memory"),
            memory: fs::read_to_string(format!("/proc/{}/cgroup", self.pid))
                .ok()
                .and_then(|groups| memory(&groups)),
        })
    }
}

fn name(pid: i32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

fn serves(pid: i32, config: &Path) -> bool {
    if name(pid).is_none_or(|name| name != PROGRAM) {
        return false;
    }
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = words.split(|byte| *byte == 0);
    words.clone().any(|word| word == b"serve")
        && words.any(|word| word == config.as_os_str().as_encoded_bytes())
}

/// Its effective user and group. The owner of its folder would be root, since it can't be dumped.
fn user_of(pid: i32) -> Option<User> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let effective = |name: &str| -> Option<u32> {
        text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().nth(1)?.parse().ok())
    };
    Some(User { uid: effective("Uid:")?, gid: effective("Gid:")? })
}

/// The tightest limit of the control groups in `/proc/…/cgroup`, of either version.
fn memory(groups: &str) -> Option<u64> {
    let of_group = |line: &str| -> Option<u64> {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let groups = Path::new(path.trim_start_matches('/')).ancestors();
        let limits =
            groups.filter_map(|group| fs::read_to_string(Path::new(root).join(group).join(file)).ok());
        limits.filter_map(|text| text.trim().parse().ok()).filter(|limit| *limit < NO_LIMIT).min()
    };
    groups.lines().filter_map(of_group).min()
}
