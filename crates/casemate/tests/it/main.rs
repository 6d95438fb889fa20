//! Tests of the command line, and of the shape of the whole workspace.
mod help;
mod imports;
mod inspect;
mod key;
mod kms;
mod plugin;
mod program;
