//! Repairs after a long pause of this process, such as a suspended machine.
//!
//! **Promise.** An *absence* is a pause that is longer than the time which hints are sure to cover.
//! After an absence this node durably requests a repair with each peer, and each peer requests one
//! with this node. This is the same as after a restart that follows an outage of that length. The
//! driver learns when the request is durable or the repair has ended.
//!
//! **Mechanism.** The driver counts absences and reports the count repeatedly. When the count has
//! grown, a repair with all peers becomes pending. The heartbeats to each peer tell it so until it
//! has answered one of them.

use super::Node;
use stdx::Now;

impl Node {
    /// Sets the number of absences since the start of this process. The driver calls this
    /// repeatedly; only a greater number has an effect.
    pub fn handle_absences(&mut self, now: Now, absences: u64) {
        if self.absences < absences {
            self.absences = absences;
            let last_request = self.outbox.last_request_number();
            for node in self.peer_nodes() {
                self.peer_mut(node).unacked_repair_notice = Some(last_request);
            }
            self.mark_repair_pending(self.peer_nodes().collect());
            self.advance(now);
        }
    }

    /// Number of absences whose repair is durably pending or has ended. `None` while the record is
    /// being stored.
    pub fn absences_recorded(&self) -> Option<u64> {
        (!self.record.is_dirty()).then_some(self.absences)
    }
}
