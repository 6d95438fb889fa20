//! The way back: what a real kube-apiserver wrote, opened by `casemate recover` from a snapshot and keys alone, and compared
//! with what the lab wrote.

mod asked;
mod folder;
mod kine;
mod kms_v1;
mod lost;
mod page;
mod providers;
mod target;
mod vectors;
mod written;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use casemate_lab::{Encryption, Lab, Plugin, plugin::product};
use serde_json::Value;

/// The resources that are encrypted.
const RESOURCES: &str = "secrets, configmaps, things.recover.example";

/// Providers in this order, which all read; `ours` and `peer` are plugins.
fn encryption(providers: &[&str], plugin: Option<&Plugin<'_>>) -> Encryption {
    let entries: String = providers
        .iter()
        .map(|provider| match *provider {
            "identity" => "  - identity: {}\n".to_owned(),
            "ours" => {
                let endpoint = format!("unix://{}", plugin.unwrap().socket().display());
                format!("  - kms: {{apiVersion: v2, name: ours, endpoint: '{endpoint}', timeout: 3s}}\n")
            }
            local => format!(
                "  - {local}: {{keys: [{{name: key-of-{local}, secret: {}}}]}}\n",
                STANDARD.encode([local.len() as u8; 32])
            ),
        })
        .collect();
    Encryption::Verbatim(format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: [{RESOURCES}]\n  providers:\n{entries}"
    ))
}

/// A run of the program: exit code, standard output, standard error.
struct Run {
    code: i32,
    out: String,
    said: String,
}

impl Run {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}{}", self.out, self.said))
    }

    #[track_caller]
    fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}{}", self.out, self.said);
        self
    }
}

/// `casemate recover` with these words; a path stands for itself.
fn recover<'a>(words: impl IntoIterator<Item = &'a str>) -> Run {
    let mut command = Command::new(product("casemate").unwrap());
    let done = command.arg("recover").args(words).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Run { code: done.status.code().unwrap(), out: text(&done.stdout), said: text(&done.stderr) }
}

fn snapshot(lab: &Lab, name: &str) -> PathBuf {
    let path = lab.dir().join(name);
    lab.etcd().snapshot(&path).unwrap();
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A recovery identity, and what the configuration of casemate-kms is to have.
fn identity(file: &Path) -> Value {
    let made = casemate_lab::plugin::casemate_json(&["recovery", "new", "--out", text(file)]).unwrap();
    made["configuration"]["recoveryRecipients"].clone()
}

/// Each file below `folder`, by its path there.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(text(path.strip_prefix(folder).unwrap()).to_owned()),
            }
        }
    }
    found.sort();
    found
}
