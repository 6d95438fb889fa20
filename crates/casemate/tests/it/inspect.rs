//! `casemate inspect`: the published vectors in each dress that they are met in, and the words of the answer.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::assert::Assert;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use casemate_wire::kms_v2::stored::{EncryptedObject, StoredValue};
use serde_json::{Value, json};

use crate::program::casemate;

/// Stands for the encrypted object.
const OBJECT: &[u8] = b"ENCRYPTED OBJECT, longer than what encryption alone adds: sixty bytes and more";

/// One file of `vectors/v1`.
struct Vector {
    name: String,
    json: Value,
}

impl Vector {
    fn all() -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/v1");
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        assert!(files.len() >= 14, "{files:?}");
        let read = |file: &PathBuf| Self {
            name: file.file_stem().unwrap().to_string_lossy().into_owned(),
            json: serde_json::from_slice(&fs::read(file).unwrap()).unwrap(),
        };
        files.iter().map(read).collect()
    }

    fn named(name: &str) -> Self {
        Self::all().into_iter().find(|vector| vector.name == name).unwrap()
    }

    fn bytes(&self, field: &str) -> Vec<u8> {
        hex::decode(self.text(field)).unwrap()
    }

    fn text(&self, field: &str) -> &str {
        self.json[field].as_str().unwrap()
    }

    fn stored(&self) -> Vec<u8> {
        let object = EncryptedObject {
            encrypted_data: OBJECT.into(),
            key_id: self.text("key_id").to_owned(),
            encrypted_dek_source: self.bytes("ciphertext").into(),
            annotations: BTreeMap::from([(
                "record.casemate.dev".to_owned(),
                self.bytes("annotation").into(),
            )]),
            encrypted_dek_source_type: 1,
        };
        StoredValue { provider: "casemate", object }.encode()
    }

    fn reply(&self) -> Vec<u8> {
        let annotation = STANDARD.encode(self.bytes("annotation"));
        let reply = json!({
            "key_id": self.text("key_id"),
            "ciphertext": STANDARD.encode(self.bytes("ciphertext")),
            "annotations": {"record.casemate.dev": annotation},
        });
        serde_json::to_vec(&reply).unwrap()
    }

    /// Everything that must not be printed: keys, and what is encrypted under them, wraps included.
    fn hidden(&self) -> Vec<Vec<u8>> {
        let mut hidden = vec![OBJECT.to_vec(), self.bytes("ciphertext")];
        hidden.extend(["dek_source", "local_kek"].map(|field| self.bytes(field)));
        for key in self.json["keys"].as_array().unwrap() {
            for field in ["secret", "key", "private_key", "payload"] {
                hidden.extend(key[field].as_str().map(|text| hex::decode(text).unwrap()));
            }
        }
        for recovery in self.json["recovery"].as_array().unwrap() {
            hidden.push(recovery["identity"].as_str().unwrap().into());
        }
        hidden.extend(self.json["signer"]["private_key"].as_str().map(|text| hex::decode(text).unwrap()));
        let record = casemate_keys::Record::decode(&self.bytes("annotation")).unwrap();
        hidden.extend(record.wraps().map(|(_, wrap)| wrap.to_vec()));
        hidden.extend(record.recovery_wraps().map(|(_, wrap)| wrap.to_vec()));
        hidden
    }
}

/// Both outputs of one input: JSON, and all that was printed at all.
fn inspect(input: &[u8], code: i32) -> (Value, String) {
    let table = casemate("inspect").write_stdin(input).assert().code(code);
    let json = casemate("inspect --output json -").write_stdin(input).assert().code(code);
    let parsed = serde_json::from_slice(&json.get_output().stdout).unwrap();
    (parsed, printed(&table) + &printed(&json))
}

fn printed(done: &Assert) -> String {
    let output = done.get_output();
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

fn assert_hides(printed: &str, hidden: &[Vec<u8>]) {
    for secret in hidden {
        // The first 16 bytes, in groups of three so that base64 is the same.
        let start = &secret[..secret.len().min(15)];
        let spellings =
            [hex::encode(start), STANDARD.encode(start), String::from_utf8_lossy(start).into_owned()];
        for spelled in spellings {
            assert!(!printed.to_lowercase().contains(&spelled.to_lowercase()), "{spelled:?} in {printed}");
        }
    }
}

#[test]
fn every_vector_in_every_dress() {
    for vector in Vector::all() {
        let hidden = vector.hidden();
        let record = |kind: &str, details: &Value| match kind {
            "record" => details.clone(),
            _ => details["record"].clone(),
        };
        for (kind, input) in [
            ("etcd_kms_v2", vector.stored()),
            ("record", vector.bytes("annotation")),
            ("ciphertext", vector.bytes("ciphertext")),
            ("encrypt_reply", vector.reply()),
        ] {
            let (answer, printed) = inspect(&input, 0);
            assert_eq!(answer["kind"], kind, "{}: {printed}", vector.name);
            assert_eq!(answer["problems"], json!([]), "{}: {printed}", vector.name);
            assert_hides(&printed, &hidden);
            if kind == "ciphertext" {
                assert!(printed.contains("can't be told"), "{printed}");
                assert_eq!(answer["details"]["dek_source_bytes"], 32);
                continue;
            }
            let object = match kind {
                "etcd_kms_v2" => &answer["details"]["object"],
                _ => &answer["details"],
            };
            let record = record(kind, object);
            assert_eq!(record["key_id"], vector.text("key_id"), "{printed}");
            assert_eq!(record["cluster_id"], vector.text("cluster_id"), "{printed}");
            for key in vector.json["keys"].as_array().unwrap() {
                let lineage = key["lineage"].as_str().unwrap();
                let roots = record["roots"].as_array().unwrap();
                assert!(roots.iter().any(|root| root["lineage"] == lineage), "{printed}");
            }
            let recipients = vector.json["recovery"].as_array().unwrap().len();
            assert_eq!(record["recipients"].as_array().unwrap().len(), recipients);
            assert_eq!(record["signer"], vector.json["signer"]["lineage"], "{printed}");
        }
        // The vector itself holds keys and looks much like a reply.
        let file = serde_json::to_vec(&vector.json).unwrap();
        let code = if vector.name == "recovery" { 0 } else { 1 };
        assert_hides(&inspect(&file, code).1, &hidden);
    }
}

#[test]
fn a_stored_value_is_told_in_full() {
    let vector = Vector::named("file");
    let stored = vector.stored();
    let (answer, printed) = inspect(&stored, 0);
    let object = &answer["details"]["object"];
    assert_eq!(answer["verdict"], "recognised");
    assert_eq!(answer["details"]["provider"], "casemate");
    assert_eq!(object["dek_source_type"], "hkdf_sha256_xnonce_aes_gcm_seed");
    let clear = OBJECT.len() - 60;
    assert_eq!(
        object["sizes"],
        json!({"value": stored.len(), "encrypted_data": OBJECT.len(), "object": clear, "overhead": stored.len() - clear})
    );
    assert_eq!(
        object["annotations"],
        json!([{"name": "record.casemate.dev", "bytes": vector.bytes("annotation").len()}])
    );
    assert_eq!(
        (&object["key_id_is_the_records"], &object["ciphertext_can_be_the_records"]),
        (&true.into(), &true.into())
    );
    let root = &object["record"]["roots"][0];
    let id = "de92cc3a987ef1c7b774dc7dcaa60bdd";
    assert_eq!(root["kind"], "file");
    assert_eq!(root["key"], id);
    assert_eq!(root["version"], "1");
    assert_eq!(root["wrap_bytes"], 92);
    for part in [
        &format!(
            "version 1 of file key {id} (deliver its key file, and list the key under rootKeys or readKeys"
        ),
        "), in cluster vectors.example",
        " ago\n",
        "casemate-keys/0.1.0",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    // printf vectors.example:66c59c188e6df16631b97ab2615d93a7 | sha256sum
    let hash = "sha256:b24bd90e4304c31cc3baf71e316dbe31cdb90c26d24c8a462b2185e952dfd6f3";
    assert_eq!(object["key_id_hash"], hash, "{printed}");
}

#[test]
fn several_keys_are_alternatives() {
    let (_, printed) = inspect(&Vector::named("recovery").stored(), 0);
    assert!(printed.contains("any one of, in cluster vectors.example: version 1 of file key "), "{printed}");
    assert!(printed.contains("; the recovery identity with fingerprint "), "{printed}");
    let (_, printed) = inspect(&Vector::named("rsa-2048-ecdsa").stored(), 0);
    assert!(printed.contains("and pin its signer "), "{printed}");
}

#[test]
fn parts_of_two_values_dont_belong_together() {
    let (one, other) = (Vector::named("file"), Vector::named("transit"));
    let mut mixed = one.json.clone();
    mixed["annotation"] = other.json["annotation"].clone();
    let mixed = Vector { name: "mixed".to_owned(), json: mixed };
    let (answer, printed) = inspect(&mixed.stored(), 1);
    assert_eq!(answer["verdict"], "faulty");
    assert_eq!(answer["details"]["object"]["key_id_is_the_records"], false);
    assert!(printed.contains(&format!("write policy, {}", other.text("key_id"))), "{printed}");
    assert!(printed.contains("nothing as it stands"), "{printed}");
}

#[test]
fn input_comes_from_files_and_as_text() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("value");
    let stored = Vector::named("file").stored();
    let from_file = |arguments: &str, content: &[u8], code: i32| {
        fs::write(&file, content).unwrap();
        let printed =
            printed(&casemate(&format!("inspect {arguments} --output json")).arg(&file).assert().code(code));
        // Grows from one run to the next.
        printed.lines().filter(|line| !line.contains("age_seconds")).collect::<Vec<_>>().join("\n")
    };
    let raw = from_file("", &stored, 0);
    let hex = from_file("", hex::encode(&stored).as_bytes(), 0);
    assert_eq!(hex, raw.replace("\"encoding\": \"raw\"", "\"encoding\": \"hex\""));
    assert_eq!(hex, from_file("--hex", hex::encode(&stored).as_bytes(), 0));
    let base64 = STANDARD.encode(&stored);
    assert_eq!(from_file("", base64.as_bytes(), 0), from_file("--base64", base64.as_bytes(), 0));
    let refused = from_file("--hex", &stored, 2);
    assert!(refused.contains("--hex: the input is not hex text"), "{refused}");
    let refused = from_file("--hex --base64", &stored, 2);
    assert!(refused.contains("cannot be used with"), "{refused}");
    fs::remove_file(&file).unwrap();
    let absent = printed(&casemate("inspect").arg(&file).assert().code(2));
    assert!(absent.contains("can't read"), "{absent}");
    let folder = printed(&casemate("inspect").arg(folder.path()).assert().code(2));
    assert!(folder.contains("can't read"), "{folder}");
}

#[test]
fn what_is_not_known_is_not_guessed() {
    for input in
        [&b""[..], b"hello", b"{}", &[0xff; 32], b"c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTMyYnk=", b"deadbeef"]
    {
        let (answer, printed) = inspect(input, 3);
        assert_eq!(
            (&answer["kind"], &answer["verdict"]),
            (&"unknown".into(), &"unknown".into()),
            "{printed}"
        );
        assert!(!printed.contains("c2Vj") && !printed.contains("secret-secret"), "{printed}");
    }
    let done = casemate("inspect --quiet").write_stdin("hello").assert().code(3);
    assert_eq!(printed(&done), "");
}

#[test]
fn a_key_file_is_listed_without_its_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("root.key");
    casemate("key new --file").arg(&file).assert().code(0);
    casemate("key add-version --file").arg(&file).assert().code(0);
    let text = fs::read_to_string(&file).unwrap();
    let (answer, printed) = inspect(text.as_bytes(), 0);
    let states: Vec<&Value> =
        answer["details"]["versions"].as_array().unwrap().iter().map(|version| &version["state"]).collect();
    assert_eq!(states, ["active", "staged"]);
    let secrets: Vec<&str> = text.split("secret: \"").skip(1).map(|rest| &rest[..44]).collect();
    assert_eq!(secrets.len(), 2);
    assert!(!secrets.iter().any(|secret| printed.contains(&secret[..12])), "{printed}");
}
