//! One cluster through a life: the configurations in the order in which they are deployed.

use super::cluster::{Cluster, file, id, name, wanting};
use crate::*;

const BOTH: &[&str] = &["configmaps", "secrets"];

#[test]
fn configurations_come_in_library_gos_order_without_its_spares() {
    let mut cluster = Cluster::new(BOTH, File::default());
    let mut walk = |what: &str, wanted: &str, deployed: &[&str]| {
        wanting(&mut cluster.observed.intent, wanted);
        let before = cluster.deployed();
        let (mut seen, last) = cluster.run();
        seen.retain(|now| *now != before);
        assert_eq!(
            (seen, last),
            (deployed.iter().map(|text| (*text).to_owned()).collect(), Step::Done),
            "{what}"
        );
        (encrypted(&cluster.observed), cluster.observed.records.len())
    };
    let is_encrypted = |condition: Encrypted| condition.openshift() == Some((true, "EncryptionCompleted"));

    assert_eq!(walk("nothing is wanted", "identity", &[]), (Encrypted::Disabled, 0));
    let after = walk("enable aescbc", "cbc:a", &["identity,cbc:1", "cbc:1,identity"]);
    assert!(is_encrypted(after.0));
    // library-go marks it by a key of mode identity, `gcm:2`, and keeps cbc:1 for as long as nothing else comes.
    let after = walk("to identity", "identity", &["identity,cbc:1", "identity"]);
    assert_eq!(after, (Encrypted::Decrypted, 1));
    // The numbers of keys go on; library-go reads cbc:1 again as a spare.
    assert!(is_encrypted(walk("to aescbc", "cbc:a", &["identity,cbc:2", "cbc:2,identity"]).0));
    // library-go goes to `cbc:4,cbc:3,identity` and keeps the spare; here the proof ends it.
    let to_b: &[&str] = &["cbc:2,cbc:3,identity", "cbc:3,cbc:2,identity", "cbc:3,identity"];
    assert!(is_encrypted(walk("another reason", "cbc:b", to_b).0));
    let to_kms: &[&str] = &["cbc:3,kms:4,identity", "kms:4,cbc:3,identity", "kms:4,identity"];
    assert!(is_encrypted(walk("to KMS", "kms:p", to_kms).0));
    assert_eq!(walk("the same again", "kms:p", &[]).1, 4);
    // library-go never lets go of kms:12 after this: its plugin has to run until the next rotation.
    let to_other: &[&str] = &["kms:4,kms:5,identity", "kms:5,kms:4,identity", "kms:5,identity"];
    assert!(is_encrypted(walk("to another key service", "kms:q", to_other).0));
    let to_box: &[&str] = &["kms:5,box:6,identity", "box:6,kms:5,identity", "box:6,identity"];
    assert!(is_encrypted(walk("to secretbox", "box:c", to_box).0));
    let after = walk("to identity", "identity", &["identity,box:6", "identity"]);
    assert_eq!(after, (Encrypted::Decrypted, 6));
}

#[test]
fn what_is_deleted_comes_back() {
    let mut cluster = Cluster::new(BOTH, File::default()).wants("kms:p");
    cluster.run();
    let to_q = ["kms:1,kms:2,identity", "kms:2,kms:1,identity"];
    wanting(&mut cluster.observed.intent, "kms:q");
    while cluster.deployed() != to_q[1] {
        let step = cluster.step();
        cluster.carry_out(step);
    }

    // The configuration of every server: reads first, since nothing else is known to be safe.
    let mut emptied = cluster.clone();
    for server in emptied.observed.servers.values_mut() {
        (server.file, server.loaded) = (Some(File::default()), Some(File::default()));
    }
    let (seen, last) = emptied.run();
    assert_eq!(seen, ["identity,kms:2,kms:1", to_q[1], "kms:2,identity"]);
    assert_eq!(last, Step::Done);

    // What was recorded: nothing counts as proven then.
    let mut forgotten = cluster.clone();
    forgotten.observed.progress = None;
    let (seen, last) = forgotten.run();
    assert_eq!((seen, last), (vec![to_q[1].into(), "kms:2,identity".into()], Step::Done));

    // Everything but the records.
    let mut both = emptied.clone();
    both.observed.progress = None;
    both.observed.census.clear();
    for server in both.observed.servers.values_mut() {
        (server.file, server.loaded) = (Some(File::default()), Some(File::default()));
    }
    assert_eq!(both.run().0[1], "identity,kms:2,kms:1");
}

#[test]
fn a_lost_or_damaged_record_of_a_plugin_drops_nothing_at_any_step() {
    // Enabling, moving to another key service, and what follows: a record of either key is lost or damaged before each
    // step, and everything stays readable to the end.
    for key in [1, 2] {
        for is_damaged in [false, true] {
            for when in 0..40 {
                let mut cluster = Cluster::new(&["secrets"], File::default()).wants("kms:p");
                cluster.run();
                wanting(&mut cluster.observed.intent, "kms:q");
                for _ in 0..when {
                    if let step @ (Step::Record { .. } | Step::CreateKey { .. } | Step::Write(_)) =
                        cluster.step()
                    {
                        cluster.carry_out(step);
                    }
                }
                if cluster.observed.records.remove(&id(key)).is_some() && is_damaged {
                    cluster.observed.records.insert(id(key), Record::Damaged { scheme: None });
                }
                let needed: Vec<Slot> = cluster.observed.servers[&name("a")]
                    .loaded
                    .iter()
                    .map(|loaded| loaded.layout(&super::cluster::resource("secrets")).writer())
                    .collect();
                let step = cluster.step();
                if let Step::Write(files) = &step {
                    for written in files {
                        for slot in &needed {
                            let layout = written.file.layout(&super::cluster::resource("secrets"));
                            assert!(layout.reads(*slot), "{when}: {slot:?} is dropped");
                        }
                    }
                }
                let (_, last) = cluster.run();
                assert_eq!(last, Step::Done, "key {key}, step {when}");
            }
        }
    }
}

#[test]
fn the_defects_that_were_executed_are_not_here() {
    // Deployed, records, and what library-go does: it drops what writes, or panics.
    for (deployed, records, after) in [
        ("kms:1,identity", &[][..], "kms:1,kms:2,identity"),
        ("kms:2,kms:1,identity", &["kms:1"], "kms:2,kms:3,kms:1,identity"),
        ("kms:2,kms:1,identity", &["kms:2"], "kms:2,kms:1,identity"),
        ("cbc:1,identity", &[], "cbc:1,kms:2,identity"),
    ] {
        let wanted = if records == ["kms:2"] { "kms:2" } else { "kms:9" };
        let mut cluster =
            Cluster::new(&["secrets"], file(&["secrets"], deployed)).with(records).wants(wanted);
        let first = loop {
            match cluster.step() {
                step @ (Step::Record { .. } | Step::CreateKey { .. }) => cluster.carry_out(step),
                step @ Step::Write(_) => {
                    cluster.carry_out(step);
                    break cluster.deployed();
                }
                _ => break cluster.deployed(),
            }
        };
        let shown: Vec<&str> = after.split(',').collect();
        let first: Vec<&str> = first.split(',').collect();
        assert_eq!(first, shown, "{deployed}");
    }
}
