//! Aggregation of samples into a capture.
//!
//! Stacks are counted by their addresses while the profile runs, and resolved to names at its end.
//! Resolving an address costs far more than counting it, and is done once per address.

use crate::capture::{Capture, CaptureBuilder, CaptureKind, OTHER, Weight};
use crate::queue::SampleHeader;
use crate::symbols::Symbols;
use crate::threads::ThreadNames;
use crate::weight_table::{PROFILE_BOUNDS, WeightTable};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Length of a time slice: a row of the heat map is one second of twenty cells.
const SLICE: Duration = Duration::from_millis(50);
/// Value in the position of a thread for stacks beyond the bounds.
const OTHER_THREADS: u64 = u64::MAX;
/// Frame below which every Rust thread has the same frames. They are removed.
const THREAD_ENTRY: &str = "std::sys::backtrace::__rust_begin_short_backtrace";

/// Current time of the monotonic clock, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(Duration::try_from(now).unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

/// Counts samples by their stack.
pub(crate) struct SampleAggregator {
    kind: CaptureKind,
    started_ns: u64,
    started_unix_ms: u64,
    threads: ThreadNames,
    /// Key: index of the thread's name, then the addresses from the leaf to the root.
    stacks: WeightTable<Box<[u64]>>,
    lost: u64,
    notes: Vec<String>,
}

impl SampleAggregator {
    /// Creates an aggregator that starts now.
    pub(crate) fn new(kind: CaptureKind) -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            kind,
            started_ns: now_ns(),
            started_unix_ms: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX),
            threads: ThreadNames::default(),
            stacks: WeightTable::new([OTHER_THREADS].into(), PROFILE_BOUNDS),
            lost: 0,
            notes: Vec::new(),
        }
    }

    /// Counts one sample. `addresses` runs from the leaf to the root.
    pub(crate) fn add(&mut self, header: SampleHeader, addresses: &[u64]) {
        let thread = u64::from(self.threads.index_of(header.thread));
        let stack = std::iter::once(thread).chain(addresses.iter().copied()).collect();
        self.stacks.add(stack, self.slice_of(header.at_ns), header.weight);
    }

    pub(crate) fn add_lost(&mut self, samples: u64) {
        self.lost += samples;
    }

    pub(crate) fn add_note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Builds the capture. Frames at the leaf for which `is_profiler_frame` holds are removed: they
    /// belong to the profiler.
    pub(crate) fn finish(self, is_profiler_frame: impl Fn(&str) -> bool) -> Capture {
        let slices = self.slice_of(now_ns()).saturating_add(1);
        let mut builder = CaptureBuilder::new(self.kind, SLICE, self.started_unix_ms);
        let mut symbols = Symbols::of_this_process();
        let coarseness = self.stacks.coarseness();
        for (stack, weights) in self.stacks.into_entries() {
            let (thread, addresses) = stack.split_first().expect("a stack has its thread");
            let is_other = *thread == OTHER_THREADS;
            let thread = if is_other { OTHER } else { self.threads.name(*thread as u32) };
            let frames = name_frames(&mut symbols, addresses, &is_profiler_frame);
            for Weight { slice, weight } in weights {
                let frames = std::iter::once(thread).chain(frames.iter().map(|name| &**name));
                builder.add(slice * coarseness, frames, weight);
            }
        }
        builder.add_lost(self.lost);
        self.notes.into_iter().for_each(|note| builder.add_note(note));
        builder.finish(slices)
    }

    fn slice_of(&self, at_ns: u64) -> u32 {
        let since = u128::from(at_ns.saturating_sub(self.started_ns));
        u32::try_from(since / SLICE.as_nanos()).unwrap_or(u32::MAX)
    }
}

/// Names of the frames of a stack, from the root to the leaf.
fn name_frames(
    symbols: &mut Symbols,
    addresses: &[u64],
    is_profiler_frame: impl Fn(&str) -> bool,
) -> Vec<std::rc::Rc<str>> {
    let mut names = Vec::new();
    for address in addresses.iter().rev() {
        names.extend(symbols.names_of(*address).iter().cloned());
    }
    if let Some(entry) = names.iter().rposition(|name| &**name == THREAD_ENTRY) {
        names.drain(..=entry);
    }
    while names.last().is_some_and(|name| is_profiler_frame(name)) {
        names.pop();
    }
    // Adjacent frames without symbols, such as `[libc.so.6]`, are merged.
    names.dedup_by(|a, b| a == b && a.starts_with('['));
    names
}
