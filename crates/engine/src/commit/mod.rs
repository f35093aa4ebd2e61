//! Group commit: many writers, one sync.
//!
//! **Promise.** A write is acknowledged after the log holds it durably (or, under `Durability::Os`, after the
//! operating system has it), and becomes visible at that moment, not before. Cells of one batch become
//! visible together. A write that failed for lack of space is never seen, also not after a restart.
//!
//! **Mechanism.** A writer takes its place in the queue, which gives its cells their sequences and its batch a
//! memtable, and then inserts the cells itself, while others do the same. Readers do not see them: they look
//! only at sequences up to the *durable watermark*. Whoever holds the log (a worker of the host, or a
//! blocked writer) takes all that waits as one group, appends and syncs it, waits for the inserts of the
//! group, moves the watermark past it and tells the writers. The next group gathers meanwhile.
//!
//! When the disk is full, or no descriptor is left for the next segment of the log, the group is cut from the log, its sequences are marked as aborted in their
//! memtables, and the watermark moves past them. Any other failure of the log poisons the engine.
//!
//! A write for which the memtables have no room waits for it, if that does not take long: see [`stall_queue`].
//!
//! **Caveats.** One group is in flight at a time.

mod admission;
mod queue;
mod stall_queue;
mod times;
mod wal_guard;

pub(crate) use queue::{CommitQueue, PendingBatch};
pub use times::CommitTimes;

use crate::engine::Engine;
use crate::view::View;
use crate::wal::Wal;
use crate::wal::record::Record;
use crate::{Batch, Error, Sequence};
use admission::RefusedWrite;
use bytes::Bytes;
use queue::{Completions, finish};
use stall_queue::{ADMISSION_RETRY, WriteRequest};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use stdx::Version;
use times::GroupStart;

/// How long a blocking write waits for room before it is refused.
const BLOCKED_MAX: Duration = Duration::from_secs(10);
/// A blocking write looks for room at least so often.
const BLOCKED_SLICE: Duration = Duration::from_millis(10);

/// What a batch came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitOutcome {
    /// Positions in the batch of cells that found a greater version when they came, in ascending order. Only what the
    /// active memtable shows is known; a cell in it whose group found the disk full counts too.
    pub superseded: Vec<u32>,
    /// Other cells that may have been superseded by what older memtables or tables hold: those hold a version as great,
    /// of this key or of another. A read of the key tells. Cells of local keys are left out.
    pub possibly_superseded: Vec<PossiblySuperseded>,
    /// When its group was through with what; of an empty batch, nothing.
    pub times: CommitTimes,
}

/// A cell of a batch of which a commit does not tell whether a greater version was there already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PossiblySuperseded {
    /// Its position in the batch.
    pub position: u32,
    /// Its key.
    pub key: Bytes,
    /// Its version.
    pub version: Version,
}

/// Called once with what a batch came to. Mostly on the thread that commits, which holds the log meanwhile:
/// it must be quick, and must not commit or write with [`Engine::write`].
///
/// It should not panic. If it does, the other batches of its group are told all the same, and the panic is then
/// resumed on the thread that commits.
pub type Completion = Box<dyn FnOnce(Result<CommitOutcome, Error>) + Send>;

impl Engine {
    /// Hands a batch over and returns at once. `completion` is called exactly once: on this thread when the
    /// batch is refused, else by whoever commits it (see [`Engine::step_commit`]).
    pub fn submit(&self, batch: Batch, completion: Completion) {
        if let Err(invalid) = batch.check() {
            return completion(Err(invalid));
        }
        if batch.is_empty() {
            return completion(Ok(CommitOutcome::default()));
        }
        match self.enqueue_or_stall(WriteRequest::new(batch, Some(completion))) {
            Ok(pending) => {
                if let Some(pending) = pending {
                    self.insert(&pending);
                }
                self.shared.signals.commit.notify();
            }
            Err(refused) => self.refuse(refused),
        }
    }

    /// Inserts the cells of a batch that has its place.
    fn insert(&self, pending: &PendingBatch) {
        let view = self.shared.view.load();
        let others = view.sealed.iter().filter(|sealed| !Arc::ptr_eq(sealed, &pending.target));
        let of_tables = view.levels.version_max_from(0);
        pending.insert(others.map(|sealed| sealed.memtable.version_max()).fold(of_tables, Version::max));
    }

    /// Whether batches wait, for the log or for room in the memtables. While they do there will be something for
    /// [`Engine::step_commit`] to do, once jobs have made room.
    pub fn has_waiting_writes(&self) -> bool {
        self.shared.commit_queue.lock().queued_bytes() > 0
    }

    /// Writes a batch and returns when it is committed. Commits it itself, with all that waits, when nobody
    /// else is committing.
    ///
    /// # Errors
    /// [`Error::Overloaded`] after ten seconds without room, [`Error::Invalid`] when a cell of the batch was refused
    /// ([`Batch::put`]), [`Error::Full`], [`Error::Poisoned`].
    pub fn write(&self, batch: Batch) -> Result<CommitOutcome, Error> {
        batch.check()?;
        if batch.is_empty() {
            return Ok(CommitOutcome::default());
        }
        self.pace_writer();
        let mut request = WriteRequest::new(batch, None);
        let mut waited = Duration::ZERO;
        let pending = loop {
            match self.enqueue(request) {
                Ok(pending) => break pending,
                Err(RefusedWrite { error: Error::Overloaded { .. }, request: back })
                    if waited < BLOCKED_MAX =>
                {
                    request = back;
                    waited += self.relieve_backlog()?;
                }
                Err(refused) => {
                    self.shared.counters.record_refusal(&refused.error);
                    return Err(refused.error);
                }
            }
        };
        self.insert(&pending);
        self.commit_until_done(&pending)
    }

    /// Takes what waits as one group and commits it. Returns whether there was anything.
    ///
    /// # Errors
    /// [`Error::Poisoned`] when the log failed now or earlier.
    pub fn step_commit(&self) -> Result<bool, Error> {
        self.admit_stalled();
        self.commit_group(&mut self.shared.lock_wal())
    }

    /// How long a host that commits should pause before the next [`Engine::step_commit`], so that writes keep the rate
    /// that the backlog and the disk permit. It is short, and to be asked again when it is over, until it is zero. The
    /// groups of a host that never asks are not paced.
    pub fn pause_before_group(&self) -> Duration {
        let pause = match self.admit_stalled() {
            (true, _) => self.pause(),
            (false, true) => {
                self.shared.counters.record_pause(ADMISSION_RETRY);
                ADMISSION_RETRY
            }
            (false, false) => return Duration::ZERO,
        };
        if !pause.is_zero() {
            self.shared.commit_queue.lock().pauses(pause);
        }
        pause
    }

    fn pause(&self) -> Duration {
        if self.shared.pacer.is_unthrottled() {
            return Duration::ZERO;
        }
        let pause = self.shared.pacer.pause(self.now());
        if pause.is_zero() || self.shared.permitted_rate(&self.shared.view.load()).is_none() {
            return Duration::ZERO;
        }
        self.shared.counters.record_pause(pause);
        pause
    }

    /// A blocking writer keeps the rate itself. Without workers it does the work that is owed instead.
    fn pace_writer(&self) {
        while self.shared.signals.has_workers() {
            match self.pause() {
                Duration::ZERO => return,
                pause => self.shared.signals.capacity.wait(pause),
            };
        }
    }

    /// A blocking writer has no room: works off the backlog itself when nobody else does, else waits a little.
    fn relieve_backlog(&self) -> Result<Duration, Error> {
        if self.shared.signals.has_workers() {
            self.shared.signals.capacity.wait(BLOCKED_SLICE);
            self.shared.counters.record_pause(BLOCKED_SLICE);
            return Ok(BLOCKED_SLICE);
        }
        self.step_commit()?;
        self.run_jobs()?;
        Ok(BLOCKED_SLICE)
    }

    fn commit_until_done(&self, pending: &PendingBatch) -> Result<CommitOutcome, Error> {
        loop {
            if let Some(result) = pending.result() {
                return result;
            }
            if let Some(mut wal) = self.shared.try_lock_wal() {
                // The outcome of the group is in `pending`; an error here is the same one.
                let _ = self.commit_group(&mut wal);
                continue;
            }
            self.shared
                .signals
                .committed
                .wait_unless(|| pending.outcome.get().is_some() || !self.shared.wal.is_locked());
        }
    }

    /// Seals the active memtable, whatever it holds, and puts a new one in its place. The queue is locked, so
    /// no sequence is given out meanwhile.
    pub(crate) fn rotate(&self, _queue: &mut CommitQueue) {
        let spare = self.shared.spare_memtable.lock().take();
        let fresh = spare.unwrap_or_else(|| self.shared.new_memtable());
        self.shared.install_view(|view| View::rotated(view, fresh));
        self.shared.background.note_pending_flush(self.now());
        self.shared.signals.flush.notify();
    }

    fn commit_group(&self, wal: &mut Wal) -> Result<bool, Error> {
        if let Err(poisoned) = self.check_poison() {
            // A failed job may have poisoned the engine while these waited.
            self.fail_all(Vec::new(), &poisoned);
            return Err(poisoned);
        }
        let rate = self.shared.permitted_rate(&self.shared.view.load());
        let bytes_max = rate.map_or(usize::MAX, |rate| self.shared.pacer.group_bytes_max(rate, self.now()));
        let (group, paused) = self.shared.commit_queue.lock().take_group(bytes_max);
        let Some(newest) = group.last() else { return Ok(false) };
        let last = newest.last();
        let taken = GroupStart { at: self.now(), paused };
        let records: Vec<&Record> = group.iter().map(|pending| &pending.record).collect();
        match wal.append(&records) {
            Ok(segment) => {
                for pending in &group {
                    pending.target.logged_in(segment);
                    pending.target.logged(pending.record.bytes().len() as u64);
                }
                self.shared.log_segment.store(segment.0, Ordering::Release);
                if self.shared.deferred_sync.take_pending_work() {
                    // The flusher is also the worker that does the upkeep.
                    self.shared.signals.flush.notify();
                }
                let size = group_size(&group);
                self.shared.pacer.charge(size.bytes, rate, taken.at);
                self.shared.counters.record_group(&size);
                if self.shared.disk.is_check_due() {
                    self.check_disk_space();
                }
                self.publish(&group, last, || Ok(taken.published(wal, self.now())));
                Ok(true)
            }
            Err(refused) if refused.is_shortage() => {
                for pending in &group {
                    pending.target.memtable.abort(pending.first..pending.last().plus(1));
                }
                if matches!(refused, Error::Full { .. }) {
                    self.note_disk_full();
                }
                self.publish(&group, last, || Err(refused));
                Ok(true)
            }
            Err(error) => {
                let poisoned = self.poison_with(&error);
                self.fail_all(group, &poisoned);
                Err(poisoned)
            }
        }
    }

    /// Moves the watermark past the group and tells its writers.
    fn publish(
        &self,
        group: &[Arc<PendingBatch>],
        last: Sequence,
        outcome: impl FnOnce() -> Result<CommitTimes, Error>,
    ) {
        for pending in group {
            pending.wait_inserted();
        }
        self.shared.watermark.store(last.0, Ordering::Release);
        let outcome = outcome();
        self.notify_flusher(group);
        let mut completions = Completions::default();
        finish(group, &outcome, &mut completions);
        completions.end();
    }

    /// A sealed memtable can be flushed once its last group is durable: that may be this one.
    fn notify_flusher(&self, group: &[Arc<PendingBatch>]) {
        let active = Arc::clone(&self.shared.view.load().active);
        if group.iter().any(|pending| !Arc::ptr_eq(&pending.target, &active)) {
            self.shared.signals.flush.notify();
        }
    }

    /// Fails a group, the batches that wait for the log, and those that wait for room.
    fn fail_all(&self, mut group: Vec<Arc<PendingBatch>>, error: &Error) {
        group.extend(self.shared.commit_queue.lock().take_all());
        let mut completions = Completions::default();
        finish(&group, &Err(error.clone()), &mut completions);
        self.refuse_stalled_with(error, &mut completions);
        completions.end();
    }
}

/// What a group amounts to.
pub(crate) struct GroupSize {
    pub(crate) batches: u64,
    pub(crate) cells: u64,
    pub(crate) data_bytes: u64,
    pub(crate) bytes: u64,
}

fn group_size(group: &[Arc<PendingBatch>]) -> GroupSize {
    GroupSize {
        batches: group.len() as u64,
        cells: group.iter().map(|pending| pending.record.cells() as u64).sum(),
        data_bytes: group.iter().map(|pending| pending.record.data_bytes()).sum(),
        bytes: group.iter().map(|pending| pending.record.bytes().len() as u64).sum(),
    }
}
