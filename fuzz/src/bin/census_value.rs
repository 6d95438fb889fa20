//! A value of etcd: it has a class, the same each time, and one that is malformed says why. The key of it and the key of
//! a revision are read too.
#![no_main]

use casemate_census::classify::{Class, Classifier, ObjectPath, classify};
use casemate_census::mvcc::{KeyValue, Revision};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut classifier = Classifier::new();
    let class = classify(bytes);
    assert_eq!(class, classifier.classify(bytes));
    assert_eq!(class, classifier.classify(bytes));
    if let Class::Malformed(malformed) = &class {
        assert!(
            malformed.reasons.iter().all(|reason| !reason.to_string().is_empty())
                && !malformed.reasons.is_empty()
        );
    }
    if let Ok(pair) = KeyValue::parse(bytes) {
        assert!(pair.key.len() + pair.value.len() <= bytes.len());
    }
    if let Some((revision, deletes)) = Revision::parse(bytes) {
        assert_eq!(revision.encode(deletes), bytes);
    }
    if let Some(path) = ObjectPath::parse("/registry", bytes) {
        assert!(!path.resource.is_empty() && !path.name.is_empty());
    }
});
