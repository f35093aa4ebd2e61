//! Metrics of the local store.

use super::exposition::{BYTES, COUNTS, Exposition, SECONDS};
use super::source::MetricsSource;
use engine::{LevelStats, Stats};
use limits::MemoryCategory;

pub(super) fn write(out: &mut Exposition, source: &MetricsSource<'_>) {
    let stats = &source.stats;
    memory(out, source, stats);
    tables(out, stats);
    horizon(out, source, stats);
    log(out, stats);
    jobs(out, stats);
    cache(out, stats);
    disk(out, source, stats);
}

fn memory(out: &mut Exposition, source: &MetricsSource<'_>, stats: &Stats) {
    out.gauge("veche_memory_budget_bytes", "Limit of the memory of all parts.")
        .count(&[], source.process.config.memory_bytes());
    let mut family = out.gauge("veche_memory_bytes", "Memory in use, by part.");
    family
        .count(&[("part", "memtables")], stats.memory.memtable_bytes)
        .count(&[("part", "snapshots")], stats.memory.pinned_memtable_bytes)
        .count(&[("part", "cache")], stats.memory.cache_bytes)
        .count(&[("part", "tables")], stats.memory.table_bytes)
        .count(&[("part", "commit_queue")], stats.memory.queue_bytes);
    for part in MemoryCategory::ALL {
        family.count(&[("part", part.name())], source.process.memory.reserved_bytes(part));
    }
    out.gauge("veche_memtables", "Memtables, the one that is written included.")
        .count(&[], stats.memtables as u64);
}

fn tables(out: &mut Exposition, stats: &Stats) {
    levels(out, stats, "veche_level_tables", "Tables, by level; 0 is the newest.", |level| {
        level.tables as u64
    });
    levels(out, stats, "veche_level_bytes", "Size of the tables of a level on disk.", |level| {
        level.file_bytes
    });
    let help = "Keys and values in the tables of a level, before compression.";
    levels(out, stats, "veche_level_data_bytes", help, |level| level.data_bytes);
    levels(out, stats, "veche_level_cells", "Cells in the tables of a level.", |level| level.cells);
    let help = "Tombstones among the cells of a level.";
    levels(out, stats, "veche_level_tombstones", help, |level| level.tombstones);
    let help = "Size of all tables for each byte of them that is surely live, at most; 0 without tables.";
    out.gauge("veche_space_amplification_ratio", help)
        .value(&[], stats.space_amplification().unwrap_or_default());
}

fn horizon(out: &mut Exposition, source: &MetricsSource<'_>, stats: &Stats) {
    let lag = source.now.wall.saturating_since(stats.horizon);
    let help = "How far the time by which compaction deletes dead cells is behind the wall clock.";
    out.gauge("veche_horizon_lag_seconds", help).value(&[], lag.as_secs_f64());
}

/// Adds a sample for each level.
fn levels(
    out: &mut Exposition,
    stats: &Stats,
    name: &'static str,
    help: &str,
    of: impl Fn(&LevelStats) -> u64,
) {
    let mut family = out.gauge(name, help);
    for (number, level) in stats.levels.iter().enumerate() {
        family.count(&[("level", &number.to_string())], of(level));
    }
}

fn log(out: &mut Exposition, stats: &Stats) {
    let wal = &stats.wal;
    let help = "How long the log took to be durable, by group of writes; with --durability os, hardly ever.";
    out.histogram("veche_wal_sync_seconds", help).distribution(&[], &wal.sync_nanos, &SECONDS);
    out.histogram("veche_wal_group_cells", "Writes that went to the log together.").distribution(
        &[],
        &wal.group_cells,
        &COUNTS,
    );
    out.histogram("veche_wal_group_bytes", "Bytes that went to the log together.").distribution(
        &[],
        &wal.group_bytes,
        &BYTES,
    );
    out.counter(
        "veche_accepted_cells_total",
        "Writes and deletes accepted, those of peers and of repair included.",
    )
    .count(&[], wal.cells);
    out.counter("veche_accepted_bytes_total", "Keys and values accepted.").count(&[], wal.data_bytes);
    out.counter("veche_wal_written_bytes_total", "Bytes written to the log.").count(&[], wal.written_bytes);
    out.gauge("veche_commit_queue_batches", "Batches of writes that wait for the log.")
        .count(&[], stats.queued_batches as u64);
}

fn jobs(out: &mut Exposition, stats: &Stats) {
    let Stats { jobs, ingest, backlog, stalls, .. } = stats;
    out.counter("veche_flushes_total", "Memtables that became tables.").count(&[], jobs.flushes);
    out.counter("veche_flushed_bytes_total", "Size of the tables that memtables became.")
        .count(&[], jobs.flushed_bytes);
    out.counter("veche_copied_cells_total", "Cells copied from other nodes by changes of the layout.")
        .count(&[], ingest.cells);
    out.counter("veche_copied_bytes_total", "Keys and values of these cells.").count(&[], ingest.data_bytes);
    out.counter("veche_copied_table_bytes_total", "Size of the tables that these cells became.")
        .count(&[], ingest.file_bytes);
    out.counter("veche_compactions_total", "Compactions that ended well, by whether they wrote anything.")
        .count(&[("kind", "merge")], jobs.compactions.saturating_sub(jobs.moves))
        .count(&[("kind", "move")], jobs.moves);
    out.counter("veche_compaction_read_bytes_total", "Size of the tables that compactions merged.")
        .count(&[], jobs.merged_bytes);
    out.counter("veche_compaction_written_bytes_total", "Size of the tables that compactions wrote.")
        .count(&[], jobs.compacted_bytes);
    let help = "Bytes written to log and tables for each byte accepted, since the start; 0 before the first.";
    out.gauge("veche_write_amplification_ratio", help)
        .value(&[], stats.write_amplification().unwrap_or_default());
    out.gauge(
        "veche_compaction_debt_bytes",
        "Bytes that compaction has to rewrite until every level is within its target size.",
    )
    .count(&[], backlog.debt_bytes);
    let help = "Bytes in memtables by their limit; near 1, writes are slowed.";
    out.gauge("veche_buffered_ratio", help).value(&[], backlog.buffered_fraction);
    let help = "Tables in level 0, against the number that starts a compaction.";
    out.gauge("veche_level0_ratio", help).value(&[], backlog.level0_fraction);
    out.counter(
        "veche_write_pauses_total",
        "Times that writes were held up so that flush and compaction keep up.",
    )
    .count(&[], stalls.pauses);
    out.counter("veche_write_pause_seconds_total", "How long writes were held up so, together.")
        .value(&[], stalls.paused_nanos as f64 / 1e9);
    out.counter(
        "veche_writes_refused_total",
        "Batches of writes that the store refused, by the exhausted resource.",
    )
    .count(&[("reason", "overloaded")], stalls.refused_overloaded)
    .count(&[("reason", "disk_full")], stalls.refused_full);
}

fn cache(out: &mut Exposition, stats: &Stats) {
    let kinds = [("data", &stats.cache.data), ("index", &stats.cache.index), ("filter", &stats.cache.filter)];
    let mut family = out.counter("veche_cache_hits_total", "Blocks that were in the cache, by kind.");
    for (kind, of) in kinds {
        family.count(&[("kind", kind)], of.hits);
    }
    let mut family = out.counter("veche_cache_misses_total", "Blocks that were not in the cache, by kind.");
    for (kind, of) in kinds {
        family.count(&[("kind", kind)], of.misses);
    }
    let mut family = out.gauge("veche_cache_bytes", "Bytes in the cache, by kind of block.");
    for (kind, of) in kinds {
        family.count(&[("kind", kind)], of.bytes);
    }
    let filters = &stats.filters;
    out.counter("veche_filter_checks_total", "Lookups of a key in a table that asked its filter.")
        .count(&[], filters.checked);
    out.counter("veche_filter_negatives_total", "Of these, those that it spared: the key is not there.")
        .count(&[], filters.negatives);
    out.counter("veche_filter_false_positives_total", "Of these, those that it let pass for nothing.")
        .count(&[], filters.false_positives);
}

fn disk(out: &mut Exposition, source: &MetricsSource<'_>, stats: &Stats) {
    let MetricsSource { process, .. } = source;
    out.counter("veche_io_reads_total", "Calls that read from files.").count(&[], stats.io.reads);
    out.counter("veche_io_read_bytes_total", "Bytes read from files.").count(&[], stats.io.read_bytes);
    let help = "Reads that would have had to wait for the disk and were left to a thread that may.";
    out.counter("veche_io_reads_would_wait_total", help).count(&[], stats.io.reads_would_wait);
    out.counter("veche_io_writes_total", "Calls that wrote to files.").count(&[], stats.io.writes);
    out.counter("veche_io_written_bytes_total", "Bytes written to files.").count(&[], stats.io.written_bytes);
    out.counter("veche_io_syncs_total", "Waits until files were durable.").count(&[], stats.io.syncs);
    let available = process.env.fs.available_bytes(&process.config.data).unwrap_or(0);
    out.gauge("veche_disk_available_bytes", "Bytes available on the file system of the data.")
        .count(&[], available);
    let help = "With less than this free, writes are slowed (soft) or values refused (reserve).";
    out.gauge("veche_disk_mark_bytes", help)
        .count(&[("mark", "soft")], stats.disk.soft_bytes)
        .count(&[("mark", "reserve")], stats.disk.reserve_bytes);
    out.gauge("veche_disk_short", "1 while writes are slowed for lack of room on the disk.")
        .count(&[], u64::from(stats.disk.space == engine::DiskSpace::Low));
    out.gauge("veche_tables_set_aside", "Tables that cannot be read back and are compacted no more.")
        .count(&[], stats.tables_quarantined);
    out.counter("veche_tables_healed_total", "Quarantined tables that were replaced by their readable part.")
        .count(&[], stats.tables_healed);
    scrub(out, stats);
    out.gauge("veche_disk_full", "1 while values are refused for lack of room on the disk.")
        .count(&[], u64::from(stats.disk.space == engine::DiskSpace::Full));
}

fn scrub(out: &mut Exposition, stats: &Stats) {
    let scrub = &stats.scrub;
    out.counter("veche_scrub_read_bytes_total", "Bytes of tables read to see whether they can be.")
        .count(&[], scrub.bytes);
    out.counter("veche_scrub_blocks_total", "Blocks that scrubbing found intact.").count(&[], scrub.blocks);
    out.counter("veche_scrub_damaged_tables_total", "Tables in which scrubbing has found damage.")
        .count(&[], scrub.tables_damaged);
    let help = "When all tables had last been scrubbed, in seconds since 1970; 0: not since the start.";
    out.gauge("veche_scrub_ended_timestamp_seconds", help).time(scrub.last_round);
}
