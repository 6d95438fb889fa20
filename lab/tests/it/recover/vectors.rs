//! The vectors of `casemate recover` in `vectors/recover`: values as a real kube-apiserver wrote them, with their keys. Later
//! versions must open them; the census opens them in its own tests. `CASEMATE_REGENERATE=1` with this test takes new ones.

use std::{fs, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use casemate_keys::{RECORD_ANNOTATION, Record};
use casemate_lab::{Encryption, Lab, Plugin};
use casemate_recipients::Identity;
use casemate_wire::kms_v2::stored;
use serde_json::{Value, json};

use super::{identity, recover, snapshot, text};

/// Local keys of every kind and length that kube-apiserver accepts.
const LOCAL: [(&str, usize); 7] = [
    ("aescbc", 16),
    ("aescbc", 24),
    ("aescbc", 32),
    ("aesgcm", 16),
    ("aesgcm", 24),
    ("aesgcm", 32),
    ("secretbox", 32),
];

/// One provider that is to write, and others that are to read.
fn configuration(provider: &str, others: &[String]) -> String {
    let others: String = others.iter().map(|other| format!("  - {other}\n")).collect();
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: [secrets]\n  providers:\n  - {provider}\n{others}"
    )
}

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/recover")
}

#[test]
fn local_keys_of_every_length_open_what_kube_apiserver_wrote() {
    let lab = Lab::builder("recover vectors").apiservers(0).start().unwrap();
    let safe = lab.dir().join("safe");
    let recipients = identity(&safe);
    let plugin = Plugin::start(&lab, "ours").unwrap();
    plugin.restart_with(|config| config["providers"][0]["recoveryRecipients"] = recipients).unwrap();
    let server = lab.add_apiserver(Encryption::Identity).unwrap();
    let (mut vectors, mut before) = (Vec::new(), vec!["identity: {}".to_owned()]);
    let mut write = |name: &str, provider: &str, keys: &dyn Fn(&[u8]) -> Value| {
        server.set_encryption(Encryption::Verbatim(configuration(provider, &before))).unwrap();
        before.push(provider.to_owned());
        server.restart().unwrap();
        server.kubectl(&["create", "secret", "generic", name, "--from-literal=word=recovered"]).unwrap();
        let path = format!("/registry/secrets/default/{name}");
        let value = lab.etcd().get(&path).unwrap().unwrap();
        let mut vector = keys(&value);
        vector["path"] = json!(path);
        vector["value"] = json!(hex::encode(&value));
        vectors.push((name.to_owned(), vector));
    };
    for (provider, length) in LOCAL {
        let secret = STANDARD.encode((0..length as u8).map(|byte| byte ^ 0xa5).collect::<Vec<_>>());
        let entry = format!("{provider}: {{keys: [{{name: key-{length}, secret: {secret}}}]}}");
        let config = configuration(&entry, &[]);
        write(&format!("{provider}-{length}"), &entry, &|_| json!({"encryption_config": config}));
    }
    let endpoint = format!("unix://{}", plugin.socket().display());
    let ours = format!("kms: {{apiVersion: v2, name: ours, endpoint: '{endpoint}', timeout: 3s}}");
    write("kms-v2", &ours, &|value| {
        let object = stored::parse(value).unwrap().object;
        let record = Record::decode(&object.annotations[RECORD_ANNOTATION]).unwrap();
        let identity = Identity::parse(&fs::read(&safe).unwrap()).unwrap();
        let (_, wrap) = record.recovery_wraps().next().unwrap();
        // Of a plugin that ends with this test.
        json!({"local_kek": hex::encode(&identity.unwrap(wrap).unwrap()[..32])})
    });

    // All of them at once, from one snapshot.
    let configs: Vec<_> = vectors
        .iter()
        .filter_map(|(name, vector)| {
            let path = lab.dir().join(format!("{name}.yaml"));
            fs::write(&path, vector["encryption_config"].as_str()?).unwrap();
            Some(path)
        })
        .collect();
    let file = snapshot(&lab, "all.db");
    let out = lab.dir().join("out");
    let mut words = vec![
        "snapshot",
        text(&file),
        "--resource",
        "secrets",
        "--identity",
        text(&safe),
        "--out",
        text(&out),
    ];
    words.extend(configs.iter().flat_map(|path| ["--encryption-config", text(path)]));
    recover(words).expect(0);
    let word = format!("\"word\": \"{}\"", STANDARD.encode("recovered"));
    for (name, _) in &vectors {
        let yaml = fs::read_to_string(out.join(format!("default/secrets/{name}.yaml"))).unwrap();
        assert!(yaml.contains(&word), "{name}: {yaml}");
    }

    if std::env::var_os("CASEMATE_REGENERATE").is_some() {
        fs::create_dir_all(folder()).unwrap();
        for (name, vector) in &vectors {
            fs::write(folder().join(format!("{name}.json")), format!("{vector:#}\n")).unwrap();
        }
    }
    let committed = fs::read_dir(folder()).unwrap().count();
    assert_eq!(committed, vectors.len(), "run it with CASEMATE_REGENERATE=1");
}
