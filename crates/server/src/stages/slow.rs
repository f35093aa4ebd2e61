//! The log of slow requests: recent ones in memory, some in the log.
//!
//! **Promise.** Memory and log lines are bounded for any rate of slow requests. At most
//! [`LINES_PER_SECOND`] lines a second are logged; the next line states the number of lines left
//! out. The last [`RETAINED_MAX`] requests are retained in memory, of at most that many each
//! second.

use super::latency_trace::{CommandStart, LatencyTrace};
use api::{RequestKind, SlowRequest, SlowRequests, SlowStage};
use cluster::Command;
use http::StatusCode;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::Write as _;
use stdx::{Instant, Now};

const LINES_PER_SECOND: u32 = 10;
const RETAINED_MAX: usize = 128;
const SECOND_NANOS: u64 = 1_000_000_000;
/// Length of the retained key prefix, in bytes.
const KEY_BYTES_MAX: usize = 32;

/// The data of an in-flight request that the log shows if it is slow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracedRequest {
    pub(crate) start: CommandStart,
    pub(crate) key: KeyPrefix,
}

/// The first bytes of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyPrefix {
    /// Length of the whole key, in bytes.
    len: u16,
    bytes: [u8; KEY_BYTES_MAX],
}

/// Retains and logs slow requests.
#[derive(Debug, Default)]
pub(super) struct SlowLog(Mutex<SlowLogState>);

#[derive(Debug, Default)]
struct SlowLogState {
    latest: VecDeque<SlowRequest>,
    /// The current second of the monotonic clock.
    second: u64,
    /// Number of slow requests in the current second.
    in_second: u32,
    /// Number of requests that were not logged since the last line.
    unlogged: u64,
    /// Number of requests that were not retained since the start.
    left_out: u64,
}

impl SlowLog {
    /// Records a slow request.
    pub(super) fn record(&self, request: &TracedRequest, status: StatusCode, trace: &LatencyTrace, now: Now) {
        let (slow, unlogged) = {
            let mut state = self.0.lock();
            let nth = state.count(now.mono);
            if nth > RETAINED_MAX as u32 {
                state.left_out += 1;
                state.unlogged += 1;
                return;
            }
            let slow = describe(request, status, trace, now);
            if state.latest.len() == RETAINED_MAX {
                state.latest.pop_front();
            }
            state.latest.push_back(slow.clone());
            if nth > LINES_PER_SECOND {
                state.unlogged += 1;
                return;
            }
            (slow, std::mem::take(&mut state.unlogged))
        };
        log(&slow, unlogged);
    }

    /// The retained requests, the most recent first.
    pub(super) fn latest(&self, threshold_ms: u64) -> SlowRequests {
        let state = self.0.lock();
        SlowRequests {
            threshold_ms,
            left_out: state.left_out,
            requests: state.latest.iter().rev().cloned().collect(),
        }
    }
}

impl SlowLogState {
    /// Counts a request and returns its ordinal within its second, from 1 on.
    fn count(&mut self, now: Instant) -> u32 {
        let second = now.as_nanos() / SECOND_NANOS;
        if second != self.second {
            self.second = second;
            self.in_second = 0;
        }
        self.in_second = self.in_second.saturating_add(1);
        self.in_second
    }
}

impl TracedRequest {
    /// Creates the data of a request with this command, submitted at `at`.
    #[inline]
    pub(crate) fn of(kind: RequestKind, command: &Command, at: Instant) -> Self {
        let key = match command {
            Command::Get { key, .. } | Command::Put { key, .. } | Command::Delete { key, .. } => {
                KeyPrefix::of(key.as_bytes())
            }
            Command::Scan { .. } | Command::NextPage { .. } => KeyPrefix::default(),
        };
        Self { start: CommandStart { kind, at }, key }
    }
}

impl KeyPrefix {
    #[inline]
    pub(super) fn of(key: &[u8]) -> Self {
        let mut bytes = [0; KEY_BYTES_MAX];
        let kept = key.len().min(KEY_BYTES_MAX);
        bytes[..kept].copy_from_slice(&key[..kept]);
        Self { len: key.len() as u16, bytes }
    }

    /// The retained bytes, escaped as printable ASCII.
    fn printable(&self) -> String {
        let kept = usize::from(self.len).min(KEY_BYTES_MAX);
        self.bytes[..kept].escape_ascii().to_string()
    }
}

fn describe(request: &TracedRequest, status: StatusCode, trace: &LatencyTrace, now: Now) -> SlowRequest {
    let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    SlowRequest {
        ended_unix_ms: now.wall.millis_since_unix_epoch(),
        operation: request.start.kind.name().into(),
        key_bytes: request.key.len,
        key: request.key.printable(),
        status: status.as_u16(),
        took_us: micros(trace.took()),
        stages: trace
            .spans()
            .iter()
            .map(|(stage, took)| SlowStage { stage: stage.name(), took_us: micros(*took) })
            .collect(),
    }
}

fn log(slow: &SlowRequest, unlogged: u64) {
    let millis = |micros: u64| format!("{}.{:03}", micros / 1_000, micros % 1_000);
    let mut stages = String::new();
    for SlowStage { stage, took_us } in &slow.stages {
        let separator = if stages.is_empty() { "" } else { ", " };
        write!(stages, "{separator}{stage} {}", millis(*took_us)).expect("writing to a string does not fail");
    }
    tracing::warn!(
        operation = %slow.operation,
        key = %slow.key,
        key_bytes = slow.key_bytes,
        status = slow.status,
        ms = %millis(slow.took_us),
        %stages,
        unlogged,
        "a request was slow"
    );
}
