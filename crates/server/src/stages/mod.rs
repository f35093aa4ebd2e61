//! Latency traces: the time of requests, by stage.
//!
//! **Promise.** The spans of a request are contiguous. They begin in the event-loop iteration in
//! which its command was submitted to the coordinator. They end in the one in which its response
//! was written to the socket, and add up to its total time. A request that takes at least
//! [`Config::slow_request`](crate::Config::slow_request) is counted, logged and retained with at
//! least 95 % of its time attributed to a named stage. A request that is answered from memory pays
//! one comparison for this.
//!
//! **Mechanism.** No clock is read for a single request beyond the readings that its thread takes
//! anyway. Work that many requests wait for, such as a commit group or a read in the pool, records
//! its timestamps once and returns them with the response ([`StoreTimes`]). The coordinator records
//! the responses that each reply waited for, in order (`cluster::WaitTrace`). A [`LatencyTrace`] is
//! built from both only when the reply has taken at least a twentieth of the slow threshold. So the
//! unattributed time of a request that becomes slow later is less than a twentieth of that
//! threshold. Slow requests go to the [`slow`] log. While a [`profile`](recording) is recorded, a
//! trace is built for every request that waited, and added up by time slice.
//!
//! **Caveats.** Reading, decoding and encoding a request are not included: they take microseconds
//! of CPU time, which the CPU profile shows. The span of a peer includes all time between sending
//! and receiving, with the network and delays of this thread. For responses through hyper the time
//! in the socket is unknown. Each page of a range and each entry of a batch is traced separately.

mod latency_trace;
mod recording;
mod slow;
mod stage;

pub(crate) use latency_trace::{CommandStart, LatencyTrace, StoreTimes};
pub(crate) use slow::TracedRequest;

use crate::counters::Counter;
use api::{RequestKind, SlowRequests};
use cluster::WaitTrace;
use env::Clock;
use http::StatusCode;
use parking_lot::Mutex;
use profile::Capture;
use recording::Recording;
use slow::{KeyPrefix, SlowLog};
use stage::Stage;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::{Instant, Now, nanos};

/// A request is traced from the slow threshold divided by this number on.
const TRACED_DIVISOR: u64 = 20;
/// Trace threshold while a profile is recorded, in nanoseconds: every request that took any time.
const RECORDED_NANOS: u64 = 1;
/// A threshold that no request reaches.
const NEVER: u64 = u64::MAX;

/// Latency traces of the process: slow requests and the current recording.
pub(crate) struct Stages {
    clock: Arc<dyn Clock>,
    /// Duration from which on a request is traced, in nanoseconds.
    traced_from_nanos: AtomicU64,
    /// Duration from which on a request is slow, in nanoseconds; [`NEVER`] disables the log.
    slow_nanos: u64,
    slow: SlowLog,
    counts: [Counter; RequestKind::ALL.len()],
    recording: Mutex<Option<Recording>>,
}

/// A request whose response has been encoded.
#[derive(Debug)]
pub(crate) struct RequestEnd {
    pub(crate) request: TracedRequest,
    /// The trace up to the reply, if the request is traced.
    pub(crate) trace: Option<Box<LatencyTrace>>,
    /// The reply was not available when the command was submitted.
    pub(crate) has_waited: bool,
    pub(crate) status: StatusCode,
    /// When the response was encoded.
    pub(crate) encoded_at: Instant,
}

impl Stages {
    /// Creates the traces with `slow_request` as the threshold for slow requests; zero disables it.
    pub(crate) fn new(clock: &Arc<dyn Clock>, slow_request: Duration) -> Self {
        let slow_nanos = if slow_request.is_zero() { NEVER } else { nanos(slow_request) };
        Self {
            clock: Arc::clone(clock),
            traced_from_nanos: AtomicU64::new(traced_from_nanos(slow_nanos)),
            slow_nanos,
            slow: SlowLog::default(),
            counts: Default::default(),
            recording: Mutex::default(),
        }
    }

    /// Whether a request from `begun` to `now` took long enough to be traced.
    #[inline]
    pub(crate) fn is_traced(&self, start: Instant, now: Instant) -> bool {
        now.as_nanos().saturating_sub(start.as_nanos()) >= self.traced_from_nanos.load(Ordering::Relaxed)
    }

    /// Builds the trace of a command that is replied to at `now`, if it is traced. `store_times`
    /// are the timestamps of the store response that is being handled, if any.
    #[inline]
    pub(crate) fn trace(
        &self,
        start: CommandStart,
        wait: &WaitTrace,
        store_times: Option<&StoreTimes>,
        now: Instant,
    ) -> Option<Box<LatencyTrace>> {
        self.is_traced(start.at, now).then(|| Box::new(LatencyTrace::of(start, wait, store_times, now)))
    }

    /// Ends a request whose response was written to the socket at once.
    #[inline]
    pub(crate) fn end(&self, ending: RequestEnd) {
        if ending.trace.is_some() || self.is_traced(ending.request.start.at, ending.encoded_at) {
            self.record(ending, None, self.clock.now());
        }
    }

    /// Ends a request whose response had to wait for the socket.
    pub(crate) fn end_after_wait(&self, ending: RequestEnd) {
        let now = self.clock.now();
        self.record(ending, Some(now.mono), now);
    }

    /// Ends a command that is one page of a range or one entry of a batch.
    #[inline]
    pub(crate) fn end_page(&self, trace: Option<Box<LatencyTrace>>) {
        if let Some(trace) = trace {
            let request = TracedRequest { start: trace.start(), key: KeyPrefix::default() };
            let (now, status) = (self.clock.now(), StatusCode::OK);
            let ending =
                RequestEnd { request, trace: Some(trace), has_waited: true, status, encoded_at: now.mono };
            self.record(ending, None, now);
        }
    }

    /// Number of slow requests of this kind.
    pub(crate) fn count(&self, kind: RequestKind) -> u64 {
        self.counts[kind as usize].get()
    }

    /// The most recent slow requests.
    pub(crate) fn latest(&self) -> SlowRequests {
        // Rounded up, because 0 means that the log is disabled.
        let threshold_ms = if self.slow_nanos == NEVER { 0 } else { self.slow_nanos.div_ceil(1_000_000) };
        self.slow.latest(threshold_ms)
    }

    /// Builds the trace of a request whose reply came too soon to be traced.
    fn untraced(&self, start: CommandStart, has_waited: bool, encoded_at: Instant) -> LatencyTrace {
        let mut trace = LatencyTrace::begin(start);
        if has_waited {
            let soon = start.at.as_nanos().saturating_add(traced_from_nanos(self.slow_nanos));
            trace.add_span(Stage::Other, Instant::from_nanos(soon).min(encoded_at));
        }
        trace
    }

    fn record(&self, ending: RequestEnd, sent: Option<Instant>, now: Now) {
        let RequestEnd { request, trace, has_waited, status, encoded_at } = ending;
        let mut trace =
            trace.unwrap_or_else(|| Box::new(self.untraced(request.start, has_waited, encoded_at)));
        trace.add_span(if has_waited { Stage::Thread } else { Stage::Coordinator }, encoded_at);
        if let Some(sent) = sent {
            trace.add_span(Stage::SocketWrite, sent);
        }
        if nanos(trace.took()) >= self.slow_nanos {
            self.counts[request.start.kind as usize].count();
            self.slow.record(&request, status, &trace, now);
        }
        if self.is_recording()
            && let Some(recording) = &mut *self.recording.lock()
        {
            recording.add(&trace);
        }
    }

    /// Records a profile for `time`. A second recording ends the first, which then contains the
    /// requests up to that moment.
    pub(crate) async fn record_profile(&self, time: Duration) -> Capture {
        let _guard = RecordingGuard(self);
        self.begin_recording(self.clock.now());
        tokio::time::sleep(time).await;
        let recording = self.end_recording();
        recording.unwrap_or_else(|| Recording::new(self.clock.now())).into_capture(time)
    }

    fn begin_recording(&self, now: Now) {
        *self.recording.lock() = Some(Recording::new(now));
        self.traced_from_nanos.store(RECORDED_NANOS, Ordering::Relaxed);
    }

    fn is_recording(&self) -> bool {
        self.traced_from_nanos.load(Ordering::Relaxed) == RECORDED_NANOS
    }

    fn end_recording(&self) -> Option<Recording> {
        self.traced_from_nanos.store(traced_from_nanos(self.slow_nanos), Ordering::Relaxed);
        self.recording.lock().take()
    }
}

/// A recording in progress. Dropping it ends the recording.
struct RecordingGuard<'a>(&'a Stages);

impl Drop for RecordingGuard<'_> {
    fn drop(&mut self) {
        self.0.end_recording();
    }
}

const fn traced_from_nanos(slow_nanos: u64) -> u64 {
    if slow_nanos == NEVER { NEVER } else { slow_nanos / TRACED_DIVISOR }
}

#[cfg(test)]
mod tests;
