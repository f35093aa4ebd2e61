//! Counts kept while running. Relaxed: a reader may see them a little apart.
//!
//! None is on the way of a read: those are kept by thread, beside the cache.

use super::{JobStats, StallStats, WalStats};
use crate::Error;
use crate::commit::GroupSize;
use crate::compaction::Plan;
use crate::manifest::VersionEdit;
use crate::wal::WalStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::histogram::Histogram;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    batches: AtomicU64,
    data_bytes: AtomicU64,
    /// Recorded by whoever has the log, as `group_bytes` is.
    group_cells: Histogram,
    group_bytes: Histogram,
    flushes: AtomicU64,
    flushed_bytes: AtomicU64,
    compactions: AtomicU64,
    moves: AtomicU64,
    merged_bytes: AtomicU64,
    compacted_bytes: AtomicU64,
    tables_healed: AtomicU64,
    pauses: AtomicU64,
    paused_nanos: AtomicU64,
    refused_overloaded: AtomicU64,
    refused_full: AtomicU64,
}

impl Counters {
    /// A group was committed. To be called by whoever has the log.
    pub(crate) fn record_group(&self, size: &GroupSize) {
        add(&self.batches, size.batches);
        add(&self.data_bytes, size.data_bytes);
        self.group_cells.record_alone(size.cells);
        self.group_bytes.record_alone(size.bytes);
    }

    pub(crate) fn record_flush(&self, edit: &VersionEdit) {
        add(&self.flushes, 1);
        add(&self.flushed_bytes, added_bytes(edit));
    }

    /// A compaction has written what `edit` would make live.
    pub(crate) fn record_merge(&self, plan: &Plan, edit: &VersionEdit) {
        if !plan.moves {
            add(&self.merged_bytes, plan.bytes());
            add(&self.compacted_bytes, added_bytes(edit));
        }
    }

    /// What a compaction wrote is live.
    pub(crate) fn record_compaction(&self, plan: &Plan) {
        add(&self.compactions, 1);
        add(&self.moves, u64::from(plan.moves));
    }

    /// A damaged table was replaced.
    pub(crate) fn record_healed_table(&self) {
        add(&self.tables_healed, 1);
    }

    /// Writes were made to wait.
    pub(crate) fn record_pause(&self, pause: Duration) {
        add(&self.pauses, 1);
        add(&self.paused_nanos, pause.as_nanos() as u64);
    }

    /// A batch was not let in.
    pub(crate) fn record_refusal(&self, error: &Error) {
        match error {
            Error::Overloaded { .. } => add(&self.refused_overloaded, 1),
            Error::Full { .. } => add(&self.refused_full, 1),
            _ => {}
        }
    }

    pub(super) fn wal(&self, status: &WalStatus) -> WalStats {
        let (group_cells, group_bytes) = (self.group_cells.snapshot(), self.group_bytes.snapshot());
        WalStats {
            groups: group_cells.count(),
            batches: get(&self.batches),
            cells: group_cells.sum(),
            data_bytes: get(&self.data_bytes),
            bytes: group_bytes.sum(),
            written_bytes: status.written_bytes(),
            group_cells,
            group_bytes,
            sync_nanos: status.sync_nanos(),
        }
    }

    pub(super) fn jobs(&self) -> JobStats {
        JobStats {
            flushes: get(&self.flushes),
            flushed_bytes: get(&self.flushed_bytes),
            compactions: get(&self.compactions),
            moves: get(&self.moves),
            merged_bytes: get(&self.merged_bytes),
            compacted_bytes: get(&self.compacted_bytes),
        }
    }

    pub(super) fn tables_healed(&self) -> u64 {
        get(&self.tables_healed)
    }

    pub(super) fn stalls(&self) -> StallStats {
        StallStats {
            pauses: get(&self.pauses),
            paused_nanos: get(&self.paused_nanos),
            refused_overloaded: get(&self.refused_overloaded),
            refused_full: get(&self.refused_full),
        }
    }
}

fn added_bytes(edit: &VersionEdit) -> u64 {
    edit.added.iter().map(|(_, meta)| meta.file_bytes).sum()
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
