//! What a failure says, and what it keeps.

use std::{fs, panic, process::Command};

use casemate_lab::{Encryption, Lab, cache_dir};

/// Any lab of this test binary keeps its logs here.
fn kept(name: &str) -> std::path::PathBuf {
    let pid = std::process::id();
    cache_dir().unwrap().join(format!("failed/{name}-{pid}"))
}

#[test]
fn an_etcd_that_does_not_start_says_why() {
    let lab = Lab::builder("etcd fails").apiservers(0).start().unwrap();
    lab.etcd().process().kill9();
    fs::remove_dir_all(lab.etcd().data_dir()).unwrap();
    fs::write(lab.etcd().data_dir(), "a file, not a folder").unwrap();

    let error = lab.etcd().start().unwrap_err().to_string();
    assert!(error.starts_with("etcd ended with exit status: "), "{error}");
    assert!(error.contains("not a directory"), "{error}");
    assert!(error.contains("etcd.log"), "{error}");
    assert!(error.contains("what to do: "), "{error}");
}

#[test]
fn an_apiserver_that_does_not_start_says_why_and_the_lab_goes_on() {
    let lab = Lab::builder("apiserver fails").apiservers(0).start().unwrap();
    let broken = Encryption::Verbatim("kind: Nonsense\n".into());

    let error = lab.add_apiserver(broken).unwrap_err().to_string();
    assert!(error.starts_with("apiserver-0 ended with "), "{error}");
    assert!(error.contains("Nonsense") || error.contains("'Kind'"), "{error}");
    assert!(error.contains("what to do: "), "{error}");

    // That one is no server of the lab, and the store is as it was.
    assert!(lab.apiservers().is_empty());
    lab.etcd().put("still", b"here").unwrap();
}

#[test]
fn a_lab_that_does_not_start_keeps_its_logs() {
    let broken = Encryption::Verbatim("kind: Nonsense\n".into());
    let error = Lab::builder("keeps when starting").encryption(broken).start();
    assert!(error.is_err());

    let kept = kept("keeps-when-starting");
    let log = fs::read_to_string(kept.join("logs/apiserver-0.log")).unwrap();
    assert!(log.contains("encryption"), "{log}");
    let file = fs::read_to_string(kept.join("apiserver-0/encryption.yaml")).unwrap();
    assert_eq!(file, "kind: Nonsense\n");
    fs::remove_dir_all(kept).unwrap();
}

#[test]
fn a_panic_ends_everything_and_keeps_the_logs() {
    let mut told = None;
    let panicked = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        let lab = Lab::builder("panics").apiservers(0).start().unwrap();
        let mut daemon = Command::new("sh");
        daemon.args(["-c", "echo a last word; exec sleep 600"]);
        let daemon = lab.spawn("daemon", &daemon).unwrap();
        daemon.wait_until("it spoke", || daemon.log_tail(1) == "a last word").unwrap();
        told = Some((lab.dir().to_owned(), daemon, lab.etcd().process()));
        panic!("as this test wants it");
    }));
    assert!(panicked.is_err());

    let (dir, daemon, etcd) = told.unwrap();
    assert!(!daemon.is_running() && !etcd.is_running());
    assert!(!dir.exists());
    let kept = kept("panics");
    let log = fs::read_to_string(kept.join("logs/daemon.log")).unwrap();
    assert_eq!(log, "a last word\n");
    assert!(kept.join("logs/etcd.log").is_file());
    fs::remove_dir_all(kept).unwrap();
}

#[test]
fn a_lab_that_went_well_keeps_nothing() {
    let lab = Lab::builder("goes well").apiservers(0).start().unwrap();
    let dir = lab.dir().to_owned();
    assert!(dir.is_dir());
    drop(lab);
    assert!(!dir.exists());
    assert!(!kept("goes-well").exists());
}

#[test]
fn a_daemon_is_watched_from_start_to_end() {
    let lab = Lab::builder("daemons").apiservers(0).start().unwrap();
    let sh = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("WORD", "heard");
        command
    };

    // One that can't be found, and one that ends too early.
    let absent = lab.spawn("absent", &Command::new("/no/such/program")).unwrap();
    let error = absent.wait_until("it listened", || false).unwrap_err();
    assert!(error.to_string().contains("/no/such/program: not found"), "{error}");
    let early = lab.spawn("early", &sh("echo $WORD the reason; exit 3")).unwrap();
    let error = early.wait_until("its socket was there", || false).unwrap_err();
    let error = error.to_string();
    let said = "early ended with exit status: 3 before its socket was there\nheard the reason\n";
    assert!(error.starts_with(said), "{error}");

    // One that ends well when told, and what it had started.
    let polite = lab
        .spawn("polite", &sh("trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.05; done"))
        .unwrap();
    polite.wait_until("it was up", || polite.log_tail(1) == "up").unwrap();
    assert!(polite.is_running());
    assert_eq!(polite.terminate().unwrap().code(), Some(4));
    assert_eq!(polite.log_tail(1), "bye");
    assert!(!polite.is_running());

    // The same name again goes on in the same log, but tells only of itself.
    let again = lab.spawn("polite", &sh("echo second; exit 0")).unwrap();
    assert!(again.wait_exit().unwrap().success());
    assert_eq!(again.log_tail(9), "second");
    assert_eq!(fs::read_to_string(again.log()).unwrap(), "up\nbye\nsecond\n");

    let stubborn = lab.spawn("stubborn", &sh("trap '' TERM; sleep 600")).unwrap();
    stubborn.kill9();
    assert!(!stubborn.is_running());
}
