//! Up to three API servers, their files and what they have loaded, objects, key records, an admin who changes his mind, a
//! key service that rotates, and controllers that may end at each write: all interleavings, breadth first. What decides is
//! the real [`desired`](crate::desired); the world around it is as small as it can be.
//!
//! * [`world`]: a cluster as numbers; [`observation`]: what is seen of it.
//! * [`mutation`]: defects that controllers had, each as a lie about what is observed or as a step done otherwise.
//! * [`happening`]: everything that can happen next.
//! * [`promise`]: what must hold in every state and of every write.
//! * [`calm`]: the schedule without faults, and how long it takes from each state to what is wanted.
//! * [`search`]: breadth first, and the way to a broken promise.
//!
//! A controller keeps nothing between two steps, and of a step with several writes each is taken alone: whatever it does
//! after a crash is among the interleavings. A second controller is one whose step comes late.
#![allow(clippy::unwrap_used)]

mod calm;
mod happening;
mod mutation;
mod observation;
mod promise;
mod search;
mod world;

use mutation::Mutation;
use search::{Explored, Model};
use world::{Kind, Left};

/// What is gone through.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    servers: usize,
    entries: usize,
    /// What the admin may come to want.
    wants: &'static [Kind],
    left: Left,
}

const NOTHING: Left = Left {
    changes: 0,
    records: 0,
    outages: 0,
    moves: 0,
    key_ids: 0,
    backups: 0,
    memory: 0,
    bad: 0,
    late: 0,
    writes: 1,
};

const fn bounds(servers: usize, wants: &'static [Kind], left: Left) -> Bounds {
    Bounds { servers, entries: 1, wants, left }
}

#[test]
fn no_interleaving_breaks_a_promise() {
    let local: &[Kind] = &[Kind::Plain, Kind::Local, Kind::KmsA];
    let plugins: &[Kind] = &[Kind::KmsA, Kind::KmsB];
    for bounds in [
        bounds(2, local, Left { changes: 2, ..NOTHING }),
        bounds(2, local, Left { changes: 1, records: 1, ..NOTHING }),
        bounds(2, &[Kind::Local, Kind::Plain], Left { changes: 2, moves: 1, ..NOTHING }),
        bounds(2, plugins, Left { changes: 2, bad: 1, ..NOTHING }),
        bounds(2, &[Kind::KmsA], Left { changes: 1, key_ids: 2, ..NOTHING }),
        bounds(2, &[Kind::Local, Kind::KmsA], Left { changes: 2, backups: 1, ..NOTHING }),
        bounds(2, &[Kind::Local], Left { changes: 1, outages: 1, memory: 1, ..NOTHING }),
        bounds(2, &[Kind::Local, Kind::Plain], Left { changes: 2, late: 1, ..NOTHING }),
    ] {
        explored(bounds);
    }
}

fn explored(bounds: Bounds) -> Explored {
    let started = std::time::Instant::now();
    let mut model = Model::new(bounds, Mutation::None);
    let explored = model.explore().unwrap_or_else(|found| panic!("{bounds:?}: {found}"));
    println!("{bounds:?}: {explored:?}, {:.1?}", started.elapsed());
    explored
}
