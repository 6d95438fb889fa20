//! Back to a file: the same bytes for the same configuration, whoever writes it.

use std::{
    fmt::{self, Write},
    time::Duration,
};

use base64::{display::Base64Display, engine::general_purpose::STANDARD};
use zeroize::Zeroizing;

use crate::{EncryptionConfiguration, Entry, KmsV1, KmsV2, LocalKey, Provider};

impl EncryptionConfiguration {
    /// The file: block-style YAML in one fixed form, every text quoted, every default spelled out.
    ///
    /// It is read back as an equal value if [`check`](Self::check) finds nothing. It holds keys: hence the wrapper.
    pub fn to_yaml(&self) -> Zeroizing<String> {
        // Measured first: a text that grows leaves keys behind where it was.
        let mut length = Length(0);
        let mut text = Zeroizing::new(String::new());
        // Neither can fail.
        let _ = self.render(&mut length);
        text.reserve_exact(length.0);
        let _ = self.render(&mut *text);
        text
    }

    fn render(&self, out: &mut impl Write) -> fmt::Result {
        out.write_str("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n")?;
        list(out, "", "resources", &self.entries, |out, Entry { resources, providers }| {
            list(out, "- ", "resources", resources, |out, pattern| {
                writeln!(out, "  - {}", Quoted(&pattern.to_string()))
            })?;
            list(out, "  ", "providers", providers, |out, provider| self::provider(out, provider))
        })
    }
}

/// A field with a list. An empty one is written too, so that no value is without a text.
fn list<W: Write, T>(
    out: &mut W,
    indent: &str,
    name: &str,
    items: &[T],
    mut each: impl FnMut(&mut W, &T) -> fmt::Result,
) -> fmt::Result {
    if items.is_empty() {
        return writeln!(out, "{indent}{name}: []");
    }
    writeln!(out, "{indent}{name}:")?;
    items.iter().try_for_each(|item| each(out, item))
}

fn provider(out: &mut impl Write, provider: &Provider) -> fmt::Result {
    let field = provider.field();
    match provider {
        Provider::Identity => writeln!(out, "  - {field}: {{}}"),
        Provider::AesCbc(keys) | Provider::AesGcm(keys) | Provider::Secretbox(keys) => {
            writeln!(out, "  - {field}:")?;
            list(out, "      ", "keys", keys, |out, LocalKey { name, secret }| {
                let secret = Base64Display::new(secret.expose(), &STANDARD);
                write!(out, "      - name: {}\n        secret: \"{secret}\"\n", Quoted(name))
            })
        }
        Provider::KmsV1(KmsV1 { name, endpoint, timeout, cache_size }) => {
            let (name, endpoint) = (Quoted(name), Quoted(endpoint.as_str()));
            write!(
                out,
                "  - {field}:\n      apiVersion: v1\n      name: {name}\n      endpoint: {endpoint}\n"
            )?;
            write!(out, "      cachesize: {cache_size}\n      timeout: {}\n", GoDuration(*timeout))
        }
        Provider::KmsV2(KmsV2 { name, endpoint, timeout }) => {
            let (name, endpoint, timeout) = (Quoted(name), Quoted(endpoint.as_str()), GoDuration(*timeout));
            write!(out, "  - {field}:\n      apiVersion: v2\n      name: {name}\n")?;
            write!(out, "      endpoint: {endpoint}\n      timeout: {timeout}\n")
        }
    }
}

/// A text in double quotes, in ASCII: YAML's readers differ in which other characters they let pass.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                ' '..='~' => f.write_char(character)?,
                _ => match u32::from(character) {
                    code @ ..=0xFFFF => write!(f, "\\u{code:04X}")?,
                    code => write!(f, "\\U{code:08X}")?,
                },
            }
        }
        f.write_char('"')
    }
}

/// In the biggest unit up to seconds that leaves no fraction.
struct GoDuration(Duration);

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.0.as_nanos();
        let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
        let exact = units.into_iter().find(|(unit, _)| nanoseconds.is_multiple_of(*unit));
        let (unit, name) = exact.unwrap_or((1, "ns"));
        write!(f, "{}{name}", nanoseconds / unit)
    }
}

/// Counts what would be written.
struct Length(usize);

impl Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{Endpoint, KeyBytes};

    #[test]
    fn the_form_is_fixed() {
        let endpoint = Endpoint::parse("unix:///@a \"b\"").unwrap();
        let key = |byte| KeyBytes::new(Zeroizing::new(vec![byte; 32]));
        let config = EncryptionConfiguration {
            entries: vec![
                Entry {
                    resources: vec!["secrets".parse().unwrap(), "*.apps".parse().unwrap()],
                    providers: vec![
                        Provider::KmsV2(KmsV2 {
                            name: "ü\u{1F512}\n".into(),
                            endpoint: endpoint.clone(),
                            timeout: Duration::from_millis(1500),
                        }),
                        Provider::Secretbox(vec![
                            LocalKey { name: "yes".into(), secret: key(0) },
                            LocalKey { name: "2".into(), secret: key(255) },
                        ]),
                        Provider::Identity,
                    ],
                },
                Entry {
                    resources: vec!["*.*".parse().unwrap()],
                    providers: vec![Provider::KmsV1(KmsV1 {
                        name: "old".into(),
                        endpoint,
                        timeout: Duration::from_secs(60),
                        cache_size: 1000,
                    })],
                },
            ],
        };
        let text = config.to_yaml();
        assert_eq!(
            text.as_str(),
            r#"apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources:
  - "secrets"
  - "*.apps"
  providers:
  - kms:
      apiVersion: v2
      name: "\u00FC\U0001F512\u000A"
      endpoint: "unix:///@a \"b\""
      timeout: 1500ms
  - secretbox:
      keys:
      - name: "yes"
        secret: "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
      - name: "2"
        secret: "//////////////////////////////////////////8="
  - identity: {}
- resources:
  - "*.*"
  providers:
  - kms:
      apiVersion: v1
      name: "old"
      endpoint: "unix:///@a \"b\""
      cachesize: 1000
      timeout: 60s
"#
        );
        assert_eq!(text.len(), text.capacity());
    }

    #[test]
    fn nothing_is_written_as_nothing() {
        let config = EncryptionConfiguration {
            entries: vec![Entry { resources: vec![], providers: vec![Provider::AesGcm(vec![])] }],
        };
        assert!(config.to_yaml().ends_with("- resources: []\n  providers:\n  - aesgcm:\n      keys: []\n"));
    }
}
