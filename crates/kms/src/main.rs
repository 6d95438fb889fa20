//! `casemate-kms`: serve, check, probe, version, schema.

/// Prints a line, as `println!` does, and without its panics.
macro_rules! tell {
    ($($what:tt)*) => {
        $crate::told({
            use std::io::Write as _;
            writeln!(std::io::stdout(), $($what)*)
        })
    };
}

mod confined;

use std::alloc::System;
use std::io::{self, Write as _};
use std::num::NonZero;
use std::path::Path;
use std::process::{self, ExitCode};
use std::time::{Duration, SystemTime};

use casemate_daemon::confine::{ConfineError, Enforced};
use casemate_daemon::{log, notify};
use casemate_keys::crypto_module::CryptoModule;
use casemate_keys::secret_memory::{self, Kind};
use casemate_kms::check::{Finding, check};
use casemate_kms::cli::{Cli, Command, ConfigFile, Output};
use casemate_kms::config::{API_VERSION, Config, ConfigError, Source};
use casemate_kms::key_services::KeyServices;
use casemate_kms::pkcs11;
use casemate_kms::reload::{ReloadError, dry_run};
use casemate_kms::serve::{Start, serve};
use casemate_kms::socket::PassedSockets;
use casemate_kms::version::Version;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use zeroizing_alloc::ZeroAlloc;

/// Memory is wiped when it is freed: messages and keys pass through many hands.
#[global_allocator]
static WIPED: ZeroAlloc<System> = ZeroAlloc(System);

/// This program, whatever stands in its place by now.
const THIS: &str = "/proc/self/exe";

/// How long a stop waits for files that are being written.
const LAST_WRITES: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve { config, accept_reuse, log } => {
            log::start(log.into());
            // Before there are threads.
            let passed = PassedSockets::from_environment();
            with_config(&config, Source::read_ours, |parsed, source| {
                // What starts processes of its own does so before it may start none.
                confined::make_state_directory(&parsed);
                let services = match KeyServices::start(&parsed, Path::new(THIS)) {
                    Ok(services) => services,
                    Err(error) => {
                        tracing::error!("what holds PKCS#11 modules can't be started: {error}");
                        return ExitCode::FAILURE;
                    }
                };
                match confine(&parsed, &config) {
                    Ok((workers, enforced)) => {
                        run(parsed, source, Start { accept_reuse, passed, services, enforced }, workers)
                    }
                    Err(error) => {
                        tracing::error!("{error}; --no-confinement starts without");
                        ExitCode::FAILURE
                    }
                }
            })
        }
        Command::Check { config, replaces, output } => {
            with_config(&config, Source::read_for_owner, |parsed, source| {
                // Before it is confined: the other file may be anywhere.
                let takeover = replaces.map(|held| takeover(&held, &source)).unwrap_or_default();
                // A PIN is tried only where a refusal can be remembered.
                if parsed.guard_folder().is_some() {
                    confined::make_state_directory(&parsed);
                }
                match KeyServices::start(&parsed, Path::new(THIS)) {
                    Ok(services) => {
                        report(&parsed, &services, takeover, confined::apply(&parsed, &config), output)
                    }
                    Err(error) => ended(Err(error.into())),
                }
            })
        }
        Command::Probe { config, output, attempt: None } => {
            with_config(&config, Source::read_for_owner, |parsed, _| {
                confined::probe(&parsed, &config, output)
            })
        }
        Command::Probe { config, attempt: Some(attempt), .. } => {
            with_config(&config, Source::read_for_owner, |parsed, _| {
                confined::attempt(attempt, &parsed, &config)
            })
        }
        Command::Pkcs11Keeper => ended(pkcs11::keep()),
        Command::Pkcs11Host { host } => {
            let code = ended(pkcs11::host(&host));
            // Not by way of what the module wants to do at the end: it may hang.
            pkcs11::end_now();
            code
        }
        Command::Schema => {
            tell!("{:#}", Config::schema().as_value());
            ExitCode::SUCCESS
        }
        Command::Version { output } => {
            version(output);
            ExitCode::SUCCESS
        }
    }
}

fn ended(done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("casemate-kms: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// All that touches keys comes this way.
fn with_config(
    file: &ConfigFile,
    read: fn(&Path) -> Result<Source, ConfigError>,
    then: impl FnOnce(Config, Source) -> ExitCode,
) -> ExitCode {
    if let Err(error) = CryptoModule::linked().check() {
        eprintln!("casemate-kms: {error}");
        return ExitCode::FAILURE;
    }
    let read = read(&file.config).and_then(|source| Ok((source.config()?, source)));
    match read {
        Ok((config, source)) => then(config, source),
        Err(error) => {
            eprintln!("casemate-kms: {error}");
            ExitCode::from(2)
        }
    }
}

/// While there is one thread. Gives how many processors there are, too: a confined process can't read all about it.
fn confine(config: &Config, file: &ConfigFile) -> Result<(usize, Option<Enforced>), ConfineError> {
    let workers = available_workers();
    let enforced = confined::apply(config, file)?;
    match &enforced {
        Some(enforced) => enforced.log(),
        None => tracing::warn!(
            "not confined, as --no-confinement says: whoever breaks in can do all that this user can"
        ),
    }
    match secret_memory::kind() {
        kind @ Kind::Ordinary => tracing::warn!("memory of local KEKs is {kind}; raise it (LimitMEMLOCK=)"),
        kind => tracing::info!("memory of local KEKs is {kind}"),
    }
    Ok((workers, enforced))
}

fn run(config: Config, source: Source, start: Start, workers: usize) -> ExitCode {
    let served = runtime(workers, || async {
        let stop = CancellationToken::new();
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let mut hang_up = signal(SignalKind::hangup())?;
        let (ask, asked_to_reload) = mpsc::channel(1);
        tokio::spawn(async move {
            while hang_up.recv().await.is_some() {
                // One that waits is enough.
                let _ = ask.try_send(());
            }
        });
        let asked = stop.clone();
        tokio::spawn(async move {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            tracing::info!("stopping: calls in flight are finished");
            notify::stopping();
            asked.cancel();
        });
        if let Some(period) = notify::alive_every() {
            tokio::spawn(keep_alive(period));
        }
        anyhow::Ok(serve(source, config, start, asked_to_reload, stop).await?)
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Tells that the runtime turns: that a new task gets its turn, not only this one.
async fn keep_alive(period: Duration) {
    let mut ticks = tokio::time::interval(period);
    loop {
        ticks.tick().await;
        if tokio::spawn(async {}).await.is_ok() {
            notify::alive();
        }
    }
}

/// Of a configuration that is sound, and that no running process takes over.
const NEEDS_RESTART: &str = "needs a restart";

/// What would change in a process that serves the file `held`.
fn takeover(held: &Path, source: &Source) -> Vec<Finding> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let found = Source::read(held).map_err(ReloadError::from).and_then(|held| dry_run(&held, source, now));
    let finding =
        |subject: &str, good, detail| Finding { provider: "-".into(), subject: subject.into(), good, detail };
    match found {
        Ok(changes) if changes.is_empty() => vec![finding("takeover", true, "nothing would change".into())],
        Ok(changes) => changes.into_iter().map(|change| finding("would change", true, change)).collect(),
        Err(error) if error.needs_restart() => vec![finding(NEEDS_RESTART, false, error.to_string())],
        Err(error) => vec![finding("takeover", false, error.to_string())],
    }
}

fn report(
    config: &Config,
    services: &KeyServices,
    takeover: Vec<Finding>,
    confined: Result<Option<Enforced>, ConfineError>,
    output: Output,
) -> ExitCode {
    let looked = confined.map_err(anyhow::Error::from).and_then(|enforced| {
        let mut findings = confined::findings(enforced.as_ref(), config);
        findings.extend(runtime(1, || async {
            let findings = check(config, services).await;
            services.log_out().await;
            anyhow::Ok(findings)
        })?);
        findings.extend(takeover);
        Ok(findings)
    });
    let findings = match looked {
        Ok(findings) => findings,
        Err(error) => {
            eprintln!("casemate-kms: {error}");
            return ExitCode::FAILURE;
        }
    };
    match output {
        Output::Json => tell!("{}", serde_json::json!({"findings": findings})),
        Output::Table => {
            for finding in &findings {
                let verdict = match finding.good {
                    true => "ok  ",
                    // Nothing is wrong with it.
                    false if finding.subject == NEEDS_RESTART => "NOTE",
                    false => "FAIL",
                };
                tell!("{verdict}  {}  {}: {}", finding.provider, finding.subject, finding.detail);
            }
        }
    }
    if findings.iter().all(|finding| finding.good) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A reader that went away (`| head`) has what it wanted.
fn told(written: io::Result<()>) {
    if let Err(error) = written.and_then(|()| io::stdout().flush())
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        eprintln!("casemate-kms: can't write to stdout: {error}");
        process::exit(1);
    }
}

fn version(output: Output) {
    let version = Version::of("casemate-kms", env!("CARGO_PKG_VERSION"), option_env!("CASEMATE_COMMIT"));
    match output {
        Output::Json => {
            let (configuration, key_services) = (API_VERSION, KEY_SERVICES);
            let said = Plugin { version, configuration, kms: "v2", record_format: 1, key_services };
            tell!("{}", serde_json::json!(said));
        }
        Output::Table => {
            for [name, value] in version.rows() {
                tell!("{name:<13}  {value}");
            }
            tell!("configuration  {API_VERSION}");
            tell!("kms            v2");
            tell!("record format  1");
            tell!("key services   {}", KEY_SERVICES.join(", "));
        }
    }
}

/// Those that are built in.
const KEY_SERVICES: [&str; 3] = ["file", "transit", "pkcs11"];

/// What there is to know of this program beyond its build.
#[derive(serde::Serialize)]
struct Plugin {
    #[serde(flatten)]
    version: Version,
    configuration: &'static str,
    kms: &'static str,
    record_format: u8,
    key_services: [&'static str; 3],
}

fn available_workers() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

fn runtime<T, F: Future<Output = anyhow::Result<T>>>(
    workers: usize,
    work: impl FnOnce() -> F,
) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let done = runtime.block_on(work());
    // A read that hangs in the system must not keep the process: everything that is written is replaced whole.
    runtime.shutdown_timeout(LAST_WRITES);
    done
}
