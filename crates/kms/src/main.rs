//! `casemate-kms`: serve, check, version, schema.

use std::process::ExitCode;
use std::time::Duration;

use casemate_keys::KeyId;
use casemate_kms::check::check;
use casemate_kms::cli::{Cli, Command, ConfigFile, LogForm, Output};
use casemate_kms::config::{API_VERSION, Config};
use casemate_kms::serve::serve;
use casemate_kms::socket::PassedSockets;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How long a stop waits for files that are being written.
const LAST_WRITES: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve { config, accept_reuse, log } => {
            start_log(log);
            // Before there are threads.
            let passed = PassedSockets::from_environment();
            with_config(&config, |config| run(config, accept_reuse, passed))
        }
        Command::Check { config, output } => with_config(&config, |config| report(config, output)),
        Command::Schema => {
            println!("{:#}", Config::schema().as_value());
            ExitCode::SUCCESS
        }
        Command::Version => {
            println!("casemate-kms {}", env!("CARGO_PKG_VERSION"));
            println!("configuration {API_VERSION}, KMS v2, record format 1");
            println!("key services: file");
            ExitCode::SUCCESS
        }
    }
}

fn with_config(file: &ConfigFile, then: impl FnOnce(&Config) -> ExitCode) -> ExitCode {
    match Config::load(&file.config) {
        Ok(config) => then(&config),
        Err(error) => {
            eprintln!("casemate-kms: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(config: &Config, accept_reuse: Option<KeyId>, passed: PassedSockets) -> ExitCode {
    let served = runtime(|| async {
        let stop = CancellationToken::new();
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let asked = stop.clone();
        tokio::spawn(async move {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            tracing::info!("stopping: calls in flight are finished");
            asked.cancel();
        });
        anyhow::Ok(serve(config, accept_reuse, passed, stop).await?)
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn report(config: &Config, output: Output) -> ExitCode {
    let findings = match runtime(|| async { anyhow::Ok(check(config).await) }) {
        Ok(findings) => findings,
        Err(error) => {
            eprintln!("casemate-kms: {error}");
            return ExitCode::FAILURE;
        }
    };
    match output {
        Output::Json => println!("{}", serde_json::json!({"findings": findings})),
        Output::Table => {
            for finding in &findings {
                let verdict = if finding.good { "ok  " } else { "FAIL" };
                println!("{verdict}  {}  {}: {}", finding.provider, finding.subject, finding.detail);
            }
        }
    }
    if findings.iter().all(|finding| finding.good) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn runtime<T, F: Future<Output = anyhow::Result<T>>>(work: impl FnOnce() -> F) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(work());
    // A read that hangs in the system must not keep the process: everything that is written is replaced whole.
    runtime.shutdown_timeout(LAST_WRITES);
    done
}

fn start_log(form: LogForm) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("CASEMATE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match form {
        LogForm::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogForm::Json => log.json().init(),
    }
}
