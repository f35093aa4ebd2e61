//! The document of `GET /v0/slow`.

use serde::Serialize;
use std::borrow::Cow;

/// The latest of the requests that were slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlowRequests {
    /// From how many milliseconds on a request is slow, rounded up; 0: none is.
    pub threshold_ms: u64,
    /// How many since the start are not among those that were kept, for there were too many in one second.
    pub left_out: u64,
    /// The last one first.
    pub requests: Vec<SlowRequest>,
}

/// A request that was slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlowRequest {
    /// When its answer left.
    pub ended_unix_ms: u64,
    /// What it is counted as.
    pub operation: Cow<'static, str>,
    /// The beginning of its key, with `\x..` for what is not printable; empty where it has none.
    pub key: String,
    /// How long the whole key is.
    pub key_bytes: u16,
    /// The status of the answer.
    pub status: u16,
    /// How long it took.
    pub took_us: u64,
    /// Of that in each stage, in the order in which it came to them. They add up to `took_us`, but for rounding.
    pub stages: Vec<SlowStage>,
}

/// A stage of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlowStage {
    /// Its name.
    pub stage: Cow<'static, str>,
    /// How long the request was in it.
    pub took_us: u64,
}
