//! Permissions, in both directions: what the plugin must be let do, and what others must not.
use super::Finding;
use crate::doctor::facts::{Access, FileFacts, Role, User};

/// What is found of one role, by what is wrong.
struct Ids {
    /// It is not there; `None` where that is no fault.
    missing: Option<&'static str>,
    /// The plugin can't use it.
    barred: &'static str,
    /// Others can.
    open: &'static str,
    /// What others must not have of its mode.
    forbidden: u32,
}

impl Role {
    fn ids(self) -> Ids {
        let (missing, barred) = match self {
            Self::Configuration | Self::Public | Self::Secret => (Some("file-missing"), "file-unreadable"),
            // It is made at the first start.
            Self::State | Self::Kept => (None, "state-unwritable"),
            Self::Sockets => (Some("socket-folder"), "socket-folder"),
            Self::Log => (Some("audit"), "audit"),
        };
        let (open, forbidden) = match self {
            Self::Configuration | Self::Public => ("file-writable", 0o022),
            Self::Secret => ("secret-open", 0o077),
            Self::State | Self::Kept => ("state-open", 0o022),
            Self::Sockets | Self::Log => ("folder-open", 0o022),
        };
        Ids { missing, barred, open, forbidden }
    }

    fn is_folder(self) -> bool {
        matches!(self, Self::Sockets | Self::Log)
    }
}

impl Access {
    /// Whether `user` has all of `bits` (4 read, 2 write, 1 enter). Access control lists, and groups beside the first, are not
    /// looked at.
    pub(in crate::doctor) fn lets(&self, user: User, bits: u32) -> bool {
        let shift = match () {
            () if user.uid == 0 => return true,
            () if user.uid == self.uid => 6,
            () if user.gid == self.gid => 3,
            () => 0,
        };
        self.mode >> shift & bits == bits
    }

    /// Whether anybody but the owner and root can replace what is below this folder.
    fn lets_others_replace(&self) -> bool {
        self.mode & 0o022 != 0 && self.mode & 0o1000 == 0
    }
}

pub(super) fn of_file(file: &FileFacts, user: User) -> Vec<Finding> {
    let (shown, ids) = (file.path.display(), file.role.ids());
    let access = match (&file.found, ids.missing) {
        (Ok(access), _) => access,
        (Err(_), None) => return Vec::new(),
        (Err(why), Some(id)) => {
            let remedy = match file.role {
                Role::Sockets => format!(
                    "make {shown} for the user of the plugin, or RuntimeDirectory= in its unit, or correct endpoint"
                ),
                Role::Log => format!("make {shown} for the user of the plugin, or correct audit.path"),
                _ => "deliver it to this node, or correct its path in the configuration".into(),
            };
            return vec![Finding::new(id, format!("{shown}: {why}"), remedy)];
        }
    };
    let mut found: Vec<Finding> = barred(file, access, user, &ids).into_iter().collect();
    let mode = access.mode & 0o777;
    let is_open =
        if file.role.is_folder() { access.lets_others_replace() } else { mode & ids.forbidden != 0 };
    if is_open {
        let remedy = match file.role {
            Role::Secret => format!("chmod go-rwx {shown}; if others were on this host, make a new one"),
            _ => format!("chmod go-w {shown}"),
        };
        let whom = match file.role {
            Role::Sockets => {
                "others can put a socket of their own in the place of the plugin's, and get what is to be encrypted"
            }
            Role::Log => "others can replace the audit log",
            _ => "others than its owner can use it",
        };
        found.push(Finding::new(ids.open, format!("{shown} has mode {mode:04o}: {whom}"), remedy));
    }
    let stranger = access.uid != 0 && access.uid != user.uid;
    if stranger && !matches!(file.role, Role::State | Role::Kept) {
        found.push(Finding::new(
            "file-owner",
            format!(
                "{shown} belongs to user {}, who is neither root nor the user of the plugin ({})",
                access.uid, user.uid
            ),
            format!("chown root {shown}, or give it to user {}", user.uid),
        ));
    }
    if let Some((folder, access)) = file.folders.iter().find(|(_, folder)| folder.lets_others_replace()) {
        found.push(Finding::new(
            "folder-open",
            format!(
                "{} has mode {:04o}: others can put something else in the place of {shown}",
                folder.display(),
                access.mode & 0o7777
            ),
            format!("chmod go-w {}", folder.display()),
        ));
    }
    found
}

/// Why the plugin can't use it.
fn barred(file: &FileFacts, access: &Access, user: User, ids: &Ids) -> Option<Finding> {
    let (shown, uid) = (file.path.display(), user.uid);
    if let Some((folder, barred)) = file.folders.iter().find(|(_, folder)| !folder.lets(user, 1)) {
        return Some(Finding::new(
            ids.barred,
            format!(
                "{shown}: user {uid}, as whom the plugin runs, may not enter {} (mode {:04o}, owner {})",
                folder.display(),
                barred.mode & 0o777,
                barred.uid
            ),
            format!("chmod or chown {} so that user {uid} can enter it", folder.display()),
        ));
    }
    if access.lets(user, file.needs) {
        return None;
    }
    let what = match file.role {
        Role::Configuration | Role::Public | Role::Secret => "read it",
        Role::Kept => "change it",
        Role::State | Role::Sockets | Role::Log => "write there",
    };
    Some(Finding::new(
        ids.barred,
        format!(
            "{shown} has mode {:04o} and owner {}: user {uid}, as whom the plugin runs, may not {what}",
            access.mode & 0o777,
            access.uid
        ),
        format!("chown {uid} {shown}"),
    ))
}
