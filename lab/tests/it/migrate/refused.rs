//! Objects that can't be written, and servers that are too busy.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use casemate_lab::authority::Validity;
use casemate_lab::{Authority, Lab, python};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Scene, ended};

/// A validating webhook: of an object with `deny-CODE` in its name it denies updates with that code, and with a secret in its
/// words; of one with `silent` it answers nothing. Each question is a line of the file that it is given.
const WEBHOOK: &str = r#"
import http.server, json, re, ssl, sys, time
certificate, key, asked, port_file = sys.argv[1:]
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        name = request["name"]
        with open(asked, "a") as lines:
            lines.write(name + "\n")
        if "silent" in name:
            time.sleep(60)
        denied = re.search(r"deny-(\d+)", name)
        response = {"uid": request["uid"], "allowed": not denied}
        if denied:
            response["status"] = {"code": int(denied[1]), "message": "hidden " + json.dumps(request["object"])[:200]}
        answer = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *_):
        pass
class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
server = Server(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server.socket = context.wrap_socket(server.socket, server_side=True)
with open(port_file + ".part", "w") as file:
    file.write(str(server.server_address[1]))
import os
os.rename(port_file + ".part", port_file)
server.serve_forever()
"#;

/// Starts the webhook, which all updates of Secrets go through from now on.
fn webhook(scene: &Scene<'_>) {
    let authority = Authority::create(&scene.lab.dir().join("webhook"), "webhook").unwrap();
    let server = authority.server("server", &["127.0.0.1"], Validity::Now).unwrap();
    let port = scene.lab.dir().join("webhook.port");
    let mut program = Command::new(python().unwrap());
    program.args(["-c", WEBHOOK]).args([&server.certificate, &server.key, &asked(scene), &port]);
    let running = scene.lab.spawn("webhook", &program).unwrap();
    running.wait_until("it listened", || port.exists()).unwrap();
    let url = format!("https://127.0.0.1:{}/", fs::read_to_string(&port).unwrap());
    let bundle = base64::engine::general_purpose::STANDARD.encode(authority.pem());
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "no"}, "webhooks": [{"name": "no.example.com", "sideEffects": "None", "failurePolicy": "Fail",
            "admissionReviewVersions": ["v1"], "timeoutSeconds": 1, "clientConfig": {"url": url, "caBundle": bundle},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["UPDATE"]}]}]});
    scene.server(0).kubectl_with_input(&["create", "-f", "-"], configuration.to_string().as_bytes()).unwrap();
    // Each server learns of it by itself.
    let denied = || {
        let patch = [
            "patch",
            "secret",
            "-n",
            "a",
            "deny-403",
            "--type=merge",
            "-p",
            r#"{"metadata":{"labels":{"a":"b"}}}"#,
        ];
        scene.server(0).kubectl(&patch).is_err_and(|error| error.to_string().contains("no.example.com"))
    };
    running.wait_until("a server asked it", denied).unwrap();
}

fn asked(scene: &Scene<'_>) -> std::path::PathBuf {
    scene.lab.dir().join("webhook.asked")
}

fn named(name: &str) -> (String, Value) {
    let object = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": name}, "stringData": {"word": "hidden"}});
    ("/api/v1/namespaces/a/secrets".to_owned(), object)
}

/// Codes that a webhook gives, and that would mean something else from the server itself.
const CODES: [u16; 8] = [400, 401, 403, 404, 409, 422, 429, 503];

#[test]
fn what_a_webhook_denies_is_listed_and_all_else_is_written() {
    let lab = Lab::builder("migrate webhook").apiservers(0).start().unwrap();
    let scene = Scene::start(&lab, 1);
    scene.fill(200);
    let denied: Vec<String> = CODES.iter().map(|code| format!("deny-{code}")).collect();
    scene.create(denied.iter().map(|name| named(name)));
    scene.create(["silent-1", "silent-2"].map(named));
    scene.rotate();
    let all = scene.stale().objects();
    webhook(&scene);
    fs::write(asked(&scene), "").unwrap();

    let (code, answer) = scene.migrate(&[0], true, &["--yes"]);
    assert_eq!((code, &answer["verdict"]), (4, &json!("partly")), "{answer:#}");
    let report = &answer["report"];
    assert_eq!(report["stopped"], Value::Null, "{report:#}");
    let failed = report["failed"].as_array().unwrap();
    let cause = |name: &str| {
        let found = failed.iter().find(|failed| failed["name"] == name);
        &found.unwrap_or_else(|| panic!("{name} is not listed: {report:#}"))["cause"]
    };
    for code in CODES.iter().filter(|code| ![429, 503].contains(*code)) {
        let wanted = json!({"kind": "denied", "webhook": "no.example.com", "code": code});
        assert_eq!(cause(&format!("deny-{code}")), &wanted);
    }
    for name in ["silent-1", "silent-2", "deny-503", "deny-429"] {
        assert_eq!(cause(name)["kind"], "write_fails", "{report:#}");
    }
    assert_eq!(failed.len(), CODES.len() + 2, "{report:#}");
    let tallies = report["resources"].as_object().unwrap().values();
    let written: u64 = tallies.map(|tally| tally["written"].as_u64().unwrap()).sum();
    assert_eq!(written, all - failed.len() as u64, "{report:#}");
    // The census says the same.
    assert_eq!(scene.stale().objects(), failed.len() as u64);
    // What is permanent was tried once; nothing was tried in a loop.
    let asked = fs::read_to_string(asked(&scene)).unwrap();
    let times = |name: &str| asked.lines().filter(|line| *line == name).count();
    for code in [400, 401, 403, 404, 409, 422] {
        assert_eq!(times(&format!("deny-{code}")), 1, "{code}");
    }
    for name in ["silent-1", "silent-2"] {
        assert_eq!(times(name), 5, "{name}");
    }
    for name in ["deny-429", "deny-503"] {
        assert!((5..=25).contains(&times(name)), "{name}: {}", times(name));
    }

    // Without the webhook, what is left is written, and it is proven.
    scene.server(0).kubectl(&["delete", "validatingwebhookconfiguration", "no"]).unwrap();
    let mut last = (0, Value::Null);
    for _ in 0..60 {
        last = scene.migrate(&[0], true, &["--yes"]);
        if last.0 == 0 {
            break;
        }
        thread::sleep(Duration::from_millis(500));
    }
    assert_eq!((last.0, &last.1["verdict"]), (0, &json!("proven")), "{:#}", last.1);
}

/// What API servers count.
fn rejected(scene: &Scene<'_>) -> f64 {
    let (_, text) = scene.ask(0, Method::GET, "/metrics");
    let lines = text.lines().filter(|line| line.starts_with("apiserver_flowcontrol_rejected_requests_total"));
    let lines = lines.filter(|line| line.contains("flow_schema=\"narrow\""));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// The rights that the how-to names.
fn documented_rights() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/migrate.md");
    let page = fs::read_to_string(page).unwrap();
    let listing = page.split("```yaml\n").find(|text| text.contains("kind: ClusterRole")).unwrap();
    listing.split("```").next().unwrap().to_owned()
}

#[test]
fn a_server_that_says_429_is_obeyed_and_all_is_written() {
    let lab = Lab::builder("migrate 429").apiservers(0).start().unwrap();
    let scene = Scene::start(&lab, 1);
    scene.fill(400);
    scene.rotate();
    let before = scene.stale();
    // Somebody with the rights that are documented, and no others.
    let server = scene.server(0);
    server.kubectl_with_input(&["apply", "-f", "-"], documented_rights().as_bytes()).unwrap();
    server.kubectl(&["create", "serviceaccount", "migrator"]).unwrap();
    let bind = ["--clusterrole=casemate-migrate", "--serviceaccount=default:migrator"];
    server.kubectl(&[&["create", "clusterrolebinding", "migrator"], &bind[..]].concat()).unwrap();
    let token = server.kubectl(&["create", "token", "migrator"]).unwrap();
    let kubeconfig = scene.kubeconfig_of("migrator", token.trim());
    // Who is served one request at a time, and told 429 for each more.
    let narrow = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration", "metadata": {"name": "narrow"},
            "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
                "limitResponse": {"type": "Reject"}}}},
        {"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": "narrow"},
            "spec": {"priorityLevelConfiguration": {"name": "narrow"}, "matchingPrecedence": 2,
                "rules": [{"subjects": [{"kind": "ServiceAccount", "serviceAccount": {"name": "migrator", "namespace": "default"}}],
                    "resourceRules": [{"verbs": ["get", "list", "patch"], "apiGroups": [""], "resources": ["*"], "namespaces": ["*"],
                        "clusterScope": true}]}]}},
    ]});
    server.kubectl_with_input(&["create", "-f", "-"], narrow.to_string().as_bytes()).unwrap();
    let arguments = ["--yes", "--in-flight", "64", "--resources", "secrets,configmaps", "--kubeconfig"];
    let arguments = [&arguments[..], &[kubeconfig.to_str().unwrap()]].concat();
    let is_narrow = || {
        let url = format!("{}/api/v1/secrets", server.url());
        let ask = || scene.client.get(&url).bearer_auth(token.trim()).send();
        scene.runtime.block_on(async {
            let asked: JoinSet<_> = (0..8).map(|_| ask()).collect();
            asked.join_all().await.into_iter().any(|answer| answer.unwrap().status() == 429)
        })
    };
    server.process().wait_until("it said 429", is_narrow).unwrap();
    let first = rejected(&scene);
    let running = scene.command_with(&[0], false, &arguments).spawn().unwrap();
    let (code, answer) = ended(running);
    assert_eq!((code, &answer["verdict"]), (3, &json!("unproven")), "{answer:#}");
    let report = &answer["report"];
    for resource in ["secrets", "configmaps"] {
        assert_eq!(report["resources"][resource]["written"], before.stale[resource], "{report:#}");
    }
    assert_eq!(report["failed"], json!([]), "{report:#}");
    // It was told so, did not hammer, and got there.
    let rejected = rejected(&scene) - first;
    eprintln!("429 {rejected} times; {} requests in {} s", report["requests"], answer["seconds"]);
    assert!((1.0..100.0).contains(&rejected), "{rejected} times");
    let objects = before.stale["secrets"] + before.stale["configmaps"];
    assert!(report["requests"].as_f64().unwrap() < objects as f64 * 1.2 + rejected, "{report:#}");
    assert_eq!(scene.stale().stale.keys().collect::<Vec<_>>(), ["things.a.example", "wides.a.example"]);
}

#[test]
fn an_etcd_that_takes_no_writes_ends_it_and_nothing_is_given_up() {
    let lab = Lab::builder("migrate full").apiservers(0).start().unwrap();
    let scene = Scene::start(&lab, 1);
    scene.fill(600);
    scene.rotate();
    // Its file is larger than that already.
    lab.etcd().stop().unwrap();
    lab.etcd().start_with(&["--quota-backend-bytes", "500000"]).unwrap();
    let state = lab.dir().join("migration");
    let arguments = ["--yes", "--state", state.to_str().unwrap()];
    let (code, answer) = scene.migrate(&[0], true, &arguments);
    assert_eq!((code, &answer["verdict"]), (4, &json!("partly")), "{answer:#}");
    let stopped = answer["report"]["stopped"].as_str().unwrap();
    assert!(
        stopped.contains("writes in a row failed") && stopped.contains("etcd takes no writes"),
        "{answer:#}"
    );
    assert_eq!(answer["report"]["failed"], json!([]), "{answer:#}");
    assert!(answer["report"]["requests"].as_u64().unwrap() < 400, "{answer:#}");
    assert!(!answer["proof"]["stale"].as_array().unwrap().is_empty(), "{answer:#}");
}
