//! Writes the known-answer vectors of a format version, once. Never run it over a published version:
//! what it wrote is what later versions must open.
//!
//! `cargo run -p casemate-keys --example make_vectors -- vectors/v1` (needs the `age` programs on PATH)
#![allow(clippy::unwrap_used, missing_docs, unused, dead_code, clippy::panic)]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::{self, SystemRandom};
use aws_lc_rs::rsa::{KeySize, PrivateDecryptingKey};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use casemate_keys::origin::SignatureAlgorithm;
use casemate_keys::{Algorithm, Fingerprint, Suite, payload};

#[path = "../tests/it/peers.rs"]
mod peers;
#[path = "../tests/it/sample.rs"]
mod sample;
#[path = "../tests/it/vector.rs"]
mod vector;

use peers::{Material, Peer, SigningPeer};
use sample::{Recipient, Sample};
use vector::{Key, Recovery, SignerKey, Vector};

fn main() {
    let folder = std::env::args().nth(1).expect("the folder to write to");
    let out = |name: &str, vector: &Vector| {
        let path = Path::new(&folder).join(format!("{name}.json"));
        if path.exists() {
            return eprintln!("{} exists: published vectors don't change", path.display());
        }
        std::fs::write(path, serde_json::to_string_pretty(vector).unwrap() + "\n").unwrap();
    };

    let file = || Peer::file(&hex::encode(random::<16>()), 1, random());
    let transit = || {
        let lineage = "transit:team-a/ops%2Ftransit/k8s%20key/3/1796000000";
        Peer::new(lineage, Algorithm::TRANSIT, Material::Key(random()))
    };
    let hsm = |algorithm| {
        let lineage = format!("pkcs11:{}", hex::encode(random::<16>()));
        Peer::new(&lineage, algorithm, Material::Key(random()))
    };
    let rsa = |size| {
        let key = AsDer::<aws_lc_rs::encoding::Pkcs8V1Der<'_>>::as_der(
            &PrivateDecryptingKey::generate(size).unwrap(),
        )
        .unwrap()
        .as_ref()
        .to_vec();
        Peer::new(&lineage_of_public_key(&rsa_spki(&key)), Algorithm::RSA_OAEP_SHA256, Material::Private(key))
    };

    out("file", &plain("One root key in a file.", &[file()]));
    out("transit", &plain("One Transit key, not derived, of type aes256-gcm96.", &[transit()]));
    out("pkcs11-gcm", &plain("One AES key in an HSM, GCM.", &[hsm(Algorithm::PKCS11_AES256_GCM)]));
    out(
        "pkcs11-kwp",
        &plain("One AES key in an HSM, key wrap with padding.", &[hsm(Algorithm::PKCS11_AES_KWP)]),
    );
    let tpm = Peer::new(
        &format!("tpm:{}", hex::encode(random::<16>())),
        Algorithm::TPM_SEALED,
        Material::Key(random()),
    );
    out("tpm", &plain("A key sealed to TPMs.", &[tpm]));
    let four = [file(), transit(), hsm(Algorithm::PKCS11_AES_KWP), hsm(Algorithm::PKCS11_AES256_GCM)];
    out("four-roots", &plain("Four root keys of different kinds: each alone opens it.", &four));

    for (name, lineage, algorithm) in [
        (
            "aws",
            "aws:arn%3Aaws%3Akms%3Aeu-central-1%3A111122223333%3Akey%2F1234abcd/0a1b2c",
            Algorithm::AWS_SYMMETRIC,
        ),
        (
            "google",
            "google:projects%2Fp%2Flocations%2Feu%2FkeyRings%2Fr%2FcryptoKeys%2Fk%2FcryptoKeyVersions%2F1",
            Algorithm::GOOGLE_SYMMETRIC,
        ),
        ("azure", "azure:https%3A%2F%2Fvault.example%2Fkeys%2Fk%2F0123456789abcdef", Algorithm::AZURE_AES_KW),
        ("exec", "exec:smartcard/1", Algorithm::EXEC),
    ] {
        let mut vector = plain(
            "The key service's answer is given: the wrap itself is a placeholder that only the service could open.",
            &[Peer::new(lineage, algorithm, Material::Payload(vec![]))],
        );
        let record = casemate_keys::Record::decode(&hex::decode(&vector.annotation).unwrap()).unwrap();
        let kek = casemate_keys::LocalKek::from_bytes(&hex::decode(&vector.local_kek).unwrap()).unwrap();
        vector.keys[0].payload = Some(hex::encode(*payload::encode(&kek, &record.core().digest())));
        out(name, &vector);
    }

    let ecdsa = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new()).unwrap();
    let lineage = format!("pkcs11:{}", hex::encode(random::<16>()));
    let ecdsa = SigningPeer::new(&lineage, SignatureAlgorithm::EcdsaP256, ecdsa.as_ref().to_vec());
    out(
        "rsa-2048-ecdsa",
        &vector("RSA-OAEP, origin signed with ECDSA P-256.", &[rsa(KeySize::Rsa2048)], &[], Some(&ecdsa)),
    );
    let Material::Private(pss) = rsa(KeySize::Rsa3072).material else { unreachable!() };
    let pss = SigningPeer::new(&lineage_of_public_key(&rsa_spki(&pss)), SignatureAlgorithm::RsaPss3072, pss);
    out(
        "rsa-4096-pss",
        &vector("RSA-OAEP, origin signed with RSA-PSS-3072.", &[rsa(KeySize::Rsa4096)], &[], Some(&pss)),
    );
    out(
        "file-and-rsa",
        &vector(
            "A symmetric and an asymmetric root, signed.",
            &[file(), rsa(KeySize::Rsa2048)],
            &[],
            Some(&ecdsa),
        ),
    );

    let recovery = [age_identity(), age_identity()];
    out("recovery", &vector("One file key and two age recipients.", &[file()], &recovery, None));
}

fn plain(description: &str, peers: &[Peer]) -> Vector {
    vector(description, peers, &[], None)
}

fn vector(description: &str, peers: &[Peer], recovery: &[Recovery], signer: Option<&SigningPeer>) -> Vector {
    let wraps: Vec<_> = recovery
        .iter()
        .map(|age| {
            (Fingerprint::of("age-x25519", &age.recipient), move |payload: &[u8]| {
                age_encrypt(&age.recipient, payload)
            })
        })
        .collect();
    let recipients: Vec<Recipient<'_>> =
        wraps.iter().map(|(f, wrap)| (*f, wrap as &dyn Fn(&[u8]) -> Vec<u8>)).collect();
    let sample = Sample::with(Suite::One, peers, &recipients, signer);
    // The payload is local KEK ‖ D: the one way to see a local KEK's bytes from outside.
    let local_kek = payload::encode(&sample.kek, &[0; 32])[..32].to_vec();
    Vector {
        description: description.into(),
        cluster_id: sample::cluster().to_string(),
        key_id: sample.key_id.to_string(),
        annotation: hex::encode(&sample.annotation),
        ciphertext: hex::encode(&sample.ciphertext),
        dek_source: hex::encode(sample::SEED),
        local_kek: hex::encode(local_kek),
        keys: peers.iter().map(Key::of).collect(),
        recovery: recovery
            .iter()
            .map(|age| Recovery { recipient: age.recipient.clone(), identity: age.identity.clone() })
            .collect(),
        signer: signer.map(SignerKey::of),
    }
}

fn rsa_spki(pkcs8: &[u8]) -> Vec<u8> {
    let public = PrivateDecryptingKey::from_pkcs8(pkcs8).unwrap().public_key();
    AsDer::<aws_lc_rs::encoding::PublicKeyX509Der<'_>>::as_der(&public).unwrap().as_ref().to_vec()
}

fn lineage_of_public_key(spki: &[u8]) -> String {
    format!("pkcs11:{}", hex::encode(&casemate_keys::names::sha256(spki)[..16]))
}

fn random<const N: usize>() -> [u8; N] {
    let mut out = [0; N];
    rand::fill(&mut out).unwrap();
    out
}

fn age_identity() -> Recovery {
    let out = Command::new("age-keygen").output().expect("age-keygen is on PATH");
    let text = String::from_utf8(out.stdout).unwrap();
    let find = |prefix| text.split_whitespace().find(|word| word.starts_with(prefix)).unwrap().to_owned();
    Recovery { recipient: find("age1"), identity: find("AGE-SECRET-KEY-1") }
}

fn age_encrypt(recipient: &str, plaintext: &[u8]) -> Vec<u8> {
    let mut age = Command::new("age")
        .args(["--recipient", recipient])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("age is on PATH");
    age.stdin.take().unwrap().write_all(plaintext).unwrap();
    let out = age.wait_with_output().unwrap();
    assert!(out.status.success());
    out.stdout
}
