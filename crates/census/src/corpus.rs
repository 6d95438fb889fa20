//! The seeds of the fuzz targets `census_page` and `census_value`, made by the writer of the tests. `CASEMATE_REGENERATE=1`
//! with this test writes them.
use std::fs;
use std::path::Path;

use crate::classify::tests::samples;
use crate::mvcc::tests::{change, store_file};

#[test]
fn the_seeds_are_what_the_tests_write() {
    let changes = |count: u64| -> Vec<_> {
        let change =
            |main| change(main, "/registry/secrets/a", (main % 3 > 0).then_some("k8s:enc:kms:v2:a:"));
        (2..2 + count).map(change).collect()
    };
    let files = [0, 2, 20].map(|count| (format!("revisions-{count}"), store_file(512, &changes(count), &[])));
    let values = (0..).zip(samples()).map(|(number, value)| (format!("class-{number}"), value));
    check("census_page", files);
    check("census_value", values);
}

fn check(target: &str, seeds: impl IntoIterator<Item = (String, Vec<u8>)>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    for (name, seed) in seeds {
        let path = folder.join(name);
        if std::env::var_os("CASEMATE_REGENERATE").is_some() {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&path, &seed).unwrap();
        }
        assert!(fs::read(&path).is_ok_and(|found| found == seed), "{}: see the module", path.display());
    }
}
