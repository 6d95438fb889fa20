//! How an object begins that an API server stored.
use casemate_encryption_config::GroupResource;

/// How many bytes of an object are looked at: API version and kind stand within them.
pub const LOOKAHEAD: usize = 4096;

/// In front of each protobuf.
const PROTOBUF: &[u8] = b"k8s\0";
/// The longest API version (a group and a version) and the longest kind.
const LONGEST: usize = 253 + 1 + 63;

/// What bytes are the beginning of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header<'a> {
    /// Of an object.
    Object(Object<'a>),
    /// Of an object, perhaps: more bytes would tell.
    Cut,
    /// Of none.
    None,
}

/// Whose beginning it is. Both are names of Kubernetes: nothing else is taken for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Object<'a> {
    api_version: &'a str,
    kind: &'a str,
}

/// Reads the beginning of an object.
pub(super) fn read(bytes: &[u8]) -> Header<'_> {
    let seen = &bytes[..bytes.len().min(LOOKAHEAD)];
    let mut reader = Reader { bytes: seen, at: 0 };
    let read = match seen.first() {
        Some(b'k') => protobuf(&mut reader),
        Some(b'{') => json(&mut reader),
        _ => Err(Broken::Other),
    };
    match read {
        Ok(object) => Header::Object(object),
        Err(Broken::Cut) if bytes.len() < LOOKAHEAD => Header::Cut,
        Err(_) => Header::None,
    }
}

/// Where the next object could begin.
pub(super) fn position(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| matches!(byte, b'k' | b'{'))
}

impl<'a> Header<'a> {
    pub(super) fn object(self) -> Option<Object<'a>> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }
}

impl<'a> Object<'a> {
    fn new(api_version: &'a [u8], kind: &'a [u8]) -> Option<Self> {
        let [api_version, kind] = [api_version, kind].map(|name| std::str::from_utf8(name).ok());
        let (api_version, kind) = (api_version?, kind?);
        let is_version =
            |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'.' | b'-' | b'/');
        let fits = |name: &str| !name.is_empty() && name.len() <= LONGEST;
        (fits(api_version)
            && fits(kind)
            && api_version.bytes().all(is_version)
            && kind.bytes().all(|c| c.is_ascii_alphanumeric())
            && kind.starts_with(|c: char| c.is_ascii_uppercase()))
        .then_some(Self { api_version, kind })
    }

    /// The resource whose kind it is: its plural in English, as Kubernetes' own are named, and as custom ones should be.
    pub(super) fn resource(self) -> GroupResource {
        let group = self.api_version.split_once('/').map_or("", |(group, _)| group);
        let kind = self.kind.to_ascii_lowercase();
        let ends = |ends: &[&str]| ends.iter().any(|end| kind.ends_with(end));
        let resource = match kind.strip_suffix('y') {
            _ if kind == "endpoints" => kind,
            Some(stem) if !ends(&["ay", "ey", "oy", "uy"]) => format!("{stem}ies"),
            _ if ends(&["s", "x", "ch", "sh"]) => format!("{kind}es"),
            _ => format!("{kind}s"),
        };
        GroupResource { group: group.to_owned(), resource }.stored()
    }
}

/// Why bytes are no beginning.
enum Broken {
    /// They end.
    Cut,
    /// They are something else.
    Other,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// `runtime.Unknown` of apimachinery: a message of API version and kind, then the object.
fn protobuf<'a>(reader: &mut Reader<'a>) -> Result<Object<'a>, Broken> {
    const FIRST: u8 = 0x0a;
    const SECOND: u8 = 0x12;

    reader.all_of(PROTOBUF)?;
    reader.all_of(&[FIRST])?;
    let length = reader.length()?;
    let end = reader.at + length;
    reader.all_of(&[FIRST])?;
    let length = reader.length()?;
    let api_version = reader.take(length)?;
    reader.all_of(&[SECOND])?;
    let length = reader.length()?;
    let kind = reader.take(length)?;
    if reader.at != end {
        return Err(Broken::Other);
    }
    reader.all_of(&[SECOND])?;
    Object::new(api_version, kind).ok_or(Broken::Other)
}

/// An object whose first field is one of both.
fn json<'a>(reader: &mut Reader<'a>) -> Result<Object<'a>, Broken> {
    const VERSION: &[u8] = b"apiVersion";
    const KIND: &[u8] = b"kind";

    reader.all_of(b"{")?;
    let (mut api_version, mut kind) = (None, None);
    loop {
        reader.space();
        let name = reader.text()?;
        let is_first = api_version.is_none() && kind.is_none();
        reader.space();
        reader.all_of(b":")?;
        reader.space();
        match name {
            VERSION if api_version.is_none() => api_version = Some(reader.text()?),
            KIND if kind.is_none() => kind = Some(reader.text()?),
            _ if is_first => return Err(Broken::Other),
            _ => reader.skip()?,
        }
        if let (Some(api_version), Some(kind)) = (api_version, kind) {
            return Object::new(api_version, kind).ok_or(Broken::Other);
        }
        reader.space();
        reader.all_of(b",")?;
    }
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Broken> {
        let taken = self.bytes.get(self.at..self.at + length).ok_or(Broken::Cut)?;
        self.at += length;
        Ok(taken)
    }

    fn one(&mut self) -> Result<u8, Broken> {
        self.take(1).map(|taken| taken[0])
    }

    fn all_of(&mut self, expected: &[u8]) -> Result<(), Broken> {
        expected.iter().try_for_each(|expected| match self.one()? {
            found if found == *expected => Ok(()),
            _ => Err(Broken::Other),
        })
    }

    /// A length of what fits into a header.
    fn length(&mut self) -> Result<usize, Broken> {
        let low = self.one()?;
        let high = if low & 0x80 == 0 { 0 } else { self.one()? };
        let length = usize::from(low & 0x7f) | usize::from(high) << 7;
        // The longest is that of both names with their lengths.
        if high & 0x80 == 0 && length <= 2 * (LONGEST + 3) { Ok(length) } else { Err(Broken::Other) }
    }

    fn space(&mut self) {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    /// A text, as it is written.
    fn text(&mut self) -> Result<&'a [u8], Broken> {
        self.all_of(b"\"")?;
        let start = self.at;
        loop {
            match self.one()? {
                b'"' => return Ok(&self.bytes[start..self.at - 1]),
                b'\\' => drop(self.one()?),
                ..0x20 => return Err(Broken::Other),
                _ => {}
            }
        }
    }

    /// A value of any form, without a look at it.
    fn skip(&mut self) -> Result<(), Broken> {
        let mut depth = 0_usize;
        loop {
            match self.bytes.get(self.at).ok_or(Broken::Cut)? {
                b'"' => drop(self.text()?),
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                // It ends before what stands around it.
                b',' | b'}' | b']' if depth == 0 => return Ok(()),
                _ => self.at += 1,
            }
        }
    }
}
