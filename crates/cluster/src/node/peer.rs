//! The state that a node keeps for each peer.

use super::agreement::StatedPlan;
use super::handoff::Handoff;
use super::sync_state::IdentityReport;
use super::undecided_generations::UndecidedGenerations;
use crate::dial::DialSchedule;
use crate::{Generation, HeartbeatPayload, Incarnation, LinkId, PeerHello, PeerState, SyncState};
use std::num::NonZeroU8;
use std::time::Duration;
use stdx::{ClockAnchor, Instant};

/// State of one peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) dialer: DialSchedule,
    /// The open link that this node dialed.
    pub(super) dialed: Option<DialedLink>,
    /// The admitted link that the peer's `Node` dialed. A newer one replaces it.
    pub(super) accepted: Option<AcceptedLink>,
    /// A link of the peer's `Node` that waits until its identity is durable. A newer one replaces
    /// it.
    pub(super) pending_link: Option<AcceptedLink>,
    /// Number of dials that may still fail while the peer, whose link was admitted, counts as
    /// linking.
    pub(super) dial_failures_allowed: u8,
    /// Last time at which the peer answered or sent a heartbeat over any link; at first, the start
    /// of this process.
    pub(super) last_heard: Instant,
    /// State by the failure detector.
    pub(super) state: PeerState,
    /// Another process under the peer's name that was refused while the peer answered at its
    /// address, and the time of the first refusal.
    pub(super) duplicate: Option<(Incarnation, Instant)>,
    /// The peer has refused this process since its last identity report: it is linked with another
    /// process of this node.
    pub(super) has_refused: bool,
    /// The peer has admitted a link of this process. It handles no messages of an earlier process
    /// in the slot of this node any more.
    pub(super) has_admitted: bool,
    /// The peer's last identity report since the start of this process.
    pub(super) identity_report: Option<IdentityReport>,
    /// The peer's newest generation that is recorded here, with the greatest clock heard since the
    /// start of this process.
    pub(super) heard_generation: Option<Generation>,
    /// The generations that were linked before they had decided their sync state, and are not
    /// recorded for this reason. Writes through this node may have counted them.
    pub(super) undecided_generations: UndecidedGenerations,
    /// The peer's last statements about a running plan, over either link.
    pub(super) stated_plan: Option<StatedPlan>,
    /// The peer's default number of replicas of a key, as it last reported.
    pub(super) default_from: Option<NonZeroU8>,
    /// Difference of the peer's wall clock to this node's in microseconds, at its last answer.
    /// Positive if the peer's clock is ahead.
    pub(super) clock_ahead_micros: i64,
    /// The peer's wall clock by its last answer within the round-trip limit, or by its first
    /// answer.
    pub(super) clock: Option<ClockAnchor>,
    pub(super) round_trip: Option<Duration>,
    /// The hints that the peer holds for this node, and the time since which they have not become
    /// fewer. Used by `readiness`.
    pub(super) hint_progress: HintProgress,
    /// Handoff of the hints that this node holds for the peer.
    pub(super) handoff: Handoff,
    /// Set while the peer must be told that hints for it were dropped or lost. Holds the number of
    /// the last request before that; an answer to a later heartbeat clears it.
    pub(super) unacked_repair_notice: Option<u64>,
    /// Number of range requests of the peer that the store is scanning.
    pub(super) ranges_in_flight: u8,
}

/// The link that this node dialed to a peer.
#[derive(Debug)]
pub(super) struct DialedLink {
    pub(super) hello: PeerHello,
    /// Time of the last answer to a heartbeat; at first, the time at which the link opened.
    pub(super) heard_at: Instant,
    /// Number of the last answered heartbeat; at first, of the last request before the link opened.
    pub(super) answered_number: u64,
    /// The payload of that answer.
    pub(super) heartbeat: Option<HeartbeatPayload>,
}

/// A link that a peer's `Node` dialed.
#[derive(Clone, Copy, Debug)]
pub(super) struct AcceptedLink {
    pub(super) link: LinkId,
    pub(super) hello: PeerHello,
    /// Send time of the newest heartbeat over this link, by the peer's clock.
    pub(super) newest_sent_at: Option<Instant>,
    /// Arrival time of that heartbeat; before the first one, of the link.
    pub(super) heard_at: Instant,
}

/// Progress of the hints that a peer holds for this node.
#[derive(Clone, Copy, Debug)]
pub(super) struct HintProgress {
    pub(super) fewest: u64,
    pub(super) since: Instant,
}

impl Peer {
    pub(super) fn new(now: Instant, is_repair_pending: bool) -> Self {
        Self {
            dialer: DialSchedule::new(),
            dialed: None,
            accepted: None,
            pending_link: None,
            dial_failures_allowed: 0,
            last_heard: now,
            state: PeerState::Unknown,
            duplicate: None,
            has_refused: false,
            has_admitted: false,
            identity_report: None,
            heard_generation: None,
            undecided_generations: UndecidedGenerations::default(),
            stated_plan: None,
            default_from: None,
            clock_ahead_micros: 0,
            clock: None,
            round_trip: None,
            hint_progress: HintProgress { fewest: u64::MAX, since: now },
            handoff: Handoff::new(now),
            unacked_repair_notice: is_repair_pending.then_some(0),
            ranges_in_flight: 0,
        }
    }

    /// A peer that has become a member while this node runs. It is unreachable until it is linked,
    /// so that no operation waits for it.
    pub(super) fn appearing(now: Instant) -> Self {
        Self { state: PeerState::Unreachable, ..Self::new(now, false) }
    }

    /// Sync state in the peer's last heartbeat answer; before the first answer, the one in its
    /// hello.
    pub(super) fn sync_state(&self) -> SyncState {
        self.dialed.as_ref().map_or(SyncState::Unsettled, |link| {
            link.heartbeat.map_or(link.hello.sync_state, |heartbeat| heartbeat.sync_state)
        })
    }

    /// Whether the process that this node has dialed was replaced: the link of another one was
    /// admitted.
    pub(super) fn is_dialed_replaced(&self) -> bool {
        let admitted = self.accepted.map(|accepted| accepted.hello.incarnation);
        self.dialed.as_ref().is_some_and(|dialed| admitted.is_some_and(|it| it != dialed.hello.incarnation))
    }

    /// Payload of the last heartbeat answer over the open link.
    pub(super) fn heartbeat(&self) -> Option<HeartbeatPayload> {
        self.dialed.as_ref().and_then(|link| link.heartbeat)
    }

    /// Whether the peer answers, in time or late.
    pub(super) const fn is_reachable(&self) -> bool {
        matches!(self.state, PeerState::Up | PeerState::Suspected)
    }
}
