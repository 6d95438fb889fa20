//! A wrap that anybody could have made is tried only if a pinned key signed its record.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P256K1_SHA256_ASN1_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
    KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA256, RSA_PSS_SHA384, RsaEncoding, RsaKeyPair, RsaPssSaltLength,
};
use aws_lc_rs::{encoding::AsDer, rand::SystemRandom};
use casemate_keys::origin::{OriginPolicy, SignatureAlgorithm, Signer, Unproven};
use casemate_keys::{ReadPolicy, Record, Skipped, Suite};

use crate::peers::{Material, Peer, SigningPeer};
use crate::read::{check, ecdsa, file, open, opens, pss, reads, rsa, skipped};
use crate::sample::{SEED, Sample, sha256};

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
