//! What version 1 wrote, this version opens: by each key alone.

use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use casemate_keys::origin::OriginPolicy;
use casemate_keys::{Algorithm, Fingerprint, LocalKek, Record};

use crate::forge::{Reader, Stored, key_id_of};
use crate::protobuf::{Value, parse};
use crate::sample::sha256;
use crate::vector::{Vector, read_policy};

/// The vectors of one folder, by name.
pub fn load(folder: &Path) -> Vec<(String, Vector)> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no vectors in {}", folder.display());
    let name = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let read = |path: &Path| serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    paths.iter().map(|path| (name(path), read(path))).collect()
}

pub fn committed() -> Vec<(String, Vector)> {
    load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/v1"))
}

pub fn named(name: &str) -> Vector {
    committed().into_iter().find(|(found, _)| found == name).unwrap().1
}

impl Vector {
    pub fn stored(&self) -> Stored {
        Stored {
            ciphertext: hex::decode(&self.ciphertext).unwrap(),
            key_id: self.key_id.clone(),
            annotation: hex::decode(&self.annotation).unwrap(),
        }
    }

    pub fn record(&self) -> Record {
        Record::decode(&hex::decode(&self.annotation).unwrap()).unwrap()
    }

    pub fn kek(&self) -> LocalKek {
        LocalKek::from_bytes(&hex::decode(&self.local_kek).unwrap()).unwrap()
    }
}

#[test]
fn each_key_alone_opens_its_vector() {
    for (name, vector) in committed() {
        let (stored, kek, record) = (vector.stored(), vector.kek(), vector.record());
        assert!(!vector.keys.is_empty(), "{name}");
        assert_eq!(record.encode(), stored.annotation, "{name}");
        assert_eq!(record.core().kek_id, kek.id(), "{name}");
        for peer in vector.peers() {
            let peers = [peer];
            let signers = vector.signer.iter().map(|key| key.peer().signer).collect();
            let policy = read_policy(vector.cluster(), &peers, OriginPolicy::Signed(signers));
            let mut reader = Reader::new(&policy, &peers);
            let seed = reader.open(&stored).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(hex::encode(seed), vector.dek_source, "{name}");
            assert_eq!(reader.calls, 1, "{name}");
            // Equal ids are equal keys: the id commits to the key.
            assert_eq!(reader.opened[&sha256(&stored.annotation)].id(), kek.id(), "{name}");
        }
    }
}

#[test]
fn key_ids_derive_from_the_core_alone() {
    for (name, vector) in committed() {
        let record = parse(&vector.stored().annotation).unwrap();
        let Value::Bytes(core) = &record[0].value else { panic!("{name}: no core") };
        assert_eq!(key_id_of(&parse(core).unwrap()), vector.key_id, "{name}");
        assert_eq!(vector.record().core().policy.key_id().as_str(), vector.key_id, "{name}");
        assert_eq!(vector.record().core().digest(), sha256(core), "{name}");
    }
}

#[test]
fn signers_and_recipients_are_those_that_the_vector_names() {
    let (mut signed, mut recovered) = (0, 0);
    for (name, vector) in committed() {
        let record = vector.record();
        let signers: Vec<_> = vector.signer.iter().map(|key| key.peer().signer).collect();
        assert_eq!(record.core().policy.signer(), signers.first().map(|signer| &signer.lineage), "{name}");
        if let Some(signature) = record.origin_signature() {
            assert!(!signature.is_empty(), "{name}");
            assert_eq!(OriginPolicy::Signed(signers).check(&record), Ok(()), "{name}");
            signed += 1;
        }
        let named: BTreeSet<_> =
            vector.recovery.iter().map(|age| Fingerprint::of("age-x25519", &age.recipient)).collect();
        let found: BTreeSet<_> = record.recovery_wraps().map(|(fingerprint, _)| *fingerprint).collect();
        assert_eq!(named, found, "{name}");
        recovered += found.len();
    }
    assert!(signed >= 3 && recovered >= 2, "{signed} signed, {recovered} recovery wraps");
}

#[test]
fn every_algorithm_has_a_vector() {
    let found: BTreeSet<Algorithm> = committed()
        .iter()
        .flat_map(|(_, vector)| vector.record().core().policy.roots().to_vec())
        .map(|root| root.algorithm)
        .collect();
    let all: BTreeSet<Algorithm> =
        (1..).map_while(|n| Algorithm::from_number(n).filter(|a| a.name().is_some())).collect();
    assert_eq!(found, all);
}

#[test]
fn a_folder_without_vectors_fails() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("README.md"), "none here").unwrap();
    let path = folder.path().to_owned();
    assert!(catch_unwind(|| load(&path)).is_err());
}
