//! The state of the running jobs.

use crate::compaction::{FlushJob, Job, PlanId, RunningPlans};
use crate::damaged::DamagedTables;
use crate::heal::job::HealJob;
use crate::scrub::round::Scrub;
use crate::view::{LoggedMemtable, MinVersions};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stdx::Instant;

/// Result of one step of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There was nothing to do.
    Idle,
    /// The job advanced, and there may be more.
    Worked,
}

/// The running jobs.
#[derive(Default)]
pub(crate) struct Jobs {
    pub(super) flush: Mutex<Option<Flush>>,
    compactions: Mutex<Vec<CompactionSlot>>,
    pub(crate) busy: Mutex<RunningPlans>,
    pub(crate) damaged: DamagedTables,
    pub(crate) healing: Mutex<Option<HealJob>>,
    pub(crate) scrub: Scrub,
    /// While the disk is full, deletes are not flushed before this time.
    pub(super) deletes_flushed_next: Mutex<Instant>,
    /// For each running compaction, the least versions of the cells that became part of tables
    /// since it began: of all flushes, and of ingested tables in its key range. Lock order: `busy`,
    /// then `added_since`.
    pub(crate) added_since: Mutex<BTreeMap<PlanId, MinVersions>>,
    /// Names of the open ingests.
    pub(crate) open_ingests: Mutex<BTreeSet<Bytes>>,
}

/// Locked during a step: threads that step the same slot alternate.
pub(super) type CompactionSlot = Arc<Mutex<Option<Compaction>>>;

impl Jobs {
    pub(super) fn slot(&self, slot: usize) -> CompactionSlot {
        let mut slots = self.compactions.lock();
        if slots.len() <= slot {
            slots.resize_with(slot + 1, CompactionSlot::default);
        }
        Arc::clone(&slots[slot])
    }
}

/// The flush of a sealed memtable.
pub(super) struct Flush {
    pub(super) job: FlushJob,
    pub(super) source: Arc<LoggedMemtable>,
    pub(super) began: Instant,
}

/// A compaction with the plan that keeps its tables busy.
pub(super) struct Compaction {
    pub(super) job: Job,
    pub(super) plan: PlanId,
}
