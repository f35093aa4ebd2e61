//! The document of `GET /v0/slow`.

use serde::Serialize;
use std::borrow::Cow;

/// The latest slow requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlowRequests {
    /// Least duration of a slow request, in milliseconds, rounded up; 0 if no request counts as
    /// slow.
    pub threshold_ms: u64,
    /// Number of slow requests since the start that were not kept, because there were too many in
    /// one second.
    pub left_out: u64,
    /// The slow requests, the latest first.
    pub requests: Vec<SlowRequest>,
}

/// A slow request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlowRequest {
    /// Time at which the answer was sent, in milliseconds of Unix time.
    pub ended_unix_ms: u64,
    /// Kind of the request.
    pub operation: Cow<'static, str>,
    /// First bytes of the key, with `\x..` for unprintable ones; empty for a request without a key.
    pub key: String,
    /// Length of the whole key, in bytes.
    pub key_bytes: u16,
    /// Status of the answer.
    pub status: u16,
    /// Duration, in microseconds.
    pub took_us: u64,
    /// Duration of each stage, in order. Their sum is `took_us`, except for rounding.
    pub stages: Vec<SlowStage>,
}

/// A stage of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlowStage {
    /// Name of the stage.
    pub stage: Cow<'static, str>,
    /// Duration of the stage, in microseconds.
    pub took_us: u64,
}
