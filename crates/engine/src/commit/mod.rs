//! Group commit: many writers share one sync.
//!
//! **Promise.** A write is acknowledged after the log holds it durably (under `Durability::Os`,
//! after the operating system has it). It becomes visible at that moment. The cells of one batch
//! become visible together. A write that failed for lack of space never becomes visible, not even
//! after a restart.
//!
//! **Mechanism.** A writer enqueues its batch, which assigns sequences to the cells and a memtable
//! to the batch. Then it inserts the cells itself, in parallel with other writers. Readers do not
//! see them: they read only sequences up to the *durable watermark*. The thread that holds the log
//! (a worker, or a blocked writer) takes all queued batches as one group. It appends and syncs the
//! group, waits for its inserts, advances the watermark past it and completes its batches. The next
//! group gathers meanwhile.
//!
//! When the disk is full, or no descriptor is left for the next log segment, the group is cut from
//! the log. Its sequences are marked as aborted in their memtables, and the watermark advances past
//! them. Any other failure of the log poisons the engine.
//!
//! A write for which the memtables have no space stalls, if the wait is short: see [`stall_queue`].
//! A host can leave out writes of cells that are in a memtable already: see [`covering`].
//!
//! **Caveats.** One group is in flight at a time.

mod admission;
mod batch_outcome;
mod covering;
mod outcome;
pub(crate) mod queue;
#[cfg(test)]
mod schedules;
mod stall_queue;
mod sync;
mod times;
mod wal_guard;

pub use covering::Covering;
pub use outcome::{CommitOutcome, Completion, PossiblySuperseded};
pub use times::CommitTimes;

use crate::engine::Engine;
use crate::view::View;
use crate::wal::Wal;
use crate::wal::record::Record;
use crate::{Batch, Error, Sequence};
use admission::RefusedWrite;
use batch_outcome::Completions;
use queue::{CommitQueue, PendingBatch, finish, group_size};
use stall_queue::{ADMISSION_RETRY, WriteRequest};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use stdx::Version;
use times::GroupStart;

/// Longest time that a blocking write waits for space before it is refused.
const BLOCKED_MAX: Duration = Duration::from_secs(10);
/// Longest time between two checks for space by a blocking write.
const BLOCKED_SLICE: Duration = Duration::from_millis(10);

impl Engine {
    /// Submits a batch without blocking. `completion` is called exactly once: on this thread when
    /// the batch is refused, otherwise by the thread that commits it (see [`Engine::step_commit`]).
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

    /// Inserts the cells of a queued batch.
    fn insert(&self, pending: &PendingBatch) {
        let view = self.shared.view.load();
        let others = view.sealed.iter().filter(|sealed| !Arc::ptr_eq(sealed, &pending.target));
        let of_tables = view.levels.version_max_from(0);
        pending.insert(others.map(|sealed| sealed.memtable.version_max()).fold(of_tables, Version::max));
    }

    /// Whether batches wait for the log or are stalled. If so, [`Engine::step_commit`] will have
    /// work once jobs have freed space.
    pub fn has_waiting_writes(&self) -> bool {
        self.shared.commit_queue.lock().queued_bytes() > 0
    }

    /// Writes a batch and returns when it is committed. If no other thread is committing, this one
    /// commits all queued batches.
    ///
    /// # Errors
    /// [`Error::Overloaded`] after ten seconds without space; [`Error::Invalid`] when a cell of the
    /// batch was refused ([`Batch::put`]); [`Error::Full`], [`Error::Poisoned`].
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

    /// Commits the queued batches as one group. Returns whether there were any.
    ///
    /// # Errors
    /// [`Error::Poisoned`] when the log failed now or earlier.
    pub fn step_commit(&self) -> Result<bool, Error> {
        self.admit_stalled();
        self.commit_group(&mut self.shared.lock_wal())
    }

    /// The pause that a committing host should make before the next [`Engine::step_commit`], so
    /// that writes keep to the rate that backlog and disk space permit. Each pause is short; the
    /// host repeats the call until the result is zero. Without such calls, groups are not paced.
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

    /// Paces a blocking writer. Without workers it runs the pending jobs itself instead.
    fn pace_writer(&self) {
        while self.shared.signals.has_workers() {
            match self.pause() {
                Duration::ZERO => return,
                pause => self.shared.signals.capacity.wait(pause),
            };
        }
    }

    /// Frees space for a blocking writer: waits briefly, or without workers runs the jobs itself.
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

    /// Seals the active memtable, even if it is empty, and installs a new one. The locked queue
    /// ensures that no sequence is assigned meanwhile.
    pub(crate) fn rotate(&self, _queue: &mut CommitQueue) {
        let spare = self.shared.spare_memtable.lock().take();
        let fresh = spare.unwrap_or_else(|| self.shared.new_memtable());
        self.shared.install_view(|view| View::rotated(view, fresh));
        self.shared.background.note_pending_flush(self.now());
        self.shared.signals.flush.notify();
    }

    fn commit_group(&self, wal: &mut Wal) -> Result<bool, Error> {
        if let Err(poisoned) = self.check_poison() {
            // A failed job may have poisoned the engine while these batches waited.
            self.fail_all(&[], &poisoned);
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
                for pending in group.iter() {
                    pending.target.logged_in(segment);
                    pending.target.logged(pending.record.bytes().len() as u64);
                }
                self.shared.log_segment.store(segment.0, Ordering::Release);
                if self.shared.deferred_sync.take_pending_work() {
                    // The flush thread also does the upkeep.
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
                for pending in group.iter() {
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
                self.fail_all(&group, &poisoned);
                Err(poisoned)
            }
        }
    }

    /// Advances the watermark past the group and completes its batches.
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

    /// Wakes the flush thread: a sealed memtable can be flushed once its last group, possibly this
    /// one, is durable.
    fn notify_flusher(&self, group: &[Arc<PendingBatch>]) {
        let active = Arc::clone(&self.shared.view.load().active);
        if group.iter().any(|pending| !Arc::ptr_eq(&pending.target, &active)) {
            self.shared.signals.flush.notify();
        }
    }

    /// Fails a group, the queued batches and the stalled ones.
    fn fail_all(&self, group: &[Arc<PendingBatch>], error: &Error) {
        let queued = self.shared.commit_queue.lock().take_all();
        let batches: Vec<_> = group.iter().chain(&queued).cloned().collect();
        let mut completions = Completions::default();
        finish(&batches, &Err(error.clone()), &mut completions);
        self.refuse_stalled_with(error, &mut completions);
        completions.end();
    }
}
