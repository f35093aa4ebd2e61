//! What follows when this process went on after it stood still for longer than hints surely cover.
//!
//! **Promise.** Such a node owes its peers a repair, durably, and they owe one to it, as after a start that follows an
//! absence of that length. The driver learns when that is durable, or already paid.
//!
//! **Mechanism.** The driver counts absences, and gives the number again and again. When it has risen, a repair is owed to all
//! peers, and each is told so by the next heartbeats until it has answered one.

use super::Node;
use stdx::Now;

impl Node {
    /// Takes note of how often this process stood still for too long since its start. To be called again and again.
    pub fn handle_absences(&mut self, now: Now, absences: u64) {
        if self.absences < absences {
            self.absences = absences;
            let told_before = self.outbox.last_number();
            for node in self.peer_nodes() {
                self.peer_mut(node).untold = Some(told_before);
            }
            self.owe_repair(self.peer_nodes().collect());
            self.advance(now);
        }
    }

    /// The number of absences for which it is durable that a repair is owed, or for which it is paid; `None` while that
    /// is being stored.
    pub fn absences_owed(&self) -> Option<u64> {
        (!self.record.is_behind()).then_some(self.absences)
    }
}
