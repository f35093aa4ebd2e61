//! Links to peers: those that a thread dialed, and those that were accepted for it.
//!
//! **Promise.** A link is a TCP connection that was upgraded from HTTP on the node's single port.
//! Both sides have proved that they belong to the same cluster (`wire::handshake`). The state
//! machine of a link receives its events in the order in which they happened, and none after its
//! end.
//!
//! **Mechanism.** [`Links`] is the table of a thread's links with their writing sides ([`link`]). A
//! task for each link reads it and passes the messages to the driver. [`dial`] opens links.
//! [`accept`] authenticates incoming ones, and the `Node` on the control thread decides their
//! admission (`driver::node_machine`). [`join_accept`] answers nodes that ask to be members.
//!
//! **Caveats.** No TLS: the handshake authenticates the peer, and encrypts nothing.

pub(crate) mod accept;
mod address;
mod counters;
pub(crate) mod dial;
mod exchange;
mod handshakes;
pub(crate) mod join_accept;
mod link;
mod peer_addresses;
mod peer_warnings;

use crate::adopted_layout::AdoptedLayout;
pub(crate) use address::{InvalidAddress, PeerAddress, Resolver};
use cluster::{Destination, HybridClock, LinkId, Member, Message, NODES_MAX, NodeIndex, NodeSet, Origin};
pub(crate) use counters::{LinkCounters, LinkCounts, PeerCounts};
use env::Clock;
use handshakes::Handshakes;
use limits::{Budget, MemoryCategory};
pub(crate) use link::LinkTask;
use link::{FlushOutcome, Link};
pub(crate) use peer_addresses::{PeerAddresses, StatedUrl, UnreachedUrl};
pub(crate) use peer_warnings::PeerWarnings;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::task::AbortHandle;
use wire::handshake::{HandshakeError, NONCE_LEN, ProtocolVersions};
use wire::{Outbox, OutboxLimits};

/// Smallest limit of the messages that wait in a link for a slow peer, in bytes. The limit always
/// exceeds twice the largest value.
const OUTBOX_BYTES_MIN: usize = 64 << 20;

/// Random bytes for one handshake.
pub(crate) fn nonce() -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    for part in nonce.chunks_exact_mut(size_of::<u64>()) {
        part.copy_from_slice(&env::os_process::entropy_u64().to_le_bytes());
    }
    nonce
}

/// State that the links of all threads share.
pub(crate) struct PeerLinks {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) resolver: Resolver,
    /// Permits for handshakes with nodes that dial this one.
    pub(crate) handshakes: Arc<Handshakes>,
    pub(crate) warnings: PeerWarnings,
}

impl PeerLinks {
    /// The state of a node with at most `handshakes_max` handshakes of unknown dialers.
    pub(crate) fn new(clock: &Arc<dyn Clock>, handshakes_max: usize) -> Self {
        Self {
            clock: Arc::clone(clock),
            resolver: Resolver::default(),
            handshakes: Arc::new(Handshakes::new(handshakes_max)),
            warnings: PeerWarnings::default(),
        }
    }

    /// Reports that a link with `peer` which speaks `version` is closed, because this node has
    /// adopted a record that rules it out. Returns the reason.
    pub(crate) fn refuse_version(&self, peer: &str, version: u8, adopted: &AdoptedLayout) -> String {
        let theirs = ProtocolVersions { min: version, max: version };
        let (epoch, needed) = (adopted.record.epoch, adopted.versions.min);
        let reason = HandshakeError::TooOldForRecord { epoch, needed, theirs }.to_string();
        if self.warnings.count_refused(self.clock.now().mono, peer, &reason) {
            tracing::warn!(peer, reason, "a peer was refused");
        }
        reason
    }
}

/// The links of one thread.
pub(crate) struct Links {
    /// By slot.
    dialed: Vec<DialState>,
    accepted: BTreeMap<LinkId, Link>,
    /// Links with messages to write at the end of the iteration.
    waiting: Vec<Destination>,
    tried: NodeSet,
    serials: u64,
    clock: Arc<HybridClock>,
    counters: Arc<LinkCounters>,
    limits: OutboxLimits,
    memory: Arc<Budget>,
    write_buffer: Vec<u8>,
}

#[allow(clippy::large_enum_variant, reason = "there is one for each slot")]
enum DialState {
    No,
    Dialing { _task: DialTask },
    Open(Link),
}

/// A dial in flight. Dropping it aborts the dial.
struct DialTask(AbortHandle);

/// A link whose socket accepts no more for now.
pub(crate) struct Blocked {
    pub(crate) link: Destination,
    pub(crate) serial: u64,
    pub(crate) socket: Rc<OwnedWriteHalf>,
}

impl Links {
    /// A table without links of `member`, for values of up to `value_bytes_max`.
    pub(crate) fn new(
        member: &Member,
        value_bytes_max: usize,
        memory: &Arc<Budget>,
        counters: Arc<LinkCounters>,
    ) -> Self {
        let bytes_max = OUTBOX_BYTES_MIN.max(2 * value_bytes_max + OUTBOX_BYTES_MIN / 2);
        Self {
            dialed: (0..NODES_MAX).map(|_| DialState::No).collect(),
            accepted: BTreeMap::new(),
            waiting: Vec::new(),
            tried: NodeSet::EMPTY,
            serials: 0,
            clock: Arc::clone(&member.clock),
            counters,
            limits: OutboxLimits { bytes_max },
            memory: Arc::clone(memory),
            write_buffer: Vec::new(),
        }
    }

    /// Registers the dial of `node` that `task` runs.
    pub(crate) fn dialing(&mut self, node: NodeIndex, task: AbortHandle) {
        let dialed = &mut self.dialed[node.as_usize()];
        assert!(matches!(dialed, DialState::No), "{node:?} is already dialed");
        *dialed = DialState::Dialing { _task: DialTask(task) };
    }

    /// Notes that the dial of `node` failed.
    pub(crate) fn dial_failed(&mut self, node: NodeIndex) {
        self.counters.dial_failed(node);
        self.tried.insert(node);
        self.dialed[node.as_usize()] = DialState::No;
    }

    /// Whether a dial of `node` has ended, successfully or not.
    pub(crate) fn was_tried(&self, node: NodeIndex) -> bool {
        self.tried.contains(node)
    }

    /// Registers an open link that speaks `version` of the protocol and whose first bytes are
    /// `begins_with`. Returns its serial number.
    pub(crate) fn open(
        &mut self,
        origin: Origin,
        version: u8,
        socket: OwnedWriteHalf,
        begins_with: Vec<u8>,
    ) -> u64 {
        let Origin { node: peer, link: at } = origin;
        self.serials += 1;
        self.counters.opened(peer);
        let waits = !begins_with.is_empty();
        let reservation = self.memory.empty_reservation(MemoryCategory::PeerLinks);
        let outbox = Outbox::new(self.limits).speaking(version);
        let mut link = Link::new((peer, version), self.serials, socket, outbox, reservation, begins_with);
        link.waits = waits;
        if waits {
            self.waiting.push(at);
        }
        match at {
            Destination::Dialed(node) => {
                self.tried.insert(node);
                self.dialed[node.as_usize()] = DialState::Open(link);
            }
            Destination::Accepted(id) => {
                let former = self.accepted.insert(id, link);
                assert!(former.is_none(), "link numbers are unique");
            }
        }
        self.count_open();
        self.serials
    }

    /// Ties a task to the link: it is aborted when the link closes.
    pub(crate) fn ends(&mut self, at: Destination, task: LinkTask, handle: AbortHandle) {
        match self.find(at) {
            Some(link) => link.ends(task, handle),
            None => handle.abort(),
        }
    }

    /// Closes the link that was dialed to `node`, or aborts its dial.
    pub(crate) fn hang_up(&mut self, node: NodeIndex) {
        self.dialed[node.as_usize()] = DialState::No;
        self.count_open();
    }

    /// Closes an accepted link. Returns whether it was open.
    pub(crate) fn close(&mut self, id: LinkId) -> bool {
        let was_there = self.accepted.remove(&id).is_some();
        self.count_open();
        was_there
    }

    /// Closes the links that were accepted from `node`. Returns them.
    pub(crate) fn close_accepted_from(&mut self, node: NodeIndex) -> Vec<LinkId> {
        let ids: Vec<_> =
            self.accepted.iter().filter(|(_, link)| link.peer == node).map(|(id, _)| *id).collect();
        for id in &ids {
            self.close(*id);
        }
        ids
    }

    /// The open links that speak a version before `min`, with their versions.
    pub(crate) fn older_than(&self, min: u8) -> Vec<(Origin, u8)> {
        let dialed = self.dialed.iter().filter_map(|dialed| match dialed {
            DialState::Open(link) => Some((Destination::Dialed(link.peer), link)),
            DialState::No | DialState::Dialing { .. } => None,
        });
        let accepted = self.accepted.iter().map(|(id, link)| (Destination::Accepted(*id), link));
        let older = dialed.chain(accepted).filter(|(_, link)| link.version < min);
        older.map(|(at, link)| (Origin { node: link.peer, link: at }, link.version)).collect()
    }

    /// Notes that a link ended by itself. `false`: it was closed before, or another link has taken
    /// its place.
    pub(crate) fn ended(&mut self, at: Destination, serial: u64) -> bool {
        if self.find(at).is_none_or(|link| link.serial != serial) {
            return false;
        }
        match at {
            Destination::Dialed(node) => self.hang_up(node),
            Destination::Accepted(id) => drop(self.close(id)),
        }
        true
    }

    /// Queues `message` for the end of the iteration, if the link is open and memory is available.
    pub(crate) fn push(&mut self, to: Destination, message: &Message) {
        let Some(link) = find(&mut self.dialed, &mut self.accepted, to) else {
            return;
        };
        link.push(message, &self.counters);
        if !link.waits {
            link.waits = true;
            self.waiting.push(to);
        }
    }

    /// Writes the waiting messages. Returns the links that could not write all of them:
    /// [`Links::unblocked`] continues with them.
    pub(crate) fn flush(&mut self) -> Vec<Blocked> {
        let mut waiting = std::mem::take(&mut self.waiting);
        let blocked = waiting.drain(..).filter_map(|to| self.flush_link(to)).collect();
        self.waiting = waiting;
        blocked
    }

    /// Continues to write after the socket of the link accepts more.
    pub(crate) fn unblocked(&mut self, at: Destination, serial: u64) -> Option<Blocked> {
        let is_same = self.find(at).is_some_and(|link| link.serial == serial);
        if is_same { self.flush_link(at) } else { None }
    }

    fn count_open(&self) {
        let dialed = self.dialed.iter().filter(|dialed| matches!(dialed, DialState::Open(_))).count();
        self.counters.open(dialed, self.accepted.len());
    }

    fn flush_link(&mut self, at: Destination) -> Option<Blocked> {
        let clock = self.clock.shown();
        let link = find(&mut self.dialed, &mut self.accepted, at)?;
        match link.flush(clock, &mut self.write_buffer, &self.counters) {
            FlushOutcome::Done => {
                link.waits = false;
                None
            }
            FlushOutcome::Blocked(socket) => Some(Blocked { link: at, serial: link.serial, socket }),
        }
    }

    fn find(&mut self, at: Destination) -> Option<&mut Link> {
        find(&mut self.dialed, &mut self.accepted, at)
    }
}

fn find<'a>(
    dialed: &'a mut [DialState],
    accepted: &'a mut BTreeMap<LinkId, Link>,
    at: Destination,
) -> Option<&'a mut Link> {
    match at {
        Destination::Dialed(node) => match &mut dialed[node.as_usize()] {
            DialState::Open(link) => Some(link),
            DialState::No | DialState::Dialing { .. } => None,
        },
        Destination::Accepted(id) => accepted.get_mut(&id),
    }
}

impl Drop for DialTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}
