//! What the service says of a key, and what of it can be a root.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use casemate_keys::{Lineage, LineagePrefix};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Place, Selection, answer};
use crate::selection::{Candidate, choose};
use crate::{Class, Failure};

/// Kinds of key that bind associated data, with 256 bits.
const KINDS: [&str; 3] = ["aes256-gcm96", "chacha20-poly1305", "xchacha20-poly1305"];

/// The end of the year 9999: what is later was never a time.
const LAST_SECOND: i64 = 253_402_300_799;

/// How many versions a message lists.
const TOLD: usize = 16;

/// A key as the service describes it. What can't be is none: whatever is said of a version rests on the whole of it.
#[derive(Debug)]
pub(super) struct KeyState {
    kind: String,
    latest_version: u32,
    /// Version → creation time, in seconds since 1970. Those below the least version for decryption are not told. None
    /// of a kind of key that is not accepted.
    keys: BTreeMap<u32, i64>,
    min_decryption_version: u32,
    min_encryption_version: u32,
    derived: bool,
    convergent_encryption: bool,
    soft_deleted: bool,
    supports_encryption: bool,
    supports_decryption: bool,
}

impl KeyState {
    pub(super) fn parse(body: &[u8], place: &Place) -> Result<Self, Failure> {
        let path = place.shown(&place.path(super::Operation::Keys));
        let mut told = Told::parse(body, &path)?;
        let name: String = told.field("name", "no text")?;
        if name != place.key {
            return Err(told.corrupt(format!("the description of another key, {:?}", short(&name))));
        }
        let kind: String = told.field("type", "no text")?;
        let is_accepted = KINDS.contains(&kind.as_str());
        let latest_version = told.field("latest_version", "no version")?;
        let keys = told.field("keys", "no map of versions")?;
        let state = Self {
            kind,
            latest_version,
            keys: if is_accepted { told.versions(keys, latest_version)? } else { BTreeMap::new() },
            min_decryption_version: told.field("min_decryption_version", "no version")?,
            min_encryption_version: told.field("min_encryption_version", "no version")?,
            derived: told.field("derived", "neither true nor false")?,
            // Said of derived keys only.
            convergent_encryption: told.field_or("convergent_encryption", false)?,
            // Younger than the rest.
            soft_deleted: told.field_or("soft_deleted", false)?,
            supports_encryption: told.field_or("supports_encryption", true)?,
            supports_decryption: told.field_or("supports_decryption", true)?,
        };
        let least = state.min_decryption_version.max(state.min_encryption_version);
        if is_accepted && least > latest_version {
            return Err(
                told.corrupt(format!("a least version of {least}, and {latest_version} is the latest"))
            );
        }
        Ok(state)
    }

    /// The version that is to write.
    pub(super) fn selected(&self, selection: Selection, place: &Place) -> Result<Lineage, Failure> {
        self.usable(place)?;
        let candidates = self.candidates(selection);
        let chosen = choose(&candidates, &selection.into()).map_err(|undecided| {
            let remedy = format!(
                "correct the version in the configuration, rotate the key until it has it, or lower \
                 min_decryption_version ({}) and min_encryption_version ({}) of the key",
                self.min_decryption_version, self.min_encryption_version
            );
            Failure::new(Class::Undecided, format!("{place}: {undecided}"), remedy)
        })?;
        // Made of numbers.
        let number = candidates[chosen].version.parse().unwrap_or_default();
        self.version(number, place)
    }

    /// The versions that may be told: all that can be meant, and of a long history the end.
    pub(super) fn candidates(&self, selection: Selection) -> Vec<Candidate> {
        let told = self.keys.len().saturating_sub(TOLD);
        let is_told =
            |(place, number): &(usize, u32)| *place >= told || selection == Selection::Pinned(*number);
        let candidate = |number: u32| Candidate {
            version: number.to_string(),
            labels: Vec::new(),
            current: number == self.latest_version,
            disabled: (number < self.min_encryption_version)
                .then(|| format!("min_encryption_version is {}", self.min_encryption_version)),
        };
        self.keys.keys().copied().enumerate().filter(is_told).map(|(_, number)| candidate(number)).collect()
    }

    /// The lineage of this version as it is now, if it can be used.
    pub(super) fn version(&self, number: u32, place: &Place) -> Result<Lineage, Failure> {
        self.usable(place)?;
        let refuse = |what, remedy: &str| Err(Failure::new(Class::Refused, what, remedy));
        if number > self.latest_version {
            let what = format!("{place} has no version {number}, its latest is {}", self.latest_version);
            return refuse(
                what,
                "correct the version in the configuration, or rotate the key until it has it",
            );
        }
        if number < self.min_decryption_version {
            let what = format!(
                "version {number} of {place} may not decrypt: its min_decryption_version is {}",
                self.min_decryption_version
            );
            let remedy = "lower min_decryption_version of the key until nothing needs the version any more";
            return refuse(what, remedy);
        }
        let Some(&created) = self.keys.get(&number) else {
            let what = format!("no creation time of version {number}");
            return Err(answer::corrupt(&place.to_string(), &what));
        };
        place.lineage(number, created)
    }

    fn usable(&self, place: &Place) -> Result<(), Failure> {
        let refuse = |what: String, remedy: &str| Err(Failure::new(Class::Refused, what, remedy));
        const ANOTHER: &str =
            "configure a key that was made with type aes256-gcm96 and neither derived nor convergent";
        if !KINDS.contains(&self.kind.as_str()) {
            let what =
                format!("{place} is of type {:?}; accepted are {}", short(&self.kind), KINDS.join(", "));
            return refuse(what, ANOTHER);
        }
        if self.derived || self.convergent_encryption {
            return refuse(format!("{place} is a derived or convergent key"), ANOTHER);
        }
        if self.soft_deleted {
            return refuse(
                format!("{place} is soft-deleted"),
                "restore the key (its path with /soft-delete-restore)",
            );
        }
        if !self.supports_encryption || !self.supports_decryption {
            return refuse(format!("{place} can't both encrypt and decrypt"), ANOTHER);
        }
        Ok(())
    }
}

/// The fields of an answer, each with a name for what is wrong with it. None of what is in them is repeated.
struct Told<'a> {
    fields: Map<String, Value>,
    path: &'a str,
}

impl<'a> Told<'a> {
    fn parse(body: &[u8], path: &'a str) -> Result<Self, Failure> {
        let fields = answer::data(body).ok_or_else(|| answer::corrupt(path, "no description of a key"))?;
        Ok(Self { fields, path })
    }

    /// The field of this name; `otherwise` says what it is if it is of another kind.
    fn field<T: DeserializeOwned>(&mut self, name: &str, otherwise: &str) -> Result<T, Failure> {
        let Some(value) = self.fields.remove(name) else {
            return Err(self.corrupt(format!("no `{name}`")));
        };
        serde_json::from_value(value).map_err(|_| self.corrupt(format!("a `{name}` that is {otherwise}")))
    }

    fn field_or(&mut self, name: &str, absent: bool) -> Result<bool, Failure> {
        if self.fields.contains_key(name) { self.field(name, "neither true nor false") } else { Ok(absent) }
    }

    /// When each version was made, the latest among them.
    fn versions(&self, keys: Map<String, Value>, latest: u32) -> Result<BTreeMap<u32, i64>, Failure> {
        let mut versions = BTreeMap::new();
        for (name, created) in &keys {
            let number =
                name.parse().ok().filter(|n: &u32| (1..=latest).contains(n) && n.to_string() == *name);
            let Some(number) = number else {
                let what = format!("a version {:?}, and {latest} is the latest", short(name));
                return Err(self.corrupt(what));
            };
            let Some(created) = seconds(created) else {
                return Err(self.corrupt(format!("no creation time of version {number}")));
            };
            versions.insert(number, created);
        }
        if !versions.contains_key(&latest) {
            let what = format!("no creation time of version {latest}, which is the latest");
            return Err(self.corrupt(what));
        }
        Ok(versions)
    }

    fn corrupt(&self, what: impl AsRef<str>) -> Failure {
        answer::corrupt(self.path, what.as_ref())
    }
}

/// A version that a record or the configuration names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version<'a> {
    pub(super) lineage: &'a Lineage,
    pub(super) number: u32,
}

impl<'a> Version<'a> {
    /// A lineage of the key with this prefix.
    pub(super) fn parse(lineage: &'a Lineage, prefix: &LineagePrefix) -> Result<Self, Failure> {
        let number = prefix.rest(lineage).and_then(|rest| {
            let (number, created) = rest.split_once('/')?;
            // One spelling only, or one version had several names.
            let created: i64 = created.parse().ok().filter(|at: &i64| at.to_string() == created)?;
            number.parse().ok().filter(|n: &u32| *n > 0 && created > 0 && n.to_string() == number)
        });
        let number = number.ok_or_else(|| {
            let what = format!("{lineage} is not a version of the key {prefix}");
            Failure::new(Class::Refused, what, "name its own key in the configuration")
        })?;
        Ok(Self { lineage, number })
    }

    /// What Transit puts before the base64 of a ciphertext.
    pub(super) fn ciphertext_prefix(&self) -> String {
        format!("vault:v{}:", self.number)
    }

    /// A wrap as Transit takes it.
    pub(super) fn ciphertext(&self, wrap: &[u8]) -> String {
        let mut text = self.ciphertext_prefix();
        BASE64.encode_string(wrap, &mut text);
        text
    }

    /// A failure because this version is not there.
    pub(super) fn missing(&self, failure: Failure) -> Failure {
        match failure.class {
            Class::Refused => Failure { missing: Some(self.lineage.clone()), ..failure },
            _ => failure,
        }
    }

    /// The version of this number is `found`.
    pub(super) fn other(&self, found: &Lineage) -> Failure {
        let what = format!("what the service holds under this name is {found}, not {}", self.lineage);
        let remedy = "the key was made anew or restored, or another service answers: correct the addresses, or restore \
                      the key whose version was created at the time that the lineage ends with";
        self.missing(Failure::new(Class::Refused, what, remedy))
    }
}

/// Seconds since 1970, floored: a number, or RFC 3339 by itself or in an object of an asymmetric key.
fn seconds(created: &Value) -> Option<i64> {
    let seconds = match created {
        Value::Number(number) => number.as_i64().or_else(|| number.as_f64().map(|at| at.floor() as i64))?,
        Value::String(text) => {
            let at: jiff::Timestamp = text.parse().ok()?;
            // Towards the past; `as_second` goes towards 1970.
            at.as_second() - i64::from(at.subsec_nanosecond() < 0)
        }
        Value::Object(object) => {
            return object.get("creation_time").filter(|at| !at.is_object()).and_then(seconds);
        }
        _ => return None,
    };
    (1..=LAST_SECOND).contains(&seconds).then_some(seconds)
}

fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let namespace = answer::namespace_shown(&self.namespace);
        write!(f, "key {:?} in mount {:?} of {namespace}", self.key, self.mount)
    }
}
