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

use super::latency_trace::LatencyTrace;
use super::stage::Stage;
use api::RequestKind;
use profile::{Capture, CaptureBuilder, CaptureKind};
use std::collections::BTreeMap;
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
        let started_unix_ms = self.began.wall.millis_since_unix_epoch();
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
