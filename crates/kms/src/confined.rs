//! What `casemate-kms` keeps when it gives up the rest.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use casemate_daemon::confine::{ConfineError, Enforced, Folders, confine};
use casemate_daemon::probe::{Attempt, Must};
use casemate_kms::check::Finding;
use casemate_kms::cli::{ConfigFile, Output};
use casemate_kms::config::Config;

/// Confines the process to what `config`, read from `file`, names. `None` if the admin wants none of it.
pub(crate) fn apply(config: &Config, file: &ConfigFile) -> Result<Option<Enforced>, ConfineError> {
    if file.no_confinement {
        return Ok(None);
    }
    confine(&folders(config, &file.config)).map(Some)
}

/// The state directory is made at the first start, and only a folder that is there can be kept.
pub(crate) fn make_state_directory(config: &Config) {
    // If it can't be made, whoever opens it next says so.
    let _ = DirBuilder::new().recursive(true).mode(0o700).create(&**config.state_directory);
}

/// What `casemate-kms check` says about it.
pub(crate) fn findings(enforced: Option<&Enforced>, config: &Config) -> Vec<Finding> {
    let finding = |subject: &str, detail: String| Finding {
        provider: "-".into(),
        subject: format!("confinement, {subject}"),
        // What an older kernel can't do is no reason not to start.
        good: true,
        detail,
    };
    match enforced {
        None => vec![finding("none", "switched off by --no-confinement".into())],
        Some(enforced) => {
            // `serve` makes the state directory first.
            let absent = enforced.absent().iter().filter(|folder| **folder != **config.state_directory);
            let absent = absent.map(|folder| {
                finding(
                    "folder",
                    format!("{} is not there; made later, it needs a restart", folder.display()),
                )
            });
            let layers = enforced.layers().into_iter();
            layers
                .map(|layer| {
                    let part = if layer.whole { "" } else { "in part: " };
                    finding(layer.subject, format!("{part}{}", layer.detail))
                })
                .chain(absent)
                .collect()
        }
    }
}

/// Tries everything in a process of its own, and says what came of it.
pub(crate) fn probe(file: &ConfigFile, output: Output) -> ExitCode {
    let mut held = true;
    let mut lines = Vec::new();
    for attempt in Attempt::ALL {
        let outcome = match try_apart(attempt, file) {
            Ok(ended) => attempt.outcome(&ended),
            Err(error) => {
                eprintln!("casemate-kms: {error}");
                return ExitCode::FAILURE;
            }
        };
        held &= outcome.held;
        lines.push((attempt, outcome));
    }
    match output {
        Output::Json => {
            let attempts: Vec<_> = lines
                .iter()
                .map(|(attempt, outcome)| {
                    let must = match attempt.must() {
                        Must::End => "end the process",
                        Must::Fail => "fail",
                    };
                    serde_json::json!({
                        "attempt": attempt.word(), "must": must, "held": outcome.held, "outcome": outcome.detail,
                    })
                })
                .collect();
            println!("{}", serde_json::json!({"attempts": attempts, "held": held}));
        }
        Output::Table => {
            for (attempt, outcome) in &lines {
                let verdict = if outcome.held { "ok  " } else { "FAIL" };
                println!("{verdict}  {}: {}", attempt.word(), outcome.detail);
            }
        }
    }
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn try_apart(attempt: Attempt, file: &ConfigFile) -> std::io::Result<std::process::Output> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["probe", "--attempt", attempt.word(), "--config"]).arg(&file.config);
    if file.no_confinement {
        command.arg("--no-confinement");
    }
    command.stdin(Stdio::null()).output()
}

/// One attempt, in this process.
pub(crate) fn attempt(attempt: Attempt, config: &Config, file: &ConfigFile) -> ExitCode {
    let confined = attempt
        .prepare()
        .map_err(|error| format!("{} can't be prepared: {error}", attempt.word()))
        .and_then(|prepared| apply(config, file).map(|_| prepared).map_err(|error| error.to_string()));
    match confined {
        Ok(prepared) => {
            prepared.go();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("casemate-kms: {error}");
            ExitCode::FAILURE
        }
    }
}

fn folders(config: &Config, file: &Path) -> Folders {
    let mut folders = Folders::default().read_beside(file).state(&**config.state_directory);
    if let Some(audit) = &config.audit {
        // Rotated files and what is set aside stand beside the log.
        folders = folders.state(audit.path.parent().unwrap_or(&audit.path));
        if let Some(key) = &audit.checkpoint_key {
            folders = folders.read_beside(&key.path);
        }
    }
    for provider in &config.providers {
        let (write, read) = (provider.root_keys.iter(), provider.read_keys.iter());
        for key in write.map(|key| &key.file).chain(read.map(|key| &key.file)) {
            folders = folders.read_beside(&key.path);
        }
    }
    let endpoints = config.providers.iter().map(|provider| &provider.endpoint);
    for socket in
        endpoints.chain(config.admin.as_ref().map(|admin| &admin.endpoint)).filter_map(|one| one.path())
    {
        folders = folders.socket(socket);
    }
    folders
}
