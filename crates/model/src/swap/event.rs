//! Steps of the model as lines of a counterexample.

use super::record::{SwapNode, SwapNodeSet, SwapRecord};
use std::fmt;

/// One step.
#[derive(Clone, Copy, Debug)]
pub enum SwapEvent {
    /// A replica stores a write.
    Stored {
        /// Version of the write.
        write: u8,
        /// The replica.
        node: SwapNode,
        /// Epoch of the request.
        epoch: u8,
        /// Whether the coordinator counts it.
        is_counted: bool,
    },
    /// A replica answers a read.
    Answered {
        /// Index of the read.
        read: usize,
        /// The replica.
        node: SwapNode,
        /// The version that it holds.
        held: u8,
        /// Epoch of the request.
        epoch: u8,
    },
    /// A replica stores the result of a read.
    WrittenBack {
        /// Index of the read.
        read: usize,
        /// The replica.
        node: SwapNode,
        /// Version of the result.
        version: u8,
        /// Epoch of the request.
        epoch: u8,
    },
    /// A node holds the record of an epoch.
    Learned {
        /// The node.
        node: SwapNode,
        /// The epoch.
        epoch: u8,
        /// Number of older requests that it had admitted and has not executed.
        open: u8,
    },
    /// A node restarts without the record that it had learned.
    Forgot {
        /// The node.
        node: SwapNode,
        /// The forgotten epoch.
        epoch: u8,
    },
    /// A write is planned anew.
    WritePlanned {
        /// Version of the write.
        write: u8,
        /// The epoch.
        epoch: u8,
    },
    /// A read is planned anew.
    ReadPlanned {
        /// Index of the read.
        read: usize,
    },
    /// The links of a coordinator name an epoch at which an operation was not planned.
    LinkSays {
        /// The kind of operation.
        operation: &'static str,
        /// Its index.
        index: usize,
        /// The epoch.
        epoch: u8,
    },
    /// A write is acknowledged.
    Acknowledged {
        /// Version of the write.
        write: u8,
        /// Epoch of its plan.
        plan: u8,
        /// Replicas that count.
        by: SwapNodeSet,
    },
    /// A read begins.
    ReadBegan {
        /// Index of the read.
        read: usize,
    },
    /// A read has its answers and begins to store its result.
    Spreads {
        /// Index of the read.
        read: usize,
        /// Version of the result.
        version: u8,
        /// Epoch of its plan.
        epoch: u8,
    },
    /// A read returns.
    Returned {
        /// Index of the read.
        read: usize,
        /// Version of the result; 0 for none.
        version: u8,
        /// Epoch of its plan.
        plan: u8,
        /// Replicas that answered.
        by: SwapNodeSet,
    },
    /// A record is decided.
    Decided {
        /// The epoch.
        epoch: u8,
        /// The record.
        record: SwapRecord,
    },
    /// The sources of the gaining node are read.
    Copies {
        /// The sources.
        from: SwapNodeSet,
        /// The gaining node.
        to: SwapNode,
        /// The version that they hold.
        version: u8,
    },
    /// The gaining node has stored its copy and states that it is complete.
    Completed {
        /// The gaining node.
        node: SwapNode,
        /// Epoch of the attempt.
        attempt: u8,
    },
    /// A node drops its copy.
    Dropped {
        /// The node.
        node: SwapNode,
        /// Epoch of the record that says so.
        epoch: u8,
    },
    /// A gaining node purges its earlier copy, and with it each version that it has stored since.
    Purged {
        /// The gaining node.
        node: SwapNode,
    },
    /// A node loses its disk.
    LostDisk {
        /// The node.
        node: SwapNode,
    },
    /// A replica that lost its disk is rebuilt.
    Rebuilt {
        /// The replica.
        node: SwapNode,
        /// The sources.
        from: SwapNodeSet,
    },
    /// The tombstone is collected on all replicas after the grace period.
    Collected,
}

impl fmt::Display for SwapEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stored { write, node, epoch, is_counted } => {
                let counts = if *is_counted { "" } else { ", not counted" };
                write!(f, "{node} stores write {write}, planned at {epoch}{counts}")
            }
            Self::Answered { read, node, held: 0, epoch } => {
                write!(f, "{node} answers read {read}, planned at {epoch}: nothing")
            }
            Self::Answered { read, node, held, epoch } => {
                write!(f, "{node} answers read {read}, planned at {epoch}: write {held}")
            }
            Self::WrittenBack { read, node, version, epoch } => {
                write!(f, "{node} stores write {version} for read {read}, planned at {epoch}")
            }
            Self::Learned { node, epoch, open: 0 } => write!(f, "{node} learns epoch {epoch}"),
            Self::Learned { node, epoch, open } => {
                write!(f, "{node} learns epoch {epoch}, older requests still open: {open}")
            }
            Self::Forgot { node, epoch } => write!(f, "{node} restarts without the record of epoch {epoch}"),
            Self::WritePlanned { write, epoch } => write!(f, "write {write} is planned anew at {epoch}"),
            Self::ReadPlanned { read } => write!(f, "read {read} is planned anew"),
            Self::LinkSays { operation, index, epoch } => {
                write!(f, "the links of {operation} {index} say epoch {epoch}")
            }
            Self::Acknowledged { write, plan, by } => {
                write!(f, "write {write}, planned at {plan}, is acknowledged by {by}")
            }
            Self::ReadBegan { read } => write!(f, "read {read} begins"),
            Self::Spreads { read, version, epoch } => {
                write!(f, "read {read}, planned at {epoch}, has found write {version} and stores it")
            }
            Self::Returned { read, version: 0, plan, by } => {
                write!(f, "read {read}, planned at {plan}, returns nothing, from {by}")
            }
            Self::Returned { read, version, plan, by } => {
                write!(f, "read {read}, planned at {plan}, returns write {version}, from {by}")
            }
            Self::Decided { epoch, record } => write!(f, "epoch {epoch} is decided: {record}"),
            Self::Copies { from, to, version } => {
                write!(f, "{to} reads {from}: {}", if *version == 0 { "nothing" } else { "a write" })
            }
            Self::Completed { node, attempt } => {
                write!(f, "the copy of {node} for epoch {attempt} is complete")
            }
            Self::Dropped { node, epoch } => {
                write!(f, "{node} drops its copy by the record of epoch {epoch}")
            }
            Self::Purged { node } => write!(f, "{node} has purged what it held"),
            Self::LostDisk { node } => write!(f, "{node} loses its disk"),
            Self::Rebuilt { node, from } => write!(f, "{node} is rebuilt from {from}"),
            Self::Collected => write!(f, "the tombstone is collected"),
        }
    }
}
