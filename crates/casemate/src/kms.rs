//! `casemate kms`: any KMS v2 plugin, asked over its socket as kube-apiserver asks it.
pub(crate) mod admin;
pub(crate) mod client;
mod files;
mod probe;
mod refresh;
pub(crate) mod reply;
pub(crate) mod socket;

use std::path::PathBuf;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use casemate_wire::kms_v2::limits;
use clap::Subcommand;
use serde::Serialize;

use crate::output::{Exit, Failure, Output, to_json};
use client::Plugin;
use socket::Socket;

/// `casemate kms`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// What the plugin says of itself: exit code 0 only if it is well
    #[command(long_about = "What the plugin says of itself.\n\n\
        With --socket any KMS v2 plugin is asked as kube-apiserver asks it: exit code 0 only if kube-apiserver would \
        take it for healthy. With --admin a casemate-kms is asked at its admin socket (`admin` in its configuration): \
        what the next write uses and since when, what else is readable, what is wrong and what to do; exit code 0 only \
        if every provider writes.")]
    Status(StatusArgs),
    /// Encrypt a few bytes, and write the reply as JSON
    #[command(long_about = "Encrypt a few bytes, and write the reply as JSON.\n\n\
        What kube-apiserver has encrypted is a key or a seed: 16, 24, 32 or more bytes; casemate-kms refuses other \
        sizes. To try it: head -c 32 /dev/urandom | casemate kms encrypt --socket unix:///run/casemate-kms/kms.sock")]
    Encrypt(EncryptArgs),
    /// Decrypt what `encrypt` wrote
    Decrypt(DecryptArgs),
    /// Try everything that kube-apiserver relies on, wrong input too
    #[command(long_about = "Try everything that kube-apiserver relies on, wrong input too.\n\n\
        Calls Status, encrypts and decrypts 32 random bytes, compares key ids and checks each reply against the \
        limits that kube-apiserver enforces; then sends damaged ciphertexts, annotations and key ids, which must be \
        refused. Harmless for the plugin's keys and for what is stored; the refusals show up in its log and metrics.")]
    Probe(Target),
    /// Have a casemate-kms look at its root keys now
    #[command(long_about = refresh::ABOUT, after_help = refresh::EXIT_CODES)]
    Refresh(refresh::Args),
}

/// Which plugin, and how long to wait for it.
#[derive(clap::Args)]
struct Target {
    /// The plugin's socket: unix:///path, or unix:///@name for an abstract one
    #[arg(long, value_name = "URL")]
    socket: Socket,

    /// How long each call may take, such as 3s or 500ms
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = timeout)]
    timeout: Duration,
}

/// What is asked for its status.
#[derive(clap::Args)]
struct StatusArgs {
    /// The plugin's socket: unix:///path, or unix:///@name for an abstract one
    #[arg(long, value_name = "URL", required_unless_present = "admin")]
    socket: Option<Socket>,

    /// The admin socket of a casemate-kms: all that it tells, of all its providers
    #[arg(long, value_name = "URL", conflicts_with = "socket")]
    admin: Option<Socket>,

    /// How long each call may take, such as 3s or 500ms
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = timeout)]
    timeout: Duration,
}

#[derive(clap::Args)]
struct EncryptArgs {
    #[command(flatten)]
    target: Target,

    /// File with the bytes to encrypt; stdin if left out
    #[arg(long = "in", value_name = "FILE")]
    input: Option<PathBuf>,

    /// File for the reply; stdout if left out
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Replace the file if it is there
    #[arg(long)]
    yes: bool,
}

#[derive(clap::Args)]
struct DecryptArgs {
    #[command(flatten)]
    target: Target,

    /// File with the reply of `encrypt`; stdin if left out
    #[arg(long = "in", value_name = "FILE")]
    input: Option<PathBuf>,

    /// File for the decrypted bytes, made with mode 0600; `-` is stdout, but not a terminal
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Replace the file if it is there; show the bytes on a terminal
    #[arg(long)]
    yes: bool,
}

/// Runs one verb.
pub(crate) fn run(args: Args, output: &Output) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Failure::new(Exit::Unknown, &format_args!("can't start: {error}; raise the limit of open files"))
    })?;
    runtime.block_on(async {
        match args.verb {
            Verb::Status(StatusArgs { admin: Some(admin), timeout, .. }) => {
                admin::status(&admin, timeout, output).await
            }
            Verb::Status(StatusArgs { socket: Some(socket), timeout, .. }) => {
                status(Target { socket, timeout }, output).await
            }
            // The parser lets no such command line through.
            Verb::Status(StatusArgs { socket: None, admin: None, .. }) => {
                Err(Failure::new(Exit::Usage, &"name the plugin with --socket or --admin"))
            }
            Verb::Encrypt(args) => encrypt(args).await,
            Verb::Decrypt(args) => decrypt(args).await,
            Verb::Probe(target) => probe(target, output).await,
            Verb::Refresh(args) => refresh::run(args, output).await,
        }
    })
}

#[derive(Serialize)]
struct StatusAnswer {
    socket: String,
    version: String,
    healthz: String,
    key_id: String,
    key_id_hash: String,
    latency_ms: f64,
    problems: Vec<String>,
}

async fn status(target: Target, output: &Output) -> Result<Exit, Failure> {
    let socket = target.socket.to_string();
    let (reply, latency) = target.connect().await?.status().await?;
    let problems: Vec<String> = limits::check_status(&reply).iter().map(ToString::to_string).collect();
    let exit = if problems.is_empty() { Exit::Yes } else { Exit::No };
    let answer = StatusAnswer {
        socket,
        key_id_hash: key_id_hash(&reply.key_id),
        version: reply.version,
        healthz: reply.healthz,
        key_id: reply.key_id,
        latency_ms: (latency.as_secs_f64() * 1e6).round() / 1e3,
        problems,
    };
    let rows = [
        ("socket", answer.socket.clone()),
        ("version", answer.version.clone()),
        ("healthz", answer.healthz.clone()),
        ("key id", answer.key_id.clone()),
        ("key id hash", answer.key_id_hash.clone()),
        ("latency", format!("{} ms", answer.latency_ms)),
    ];
    let problems = answer.problems.iter().map(|problem| ("problem", problem.clone()));
    let rows = rows.into_iter().chain(problems).map(|(name, value)| [name.to_owned(), value]);
    output.answer(&answer, rows.collect::<Vec<_>>())?;
    Ok(exit)
}

async fn encrypt(args: EncryptArgs) -> Result<Exit, Failure> {
    let plaintext = files::read(args.input.as_deref())?;
    let mut plugin = args.target.connect().await?;
    let reply = plugin.encrypt(plaintext).await?;
    limits::check_encrypt_response(&reply).map_err(|violation| plugin.contract("Encrypt", violation))?;
    let text = to_json(&reply::Reply::from(&reply))?;
    files::write(args.out.as_deref(), args.yes, text.as_bytes())?;
    Ok(Exit::Yes)
}

async fn decrypt(args: DecryptArgs) -> Result<Exit, Failure> {
    let out = (args.out.as_os_str() != "-").then_some(args.out.as_path());
    if out.is_none() && !args.yes {
        files::refuse_terminal()?;
    }
    let stored = reply::parse(&files::read(args.input.as_deref())?)
        .map_err(|error| Failure::new(Exit::Usage, &error))?;
    let reply = args.target.connect().await?.decrypt(stored).await?;
    files::write(out, args.yes, &reply.plaintext)?;
    Ok(Exit::Yes)
}

async fn probe(target: Target, output: &Output) -> Result<Exit, Failure> {
    let mut plugin = target.connect().await?;
    let report = probe::run(&mut plugin).await?;
    output.answer(&report, report.rows())?;
    Ok(report.exit())
}

impl Target {
    async fn connect(self) -> Result<Plugin, Failure> {
        Ok(Plugin::connect(self.socket, self.timeout).await?)
    }
}

/// A key id as kube-apiserver's metrics and logs name it.
pub(crate) fn key_id_hash(key_id: &str) -> String {
    format!("sha256:{}", hex::encode(digest(&SHA256, key_id.as_bytes())))
}

pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    let accepted = "write a time above zero with its unit, such as 3s or 500ms";
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| accepted.to_owned())?;
    Duration::try_from(parsed).ok().filter(|time| !time.is_zero()).ok_or_else(|| accepted.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts() {
        for (text, millis) in [("3s", 3000), ("500ms", 500), ("1m", 60_000), ("1m 30s", 90_000)] {
            assert_eq!(timeout(text), Ok(Duration::from_millis(millis)));
        }
        for text in ["", "0s", "3", "-1s", "soon"] {
            assert!(timeout(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn key_ids_are_hashed_as_in_kube_apiservers_metrics() {
        assert_eq!(
            key_id_hash("1"),
            "sha256:6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
        );
    }
}
