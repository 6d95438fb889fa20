//! What was seen on a host: plain data, gathered by the shell and judged by `findings`.
use std::path::PathBuf;

use casemate_keyservice::Failure;
use casemate_kms::admin::status::Document;
use casemate_kms_state::outage::Rules;

/// All of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Seconds since 1970.
    pub(super) now: u64,
    /// As whom the plugin runs.
    pub(super) user: User,
    /// Everything that it reads and writes.
    pub(super) files: Vec<FileFacts>,
    pub(super) limits: Option<Limits>,
    /// What key services say that the time is.
    pub(super) clocks: Vec<ClockFacts>,
    /// What was written last in the state directory, and when, in seconds since 1970.
    pub(super) newest: Option<(PathBuf, u64)>,
    /// What the running plugin says of itself; `None` if it has no admin socket.
    pub(super) status: Option<Result<Document, String>>,
    /// Where it is asked.
    pub(super) admin: Option<String>,
    /// SHA-256 of what the configuration is now, in hex, if the plugin says what it was when it read it.
    pub(super) sha256: String,
    /// Why root keys in tokens can't be asked from here.
    pub(super) no_services: Option<String>,
    /// Notes of PINs that a token refused.
    pub(super) refused_pins: Vec<PathBuf>,
    pub(super) providers: Vec<ProviderFacts>,
}

impl Facts {
    /// Whether the running plugin goes on with another text than the configuration has now, since it refused that one. What
    /// fails here is then what a restart would meet, and not what the plugin does.
    pub(super) fn is_refused(&self) -> bool {
        let document = self.status.as_ref().and_then(|status| status.as_ref().ok());
        let held = document.and_then(|document| document.configuration.as_ref());
        held.is_some_and(|held| held.refused.is_some())
    }

    /// The command that has the running plugin look at its root keys now.
    pub(super) fn look_again(&self) -> String {
        match &self.admin {
            Some(admin) => format!("`casemate kms refresh --wait --admin {admin}`"),
            None => "`casemate kms refresh`, once the configuration has `admin: {endpoint: …}`,".into(),
        }
    }
}

/// A user of the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Whoever changes it decides which keys are used.
    Configuration,
    /// Whoever changes it decides whom is trusted: certificates.
    Public,
    /// Whoever reads it can do what the plugin can.
    Secret,
    /// The plugin writes there.
    State,
    /// The plugin has written it, in its state directory.
    Kept,
    /// A folder of sockets.
    Sockets,
    /// The folder of the audit log.
    Log,
}

/// One file or folder.
#[derive(Clone, Debug)]
pub(super) struct FileFacts {
    pub(super) path: PathBuf,
    pub(super) role: Role,
    /// What the plugin must be let do: 4 read, 2 write, 1 enter.
    pub(super) needs: u32,
    /// Why it can't be looked at, or what it is.
    pub(super) found: Result<Access, String>,
    /// The folders above it, the nearest first.
    pub(super) folders: Vec<(PathBuf, Access)>,
}

/// Whose it is, and who may what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Its twelve bits.
    pub(super) mode: u32,
}

/// Limits of the running process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// `None`: no limit.
    pub(super) open_files: Option<u64>,
    pub(super) needed_files: u64,
    /// Bytes.
    pub(super) locked_memory: Option<u64>,
    /// Bytes, by the tightest of its control groups.
    pub(super) memory: Option<u64>,
}

/// What a key service says that the time is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClockFacts {
    /// Its address.
    pub(super) whose: String,
    /// By how many seconds it is ahead of this host.
    pub(super) ahead: i64,
}

/// One provider.
#[derive(Clone, Debug)]
pub(super) struct ProviderFacts {
    pub(super) name: String,
    pub(super) endpoint: String,
    /// Of the socket's file; `None` for an abstract one.
    pub(super) socket: Option<Result<Access, String>>,
    /// Mode that the configuration gives it.
    pub(super) socket_mode: u32,
    /// Whom the configuration makes it for, beside root, and which folder above it does not let that one in.
    pub(super) barred: Option<(User, PathBuf, Access)>,
    pub(super) answer: Result<Answer, NoAnswer>,
    pub(super) keys: Vec<KeyFacts>,
    /// `None`: nothing is signed.
    pub(super) signer: Option<SignerFacts>,
    /// Whether records that prove nothing of who made them are read.
    pub(super) accepts_unproven: bool,
    /// What is to write, by the configuration and by what the root keys show; `None` if it can't be told.
    pub(super) foreseen: Option<Foreseen>,
    /// What the next look at the root keys would be refused for: class, message, remedy.
    pub(super) refused: Option<(String, String, String)>,
    pub(super) record: RecordFacts,
    pub(super) ledger: LedgerFacts,
    /// `None`: this build can't have any.
    pub(super) recipients: Option<usize>,
    /// `None`: there is no sealed cache.
    pub(super) sealed: Option<SealedFacts>,
    pub(super) rules: Rules,
}

/// What Status says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) key_id: String,
    /// What its health is, if it is not ok.
    pub(super) unready: Option<String>,
    /// What else of the contract it breaks.
    pub(super) problems: Vec<String>,
}

/// Why Status can't be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoAnswer {
    pub(super) why: String,
    /// Whether somebody listens there, who says no or says nothing.
    pub(super) is_running: bool,
}

/// The key id that is to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Foreseen {
    pub(super) key_id: String,
    /// In what it differs from what wrote last; empty if it is that.
    pub(super) because: Vec<String>,
    /// By when it would write.
    pub(super) when: Option<String>,
}

/// What signs records, asked directly.
#[derive(Clone, Debug)]
pub(super) struct SignerFacts {
    pub(super) lineage: String,
    pub(super) signs: Result<(), Failure>,
}

/// One root key, asked directly.
#[derive(Clone, Debug)]
pub(super) struct KeyFacts {
    pub(super) name: String,
    /// Whether new data is wrapped under it; else it only reads.
    pub(super) writes: bool,
    /// The version that it shows; `None` if it was not asked, since a login from here would take that of
    /// the plugin.
    pub(super) observed: Option<Result<String, Failure>>,
    /// Whether its secret id opens once, so that it is never asked from here.
    pub(super) opens_once: bool,
    /// A payload that was made for this: `None` if there was nothing to try it with.
    pub(super) wrapped: Option<Result<(), Failure>>,
    /// The same, opened again.
    pub(super) opened: Option<Result<(), Failure>>,
    /// Whether it came back as it was, and not with other associated data.
    pub(super) is_true: Option<bool>,
    /// Whether the wrap in the record on disk opens.
    pub(super) opens_record: Option<Result<(), Failure>>,
    /// Listed keys that its token did not have just now.
    pub(super) absent: Vec<String>,
    /// What the running plugin last met here, if it fails now: class and message.
    pub(super) running: Option<(String, String)>,
    /// Since when, as it says.
    pub(super) failing_since: Option<String>,
}

/// The record on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordFacts {
    pub(super) is_there: bool,
    pub(super) is_whole: bool,
    /// When it was made, in seconds since 1970.
    pub(super) created: Option<u64>,
}

/// The ledger on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LedgerFacts {
    pub(super) unreadable: Option<String>,
    /// Lines that don't check.
    pub(super) damaged: Vec<usize>,
    /// When the last key id became active.
    pub(super) last: Option<u64>,
    /// The cluster that this node wrote as, if it is none that is read now.
    pub(super) other_cluster: Option<String>,
}

/// The sealed cache.
#[derive(Clone, Debug)]
pub(super) struct SealedFacts {
    /// Entries that open, and that don't; `None` if there are none yet.
    pub(super) found: Result<Option<(u64, u64)>, String>,
    /// Whether what opens it is on the same file system.
    pub(super) is_beside_its_secret: bool,
}
