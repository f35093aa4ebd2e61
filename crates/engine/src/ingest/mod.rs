//! Ingest: sorted cells become tables without passing through the log and the memtables.
//!
//! **Promise.** When [`Ingest::commit`] returns, all cells that were pushed before are durable and
//! visible, and so is the position that the host gave. After a crash at any moment either both are
//! there or neither, so an ingest that continues at its position misses no cell. No cell is written
//! to the log. An ingested cell is a cell like any other: the greatest version of a key wins, in
//! any order of arrival. A cell that was pushed and not committed was never visible, and leaves
//! nothing behind.
//!
//! **Mechanism.** Cells that are pushed in key order go to table files at once. A commit syncs
//! these files and makes them live in one edit of the manifest, which also sets the *cursor* of the
//! ingest: its name and its position, both chosen by the host. A cursor stays until
//! [`Ingest::finish`] or [`Engine::remove_ingest_cursor`] removes it, by another edit. Several
//! ingests with different names run side by side.
//!
//! *Versions.* Neither the memtables nor the levels are ordered by version, and tables hold no
//! sequences. A read takes the greatest version of all sources that may hold its key, and stops
//! early only by bounds on versions. So a table may join any level in which it overlaps no other
//! table, and neither hides a newer cell nor lets an older one win. A reader keeps the levels that
//! it began with, so snapshots and scans do not see tables that join later.
//!
//! *Dropped tombstones.* Only compaction removes cells, and so only compaction could let an
//! ingested cell win wrongly. It drops a tombstone that no cell outside of the merge is as old as.
//! A compaction that runs while a table joins has not seen that table. So the join records the
//! least version of the table for each running compaction whose key range it overlaps. A compaction
//! compares that with the tombstones that it dropped. If one of them would have hidden a cell of
//! the table, its outputs are discarded, and it runs again without dropping. Both the join and the
//! end of a compaction hold the lock of the running plans. So each of them is entirely before the
//! other: either the compaction finds the record, or the tombstone was gone before the cell came.
//!
//! *Levels.* A table joins the level that [`level::choose_level`] returns: if possible one in which
//! it stays until its data is overwritten, so that each byte is written once. The lock of the
//! running plans also keeps a compaction from writing to the same key range of that level.
//!
//! *Restarts.* The manifest has each table with the cursor that covers it, so a cursor is never
//! ahead of the tables. Files without an entry in the manifest are removed when the engine opens. A
//! table requires that the log had a durable segment, because a log without segments beside tables
//! counts as lost.
//!
//! *Checkpoints* contain the ingested tables and no cursors. An ingest into an engine that was
//! opened from a checkpoint begins anew: the same cells once more change nothing, unless a
//! tombstone that hid one of them was collected meanwhile.
//!
//! **Caveats.** Local keys are refused: they are not moved between engines. Tables of one ingest do
//! not overlap, but those of ingests side by side do if their key ranges interleave. Each of those
//! needs a level of its own. Beside `n` levels with data, up to `6 - n` such ingests are written
//! once, and further ones join level 0. A host with more sources merges their cells and keeps all
//! their positions in one cursor. Values that are overwritten after a deep table joined keep their
//! space until the levels above have filled. The host is not slowed: it asks
//! [`Ingest::is_stalled`].
//!
//! The engine collects tombstones of ingested keys as it does those of others. A host that moves
//! old cells sets the horizon so that no tombstone is collected before their newest versions have
//! come. Cells that were pushed and not committed do not keep a tombstone. One old cell in a table
//! makes running compactions of its whole key range begin again.

mod level;
mod names;

use crate::compaction::{Outputs, RunningPlans};
use crate::disk::{DiskDemand, DiskSpace};
use crate::engine::Engine;
use crate::manifest::{IngestCursor, LEVELS, VersionEdit};
use crate::ownership::OwnershipFilter;
use crate::sstable::TableMeta;
use crate::view::{MinVersions, View};
use crate::{Batch, Error};
use bytes::Bytes;
use names::IngestName;
use std::sync::Arc;
use stdx::CellRef;

/// An ingest in progress. Dropping it discards the cells that were pushed since the last commit.
///
/// ```
/// use engine::{Engine, Options};
/// use stdx::{Cell, Hlc, NodeTag, Version};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let (engine, _) = Engine::open(env::Env::os(), dir.path(), Options::default())?;
/// let cell = Cell::value(Version::new(Hlc::from_bits(1), NodeTag(7)), 1, "red".into());
/// let mut ingest = engine.ingest(b"from node 7", 64 << 20)?;
/// assert_eq!(ingest.position(), None, "nothing was committed under this name");
/// ingest.push(b"apple", cell.as_ref())?;
/// ingest.push(b"pear", cell.as_ref())?;
/// ingest.commit(b"behind pear")?;
/// drop(ingest);
///
/// // Also after a restart:
/// let ingest = engine.ingest(b"from node 7", 64 << 20)?;
/// assert_eq!(ingest.position(), Some(&b"behind pear"[..]));
/// ingest.finish()?;
/// assert_eq!(engine.get(b"apple")?, Some(cell));
/// # Ok(())
/// # }
/// ```
pub struct Ingest {
    engine: Engine,
    name: IngestName,
    /// Bytes that are still expected.
    expected_bytes: u64,
    /// The durable position.
    position: Option<Bytes>,
    /// Tables since the last commit.
    outputs: Option<Outputs>,
    /// The filter of the cells since the last commit.
    filter: Arc<OwnershipFilter>,
    /// The last key since the last commit; empty before the first.
    key_last: Vec<u8>,
    has_failed: bool,
}

impl Engine {
    /// Opens the ingest with this name, which continues at its durable position.
    /// `expected_bytes` is an estimate of the bytes to come, by which the levels are chosen.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the name is empty or longer than [`Ingest::NAME_BYTES_MAX`], when an
    /// ingest with this name is open, or when there are [`Ingest::CURSORS_MAX`] others.
    /// [`Error::Poisoned`].
    pub fn ingest(&self, name: &[u8], expected_bytes: u64) -> Result<Ingest, Error> {
        self.check_poison()?;
        let name = IngestName::reserve(self, name)?;
        let position = self.shared.manifest.lock().ingest_position(name.bytes());
        Ok(Ingest {
            engine: self.clone(),
            name,
            expected_bytes,
            position,
            outputs: None,
            filter: self.filter(),
            key_last: Vec::new(),
            has_failed: false,
        })
    }

    /// The durable cursors of all ingests, by name. May wait for a sync of the manifest.
    pub fn ingest_cursors(&self) -> Vec<IngestCursor> {
        self.shared.manifest.lock().ingest_cursors()
    }

    /// Removes the cursor with this name durably, if there is one. The ingested cells stay.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the ingest is open; [`Error::Full`], [`Error::Exhausted`]: the
    /// cursor is unchanged. [`Error::Poisoned`].
    pub fn remove_ingest_cursor(&self, name: &[u8]) -> Result<(), Error> {
        self.check_poison()?;
        self.remove_cursor(&IngestName::reserve_existing(self, name)?)
    }

    fn remove_cursor(&self, name: &IngestName) -> Result<(), Error> {
        // The name is reserved, so nothing else sets or removes the cursor meanwhile.
        if self.shared.manifest.lock().ingest_position(name.bytes()).is_none() {
            return Ok(());
        }
        let edit =
            VersionEdit { removed_ingest_cursors: vec![name.bytes().clone()], ..VersionEdit::default() };
        self.shared.install_edit(&edit, View::with_levels).map_err(|error| self.job_failed(error))
    }

    /// Makes tables live together with the cursor in `edit`.
    fn install_ingested(
        &self,
        tables: Vec<TableMeta>,
        mut edit: VersionEdit,
        ingest: &Ingest,
    ) -> Result<(), Error> {
        // Locked until the edit is installed. No compaction begins that does not see the tables,
        // none ends that did not see them, and none writes to the key ranges of the chosen levels.
        let busy = self.shared.jobs.busy.lock();
        let view = self.shared.view.load_full();
        let (levels, options) = (&view.levels, &self.shared.options);
        for meta in tables {
            self.note_ingested(&busy, &meta);
            let level = level::choose_level(levels, &busy, options, &meta, ingest.expected_bytes);
            edit.added.push((level as u8, meta));
        }
        if !edit.added.is_empty() && !ingest.filter.has_ranges_of(&view.filter) {
            self.discard_outputs(&edit);
            return Err(Error::Invalid("the disowned ranges have changed: rewind the ingest".to_owned()));
        }
        drop(view);
        let installed = self.shared.install_edit(&edit, View::with_levels);
        drop(busy);
        installed.map_err(|error| self.edit_failed(&edit, error))?;
        self.shared.counters.record_ingest(&edit);
        Ok(())
    }

    /// Records the least version of a table that is about to become live, for all running
    /// compactions that overlap it.
    fn note_ingested(&self, busy: &RunningPlans, meta: &TableMeta) {
        let oldest = MinVersions { version_min: Some(meta.version_min), local_version_min: None };
        let mut added_since = self.shared.jobs.added_since.lock();
        for plan in busy.overlapping(&meta.key_min, &meta.key_max) {
            let noted = added_since.entry(plan).or_default();
            *noted = noted.with(oldest);
        }
    }

    /// Counts the disk space that a cell takes. Ingested cells leave the reserve to the jobs.
    fn admit_ingested(&self, bytes: u64) -> Result<(), Error> {
        if !self.shared.disk.admit(DiskDemand::Value, bytes) {
            return Err(Error::Full { path: self.shared.paths.tables() });
        }
        if self.shared.disk.is_check_due() {
            self.check_disk_space();
        }
        Ok(())
    }
}

impl Ingest {
    /// Maximum length of a name, in bytes.
    pub const NAME_BYTES_MAX: usize = 256;
    /// Maximum length of a position, in bytes: two keys.
    pub const POSITION_BYTES_MAX: usize = 2 * Batch::KEY_BYTES_MAX;
    /// Maximum number of cursors and open ingests.
    pub const CURSORS_MAX: usize = 256;

    /// The durable position: the argument of the last commit under this name. `None` before the
    /// first.
    pub fn position(&self) -> Option<&[u8]> {
        self.position.as_deref()
    }

    /// Adds a cell. Its key is greater than that of the cell before, unless there was a commit in
    /// between. May block on disk I/O.
    ///
    /// After an error all cells since the last commit are discarded. [`Ingest::rewind`] returns the
    /// position to continue from.
    ///
    /// # Errors
    /// [`Error::Full`] when values are refused for lack of disk space, [`Error::Exhausted`];
    /// [`Error::Invalid`] for a key out of order, a local key, and a key or value that
    /// [`Batch::put`] refuses; [`Error::Poisoned`] after any other failed write.
    pub fn push(&mut self, key: &[u8], cell: CellRef<'_>) -> Result<(), Error> {
        self.check_usable()?;
        let pushed = self.try_push(key, cell);
        pushed.map_err(|error| self.fail(error))
    }

    fn try_push(&mut self, key: &[u8], cell: CellRef<'_>) -> Result<(), Error> {
        if self.outputs.is_none() {
            self.filter = self.engine.filter();
        }
        self.check_cell(key, &cell)?;
        let engine = &self.engine;
        engine.admit_ingested((key.len() + cell.value.len()) as u64)?;
        let outputs = self.outputs.get_or_insert_with(|| {
            let context = engine.job_context();
            let table_bytes = context.options.table_bytes;
            context.outputs(LEVELS - 1, table_bytes)
        });
        outputs.add(key, cell, None).map_err(|error| engine.job_failed(error))?;
        self.key_last.clear();
        self.key_last.extend_from_slice(key);
        Ok(())
    }

    fn check_cell(&self, key: &[u8], cell: &CellRef<'_>) -> Result<(), Error> {
        let local_end = self.engine.shared.options.local_keys_end.as_deref().unwrap_or(&[]);
        let fault = if !(1..=Batch::KEY_BYTES_MAX).contains(&key.len()) {
            format!("a key has 1 to {} bytes, not {}", Batch::KEY_BYTES_MAX, key.len())
        } else if cell.value.len() > Batch::VALUE_BYTES_MAX {
            format!("a value has at most {} bytes, not {}", Batch::VALUE_BYTES_MAX, cell.value.len())
        } else if key < local_end {
            format!("a local key is not ingested: {}", key.escape_ascii())
        } else if self.filter.hides(key, cell.meta.from) {
            format!("a cell of a disowned range is not ingested: {}", key.escape_ascii())
        } else if !self.key_last.is_empty() && *key <= *self.key_last {
            format!("ingested keys ascend: {} after {}", key.escape_ascii(), self.key_last.escape_ascii())
        } else {
            return Ok(());
        };
        Err(Error::Invalid(fault))
    }

    /// Whether the cells since the last commit fill a table: the time for a commit. A host that
    /// commits less often has more tables in one commit.
    pub fn is_full(&self) -> bool {
        self.uncommitted_bytes() >= self.engine.shared.options.table_bytes
    }

    /// Estimated bytes of tables since the last commit.
    pub fn uncommitted_bytes(&self) -> u64 {
        self.outputs.as_ref().map_or(0, Outputs::unfinished_bytes)
    }

    /// Makes all cells since the last commit durable and visible, and `position` the durable
    /// position. Without cells, only the position changes. Blocks on disk I/O.
    ///
    /// # Errors
    /// As [`Ingest::push`]: neither the cells nor the position were or will be stored. After
    /// [`Error::Poisoned`] either both are, or neither is, once the engine was opened again.
    pub fn commit(&mut self, position: &[u8]) -> Result<(), Error> {
        self.check_usable()?;
        let committed = self.try_commit(Bytes::copy_from_slice(position));
        committed.map_err(|error| self.fail(error))
    }

    fn try_commit(&mut self, position: Bytes) -> Result<(), Error> {
        if position.len() > Self::POSITION_BYTES_MAX {
            let len = position.len();
            let max = Self::POSITION_BYTES_MAX;
            return Err(Error::Invalid(format!("a position has at most {max} bytes, not {len}")));
        }
        let shared = &self.engine.shared;
        let name = self.name.bytes().clone();
        let mut edit = VersionEdit {
            ingest_cursors: vec![IngestCursor { name, position: position.clone() }],
            ..VersionEdit::default()
        };
        let mut tables = Vec::new();
        if let Some(outputs) = &mut self.outputs {
            if shared.wal_status.durable_end().is_none() {
                return Err(Error::Full { path: shared.paths.wal() });
            }
            tables = outputs.finish().map_err(|error| self.engine.job_failed(error))?;
            edit.next_table_id = Some(outputs.next_table_id());
        }
        let bytes: u64 = tables.iter().map(|meta| meta.file_bytes).sum();
        // From here on the files belong to the edit.
        self.outputs = None;
        self.engine.install_ingested(tables, edit, self)?;
        self.expected_bytes = self.expected_bytes.saturating_sub(bytes);
        self.position = Some(position);
        self.key_last.clear();
        Ok(())
    }

    /// Discards all cells since the last commit, and returns the durable position to continue from.
    pub fn rewind(&mut self) -> Option<&[u8]> {
        self.discard();
        self.has_failed = false;
        self.position()
    }

    /// Ends the ingest and removes its cursor durably. Cells since the last commit are discarded.
    ///
    /// # Errors
    /// As [`Engine::remove_ingest_cursor`].
    pub fn finish(mut self) -> Result<(), Error> {
        self.engine.check_poison()?;
        self.discard();
        self.engine.remove_cursor(&self.name)
    }

    /// Whether the host should pause: writes are slowed because flush or compaction lags, or disk
    /// space is low. Cells that are pushed all the same are accepted while there is space.
    pub fn is_stalled(&self) -> bool {
        let shared = &self.engine.shared;
        shared.disk.space() != DiskSpace::Ample || shared.sustainable_rate(&shared.view.load()).is_some()
    }

    /// Discards the uncommitted cells after an error. Until the host has rewound, later cells must
    /// not be committed without them.
    fn fail(&mut self, error: Error) -> Error {
        self.discard();
        self.has_failed = true;
        error
    }

    fn discard(&mut self) {
        if let Some(mut outputs) = self.outputs.take() {
            outputs.discard();
        }
        self.key_last.clear();
    }

    fn check_usable(&self) -> Result<(), Error> {
        self.engine.check_poison()?;
        match self.has_failed {
            true => Err(Error::Invalid("the ingest has failed: rewind it to its position".to_owned())),
            false => Ok(()),
        }
    }
}

impl Drop for Ingest {
    fn drop(&mut self) {
        self.discard();
    }
}

impl std::fmt::Debug for Ingest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ingest")
            .field("name", self.name.bytes())
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}
