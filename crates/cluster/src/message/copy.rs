//! Requests of a gaining node for the cells of the losing one.

use crate::{Key, NodeIndex};
use std::time::Duration;
use stdx::Cell;

/// Requests the next cells that the sender copies for a swap. The receiver derives the partitions
/// and the numbers of replicas from its own layout record, in which the sender is the gainer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyRequest {
    /// Slot of the loser of the swap.
    pub loser: NodeIndex,
    /// Begin behind this key; `None`: at the first key.
    pub after: Option<Key>,
}

/// The answer to a [`CopyRequest`]: all cells of a range of keys of which the loser is a replica,
/// tombstones and expired values included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyAnswer {
    /// Keys with their cells, in key order.
    pub entries: Vec<(Key, Cell)>,
    /// Last key of the part of the range that was read; `None`: all of it was read.
    pub until: Option<Key>,
    /// Time before the next request of this copy, by the rate limit of the answering node.
    pub pause: Duration,
}
