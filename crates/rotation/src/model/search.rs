//! Breadth first, and the way to a broken promise.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use super::happening::{Act, Happening, acts, running};
use super::observation as seen;
use super::world::*;
use super::{Bounds, Mutation};
use crate::desired::next_step;

/// What was gone through.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Explored {
    pub(super) states: usize,
    /// Of the state that takes the most steps to get to.
    pub(super) depth: u16,
    /// Verdicts that were asked for, since many states look alike.
    pub(super) verdicts: usize,
    /// The most rounds that it takes from any state to what is wanted.
    pub(super) rounds: u8,
}

pub(super) struct Model {
    pub(super) bounds: Bounds,
    pub(super) mutation: Mutation,
    /// Whether it is looked at how long it takes to what is wanted.
    with_rounds: bool,
    steps: HashMap<World, Rc<[Act]>>,
    pub(super) distances: HashMap<World, u8>,
    pub(super) unneeded: HashMap<(World, u8), Vec<(u8, u8)>>,
}

struct Reached {
    world: World,
    from: u32,
    by: Happening,
    depth: u16,
}

impl Model {
    pub(super) fn new(bounds: Bounds, mutation: Mutation) -> Self {
        let (steps, distances, unneeded) = Default::default();
        Self { bounds, mutation, with_rounds: true, steps, distances, unneeded }
    }

    /// Only what must never be.
    pub(super) fn without_rounds(self) -> Self {
        Self { with_rounds: false, ..self }
    }

    /// All that can be reached, or the shortest way to a state that breaks a promise.
    pub(super) fn explore(&mut self) -> Result<Explored, String> {
        let start = self.start();
        let mut known = HashSet::from([fingerprint(&start)]);
        let mut reached = vec![Reached { world: start, from: 0, by: Happening::Start, depth: 0 }];
        let mut explored = Explored::default();
        while explored.states < reached.len() {
            let at = explored.states;
            let Reached { world, depth, .. } = reached[at];
            let rounds = self.check(&world).map_err(|broken| told(&reached, at, None, &broken))?;
            explored.rounds = explored.rounds.max(rounds);
            explored.depth = explored.depth.max(depth);
            for (by, after) in self.what_can_happen(&world) {
                self.nothing_is_stranded(&world, &by)
                    .map_err(|broken| told(&reached, at, Some(&by), &broken))?;
                let world = after.sorted(self.bounds.entries);
                if known.insert(fingerprint(&world)) {
                    let from = u32::try_from(at).unwrap();
                    reached.push(Reached { world, from, by, depth: depth + 1 });
                }
            }
            explored.states += 1;
        }
        explored.verdicts = self.steps.len();
        Ok(explored)
    }

    /// One way, by chance.
    pub(super) fn walk(&mut self, seed: u64, steps: usize) -> Result<(), String> {
        let mut random = seed;
        let mut way = vec![Reached { world: self.start(), from: 0, by: Happening::Start, depth: 0 }];
        for at in 0..steps {
            let world = way[at].world;
            self.check(&world).map_err(|broken| told(&way, at, None, &broken))?;
            let mut all = self.what_can_happen(&world);
            for (by, _) in &all {
                self.nothing_is_stranded(&world, by).map_err(|broken| told(&way, at, Some(by), &broken))?;
            }
            if all.is_empty() {
                break;
            }
            let (by, after) = all.swap_remove(next_random(&mut random) % all.len());
            let from = u32::try_from(at).unwrap();
            way.push(Reached { world: after.sorted(self.bounds.entries), from, by, depth: 0 });
        }
        Ok(())
    }

    fn check(&mut self, world: &World) -> Result<u8, String> {
        self.everything_is_readable(world)?;
        self.no_key_id_is_missed(world)?;
        if self.with_rounds { self.distance(world) } else { Ok(0) }
    }

    /// Servers without a configuration, and objects in plaintext.
    pub(super) fn start(&self) -> World {
        let mut servers = [Server::default(); SERVERS];
        servers
            .iter_mut()
            .take(self.bounds.servers)
            .for_each(|server| *server = running(Confs::default(), 1));
        let world = World {
            wanted: Kind::Plain,
            servers,
            keys: Default::default(),
            progress: None,
            engines: Default::default(),
            counts: Default::default(),
            backup: 0,
            late: None,
            objects: Default::default(),
            revisions: Default::default(),
            key_id: 1,
            left: self.bounds.left,
        };
        world.sorted(self.bounds.entries)
    }

    /// What a controller may do, which depends on nothing but what it sees.
    pub(super) fn acts(&mut self, world: &World) -> Rc<[Act]> {
        let (entries, mutation) = (self.bounds.entries, self.mutation);
        let decide = || {
            let observed = seen::observed(world, entries, mutation);
            acts(mutation.bend(next_step(&observed), &observed), entries).into()
        };
        self.steps.entry(world.seen()).or_insert_with(decide).clone()
    }
}

/// SplitMix64: the same walks everywhere.
fn next_random(state: &mut u64) -> usize {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    usize::try_from((mixed ^ (mixed >> 31)) >> 33).unwrap()
}

/// Two states with one fingerprint would be taken for the same: of a hundred million, that is so with a probability of
/// 10^-23.
fn fingerprint(world: &World) -> u128 {
    let half = |seed: u8| {
        let mut hasher = DefaultHasher::new();
        (seed, world).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

/// The way there, step by step.
fn told(reached: &[Reached], at: usize, last: Option<&Happening>, broken: &str) -> String {
    let mut way: Vec<String> = last.iter().map(|by| format!("{by:?}")).collect();
    let mut at = at;
    while at != 0 {
        way.push(format!("{:?}", reached[at].by));
        at = usize::try_from(reached[at].from).unwrap();
    }
    way.reverse();
    format!("{broken}, after {} steps:\n  {}", way.len(), way.join("\n  "))
}
