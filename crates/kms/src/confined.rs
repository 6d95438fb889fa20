//! What `casemate-kms` keeps when it gives up the rest.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::process::{Command, ExitCode, Output as Ended, Stdio};
use std::thread::sleep;
use std::time::Duration;

use casemate_daemon::confine::{ConfineError, Enforced, confine};
use casemate_daemon::probe::{Attempt, KernelLog, Must};
use casemate_kms::check::Finding;
use casemate_kms::cli::{ConfigFile, Output};
use casemate_kms::config::Config;

const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Confines the process to what `config`, read from `file`, names. `None` if the admin wants none of it.
pub(crate) fn apply(config: &Config, file: &ConfigFile) -> Result<Option<Enforced>, ConfineError> {
    if file.no_confinement {
        return Ok(None);
    }
    confine(&config.folders(&file.config)).map(Some)
}

/// The state directory is made at the first start, and only a folder that is there can be kept.
pub(crate) fn make_state_directory(config: &Config) {
    // If it can't be made, whoever opens it next says so.
    let _ = DirBuilder::new().recursive(true).mode(0o700).create(&**config.state_directory);
    // Hosts of modules are confined, too, and remember refused PINs there.
    if let Some(folder) = config.guard_folder() {
        let made = DirBuilder::new().mode(0o700).create(&folder).is_ok();
        // By `check`, which root may run for a daemon that is somebody else.
        if let (true, Ok(above)) = (made, fs::metadata(&**config.state_directory)) {
            let _ = chown(&folder, Some(above.uid()), Some(above.gid()));
        }
    }
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

/// Tries everything in a process of its own, and says what came of it and where that is logged.
pub(crate) fn probe(config: &Config, file: &ConfigFile, output: Output) -> ExitCode {
    let folders = config.folders(&file.config);
    let mut held = true;
    let mut lines = Vec::new();
    for attempt in Attempt::ALL {
        // What the configuration asks for is no attempt.
        let Some(must) = attempt.must(&folders) else { continue };
        let (outcome, logged) = match try_apart(attempt, must, file) {
            Ok((ended, logged)) => (Attempt::outcome(must, &ended), logged),
            Err(error) => {
                eprintln!("casemate-kms: {error}");
                return ExitCode::FAILURE;
            }
        };
        held &= outcome.held;
        lines.push((attempt, must, outcome, logged));
    }
    match output {
        Output::Json => {
            let attempts: Vec<_> = lines
                .iter()
                .map(|(attempt, must, outcome, logged)| {
                    let must = match must {
                        Must::End => "end the process",
                        Must::Fail => "fail",
                    };
                    serde_json::json!({
                        "attempt": attempt.word(), "must": must, "held": outcome.held, "outcome": outcome.detail,
                        "logged": logged,
                    })
                })
                .collect();
            tell!("{}", serde_json::json!({"attempts": attempts, "held": held}));
        }
        Output::Table => {
            for (attempt, _, outcome, logged) in &lines {
                let verdict = if outcome.held { "ok  " } else { "FAIL" };
                tell!("{verdict}  {}: {}; {logged}", attempt.word(), outcome.detail);
            }
        }
    }
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn try_apart(attempt: Attempt, must: Must, file: &ConfigFile) -> io::Result<(Ended, String)> {
    let log = KernelLog::from_now();
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["probe", "--attempt", attempt.word(), "--config"]).arg(&file.config);
    if file.no_confinement {
        command.arg("--no-confinement");
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let pid = child.id();
    let ended = child.wait_with_output()?;
    let logged = match log {
        Ok(log) => logged(log, pid, must),
        Err(error) => format!("the kernel's log can't be read: {error}"),
    };
    Ok((ended, logged))
}

/// Where it is logged that process `pid` was refused something. The kernel writes when it has time for it.
fn logged(mut log: KernelLog, pid: u32, must: Must) -> String {
    let looks = match must {
        Must::End => 100,
        Must::Fail => 10,
    };
    for _ in 0..looks {
        if let Some(record) = log.refusal_of(pid) {
            return format!("in the kernel's log, type {}", record.number());
        }
        sleep(BETWEEN_LOOKS);
    }
    "not in the kernel's log".into()
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
