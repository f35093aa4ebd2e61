//! Who is let into the commit queue, who waits before it, who is refused.
//!
//! A batch that is let in has a memtable with room for it, a turn that comes soon at the rate that is permitted, and the
//! room that it needs on the disk. Who lacks one of the first two waits, if he may: see [`stall_queue`](super::stall_queue).
//! What the host cannot go on without needs the last only.

use super::queue::Completions;
use super::stall_queue::{FEW_CELLS, Requirements, STALL_MAX, WriteRequest};
use super::{CommitQueue, PendingBatch};
use crate::Error;
use crate::disk::DiskDemand;
use crate::engine::Engine;
use crate::pressure::{WAIT_MAX, bytes_at, time_at};
use crate::view::{LoggedMemtable, View};
use crate::wal::record::Record;
use parking_lot::MutexGuard;
use std::sync::Arc;

/// So many bytes may wait to be committed before writes are refused, if the memory budget is not small...
const QUEUE_BYTES_MAX: u64 = 64 << 20;
/// ... and at most this part of it.
const QUEUE_SHARE: u64 = 8;

impl Engine {
    /// About how many bytes of writes would be let in now, for whoever writes much and would rather wait than be
    /// refused. Others write meanwhile, so better no more than a part of it is used.
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

    /// Takes in a batch that waits for no room.
    pub(super) fn enqueue(&self, request: WriteRequest) -> Result<Arc<PendingBatch>, RefusedWrite> {
        let mut queue = self.shared.commit_queue.lock();
        match self.admit_behind_stalled(&mut queue, &request) {
            Ok(target) => Ok(queue.push(request, target)),
            Err(refusal) => Err(self.refused(queue, refusal, request)),
        }
    }

    /// As [`Engine::enqueue`]; `None`: it waits for room.
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

    /// Lets in what waits for room, as far as there is some, and refuses what has waited for too long.
    /// Whether batches wait for the log then, and whether some still wait for room.
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
            let request = queue.stalled.pop().expect("it was the first");
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

    /// Tells those that wait for room that there will be none.
    pub(crate) fn refuse_stalled(&self, error: &Error) {
        let mut completions = Completions::default();
        self.refuse_stalled_with(error, &mut completions);
        completions.end();
    }

    /// As [`Engine::refuse_stalled`], beside other completions.
    pub(super) fn refuse_stalled_with(&self, error: &Error, completions: &mut Completions) {
        loop {
            let Some(request) = self.shared.commit_queue.lock().stalled.pop() else { return };
            completions.call(|| self.refuse(RefusedWrite { error: error.clone(), request }));
        }
    }

    pub(super) fn refuse(&self, RefusedWrite { error, request }: RefusedWrite) {
        self.shared.counters.record_refusal(&error);
        (request.completion.expect("whoever blocks is told otherwise"))(Err(error));
    }

    /// Why a batch is refused; what it takes to tell is not done with the queue locked.
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

    /// As [`Engine::admit`], behind those that wait for room.
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

    /// The memtable that takes a batch, if it may come at all.
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
        // One that holds nothing takes a write whatever its size, else none could ever be taken.
        let active = &view.active.memtable;
        let is_full = active.bytes_used() >= self.shared.memtable_bytes && !active.is_empty();
        let rotates = is_full && view.sealed.len() + 1 < self.shared.options.memtables_max;
        if rotates {
            // Also when the write is refused below: a full memtable is worked off only once it is sealed.
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
        // Last: what is admitted counts.
        if !self.shared.disk.admit(demand, bytes) {
            return Err(full());
        }
        Ok(Arc::clone(&view.active))
    }

    /// Whether a write would wait too long behind those that are queued. Its own size does not count, so that large ones
    /// get their turn as small ones do.
    fn waits_too_long(&self, queue: &CommitQueue, view: &View) -> bool {
        let waiting_bytes = queue.waiting_bytes() as u64;
        if waiting_bytes > self.queue_bytes_max() {
            return true;
        }
        let Some(rate) = self.shared.sustainable_rate(view) else { return false };
        let unpaid = self.shared.pacer.wait(self.now());
        unpaid + time_at(rate, waiting_bytes) > WAIT_MAX
    }

    /// Whether a write that is not let in may wait for that: there are few, or the flush will surely be done soon.
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

/// Why a batch is not let in.
enum Refusal {
    /// The memtables are full.
    MemtablesFull,
    /// Too much is before it.
    RateExceeded,
    Other(Error),
}

/// A batch that was not let in.
pub(super) struct RefusedWrite {
    pub(super) error: Error,
    pub(super) request: WriteRequest,
}
