//! The meaning of HTTP: requests to commands, replies to responses, without I/O.
//!
//! **Promise.** Paths, parameters, headers and statuses of `docs/http-api.md` are implemented here
//! and nowhere else. Invalid input is a [`Problem`] that states the fault and gives advice, never a
//! panic.
//!
//! **Mechanism.** A request passes through this crate in four steps:
//!
//! 1. [`HeadCheck`] checks each byte before hyper reads it, and refuses requests that two readers
//!    might understand differently.
//! 2. [`decode_head`] decodes the head to a [`DecodedRequest`]. A body follows with
//!    [`EntityRequest::into_command`].
//! 3. [`encode`] encodes the coordinator's reply to an [`EncodedResponse`], and
//!    [`Problem::to_response`] a failure.
//! 4. Bodies of ranges and batches are streams of [`entries`].
//!
//! The fast path replaces the first three steps for a [`FastPathRequest`], without hyper and with
//! the same meaning: [`HeadCheck::peek_fast_path`], [`decode_fast_path`], [`encode_http1`].
//!
//! **Caveats.** The types are those of the `http` crate. Sockets, timeouts and the copying of
//! bodies are the caller's task.

mod decode;
mod encode;
pub mod entries;
mod head_check;
mod layout;
mod layout_plan;
mod layout_wait;
mod problem;
mod slow;
mod status;

pub use decode::{
    Action, BatchRequest, ByteRange, CheckpointRequest, DecodedRequest, EntityRangeRequest, EntityRequest,
    IfNoneMatch, LAYOUT_BODY_BYTES_MAX, LayoutCommandRequest, ProfileKind, ProfileRequest, RangeContent,
    ReadyForm, RequestKind, RequestRules, ResponseContext, decode_fast_path, decode_head,
};
pub use encode::{
    EncodedResponse, HttpDate, describe_range_failure, encode, encode_batch_head, encode_checkpoint,
    encode_checkpoint_removed, encode_checkpoint_renewed, encode_checkpoints, encode_http1, encode_layout,
    encode_layout_changed, encode_layout_plan, encode_metrics, encode_no_metrics, encode_options,
    encode_profile, encode_range_failure, encode_range_head, encode_ready, encode_repair_begun, encode_root,
    encode_slow, encode_status,
};
pub use head_check::{FastPathRequest, HeadCheck, HeadLimits, HeadVerdict};
pub use layout::{LayoutDocument, LayoutMemberDocument, SeenMember};
pub use layout_plan::{
    CopyDocument, PlanDocument, PlanMemberDocument, PlanMoveDocument, RunningPlanDocument,
    RunningStepDocument, SeenProgress,
};
pub use layout_wait::{SeenWaits, describe_obstacle, describe_stall};
pub use problem::Problem;
pub use slow::{SlowRequest, SlowRequests, SlowStage};
pub use status::{
    ClockStatus, ClusterStatus, DiskRoom, DurabilityStatus, IoStatus, JobStatus, LevelStatus, LinkStatus,
    MemberStatus, MemoryStatus, NodeState, NodeSyncState, QueueStatus, QuorumStatus, RangeStatus,
    RepairProgress, RequestStatus, ServingState, Status, StorageStatus,
};
