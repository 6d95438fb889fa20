//! What `casemate census` says of the demo's etcd: the proof of each step.
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::plugin::product;
use crate::{Lab, cache_dir, process};

/// What the lab's EncryptionConfiguration encrypts.
const RESOURCES: [&str; 2] = ["secrets", "configmaps"];
/// What the demo wants of its cluster at the end.
const POLICY: &str = "apiVersion: casemate.dev/v1alpha1\nkind: CensusPolicy\nrules:\n- resources: [secrets, configmaps]\n  \
                      allow: [kms:v2:casemate]\n  maxKeyAge: 90d\n";

/// A snapshot of etcd, and what the census says of its Secrets and ConfigMaps.
pub(super) struct Census {
    file: PathBuf,
    revision: u64,
    by_key_id: BTreeMap<String, u64>,
    plaintext: u64,
    other: u64,
}

/// Whether a key may go, and what holds it back.
pub(super) struct MayGo {
    pub(super) verdict: String,
    pub(super) objects: u64,
    pub(super) old_revisions: u64,
}

impl Census {
    /// Takes a snapshot of that name, and its census.
    pub(super) fn take(lab: &Lab, name: &str) -> anyhow::Result<Self> {
        let file = lab.dir().join(format!("{name}.db"));
        lab.etcd().snapshot(&file)?;
        let answer = census(&["snapshot", text(&file)?])?;
        let survey = &answer["files"][0]["survey"];
        let revision = survey["revision"].as_u64().context("the census names no revision")?;
        let mut census = Self { file, revision, by_key_id: BTreeMap::new(), plaintext: 0, other: 0 };
        for group in survey["groups"].as_array().context("the census has no groups")? {
            let live = number(&group["live"]["values"])?;
            if live == 0 || !RESOURCES.iter().any(|resource| group["resource"]["name"] == *resource) {
                continue;
            }
            let encryption = &group["encryption"];
            match (encryption["kind"].as_str().unwrap_or_default(), encryption["key_id"].as_str()) {
                (_, Some(id)) => *census.by_key_id.entry(id.to_owned()).or_default() += live,
                (kind, None) if kind.starts_with("plain") => census.plaintext += live,
                _ => census.other += live,
            }
        }
        Ok(census)
    }

    /// Where the snapshot is.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// At which revision of etcd it was taken.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether all there is is under this key id, and something is.
    pub(super) fn all_under(&self, key_id: &str) -> bool {
        self.plaintext == 0 && self.other == 0 && self.by_key_id.keys().eq([key_id])
    }
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at revision {}, {} Secrets and ConfigMaps in plaintext", self.revision, self.plaintext)?;
        for (key_id, count) in &self.by_key_id {
            write!(f, "; {count} under key id {key_id}")?;
        }
        if self.other > 0 {
            write!(f, "; {} otherwise", self.other)?;
        }
        Ok(())
    }
}

/// Whether the key with this id may go, as far as these files tell.
pub(super) fn may_go(key_id: &str, files: &[&Path]) -> anyhow::Result<MayGo> {
    let key = format!("key-id:{key_id}");
    let mut arguments = vec!["snapshot", "--may-go", &key];
    for file in files {
        arguments.push(text(file)?);
    }
    let answer = census(&arguments)?["may_go"].take();
    let sum = |standing: &str| -> anyhow::Result<u64> {
        let holders =
            answer["held_by"].as_array().context("the census does not say what holds a key back")?;
        holders.iter().map(|holder| number(&holder[standing]["values"])).sum()
    };
    Ok(MayGo {
        verdict: answer["verdict"].as_str().context("the census has no verdict")?.to_owned(),
        objects: sum("live")?,
        old_revisions: sum("past")?,
    })
}

/// Writes the page about a census to a place that outlives the run, with everything asked that is to be asked; says where,
/// and what stands at its top.
pub(super) fn page(
    lab: &Lab,
    census: &Census,
    configuration: &Path,
    old_key_id: &str,
) -> anyhow::Result<(PathBuf, String)> {
    let folder = cache_dir()?.join("demo");
    fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    let (page, policy) = (folder.join("census.html"), lab.dir().join("policy.yaml"));
    fs::write(&policy, POLICY).with_context(|| format!("can't write {}", policy.display()))?;
    let mut command = Command::new(product("casemate")?);
    command.args(["census", "snapshot"]).arg(&census.file).arg("--policy").arg(&policy);
    command.arg("--encryption-config").arg(configuration).arg("--may-go").arg(format!("key-id:{old_key_id}"));
    command.args(["--quiet", "--html"]).arg(&page);
    process::run_checked(&command, b"")?;
    let html = fs::read_to_string(&page).with_context(|| format!("can't read {}", page.display()))?;
    let headline = html.split_once("<h1>").and_then(|(_, rest)| rest.split_once("</h1>"));
    let (headline, _) = headline.context("the page has no headline")?;
    Ok((page, headline.to_owned()))
}

/// What the census answers, be it yes or no.
fn census(arguments: &[&str]) -> anyhow::Result<Value> {
    let mut command = Command::new(product("casemate")?);
    command.arg("census").args(arguments).args(["--output", "json"]);
    let done = process::run(&command, b"")?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(matches!(done.status.code(), Some(0 | 1)), "{}: {said}", process::as_typed(&command));
    serde_json::from_slice(&done.stdout).with_context(|| format!("{}: no JSON", process::as_typed(&command)))
}

fn number(value: &Value) -> anyhow::Result<u64> {
    value.as_u64().with_context(|| format!("the census has {value} for a number"))
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str().with_context(|| format!("{} is no text", path.display()))
}
