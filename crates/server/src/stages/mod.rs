//! Where the time of requests goes, by stage.
//!
//! **Promise.** The stages of a request lie end to end, from the turn in which its command was given to the coordinator to
//! the turn in which its answer was handed to the socket: they add up to its time. A request that takes at least as long
//! as [`Config::slow_request`](crate::Config::slow_request) is counted, logged and kept with at least 95 % of its time
//! under a name. One that is answered from memory pays for all this with one comparison.
//!
//! **Mechanism.** Nothing is measured for one request alone but by the clock that its thread reads anyway. What is waited
//! for by many takes its times once: a commit group, a read on its way through the pool. They come back with the answer
//! ([`StoreTimes`]); the coordinator says which answers a reply waited for, one after the other (`cluster::WaitTrace`). Only
//! when the reply has taken a twentieth of what is slow is that put together, as a [`LatencyTrace`]: what is not known of
//! faster ones is then less than a twentieth of what makes them slow later. Slow requests go to the [`log`](slow); while
//! somebody records a [`profile`](recording), all that waited are put together, and counted by slice of time.
//!
//! **Caveats.** The head of a request, its decoding and its encoding are not in it: they take microseconds, and are CPU
//! time, for which there is another profile. A peer's part is all between the sending and the answer, the network and this
//! thread's own delays included. Of answers through hyper the time in the socket is not known; of ranges and batches, each
//! page and entry is on its own.

mod latency_trace;
mod recording;
mod slow;
mod stage;

pub(crate) use latency_trace::{LatencyTrace, StoreTimes};
pub(crate) use recording::record;
pub(crate) use stage::Stage;

use crate::counters::Counter;
use crate::replies::CommandStart;
use api::{RequestKind, SlowRequests};
use cluster::{Command, WaitTrace};
use http::StatusCode;
use parking_lot::Mutex;
use recording::Recording;
use slow::SlowLog;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use stdx::{Instant, Now, nanos};

/// A request is looked at closely from this part of what is slow on.
const TRACED_DIVISOR: u64 = 20;
/// So many bytes of a key are kept.
const KEY_BYTES_MAX: usize = 32;
/// While a profile is recorded, from so many nanoseconds on: whatever took any time at all.
const RECORDED_NANOS: u64 = 1;
/// Stands for never.
const NEVER: u64 = u64::MAX;

/// See the module. One for the process.
#[derive(Debug)]
pub(crate) struct Stages {
    /// From how many nanoseconds on a request is looked at closely.
    traced_from_nanos: AtomicU64,
    /// From when on one is slow; [`NEVER`]: none is.
    slow_nanos: u64,
    slow: SlowLog,
    counts: [Counter; RequestKind::ALL.len()],
    recording: Mutex<Option<Recording>>,
}

/// A request under way, as far as it is to be told of it when it turns out to be slow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) begun: CommandStart,
    pub(crate) key: KeyPrefix,
}

/// The beginning of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyPrefix {
    /// Of the whole key.
    len: u16,
    bytes: [u8; KEY_BYTES_MAX],
}

/// A request that has its answer.
#[derive(Debug)]
pub(crate) struct RequestEnd {
    pub(crate) request: Request,
    /// What it waited for, if it was looked at closely.
    pub(crate) trace: Option<Box<LatencyTrace>>,
    /// Its reply did not come at once.
    pub(crate) has_waited: bool,
    pub(crate) status: StatusCode,
    /// When its answer was made.
    pub(crate) answered: Instant,
}

impl Stages {
    /// Where requests are slow that take so long; after no time, none is.
    pub(crate) fn new(slow_request: Duration) -> Self {
        let slow_nanos = if slow_request.is_zero() { NEVER } else { nanos(slow_request) };
        Self {
            traced_from_nanos: AtomicU64::new(traced_from_nanos(slow_nanos)),
            slow_nanos,
            slow: SlowLog::default(),
            counts: Default::default(),
            recording: Mutex::default(),
        }
    }

    /// Whether a request that has taken so long is looked at closely.
    #[inline]
    pub(crate) fn is_traced(&self, begun: Instant, now: Instant) -> bool {
        now.as_nanos().saturating_sub(begun.as_nanos()) >= self.traced_from_nanos.load(Ordering::Relaxed)
    }

    /// What a command that is replied to `now` has waited for, if that is looked at closely. `answered` are the times of
    /// the store's answer that is being handled, if it is one.
    #[inline]
    pub(crate) fn trace(
        &self,
        begun: CommandStart,
        wait: &WaitTrace,
        answered: Option<&StoreTimes>,
        now: Instant,
    ) -> Option<Box<LatencyTrace>> {
        self.is_traced(begun.at, now).then(|| Box::new(LatencyTrace::of(begun, wait, answered, now)))
    }

    /// A request is answered, and its answer is with the system.
    #[inline]
    pub(crate) fn end(&self, ending: RequestEnd, clock: &dyn env::Clock) {
        if ending.trace.is_some() || self.is_traced(ending.request.begun.at, ending.answered) {
            self.record(ending, None, clock.now());
        }
    }

    /// The same, where its answer had to wait for the socket.
    pub(crate) fn end_after_wait(&self, ending: RequestEnd, clock: &dyn env::Clock) {
        let now = clock.now();
        self.record(ending, Some(now.mono), now);
    }

    /// The answer to a command that is a part of a request has been taken.
    #[inline]
    pub(crate) fn end_page(&self, trace: Option<Box<LatencyTrace>>, clock: &dyn env::Clock) {
        if let Some(trace) = trace {
            let request = Request { begun: trace.begun(), key: KeyPrefix::default() };
            let (now, status) = (clock.now(), StatusCode::OK);
            let ending =
                RequestEnd { request, trace: Some(trace), has_waited: true, status, answered: now.mono };
            self.record(ending, None, now);
        }
    }

    /// Requests of this kind that were slow.
    pub(crate) fn count(&self, kind: RequestKind) -> u64 {
        self.counts[kind as usize].get()
    }

    /// The latest of the requests that were slow.
    pub(crate) fn latest(&self) -> SlowRequests {
        // Rounded up: 0 says that none is slow.
        let threshold_ms = if self.slow_nanos == NEVER { 0 } else { self.slow_nanos.div_ceil(1_000_000) };
        self.slow.latest(threshold_ms)
    }

    /// The course of a request that was not looked at closely, because its reply came soon.
    fn untraced(&self, begun: CommandStart, has_waited: bool, answered: Instant) -> LatencyTrace {
        let mut trace = LatencyTrace::begin(begun);
        if has_waited {
            let soon = begun.at.as_nanos().saturating_add(traced_from_nanos(self.slow_nanos));
            trace.add_span(Stage::Other, Instant::from_nanos(soon).min(answered));
        }
        trace
    }

    fn record(&self, ending: RequestEnd, sent: Option<Instant>, now: Now) {
        let RequestEnd { request, trace, has_waited, status, answered } = ending;
        let mut trace = trace.unwrap_or_else(|| Box::new(self.untraced(request.begun, has_waited, answered)));
        trace.add_span(if has_waited { Stage::Thread } else { Stage::Coordinator }, answered);
        if let Some(sent) = sent {
            trace.add_span(Stage::SocketWrite, sent);
        }
        if nanos(trace.took()) >= self.slow_nanos {
            self.counts[request.begun.kind as usize].count();
            self.slow.record(&request, status, &trace, now);
        }
        if self.is_recording()
            && let Some(recording) = &mut *self.recording.lock()
        {
            recording.add(&trace);
        }
    }
}

impl Request {
    /// A request that gives this command.
    #[inline]
    pub(crate) fn of(kind: RequestKind, command: &Command, at: Instant) -> Self {
        let key = match command {
            Command::Get { key, .. } | Command::Put { key, .. } | Command::Delete { key, .. } => {
                KeyPrefix::of(key.as_bytes())
            }
            Command::Scan { .. } | Command::NextPage { .. } => KeyPrefix::default(),
        };
        Self { begun: CommandStart { kind, at }, key }
    }
}

impl KeyPrefix {
    #[inline]
    fn of(key: &[u8]) -> Self {
        let mut bytes = [0; KEY_BYTES_MAX];
        let kept = key.len().min(KEY_BYTES_MAX);
        bytes[..kept].copy_from_slice(&key[..kept]);
        Self { len: key.len() as u16, bytes }
    }

    /// The bytes that are kept, printable.
    fn printable(&self) -> String {
        let kept = usize::from(self.len).min(KEY_BYTES_MAX);
        self.bytes[..kept].escape_ascii().to_string()
    }
}

const fn traced_from_nanos(slow_nanos: u64) -> u64 {
    if slow_nanos == NEVER { NEVER } else { slow_nanos / TRACED_DIVISOR }
}

#[cfg(test)]
mod tests;
