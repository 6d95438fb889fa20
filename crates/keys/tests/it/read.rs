//! The checks of Decrypt: what is refused before anybody is asked, what is skipped, and what opens.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P256K1_SHA256_ASN1_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
    KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA256, RSA_PSS_SHA384, RsaEncoding, RsaKeyPair, RsaPssSaltLength,
};
use aws_lc_rs::{encoding::AsDer, rand::SystemRandom};
use casemate_keys::origin::{OriginPolicy, SignatureAlgorithm, Signer, Unproven};
use casemate_keys::{
    AcceptedCluster, Algorithm, Core, Epoch, Fingerprint, KekError, LineagePrefix, LocalKek, MAX_CORE_LEN,
    MAX_RECORD_LEN, MAX_WRAP_LEN, PolicyError, RECORD_ANNOTATION, ReadPolicy, ReadRule, Readable, Record,
    RecordError, Refusal, Root, Sealed, Skipped, Suite, WritePolicy, payload,
};

use crate::forge::{NOW, Reader, Stored, around_core, key_id_of};
use crate::peers::{Material, Peer, SigningPeer};
use crate::protobuf::{self, Field};
use crate::sample::{self, SEED, Sample, sha256};
use crate::vector::read_policy;
use crate::vectors::named;

const KEY: &str = "4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f";

fn file(version: u32) -> Peer {
    Peer::file(KEY, version, [version as u8; 32])
}

fn kwp(lineage: &str) -> Peer {
    Peer::new(lineage, Algorithm::PKCS11_AES_KWP, Material::Key(sha256(lineage.as_bytes())))
}

fn rsa() -> Peer {
    named("rsa-2048-ecdsa").peers().remove(0)
}

fn ecdsa() -> SigningPeer {
    named("rsa-2048-ecdsa").signer.unwrap().peer()
}

fn pss() -> SigningPeer {
    named("rsa-4096-pss").signer.unwrap().peer()
}

/// Reads exactly these root keys, and asymmetric ones only if `signers` signed.
fn reads(peers: &[Peer], signers: Vec<Signer>) -> ReadPolicy {
    read_policy(sample::cluster(), peers, OriginPolicy::Signed(signers))
}

fn check(policy: &ReadPolicy, sample: &Sample) -> Result<Readable, Refusal> {
    sample.sealed(|sealed| policy.check(sealed, NOW))
}

/// Tries wraps as a plugin does, and counts the calls.
fn open(policy: &ReadPolicy, peers: &[Peer], sample: &Sample) -> (Result<Vec<u8>, String>, usize) {
    let mut reader = Reader::new(policy, peers);
    let stored = Stored {
        ciphertext: sample.ciphertext.clone(),
        key_id: sample.key_id.to_string(),
        annotation: sample.annotation.clone(),
    };
    (reader.open(&stored), reader.calls)
}

fn opens(policy: &ReadPolicy, peers: &[Peer], sample: &Sample) {
    assert_eq!(open(policy, peers, sample).0.as_deref(), Ok(&SEED[..]));
}

/// Why the roots of a record are not read.
fn skipped(policy: &ReadPolicy, sample: &Sample) -> Vec<Skipped> {
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

/// A record under `peers` that names `named` as its signer and carries this signature of its message.
fn signed(peers: &[Peer], named: &SigningPeer, sign: impl Fn(&[u8]) -> Vec<u8>) -> Sample {
    let proper = Sample::with(Suite::One, peers, &[], Some(named));
    let signature = sign(&proper.record.origin_message());
    let wraps = proper.record.wraps().map(|(_, wrap)| wrap.to_vec()).collect();
    let record = Record::new(proper.record.core().clone(), wraps, vec![], Some(signature)).unwrap();
    let annotation = record.encode();
    let ciphertext = proper.kek.seal(Suite::One, &sha256(&annotation), &SEED).unwrap();
    Sample { record, annotation, ciphertext, ..proper }
}

fn unproven(policy: &ReadPolicy, peers: &[Peer], sample: &Sample) -> Unproven {
    assert_eq!(open(policy, peers, sample).1, 0, "nobody is asked");
    match skipped(policy, sample).remove(0) {
        Skipped::Origin(unproven) => unproven,
        other => panic!("skipped for another reason: {other}"),
    }
}

#[test]
fn asymmetric_wraps_need_a_signature_of_a_pinned_key() {
    let peers = [rsa()];
    for signer in [ecdsa(), pss()] {
        let lineage = signer.signer.lineage.clone();
        let bad = Unproven::BadSignature { signer: lineage.clone() };
        let pinned = reads(&peers, vec![signer.signer.clone()]);
        let sample = signed(&peers, &signer, |message| signer.sign(message));
        opens(&pinned, &peers, &sample);

        let unsigned = Sample::of(&peers);
        assert_eq!(unproven(&pinned, &peers, &unsigned), Unproven::Unsigned);
        let elsewhere = Signer { lineage: "pkcs11:other".parse().unwrap(), ..signer.signer.clone() };
        for signers in [vec![], vec![elsewhere]] {
            let unknown = Unproven::UnknownSigner { signer: lineage.clone() };
            assert_eq!(unproven(&reads(&peers, signers), &peers, &sample), unknown);
        }

        // Every bit of the signature, and other lengths.
        let good = sample.record.origin_signature().unwrap().to_vec();
        for byte in 0..good.len() {
            let mut signature = good.clone();
            signature[byte] ^= 1 << (byte % 8);
            let wraps = sample.record.wraps().map(|(_, wrap)| wrap.to_vec()).collect();
            let record = Record::new(sample.record.core().clone(), wraps, vec![], Some(signature)).unwrap();
            assert_eq!(pinned.origin.check(&record), Err(bad.clone()), "byte {byte}");
        }
        for signature in [&good[..good.len() - 1], &good[1..], &[0][..], &[0; 64], &[0; 384], &[0xff; 384]] {
            let planted = signed(&peers, &signer, |_| signature.to_vec());
            assert_eq!(unproven(&pinned, &peers, &planted), bad);
        }

        // Signatures of the right key over something else.
        let other = signed(&peers, &signer, |message| signer.sign(message));
        let others = other.record.origin_signature().unwrap().to_vec();
        assert_eq!(unproven(&pinned, &peers, &signed(&peers, &signer, |_| others.clone())), bad);
        for wrong in 0..4 {
            let planted = signed(&peers, &signer, |message| {
                signer.sign(&match wrong {
                    0 => message[b"casemate.dev/v1/origin\0".len()..].to_vec(),
                    1 => sha256(message).to_vec(),
                    2 => [message, b"\0"].concat(),
                    _ => vec![],
                })
            });
            assert_eq!(unproven(&pinned, &peers, &planted), bad, "{wrong}");
        }
    }
    // A pinned key does not sign for another pinned key.
    let (one, other) = (ecdsa(), pss());
    let both = reads(&peers, vec![one.signer.clone(), other.signer.clone()]);
    for (named, signing) in [(&one, &other), (&other, &one)] {
        let planted = signed(&peers, named, |message| signing.sign(message));
        let signer = named.signer.lineage.clone();
        assert_eq!(unproven(&both, &peers, &planted), Unproven::BadSignature { signer });
    }
}

#[test]
fn signatures_of_other_algorithms_do_not_verify() {
    let peers = [rsa()];
    let random = SystemRandom::new();
    let refused = |signer: &Signer, named: &SigningPeer, sign: &dyn Fn(&[u8]) -> Vec<u8>| {
        let planted = signed(&peers, named, sign);
        let expected = Unproven::BadSignature { signer: named.signer.lineage.clone() };
        assert_eq!(unproven(&reads(&peers, vec![signer.clone()]), &peers, &planted), expected);
    };

    // RSA-PSS with 2048 bits: a good signature of a pinned key that the format does not know.
    let Material::Private(small) = rsa().material else { panic!() };
    let small = SigningPeer::new("pkcs11:51", SignatureAlgorithm::RsaPss3072, small);
    refused(&small.signer, &small, &|message| small.sign(message));
    // The 3072-bit key with another padding, hash or salt.
    let pss = pss();
    let pair = RsaKeyPair::from_pkcs8(&pss.pkcs8).unwrap();
    let encodings: [&'static dyn RsaEncoding; 5] = [
        &RSA_PKCS1_SHA256,
        &RSA_PSS_SHA384,
        &const { RSA_PSS_SHA256.with_pss_salt_length(RsaPssSaltLength::Custom(0)) },
        &const { RSA_PSS_SHA256.with_pss_salt_length(RsaPssSaltLength::Custom(20)) },
        &const { RSA_PSS_SHA256.with_pss_salt_length(RsaPssSaltLength::Custom(384 - 34)) },
    ];
    for encoding in encodings {
        refused(&pss.signer, &pss, &|message| {
            let mut out = vec![0; pair.public_modulus_len()];
            pair.sign(encoding, &random, message, &mut out).unwrap();
            out
        });
    }
    // The P-256 key, r ‖ s instead of DER.
    let ecdsa = ecdsa();
    let fixed = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &ecdsa.pkcs8).unwrap();
    refused(&ecdsa.signer, &ecdsa, &|message| fixed.sign(&random, message).unwrap().as_ref().to_vec());

    // A key of another curve, or of another kind, pinned by mistake.
    let other_curve: &'static EcdsaSigningAlgorithm = &ECDSA_P256K1_SHA256_ASN1_SIGNING;
    let other_curve = EcdsaKeyPair::generate(other_curve).unwrap();
    let spki = other_curve.public_key().as_der().unwrap().as_ref().to_vec();
    for public_key in [spki, other_curve.public_key().as_ref().to_vec()] {
        let pinned = Signer { public_key, ..ecdsa.signer.clone() };
        refused(&pinned, &ecdsa, &|message| other_curve.sign(&random, message).unwrap().as_ref().to_vec());
    }
    for public_key in [vec![], pss.signer.public_key.clone(), vec![4; 65], vec![0; 65]] {
        let pinned = Signer { public_key, ..ecdsa.signer.clone() };
        refused(&pinned, &ecdsa, &|message| ecdsa.sign(message));
    }
    let confused = Signer { algorithm: SignatureAlgorithm::RsaPss3072, ..ecdsa.signer.clone() };
    refused(&confused, &ecdsa, &|message| ecdsa.sign(message));
    let confused = Signer { algorithm: SignatureAlgorithm::EcdsaP256, ..pss.signer.clone() };
    refused(&confused, &pss, &|message| pss.sign(message));
}

#[test]
fn a_symmetric_wrap_is_read_where_the_origin_is_not_proven() {
    let (peers, signer) = ([file(1), rsa()], ecdsa());
    let asymmetric_only = [rsa()];
    let policy = reads(&peers, vec![signer.signer.clone()]);

    let good = signed(&peers, &signer, |message| signer.sign(message));
    assert_eq!(check(&policy, &good).unwrap().attempts().len(), 2);
    opens(&policy, &asymmetric_only, &good);

    for sample in [Sample::of(&peers), signed(&peers, &signer, |_| vec![1; 70])] {
        opens(&policy, &peers, &sample);
        let readable = check(&policy, &sample).unwrap();
        let [attempt] = readable.attempts() else { panic!("the RSA wrap would be tried") };
        assert_eq!(attempt.root, peers[0].root);
        assert!(matches!(skipped(&policy, &sample)[..], [Skipped::Origin(_)]));
        // Whoever can't read the symmetric one reads nothing.
        assert!(
            open(&reads(&asymmetric_only, vec![signer.signer.clone()]), &asymmetric_only, &sample).0.is_err()
        );
        // Unless that is asked for.
        let accept = ReadPolicy { origin: OriginPolicy::AcceptUnproven, ..policy.clone() };
        opens(&accept, &asymmetric_only, &sample);
    }
    // No proof makes a root readable that no rule covers.
    let accept = ReadPolicy { origin: OriginPolicy::AcceptUnproven, ..reads(&[file(2)], vec![]) };
    assert_eq!(skipped(&accept, &Sample::of(&asymmetric_only)), [Skipped::UnknownRoot]);
}

#[test]
fn a_suite_of_a_later_version_is_refused() {
    let (peer, kek) = (file(1), LocalKek::generate());
    let core = |suite| {
        let root = protobuf::encode(&[Field::bytes(1, peer.root.lineage.as_str()), Field::varint(2, 1)]);
        let fields = [
            Field::varint(1, suite),
            Field::bytes(2, "vectors.example"),
            Field::bytes(4, root),
            Field::bytes(6, kek.id().0),
            Field::bytes(8, "test/1"),
        ];
        (protobuf::encode(&fields), key_id_of(&fields))
    };
    let peers = [peer.clone()];
    let policy = reads(&peers, vec![]);
    let check = |suite: u64| {
        let (core, key_id) = core(suite);
        let mut stored = around_core(&core, &key_id, &kek, &peers, &[]);
        stored.ciphertext[0] = suite as u8;
        let annotations = [(RECORD_ANNOTATION, stored.annotation.as_slice())];
        let sealed = Sealed { ciphertext: &stored.ciphertext, key_id: &key_id, annotations: &annotations };
        policy.check(&sealed, NOW).map(drop)
    };
    assert_eq!(check(1), Ok(()));
    for found in [2, 3, 255, 256, 257, u32::MAX] {
        assert_eq!(check(found.into()), Err(Refusal::Record(RecordError::Suite { found })));
    }
}

#[test]
fn limits_of_a_record_are_met_exactly() {
    let peers: Vec<Peer> = (1..=4).map(file).collect();
    let kek = LocalKek::generate();
    let core = |roots: usize, recipients: u8, signer: Option<&SigningPeer>| {
        let recipients = (0..recipients).map(|n| Fingerprint([n; 32])).collect();
        sample::core(Suite::One, &peers[..roots], recipients, signer, &kek)
    };
    let decoded = |record: Result<Record, RecordError>| {
        record.inspect(|record| assert_eq!(Record::decode(&record.encode()).as_ref(), Ok(record)))
    };
    let too_long = |what, found, most| Err(RecordError::TooLong { what, found, most });

    // Wraps, of both kinds; written and read. `raw` is what a careless writer would make.
    let raw = |core: &Core, wrap: &[u8], recovery: &[u8]| {
        let fields = [Field::bytes(1, core.encode()), Field::bytes(2, wrap), Field::bytes(3, recovery)];
        Record::decode(&protobuf::encode(&fields))
    };
    for (length, expected) in [
        (0, Err(RecordError::EmptyWrap)),
        (1, Ok(())),
        (MAX_WRAP_LEN, Ok(())),
        (2049, too_long("a wrap", 2049, 2048)),
    ] {
        let wrap = vec![1; length];
        for (wrap, recovery) in [(wrap.clone(), vec![1]), (vec![1], wrap)] {
            let core = core(1, 1, None);
            assert_eq!(raw(&core, &wrap, &recovery).map(drop), expected);
            let record = Record::new(core, vec![wrap], vec![recovery], None);
            assert_eq!(decoded(record).map(drop), expected);
        }
    }
    // Counts.
    for (wraps, recovery) in [(0, 0), (1, 0), (3, 0), (2, 1)] {
        let record = Record::new(core(2, 0, None), vec![vec![1]; wraps], vec![vec![1]; recovery], None);
        assert!(matches!(record, Err(RecordError::WrapCount { .. })));
    }
    let root = |n: u32| file(n).root;
    for (roots, recipients, expected) in [
        (0, 0, Some(PolicyError::RootCount { found: 0 })),
        (4, 4, None),
        (5, 0, Some(PolicyError::RootCount { found: 5 })),
        (1, 5, Some(PolicyError::RecipientCount { found: 5 })),
    ] {
        let recipients: Vec<_> = (0..recipients).map(|n| Fingerprint([n; 32])).collect();
        let roots: Vec<_> = (1..=roots).map(root).collect();
        let policy = WritePolicy::new(
            Suite::One,
            sample::cluster(),
            Epoch(0),
            roots.clone(),
            recipients.clone(),
            None,
        );
        assert_eq!(policy.err(), expected);
        // The same in a record, sorted as the format wants it.
        let mut fields = vec![Field::varint(1, 1), Field::bytes(2, "vectors.example")];
        fields.extend(roots.iter().map(|root| {
            let number = u64::from(root.algorithm.number());
            Field::bytes(
                4,
                protobuf::encode(&[Field::bytes(1, root.lineage.as_str()), Field::varint(2, number)]),
            )
        }));
        fields.extend(recipients.iter().map(|fingerprint| Field::bytes(5, fingerprint.0)));
        fields.extend([Field::bytes(6, kek.id().0), Field::bytes(8, "test/1")]);
        let mut record = vec![Field::bytes(1, protobuf::encode(&fields))];
        record.extend(roots.iter().map(|_| Field::bytes(2, [1])));
        record.extend(recipients.iter().map(|_| Field::bytes(3, [1])));
        let read = Record::decode(&protobuf::encode(&record)).map(drop);
        assert_eq!(read, expected.map_or(Ok(()), |error| Err(RecordError::Policy(error))));
    }
    // The signature.
    let signer = pss();
    for (length, expected) in [
        (0, Err(RecordError::Signature)),
        (1, Ok(())),
        (384, Ok(())),
        (385, too_long("the origin signature", 385, 384)),
    ] {
        let record = Record::new(core(1, 0, Some(&signer)), vec![vec![1]], vec![], Some(vec![1; length]));
        assert_eq!(decoded(record).map(drop), expected);
    }
    assert_eq!(
        Record::new(core(1, 0, Some(&signer)), vec![vec![1]], vec![], None),
        Err(RecordError::Signature)
    );
    let unnamed = Record::new(core(1, 0, None), vec![vec![1]], vec![], Some(vec![1; 64]));
    assert_eq!(unnamed, Err(RecordError::Signature));
    // The core: a lineage that fills it.
    let filled = |length: usize| {
        let lineage = format!("exec:{}", "a".repeat(length)).parse().unwrap();
        let roots = vec![Root { lineage, algorithm: Algorithm::EXEC }];
        let policy = WritePolicy::new(Suite::One, sample::cluster(), Epoch(0), roots, vec![], None).unwrap();
        Core { policy, ..core(1, 0, None) }
    };
    let room = MAX_CORE_LEN - filled(1000).encode().len() + 1000;
    assert_eq!(filled(room).encode().len(), MAX_CORE_LEN);
    assert!(decoded(Record::new(filled(room), vec![vec![1]], vec![], None)).is_ok());
    let long = filled(room + 1);
    let fields = [Field::bytes(1, long.encode()), Field::bytes(2, [1])];
    let expected = too_long("core", MAX_CORE_LEN + 1, MAX_CORE_LEN);
    assert_eq!(Record::decode(&protobuf::encode(&fields)).map(drop), expected);
    assert_eq!(Record::new(long, vec![vec![1]], vec![], None).map(drop), expected);
    // The record.
    let wraps = |last: usize| vec![vec![1; 2048], vec![1; 2048], vec![1; 2048], vec![1; last]];
    let core = core(4, 0, None);
    let length = Record::new(core.clone(), wraps(1000), vec![], None).unwrap().encode().len();
    let last = MAX_RECORD_LEN - length + 1000;
    let full = decoded(Record::new(core.clone(), wraps(last), vec![], None)).unwrap();
    assert_eq!(full.encode().len(), MAX_RECORD_LEN);
    let expected = too_long("record", MAX_RECORD_LEN + 1, MAX_RECORD_LEN);
    assert_eq!(Record::new(core.clone(), wraps(last + 1), vec![], None).map(drop), expected);
    let mut fields = vec![Field::bytes(1, core.encode())];
    fields.extend(wraps(last + 1).iter().map(|wrap| Field::bytes(2, wrap)));
    assert_eq!(Record::decode(&protobuf::encode(&fields)).map(drop), expected);
}
