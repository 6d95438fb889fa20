//! The checks of Decrypt: what is refused before anybody is asked, what is skipped, and what opens.

use casemate_keys::origin::{OriginPolicy, Signer};
use casemate_keys::{
    AcceptedCluster, Algorithm, Core, KekError, LineagePrefix, LocalKek, MAX_RECORD_LEN, RECORD_ANNOTATION,
    ReadPolicy, ReadRule, Readable, Refusal, Root, Sealed, Skipped, Suite, payload,
};

use crate::forge::{NOW, Reader, Stored};
use crate::peers::{Material, Peer, SigningPeer};
use crate::sample::{self, SEED, Sample, sha256};
use crate::vector::read_policy;
use crate::vectors::named;

const KEY: &str = "4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f";

pub fn file(version: u32) -> Peer {
    Peer::file(KEY, version, [version as u8; 32])
}

fn kwp(lineage: &str) -> Peer {
    Peer::new(lineage, Algorithm::PKCS11_AES_KWP, Material::Key(sha256(lineage.as_bytes())))
}

pub fn rsa() -> Peer {
    named("rsa-2048-ecdsa").peers().remove(0)
}

pub fn ecdsa() -> SigningPeer {
    named("rsa-2048-ecdsa").signer.unwrap().peer()
}

pub fn pss() -> SigningPeer {
    named("rsa-4096-pss").signer.unwrap().peer()
}

/// Reads exactly these root keys, and asymmetric ones only if `signers` signed.
pub fn reads(peers: &[Peer], signers: Vec<Signer>) -> ReadPolicy {
    read_policy(sample::cluster(), peers, OriginPolicy::Signed(signers))
}

pub fn check(policy: &ReadPolicy, sample: &Sample) -> Result<Readable, Refusal> {
    sample.sealed(|sealed| policy.check(sealed, NOW))
}

/// Tries wraps as a plugin does, and counts the calls.
pub fn open(policy: &ReadPolicy, peers: &[Peer], sample: &Sample) -> (Result<Vec<u8>, String>, usize) {
    let mut reader = Reader::new(policy, peers);
    let stored = Stored {
        ciphertext: sample.ciphertext.clone(),
        key_id: sample.key_id.to_string(),
        annotation: sample.annotation.clone(),
    };
    (reader.open(&stored), reader.calls)
}

pub fn opens(policy: &ReadPolicy, peers: &[Peer], sample: &Sample) {
    assert_eq!(open(policy, peers, sample).0.as_deref(), Ok(&SEED[..]));
}

/// Why the roots of a record are not read.
pub fn skipped(policy: &ReadPolicy, sample: &Sample) -> Vec<Skipped> {
    match check(policy, sample) {
        Ok(readable) => readable.skipped().iter().map(|(_, reason)| reason.clone()).collect(),
        Err(Refusal::NoReadableRoot { roots }) => roots.into_iter().map(|(_, reason)| reason).collect(),
        Err(other) => panic!("refused for another reason: {other}"),
    }
}

#[test]
fn exactly_the_one_annotation() {
    let peers = [file(1)];
    let (policy, sample) = (reads(&peers, vec![]), Sample::of(&peers));
    let value = sample.annotation.as_slice();
    let check = |annotations: &[(&str, &[u8])]| {
        let sealed = Sealed { ciphertext: &sample.ciphertext, key_id: sample.key_id.as_str(), annotations };
        policy.check(&sealed, NOW)
    };
    assert!(check(&[(RECORD_ANNOTATION, value)]).is_ok());
    for (what, annotations) in [
        ("none", &[][..]),
        ("doubled", &[(RECORD_ANNOTATION, value), (RECORD_ANNOTATION, value)]),
        ("doubled, one empty", &[(RECORD_ANNOTATION, value), (RECORD_ANNOTATION, b"")]),
        ("one beside", &[(RECORD_ANNOTATION, value), ("other.example", b"")]),
        ("one in front", &[("other.example", b""), (RECORD_ANNOTATION, value)]),
        ("renamed", &[("record.casemate.example", value)]),
        ("longer name", &[("record.casemate.dev.", value)]),
        ("shorter name", &[("record.casemate.de", value)]),
        ("upper case", &[("Record.casemate.dev", value)]),
        ("no name", &[("", value)]),
        ("another provider's", &[("version.encryption.example", b"1")]),
    ] {
        assert!(matches!(check(annotations), Err(Refusal::Annotations { .. })), "{what}");
    }
    let many = vec![("x", value); 1000];
    let Err(Refusal::Annotations { found }) = check(&many) else { panic!() };
    assert_eq!(found.len(), 8, "an error stays short");

    for value in [vec![], vec![0; 32_769], vec![0; MAX_RECORD_LEN + 1], b"{}".to_vec()] {
        assert!(matches!(check(&[(RECORD_ANNOTATION, &value)]), Err(Refusal::Record(_))));
    }
}

#[test]
fn other_clusters_only_while_they_are_accepted() {
    let peers = [file(1)];
    let sample = Sample::of(&peers);
    let mut policy = reads(&peers, vec![]);
    for other in ["other.example", "vectors.exampl", "vectors.example2", "vectors-example"] {
        policy.cluster = other.parse().unwrap();
        assert!(matches!(check(&policy, &sample), Err(Refusal::OtherCluster { .. })), "{other}");
    }
    let accept = |cluster: &str, until| AcceptedCluster { cluster: cluster.parse().unwrap(), until };
    for (accepted, read) in [
        (vec![accept("vectors.example", NOW + 1)], true),
        (vec![accept("vectors.example", u64::MAX)], true),
        (vec![accept("vectors.example", NOW)], false),
        (vec![accept("vectors.example", NOW - 1)], false),
        (vec![accept("vectors.example", 0)], false),
        (vec![accept("vectors.example2", NOW + 1)], false),
        (vec![accept("x", NOW + 1), accept("vectors.example", NOW - 1)], false),
        (vec![accept("vectors.example", NOW - 1), accept("vectors.example", NOW + 1)], true),
    ] {
        policy.also_accept = accepted.clone();
        assert_eq!(check(&policy, &sample).is_ok(), read, "{accepted:?}");
    }
    // An end date does not end the cluster's own data.
    policy.cluster = sample::cluster();
    policy.also_accept = vec![accept("vectors.example", 0)];
    opens(&policy, &peers, &sample);
}

#[test]
fn the_key_id_is_the_records() {
    let peers = [file(1), file(2)];
    let (policy, sample) = (reads(&peers, vec![]), Sample::of(&peers[..1]));
    let own = sample.key_id.as_str();
    let check = |key_id: &str| {
        let annotations = [(RECORD_ANNOTATION, sample.annotation.as_slice())];
        policy.check(&Sealed { ciphertext: &sample.ciphertext, key_id, annotations: &annotations }, NOW)
    };
    assert!(check(own).is_ok());
    let of_other = Sample::of(&peers[1..]).key_id;
    let other_cluster = own.replace("vectors", "victors");
    for key_id in [
        "",
        of_other.as_str(),
        &other_cluster,
        &own.to_uppercase(),
        &own[..own.len() - 1],
        &format!("{own}0"),
        &format!("{own} "),
        &format!("{own}\0"),
        &format!("{own}\n"),
        &"k".repeat(1024),
        &"k".repeat(1025),
        &format!("{own}{}", "\u{e4}".repeat(500)),
    ] {
        let Err(Refusal::OtherKeyId { found, derived }) = check(key_id) else { panic!("{key_id}: accepted") };
        assert!(found.chars().count() <= 100, "an error stays short");
        assert_eq!(derived.as_str(), own);
    }
}

#[test]
fn lengths_of_ciphertexts_and_dek_sources() {
    let peers = [file(1)];
    let (policy, mut sample) = (reads(&peers, vec![]), Sample::of(&peers));
    let annotation = sha256(&sample.annotation);
    for length in [16, 31, 32, 512] {
        let source = vec![length as u8; length];
        sample.ciphertext = sample.kek.seal(Suite::One, &annotation, &source).unwrap();
        assert_eq!(open(&policy, &peers, &sample).0, Ok(source));
    }
    for found in [0, 15, 513, 4096] {
        let sealed = sample.kek.seal(Suite::One, &annotation, &vec![0; found]);
        assert_eq!(sealed, Err(KekError::DekSourceLength { found }));
    }
    for found in [0, 1, 61, 76, 574, 1024, 1025, 1 << 20] {
        sample.ciphertext = vec![1; found];
        let refused = Refusal::Ciphertext(KekError::CiphertextLength { found });
        assert_eq!(check(&policy, &sample).unwrap_err(), refused);
        assert_eq!(open(&policy, &peers, &sample).1, 0, "nobody is asked");
    }
    for found in [0, 2, b'{', 255] {
        sample.ciphertext = vec![found; 93];
        let refused = Refusal::Ciphertext(KekError::Suite { found, record: Suite::One });
        assert_eq!(check(&policy, &sample).unwrap_err(), refused);
    }
}

#[test]
fn only_configured_root_keys_are_asked() {
    let peers = [file(12)];
    let sample = Sample::of(&peers);
    let rule = |key, algorithm| ReadRule { key, algorithms: [algorithm].into(), min_version: None };
    let prefix = |kind, fields: &[&str]| LineagePrefix::new(kind, fields).unwrap();
    let exactly = |lineage: &str| LineagePrefix::exactly(&lineage.parse().unwrap());
    let own = peers[0].root.lineage.as_str().to_owned();
    let read = Algorithm::FILE_AES256_GCM;
    for (rules, expected) in [
        (vec![rule(prefix("file", &[KEY]), read)], None),
        (vec![rule(exactly(&own), read)], None),
        (vec![rule(prefix("file", &[KEY, "12"]), read)], None),
        (vec![], Some(Skipped::UnknownRoot)),
        (vec![rule(prefix("file", &[&KEY[..31]]), read)], Some(Skipped::UnknownRoot)),
        (vec![rule(prefix("file", &[KEY, "1"]), read)], Some(Skipped::UnknownRoot)),
        (vec![rule(prefix("file", &[KEY, "12", "0"]), read)], Some(Skipped::UnknownRoot)),
        (vec![rule(prefix("exec", &[KEY]), read)], Some(Skipped::UnknownRoot)),
        (vec![rule(exactly(&own[..own.len() - 1]), read)], Some(Skipped::UnknownRoot)),
        (vec![rule(exactly(&format!("{own}0")), read)], Some(Skipped::UnknownRoot)),
        (vec![rule(exactly(&format!("file:{KEY}/")), read)], Some(Skipped::UnknownRoot)),
        (vec![rule(exactly(&own), Algorithm::EXEC)], Some(Skipped::OtherAlgorithm)),
        (
            vec![rule(exactly(&own), Algorithm::EXEC), rule(exactly("exec:a"), read)],
            Some(Skipped::OtherAlgorithm),
        ),
        (vec![rule(exactly(&own), Algorithm::EXEC), rule(exactly(&own), read)], None),
    ] {
        let policy = ReadPolicy { rules: rules.clone(), ..reads(&peers, vec![]) };
        let (opened, calls) = open(&policy, &peers, &sample);
        match expected {
            None => assert_eq!(opened.as_deref(), Ok(&SEED[..]), "{rules:?}"),
            Some(reason) => {
                assert_eq!(skipped(&policy, &sample), [reason], "{rules:?}");
                assert!(opened.unwrap_err().contains(&own), "the error names the lineage");
                assert_eq!(calls, 0, "nobody is asked");
            }
        }
    }
}

#[test]
fn versions_below_the_minimum_are_not_read() {
    let rule = |key, min_version| ReadRule { key, algorithms: [Algorithm::EXEC].into(), min_version };
    let may_ask = |rules: Vec<ReadRule>, lineage: &str| {
        let policy = ReadPolicy { rules, ..reads(&[], vec![]) };
        policy.may_ask(&Root { lineage: lineage.parse().unwrap(), algorithm: Algorithm::EXEC })
    };
    let key = || LineagePrefix::new("exec", ["a"]).unwrap();
    for (minimum, version, read) in [
        (2, "2", true),
        (2, "2/x", true),
        (2, "3", true),
        (2, "10", true),
        (2, "18446744073709551615", true),
        (u64::MAX, "18446744073709551615", true),
        (0, "0", true),
        (2, "1", false),
        (2, "0", false),
        (2, "02", false),
        (2, "0003", false),
        (2, "-3", false),
        (2, "3.", false),
        (2, "3x", false),
        (2, "x/3", false),
        (2, "", false),
        (2, "/3", false),
        (2, "%2B3", false),
        (2, "18446744073709551616", false),
        (2, "99999999999999999999999999999999999999999", false),
        (0, "x", false),
    ] {
        let lineage = format!("exec:a/{version}");
        let expected = if read { Ok(()) } else { Err(Skipped::BelowMinimum { minimum }) };
        assert_eq!(may_ask(vec![rule(key(), Some(minimum))], &lineage), expected, "{minimum} {version}");
        assert_eq!(may_ask(vec![rule(key(), None)], &lineage), Ok(()), "without a minimum");
    }
    // A rule for one version has no version after it; a minimum there reads nothing.
    let whole = || LineagePrefix::exactly(&"exec:a/3".parse().unwrap());
    assert_eq!(may_ask(vec![rule(whole(), Some(1))], "exec:a/3"), Err(Skipped::BelowMinimum { minimum: 1 }));
    // Rules are alternatives: the configuration must not list one key twice with two minimums.
    assert_eq!(may_ask(vec![rule(key(), Some(4)), rule(whole(), None)], "exec:a/3"), Ok(()));
    assert!(may_ask(vec![rule(key(), Some(4)), rule(whole(), None)], "exec:a/2").is_err());
}

#[test]
fn a_root_that_is_unknown_here_does_not_hide_a_known_one() {
    let (known, unknown) = (file(1), kwp("pkcs11:aa"));
    for peers in [[known.clone(), unknown.clone()], [unknown, known.clone()]] {
        let sample = Sample::of(&peers);
        let policy = reads(std::slice::from_ref(&known), vec![]);
        opens(&policy, &peers, &sample);
        assert_eq!(skipped(&policy, &sample), [Skipped::UnknownRoot]);
    }
    // Nor does an algorithm of a later version.
    for number in [11, 99, i32::MAX] {
        let algorithm = Algorithm::from_number(number).unwrap();
        let later = Peer::new("later:x", algorithm, Material::Payload(vec![]));
        let (both, alone) = (Sample::of(&[known.clone(), later.clone()]), Sample::of(&[later]));
        let policy = reads(std::slice::from_ref(&known), vec![]);
        opens(&policy, std::slice::from_ref(&known), &both);
        assert_eq!(skipped(&policy, &alone), [Skipped::UnknownRoot]);
    }
}

/// A record of these wraps, whatever they hold.
fn with_wraps(peers: &[Peer], kek: &LocalKek, wrap: impl Fn(&Core, &Root) -> Vec<u8>) -> Sample {
    let core = sample::core(Suite::One, peers, vec![], None, kek);
    let wraps = core.policy.roots().iter().map(|root| wrap(&core, root)).collect();
    Sample::assemble(kek.clone(), core, wraps, vec![], None)
}

#[test]
fn wraps_swapped_between_roots_or_records_do_not_open() {
    for peers in [[file(1), file(2)], [kwp("pkcs11:aa"), kwp("pkcs11:bb")]] {
        let policy = reads(&peers, vec![]);
        let (one, other) = (Sample::of(&peers), Sample::of(&peers));
        opens(&policy, &peers, &one);
        let wraps =
            |sample: &Sample| sample.record.wraps().map(|(_, wrap)| wrap.to_vec()).collect::<Vec<_>>();

        // Another record's: refused by associated data, and without it by D in the payload.
        let planted =
            Sample::assemble(one.kek.clone(), one.record.core().clone(), wraps(&other), vec![], None);
        assert_eq!(open(&policy, &peers, &planted), (Err("no wrap opens".into()), 2));

        // Of one record, each under the other's root.
        let mut swapped = wraps(&one);
        swapped.reverse();
        let planted = Sample::assemble(one.kek.clone(), one.record.core().clone(), swapped, vec![], None);
        assert_eq!(open(&policy, &peers, &planted), (Err("no wrap opens".into()), 2));
    }
    // One local KEK under two cores is two records, and their wraps don't mix either.
    let peers = [kwp("pkcs11:aa")];
    let kek = LocalKek::generate();
    let core = |created| Core { created, ..sample::core(Suite::One, &peers, vec![], None, &kek) };
    let wrap = |core: &Core| peers[0].wrap(&core.digest(), &*payload::encode(&kek, &core.digest()));
    let (first, second) = (core(1), core(2));
    let planted = Sample::assemble(kek.clone(), first, vec![wrap(&second)], vec![], None);
    assert_eq!(open(&reads(&peers, vec![]), &peers, &planted).0, Err("no wrap opens".into()));
}

#[test]
fn a_wrap_that_holds_another_local_kek_has_failed_and_the_next_is_tried() {
    let peers = [file(1), file(2)];
    let policy = reads(&peers, vec![]);
    let (right, wrong) = (LocalKek::generate(), LocalKek::generate());
    for bad in 0..3 {
        let sample = with_wraps(&peers, &right, |core, root| {
            let kek = if bad == 2 || *root == core.policy.roots()[bad] { &wrong } else { &right };
            sample::peer(&peers, root).wrap(&core.digest(), &*payload::encode(kek, &core.digest()))
        });
        let (opened, calls) = open(&policy, &peers, &sample);
        match bad {
            0 => assert_eq!((opened, calls), (Ok(SEED.to_vec()), 2)),
            1 => assert_eq!((opened, calls), (Ok(SEED.to_vec()), 1)),
            _ => assert_eq!((opened, calls), (Err("no wrap opens".into()), 2)),
        }
        let readable = check(&policy, &sample).unwrap();
        assert!(readable.local_kek(&*payload::encode(&wrong, readable.core())).is_none());
        assert!(readable.local_kek(&*payload::encode(&right, readable.core())).is_some());
    }
}

#[test]
fn a_payload_is_64_bytes_of_this_record() {
    let peers = [file(1)];
    let sample = Sample::of(&peers);
    let readable = check(&reads(&peers, vec![]), &sample).unwrap();
    let good = payload::encode(&sample.kek, readable.core()).to_vec();
    assert!(readable.local_kek(&good).is_some());
    for length in (0..64).chain([65, 128]) {
        let mut payload = good.clone();
        payload.resize(length, 0);
        assert!(readable.local_kek(&payload).is_none(), "{length}");
    }
    for bit in 0..8 * good.len() {
        let mut payload = good.clone();
        payload[bit / 8] ^= 1 << (bit % 8);
        assert!(readable.local_kek(&payload).is_none(), "bit {bit}");
    }
}
