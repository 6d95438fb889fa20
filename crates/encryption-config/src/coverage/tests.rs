#![allow(clippy::unwrap_used)]

use zeroize::Zeroizing;

use super::*;
use crate::{Entry, KeyBytes, KmsV1, KmsV2, ServerFlags};

fn key(name: &str) -> LocalKey {
    LocalKey { name: name.into(), secret: KeyBytes::new(Zeroizing::new(vec![7; 32])) }
}

fn v2(name: &str) -> Provider {
    let endpoint = crate::Endpoint::parse("unix:///kms.sock").unwrap();
    Provider::KmsV2(KmsV2 { name: name.into(), endpoint, timeout: Provider::DEFAULT_TIMEOUT })
}

fn v1(name: &str) -> Provider {
    let endpoint = crate::Endpoint::parse("unix:///kms.sock").unwrap();
    let cache_size = KmsV1::DEFAULT_CACHE_SIZE;
    Provider::KmsV1(KmsV1 { name: name.into(), endpoint, timeout: Provider::DEFAULT_TIMEOUT, cache_size })
}

fn config(entries: &[(&[&str], &[Provider])]) -> EncryptionConfiguration {
    let entry = |(resources, providers): &(&[&str], &[Provider])| Entry {
        resources: resources.iter().map(|text| text.parse().unwrap()).collect(),
        providers: providers.to_vec(),
    };
    let config = EncryptionConfiguration { entries: entries.iter().map(entry).collect() };
    assert_eq!(config.check(ServerFlags { kms_v1: true, ..ServerFlags::default() }), Ok(()));
    config
}

/// Whom a resource falls under, as what is written.
fn prefix_of(config: &EncryptionConfiguration, resource: &str) -> String {
    config.coverage(&GroupResource::parse(resource)).writer().write_prefix()
}

#[test]
fn the_narrowest_pattern_decides() {
    let config = config(&[
        (&["events"], &[Provider::Identity]),
        (&["secrets", "deployments.apps"], &[v2("named")]),
        (&["*.apps"], &[v2("apps")]),
        (&["*."], &[v2("core")]),
        (&["*.*"], &[v2("all")]),
    ]);
    for (resource, written) in [
        ("secrets", "k8s:enc:kms:v2:named:"),
        ("deployments.apps", "k8s:enc:kms:v2:named:"),
        ("statefulsets.apps", "k8s:enc:kms:v2:apps:"),
        ("configmaps", "k8s:enc:kms:v2:core:"),
        ("secrets.example.com", "k8s:enc:kms:v2:all:"),
        ("pandas.awesome.bears.example", "k8s:enc:kms:v2:all:"),
        ("events", ""),
        ("events.events.k8s.io", ""),
    ] {
        assert_eq!(prefix_of(&config, resource), written, "{resource}");
    }
}

#[test]
fn nothing_is_encrypted_that_no_pattern_chooses() {
    let config = config(&[(&["secrets"], &[v2("a")])]);
    let coverage = config.coverage(&GroupResource::parse("secrets.example.com"));
    assert_eq!((coverage.rule, coverage.encrypts()), (None, false));
    assert_eq!(coverage.transformers(), [Transformer { place: None, provider: &Provider::Identity }]);
    assert_eq!(coverage.readers(b"{}").len(), 1);
    // An encrypted value is not taken for plaintext.
    assert_eq!(coverage.readers(b"k8s:enc:kms:v2:a:x"), []);
}

#[test]
fn a_resource_named_by_several_entries_has_all_their_providers() {
    let config = config(&[
        (&["secrets"], &[v2("a"), Provider::Identity]),
        (&["configmaps"], &[v2("b")]),
        (&["configmaps", "secrets"], &[v2("c")]),
        (&["*."], &[v2("d")]),
    ]);
    let places = |resource| -> Vec<(usize, usize)> {
        let coverage = config.coverage(&GroupResource::parse(resource));
        coverage
            .transformers()
            .iter()
            .filter_map(|found| found.place)
            .map(|at| (at.entry, at.provider))
            .collect()
    };
    assert_eq!(places("secrets"), [(0, 0), (0, 1), (2, 0)]);
    assert_eq!(places("configmaps"), [(1, 0), (2, 0)]);
    assert_eq!(places("pods"), [(3, 0)]);
}

#[test]
fn readers_come_in_order_and_all_but_the_first_are_stale() {
    let keys = ["a", "a:b", "a"].map(key).to_vec();
    let config = config(&[(
        &["secrets"],
        &[
            Provider::Identity,
            Provider::AesGcm(keys),
            Provider::AesCbc(vec![key("a")]),
            v1("x:y"),
            v1("x"),
            v2("ü [1]"),
        ],
    )]);
    let coverage = config.coverage(&GroupResource::parse("secrets"));
    assert!(!coverage.encrypts());
    for (stored, readers) in [
        ("{}", &[(0, None, 0)][..]),
        ("k8s:enc:aesgcm:v1:a:b:…", &[(1, Some("a"), 20), (1, Some("a:b"), 22), (1, Some("a"), 20)]),
        ("k8s:enc:aesgcm:v1:a:…", &[(1, Some("a"), 20), (1, Some("a"), 20)]),
        ("k8s:enc:aesgcm:v1:b:…", &[]),
        ("k8s:enc:aescbc:v1:a:…", &[(2, Some("a"), 20)]),
        ("k8s:enc:kms:v1:x:y:…", &[(3, None, 19), (4, None, 17)]),
        ("k8s:enc:kms:v2:ü [1]:…", &[(5, None, 22)]),
        ("k8s:enc:kms:v2:x:…", &[]),
        ("k8s:enc:", &[]),
        ("k8s:enc:other:v1:a:…", &[]),
    ] {
        let found = coverage.readers(stored.as_bytes());
        let told: Vec<(usize, Option<&str>, usize)> = found
            .iter()
            .map(|reader| {
                let place = reader.transformer.place.unwrap().provider;
                (place, reader.key.map(|key| key.name.as_str()), reader.prefix_len)
            })
            .collect();
        assert_eq!(told, readers, "{stored}");
        assert!(found.iter().all(|reader| reader.stale == (reader.transformer.place.unwrap().provider > 0)));
    }
}

#[test]
fn the_second_key_of_the_first_provider_is_stale_too() {
    let config = config(&[(&["secrets"], &[Provider::Secretbox(vec![key("new"), key("old")])])]);
    let coverage = config.coverage(&GroupResource::parse("secrets"));
    assert_eq!(coverage.writer().write_prefix(), "k8s:enc:secretbox:v1:new:");
    let stale =
        |stored: &[u8]| coverage.readers(stored).iter().map(|reader| reader.stale).collect::<Vec<_>>();
    assert_eq!(stale(b"k8s:enc:secretbox:v1:new:x"), [false]);
    assert_eq!(stale(b"k8s:enc:secretbox:v1:old:x"), [true]);
}
