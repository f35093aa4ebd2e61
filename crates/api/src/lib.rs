//! The meaning of HTTP: requests to commands, replies to responses; no I/O.
//!
//! **Promise.** What `docs/http-api.md` says of paths, parameters, headers and statuses is decided here and
//! nowhere else. Bad input is a [`Problem`] that says what was wrong and what to do, never a panic.
//!
//! **Mechanism.** The way of a request through this crate:
//!
//! 1. [`HeadCheck`] sees each byte before the HTTP library does and refuses requests that two readers might
//!    understand differently;
//! 2. [`decode_head`] makes a [`DecodedRequest`] of the head; a body follows with [`EntityRequest::into_command`];
//! 3. [`encode`] makes an [`EncodedResponse`] of the coordinator's reply, and [`Problem::to_response`] of what went wrong;
//!    Of a [`FastPathRequest`] the first three have shorter ways without the library, with the same meaning:
//!    [`HeadCheck::peek_fast_path`], [`decode_fast_path`], [`encode_http1`];
//! 4. the bodies of ranges and batches are streams of [`entries`].
//!
//! **Caveats.** The types are those of the `http` crate. Sockets, timeouts and the copying of bodies are the
//! caller's.

mod decode;
mod encode;
pub mod entries;
mod head_check;
mod problem;
mod slow;
mod status;

pub use decode::{
    Action, BatchRequest, ByteRange, CheckpointRequest, DecodedRequest, EntityRequest, IfNoneMatch,
    ProfileKind, ProfileRequest, RangeContent, RangeRequest, ReadyForm, RequestKind, RequestRules,
    ResponseContext, decode_fast_path, decode_head,
};
pub use encode::{
    EncodedResponse, HttpDate, describe_range_failure, encode, encode_batch_head, encode_checkpoint,
    encode_checkpoint_removed, encode_checkpoint_renewed, encode_checkpoints, encode_http1, encode_metrics,
    encode_no_metrics, encode_options, encode_profile, encode_range_failure, encode_range_head, encode_ready,
    encode_repair_begun, encode_root, encode_slow, encode_status,
};
pub use head_check::{FastPathRequest, HeadCheck, HeadLimits, Verdict};
pub use problem::Problem;
pub use slow::{SlowRequest, SlowRequests, SlowStage};
pub use status::{
    ClockStatus, ClusterStatus, DiskRoom, Durability, IoStatus, JobStatus, LevelStatus, LinkStatus,
    MemoryStatus, NodeState, NodeStatus, NodeSyncState, QueueStatus, QuorumStatus, RangeStatus,
    RepairProgress, RequestStatus, ServingState, Status, StorageStatus,
};
