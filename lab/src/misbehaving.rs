//! A PKCS#11 module of ours that misbehaves on demand: it stands before SoftHSM's and passes on what it
//! is not told to spoil. `lab/modules/misbehaving_pkcs11.c` says how.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use aws_lc_rs::digest;

use crate::{
    Error, Result, SoftHsm,
    cache::{self, say},
    process,
};

const SOURCE: &str = include_str!("../modules/misbehaving_pkcs11.c");

/// Return values of PKCS#11 that tests plant.
pub mod ckr {
    /// CKR_GENERAL_ERROR
    pub const GENERAL_ERROR: u64 = 0x05;
    /// CKR_FUNCTION_FAILED
    pub const FUNCTION_FAILED: u64 = 0x06;
    /// CKR_ENCRYPTED_DATA_INVALID
    pub const ENCRYPTED_DATA_INVALID: u64 = 0x40;
    /// CKR_DEVICE_ERROR
    pub const DEVICE_ERROR: u64 = 0x30;
    /// CKR_DEVICE_REMOVED
    pub const DEVICE_REMOVED: u64 = 0x32;
    /// CKR_OPERATION_ACTIVE
    pub const OPERATION_ACTIVE: u64 = 0x90;
    /// CKR_PIN_INCORRECT
    pub const PIN_INCORRECT: u64 = 0xa0;
    /// CKR_PIN_LOCKED
    pub const PIN_LOCKED: u64 = 0xa4;
    /// CKR_SESSION_HANDLE_INVALID
    pub const SESSION_HANDLE_INVALID: u64 = 0xb3;
    /// CKR_TOKEN_NOT_PRESENT
    pub const TOKEN_NOT_PRESENT: u64 = 0xe0;
    /// CKR_USER_NOT_LOGGED_IN
    pub const USER_NOT_LOGGED_IN: u64 = 0x101;
}

/// What a call meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misbehaviour {
    /// It does not come back until [`MisbehavingModule::behave`]; then it is passed on.
    Hang,
    /// The process ends by SIGABRT.
    Abort,
    /// The process ends by SIGSEGV.
    Segfault,
    /// It returns this and does nothing. With 0 it lies: C_CloseSession so leaks a session.
    Return(u64),
    /// It is passed on after so long.
    Slow(Duration),
    /// It is passed on, and each byte that it puts out is another one: of C_Encrypt, C_Decrypt, C_Sign,
    /// C_Digest, their updates and finals, C_WrapKey and C_GenerateRandom.
    WrongBytes,
    /// It is passed on after the login of its session, and so of all, was dropped. Of functions whose first argument is
    /// a session.
    LogOut,
    /// It is passed on, and a descriptor stays open.
    LeakDescriptor,
}

/// A control file for the module. Any number of processes may load the module with it.
#[derive(Debug)]
pub struct MisbehavingModule {
    module: PathBuf,
    control: PathBuf,
    /// The lines of the control file, and how many there ever were.
    faults: Mutex<(Vec<String>, u32)>,
}

impl MisbehavingModule {
    /// One that behaves, with its files in the new folder `folder`. A process that loads it reads and
    /// writes there.
    pub fn create(folder: &Path) -> Result<Self> {
        let made = Self { module: build()?, control: folder.join("control"), faults: Mutex::default() };
        fs::create_dir(folder).map_err(Error::file("make", folder))?;
        made.write(&[])?;
        Ok(made)
    }

    /// The module.
    pub fn path(&self) -> &Path {
        &self.module
    }

    /// What a process needs in its environment, beside [`SoftHsm::env`].
    pub fn env(&self) -> [(&'static str, PathBuf); 2] {
        [
            ("MISBEHAVING_PKCS11_MODULE", SoftHsm::MODULE.into()),
            ("MISBEHAVING_PKCS11_CONTROL", self.control.clone()),
        ]
    }

    /// From now on calls of `function`, as in `C_Login`, meet `what`: the next `times`, or all. What was
    /// said of it earlier goes first.
    pub fn misbehave(&self, function: &str, what: Misbehaviour, times: Option<u32>) -> Result<()> {
        let (word, argument) = match what {
            Misbehaviour::Hang => ("hang", 0),
            Misbehaviour::Abort => ("abort", 0),
            Misbehaviour::Segfault => ("segfault", 0),
            Misbehaviour::Return(value) => ("return", value),
            Misbehaviour::Slow(rest) => ("slow", u64::try_from(rest.as_millis()).unwrap_or(u64::MAX)),
            Misbehaviour::WrongBytes => ("wrong", 0),
            Misbehaviour::LogOut => ("logout", 0),
            Misbehaviour::LeakDescriptor => ("descriptor", 0),
        };
        let times = times.map_or(-1, i64::from);
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.1 += 1;
        let line = format!("{} {function} {word} {argument} {times}", faults.1);
        faults.0.push(line);
        self.write(&faults.0)
    }

    /// No more misbehaviour.
    pub fn behave(&self) -> Result<()> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.0.clear();
        self.write(&faults.0)
    }

    /// How often `function` was called, by whatever process.
    pub fn calls(&self, function: &str) -> Result<usize> {
        let path = self.control.with_extension("calls");
        if !path.exists() {
            return Ok(0);
        }
        let text = fs::read_to_string(&path).map_err(Error::file("read", path))?;
        Ok(text.lines().filter(|line| line.split(' ').next() == Some(function)).count())
    }

    /// By a rename: who reads it meanwhile sees all of one or the other.
    fn write(&self, faults: &[String]) -> Result<()> {
        let aside = self.control.with_extension("aside");
        let text: String = faults.iter().map(|line| format!("{line}\n")).collect();
        fs::write(&aside, text).map_err(Error::file("write", &aside))?;
        fs::rename(&aside, &self.control).map_err(Error::file("rename", aside))
    }
}

/// The module in the cache, built if it is not there.
fn build() -> Result<PathBuf> {
    let hash = hex::encode(digest::digest(&digest::SHA256, SOURCE.as_bytes()));
    let home = cache::cache_dir()?.join("tools/misbehaving-pkcs11").join(&hash[..16]);
    cache::made_once(&home, "misbehaving_pkcs11.so", "the misbehaving PKCS#11 module", |partial| {
        say("building the misbehaving PKCS#11 module with gcc: a second, once");
        let source = home.join("misbehaving_pkcs11.c");
        fs::write(&source, SOURCE).map_err(Error::file("write", &source))?;
        let mut gcc = Command::new("gcc");
        gcc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
        gcc.arg(partial).arg(&source).args(["-ldl", "-pthread"]);
        let output = process::run(&gcc, b"")?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::Build {
            tool: "the misbehaving PKCS#11 module".into(),
            command: process::as_typed(&gcc),
            status: output.status,
            log_tail: process::tail(&String::from_utf8_lossy(&output.stderr), 15),
            remedy: "install gcc 9 or newer (Debian: `apt-get install gcc`)".into(),
        })
    })
}
