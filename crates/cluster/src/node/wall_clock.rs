//! Whether this node's wall clock can be right, as far as its peers' clocks tell.
//!
//! **Promise.** Versions are issued from the wall clock only up to the *ceiling*: a time at which the peers that agree
//! with it, and they are enough, still accept the version. With a single peer that disagrees neither of the two is
//! taken to be wrong: what the one would refuse is not issued by the other, and both say that they differ.
//!
//! **Mechanism.** Each answer to a heartbeat holds the peer's wall time. It is kept as a [`ClockAnchor`], so what the
//! peer's clock shows is known at any later moment, whatever this node's own wall clock does meanwhile. A peer *agrees*
//! while this node's wall clock is at most [`HybridClock::SKEW_MAX`] ahead of its own; a clock behind the others is no
//! matter here, since its versions are accepted. Of the clocks that can be heard, this one counted among them:
//!
//! - More than half agree, and one of them is a peer: the ceiling is `SKEW_MAX` past the slowest clock of those that
//!   agree. So none of them refuses a version that is issued before the next comparison.
//! - At least two peers disagree, and they are more than half: the ceiling is `SKEW_MAX` past a time that enough of
//!   them show. This node's clock is past it, so it issues nothing.
//! - Neither: who is wrong is not known. A ceiling that was found earlier stays: it tells a step of this node's clock
//!   from one of the peer's. Before there was one, the ceiling is `SKEW_MAX` past the peers, so that a node which starts
//!   with a clock far ahead of its only peer issues nothing.
//! - No peer was heard, and each is known to be unreachable: the wall clock is followed. While one may still be heard,
//!   nothing is issued.
//!
//! **Caveats.** A ceiling outlasts the peers it came from. While all are unreachable, a step forward (a suspended
//! machine also makes one) is refused until one of them answers, the clock is set back, or the process starts anew.
//! An answer shows the peer's time a little late, which lowers the ceiling by as much. An answer that took longer than
//! [`ANSWER_SOON`] says too little, and counts only where there is no other.

use super::Node;
use crate::{HeartbeatPayload, HybridClock, NODES_MAX, NodeIndex, NodeSet, PeerState, WallCeiling};
use std::time::Duration;
use stdx::{ClockAnchor, Now, WallTime};

/// An answer within this time tells what the peer's clock shows.
const ANSWER_SOON: Duration = Duration::from_secs(1);

/// What the comparison with the peers' clocks has found so far.
#[derive(Clone, Copy, Debug)]
pub(super) enum WallClock {
    /// No peer has told its time.
    Unheard,
    /// The peers that were heard are too few to say whose clock is wrong, and have never agreed.
    Disputed(ClockAnchor),
    /// Enough peers told up to which time they believe this node.
    Compared(ClockAnchor),
}

impl Node {
    /// Takes note of the wall time in a peer's answer.
    pub(super) fn note_wall_clock(&mut self, now: Now, node: NodeIndex, its: &HeartbeatPayload) {
        let peer = self.peer_mut(node);
        if peer.clock.is_none() || now.mono - its.sent <= ANSWER_SOON {
            peer.clock = Some(ClockAnchor::new(Now { mono: now.mono, wall: its.wall }));
        }
    }

    /// Compares the wall clocks, and sets the ceiling of the version clock by them.
    pub(super) fn compare_clocks(&mut self, now: Now) {
        if let Some(compared) = self.compared(now) {
            self.wall_clock = compared;
        }
        let may_be_heard = |node| self.peer(node).state != PeerState::Unreachable;
        let ceiling = match self.wall_clock {
            WallClock::Compared(ceiling) | WallClock::Disputed(ceiling) => WallCeiling::At(ceiling),
            WallClock::Unheard if self.peer_nodes().any(may_be_heard) => WallCeiling::Unheard,
            WallClock::Unheard => WallCeiling::Unlimited,
        };
        self.member.clock.set_ceiling(ceiling);
    }

    /// The time up to which this node has heard of all deletes, for the host to note durably; `None` before it is ready,
    /// and while peers may be reachable that have not told their time. It is not past the ceiling: a time that only this
    /// node's clock shows would hide a later absence until it has come.
    pub fn heard_to(&self, now: Now) -> Option<WallTime> {
        let read_eligible = match self.member.clock.ceiling() {
            WallCeiling::Unlimited => now.wall,
            WallCeiling::Unheard => return None,
            WallCeiling::At(ceiling) => now.wall.min(ceiling.expected_wall(now)),
        };
        self.is_ready().then_some(read_eligible)
    }

    /// The latest time that the clocks of a majority support at `now`; `None` while the clocks heard give no majority, or
    /// none was heard.
    pub fn supported_wall(&self, now: Now) -> Option<WallTime> {
        match self.wall_clock {
            WallClock::Compared(ceiling) => Some(ceiling.expected_wall(now)),
            WallClock::Disputed(_) | WallClock::Unheard => None,
        }
    }

    /// Whether this node's wall clock is known to be further ahead than the peers believe.
    pub(super) fn is_clock_ahead(&self, now: Now) -> bool {
        matches!(self.wall_clock, WallClock::Compared(ceiling) if now.wall > ceiling.expected_wall(now))
    }

    /// Reachable peers whose clocks are so far behind that they would refuse what this node issues.
    pub(super) fn refusing(&self, now: Now) -> NodeSet {
        let next = now.wall.max(self.member.clock.issued().wall());
        self.heard(now).filter(|&(_, wall)| !is_accepted(next, wall)).map(|(node, _)| node).collect()
    }

    /// What a comparison finds now; `None`: nothing new.
    fn compared(&self, now: Now) -> Option<WallClock> {
        // On the stack: this is asked at each event of the node.
        let mut walls = [WallTime::default(); NODES_MAX];
        let heard = self.heard(now).zip(&mut walls).map(|((_, wall), entry)| *entry = wall).count();
        let walls = &mut walls[..heard];
        walls.sort_unstable_by(|a, b| b.cmp(a));
        // So many peers and this node are more than half of all that are heard.
        let enough = walls.len().div_ceil(2);
        let fastest_of_enough = *walls.get(enough.checked_sub(1)?)?;
        let agree = walls.iter().take_while(|&&wall| is_accepted(now.wall, wall)).count();
        let disagree = walls.len() - agree;
        let up_to = |wall: WallTime| {
            ClockAnchor::new(Now { mono: now.mono, wall: wall.saturating_add(HybridClock::SKEW_MAX) })
        };
        if agree >= enough {
            Some(WallClock::Compared(up_to(walls[agree - 1])))
        } else if disagree >= 2 && disagree * 2 > walls.len() + 1 {
            Some(WallClock::Compared(up_to(fastest_of_enough)))
        } else if !matches!(self.wall_clock, WallClock::Compared(_)) {
            Some(WallClock::Disputed(up_to(fastest_of_enough)))
        } else {
            None
        }
    }

    /// Peers that answer, and what their wall clocks show.
    pub(super) fn heard(&self, now: Now) -> impl Iterator<Item = (NodeIndex, WallTime)> {
        let peers = self.peer_nodes().map(|node| (node, self.peer(node)));
        peers
            .filter(|(_, peer)| peer.is_reachable())
            .filter_map(move |(node, peer)| peer.clock.map(|clock| (node, clock.expected_wall(now))))
    }
}

/// Whether a node whose wall clock shows `wall` accepts versions of `issued`.
fn is_accepted(issued: WallTime, wall: WallTime) -> bool {
    !HybridClock::is_ahead(stdx::Hlc::at(issued), wall)
}
