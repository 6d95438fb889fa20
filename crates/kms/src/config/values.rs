//! What single fields hold: each parses once, with an error that says what is accepted.

use std::borrow::Cow;
use std::fmt;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

use super::{API_VERSION, KIND};

macro_rules! constant {
    ($name:ident $text:expr) => {
        #[doc = concat!("The one accepted value.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name;

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                if text == $text { Ok(Self) } else { Err(format!("found {text:?}; accepted is {:?}", $text)) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($text)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                schemars::json_schema!({"const": $text})
            }
        }
    };
}
constant!(ApiVersion API_VERSION);
constant!(Kind KIND);

/// A name for people: DNS label, so that it is also a safe folder name.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
pub struct Name(#[schemars(regex(pattern = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"))] String);

impl Name {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let inner = text.bytes().all(|b| word(b) || b == b'-');
        let edges = text.bytes().next().is_some_and(word) && text.bytes().last().is_some_and(word);
        if inner && edges && text.len() <= 63 {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!(
                "found {text:?}; a name has 1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends"
            ))
        }
    }
}

/// A `unix://` endpoint: an absolute path, or `@name` for an abstract socket.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
pub struct Endpoint(
    #[schemars(regex(pattern = "^unix:///(@.+|[^@].*[^/])$"))]
    String,
);

impl Endpoint {
    /// The socket's file, unless it is abstract.
    pub fn path(&self) -> Option<&Path> {
        self.abstract_name().is_none().then(|| self.as_path())
    }

    /// The name, if it is abstract.
    pub fn abstract_name(&self) -> Option<&str> {
        self.0.strip_prefix("/@")
    }

    /// What a socket at `address` is: the same or another.
    pub fn is_at(&self, address: &SocketAddr) -> bool {
        match self.abstract_name() {
            Some(name) => address.as_abstract_name() == Some(name.as_bytes()),
            None => address.as_pathname() == Some(self.as_path()),
        }
    }

    /// For people: `/@name` if it is abstract.
    pub(crate) fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // sun_path of Linux has 108 bytes, one for the end, and the daemon binds in a folder beside it first.
        const LONGEST: usize = 80;
        // The same, where the first byte says that it is abstract.
        const LONGEST_NAME: usize = 107;
        let Some(path) = text.strip_prefix("unix://") else {
            return Err(format!("found {text:?}; an endpoint is unix:// and an absolute path"));
        };
        shows_as_it_is(path)?;
        if let Some(name) = path.strip_prefix("/@") {
            return match name.len() {
                1..=LONGEST_NAME => Ok(Self(path.to_owned())),
                _ => Err(format!(
                    "found {text:?}; the name of an abstract socket, after unix:///@, has 1 to {LONGEST_NAME} bytes"
                )),
            };
        }
        if !path.starts_with('/') || path.ends_with('/') {
            return Err(format!("found {text:?}; an endpoint is unix:// and the absolute path of a file"));
        }
        if path.len() > LONGEST {
            return Err(format!("the path has {} bytes; sockets have at most {LONGEST}", path.len()));
        }
        Ok(Self(path.to_owned()))
    }
}

/// Paths stand in logs and errors: none of them must look like a line of its own.
fn shows_as_it_is(path: &str) -> Result<(), String> {
    if path.chars().any(char::is_control) {
        return Err(format!("found {path:?}; a path has no line ends and other control characters"));
    }
    Ok(())
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0)
    }
}

/// File permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub u32);

impl Default for Mode {
    fn default() -> Self {
        Self(0o600)
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let octal = u32::from_str_radix(text, 8).ok().filter(|_| text.starts_with('0') && text.len() == 4);
        match octal {
            Some(mode) if mode & 0o007 == 0 => Ok(Self(mode)),
            Some(_) => Err(format!(
                "{text:?} lets everybody on the host encrypt and decrypt; the last digit must be 0, as in \"0660\""
            )),
            _ => Err(format!("found {text:?}; a mode is octal in quotes, such as \"0600\" or \"0660\"")),
        }
    }
}

impl JsonSchema for Mode {
    fn schema_name() -> Cow<'static, str> {
        "Mode".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({"type": "string", "pattern": "^0[0-7]{2}0$"})
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

/// The number of a user or group. Names are not accepted: what they mean is a matter of the host, and to look them up
/// would load the host's code into this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id(pub u32);

/// The highest; the number after it means "none" to the system.
const HIGHEST_ID: u32 = u32::MAX - 1;

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        bounded(deserializer, 0, HIGHEST_ID, "the number of a user or group (`id` prints it), not its name")
            .map(Self)
    }
}

impl JsonSchema for Id {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Id".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({"type": "integer", "minimum": 0, "maximum": HIGHEST_ID})
    }
}

/// How many connections are served at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxConnections(pub u32);

const MOST_CONNECTIONS: u32 = 65536;

impl Default for MaxConnections {
    fn default() -> Self {
        Self(crate::socket::MAX_CONNECTIONS)
    }
}

impl<'de> Deserialize<'de> for MaxConnections {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        bounded(deserializer, 1, MOST_CONNECTIONS, "a number of connections, from 1 to 65536").map(Self)
    }
}

impl JsonSchema for MaxConnections {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "MaxConnections".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({"type": "integer", "minimum": 1, "maximum": MOST_CONNECTIONS})
    }
}

fn bounded<'de, D: Deserializer<'de>>(
    deserializer: D,
    least: u32,
    most: u32,
    expected: &'static str,
) -> Result<u32, D::Error> {
    struct Number {
        least: u32,
        most: u32,
        expected: &'static str,
    }

    impl Visitor<'_> for Number {
        type Value = u32;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.expected)
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<u32, E> {
            let found = u32::try_from(number).ok().filter(|found| (self.least..=self.most).contains(found));
            found.ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
        }
    }
    deserializer.deserialize_any(Number { least, most, expected })
}

/// A moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
pub struct Until(#[schemars(with = "String")] pub jiff::Timestamp);

impl FromStr for Until {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| {
            format!("found {text:?}; a date is RFC 3339 with time and zone, such as 2027-01-01T00:00:00Z")
        })
    }
}

/// An absolute path.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
pub struct AbsolutePath(#[schemars(regex(pattern = "^/"))] pub PathBuf);

impl std::ops::Deref for AbsolutePath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl<'de> Deserialize<'de> for AbsolutePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl FromStr for AbsolutePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !Path::new(text).is_absolute() {
            return Err(format!("found {text:?}; the path must be absolute"));
        }
        shows_as_it_is(text)?;
        Ok(Self(text.into()))
    }
}
