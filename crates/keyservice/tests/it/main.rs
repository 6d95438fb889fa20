//! Tests that need processes of their own: they re-run this program as the writer that is killed.

mod crash;
