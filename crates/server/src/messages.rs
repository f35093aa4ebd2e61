//! Messages between the threads of a node.

use crate::connection_limit::{ConnectionPermit, Eviction};
use crate::driver::layout_commands::RequestedCommand;
use crate::gauges::ThreadGauges;
use crate::links::accept::{Admitted, Arrival};
use crate::local::Local;
use cluster::{ClusterView, Layout, LayoutEpoch, LinkId};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{mpsc, oneshot};

/// Capacity of the channel to the control thread, in messages.
pub(crate) const CONTROL_MESSAGES_MAX: usize = 1_024;

/// Messages of other threads to the control thread.
pub(crate) enum ControlMessage {
    /// A peer has authenticated itself.
    Arrived(Box<Arrival>),
    /// A client has requested a pass of anti-entropy.
    Repair,
    /// Carry out a command on the layout.
    LayoutCommand(Box<RequestedCommand>),
    /// The coordinator of an I/O thread has fenced an epoch.
    Fenced {
        /// Number of the thread.
        thread: u8,
        epoch: LayoutEpoch,
    },
}

/// A message to an I/O thread.
pub(crate) enum ThreadMessage {
    /// Serve this connection.
    Connection(TcpStream, ConnectionPermit),
    /// Close connections to free permits for others.
    Evict(Eviction),
    /// Run the handshake with a peer, on a connection of the listener for peers or without a
    /// client's permit.
    Peer(TcpStream),
    /// The store is open: serve requests, then confirm.
    Open(Arc<Local>, oneshot::Sender<()>),
    /// The node's new view of the cluster.
    View(Arc<ClusterView>),
    /// The layout of a newly adopted record.
    Layout(Arc<Layout>),
    /// Take over an admitted link.
    Link(Box<Admitted>),
    /// Close an admitted link.
    CloseLink(LinkId),
    /// Close the links of protocols that the adopted layout record does not permit.
    CloseOldLinks,
    /// Confirm when a dial of each peer that is up has succeeded or failed.
    WhenLinked(oneshot::Sender<()>),
    /// Finish all connections and operations, then confirm.
    Finish(oneshot::Sender<()>),
}

/// A sender of messages to an I/O thread that does not keep it alive.
pub(crate) struct Mailbox {
    messages: mpsc::WeakUnboundedSender<ThreadMessage>,
    load: Arc<ThreadGauges>,
}

impl Mailbox {
    /// A mailbox of the thread that receives `messages`.
    pub(crate) fn new(messages: &mpsc::UnboundedSender<ThreadMessage>, load: &Arc<ThreadGauges>) -> Self {
        Self { messages: messages.downgrade(), load: Arc::clone(load) }
    }

    /// Sends a message, if the thread still runs.
    pub(crate) fn send(&self, message: ThreadMessage) {
        if let Some(messages) = self.messages.upgrade() {
            let _ = messages.send(message);
        }
    }

    /// Sends an eviction, unless the thread has not begun an earlier one. A flood of new
    /// connections therefore does not queue more evictions than the thread can execute.
    pub(crate) fn evict(&self, eviction: Eviction) {
        if !self.load.is_evicting.swap(true, Ordering::Relaxed) {
            self.send(ThreadMessage::Evict(eviction));
        }
    }

    /// Hands a connection to the thread.
    pub(crate) fn serve(&self, stream: TcpStream, permit: ConnectionPermit) {
        self.load.connections.fetch_add(1, Ordering::Relaxed);
        self.send(ThreadMessage::Connection(stream, permit));
    }
}

/// Sends each thread its share of `eviction`.
pub(crate) fn send_eviction(eviction: Eviction, threads: &[Mailbox]) {
    let count = eviction.count.div_ceil(threads.len());
    threads.iter().for_each(|thread| thread.evict(Eviction { count, ..eviction }));
}
