//! Link actions requested by the state machines, and link events reported to them.
//!
//! The driver opens sockets, performs the handshake (`wire::handshake`) and moves bytes. The state
//! machines decide when to dial, with which back-off, when to close a link, and which links to
//! admit.

use crate::{Incarnation, LayoutEpoch, LinkId, NodeIndex, Requester, SyncState};
use stdx::{Hlc, NodeTag};

/// The hello message of a peer that has proved knowledge of the cluster's secret, and whose node
/// list, partition count and hash are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerHello {
    /// Index of the peer.
    pub node: NodeIndex,
    /// Identity of the peer's data directory.
    pub tag: NodeTag,
    /// The state machine that dials; `Node` in the hello of a dialed peer.
    pub requester: Requester,
    /// Incarnation of the peer's process.
    pub incarnation: Incarnation,
    /// Value of the peer's version clock.
    pub clock: Hlc,
    /// Sync state of the peer.
    pub sync_state: SyncState,
}

/// An event of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The link dialed to this peer is open, and messages may be sent.
    Opened(PeerHello),
    /// A peer could not be dialed.
    DialFailed {
        /// Index of the peer.
        node: NodeIndex,
        /// The reason.
        reason: DialFailure,
    },
    /// An open link has ended: requests in flight on it will not be answered.
    Closed {
        /// Index of the peer.
        node: NodeIndex,
    },
    /// Only to `Node`: a peer requests admission of its link. The answer is [`LinkAction::Admit`]
    /// or [`LinkAction::Refuse`].
    AdmissionRequested {
        /// Identifies the link from now on.
        link: LinkId,
        /// The peer's hello message.
        hello: PeerHello,
    },
    /// Only to the state machine that the link was admitted to: an accepted link has ended.
    AcceptedClosed {
        /// The link.
        link: LinkId,
    },
}

/// The reason why a peer could not be dialed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialFailure {
    /// No process listens at the peer's address, or the connection was reset.
    Refused,
    /// The peer did not answer in time.
    TimedOut,
    /// The peer rejected this node: another node list, secret or protocol.
    Rejected,
    /// The peer belongs to the same cluster and did not admit this process for now: another process
    /// of this node answered at this node's address a moment ago.
    NotAdmitted,
    /// As [`DialFailure::NotAdmitted`], and the other process goes on answering: one of the two
    /// runs on a copy of the data directory.
    Copy,
    /// The peer refuses this node for ever, as its layout record of this epoch says: the node was
    /// removed or replaced, or is declared dead.
    Removed {
        /// Epoch of the peer's record.
        epoch: LayoutEpoch,
    },
}

/// An action on links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkAction {
    /// Dial this peer, and report the outcome. Never requested while a link to it is open or being
    /// dialed.
    Dial(NodeIndex),
    /// Close the link dialed to this peer; `Closed` is not reported.
    HangUp(NodeIndex),
    /// Close the links that this state machine has accepted from this node, which is a member no
    /// more. `AcceptedClosed` is reported for each.
    Dismiss(NodeIndex),
    /// Only from `Node`: admit this link.
    Admit(LinkId),
    /// Only from `Node`: refuse this link, or close it.
    Refuse(LinkId),
    /// Only from `Node`: refuse this link, because another process answers at the address of that
    /// node. The dialing process runs on a copy of its data directory, or under its name by
    /// mistake.
    RefuseCopy(LinkId),
}
