//! What a key service costs, and what becomes of callers when it is slow or hangs: measured with a real `casemate-kms` in
//! front of a real OpenBao or SoftHSM. `./dev bench` runs it on the release build and makes tables of what is printed.
//!
//! Calls are counted at a proxy between the two, by method and path; `calls` says which is which.

mod admin;
mod calls;
mod census;
mod coldstart;
mod daemon;
mod hsm;
mod idle;
mod outage;
mod sampled;
mod soak;
mod transit;

use std::str::FromStr;

use serde_json::Value;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bench {
    /// A plugin that knows nothing reads what many others wrote, over a slow way to the key service.
    Coldstart,
    /// A plugin serves while its key service hangs.
    Outage,
    /// What a plugin asks while nobody asks it.
    Idle,
    /// What grows.
    Soak,
    /// A census of many objects.
    Census,
}

/// How much of it.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long, of idle and soak.
    pub minutes: u32,
    /// How often, of outage and census.
    pub rounds: u32,
    /// Calls in each part of outage.
    pub calls: u32,
    /// How many local KEKs at most, of coldstart.
    pub keks: usize,
    /// DEK sources under each local KEK, of coldstart.
    pub sources: usize,
    /// How many objects, of census.
    pub objects: usize,
    /// Which key service, of soak.
    pub service: Service,
}

/// A kind of key service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// OpenBao.
    Transit,
    /// SoftHSM.
    Pkcs11,
}

/// Measures.
pub fn run(what: Bench, options: &Options) -> anyhow::Result<Value> {
    match what {
        Bench::Coldstart => coldstart::run(options),
        Bench::Outage => outage::run(options),
        Bench::Idle => idle::run(options),
        Bench::Soak => soak::run(options),
        Bench::Census => census::run(options),
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            minutes: 20,
            rounds: 3,
            calls: 30_000,
            keks: 200,
            sources: 10,
            objects: 1_000_000,
            service: Service::Transit,
        }
    }
}

impl Options {
    /// Sets what `option` names.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn set(&mut self, option: &str, value: &str) -> Result<(), String> {
        fn positive<T: FromStr + Default + PartialEq>(option: &str, value: &str) -> Result<T, String> {
            let number = value.parse().ok().filter(|number| *number != T::default());
            number.ok_or_else(|| format!("{option} {value}: a number from 1 is needed"))
        }
        match option {
            "--minutes" => self.minutes = positive(option, value)?,
            "--rounds" => self.rounds = positive(option, value)?,
            "--calls" => self.calls = positive(option, value)?,
            "--keks" => self.keks = positive(option, value)?,
            "--sources" => self.sources = positive(option, value)?,
            "--objects" => self.objects = positive(option, value)?,
            "--key-service" => self.service = value.parse()?,
            _ => return Err(format!("there is no option {option}")),
        }
        Ok(())
    }
}

impl FromStr for Bench {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "coldstart" => Ok(Self::Coldstart),
            "outage" => Ok(Self::Outage),
            "idle" => Ok(Self::Idle),
            "soak" => Ok(Self::Soak),
            "census" => Ok(Self::Census),
            _ => Err(format!("{word}: what is measured is coldstart, outage, idle, soak or census")),
        }
    }
}

impl FromStr for Service {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "openbao" => Ok(Self::Transit),
            "softhsm" => Ok(Self::Pkcs11),
            _ => Err(format!("{word}: a key service is openbao or softhsm")),
        }
    }
}
