//! The published schemas.
use casemate_census::policy::Policy;
use schemars::{Schema, schema_for};

use crate::schemas::assert_published;

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
    for (name, schema) in schemas {
        assert_published(name, &schema);
    }
}
