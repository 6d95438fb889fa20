//! Where a plugin listens. An endpoint is a URL as Go's `net/url` reads it, which is what decides here.

use std::{ffi::OsString, fmt, net::Ipv6Addr, os::unix::ffi::OsStringExt as _, path::PathBuf};

/// Where a plugin listens: a URL of the scheme `unix`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    text: String,
    /// The URL's path, percent-decoded.
    path: Vec<u8>,
}

/// The socket behind an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Socket {
    /// Linux' abstract namespace; its name without the `@`.
    Abstract(Vec<u8>),
    /// A file. `unix://run/kms.sock`, with two slashes, is `/kms.sock`: `run` is taken for a host and ignored.
    Path(PathBuf),
}

/// Why an endpoint is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointFault {
    /// Nothing.
    #[error("it is empty")]
    Empty,
    /// A control character.
    #[error("it has a control character")]
    Control,
    /// No URL has such a start.
    #[error("its scheme can't be told")]
    NoScheme,
    /// Another way of reaching a plugin.
    #[error("its scheme is not `unix`, the only one that API servers call plugins by")]
    OtherScheme,
    /// Something between the second and the third slash.
    #[error(
        "what stands between the second and the third slash is no host; a socket's path needs three slashes"
    )]
    Host,
    /// A `%` that two hexadecimal digits don't follow.
    #[error("a `%` has to be followed by two hexadecimal digits; `%25` stands for itself")]
    Escape,
}

impl Endpoint {
    /// Reads an endpoint such as `unix:///run/kms.sock` or `unix:///@name`.
    pub fn parse(text: &str) -> Result<Self, EndpointFault> {
        if text.is_empty() {
            return Err(EndpointFault::Empty);
        }
        let (url, fragment) = text.split_once('#').unwrap_or((text, ""));
        if url.bytes().any(|byte| byte.is_ascii_control()) {
            return Err(EndpointFault::Control);
        }
        let (scheme, rest) = split_scheme(url)?;
        if !scheme.eq_ignore_ascii_case("unix") {
            return Err(EndpointFault::OtherScheme);
        }
        let rest = rest.split_once('?').map_or(rest, |(before, _)| before);
        let path = match rest.strip_prefix("//") {
            Some(rest) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                check_authority(authority)?;
                path
            }
            None if rest.starts_with('/') => rest,
            // Such as `unix:run/kms.sock`, which names no socket but is accepted.
            None => "",
        };
        let path = unescape(path, |_| true)?;
        unescape(fragment, |_| true)?;
        Ok(Self { text: text.to_owned(), path })
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// What API servers connect to.
    pub fn socket(&self) -> Socket {
        match self.path.strip_prefix(b"/@") {
            Some(name) => Socket::Abstract(name.to_vec()),
            None => Socket::Path(OsString::from_vec(self.path.clone()).into()),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({:?})", self.text)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn split_scheme(url: &str) -> Result<(&str, &str), EndpointFault> {
    let (scheme, rest) = url.split_once(':').ok_or(EndpointFault::NoScheme)?;
    let of_schemes = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let begins = scheme.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
    if begins && scheme.bytes().all(of_schemes) { Ok((scheme, rest)) } else { Err(EndpointFault::NoScheme) }
}

/// `USER:PASSWORD@HOST:PORT`, none of which means anything for a socket.
fn check_authority(authority: &str) -> Result<(), EndpointFault> {
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let of_users = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
    if !user.bytes().all(of_users) {
        return Err(EndpointFault::Host);
    }
    unescape(user, |_| true)?;

    let (name, port) = match host.strip_prefix('[') {
        Some(literal) => {
            let (address, port) = literal.rsplit_once(']').ok_or(EndpointFault::Host)?;
            check_ip_literal(address)?;
            ("", port)
        }
        None if host.contains('[') => return Err(EndpointFault::Host),
        None => host.split_at(host.rfind(':').unwrap_or(host.len())),
    };
    let digits = port.strip_prefix(':').unwrap_or_default();
    if !(port.is_empty() || port.starts_with(':') && digits.bytes().all(|byte| byte.is_ascii_digit())) {
        return Err(EndpointFault::Host);
    }
    unescape_host(name).map(drop)
}

fn check_ip_literal(literal: &str) -> Result<(), EndpointFault> {
    let (address, zone) = match literal.find("%25") {
        Some(at) => (&literal[..at], Some(&literal[at + 3..])),
        None => (literal, None),
    };
    let address = String::from_utf8(unescape_host(address)?).map_err(|_| EndpointFault::Host)?;
    let good_zone = match zone {
        Some(zone) => !zone.is_empty() && unescape_host(zone).is_ok(),
        None => true,
    };
    if good_zone && address.parse::<Ipv6Addr>().is_ok() { Ok(()) } else { Err(EndpointFault::Host) }
}

/// Only bytes beyond ASCII may be written as escapes in a host, and not every other one as it is.
fn unescape_host(host: &str) -> Result<Vec<u8>, EndpointFault> {
    let as_it_is = |byte: u8| !byte.is_ascii() || byte.is_ascii_alphanumeric();
    let of_hosts = |byte: u8| as_it_is(byte) || b"!\"$&'()*+,-.:;<=>[]_~%".contains(&byte);
    if !host.bytes().all(of_hosts) {
        return Err(EndpointFault::Host);
    }
    unescape(host, |byte| !byte.is_ascii() || byte == b'%')
}

fn unescape(text: &str, allowed: impl Fn(u8) -> bool) -> Result<Vec<u8>, EndpointFault> {
    let mut bytes = text.bytes();
    let mut unescaped = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            unescaped.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(EndpointFault::Escape) };
        let byte = (high * 16 + low) as u8;
        if !allowed(byte) {
            return Err(EndpointFault::Host);
        }
        unescaped.push(byte);
    }
    Ok(unescaped)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn sockets_are_told() {
        let path = |path: &str| Socket::Path(path.into());
        for (text, socket) in [
            ("unix:///run/kms.sock", path("/run/kms.sock")),
            ("UNIX:///run/kms.sock", path("/run/kms.sock")),
            ("unix:/run/kms.sock", path("/run/kms.sock")),
            ("unix:///run/a%20b%C3%BC.sock", path("/run/a bü.sock")),
            ("unix:///run/a b.sock?x=%zz#f", path("/run/a b.sock")),
            ("unix://run/kms.sock", path("/kms.sock")),
            ("unix://u:p@[fe80::1%25eth0]:1/kms.sock", path("/kms.sock")),
            ("unix:run/kms.sock", path("")),
            ("unix:", path("")),
            ("unix:///@name", Socket::Abstract(b"name".to_vec())),
            ("unix:////@name", path("//@name")),
        ] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!(endpoint.socket(), socket, "{text}");
            assert_eq!(endpoint.as_str(), text);
        }
    }

    #[test]
    fn others_are_refused() {
        for (text, fault) in [
            ("", EndpointFault::Empty),
            ("/run/kms.sock", EndpointFault::NoScheme),
            ("://run", EndpointFault::NoScheme),
            ("1unix:///run", EndpointFault::NoScheme),
            ("tcp://127.0.0.1:5000", EndpointFault::OtherScheme),
            ("unix:///run/\u{7f}", EndpointFault::Control),
            ("unix:///run/%2", EndpointFault::Escape),
            ("unix:///run#%zz", EndpointFault::Escape),
            ("unix://a b/kms.sock", EndpointFault::Host),
            ("unix://host:port/kms.sock", EndpointFault::Host),
            ("unix://%41/kms.sock", EndpointFault::Host),
            ("unix://[127.0.0.1]/kms.sock", EndpointFault::Host),
            ("unix://[::1/kms.sock", EndpointFault::Host),
        ] {
            assert_eq!(Endpoint::parse(text), Err(fault), "{text}");
        }
    }
}
