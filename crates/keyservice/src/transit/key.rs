//! What the service says of a key, and what of it can be a root.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use casemate_keys::{Lineage, LineagePrefix};
use serde::Deserialize;
use serde_json::Value;

use super::{Place, Selection, answer};
use crate::selection::{Candidate, choose};
use crate::{Class, Failure};

/// Kinds of key that bind associated data, with 256 bits.
const KINDS: [&str; 3] = ["aes256-gcm96", "chacha20-poly1305", "xchacha20-poly1305"];

/// How many versions a message lists.
const TOLD: usize = 16;

/// A key as the service describes it.
#[derive(Debug, Deserialize)]
pub(super) struct KeyState {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    latest_version: u64,
    /// Version → creation time. Those below the least version for decryption are not told.
    keys: BTreeMap<String, Value>,
    #[serde(default)]
    min_decryption_version: u64,
    #[serde(default)]
    min_encryption_version: u64,
    #[serde(default)]
    derived: bool,
    #[serde(default)]
    convergent_encryption: bool,
    #[serde(default)]
    soft_deleted: bool,
    #[serde(default = "yes")]
    supports_encryption: bool,
    #[serde(default = "yes")]
    supports_decryption: bool,
}

fn yes() -> bool {
    true
}

impl KeyState {
    pub(super) fn parse(body: &[u8], place: &Place) -> Result<Self, Failure> {
        let state: Option<Self> = answer::data(body);
        let path = place.shown(&place.path(super::Operation::Keys));
        let state = state.ok_or_else(|| answer::corrupt(&path, "no description of a key"))?;
        if state.name != place.key {
            return Err(answer::corrupt(
                &path,
                &format!("the description of another key, {:?}", short(&state.name)),
            ));
        }
        Ok(state)
    }

    /// The version that is to write.
    pub(super) fn selected(&self, selection: Selection, place: &Place) -> Result<Lineage, Failure> {
        self.usable(place)?;
        if !self.keys.contains_key(&self.latest_version.to_string()) {
            let what = format!("no creation time of version {}, which is the latest", self.latest_version);
            return Err(answer::corrupt(&place.to_string(), &what));
        }
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
        let mut numbers: Vec<u32> = self.keys.keys().filter_map(|number| number.parse().ok()).collect();
        numbers.sort_unstable();
        let told = numbers.len().saturating_sub(TOLD);
        let is_told =
            |(place, number): &(usize, u32)| *place >= told || selection == Selection::Pinned(*number);
        let candidate = |number: u32| Candidate {
            version: number.to_string(),
            labels: Vec::new(),
            current: u64::from(number) == self.latest_version,
            disabled: (u64::from(number) < self.min_encryption_version)
                .then(|| format!("min_encryption_version is {}", self.min_encryption_version)),
        };
        numbers.into_iter().enumerate().filter(is_told).map(|(_, number)| candidate(number)).collect()
    }

    /// The lineage of this version as it is now, if it can be used.
    pub(super) fn version(&self, number: u32, place: &Place) -> Result<Lineage, Failure> {
        self.usable(place)?;
        let refuse = |what, remedy: &str| Err(Failure::new(Class::Refused, what, remedy));
        if u64::from(number) > self.latest_version {
            let what = format!("{place} has no version {number}, its latest is {}", self.latest_version);
            return refuse(
                what,
                "correct the version in the configuration, or rotate the key until it has it",
            );
        }
        if u64::from(number) < self.min_decryption_version {
            let what = format!(
                "version {number} of {place} may not decrypt: its min_decryption_version is {}",
                self.min_decryption_version
            );
            let remedy = "lower min_decryption_version of the key until nothing needs the version any more";
            return refuse(what, remedy);
        }
        let created = self.keys.get(&number.to_string()).and_then(seconds);
        let Some(created) = created else {
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
    (seconds > 0).then_some(seconds)
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
