//! The independent reader of the formats (Python, written from their page) against the real thing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use casemate_keys::origin::OriginPolicy;
use casemate_keys::{RECORD_ANNOTATION, Sealed};
use casemate_lab::{Lab, Plugin, python};

use crate::vector::{self, Vector};

fn opener(args: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("opener/casemate_open.py");
    Command::new(python().unwrap()).arg("-B").arg(script).args(args).output().unwrap()
}

fn good(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn vectors() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/v1");
    let vectors: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(vectors.len() >= 14);
    vectors
}

#[test]
fn it_opens_every_vector_and_refuses_every_flip() {
    for command in ["vector", "flip"] {
        let paths = vectors();
        let args: Vec<&str> =
            std::iter::once(command).chain(paths.iter().map(|path| path.to_str().unwrap())).collect();
        let told = good(&opener(&args));
        assert_eq!(told.lines().count(), paths.len(), "{told}");
    }
}

#[test]
fn it_opens_a_secret_from_a_real_etcd_down_to_its_bytes() {
    let lab = Lab::builder("opener").apiservers(0).start().unwrap();
    let plugin = Plugin::start(&lab, "kms").unwrap();
    let server = lab.add_apiserver(plugin.encryption()).unwrap();
    server.kubectl(&["create", "secret", "generic", "demo", "--from-literal=word=casemate"]).unwrap();

    let key = "/registry/secrets/default/demo";
    let value = lab.etcd().get(key).unwrap().unwrap();
    let (file, key_file) = (lab.dir().join("value"), plugin.key_file());
    let open = |key: &str, value: &[u8]| {
        std::fs::write(&file, value).unwrap();
        let (file, key_file) = (file.to_str().unwrap(), key_file.to_str().unwrap());
        opener(&[
            "etcd",
            "--key",
            key,
            "--value",
            file,
            "--key-file",
            key_file,
            "--cluster-id",
            "lab",
            "--secret",
            "word",
        ])
    };
    assert_eq!(good(&open(key, &value)), "casemate");

    // The same value at another path, and with any of its last bytes changed, is refused.
    assert!(!open("/registry/secrets/default/other", &value).status.success());
    for position in [30, value.len() / 2, value.len() - 3] {
        let mut changed = value.clone();
        changed[position] ^= 1;
        assert!(!open(key, &changed).status.success(), "byte {position} of {}", value.len());
    }
}

#[test]
fn what_it_makes_opens_here() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.json");
    for path in vectors() {
        // A vector has the shape of a keys file: the same keys, a new record.
        let given: Vector = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        std::fs::copy(&path, &keys).unwrap();
        let seed = "5e".repeat(32);
        let args = [
            "make",
            "--keys",
            keys.to_str().unwrap(),
            "--cluster-id",
            &given.cluster_id,
            "--epoch",
            "7",
            "--dek-source",
            &seed,
        ];
        let made: Vector = serde_json::from_str(&good(&opener(&args))).unwrap();
        assert_ne!(made.annotation, given.annotation);

        let bytes = |hex: &str| hex::decode(hex).unwrap();
        let (annotation, ciphertext) = (bytes(&made.annotation), bytes(&made.ciphertext));
        let annotations = [(RECORD_ANNOTATION, annotation.as_slice())];
        let sealed = Sealed { ciphertext: &ciphertext, key_id: &made.key_id, annotations: &annotations };
        let signers: Vec<_> = made.signer.iter().map(|signer| signer.peer().signer).collect();
        for peer in made.peers() {
            let policy = vector::read_policy(
                made.cluster(),
                std::slice::from_ref(&peer),
                OriginPolicy::Signed(signers.clone()),
            );
            let readable =
                policy.check(&sealed, 0).unwrap_or_else(|refusal| panic!("{}: {refusal}", path.display()));
            let attempt = &readable.attempts()[0];
            let payload = peer.unwrap(readable.core(), &attempt.wrap).unwrap();
            let kek = readable.local_kek(&payload).unwrap();
            assert_eq!(
                readable.open(&kek, &ciphertext).unwrap().as_slice(),
                [0x5e; 32],
                "{}",
                path.display()
            );
        }
    }
}
