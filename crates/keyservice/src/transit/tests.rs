use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use crate::http::Tls;

fn config() -> TransitConfig {
    TransitConfig {
        addresses: vec!["https://bao.example".parse().unwrap()],
        tls: Tls::default(),
        namespace: None,
        mount: "transit".into(),
        key: "casemate".into(),
        selection: Selection::Latest,
        auth: Auth::TokenFile { path: "/run/token".into() },
        auth_namespace: None,
    }
}

fn place() -> Place {
    Place { namespace: String::new(), mount: "transit".into(), key: "casemate".into() }
}

fn state(change: impl FnOnce(&mut Value)) -> Result<KeyState, Failure> {
    let mut data = json!({
        "name": "casemate", "type": "aes256-gcm96", "latest_version": 3,
        "keys": {"2": 1_700_000_000, "3": 1_700_000_100},
        "min_decryption_version": 2, "min_encryption_version": 0, "derived": false, "soft_deleted": false,
        "supports_encryption": true, "supports_decryption": true,
    });
    change(&mut data);
    KeyState::parse(json!({"data": data}).to_string().as_bytes(), &place())
}

#[test]
fn one_spelling_of_names_is_one_lineage() {
    for (namespace, mount, prefix) in [
        (None, "transit", "transit:/transit/casemate/"),
        (Some(""), "/transit/", "transit:/transit/casemate/"),
        (Some("root"), "transit", "transit:/transit/casemate/"),
        (Some("/team/a/"), "ops/transit", "transit:team%2Fa/ops%2Ftransit/casemate/"),
    ] {
        let namespace = namespace.map(str::to_owned);
        let key = TransitKey::new(TransitConfig { namespace, mount: mount.into(), ..config() }).unwrap();
        assert_eq!(key.prefix().to_string(), prefix);
    }
}

#[test]
fn a_configuration_that_can_not_be_right_says_which_field() {
    let refused = |change: &dyn Fn(&mut TransitConfig)| {
        let mut config = config();
        change(&mut config);
        TransitKey::new(config).unwrap_err().field
    };
    for bad in ["", "/", "a//b", "../sys", "a/./b", "a\nb", "ä", " a"] {
        assert_eq!(refused(&|config| config.mount = bad.into()), "mount", "{bad:?}");
    }
    for bad in ["", "a/b", "/a", "..", "a\0"] {
        assert_eq!(refused(&|config| config.key = bad.into()), "key", "{bad:?}");
    }
    assert_eq!(refused(&|config| config.key = "k".repeat(256)), "key");
    assert_eq!(refused(&|config| config.namespace = Some("a/../b".into())), "namespace");
    assert_eq!(refused(&|config| config.addresses.clear()), "addresses");
    assert_eq!(refused(&|config| config.selection = Selection::Pinned(0)), "version");
    for bad in ["127.0.0.1", "::1", "https://bao", "a..b", "", "bao.1"] {
        assert_eq!(refused(&|config| config.tls.server_name = Some(bad.into())), "tls.serverName", "{bad:?}");
    }
    let certificate = || Auth::Certificate { mount: "cert".into(), role: None };
    assert_eq!(refused(&|config| config.auth = certificate()), "auth");
}

#[test]
fn debug_shows_no_role_id() {
    let role_id = RoleId::Text("role-id-of-nobody".into());
    let (mount, path) = ("approle".to_owned(), PathBuf::from("/run/secret-id"));
    let auth = Auth::AppRole { mount, role_id, secret_id_file: path, wrapped: false };
    let config = TransitConfig { auth, ..config() };
    let shown = format!("{config:?} {:?}", TransitKey::new(config.clone()).unwrap());
    assert!(shown.contains("casemate") && !shown.contains("nobody"), "{shown}");
}

#[test]
fn which_version_of_a_key_is_a_root() {
    let latest = state(|_| ()).unwrap().selected(Selection::Latest, &place()).unwrap();
    assert_eq!(latest.as_str(), "transit:/transit/casemate/3/1700000100");
    let pinned = state(|_| ()).unwrap().selected(Selection::Pinned(2), &place()).unwrap();
    assert_eq!(pinned.as_str(), "transit:/transit/casemate/2/1700000000");

    let class = |selection, change: &dyn Fn(&mut Value)| {
        state(change).and_then(|state| state.selected(selection, &place())).unwrap_err().class
    };
    use Selection::{Latest, Pinned};
    for pinned in [Pinned(1), Pinned(4)] {
        assert_eq!(class(pinned, &|_| ()), Class::Undecided, "{pinned:?}");
    }
    assert_eq!(class(Pinned(2), &|data| data["min_encryption_version"] = json!(3)), Class::Undecided);
    for (field, value) in [
        ("type", json!("aes128-gcm96")),
        ("type", json!("rsa-4096")),
        ("derived", json!(true)),
        ("convergent_encryption", json!(true)),
        ("soft_deleted", json!(true)),
        ("supports_decryption", json!(false)),
    ] {
        assert_eq!(class(Latest, &|data| data[field] = value.clone()), Class::Refused, "{field} {value}");
    }
}

/// What is malformed says nothing of the key: not even that a version is not there.
#[test]
fn a_description_that_can_not_be_is_corrupt_and_says_what_is_wrong() {
    let lineage = |number: u32| format!("transit:/transit/casemate/{number}/1700000000").parse().unwrap();
    let refused = |change: &dyn Fn(&mut Value), said: &str| {
        let failure = state(change).map(drop).unwrap_err();
        assert_eq!(failure.class, Class::Corrupt, "{failure}");
        assert!(failure.what.contains(said), "{said:?} in {failure}");
        assert!(failure.what.starts_with("transit/keys/casemate: "), "{failure}");
        // Nor does a record with a version that may be there become one of a version that is not.
        let lineage: Lineage = lineage(7);
        let version = Version::parse(&lineage, &place().prefix().unwrap()).unwrap();
        assert_eq!(version.missing(failure).missing, None);
    };
    for field in [
        "name",
        "type",
        "latest_version",
        "keys",
        "min_decryption_version",
        "min_encryption_version",
        "derived",
    ] {
        let remove = |data: &mut Value| drop(data.as_object_mut().unwrap().remove(field));
        refused(&remove, &format!("no `{field}`"));
        refused(&|data| data[field] = json!(null), &format!("a `{field}` that is"));
        refused(&|data| data[field] = json!([{"s.secret": "s.secret"}]), &format!("a `{field}` that is"));
    }
    for field in ["convergent_encryption", "soft_deleted", "supports_encryption", "supports_decryption"] {
        refused(&|data| data[field] = json!("true"), &format!("a `{field}` that is neither true nor false"));
        state(|data| drop(data.as_object_mut().unwrap().remove(field))).unwrap();
    }
    let at = |version: &str, time: Value| json!({version: time, "3": 1_700_000_100});
    for (field, value, said) in [
        ("name", json!("other"), "another key, \"other\""),
        ("latest_version", json!(0), "0 is the latest"),
        ("latest_version", json!(2), "2 is the latest"),
        ("latest_version", json!(4), "no creation time of version 4"),
        ("latest_version", json!(-1), "is no version"),
        ("latest_version", json!(3.0), "is no version"),
        ("latest_version", json!("3"), "is no version"),
        ("latest_version", json!(5_000_000_000_u64), "is no version"),
        ("min_decryption_version", json!(4), "least version of 4"),
        ("min_encryption_version", json!(4), "least version of 4"),
        ("keys", json!({}), "no creation time of version 3"),
        ("keys", json!([1_700_000_000]), "no map of versions"),
        ("keys", at("0", json!(1_700_000_000)), "a version \"0\""),
        ("keys", at("02", json!(1_700_000_000)), "a version \"02\""),
        ("keys", at("two", json!(1_700_000_000)), "a version \"two\""),
        ("keys", at("4", json!(1_700_000_000)), "a version \"4\""),
        ("keys", at("2", json!(null)), "no creation time of version 2"),
        ("keys", at("2", json!(0)), "no creation time of version 2"),
        ("keys", at("2", json!(-5)), "no creation time of version 2"),
        ("keys", at("2", json!(1e300)), "no creation time of version 2"),
        ("keys", at("2", json!(1_700_000_000_000_i64)), "no creation time of version 2"),
        ("keys", at("2", json!(u64::MAX)), "no creation time of version 2"),
        ("keys", at("2", json!(true)), "no creation time of version 2"),
        ("keys", at("2", json!("never")), "no creation time of version 2"),
        ("keys", at("2", json!({})), "no creation time of version 2"),
        ("keys", at("2", json!({"creation_time": 0})), "no creation time of version 2"),
        ("keys", at("2", json!({"creation_time": {"creation_time": 5}})), "no creation time of version 2"),
    ] {
        refused(&|data| data[field] = value.clone(), said);
    }
    // A gap is no reason either: the version may be there.
    let gap = state(|data| data["min_decryption_version"] = json!(1)).unwrap();
    assert_eq!(gap.version(1, &place()).unwrap_err().class, Class::Corrupt);

    for body in
        ["", "null", "[]", "{}", r#"{"data":null}"#, r#"{"data":[]}"#, r#"{"data":"x"}"#, r#"{"errors":[]}"#]
    {
        let failure = KeyState::parse(body.as_bytes(), &place()).map(drop).unwrap_err();
        assert_eq!(failure.class, Class::Corrupt, "{body}: {failure}");
    }
}

/// Asymmetric ones tell times, and more, in other ways: that they are of another kind is what counts.
#[test]
fn a_key_of_another_kind_is_refused_whatever_its_versions_look_like() {
    for (kind, keys) in [
        (
            "rsa-4096",
            json!({"3": {"creation_time": "2023-11-14T22:13:20Z", "name": "rsa-4096", "public_key": "…"}}),
        ),
        ("ed25519", json!({"3": {"public_key": "…"}})),
        ("hmac", json!({})),
    ] {
        let key = state(|data| (data["type"], data["keys"]) = (json!(kind), keys.clone())).unwrap();
        for failure in [key.selected(Selection::Latest, &place()), key.version(3, &place())] {
            let failure = failure.unwrap_err();
            assert!(failure.class == Class::Refused && failure.what.contains(kind), "{failure}");
        }
        assert_eq!(key.candidates(Selection::Latest), []);
    }
}

#[test]
fn a_creation_time_is_floored_to_the_second_however_it_is_told() {
    for time in [
        json!(1_700_000_000),
        json!(1_700_000_000.9),
        json!("2023-11-14T22:13:20Z"),
        json!("2023-11-14T22:13:20.999999999Z"),
        json!("2023-11-15T00:13:20.5+02:00"),
        json!({"creation_time": "2023-11-14T22:13:20.1Z", "public_key": "…"}),
    ] {
        let state = state(|data| data["keys"]["3"] = time.clone()).unwrap();
        let lineage = state.selected(Selection::Latest, &place()).unwrap();
        assert_eq!(lineage.as_str(), "transit:/transit/casemate/3/1700000000", "{time}");
    }
}

#[test]
fn a_version_has_one_spelling() {
    let prefix = place().prefix().unwrap();
    let parse = |text: &str| Version::parse(&text.parse().unwrap(), &prefix).map(|version| version.number);
    assert_eq!(parse("transit:/transit/casemate/3/1700000000"), Ok(3));
    for bad in [
        "transit:/transit/casemate/03/1700000000",
        "transit:/transit/casemate/0/1700000000",
        "transit:/transit/casemate/3/01700000000",
        "transit:/transit/casemate/3/-5",
        "transit:/transit/casemate/3/0",
        "transit:/transit/casemate/3/",
        "transit:/transit/casemate/3",
        "transit:/transit/casemate/3/1/2",
        "transit:/transit/casemate/4294967296/1",
        "transit:/transit/other/3/1700000000",
        "transit:team/transit/casemate/3/1700000000",
    ] {
        assert_eq!(parse(bad).unwrap_err().class, Class::Refused, "{bad}");
    }
}

#[test]
fn the_published_vectors_wrap_is_what_transit_gives_and_takes() {
    let vector: Value = serde_json::from_str(include_str!("../../../../vectors/v1/transit.json")).unwrap();
    let annotation = hex::decode(vector["annotation"].as_str().unwrap()).unwrap();
    let record = casemate_keys::Record::decode(&annotation).unwrap();
    let (root, wrap) = record.wraps().next().unwrap();
    let prefix = LineagePrefix::new("transit", ["team-a", "ops/transit", "k8s key"]).unwrap();
    let version = Version::parse(&root.lineage, &prefix).unwrap();
    let ciphertext = version.ciphertext(wrap);
    assert!(ciphertext.starts_with("vault:v3:"), "{ciphertext}");
    assert_eq!(Sealed { ciphertext, key_version: Some(3) }.wrap(&version).unwrap(), *wrap);
}

#[test]
fn what_statuses_and_bodies_mean() {
    let reply = |status, body: &str| Reply {
        status,
        retry_after: None,
        location: None,
        body: Zeroizing::new(body.as_bytes().to_vec()),
    };
    let told = r#"{"errors":["permission denied"]}"#;
    for (status, body, expected) in [
        (200, "", None),
        (204, "", None),
        (400, told, None),
        (403, told, None),
        (404, r#"{"errors":[]}"#, None),
        (429, told, Some(Class::Throttled)),
        (429, "<html>", Some(Class::Throttled)),
        (400, "Client sent an HTTP request to an HTTPS server.", Some(Class::Unreachable)),
        (403, "<html>blocked</html>", Some(Class::Unreachable)),
        (404, "", Some(Class::Unreachable)),
        (404, r#"{"errors":"none"}"#, Some(Class::Unreachable)),
        (201, "{}", Some(Class::Unreachable)),
        (101, "", Some(Class::Unreachable)),
    ] {
        let found = answer::expect_service(&reply(status, body), "p").err().map(|failure| failure.class);
        assert_eq!(found, expected, "{status} {body}");
    }
    for (status, body, expected) in [
        (200, r#"{"data":null}"#, None),
        (200, r#"{"request_id":"","auth":{"client_token":"t"},"data":null}"#, None),
        (204, "", None),
        (404, r#"{"errors":[]}"#, None),
        (403, told, None),
        (200, "<html>welcome</html>", Some(Class::Corrupt)),
        (200, r#"["data"]"#, Some(Class::Corrupt)),
        (200, r#"{"status":"ok"}"#, Some(Class::Corrupt)),
        (200, r#"{"data":1} x"#, Some(Class::Corrupt)),
        (403, "<html>blocked</html>", Some(Class::Unreachable)),
        (404, "", Some(Class::Unreachable)),
        (429, "<html>", Some(Class::Throttled)),
    ] {
        let found = answer::expect_shape(&reply(status, body), "p").err().map(|failure| failure.class);
        assert_eq!(found, expected, "{status} {body}");
    }
    for status in [412, 472, 473, 500, 501, 502, 503, 504, 599] {
        assert!(!answer::is_served(status), "{status}");
    }
    for status in [200, 204, 307, 400, 401, 403, 404, 429] {
        assert!(answer::is_served(status), "{status}");
    }
}

#[test]
fn secret_ids_are_made_at_one_path_of_a_role() {
    let made = |path, namespace| login::makes_secret_ids(path, namespace, "ops/approle");
    for (path, namespace) in [
        ("auth/ops/approle/role/casemate/secret-id", ""),
        ("auth/ops/approle/role/casemate/secret-id", "team/inner"),
        ("team/inner/auth/ops/approle/role/casemate/secret-id", "team/inner"),
    ] {
        assert!(made(path, namespace), "{path} {namespace}");
    }
    for (path, namespace) in [
        ("kv/auth/ops/approle/role/casemate/secret-id", ""),
        ("kv/auth/ops/approle/role/casemate/secret-id", "team"),
        ("team/auth/ops/approle/role/casemate/secret-id", ""),
        ("teamauth/ops/approle/role/casemate/secret-id", "team"),
        ("/auth/ops/approle/role/casemate/secret-id", "team"),
        ("team/kv/auth/ops/approle/role/casemate/secret-id", "team"),
        ("auth/approle/role/casemate/secret-id", ""),
        ("auth/ops/approle/role//secret-id", ""),
        ("auth/ops/approle/role/secret-id", ""),
        ("auth/ops/approle/role/a/b/secret-id", ""),
        ("auth/ops/approle/role/casemate/secret-id/lookup", ""),
        ("auth/ops/approle/role/casemate/custom-secret-id", ""),
        ("sys/wrapping/wrap", ""),
        ("", ""),
    ] {
        assert!(!made(path, namespace), "{path} {namespace}");
    }
}

#[test]
fn a_secret_in_a_file_is_one_word_whatever_editors_put_around_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    let read = |content: &[u8]| {
        std::fs::write(&path, content).unwrap();
        secret_file::read(&path)
    };
    for content in ["s.abc", "s.abc\n", "s.abc\r\n", "\u{feff}s.abc\r\n", "  s.abc \n\n"] {
        assert_eq!(read(content.as_bytes()).ok().unwrap().text.as_str(), "s.abc", "{content:?}");
    }
    let long = vec![b'a'; 64 * 1024 + 1];
    for bad in
        [&b""[..], b"\n", "\u{feff}".as_bytes(), b"two words", b"two\nlines", b"\xff\xfe", b"a\0b", &long]
    {
        let failure = read(bad).err().unwrap();
        assert_eq!(failure.class, Class::Credential, "{failure}");
        assert!(!failure.to_string().contains("two "), "{failure}");
    }
    for (mode, exposed) in [(0o600, false), (0o640, false), (0o644, true), (0o602, true)] {
        std::fs::write(&path, "s.abc").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(secret_file::read(&path).ok().unwrap().exposed.is_some(), exposed, "{mode:o}");
    }
    assert_eq!(secret_file::read(folder.path()).err().unwrap().class, Class::Credential);
    assert_eq!(secret_file::read(&folder.path().join("none")).err().unwrap().class, Class::Credential);
}

#[test]
fn a_life_that_nobody_can_reckon_with_is_a_long_one() {
    for body in [
        r#"{"auth":{"client_token":"t","lease_duration":18446744073709551615}}"#,
        r#"{"data":{"ttl":18446744073709551615}}"#,
    ] {
        let asked = if body.contains("auth") { fed::Asked::Login } else { fed::Asked::LookUp };
        assert_eq!(fed::feed(asked, 200, body.as_bytes()), Ok(fed::Fed::Token(true)), "{body}");
    }
    let grant = login::looked(br#"{"data":{"ttl":18446744073709551615}}"#, "t").unwrap();
    session::Token::new(grant, tokio::time::Instant::now()).map(drop).unwrap();
}

/// Nor its beginning, where what is said is cut off.
#[test]
fn what_a_service_says_of_a_login_is_told_unless_it_repeats_a_secret() {
    let said = |text: &str| {
        let body = json!({"errors": [text]}).to_string();
        fed::feed(fed::Asked::Login, 400, body.as_bytes()).unwrap_err().what
    };
    assert!(said("invalid role").contains("invalid role"));
    assert!(said(&"long ".repeat(100)).len() < 300);
    for secret in fed::SECRETS {
        assert!(!said(&format!("no {secret}")).contains("no "));
        let cut_off = said(&format!("{}{secret}", "x".repeat(197)));
        assert!(!cut_off.contains('x'), "{cut_off}");
    }
}
