//! Defects that controllers had.

use super::world::{Engine, OBJECTS, World};
use crate::{Observed, Step};

/// A defect: a check that is not made, as a lie about what is observed; or a step that is done otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mutation {
    #[default]
    None,
}

impl Mutation {
    pub(super) fn lie(self, _observed: &mut Observed) {}

    pub(super) fn is_finished(self, mut is_done: impl Iterator<Item = bool>) -> bool {
        is_done.all(|is_done| is_done)
    }

    pub(super) fn counts(self, _object: usize) -> bool {
        true
    }

    pub(super) fn is_fenced(self) -> bool {
        true
    }

    pub(super) fn forget(self, world: &mut World, entry: usize, entries: usize) {
        world.engines[entry] = Engine::default();
        for object in (0..OBJECTS).filter(|object| World::entry_of(*object, entries) == entry) {
            world.objects[object].is_done = false;
        }
    }

    pub(super) fn bend(self, step: Step, _observed: &Observed) -> Step {
        step
    }
}
