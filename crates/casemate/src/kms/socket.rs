//! Where a plugin listens, written as in kube-apiserver's EncryptionConfiguration.
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Most bytes of a socket's path or name: what `sockaddr_un` holds.
const LONGEST: usize = 107;

/// `unix:///path/to.sock`, or `unix:///@name` for one in the abstract name space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Socket {
    Abstract(String),
    Path(PathBuf),
}

/// Why a text names no socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SocketError {
    #[error("write `unix:///run/plugin.sock` (a path) or `unix:///@name` (an abstract socket)")]
    Form,
    #[error("the path or name has {0} bytes, more than the {LONGEST} that Linux allows")]
    Long(usize),
    #[error("the path or name is empty or holds a zero byte")]
    Name,
}

impl Socket {
    /// What the operating system calls it: abstract names start with a zero byte.
    pub(crate) fn address(&self) -> PathBuf {
        match self {
            Self::Abstract(name) => PathBuf::from(format!("\0{name}")),
            Self::Path(path) => path.clone(),
        }
    }
}

impl FromStr for Socket {
    type Err = SocketError;

    fn from_str(text: &str) -> Result<Self, SocketError> {
        let path = text.strip_prefix("unix://").ok_or(SocketError::Form)?;
        let rest = path.strip_prefix('/').ok_or(SocketError::Form)?;
        let (name, is_abstract) = match rest.strip_prefix('@') {
            Some(name) => (name, true),
            None => (rest, false),
        };
        if name.is_empty() || name.contains('\0') {
            return Err(SocketError::Name);
        }
        let used = if is_abstract { name.len() + 1 } else { path.len() };
        if used > LONGEST {
            return Err(SocketError::Long(used));
        }
        Ok(if is_abstract { Self::Abstract(name.to_owned()) } else { Self::Path(path.into()) })
    }
}

impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Abstract(name) => write!(f, "unix:///@{name}"),
            Self::Path(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_read_as_kube_apiserver_reads_them() {
        let path = |text: &str| Ok(Socket::Path(text.into()));
        let long = format!("/{}", "a".repeat(106));
        let cases = [
            ("unix:///run/kms.sock", path("/run/kms.sock")),
            ("unix:///@name", Ok(Socket::Abstract("name".into()))),
            ("unix:///run/@name", path("/run/@name")),
            (&format!("unix://{long}"), path(&long)),
            (&format!("unix://{long}a"), Err(SocketError::Long(108))),
            (&format!("unix:///@{}", "a".repeat(107)), Err(SocketError::Long(108))),
            ("/run/kms.sock", Err(SocketError::Form)),
            ("unix://@name", Err(SocketError::Form)),
            ("unix://host/run/kms.sock", Err(SocketError::Form)),
            ("tcp://127.0.0.1:1", Err(SocketError::Form)),
            ("", Err(SocketError::Form)),
            ("unix:///", Err(SocketError::Name)),
            ("unix:///@", Err(SocketError::Name)),
            ("unix:///a\0b", Err(SocketError::Name)),
        ];
        for (text, wanted) in cases {
            let found: Result<Socket, _> = text.parse();
            assert_eq!(found, wanted, "{text:?}");
            if let Ok(socket) = found {
                assert_eq!(socket.to_string(), text);
            }
        }
    }
}
