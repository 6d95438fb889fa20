#![allow(clippy::panic, clippy::unwrap_used)]

use casemate_keys::origin::OriginPolicy;
use casemate_keys::{Algorithm, ReadRule};

use super::*;

fn root(key: &str, version: u32) -> Root {
    let lineage = Lineage::new("transit", ["", "transit", key, &version.to_string(), "7"]).unwrap();
    Root { lineage, algorithm: Algorithm::TRANSIT }
}

fn seen(key: &str, shows: Result<Root, Failure>) -> Seen {
    Seen { name: key.into(), prefix: LineagePrefix::new("transit", ["", "transit", key]).unwrap(), shows }
}

fn policy(epoch: u64, roots: Vec<Root>) -> WritePolicy {
    let cluster = "prod".parse().unwrap();
    WritePolicy::new(Suite::One, cluster, Epoch(epoch), roots, Vec::new(), None).unwrap()
}

/// Version 2 of key `a` writes and is shown; version 1 wrote before.
fn facts() -> Facts {
    let (before, now) = (policy(0, vec![root("a", 1)]), policy(0, vec![root("a", 2)]));
    let mut ledger = Ledger::default();
    ledger.note(&before.key_id(), 1);
    ledger.note(&now.key_id(), 2);
    let seen = vec![seen("a", Ok(root("a", 2)))];
    let rule = |key: &Seen| ReadRule {
        key: key.prefix.clone(),
        algorithms: [Algorithm::TRANSIT].into(),
        min_version: None,
    };
    let keys = [&seen[0], &self::seen("b", Ok(root("b", 1)))].map(rule);
    Facts {
        cluster: "prod".parse().unwrap(),
        epoch: Epoch(0),
        recipients: Vec::new(),
        signer: None,
        read_policy: ReadPolicy {
            cluster: "prod".parse().unwrap(),
            also_accept: Vec::new(),
            rules: keys.into(),
            origin: OriginPolicy::Signed(Vec::new()),
        },
        is_local: false,
        seen,
        active: Active::of(None, &ledger, Some(&now)),
        ledger,
        record: Some(now),
        candidate: None,
        socket: "unix:///run/kms.sock".into(),
        admin: Some("unix:///run/admin.sock".into()),
    }
}

fn failing(class: Class) -> Result<Root, Failure> {
    Err(Failure::new(class, "it fails", "mend it"))
}

#[test]
fn what_is_shown_and_writes_already_changes_nothing() {
    let (would, next) = decide(&facts());
    assert_eq!(would, Would::NothingChanges { key_id: policy(0, vec![root("a", 2)]).key_id().to_string() });
    assert_eq!((next, would.exit()), (vec![], Exit::Yes));
}

/// Whatever the file says, the plugin goes on with what it holds.
#[test]
fn what_the_running_plugin_does_not_take_over_writes_nothing() {
    let mut newer = facts();
    newer.seen[0].shows = Ok(root("a", 3));
    let (would, next) = decide(&newer);
    let (would, next) = would.unless_refused(next, "it needs a restart");
    assert_eq!(would.exit(), Exit::No);
    let said =
        "nothing: the running plugin does not take this configuration over: it needs a restart; restart it";
    assert!(would.text().contains(said), "{would:?}");
    assert!(next[0].starts_with("restart casemate-kms") && next.len() == 1, "{next:?}");
    // What goes on anyway does.
    let (would, next) = decide(&facts());
    assert_eq!(would.clone().unless_refused(next, "it needs a restart"), (would, vec![]));
}

#[test]
fn each_difference_is_told_with_what_comes_first() {
    let mut newer = facts();
    newer.seen[0].shows = Ok(root("a", 3));
    let mut local = newer.clone();
    local.is_local = true;
    let mut epoch = facts();
    epoch.epoch = Epoch(1);
    let mut signed = facts();
    signed.signer = Some("pkcs11:51".parse().unwrap());
    let mut added = facts();
    added.seen.push(seen("b", Ok(root("b", 1))));
    let mut moved = facts();
    moved.seen = vec![seen("b", Ok(root("b", 1)))];
    let mut known = newer.clone();
    known.candidate = Some(policy(0, vec![root("a", 3)]).key_id().to_string());
    let shown = "plan-rotation` shows transit:/transit/a/3/7 there, too";
    let readers = "root key b can be read there: under readKeys first";
    for (facts, because, when, first) in [
        (
            newer,
            "root key a: transit:/transit/a/2/7 writes now, transit:/transit/a/3/7 is shown",
            "7 minutes",
            shown,
        ),
        (local, "root key a: transit:/transit/a/2/7 writes now", "60 seconds", shown),
        (epoch, "epoch: 0 before, 1 now", "7 minutes", "kms refresh --wait --admin unix:///run/admin.sock"),
        (signed, "signer: none before, pkcs11:51 now", "7 minutes", "kms refresh --wait"),
        (added, "root key b (transit:/transit/b/1/7) did not write before", "7 minutes", readers),
        (
            moved,
            "transit:/transit/a/2/7 writes now, and its root key is not in rootKeys any more",
            "7 minutes",
            readers,
        ),
        (known, "root key a", "the running plugin has seen it already", shown),
    ] {
        let (would, next) = decide(&facts);
        assert_eq!(would.exit(), Exit::No);
        assert!(would.because().iter().any(|why| why.contains(because)), "{because}: {would:?}");
        assert!(would.text().starts_with("it changes") && would.text().contains(when), "{when}: {would:?}");
        assert!(next[0].contains(first), "{first}: {next:?}");
        assert!(next.last().unwrap().contains("migrate storage"), "{next:?}");
    }
}

#[test]
fn what_would_not_be_taken_says_why_and_what_to_do() {
    let mut reuse = facts();
    reuse.seen[0].shows = Ok(root("a", 1));
    let mut below = facts();
    below.read_policy.rules[0].min_version = Some(3);
    let mut twice = facts();
    twice.seen.push(seen("a", Ok(root("a", 2))));
    let failing =
        |class| Facts { seen: vec![seen("a", self::failing(class)), seen("b", Ok(root("b", 1)))], ..facts() };
    for (facts, class, message, next) in [
        (reuse, "reuse", "was active on this node before", "raise `epoch` from 0 to 1"),
        (below, "not_readable", "below the configured minReadVersion 3", "deliver the current key file"),
        (twice, "configuration", "transit:/transit/a/2/7", "correct rootKeys"),
        (failing(Class::Undecided), "undecided", "what was confirmed last goes on", "mend it"),
        (failing(Class::Refused), "refused", "new writes stop after two minutes", "mend it"),
        (failing(Class::Corrupt), "corrupt", "what wrote before goes on", "mend it"),
    ] {
        let (would, steps) = decide(&facts);
        assert_eq!(would.exit(), Exit::No, "{class}");
        assert!(would.text().starts_with(&format!("it is refused ({class})")), "{class}: {}", would.text());
        assert!(would.text().contains(message), "{class}: {}", would.text());
        assert!(steps.iter().any(|step| step.contains(next)), "{class}: {steps:?}");
    }
}

#[test]
fn who_can_t_be_asked_changes_nothing_but_who_says_no_outweighs_it() {
    for class in [Class::Unreachable, Class::Throttled, Class::Credential] {
        let mut facts = facts();
        facts.seen[0].shows = failing(class);
        let (would, next) = decide(&facts);
        assert_eq!((would.exit(), next.as_slice()), (Exit::Unknown, ["mend it".to_owned()].as_slice()));
        assert!(would.text().contains("Nothing changes until it answers"), "{}", would.text());
        facts.seen.push(seen("b", failing(Class::Refused)));
        assert_eq!(decide(&facts).0.exit(), Exit::No);
    }
}

#[test]
fn on_a_new_node_the_first_look_counts() {
    let facts = Facts { active: None, ledger: Ledger::default(), record: None, ..facts() };
    let (would, next) = decide(&facts);
    assert!(would.text().ends_with("writes as soon as the plugin runs"), "{}", would.text());
    assert!(next[0].contains("start the plugin"), "{next:?}");
}

#[test]
fn what_the_configuration_does_not_have_is_not_asked() {
    let mut newer = facts();
    newer.seen[0].shows = Ok(root("a", 3));
    newer.admin = None;
    let new_node = Facts { active: None, ledger: Ledger::default(), record: None, ..newer.clone() };
    for facts in [newer, new_node] {
        let (would, next) = decide(&facts);
        let told = format!("{} {}", would.text(), next.join(" "));
        assert!(
            !told.contains("--admin") && told.contains("kms status --socket unix:///run/kms.sock"),
            "{told}"
        );
    }
}
