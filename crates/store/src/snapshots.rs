//! Snapshots that stay open between the pages of a scan.
//!
//! **Promise.** All pages that name a snapshot are read from the same moment, as long as the
//! snapshot is open: until its range was read to the end, the scanning coordinator ends it, or it
//! is too old. So a stalled reader pins memory and files of the engine for a bounded time.
//! Afterwards its scan continues in a new snapshot, behind the last key that it received. The
//! number of open snapshots and the memory that they pin are limited.
//!
//! **Mechanism.** A page *borrows* a cursor: one that is parked at the beginning of the page, or
//! else a new one that must be positioned by a seek. Two pages of a snapshot may be read
//! concurrently, as on a node that is source and checker of the same scan. They borrow two cursors,
//! and neither waits. When a page is full, its cursor is parked at its position, without its value
//! if that is large. At the end of a range the cursor is dropped, and with its last cursor the
//! snapshot. One exception is a page that was refused for lack of memory or descriptors. The other
//! is an oversized page: a scan that read it ahead does not keep it, and reads it again. A cursor
//! that is parked for long is dropped as well, so that a stalled reader holds no blocks. The next
//! page then seeks in the snapshot, which is still open.
//!
//! Age is checked when a snapshot is requested, when a cursor is returned, and when the host calls
//! [`Snapshots::expire`]. A snapshot that grows too old while it is in use is dropped when its
//! cursor is returned. While snapshots pin more memory than the engine permits, the oldest ones are
//! dropped: ranges that begin at different times pin one memtable after another.
//!
//! **Caveats.** Dropping the last snapshot of a memtable frees the memtable on the thread that
//! drops it.

use cluster::{Cut, SnapshotId, StoreFault};
use engine::{Cursor, Engine, Snapshot, SnapshotCursor};
use env::Clock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stdx::Instant;

/// Default of the maximum age of a snapshot.
pub const SNAPSHOT_AGE_DEFAULT: Duration = Duration::from_secs(60);
/// Maximum number of open snapshots.
pub const SNAPSHOTS_MAX: usize = 4_096;

/// Maximum number of parked cursors per snapshot: one for the scan and one for its check.
const PARKED_MAX: usize = 2;
/// Time after which a parked cursor is dropped, with the blocks that it holds.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Delay after which a refused request for a snapshot may succeed.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The open snapshots of a store.
pub(crate) struct Snapshots {
    clock: Arc<dyn Clock>,
    age_max: Duration,
    table: Mutex<SnapshotTable>,
    dropped_for_memory: AtomicU64,
}

#[derive(Default)]
struct SnapshotTable {
    open: BTreeMap<SnapshotId, OpenSnapshot>,
    /// Number of snapshots opened so far.
    taken: u64,
}

struct OpenSnapshot {
    /// Distinguishes the snapshot from others with the same id.
    serial: u64,
    taken_at: Instant,
    snapshot: Snapshot,
    /// Parked cursors, the most recently parked one last.
    parked: Vec<ParkedCursor>,
    borrowed: usize,
}

struct ParkedCursor {
    position: Cut,
    versions_only: bool,
    since: Instant,
    cursor: SnapshotCursor,
}

/// A cursor in a snapshot, borrowed for one page.
pub(crate) struct BorrowedCursor {
    id: SnapshotId,
    serial: u64,
    versions_only: bool,
    /// A cursor of the snapshot.
    pub(crate) cursor: SnapshotCursor,
    /// Whether the cursor is at the beginning of the page, or at the entry before it with its value
    /// released. If not, it must be positioned by a seek.
    pub(crate) is_positioned: bool,
}

impl Snapshots {
    /// Returns an empty table. Each snapshot will stay open for at most `age_max`.
    pub(crate) fn new(clock: Arc<dyn Clock>, age_max: Duration) -> Self {
        Self { clock, age_max, table: Mutex::default(), dropped_for_memory: AtomicU64::new(0) }
    }

    /// Borrows a cursor in the snapshot `id` for a page that begins at `from`. With `versions_only`
    /// it is one that does not read oversized values. Opens a new snapshot if there is none with
    /// this id or it is too old.
    pub(crate) fn borrow(
        &self,
        engine: &Engine,
        id: SnapshotId,
        versions_only: bool,
        from: Option<&Cut>,
    ) -> Result<BorrowedCursor, StoreFault> {
        let now = self.clock.now().mono;
        // Declared before the lock guard, so that the snapshot is freed after the lock is released.
        let _too_old;
        let mut table = self.lock();
        _too_old = self.remove_if_too_old(&mut table, id, now);
        if table.open.len() >= SNAPSHOTS_MAX && !table.open.contains_key(&id) {
            return Err(StoreFault::Overloaded { retry_after: RETRY_AFTER });
        }
        let SnapshotTable { open, taken } = &mut *table;
        let snapshot = open.entry(id).or_insert_with(|| {
            *taken += 1;
            OpenSnapshot {
                serial: *taken,
                taken_at: now,
                snapshot: engine.snapshot(),
                parked: Vec::new(),
                borrowed: 0,
            }
        });
        snapshot.borrowed += 1;
        let serial = snapshot.serial;
        let is_there =
            |parked: &ParkedCursor| Some(&parked.position) == from && parked.versions_only == versions_only;
        let there = snapshot.parked.iter().position(is_there);
        let (cursor, is_positioned) = match there {
            Some(at) => (snapshot.parked.remove(at).cursor, true),
            None if versions_only => (snapshot.snapshot.version_cursor(), false),
            None => (snapshot.snapshot.cursor(), false),
        };
        Ok(BorrowedCursor { id, serial, versions_only, cursor, is_positioned })
    }

    /// Returns a cursor that is at `position`, where the next page will begin.
    pub(crate) fn park(&self, borrowed: BorrowedCursor, position: Cut) {
        let BorrowedCursor { id, serial, versions_only, mut cursor, .. } = borrowed;
        cursor.release_value();
        let now = self.clock.now().mono;
        let _too_old;
        let _displaced;
        let mut table = self.lock();
        _too_old = self.remove_if_too_old(&mut table, id, now);
        let Some(snapshot) = table.get_mut(id, serial) else { return };
        snapshot.borrowed -= 1;
        _displaced = (snapshot.parked.len() >= PARKED_MAX).then(|| snapshot.parked.remove(0));
        snapshot.parked.push(ParkedCursor { position, versions_only, since: now, cursor });
    }

    /// Returns a cursor that is not needed any more. The snapshot stays open for a page that may be
    /// read again.
    pub(crate) fn retain(&self, borrowed: BorrowedCursor) {
        let BorrowedCursor { id, serial, cursor, .. } = borrowed;
        let _finished = cursor;
        if let Some(snapshot) = self.lock().get_mut(id, serial) {
            snapshot.borrowed -= 1;
        }
    }

    /// Returns a cursor that is not needed any more, and drops the snapshot if it was the last
    /// cursor.
    pub(crate) fn finish(&self, borrowed: BorrowedCursor) {
        let BorrowedCursor { id, serial, cursor, .. } = borrowed;
        let _finished = cursor;
        let _unused;
        let mut table = self.lock();
        let Some(snapshot) = table.get_mut(id, serial) else { return };
        snapshot.borrowed -= 1;
        let is_used = snapshot.borrowed > 0 || !snapshot.parked.is_empty();
        _unused = (!is_used).then(|| table.open.remove(&id));
    }

    /// Drops a snapshot, if it is open.
    pub(crate) fn end(&self, id: SnapshotId) {
        let _ended;
        let mut table = self.lock();
        _ended = table.open.remove(&id);
    }

    /// Drops snapshots that are too old and cursors that have been idle for too long. Then drops
    /// the oldest snapshots until the rest hold at most [`Engine::held_bytes_max`].
    ///
    /// Returns the number of snapshots that were dropped for their memory.
    pub(crate) fn expire(&self, engine: &Engine) -> usize {
        self.drop_aged();
        let mut dropped = 0;
        while engine.pinned_memtable_bytes() > engine.pinned_memtable_bytes_max()
            && let Some(oldest) = self.remove_oldest()
        {
            drop(oldest);
            dropped += 1;
        }
        self.dropped_for_memory.fetch_add(dropped as u64, Ordering::Relaxed);
        dropped
    }

    /// Number of snapshots dropped because of their memory since the store was opened.
    pub(crate) fn dropped_for_memory(&self) -> u64 {
        self.dropped_for_memory.load(Ordering::Relaxed)
    }

    fn drop_aged(&self) {
        let now = self.clock.now().mono;
        let _too_old: Vec<_>;
        let mut _idle = Vec::new();
        let mut table = self.lock();
        _too_old = table.open.extract_if(.., |_, snapshot| self.is_too_old(snapshot, now)).collect();
        for snapshot in table.open.values_mut() {
            _idle.extend(snapshot.parked.extract_if(.., |parked| now - parked.since >= IDLE_MAX));
        }
    }

    /// Number of open snapshots.
    pub(crate) fn len(&self) -> usize {
        self.lock().open.len()
    }

    fn remove_oldest(&self) -> Option<OpenSnapshot> {
        let mut table = self.lock();
        let oldest = table.open.iter().min_by_key(|(_, snapshot)| snapshot.serial).map(|(id, _)| *id)?;
        table.open.remove(&oldest)
    }

    fn remove_if_too_old(
        &self,
        table: &mut SnapshotTable,
        id: SnapshotId,
        now: Instant,
    ) -> Option<OpenSnapshot> {
        let is_too_old = table.open.get(&id).is_some_and(|snapshot| self.is_too_old(snapshot, now));
        is_too_old.then(|| table.open.remove(&id)).flatten()
    }

    fn is_too_old(&self, snapshot: &OpenSnapshot, now: Instant) -> bool {
        now - snapshot.taken_at >= self.age_max
    }

    fn lock(&self) -> MutexGuard<'_, SnapshotTable> {
        // The data under the lock is consistent after each statement, so a poisoned lock is usable.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SnapshotTable {
    /// The snapshot with this id, if it is still the one that the cursor was borrowed from.
    fn get_mut(&mut self, id: SnapshotId, serial: u64) -> Option<&mut OpenSnapshot> {
        self.open.get_mut(&id).filter(|snapshot| snapshot.serial == serial)
    }
}
