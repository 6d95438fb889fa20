//! Where the objects that are to be written come from, page by page.
//!
//! * [`Listing`]: lists of API servers: all objects, whatever they are stored like. One that can't be read fails the whole
//!   list; pages around it go on as far as the server says which one it is, else by namespaces.
//! * [`Etcd`]: a census of etcd: stale objects only, by their keys, each with how it is stored. No object hides another.
mod etcd;
mod listing;

pub use etcd::Etcd;
pub use listing::Listing;

use std::time::Duration;

use crate::report::{Failed, Skipped};

/// An object that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Which target of the plan it is of.
    pub target: usize,
    /// Its namespace, if it has one.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its uid, where it is known.
    pub uid: Option<String>,
    /// Which version of it; none: to be read first.
    pub version: Option<String>,
    /// How it is stored, where that is known.
    pub stored: Option<String>,
}

/// A page of them.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// What is to be written.
    pub items: Vec<Item>,
    /// What can't be read, and need not be tried.
    pub unreadable: Vec<Failed>,
    /// What will not be gone through.
    pub skipped: Vec<Skipped>,
    /// Where the next page begins.
    pub after: String,
    /// Whether there is none behind it.
    pub is_last: bool,
    /// How many there are in all, this page and those before it, if that is known.
    pub total: Option<u64>,
    /// Whether the list had expired, and goes on at a newer moment.
    pub expired: bool,
}

/// Why a page did not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missed {
    /// Later it may.
    Wait {
        /// How long to leave it alone.
        after: Option<Duration>,
        /// Whether the server is there, and too busy.
        busy: bool,
    },
    /// Nobody will get anything from it.
    Stop(String),
}
