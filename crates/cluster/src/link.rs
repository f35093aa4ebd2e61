//! What a machine wants done with links, and what it is told of them.
//!
//! The driver opens sockets, shakes hands (`wire::handshake`) and moves bytes. *When* to dial, with what back-off,
//! when to give a link up, and whom to let in, machines decide.

use crate::{Incarnation, LinkId, NodeIndex, Requester, SyncState};
use stdx::{Hlc, NodeTag};

/// What a peer said of itself in the handshake, once it has proved that it knows the cluster's secret, and that
/// node list, partition count and hash are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerHello {
    /// Who it is.
    pub node: NodeIndex,
    /// Its data directory's identity.
    pub tag: NodeTag,
    /// Which of its machines dials; `Node` of one that was dialed.
    pub requester: Requester,
    /// Its life.
    pub incarnation: Incarnation,
    /// Its version clock.
    pub clock: Hlc,
    /// Whether its answers count.
    pub sync_state: SyncState,
}

/// What a machine is told of its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// What was dialed to this peer is open, and messages may be sent.
    Opened(PeerHello),
    /// It could not be dialed.
    DialFailed {
        /// Who was dialed.
        node: NodeIndex,
        /// Why.
        reason: DialFailure,
    },
    /// A link that was open is not any more: what was under way on it will not be answered.
    Closed {
        /// To whom.
        node: NodeIndex,
    },
    /// Only to `Node`: a peer wants its link let in; answered by [`LinkAction::Admit`] or [`LinkAction::Refuse`].
    AdmissionRequested {
        /// Names the link from now on.
        link: LinkId,
        /// Who it is.
        hello: PeerHello,
    },
    /// Only to the machine that it was let in to: an accepted link has ended.
    AcceptedClosed {
        /// Which one.
        link: LinkId,
    },
}

/// Why a peer could not be dialed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialFailure {
    /// Nobody listens there, or the connection was reset.
    Refused,
    /// No answer in time.
    TimedOut,
    /// It is there, and refused this node: another list, another secret, another protocol.
    Rejected,
    /// It belongs to the same cluster and did not admit this process for now: another process of this node answered at
    /// this node's address a moment ago.
    NotAdmitted,
    /// As [`DialFailure::NotAdmitted`], and that process goes on answering: it runs on a copy of this data directory,
    /// or this one does.
    Copy,
}

/// What a machine wants done with links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkAction {
    /// Dial this peer, and say how it went. Never while a link to it is open or being dialed.
    Dial(NodeIndex),
    /// Close what was dialed to this peer; `Closed` is not said.
    HangUp(NodeIndex),
    /// Only from `Node`: let this link in.
    Admit(LinkId),
    /// Only from `Node`: do not let this link in, or close it.
    Refuse(LinkId),
    /// Only from `Node`: do not let this link in, since another process answers at the address of that node. The
    /// dialing process runs on a copy of its data directory, or under its name by mistake.
    RefuseCopy(LinkId),
}
