//! How to reach etcd from a host of its control plane, from the host's files alone.
//!
//! | distribution | what tells |
//! |---|---|
//! | kubeadm | flags of kube-apiserver in `/etc/kubernetes/manifests/kube-apiserver.yaml` |
//! | RKE2 | the same in `/var/lib/rancher/rke2/agent/pod-manifests/kube-apiserver.yaml` |
//! | k3s, embedded etcd | `/var/lib/rancher/k3s/server/db/etcd/config`, certificates in `server/tls/etcd` |
//! | OpenShift | `/etc/kubernetes/static-pod-resources/etcd-certs`: `etcd.env` of the scripts, and certificates |
//!
//! What kube-apiserver or the distribution's own tools are told is used as it is; nothing is guessed. Where several are
//! found, nobody is chosen.
mod manifest;
mod openshift;

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// A way to etcd that a host's files tell.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// Whose files they are.
    pub distribution: Distribution,
    /// The file or folder that told.
    pub source: PathBuf,
    /// Members.
    pub endpoints: Vec<String>,
    /// Certificate of the authority.
    pub cacert: Option<PathBuf>,
    /// Client certificate.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// Below which key the objects are.
    pub prefix: String,
}

/// Who set the host up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Distribution {
    /// kubeadm, and who lays files out as it does.
    Kubeadm,
    /// RKE2.
    Rke2,
    /// k3s with its embedded etcd.
    K3s,
    /// OpenShift.
    OpenShift,
}

/// Why no way to etcd is told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DetectError {
    /// Nothing that is known.
    #[error(
        "no etcd was detected: none of {} is there. Run it on a host of the control plane, as root, or give --endpoints",
        Paths(looked)
    )]
    Nothing {
        /// What was looked for.
        looked: Vec<PathBuf>,
    },
    /// More than one.
    #[error(
        "several were detected: {}. Say which one with --endpoints, --cacert, --cert and --key",
        Several(found)
    )]
    Several {
        /// All of them.
        found: Vec<Found>,
    },
    /// k3s that keeps its objects in SQLite.
    #[error(
        "{}: this k3s has no etcd, its objects are in this SQLite file: take the census of it, or of a copy, as of a file",
        path.display()
    )]
    Sqlite {
        /// The file.
        path: PathBuf,
    },
    /// A file that can't be read.
    #[error("{}: can't be read: {error}. It is root's: run as root", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file that says something else than it should.
    #[error("{}: {what}. Give --endpoints, --cacert, --cert and --key", path.display())]
    Unclear {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

type Look = fn(&Path) -> Result<Option<Found>, DetectError>;

const APISERVER_OF_KUBEADM: &str = "/etc/kubernetes/manifests/kube-apiserver.yaml";
const APISERVER_OF_RKE2: &str = "/var/lib/rancher/rke2/agent/pod-manifests/kube-apiserver.yaml";
const K3S: &str = "/var/lib/rancher/k3s/server";
const DEFAULT_PREFIX: &str = "/registry";
const CLIENT_PORT: &str = "https://127.0.0.1:2379";

/// The one way to etcd that the files below `root` tell. `/` is the host itself.
///
/// # Errors
/// If there is none, several, or one that is unclear.
pub fn detect(root: &Path) -> Result<Found, DetectError> {
    const ALL: [(Look, &str); 4] = [
        (kubeadm, APISERVER_OF_KUBEADM),
        (rke2, APISERVER_OF_RKE2),
        (k3s, K3S),
        (openshift::look, openshift::CERTIFICATES),
    ];
    let mut found = Vec::new();
    for (look, _) in ALL {
        found.extend(look(root)?);
    }
    match (found.pop(), found.is_empty()) {
        (Some(one), true) => {
            one.check()?;
            Ok(one)
        }
        (None, _) => {
            Err(DetectError::Nothing { looked: ALL.iter().map(|(_, at)| below(root, at)).collect() })
        }
        (Some(last), false) => {
            found.push(last);
            Err(DetectError::Several { found })
        }
    }
}

fn kubeadm(root: &Path) -> Result<Option<Found>, DetectError> {
    manifest::look(root, APISERVER_OF_KUBEADM, Distribution::Kubeadm)
}

fn rke2(root: &Path) -> Result<Option<Found>, DetectError> {
    manifest::look(root, APISERVER_OF_RKE2, Distribution::Rke2)
}

fn k3s(root: &Path) -> Result<Option<Found>, DetectError> {
    #[derive(Deserialize)]
    struct Config {
        #[serde(default, rename = "listen-client-urls")]
        listen_client_urls: String,
    }
    let at = |file: &str| below(root, &format!("{K3S}/{file}"));
    let (etcd, sqlite) = (at("db/etcd"), at("db/state.db"));
    if !etcd.is_dir() {
        return if sqlite.is_file() { Err(DetectError::Sqlite { path: sqlite }) } else { Ok(None) };
    }
    // Written at each start of k3s.
    let source = at("db/etcd/config");
    let endpoints = match read(&source)? {
        None => vec![CLIENT_PORT.to_owned()],
        Some(text) => {
            let config: Config = yaml(&source, &text)?;
            split(&config.listen_client_urls)
        }
    };
    Ok(Some(Found {
        distribution: Distribution::K3s,
        endpoints: checked(&source, endpoints)?,
        source,
        cacert: Some(at("tls/etcd/server-ca.crt")),
        cert: Some(at("tls/etcd/client.crt")),
        key: Some(at("tls/etcd/client.key")),
        prefix: DEFAULT_PREFIX.to_owned(),
    }))
}

impl Found {
    /// Whether the files that it names are there.
    fn check(&self) -> Result<(), DetectError> {
        for path in [&self.cacert, &self.cert, &self.key].into_iter().flatten() {
            File::open(path).map_err(|error| DetectError::Unreadable { path: path.clone(), error })?;
        }
        Ok(())
    }
}

/// A path of the host, below `root`.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// The text of a file; `None` if it is not there.
fn read(path: &Path) -> Result<Option<String>, DetectError> {
    const MOST: u64 = 1 << 20;
    let unreadable = |error| DetectError::Unreadable { path: path.to_owned(), error };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let mut text = String::new();
    file.take(MOST + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MOST {
        return Err(DetectError::Unclear {
            path: path.to_owned(),
            what: format!("is larger than {MOST} bytes"),
        });
    }
    Ok(Some(text))
}

fn yaml<'de, T: Deserialize<'de>>(path: &Path, text: &'de str) -> Result<T, DetectError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_anchors: 0,
            max_aliases: 0,
            max_depth: 32,
            max_documents: 1,
            max_nodes: 50_000,
        },
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| DetectError::Unclear { path: path.to_owned(), what: error.to_string() })
}

/// A list with commas.
fn split(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect()
}

/// Endpoints that can be asked.
fn checked(path: &Path, endpoints: Vec<String>) -> Result<Vec<String>, DetectError> {
    let unclear = |what| Err(DetectError::Unclear { path: path.to_owned(), what });
    match endpoints.iter().find(|one| !one.starts_with("https://") && !one.starts_with("http://")) {
        _ if endpoints.is_empty() => unclear("names no endpoint of etcd".to_owned()),
        Some(other) => unclear(format!("its store is {other}, which is no etcd on the network")),
        None => Ok(endpoints),
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kubeadm => "kubeadm",
            Self::Rke2 => "RKE2",
            Self::K3s => "k3s",
            Self::OpenShift => "OpenShift",
        })
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} by {}: --endpoints {}",
            self.distribution,
            self.source.display(),
            self.endpoints.join(",")
        )?;
        for (flag, path) in [("--cacert", &self.cacert), ("--cert", &self.cert), ("--key", &self.key)] {
            if let Some(path) = path {
                write!(f, " {flag} {}", path.display())?;
            }
        }
        write!(f, " --prefix {}", self.prefix)
    }
}

struct Paths<'a>(&'a [PathBuf]);

impl fmt::Display for Paths<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self.0.iter().map(|path| path.display().to_string()).collect();
        f.write_str(&shown.join(", "))
    }
}

struct Several<'a>(&'a [Found]);

impl fmt::Display for Several<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&shown.join("; "))
    }
}
