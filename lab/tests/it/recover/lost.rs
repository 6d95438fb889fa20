//! A cluster is lost, and comes back.
