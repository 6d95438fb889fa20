//! Who asks: programs that give credentials, the service account of a pod, and credentials that are worth nothing.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use casemate_lab::{Apiserver, Encryption, Lab, plugin::product};
use serde_json::{Value, json};

use super::{bounds, census, documented_rights, write};

const PLAIN: usize = 3;

/// A cluster with an account that has the documented rights, and a token of it.
fn account(lab: &Lab, server: &Apiserver) -> String {
    server.kubectl(&["create", "serviceaccount", "reader"]).unwrap();
    server.kubectl_with_input(&["apply", "-f", "-"], documented_rights().as_bytes()).unwrap();
    let (role, account) = ("--clusterrole=casemate-census-api", "--serviceaccount=default:reader");
    server.kubectl(&["create", "clusterrolebinding", "reader", role, account]).unwrap();
    let token = server.kubectl(&["create", "token", "reader"]).unwrap();
    let reader = super::kubeconfig(lab, server, "rights", token.trim());
    // Rights come to an API server a moment after they are given.
    let mut last = Value::Null;
    let granted = server.process().wait_until("the rights were there", || {
        let (code, answer) = census(&reader, &["--sample", "1"]);
        last = answer;
        code != 3
    });
    granted.unwrap_or_else(|error| panic!("{error}: {last:#}"));
    token.trim().to_owned()
}

/// A kubeconfig with this user and this authority.
fn kubeconfig(lab: &Lab, server: &Apiserver, name: &str, user: &Value, authority: &Path) -> PathBuf {
    let path = lab.dir().join(format!("{name}.kubeconfig"));
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": server.url(), "certificate-authority": authority}}],
        "users": [{"name": "a", "user": user}],
    });
    fs::write(&path, config.to_string()).unwrap();
    path
}

fn exec(script: &str) -> Value {
    json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "sh", "args": ["-c", script]}})
}

fn said(done: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
}

#[test]
fn a_program_gives_credentials_and_none_of_what_it_says_is_shown() {
    let lab = Lab::start("census api exec").unwrap();
    let server = lab.apiserver(0).unwrap();
    write(&server, "plain", PLAIN);
    let token = account(&lab, &server);
    let credential = json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": {"token": token}});
    let credentials = lab.dir().join("credential.json");
    fs::write(&credentials, credential.to_string()).unwrap();

    let user = exec(&format!("cat {}", credentials.display()));
    let config = kubeconfig(&lab, &server, "exec", &user, &server.certificate());
    let (code, answer) = census(&config, &[]);
    assert_eq!((code, bounds(&answer, "identity")), (1, (PLAIN as u64, PLAIN as u64)), "{answer:#}");

    for (name, script, says) in [
        ("failing", "echo hidden-word >&2; echo hidden-word; exit 7", "ended with exit code 7"),
        ("talking", "echo hidden-word", "no ExecCredential"),
    ] {
        let config = kubeconfig(&lab, &server, name, &exec(script), &server.certificate());
        let done = Command::new(product("casemate").unwrap())
            .args(["census", "api", "--kubeconfig"])
            .arg(config)
            .output()
            .unwrap();
        let said = said(&done);
        assert_eq!(done.status.code(), Some(2), "{said}");
        assert!(said.contains(says) && !said.contains("hidden-word"), "{said}");
    }
}

#[test]
fn in_a_pod_the_service_account_is_taken() {
    let lab = Lab::start("census api pod").unwrap();
    let server = lab.apiserver(0).unwrap();
    write(&server, "plain", PLAIN);
    let token = account(&lab, &server);
    let folder = lab.dir().join("serviceaccount");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("token"), token).unwrap();
    fs::write(folder.join("namespace"), "default").unwrap();
    fs::copy(server.certificate(), folder.join("ca.crt")).unwrap();

    // The folder is where a pod has it, in a file system that is gone with the process.
    let script = r#"set -e
        mount -t tmpfs none "$(readlink -f /var/run)"
        mkdir -p /var/run/secrets/kubernetes.io
        cp -r "$1" /var/run/secrets/kubernetes.io/serviceaccount
        exec "$2" census api --output json"#;
    let port = server.url().rsplit(':').next().unwrap().to_owned();
    let run = |port: &str| {
        Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
            .arg(&folder)
            .arg(product("casemate").unwrap())
            .env_remove("KUBECONFIG")
            .env("HOME", lab.dir())
            .envs([("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", port)])
            .output()
            .unwrap()
    };
    let done = run(&port);
    let answer: Value =
        serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {}", said(&done)));
    assert_eq!(done.status.code(), Some(1), "{answer:#}");
    assert_eq!(bounds(&answer, "identity"), (PLAIN as u64, PLAIN as u64), "{answer:#}");
    // Neither a pod, nor a kubeconfig.
    let done = run("none");
    assert_eq!(done.status.code(), Some(2), "{}", said(&done));
    assert!(said(&done).contains("no service account of a pod"), "{}", said(&done));
}

#[test]
fn credentials_and_certificates_that_are_worth_nothing_are_told_apart() {
    let lab = Lab::start("census api refused").unwrap();
    let server = lab.apiserver(0).unwrap();
    let other = lab.add_apiserver(Encryption::Identity).unwrap();
    let token = account(&lab, &server);
    let user = json!({"token": token});
    let told = |config: &Path, arguments: &[&str]| {
        let (code, answer) = census(config, arguments);
        (code, answer["verdict"].as_str().unwrap().to_owned(), answer["open"].to_string())
    };
    let is_unknown = |(code, verdict, open): (i32, String, String), says: &str| {
        assert_eq!((code, verdict.as_str()), (3, "unknown"), "{open}");
        assert!(open.contains(says), "{open}");
    };

    // An authority that is another server's: each lab server made a certificate of its own.
    let stranger = kubeconfig(&lab, &server, "stranger", &user, &other.certificate());
    is_unknown(told(&stranger, &[]), "can't be spoken to over TLS");
    // No authority, so that those of the system count: the certificate is nobody's.
    let unsigned = lab.dir().join("unsigned.kubeconfig");
    let config = fs::read_to_string(&stranger).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["clusters"][0]["cluster"].as_object_mut().unwrap().remove("certificate-authority");
    fs::write(&unsigned, config.to_string()).unwrap();
    is_unknown(told(&unsigned, &[]), "can't be spoken to over TLS");
    // Another name than the certificate has.
    let right = kubeconfig(&lab, &server, "right", &user, &server.certificate());
    let url = server.url();
    is_unknown(
        told(&right, &["--server", &url, "--tls-server-name", "elsewhere.example"]),
        "can't be spoken to over TLS",
    );
    // An address that serves no TLS, and one at which nobody listens.
    let plain = lab.etcd().endpoint().replace("http://", "https://");
    is_unknown(told(&right, &["--server", &plain]), "can't be spoken to over TLS");
    is_unknown(told(&right, &["--server", "https://127.0.0.1:1"]), "can't be reached");
    // One that is down does not hide what the other shows.
    let (code, _, open) =
        told(&right, &["--server", &url, "--server", "https://127.0.0.1:1", "--sample", "0"]);
    assert!(code == 4 && open.contains("can't be reached"), "{open}");

    // Its account is gone, so its token is worth nothing; somebody else's; one that has expired.
    let expired = expired_token(&lab, &token);
    is_unknown(
        told(&kubeconfig(&lab, &server, "expired", &json!({"token": expired}), &server.certificate()), &[]),
        "401",
    );
    server.kubectl(&["delete", "serviceaccount", "reader"]).unwrap();
    let revoked =
        server.process().wait_until("the token was revoked", || told(&right, &[]).2.contains("401"));
    revoked.unwrap();
    is_unknown(told(&right, &[]), "expired or revoked");
}

/// The same token as of yesterday, signed as the cluster signs.
fn expired_token(lab: &Lab, token: &str) -> String {
    const DAY: i64 = 24 * 3600;
    let parts: Vec<&str> = token.split('.').collect();
    let mut claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(parts[1]).unwrap()).unwrap();
    for time in ["iat", "nbf", "exp"] {
        claims[time] = json!(claims[time].as_i64().unwrap() - DAY);
    }
    let pem = fs::read_to_string(lab.dir().join("service-accounts.key")).unwrap();
    let der: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let der = STANDARD.decode(der).unwrap();
    let pair = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_FIXED_SIGNING, &der).unwrap();
    let signed = format!("{}.{}", parts[0], URL_SAFE_NO_PAD.encode(claims.to_string()));
    let signature = pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}
