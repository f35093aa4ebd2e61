//! The cells that reads have sent to replicas that lacked them, until those have answered.
//!
//! **Promise.** A coordinator sends a cell to a replica at most once at a time. Reads that find the
//! same difference meanwhile wait for the first one's answer.
//!
//! **Why.** Many reads of a key that is written often find the same replica behind. A log does not
//! write a copy of a cell that its memtable holds. But each copy counts in the admission to that
//! log. As work in flight it lets writes be refused for nothing. Then, as work done, it lets the
//! log look faster than it is, and too many writes are admitted. Without the copies, a tenth more
//! reads and writes succeed in simulated floods of one key.
//!
//! **Mechanism.** A copy is identified by key, version, number of replicas and node. The first read
//! sends the request. Its number and the node identify the copy when the answer arrives. The other
//! reads are followers and handle the same outcome, each in its own round. The copy is forgotten
//! with its answer or with the link to its node.
//!
//! **Caveats.** Each thread of a node has a coordinator of its own, so a replica may get a copy
//! from each thread. A request that was lost without an answer is not followed after the time that
//! an operation may take.

use super::request_number::{OperationId, Step};
use crate::{Key, NodeIndex};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use stdx::{Instant, Version};

/// Identifies a cell on its way to a replica.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CopyId {
    pub(super) key: Key,
    pub(super) version: Version,
    /// Number of replicas of the cell.
    pub(super) from: u8,
    pub(super) node: NodeIndex,
}

#[derive(Debug)]
struct Copy {
    id: CopyId,
    followers: Vec<(OperationId, Step)>,
}

/// The cells on their way to replicas.
#[derive(Debug)]
pub(super) struct RepairsInFlight {
    /// The number of the request that sends a copy.
    requests: BTreeMap<CopyId, u64>,
    copies: BTreeMap<(NodeIndex, u64), Copy>,
    /// Times of the requests, in order. Those that have ended are still in it.
    sent: VecDeque<(Instant, NodeIndex, u64)>,
    /// Time for which a copy is followed.
    followed_for: Duration,
}

impl RepairsInFlight {
    /// Creates the state without copies. A copy is followed for `followed_for`.
    pub(super) fn new(followed_for: Duration) -> Self {
        Self { requests: BTreeMap::new(), copies: BTreeMap::new(), sent: VecDeque::new(), followed_for }
    }

    /// Has this step of an operation wait for the copy on its way. Returns `false` if there is
    /// none. The operation then sends it with the request `number`.
    pub(super) fn join_or_begin(
        &mut self,
        now: Instant,
        id: CopyId,
        number: u64,
        follower: (OperationId, Step),
    ) -> bool {
        let followed_for = self.followed_for;
        let is_old = |(at, ..): &mut (Instant, _, _)| *at + followed_for <= now;
        while let Some((_, node, number)) = self.sent.pop_front_if(is_old) {
            self.end(node, number);
        }
        let node = id.node;
        if let Some(&first) = self.requests.get(&id) {
            let copy = self.copies.get_mut(&(node, first)).expect("each request has its copy");
            copy.followers.push(follower);
            return true;
        }
        self.requests.insert(id.clone(), number);
        self.copies.insert((node, number), Copy { id, followers: Vec::new() });
        self.sent.push_back((now, node, number));
        false
    }

    /// Ends the copy that the request `number` sent to `node`. Returns the steps that wait for its
    /// answer.
    pub(super) fn end(&mut self, node: NodeIndex, number: u64) -> Vec<(OperationId, Step)> {
        let Some(copy) = self.copies.remove(&(node, number)) else { return Vec::new() };
        self.requests.remove(&copy.id);
        copy.followers
    }

    /// Forgets the copies on their way to a node, which will not answer.
    pub(super) fn forget_node(&mut self, node: NodeIndex) {
        self.copies.retain(|_, copy| copy.id.node != node);
        self.requests.retain(|id, _| id.node != node);
    }

    /// Forgets the copies of these keys: no further read waits for their answers.
    pub(super) fn forget_keys(&mut self, is_forgotten: impl Fn(&Key) -> bool) {
        self.copies.retain(|_, copy| !is_forgotten(&copy.id.key));
        self.requests.retain(|id, _| !is_forgotten(&id.key));
    }

    /// Whether no copy is on its way.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }
}
