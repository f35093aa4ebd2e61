//! The stages of a request in a latency trace.

use cluster::{NodeIndex, WaitTarget};
use std::borrow::Cow;

/// The activity or the wait that a span of a latency trace is attributed to. `docs/profiling.md`
/// lists the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The I/O thread executes it, or executes earlier work of the same event-loop iteration.
    Coordinator,
    /// The write waits in the commit queue.
    CommitQueue,
    /// The write is delayed because writes arrive faster than the store can flush and compact them.
    Pacing,
    /// The commit group is written to the write-ahead log.
    LogWrite,
    /// The write-ahead log is synced.
    Sync,
    /// The write becomes visible to reads.
    Publish,
    /// The read waits in the queue of the read pool.
    ReadPoolQueue,
    /// The read waits for the disk.
    DiskRead,
    /// The local store executes it; no details are known.
    Store,
    /// A request to a peer is in flight.
    Peer(NodeIndex),
    /// The write waits until the durable clock bound permits a new version.
    ClockBound,
    /// The operation waits for a link to a peer.
    Links,
    /// The awaited event has happened, and the I/O thread has not resumed the request yet.
    Thread,
    /// The response waits for the client's socket.
    SocketWrite,
    /// The cause is not recorded.
    Other,
}

impl Stage {
    /// Returns the stage of an operation that waits for `target`.
    pub(super) const fn of(target: WaitTarget) -> Self {
        match target {
            WaitTarget::Nothing => Self::Coordinator,
            WaitTarget::Store => Self::Store,
            WaitTarget::Peer(node) => Self::Peer(node),
            WaitTarget::ClockBound => Self::ClockBound,
            WaitTarget::Links => Self::Links,
        }
    }

    /// Returns the name that is shown in profiles and logs.
    pub(crate) fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Coordinator => "coordinator",
            Self::CommitQueue => "commit queue",
            Self::Pacing => "pacing",
            Self::LogWrite => "log write",
            Self::Sync => "sync",
            Self::Publish => "publish",
            Self::ReadPoolQueue => "read pool queue",
            Self::DiskRead => "disk read",
            Self::Store => "store",
            Self::Peer(node) => return Cow::Owned(format!("peer {}", node.0)),
            Self::ClockBound => "clock bound",
            Self::Links => "links",
            Self::Thread => "thread",
            Self::SocketWrite => "socket write",
            Self::Other => "other",
        })
    }
}
