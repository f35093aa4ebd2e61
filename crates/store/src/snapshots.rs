//! The snapshots that are kept open between the pages of a scan.
//!
//! **Promise.** All pages that name a snapshot come out of one moment, as long as it is kept: until its range was read
//! to the end, until whoever scans lets go of it, or until it is too old. A reader that stalls holds back memory and
//! files of the engine for no longer than that; then its scan goes on in a fresh snapshot, behind the last key that it
//! was given. There is a limit to how many are kept, and to how much of memory they hold.
//!
//! **Mechanism.** A page *borrows* a cursor: one that stands where the page is to begin if there is one, else a new one
//! that is to be sought. Two pages of one snapshot may be read at once, as a node does that is source and checker in the
//! same scan: they borrow two cursors of the same moment, and neither waits. When a page is full its cursor is parked
//! where it stands, without the value there if that is large. When a range is at its end its cursor is dropped, and with
//! its last cursor the snapshot, but not behind a page that is oversized: a scan that read it ahead does not keep it, and
//! reads it again. A cursor that is parked for long is dropped as well, so that a reader that stalls holds no
//! blocks; then the next page searches its place in the snapshot, which is still there.
//!
//! Age is looked at when a snapshot is asked for, when a cursor comes back, and whenever the host says
//! ([`Snapshots::expire`]): what is in use when it grows too old is dropped when it comes back. When snapshots hold more
//! of memory than the engine says they should, the oldest are dropped as if they were too old: ranges begun at different
//! times hold one memtable after the other.
//!
//! **Caveats.** Dropping the last snapshot that holds a memtable frees it on the thread that drops it.

use cluster::{Cut, SnapshotId, StoreFault};
use engine::iter::Cursor;
use engine::{Engine, Snapshot, SnapshotCursor};
use env::Clock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stdx::Instant;

/// For so long a snapshot is kept, unless the host chooses otherwise.
pub const SNAPSHOT_AGE_DEFAULT: Duration = Duration::from_secs(60);
/// So many snapshots are kept at most.
pub const SNAPSHOTS_MAX: usize = 4_096;

/// Cursors that are parked in one snapshot: where the scan goes on, and where the check of it does.
const PARKED_MAX: usize = 2;
/// A cursor that nobody went on with for so long is dropped, and with it the blocks that it stands in.
const IDLE_MAX: Duration = Duration::from_secs(1);
/// When there may be room for another snapshot.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct Snapshots {
    clock: Arc<dyn Clock>,
    age_max: Duration,
    table: Mutex<Table>,
    dropped_for_memory: AtomicU64,
}

#[derive(Default)]
struct Table {
    kept: BTreeMap<SnapshotId, Kept>,
    /// How many were taken so far.
    taken: u64,
}

struct Kept {
    /// Tells it from others that went by the same name.
    serial: u64,
    taken_at: Instant,
    snapshot: Snapshot,
    /// The one that was parked last is the last.
    parked: Vec<Parked>,
    borrowed: usize,
}

struct Parked {
    stands_at: Cut,
    since: Instant,
    cursor: SnapshotCursor,
}

/// A cursor in a snapshot, for one page.
pub(crate) struct Borrowed {
    id: SnapshotId,
    serial: u64,
    /// Reads the snapshot.
    pub(crate) cursor: SnapshotCursor,
    /// Whether the cursor stands where the page begins, or at the entry before it, its value set aside; else it is to be
    /// sought.
    pub(crate) is_there: bool,
}

impl Snapshots {
    /// A table without snapshots, each of which will be kept for `age_max`.
    pub(crate) fn new(clock: Arc<dyn Clock>, age_max: Duration) -> Self {
        Self { clock, age_max, table: Mutex::default(), dropped_for_memory: AtomicU64::new(0) }
    }

    /// A cursor in the snapshot `id`, for a page that begins at `from`. One that is not kept, or is too old, is taken
    /// afresh.
    pub(crate) fn borrow(
        &self,
        engine: &Engine,
        id: SnapshotId,
        from: Option<&Cut>,
    ) -> Result<Borrowed, StoreFault> {
        let now = self.clock.now().mono;
        // Declared before the lock is taken, so that what it holds is freed after the lock is.
        let _too_old;
        let mut table = self.lock();
        _too_old = self.take_if_too_old(&mut table, id, now);
        if table.kept.len() >= SNAPSHOTS_MAX && !table.kept.contains_key(&id) {
            return Err(StoreFault::Overloaded { retry_after: RETRY_AFTER });
        }
        let Table { kept, taken } = &mut *table;
        let kept = kept.entry(id).or_insert_with(|| {
            *taken += 1;
            Kept {
                serial: *taken,
                taken_at: now,
                snapshot: engine.snapshot(),
                parked: Vec::new(),
                borrowed: 0,
            }
        });
        kept.borrowed += 1;
        let serial = kept.serial;
        let there = kept.parked.iter().position(|parked| Some(&parked.stands_at) == from);
        let (cursor, is_there) = match there {
            Some(at) => (kept.parked.remove(at).cursor, true),
            None => (kept.snapshot.cursor(), false),
        };
        Ok(Borrowed { id, serial, cursor, is_there })
    }

    /// Takes back a cursor that stands at `stands_at`, where the next page will begin.
    pub(crate) fn park(&self, borrowed: Borrowed, stands_at: Cut) {
        let Borrowed { id, serial, mut cursor, .. } = borrowed;
        cursor.set_aside();
        let now = self.clock.now().mono;
        let _too_old;
        let _displaced;
        let mut table = self.lock();
        _too_old = self.take_if_too_old(&mut table, id, now);
        let Some(kept) = table.of(id, serial) else { return };
        kept.borrowed -= 1;
        _displaced = (kept.parked.len() >= PARKED_MAX).then(|| kept.parked.remove(0));
        kept.parked.push(Parked { stands_at, since: now, cursor });
    }

    /// Takes back a cursor that is not needed any more. The snapshot stays, for a page that may be read again.
    pub(crate) fn keep(&self, borrowed: Borrowed) {
        let Borrowed { id, serial, cursor, .. } = borrowed;
        let _finished = cursor;
        if let Some(kept) = self.lock().of(id, serial) {
            kept.borrowed -= 1;
        }
    }

    /// Takes back a cursor that is not needed any more, and drops the snapshot with its last one.
    pub(crate) fn finish(&self, borrowed: Borrowed) {
        let Borrowed { id, serial, cursor, .. } = borrowed;
        let _finished = cursor;
        let _unused;
        let mut table = self.lock();
        let Some(kept) = table.of(id, serial) else { return };
        kept.borrowed -= 1;
        let is_used = kept.borrowed > 0 || !kept.parked.is_empty();
        _unused = (!is_used).then(|| table.kept.remove(&id));
    }

    /// Drops a snapshot, if it is kept.
    pub(crate) fn end(&self, id: SnapshotId) {
        let _ended;
        let mut table = self.lock();
        _ended = table.kept.remove(&id);
    }

    /// Drops snapshots that are too old and cursors that have been idle for too long. Then drops the oldest snapshots
    /// until the rest hold at most [`Engine::held_bytes_max`].
    ///
    /// Returns the number of snapshots that were dropped for their memory.
    pub(crate) fn expire(&self, engine: &Engine) -> usize {
        self.drop_aged();
        let mut dropped = 0;
        while engine.pinned_memtable_bytes() > engine.pinned_memtable_bytes_max()
            && let Some(oldest) = self.take_oldest()
        {
            drop(oldest);
            dropped += 1;
        }
        self.dropped_for_memory.fetch_add(dropped as u64, Ordering::Relaxed);
        dropped
    }

    /// Snapshots that were dropped for their memory since the store was opened.
    pub(crate) fn dropped_for_memory(&self) -> u64 {
        self.dropped_for_memory.load(Ordering::Relaxed)
    }

    fn drop_aged(&self) {
        let now = self.clock.now().mono;
        let _too_old: Vec<_>;
        let mut _idle = Vec::new();
        let mut table = self.lock();
        _too_old = table.kept.extract_if(.., |_, kept| self.is_too_old(kept, now)).collect();
        for kept in table.kept.values_mut() {
            _idle.extend(kept.parked.extract_if(.., |parked| now - parked.since >= IDLE_MAX));
        }
    }

    /// How many are kept.
    pub(crate) fn len(&self) -> usize {
        self.lock().kept.len()
    }

    fn take_oldest(&self) -> Option<Kept> {
        let mut table = self.lock();
        let oldest = table.kept.iter().min_by_key(|(_, kept)| kept.serial).map(|(id, _)| *id)?;
        table.kept.remove(&oldest)
    }

    fn take_if_too_old(&self, table: &mut Table, id: SnapshotId, now: Instant) -> Option<Kept> {
        let is_too_old = table.kept.get(&id).is_some_and(|kept| self.is_too_old(kept, now));
        is_too_old.then(|| table.kept.remove(&id)).flatten()
    }

    fn is_too_old(&self, kept: &Kept, now: Instant) -> bool {
        now - kept.taken_at >= self.age_max
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // What is under the lock is whole after each statement.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// The snapshot of this name, if it is still the one that the cursor was borrowed of.
    fn of(&mut self, id: SnapshotId, serial: u64) -> Option<&mut Kept> {
        self.kept.get_mut(&id).filter(|kept| kept.serial == serial)
    }
}
