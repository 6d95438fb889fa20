//! OpenBao, as a client sees it.

use std::{thread, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use casemate_lab::{Authority, Lab, OpenBao, authority::Validity, openbao::JwtIssuer};
use serde_json::{Value, json};

fn lab(name: &str) -> Lab {
    Lab::builder(name).apiservers(0).start().unwrap()
}

/// Seals a word; answers the ciphertext.
fn seal(bao: &OpenBao, token: &str, mount: &str, key: &str) -> (u16, String) {
    let body = json!({"plaintext": STANDARD.encode("casemate")});
    let answer = bao.request("POST", &format!("{mount}/encrypt/{key}"), Some(token), Some(&body)).unwrap();
    (answer.status, answer.body["data"]["ciphertext"].as_str().unwrap_or_default().to_owned())
}

/// Opens it; answers the status.
fn open(bao: &OpenBao, token: &str, mount: &str, key: &str, ciphertext: &str) -> u16 {
    let body = json!({"ciphertext": ciphertext});
    let answer = bao.request("POST", &format!("{mount}/decrypt/{key}"), Some(token), Some(&body)).unwrap();
    if answer.status == 200 {
        assert_eq!(answer.body["data"]["plaintext"], STANDARD.encode("casemate"));
    }
    answer.status
}

#[test]
fn in_development_mode_keys_live_as_their_admin_says() {
    let lab = lab("openbao dev");
    let bao = OpenBao::dev(&lab).unwrap();
    let root = bao.root_token();
    let transit = bao.transit("transit").unwrap();
    transit.create("kek").unwrap();
    let (_, first) = seal(&bao, root, "transit", "kek");
    assert!(first.starts_with("vault:v1:"), "{first}");
    transit.rotate("kek").unwrap();
    let (_, second) = seal(&bao, root, "transit", "kek");
    assert!(second.starts_with("vault:v2:"), "{second}");
    assert_eq!(transit.read("kek").unwrap()["latest_version"], 2);
    assert_eq!(open(&bao, root, "transit", "kek", &first), 200);

    transit.configure("kek", &json!({"min_decryption_version": 2})).unwrap();
    assert_eq!(open(&bao, root, "transit", "kek", &first), 400);
    transit.configure("kek", &json!({"min_decryption_version": 1})).unwrap();
    assert_eq!(open(&bao, root, "transit", "kek", &first), 200);
    transit.trim("kek", 2).unwrap();
    let lowered = transit.configure("kek", &json!({"min_decryption_version": 1}));
    assert!(lowered.is_err(), "version 1 is gone");
    assert_eq!(open(&bao, root, "transit", "kek", &second), 200);
    transit.delete("kek").unwrap();
    assert_eq!(open(&bao, root, "transit", "kek", &second), 400);

    // A namespace is a path before the path.
    bao.write("sys/namespaces/team", &json!({})).unwrap();
    bao.write("team/sys/mounts/transit", &json!({"type": "transit"})).unwrap();
    bao.write("team/transit/keys/kek", &json!({})).unwrap();
    assert_eq!(bao.read("team/transit/keys/kek").unwrap()["data"]["latest_version"], 1);
    let error = bao.read("transit/keys/kek").unwrap_err().to_string();
    assert!(error.contains("404"), "{error}");
}

#[test]
fn a_token_has_the_rights_of_its_policies_only() {
    let lab = lab("openbao rights");
    let bao = OpenBao::dev(&lab).unwrap();
    bao.transit("transit").unwrap().create("kek").unwrap();
    bao.policy("encrypt", r#"path "transit/encrypt/kek" { capabilities = ["update"] }"#).unwrap();

    let token = bao.token(&["encrypt"], &json!({"ttl": "15m"})).unwrap();
    let (status, sealed) = seal(&bao, &token, "transit", "kek");
    assert_eq!(status, 200);
    assert_eq!(open(&bao, &token, "transit", "kek", &sealed), 403);

    bao.auth("approle", "approle").unwrap();
    let role = bao.approle("approle", "plugin", &json!({"token_policies": ["encrypt"]})).unwrap();
    let login = || {
        let body = json!({"role_id": role.role_id, "secret_id": role.secret_id});
        bao.request("POST", "auth/approle/login", None, Some(&body)).unwrap()
    };
    let token = login().body["auth"]["client_token"].as_str().unwrap().to_owned();
    assert_eq!(seal(&bao, &token, "transit", "kek").0, 200);
    let revoke = json!({"secret_id_accessor": role.secret_id_accessor});
    bao.write("auth/approle/role/plugin/secret-id-accessor/destroy", &revoke).unwrap();
    assert_eq!(login().status, 400);
    assert_eq!(seal(&bao, "none", "transit", "kek").0, 403);
}

#[test]
fn two_servers_are_two_and_one_that_is_killed_comes_back_empty_on_its_port() {
    let lab = lab("openbao twice");
    let (one, other) = (OpenBao::dev(&lab).unwrap(), OpenBao::dev(&lab).unwrap());
    let address = one.address();
    assert_ne!(address, other.address());
    one.transit("transit").unwrap().create("kek").unwrap();
    assert!(other.read("transit/keys/kek").is_err());

    one.kill9();
    let gone = one.read("transit/keys/kek").unwrap_err().to_string();
    assert!(gone.contains("refused"), "{gone}");
    one.start_again().unwrap();
    assert_eq!(one.address(), address);
    assert_eq!(one.read("sys/mounts").unwrap()["data"].get("transit/"), None::<&Value>);
}

/// The bodies of certificate and token logins say which role.
fn as_role(role: &str) -> Value {
    json!({"name": role})
}

#[test]
fn a_real_server_is_sealed_killed_and_restored_and_keeps_its_keys() {
    let lab = lab("openbao real");
    let bao = OpenBao::start(&lab).unwrap();
    let root = bao.root_token();
    assert!(bao.address().starts_with("https://"));
    let transit = bao.transit("transit").unwrap();
    transit.create("kek").unwrap();
    let (_, first) = seal(&bao, root, "transit", "kek");

    bao.seal().unwrap();
    assert_eq!(seal(&bao, root, "transit", "kek").0, 503);
    bao.unseal().unwrap();
    assert_eq!(open(&bao, root, "transit", "kek", &first), 200);

    let (address, backup) = (bao.address(), bao.back_up().unwrap());
    transit.rotate("kek").unwrap();
    let (_, second) = seal(&bao, root, "transit", "kek");
    bao.kill9();
    bao.start_sealed().unwrap();
    assert_eq!(seal(&bao, root, "transit", "kek").0, 503);
    bao.unseal().unwrap();
    assert_eq!(bao.address(), address);
    assert_eq!(open(&bao, root, "transit", "kek", &second), 200);

    bao.restore(&backup).unwrap();
    assert_eq!(open(&bao, root, "transit", "kek", &first), 200);
    assert_eq!(open(&bao, root, "transit", "kek", &second), 400);
    assert_eq!(transit.read("kek").unwrap()["latest_version"], 1);
}

#[test]
fn certificates_and_signed_tokens_log_in() {
    let lab = lab("openbao logins");
    let bao = OpenBao::start(&lab).unwrap();
    let authority = bao.authority().unwrap();
    bao.policy("kek", "# Nothing.").unwrap();

    bao.auth("cert", "cert").unwrap();
    let role = json!({"certificate": authority.pem(), "allowed_common_names": ["plugin"], "token_policies": ["kek"]});
    bao.write("auth/cert/certs/plugin", &role).unwrap();
    for (name, validity, logs_in) in [
        ("plugin", Validity::Now, true),
        ("other", Validity::Now, false),
        ("plugin", Validity::Expired, false),
        ("plugin", Validity::NotYet, false),
    ] {
        let certified = authority.client(name, validity).unwrap();
        let answer = bao.write_certified(&certified, "auth/cert/login", &as_role("plugin")).unwrap();
        assert_eq!(answer.status == 200, logs_in, "{name} {validity:?}: {answer:?}");
    }
    let stranger = Authority::create(&lab.dir().join("stranger"), "stranger").unwrap();
    let certified = stranger.client("plugin", Validity::Now).unwrap();
    let answer = bao.write_certified(&certified, "auth/cert/login", &as_role("plugin")).unwrap();
    assert_eq!(answer.status, 400, "{answer:?}");

    bao.auth("jwt", "kubernetes").unwrap();
    let (issuer, other) = (JwtIssuer::create().unwrap(), JwtIssuer::create().unwrap());
    let config = json!({"jwt_validation_pubkeys": [issuer.public_key()]});
    bao.write("auth/kubernetes/config", &config).unwrap();
    let role = json!({"role_type": "jwt", "user_claim": "sub", "bound_audiences": ["bao"], "token_policies": ["kek"]});
    bao.write("auth/kubernetes/role/plugin", &role).unwrap();
    let claims = json!({"sub": "plugin", "aud": "bao", "nbf": 1_700_000_000, "exp": 4_000_000_000_u64});
    for (jwt, status) in [(issuer.sign(&claims).unwrap(), 200), (other.sign(&claims).unwrap(), 400)] {
        let body = json!({"role": "plugin", "jwt": jwt});
        let answer = bao.request("POST", "auth/kubernetes/login", None, Some(&body)).unwrap();
        assert_eq!(answer.status, status, "{answer:?}");
    }
}

#[test]
fn three_nodes_elect_another_leader_and_go_back_to_a_snapshot() {
    let lab = lab("openbao raft");
    let raft = OpenBao::raft(&lab, 3).unwrap();
    let first = raft.leader().unwrap();
    let root = first.root_token();
    first.transit("transit").unwrap().create("kek").unwrap();
    let (_, sealed) = seal(first, root, "transit", "kek");
    let snapshot = raft.snapshot().unwrap();

    let second = raft.step_down().unwrap();
    assert_ne!(second.address(), first.address());
    for node in raft.nodes() {
        // Others send it on to the new leader as soon as they are connected to it.
        let opens = (0..100).any(|look| {
            if look > 0 {
                thread::sleep(Duration::from_millis(100));
            }
            open(node, root, "transit", "kek", &sealed) == 200
        });
        assert!(opens, "{}", node.address());
    }
    second.write("transit/keys/kek/rotate", &json!({})).unwrap();
    second.kill9();
    let third = raft.leader().unwrap();
    assert_ne!(third.address(), second.address());
    let (_, newer) = seal(third, root, "transit", "kek");
    assert!(newer.starts_with("vault:v2:"), "{newer}");

    second.start_again().unwrap();
    raft.restore(&snapshot).unwrap();
    let leader = raft.leader().unwrap();
    assert_eq!(open(leader, root, "transit", "kek", &sealed), 200);
    assert_eq!(open(leader, root, "transit", "kek", &newer), 400);
}
