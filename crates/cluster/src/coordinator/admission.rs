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
//! with much waiting work counts as busy too. Each peer has a delay estimator with half of the
//! deadline: beyond that, its answers would mostly come too late.
//!
//! Batches are paced by [`Coordinator::write_capacity`], and their entries are not refused for the
//! wait, because a refused entry is not retried. Batches may use half of the operations in flight,
//! and leave the other half to single writes.
//!
//! **Caveats.** A write that waits for links or for the clock is checked again when it is resumed.

use super::Coordinator;
use super::context::{Context, Subject};
use super::peers::Availability;
use super::put::{WritePlan, WriteRequirements};
use crate::{Command, CommandFailure, Key, NodeIndex, Quorum, RequestId};
use std::time::Duration;
use stdx::Now;

/// Divisor of the deadline: the longest wait of a write for the local log.
const LOCAL_WAIT_DIVISOR: u32 = 10;
/// Divisor of the deadline: the longest wait of a request at a peer.
const PEER_WAIT_DIVISOR: u32 = 2;
/// Divisor of the deadline: the longest wait of a request at a peer while this node is busy.
const PEER_WAIT_DIVISOR_WHILE_BUSY: u32 = 40;
/// Factor by which writes requested by peers may wait longer than those of clients, because
/// refusing them costs more.
const REPLICA_WAIT_FACTOR: u32 = 2;
/// Divisor of the operations in flight: the share of paced writes.
const PACED_DIVISOR: u64 = 2;

impl Coordinator {
    /// As [`Coordinator::submit`], for a client that limits itself to
    /// [`Coordinator::write_capacity`]: its writes are not refused for the wait.
    ///
    /// # Panics
    /// As [`Coordinator::submit`].
    pub fn submit_paced(&mut self, now: Now, to: RequestId, command: Command) {
        self.context.is_paced = true;
        self.submit(now, to, command);
        self.context.is_paced = false;
    }

    /// Returns the time after which to retry if a write of this key would be refused now, because
    /// too much is in flight. `value_len` is the length of the value in bytes, or `None` for a
    /// delete, which full disks accept as well.
    pub fn write_refusal(&self, key: &Key, value_len: Option<usize>, quorum: Quorum) -> Option<Duration> {
        let context = &self.context;
        if self.operations.is_full() {
            return Some(context.retry_after());
        }
        if !context.is_under_pressure() {
            return None;
        }
        let subject = context.subject(key.clone());
        let bytes = key.as_bytes().len() + value_len.unwrap_or_default();
        let requirements =
            WriteRequirements { subject: &subject, quorum, bytes, is_value: value_len.is_some() };
        match WritePlan::of(context, requirements) {
            Err(CommandFailure::Overloaded { retry_after }) => Some(retry_after),
            _ => None,
        }
    }

    /// Number of further writes that [`Coordinator::submit_paced`] can take.
    pub fn write_capacity(&self) -> usize {
        self.context.writes.capacity(self.context.limits.request_timeout / LOCAL_WAIT_DIVISOR, PACED_DIVISOR)
    }

    /// Expected time until the local writes in flight are done.
    pub fn drain_time(&self) -> Duration {
        self.context.writes.drain_time()
    }
}

impl Context {
    /// Whether this node or a peer may be busy.
    fn is_under_pressure(&self) -> bool {
        !self.admits_local_write()
            || self.peers.iter().any(|peer| !peer.delay.admits(self.peer_wait_max(false)))
    }

    /// Whether this node is a replica of a key, and too much work waits for its log.
    pub(super) fn is_local_log_busy(&self, subject: &Subject, quorum: Quorum) -> bool {
        !self.is_paced
            && !self.admits_local_write()
            && quorum.has_replica(self.replica_index(subject, self.member.me))
    }

    /// Whether `node` can be asked to store `bytes` for a client.
    pub(super) fn admits_write(
        &self,
        node: NodeIndex,
        bytes: usize,
        is_value: bool,
        is_local_log_busy: bool,
    ) -> Availability {
        let is_busy = match node == self.member.me {
            true => is_local_log_busy,
            false => is_local_log_busy && !self.peers[node.as_usize()].delay.admits(self.peer_wait_max(true)),
        };
        match self.can_write(node, bytes, is_value) {
            Availability::Ready if is_busy => Availability::Busy,
            availability => availability,
        }
    }

    /// Longest wait of a request at a peer.
    pub(super) fn peer_wait_max(&self, is_local_log_busy: bool) -> Duration {
        self.limits.request_timeout
            / if is_local_log_busy { PEER_WAIT_DIVISOR_WHILE_BUSY } else { PEER_WAIT_DIVISOR }
    }

    /// Longest wait of a write requested by a peer.
    pub(super) fn replica_wait_max(&self) -> Duration {
        self.limits.request_timeout / LOCAL_WAIT_DIVISOR * REPLICA_WAIT_FACTOR
    }

    /// Expected time until the work in flight is done, here and at peers.
    pub(super) fn retry_after(&self) -> Duration {
        let peers = self.peers.iter().map(|peer| peer.delay.drain_time()).max();
        self.writes.drain_time().max(peers.unwrap_or_default())
    }

    fn admits_local_write(&self) -> bool {
        self.writes.admits(self.limits.request_timeout / LOCAL_WAIT_DIVISOR)
    }
}
