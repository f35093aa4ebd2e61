//! The cluster protocol as deterministic state machines, without sockets, files, clocks or threads.
//!
//! **Promise.** Each input is an argument: a client's [`Command`], a [`Message`] of a peer, an
//! answer of the local store, the current time. Each action is an [`Effect`] that the driver
//! carries out. Equal inputs give equal effects, so a process and a simulator run the same code.
//! Each submitted command gets exactly one [`Reply`].
//!
//! **Mechanism.** There are two state machines. A [`Coordinator`] on each I/O thread takes commands
//! to their replies. The one [`Node`] of a process detects failures of peers, delivers hints,
//! rebuilds and repairs. The [`Layout`] of the agreed [`LayoutRecord`] maps a key to its replicas.
//! Both follow a newer one while they run.
//! The local replica is treated like any other: a state machine asks it with [`Effect::Store`], and
//! acknowledges a write only after a store reported it durable. Versions come from the
//! [`HybridClock`] of the process, which issues no value twice, not even after a restart. Of two
//! cells of a key, every replica keeps the one with the greater version (last write wins).
//!
//! **Caveats.** A node that is removed has to end. Of two concurrent writes to a key, the
//! one with the lesser version is lost.

#[cfg(test)]
extern crate self as cluster;

mod clock;
mod command;
mod coordinator;
mod damage;
mod dial;
mod digest;
mod effect;
mod epoch_chain;
mod hint_ledger;
mod key_range;
mod layout;
mod link;
mod local_writes;
mod member;
mod message;
mod node;
mod owned_part;
mod page;
mod process_fence;
mod quorum;
mod refused;
mod replica;
mod replica_request;
mod replica_set;
mod reply;
mod scan;
mod store_request;
mod sync_state;
mod view;
mod wait_trace;

/// The simulated cluster of the tests, for tests that need the inside of this crate.
#[cfg(test)]
#[path = "../tests/world/mod.rs"]
mod world;

pub use clock::{HybridClock, TickError, WallCeiling};
pub use command::{Command, Key, KeyError, Lifetime, VALUE_BYTES_MAX_DEFAULT};
pub use coordinator::{Coordinator, CoordinatorLimits};
pub use damage::{LostRange, TableDamage};
pub use effect::{Effect, Event, RebuildReason, RequestId, StoreId};
pub use epoch_chain::{
    AcceptorState, ChainNode, ChainOutcome, ChainProposal, ChainProposer, ChainRecord, ChainRequest,
    ChainResponse, ChainVote, EpochAcceptor, ProposalBallot, ProposerPace, VoteHistory, VoterState,
};
pub use hint_ledger::{HintCount, HintLedger, hint_bytes};
pub use key_range::{Cut, KeyRange};
pub use layout::{
    ClusterId, ClusterOrigin, CommandRefusal, CopyProgress, FEATURE_LEVEL, FEATURE_LEVEL_MAX_DEFAULT,
    FEATURE_LEVEL_NAMED, FEATURE_LEVEL_PLANS, FORMER_IDS_MAX, JoiningNode, LAYOUT_RECORD_BYTES_MAX, Layout,
    LayoutDecodeError, LayoutEpoch, LayoutError, LayoutMember, LayoutRecord, LayoutRecordError,
    MemberPreview, MemberState, NODES_MAX, NodeIndex, NodeSet, PairMove, PairSwap, PartitionId,
    PlacementChange, PlacementFault, PlacementNote, PlacementPlan, PlacementPreview, PlacementRefusal,
    PlacementSwap, PlanStatements, RateLimit, RecordHash, RunningPlan, SWAPS_MAX, SwapAttempt, SwapPhase,
    SwapSet, URL_BYTES_MAX, VOTERS_MAX, ZONE_BYTES_MAX,
};
pub use link::{DialFailure, LinkAction, LinkEvent, PeerHello};
pub use member::Member;
pub use message::{
    CopyAnswer, CopyRequest, Destination, EncodedRecord, GenerationReport, HeartbeatPayload, Incarnation,
    LayoutStamp, LinkId, Message, MessageId, NodeRequest, NodeResponse, Origin, PeerAnswer, PeerRequest,
    RangeAnswer, RangeDigest, RangeRequest, Requester,
};
pub use node::{
    AgreementEffect, AgreementStatus, CommandObstacle, CopyObstacle, CopyStatus, LayoutCommand,
    LayoutCommandId, LayoutCommandOutcome, LayoutConflict, LayoutConflictReason, Node, NodeLimits,
    NodeStatus, PLAN_STALLED_AFTER, PeerStatus, PlanWait, PlannedChange, ProposalOutcome, ProposeError,
    PurgeStatus, RepairKind, RepairStatus, StallReason, SwapWait, VoterStatus,
};
pub use owned_part::{DisownedPart, OwnedPart};
pub use page::{Page, PageBuilder, PageEntry, PageEntryHead};
pub use process_fence::ProcessFence;
pub use quorum::{Quorum, QuorumChoice, QuorumError, default_from_of_new_cluster, majority};
pub use refused::{RefusedKey, RefusedKeys};
pub use replica_request::{ReplicaFault, ReplicaOutcome, ReplicaRequest, ReplicaResponse, StoreFault};
pub use reply::{Acks, CommandFailure, Reply, Shortfall};
pub use scan::{
    PageContent, PageRequest, PartitionSet, Scan, ScanId, ScanRequest, ScanRoles, ScanScope, ScanTask,
    SnapshotId,
};
pub use store_request::{
    CopyCursor, Hint, IngestRequest, IngestResponse, ScanLimit, StoreRequest, StoreResponse,
};
pub use sync_state::{Generation, GenerationHistory, NodeRecord, SyncState};
pub use view::{ClusterView, PeerState, PeerView};
pub use wait_trace::{WaitSpan, WaitTarget, WaitTrace};
