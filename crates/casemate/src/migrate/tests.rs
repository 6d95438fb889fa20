//! The published schema.

use schemars::schema_for;

use crate::schemas::assert_published;

#[test]
fn the_published_schema_is_that_of_the_code() {
    assert_published("migrate", &schema_for!(super::answer::Answer));
}
