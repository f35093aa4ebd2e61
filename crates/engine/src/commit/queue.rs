//! Batches on their way through the commit, and where they wait.

use super::stall_queue::{StallQueue, WriteRequest};
use super::{CommitOutcome, CommitTimes, Completion};
use crate::view::{InsertOutcome, LoggedMemtable};
use crate::wal::record::Record;
use crate::{Error, Sequence};
use parking_lot::Mutex;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use stdx::Version;

/// A group takes no further batch once it has so many bytes.
const GROUP_BYTES_MAX: usize = 8 << 20;

/// A batch on its way through the commit.
pub(crate) struct PendingBatch {
    pub(super) record: Record,
    pub(super) target: Arc<LoggedMemtable>,
    pub(super) first: Sequence,
    /// Set when all cells are in the memtable.
    inserted: OnceLock<InsertOutcome>,
    /// Set when the group of the batch is done.
    pub(super) outcome: OnceLock<Result<CommitTimes, Error>>,
    /// Whom to tell; a blocking writer looks at `outcome` instead.
    completion: Mutex<Option<Completion>>,
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

    /// Waits for the thread that is inserting the cells: it began before the group was appended.
    pub(super) fn wait_inserted(&self) -> &InsertOutcome {
        loop {
            if let Some(inserted) = self.inserted.get() {
                return inserted;
            }
            std::thread::yield_now();
        }
    }

    pub(super) fn result(&self) -> Option<Result<CommitOutcome, Error>> {
        let outcome = self.outcome.get()?;
        let committed = |times| {
            let InsertOutcome { superseded, possibly_superseded } = self.wait_inserted().clone();
            CommitOutcome { superseded, possibly_superseded, times }
        };
        Some(outcome.clone().map(committed))
    }

    fn set_outcome(&self, outcome: Result<CommitTimes, Error>) {
        let newly = self.outcome.set(outcome);
        assert!(newly.is_ok(), "a batch is committed once");
    }

    fn complete(&self) {
        let completion = self.completion.lock().take();
        if let Some(completion) = completion {
            completion(self.result().expect("the outcome was set"));
        }
    }
}

/// Sets the outcome of every batch of a group, then calls their completions.
///
/// A blocked writer looks at its own outcome alone, so every outcome is set before the first
/// completion runs: a completion that panics can then leave no writer without one.
pub(super) fn finish(
    group: &[Arc<PendingBatch>],
    outcome: &Result<CommitTimes, Error>,
    calls: &mut Completions,
) {
    for pending in group {
        pending.set_outcome(outcome.clone());
    }
    for pending in group {
        calls.call(|| pending.complete());
    }
}

/// Calls completions one after the other, of which each is called even if another one panics.
#[derive(Default)]
#[must_use = "a panic is resumed by `end`"]
pub(super) struct Completions {
    /// The first panic.
    panic: Option<Box<dyn Any + Send>>,
}

impl Completions {
    pub(super) fn call(&mut self, completion: impl FnOnce()) {
        // Nothing of the engine is shared with a completion but what it was passed by value.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(completion)) {
            self.panic.get_or_insert(panic);
        }
    }

    /// Resumes the first panic, if there was one.
    pub(super) fn end(self) {
        if let Some(panic) = self.panic {
            resume_unwind(panic);
        }
    }
}

/// Batches that have their sequences and wait for the log.
#[derive(Default)]
pub(crate) struct CommitQueue {
    waiting: Vec<Arc<PendingBatch>>,
    waiting_bytes: usize,
    /// Those that have no sequence yet.
    pub(super) stalled: StallQueue,
    /// How long whoever commits pauses before the next group.
    paused: Duration,
    /// The greatest sequence given out.
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

    /// The bytes of all that waits, for the log or for room.
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
            outcome: OnceLock::new(),
            completion: Mutex::new(completion),
        });
        self.last = pending.last();
        pending.target.extend_to(self.last);
        self.waiting_bytes += pending.record.bytes().len();
        self.waiting.push(Arc::clone(&pending));
        pending
    }

    /// Whoever commits pauses for so long before it takes the next group.
    pub(super) fn pauses(&mut self, pause: Duration) {
        self.paused += pause;
    }

    /// The next group, of at most `bytes_max` but with one batch at least, and for how long it was paused before.
    pub(super) fn take_group(&mut self, bytes_max: usize) -> (Vec<Arc<PendingBatch>>, Duration) {
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
        (group, std::mem::take(&mut self.paused))
    }

    pub(super) fn take_all(&mut self) -> Vec<Arc<PendingBatch>> {
        self.waiting_bytes = 0;
        std::mem::take(&mut self.waiting)
    }
}
