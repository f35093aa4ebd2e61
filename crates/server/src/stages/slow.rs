//! The requests that were slow: the latest in memory, some in the log.
//!
//! **Promise.** Bounded in memory and in lines, however many requests are slow: at most [`LINES_PER_SECOND`] lines a second
//! are logged, and the next line says how many there would have been in between. In memory are the last [`RETAINED_MAX`], of
//! as many a second at most.

use super::{LatencyTrace, Request};
use api::{SlowRequest, SlowRequests, SlowStage};
use http::StatusCode;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::Write as _;
use stdx::{Instant, Now};

const LINES_PER_SECOND: u32 = 10;
const RETAINED_MAX: usize = 128;
const SECOND_NANOS: u64 = 1_000_000_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct SlowLog(Mutex<SlowLogState>);

#[derive(Debug, Default)]
struct SlowLogState {
    latest: VecDeque<SlowRequest>,
    /// The second that is counted, ...
    second: u64,
    /// ... and how many came in it.
    came: u32,
    /// How many were not logged since the last line, ...
    unlogged: u64,
    /// ... and were not kept since the start.
    left_out: u64,
}

impl SlowLog {
    /// Takes a request that was slow.
    pub(super) fn record(&self, request: &Request, status: StatusCode, trace: &LatencyTrace, now: Now) {
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

    /// The latest, the last one first.
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
    /// Counts one; the how manieth of its second it is, from 1 on.
    fn count(&mut self, now: Instant) -> u32 {
        let second = now.as_nanos() / SECOND_NANOS;
        if second != self.second {
            self.second = second;
            self.came = 0;
        }
        self.came = self.came.saturating_add(1);
        self.came
    }
}

fn describe(request: &Request, status: StatusCode, trace: &LatencyTrace, now: Now) -> SlowRequest {
    let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    SlowRequest {
        ended_unix_ms: now.wall.micros_since_unix_epoch() / 1_000,
        operation: request.begun.kind.name().into(),
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
        write!(stages, "{separator}{stage} {}", millis(*took_us)).expect("a string takes it");
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
