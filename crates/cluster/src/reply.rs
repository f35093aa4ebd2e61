//! Replies to clients.

use crate::{Page, StoreFault};
use std::time::Duration;
use stdx::{Cell, Version, WallTime};

/// Number of replicas that answered, of those that hold the key.
///
/// A failure is decided as soon as success is impossible. So for a failed write it is a lower bound
/// of the replicas that store it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acks {
    /// Number of replicas that had answered when the reply was decided.
    pub got: u8,
    /// Number of replicas that hold the key.
    pub from: u8,
}

/// The one answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A read found this live value.
    Found {
        /// The newest cell among the answers.
        cell: Cell,
        /// Number of replicas that answered.
        acks: Acks,
    },
    /// A read found no live value: nothing, a tombstone, or an expired value.
    Missing {
        /// Number of replicas that answered.
        acks: Acks,
    },
    /// A write was stored.
    Written {
        /// The version of the write.
        version: Version,
        /// Whether a replica already held a greater version.
        superseded: bool,
        /// Number of replicas that answered.
        acks: Acks,
    },
    /// The next entries of a scan: live ones, with their values.
    Page {
        /// The entries. Empty only at the end of the range.
        page: Page,
        /// Whether no entries follow: the scan is over.
        is_last: bool,
    },
    /// The command failed. A scan is over then.
    Failed(CommandFailure),
}

/// The reason why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandFailure {
    /// Fewer than `ack` replicas answered or stored the write in time.
    NotEnoughReplicas {
        /// Number of replicas that answered.
        acks: Acks,
        /// Replicas that had to answer.
        ack: u8,
        /// How far the command came, and so what it may have left stored.
        shortfall: Shortfall,
    },
    /// As [`CommandFailure::NotEnoughReplicas`], on a node that is not read-eligible yet because
    /// its directory is new. Built by the driver, which knows the names of nodes.
    NotEnoughHeard {
        /// Number of replicas that answered.
        acks: Acks,
        /// Replicas that had to answer.
        ack: u8,
        /// As in [`CommandFailure::NotEnoughReplicas`].
        shortfall: Shortfall,
        /// The nodes that this node has not heard, separated by commas.
        missing: String,
    },
    /// The scan was closed before its next page.
    Closed,
    /// Too many requests are in flight; nothing was sent or stored.
    Overloaded {
        /// Time after which a retry is expected to succeed.
        retry_after: Duration,
    },
    /// A read needs memory for a value on this node, which holds too many other values on their way
    /// to clients. With that memory it would have succeeded. Nothing was stored.
    NoMemory {
        /// Time after which a retry is expected to succeed.
        retry_after: Duration,
    },
    /// A write was sent, and the replicas that were not too busy to store it do not form a
    /// quorum.
    ReplicasOverloaded {
        /// Replicas that stored it.
        acks: Acks,
        /// Time after which a retry is expected to succeed.
        retry_after: Duration,
        /// Whether another replica may have stored it nevertheless.
        maybe_stored: bool,
    },
    /// The expiry of a write would not be before [`WallTime::EXPIRY_END`].
    ExpiryTooLate {
        /// The computed expiry.
        expires_at: WallTime,
    },
    /// This node's clock is too far ahead of its peers' clocks: they refuse its versions.
    ClockAhead {
        /// Replicas that stored it.
        acks: Acks,
        /// Whether some replica may have stored the write nevertheless.
        maybe_stored: bool,
    },
    /// The disks are too full for writes.
    DiskFull {
        /// Replicas that stored it.
        acks: Acks,
        /// Whether this node's own disk is among them.
        here: bool,
        /// Whether another replica may have stored it nevertheless.
        maybe_stored: bool,
    },
    /// As [`CommandFailure::DiskFull`], and the disk of this node is one of the full ones. Built by
    /// the driver, which knows the disk's figures.
    DiskFullHere {
        /// Replicas that stored it.
        acks: Acks,
        /// Whether another replica may have stored it nevertheless.
        maybe_stored: bool,
        /// Free space on the disk, in bytes.
        available_bytes: u64,
        /// Values are refused below this free space, in bytes.
        reserve_bytes: u64,
        /// Values are accepted again from this free space on, in bytes.
        reopen_bytes: u64,
    },
    /// The only copy cannot be read back as it was written.
    Corrupt {
        /// The file and its fault.
        detail: String,
    },
    /// The store failed in a way that is neither full nor corrupt.
    Storage {
        /// Description of the fault.
        detail: String,
    },
}

/// The stage at which a command failed for lack of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortfall {
    /// Too few replicas can be asked: they cannot be reached or, for a read, are rebuilding.
    /// Nothing was sent, and nothing stored.
    Unreachable,
    /// As `Unreachable`, for a read where this node is one of the replicas that cannot be asked: it
    /// has refused the newest cell of a key.
    Refused,
    /// A write waited in vain for this node's own disk, without which it can have no version.
    /// Nothing was sent, and nothing stored.
    NoVersion,
    /// Replicas were asked, and too few answered. The command stored nothing new.
    Unanswered,
    /// A read: enough replicas answered, but too few of those that lack the newest version stored
    /// it. The read stored nothing new.
    NotSpread,
    /// A read: enough replicas answered, but none that holds the newest value sent it. The read
    /// stored nothing new.
    NotFetched,
    /// A write: it was sent, too few replicas acknowledged it, and any that it was sent to may have
    /// stored it.
    MaybeStored,
}

impl From<StoreFault> for CommandFailure {
    /// The failure of a command whose only replica had this fault.
    fn from(fault: StoreFault) -> Self {
        match fault {
            StoreFault::Full => {
                Self::DiskFull { acks: Acks { got: 0, from: 1 }, here: true, maybe_stored: false }
            }
            StoreFault::Overloaded { retry_after } => Self::Overloaded { retry_after },
            StoreFault::NoMemory { retry_after } => Self::NoMemory { retry_after },
            StoreFault::Expired => Self::Overloaded { retry_after: Duration::ZERO },
            StoreFault::Corrupt { detail } => Self::Corrupt { detail },
            StoreFault::Io { detail } => Self::Storage { detail },
        }
    }
}
