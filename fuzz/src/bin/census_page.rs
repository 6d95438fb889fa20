//! A file of etcd, up to the classes of its values: any bytes as they are, and with the right checksum over both meta
//! pages, so that what is behind them is reached too. Whatever it says, a walk ends after the pages that there are.
#![no_main]

use std::sync::Arc;

use casemate_census::bolt::{CACHE_BYTES, Database, Direction, Error};
use casemate_census::classify::Classifier;
use casemate_census::mvcc::Store;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut sealed = bytes.to_vec();
    for page in [0, 512] {
        if let Some(meta) = sealed.get_mut(page + 16..page + 80) {
            let sum = fnv_64a(&meta[..56]);
            meta[56..].copy_from_slice(&sum.to_le_bytes());
        }
    }
    for file in [bytes, &sealed] {
        if let Ok(database) = Database::open(Arc::new(file.to_vec()), file.len() as u64, CACHE_BYTES) {
            let _ = read(&database);
        }
    }
});

fn read(database: &Database) -> Result<(), casemate_census::mvcc::Error> {
    inventory(database)?;
    let store = Store::open(database, true)?;
    for direction in [Direction::Ascending, Direction::Descending] {
        let mut revisions = store.revisions(direction)?;
        while revisions.next_item()?.is_some() {}
        assert!(revisions.pages_visited() <= database.meta().pages);
    }
    let (mut live, mut classifier) = (store.live(b"/registry")?, Classifier::new());
    while let Some(item) = live.next_item()? {
        classifier.classify(item.pair.value);
    }
    Ok(())
}

fn inventory(database: &Database) -> Result<(), Error> {
    let inventory = database.inventory()?;
    assert!(inventory.used() + inventory.free() <= database.meta().pages);
    for page in inventory.free_pages() {
        page?;
    }
    Ok(())
}

fn fnv_64a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
