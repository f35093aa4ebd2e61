//! Admission control of writes.
//!
//! **Promise.** A write that would wait for longer than a tenth of the deadline is refused at once,
//! with nothing sent or stored, unless enough other replicas can be asked. Reads are never refused
//! because of writes. The outcome can be queried beforehand ([`Coordinator::write_refusal`]), so
//! that no value has to be copied for a write that will be refused.
//!
//! **Mechanism.** The local replica is treated like a peer here too. If too much work waits for its
//! log, it is *busy*, as a peer is at its bounds. A write is then stored on the other replicas,
//! with a hint for this node. That helps if this node's disk is slow, and does harm if all disks
//! are: each write spared here then costs twice the work there. So while this node is busy, a peer
//! with much waiting work counts as busy too. Each peer has an `Admission` with half of the
//! deadline: beyond that, its answers would mostly come too late.
//!
//! Batches are paced by [`Coordinator::write_capacity`], and their entries are not refused for the
//! wait, because a refused entry is not retried. Batches may use half of the operations in flight,
//! and leave the other half to single writes.
//!
//! **Caveats.** A write that waits for links or for the clock is checked again when it is resumed.

use super::Coordinator;
use super::peers::WritePacing;
use super::put::{WritePlan, WriteRequirements};
use crate::{Command, CommandFailure, Key, Quorum, RequestId};
use std::time::Duration;
use stdx::Now;

impl Coordinator {
    /// As [`Coordinator::submit`], for a client that limits itself to
    /// [`Coordinator::write_capacity`]: its writes are not refused for the wait.
    ///
    /// # Panics
    /// As [`Coordinator::submit`].
    pub fn submit_paced(&mut self, now: Now, to: RequestId, command: Command) {
        self.submit_with(now, to, command, WritePacing::Paced);
    }

    /// Returns the time after which to retry if a write of this key would be refused now, because
    /// too much is in flight. `value_len` is the length of the value in bytes, or `None` for a
    /// delete, which full disks accept as well.
    pub fn write_refusal(&self, key: &Key, value_len: Option<usize>, quorum: Quorum) -> Option<Duration> {
        let peers = &self.context.peers;
        if self.operations.is_full() {
            return Some(peers.retry_after());
        }
        if !peers.is_under_pressure() {
            return None;
        }
        let subject = peers.subject(key.clone());
        let bytes = key.as_bytes().len() + value_len.unwrap_or_default();
        let requirements = WriteRequirements {
            subject: &subject,
            quorum,
            bytes,
            is_value: value_len.is_some(),
            pacing: WritePacing::Unpaced,
        };
        match WritePlan::of(peers, requirements) {
            Err(CommandFailure::Overloaded { retry_after }) => Some(retry_after),
            _ => None,
        }
    }

    /// Number of further writes that [`Coordinator::submit_paced`] can take.
    pub fn write_capacity(&self) -> usize {
        self.context.peers.paced_write_capacity()
    }

    /// Expected time until the local writes in flight are done.
    pub fn drain_time(&self) -> Duration {
        self.context.peers.writes.drain_time()
    }
}
