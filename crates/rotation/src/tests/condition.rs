//! The condition `Encrypted`, for which library-go has no test: each of its rows.

use std::collections::BTreeSet;

use super::cluster::{Cluster, file, id, name, resource, wanting};
use crate::*;

const BOTH: &[&str] = &["configmaps", "secrets"];

fn all() -> BTreeSet<Resources> {
    BOTH.iter().map(|name| resource(name)).collect()
}

/// Goes on until it asks for a migration.
fn until_migration(cluster: &mut Cluster) {
    while !matches!(cluster.step(), Step::Migrate(_) | Step::Done) {
        let step = cluster.step();
        cluster.carry_out(step);
    }
}

#[test]
fn each_row() {
    let mut cluster = Cluster::new(BOTH, File::default());
    assert_eq!(encrypted(&cluster.observed), Encrypted::Disabled);
    // No key yet: there is something to come.
    wanting(&mut cluster.observed.intent, "cbc:a");
    until_migration(&mut cluster);
    assert_eq!(encrypted(&cluster.observed), Encrypted::Encrypting(all()));
    // One of two is migrated.
    let Step::Migrate(tasks) = cluster.step() else { panic!("{:?}", cluster.step()) };
    let mut half = cluster.clone();
    half.carry_out(Step::Migrate(tasks[..1].to_vec()));
    let record = half.step();
    half.carry_out(record);
    assert_eq!(encrypted(&half.observed), Encrypted::Encrypting([resource("secrets")].into()));
    cluster.run();
    assert_eq!(encrypted(&cluster.observed), Encrypted::Encrypted(all()));
    // On the way from key to key it goes on to be true.
    wanting(&mut cluster.observed.intent, "kms:p");
    until_migration(&mut cluster);
    assert_eq!(cluster.deployed(), "kms:2,cbc:1,identity");
    assert_eq!(encrypted(&cluster.observed), Encrypted::Encrypted(all()));
    cluster.run();
    // A resource that is new is not.
    let mut more = cluster.clone();
    more.observed.intent.resources.insert(resource("pods"));
    assert_eq!(encrypted(&more.observed), Encrypted::Encrypting([resource("pods")].into()));
    // Nobody knows: what was said last goes on.
    let mut silent = cluster.clone();
    silent.server("b").loaded = None;
    assert_eq!(encrypted(&silent.observed), Encrypted::Untouched);
    let mut absent = cluster.clone();
    absent.observed.servers.remove(&name("b"));
    assert_eq!(encrypted(&absent.observed), Encrypted::Untouched);
    let mut forgotten = cluster.clone();
    forgotten.observed.progress = None;
    assert_eq!(encrypted(&forgotten.observed), Encrypted::Untouched);
    // A record that is lost changes nothing of what is stored.
    let mut lost = cluster.clone();
    lost.observed.records.remove(&id(2));
    assert_eq!(encrypted(&lost.observed), Encrypted::Encrypted(all()));
    // To plaintext.
    wanting(&mut cluster.observed.intent, "identity");
    until_migration(&mut cluster);
    assert_eq!(encrypted(&cluster.observed), Encrypted::Decrypting(all()));
    cluster.run();
    assert_eq!(encrypted(&cluster.observed), Encrypted::Decrypted);
    // Found as it is, without a record: only what is counted is called so.
    let mut found = Cluster::new(BOTH, file(BOTH, "cbc:1,identity")).with(&["cbc:1"]).wants("cbc:1");
    let adopt = found.step();
    found.carry_out(adopt);
    assert_eq!(encrypted(&found.observed), Encrypted::Encrypting(all()));
    assert_eq!(encrypted(&found.observed).openshift(), Some((false, "EncryptionInProgress")));
}
