//! The published schema.
use std::fs;
use std::path::Path;

use schemars::schema_for;

#[test]
fn the_published_schema_is_that_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/migrate.schema.json");
    let made = format!("{:#}\n", schema_for!(super::answer::Answer).as_value());
    if std::env::var_os("CASEMATE_REGENERATE").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert_eq!(
        fs::read_to_string(&path).unwrap_or_default(),
        made,
        "it is not the schema of the code; run `CASEMATE_REGENERATE=1 cargo test -p casemate --lib migrate`"
    );
}
