//! Admission control of the commit queue: which writes are queued, stalled or refused.
//!
//! A batch is admitted when three conditions hold: a memtable has space for it; at the permitted
//! rate it will be committed soon; and the disk has the space that it demands. A batch that fails
//! one of the first two may be stalled: see [`stall_queue`](super::stall_queue). A batch that
//! bypasses stalls needs only the third.

use super::batch_outcome::Completions;
use super::queue::{CommitQueue, PendingBatch};
use super::stall_queue::{FEW_CELLS, Requirements, STALL_MAX, WriteRequest};
use crate::Error;
use crate::disk::DiskDemand;
use crate::engine::Engine;
use crate::pressure::WAIT_MAX;
use crate::view::{LoggedMemtable, View};
use crate::wal::record::Record;
use limits::{bytes_at, time_at};
use parking_lot::MutexGuard;
use std::sync::Arc;

/// Upper limit of the queued bytes.
const QUEUE_BYTES_MAX: u64 = 64 << 20;
/// The queued bytes may take at most an eighth of the memory budget.
const QUEUE_SHARE: u64 = 8;

impl Engine {
    /// Estimate of the bytes of writes that would be admitted now. For callers with many writes
    /// that prefer to wait over being refused. Other clients write concurrently, so a caller should
    /// use only a part of it.
    pub fn admissible_bytes(&self) -> u64 {
        let waiting_bytes = {
            let queue = self.shared.commit_queue.lock();
            if !queue.stalled.is_empty() {
                return 0;
            }
            queue.waiting_bytes() as u64
        };
        let view = self.shared.view.load();
        let by_queue = self.queue_bytes_max().saturating_sub(waiting_bytes);
        let by_memory = self.shared.memtable_space(&view);
        let by_rate = self.shared.sustainable_rate(&view).map_or(u64::MAX, |rate| {
            let left = WAIT_MAX.saturating_sub(self.shared.pacer.wait(self.now()));
            bytes_at(rate, left).saturating_sub(waiting_bytes)
        });
        by_queue.min(by_memory).min(by_rate)
    }

    /// Queues a batch, or refuses it when it would have to stall.
    pub(super) fn enqueue(&self, request: WriteRequest) -> Result<Arc<PendingBatch>, RefusedWrite> {
        let mut queue = self.shared.commit_queue.lock();
        match self.admit_behind_stalled(&mut queue, &request) {
            Ok(target) => Ok(queue.push(request, target)),
            Err(refusal) => Err(self.refused(queue, refusal, request)),
        }
    }

    /// As [`Engine::enqueue`]; returns `None` when the batch was stalled.
    pub(super) fn enqueue_or_stall(
        &self,
        request: WriteRequest,
    ) -> Result<Option<Arc<PendingBatch>>, RefusedWrite> {
        let mut queue = self.shared.commit_queue.lock();
        match self.admit_behind_stalled(&mut queue, &request) {
            Ok(target) => Ok(Some(queue.push(request, target))),
            Err(refusal) if self.may_stall(&queue, &request.record, &refusal) => {
                queue.stalled.push(request, self.now());
                Ok(None)
            }
            Err(refusal) => Err(self.refused(queue, refusal, request)),
        }
    }

    /// Admits stalled batches as far as there is space, and refuses those that have waited too
    /// long. Returns whether batches wait for the log, and whether some are still stalled.
    pub(super) fn admit_stalled(&self) -> (bool, bool) {
        loop {
            let mut queue = self.shared.commit_queue.lock();
            let Some((requirements, since)) = queue.stalled.first() else {
                return (queue.waiting_bytes() > 0, false);
            };
            let admitted = self.admit(&mut queue, requirements);
            let may_wait = matches!(admitted, Err(Refusal::MemtablesFull | Refusal::RateExceeded));
            if may_wait && self.now().saturating_since(since) < STALL_MAX {
                return (queue.waiting_bytes() > 0, true);
            }
            let request = queue.stalled.pop().expect("the queue has a first write");
            match admitted {
                Ok(target) => {
                    let pending = queue.push(request, target);
                    drop(queue);
                    self.insert(&pending);
                }
                Err(refusal) => self.refuse(self.refused(queue, refusal, request)),
            }
        }
    }

    /// Refuses all stalled batches with `error`.
    pub(crate) fn refuse_stalled(&self, error: &Error) {
        let mut completions = Completions::default();
        self.refuse_stalled_with(error, &mut completions);
        completions.end();
    }

    /// As [`Engine::refuse_stalled`], with the completions of other batches.
    pub(super) fn refuse_stalled_with(&self, error: &Error, completions: &mut Completions) {
        loop {
            let Some(request) = self.shared.commit_queue.lock().stalled.pop() else { return };
            completions.call(|| self.refuse(RefusedWrite { error: error.clone(), request }));
        }
    }

    pub(super) fn refuse(&self, RefusedWrite { error, request }: RefusedWrite) {
        self.shared.counters.record_refusal(&error);
        (request.completion.expect("a write without a completion is not refused here"))(Err(error));
    }

    /// A refused batch with its error. Releases the queue before it computes the error.
    fn refused(
        &self,
        queue: MutexGuard<'_, CommitQueue>,
        refusal: Refusal,
        request: WriteRequest,
    ) -> RefusedWrite {
        drop(queue);
        let error = match refusal {
            Refusal::Other(error) => error,
            Refusal::MemtablesFull | Refusal::RateExceeded => self.overloaded(),
        };
        RefusedWrite { error, request }
    }

    pub(crate) fn overloaded(&self) -> Error {
        let pressure = self.shared.pressure_of(&self.shared.view.load());
        Error::Overloaded { retry_after: pressure.retry_after() }
    }

    /// As [`Engine::admit`]; refuses if others are stalled, so that they go first.
    fn admit_behind_stalled(
        &self,
        queue: &mut CommitQueue,
        request: &WriteRequest,
    ) -> Result<Arc<LoggedMemtable>, Refusal> {
        if !queue.stalled.is_empty() && !request.bypasses_stalls {
            return Err(Refusal::MemtablesFull);
        }
        self.admit(queue, request.requirements())
    }

    /// The memtable for a batch, if the batch is admitted.
    fn admit(
        &self,
        queue: &mut CommitQueue,
        requirements: Requirements,
    ) -> Result<Arc<LoggedMemtable>, Refusal> {
        let Requirements { bytes, demand, bypasses_stalls } = requirements;
        self.check_poison().map_err(Refusal::Other)?;
        let full = || Refusal::Other(Error::Full { path: self.shared.paths.root().to_owned() });
        if demand == DiskDemand::Value && self.shared.disk.is_full() {
            return Err(full());
        }
        let mut view = self.shared.view.load();
        // An empty memtable takes a write of any size; otherwise the largest could never be
        // written.
        let active = &view.active.memtable;
        let is_full = active.bytes_used() >= self.shared.memtable_bytes && !active.is_empty();
        let rotates = is_full && view.sealed.len() + 1 < self.shared.options.memtables_max;
        if rotates {
            // Also when the write is refused below: a full memtable can be flushed only once it is
            // sealed.
            drop(view);
            self.rotate(queue);
            view = self.shared.view.load();
        }
        if !bypasses_stalls {
            if (is_full && !rotates) || !self.shared.has_memtable_space(&view, bytes) {
                return Err(Refusal::MemtablesFull);
            }
            if self.waits_too_long(queue, &view) {
                return Err(Refusal::RateExceeded);
            }
        }
        // Checked last: an admitted batch is counted.
        if !self.shared.disk.admit(demand, bytes) {
            return Err(full());
        }
        Ok(Arc::clone(&view.active))
    }

    /// Whether a write would wait too long behind the queued ones. Its own size does not count, so
    /// that large writes are admitted as small ones are.
    fn waits_too_long(&self, queue: &CommitQueue, view: &View) -> bool {
        let waiting_bytes = queue.waiting_bytes() as u64;
        if waiting_bytes > self.queue_bytes_max() {
            return true;
        }
        let Some(rate) = self.shared.sustainable_rate(view) else { return false };
        let unpaid = self.shared.pacer.wait(self.now());
        unpaid + time_at(rate, waiting_bytes) > WAIT_MAX
    }

    /// Whether a write may stall: few cells are stalled, or the flush is expected to be done soon.
    fn may_stall(&self, queue: &CommitQueue, record: &Record, refusal: &Refusal) -> bool {
        if matches!(refusal, Refusal::Other(_)) || queue.queued_bytes() as u64 > self.queue_bytes_max() {
            return false;
        }
        if queue.stalled.cells() + record.cells() <= FEW_CELLS {
            return true;
        }
        let is_soon = || {
            let pressure = self.shared.pressure_of(&self.shared.view.load());
            pressure.wait_for_room(queue.stalled.bytes() as u64) <= WAIT_MAX
        };
        matches!(refusal, Refusal::MemtablesFull) && self.shared.background.flush.is_measured() && is_soon()
    }

    fn queue_bytes_max(&self) -> u64 {
        QUEUE_BYTES_MAX.min(self.shared.options.memory_bytes / QUEUE_SHARE)
    }
}

/// Reason for which a batch is not admitted.
enum Refusal {
    /// The memtables are full.
    MemtablesFull,
    /// Too many bytes are queued before it, at the permitted rate.
    RateExceeded,
    Other(Error),
}

/// A batch that was not admitted.
pub(super) struct RefusedWrite {
    pub(super) error: Error,
    pub(super) request: WriteRequest,
}
