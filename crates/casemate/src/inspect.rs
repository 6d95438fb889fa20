//! `casemate inspect`: what some bytes are, and which key they need. Never a secret, never a value.
//!
//! * `input`: where the bytes come from, and whether they are hex or base64 text
//! * `finding`: what is told of them, as JSON and as rows
//! * `recognise`: which kind of thing they are; its arms are in `etcd`, `sealed` and `text`
//! * `lineage`: a root key's name in words
//!
//! `docs/reference/inspect.md` describes the JSON.
mod etcd;
mod finding;
pub(crate) mod input;
mod lineage;
mod recognise;
mod sealed;
mod text;

use std::path::PathBuf;

use jiff::Timestamp;

use crate::output::{Exit, Failure, Output};
use finding::{Answer, Verdict};

/// What `casemate inspect --help` says.
pub(crate) const ABOUT: &str = "What some bytes are, and which key they need: never a secret.\n\n\
    Knows values as they stand in etcd (in the clear, or encrypted by any provider of kube-apiserver), the record and \
    the ciphertext of casemate-kms alone, what `casemate kms encrypt` writes, key files, age files and PEM. Hex and \
    base64 text and what etcdctl prints with --hex or --write-out json is found out. Shows names, sizes, times and digests; not the object, no key, no encrypted key.\n\n\
    With etcd at hand: etcdctl get --print-value-only /registry/secrets/default/demo | casemate inspect";

/// What its exit codes say.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  it is what the answer says, and whole
  1  it is damaged, or its parts don't belong together
  2  usage: the command line is wrong, or the file can't be read
  3  can't tell what it is";

/// `casemate inspect`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file to look at; stdin if left out or `-`
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// It is hex text
    #[arg(long, conflicts_with = "base64")]
    hex: bool,

    /// It is base64 text
    #[arg(long)]
    base64: bool,
}

/// Looks, and prints what was seen.
pub(crate) fn run(args: Args, output: &Output) -> Result<Exit, Failure> {
    let text = match (args.hex, args.base64) {
        (true, _) => Some(input::Encoding::Hex),
        (_, true) => Some(input::Encoding::Base64),
        _ => None,
    };
    let file = args.file.filter(|file| file.as_os_str() != "-");
    let bytes = input::read(file.as_deref(), output)?;
    let answer = look(&bytes, text, Timestamp::now())?;
    output.answer(&answer, answer.rows())?;
    Ok(match answer.verdict {
        Verdict::Recognised => Exit::Yes,
        Verdict::Faulty => Exit::No,
        Verdict::Unknown => Exit::Unknown,
    })
}

/// What `bytes` are, pure. Without an encoding they are taken as they are, and if that is nothing known, as text
/// of one.
fn look(bytes: &[u8], encoding: Option<input::Encoding>, now: Timestamp) -> Result<Answer, Failure> {
    if let Some(encoding) = encoding {
        let decoded = encoding.decode(bytes)?;
        return Ok(Answer::new(encoding, decoded.len(), recognise::recognise(&decoded, now)));
    }
    let raw = Answer::new(input::Encoding::Raw, bytes.len(), recognise::recognise(bytes, now));
    if raw.verdict != Verdict::Unknown {
        return Ok(raw);
    }
    let texts = [input::Encoding::Hex, input::Encoding::Base64, input::Encoding::EtcdctlJson];
    let decoded = texts.into_iter().filter_map(|encoding| {
        let decoded = encoding.decode(bytes).ok()?;
        Some(Answer::new(encoding, decoded.len(), recognise::recognise(&decoded, now)))
    });
    Ok(decoded.into_iter().find(|answer| answer.verdict != Verdict::Unknown).unwrap_or(raw))
}

#[cfg(test)]
mod tests;
