//! `casemate recovery`: identities, and drills with the published vectors.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use assert_cmd::assert::Assert;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use casemate_keys::names::sha256;
use casemate_keys::{Core, Epoch, LocalKek, RECORD_ANNOTATION, Record, Root, Suite, WritePolicy, payload};
use casemate_kms::config::Config;
use casemate_recipients::Identity;
use casemate_wire::kms_v2::stored::{EncryptedObject, StoredValue};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::program::casemate;

/// A folder for files, and all that was ever printed.
struct Bench {
    folder: TempDir,
    printed: String,
}

impl Bench {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), printed: String::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        fs::write(self.path(name), content).unwrap();
        self.path(name)
    }

    fn run(&mut self, arguments: &str, paths: &[&Path], code: i32) -> Assert {
        let mut paths = paths.iter();
        let mut command = casemate("recovery");
        for argument in arguments.split_whitespace() {
            match argument {
                "FILE" => command.arg(paths.next().unwrap()),
                word => command.arg(word),
            };
        }
        self.done(command.assert(), code)
    }

    fn done(&mut self, done: Assert, code: i32) -> Assert {
        let output = done.get_output();
        for printed in [&output.stdout, &output.stderr] {
            self.printed += &String::from_utf8_lossy(printed);
        }
        done.code(code)
    }

    /// The answer to a drill of one value.
    fn drill(&mut self, identity: &Path, value: impl AsRef<[u8]>, code: i32) -> Value {
        let value = self.file("value", value);
        let done = self.run("test --identity FILE --value FILE --output json", &[identity, &value], code);
        json_of(&done)["values"][0].clone()
    }

    /// No part of a secret may be in what was printed.
    fn assert_hides(&self, secrets: &[&str]) {
        let printed = self.printed.to_lowercase();
        for secret in secrets {
            assert!(!printed.contains(&secret.to_lowercase()), "{}", self.printed);
        }
    }
}

fn json_of(done: &Assert) -> Value {
    serde_json::from_slice(&done.get_output().stdout).unwrap()
}

fn told(done: &Assert) -> String {
    String::from_utf8_lossy(&done.get_output().stderr).into_owned()
}

/// `vectors/v1/NAME.json`.
struct Vector(Value);

impl Vector {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/v1").join(name);
        Self(serde_json::from_slice(&fs::read(path).unwrap()).unwrap())
    }

    fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap()
    }

    fn bytes(&self, field: &str) -> Vec<u8> {
        hex::decode(self.text(field)).unwrap()
    }

    fn identity(&self, index: usize) -> &str {
        self.0["recovery"][index]["identity"].as_str().unwrap()
    }

    fn etcd(&self) -> Vec<u8> {
        etcd(self.text("key_id"), &self.bytes("annotation"), &self.bytes("ciphertext"))
    }

    fn reply(&self) -> String {
        json!({
            "key_id": self.text("key_id"),
            "ciphertext": STANDARD.encode(self.bytes("ciphertext")),
            "annotations": {RECORD_ANNOTATION: STANDARD.encode(self.bytes("annotation"))},
        })
        .to_string()
    }
}

fn etcd(key_id: &str, annotation: &[u8], ciphertext: &[u8]) -> Vec<u8> {
    let object = EncryptedObject {
        encrypted_data: vec![7; 100].into(),
        key_id: key_id.into(),
        encrypted_dek_source: ciphertext.to_vec().into(),
        annotations: [(RECORD_ANNOTATION.to_owned(), annotation.to_vec().into())].into(),
        encrypted_dek_source_type: 1,
    };
    StoredValue { provider: "casemate", object }.encode()
}

#[test]
fn a_new_identity_is_in_its_file_alone() {
    let mut bench = Bench::new();
    let out = bench.path("identity");
    let done = bench.run("new --out FILE --output json --name bank", &[&out], 0);
    let answer = json_of(&done);
    let text = fs::read_to_string(&out).unwrap();
    assert_eq!(out.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    let identity = Identity::parse(text.as_bytes()).unwrap();
    assert_eq!(answer["recipient"], identity.recipient().to_string());
    assert_eq!(answer["fingerprint"], identity.recipient().fingerprint().to_string());
    let entry = json!([{"name": "bank", "age": answer["recipient"]}]);
    assert_eq!(answer["configuration"]["recoveryRecipients"], entry);
    let secret = text.lines().last().unwrap();
    assert!(secret.starts_with("AGE-SECRET-KEY-1"));
    bench.assert_hides(&[&secret[16..36], "AGE-SECRET-KEY"]);

    // It can be tried at once; only a value tells more.
    let done = bench.run("test --identity FILE", &[&out], 3);
    assert!(told(&done).contains("--value"), "{}", told(&done));
    let shown = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    assert!(shown.contains(answer["recipient"].as_str().unwrap()), "{shown}");
}

#[test]
fn what_new_prints_is_a_configuration() {
    let mut bench = Bench::new();
    let out = bench.path("identity");
    let done = bench.run("new --out FILE", &[&out], 0);
    let snippet = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
    // As it is printed: it stands deep enough for the examples of the documentation.
    assert!(
        snippet.contains("# its `rootKeys`, which is as it stands here:\n    recoveryRecipients:\n"),
        "{snippet}"
    );
    let text = format!(
        "apiVersion: casemate.dev/v1alpha1\nkind: KmsConfiguration\nclusterId: a\nproviders:\n  - name: a\n    \
         endpoint: unix:///a\n    rootKeys: [{{name: a, file: {{path: /a, id: {}}}}}]\n{snippet}",
        "0".repeat(32)
    );
    let config = Config::parse(&text, Path::new("printed")).unwrap();
    let identity = Identity::parse(&fs::read(&out).unwrap()).unwrap();
    assert_eq!(config.providers[0].recipients(), [identity.recipient()]);
}

#[test]
fn an_identity_is_never_overwritten() {
    let mut bench = Bench::new();
    let there = bench.file("there", "somebody's");
    let link = bench.path("link");
    symlink(bench.path("nowhere"), &link).unwrap();
    for (path, word) in
        [(&there, "overwritten"), (&link, "overwritten"), (&bench.path("no/folder"), "can be made")]
    {
        let done = bench.run("new --out FILE", &[path], 2);
        assert!(told(&done).contains(word), "{}", told(&done));
        assert!(done.get_output().stdout.is_empty());
    }
    assert_eq!(fs::read_to_string(there).unwrap(), "somebody's");
    assert!(!bench.path("nowhere").exists());
    bench.run("new --out FILE --name Safe!", &[&bench.path("new")], 2);
    assert!(!bench.path("new").exists());
}

#[test]
fn each_identity_opens_the_vector_in_each_dress() {
    let (mut bench, vector) = (Bench::new(), Vector::new("recovery.json"));
    let dresses: [(&str, Vec<u8>); 7] = [
        ("etcd_value", vector.etcd()),
        ("etcd_value", [vector.etcd(), b"\n".to_vec()].concat()),
        ("etcd_value", hex::encode(vector.etcd()).into_bytes()),
        ("encrypt_reply", vector.reply().into_bytes()),
        ("record", vector.bytes("annotation")),
        ("record", vector.text("annotation").as_bytes().to_vec()),
        ("record", [vector.bytes("annotation"), vec![9; 32]].concat()),
    ];
    for index in 0..2 {
        let identity = bench.file("identity", vector.identity(index));
        for (kind, value) in &dresses {
            let answer = bench.drill(&identity, value, 0);
            assert_eq!((&answer["outcome"], &answer["kind"]), (&json!("opens"), &json!(kind)));
            assert_eq!((&answer["origin"], &answer["problem"]), (&json!("unproven"), &Value::Null));
            assert_eq!(answer["key_id"], vector.text("key_id"));
            let dek_source = if *kind == "record" { "absent" } else { "opens" };
            assert_eq!(answer["dek_source"], dek_source);
        }
        let value = bench.file("value", vector.etcd());
        let done = bench.run("test --identity FILE --value FILE", &[&identity, &value], 0);
        let table = String::from_utf8_lossy(&done.get_output().stdout).into_owned();
        assert!(table.contains("unproven") && table.contains("1 of 1"), "{table}");
    }
    let local_kek = vector.text("local_kek");
    let base64 = STANDARD.encode(vector.bytes("local_kek"));
    bench.assert_hides(&[
        &local_kek[..16],
        &base64[..16],
        &vector.text("dek_source")[..16],
        &vector.identity(0)[20..40],
        &vector.identity(1)[20..40],
    ]);
}

#[test]
fn what_an_identity_does_not_open_is_told() {
    let (mut bench, vector) = (Bench::new(), Vector::new("recovery.json"));
    let stranger = bench.file("stranger", Identity::generate().render("").as_bytes());
    let answer = bench.drill(&stranger, vector.etcd(), 1);
    assert_eq!(answer["outcome"], "not_for_this_identity");
    assert_eq!(answer["recipients"].as_array().unwrap().len(), 2);
    assert_eq!((&answer["origin"], &answer["dek_source"]), (&Value::Null, &Value::Null));
    let identity = bench.file("identity", vector.identity(0));
    let answer = bench.drill(&identity, Vector::new("file.json").etcd(), 1);
    assert_eq!((&answer["outcome"], &answer["recipients"]), (&json!("not_for_this_identity"), &json!([])));
    for unknown in [&b"nothing"[..], b"", b"k8s:enc:aescbc:v1:key1:0123456789", b"{\"kind\": \"Secret\"}"] {
        assert_eq!(bench.drill(&identity, unknown, 3)["outcome"], "unknown");
    }
    assert_eq!(bench.drill(&identity, etcd("other", b"a", b"b"), 1)["outcome"], "damaged");

    // Several at once: all are told, the worst decides.
    let (good, not, unknown) = (
        bench.file("good", vector.etcd()),
        bench.file("not", Vector::new("file.json").etcd()),
        bench.file("no", "?"),
    );
    let all = "test --identity FILE --value FILE --value FILE --value FILE --output json";
    let answer = json_of(&bench.run(all, &[&identity, &good, &not, &unknown], 1));
    let outcomes: Vec<_> = answer["values"].as_array().unwrap().iter().map(|one| &one["outcome"]).collect();
    assert_eq!(outcomes, ["opens", "not_for_this_identity", "unknown"]);
    assert_eq!(answer["opened"], 1);
    let two = "test --identity FILE --value FILE --value FILE";
    bench.run(two, &[&identity, &good, &unknown], 3);

    // From stdin.
    let piped =
        casemate("recovery test --value - --identity").arg(&identity).write_stdin(vector.etcd()).assert();
    bench.done(piped, 0);
}

#[test]
fn any_changed_bit_of_record_or_ciphertext_is_told() {
    let (mut bench, vector) = (Bench::new(), Vector::new("recovery.json"));
    let identity = bench.file("identity", vector.identity(1));
    let (annotation, ciphertext) = (vector.bytes("annotation"), vector.bytes("ciphertext"));
    // Each field is met; every bit is flipped in the crates below.
    let paths: Vec<PathBuf> = (0..annotation.len() + ciphertext.len())
        .step_by(7)
        .map(|at| {
            let (mut annotation, mut ciphertext) = (annotation.clone(), ciphertext.clone());
            match annotation.get_mut(at) {
                Some(byte) => *byte ^= 1,
                None => ciphertext[at - annotation.len()] ^= 1,
            }
            bench.file(&format!("at-{at}"), etcd(vector.text("key_id"), &annotation, &ciphertext))
        })
        .collect();
    let mut command = casemate("recovery test --output json --identity");
    command.arg(&identity);
    for path in &paths {
        command.arg("--value").arg(path);
    }
    let answer = json_of(&bench.done(command.assert(), 1));
    assert_eq!(answer["opened"], 0);
    let values = answer["values"].as_array().unwrap();
    assert_eq!(values.len(), paths.len());
    for value in values {
        assert!(
            ["damaged", "not_for_this_identity"].contains(&value["outcome"].as_str().unwrap()),
            "{value:#}"
        );
    }
}

/// A wrap that opens to something else than the local KEK of the record around it.
#[test]
fn a_planted_wrap_does_not_pass_for_the_records_own() {
    let (mut bench, secret) = (Bench::new(), Identity::generate());
    let identity = bench.file("identity", secret.render("").as_bytes());
    let (kek, other) = (LocalKek::generate(), LocalKek::generate());
    let root = Root { lineage: "exec:a".parse().unwrap(), algorithm: casemate_keys::Algorithm::EXEC };
    let recipient = secret.recipient();
    let policy = WritePolicy::new(
        Suite::One,
        "prod".parse().unwrap(),
        Epoch(0),
        vec![root],
        vec![recipient.fingerprint()],
        None,
    )
    .unwrap();
    let core = Core { policy, kek_id: kek.id(), created: 1, writer: "test/1".parse().unwrap() };
    let digest = core.digest();
    let value = |payload: &[u8; payload::LEN], sealing: &LocalKek| {
        let wrap = recipient.wrap(payload).unwrap();
        let annotation = Record::new(core.clone(), vec![vec![1]], vec![wrap], None).unwrap().encode();
        let ciphertext = sealing.seal(Suite::One, &sha256(&annotation), &[5; 32]).unwrap();
        etcd(core.policy.key_id().as_str(), &annotation, &ciphertext)
    };
    assert_eq!(bench.drill(&identity, value(&payload::encode(&kek, &digest), &kek), 0)["outcome"], "opens");
    for planted in [
        value(&payload::encode(&other, &digest), &other),
        value(&payload::encode(&kek, &[0; 32]), &kek),
        value(&payload::encode(&kek, &digest), &other),
    ] {
        assert_eq!(bench.drill(&identity, planted, 1)["outcome"], "damaged");
    }
}

#[test]
fn files_that_are_no_identity_are_told_and_not_quoted() {
    let (mut bench, vector) = (Bench::new(), Vector::new("recovery.json"));
    let (one, two) = (vector.identity(0).to_owned(), vector.identity(1));
    for (text, word) in [
        (String::new(), "no identity in it"),
        (format!("{one}\n{two}\n"), "second identity"),
        (one.replace("1ET0", "1ET1"), "line 1"),
        (one.to_lowercase(), "line 1"),
        ("age-encryption.org/v1\n-> scrypt".to_owned(), "encrypted itself"),
    ] {
        let identity = bench.file("identity", text);
        let done = bench.run("test --identity FILE", &[&identity], 2);
        assert!(told(&done).contains(word), "{}", told(&done));
    }
    bench.assert_hides(&[&one[24..40], &two[24..40]]);
    bench.run("test --identity FILE", &[&bench.path("absent")], 2);
    bench.run("test", &[], 2);
    let identity = bench.file("identity", one);
    bench.run("test --identity FILE --value FILE", &[&identity, &bench.path("absent")], 2);
}

#[test]
fn recover_tells_what_is_wrong_with_an_identity_before_anything_is_opened() {
    let secret = "c2VjcmV0LXRoYXQtaXMtbmV2ZXItcXVvdGVkLTAwMDE=";
    let bench = Bench::new();
    let identity = bench.file("identity", format!("AGE-SECRET-KEY-1{secret}\n"));
    for (path, says) in [(identity, "line 1"), (bench.path("absent"), "absent")] {
        let done = casemate(&format!("recover drill a.db --identity {}", path.display())).assert().code(2);
        assert!(told(&done).contains(says) && !told(&done).contains(secret), "{}", told(&done));
    }
}
