//! The published schemas.
use std::fs;
use std::path::Path;

use casemate_census::policy::Policy;
use schemars::{Schema, schema_for};

#[test]
fn the_published_schemas_are_those_of_the_code() {
    let schemas: [(&str, Schema); 7] = [
        ("census", schema_for!(super::answer::Answer)),
        ("census-api", schema_for!(super::api::answer::Answer)),
        ("census-object", schema_for!(super::object::Answer)),
        ("census-diff", schema_for!(super::diff::Answer)),
        ("census-watch", schema_for!(super::etcd::watch::Pass)),
        ("census-residue", schema_for!(super::residue::Answer)),
        ("census-policy", schema_for!(Policy)),
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    for (name, schema) in schemas {
        let path = folder.join(format!("{name}.schema.json"));
        let made = format!("{:#}\n", schema.as_value());
        if std::env::var_os("CASEMATE_REGENERATE").is_some() {
            fs::write(&path, &made).unwrap();
        }
        assert_eq!(
            fs::read_to_string(&path).unwrap_or_default(),
            made,
            "{name}.schema.json is not the schema of the code; run `CASEMATE_REGENERATE=1 cargo test -p casemate --lib census`"
        );
    }
}
