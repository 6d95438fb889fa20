//! What happens to keys: rotation, minimum versions, deletion, another key of the same name.

use super::*;

#[test]
fn wraps_bind_their_record_and_their_version() {
    let lab = lab("transit keys");
    let bao = prepared(&lab);
    let transit = bao.transit("second").unwrap();
    transit.create("casemate").unwrap();
    run(async {
        let key = key(by_token(&lab, &bao));
        let first = works(&key).await.unwrap();
        let told = bao.read("transit/keys/casemate").unwrap();
        assert_eq!(version(&first), (1, told["data"]["keys"]["1"].as_u64().unwrap()));
        assert!(first.lineage.as_str().starts_with("transit:/transit/casemate/1/"), "{}", first.lineage);
        assert!(key.prefix().rest(&first.lineage).is_some());

        let wrap = key.wrap(&first, &CORE, &PAYLOAD).await.unwrap();
        assert_eq!(wrap.len(), 92);
        let other_core = key.unwrap(&first, &[8; 32], &wrap).await;
        assert_eq!(class(other_core), Class::NotOpened);
        for cut in [&wrap[..0], &wrap[..11], &wrap[..91]] {
            assert_eq!(class(key.unwrap(&first, &CORE, cut).await), Class::NotOpened, "{} bytes", cut.len());
        }

        // Rotation is seen; what was written before stays readable.
        bao.transit("third").unwrap();
        bao.write("transit/keys/casemate/rotate", &json!({})).unwrap();
        let second = works(&key).await.unwrap();
        assert_eq!(version(&second).0, 2);
        assert_eq!(**key.unwrap(&first, &CORE, &wrap).await.unwrap(), PAYLOAD);
        assert_eq!(class(key.unwrap(&second, &CORE, &wrap).await), Class::NotOpened, "of another version");

        // Another mount's key of the same name is none of this key's versions.
        let lineage = first.lineage.as_str().replace("/transit/", "/second/");
        let other = Root { lineage: lineage.parse().unwrap(), ..first.clone() };
        assert_eq!(class(key.unwrap(&other, &CORE, &wrap).await), Class::Refused);
        let other = Root { algorithm: Algorithm::FILE_AES256_GCM, ..first.clone() };
        assert_eq!(class(key.wrap(&other, &CORE, &PAYLOAD).await), Class::Refused);
    });
}

#[test]
fn a_pinned_version_stays_whatever_the_service_says() {
    let lab = lab("transit pinned");
    let bao = prepared(&lab);
    run(async {
        let base = by_token(&lab, &bao);
        let pinned = |number| key(TransitConfig { selection: Selection::Pinned(number), ..base.clone() });
        let (one, two) = (pinned(1), pinned(2));
        let missing = two.observe().await.unwrap_err();
        assert_eq!(missing.class, Class::Undecided, "{missing}");
        assert!(missing.what.contains("pinned version 2; there are 1 (current)"), "{missing}");
        bao.write("transit/keys/casemate/rotate", &json!({})).unwrap();
        assert_eq!(version(&works(&one).await.unwrap()).0, 1);
        assert_eq!(version(&works(&two).await.unwrap()).0, 2);
        let root = one.observe().await.unwrap();

        let set = |what: Value| bao.write("transit/keys/casemate/config", &what).unwrap();
        set(json!({"min_encryption_version": 2}));
        let disabled = one.observe().await.unwrap_err();
        assert_eq!(disabled.class, Class::Undecided, "{disabled}");
        assert!(disabled.what.contains("min_encryption_version is 2"), "{disabled}");
        let refused = one.wrap(&root, &CORE, &PAYLOAD).await.unwrap_err();
        assert_eq!(refused.class, Class::Refused, "{refused}");
        set(json!({"min_encryption_version": 0}));
        works(&one).await.unwrap();
    });
}

#[test]
fn a_version_below_the_minimum_is_a_state_of_the_key_and_a_bad_wrap_is_not() {
    let lab = lab("transit minimum");
    let bao = prepared(&lab);
    run(async {
        let key = key(by_token(&lab, &bao));
        let first = works(&key).await.unwrap();
        let wrap = key.wrap(&first, &CORE, &PAYLOAD).await.unwrap();
        bao.write("transit/keys/casemate/rotate", &json!({})).unwrap();
        bao.write("transit/keys/casemate/config", &json!({"min_decryption_version": 2})).unwrap();
        for failure in [
            key.unwrap(&first, &CORE, &wrap).await.unwrap_err(),
            key.wrap(&first, &CORE, &PAYLOAD).await.unwrap_err(),
        ] {
            assert_eq!(failure.class, Class::Refused, "{failure}");
            assert_eq!(failure.missing.as_ref(), Some(&first.lineage), "{failure}");
            assert!(failure.what.contains("min_decryption_version is 2"), "{failure}");
        }
        assert_eq!(version(&works(&key).await.unwrap()).0, 2);
        bao.write("transit/keys/casemate/config", &json!({"min_decryption_version": 1})).unwrap();
        assert_eq!(**key.unwrap(&first, &CORE, &wrap).await.unwrap(), PAYLOAD);
    });
}

#[test]
fn a_key_that_is_deleted_and_made_anew_is_another_root() {
    let lab = lab("transit anew");
    let bao = prepared(&lab);
    run(async {
        let key = key(by_token(&lab, &bao));
        let first = works(&key).await.unwrap();
        let wrap = key.wrap(&first, &CORE, &PAYLOAD).await.unwrap();
        let transit = "transit/keys/casemate";
        bao.write(&format!("{transit}/config"), &json!({"deletion_allowed": true})).unwrap();
        bao.delete(transit).unwrap();
        for failure in [
            key.observe().await.unwrap_err(),
            key.unwrap(&first, &CORE, &wrap).await.unwrap_err(),
            // With the rights of the policy Transit does not make a key by the way.
            key.wrap(&first, &CORE, &PAYLOAD).await.unwrap_err(),
        ] {
            assert_eq!(failure.class, Class::Refused, "{failure}");
        }
        assert!(bao.read(transit).is_err(), "the key came back by itself");

        let (_, created) = version(&first);
        let mut second = first.clone();
        // A key that is made anew within the second can't be told apart: the stated limit.
        while version(&second).1 == created {
            let _ = bao.write(&format!("{transit}/config"), &json!({"deletion_allowed": true}));
            let _ = bao.delete(transit);
            bao.write(transit, &json!({})).unwrap();
            second = key.observe().await.unwrap();
        }
        assert_eq!(version(&second).0, 1);
        assert_ne!(second.lineage, first.lineage);
        let failure = key.unwrap(&first, &CORE, &wrap).await.unwrap_err();
        assert_eq!(
            (failure.class, failure.missing.as_ref()),
            (Class::Refused, Some(&first.lineage)),
            "{failure}"
        );
        works(&key).await.unwrap();

        // Soft deletion is a state that can be taken back.
        bao.delete(&format!("{transit}/soft-delete")).unwrap();
        let failure = key.observe().await.unwrap_err();
        assert_eq!(failure.class, Class::Refused, "{failure}");
        assert_eq!(class(key.wrap(&second, &CORE, &PAYLOAD).await), Class::Refused);
        bao.write(&format!("{transit}/soft-delete-restore"), &json!({})).unwrap();
        assert_eq!(works(&key).await.unwrap(), second);
    });
}

#[test]
fn kinds_of_key_that_can_not_be_roots_are_refused_and_say_what_to_use() {
    let lab = lab("transit kinds");
    let bao = prepared(&lab);
    bao.policy(
        "all",
        r#"path "transit/*" { capabilities = ["read", "update"] }
        path "auth/token/lookup-self" { capabilities = ["read"] }"#,
    )
    .unwrap();
    let token = bao.token(&["all"], &json!({})).unwrap();
    run(async {
        let base = config(&bao, Auth::TokenFile { path: secret_file(&lab, "all", &token) });
        let named = |name: &str| key(TransitConfig { key: name.into(), ..base.clone() });
        for (name, kind) in [
            ("rsa", json!({"type": "rsa-2048"})),
            ("short", json!({"type": "aes128-gcm96"})),
            ("signing", json!({"type": "ed25519"})),
            ("derived", json!({"derived": true})),
            ("convergent", json!({"derived": true, "convergent_encryption": true})),
        ] {
            bao.write(&format!("transit/keys/{name}"), &kind).unwrap();
            let failure = named(name).observe().await.unwrap_err();
            assert_eq!(failure.class, Class::Refused, "{name}: {failure}");
            assert!(failure.remedy.contains("aes256-gcm96"), "{name}: {failure}");
        }
        for kind in ["chacha20-poly1305", "xchacha20-poly1305"] {
            bao.write(&format!("transit/keys/{kind}"), &json!({"type": kind})).unwrap();
            let key = named(kind);
            let root = works(&key).await.unwrap();
            let wrap = key.wrap(&root, &CORE, &PAYLOAD).await.unwrap();
            assert_eq!(
                class(key.unwrap(&root, &[8; 32], &wrap).await),
                Class::NotOpened,
                "{kind} binds no data"
            );
        }
    });
}

#[test]
fn a_right_that_is_taken_away_is_refused_and_named() {
    let lab = lab("transit rights");
    let bao = prepared(&lab);
    let without =
        |path: &str| documented_policy().replace(&format!("\"transit/{path}/casemate\""), "\"none\"");
    run(async {
        let key = key(by_token(&lab, &bao));
        let root = works(&key).await.unwrap();
        let wrap = key.wrap(&root, &CORE, &PAYLOAD).await.unwrap();
        for direction in ["keys", "encrypt", "decrypt"] {
            bao.policy("casemate", &without(direction)).unwrap();
            let (observed, wrapped, opened) = (
                key.observe().await.map(drop),
                key.wrap(&root, &CORE, &PAYLOAD).await.map(drop),
                key.unwrap(&root, &CORE, &wrap).await.map(drop),
            );
            for (result, of) in [(observed, "keys"), (wrapped, "encrypt"), (opened, "decrypt")] {
                match result {
                    Ok(()) => assert_ne!(of, direction),
                    Err(failure) => {
                        assert_eq!((failure.class, of), (Class::Refused, direction), "{failure}");
                        let path = format!("permission denied on path transit/{of}/casemate");
                        assert!(failure.what.contains(&path), "{failure}");
                    }
                }
            }
            bao.policy("casemate", documented_policy()).unwrap();
        }
        works(&key).await.unwrap();

        // Of what it does not have the service says the same.
        let base = by_token(&lab, &bao);
        for misspelled in [
            TransitConfig { mount: "transi".into(), ..base.clone() },
            TransitConfig { key: "casemat".into(), ..base.clone() },
        ] {
            let failure = TransitKey::new(misspelled).unwrap().observe().await.unwrap_err();
            assert_eq!(failure.class, Class::Refused, "{failure}");
            assert!(failure.remedy.contains("`mount` and `key` are spelled as in the service"), "{failure}");
        }
    });
}
