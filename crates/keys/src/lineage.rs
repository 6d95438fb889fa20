//! The identity of one version of one root key, never the way to it.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// RFC 3986 unreserved characters stand for themselves; everything else is percent-encoded.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A lineage: `kind:field/field/…`, fields percent-encoded in the one canonical way.
///
/// Which fields a kind has is its key service's matter; here it is a name that compares bytewise.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lineage(String);

impl Lineage {
    /// The lineage of `kind` with these fields, encoded.
    ///
    /// # Errors
    /// If `kind` is not a short lower-case word or there is no field.
    pub fn new<F: AsRef<[u8]>>(
        kind: &str,
        fields: impl IntoIterator<Item = F>,
    ) -> Result<Self, LineageError> {
        let fields: Vec<String> =
            fields.into_iter().map(|field| percent_encode(field.as_ref(), RESERVED).to_string()).collect();
        format!("{kind}:{}", fields.join("/")).parse()
    }

    /// The text that stands in records and key ids.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Which kind of key service, for example `file`.
    pub fn kind(&self) -> &str {
        self.split().0
    }

    /// The fields as they stand, still percent-encoded.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.split().1.split('/')
    }

    fn split(&self) -> (&str, &str) {
        self.0.split_once(':').expect("a parsed lineage has a kind")
    }
}

/// A text that is not a lineage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is not a lineage; it is a lower-case kind, ':' and fields joined by '/', \
     everything but letters, digits and -._~ percent-encoded in upper-case hex"
)]
pub struct LineageError {
    /// What was found, shortened.
    pub found: String,
}

impl FromStr for Lineage {
    type Err = LineageError;

    fn from_str(text: &str) -> Result<Self, LineageError> {
        let canonical = text.split_once(':').is_some_and(|(kind, fields)| {
            (1..=16).contains(&kind.len())
                && kind.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
                && !fields.is_empty()
                && fields.split('/').all(is_canonical_field)
        });
        if !canonical {
            let found = text.chars().take(200).collect();
            return Err(LineageError { found });
        }
        Ok(Self(text.to_owned()))
    }
}

fn is_canonical_field(field: &str) -> bool {
    let decoded: Vec<u8> = percent_encoding::percent_decode_str(field).collect();
    percent_encode(&decoded, RESERVED).to_string() == field
}

impl fmt::Display for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// What all versions of one root key have in common: a lineage up to its version, or a list of whole lineages.
///
/// `file:4f…/` covers `file:4f…/1/ab…` and `file:4f…/2/cd…`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LineagePrefix(Covered);

// Not told by a '/' at the end: a whole lineage may end in an empty field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Covered {
    Below(String),
    Whole(BTreeSet<Lineage>),
}

impl LineagePrefix {
    /// The prefix of `kind` with these leading fields. A last, partial field is not expressible:
    /// `file:4f/` never covers `file:4f4f/1`.
    ///
    /// # Errors
    /// As [`Lineage::new`].
    pub fn new<F: AsRef<[u8]>>(
        kind: &str,
        fields: impl IntoIterator<Item = F>,
    ) -> Result<Self, LineageError> {
        Lineage::new(kind, fields).map(|lineage| Self(Covered::Below(lineage.0 + "/")))
    }

    /// The prefix that covers exactly one lineage.
    pub fn exactly(lineage: &Lineage) -> Self {
        Self::one_of([lineage.clone()])
    }

    /// Covers exactly these lineages: where versions have nothing in common, the configuration lists them.
    pub fn one_of(lineages: impl IntoIterator<Item = Lineage>) -> Self {
        Self(Covered::Whole(lineages.into_iter().collect()))
    }

    /// The fields of `lineage` after this prefix, or `None` if it is of another key.
    pub fn rest<'a>(&self, lineage: &'a Lineage) -> Option<&'a str> {
        match &self.0 {
            Covered::Below(text) => lineage.0.strip_prefix(text),
            Covered::Whole(lineages) => lineages.contains(lineage).then_some(""),
        }
    }

    /// Whether a lineage can be of both. Two that do, at different times, are one root key: with a list of lineages that
    /// has become longer, for one.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Covered::Below(one), Covered::Below(other)) => one.starts_with(other) || other.starts_with(one),
            (Covered::Whole(lineages), _) => lineages.iter().any(|lineage| other.rest(lineage).is_some()),
            (_, Covered::Whole(lineages)) => lineages.iter().any(|lineage| self.rest(lineage).is_some()),
        }
    }
}

impl fmt::Display for LineagePrefix {
    /// What covered lineages begin with: `file:4f…/`; or all of them: `pkcs11:4f… or pkcs11:5a…`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Covered::Below(text) => f.write_str(text),
            Covered::Whole(lineages) => {
                for (index, lineage) in lineages.iter().enumerate() {
                    let separator = if index == 0 { "" } else { " or " };
                    write!(f, "{separator}{lineage}")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling() {
        let lineage = Lineage::new("transit", ["", "ops/transit", "k8s key", "3", "1764500000"]).unwrap();
        assert_eq!(lineage.as_str(), "transit:/ops%2Ftransit/k8s%20key/3/1764500000");
        assert_eq!(lineage.kind(), "transit");
        assert_eq!(lineage.fields().nth(3), Some("3"));
        for bad in [
            "", "file", "file:", ":a", "FILE:a", "file:a b", "file:%41", "file:%2f", "file:%2", "file:ä",
            "file:a:b",
        ] {
            assert!(bad.parse::<Lineage>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_prefix_ends_at_a_field() {
        let lineage: Lineage = "file:4f4f/1/ab".parse().unwrap();
        let prefix = LineagePrefix::new("file", ["4f4f"]).unwrap();
        assert_eq!((prefix.rest(&lineage), prefix.to_string()), (Some("1/ab"), "file:4f4f/".to_owned()));
        assert_eq!(LineagePrefix::new("file", ["4f"]).unwrap().rest(&lineage), None);
        assert_eq!(LineagePrefix::exactly(&lineage).rest(&lineage), Some(""));
        let longer: Lineage = "file:4f4f/1/abc".parse().unwrap();
        assert_eq!(LineagePrefix::exactly(&lineage).rest(&longer), None);
        let (open, inside) = ("exec:a/".parse().unwrap(), "exec:a/1".parse().unwrap());
        assert_eq!(LineagePrefix::exactly(&open).rest(&inside), None);
        assert_eq!(LineagePrefix::exactly(&open).rest(&open), Some(""));
    }

    #[test]
    fn a_list_covers_its_lineages_and_nothing_below_or_beside_them() {
        let lineage = |text: &str| text.parse::<Lineage>().unwrap();
        let listed = LineagePrefix::one_of([lineage("pkcs11:bb"), lineage("pkcs11:aa")]);
        assert_eq!(listed.to_string(), "pkcs11:aa or pkcs11:bb");
        assert_eq!(listed, LineagePrefix::one_of([lineage("pkcs11:aa"), lineage("pkcs11:bb")]));
        for (text, rest) in
            [("pkcs11:aa", Some("")), ("pkcs11:bb", Some("")), ("pkcs11:cc", None), ("pkcs11:aa/1", None)]
        {
            assert_eq!(listed.rest(&lineage(text)), rest, "{text}");
        }
    }
    #[test]
    fn what_may_have_a_lineage_in_common_overlaps() {
        let below = |id: &str| LineagePrefix::new("file", [id]).unwrap();
        let listed = |list: &str| LineagePrefix::one_of(list.split(' ').map(|text| text.parse().unwrap()));
        for (one, other, expected) in [
            (below("4f"), below("4f"), true),
            (below("4f"), LineagePrefix::new("file", ["4f", "1"]).unwrap(), true),
            (below("4f"), below("4f4f"), false),
            (below("4f"), LineagePrefix::new("exec", ["4f"]).unwrap(), false),
            (listed("pkcs11:aa"), listed("pkcs11:aa pkcs11:bb"), true),
            (listed("pkcs11:aa pkcs11:bb"), listed("pkcs11:bb pkcs11:cc"), true),
            (listed("pkcs11:aa"), listed("pkcs11:bb pkcs11:aaaa"), false),
            (below("4f"), listed("file:4e/1 file:4f/2"), true),
            (below("4f"), listed("file:4f file:4f4f/1"), false),
        ] {
            assert_eq!(one.overlaps(&other), expected, "{one} and {other}");
            assert_eq!(other.overlaps(&one), expected, "{other} and {one}");
        }
    }
}
