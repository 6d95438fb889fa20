//! `casemate census`, run as people run it.

use std::{path::Path, process::Command};

use casemate_lab::plugin::product;
use serde_json::Value;

/// A run of the program: its exit code and its JSON.
pub(super) fn census(arguments: &[&str]) -> (i32, Value) {
    let mut command = Command::new(product("casemate").unwrap());
    let done = command.arg("census").args(arguments).args(["--output", "json"]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let json = serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    (done.status.code().unwrap(), json)
}

/// How Secrets of a file are encrypted, with how many live and past values.
pub(super) fn secrets(file: &Path) -> Vec<(String, u64, u64)> {
    let (code, answer) = census(&["snapshot", text(file)]);
    assert_eq!(code, 0, "{answer:#}");
    let mut found: Vec<(String, u64, u64)> = answer["files"][0]["survey"]["groups"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|group| group["resource"]["name"] == "secrets")
        .map(|group| {
            let count = |standing: &str| group[standing]["values"].as_u64().unwrap();
            (group["encryption"]["kind"].as_str().unwrap().to_owned(), count("live"), count("past"))
        })
        .collect();
    found.sort();
    found
}

pub(super) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
