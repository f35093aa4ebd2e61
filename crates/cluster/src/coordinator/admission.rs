//! Which writes come in: those that can be done soon.
//!
//! **Promise.** A write that would wait for longer than a tenth of the deadline is refused at once, with nothing sent or
//! stored, unless enough other replicas can be asked. Reads are never refused because of writes. What is refused can
//! be known beforehand ([`Coordinator::write_refusal`]), so that no value has to be copied to be told so.
//!
//! **Mechanism.** The local replica is one more message target here too: when too much waits for its log, it is *busy*, as a
//! peer is at its bounds, and a write is stored on the others, with a hint for this node. That helps where this node's disk
//! is slow, and harms where all are: then what is spared here is twice the work there. So while this node is busy, a peer
//! where much waits counts as busy too. Peers have a flow each, with half of the deadline: past that their answers would
//! come too late for most.
//!
//! Batches pace themselves by [`Coordinator::write_capacity`], and are let in with what they bring: an entry that was refused
//! has no second try. They get half of what may be under way, and leave the other to single writes.
//!
//! **Caveats.** A write that waits for links or for the clock is judged again when its turn comes.

use super::Coordinator;
use super::context::{Context, Subject};
use super::peers::Availability;
use super::put::{WritePlan, WriteRequirements};
use crate::{Command, Failure, Key, NodeIndex, Quorum, RequestId};
use std::time::Duration;
use stdx::Now;

/// The part of the deadline that a write may wait for the local log.
const LOCAL_WAIT_DIVISOR: u32 = 10;
/// The part that a request may wait at a peer.
const PEER_WAIT_DIVISOR: u32 = 2;
/// The same while this node is busy.
const PEER_WAIT_DIVISOR_WHILE_BUSY: u32 = 40;
/// Writes that peers ask for may wait so many times as long as those of clients: to refuse them costs more.
const REPLICA_WAIT_FACTOR: u32 = 2;
/// Whoever paces itself gets one in so many of the operations that may be under way.
const PACED_DIVISOR: u64 = 2;

impl Coordinator {
    /// As [`Coordinator::submit`], for whoever keeps to [`Coordinator::write_capacity`]: not refused for the wait.
    ///
    /// # Panics
    /// As [`Coordinator::submit`].
    pub fn submit_paced(&mut self, now: Now, to: RequestId, command: Command) {
        self.context.is_paced = true;
        self.submit(now, to, command);
        self.context.is_paced = false;
    }

    /// When to try again, if a write of this key would be refused because too much is under way. `value_len` is the length
    /// of the value in bytes; `None`: it is a delete, which full disks take as well.
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
            Err(Failure::Overloaded { retry_after }) => Some(retry_after),
            _ => None,
        }
    }

    /// How many writes more can come in by [`Coordinator::submit_paced`].
    pub fn write_capacity(&self) -> usize {
        self.context.writes.capacity(self.context.limits.request_timeout / LOCAL_WAIT_DIVISOR, PACED_DIVISOR)
    }

    /// How long the writes under way will take here.
    pub fn drain_time(&self) -> Duration {
        self.context.writes.drain_time()
    }
}

impl Context {
    /// Whether this node could be busy, or a peer.
    fn is_under_pressure(&self) -> bool {
        !self.admits_local_write()
            || self.peers.iter().any(|peer| !peer.delay.admits(self.peer_wait_max(false)))
    }

    /// Whether this node holds a key, and too much waits for its log.
    pub(super) fn is_local_log_busy(&self, subject: &Subject, from: u8) -> bool {
        !self.is_paced && !self.admits_local_write() && self.replica_index(subject, self.member.me) < from
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

    /// How long a request may wait at a peer.
    pub(super) fn peer_wait_max(&self, is_local_log_busy: bool) -> Duration {
        self.limits.request_timeout
            / if is_local_log_busy { PEER_WAIT_DIVISOR_WHILE_BUSY } else { PEER_WAIT_DIVISOR }
    }

    /// How long a write that a peer asks for may wait.
    pub(super) fn replica_wait_max(&self) -> Duration {
        self.limits.request_timeout / LOCAL_WAIT_DIVISOR * REPLICA_WAIT_FACTOR
    }

    /// When what is under way will be done, here and at peers.
    pub(super) fn retry_after(&self) -> Duration {
        let peers = self.peers.iter().map(|peer| peer.delay.drain_time()).max();
        self.writes.drain_time().max(peers.unwrap_or_default())
    }

    fn admits_local_write(&self) -> bool {
        self.writes.admits(self.limits.request_timeout / LOCAL_WAIT_DIVISOR)
    }
}
