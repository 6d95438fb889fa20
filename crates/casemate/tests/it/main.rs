//! Tests of the command line, and of the shape of the whole workspace.
mod admin;
mod audit;
mod daemon;
mod docs;
mod doctor;
mod help;
mod imports;
mod inspect;
mod key;
mod kms;
mod plan_rotation;
mod plugin;
mod program;
mod recovery;
mod reference;
mod refresh;
mod version;
