//! Pages stay as they were looked at.
use std::fs;
use std::path::Path;

use crate::sample;

#[test]
fn the_sample_is_as_it_was() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/sample.html");
    let made = sample::page(sample::numbered()).html();
    assert_eq!(made, sample::page(sample::numbered()).html());
    if std::env::var_os("CASEMATE_REGENERATE").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == made,
        "sample.html is another; look at it after `CASEMATE_REGENERATE=1 cargo test -p casemate-report --test it`"
    );
}
