//! `casemate-encryption-config` against kube-apiserver's own loader: the same verdicts, the same hash, the same
//! prefixes in etcd, the same readers; on the crate's corpus and on mutations of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use casemate_encryption_config::{
    EncryptionConfiguration, Fault, GroupResource, Provider, Refused, ServerFlags, file_hash,
};
use casemate_lab::Tool;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use proptest::{prelude::*, sample::select, strategy::ValueTree as _};
use serde_json::Value;
use tempfile::TempDir;

const RESOURCES: &[&str] = &[
    "secrets",
    "configmaps",
    "events",
    "pods",
    "deployments.apps",
    "x.apps",
    "jobs.batch",
    "pandas.awesome.bears.example",
    "extensions",
    "x.y",
];

/// What its program stores.
const PLAINTEXT: &str = r#"{"kind":"Secret"}"#;

/// What the loader says about a folder of files.
struct Loader {
    /// By file and flags: hash, and why it is refused.
    verdicts: Vec<(String, ServerFlags, String, Option<String>)>,
    /// By file and resource: what is stored. For files that are accepted with KMS v1 and without reload.
    written: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// Who reads whose, of which resource: (by, from, resource) → stale, if it can be read.
    readings: BTreeMap<(String, String, String), Option<bool>>,
}

impl Loader {
    /// Nothing is written where no `resources` are named.
    fn read(folder: &Path, resources: &[&str]) -> Self {
        let mut command = Command::new(Tool::EncryptionConfig.path().unwrap());
        let output = command.arg("read").arg(folder).args(resources).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut loader = Self { verdicts: vec![], written: BTreeMap::new(), readings: BTreeMap::new() };
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            loader.hear(&serde_json::from_str(line).unwrap());
        }
        loader
    }

    fn hear(&mut self, told: &Value) {
        let text = |name: &str| told[name].as_str().unwrap().to_owned();
        let truth = |name: &str| told[name].as_bool().unwrap();
        if told.get("by").is_some() {
            let stale = truth("readable").then(|| truth("stale"));
            self.readings.insert((text("by"), text("from"), text("resource")), stale);
            return;
        }
        let flags = ServerFlags { automatic_reload: truth("reload"), kms_v1: truth("kmsV1") };
        let error = Some(text("error")).filter(|error| !error.is_empty());
        self.verdicts.push((text("file"), flags, text("hash"), error));
        if let Some(written) = told.get("written") {
            let stored = |value: &Value| STANDARD.decode(value.as_str().unwrap()).unwrap();
            let written = written.as_object().unwrap();
            let written = written.iter().map(|(resource, value)| (resource.clone(), stored(value))).collect();
            self.written.insert(text("file"), written);
        }
    }
}

/// The crate's corpus, flat.
fn corpus() -> BTreeMap<String, Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/encryption-config/tests/corpus");
    let mut files = BTreeMap::new();
    for folder in fs::read_dir(corpus).unwrap() {
        let folder = folder.unwrap();
        for file in fs::read_dir(folder.path()).unwrap() {
            let path = file.unwrap().path();
            let [folder, name] =
                [folder.path(), path.clone()].map(|path| path.file_name().unwrap().to_owned());
            let name = format!("{}--{}", folder.to_str().unwrap(), name.to_str().unwrap());
            files.insert(name, fs::read(path).unwrap());
        }
    }
    files
}

fn laid_out(files: &BTreeMap<String, Vec<u8>>) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, file) in files {
        fs::write(folder.path().join(name), file).unwrap();
    }
    folder
}

/// Whether it is about syntax, and the file may be one that only a reader of YAML 1.1 understands.
fn may_be_stricter(refused: &Refused) -> bool {
    let of_syntax = |fault: &Fault| matches!(fault, Fault::Json | Fault::LineEnd | Fault::Tag | Fault::Yaml);
    refused.problems().iter().all(|problem| of_syntax(&problem.fault))
}

/// Each way in which the two differ about `files`.
fn differences(files: &BTreeMap<String, Vec<u8>>, loader: &Loader) -> Vec<String> {
    let mut found = Vec::new();
    for (name, flags, hash, error) in &loader.verdicts {
        let file = &files[name];
        // Of an empty file it has none.
        if !file.is_empty() && *hash != file_hash(file) {
            found.push(format!("{name}: {hash}"));
        }
        let said = match (EncryptionConfiguration::read(file, *flags), error) {
            (Ok(_), Some(error)) => format!("it refuses: {error}"),
            (Err(refused), None) if !may_be_stricter(&refused) => format!("it accepts: {refused}"),
            _ => continue,
        };
        found.push(format!("{name}, {flags:?}: {said}\n{}", file.escape_ascii()));
    }
    found
}

#[test]
fn the_corpus_is_judged_as_kube_apiserver_does() {
    let files = corpus();
    let folder = laid_out(&files);
    let loader = Loader::read(folder.path(), RESOURCES);
    assert_eq!(loader.verdicts.len(), 4 * files.len());
    let found = differences(&files, &loader);
    assert!(found.is_empty(), "{}", found.join("\n"));

    let flags = ServerFlags { automatic_reload: false, kms_v1: true };
    let configs: BTreeMap<&str, EncryptionConfiguration> = loader
        .written
        .keys()
        .map(|name| (name.as_str(), EncryptionConfiguration::read(&files[name], flags).unwrap()))
        .collect();
    assert!(configs.len() > 80, "{}", configs.len());
    what_is_written_has_its_prefix(&configs, &loader);
    what_is_written_has_its_readers(&configs, &loader);
}

fn what_is_written_has_its_prefix(configs: &BTreeMap<&str, EncryptionConfiguration>, loader: &Loader) {
    for (name, config) in configs {
        for resource in RESOURCES {
            let writer = config.coverage(&GroupResource::parse(resource)).writer();
            let stored = loader.written[*name].get(*resource);
            // Nobody answers for KMS v1.
            if let Provider::KmsV1(_) = writer.provider {
                assert_eq!(stored, None, "{name}, {resource}");
                continue;
            }
            let stored = stored.unwrap();
            let prefix = writer.write_prefix();
            assert!(stored.starts_with(prefix.as_bytes()), "{name}, {resource}: {}", stored.escape_ascii());
            // The rest is as long as what the cipher makes, so that the name is not longer.
            let rest = stored.len() - prefix.len();
            let expected = match writer.provider {
                Provider::Identity => Some(PLAINTEXT.len()),
                Provider::AesCbc(_) => Some(16 + PLAINTEXT.len().next_multiple_of(16)),
                Provider::AesGcm(_) => Some(12 + PLAINTEXT.len() + 16),
                Provider::Secretbox(_) => Some(24 + 16 + PLAINTEXT.len()),
                _ => None,
            };
            assert!(expected.is_none_or(|expected| expected == rest), "{name}, {resource}: {rest}");
        }
    }
}

/// A value is read by the first reader that has what it was written with; whether that is stale is told.
fn what_is_written_has_its_readers(configs: &BTreeMap<&str, EncryptionConfiguration>, loader: &Loader) {
    let (mut read, mut stale) = (0, 0);
    for ((by, from, resource), told) in &loader.readings {
        let asked = GroupResource::parse(resource);
        let writer = configs[from.as_str()].coverage(&asked).writer();
        // CBC authenticates nothing: another key reads now and then.
        if let Provider::AesCbc(_) = writer.provider {
            continue;
        }
        let stored = &loader.written[from][resource];
        let coverage = configs[by.as_str()].coverage(&asked);
        let expected = coverage.readers(stored).into_iter().find(|reader| {
            reader.key.map(|key| &key.secret) == writer.provider.local_keys().first().map(|key| &key.secret)
                && reader.prefix_len == writer.write_prefix().len()
        });
        assert_eq!(expected.map(|reader| reader.stale), *told, "{by} reads {resource} of {from}");
        read += usize::from(told.is_some());
        stale += usize::from(*told == Some(true));
    }
    assert!(read > 1000 && stale > 20, "{read}, {stale}");
}

/// What is put into files: what YAML, JSON and the format make something of.
const WORDS: &[&str] = &[
    "'",
    "\"",
    ":",
    ": ",
    " ",
    "\n",
    "\n  ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    ",",
    "#",
    " # ",
    "&a ",
    "*a",
    "<<: ",
    "!!str ",
    "!x ",
    "|",
    ">",
    "%",
    "~",
    "null",
    "yes",
    "1",
    "-1",
    "0x1",
    "1e3",
    ".5",
    "''",
    "\\",
    "\t",
    "\r",
    "\u{85}",
    "\u{2028}",
    "ü",
    "\u{feff}",
    "---\n",
    "...\n",
    "? ",
    "@",
    "`",
    "*.",
    "*.*",
    "*.apps",
    "secrets",
    "events",
    ".events.k8s.io",
    "identity: {}",
    "kms:",
    "aescbc",
    "aesgcm",
    "secretbox",
    "keys",
    "name",
    "secret",
    "apiVersion: v2",
    "v1",
    "v2",
    "cachesize: 5",
    "timeout: 3s",
    "0s",
    "unix:///",
    "@h",
    "%20",
    "resources:",
    "providers:",
    "AwMD",
    "==",
    "=",
];

/// A file with some bytes replaced: by nothing, by words, by what stands elsewhere in it.
fn mutated(file: &str) -> impl Strategy<Value = String> + use<> {
    let length = file.chars().count();
    let edit = (
        0..=length,
        0_usize..12,
        prop_oneof![2 => select(WORDS).prop_map(Some), 1 => Just(None)],
        0..=length,
    );
    let characters: Vec<char> = file.chars().collect();
    prop::collection::vec(edit, 1..3).prop_map(move |edits| {
        let mut characters = characters.clone();
        for (at, cut, word, elsewhere) in edits {
            let at = at.min(characters.len());
            let end = (at + cut).min(characters.len());
            let from = elsewhere.min(characters.len());
            let new: Vec<char> = match word {
                Some(word) => word.chars().collect(),
                None => characters[from..(from + cut).min(characters.len())].to_vec(),
            };
            characters.splice(at..end, new);
        }
        characters.into_iter().collect()
    })
}

#[test]
fn mutations_are_judged_as_kube_apiserver_does() {
    const EACH: usize = 40;

    // The same ones each time: what differs is to be found by whoever changed something.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut files = BTreeMap::new();
    for (name, file) in corpus() {
        // What is refused is rarely accepted after a change.
        if name.starts_with("refused") {
            continue;
        }
        let text = String::from_utf8(file).unwrap();
        for place in 0..EACH {
            let text = mutated(&text).new_tree(&mut runner).unwrap().current();
            files.insert(format!("{place}--{name}"), text.into_bytes());
        }
    }
    let folder = laid_out(&files);
    let loader = Loader::read(folder.path(), &[]);
    assert_eq!(loader.verdicts.len(), 4 * files.len());
    let accepted: BTreeSet<&str> = loader
        .verdicts
        .iter()
        .filter(|verdict| verdict.3.is_none())
        .map(|verdict| verdict.0.as_str())
        .collect();
    assert!(accepted.len() > files.len() / 30, "{} of {}", accepted.len(), files.len());
    let found = differences(&files, &loader);
    assert!(found.is_empty(), "{} of {}\n{}", found.len(), files.len(), found.join("\n"));
}
