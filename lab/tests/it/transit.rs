//! Root keys in Transit, as the product uses them, with the rights of the documented policy and no others.

use std::{fs, future::Future, path::Path, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use casemate_keys::{Algorithm, Digest, Root};
use casemate_keyservice::{
    Class, Failure, RootKey,
    http::Tls,
    transit::{Auth, Selection, TransitConfig, TransitKey},
};
use casemate_lab::{Authority, FaultProxy, Lab, OpenBao, openbao::JwtIssuer};
use serde_json::{Value, json};

mod idle;
mod keys;
mod login;
mod outages;
mod vector;

const CORE: Digest = [7; 32];
const PAYLOAD: [u8; 64] = [0x5a; 64];

/// The policy that the page for admins gives: all rights that these tests have.
fn documented_policy() -> &'static str {
    let page = include_str!("../../../docs/how-to/openbao.md");
    let (_, after) = page.split_once("```hcl\n").unwrap();
    after.split_once("```").unwrap().0
}

fn lab(name: &str) -> Lab {
    Lab::builder(name).apiservers(0).start().unwrap()
}

/// Runs what is asynchronous. Every call has a bound: nothing of this may hang.
fn run<T>(story: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(300), story).await.unwrap() })
}

/// A server with key `casemate` in mount `transit` and the documented policy.
fn prepared(lab: &Lab) -> OpenBao<'_> {
    let bao = OpenBao::dev(lab).unwrap();
    prepare(&bao);
    bao
}

fn prepare(bao: &OpenBao) {
    bao.transit("transit").unwrap().create("casemate").unwrap();
    bao.policy("casemate", documented_policy()).unwrap();
}

/// A file with a secret, as an admin leaves it.
fn secret_file(lab: &Lab, name: &str, secret: &str) -> std::path::PathBuf {
    let path = lab.dir().join(name);
    write_secret(&path, secret);
    path
}

fn write_secret(path: &Path, secret: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let aside = path.with_extension("aside");
    fs::write(&aside, format!("{secret}\n")).unwrap();
    fs::set_permissions(&aside, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(aside, path).unwrap();
}

fn config(bao: &OpenBao, auth: Auth) -> TransitConfig {
    TransitConfig {
        addresses: vec![bao.address().parse().unwrap()],
        tls: Tls::default(),
        namespace: None,
        mount: "transit".into(),
        key: "casemate".into(),
        selection: Selection::Latest,
        auth,
        auth_namespace: None,
    }
}

/// By a token with the documented rights.
fn by_token(lab: &Lab, bao: &OpenBao) -> TransitConfig {
    let token = bao.token(&["casemate"], &json!({"ttl": "1h"})).unwrap();
    config(bao, Auth::TokenFile { path: secret_file(lab, "token", &token) })
}

fn key(config: TransitConfig) -> Arc<TransitKey> {
    Arc::new(TransitKey::new(config).unwrap())
}

/// Observes, wraps and unwraps, as who prepares a local KEK does.
async fn works(key: &TransitKey) -> Result<Root, Failure> {
    let root = key.observe().await?;
    let wrap = key.wrap(&root, &CORE, &PAYLOAD).await?;
    assert_eq!(**key.unwrap(&root, &CORE, &wrap).await?, PAYLOAD);
    Ok(root)
}

fn class<T>(result: Result<T, Failure>) -> Class {
    result.err().unwrap().class
}

/// Version and creation time of a root.
fn version(root: &Root) -> (u32, u64) {
    assert_eq!(root.algorithm, Algorithm::TRANSIT);
    let fields: Vec<&str> = root.lineage.fields().collect();
    (fields[3].parse().unwrap(), fields[4].parse().unwrap())
}

/// Waits until it is so: looks often, and gives up with the test.
async fn eventually<F: Future<Output = bool>>(mut so: impl FnMut() -> F) {
    while !so().await {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
