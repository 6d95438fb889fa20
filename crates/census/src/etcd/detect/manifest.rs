//! Flags of kube-apiserver in the manifest of its static pod.
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{DEFAULT_PREFIX, DetectError, Distribution, Found, below, checked, read, split, yaml};

#[derive(Deserialize)]
struct Pod {
    spec: Spec,
}

#[derive(Deserialize)]
struct Spec {
    containers: Vec<Container>,
}

#[derive(Deserialize)]
struct Container {
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    args: Vec<String>,
}

/// What the manifest at `path` says, if it is there.
pub(super) fn look(
    root: &Path,
    path: &str,
    distribution: Distribution,
) -> Result<Option<Found>, DetectError> {
    let source = below(root, path);
    let Some(text) = read(&source)? else { return Ok(None) };
    let pod: Pod = yaml(&source, &text)?;
    let words: Vec<String> = pod
        .spec
        .containers
        .into_iter()
        .flat_map(|container| container.command.into_iter().chain(container.args))
        .collect();
    let file = |name| flag(&words, name).map(|path| -> PathBuf { below(root, path) });
    let endpoints = flag(&words, "--etcd-servers").map(split).unwrap_or_default();
    Ok(Some(Found {
        distribution,
        endpoints: checked(&source, endpoints)?,
        cacert: file("--etcd-cafile"),
        cert: file("--etcd-certfile"),
        key: file("--etcd-keyfile"),
        prefix: flag(&words, "--etcd-prefix").map_or_else(|| DEFAULT_PREFIX.to_owned(), rooted),
        source,
    }))
}

/// The value of a flag, in one word with it or in the next. Of several the last counts, as for kube-apiserver.
fn flag<'a>(words: &'a [String], name: &str) -> Option<&'a str> {
    let at = words.iter().rposition(|word| {
        word.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })?;
    words[at].split_once('=').map(|(_, value)| value).or_else(|| words.get(at + 1).map(String::as_str))
}

/// kube-apiserver puts a `/` before a prefix without one.
fn rooted(prefix: &str) -> String {
    format!("/{}", prefix.trim_start_matches('/'))
}
