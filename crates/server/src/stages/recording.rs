//! Wait profiles: the stages of all requests that end while a profile is recorded.
//!
//! **Promise.** A profile contains every request that ends while it is recorded, with all of its
//! time, in the time slice in which it ended. Time without a named stage is `other`. Recording
//! stops when the client that requested it disconnects.
//!
//! **Mechanism.** While a profile is recorded, every request that waited is traced. Its spans are
//! added up under a lock, which is the cost of recording; otherwise this module is not entered.
//!
//! **Caveats.** A request that is answered from memory waits for nothing. It shows the time that
//! its thread took for it, if that is measured at all: the clock is read once for all responses of
//! a batch.

use super::{LatencyTrace, RECORDED_NANOS, Stage, Stages, traced_from_nanos};
use crate::process::Process;
use api::RequestKind;
use profile::{Capture, CaptureBuilder, CaptureKind};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use stdx::{Instant, Now, nanos};

/// Length of a time slice.
const SLICE: Duration = Duration::from_millis(100);

/// A profile that is being recorded. Its size is bounded by the numbers of slices, kinds and
/// stages.
#[derive(Debug)]
pub(super) struct Recording {
    began: Now,
    nanos: BTreeMap<(u32, RequestKind, Stage), u64>,
}

/// Records a profile for `time`. A second recording ends the first, which then contains the
/// requests up to that moment.
pub(crate) async fn record(process: &Arc<Process>, time: Duration) -> Capture {
    let in_flight = RecordingGuard::begin(process);
    tokio::time::sleep(time).await;
    in_flight.finish(time)
}

impl Recording {
    pub(super) fn new(began: Now) -> Self {
        Self { began, nanos: BTreeMap::new() }
    }

    /// Adds a request that has ended.
    pub(super) fn add(&mut self, trace: &LatencyTrace) {
        let slice = slice_of(self.began.mono, trace.until());
        let kind = trace.start().kind;
        let mut add = |stage, nanos| *self.nanos.entry((slice, kind, stage)).or_default() += nanos;
        let mut unnamed = trace.took();
        for (stage, took) in trace.spans() {
            add(*stage, nanos(*took));
            unnamed = unnamed.saturating_sub(*took);
        }
        if !unnamed.is_zero() {
            add(Stage::Other, nanos(unnamed));
        }
    }

    pub(super) fn into_capture(self, time: Duration) -> Capture {
        let started_unix_ms = self.began.wall.micros_since_unix_epoch() / 1_000;
        let mut builder = CaptureBuilder::new(CaptureKind::Wait, SLICE, started_unix_ms);
        for ((slice, kind, stage), nanos) in self.nanos {
            builder.add(slice, [kind.name(), &*stage.name()], nanos);
        }
        builder.finish(slices(time))
    }
}

fn slice_of(began: Instant, at: Instant) -> u32 {
    slices(at.saturating_since(began))
}

fn slices(time: Duration) -> u32 {
    u32::try_from(time.as_nanos() / SLICE.as_nanos()).unwrap_or(u32::MAX)
}

/// A recording in progress; dropping it ends the recording.
struct RecordingGuard<'a>(&'a Process);

impl<'a> RecordingGuard<'a> {
    fn begin(process: &'a Process) -> Self {
        process.stages.begin_recording(process.clock.now());
        Self(process)
    }

    fn finish(self, time: Duration) -> Capture {
        let recording = self.0.stages.end_recording();
        recording.unwrap_or_else(|| Recording::new(self.0.clock.now())).into_capture(time)
    }
}

impl Drop for RecordingGuard<'_> {
    fn drop(&mut self) {
        self.0.stages.end_recording();
    }
}

impl Stages {
    pub(super) fn begin_recording(&self, now: Now) {
        *self.recording.lock() = Some(Recording::new(now));
        self.traced_from_nanos.store(RECORDED_NANOS, Ordering::Relaxed);
    }

    pub(super) fn is_recording(&self) -> bool {
        self.traced_from_nanos.load(Ordering::Relaxed) == RECORDED_NANOS
    }

    pub(super) fn end_recording(&self) -> Option<Recording> {
        self.traced_from_nanos.store(traced_from_nanos(self.slow_nanos), Ordering::Relaxed);
        self.recording.lock().take()
    }
}
