//! What etcd really holds: the proof that a Secret is encrypted, and under which key id.

use std::collections::BTreeMap;
use std::fmt;

use casemate_wire::kms_v2::stored;

use crate::{Etcd, Result};

/// What was found under some prefixes of etcd, value by value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// How many values each key id encrypts.
    pub by_key_id: BTreeMap<String, usize>,
    /// Keys of values that no KMS v2 provider encrypted.
    pub not_encrypted: Vec<String>,
    /// Keys of values that say they are, and can't be read as such.
    pub malformed: Vec<String>,
}

impl Proof {
    /// Reads every value under `prefixes`, such as `/registry/secrets/`.
    pub fn read(etcd: &Etcd, prefixes: &[&str]) -> Result<Self> {
        let mut proof = Self::default();
        for prefix in prefixes {
            for (key, value) in etcd.list(prefix)? {
                proof.add(&String::from_utf8_lossy(&key), &value);
            }
        }
        Ok(proof)
    }

    fn add(&mut self, key: &str, value: &[u8]) {
        if !value.starts_with(stored::PREFIX.as_bytes()) {
            return self.not_encrypted.push(key.to_owned());
        }
        match stored::parse(value) {
            Ok(found) if found.faults().is_empty() => {
                *self.by_key_id.entry(found.object.key_id).or_default() += 1;
            }
            _ => self.malformed.push(key.to_owned()),
        }
    }

    /// Whether there is something, and all of it is encrypted under `key_id` alone.
    pub fn all_under(&self, key_id: &str) -> bool {
        self.not_encrypted.is_empty() && self.malformed.is_empty() && self.by_key_id.keys().eq([key_id])
    }

    /// How many values were read.
    pub fn total(&self) -> usize {
        self.by_key_id.values().sum::<usize>() + self.not_encrypted.len() + self.malformed.len()
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values in etcd", self.total())?;
        for (key_id, count) in &self.by_key_id {
            write!(f, "; {count} under key id {key_id}")?;
        }
        for (what, keys) in [("not encrypted", &self.not_encrypted), ("malformed", &self.malformed)] {
            if let Some(first) = keys.first() {
                write!(f, "; {} {what}, the first is {first}", keys.len())?;
            }
        }
        Ok(())
    }
}
