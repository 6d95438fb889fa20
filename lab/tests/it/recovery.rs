//! What is written through a real kube-apiserver can be recovered with an identity alone: by us, by the `age` program of
//! age's author, and by `rage`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, io::Write as _};

use casemate_keys::names::sha256;
use casemate_keys::{LocalKek, RECORD_ANNOTATION, Record, payload};
use casemate_lab::plugin::{casemate, casemate_json, product};
use casemate_lab::{Lab, Plugin, Tool, rage};
use casemate_recipients::Identity;
use casemate_wire::kms_v2::stored;
use serde_json::{Value, json};

/// `casemate recovery new`: what it printed as JSON.
fn new_identity(file: &Path) -> Value {
    casemate_json(&["recovery", "new", "--out", file.to_str().unwrap()]).unwrap()
}

/// As an admin would: into the configuration, and a restart.
fn configure(plugin: &Plugin<'_>, recipients: &Value) {
    let mut config: Value = serde_json::from_slice(&fs::read(plugin.config()).unwrap()).unwrap();
    config["providers"][0]["recoveryRecipients"] = recipients.clone();
    fs::write(plugin.config(), config.to_string()).unwrap();
    plugin.terminate().unwrap();
    plugin.start_again().unwrap();
}

/// Exit code and answer to the one value of `casemate recovery test`.
fn drill(identity: &Path, value: &Path) -> (Option<i32>, Value) {
    let mut command = Command::new(product("casemate").unwrap());
    command
        .args(["recovery", "test", "--output", "json", "--identity"])
        .arg(identity)
        .arg("--value")
        .arg(value);
    let done = command.output().unwrap();
    let answer: Value = serde_json::from_slice(&done.stdout).unwrap();
    (done.status.code(), answer["values"][0].clone())
}

/// Both programs that open what is wrapped for an age recipient.
fn programs() -> [PathBuf; 2] {
    [Tool::Age.path().unwrap(), rage().unwrap()]
}

fn age(program: &Path, args: &[&str], input: &[u8]) -> Result<Vec<u8>, String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let done = child.wait_with_output().unwrap();
    if done.status.success() {
        Ok(done.stdout)
    } else {
        Err(String::from_utf8_lossy(&done.stderr).into_owned())
    }
}

#[test]
fn an_identity_opens_a_secret_of_a_real_etcd_while_the_key_file_is_gone() {
    let lab = Lab::builder("recovery").apiservers(0).start().unwrap();
    let plugin = Plugin::start(&lab, "kms").unwrap();
    let endpoint = format!("unix://{}", plugin.socket().display());
    let [identity, seed, earlier, value] =
        ["identity", "seed", "earlier", "value"].map(|name| lab.dir().join(name));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    fs::write(&seed, [0x5e; 32]).unwrap();
    casemate(&["kms", "encrypt", "--socket", &endpoint, "--in", &text(&seed), "--out", &text(&earlier)])
        .unwrap();

    let before = plugin.key_id().unwrap();
    let made = new_identity(&identity);
    configure(&plugin, &made["configuration"]["recoveryRecipients"]);
    let after = plugin.key_id().unwrap();
    assert_ne!(after, before, "a recipient is part of what Status names");

    let server = lab.add_apiserver(plugin.encryption()).unwrap();
    server.kubectl(&["create", "secret", "generic", "demo", "--from-literal=word=casemate"]).unwrap();
    fs::write(&value, lab.etcd().get("/registry/secrets/default/demo").unwrap().unwrap()).unwrap();
    plugin.kill9();
    fs::remove_file(plugin.key_file()).unwrap();

    let (code, opened) = drill(&identity, &value);
    assert_eq!(code, Some(0), "{opened:#}");
    assert_eq!((&opened["outcome"], &opened["dek_source"]), (&json!("opens"), &json!("opens")));
    assert_eq!((&opened["key_id"], &opened["origin"]), (&json!(after), &json!("unproven")));
    // What was written before there was a recipient is not opened, and that is told.
    let (code, answer) = drill(&identity, &earlier);
    assert_eq!((code, &answer["outcome"]), (Some(1), &json!("not_for_this_identity")), "{answer:#}");
    assert_eq!(answer["key_id"], before);

    // The programs open the same wrap, and what is in it is the key.
    let bytes = fs::read(&value).unwrap();
    let object = stored::parse(&bytes).unwrap().object;
    let annotation = &object.annotations[RECORD_ANNOTATION];
    let record = Record::decode(annotation).unwrap();
    let (_, wrap) = record.recovery_wraps().next().unwrap();
    for program in programs() {
        let payload = age(&program, &["--decrypt", "--identity", &text(&identity)], wrap).unwrap();
        let kek: LocalKek = record.core().local_kek(&payload).unwrap();
        let seed = kek
            .open(record.core().policy.suite(), &sha256(annotation), &object.encrypted_dek_source)
            .unwrap();
        assert_eq!(seed.len(), 32);
    }
}

#[test]
fn age_and_rage_open_what_we_wrap_and_we_open_what_they_wrap() {
    let folder = tempfile::tempdir().unwrap();
    let (file, other) = (folder.path().join("identity"), folder.path().join("other"));
    let recipient = new_identity(&file)["recipient"].as_str().unwrap().to_owned();
    let second = new_identity(&other)["recipient"].as_str().unwrap().to_owned();
    let identity = Identity::parse(&fs::read(&file).unwrap()).unwrap();
    let payload = *payload::encode(&LocalKek::generate(), &[7; 32]);

    for program in programs() {
        let age = |args: &[&str], input: &[u8]| age(&program, args, input);
        // The library adds something random to each: no form of it must be in their way.
        for _ in 0..25 {
            let wrap = identity.recipient().wrap(&payload).unwrap();
            assert_eq!(age(&["-d", "-i", file.to_str().unwrap()], &wrap).unwrap(), payload);
            assert!(age(&["-d", "-i", other.to_str().unwrap()], &wrap).is_err());
        }
        assert_eq!(*identity.unwrap(&age(&["-r", &recipient], &payload).unwrap()).unwrap(), payload);
        let both = age(&["-r", &second, "-r", &recipient], &payload).unwrap();
        assert_eq!(*identity.unwrap(&both).unwrap(), payload);
        assert!(identity.unwrap(&age(&["-r", &second], &payload).unwrap()).is_err());
        assert!(identity.unwrap(&age(&["--armor", "-r", &recipient], &payload).unwrap()).is_err());
    }
}
