//! The processes that hold PKCS#11 modules: how they are started, and what they are confined to.
//!
//! `casemate-kms serve` starts a *keeper* before it confines itself, if a PKCS#11 key is configured; the keeper starts a
//! *host* for each key when it is asked. All three are this program. Which modules there are, and what each may touch,
//! is said to the keeper at its start: whoever breaks into the daemon later can't have another module loaded.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::Context;
use casemate_daemon::confine::Profile;
use casemate_daemon::keeper::{Keeper, Post, Program, Started, take_over};
use casemate_keys::crypto_module::CryptoModule;
use casemate_keyservice::pkcs11::{HostConfig, Launch, Running, serve};
use rustix::process::{Signal, getpid, kill_process};

/// Where hosts come from.
#[derive(Debug)]
pub struct Hosts {
    keeper: Keeper,
    configs: Vec<HostConfig>,
}

/// What can't be had before a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "another PKCS#11 module, token, PIN file, folder or environment than at the start needs a restart: which code is \
     loaded is fixed before the program confines itself"
)]
pub struct NeedsRestart;

impl Hosts {
    /// Starts the keeper of these hosts, as `program`: the path of a `casemate-kms`, `/proc/self/exe` for the one that
    /// runs. Before the process confines itself, and from a thread that lives as long as it does.
    ///
    /// # Errors
    /// As of starting a program.
    pub fn start(program: &Path, configs: impl IntoIterator<Item = HostConfig>) -> io::Result<Arc<Self>> {
        let mut different: Vec<HostConfig> = Vec::new();
        for config in configs {
            if !different.contains(&config) {
                different.push(config);
            }
        }
        let mut command = Command::new(program);
        command.arg("pkcs11-keeper");
        let keeper = Keeper::start(command, &serde_json::to_vec(&different)?)?;
        Ok(Arc::new(Self { keeper, configs: different }))
    }

    /// What starts hosts of this configuration.
    ///
    /// # Errors
    /// [`NeedsRestart`]: it was not there at the start.
    pub fn launcher(self: &Arc<Self>, config: &HostConfig) -> Result<Arc<dyn Launch>, NeedsRestart> {
        let index = self.configs.iter().position(|known| known == config).ok_or(NeedsRestart)?;
        Ok(Arc::new(Launcher { hosts: self.clone(), index }))
    }
}

struct Launcher {
    hosts: Arc<Hosts>,
    index: usize,
}

impl Launch for Launcher {
    fn launch(&self) -> io::Result<(Box<dyn Running>, UnixStream)> {
        let (started, stream) = self.hosts.keeper.launch(self.index)?;
        Ok((Box::new(Host(started)), stream))
    }
}

impl fmt::Debug for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Launcher").field(&self.index).finish()
    }
}

#[derive(Debug)]
struct Host(Started);

impl Running for Host {
    fn end(&self) -> Option<String> {
        self.0.end().unwrap_or_else(|error| Some(error.to_string()))
    }
}

/// The keeper: `casemate-kms pkcs11-keeper`.
///
/// # Errors
/// What it is told makes no sense, or it can't be confined.
pub fn keep() -> anyhow::Result<()> {
    let (post, orders) = Post::take_up()?;
    let configs: Vec<HostConfig> = serde_json::from_slice(&orders).context("which hosts to keep")?;
    let programs: Vec<Program> = configs.iter().map(program).collect::<Result<_, _>>()?;
    let this = std::env::current_exe()?;
    let profile = configs.iter().map(profile).fold(Profile::default(), Profile::and).starts(this);
    Ok(post.keep(&programs, &profile)?)
}

/// A host: `casemate-kms pkcs11-host`.
///
/// # Errors
/// What it is told makes no sense, or it can't be confined.
pub fn host(host: &str) -> anyhow::Result<()> {
    let mut config: HostConfig = serde_json::from_str(host).context("which module to hold")?;
    // All that there is comes from the configuration: `program`.
    let variables = std::env::vars_os();
    let text =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    config.environment = variables.filter_map(text).collect();
    let stream = take_over()?;
    CryptoModule::linked().check()?;
    // Before any code of the module runs, be it that which runs when it is loaded.
    profile(&config).confine()?;
    Ok(serve(config, stream)?)
}

/// Ends this process without a word to what it has loaded.
pub fn end_now() {
    let _ = kill_process(getpid(), Signal::KILL);
}

/// How a host of this configuration is started: arguments of this program, and all of its environment. There may be
/// secrets in the latter, so it is not said twice.
///
/// # Errors
/// A path can't be written as text.
pub fn program(config: &HostConfig) -> serde_json::Result<Program> {
    let open = HostConfig { environment: BTreeMap::new(), ..config.clone() };
    Ok(Program {
        arguments: vec!["pkcs11-host".into(), serde_json::to_string(&open)?.into()],
        environment: config.environment.iter().map(|(name, value)| (name.into(), value.into())).collect(),
    })
}

fn profile(config: &HostConfig) -> Profile {
    let mut profile = Profile::default();
    for file in [&config.module, &config.pin_file] {
        // A file that is delivered anew is another one: its folder counts, and that of what it is a link to.
        let target = file.canonicalize().unwrap_or_else(|_| file.clone());
        for file in [file, &target] {
            profile = profile.read(file.parent().unwrap_or(file));
        }
    }
    profile = config
        .folders
        .iter()
        .fold(profile.write(&config.guard_folder), |profile, folder| profile.write(folder));
    // A variable that names a file is there for the module to read it.
    for value in config.environment.values().filter(|value| value.starts_with('/')) {
        profile = profile.read(value);
    }
    if config.network { profile.network() } else { profile }
}
