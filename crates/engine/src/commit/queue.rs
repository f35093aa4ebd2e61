//! The commit queue and its batches.

use super::batch_outcome::{BatchOutcome, Completions, Follower};
use super::outcome::CommitOutcome;
use super::stall_queue::{StallQueue, WriteRequest};
use super::times::CommitTimes;
use crate::view::{InsertOutcome, LoggedMemtable};
use crate::wal::record::Record;
use crate::{Error, Sequence};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use stdx::Version;

/// Size from which a group takes no further batch, in bytes.
const GROUP_BYTES_MAX: usize = 8 << 20;

/// A batch that has its sequences and is not yet committed.
pub(crate) struct PendingBatch {
    pub(super) record: Record,
    pub(super) target: Arc<LoggedMemtable>,
    pub(super) first: Sequence,
    /// Set when all cells are in the memtable.
    inserted: OnceLock<InsertOutcome>,
    /// Set when the group of the batch has succeeded or failed.
    pub(super) outcome: BatchOutcome,
}

impl PendingBatch {
    pub(super) fn last(&self) -> Sequence {
        self.first.plus(self.record.cells() as u64 - 1)
    }

    /// Inserts all cells. Older memtables and tables hold versions up to `older_max`.
    pub(super) fn insert(&self, older_max: Version) {
        let newly = self.inserted.set(self.target.insert_new(self.first, &self.record, older_max));
        assert!(newly.is_ok(), "a batch is inserted once");
    }

    /// Waits for the thread that inserts the cells. It began before the group was appended.
    pub(super) fn wait_inserted(&self) -> &InsertOutcome {
        loop {
            if let Some(inserted) = self.inserted.get() {
                return inserted;
            }
            std::thread::yield_now();
        }
    }

    pub(super) fn result(&self) -> Option<Result<CommitOutcome, Error>> {
        self.outcome.get().map(|outcome| self.result_of(outcome))
    }

    fn result_of(&self, outcome: &Result<CommitTimes, Error>) -> Result<CommitOutcome, Error> {
        let committed = |times| {
            let InsertOutcome { superseded, possibly_superseded } = self.wait_inserted().clone();
            CommitOutcome { superseded, possibly_superseded, times }
        };
        outcome.clone().map(committed)
    }

    /// Calls `follower` with the outcome of the batch: at once if it is known, otherwise when the
    /// batch is completed.
    pub(super) fn follow(&self, follower: Follower) {
        self.outcome.follow(follower);
    }
}

/// Sets the outcome of every batch of a group, then calls their completions.
///
/// A blocked writer reads only its own outcome. So every outcome is set before the first completion
/// runs: a completion that panics leaves no writer without one.
pub(super) fn finish(
    group: &[Arc<PendingBatch>],
    outcome: &Result<CommitTimes, Error>,
    calls: &mut Completions,
) {
    for pending in group {
        pending.outcome.set(outcome.clone());
    }
    for pending in group {
        pending.outcome.complete(|outcome| pending.result_of(outcome), calls);
    }
}

/// Batches that have their sequences and wait for the log.
#[derive(Default)]
pub(crate) struct CommitQueue {
    waiting: Vec<Arc<PendingBatch>>,
    waiting_bytes: usize,
    /// The last group taken, until it is completed.
    committing: Weak<Vec<Arc<PendingBatch>>>,
    /// Batches without sequences.
    pub(super) stalled: StallQueue,
    /// Total pause since the last group.
    paused: Duration,
    /// The greatest sequence assigned.
    last: Sequence,
}

impl CommitQueue {
    pub(crate) fn new(last: Sequence) -> Self {
        Self { last, ..Self::default() }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Bytes of all batches that wait for the log or are stalled.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.waiting_bytes + self.stalled.bytes()
    }

    pub(super) fn push(&mut self, request: WriteRequest, target: Arc<LoggedMemtable>) -> Arc<PendingBatch> {
        let WriteRequest { record, completion, .. } = request;
        let first = self.last.plus(1);
        let pending = Arc::new(PendingBatch {
            record,
            target,
            first,
            inserted: OnceLock::new(),
            outcome: BatchOutcome::awaited_by(completion),
        });
        self.last = pending.last();
        pending.target.extend_to(self.last);
        self.waiting_bytes += pending.record.bytes().len();
        self.waiting.push(Arc::clone(&pending));
        pending
    }

    /// Adds to the pause before the next group.
    pub(super) fn pauses(&mut self, pause: Duration) {
        self.paused += pause;
    }

    /// The next group, of at most `bytes_max` but at least one batch, and the pause before it.
    pub(super) fn take_group(&mut self, bytes_max: usize) -> (Arc<Vec<Arc<PendingBatch>>>, Duration) {
        let (mut bytes, bytes_max) = (0, bytes_max.min(GROUP_BYTES_MAX));
        let fits = |pending: &Arc<PendingBatch>| {
            let takes = bytes == 0 || bytes < bytes_max;
            bytes += pending.record.bytes().len();
            takes
        };
        let count = self.waiting.iter().map(fits).take_while(|&takes| takes).count();
        let group = match self.waiting.len() {
            len if len == count => std::mem::take(&mut self.waiting),
            _ => self.waiting.drain(..count).collect(),
        };
        self.waiting_bytes -= group.iter().map(|pending| pending.record.bytes().len()).sum::<usize>();
        let group = Arc::new(group);
        self.committing = Arc::downgrade(&group);
        (group, std::mem::take(&mut self.paused))
    }

    /// The batch with this sequence, if it waits for the log or is being committed. The group that
    /// is being committed is returned too: drop it without the lock, since that may free it.
    #[expect(clippy::type_complexity, reason = "one caller takes it apart at once")]
    pub(super) fn batch_of(
        &self,
        sequence: Sequence,
    ) -> (Option<Arc<PendingBatch>>, Option<Arc<Vec<Arc<PendingBatch>>>>) {
        let find = |batches: &[Arc<PendingBatch>]| {
            let at = batches.partition_point(|pending| pending.last() < sequence);
            batches.get(at).filter(|pending| pending.first <= sequence).cloned()
        };
        let committing = self.committing.upgrade();
        let batch = committing.as_ref().and_then(|group| find(group)).or_else(|| find(&self.waiting));
        (batch, committing)
    }

    pub(super) fn take_all(&mut self) -> Vec<Arc<PendingBatch>> {
        self.waiting_bytes = 0;
        std::mem::take(&mut self.waiting)
    }
}

/// Size of a group.
pub(crate) struct GroupSize {
    pub(crate) batches: u64,
    pub(crate) cells: u64,
    pub(crate) data_bytes: u64,
    pub(crate) bytes: u64,
}

pub(super) fn group_size(group: &[Arc<PendingBatch>]) -> GroupSize {
    GroupSize {
        batches: group.len() as u64,
        cells: group.iter().map(|pending| pending.record.cells() as u64).sum(),
        data_bytes: group.iter().map(|pending| pending.record.data_bytes()).sum(),
        bytes: group.iter().map(|pending| pending.record.bytes().len() as u64).sum(),
    }
}
