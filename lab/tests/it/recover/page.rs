//! The commands of `docs/how-to/recover.md`, each run as it stands there.

use std::{fs, path::Path, process::Command};

use casemate_lab::{Encryption, Lab, Plugin, plugin::product};

use super::{encryption, identity, snapshot};

/// Commands in the listings of the page.
fn commands() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/recover.md");
    let page = fs::read_to_string(page).unwrap();
    let listings = page.split("```sh\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    listings.flat_map(str::lines).map(str::to_owned).collect()
}

#[test]
fn every_command_of_the_page_does_what_it_says() {
    let lab = Lab::builder("recover page").apiservers(0).start().unwrap();
    let here = lab.dir().join("here");
    fs::create_dir(&here).unwrap();
    let recipients = identity(&here.join("identity"));
    let plugin = Plugin::start(&lab, "ours").unwrap();
    plugin.restart_with(|config| config["providers"][0]["recoveryRecipients"] = recipients).unwrap();
    let old = encryption(&["secretbox", "identity"], None);
    let server = lab.add_apiserver(old.clone()).unwrap();
    server.kubectl(&["create", "secret", "generic", "old", "--from-literal=word=old"]).unwrap();
    server.set_encryption(encryption(&["ours", "secretbox", "identity"], Some(&plugin))).unwrap();
    server.restart().unwrap();
    // What is shown alone opens with the identity alone.
    server.kubectl(&["create", "secret", "generic", "db-password", "--from-literal=word=recovered"]).unwrap();
    let secrets = server.kubectl(&["get", "secrets,configmaps", "-A", "-o", "json"]).unwrap();
    server.kubectl_with_input(&["replace", "-f", "-"], secrets.as_bytes()).unwrap();
    let file = snapshot(&lab, "last.db");
    for name in ["snapshot.db", "yesterday.db", "later.db"] {
        fs::copy(&file, here.join(name)).unwrap();
    }
    let Encryption::Verbatim(old) = old else { panic!("{old:?}") };
    fs::write(here.join("old.yaml"), &old).unwrap();
    fs::write(here.join("encryption.yaml"), &old).unwrap();
    // Two empty etcds.
    let fresh = ["clear", "anew"].map(|name| Lab::builder(name).apiservers(0).start().unwrap());
    let [clear, anew] = fresh.each_ref().map(|lab| lab.etcd().endpoint());

    let program = product("casemate").unwrap();
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let commands = commands();
    assert!(commands.len() >= 8, "{commands:?}");
    let mut shown = String::new();
    for command in &commands {
        let command = command
            .replace("/media/safe/", &format!("{}/", here.display()))
            .replace("/dev/shm/", &format!("{}/", here.display()))
            .replace("http://127.0.0.1:2379", &clear)
            .replace("http://127.0.0.1:2380", &anew);
        let done =
            Command::new("sh").args(["-c", &command]).current_dir(&here).env("PATH", &path).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        let told = String::from_utf8_lossy(&done.stdout);
        assert_eq!(done.status.code(), Some(0), "{command}: {told}{said}");
        if command.contains("--show-secrets") {
            shown = told.into_owned();
        }
    }
    let read = server.kubectl_with_input(
        &["create", "--dry-run=client", "-f", "-", "-o", "jsonpath={.metadata.name} {.data.word}"],
        shown.as_bytes(),
    );
    assert_eq!(read.unwrap(), "db-password cmVjb3ZlcmVk");
    // Both are clusters.
    for (lab, config) in fresh.iter().zip([Encryption::Identity, encryption(&["secretbox"], None)]) {
        let server = lab.add_apiserver(config).unwrap();
        let word = server.kubectl(&["get", "secret", "db-password", "-o", "jsonpath={.data.word}"]).unwrap();
        assert_eq!(word, "cmVjb3ZlcmVk");
    }
}
