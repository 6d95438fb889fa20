//! Three control-plane nodes on one root key in Transit.

use std::fs;
use std::thread;

use casemate_lab::plugin::TransitRoot;
use casemate_lab::{KeyService, OpenBao, Plugin, Proof};

use super::{activations, adopted_by_all, agreed, lab, long_lived};
use crate::load::Load;

#[test]
fn nodes_agree_through_rotations_while_one_joins_and_one_has_lost_its_ledger() {
    let lab = lab("three-nodes");
    let bao = OpenBao::start(&lab).unwrap();
    let root = TransitRoot::create(&bao, "casemate", &long_lived()).unwrap();
    let one = Plugin::start_on(&lab, "node-1", KeyService::Transit(&root)).unwrap();
    let two = Plugin::start_beside(&one, "node-2").unwrap();
    let three = Plugin::start_beside(&one, "node-3").unwrap();
    let first = agreed([&one, &two, &three]);
    for node in [&one, &two] {
        lab.add_apiserver(node.encryption()).unwrap();
    }
    let load = Load::on(&lab, 2);
    let mut later = None;

    load.during(|| {
        load.goes_on();
        root.rotate().unwrap();
        let second = one.refresh_until_switch(&first).unwrap();

        // In the middle: one knows of the new version, the others need not.
        let four = Plugin::start_beside(&one, "node-4").unwrap();
        assert_eq!(four.key_id().unwrap(), second);
        lab.add_apiserver(four.encryption()).unwrap();
        load.goes_on();
        three.kill9();
        fs::remove_file(three.dir().join("state/casemate/ledger")).unwrap();
        three.start_again().unwrap();
        assert_eq!(three.key_id().unwrap(), second);
        if two.key_id().unwrap() != second {
            two.refresh_until_switch(&first).unwrap();
        }
        assert_eq!(agreed([&one, &two, &three, &four]), second);
        adopted_by_all(&lab, &second);
        load.goes_on();

        // And with nothing in the way, all at once.
        root.rotate().unwrap();
        thread::scope(|scope| {
            for node in [&one, &two, &three, &four] {
                scope.spawn(|| node.refresh_until_switch(&second).unwrap());
            }
        });
        let third = agreed([&one, &two, &three, &four]);
        adopted_by_all(&lab, &third);
        load.goes_on();
        later = Some((four, second, third));
    });

    let (four, second, third) = later.unwrap();
    for node in [&one, &two, &three] {
        assert_eq!(activations(node), [&first[..], &second, &third], "{}", node.dir().display());
    }
    assert_eq!(activations(&four), [&second[..], &third]);
    for (server, node) in [&one, &two, &four].into_iter().enumerate() {
        load.is_read_by_fresh(server, node);
    }
    let proof = Proof::read(lab.etcd(), &["/registry/secrets/"]).unwrap();
    assert!(proof.not_encrypted.is_empty() && proof.malformed.is_empty(), "{proof}");
    let mut key_ids = [first, second, third];
    key_ids.sort();
    assert!(proof.by_key_id.keys().eq(&key_ids), "{proof}");
    eprintln!("{} acknowledged, {} read while it happened; {proof}", load.writes(), load.reads());
}
