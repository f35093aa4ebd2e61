//! What a node knows of one peer.

use super::handoff::Handoff;
use super::sync_state::Word;
use crate::dial::Dialer;
use crate::{Generation, HeartbeatPayload, Incarnation, LinkId, PeerHello, PeerState, SyncState};
use std::num::NonZeroU8;
use std::time::Duration;
use stdx::{ClockAnchor, Instant};

/// See the module.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) dialer: Dialer,
    /// What was dialed to it, while that is open.
    pub(super) dialed: Option<DialedLink>,
    /// The link of its `Node` that was let in. A newer one takes its place.
    pub(super) accepted: Option<AcceptedLink>,
    /// A link of its `Node` that waits until its identity is remembered. A newer one takes its place.
    pub(super) waiting: Option<AcceptedLink>,
    /// How many dials may still fail before a peer that has linked with this node counts as one that cannot be dialed.
    pub(super) dials_awaited: u8,
    /// When it last answered a heartbeat or sent one, over any of its links; at first, when this process started.
    pub(super) last_heard: Instant,
    /// What the failure detector says.
    pub(super) state: PeerState,
    /// Another process under its name that was refused while the peer answered at its address, and since when.
    pub(super) copy: Option<(Incarnation, Instant)>,
    /// It did not admit this process since its last word: it knows another process of this node.
    pub(super) refuses: bool,
    /// What it has last said it remembers of this node, in this node's life.
    pub(super) word: Option<Word>,
    /// Its newest life that is remembered here, with the greatest clock heard in this life of this node.
    pub(super) heard_generation: Option<Generation>,
    /// How many replicas hold a key by default there, as it last said.
    pub(super) default_from: Option<NonZeroU8>,
    /// How far its wall clock is ahead of this node's, as of its last answer.
    pub(super) clock_ahead_micros: i64,
    /// Its wall clock, as of an answer that came soon.
    pub(super) clock: Option<ClockAnchor>,
    pub(super) round_trip: Option<Duration>,
    /// What it holds for this node, and since when that has not become less: see `readiness`.
    pub(super) hints_there: HintsThere,
    /// What it lacks and this node keeps hints for.
    pub(super) handoff: Handoff,
    /// It has to be told that hints for it were given up: no answer to a later request than this one has come.
    pub(super) untold: Option<u64>,
    /// Ranges that it asked for and the store is scanning.
    pub(super) ranges_under_way: u8,
}

/// What was dialed to a peer.
#[derive(Debug)]
pub(super) struct DialedLink {
    pub(super) hello: PeerHello,
    /// When it last answered a heartbeat; at first, when the link was opened.
    pub(super) heard_at: Instant,
    /// The last heartbeat that it answered; at first, the last request before the link was opened.
    pub(super) heard_number: u64,
    /// What it said in that answer.
    pub(super) heartbeat: Option<HeartbeatPayload>,
}

/// A link that a peer's `Node` dialed.
#[derive(Clone, Copy, Debug)]
pub(super) struct AcceptedLink {
    pub(super) link: LinkId,
    pub(super) hello: PeerHello,
    /// When the newest heartbeat that came over it was sent, by the peer's clock.
    pub(super) sent: Option<Instant>,
    /// When that heartbeat came; before the first one, when the link came.
    pub(super) heard_at: Instant,
}

/// The hints that a peer holds for this node.
#[derive(Clone, Copy, Debug)]
pub(super) struct HintsThere {
    pub(super) least: u64,
    pub(super) since: Instant,
}

impl Peer {
    pub(super) fn new(now: Instant, is_owed_repair: bool) -> Self {
        Self {
            dialer: Dialer::new(),
            dialed: None,
            accepted: None,
            waiting: None,
            dials_awaited: 0,
            last_heard: now,
            state: PeerState::Unknown,
            copy: None,
            refuses: false,
            word: None,
            heard_generation: None,
            default_from: None,
            clock_ahead_micros: 0,
            clock: None,
            round_trip: None,
            hints_there: HintsThere { least: u64::MAX, since: now },
            handoff: Handoff::new(now),
            untold: is_owed_repair.then_some(0),
            ranges_under_way: 0,
        }
    }

    /// What it last said of itself; before its first answer, what it said as the link was opened.
    pub(super) fn sync_state(&self) -> SyncState {
        self.dialed.as_ref().map_or(SyncState::Unsettled, |link| {
            link.heartbeat.map_or(link.hello.sync_state, |heartbeat| heartbeat.sync_state)
        })
    }

    /// What it said in its last answer over the open link.
    pub(super) fn heartbeat(&self) -> Option<HeartbeatPayload> {
        self.dialed.as_ref().and_then(|link| link.heartbeat)
    }

    /// Whether it answers, late or not.
    pub(super) const fn is_reachable(&self) -> bool {
        matches!(self.state, PeerState::Up | PeerState::Suspected)
    }
}
