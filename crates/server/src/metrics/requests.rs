//! Metrics of requests, and of the resources that bound them.

use super::exposition::{Exposition, SECONDS};
use super::recorder::{CLASSES, QUORUM_KINDS, STATUSES};
use super::source::MetricsSource;
use crate::counters::{CloseReason, Refusal};
use api::RequestKind;
use limits::MemoryCategory;
use stdx::histogram::{Histogram, HistogramSnapshot};

/// The kinds with latencies: those that are one command of the coordinator.
const TIMED: [RequestKind; 7] = [
    RequestKind::Get,
    RequestKind::Head,
    RequestKind::Put,
    RequestKind::Delete,
    RequestKind::Range,
    RequestKind::RangePage,
    RequestKind::BatchEntry,
];

pub(super) fn write(out: &mut Exposition, source: &MetricsSource<'_>) {
    answers(out, source);
    latencies(out, source);
    slow(out, source);
    outcomes(out, source);
    connections(out, source);
    memory(out, source);
    read_pool(out, source);
}

fn answers(out: &mut Exposition, source: &MetricsSource<'_>) {
    let mut family = out.counter("veche_requests_total", "Requests answered, by operation and status.");
    for kind in RequestKind::ALL {
        for (outcome_index, &status) in STATUSES.iter().enumerate() {
            let count = source.metrics.threads.iter().map(|thread| thread.answers(kind, outcome_index)).sum();
            if count > 0 || is_usual(kind, status) {
                let status = if status == 0 { "other".to_owned() } else { status.to_string() };
                family.count(&[("operation", kind.name()), ("status", &status)], count);
            }
        }
    }
}

/// Whether the status is common for this kind. Its sample exists from the start, so that the first
/// response shows as an increase.
fn is_usual(kind: RequestKind, status: u16) -> bool {
    match kind {
        RequestKind::Get | RequestKind::Head => matches!(status, 200 | 404 | 503 | 504),
        RequestKind::Put | RequestKind::BatchEntry => matches!(status, 201 | 503 | 504),
        RequestKind::Delete => matches!(status, 202 | 503 | 504),
        RequestKind::Range | RequestKind::Batch | RequestKind::Status | RequestKind::Metrics => status == 200,
        RequestKind::Other => status == 400,
        RequestKind::Checkpoint
        | RequestKind::Layout
        | RequestKind::Repair
        | RequestKind::Slow
        | RequestKind::Profile
        | RequestKind::Ready
        | RequestKind::Root
        | RequestKind::RangePage => false,
    }
}

/// Whether the status class is common for this kind, so that its latency samples exist from the
/// start.
fn is_usual_class(kind: RequestKind, class: &str) -> bool {
    class == "2xx" || (class == "4xx" && matches!(kind, RequestKind::Get | RequestKind::Head))
}

fn latencies(out: &mut Exposition, source: &MetricsSource<'_>) {
    let sum = |of: &dyn Fn(&super::RequestMetrics) -> &Histogram| {
        let mut sum = HistogramSnapshot::default();
        source.metrics.threads.iter().for_each(|thread| of(thread).add_to(&mut sum));
        sum
    };
    let help = "Time from the end of a request to its answer, by operation and status; answers from memory count as 0.";
    let mut family = out.histogram("veche_request_seconds", help);
    for kind in TIMED {
        for (outcome_index, class) in CLASSES.into_iter().enumerate() {
            let took = sum(&|thread| thread.latencies(kind, outcome_index));
            if took.count() > 0 || is_usual_class(kind, class) {
                family.distribution(&[("operation", kind.name()), ("status", class)], &took, &SECONDS);
            }
        }
    }
    let help = "Time until enough replicas had answered, where a key has more than one.";
    let mut family = out.histogram("veche_quorum_wait_seconds", help);
    for (outcome_index, name) in QUORUM_KINDS.into_iter().enumerate() {
        let waits = sum(&|thread| &thread.quorum_waits[outcome_index]);
        family.distribution(&[("operation", name)], &waits, &SECONDS);
    }
}

fn slow(out: &mut Exposition, source: &MetricsSource<'_>) {
    let help = "Requests that took as long as --slow-request or longer, by operation.";
    let mut family = out.counter("veche_slow_requests_total", help);
    for kind in TIMED {
        family.count(&[("operation", kind.name())], source.process.stages.count(kind));
    }
}

fn outcomes(out: &mut Exposition, source: &MetricsSource<'_>) {
    let (counters, refusals) = (&source.process.counters, &source.process.refusals);
    let mut refused = out.counter("veche_refused_total", "Requests refused, by the exhausted resource.");
    for why in Refusal::ALL {
        refused.count(&[("reason", why.name())], refusals.refused(why));
    }
    out.counter(
        "veche_deadlines_passed_total",
        "Operations that reached their deadline before their answers.",
    )
    .count(&[], counters.deadlines_passed.get());
    out.counter("veche_expired_total", "Requests dropped unserved because their deadline had passed.")
        .count(&[], counters.expired.get());
    out.counter("veche_not_enough_replicas_total", "Operations for which too few replicas answered.")
        .count(&[], counters.not_enough_replicas.get());
    out.counter("veche_writes_superseded_total", "Writes that found a greater version already there.")
        .count(&[], counters.superseded.get());
    out.counter("veche_reads_hedged_total", "Reads that asked one more replica because an answer was late.")
        .count(&[], counters.hedged.get());
    let help = "Reads whose answers differed, by when the older replicas were given the newest.";
    out.counter("veche_read_repairs_total", help)
        .count(&[("when", "before_reply")], counters.repaired_before_reply.get())
        .count(&[("when", "after_reply")], counters.repaired_after_reply.get());
    out.counter("veche_ranges_broken_total", "Ranges broken off after their first page had left.")
        .count(&[], source.process.ranges.broken_count());
}

fn connections(out: &mut Exposition, source: &MetricsSource<'_>) {
    let MetricsSource { process, .. } = source;
    let max = process.accept_state.limiter.max() as u64;
    out.gauge("veche_connections", "Connections of clients that are open.")
        .count(&[], process.gauges.connections());
    out.gauge("veche_connections_max", "Connections of clients that may be open.").count(&[], max);
    out.counter("veche_connections_accepted_total", "Connections of clients and peers taken in.")
        .count(&[], process.accept_state.accepted.get());
    out.counter("veche_accept_failures_total", "Failed attempts to accept a connection.")
        .count(&[], process.accept_state.failures.count());
    let mut cut =
        out.counter("veche_connections_cut_total", "Connections of clients ended by the node, by reason.");
    for why in CloseReason::ALL {
        cut.count(&[("reason", why.name())], process.counters.cut(why));
    }
}

fn memory(out: &mut Exposition, source: &MetricsSource<'_>) {
    let MetricsSource { process, local, .. } = source;
    let operations_max =
        u64::from(cluster::CoordinatorLimits::default().operations_max) * process.config.threads as u64;
    out.gauge("veche_operations", "Commands in flight.").count(&[], process.gauges.operations());
    out.gauge("veche_operations_max", "Limit of commands in flight.").count(&[], operations_max);
    out.gauge("veche_body_bytes", "Bytes of request bodies held outside of read buffers.").count(
        &[],
        process.memory.reserved_bytes(MemoryCategory::Bodies)
            + process.memory.reserved_bytes(MemoryCategory::Writes),
    );
    out.gauge("veche_body_bytes_max", "Bytes of request bodies that may be held.")
        .count(&[], process.memory.category_max(MemoryCategory::Bodies));
    out.gauge("veche_ranges_open", "Ranges that are being sent.").count(&[], process.ranges.count() as u64);
    let snapshots = local.map_or(0, |local| local.store.snapshot_count() as u64);
    out.gauge(
        "veche_range_snapshots",
        "Snapshots kept for pages to come, for ranges of this node and of others.",
    )
    .count(&[], snapshots);
    let dropped = local.map_or(0, |local| local.store.snapshots_dropped_for_memory());
    out.counter(
        "veche_range_snapshots_dropped_total",
        "Snapshots that were dropped for their memory before their age; their ranges continue on newer data.",
    )
    .count(&[], dropped);
}

fn read_pool(out: &mut Exposition, source: &MetricsSource<'_>) {
    let waiting = source.local.map(|local| local.reads.waiting()).unwrap_or_default();
    out.gauge("veche_read_pool_waiting", "Reads that wait for a thread that may wait for the disk.")
        .count(&[("kind", "point")], waiting.points as u64)
        .count(&[("kind", "page")], waiting.pages as u64);
    let waits = &source.metrics.read_waits;
    out.histogram(
        "veche_read_pool_wait_seconds",
        "How long reads waited for a thread that may wait for the disk.",
    )
    .distribution(&[("kind", "point")], &waits.points.snapshot(), &SECONDS)
    .distribution(&[("kind", "page")], &waits.pages.snapshot(), &SECONDS);
}
