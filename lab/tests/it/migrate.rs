//! `casemate migrate` on real servers: everything is stale before, and a census says what is after.

mod interrupted;
mod refused;
mod story;
mod unreadable;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use casemate_lab::plugin::product;
use casemate_lab::{Apiserver, Encryption, Lab, Plugin};
use reqwest::{Certificate, Client, Method};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// In namespaces, with two versions.
const THINGS: &str = "/apis/a.example/v2/namespaces";
/// Not in namespaces.
const WIDE: &str = "/apis/a.example/v2/wides";

/// A control plane whose Secrets, ConfigMaps and custom resources are encrypted by one plugin.
struct Scene<'lab> {
    lab: &'lab Lab,
    plugin: Plugin<'lab>,
    client: Client,
    runtime: Runtime,
}

impl<'lab> Scene<'lab> {
    fn start(lab: &'lab Lab, servers: usize) -> Self {
        let plugin = Plugin::start(lab, "ours").unwrap();
        let encryption = encryption(&plugin, &["secrets, configmaps, '*.a.example'"]);
        for _ in 0..servers {
            lab.add_apiserver(encryption.clone()).unwrap();
        }
        let mut client = Client::builder();
        let pems = lab.apiservers().into_iter().map(|server| fs::read(server.certificate()).unwrap());
        client = client.tls_certs_only(pems.map(|pem| Certificate::from_pem(&pem).unwrap()));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let client = client.build().unwrap();
        let scene = Self { lab, plugin, client, runtime };
        scene.server(0).kubectl_with_input(&["apply", "-f", "-"], definitions().as_bytes()).unwrap();
        for name in ["things", "wides"] {
            let name = format!("crd/{name}.a.example");
            scene
                .server(0)
                .kubectl(&["wait", "--for=condition=Established", &name, "--timeout=60s"])
                .unwrap();
        }
        for server in lab.apiservers() {
            let served = || server.kubectl(&["get", "things.a.example,wides.a.example", "-A"]).is_ok();
            server.process().wait_until("custom resources were served", served).unwrap();
        }
        scene
    }

    fn server(&self, index: usize) -> Arc<Apiserver> {
        self.lab.apiserver(index).unwrap()
    }

    /// All that is stored becomes stale.
    fn rotate(&self) {
        let before = self.plugin.key_id().unwrap();
        self.plugin.rotate().unwrap();
        self.plugin.wait_for_switch(&before).unwrap();
        // They would see it within a minute.
        for server in self.lab.apiservers() {
            server.restart().unwrap();
        }
    }

    /// Posts each object to its collection.
    fn create(&self, objects: impl IntoIterator<Item = (String, Value)>) {
        let base = self.server(0).url();
        let token = self.server(0).token().to_owned();
        self.runtime.block_on(async {
            let mut posted = JoinSet::new();
            for (path, object) in objects {
                if posted.len() == 24 {
                    let status: reqwest::StatusCode = posted.join_next().await.unwrap().unwrap();
                    assert!(status.is_success(), "{status}");
                }
                let request = self.client.post(format!("{base}{path}")).bearer_auth(&token);
                let request = request.header("Content-Type", "application/json").body(object.to_string());
                posted.spawn(async move { request.send().await.unwrap().status() });
            }
            for status in posted.join_all().await {
                assert!(status.is_success(), "{status}");
            }
        });
    }

    /// What a server answers, once it is ready to.
    fn ask(&self, server: usize, method: Method, path: &str) -> (u16, String) {
        let server = self.server(server);
        let url = format!("{}{path}", server.url());
        for _ in 0..300 {
            let request = self.client.request(method.clone(), &url).bearer_auth(server.token());
            let (code, text) = self.runtime.block_on(async {
                let answer = request.send().await.unwrap();
                (answer.status().as_u16(), answer.text().await.unwrap())
            });
            // A server that has just started fills its caches.
            if code != 429 {
                return (code, text);
            }
            thread::sleep(Duration::from_millis(100));
        }
        panic!("{url}: 429 for ever");
    }

    /// Writes something to a Secret, if it is there.
    fn label(&self, secret: usize, value: usize) {
        let server = self.server(0);
        let url = format!("{}/api/v1/namespaces/{}/secrets/s-{secret}", server.url(), namespace(secret));
        let patch = json!({"metadata": {"labels": {"changed": value.to_string()}}}).to_string();
        let request = self.client.patch(url).bearer_auth(server.token());
        let request = request.header("Content-Type", "application/merge-patch+json").body(patch);
        let code = self.runtime.block_on(async { request.send().await.unwrap().status().as_u16() });
        assert!([200, 404].contains(&code), "{code}");
    }

    /// Some of each resource, in three namespaces.
    fn fill(&self, secrets: usize) {
        for namespace in ["a", "b", "c"] {
            self.server(0).kubectl(&["create", "namespace", namespace]).unwrap();
        }
        self.create((0..secrets).map(secret));
        self.create((0..secrets / 5).map(|number| {
            let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": format!("c-{number}")},
                "data": {"word": "hidden"}});
            (format!("/api/v1/namespaces/{}/configmaps", namespace(number)), object)
        }));
        self.create((0..secrets / 10).map(|number| {
            let object = json!({"kind": "Thing", "apiVersion": "a.example/v2", "metadata": {"name": format!("t-{number}")},
                "spec": {"word": "hidden"}});
            (format!("{THINGS}/{}/things", namespace(number)), object)
        }));
        self.create((0..secrets / 10).map(|number| {
            let object = json!({"kind": "Wide", "apiVersion": "a.example/v2", "metadata": {"name": format!("w-{number}")},
                "spec": {"word": "hidden"}});
            (WIDE.to_owned(), object)
        }));
    }

    /// `casemate migrate`, at these servers.
    fn command(&self, servers: &[usize], by_etcd: bool, arguments: &[&str]) -> Command {
        let mut command = self.command_with(servers, by_etcd, arguments);
        command.arg("--kubeconfig").arg(self.kubeconfig());
        command
    }

    /// The same without a kubeconfig.
    fn command_with(&self, servers: &[usize], by_etcd: bool, arguments: &[&str]) -> Command {
        let mut command = Command::new(product("casemate").unwrap());
        command.args(["migrate", "--output", "json"]);
        for server in servers {
            command.args(["--server", &self.server(*server).url()]);
        }
        command.arg("--encryption-config").arg(self.server(servers[0]).encryption_file());
        if by_etcd {
            command.args(["--etcd-endpoints", &self.lab.etcd().endpoint()]);
        }
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Of the administrator, who trusts all API servers.
    fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig_of("admin", self.server(0).token())
    }

    /// Of whoever has `token`.
    fn kubeconfig_of(&self, name: &str, token: &str) -> PathBuf {
        let path = self.lab.dir().join(format!("{name}.kubeconfig"));
        let authorities = self.lab.dir().join("authorities.pem");
        let pems: Vec<u8> =
            self.lab.apiservers().iter().flat_map(|server| fs::read(server.certificate()).unwrap()).collect();
        fs::write(&authorities, pems).unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "clusters": [{"name": "a", "cluster": {"server": self.server(0).url(), "certificate-authority": authorities}}],
            "users": [{"name": "a", "user": {"token": token}}],
        });
        fs::write(&path, config.to_string()).unwrap();
        path
    }

    fn migrate(&self, servers: &[usize], by_etcd: bool, arguments: &[&str]) -> (i32, Value) {
        ended(self.command(servers, by_etcd, arguments).spawn().unwrap())
    }

    /// What a census says, and nothing is done.
    fn stale(&self) -> Stale {
        let (code, answer) = self.migrate(&[0], true, &[]);
        assert_eq!((code, &answer["verdict"]), (0, &json!("planned")), "{answer:#}");
        let mut stale = BTreeMap::new();
        for remaining in answer["proof"]["stale"].as_array().unwrap() {
            *stale.entry(remaining["resource"].as_str().unwrap().to_owned()).or_insert(0) +=
                remaining["objects"].as_u64().unwrap();
        }
        Stale { stale, current: answer["proof"]["current"].as_u64().unwrap() }
    }

    /// Name and version of each object of a collection.
    fn versions(&self, path: &str) -> BTreeMap<String, String> {
        let (code, text) = self.ask(0, Method::GET, path);
        assert_eq!(code, 200, "{path}");
        let list: Value = serde_json::from_str(&text).unwrap();
        let version = |item: &Value| {
            let metadata = &item["metadata"];
            let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
            (format!("{}/{}", text("namespace"), text("name")), text("resourceVersion"))
        };
        list["items"].as_array().unwrap().iter().map(version).collect()
    }
}

/// What a census found.
#[derive(Debug)]
struct Stale {
    stale: BTreeMap<String, u64>,
    current: u64,
}

impl Stale {
    fn objects(&self) -> u64 {
        self.stale.values().sum()
    }
}

fn secret(number: usize) -> (String, Value) {
    let object = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": format!("s-{number}")},
        "stringData": {"word": format!("hidden-{number}"), "more": "x".repeat(400)}});
    (format!("/api/v1/namespaces/{}/secrets", namespace(number)), object)
}

fn namespace(number: usize) -> &'static str {
    ["a", "b", "c"][number % 3]
}

/// Exit code and JSON. No value is told.
fn ended(child: Child) -> (i32, Value) {
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(!text.contains("hidden") && !said.contains("hidden"), "a value is told");
    let code = done.status.code().unwrap_or(-1);
    (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{code}: {error}: {said}")))
}

/// One entry for each list of resources, all with the plugin first.
fn encryption(plugin: &Plugin<'_>, resources: &[&str]) -> Encryption {
    let endpoint = json!(format!("unix://{}", plugin.socket().display()));
    let mut text =
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n".to_owned();
    for resources in resources {
        text.push_str(&format!(
            "- resources: [{resources}]\n  providers:\n  - kms: {{apiVersion: v2, name: casemate, endpoint: {endpoint}}}\n  - identity: {{}}\n"
        ));
    }
    Encryption::Verbatim(text)
}

/// Custom resources: `things` in namespaces, with two versions, and `wides`.
fn definitions() -> String {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": schema});
    let definition = |plural: &str, kind: &str, scope: &str| {
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.a.example")},
            "spec": {"group": "a.example", "scope": scope, "names": {"plural": plural, "kind": kind, "singular": kind.to_lowercase()},
                "versions": [version("v1", false), version("v2", true)]}})
    };
    let items = [definition("things", "Thing", "Namespaced"), definition("wides", "Wide", "Cluster")];
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}
