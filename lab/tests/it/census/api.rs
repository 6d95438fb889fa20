//! `casemate census api` on real API servers: what was there lies between its bounds, whoever else is at work.

mod credentials;
mod servers;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use casemate_lab::{Apiserver, Encryption, Lab, Plugin, plugin::product};
use serde_json::{Value, json};

use crate::over::Over;

const KMS: &str = "k8s:enc:kms:v2:casemate:";
const PLAIN: usize = 7;
const UNDER_KMS: usize = 25;
/// Secrets that others write again and again.
const MORE: usize = 20;

/// A cluster whose Secrets are encrypted since some were written.
fn half_encrypted<'lab>(lab: &'lab Lab) -> (Plugin<'lab>, Arc<Apiserver>) {
    let plugin = Plugin::start(lab, "ours").unwrap();
    let server = lab.add_apiserver(Encryption::Identity).unwrap();
    write(&server, "plain", PLAIN);
    server.set_encryption(plugin.encryption()).unwrap();
    server.restart().unwrap();
    write(&server, "sealed", UNDER_KMS);
    (plugin, server)
}

fn write(server: &Apiserver, name: &str, count: usize) {
    let secrets: Vec<Value> = (0..count)
        .map(|number| {
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{name}-{number}")},
                "stringData": {"word": "hidden"}})
        })
        .collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": secrets}).to_string();
    server.kubectl_with_input(&["create", "-f", "-"], list.as_bytes()).unwrap();
}

/// A kubeconfig for whoever has `token`.
fn kubeconfig(lab: &Lab, server: &Apiserver, name: &str, token: &str) -> PathBuf {
    let path = lab.dir().join(format!("{name}.kubeconfig"));
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": server.url(), "certificate-authority": server.certificate()}}],
        "users": [{"name": "a", "user": {"token": token}}],
    });
    fs::write(&path, config.to_string()).unwrap();
    path
}

/// Exit code and JSON.
fn census(kubeconfig: &Path, arguments: &[&str]) -> (i32, Value) {
    let mut command = Command::new(product("casemate").unwrap());
    command.args(["census", "api", "--output", "json", "--kubeconfig"]).arg(kubeconfig).args(arguments);
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(!text.contains("hidden") && !said.contains("hidden"), "a value is told");
    (
        done.status.code().unwrap(),
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {said}")),
    )
}

/// At least and at most so many of the Secrets that were read are stored under `name`.
fn bounds(answer: &Value, name: &str) -> (u64, u64) {
    let stored = answer["resources"][0]["stored"].as_array().unwrap();
    let class = stored.iter().find(|class| class["name"] == name);
    let number = |field: &str| class.map_or(0, |class| class[field].as_u64().unwrap());
    (number("at_least"), number("at_most"))
}

fn read(answer: &Value) -> u64 {
    answer["resources"][0]["read"].as_u64().unwrap()
}

fn lies_between(answer: &Value, name: &str, truth: u64) {
    let (at_least, at_most) = bounds(answer, name);
    assert!(at_least <= truth && truth <= at_most, "{truth} of {name}: {answer:#}");
}

#[test]
fn what_lies_between_the_bounds_is_what_was_written() {
    let lab = Lab::builder("census api").apiservers(0).start().unwrap();
    let (plugin, server) = half_encrypted(&lab);
    let (mine, file) = (server.kubeconfig(), server.encryption_file().display().to_string());
    let key_id = plugin.key_id().unwrap();

    let asked = ["--encryption-config", &file, "--key-id", &key_id, "--resource", "secrets"];
    let (code, answer) = census(&mine, &asked);
    assert_eq!((code, &answer["verdict"]), (1, &json!("finding")), "{answer:#}");
    lies_between(&answer, "identity", PLAIN as u64);
    lies_between(&answer, KMS, read(&answer) - PLAIN as u64);
    // Nobody else reads Secrets here: with that, and as often as it tries, the plaintext is seen.
    assert!(bounds(&answer, "identity").0 > 0, "{answer:#}");
    let findings = answer["findings"].as_array().unwrap();
    assert!(
        findings.len() == 1 && findings[0]["text"].as_str().unwrap().contains("in plaintext"),
        "{findings:#?}"
    );
    let told = &answer["servers"][0];
    assert_eq!(told["configuration_matches"], true, "{told:#}");
    assert!(told["instance"]["started"].as_f64().unwrap() > 1e9, "{told:#}");
    assert_eq!(told["key_ids"][0]["key_id"], key_id, "{told:#}");
    assert!(told["key_ids"][0]["encrypted"].as_u64().unwrap() >= UNDER_KMS as u64, "{told:#}");
    let key_ids = answer["resources"][0]["key_ids"].as_array().unwrap();
    assert!(key_ids.len() == 1 && key_ids[0]["at_most"].as_u64() >= Some(UNDER_KMS as u64), "{key_ids:#?}");

    // A few objects are a few.
    let (_, few) = census(&mine, &["--sample", "5"]);
    assert_eq!((read(&few), few["resources"][0]["objects"].as_u64() >= Some(32)), (5, true), "{few:#}");

    // Another file, and another key id.
    let other = lab.dir().join("other.yaml");
    fs::write(&other, format!("{}# changed\n", fs::read_to_string(&file).unwrap())).unwrap();
    let other = other.display().to_string();
    let (code, answer) = census(&mine, &["--sample", "0", "--encryption-config", &other]);
    let findings = answer["findings"].to_string();
    assert!(code == 1 && findings.contains("another EncryptionConfiguration"), "{answer:#}");
    let (code, answer) = census(&mine, &["--sample", "0", "--key-id", "casemate=another"]);
    assert!(code == 1 && answer["findings"].to_string().contains("has not switched"), "{answer:#}");
    assert_eq!(census(&mine, &["--sample", "0", "--encryption-config", &file]).0, 0);

    // A resource that nothing is said of in the configuration.
    let (code, answer) =
        census(&mine, &["--resource", "clusterroles.rbac.authorization.k8s.io", "--sample", "10"]);
    assert_eq!((code, bounds(&answer, "none")), (1, (10, 10)), "{answer:#}");

    // All written again.
    let all = server.kubectl(&["get", "secrets", "-A", "-o", "json"]).unwrap();
    server.kubectl_with_input(&["replace", "-f", "-"], all.as_bytes()).unwrap();
    let (code, answer) = census(&mine, &asked);
    assert_eq!((code, bounds(&answer, "identity")), (0, (0, 0)), "{answer:#}");
    lies_between(&answer, KMS, read(&answer));
}

#[test]
fn whatever_others_do_the_truth_lies_between() {
    let lab = Lab::builder("census api busy").apiservers(0).start().unwrap();
    let (_plugin, server) = half_encrypted(&lab);
    write(&server, "more", MORE);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let over = Over(&stop);
        scope.spawn(|| disturb(&server, &stop, &done));
        while done.load(Ordering::Relaxed) == 0 && !stop.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        let answers: Vec<_> = (0..5).map(|_| census(&server.kubeconfig(), &[])).collect();
        drop(over);
        for (code, answer) in &answers {
            assert!([1, 4].contains(code), "{answer:#}");
            lies_between(answer, "identity", PLAIN as u64);
            lies_between(answer, KMS, read(answer) - PLAIN as u64);
        }
        let disturbed = |(_, answer): &(i32, Value)| answer["resources"][0]["others"].as_u64() > Some(0);
        assert!(
            answers.iter().any(disturbed),
            "nobody came between in {} requests",
            done.load(Ordering::Relaxed)
        );
    });
}

/// Reads Secrets in plaintext and changes others, until it is told to stop.
fn disturb(server: &Apiserver, stop: &AtomicBool, done: &AtomicU64) {
    let _over = Over(stop);
    let certificate = reqwest::Certificate::from_pem(&fs::read(server.certificate()).unwrap()).unwrap();
    let client = reqwest::Client::builder().tls_certs_only([certificate]).build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let secrets = format!("{}/api/v1/namespaces/default/secrets", server.url());
    let send = |request: reqwest::RequestBuilder| {
        let sent = runtime.block_on(request.bearer_auth(server.token()).send());
        assert!(sent.unwrap().status().is_success());
    };
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        send(client.get(format!("{secrets}/plain-{}", number % PLAIN)));
        let name = format!("more-{}", number % MORE);
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": &name},
            "stringData": {"number": number.to_string()}});
        let put = client.put(format!("{secrets}/{name}")).header("Content-Type", "application/json");
        send(put.body(secret.to_string()));
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// The rights that the how-to names.
fn documented_rights() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/census.md");
    let page = fs::read_to_string(page).unwrap();
    page.split("```yaml\n")
        .find(|text| text.contains("kind: ClusterRole"))
        .unwrap()
        .split("```")
        .next()
        .unwrap()
        .to_owned()
}

#[test]
fn the_rights_that_are_documented_are_enough_and_a_missing_one_is_named() {
    let lab = Lab::start("census api rights").unwrap();
    let server = lab.apiserver(0).unwrap();
    write(&server, "plain", 3);
    server.kubectl(&["create", "serviceaccount", "reader"]).unwrap();
    let token = server.kubectl(&["create", "token", "reader"]).unwrap();
    let reader = kubeconfig(&lab, &server, "reader", token.trim());

    let (code, answer) = census(&reader, &[]);
    assert!(
        code == 3 && answer["open"].to_string().contains("the right to get /metrics is missing"),
        "{answer:#}"
    );
    let grant = |name: &str, role: &str| {
        server.kubectl_with_input(&["apply", "-f", "-"], role.as_bytes()).unwrap();
        let (role, account) = (format!("--clusterrole={name}"), "--serviceaccount=default:reader");
        server.kubectl(&["create", "clusterrolebinding", name, &role, account]).unwrap();
    };
    let metrics = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "metrics"},
        "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]});
    grant("metrics", &metrics.to_string());
    let wait = |says: &str, arguments: &[&str]| {
        let mut last = Value::Null;
        let done = server.process().wait_until(says, || {
            let (code, answer) = census(&reader, arguments);
            last = answer;
            last.to_string().contains(says) && code != 2
        });
        done.unwrap_or_else(|error| panic!("{error}: {last:#}"));
    };
    wait("the right to list secrets is missing", &[]);
    assert_eq!(census(&reader, &["--sample", "0"]).0, 0);
    server.kubectl(&["delete", "clusterrolebinding", "metrics"]).unwrap();
    wait("the right to get /metrics is missing", &[]);
    grant("casemate-census-api", &documented_rights());
    wait("\"identity\"", &[]);
    let (code, answer) = census(&reader, &["--resource", "secrets", "--resource", "configmaps"]);
    assert_eq!((code, bounds(&answer, "identity")), (1, (3, 3)), "{answer:#}");
    assert!(answer["resources"][1]["read"].as_u64() > Some(0), "{answer:#}");
    let (code, answer) = census(&reader, &["--resource", "pods"]);
    assert!(
        code == 3 && answer["open"].to_string().contains("the right to list pods is missing"),
        "{answer:#}"
    );
    // Somebody whom the server does not know.
    let nobody = kubeconfig(&lab, &server, "nobody", "wrong");
    let (code, answer) = census(&nobody, &[]);
    assert!(code == 3 && answer["open"].to_string().contains("401"), "{answer:#}");
}
