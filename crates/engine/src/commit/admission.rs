//! Who is let into the commit queue, who waits before it, who is refused.
//!
//! A batch that is let in has a memtable with room for it, a turn that comes soon at the rate that is permitted, and the
//! room that it needs on the disk. Who lacks one of the first two waits, if he may: see [`stalled`](super::stalled).
//! What the host cannot go on without needs the last only.

use super::queue::Completions;
use super::stalled::{Claim, FEW_CELLS, Newcomer, STALL_MAX};
use super::{CommitQueue, Pending};
use crate::Error;
use crate::disk::Need;
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
    pub fn room_for_writes(&self) -> u64 {
        let waiting_bytes = {
            let queue = self.shared.commit_queue.lock();
            if !queue.stalled.is_empty() {
                return 0;
            }
            queue.waiting_bytes() as u64
        };
        let view = self.shared.view.load();
        let by_queue = self.queue_bytes_max().saturating_sub(waiting_bytes);
        let by_memory = self.shared.room_in_memtables(&view);
        let by_rate = self.shared.borne_rate(&view).map_or(u64::MAX, |rate| {
            let left = WAIT_MAX.saturating_sub(self.shared.pacer.wait(self.now()));
            bytes_at(rate, left).saturating_sub(waiting_bytes)
        });
        by_queue.min(by_memory).min(by_rate)
    }

    /// Takes in a batch that waits for no room.
    pub(super) fn enqueue(&self, newcomer: Newcomer) -> Result<Arc<Pending>, Refused> {
        let mut queue = self.shared.commit_queue.lock();
        match self.admit_in_turn(&mut queue, &newcomer) {
            Ok(target) => Ok(queue.push(newcomer, target)),
            Err(denied) => Err(self.refused(queue, denied, newcomer)),
        }
    }

    /// As [`Engine::enqueue`]; `None`: it waits for room.
    pub(super) fn enqueue_or_stall(&self, newcomer: Newcomer) -> Result<Option<Arc<Pending>>, Refused> {
        let mut queue = self.shared.commit_queue.lock();
        match self.admit_in_turn(&mut queue, &newcomer) {
            Ok(target) => Ok(Some(queue.push(newcomer, target))),
            Err(denied) if self.may_stall(&queue, &newcomer.record, &denied) => {
                queue.stalled.push(newcomer, self.now());
                Ok(None)
            }
            Err(denied) => Err(self.refused(queue, denied, newcomer)),
        }
    }

    /// Lets in what waits for room, as far as there is some, and refuses what has waited for too long.
    /// Whether batches wait for the log then, and whether some still wait for room.
    pub(super) fn let_in(&self) -> (bool, bool) {
        loop {
            let mut queue = self.shared.commit_queue.lock();
            let Some((claim, since)) = queue.stalled.first() else {
                return (queue.waiting_bytes() > 0, false);
            };
            let admitted = self.admit(&mut queue, claim);
            let may_wait = matches!(admitted, Err(Denied::NoRoom | Denied::NoTurn));
            if may_wait && self.now().saturating_since(since) < STALL_MAX {
                return (queue.waiting_bytes() > 0, true);
            }
            let newcomer = queue.stalled.pop().expect("it was the first");
            match admitted {
                Ok(target) => {
                    let pending = queue.push(newcomer, target);
                    drop(queue);
                    self.insert(&pending);
                }
                Err(denied) => self.refuse(self.refused(queue, denied, newcomer)),
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
            let Some(newcomer) = self.shared.commit_queue.lock().stalled.pop() else { return };
            completions.call(|| self.refuse(Refused { error: error.clone(), newcomer }));
        }
    }

    pub(super) fn refuse(&self, Refused { error, newcomer }: Refused) {
        self.shared.counters.refused(&error);
        (newcomer.completion.expect("whoever blocks is told otherwise"))(Err(error));
    }

    /// Why a batch is refused; what it takes to tell is not done with the queue locked.
    fn refused(&self, queue: MutexGuard<'_, CommitQueue>, denied: Denied, newcomer: Newcomer) -> Refused {
        drop(queue);
        let error = match denied {
            Denied::For(error) => error,
            Denied::NoRoom | Denied::NoTurn => self.overloaded(),
        };
        Refused { error, newcomer }
    }

    pub(crate) fn overloaded(&self) -> Error {
        let pressure = self.shared.pressure_of(&self.shared.view.load());
        Error::Overloaded { retry_after: pressure.retry_after() }
    }

    /// As [`Engine::admit`], behind those that wait for room.
    fn admit_in_turn(
        &self,
        queue: &mut CommitQueue,
        newcomer: &Newcomer,
    ) -> Result<Arc<LoggedMemtable>, Denied> {
        if !queue.stalled.is_empty() && !newcomer.precedes {
            return Err(Denied::NoRoom);
        }
        self.admit(queue, newcomer.claim())
    }

    /// The memtable that takes a batch, if it may come at all.
    fn admit(&self, queue: &mut CommitQueue, claim: Claim) -> Result<Arc<LoggedMemtable>, Denied> {
        let Claim { bytes, need, precedes } = claim;
        self.check_poison().map_err(Denied::For)?;
        let full = || Denied::For(Error::Full { path: self.shared.paths.root().to_owned() });
        if need == Need::Room && self.shared.disk.is_full() {
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
        if !precedes {
            if (is_full && !rotates) || !self.shared.has_room_for(&view, bytes) {
                return Err(Denied::NoRoom);
            }
            if self.waits_too_long(queue, &view) {
                return Err(Denied::NoTurn);
            }
        }
        // Last: what is admitted counts.
        if !self.shared.disk.admit(need, bytes) {
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
        let Some(rate) = self.shared.borne_rate(view) else { return false };
        let unpaid = self.shared.pacer.wait(self.now());
        unpaid + time_at(rate, waiting_bytes) > WAIT_MAX
    }

    /// Whether a write that is not let in may wait for that: there are few, or the flush will surely be done soon.
    fn may_stall(&self, queue: &CommitQueue, record: &Record, denied: &Denied) -> bool {
        if matches!(denied, Denied::For(_)) || queue.held_bytes() as u64 > self.queue_bytes_max() {
            return false;
        }
        if queue.stalled.cells() + record.cells() <= FEW_CELLS {
            return true;
        }
        let is_soon = || {
            let pressure = self.shared.pressure_of(&self.shared.view.load());
            pressure.wait_for_room(queue.stalled.bytes() as u64) <= WAIT_MAX
        };
        matches!(denied, Denied::NoRoom) && self.shared.background.flush.is_measured() && is_soon()
    }

    fn queue_bytes_max(&self) -> u64 {
        QUEUE_BYTES_MAX.min(self.shared.options.memory_bytes / QUEUE_SHARE)
    }
}

/// Why a batch is not let in.
enum Denied {
    /// The memtables are full.
    NoRoom,
    /// Too much is before it.
    NoTurn,
    For(Error),
}

/// A batch that was not let in.
pub(super) struct Refused {
    pub(super) error: Error,
    pub(super) newcomer: Newcomer,
}
