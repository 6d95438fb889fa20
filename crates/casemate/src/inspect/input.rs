//! Where the bytes come from, and whether they are text of others.
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Serialize;
use zeroize::Zeroizing;

use crate::output::{Exit, Failure, Output};

/// Ten times what etcd accepts by default, so that hex text of it fits too.
const LARGEST: u64 = 16 * 1024 * 1024;

/// With or without `=` at the end.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// How the input spells the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Encoding {
    Raw,
    Hex,
    Base64,
    /// What `etcdctl get --write-out json` prints of one key.
    EtcdctlJson,
}

impl Encoding {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Raw => "as they are",
            Self::Hex => "from hex text",
            Self::Base64 => "from base64 text",
            Self::EtcdctlJson => "from the JSON of etcdctl",
        }
    }

    /// The bytes that `text` spells. White space in it doesn't count. Errors quote nothing.
    pub(crate) fn decode(self, text: &[u8]) -> Result<Zeroizing<Vec<u8>>, Failure> {
        let dense = || -> Zeroizing<Vec<u8>> {
            Zeroizing::new(text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect())
        };
        let decoded = match self {
            Self::Raw => return Ok(Zeroizing::new(text.to_vec())),
            Self::Hex => {
                let mut dense = dense();
                if dense.starts_with(br"\x") {
                    // Of `etcdctl --hex`: \x6b\x38…
                    let mut digits = Zeroizing::new(Vec::with_capacity(dense.len()));
                    digits.extend(dense.chunks(4).flat_map(|byte| byte.strip_prefix(br"\x").unwrap_or(byte)));
                    dense = digits;
                }
                hex::decode(dense.strip_prefix(b"0x").unwrap_or(&dense)).ok()
            }
            Self::Base64 => BASE64.decode(&*dense()).ok(),
            Self::EtcdctlJson => only_value(text).and_then(|value| BASE64.decode(value).ok()),
        };
        let flag = match self {
            Self::Hex => "--hex: the input is not hex text: an even number of 0-9, a-f, A-F and white space",
            _ => {
                "--base64: the input is not base64 text: the standard alphabet (RFC 4648, section 4) and white space"
            }
        };
        decoded.map(Zeroizing::new).ok_or_else(|| {
            Failure::new(Exit::Usage, &format_args!("{flag}; leave the flag out to have it found out"))
        })
    }
}

/// The value, still in base64, if there is exactly one.
fn only_value(json: &[u8]) -> Option<&str> {
    #[derive(serde::Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        kvs: [Pair<'a>; 1],
    }
    #[derive(serde::Deserialize)]
    struct Pair<'a> {
        value: &'a str,
    }
    serde_json::from_slice(json).ok().map(|Answer { kvs: [pair] }| pair.value)
}

/// All of a file, or of stdin.
pub(crate) fn read(path: Option<&Path>, output: &Output) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let (name, bytes) = match path {
        Some(path) => (path.display().to_string(), File::open(path).and_then(bounded)),
        None => {
            if io::stdin().is_terminal() {
                output.note("reading from the terminal; end with Ctrl-D");
            }
            ("stdin".to_owned(), bounded(io::stdin().lock()))
        }
    };
    let bytes = bytes.map_err(|error| {
        Failure::new(Exit::Usage, &format_args!("can't read {name}: {error}; give a file that can be read"))
    })?;
    if bytes.len() as u64 > LARGEST {
        let text = format_args!("{name} has more than {LARGEST} bytes; give one value of etcd, one file");
        return Err(Failure::new(Exit::Usage, &text));
    }
    Ok(bytes)
}

fn bounded(source: impl Read) -> io::Result<Zeroizing<Vec<u8>>> {
    // More than a key file has, so that no copy of one is left behind by growing.
    let mut bytes = Zeroizing::new(Vec::with_capacity(128 * 1024));
    source.take(LARGEST + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
