//! What a value in etcd says of itself, without any configuration.

/// How a value was encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// By a local key, in CBC mode.
    AesCbc,
    /// By a local key, in GCM mode.
    AesGcm,
    /// By a local key, in NaCl's secretbox.
    Secretbox,
    /// Through a plugin that speaks KMS v1.
    KmsV1,
    /// Through a plugin that speaks KMS v2.
    KmsV2,
}

/// A value in etcd, as far as its first bytes tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored<'a> {
    /// Not encrypted by an API server.
    Plain,
    /// By a scheme that we know.
    Encrypted {
        /// Which one.
        scheme: Scheme,
        /// The local key or plugin that wrote it: up to the first colon. Names of plugins of KMS v2 have none; other
        /// names may, and then this is their beginning: only a configuration tells ([`Coverage::readers`]).
        ///
        /// [`Coverage::readers`]: crate::Coverage::readers
        name: &'a [u8],
        /// What follows the name's colon.
        payload: &'a [u8],
    },
    /// By a scheme that we know, cut off before its name ends.
    Cut(Scheme),
    /// It has the beginning that API servers reserve for what is encrypted, and then nothing that we know.
    Unknown,
}

/// With what everything begins that API servers encrypted; nothing else may.
pub(crate) const ENCRYPTED: &str = "k8s:enc:";

impl Scheme {
    /// All of them.
    pub const ALL: [Scheme; 5] =
        [Scheme::AesCbc, Scheme::AesGcm, Scheme::Secretbox, Scheme::KmsV1, Scheme::KmsV2];

    /// What stands before the name of the local key or plugin.
    pub fn prefix(self) -> &'static str {
        match self {
            Scheme::AesCbc => "k8s:enc:aescbc:v1:",
            Scheme::AesGcm => "k8s:enc:aesgcm:v1:",
            Scheme::Secretbox => "k8s:enc:secretbox:v1:",
            Scheme::KmsV1 => "k8s:enc:kms:v1:",
            Scheme::KmsV2 => "k8s:enc:kms:v2:",
        }
    }
}

impl<'a> Stored<'a> {
    /// Looks at the beginning of `value`.
    pub fn of(value: &'a [u8]) -> Self {
        if !value.starts_with(ENCRYPTED.as_bytes()) {
            return Stored::Plain;
        }
        for scheme in Scheme::ALL {
            let Some(rest) = value.strip_prefix(scheme.prefix().as_bytes()) else { continue };
            return match rest.iter().position(|byte| *byte == b':') {
                Some(end) => Stored::Encrypted { scheme, name: &rest[..end], payload: &rest[end + 1..] },
                None => Stored::Cut(scheme),
            };
        }
        Stored::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_tells() {
        let encrypted = |scheme, name: &'static str, payload: &'static str| Stored::Encrypted {
            scheme,
            name: name.as_bytes(),
            payload: payload.as_bytes(),
        };
        for (value, stored) in [
            ("", Stored::Plain),
            ("{\"kind\":\"Secret\"}", Stored::Plain),
            ("k8s\0\n\u{c}", Stored::Plain),
            ("k8s:enc", Stored::Plain),
            ("k8s:enc:", Stored::Unknown),
            ("k8s:enc:aescbc:v2:key1:x", Stored::Unknown),
            ("k8s:enc:aescbc:v1:key1:x", encrypted(Scheme::AesCbc, "key1", "x")),
            ("k8s:enc:aesgcm:v1:a:b:x", encrypted(Scheme::AesGcm, "a", "b:x")),
            ("k8s:enc:secretbox:v1::", encrypted(Scheme::Secretbox, "", "")),
            ("k8s:enc:kms:v1:ü [1]:x", encrypted(Scheme::KmsV1, "ü [1]", "x")),
            ("k8s:enc:kms:v2:casemate:\n\u{1}", encrypted(Scheme::KmsV2, "casemate", "\n\u{1}")),
            ("k8s:enc:kms:v2:", Stored::Cut(Scheme::KmsV2)),
            ("k8s:enc:secretbox:v1:key", Stored::Cut(Scheme::Secretbox)),
        ] {
            assert_eq!(Stored::of(value.as_bytes()), stored, "{value}");
        }
    }
}
