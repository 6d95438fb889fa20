//! The published vector, in the real service.

use casemate_keys::Sealed;

use super::*;

const NAME: &str = "k8s-key";

/// A Transit key as its backup has it, whose latest version has this secret and creation time.
fn backup(secret: &[u8], latest: u32, created: u64) -> String {
    let version = |secret: &[u8]| {
        json!({
            "key": STANDARD.encode(secret), "hmac_key": STANDARD.encode([1; 32]),
            "time": "2026-11-30T00:00:00Z", "creation_time": created,
        })
    };
    let older = (1..latest).map(|number| (number.to_string(), version(&[number as u8; 32])));
    let keys: serde_json::Map<_, _> = older.chain([(latest.to_string(), version(secret))]).collect();
    let policy = json!({
        "name": NAME, "type": 0, "latest_version": latest, "archive_version": latest,
        "min_decryption_version": 1, "keys": keys,
    });
    STANDARD.encode(json!({"policy": policy, "archived_keys": {"keys": []}}).to_string())
}

#[test]
fn the_published_vector_opens_in_transit() {
    let vector: crate::vector::Vector =
        serde_json::from_str(include_str!("../../../../vectors/v1/transit.json")).unwrap();
    let [annotation, ciphertext, dek_source, secret] =
        [&vector.annotation, &vector.ciphertext, &vector.dek_source, vector.keys[0].key.as_ref().unwrap()]
            .map(|text| hex::decode(text).unwrap());
    let annotations = [("record.casemate.dev", &annotation[..])];
    let sealed = Sealed { ciphertext: &ciphertext, key_id: &vector.key_id, annotations: &annotations };
    let readable = vector.read_policy().check(&sealed, 0).unwrap();
    let attempt = &readable.attempts()[0];
    let (number, created) = version(&attempt.root);

    let lab = lab("transit vector");
    let bao = OpenBao::dev(&lab).unwrap();
    bao.write("sys/namespaces/team-a", &json!({})).unwrap();
    bao.write("team-a/sys/mounts/ops/transit", &json!({"type": "transit"})).unwrap();
    let backup = backup(&secret, number, created);
    bao.write("team-a/ops/transit/restore", &json!({"backup": backup})).unwrap();
    run(async {
        let root_token = bao.root_token();
        let base = config(&bao, Auth::TokenFile { path: secret_file(&lab, "token", root_token) });
        let key = key(TransitConfig {
            namespace: Some("team-a".into()),
            mount: "ops/transit".into(),
            key: NAME.into(),
            auth_namespace: Some(String::new()),
            ..base
        });
        let root = key.observe().await.unwrap();
        // But for the space in its name, which this service does not accept.
        assert_eq!(root.lineage.as_str(), attempt.root.lineage.as_str().replace("k8s%20key", NAME));
        let payload = key.unwrap(&root, readable.core(), &attempt.wrap).await.unwrap();
        let kek = readable.local_kek(&payload).unwrap();
        assert_eq!(readable.open(&kek, &ciphertext).unwrap()[..], dek_source);
    });
}
