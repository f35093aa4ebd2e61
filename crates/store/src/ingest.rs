//! Ingest of entities that move here from another node: see [`engine::Ingest`].

use crate::group::fault_of;
use crate::keyspace::with_entity_key;
use crate::store::Store;
use cluster::{Key, StoreFault};
use engine::{Error, Ingest};
use stdx::CellRef;

/// An ingest of entities. Its cells become tables without passing through the log. Dropping it
/// discards the cells since the last commit.
#[derive(Debug)]
pub struct EntityIngest {
    ingest: Ingest,
}

impl Store {
    /// Opens the ingest with this name, which continues at its durable position. `expected_bytes`
    /// is an estimate of the bytes to come. A name identifies one source in one plan, so that no
    /// other plan continues at its position. May wait for a sync of the manifest.
    ///
    /// The caller keeps the horizon of this node behind the versions that the source may still
    /// send. Otherwise a tombstone may be collected before an older cell comes.
    ///
    /// # Errors
    /// [`StoreFault::Io`] if the ingest is open already, or there are too many.
    pub fn ingest(&self, name: &[u8], expected_bytes: u64) -> Result<EntityIngest, StoreFault> {
        let ingest = self.engine.ingest(name, expected_bytes).map_err(|error| fault_of(&error))?;
        Ok(EntityIngest { ingest })
    }

    /// Names and durable positions of all ingests.
    pub fn ingest_positions(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let cursors = self.engine.ingest_cursors();
        cursors.into_iter().map(|cursor| (cursor.name.to_vec(), cursor.position.to_vec())).collect()
    }

    /// Removes the position of an ingest that is not open, such as one of an earlier plan. The
    /// cells stay.
    ///
    /// # Errors
    /// As [`EntityIngest::commit`].
    pub fn forget_ingest(&self, name: &[u8]) -> Result<(), StoreFault> {
        self.engine.remove_ingest_cursor(name).map_err(|error| fault_of(&error))
    }
}

impl EntityIngest {
    /// The durable position; `None` before the first commit under this name.
    pub fn position(&self) -> Option<&[u8]> {
        self.ingest.position()
    }

    /// Adds a cell. Keys ascend from commit to commit. The caller has observed the version with the
    /// version clock. Blocks on the disk. After an error the cells since the last commit are
    /// discarded, and [`EntityIngest::rewind`] returns the position to continue from.
    ///
    /// # Errors
    /// [`StoreFault::Full`]; [`StoreFault::Io`] for a key out of order, and if the store has
    /// stopped.
    pub fn push(&mut self, key: &Key, cell: CellRef<'_>) -> Result<(), StoreFault> {
        let pushed = with_entity_key(key.as_bytes(), |key| self.ingest.push(key, cell));
        pushed.map_err(|error| fault_of(&error))
    }

    /// Whether the cells since the last commit fill a table.
    pub fn is_full(&self) -> bool {
        self.ingest.is_full()
    }

    /// Makes the cells since the last commit durable and visible together with `position`. Blocks
    /// on the disk.
    ///
    /// # Errors
    /// As [`EntityIngest::push`]: neither cells nor position are stored.
    pub fn commit(&mut self, position: &[u8]) -> Result<(), StoreFault> {
        self.ingest.commit(position).map_err(|error| fault_of(&error))
    }

    /// Discards the cells since the last commit, and returns the durable position.
    pub fn rewind(&mut self) -> Option<&[u8]> {
        self.ingest.rewind()
    }

    /// Whether the caller should pause: writes are slowed, or disk space is low.
    pub fn is_stalled(&self) -> bool {
        self.ingest.is_stalled()
    }

    /// Ends the ingest and removes its position.
    ///
    /// # Errors
    /// As [`EntityIngest::commit`].
    pub fn finish(self) -> Result<(), StoreFault> {
        self.ingest.finish().map_err(|error: Error| fault_of(&error))
    }
}
