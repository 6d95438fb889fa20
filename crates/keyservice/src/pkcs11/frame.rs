//! What the daemon and a host say to each other: a length, a header that holds no secret, and bytes that may be one.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::sign::Signing;
use super::{CkaId, Wrapping, Writes};
use crate::selection::Candidate;
use crate::{Class, Failure};

/// No frame is longer.
pub(super) const MAX: usize = 16 * 1024;

/// One call.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) number: u64,
    pub(super) ask: Ask,
}

/// What is asked of a token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Which key writes.
    Observe { wrapping: Wrapping, keys: BTreeSet<CkaId>, writes: Writes },
    /// Which keys there are, of these.
    Versions { wrapping: Wrapping, keys: BTreeSet<CkaId> },
    /// The bytes are a payload.
    Wrap { wrapping: Wrapping, key: CkaId, associated: Vec<u8> },
    /// The bytes are a message.
    Sign { key: CkaId, signing: Signing },
    /// The bytes are a wrap. A session and a process may be spent on whether it or the token is at fault.
    Unwrap { wrapping: Wrapping, key: CkaId, associated: Vec<u8>, thorough: bool },
}

/// What came of a call.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) number: u64,
    pub(super) outcome: Outcome,
    /// What an operator may want to know, failure or not.
    pub(super) said: Vec<String>,
    /// Why this host is to be replaced by a new one.
    pub(super) spent: Option<String>,
    /// Whether it was needed to be thorough.
    pub(super) doubted: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Outcome {
    /// The bytes are the wrap, payload or signature.
    Done,
    /// This key writes, and these of those that were named are not there.
    Writes {
        key: CkaId,
        absent: BTreeSet<CkaId>,
    },
    /// These are there.
    Versions(Vec<Candidate>),
    Failed {
        class: Class,
        what: String,
        remedy: String,
        missing: Option<CkaId>,
    },
}

impl Outcome {
    pub(super) fn failed(failure: Failure, missing: Option<CkaId>) -> Self {
        let short = |text: String| text.chars().take(1500).collect();
        let Failure { class, what, remedy, .. } = failure;
        Self::Failed { class, what: short(what), remedy: short(remedy), missing }
    }

    /// Whether it is a finding about a key, not about a token that could not be asked.
    pub(super) fn says_no(&self) -> bool {
        matches!(self, Self::Failed { class, .. } if !class.could_not_be_asked())
    }

    /// Why nobody could be asked, as all calls are told until somebody can. What it said of one key is no answer to who asks
    /// for another.
    pub(super) fn why(&self) -> Option<Failure> {
        match self {
            Self::Failed { what, remedy, .. } => {
                Some(Failure::new(Class::Unreachable, what.clone(), remedy.clone()))
            }
            _ => None,
        }
    }
}

/// A whole frame, length and all.
pub(super) fn encode(header: &impl Serialize, bytes: &[u8]) -> io::Result<Zeroizing<Vec<u8>>> {
    let header = serde_json::to_vec(header)?;
    let length = 4 + header.len() + bytes.len();
    if length > MAX {
        return Err(io::Error::other(format!("a message of {length} bytes is too long: {MAX} at most")));
    }
    let mut frame = Zeroizing::new(Vec::with_capacity(4 + length));
    frame.extend_from_slice(&(length as u32).to_be_bytes());
    frame.extend_from_slice(&(header.len() as u32).to_be_bytes());
    frame.extend_from_slice(&header);
    frame.extend_from_slice(bytes);
    Ok(frame)
}

/// How long the frame is that begins so.
pub(super) fn length(prefix: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_be_bytes(prefix) as usize;
    if (4..=MAX).contains(&length) { Ok(length) } else { Err(malformed()) }
}

/// Header and bytes of a frame without its length.
pub(super) fn decode<H: DeserializeOwned>(frame: &[u8]) -> io::Result<(H, Zeroizing<Vec<u8>>)> {
    let (prefix, rest) = frame.split_first_chunk::<4>().ok_or_else(malformed)?;
    let header = u32::from_be_bytes(*prefix) as usize;
    let (header, bytes) = rest.split_at_checked(header).ok_or_else(malformed)?;
    Ok((serde_json::from_slice(header)?, Zeroizing::new(bytes.to_vec())))
}

/// The next frame without its length; `None` at the end.
pub(super) fn read(from: &mut impl Read) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let mut prefix = [0; 4];
    if let Err(error) = from.read_exact(&mut prefix) {
        return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
    }
    let mut frame = Zeroizing::new(vec![0; length(prefix)?]);
    from.read_exact(&mut frame)?;
    Ok(Some(frame))
}

pub(super) fn write(to: &mut impl Write, header: &impl Serialize, bytes: &[u8]) -> io::Result<()> {
    to.write_all(&encode(header, bytes)?)
}

/// The frames that either side would understand, one after the other, each as it would be written: up to the first that
/// neither does. What those who test this with any bytes call.
pub fn heard(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    fn again<H: Serialize + DeserializeOwned>(frame: &[u8]) -> io::Result<Vec<u8>> {
        let (header, bytes) = decode::<H>(frame)?;
        Ok(encode(&header, &bytes)?.to_vec())
    }
    let mut frames = Vec::new();
    while let Ok(Some(frame)) = read(&mut bytes) {
        let Ok(written) = again::<Request>(&frame).or_else(|_| again::<Answer>(&frame)) else { break };
        frames.push(written);
    }
    frames
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what is not a message")
}

#[cfg(test)]
mod tests;
