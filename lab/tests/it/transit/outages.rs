//! Bad days of the service and of the way to it.

use casemate_lab::fault_proxy::{Canned, Mode, Times};

use super::*;

/// A key behind a proxy, with a token that holds.
fn behind(lab: &Lab, bao: &OpenBao, proxy: &FaultProxy) -> Arc<TransitKey> {
    key(TransitConfig { addresses: vec![proxy.address().parse().unwrap()], ..by_token(lab, bao) })
}

#[test]
fn what_the_way_does_to_answers_has_its_class() {
    let lab = lab("transit faults");
    let bao = prepared(&lab);
    let proxy = FaultProxy::http(&bao.address()).unwrap();
    run(async {
        let key = behind(&lab, &bao, &proxy);
        let root = works(&key).await.unwrap();
        let wrap = key.wrap(&root, &CORE, &PAYLOAD).await.unwrap();
        for (mode, expected) in [
            (Mode::Refuse, Class::Unreachable),
            (Mode::Cut, Class::Unreachable),
            (Mode::HalfClosed, Class::Unreachable),
            (Mode::CutAfter { bytes: 100 }, Class::Unreachable),
            (Mode::Throttle { retry_after: Some(7) }, Class::Throttled),
            (Mode::WrongBytes, Class::Corrupt),
            (Mode::Flood { bytes: 100 << 20, announced: true }, Class::Corrupt),
            (Mode::Flood { bytes: 100 << 20, announced: false }, Class::Corrupt),
            (Mode::Flood { bytes: 1000, announced: true }, Class::Corrupt),
        ] {
            proxy.set_mode(mode).unwrap();
            for failure in [
                key.observe().await.unwrap_err(),
                key.wrap(&root, &CORE, &PAYLOAD).await.unwrap_err(),
                key.unwrap(&root, &CORE, &wrap).await.unwrap_err(),
            ] {
                assert_eq!(failure.class, expected, "{mode:?}: {failure}");
                // Not read to its end before it is refused.
                let is_endless = matches!(mode, Mode::Flood { bytes, .. } if bytes > 64 << 10);
                assert_eq!(failure.what.contains("more than 64 KiB"), is_endless, "{mode:?}: {failure}");
                let asked = matches!(mode, Mode::Throttle { .. }).then_some(Duration::from_secs(7));
                assert_eq!(failure.retry_after, asked, "{mode:?}");
            }
        }
        proxy.set_mode(Mode::Pass).unwrap();
        works(&key).await.unwrap();
    });
}

#[test]
fn answers_that_can_not_be_are_corrupt() {
    let lab = lab("transit absurd");
    let bao = prepared(&lab);
    let proxy = FaultProxy::http(&bao.address()).unwrap();
    run(async {
        let key = behind(&lab, &bao, &proxy);
        bao.write("transit/keys/casemate/rotate", &json!({})).unwrap();
        let root = works(&key).await.unwrap();
        let good = key.wrap(&root, &CORE, &PAYLOAD).await.unwrap();
        let (text, other) = (STANDARD.encode(&good), STANDARD.encode([1; 40]));
        let answer = |path: &str, data: Value| {
            let path = format!("/v1/transit/{path}/casemate");
            proxy.answer(&path, Canned::json(200, &json!({"data": data})), Times::Once);
        };
        let sealed =
            |ciphertext: String, version: u32| json!({"ciphertext": ciphertext, "key_version": version});
        for absurd in [
            json!({}),
            json!(null),
            sealed(String::new(), 2),
            sealed("vault:v2:".into(), 2),
            sealed(format!("vault:v1:{text}"), 1),
            sealed(format!("vault:v1:{text}"), 2),
            sealed(format!("vault:v2:{text}"), 1),
            sealed(format!("vault:v2:{other}"), 2),
            sealed(format!("vault:v2:{text}!"), 2),
            sealed(text.clone(), 2),
        ] {
            answer("encrypt", absurd.clone());
            assert_eq!(class(key.wrap(&root, &CORE, &PAYLOAD).await), Class::Corrupt, "{absurd}");
        }
        for absurd in
            [json!({}), json!({"plaintext": ""}), json!({"plaintext": other}), json!({"plaintext": "!"})]
        {
            answer("decrypt", absurd.clone());
            assert_eq!(class(key.unwrap(&root, &CORE, &good).await), Class::Corrupt, "{absurd}");
        }
        let state = bao.read("transit/keys/casemate").unwrap()["data"].clone();
        let changed = |field: &str, value: Value| {
            let mut state = state.clone();
            state[field] = value;
            state
        };
        for absurd in [
            json!({}),
            changed("name", json!("other")),
            changed("latest_version", json!(3)),
            changed("latest_version", json!(0)),
            changed("keys", json!({"1": 1_700_000_000})),
            changed("keys", json!({"2": 0})),
            changed("keys", json!({"2": "yesterday"})),
        ] {
            answer("keys", absurd.clone());
            assert_eq!(class(key.observe().await), Class::Corrupt, "{absurd}");
        }
        // Both ways to tell a time are one lineage.
        for time in
            [json!(1_700_000_000), json!("2023-11-14T22:13:20.9Z"), json!("2023-11-14T23:13:20+01:00")]
        {
            answer("keys", changed("keys", json!({"2": time})));
            assert_eq!(version(&key.observe().await.unwrap()), (2, 1_700_000_000), "{time}");
        }
        // Not in the way of the service: something else answers.
        for status in [400, 403, 404] {
            let page = Canned { status, headers: vec![], body: b"<html>no</html>".to_vec() };
            proxy.answer("/v1/transit/keys/casemate", page, Times::Once);
            assert_eq!(class(key.observe().await), Class::Unreachable, "{status}");
        }
        works(&key).await.unwrap();
    });
}

#[test]
fn sealed_is_unreachable_and_unsealed_is_well_again() {
    let lab = lab("transit sealed");
    let bao = OpenBao::start(&lab).unwrap();
    prepare(&bao);
    run(async {
        let tls = Tls { ca_file: Some(bao.authority().unwrap().certificate()), ..Tls::default() };
        let key = key(TransitConfig { tls, ..by_token(&lab, &bao) });
        let root = works(&key).await.unwrap();
        bao.seal().unwrap();
        let failure = key.observe().await.unwrap_err();
        assert_eq!(failure.class, Class::Unreachable, "{failure}");
        assert!(failure.what.contains("is sealed"), "{failure}");
        assert_eq!(class(key.wrap(&root, &CORE, &PAYLOAD).await), Class::Unreachable);
        bao.unseal().unwrap();
        assert_eq!(works(&key).await.unwrap(), root);
    });
}

#[test]
fn the_address_that_answers_is_asked_and_a_dead_one_costs_one_call() {
    let lab = lab("transit failover");
    let bao = prepared(&lab);
    let (one, two) = (FaultProxy::http(&bao.address()).unwrap(), FaultProxy::http(&bao.address()).unwrap());
    run(async {
        let addresses = [&one, &two].map(|proxy| proxy.address().parse().unwrap()).to_vec();
        let key = key(TransitConfig { addresses, ..by_token(&lab, &bao) });
        works(&key).await.unwrap();
        assert_eq!(two.connections(), 0, "the first is asked first");
        let unavailable = Canned::json(503, &json!({"errors": ["Vault is sealed"]}));
        for (mode, canned) in
            [(Mode::Refuse, false), (Mode::Cut, false), (Mode::BlackHole, false), (Mode::Pass, true)]
        {
            one.set_mode(mode).unwrap();
            if canned {
                for path in ["keys", "encrypt", "decrypt"] {
                    one.answer(&format!("/v1/transit/{path}/casemate"), unavailable.clone(), Times::Always);
                }
            }
            works(&key).await.unwrap();
            let before = one.connections();
            works(&key).await.unwrap();
            assert_eq!(one.connections(), before, "{mode:?}: it is left alone while the other one answers");
            // And back.
            one.forget_answers();
            one.set_mode(Mode::Pass).unwrap();
            two.set_mode(Mode::Refuse).unwrap();
            works(&key).await.unwrap();
            two.set_mode(Mode::Pass).unwrap();
        }
        // A standby that redirects is followed to addresses of the configuration only.
        let redirect = |to: &str| Canned {
            status: 307,
            headers: vec![("Location".into(), format!("{to}/v1/transit/keys/casemate"))],
            body: vec![],
        };
        let path = "/v1/transit/keys/casemate";
        one.answer(path, redirect(&two.address()), Times::Once);
        two.forget_counts();
        key.observe().await.unwrap();
        assert_eq!(two.requests_to(path), 1);
        let stranger = FaultProxy::http(&bao.address()).unwrap();
        for proxy in [&one, &two] {
            proxy.answer(path, redirect(&stranger.address()), Times::Always);
        }
        let failure = key.observe().await.unwrap_err();
        assert_eq!(failure.class, Class::Unreachable, "{failure}");
        assert_eq!(stranger.connections(), 0, "a token was sent to a stranger");
    });
}

#[test]
fn an_address_where_something_else_answers_is_left_for_one_that_serves() {
    let lab = lab("transit nonsense");
    let bao = prepared(&lab);
    let (one, two) = (FaultProxy::http(&bao.address()).unwrap(), FaultProxy::http(&bao.address()).unwrap());
    run(async {
        let path = "/v1/transit/keys/casemate";
        let addresses = [&one, &two].map(|proxy| proxy.address().parse().unwrap()).to_vec();
        let key = key(TransitConfig { addresses, ..by_token(&lab, &bao) });
        key.observe().await.unwrap();
        let page = |status, length| Canned { status, headers: vec![], body: vec![b'x'; length] };
        for (page, alone) in [
            (page(404, 10), Class::Unreachable),
            (page(403, 10), Class::Unreachable),
            (page(429, 10), Class::Throttled),
            (page(200, 10), Class::Corrupt),
            (page(200, 0), Class::Corrupt),
            (page(200, 65 << 10), Class::Corrupt),
            (Canned::json(200, &json!({"status": "ok"})), Class::Corrupt),
        ] {
            let what = format!("{} with {} bytes", page.status, page.body.len());
            one.answer(path, page.clone(), Times::Always);
            key.observe().await.unwrap_or_else(|failure| panic!("{what}: {failure}"));
            one.forget_counts();
            key.observe().await.unwrap();
            assert_eq!(one.requests_to(path), 0, "{what}: it is asked before one that serves");
            // Nowhere else to go.
            two.answer(path, page, Times::Always);
            assert_eq!(class(key.observe().await), alone, "{what}");
            one.forget_answers();
            key.observe().await.unwrap();
            two.forget_answers();
            // The first one is preferred again.
            two.set_mode(Mode::Refuse).unwrap();
            key.observe().await.unwrap();
            two.set_mode(Mode::Pass).unwrap();
        }
    });
}

#[test]
fn when_the_leader_of_three_goes_another_one_is_asked() {
    let lab = lab("transit raft");
    let raft = OpenBao::raft(&lab, 3).unwrap();
    let leader = raft.leader().unwrap();
    prepare(leader);
    run(async {
        let addresses = raft.nodes().iter().map(|node| node.address().parse().unwrap()).collect();
        let tls = Tls { ca_file: Some(leader.authority().unwrap().certificate()), ..Tls::default() };
        let key = key(TransitConfig { addresses, tls, ..by_token(&lab, leader) });
        let root = works(&key).await.unwrap();
        let next = raft.step_down().unwrap();
        eventually(|| async { works(&key).await.is_ok_and(|now| now == root) }).await;
        next.kill9();
        eventually(|| async {
            match works(&key).await {
                Ok(now) => now == root,
                Err(failure) => {
                    assert_eq!(failure.class, Class::Unreachable, "{failure}");
                    false
                }
            }
        })
        .await;
    });
}

#[test]
fn an_address_with_the_wrong_scheme_is_told_as_that() {
    let lab = lab("transit schemes");
    let (plain, protected) = (prepared(&lab), OpenBao::start(&lab).unwrap());
    run(async {
        let with = |address: String| {
            let addresses = vec![address.parse().unwrap()];
            TransitKey::new(TransitConfig { addresses, ..by_token(&lab, &plain) }).unwrap()
        };
        for (address, scheme, other, said, remedy) in [
            (plain.address(), "http://", "https://", "speaks no TLS", "`http://127.0.0.1:PORT`"),
            (
                protected.address(),
                "https://",
                "http://",
                "speaks TLS, and was asked without",
                "write `https://`",
            ),
        ] {
            let failure = with(address.replace(scheme, other)).observe().await.unwrap_err();
            assert_eq!(failure.class, Class::Unreachable, "{failure}");
            assert!(failure.what.contains(said) && failure.remedy.contains(remedy), "{failure}");
        }
    });
}
