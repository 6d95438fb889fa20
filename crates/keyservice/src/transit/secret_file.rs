//! Tokens and secret ids in files.

use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use zeroize::Zeroizing;

use crate::http::open;
use crate::{Class, Failure};

/// The longest that is read.
const MAX: usize = 64 * 1024;

/// What a file holds.
pub(super) struct Secret {
    pub(super) text: Zeroizing<String>,
    /// A warning, if others than owner and group can get at it.
    pub(super) exposed: Option<String>,
}

/// Reads one secret, without the byte order mark before it and white space around it. Says nothing of its content.
pub(super) fn read(path: &Path) -> Result<Secret, Failure> {
    let refuse = |what: &str, remedy: &str| {
        let what = format!("credential file {} {what}", path.display());
        Failure::new(Class::Credential, what, remedy).unasked()
    };
    let deliver = "put the credential alone into this file, in one line";
    let attempt = || -> io::Result<(Zeroizing<Vec<u8>>, u32)> {
        let file = open(path)?;
        let mode = file.metadata()?.permissions().mode();
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX + 1));
        file.take(MAX as u64 + 1).read_to_end(&mut bytes)?;
        Ok((bytes, mode))
    };
    let (bytes, mode) = attempt().map_err(|error| {
        let remedy = "deliver the file, readable for the user that runs this program, or correct its path in the \
                      configuration";
        refuse(&format!("can't be read: {error}"), remedy)
    })?;
    if bytes.len() > MAX {
        return Err(refuse("is longer than 64 KiB", deliver));
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| refuse("is no text", deliver))?;
    let secret = text.trim_start_matches('\u{feff}').trim();
    if secret.is_empty() {
        return Err(refuse("is empty", deliver));
    }
    if !secret.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(refuse("holds more than one word of printable characters", deliver));
    }
    let exposed = (mode & 0o007 != 0).then(|| {
        format!("credential file {} has mode {:04o}, others can use it", path.display(), mode & 0o7777)
    });
    Ok(Secret { text: Zeroizing::new(secret.to_owned()), exposed })
}
