//! The stages.

use cluster::{NodeIndex, WaitTarget};
use std::borrow::Cow;

/// What a request is at, or waits for. The names are in `docs/profiling.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The thread that serves it is at work on it, or on what came before it in the same turn.
    Coordinator,
    /// Its write waits for the log.
    CommitQueue,
    /// Its write waits because writes come faster than the store can work them off.
    Pacing,
    /// Its write is written to the log.
    LogWrite,
    /// Its write becomes durable.
    Sync,
    /// Its write becomes visible.
    Publish,
    /// Its read waits for a thread that may wait for the disk.
    ReadPoolQueue,
    /// Its read waits for the disk.
    DiskRead,
    /// This node's store has it; no more is known.
    Store,
    /// A peer has been asked.
    Peer(NodeIndex),
    /// Its write waits until the clock may issue versions.
    ClockBound,
    /// It waits for a link to a peer.
    Links,
    /// What it waited for is there, and the thread that serves it has not come to it.
    Thread,
    /// The socket does not take its answer.
    SocketWrite,
    /// Nothing is known.
    Other,
}

impl Stage {
    /// Where something is that waits for this.
    pub(super) const fn of(target: WaitTarget) -> Self {
        match target {
            WaitTarget::Nothing => Self::Coordinator,
            WaitTarget::Store => Self::Store,
            WaitTarget::Peer(node) => Self::Peer(node),
            WaitTarget::ClockBound => Self::ClockBound,
            WaitTarget::Links => Self::Links,
        }
    }

    /// Its name.
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
