//! `casemate doctor` on a host whose plugin has a root key in a file, with faults planted one at a time.
#![allow(clippy::panic, clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use casemate_keys::crypto_module::FIPS_BUILD;
use serde_json::Value;

use crate::daemon::Host;
use crate::program::casemate;

/// Exit code, and what was found: id, evidence, remedy.
fn examined(host: &Host) -> (i32, Vec<(String, String, String)>) {
    examined_by(&host.config())
}

fn examined_by(config: &Path) -> (i32, Vec<(String, String, String)>) {
    let done = casemate("doctor --output json --config").arg(config).output().unwrap();
    let told = String::from_utf8(done.stderr).unwrap();
    let report: Value =
        serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {told}"));
    let text = |finding: &Value, field: &str| finding[field].as_str().unwrap().to_owned();
    let findings = report["findings"].as_array().unwrap().iter();
    let found = findings.map(|one| (text(one, "id"), text(one, "evidence"), text(one, "remedy")));
    (done.status.code().unwrap(), found.collect())
}

fn finds(host: &Host, id: &str, remedy: &str) {
    found_in(examined(host), id, remedy);
}

fn found_in((code, found): (i32, Vec<(String, String, String)>), id: &str, remedy: &str) {
    let of_id = found.iter().find(|(found, ..)| found == id);
    let (_, evidence, does) = of_id.unwrap_or_else(|| panic!("no {id} in {found:#?}"));
    assert!(code == 1 && !evidence.is_empty() && does.contains(remedy), "{id}: {found:#?}");
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A new recovery recipient.
fn recipient(host: &Host) -> String {
    let identity = host.file("identity.txt");
    let made = casemate("recovery new --output json --out").arg(&identity).output().unwrap();
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    fs::remove_file(identity).unwrap();
    made["recipient"].as_str().unwrap().to_owned()
}

/// A host that lacks nothing.
fn sound() -> Host {
    let host = Host::new();
    if FIPS_BUILD {
        return host;
    }
    let (one, two) = (recipient(&host), recipient(&host));
    let more = format!(
        "    recoveryRecipients:\n      - name: safe\n        age: {one}\n      - name: bank\n        age: {two}\n    rootKeys:"
    );
    host.change("    rootKeys:", &more);
    host
}

#[test]
fn a_healthy_host_is_met_with_silence_and_each_planted_fault_with_its_remedy() {
    let host = sound();
    let daemon = host.serve();
    let silent = casemate("doctor --config").arg(host.config()).output().unwrap();
    let told = String::from_utf8(silent.stdout).unwrap() + &String::from_utf8(silent.stderr).unwrap();
    assert_eq!((silent.status.code(), &*told), (Some(0), ""));
    let told = casemate("doctor --verbose --config").arg(host.config()).assert().code(0);
    let told = String::from_utf8(told.get_output().stdout.clone()).unwrap();
    assert!(told.contains("ok  key-refused"), "{told}");
    assert!(told.contains("go on for as long as it lasts"), "{told}");

    mode(&host.config(), 0o666);
    finds(&host, "file-writable", "chmod go-w");
    mode(&host.config(), 0o644);
    mode(&host.file("main.key"), 0o644);
    finds(&host, "secret-open", "chmod go-rwx");
    finds(&host, "key-credential", "only root or the user");
    mode(&host.file("main.key"), 0o600);
    mode(&host.file("state"), 0o777);
    finds(&host, "state-open", "chmod go-w");
    mode(&host.file("state"), 0o700);
    mode(&host.file("kms.sock"), 0o666);
    finds(&host, "socket-open", "chmod 0600");
    mode(&host.file("kms.sock"), 0o660);
    finds(&host, "socket-mode", "chmod 0600");
    mode(&host.file("kms.sock"), 0o600);
    mode(&host.file("state/casemate/ledger"), 0o666);
    finds(&host, "state-open", "state/casemate/ledger");
    mode(&host.file("state/casemate/ledger"), 0o600);
    // Whoever can put another socket there gets what is to be encrypted.
    mode(&host.file(""), 0o777);
    finds(&host, "folder-open", "chmod go-w");
    mode(&host.file(""), 0o755);

    let other = host.file("other.yaml");
    fs::write(&other, fs::read_to_string(host.config()).unwrap() + "# another text\n").unwrap();
    found_in(examined_by(&other), "configuration-differs", "--config names the file");
    fs::remove_file(other).unwrap();

    let ledger = host.file("state/casemate/ledger");
    let text = fs::read_to_string(&ledger).unwrap();
    fs::write(&ledger, text.clone() + "1 torn").unwrap();
    finds(&host, "ledger-damaged", "no older key file");
    fs::write(&ledger, &text).unwrap();
    let record = host.file("state/casemate/record");
    let bytes = fs::read(&record).unwrap();
    let mut changed = bytes.clone();
    changed[40] ^= 1;
    fs::write(&record, changed).unwrap();
    finds(&host, "record-damaged", "nothing is lost");
    fs::write(&record, &bytes).unwrap();

    // Outages, by their class.
    let (key, aside) = (host.file("main.key"), host.file("aside.key"));
    fs::rename(&key, &aside).unwrap();
    finds(&host, "key-unreachable", "deliver the key file");
    finds(&host, "file-missing", "deliver it to this node");
    fs::write(&key, "no key file\n").unwrap();
    mode(&key, 0o600);
    finds(&host, "key-corrupt", "");
    fs::rename(&aside, &key).unwrap();

    // The old file is put back after a rotation.
    let first = fs::read(&key).unwrap();
    // Until it is switched, which may be quicker than this looks.
    host.until("a rotation is seen that is under way", || {
        host.rotate();
        examined(&host).1.iter().any(|(id, ..)| id == "rotation-pending")
    });
    let second = fs::read(&key).unwrap();
    casemate("kms refresh --wait --admin").arg(host.admin()).assert().code(0);
    let (code, found) = examined(&host);
    assert_eq!((code, found), (0, vec![]));
    fs::write(&key, first).unwrap();
    finds(&host, "reused", "raise `epoch`");
    // That file lacks what the record is wrapped under, too.
    finds(&host, "key-refused", "deliver the current key file");
    fs::write(&key, second).unwrap();

    drop(daemon);
    let (code, found) = examined(&host);
    let ids: Vec<&str> = found.iter().map(|(id, ..)| id.as_str()).collect();
    assert_eq!((code, ids), (1, vec!["not-served", "admin-silent"]));
}

#[test]
fn a_recovery_recipient_is_asked_for_where_there_can_be_one() {
    let host = Host::new();
    if FIPS_BUILD {
        let (_, found) = examined(&host);
        assert!(found.iter().all(|(id, ..)| id != "no-recovery"), "{found:?}");
        return;
    }
    finds(&host, "no-recovery", "casemate recovery new");
    let right = fs::read_to_string(host.config()).unwrap();
    let recipient = recipient(&host);
    let one = |name: &str| format!("      - {{name: {name}, age: {recipient}}}\n");
    host.configure(&format!("{right}    recoveryRecipients:\n{}", one("safe")));
    let (_, found) = examined(&host);
    assert!(found.iter().all(|(id, ..)| !id.contains("recovery")), "one is enough: {found:?}");
    // The same twice is none more.
    host.configure(&format!("{right}    recoveryRecipients:\n{}{}", one("safe"), one("bank")));
    finds(&host, "configuration", "casemate-kms schema");
}

#[test]
fn a_configuration_that_is_none_is_a_finding() {
    let host = Host::new();
    let right = fs::read_to_string(host.config()).unwrap();
    host.configure(&format!("{right}    acceptUnprovenOrigin: true\n"));
    finds(&host, "unproven-origin", "migrate storage");
    host.configure(&right);
    host.change("clusterId: prod", "clusterID: prod");
    finds(&host, "configuration", "casemate-kms schema");
    let done = casemate("doctor --config /nowhere/config.yaml").assert().code(1);
    let told = String::from_utf8(done.get_output().stdout.clone()).unwrap();
    assert!(
        told.contains("there is no such file") && told.contains("make it, or name it with --config"),
        "{told}"
    );
    casemate("doctor --config").assert().code(2);
}
