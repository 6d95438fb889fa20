//! What goes wrong with a running etcd, and what is said then.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use casemate_lab::{EtcdCluster, Lab, authority::Validity};

use super::{MARKS, answer, borrowed, fill, groups, refusal, value, with_tls};
use crate::census::ground_truth::{GroundTruth, Transaction};
use crate::over::Over;

#[test]
fn certificates_and_users_that_are_wrong_are_told_apart() {
    let lab = Lab::builder("census tls").apiservers(0).start().unwrap();
    let cluster = EtcdCluster::start_with_tls(&lab, "guarded", 1).unwrap();
    let authority = cluster.authority().unwrap();
    let folder = lab.dir().join("guarded-authority");
    let endpoint = cluster.endpoints().remove(0);
    let mark = String::from_utf8(value(MARKS[0], 0)).unwrap();
    cluster.etcdctl(&["put", "/registry/secrets/default/one", &mark]).unwrap();
    cluster.etcdctl(&["put", "/hidden", "word"]).unwrap();
    let root = with_tls(&cluster, &folder, &endpoint, "root");
    let (code, told) = answer(&borrowed(&root));
    assert_eq!((code, told["files"][0]["survey"]["live"].as_u64()), (0, Some(1)), "{told:#}");
    let replaced = |flag: &str, with: &str| {
        let mut arguments = root.clone();
        let place = arguments.iter().position(|argument| argument == flag).unwrap();
        arguments[place + 1] = with.to_owned();
        refusal(&borrowed(&arguments))
    };
    let says = |(code, said): (i32, String), expected: &str| {
        assert_eq!(code, 3, "{said}");
        assert!(said.contains(expected) && said.contains(&endpoint), "{said}");
    };

    // Ours.
    says(refusal(&borrowed(&root[..root.len() - 4])), "does not take our client certificate");
    authority.client("late", Validity::Expired).unwrap();
    says(
        refusal(&borrowed(&with_tls(&cluster, &folder, &endpoint, "late"))),
        "does not take our client certificate",
    );
    let (code, said) = replaced("--key", folder.join("late.key").to_str().unwrap());
    assert!(code == 2 && said.contains("key and certificate belong together"), "{code} {said}");
    // Theirs.
    let other = casemate_lab::Authority::create(&lab.dir().join("other"), "other").unwrap();
    says(
        replaced("--cacert", other.certificate().to_str().unwrap()),
        "not by an authority that --cacert names",
    );
    let plain = endpoint.replace("https", "http");
    let (code, said) = refusal(&["etcd", "--endpoints", &plain]);
    assert!(code == 3 && said.contains(&plain), "{code} {said}");
    cluster.renew(&["127.0.0.1"], Validity::Expired).unwrap();
    says(refusal(&borrowed(&root)), "expired");
    cluster.renew(&["etcd.example"], Validity::Now).unwrap();
    says(refusal(&borrowed(&root)), "another name");
    let named = [&root[..], &["--tls-server-name".to_owned(), "etcd.example".to_owned()]].concat();
    assert_eq!(answer(&borrowed(&named)).0, 0);
    cluster.renew(&["127.0.0.1"], Validity::Now).unwrap();

    // Users. Without a certificate of theirs, by password.
    for arguments in [
        &["user", "add", "root:rootword"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "reader"],
        &["role", "grant-permission", "reader", "read", "/registry/", "/registry0"],
        &["role", "add", "narrow"],
        &["role", "grant-permission", "narrow", "read", "/registry/secrets/", "/registry/secrets0"],
        &["user", "add", "reader:readword"],
        &["user", "grant-role", "reader", "reader"],
        &["user", "add", "narrow:narrowword"],
        &["user", "grant-role", "narrow", "narrow"],
        &["auth", "enable"],
    ] {
        cluster.etcdctl(arguments).unwrap();
    }
    authority.client("nobody", Validity::Now).unwrap();
    let nobody = with_tls(&cluster, &folder, &endpoint, "nobody");
    let by_password = |user: &str, word: &str| {
        let file = lab.dir().join("password");
        std::fs::write(&file, format!("{word}\n")).unwrap();
        let file = file.to_str().unwrap().to_owned();
        [&nobody[..], &["--user".into(), user.into(), "--password-file".into(), file]].concat()
    };
    says(refusal(&borrowed(&by_password("reader", "wrong"))), "does not take the password of user reader");
    says(refusal(&borrowed(&by_password("absent", "readword"))), "does not take the password of user absent");
    let (code, said) = refusal(&borrowed(&by_password("narrow", "narrowword")));
    assert!(said.contains("user narrow may not read") && said.contains("/registry/"), "{said}");
    assert_eq!(code, 3);
    let (code, said) = refusal(&borrowed(&nobody));
    assert!(code == 3 && said.contains("client certificate names may not read"), "{code} {said}");
    // What it may read is read; what was overwritten is beyond it, and then no answer is a yes.
    let reader = by_password("reader", "readword");
    let (code, told) = answer(&borrowed(&reader));
    let survey = &told["files"][0]["survey"];
    assert_eq!((code, survey["live"].as_u64()), (0, Some(1)), "{told:#}");
    assert!(survey["unseen"][0]["past"].is_object(), "{told:#}");
    let asks = |arguments: &[String], key: &str| {
        let (code, told) = answer(&[&borrowed(arguments)[..], &["--may-go", key]].concat());
        (code, told["may_go"]["verdict"].as_str().unwrap().to_owned())
    };
    assert_eq!(asks(&reader, "aescbc:one"), (1, "no".into()));
    assert_eq!(asks(&reader, "aescbc:two"), (3, "unknown".into()));
    assert_eq!(asks(&by_password("root", "rootword"), "aescbc:two"), (0, "yes".into()));
    // A certificate that names the user does as well.
    assert_eq!(asks(&root, "aescbc:two"), (0, "yes".into()));
}

#[test]
fn what_was_compacted_during_the_scan_is_read_again_until_it_is_of_one_revision() {
    let lab = Lab::builder("census compacted").apiservers(0).start().unwrap();
    let mut truth = GroundTruth::of(lab.etcd());
    fill(&mut truth, "/registry", 3000);
    let endpoint = lab.etcd().endpoint();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Whatever the scan does, its revision is forgotten some moments later.
            for turn in 0.. {
                let mut change = Transaction::default();
                change.put(super::key("/registry", turn % 900 + 1000), &value(MARKS[turn % 2], 10), 0);
                let revision = truth.commit(change);
                truth.compact(revision);
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        // Slow enough to be overtaken, and bounded: then it says that it is of no one moment.
        let arguments = ["etcd", "--endpoints", &endpoint, "--rate", "2", "--may-go", "aescbc:nobody"];
        let over = Over(&is_over);
        let (code, told) = answer(&arguments);
        drop(over);
        let survey = &told["files"][0]["survey"];
        assert_eq!((code, told["may_go"]["verdict"].as_str()), (3, Some("unknown")), "{told:#}");
        let moment = &survey["unseen"][0]["moment"];
        assert!(moment["oldest"].as_u64() < moment["newest"].as_u64(), "{told:#}");
    });
    let last = super::clear(&mut truth, &lab, &["/registry2/"]);
    truth.compact(last);
    let arguments = ["etcd", "--endpoints", &endpoint, "--rate", "0"];
    let (_, told) = answer(&[&arguments[..], &["--may-go", "aescbc:nobody"]].concat());
    assert_eq!(told["may_go"]["verdict"].as_str(), Some("yes"), "{told:#}");
    let file = super::snapshot(&lab, "after.db");
    assert_eq!(groups(&told), groups(&answer(&["snapshot", &file]).1));
}

#[test]
fn members_that_go_away_and_leaders_that_change_stop_no_scan() {
    let lab = Lab::builder("census members").apiservers(0).start().unwrap();
    let cluster = EtcdCluster::start(&lab, "three", 3).unwrap();
    let mut truth = GroundTruth::at(&cluster.endpoints()[0]);
    fill(&mut truth, "/registry", 1500);
    let endpoints = cluster.endpoints().join(",");
    let whole = answer(&["etcd", "--endpoints", &endpoints, "--rate", "0"]);

    // The first endpoint is lost, which is the leader, too, or the second one is.
    let leader = cluster.leader().unwrap().unwrap();
    thread::scope(|scope| {
        let slow = scope.spawn(|| answer(&["etcd", "--endpoints", &endpoints, "--rate", "1"]));
        cluster.kill(leader);
        let (code, told) = slow.join().unwrap();
        assert_eq!((code, groups(&told)), (0, groups(&whole.1)), "{told:#}");
    });
    let (code, told) = answer(&["etcd", "--endpoints", &endpoints, "--rate", "0"]);
    assert_eq!((code, groups(&told)), (0, groups(&whole.1)));
    // Two of three are gone: no revision has the consent of the cluster.
    let next = (leader + 1) % 3;
    cluster.kill(next);
    let (code, said) = refusal(&["etcd", "--endpoints", &endpoints, "--patience", "1s"]);
    assert!(code == 3 && said.contains("no endpoint of etcd answers"), "{code} {said}");
    assert!(said.contains("connection refused"), "{said}");
    cluster.restart(leader).unwrap();
    assert_eq!(answer(&["etcd", "--endpoints", &endpoints, "--rate", "0"]).0, 0);

    // Endpoints of two clusters are no cluster.
    let both = format!("{},{}", endpoints, lab.etcd().endpoint());
    let (code, said) = refusal(&["etcd", "--endpoints", &both]);
    assert!(code == 3 && said.contains("give endpoints of one cluster only"), "{code} {said}");
}
