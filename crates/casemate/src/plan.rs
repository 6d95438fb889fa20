//! `casemate plan`: each step to another key, as if everything went well. It changes nothing.
//!
//! * `course`: the steps, by asking the rotation's core again and again of a cluster in which each works at once
//! * `diff`: two configurations, without their keys
//! * `answer`: what is told; `docs/reference/plan.schema.json` is the schema of the JSON
mod answer;
mod course;
mod diff;

use std::time::Duration;

use casemate_encryption_config::{Endpoint, ResourcePattern};
use casemate_rotation::{ServiceName, Wanted};
use clap::ValueEnum;

use crate::cluster::look::Places;
use crate::cluster::sight::Sight;
use crate::output::{Exit, Failure, Output, to_json, write_stdout};
use answer::Answer;
use course::{Wish, course};

pub(crate) const ABOUT: &str = "What would each step to another key be, and what would it write, take and strand?\n\n\
    Looks at the cluster as casemate status does, and then asks for one step after the other, as if each went well: the \
    EncryptionConfiguration of each API server as a unified diff, the objects to write anew with their bytes, the time that takes, what \
    etcd grows by, and how often the key service is called. The order is such that every object can be read by every API \
    server at each moment, and that a key leaves only when nothing needs it.\n\n\
    It changes nothing and makes no key. Of keys in files it shows a fingerprint. Files are shown in one fixed form: comments, \
    and the order of fields, are none of it.\n\n\
    Needs the same rights as casemate status.";

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  these steps lead there; or there is nothing to do
  1  they do not: the last one says what is in the way
  2  usage: the command line, or a file named on it, is wrong
  3  can't tell: something that it depends on could not be seen";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    places: Places,

    /// What is to be written with; if left out, what is now
    #[arg(long, value_name = "KIND")]
    to: Option<Kind>,

    /// Where the plugin to write with listens, such as unix:///run/kms.sock; with --to kms
    #[arg(long, value_name = "ENDPOINT", value_parser = endpoint)]
    kms_endpoint: Option<Endpoint>,

    /// For which resources; may be given several times, or with commas [default: those of the files]
    #[arg(long, value_name = "RESOURCE", value_delimiter = ',')]
    resources: Vec<ResourcePattern>,

    /// With another key of the same kind. A plugin's root key is rotated in its key service
    #[arg(long)]
    new_key: bool,

    /// How large etcd may grow: its --quota-backend-bytes
    #[arg(long, value_name = "BYTES", default_value_t = ETCD_QUOTA)]
    etcd_quota: u64,
}

/// etcd's own, where nothing is said.
const ETCD_QUOTA: u64 = 2 << 30;

/// What can be written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Plaintext
    Identity,
    /// AES in CBC mode, with a key in the file
    Aescbc,
    /// AES-GCM, with a key in the file
    Aesgcm,
    /// NaCl's secretbox, with a key in the file
    Secretbox,
    /// A plugin that speaks KMS v2
    Kms,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<Exit, Failure> {
    let wish = args.wish()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        Failure::new(Exit::Unknown, &format_args!("can't start: {error}; raise the limit of open files"))
    })?;
    let (looked, size) = runtime.block_on(async {
        let looked = args.places.look(output).await?;
        Ok::<_, Failure>((looked, args.places.etcd.size(output).await))
    })?;
    if looked.files.is_empty() {
        let what =
            "what API servers are started with has to be known: name their file with --encryption-config";
        return Err(Failure::new(Exit::Usage, &what));
    }
    // How long a key id has been given is waited for; it changes no step.
    let sight = Sight::of(looked, Duration::ZERO);
    let answer = Answer::of(&sight, course(&sight, &wish), size, args.etcd_quota);
    if output.is_quiet() {
        return Ok(answer.exit());
    }
    match output.is_json() {
        true => write_stdout(to_json(&answer)?.as_bytes())?,
        false => write_stdout(crate::output::printable(&answer.page()).as_bytes())?,
    }
    Ok(answer.exit())
}

impl Args {
    fn wish(&self) -> Result<Wish, Failure> {
        let usage = |what: &str| Err(Failure::new(Exit::Usage, &what));
        let wanted = match (self.to, &self.kms_endpoint) {
            (Some(Kind::Kms), None) => {
                return usage("--to kms needs --kms-endpoint, where the plugin listens");
            }
            (Some(Kind::Kms), Some(endpoint)) => {
                Some(Wanted::KmsV2(ServiceName(endpoint.as_str().to_owned())))
            }
            (_, Some(_)) => return usage("--kms-endpoint goes with --to kms"),
            (None, None) => None,
            (Some(Kind::Identity), None) => Some(Wanted::Identity),
            (Some(Kind::Aescbc), None) => Some(Wanted::AesCbc),
            (Some(Kind::Aesgcm), None) => Some(Wanted::AesGcm),
            (Some(Kind::Secretbox), None) => Some(Wanted::Secretbox),
        };
        if self.new_key && matches!(wanted, Some(Wanted::KmsV2(_) | Wanted::Identity)) {
            return usage(
                "--new-key is about a key in the file: rotate a plugin's root key in its key service",
            );
        }
        let resources = self.resources.iter().cloned().collect();
        Ok(Wish { wanted, endpoint: self.kms_endpoint.clone(), resources, new_key: self.new_key })
    }
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    Endpoint::parse(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
