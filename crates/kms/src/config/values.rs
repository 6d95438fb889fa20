//! What single fields hold: each parses once, with an error that says what is accepted.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator};

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
            fn schema_name() -> std::borrow::Cow<'static, str> {
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

/// A `unix://` endpoint with an absolute path.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
pub struct Endpoint(
    #[schemars(regex(pattern = "^unix:///[^@].*[^/]$"))]
    String,
);

impl Endpoint {
    /// The socket's path.
    pub fn path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // sun_path of Linux has 108 bytes, one for the end, and the daemon binds in a folder beside it first.
        const LONGEST: usize = 80;
        let Some(path) = text.strip_prefix("unix://") else {
            return Err(format!("found {text:?}; an endpoint is unix:// and an absolute path"));
        };
        if path.starts_with("/@") {
            return Err(format!(
                "found {text:?}; abstract sockets are not served yet, use unix:// and an absolute path"
            ));
        }
        if !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
            return Err(format!("found {text:?}; an endpoint is unix:// and the absolute path of a file"));
        }
        if path.len() > LONGEST {
            return Err(format!("the path has {} bytes; sockets have at most {LONGEST}", path.len()));
        }
        Ok(Self(path.to_owned()))
    }
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
    fn schema_name() -> std::borrow::Cow<'static, str> {
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

impl FromStr for AbsolutePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if Path::new(text).is_absolute() {
            Ok(Self(text.into()))
        } else {
            Err(format!("found {text:?}; the path must be absolute"))
        }
    }
}
