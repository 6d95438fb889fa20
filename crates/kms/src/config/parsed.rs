//! Text that is parsed while the file is, so that an error has a line.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;

/// A value that stands in the file as the text that its `FromStr` accepts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parsed<T>(pub T, Line);

/// From 1; 0 if it does not stand in the file.
type Line = u64;

impl<T> Parsed<T> {
    /// A value that does not stand in the file.
    pub(super) fn unwritten(value: T) -> Self {
        Self(value, 0)
    }

    /// The line of the file that it stands in.
    pub(super) fn line(&self) -> u64 {
        self.1
    }
}

/// Wherever they stand.
impl<T: PartialEq> PartialEq for Parsed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T: Eq> Eq for Parsed<T> {}

impl<T> Deref for Parsed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'de, T> Deserialize<'de> for Parsed<T>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Spanned::<String>::deserialize(deserializer)?;
        text.value.parse().map(|value| Self(value, text.referenced.line())).map_err(D::Error::custom)
    }
}

impl<T: JsonSchema> JsonSchema for Parsed<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

impl<T: fmt::Display> fmt::Display for Parsed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
