//! Ways to log in, and what ends a token.

use casemate_keyservice::{
    http::ClientCertificate,
    transit::{RoleId, Sessions},
};
use casemate_lab::{
    authority::Validity,
    fault_proxy::{Canned, Mode, Times},
    openbao::AppRole,
};

use super::*;

/// What a role gives to who logs in: the documented policy alone.
fn role(more: Value) -> Value {
    let mut role = json!({"token_policies": ["casemate"], "token_no_default_policy": true});
    role.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    role
}

/// AppRole, with the secret id in a file.
fn approle(lab: &Lab, bao: &OpenBao, more: Value) -> (AppRole, Auth) {
    bao.auth("approle", "approle").unwrap();
    let made = bao.approle("approle", "casemate", &role(more)).unwrap();
    let auth = Auth::AppRole {
        mount: "approle".into(),
        role_id: RoleId::Text(made.role_id.clone()),
        secret_id_file: secret_file(lab, "secret-id", &made.secret_id),
        wrapped: false,
    };
    (made, auth)
}

#[test]
fn a_secret_id_is_rotated_while_calls_go_on_and_a_bad_one_is_not_tried_on_and_on() {
    let lab = lab("transit approle");
    let bao = prepared(&lab);
    let proxy = FaultProxy::http(&bao.address()).unwrap();
    let (made, auth) = approle(&lab, &bao, json!({"token_ttl": "1h"}));
    let base = TransitConfig { addresses: vec![proxy.address().parse().unwrap()], ..config(&bao, auth) };
    let file = lab.dir().join("secret-id");
    run(async {
        let key = key(base);
        works(&key).await.unwrap();
        assert_eq!(proxy.requests_to("/v1/auth/approle/login"), 1, "one token is shared by all calls");
        assert_eq!(proxy.requests_to("/v1/auth/token"), 0);

        // The new one is delivered, the old one destroyed, and with it all tokens that came of it.
        let second = bao.write("auth/approle/role/casemate/secret-id", &json!({})).unwrap();
        write_secret(&file, second["data"]["secret_id"].as_str().unwrap());
        let gone = json!({"secret_id_accessor": made.secret_id_accessor});
        bao.write("auth/approle/role/casemate/secret-id-accessor/destroy", &gone).unwrap();
        bao.write("sys/leases/revoke-prefix/auth/approle", &json!({"sync": true})).unwrap();
        works(&key).await.unwrap();
        assert_eq!(proxy.requests_to("/v1/auth/approle/login"), 2);

        // A file with the old one: class credential, and few logins.
        write_secret(&file, &made.secret_id);
        bao.write("sys/leases/revoke-prefix/auth/approle", &json!({"sync": true})).unwrap();
        proxy.forget_counts();
        for _ in 0..30 {
            let failure = key.observe().await.unwrap_err();
            assert_eq!(failure.class, Class::Credential, "{failure}");
            assert!(!failure.to_string().contains(&made.secret_id), "{failure}");
        }
        let logins = proxy.requests_to("/v1/auth/approle/login");
        assert!((1..=3).contains(&logins), "{logins} logins for 30 calls");

        // A good one is tried at once, without waiting for the pause to end; as Windows writes it.
        let third = bao.write("auth/approle/role/casemate/secret-id", &json!({})).unwrap();
        fs::write(&file, format!("\u{feff}{}\r\n", third["data"]["secret_id"].as_str().unwrap())).unwrap();
        works(&key).await.unwrap();
    });
}

#[test]
fn a_token_of_fifteen_seconds_holds_for_a_minute_of_load() {
    let lab = lab("transit short");
    let bao = prepared(&lab);
    let proxy = FaultProxy::http(&bao.address()).unwrap();
    // Renewed once, then at its greatest age.
    let (_, auth) = approle(&lab, &bao, json!({"token_ttl": "15s", "token_max_ttl": "25s"}));
    let base = TransitConfig { addresses: vec![proxy.address().parse().unwrap()], ..config(&bao, auth) };
    run(async {
        let key = key(base);
        let root = works(&key).await.unwrap();
        let wrap = Arc::new(key.wrap(&root, &CORE, &PAYLOAD).await.unwrap());
        let end = tokio::time::Instant::now() + Duration::from_secs(60);
        let load = (0..4).map(|_| {
            let (key, root, wrap) = (key.clone(), root.clone(), wrap.clone());
            tokio::spawn(async move {
                let mut calls = 0;
                while tokio::time::Instant::now() < end {
                    key.observe().await.unwrap();
                    key.wrap(&root, &CORE, &PAYLOAD).await.unwrap();
                    key.unwrap(&root, &CORE, &wrap).await.unwrap();
                    calls += 3;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                calls
            })
        });
        let mut calls = 0;
        for task in load.collect::<Vec<_>>() {
            calls += task.await.unwrap();
        }
        let logins = proxy.requests_to("/v1/auth/approle/login");
        let renewals = proxy.requests_to("/v1/auth/token/renew-self");
        assert!(logins >= 2 && renewals >= 2, "{calls} calls, {logins} logins, {renewals} renewals");
        assert!(logins <= 10 && renewals <= 10, "{calls} calls, {logins} logins, {renewals} renewals");
    });
}

/// A secret id of `casemate`, or another path's answer, wrapped.
async fn wrapped(bao: &OpenBao<'_>, path: &str) -> String {
    wrapped_by(reqwest::Method::POST, bao, path).await
}

async fn wrapped_by(method: reqwest::Method, bao: &OpenBao<'_>, path: &str) -> String {
    let asked = reqwest::Client::new()
        .request(method, format!("{}/v1/{path}", bao.address()))
        .header("X-Vault-Token", bao.root_token())
        .header("X-Vault-Wrap-TTL", "5m")
        .body("{}");
    let answer = asked.send().await.unwrap().text().await.unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["wrap_info"]["token"].as_str().unwrap().to_owned()
}

#[test]
fn a_wrapped_secret_id_is_used_once_and_who_was_faster_is_noticed() {
    let lab = lab("transit wrapped");
    let bao = prepared(&lab);
    let (_, auth) = approle(&lab, &bao, json!({"token_ttl": "1h"}));
    let Auth::AppRole { mount, role_id, secret_id_file, .. } = auth else { unreachable!() };
    let auth = Auth::AppRole { mount, role_id, secret_id_file: secret_id_file.clone(), wrapped: true };
    run(async {
        let at = "auth/approle/role/casemate/secret-id";
        write_secret(&secret_id_file, &wrapped(&bao, at).await);
        let first = key(config(&bao, auth.clone()));
        works(&first).await.unwrap();
        // Kept in memory: all later logins use it.
        bao.write("sys/leases/revoke-prefix/auth/approle", &json!({"sync": true})).unwrap();
        works(&first).await.unwrap();

        let used = key(config(&bao, auth.clone())).observe().await.unwrap_err();
        assert_eq!(used.class, Class::Credential, "{used}");
        assert!(used.remedy.contains("intercepted"), "{used}");

        // Somebody else's, in its place: one that says what it likes, and one whose path looks right.
        bao.write("sys/mounts/kv", &json!({"type": "kv"})).unwrap();
        let looks_right = format!("kv/{at}");
        bao.write(&looks_right, &json!({"secret_id": "theirs"})).unwrap();
        for theirs in [
            wrapped(&bao, "sys/wrapping/wrap").await,
            wrapped_by(reqwest::Method::GET, &bao, &looks_right).await,
        ] {
            write_secret(&secret_id_file, &theirs);
            let planted = key(config(&bao, auth.clone())).observe().await.unwrap_err();
            assert_eq!(planted.class, Class::Credential, "{planted}");
            assert!(planted.what.contains("was not made at auth/approle/role/"), "{planted}");
        }

        write_secret(&secret_id_file, &wrapped(&bao, at).await);
        works(&key(config(&bao, auth.clone()))).await.unwrap();

        // In a namespace, below another one.
        bao.write("sys/namespaces/team", &json!({})).unwrap();
        bao.write("team/sys/namespaces/inner", &json!({})).unwrap();
        let within = |path: &str| format!("team/inner/{path}");
        bao.write(&within("sys/auth/approle"), &json!({"type": "approle"})).unwrap();
        bao.write(&within("sys/mounts/transit"), &json!({"type": "transit"})).unwrap();
        bao.write(&within("transit/keys/casemate"), &json!({})).unwrap();
        bao.write(&within("sys/policies/acl/casemate"), &json!({"policy": documented_policy()})).unwrap();
        bao.write(&within("auth/approle/role/casemate"), &role(json!({"token_ttl": "1h"}))).unwrap();
        let id = bao.read(&within("auth/approle/role/casemate/role-id")).unwrap();
        let role_id = RoleId::Text(id["data"]["role_id"].as_str().unwrap().to_owned());
        let Auth::AppRole { mount, secret_id_file, .. } = auth else { unreachable!() };
        let auth = Auth::AppRole { mount, role_id, secret_id_file, wrapped: true };
        let base = TransitConfig { namespace: Some("team/inner".into()), ..config(&bao, auth) };
        write_secret(&lab.dir().join("secret-id"), &wrapped(&bao, &within(at)).await);
        works(&key(base)).await.unwrap();
    });
}

#[test]
fn what_works_once_is_asked_of_another_address_only_if_nothing_was_sent() {
    let lab = lab("transit once");
    let bao = prepared(&lab);
    let (one, two) = (FaultProxy::http(&bao.address()).unwrap(), FaultProxy::http(&bao.address()).unwrap());
    let (_, auth) = approle(&lab, &bao, json!({"token_ttl": "1h", "secret_id_num_uses": 1}));
    let Auth::AppRole { mount, role_id, secret_id_file, .. } = auth else { unreachable!() };
    let addresses = [&one, &two].map(|proxy| proxy.address().parse().unwrap()).to_vec();
    let (login, unwrap) = ("/v1/auth/approle/login", "/v1/sys/wrapping/unwrap");
    let at = "auth/approle/role/casemate/secret-id";
    run(async {
        for is_wrapped in [false, true] {
            let new = || {
                let (mount, role_id, secret_id_file) =
                    (mount.clone(), role_id.clone(), secret_id_file.clone());
                let auth = Auth::AppRole { mount, role_id, secret_id_file, wrapped: is_wrapped };
                key(TransitConfig { addresses: addresses.clone(), ..config(&bao, auth) })
            };
            let deliver = || async {
                let secret = if is_wrapped {
                    wrapped(&bao, at).await
                } else {
                    let made = bao.write(at, &json!({})).unwrap();
                    made["data"]["secret_id"].as_str().unwrap().to_owned()
                };
                write_secret(&secret_id_file, &secret);
                one.forget_counts();
                two.forget_counts();
            };
            let asked = |path| (one.requests_to(path), two.requests_to(path));

            // Who knows what became of it.
            let once = if is_wrapped { unwrap } else { login };
            for status in [502, 404] {
                deliver().await;
                let page = Canned { status, headers: vec![], body: b"<html>no</html>".to_vec() };
                one.answer(once, page, Times::Once);
                let key = new();
                let failure = key.observe().await.unwrap_err();
                assert_eq!(failure.class, Class::Unreachable, "{failure}");
                assert_eq!(asked(once), (1, 0), "{status}");
                // It was not used, after all. That nobody has answered is remembered for a moment.
                eventually(|| async { works(&key).await.is_ok() }).await;
            }

            // Slow everywhere: it is waited for.
            deliver().await;
            let slow = Mode::Delay { request: Duration::ZERO, answer: Duration::from_millis(1500) };
            one.set_mode(slow).unwrap();
            two.set_mode(slow).unwrap();
            new().observe().await.unwrap();
            for path in if is_wrapped { vec![unwrap, login] } else { vec![login] } {
                let (first, second) = asked(path);
                assert_eq!(first + second, 1, "{path}");
            }
            two.set_mode(Mode::Pass).unwrap();

            // Nothing was sent.
            deliver().await;
            one.set_mode(Mode::Refuse).unwrap();
            works(&new()).await.unwrap();
            assert_eq!(asked(login), (0, 1));
            one.set_mode(Mode::Pass).unwrap();
        }
    });
}

#[test]
fn a_node_with_a_bad_secret_id_does_not_lock_the_role_for_the_others_and_heals_at_once() {
    let lab = lab("transit lock-out");
    let bao = prepared(&lab);
    let proxy = FaultProxy::http(&bao.address()).unwrap();
    let (made, auth) = approle(&lab, &bao, json!({"token_ttl": "1h"}));
    let Auth::AppRole { mount, role_id, .. } = auth else { unreachable!() };
    let node = |secret_id_file| Auth::AppRole {
        mount: mount.clone(),
        role_id: role_id.clone(),
        secret_id_file,
        wrapped: false,
    };
    let bad = secret_file(&lab, "bad", "no-secret-id");
    let good = secret_file(&lab, "good", &made.secret_id);
    let logins = || proxy.requests_to("/v1/auth/approle/login");
    run(async {
        // This service does lock a role.
        let other = bao.approle("approle", "other", &role(json!({}))).unwrap();
        let log_in = |secret_id: &str| {
            let body = json!({"role_id": other.role_id, "secret_id": secret_id});
            bao.request("POST", "auth/approle/login", None, Some(&body)).unwrap().status
        };
        for _ in 0..5 {
            assert_eq!(log_in("no-secret-id"), 400);
        }
        assert_eq!(log_in(&other.secret_id), 403);

        let behind = vec![proxy.address().parse().unwrap()];
        let failing = key(TransitConfig { addresses: behind, ..config(&bao, node(bad.clone())) });
        let mut calls = 0;
        eventually(|| {
            calls += 1;
            let failing = failing.clone();
            async move {
                let failure = failing.observe().await.unwrap_err();
                assert_eq!(failure.class, Class::Credential, "{failure}");
                assert!(failure.retry_after.is_some_and(|left| !left.is_zero()), "{failure:?}");
                logins() >= 2
            }
        })
        .await;
        assert_eq!(logins(), 2, "{calls} calls");
        // The others are let in.
        works(&key(config(&bao, node(good)))).await.unwrap();
        // And so is this one, as soon as it may be.
        write_secret(&bad, &made.secret_id);
        works(&failing).await.unwrap();
        assert_eq!(logins(), 3);
    });
}

#[test]
fn where_the_first_of_two_addresses_is_sealed_what_works_once_works_at_the_second() {
    let lab = lab("transit sealed first");
    let (sealed, bao) = (OpenBao::start(&lab).unwrap(), prepared(&lab));
    sealed.seal().unwrap();
    let proxy = FaultProxy::http(&bao.address()).unwrap();
    let (_, auth) = approle(&lab, &bao, json!({"token_ttl": "1h", "secret_id_num_uses": 1}));
    let Auth::AppRole { mount, role_id, secret_id_file, .. } = auth else { unreachable!() };
    let addresses = [sealed.address(), proxy.address()].map(|address| address.parse().unwrap()).to_vec();
    let tls = Tls { ca_file: Some(sealed.authority().unwrap().certificate()), ..Tls::default() };
    run(async {
        for is_wrapped in [false, true] {
            let at = "auth/approle/role/casemate/secret-id";
            let secret = if is_wrapped {
                wrapped(&bao, at).await
            } else {
                let made = bao.write(at, &json!({})).unwrap();
                made["data"]["secret_id"].as_str().unwrap().to_owned()
            };
            write_secret(&secret_id_file, &secret);
            proxy.forget_counts();
            let auth = Auth::AppRole {
                mount: mount.clone(),
                role_id: role_id.clone(),
                secret_id_file: secret_id_file.clone(),
                wrapped: is_wrapped,
            };
            let base = TransitConfig { addresses: addresses.clone(), tls: tls.clone(), ..config(&bao, auth) };
            works(&key(base)).await.unwrap();
            assert_eq!(proxy.requests_to("/v1/auth/approle/login"), 1);
            assert_eq!(proxy.requests_to("/v1/sys/wrapping/unwrap"), usize::from(is_wrapped));
        }
    });
}

#[test]
fn keys_that_log_in_alike_share_one_login_and_a_wrapped_secret_id_outlives_its_token() {
    let lab = lab("transit shared");
    let bao = prepared(&lab);
    bao.write("transit/keys/second", &json!({})).unwrap();
    bao.policy("second", &documented_policy().replace("/casemate", "/second")).unwrap();
    let proxy = FaultProxy::http(&bao.address()).unwrap();
    let (_, auth) = approle(&lab, &bao, json!({"token_ttl": "1h", "token_policies": ["casemate", "second"]}));
    let Auth::AppRole { mount, role_id, secret_id_file, .. } = auth else { unreachable!() };
    let auth = Auth::AppRole { mount, role_id, secret_id_file: secret_id_file.clone(), wrapped: true };
    let base = TransitConfig { addresses: vec![proxy.address().parse().unwrap()], ..config(&bao, auth) };
    let logins = || proxy.requests_to("/v1/auth/approle/login");
    let revoke = || bao.write("sys/leases/revoke-prefix/auth/approle", &json!({"sync": true})).unwrap();
    run(async {
        write_secret(&secret_id_file, &wrapped(&bao, "auth/approle/role/casemate/secret-id").await);
        let sessions = Sessions::default();
        let shared = |config| TransitKey::sharing(config, &sessions).unwrap();
        let (first, second) =
            (shared(base.clone()), shared(TransitConfig { key: "second".into(), ..base.clone() }));
        // Both at once: who comes second waits for the login of the first.
        let (one, other) = tokio::join!(first.observe(), second.observe());
        assert_ne!(one.unwrap().lineage, other.unwrap().lineage);
        assert_eq!(logins(), 1);

        // The successors of a changed configuration, made before the old ones go and after.
        let successor = shared(base.clone());
        drop(first);
        works(&successor).await.unwrap();
        drop((successor, second));
        let successor = Arc::new(shared(base.clone()));
        works(&successor).await.unwrap();
        assert_eq!(logins(), 1);

        // The token is gone, and all find it out at once: one login, with what was unwrapped before.
        revoke();
        let second = shared(TransitConfig { key: "second".into(), ..base.clone() });
        let (one, other) = tokio::join!(successor.observe(), second.observe());
        one.unwrap();
        other.unwrap();
        assert_eq!(logins(), 2);

        // At another address it is another session, of the same secret id.
        drop((successor, second));
        revoke();
        let addresses = [&base.addresses[..], &[bao.address().parse().unwrap()]].concat();
        works(&shared(TransitConfig { addresses, ..base.clone() })).await.unwrap();
        assert_eq!(logins(), 3);
        assert_eq!(proxy.requests_to("/v1/sys/wrapping/unwrap"), 1);

        // Who shares nothing has nothing.
        assert_eq!(class(key(base).observe().await), Class::Credential);
    });
}

#[test]
fn a_token_file_that_ends_is_a_credential_and_a_new_one_heals_it() {
    let lab = lab("transit token");
    let bao = prepared(&lab);
    run(async {
        let base = by_token(&lab, &bao);
        let file = lab.dir().join("token");
        let key = key(base);
        works(&key).await.unwrap();
        let old = fs::read_to_string(&file).unwrap().trim().to_owned();
        bao.write("auth/token/revoke", &json!({"token": old})).unwrap();
        let failure = key.observe().await.unwrap_err();
        assert_eq!(failure.class, Class::Credential, "{failure}");
        assert!(!format!("{failure}{failure:?}").contains(&old), "{failure}");

        for (content, said) in [(Vec::new(), "is empty"), (vec![b'a'; 65 * 1024], "longer than 64 KiB")] {
            fs::write(&file, content).unwrap();
            let failure = key.observe().await.unwrap_err();
            assert_eq!(failure.class, Class::Credential, "{failure}");
            assert!(failure.what.contains(said), "{failure}");
        }
        fs::remove_file(&file).unwrap();
        assert_eq!(class(key.observe().await), Class::Credential);

        write_secret(&file, &bao.token(&["casemate"], &json!({"ttl": "1h"})).unwrap());
        works(&key).await.unwrap();
    });
}

#[test]
fn by_json_web_token_an_old_one_is_a_credential_and_a_turned_link_is_followed() {
    let lab = lab("transit jwt");
    let bao = prepared(&lab);
    let issuer = JwtIssuer::create().unwrap();
    bao.auth("jwt", "jwt").unwrap();
    bao.write("auth/jwt/config", &json!({"jwt_validation_pubkeys": [issuer.public_key()]})).unwrap();
    let bound = json!({
        "role_type": "jwt", "bound_audiences": ["openbao"], "user_claim": "sub",
        "bound_subject": "system:serviceaccount:kube-system:casemate", "token_ttl": "1h",
    });
    bao.write("auth/jwt/role/casemate", &role(bound)).unwrap();
    let sign = |starts: i64, ends: i64| {
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
        let subject = "system:serviceaccount:kube-system:casemate";
        let claims = json!({"sub": subject, "aud": "openbao", "iat": now + starts, "nbf": now + starts, "exp": now + ends});
        issuer.sign(&claims).unwrap()
    };
    // As the kubelet projects it: data in a folder of its own, reached by two links.
    let folder = lab.dir().join("projected");
    let deliver = |generation: &str, jwt: &str| {
        fs::create_dir_all(folder.join(generation)).unwrap();
        write_secret(&folder.join(generation).join("token"), jwt);
        std::os::unix::fs::symlink(generation, folder.join("..turn")).unwrap();
        fs::rename(folder.join("..turn"), folder.join("..data")).unwrap();
    };
    deliver("..1", &sign(-3600, -1800));
    std::os::unix::fs::symlink("..data/token", folder.join("token")).unwrap();
    let auth = Auth::Jwt { mount: "jwt".into(), role: "casemate".into(), jwt_file: folder.join("token") };
    run(async {
        let key = key(config(&bao, auth));
        let expired = key.observe().await.unwrap_err();
        assert_eq!(expired.class, Class::Credential, "{expired}");
        deliver("..2", &sign(3600, 7200));
        let early = key.observe().await.unwrap_err();
        assert_eq!(early.class, Class::Credential, "{early}");
        deliver("..3", &sign(0, 3600));
        works(&key).await.unwrap();
    });
}

#[test]
fn by_the_token_of_a_service_account_that_a_real_api_server_reviews() {
    let lab = Lab::builder("transit kubernetes").apiservers(1).start().unwrap();
    let bao = prepared(&lab);
    let kubectl = |args: &[&str]| lab.kubectl(0, args).unwrap().trim().to_owned();
    kubectl(&["create", "serviceaccount", "casemate"]);
    kubectl(&["create", "serviceaccount", "reviewer"]);
    let rights = ["--clusterrole=system:auth-delegator", "--serviceaccount=default:reviewer"];
    kubectl(&[&["create", "clusterrolebinding", "reviewer"], &rights[..]].concat());
    let view =
        |path: &str| kubectl(&["config", "view", "--raw", "--output", &format!("jsonpath={{{path}}}")]);
    let ca = STANDARD.decode(view(".clusters[0].cluster.certificate-authority-data"));
    let ca = match ca {
        Ok(pem) if !pem.is_empty() => String::from_utf8(pem).unwrap(),
        _ => fs::read_to_string(view(".clusters[0].cluster.certificate-authority")).unwrap(),
    };
    bao.auth("kubernetes", "kubernetes").unwrap();
    let reviewer = kubectl(&["create", "token", "reviewer"]);
    let review = json!({
        "kubernetes_host": view(".clusters[0].cluster.server"), "kubernetes_ca_cert": ca,
        "token_reviewer_jwt": reviewer, "disable_local_ca_jwt": true,
    });
    bao.write("auth/kubernetes/config", &review).unwrap();
    let bound = json!({
        "bound_service_account_names": ["casemate"], "bound_service_account_namespaces": ["default"],
        "token_ttl": "1h",
    });
    bao.write("auth/kubernetes/role/casemate", &role(bound)).unwrap();
    let token_file = secret_file(&lab, "sa-token", &reviewer);
    let auth = Auth::Kubernetes {
        mount: "kubernetes".into(),
        role: "casemate".into(),
        token_file: token_file.clone(),
    };
    run(async {
        let key = key(config(&bao, auth));
        let other = key.observe().await.unwrap_err();
        assert_eq!(other.class, Class::Credential, "{other}");
        write_secret(&token_file, &kubectl(&["create", "token", "casemate"]));
        works(&key).await.unwrap();
    });
}

#[test]
fn by_client_certificate_over_tls_whose_files_may_change() {
    let lab = lab("transit certificate");
    let bao = OpenBao::start(&lab).unwrap();
    prepare(&bao);
    let authority = bao.authority().unwrap();
    bao.auth("cert", "cert").unwrap();
    bao.write("auth/cert/certs/casemate", &role(json!({"certificate": authority.pem(), "token_ttl": "1h"})))
        .unwrap();
    let strangers = Authority::create(&lab.dir().join("strangers"), "strangers").unwrap();
    let stranger = strangers.client("casemate", Validity::Now).unwrap();
    let ours = authority.client("casemate", Validity::Now).unwrap();
    let (ca, cert, secret) = (lab.dir().join("ca"), lab.dir().join("cert"), lab.dir().join("key"));
    let deliver = |from: &Path, to: &Path| write_secret(to, &fs::read_to_string(from).unwrap());
    deliver(&strangers.certificate(), &ca);
    deliver(&stranger.certificate, &cert);
    deliver(&stranger.key, &secret);
    let auth = Auth::Certificate { mount: "cert".into(), role: Some("casemate".into()) };
    let client = Some(ClientCertificate { cert_file: cert.clone(), key_file: secret.clone() });
    let tls = Tls { ca_file: Some(ca.clone()), server_name: None, client };
    let base = TransitConfig { tls: tls.clone(), ..config(&bao, auth) };
    run(async {
        let key = key(base.clone());
        let failure = key.observe().await.unwrap_err();
        assert_eq!(failure.class, Class::Credential, "{failure}");
        assert!(failure.what.contains("TLS"), "{failure}");

        // The right authority: at once. The certificate is a stranger's still.
        deliver(&authority.certificate(), &ca);
        let failure = key.observe().await.unwrap_err();
        assert_eq!(failure.class, Class::Credential, "{failure}");

        deliver(&ours.certificate, &cert);
        deliver(&ours.key, &secret);
        // Looked at every few seconds.
        eventually(|| async { works(&key).await.is_ok() }).await;

        // Files that can't be used: those that could go on.
        fs::write(&ca, "no certificate").unwrap();
        tokio::time::sleep(Duration::from_secs(6)).await;
        works(&key).await.unwrap();
        deliver(&authority.certificate(), &ca);

        // The certificate is for `localhost` too, and for nobody else.
        let named = |name: &str| {
            let tls = Tls { server_name: Some(name.into()), ..tls.clone() };
            self::key(TransitConfig { tls, ..base.clone() })
        };
        works(&named("localhost")).await.unwrap();
        let failure = named("elsewhere.example").observe().await.unwrap_err();
        assert_eq!(failure.class, Class::Credential, "{failure}");
    });
}

#[test]
fn keys_of_one_name_in_two_namespaces_are_two_keys() {
    let lab = lab("transit namespaces");
    let bao = prepared(&lab);
    for namespace in ["team", "team/inner"] {
        let (parent, name) =
            namespace.rsplit_once('/').map_or((String::new(), namespace), |(p, n)| (format!("{p}/"), n));
        bao.write(&format!("{parent}sys/namespaces/{name}"), &json!({})).unwrap();
        bao.write(&format!("{namespace}/sys/mounts/ops/transit"), &json!({"type": "transit"})).unwrap();
        bao.write(&format!("{namespace}/ops/transit/keys/casemate"), &json!({})).unwrap();
        let policy = documented_policy().replace("\"transit/", "\"ops/transit/");
        bao.write(&format!("{namespace}/sys/policies/acl/casemate"), &json!({"policy": policy})).unwrap();
    }
    run(async {
        let mut roots = vec![works(&key(by_token(&lab, &bao))).await.unwrap().lineage];
        for namespace in ["team", "team/inner"] {
            let asked = json!({"policies": ["casemate"], "no_default_policy": true});
            let made = bao.write(&format!("{namespace}/auth/token/create"), &asked).unwrap();
            let path = secret_file(&lab, "namespaced", made["auth"]["client_token"].as_str().unwrap());
            let base = config(&bao, Auth::TokenFile { path });
            let key = key(TransitConfig {
                namespace: Some(format!("/{namespace}/")),
                mount: "ops/transit/".into(),
                ..base
            });
            let root = works(&key).await.unwrap();
            let begins = format!("transit:{}/ops%2Ftransit/casemate/1/", namespace.replace('/', "%2F"));
            assert!(root.lineage.as_str().starts_with(&begins), "{}", root.lineage);
            roots.push(root.lineage);
        }
        roots.sort();
        roots.dedup();
        assert_eq!(roots.len(), 3);
    });
}
