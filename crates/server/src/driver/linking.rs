//! Link input and output of a driver: dial, read, write, and report link events to the machine.

use super::{Core, Machine, MachineDriver};
use crate::links::accept::Admitted;
use crate::links::dial::{self, AdmittedLink};
use crate::links::{Blocked, LinkTask};
use crate::socket;
use cluster::{Destination, DialFailure, LinkEvent, LinkId, NodeIndex, Origin};
use limits::{MemoryCategory, Reservation};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::ready;
use stdx::Now;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use wire::{Inbox, Incoming};

/// Size of the read buffer, in bytes.
const READ_BYTES: usize = 128 << 10;

/// Allocates the read buffer that all links of a driver share.
pub(super) fn read_buffer() -> Box<[u8]> {
    vec![0; READ_BYTES].into_boxed_slice()
}

/// A link whose handshake is complete.
struct NewLink {
    origin: Origin,
    /// Version of the peer protocol.
    version: u8,
    socket: TcpStream,
    inbox: Inbox,
}

/// The read half of a link.
struct Source {
    origin: Origin,
    serial: u64,
    socket: OwnedReadHalf,
    inbox: Inbox,
    /// Memory reserved for messages that arrive in fragments.
    reservation: Reservation,
}

impl<M: Machine> MachineDriver<M> {
    pub(super) fn dial(self: &Rc<Self>, core: &mut Core<M>, node: NodeIndex) {
        let driver = Rc::clone(self);
        let task = tokio::task::spawn_local(async move {
            let opened = dial::dial(&driver.context.peer_links, &driver.local, node, driver.requester).await;
            driver.handle_dialed(node, opened);
        });
        core.links.dialing(node, task.abort_handle());
    }

    fn handle_dialed(self: &Rc<Self>, node: NodeIndex, opened: Result<AdmittedLink, DialFailure>) {
        match opened {
            Err(reason) => self.run_machine(|core, now| {
                core.links.dial_failed(node);
                core.machine.handle_link(now, LinkEvent::DialFailed { node, reason });
            }),
            Ok(AdmittedLink { version, .. }) if !self.permits(version) => {
                self.refuse_version(node, version);
                self.handle_dialed(node, Err(DialFailure::Rejected));
            }
            Ok(AdmittedLink { socket, inbox, hello, version }) => {
                let link = Destination::Dialed(node);
                self.run_machine(|core, now| {
                    let new = NewLink { origin: Origin { node, link }, version, socket, inbox };
                    self.open(core, new, Vec::new());
                    core.machine.handle_link(now, LinkEvent::Opened(hello));
                });
            }
        }
    }

    /// Takes over a link that the node has admitted.
    pub(crate) fn add_link(self: &Rc<Self>, admitted: Admitted) {
        self.run_machine(|core, now| self.adopt(core, now, admitted));
    }

    /// Takes over an admitted link while an effect is being carried out.
    pub(super) fn adopt(self: &Rc<Self>, core: &mut Core<M>, now: Now, admitted: Admitted) {
        let Admitted { link, node, version, socket, inbox, welcome } = admitted;
        match TcpStream::from_std(socket) {
            Ok(socket) => {
                let origin = Origin { node, link: Destination::Accepted(link) };
                self.open(core, NewLink { origin, version, socket, inbox }, welcome);
            }
            Err(error) => {
                tracing::warn!(%error, "an admitted link of a peer was lost before it was taken over");
                core.machine.handle_link(now, LinkEvent::AcceptedClosed { link });
            }
        }
    }

    /// Closes an admitted link, if this driver owns it.
    pub(crate) fn close_link(self: &Rc<Self>, link: LinkId) {
        self.run_machine(|core, now| {
            if core.links.close(link) {
                core.machine.handle_link(now, LinkEvent::AcceptedClosed { link });
            }
        });
    }

    /// Whether the adopted layout record permits links of this version of the protocol.
    pub(super) fn permits(&self, version: u8) -> bool {
        version >= self.local.layout.get().versions.min
    }

    fn refuse_version(&self, node: NodeIndex, version: u8) {
        let url = self.local.url_of(node);
        self.context.peer_links.refuse_version(&url, version, &self.local.layout.get());
    }

    /// Closes the links of versions that the adopted layout record does not permit any more.
    pub(crate) fn close_old_links(self: &Rc<Self>) {
        let min = self.local.layout.get().versions.min;
        self.run_machine(|core, now| {
            for (Origin { node, link }, version) in core.links.older_than(min) {
                self.refuse_version(node, version);
                match link {
                    Destination::Dialed(node) => {
                        core.links.hang_up(node);
                        core.machine.handle_link(now, LinkEvent::Closed { node });
                    }
                    Destination::Accepted(link) => {
                        core.links.close(link);
                        core.machine.handle_link(now, LinkEvent::AcceptedClosed { link });
                    }
                }
            }
        });
    }

    fn open(self: &Rc<Self>, core: &mut Core<M>, new: NewLink, begins_with: Vec<u8>) {
        let NewLink { origin, version, socket, inbox } = new;
        let (read_half, write_half) = socket.into_split();
        let serial = core.links.open(origin, version, write_half, begins_with);
        let reservation = self.context.memory.empty_reservation(MemoryCategory::PeerLinks);
        let source = Source { origin, serial, socket: read_half, inbox, reservation };
        let reader = tokio::task::spawn_local(Rc::clone(self).read(source));
        core.links.ends(origin.link, LinkTask::Reads, reader.abort_handle());
        self.schedule_flush(core);
    }

    /// Reads a link until it breaks or is closed.
    async fn read(self: Rc<Self>, mut source: Source) {
        let ended = self.read_until_end(&mut source).await;
        let Source { origin, serial, .. } = source;
        if let Err(error) = ended {
            self.log_broken_link(origin.node, &error);
        }
        self.run_machine(|core, now| {
            if core.links.ended(origin.link, serial) {
                let event = match origin.link {
                    Destination::Dialed(node) => LinkEvent::Closed { node },
                    Destination::Accepted(link) => LinkEvent::AcceptedClosed { link },
                };
                core.machine.handle_link(now, event);
            }
        });
    }

    /// Logs that a link broke. Links break whenever peers stop, which is logged elsewhere, so only
    /// invalid bytes cause a warning.
    fn log_broken_link(&self, node: NodeIndex, error: &io::Error) {
        let peer = self.local.url_of(node);
        let is_damaged = error.kind() == io::ErrorKind::InvalidData;
        let reason = error.to_string();
        if is_damaged
            && self.context.peer_links.warnings.is_news(self.context.clock.now().mono, &peer, &reason)
        {
            tracing::warn!(peer, reason, "a link was closed: the peer sent bytes that are no valid messages");
        } else {
            tracing::debug!(peer, reason, "a link broke");
        }
    }

    async fn read_until_end(self: &Rc<Self>, source: &mut Source) -> io::Result<()> {
        loop {
            self.handle_messages(source)?;
            if self.read_once(source).await? == 0 {
                return Ok(());
            }
        }
    }

    /// Reads once, at most one buffer. A read that leaves part of the buffer empty has drained the
    /// socket; the runtime then does not try again before the socket becomes readable.
    async fn read_once(&self, source: &mut Source) -> io::Result<usize> {
        poll_fn(|context| {
            let mut buffer = self.read_buffer.borrow_mut();
            let len = ready!(socket::poll_receive(source.socket.as_ref(), context, &mut buffer))?;
            self.counters.read(source.origin.node, len);
            source.inbox.feed(&buffer[..len]);
            Ok(len).into()
        })
        .await
    }

    /// Passes all complete messages in the inbox to the machine.
    fn handle_messages(self: &Rc<Self>, source: &mut Source) -> io::Result<()> {
        let clock = &self.local.member.clock;
        let damaged = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let Source { inbox, reservation, origin, .. } = source;
        // A message without a memory reservation is dropped like one lost by the network, which the
        // machines tolerate.
        let mut next = || inbox.next_if(|bytes| reservation.resize(bytes as u64)).map_err(damaged);
        let mut incoming = next()?;
        if incoming.is_none() {
            return Ok(());
        }
        let brought = self.run_machine(|core, now| {
            let mut messages = 0;
            while let Some(item) = incoming {
                match item {
                    Incoming::Clock(seen) => {
                        clock.observe(seen, now);
                    }
                    Incoming::Message(message) => {
                        messages += 1;
                        core.machine.handle_message(now, *origin, message);
                    }
                }
                incoming = next()?;
            }
            self.counters.received(origin.node, messages);
            Ok(())
        });
        assert!(reservation.resize(inbox.fragmented_bytes() as u64), "a reservation can always shrink");
        brought
    }

    /// Writes the pending messages of all links.
    pub(super) fn flush_links(self: &Rc<Self>, core: &mut Core<M>) {
        for blocked in core.links.flush() {
            self.unblock_later(core, blocked);
        }
    }

    fn unblock_later(self: &Rc<Self>, core: &mut Core<M>, blocked: Blocked) {
        let driver = Rc::clone(self);
        let Blocked { link, serial, socket } = blocked;
        let task = tokio::task::spawn_local(async move {
            // On an error the link is broken; its reader reports that.
            if socket.writable().await.is_ok() {
                driver.unblocked(link, serial);
            }
        });
        core.links.ends(link, LinkTask::Unblocks, task.abort_handle());
    }

    fn unblocked(self: &Rc<Self>, link: Destination, serial: u64) {
        let mut core = self.core.borrow_mut();
        if let Some(blocked) = core.links.unblocked(link, serial) {
            self.unblock_later(&mut core, blocked);
        }
    }
}
