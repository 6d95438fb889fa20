//! The condition that people look at.

use std::collections::BTreeSet;

use crate::{Course, Observed, Resources, Slot};

/// Whether everything is encrypted, under whichever key: between two keys it goes on to be. Each resource is named in its
/// text form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Encrypted {
    /// There never was a key.
    Disabled,
    /// Plaintext is to be written, and these are not migrated to it.
    Decrypting(BTreeSet<Resources>),
    /// Plaintext is to be written, and everything is.
    Decrypted,
    /// A key is to write, and these were not migrated to one yet.
    Encrypting(BTreeSet<Resources>),
    /// Everything was migrated to a key.
    Encrypted(BTreeSet<Resources>),
    /// Not all servers are known: what was said last goes on.
    Untouched,
}

impl Encrypted {
    /// The status and the reason, as OpenShift's operators give them.
    pub fn openshift(&self) -> Option<(bool, &'static str)> {
        match self {
            Self::Disabled => Some((false, "EncryptionDisabled")),
            Self::Decrypting(_) => Some((false, "DecryptionInProgress")),
            Self::Decrypted => Some((false, "DecryptionCompleted")),
            Self::Encrypting(_) => Some((false, "EncryptionInProgress")),
            Self::Encrypted(_) => Some((true, "EncryptionCompleted")),
            Self::Untouched => None,
        }
    }
}

/// Whether everything that is wanted to be is encrypted.
pub fn encrypted(observed: &Observed) -> Encrypted {
    let is_found = |name| observed.servers.get(name).is_some_and(|server| server.loaded.is_some());
    let Some(progress) = observed.progress.as_ref() else {
        let is_plain = observed
            .servers
            .values()
            .all(|server| server.loaded.as_ref().is_some_and(|file| file.0.is_empty()));
        let is_known = !observed.expected.is_empty() && observed.expected.iter().all(is_found);
        return if is_known && is_plain && observed.records.is_empty() {
            Encrypted::Disabled
        } else {
            Encrypted::Untouched
        };
    };
    if observed.expected.is_empty() || !observed.expected.iter().all(is_found) {
        return Encrypted::Untouched;
    }
    let is_used = |course: &Course| course.writer != Slot::Plain || !course.keys.is_empty();
    if observed.records.is_empty() && !progress.courses.values().any(is_used) {
        return Encrypted::Disabled;
    }
    let lacking = |is_there: &dyn Fn(&Course) -> bool| -> BTreeSet<Resources> {
        let resources = observed.intent.resources.iter();
        resources.filter(|resource| !progress.courses.get(*resource).is_some_and(is_there)).cloned().collect()
    };
    let is_wanted = |(resource, course): (&Resources, &Course)| {
        observed.intent.resources.contains(resource) && course.writer != Slot::Plain
    };
    if !progress.courses.iter().any(is_wanted) {
        let lacking = lacking(&|course| course.claim.is_some());
        return if lacking.is_empty() { Encrypted::Decrypted } else { Encrypted::Decrypting(lacking) };
    }
    let lacking = lacking(&|course| course.encrypted);
    match lacking.is_empty() {
        true => Encrypted::Encrypted(observed.intent.resources.clone()),
        false => Encrypted::Encrypting(lacking),
    }
}
