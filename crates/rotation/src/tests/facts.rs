//! What follows from a configuration and key records, one after the other: the nineteen cases that library-go's state
//! machine is tested with.

use super::cluster::{Cluster, file, layout, resource};
use crate::*;

/// Deployed ("" is none), key records, what is wanted, what library-go answers, and what differs and why.
type Row = (
    u8,
    &'static [&'static str],
    &'static str,
    &'static [&'static str],
    &'static str,
    &'static str,
    Option<(&'static str, &'static str)>,
);

const BOTH: &[&str] = &["configmaps", "secrets"];
const SECRETS: &[&str] = &["secrets"];

/// What is written first, or that nothing is.
fn first_files(mut cluster: Cluster) -> String {
    for _ in 0..5 {
        let step = cluster.step();
        match step {
            Step::Record { .. } => cluster.carry_out(step),
            Step::Write(_) => {
                cluster.carry_out(step);
                return cluster.deployed();
            }
            Step::CreateKey { id, .. } => return format!("unchanged, new key {id}"),
            Step::Migrate(_) => return "unchanged, migrate".into(),
            Step::Prove(_) => return "unchanged, count".into(),
            Step::Wait(_) => return "unchanged, wait".into(),
            Step::Done => return "unchanged".into(),
            other => panic!("{other:?}"),
        }
    }
    panic!("it records for ever");
}

#[test]
fn the_first_files_are_library_gos_where_those_are_safe() {
    let differs = |ours, why| Some((ours, why));
    let lost = "the key that writes is lost: it stays, and another one is made";
    #[rustfmt::skip]
    let rows: [Row; 19] = [
        (1, BOTH, "", &[], "identity", "unchanged", None),
        (2, BOTH, "identity", &[], "identity", "unchanged", None),
        (3, BOTH, "cbc:1,identity", &[], "cbc:1", "unchanged", differs("unchanged, new key 2", lost)),
        (4, BOTH, "configmaps=cbc:1,identity", &["cbc:1"], "cbc:1", "configmaps=cbc:1,identity secrets=identity,cbc:1", None),
        (5, &["configmaps"], "cbc:1,identity", &["cbc:1"], "cbc:1", "only configmaps remain",
            differs("configmaps=cbc:1,identity secrets=identity,cbc:1", "what is encrypted is not left unreadable: it is decrypted, then left")),
        (6, BOTH, "", &["cbc:1"], "cbc:1", "identity,cbc:1", None),
        (7, BOTH, "", &["cbc:5", "cbc:4", "cbc:3", "cbc:2", "cbc:1"], "cbc:5", "identity,cbc:5,cbc:4,cbc:3,cbc:2",
            differs("identity,cbc:5,cbc:4,cbc:3,cbc:2,cbc:1", "everything but the records is lost: any of them may be needed")),
        (8, BOTH, "cbc:5,cbc:4,cbc:3,identity", &["cbc:4", "cbc:3", "cbc:2", "cbc:1"], "cbc:5", "cbc:5,cbc:4,cbc:3,cbc:2,identity",
            differs("unchanged, new key 6", "2 would be a spare that nobody needs; 5 is lost, stays, and is replaced")),
        (9, BOTH, "cbc:5", &["cbc:5"], "cbc:5", "cbc:5,identity", None),
        (10, BOTH, "cbc:1,identity", &["cbc:1", "cbc:2"], "cbc:2", "cbc:1,cbc:2,identity", None),
        (11, BOTH, "cbc:1,cbc:2,identity", &["cbc:1", "cbc:2"], "cbc:2", "cbc:2,cbc:1,identity", None),
        (12, BOTH, "cbc:2,cbc:1,identity", &["cbc:1", "cbc:2"], "cbc:2", "unchanged, migrate", None),
        (13, BOTH, "cbc:3,cbc:2,cbc:1,identity", &["cbc:1", "cbc:2", "cbc:3"], "cbc:3", "cbc:3,cbc:2,identity",
            differs("unchanged, migrate", "a record's word is no proof: what is migrated is counted first")),
        (14, SECRETS, "", &["kms:1"], "kms:1", "identity,kms:1", None),
        (15, SECRETS, "cbc:1,identity", &["cbc:1", "kms:2"], "kms:2", "cbc:1,kms:2,identity", None),
        (16, SECRETS, "kms:1,kms:2,identity", &["kms:1", "kms:2"], "kms:2", "kms:2,kms:1,identity", None),
        (17, SECRETS, "kms:2,kms:1,identity", &["kms:1", "kms:2"], "kms:2", "unchanged, wait", None),
        (18, SECRETS, "kms:2,cbc:1,identity", &["cbc:1", "kms:2"], "kms:2", "unchanged, wait", None),
        (19, SECRETS, "cbc:2,kms:1,identity", &["kms:1", "cbc:2"], "cbc:2", "unchanged, migrate", None),
    ];
    for (row, resources, deployed, records, wanted, theirs, differs) in rows {
        let deployed = match deployed.split_once('=') {
            None if deployed.is_empty() => File::default(),
            None if row == 5 => file(BOTH, deployed),
            None => file(resources, deployed),
            Some((only, text)) => File([(resource(only), layout(text))].into()),
        };
        let cluster = Cluster::new(resources, deployed).with(records).wants(wanted);
        let (expected, why) = differs.unwrap_or((theirs, "as library-go"));
        assert_eq!(first_files(cluster), expected, "row {row}: {why}");
    }
}

#[test]
fn what_is_counted_goes_at_once_and_leaves_no_spare() {
    // Row 13 with a proof: library-go keeps key 2 until the next rotation, and with it whatever it needs.
    let mut cluster = Cluster::new(BOTH, file(BOTH, "cbc:3,cbc:2,cbc:1,identity"))
        .with(&["cbc:1", "cbc:2", "cbc:3"])
        .wants("cbc:3");
    assert_eq!(
        cluster.run(),
        (vec!["cbc:3,cbc:2,cbc:1,identity".into(), "cbc:3,identity".into()], Step::Done)
    );
}
