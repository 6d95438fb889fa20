//! The places of kine's file of SQLite.
use super::{Found, Place, Search};
use crate::kine::{Error, StateDb};
use crate::mvcc::Standing;

impl Search {
    /// Looks through all of a file of kine: what its rows hold, then what no row holds. `progress` is told how many bytes of
    /// how many passed.
    ///
    /// A log beside the file is another file, [`StateDb::log`]. As long as it is there, pages of the file that it replaces
    /// hold rows that neither of both places has.
    ///
    /// # Errors
    /// If the file is damaged, or changed while it was read.
    pub fn state_db(&self, state: &StateDb, mut progress: impl FnMut(u64, u64)) -> Result<Vec<Found>, Error> {
        let all = state.len();
        let [mut objects, mut past] = [Place::Objects, Place::OldRows].map(Found::new);
        state.columns(|item, standing| {
            let found = match standing {
                Standing::Live => &mut objects,
                Standing::Past => &mut past,
            };
            self.value(item, "in the row of", found);
        })?;
        let mut unused = self.scanner(Place::UnusedParts);
        state.unused(|offset, bytes| {
            unused.feed(offset, bytes);
            progress(offset, all);
        })?;
        Ok(vec![objects, past, unused.finish()])
    }
}
