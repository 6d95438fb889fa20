//! Counts what a file of etcd holds, by class, and tells how long it took.
//!
//! ```sh
//! cargo run --release -p casemate-census --example count -- snapshot.db
//! ```
use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use casemate_census::classify::{Class, Classifier, ObjectPath};
use casemate_census::snapshot::{Options, Snapshot};

const PREFIX: &str = "/registry";

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).map(PathBuf::from).ok_or("which file?")?;
    let begun = Instant::now();
    let snapshot = Snapshot::open(&path, Options::default())?;
    let integrity = snapshot.check_integrity(|_| ())?;
    println!("{} bytes, checksum {integrity:?}, {:.2?}", snapshot.len(), begun.elapsed());

    let begun = Instant::now();
    let store = snapshot.store()?;
    let (mut live, mut classifier) = (store.live(PREFIX.as_bytes())?, Classifier::new());
    let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
    while let Some(item) = live.next_item().map_err(|error| snapshot.error(error))? {
        let resource = ObjectPath::parse(PREFIX, item.pair.key).map_or("(none)", |path| path.resource);
        *counts.entry((resource.to_owned(), name(&classifier.classify(item.pair.value)))).or_default() += 1;
    }
    snapshot.ensure_unchanged()?;
    let (took, found) = (begun.elapsed(), live.counts());
    for ((resource, class), count) in counts {
        println!("{count:>10}  {resource}  {class}");
    }
    let all = found.live + found.deleted + found.past + found.outside;
    println!("{all} revisions in {took:.2?}, {:.0} a second; {found:?}", all as f64 / took.as_secs_f64());
    println!("{} bytes for {} keys", live.seen().bytes(), live.seen().len());
    Ok(())
}

fn name(class: &Class) -> String {
    match class {
        Class::Local { cipher, key } => format!("{cipher}:{key}"),
        Class::KmsV1 { provider } => format!("kms:v1:{provider}"),
        Class::KmsV2(found) => format!("kms:v2:{}, key id {}", found.provider, found.key_id),
        Class::Malformed(found) => format!("malformed {:?}", found.claims),
        plain => format!("{plain:?}"),
    }
}
