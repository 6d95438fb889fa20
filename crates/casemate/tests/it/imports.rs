//! Which crate may import which: the whole table, and a check of every crate of the workspace against it.
//!
//! Arrows only point down, and what is absent from the table is forbidden. Three rules:
//! * normal and build dependencies on our own crates are those of the row;
//! * crates under `never` are not reached at all, be it through others' dependencies: for ours that is
//!   what keeps a judge apart from the judged, for outside ones what keeps a crate small enough to audit;
//! * dev-dependencies may be anything that is not one of our own crates under `never`.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cargo_metadata::{CargoOpt, DependencyKind, Metadata, MetadataCommand, PackageId};

/// One row: a crate without its `casemate-` prefix.
struct Row {
    name: &'static str,
    ours: Ours,
    never: &'static [&'static [&'static str]],
}

enum Ours {
    Any,
    Only(&'static [&'static str]),
}

use Ours::{Any, Only};

const ASYNC: &[&str] = &["tokio", "async-std", "smol"];
const CLOCK: &[&str] = &["chrono", "jiff", "time"];
const KUBE: &[&str] = &["kube", "kube-client", "kube-runtime"];
const KUBE_CLIENT: &[&str] = &["kube-client", "kube-runtime"];
const NETWORK: &[&str] = &["h2", "hyper", "reqwest", "rustls", "tonic", "ureq"];
const KEY_SERVICE: &[&str] = &["casemate-keyservice"];
const KEY_SERVICE_SDKS: &[&str] = &[
    "aws-sdk-kms",
    "azure_security_keyvault_keys",
    "casemate-keyservice",
    "cryptoki",
    "google-cloud-kms-v1",
    "tss-esapi",
];
const IMAGES: &[&str] = &["casemate-image-crypt", "casemate-image-trust"];
const JUDGED: &[&str] = &["casemate-keys", "casemate-kms", "casemate-keyservice"];

/// Every crate that there is or is to be.
const TABLE: &[Row] = &[
    // Small enough to audit.
    row("keys", Only(&[]), &[ASYNC, KUBE, NETWORK]),
    row("encryption-config", Only(&[]), &[ASYNC, KUBE, NETWORK]),
    row("report", Only(&[]), &[]),
    row("daemon", Only(&[]), &[]),
    row("wire", Only(&[]), &[]),
    // The `age` crate brings some hundred packages: they stay out of `keys`.
    row("recipients", Only(&["keys"]), &[ASYNC, NETWORK]),
    // Decisions, checked by models: no clock and no I/O of their own.
    row("kms-state", Only(&["keys", "encryption-config"]), &[ASYNC, CLOCK, NETWORK]),
    row("rotation", Only(&["keys", "encryption-config"]), &[ASYNC, CLOCK, NETWORK]),
    // The command line reads custom resources without a controller.
    row("resources", Only(&["keys", "encryption-config", "rotation"]), &[KUBE_CLIENT]),
    // Wraps and unwraps bytes.
    row("keyservice", Only(&["keys"]), &[KUBE, &["casemate-wire"]]),
    // Read-only, and needs no secret.
    row("census", Only(&["keys", "encryption-config", "wire", "report"]), &[KUBE, KEY_SERVICE]),
    // The control plane's trusted base stays small.
    row("kms", Only(&["keys", "recipients", "kms-state", "wire", "keyservice", "daemon"]), &[KUBE, IMAGES]),
    // Offline stays offline: an unwrapper is handed in.
    row("image-crypt", Only(&["keys", "wire", "report"]), &[KUBE, KEY_SERVICE]),
    row("image-trust", Only(&["keys", "wire", "report"]), &[KUBE, KEY_SERVICE]),
    // Started for each layer: small and quick.
    row("decoder", Only(&["image-crypt", "wire"]), &[]),
    row("node", Only(&["image-crypt", "wire", "keyservice", "daemon"]), &[]),
    // One engine for command line and operator.
    row("migrate", Only(&["resources", "rotation", "census", "encryption-config"]), &[KEY_SERVICE]),
    // It asks the plugin; it holds no credentials of a key service.
    row(
        "operator",
        Only(&["resources", "rotation", "migrate", "census", "keys", "image-trust", "report", "daemon"]),
        &[KEY_SERVICE_SDKS],
    ),
    // A judge shares no code with the judged.
    row("certify", Only(&["wire", "report"]), &[JUDGED]),
    row("casemate", Any, &[]),
    row("lab", Any, &[]),
];

const fn row(name: &'static str, ours: Ours, never: &'static [&'static [&'static str]]) -> Row {
    Row { name, ours, never }
}

/// What one crate of the workspace imports, by package name.
#[derive(Clone, Default)]
struct Imports {
    /// Our own crates, as normal or build dependency.
    ours: BTreeSet<String>,
    /// Our own crates, as dev-dependency.
    ours_in_tests: BTreeSet<String>,
    /// Everything reached through normal and build dependencies.
    reached: BTreeSet<String>,
}

/// Each way in which `workspace` breaks the table, one sentence each.
fn violations(workspace: &BTreeMap<String, Imports>) -> Vec<String> {
    workspace
        .iter()
        .flat_map(|(package, imports)| match TABLE.iter().find(|row| row.name == short(package)) {
            Some(row) => violations_of(row, package, imports),
            None => vec![format!("{package} is not in the table: add a row that says what it may import")],
        })
        .collect()
}

fn violations_of(row: &Row, package: &str, imports: &Imports) -> Vec<String> {
    let never: BTreeSet<&str> = row.never.iter().copied().flatten().copied().collect();
    let not_in_row = imports.ours.iter().filter(|import| match row.ours {
        Any => false,
        Only(allowed) => !allowed.contains(&short(import)),
    });
    let forbidden = imports.reached.iter().filter(|import| never.contains(import.as_str()));
    let in_tests = imports.ours_in_tests.iter().filter(|import| never.contains(import.as_str()));
    not_in_row
        .map(|import| format!("{package} may not import {import}"))
        .chain(forbidden.map(|import| format!("{package} may never reach {import}")))
        .chain(in_tests.map(|import| format!("{package} may never import {import}, not in tests either")))
        .collect()
}

fn short(package: &str) -> &str {
    package.strip_prefix("casemate-").unwrap_or(package)
}

#[test]
fn the_workspace_keeps_the_table() {
    // Of the running test, not of its compilation: clones at several places may share a target folder.
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let metadata = MetadataCommand::new()
        .current_dir(folder)
        .features(CargoOpt::AllFeatures)
        .other_options(["--locked", "--filter-platform", "host-tuple"].map(String::from).to_vec())
        .exec()
        .unwrap();
    let workspace = observe(&metadata);
    assert!(workspace["casemate"].ours.contains("casemate-wire"), "nothing was observed");
    assert!(workspace["casemate"].reached.contains("tokio"), "nothing was observed");
    let found = violations(&workspace);
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn a_planted_violation_is_found() {
    let ours = |names: &[&str]| Imports { ours: set(names), reached: set(names), ..Imports::default() };
    let reached = |names: &[&str]| Imports { reached: set(names), ..Imports::default() };
    let in_tests = |names: &[&str]| Imports { ours_in_tests: set(names), ..Imports::default() };
    let cases = [
        ("casemate-keys", ours(&["casemate-wire"]), "casemate-keys may not import casemate-wire"),
        ("casemate-keys", reached(&["tokio"]), "casemate-keys may never reach tokio"),
        ("casemate-kms", ours(&["casemate-lab"]), "casemate-kms may not import casemate-lab"),
        ("casemate-kms", ours(&["casemate"]), "casemate-kms may not import casemate"),
        ("casemate-kms", reached(&["kube-client"]), "casemate-kms may never reach kube-client"),
        ("casemate-kms-state", reached(&["jiff"]), "casemate-kms-state may never reach jiff"),
        (
            "casemate-census",
            reached(&["casemate-keyservice"]),
            "casemate-census may never reach casemate-keyservice",
        ),
        ("casemate-operator", reached(&["aws-sdk-kms"]), "casemate-operator may never reach aws-sdk-kms"),
        (
            "casemate-certify",
            in_tests(&["casemate-keys"]),
            "casemate-certify may never import casemate-keys, not in tests either",
        ),
        (
            "casemate-utils",
            Imports::default(),
            "casemate-utils is not in the table: add a row that says what it may import",
        ),
    ];
    for (package, imports, text) in cases {
        let workspace = BTreeMap::from([(package.to_owned(), imports)]);
        assert_eq!(violations(&workspace), [text]);
    }
}

#[test]
fn what_the_table_allows_is_no_violation() {
    let everything: Vec<String> = TABLE.iter().map(|row| format!("casemate-{}", row.name)).collect();
    let everything: Vec<&str> = everything.iter().map(String::as_str).collect();
    let all = Imports { ours: set(&everything), ours_in_tests: set(&everything), reached: set(&everything) };
    let in_tests =
        Imports { ours_in_tests: set(&["casemate-lab", "casemate-keyservice"]), ..Imports::default() };
    let kms = ["casemate-keys", "casemate-kms-state", "casemate-wire", "casemate-keyservice", "tokio"];
    let workspace = BTreeMap::from([
        ("casemate".to_owned(), all.clone()),
        ("casemate-lab".to_owned(), all),
        ("casemate-keys".to_owned(), in_tests),
        (
            "casemate-kms".to_owned(),
            Imports { ours: set(&kms[..4]), reached: set(&kms), ..Imports::default() },
        ),
    ]);
    assert_eq!(violations(&workspace), Vec::<String>::new());
}

#[test]
fn the_table_is_sound() {
    let names: BTreeSet<&str> = TABLE.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), TABLE.len(), "a crate stands twice in the table");
    for (place, row) in TABLE.iter().enumerate() {
        let Only(allowed) = row.ours else { continue };
        for import in allowed {
            // Rows stand in the order of the arrows, so that a cycle can't be written down.
            let found = TABLE.iter().position(|other| other.name == *import);
            assert!(
                found.is_some_and(|found| found < place),
                "{} may import {import}, which stands below it",
                row.name
            );
        }
    }
}

/// What `cargo metadata` says about each member of the workspace.
fn observe(metadata: &Metadata) -> BTreeMap<String, Imports> {
    let members: BTreeMap<&PackageId, &str> = metadata
        .workspace_packages()
        .into_iter()
        .map(|package| (&package.id, package.name.as_str()))
        .collect();
    let own: BTreeSet<&str> = members.values().copied().collect();
    metadata
        .workspace_packages()
        .into_iter()
        .map(|package| {
            // Declared ones: an optional dependency counts whether its feature is on or not.
            let declared = |kinds: &[DependencyKind]| {
                let wanted =
                    package.dependencies.iter().filter(|dependency| kinds.contains(&dependency.kind));
                wanted
                    .map(|dependency| dependency.name.clone())
                    .filter(|name| own.contains(name.as_str()))
                    .collect()
            };
            let imports = Imports {
                ours: declared(&[DependencyKind::Normal, DependencyKind::Build]),
                ours_in_tests: declared(&[DependencyKind::Development]),
                reached: reached(metadata, &package.id),
            };
            (package.name.to_string(), imports)
        })
        .collect()
}

fn reached(metadata: &Metadata, from: &PackageId) -> BTreeSet<String> {
    let nodes: BTreeMap<&PackageId, _> =
        metadata.resolve.as_ref().unwrap().nodes.iter().map(|node| (&node.id, node)).collect();
    let mut found = BTreeSet::new();
    let mut queue = VecDeque::from([from]);
    while let Some(id) = queue.pop_front() {
        for dependency in &nodes[id].deps {
            let ships = dependency.dep_kinds.iter().any(|kind| kind.kind != DependencyKind::Development);
            if ships && found.insert(&dependency.pkg) {
                queue.push_back(&dependency.pkg);
            }
        }
    }
    found.into_iter().map(|id| metadata[id].name.to_string()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| name.to_string()).collect()
}
