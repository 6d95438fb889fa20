//! What OpenShift lays out for its static pod of etcd.
//!
//! `etcd.env` is made for the scripts that back up and restore. It names files as the pod sees them; the host has them
//! below [`CERTIFICATES`].
use std::path::{Path, PathBuf};

use super::{CLIENT_PORT, DetectError, Distribution, Found, below, checked, read, split};

pub(super) const CERTIFICATES: &str = "/etc/kubernetes/static-pod-resources/etcd-certs";
const IN_THE_POD: &str = "/etc/kubernetes/static-pod-certs";
/// kube-apiserver's `--etcd-prefix` there.
const PREFIX: &str = "/kubernetes.io";

pub(super) fn look(root: &Path) -> Result<Option<Found>, DetectError> {
    let folder = below(root, CERTIFICATES);
    if !folder.is_dir() {
        return Ok(None);
    }
    let source = folder.join("configmaps/etcd-scripts/etcd.env");
    let text = read(&source)?.unwrap_or_default();
    let on_the_host = |name: &str| -> Option<PathBuf> {
        let path = folder.join(variable(&text, name)?.strip_prefix(IN_THE_POD)?.trim_start_matches('/'));
        path.is_file().then_some(path)
    };
    let named = ["ETCDCTL_ENDPOINTS", "ALL_ETCD_ENDPOINTS"];
    let endpoints = named.iter().find_map(|name| variable(&text, name));
    let endpoints = endpoints.map_or_else(|| vec![CLIENT_PORT.to_owned()], split);
    let authorities = ["etcd-all-bundles/server-ca-bundle.crt", "etcd-serving-ca/ca-bundle.crt"];
    let cacert = on_the_host("ETCDCTL_CACERT").or_else(|| {
        authorities.iter().map(|file| folder.join("configmaps").join(file)).find(|path| path.is_file())
    });
    let (cert, key) = match (on_the_host("ETCDCTL_CERT"), on_the_host("ETCDCTL_KEY")) {
        (Some(cert), Some(key)) => (cert, key),
        _ => own(root, &folder)?,
    };
    let unclear = |what: &str| DetectError::Unclear { path: folder.clone(), what: what.to_owned() };
    Ok(Some(Found {
        distribution: Distribution::OpenShift,
        endpoints: checked(&source, endpoints)?,
        cacert: Some(cacert.ok_or_else(|| unclear("there is no bundle of etcd's authority in it"))?),
        cert: Some(cert),
        key: Some(key),
        prefix: PREFIX.to_owned(),
        source: if text.is_empty() { folder } else { source },
    }))
}

/// The certificate of this host among those of all hosts of the control plane.
fn own(root: &Path, folder: &Path) -> Result<(PathBuf, PathBuf), DetectError> {
    let folder = folder.join("secrets/etcd-all-certs");
    let unreadable = |error| DetectError::Unreadable { path: folder.clone(), error };
    let mut hosts = Vec::new();
    for entry in folder.read_dir().map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let host = name.to_str().and_then(|name| name.strip_prefix("etcd-peer-")?.strip_suffix(".crt"));
        hosts.extend(host.map(str::to_owned));
    }
    let this = read(&below(root, "/etc/hostname"))?.unwrap_or_default();
    let host = match &hosts[..] {
        [only] => only,
        several => several.iter().find(|host| **host == this.trim()).ok_or_else(|| DetectError::Unclear {
            path: folder.clone(),
            what: format!("none of etcd-peer-*.crt is of this host: there are {}", several.join(", ")),
        })?,
    };
    let at = |kind: &str| folder.join(format!("etcd-peer-{host}.{kind}"));
    Ok((at("crt"), at("key")))
}

/// The value of a variable of a shell script, where it is no more than text.
fn variable<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let line = line.trim();
        let (found, value) = line.strip_prefix("export ").unwrap_or(line).split_once('=')?;
        let value = value.trim().trim_matches(['"', '\'']);
        (found.trim() == name && !value.is_empty() && !value.contains('$')).then_some(value)
    })
}
