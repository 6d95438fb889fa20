//! Why it can't be told that nothing is under a key, although no value names it.
use casemate_keys::Lineage;

use super::super::Source;
use crate::classify::{Name, is_plain};
use crate::survey::{Encryption, Entry, Key, Survey};

/// All that is left open. Where `is_configured`, a configuration has a key of just this name, so that a similar one is
/// another one.
pub(super) fn doubts(key: &Key, sources: &[Source<'_>], is_configured: bool) -> Vec<String> {
    if sources.is_empty() {
        return vec!["nothing was read".to_owned()];
    }
    let of = |source: &Source<'_>| {
        let mut doubts = source.survey.unread();
        doubts.extend(source.survey.doubtful(key));
        if !is_configured {
            doubts.extend(source.survey.similar(key));
        }
        doubts.into_iter().map(|doubt| format!("{}: {doubt}", source.name)).collect::<Vec<_>>()
    };
    sources.iter().flat_map(of).collect()
}

/// Whether a value that names no key may be under this one all the same.
type Rule = fn(&Key, &Encryption) -> bool;

const RULES: [(Rule, &str); 5] = [
    (unknown, "are of a provider that is not known here, and may need any key"),
    (silent, "are of plugins that don't say which key they need"),
    (illegible, "carry a record of casemate-kms that can't be read here, and may need any of its keys"),
    (ambiguous, "begin with this name up to its colon, and may be under it or under another"),
    (
        damaged,
        "are damaged, and what is left of them claims this key or a key of its kind: nobody reads them as they stand. If they \
         are not to be repaired, delete them, and ask again after a compaction",
    ),
];

impl Survey {
    /// What of it was not read.
    fn unread(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        let Self { prefix, outside, .. } = self;
        if self.looked_elsewhere() {
            doubts.push(format!(
                "nothing is below {prefix}, but {outside} revisions are elsewhere: give kube-apiserver's --etcd-prefix as \
                 --prefix"
            ));
        } else if self.is_empty() {
            doubts.push("nothing at all is in it: it is another etcd, or one that was made anew".to_owned());
        }
        match self.outside_encrypted {
            Some(0) => {}
            Some(encrypted) => doubts.push(format!(
                "{encrypted} encrypted values are not below {prefix}, and nobody looked under which key: give --prefix / for \
                 all of them"
            )),
            None => doubts.push(format!(
                "whether there are encrypted values that are not below {prefix} could not be looked at, or they are too \
                 many: give --prefix / for all of them"
            )),
        }
        doubts.extend(self.unseen.iter().map(ToString::to_string));
        if self.ungrouped > 0 {
            doubts.push(format!("{} values were of too many kinds to be told apart", self.ungrouped));
        }
        doubts
    }

    fn doubtful(&self, key: &Key) -> Vec<String> {
        let told = |(says, why): (Rule, &str)| {
            let doubtful = self.groups.iter().filter(|entry| says(key, &entry.group.encryption));
            let values: u64 = doubtful.map(Entry::values).sum();
            (values > 0).then(|| format!("{values} values {why}"))
        };
        RULES.into_iter().filter_map(told).collect()
    }

    /// Keys of the same kind whose names look like this one's: a slip would be a yes.
    fn similar(&self, key: &Key) -> Vec<String> {
        let keys = self.keys();
        if keys.contains_key(key) {
            return Vec::new();
        }
        let why = |found: &Key| match (found, key) {
            (Key::Root(one), Key::Root(other)) if is_moved(one, other) => {
                Some("may be this key, moved: what is destroyed by one way is destroyed by the other")
            }
            _ if is_same_kind(found, key) && looks_like(found.name(), key.name()) => {
                Some("looks like this key: name the one that is meant")
            }
            _ => None,
        };
        keys.keys().filter_map(|found| Some(format!("{found} opens values, and {}", why(found)?))).collect()
    }
}

fn unknown(_: &Key, encryption: &Encryption) -> bool {
    encryption.is_unknown()
}

/// A key in a key service may serve other plugins too. One in a file of ours has an id that is ours alone.
fn silent(key: &Key, encryption: &Encryption) -> bool {
    let is_shared = |lineage: &String| lineage.parse().is_ok_and(|lineage: Lineage| lineage.kind() != "file");
    match (key, encryption) {
        (Key::Root(lineage), Encryption::KmsV1 { .. }) => is_shared(lineage),
        (Key::Root(lineage), Encryption::KmsV2 { record, faults, .. }) => {
            record.is_none() && faults.is_empty() && is_shared(lineage)
        }
        // What a plugin calls its key stands in no value of KMS v1.
        (Key::KeyId(_), Encryption::KmsV1 { .. }) => true,
        _ => false,
    }
}

/// A record of a later version, or one that was cut off.
fn illegible(key: &Key, encryption: &Encryption) -> bool {
    let is_ours = matches!(key, Key::Root(_) | Key::Recovery(_) | Key::LocalKek(_));
    is_ours && matches!(encryption, Encryption::KmsV2 { record: None, faults, .. } if !faults.is_empty())
}

/// A mark ends a name at its first colon, and names of keys may have one.
fn ambiguous(key: &Key, encryption: &Encryption) -> bool {
    let found = match encryption {
        Encryption::Local { cipher, key } => Some((cipher.as_str(), key)),
        Encryption::KmsV1 { provider } => Some(("kms:v1", provider)),
        // What follows the colon is no ciphertext, of which the length tells sometimes.
        Encryption::Malformed { claims, name: Some(name) } => Some((claims.as_str(), name)),
        _ => None,
    };
    let Some((claims, found)) = found else { return false };
    claims == kind(key) && key.name().split_once(':').is_some_and(|(begin, _)| begin == found)
}

/// What is left of it may be enough to be repaired, with the key.
fn damaged(key: &Key, encryption: &Encryption) -> bool {
    let Encryption::Malformed { claims, name } = encryption else { return false };
    let is_its = match key {
        Key::Local { .. } | Key::KmsV1(_) | Key::KmsV2(_) => {
            name.as_deref().is_none_or(|name| name == key.name())
        }
        Key::KeyId(_) | Key::LocalKek(_) | Key::Root(_) | Key::Recovery(_) => true,
    };
    claims == kind(key) && is_its
}

/// Whether two root keys are the same version of one key, as far as they say when it was made or what it is: a secrets engine
/// that is mounted elsewhere has other lineages, and a copied key file may.
fn is_moved(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(str::parse::<Lineage>);
    let (Ok(one), Ok(other)) = (one, other) else { return false };
    let last = |lineage: &Lineage| {
        let fields: Vec<String> = lineage.fields().map(str::to_owned).collect();
        fields[fields.len().saturating_sub(2)..].to_vec()
    };
    one.kind() == other.kind()
        && ["file", "transit"].contains(&one.kind())
        && last(&one).len() == 2
        && last(&one) == last(&other)
}

/// As marks have it. All keys of plugins are those of KMS v2.
fn kind(key: &Key) -> &'static str {
    match key {
        Key::Local { cipher, .. } => cipher.as_str(),
        Key::KmsV1(_) => "kms:v1",
        _ => "kms:v2",
    }
}

fn is_same_kind(one: &Key, other: &Key) -> bool {
    match (one, other) {
        (Key::Local { cipher: one, .. }, Key::Local { cipher: other, .. }) => one == other,
        _ => std::mem::discriminant(one) == std::mem::discriminant(other),
    }
}

/// Whether somebody may have meant one and written the other: by case, by what is not seen, by letters of another script.
fn looks_like(one: &str, other: &str) -> bool {
    // Of one that is not shown nobody knows what it looks like.
    if Name::is_hidden(one) || Name::is_hidden(other) {
        return true;
    }
    let (one, other) = (seen(one), seen(other));
    let is_same = |(one, other): (&char, &char)| one == other || one.is_ascii() != other.is_ascii();
    one.len() == other.len() && one.iter().zip(&other).all(is_same)
}

/// Without case, space, and marks that stand above letters.
fn seen(name: &str) -> Vec<char> {
    let is_seen = |character: &char| {
        let is_above = matches!(character, '\u{300}'..='\u{36f}');
        !character.is_whitespace() && !is_above && is_plain(character.encode_utf8(&mut [0; 4]))
    };
    name.chars().filter(is_seen).flat_map(char::to_lowercase).collect()
}
