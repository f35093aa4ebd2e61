//! The drain before the process ends: pending hints are delivered to reachable peers.
//!
//! The drain has finished when no hints are left for peers that are up, or when no hint was
//! delivered for [`PROGRESS_TIMEOUT`]. It then stays finished: later hints wait for the next start
//! of the node.

use super::Node;
use std::time::Duration;
use stdx::{Instant, Now};

/// Time without a delivered hint after which the drain ends.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(2);

/// Progress of the drain.
#[derive(Debug)]
pub(super) struct Drain {
    hints_removed: u64,
    moved_at: Instant,
    pub(super) is_finished: bool,
}

impl Node {
    pub(super) fn start_drain(&mut self, now: Now) {
        if self.drain.is_some() {
            return;
        }
        self.drain =
            Some(Drain { hints_removed: self.total_hints_removed(), moved_at: now.mono, is_finished: false });
        for peer in &mut self.peers {
            peer.handoff.expedite(now.mono);
        }
        self.peer_nodes().for_each(|node| self.store_heard_generation(node));
        self.send_heartbeats(now);
    }

    pub(super) fn advance_drain(&mut self, now: Now) {
        let hints_removed = self.total_hints_removed();
        let has_work =
            self.record.is_dirty() || self.peer_nodes().any(|node| self.has_hints_to_deliver(node));
        if let Some(drain) = &mut self.drain {
            if hints_removed != drain.hints_removed {
                (drain.hints_removed, drain.moved_at) = (hints_removed, now.mono);
            }
            drain.is_finished |= !has_work || now.mono - drain.moved_at >= PROGRESS_TIMEOUT;
        }
    }

    fn total_hints_removed(&self) -> u64 {
        self.peers.iter().map(|peer| peer.handoff.hints_removed).sum()
    }
}
