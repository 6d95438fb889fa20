//! `casemate recovery`: identities that open what is written when no key service does, and drills with them.
//!
//! * `drill`: which values a given identity opens, and why not
//! * `value`: what of a value matters to it
mod drill;
mod value;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use casemate_keys::crypto_module::FIPS_BUILD;
use casemate_kms::config::Name;
use casemate_recipients::Identity;
use clap::Subcommand;
use jiff::{Timestamp, Unit};
use serde::Serialize;

use crate::output::{Exit, Failure, Output};

/// `casemate recovery`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Make a recovery identity, and print the configuration that wraps every local KEK for it
    #[command(
        long_about = "Make a recovery identity, and print the configuration that wraps every local KEK for it.\n\n\
        The identity goes to a new file with mode 0600 and is never printed. Make it on a machine that is not the \
        cluster's, keep it offline, in two places; the age program opens with it too."
    )]
    New(NewArgs),
    /// Drill: does this identity open these values?
    #[command(long_about = drill::ABOUT, after_help = drill::EXIT_CODES)]
    Test(drill::Args),
}

#[derive(clap::Args)]
struct NewArgs {
    /// The file to make; one that is there is never replaced
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Its name in the configuration, for people: best where it is kept
    #[arg(long, value_name = "NAME", default_value = "safe")]
    name: Name,
}

/// Runs one verb.
pub(crate) fn run(args: Args, output: &Output) -> Result<Exit, Failure> {
    if FIPS_BUILD {
        return Err(Failure::new(
            Exit::Usage,
            &"age, which recovery needs, is not available in a FIPS build; use a casemate that was built without the \
              feature fips",
        ));
    }
    match args.verb {
        Verb::New(args) => new(args, output),
        Verb::Test(args) => drill::run(args, output),
    }
}

/// An identity by its public half.
#[derive(Serialize)]
struct Public {
    recipient: String,
    fingerprint: String,
}

impl Public {
    fn of(identity: &Identity) -> Self {
        let recipient = identity.recipient();
        Self { recipient: recipient.to_string(), fingerprint: recipient.fingerprint().to_string() }
    }
}

#[derive(Serialize)]
struct NewAnswer {
    file: PathBuf,
    #[serde(flatten)]
    public: Public,
    configuration: Configuration,
}

/// What `casemate-kms` is to be told.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Configuration {
    recovery_recipients: [Entry; 1],
}

#[derive(Serialize)]
struct Entry {
    name: String,
    age: String,
}

fn new(args: NewArgs, output: &Output) -> Result<Exit, Failure> {
    let identity = Identity::generate();
    let now = Timestamp::now();
    let created = now.round(Unit::Second).unwrap_or(now);
    write_new(&args.out, identity.render(created).as_bytes())?;

    let public = Public::of(&identity);
    let lines = [
        "# For the configuration of casemate-kms on every control plane node. It belongs below a provider, as deep as".to_owned(),
        "# its `rootKeys`, which is as it stands here:".to_owned(),
        "    recoveryRecipients:".to_owned(),
        format!("      - name: {}", args.name),
        format!("        age: {}", public.recipient),
    ];
    let entry = Entry { name: args.name.to_string(), age: public.recipient.clone() };
    let configuration = Configuration { recovery_recipients: [entry] };
    output.answer(&NewAnswer { file: args.out.clone(), public, configuration }, lines.map(|line| [line]))?;
    output.note(format_args!(
        "{0} is the secret half: whoever has it can read what is written from now on. Keep it offline, in two places, \
         and try it with `casemate recovery test --identity {0}` before you rely on it.",
        args.out.display()
    ));
    Ok(Exit::Yes)
}

/// Whole and durable, or not there.
fn write_new(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| {
            let remedy = match error.kind() {
                io::ErrorKind::AlreadyExists => "an identity is never overwritten, give another name",
                _ => "give a file that can be made",
            };
            Failure::new(Exit::Usage, &format_args!("can't make {}: {error}; {remedy}", path.display()))
        })?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let written =
        file.write_all(content).and_then(|()| file.sync_all()).and_then(|()| File::open(folder)?.sync_all());
    written.map_err(|error| {
        // Half an identity is none, and in the way of the next try.
        let _ = fs::remove_file(path);
        Failure::new(Exit::Unknown, &format_args!("can't write {}: {error}; make room there", path.display()))
    })
}
