//! Whether a published schema is that of the code. For tests.
use std::fs;
use std::path::Path;

use schemars::Schema;

/// Compares `docs/reference/NAME.schema.json`, or writes it if CASEMATE_REGENERATE says so.
#[track_caller]
pub(crate) fn assert_published(name: &str, schema: &Schema) {
    let file = format!("../../docs/reference/{name}.schema.json");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let made = format!("{:#}\n", schema.as_value());
    if std::env::var_os("CASEMATE_REGENERATE").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert_eq!(
        fs::read_to_string(&path).unwrap_or_default(),
        made,
        "{name}.schema.json is not the schema of the code; run `CASEMATE_REGENERATE=1 cargo test -p casemate --lib schema`"
    );
}
