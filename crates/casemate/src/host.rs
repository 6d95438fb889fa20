//! The host of a casemate-kms: its configuration, and its root keys, asked as the daemon asks them.
use std::path::{Path, PathBuf};
use std::time::Duration;

use casemate_keys::crypto_module::CryptoModule;
use casemate_keyservice::{Answer, Class, Failure as NoAnswer};
use casemate_kms::config::{Config, Source};
use casemate_kms::key_services::KeyServices;
use tokio::runtime::Runtime;

use crate::output::{Exit, Failure};

/// Longer than the daemon gives a call, with a login before it.
const DEADLINE: Duration = Duration::from_secs(20);
/// The daemon's program, which holds PKCS#11 modules for this one too.
const PROGRAM: &str = "casemate-kms";

/// Which host: flags that commands share.
#[derive(clap::Args, Debug)]
pub(crate) struct HostArgs {
    /// The configuration of the casemate-kms on this host
    #[arg(long, value_name = "FILE", default_value = "/etc/casemate-kms/config.yaml")]
    pub(crate) config: PathBuf,

    /// The casemate-kms program, which loads PKCS#11 modules in a process of its own; found beside this program or in
    /// PATH if left out
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: Option<PathBuf>,
}

impl HostArgs {
    /// The configuration, parsed.
    pub(crate) fn load(&self) -> Result<Config, Failure> {
        CryptoModule::linked().check().map_err(|error| Failure::new(Exit::Unknown, &error))?;
        let read = Source::read(&self.config).and_then(|source| source.config());
        read.map_err(|error| Failure::new(Exit::Usage, &error))
    }

    /// What asks its root keys.
    pub(crate) fn services(&self, config: &Config) -> Result<KeyServices, String> {
        // The folder where refused PINs are remembered has to be there before a host is confined to it.
        if let Some(folder) = config.guard_folder() {
            make(&folder).map_err(|error| {
                format!(
                    "{}: can't be made: {error}; run as root, or as the user of the plugin",
                    folder.display()
                )
            })?;
        } else {
            return Ok(KeyServices::default());
        }
        let program = self.program().ok_or_else(|| {
            format!("there is no {PROGRAM} beside this program or in PATH, and it loads PKCS#11 modules; name it with --plugin")
        })?;
        KeyServices::start(config, &program).map_err(|error| {
            format!(
                "{}: can't be started: {error}; name the installed {PROGRAM} with --plugin",
                program.display()
            )
        })
    }

    fn program(&self) -> Option<PathBuf> {
        if let Some(named) = &self.plugin {
            return Some(named.clone());
        }
        let beside = std::env::current_exe().ok().and_then(|this| Some(this.parent()?.to_owned()));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = beside.into_iter().chain(std::env::split_paths(&path));
        folders.map(|folder| folder.join(PROGRAM)).find(|program| program.is_file())
    }
}

fn make(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// What waits for key services, plugins and servers.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(|error| {
        Failure::new(Exit::Unknown, &format_args!("can't start: {error}; raise the limit of open files"))
    })
}

/// One call to a root key. It ends.
pub(crate) async fn bounded<T>(answer: Answer<'_, T>) -> Result<T, NoAnswer> {
    tokio::time::timeout(DEADLINE, answer).await.unwrap_or_else(|_| {
        let what = format!("no answer within {} s", DEADLINE.as_secs());
        Err(NoAnswer::new(Class::Unreachable, what, "check the key service and the way to it"))
    })
}

/// A class as `/status` names it.
pub(crate) fn class_name(class: Class) -> &'static str {
    casemate_kms::provider::class_name(class)
}
