//! The end of a process: hints that reachable peers lack are handed over first.
//!
//! It is over when nothing is left for peers that are up, or when nothing has moved for [`PROGRESS_WITHIN`]. Once
//! over, it stays so: hints that come later wait for the next start.

use super::Node;
use std::time::Duration;
use stdx::{Instant, Now};

/// A handoff that brings nothing over for so long is not waited for.
const PROGRESS_WITHIN: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub(super) struct Drain {
    gone: u64,
    moved_at: Instant,
    pub(super) is_over: bool,
}

impl Node {
    pub(super) fn start_drain(&mut self, now: Now) {
        if self.drain.is_some() {
            return;
        }
        self.drain = Some(Drain { gone: self.hints_gone(), moved_at: now.mono, is_over: false });
        for peer in &mut self.peers {
            peer.handoff.hurry(now.mono);
        }
        self.peer_nodes().for_each(|node| self.keep_heard_generation(node));
        self.send_heartbeats(now);
    }

    pub(super) fn advance_drain(&mut self, now: Now) {
        let gone = self.hints_gone();
        let has_work = self.record.is_behind() || self.peer_nodes().any(|node| self.has_to_hand_over(node));
        if let Some(drain) = &mut self.drain {
            if gone != drain.gone {
                (drain.gone, drain.moved_at) = (gone, now.mono);
            }
            drain.is_over |= !has_work || now.mono - drain.moved_at >= PROGRESS_WITHIN;
        }
    }

    fn hints_gone(&self) -> u64 {
        self.peers.iter().map(|peer| peer.handoff.gone).sum()
    }
}
