//! What a user is told.

use crate::{Page, StoreFault};
use std::time::Duration;
use stdx::{Cell, Version, WallTime};

/// How many replicas answered, of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acks {
    /// Replicas that answered.
    pub got: u8,
    /// Replicas that hold the key.
    pub from: u8,
}

/// The one answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A read found this live value.
    Found {
        /// The newest cell among the answers.
        cell: Cell,
        /// Who answered.
        acks: Acks,
    },
    /// A read found no live value: nothing, a tombstone, or an expired value.
    Missing {
        /// Who answered.
        acks: Acks,
    },
    /// A write was stored.
    Written {
        /// Under this version.
        version: Version,
        /// A replica found it already superseded by a greater version.
        superseded: bool,
        /// Who answered.
        acks: Acks,
    },
    /// The next entries of a scan: live ones, with their values.
    Page {
        /// The entries. None only with the end of the range.
        page: Page,
        /// There is nothing behind them: the scan is over.
        is_last: bool,
    },
    /// The command failed. A scan is over then.
    Failed(Failure),
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Fewer replicas than `ack` did their part in time.
    NotEnoughReplicas {
        /// Who answered.
        acks: Acks,
        /// How many had to.
        ack: u8,
        /// What is missing, and so what the command has left behind.
        shortfall: Shortfall,
    },
    /// As [`Failure::NotEnoughReplicas`], where this node's directory is new and its answers to reads do not count yet;
    /// in the words of a host that knows the names of nodes.
    NotEnoughHeard {
        /// Who answered.
        acks: Acks,
        /// How many had to.
        ack: u8,
        /// As in [`Failure::NotEnoughReplicas`].
        shortfall: Shortfall,
        /// The nodes that this node has not heard, separated by commas.
        missing: String,
    },
    /// The scan was closed before its next page: nobody waits for this.
    Closed,
    /// Too much is under way; nothing was sent or stored.
    Overloaded {
        /// When to try again.
        retry_after: Duration,
    },
    /// A write was sent, and so many replicas refused it for having too much to do that the others are too few.
    ReplicasOverloaded {
        /// Who stored it.
        acks: Acks,
        /// When to try again.
        retry_after: Duration,
        /// Another replica may have stored it all the same.
        maybe_stored: bool,
    },
    /// The expiry of a write would lie past [`WallTime::EXPIRY_END`].
    ExpiryTooLate {
        /// Where it would lie.
        expires_at: WallTime,
    },
    /// This node's clock is too far ahead of its peers': they refuse its versions.
    ClockAhead {
        /// Who stored it.
        acks: Acks,
        /// A write that some replica may have stored all the same.
        maybe_stored: bool,
    },
    /// The disks have no room for writes.
    DiskFull {
        /// Who stored it.
        acks: Acks,
        /// This node's own disk is among them.
        here: bool,
        /// Another replica may have stored it all the same.
        maybe_stored: bool,
    },
    /// As [`Failure::DiskFull`] with the own disk among them, in the words of a host that knows its figures.
    DiskFullHere {
        /// Who stored it.
        acks: Acks,
        /// Another replica may have stored it all the same.
        maybe_stored: bool,
        /// What is free on it, in bytes.
        available_bytes: u64,
        /// With less than this, values are refused.
        reserve_bytes: u64,
        /// With so much, they are taken again.
        reopen_bytes: u64,
    },
    /// The only copy cannot be read back as it was written.
    Corrupt {
        /// Which file, and what is wrong with it.
        detail: String,
    },
    /// The store failed in a way that is neither full nor corrupt.
    Storage {
        /// What happened.
        detail: String,
    },
}

/// How far a command came that failed for want of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortfall {
    /// Too few can be asked: they cannot be reached, or, if it is to be read, are rebuilding what they lost. Nothing was
    /// sent, and nothing stored.
    Unreachable,
    /// The same of a read, and this node is one of those that cannot be asked: it has refused the newest cell of a key.
    Refused,
    /// A write waited in vain for this node's own disk, before which it can have no version. Nothing was sent, and nothing
    /// stored.
    NoVersion,
    /// They were asked, and too few answered. Nothing that was not there before was stored by it.
    Unanswered,
    /// A read: enough answered, and too few of those that lack the newest version stored it. Nothing that was not there
    /// before was stored by it.
    NotSpread,
    /// A read: enough answered, and none that holds the newest value sent it. Nothing that was not there before was
    /// stored by it.
    NotFetched,
    /// A write: it was sent, too few acknowledged it, and any of those it was sent to may have stored it.
    MaybeStored,
}

impl From<StoreFault> for Failure {
    /// The failure of a command whose only replica failed like this.
    fn from(fault: StoreFault) -> Self {
        match fault {
            StoreFault::Full => {
                Self::DiskFull { acks: Acks { got: 0, from: 1 }, here: true, maybe_stored: false }
            }
            StoreFault::Overloaded { retry_after } => Self::Overloaded { retry_after },
            StoreFault::Expired => Self::Overloaded { retry_after: Duration::ZERO },
            StoreFault::Corrupt { detail } => Self::Corrupt { detail },
            StoreFault::Io { detail } => Self::Storage { detail },
        }
    }
}
