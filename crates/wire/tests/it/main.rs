//! Tests of the generated code as a whole.
mod generated;
