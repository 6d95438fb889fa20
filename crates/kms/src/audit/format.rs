//! One line of the audit log: JSON in ASCII, chained to the line before it. No I/O.
//!
//! ```text
//! {"seq":7,"time":"…","event":"call",…,"prev":"<hash of line 6>","hash":"<SHA-256 of this line without the hash>"}
//! ```
//! The hash is of the line's bytes with `,"hash":"…"` taken out. A checkpoint that is authenticated has
//! `,"mac":"…"` before it: HMAC-SHA256 of the line's bytes with both taken out.

use std::fmt::{self, Write as _};
use std::io;
use std::str::FromStr;
use std::sync::Arc;

use casemate_keys::names::sha256;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::ser::{CompactFormatter, Formatter};

use super::key::CheckpointKey;

/// The longest line that is read, its end included; those that are written are shorter, whatever a client sends.
pub const MAX_LINE_LEN: usize = 8 * 1024;
/// The most lines from one checkpoint to the next.
pub const CHECKPOINT_EVERY: u64 = 1000;
/// As much of a uid as is logged, in characters. kube-apiserver's have 36.
pub const MAX_UID: usize = 64;
/// As much of a key id as is logged, in characters. The longest of ours is shorter.
pub const MAX_KEY_ID: usize = 160;

const HASH: &str = ",\"hash\":\"";
const MAC: &str = ",\"mac\":\"";
const END: &str = "\"}";
const HEX_LEN: usize = 64;

/// The hash of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// What the first line of a chain is linked to.
    pub const NONE: Self = Self([0; 32]);

    /// Its first 13 hex digits, as a number that a 64-bit float holds.
    pub fn start(&self) -> u64 {
        self.0.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)) >> 12
    }
}

/// The last line of a log: who keeps it elsewhere can tell later whether the log up to here is still the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Head {
    /// Its number.
    pub seq: u64,
    /// Its hash.
    pub hash: Hash,
}

impl Head {
    /// Of a log without a line.
    pub const EMPTY: Self = Self { seq: 0, hash: Hash::NONE };
}

/// What a line tells.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Event {
    /// The program started, or found a log that it could not go on with.
    Start {
        /// Name and version.
        program: &'static str,
        /// Its process id.
        pid: u32,
        /// What was cut off: the rest of a line that a kill had interrupted.
        #[serde(skip_serializing_if = "Option::is_none")]
        cut: Option<Cut>,
        /// The file that was moved away because its last line is damaged; a new chain begins here.
        #[serde(skip_serializing_if = "Option::is_none")]
        damaged: Option<String>,
    },
    /// The first line of a new file.
    Rotation {
        /// Why.
        reason: Reason,
    },
    /// A call of KMS v2.
    Call(Call),
    /// Calls that are not in the log.
    Gap {
        /// How many.
        missed: u64,
        /// Of them, those that found the queue full.
        queue_full: u64,
        /// Of them, those that could not be written.
        not_written: u64,
    },
    /// Authenticates all lines before it, if there is a key.
    Checkpoint {
        /// Why.
        reason: Reason,
        /// Which key, as a short name of it.
        #[serde(skip_serializing_if = "Option::is_none")]
        mac_key: Option<String>,
    },
}

/// Why there is a checkpoint or a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// There were [`CHECKPOINT_EVERY`] lines since the last one.
    Count,
    /// There were lines, and some time went by.
    Time,
    /// The file is full.
    Size,
    /// Somebody moved the file away.
    Moved,
    /// Somebody made the file shorter or longer.
    Changed,
    /// Another key makes the checkpoints from here on.
    Key,
    /// The program starts.
    Start,
    /// The program stops.
    Stop,
}

/// The rest of a line, cut off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cut {
    /// How much.
    pub bytes: u64,
    /// The file beside the log in which it is now.
    pub file: String,
}

/// One call. Holds nothing secret, no ciphertext and no digest of either.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// When it ended.
    #[serde(skip)]
    pub time: Timestamp,
    /// Of which provider.
    #[serde(serialize_with = "as_text")]
    pub provider: Arc<str>,
    /// `Status`, `Encrypt`, `Decrypt`; `other` for what is no call of KMS v2.
    pub method: &'static str,
    /// What kube-apiserver calls the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<Shortened>,
    /// Who called, as the system tells.
    pub peer: PeerIds,
    /// Under which key id it was written or to be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<Shortened>,
    /// The name of a gRPC code.
    pub outcome: &'static str,
    /// How long it took.
    pub duration_us: u64,
    /// Whether it waited for a root key; only for Decrypt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_key_asked: Option<bool>,
}

/// Process and user at the other end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PeerIds {
    /// Its process id.
    pub pid: Option<i32>,
    /// Its user id.
    pub uid: Option<u32>,
}

/// Text that a client chose, bounded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortened(String);

impl Shortened {
    /// The first `most` characters of `text`; if that is not all, an ellipsis and the length say so.
    pub fn new(text: &str, most: usize) -> Self {
        Self(match text.char_indices().nth(most) {
            None => text.to_owned(),
            Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        })
    }
}

/// A line as it goes to the file, its end included, and its hash.
#[derive(Clone, Debug)]
pub struct Rendered {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// What the next line is linked to.
    pub head: Head,
}

/// Renders the line that follows `before`. A checkpoint is authenticated with `key`.
pub fn render(before: &Head, time: Timestamp, event: &Event, key: Option<&CheckpointKey>) -> Rendered {
    #[derive(Serialize)]
    struct Line<'a> {
        seq: u64,
        time: String,
        #[serde(flatten)]
        event: &'a Event,
        prev: Hash,
    }
    let seq = before.seq.saturating_add(1);
    let line = Line { seq, time: format!("{time:.3}"), event, prev: before.hash };
    let mut bytes = Vec::with_capacity(512);
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Ascii(CompactFormatter));
    line.serialize(&mut serializer).expect("numbers and text always render");
    if let (Event::Checkpoint { .. }, Some(key)) = (event, key) {
        let mac = key.mac(&bytes);
        close_with(&mut bytes, MAC, &mac);
    }
    let hash = Hash(sha256(&bytes));
    close_with(&mut bytes, HASH, &hash.0);
    bytes.push(b'\n');
    Rendered { bytes, head: Head { seq, hash } }
}

/// One more member at the end of an object.
fn close_with(object: &mut Vec<u8>, member: &str, value: &[u8; 32]) {
    object.pop();
    object.extend_from_slice(member.as_bytes());
    object.extend_from_slice(hex::encode(value).as_bytes());
    object.extend_from_slice(END.as_bytes());
}

/// A line that was read.
#[derive(Clone, Debug)]
pub struct Line {
    /// What matters of it to who checks the chain.
    pub fields: Fields,
    /// The hash that it states.
    pub stated: Hash,
    /// The hash that it has.
    pub computed: Hash,
    /// What authenticates it, with the bytes that it authenticates.
    pub mac: Option<([u8; 32], Vec<u8>)>,
}

/// Fields of a line, of whatever kind: those of kinds that a later version adds are passed over.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fields {
    /// Its number.
    pub seq: u64,
    /// When.
    #[serde(deserialize_with = "of_text")]
    pub time: Timestamp,
    /// Its kind.
    pub event: String,
    /// The hash of the line before.
    pub prev: Hash,
    /// Of a gap.
    pub missed: Option<u64>,
    /// Of a checkpoint.
    pub mac_key: Option<String>,
    /// Of a checkpoint or a new file.
    pub reason: Option<String>,
    /// Of a start.
    pub cut: Option<serde_json::Value>,
    /// Of a start.
    pub damaged: Option<String>,
}

/// Why some bytes are no line of an audit log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// It does not end as all lines do.
    #[error("it does not end with a hash")]
    NoHash,
    /// It is no JSON object with the fields that all lines have.
    #[error("{0}")]
    Fields(String),
}

impl Line {
    /// Reads a line without its end.
    ///
    /// # Errors
    /// [`Malformed`]. Whether the hash is right is not judged here.
    pub fn parse(line: &[u8]) -> Result<Self, Malformed> {
        let (hashed, stated) = open_before(line, HASH).ok_or(Malformed::NoHash)?;
        let fields: Fields = serde_json::from_slice(&hashed)
            .map_err(|error| Malformed::Fields(error.to_string().chars().take(200).collect()))?;
        let mac = open_before(&hashed, MAC).map(|(authenticated, mac)| (mac, authenticated));
        Ok(Self { fields, stated: Hash(stated), computed: Hash(sha256(&hashed)), mac })
    }

    /// What the next line should be linked to, if this one is as it was written.
    pub fn head(&self) -> Option<Head> {
        (self.stated == self.computed).then_some(Head { seq: self.fields.seq, hash: self.stated })
    }
}

/// The inverse of [`close_with`].
fn open_before(object: &[u8], member: &str) -> Option<(Vec<u8>, [u8; 32])> {
    let rest = object.strip_suffix(END.as_bytes())?;
    let (rest, value) = rest.split_at_checked(rest.len().checked_sub(HEX_LEN)?)?;
    let mut opened = rest.strip_suffix(member.as_bytes())?.to_vec();
    opened.push(b'}');
    Some((opened, of_hex(value)?))
}

/// 32 bytes in lower-case hex: one text for each value, or a changed byte could go unseen.
pub(super) fn of_hex(text: &[u8]) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let lower = !text.iter().any(u8::is_ascii_uppercase);
    (lower && hex::decode_to_slice(text, &mut bytes).is_ok()).then_some(bytes)
}

fn as_text<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

fn of_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

/// All in ASCII: whatever a client sends, a line is one line on every terminal.
struct Ascii(CompactFormatter);

impl Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, text: &str) -> io::Result<()> {
        let harmless = |c: char| c.is_ascii() && !c.is_ascii_control();
        if text.chars().all(harmless) {
            return writer.write_all(text.as_bytes());
        }
        let mut escaped = String::with_capacity(text.len() * 2);
        for character in text.chars() {
            if harmless(character) {
                escaped.push(character);
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Text takes everything.
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        }
        self.0.write_string_fragment(writer, &escaped)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        of_hex(text.as_bytes())
            .map(Self)
            .ok_or_else(|| serde::de::Error::custom("a hash is 64 digits of lower-case hex"))
    }
}

impl Serialize for Shortened {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, self.hash)
    }
}

impl FromStr for Head {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once(':').and_then(|(seq, hash)| {
            Some(Self { seq: seq.parse().ok()?, hash: Hash(of_hex(hash.as_bytes())?) })
        });
        parsed.ok_or_else(|| {
            "a head is SEQ:HASH, as /status and the journal show it: a number, a colon, 64 digits of lower-case hex"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(uid: &str) -> Call {
        Call {
            time: Timestamp::UNIX_EPOCH,
            provider: "casemate".into(),
            method: "Decrypt",
            uid: Some(Shortened::new(uid, MAX_UID)),
            peer: PeerIds { pid: Some(7), uid: Some(0) },
            key_id: Some(Shortened::new("prod:00", MAX_KEY_ID)),
            outcome: "OK",
            duration_us: 12,
            root_key_asked: Some(false),
        }
    }

    fn line_of(uid: &str) -> String {
        let rendered = render(&Head::EMPTY, Timestamp::UNIX_EPOCH, &Event::Call(call(uid)), None);
        String::from_utf8(rendered.bytes).unwrap()
    }

    /// The format is a contract: who reads it elsewhere relies on every byte.
    #[test]
    fn a_line_looks_like_this() {
        let zeros = "0".repeat(64);
        let body = format!(
            r#"{{"seq":1,"time":"1970-01-01T00:00:00.000Z","event":"call","provider":"casemate","method":"Decrypt","uid":"u-1","peer":{{"pid":7,"uid":0}},"keyId":"prod:00","outcome":"OK","durationUs":12,"rootKeyAsked":false,"prev":"{zeros}"}}"#
        );
        let hash = hex::encode(sha256(body.as_bytes()));
        assert_eq!(line_of("u-1"), format!("{},\"hash\":\"{hash}\"}}\n", &body[..body.len() - 1]));
    }

    #[test]
    fn what_a_client_sends_stays_one_short_line() {
        let megabyte = "u".repeat(1 << 20);
        let emoji = "\u{1f600}".repeat(1000);
        let hostile =
            [&megabyte, &emoji, "a\nb\r\n", "\x1b[31mred\x07", "\u{9b}31m\u{202e}\u{2028}\u{7f}\0", "\"\\"];
        for uid in hostile {
            let line = line_of(uid);
            assert!(line.len() < MAX_LINE_LEN, "{}", line.len());
            assert_eq!(line.find('\n'), Some(line.len() - 1));
            assert!(line.trim_end().bytes().all(|byte| (0x20..0x7f).contains(&byte)), "{line}");
            let parsed = Line::parse(line.trim_end().as_bytes()).unwrap();
            assert!(parsed.head().is_some());
        }
        let value: serde_json::Value = serde_json::from_str(&line_of("a\n\u{9b}\u{1f600}\"")).unwrap();
        assert_eq!(value["uid"], "a\n\u{9b}\u{1f600}\"");
        let value: serde_json::Value = serde_json::from_str(&line_of(&megabyte)).unwrap();
        assert_eq!(value["uid"], format!("{}… (1048576 bytes)", "u".repeat(MAX_UID)));
    }

    #[test]
    fn a_checkpoint_authenticates_itself_and_what_it_is_linked_to() {
        let key = CheckpointKey::of_text("07".repeat(32).as_bytes()).unwrap();
        let event = Event::Checkpoint { reason: Reason::Count, mac_key: Some(key.name()) };
        let rendered = render(&Head::EMPTY, Timestamp::UNIX_EPOCH, &event, Some(&key));
        let line = Line::parse(rendered.bytes.trim_ascii_end()).unwrap();
        assert_eq!(line.head(), Some(rendered.head));
        let (mac, authenticated) = line.mac.unwrap();
        assert!(key.verifies(&authenticated, &mac));
        assert!(authenticated.ends_with(format!(",\"prev\":\"{}\"}}", Hash::NONE).as_bytes()));
        assert!(!key.verifies(&authenticated[1..], &mac));
    }

    #[test]
    fn a_head_is_read_as_it_is_shown() {
        let head = Head { seq: 7, hash: Hash(sha256(b"x")) };
        assert_eq!(head.to_string().parse(), Ok(head));
        let upper = head.to_string().to_uppercase();
        for text in ["", "7", "7:", ":00", "-1:00", &upper, &format!("{head}0")] {
            assert!(text.parse::<Head>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_no_line_is_told() {
        assert_eq!(Line::parse(b"").unwrap_err(), Malformed::NoHash);
        assert_eq!(Line::parse(b"\"}").unwrap_err(), Malformed::NoHash);
        let no_object = format!("{{{HASH}{}{END}", "0".repeat(64));
        assert!(matches!(Line::parse(no_object.as_bytes()), Err(Malformed::Fields(_))));
        let upper = line_of("u").trim_end().replace("\"hash\":\"", "\"hash\":\"A");
        assert!(Line::parse(upper.as_bytes()).is_err());
    }
}
