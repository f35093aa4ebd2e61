//! Metrics of the process and its state.

use super::exposition::Exposition;
use super::source::MetricsSource;
use crate::status;
use api::ServingState;

/// Names of the states of a node.
const STATES: [(&str, ServingState); 3] = [
    ("starting", ServingState::Starting),
    ("serving", ServingState::Serving),
    ("draining", ServingState::Draining),
];

pub(super) fn write(out: &mut Exposition, source: &MetricsSource<'_>) {
    let version = env!("CARGO_PKG_VERSION");
    out.gauge("veche_build_info", "Always 1; the release is in its label.").count(&[("version", version)], 1);
    let uptime = source.now.mono.saturating_since(source.process.started);
    out.gauge("veche_uptime_seconds", "Time since the process started.").value(&[], uptime.as_secs_f64());
    let state = source.process.serving_state.get();
    let mut states = out.gauge("veche_state", "1 for the state the node is in, 0 for the others.");
    for (name, each) in STATES {
        states.count(&[("state", name)], u64::from(each == state));
    }
    let warnings = status::warnings(source.process, &source.stats, source.now).len() as u64;
    out.gauge("veche_warnings", "Warnings in the status of the node.").count(&[], warnings);
    usage(out);
}

fn usage(out: &mut Exposition) {
    let usage = env::os_process::usage();
    out.counter(
        "veche_process_cpu_seconds_total",
        "Processor time used by the process, system time included.",
    )
    .value(&[], usage.cpu.as_secs_f64());
    out.gauge("veche_process_resident_bytes", "Memory that the process has in use.")
        .count(&[], usage.resident_bytes);
    out.gauge("veche_process_threads", "Threads of the process.").count(&[], usage.threads);
    out.gauge("veche_process_open_files", "Files and sockets that the process has open.")
        .count(&[], usage.open_files);
    out.gauge("veche_process_open_files_max", "Files and sockets that the process may have open.")
        .count(&[], usage.open_files_max);
}
