//! The published schemas.
use schemars::{Schema, schema_for};

use crate::schemas::assert_published;

#[test]
fn the_published_schemas_are_those_of_the_code() {
    let schemas: [(&str, Schema); 2] = [
        ("recover", schema_for!(super::report::Answer)),
        ("recover-restore", schema_for!(super::restore::Answer)),
    ];
    for (name, schema) in schemas {
        assert_published(name, &schema);
    }
}
