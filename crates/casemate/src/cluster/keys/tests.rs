//! Tables.
use casemate_encryption_config::ServerFlags;

use super::*;

fn read(text: &str) -> EncryptionConfiguration {
    let text =
        format!("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n{text}");
    EncryptionConfiguration::read(text.as_bytes(), ServerFlags::default()).unwrap()
}

const TWO: &str = "- resources: [secrets]\n  providers:\n  - kms: {apiVersion: v2, name: new, endpoint: unix:///a}\n\
    \x20 - aescbc: {keys: [{name: k2, secret: AAECAwQFBgcICQoLDA0ODw==}, {name: k1, secret: EAECAwQFBgcICQoLDA0ODw==}]}\n\
    \x20 - identity: {}\n";

fn secrets() -> Resources {
    let secrets: ResourcePattern = "secrets".parse().unwrap();
    secrets.into()
}

#[test]
fn keys_are_numbered_from_the_oldest_and_found_by_name() {
    let mut known = Known::default();
    let file = known.take(&read(TWO)).unwrap();
    let named = |scheme, name| known.named(&secrets(), scheme, name).into_iter().collect::<Vec<_>>();
    assert_eq!(named(Scheme::KmsV2, "new"), [ProviderId(3)]);
    assert_eq!(named(Scheme::AesCbc, "k2"), [ProviderId(2)]);
    assert_eq!(named(Scheme::AesCbc, "k1"), [ProviderId(1)]);
    assert_eq!(named(Scheme::AesGcm, "k1"), [], "a name is of one scheme");
    assert_eq!(file.layout(&secrets()).writer(), Slot::Key(ProviderId(3)));
    assert_eq!(known.plugins("new"), [ProviderId(3)].into());
    assert_eq!(known.wanted(Slot::Key(ProviderId(3))), Some(Wanted::KmsV2(ServiceName("unix:///a".into()))));
    assert_eq!(known.wanted(Slot::Plain), Some(Wanted::Identity));
    // Again, and nothing is new.
    assert_eq!(known.take(&read(TWO)).unwrap(), file);
    assert_eq!(known.materials.0.len(), 3);
}

#[test]
fn a_key_is_told_by_a_fingerprint() {
    let mut known = Known::default();
    known.take(&read(TWO)).unwrap();
    assert_eq!(known.shown(Slot::Key(ProviderId(3))), "key 3 (KMS v2 plugin new)");
    let local = known.shown(Slot::Key(ProviderId(2)));
    assert!(local.starts_with("key 2 (aescbc k2, ") && !local.contains("AAEC"), "{local}");
    let other = known.shown(Slot::Key(ProviderId(1)));
    assert_ne!(local.rsplit(", ").next(), other.rsplit(", ").next());
}

#[test]
fn the_narrowest_entry_has_the_resource() {
    let entry = |texts: &[&str]| Resources(texts.iter().map(|text| text.parse().unwrap()).collect());
    let entries = [entry(&["*.*"]), entry(&["*.apps"]), entry(&["secrets", "deployments.apps"])];
    let of = |name: &str| entry_of(&GroupResource::parse(name), &entries);
    assert_eq!(of("secrets"), Some(&entries[2]));
    assert_eq!(of("deployments.apps"), Some(&entries[2]));
    assert_eq!(of("daemonsets.apps"), Some(&entries[1]));
    assert_eq!(of("configmaps"), Some(&entries[0]));
    assert_eq!(entry_of(&GroupResource::parse("configmaps"), &entries[1..]), None);
}
