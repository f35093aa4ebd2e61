//! Counters of the running engine. They are relaxed: values read together may be from different
//! moments.
//!
//! No counter is updated by reads: those are counted per thread, beside the cache.

use super::{IngestStats, JobStats, StallStats, WalStats};
use crate::Error;
use crate::commit::queue::GroupSize;
use crate::compaction::Plan;
use crate::manifest::VersionEdit;
use crate::wal::WalStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::histogram::Histogram;

#[derive(Debug, Default)]
pub(crate) struct EngineCounters {
    batches: AtomicU64,
    data_bytes: AtomicU64,
    /// Recorded by the thread that holds the log, as is `group_bytes`.
    group_cells: Histogram,
    group_bytes: Histogram,
    flushes: AtomicU64,
    flushed_bytes: AtomicU64,
    compactions: AtomicU64,
    moves: AtomicU64,
    merged_bytes: AtomicU64,
    compacted_bytes: AtomicU64,
    tables_healed: AtomicU64,
    ingested_tables: AtomicU64,
    ingested_level0_tables: AtomicU64,
    ingested_cells: AtomicU64,
    ingested_data_bytes: AtomicU64,
    ingested_file_bytes: AtomicU64,
    pauses: AtomicU64,
    paused_nanos: AtomicU64,
    refused_overloaded: AtomicU64,
    refused_full: AtomicU64,
}

impl EngineCounters {
    /// Counts a committed group. To be called by the thread that holds the log.
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

    /// Counts the bytes of a compaction that has written its outputs.
    pub(crate) fn record_merge(&self, plan: &Plan, edit: &VersionEdit) {
        if !plan.is_move {
            add(&self.merged_bytes, plan.bytes());
            add(&self.compacted_bytes, added_bytes(edit));
        }
    }

    /// Counts a compaction whose outputs became live.
    pub(crate) fn record_compaction(&self, plan: &Plan) {
        add(&self.compactions, 1);
        add(&self.moves, u64::from(plan.is_move));
    }

    /// Counts the tables of an ingest that became live.
    pub(crate) fn record_ingest(&self, edit: &VersionEdit) {
        for (level, meta) in &edit.added {
            add(&self.ingested_tables, 1);
            add(&self.ingested_level0_tables, u64::from(*level == 0));
            add(&self.ingested_cells, meta.cells);
            add(&self.ingested_data_bytes, meta.data_bytes);
        }
        add(&self.ingested_file_bytes, added_bytes(edit));
    }

    /// Counts a replaced damaged table.
    pub(crate) fn record_healed_table(&self) {
        add(&self.tables_healed, 1);
    }

    /// Counts a pause of writes.
    pub(crate) fn record_pause(&self, pause: Duration) {
        add(&self.pauses, 1);
        add(&self.paused_nanos, pause.as_nanos() as u64);
    }

    /// Counts a batch that was not admitted.
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

    pub(super) fn ingest(&self) -> IngestStats {
        IngestStats {
            tables: get(&self.ingested_tables),
            level0_tables: get(&self.ingested_level0_tables),
            cells: get(&self.ingested_cells),
            data_bytes: get(&self.ingested_data_bytes),
            file_bytes: get(&self.ingested_file_bytes),
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
