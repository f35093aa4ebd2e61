//! The protocol as a value: what the nodes of a cluster decide, with no socket, file, clock or thread in sight.
//!
//! **Promise.** Whatever reaches a machine (a user's [`Command`], a [`Message`] of a peer, an answer of the local
//! store, the passing of time) goes in as an argument, and whatever it wants done comes out as an [`Effect`]. The
//! same inputs give the same effects, so that a process and a simulator drive the same code. Each command that is
//! submitted gets exactly one [`Reply`].
//!
//! **Mechanism.** Two machines. A [`Coordinator`] for each I/O thread takes commands to their replies; the one
//! [`Node`] of a process knows how its peers are, hands over hints, rebuilds and repairs. The [`Layout`], which all
//! nodes compute alike, says who holds a key. The local replica is one more message target: it is asked with
//! [`Effect::Store`], and an acknowledgement is what a machine makes of its answer, so nothing is acknowledged
//! before a store said that it is durable. Versions come from the one [`HybridClock`] of the process, which never
//! hands out a value that a restart could hand out again; of two cells of a key the greater version wins everywhere.
//!
//! **Caveats.** The list of nodes is fixed while they run. Of two writes at one time, one is lost: the one with the
//! lesser version.

mod clock;
mod command;
mod coordinator;
mod damage;
mod delay_estimator;
mod dial;
mod digest;
mod effect;
mod hint_ledger;
mod key_range;
mod layout;
mod link;
mod local_writes;
mod member;
mod message;
mod node;
mod page;
mod quorum;
mod refused;
mod replica;
mod replica_set;
mod reply;
mod scan;
mod store_request;
mod sync_state;
mod view;
mod wait_trace;

pub use clock::{HybridClock, TickError, WallCeiling};
pub use command::{Command, Key, KeyError, Lifetime, VALUE_BYTES_MAX_DEFAULT};
pub use coordinator::{Coordinator, CoordinatorLimits};
pub use damage::{Damage, LostRange};
pub use delay_estimator::DelayEstimator;
pub use effect::{Effect, Event, RebuildReason, RequestId, StoreId};
pub use hint_ledger::{HintCount, HintLedger, hint_bytes};
pub use key_range::{Cut, KeyRange};
pub use layout::{Layout, LayoutError, NODES_MAX, NodeIndex, NodeSet, Partition};
pub use link::{DialFailure, LinkAction, LinkEvent, PeerHello};
pub use member::Member;
pub use message::{
    Destination, GenerationReport, HeartbeatPayload, Incarnation, LinkId, Message, MessageId, Origin,
    PeerAnswer, PeerFault, PeerRequest, RangeAnswer, RangeDigest, RangeRequest, Requester,
};
pub use node::{Node, NodeLimits, NodeStatus, PeerStatus, RepairKind, RepairStatus};
pub use page::{Page, PageBuilder, PageEntry, PageEntryHead};
pub use quorum::{Quorum, QuorumChoice, QuorumError};
pub use refused::{Refusal, RefusedKeys};
pub use reply::{Acks, Failure, Reply, Shortfall};
pub use scan::{
    PageContent, PageRequest, PartitionSet, Scan, ScanAnswer, ScanId, ScanRequest, ScanRoles, ScanScope,
    ScanTask, SnapshotId,
};
pub use store_request::{Hint, ScanLimit, StoreFault, StoreRequest, StoreResponse};
pub use sync_state::{Generation, GenerationHistory, NodeRecord, SyncState};
pub use view::{ClusterView, PeerState, PeerView};
pub use wait_trace::{WaitSpan, WaitTarget, WaitTrace};
