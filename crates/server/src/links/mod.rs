//! Links to peers: what one thread dialed, and what was accepted for it.
//!
//! **Promise.** A link is a TCP connection upgraded from HTTP on the node's one port, over which both sides have
//! proved that they belong to the same cluster (`wire::handshake`). What its machine is told of it is in the
//! order in which it happened, and nothing is said of a link after its end.
//!
//! **Mechanism.** [`Links`] is the table of a thread's links with their writing sides ([`link`]); a task for each
//! reads it and brings what came to the driver. [`dial`] opens links, [`accept`] lets them in as far as the
//! handshake; whether they may come in decides the `Node`, on the control thread (`driver::node_machine`).
//!
//! **Caveats.** No TLS: the handshake proves who is there, and hides nothing.

pub(crate) mod accept;
mod address;
mod counters;
pub(crate) mod dial;
mod exchange;
mod handshakes;
mod link;
mod peer_warnings;

use crate::budget::{MemoryBudget, MemoryCategory};
use crate::local::Local;
use crate::process::Process;
pub(crate) use address::{InvalidAddress, PeerAddress, Resolver};
use cluster::{Destination, HybridClock, LinkId, Message, NodeIndex, NodeSet, Origin};
pub(crate) use counters::{LinkCounters, LinkCounts, PeerCounts};
pub(crate) use handshakes::Handshakes;
pub(crate) use link::LinkTask;
use link::{FlushOutcome, Link};
pub(crate) use peer_warnings::PeerWarnings;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::task::AbortHandle;
use wire::handshake::NONCE_LEN;
use wire::{Outbox, OutboxLimits};

/// What waits in a link for a peer that does not read, at least. A value of the greatest size fits twice.
const OUTBOX_BYTES_MIN: usize = 64 << 20;

/// 32 random bytes for one handshake.
fn nonce() -> [u8; NONCE_LEN] {
    let mut nonce = [0; NONCE_LEN];
    for part in nonce.chunks_exact_mut(size_of::<u64>()) {
        part.copy_from_slice(&env::os_process::entropy_u64().to_le_bytes());
    }
    nonce
}

/// The links of one thread.
pub(crate) struct Links {
    dialed: Vec<DialState>,
    accepted: BTreeMap<LinkId, Link>,
    /// Links with something to write when the turn ends.
    waiting: Vec<Destination>,
    tried: NodeSet,
    serials: u64,
    clock: Arc<HybridClock>,
    counters: Arc<LinkCounters>,
    limits: OutboxLimits,
    memory: Arc<MemoryBudget>,
    write_buffer: Vec<u8>,
}

enum DialState {
    No,
    Dialing { _task: DialTask },
    Open(Link),
}

/// A dial under way; dropping it ends it.
struct DialTask(AbortHandle);

/// A link whose socket takes no more for now.
pub(crate) struct Blocked {
    pub(crate) link: Destination,
    pub(crate) serial: u64,
    pub(crate) socket: Rc<OwnedWriteHalf>,
}

impl Links {
    /// No links.
    pub(crate) fn new(process: &Process, local: &Local, counters: Arc<LinkCounters>) -> Self {
        let bytes_max = OUTBOX_BYTES_MIN.max(2 * process.config.value_bytes_max + OUTBOX_BYTES_MIN / 2);
        Self {
            dialed: local.member.layout.nodes().map(|_| DialState::No).collect(),
            accepted: BTreeMap::new(),
            waiting: Vec::new(),
            tried: NodeSet::EMPTY,
            serials: 0,
            clock: Arc::clone(&local.member.clock),
            counters,
            limits: OutboxLimits { bytes_max },
            memory: Arc::clone(&process.memory),
            write_buffer: Vec::new(),
        }
    }

    /// A dial of `node` has begun.
    pub(crate) fn dialing(&mut self, node: NodeIndex, task: AbortHandle) {
        let dialed = &mut self.dialed[node.as_usize()];
        assert!(matches!(dialed, DialState::No), "{node:?} is dialed already");
        *dialed = DialState::Dialing { _task: DialTask(task) };
    }

    /// The dial of `node` has failed.
    pub(crate) fn dial_failed(&mut self, node: NodeIndex) {
        self.counters.dial_failed(node);
        self.tried.insert(node);
        self.dialed[node.as_usize()] = DialState::No;
    }

    /// Whether a dial of `node` has ended, well or not.
    pub(crate) fn was_tried(&self, node: NodeIndex) -> bool {
        self.tried.contains(node)
    }

    /// Takes in an open link, over which this version of the protocol is spoken and which begins with these bytes. Gives
    /// its serial number.
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
        let mut link = Link::new(peer, self.serials, socket, outbox, reservation, begins_with);
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
                assert!(former.is_none(), "the number of a link is used once");
            }
        }
        self.count_open();
        self.serials
    }

    /// This task of the link ends with it.
    pub(crate) fn ends(&mut self, at: Destination, task: LinkTask, handle: AbortHandle) {
        match self.find(at) {
            Some(link) => link.ends(task, handle),
            None => handle.abort(),
        }
    }

    /// Closes what was dialed to `node`, or ends the dial.
    pub(crate) fn hang_up(&mut self, node: NodeIndex) {
        self.dialed[node.as_usize()] = DialState::No;
        self.count_open();
    }

    /// Closes an accepted link; whether it was there.
    pub(crate) fn close(&mut self, id: LinkId) -> bool {
        let was_there = self.accepted.remove(&id).is_some();
        self.count_open();
        was_there
    }

    /// The link has ended by itself; `false`: it was closed before, or is another one by now.
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

    /// Has `message` sent when the turn ends, if the link is open and has room.
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

    /// Writes what waits, and gives those links that could not write all of it: [`Links::unblocked`] goes on
    /// with them.
    pub(crate) fn flush(&mut self) -> Vec<Blocked> {
        let mut waiting = std::mem::take(&mut self.waiting);
        let blocked = waiting.drain(..).filter_map(|to| self.flush_link(to)).collect();
        self.waiting = waiting;
        blocked
    }

    /// The socket takes more.
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
