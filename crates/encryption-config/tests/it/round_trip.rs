//! Any configuration: written, read, the same.

use std::time::Duration;

use casemate_encryption_config::{
    EncryptionConfiguration, Endpoint, Entry, GroupResource, KeyBytes, KmsV1, KmsV2, LocalKey, Provider,
    ResourcePattern, ServerFlags,
};
use proptest::{collection::vec, prelude::*};
use zeroize::Zeroizing;

const FLAGS: ServerFlags = ServerFlags { automatic_reload: false, kms_v1: true };

fn pattern() -> impl Strategy<Value = ResourcePattern> {
    let name = || "[a-z][a-z0-9-]{0,8}";
    prop_oneof![
        4 => name().prop_map(|resource| ResourcePattern::One(GroupResource { group: String::new(), resource })),
        4 => (name(), "[a-z]{1,6}(\\.[a-z]{1,6})?")
            .prop_map(|(resource, group)| ResourcePattern::One(GroupResource { group, resource })),
        1 => "[a-z]{0,6}".prop_map(ResourcePattern::Group),
        1 => Just(ResourcePattern::All),
        // Anything, as long as it is a pattern.
        1 => any::<String>().prop_filter_map("no pattern", |text| text.parse().ok()),
    ]
}

fn key(length: impl Strategy<Value = usize>) -> impl Strategy<Value = LocalKey> {
    let bytes = length.prop_flat_map(|length| vec(any::<u8>(), length));
    (".+|[a-z0-9]{1,4}|\\PC{1,8}", bytes)
        .prop_map(|(name, bytes)| LocalKey { name, secret: KeyBytes::new(Zeroizing::new(bytes)) })
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    prop_oneof![
        Just("unix:///run/kms.sock".to_owned()),
        "unix:///@?[^\\x00-\\x1f\\x7f%]{0,12}",
        any::<String>().prop_map(|text| format!("unix://{text}")),
    ]
    .prop_filter_map("no endpoint", |text| Endpoint::parse(&text).ok())
}

fn timeout() -> impl Strategy<Value = Duration> {
    let nanoseconds =
        prop_oneof![1..=i64::MAX as u64, (1_u64..100).prop_map(|seconds| seconds * 1_000_000_000)];
    nanoseconds.prop_map(Duration::from_nanos)
}

fn provider() -> impl Strategy<Value = Provider> {
    let aes = || prop_oneof![Just(16_usize), Just(24), Just(32)];
    let v2 = (".+", endpoint(), timeout()).prop_map(|(name, endpoint, timeout)| {
        Provider::KmsV2(KmsV2 { name: name.replace(':', ";"), endpoint, timeout })
    });
    let v1 = (".+", endpoint(), timeout(), any::<i32>()).prop_map(|(name, endpoint, timeout, cache_size)| {
        Provider::KmsV1(KmsV1 { name, endpoint, timeout, cache_size })
    });
    prop_oneof![
        Just(Provider::Identity),
        vec(key(aes()), 1..4).prop_map(Provider::AesCbc),
        vec(key(aes()), 1..4).prop_map(Provider::AesGcm),
        vec(key(Just(32)), 1..4).prop_map(Provider::Secretbox),
        v2,
        v1,
    ]
}

fn configuration() -> impl Strategy<Value = EncryptionConfiguration> {
    let entry = (vec(pattern(), 1..4), vec(provider(), 1..4))
        .prop_map(|(resources, providers)| Entry { resources, providers });
    vec(entry, 1..4).prop_map(|entries| EncryptionConfiguration { entries })
}

/// Small enough to be accepted often, so that the properties are not about refused ones only.
fn accepted() -> impl Strategy<Value = EncryptionConfiguration> {
    configuration().prop_filter("refused", |config| config.check(FLAGS).is_ok())
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(config in accepted()) {
        let text = config.to_yaml();
        let read = EncryptionConfiguration::read(text.as_bytes(), FLAGS);
        prop_assert_eq!(read.as_ref(), Ok(&config));
        prop_assert_eq!(read.unwrap().to_yaml(), text);
    }

    /// The checks on values and those of the reader are the same ones.
    #[test]
    fn what_is_refused_as_a_value_is_refused_as_a_file(config in configuration()) {
        let read = EncryptionConfiguration::read(config.to_yaml().as_bytes(), FLAGS);
        prop_assert_eq!(read.is_ok(), config.check(FLAGS).is_ok());
    }

    /// However a resource is asked for, what writes for it can read what it wrote.
    #[test]
    fn the_writer_is_the_first_reader(config in accepted(), pattern in pattern()) {
        let resource = match pattern {
            ResourcePattern::One(resource) => resource,
            ResourcePattern::Group(group) => GroupResource { group, resource: "x".into() },
            ResourcePattern::All => GroupResource::parse("x.y"),
        };
        let coverage = config.coverage(&resource);
        prop_assert_eq!(coverage.rule.is_none(), coverage.writer().place.is_none());
        prop_assert!(coverage.rule.is_none_or(|rule| rule.matches(&resource.stored())));
        let stored = format!("{}{{}}", coverage.writer().write_prefix());
        let readers = coverage.readers(stored.as_bytes());
        prop_assert_eq!(readers[0].transformer, coverage.writer());
        prop_assert!(!readers[0].stale);
        prop_assert_eq!(readers[0].prefix_len, stored.len() - 2);
        prop_assert_eq!(readers[0].key, coverage.writer().provider.local_keys().first());
    }

    #[test]
    fn any_text_is_answered(text in ".{0,200}") {
        let _ = EncryptionConfiguration::read(text.as_bytes(), FLAGS);
        let _ = EncryptionConfiguration::read(format!("{{{text}").as_bytes(), FLAGS);
    }
}
