//! The keys of a memtable in order: a lock-free skiplist.
//!
//! **Promise.** Each key has one node, even under concurrent inserts. A walk along level 0 meets,
//! in order, every key whose insertion had ended when the walk reached its position.
//!
//! **Mechanism.** A skiplist (Pugh, 1990) in which a quarter of the nodes of each level is on the
//! next. A node is linked from level 0 upwards, each link by one compare-and-swap. It exists once
//! level 0 has it, which also decides between two threads that insert the same key. Nodes are never
//! unlinked, so a predecessor stays valid, and a lost race is repeated from the same position.

use super::arena::Arena;
use super::chunk_pool::ChunkPool;
use super::node::{CellNode, HEIGHT_MAX, KeyHead, KeyNode, Probe};
use super::sync::{AtomicUsize, Ordering};
use crate::sequence::Sequence;
use std::cmp::Ordering as Order;
use std::ptr::NonNull;
use std::sync::Arc;
use stdx::CellRef;

/// Random bits per level: a quarter of the nodes of a level is on the next.
const BITS_PER_LEVEL: u32 = 2;

/// The ordered list of keys.
pub(super) struct Skiplist {
    arena: Arena,
    sentinel: NonNull<KeyHead>,
    height: AtomicUsize,
}

// SAFETY: the sentinel is a node of the arena, which the skiplist owns and which may be sent.
unsafe impl Send for Skiplist {}
// SAFETY: nodes may be shared, and only atomics change.
unsafe impl Sync for Skiplist {}

/// Result of an insert.
pub(super) struct InsertedCell<'a> {
    /// The node of the key.
    pub(super) node: KeyNode<'a>,
    /// Whether a cell that supersedes the new one was present.
    pub(super) superseded: bool,
}

impl Skiplist {
    pub(super) fn new(pool: Arc<ChunkPool>) -> Self {
        let arena = Arena::new(pool);
        let sentinel = KeyNode::sentinel(&arena).address();
        Self { arena, sentinel, height: AtomicUsize::new(1) }
    }

    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The first node.
    pub(super) fn first(&self) -> Option<KeyNode<'_>> {
        self.sentinel().next(0)
    }

    /// The node of this key.
    pub(super) fn find(&self, key: &[u8]) -> Option<KeyNode<'_>> {
        let mut search = self.search(Probe::new(key));
        search.end();
        search.found
    }

    /// The first node whose key is not less than `key`.
    pub(super) fn seek(&self, key: &[u8]) -> Option<KeyNode<'_>> {
        let mut search = self.search(Probe::new(key));
        search.end();
        search.found.or(search.splices[0].after)
    }

    /// Begins the search for a key.
    pub(super) fn search<'k>(&self, probe: Probe<'k>) -> Search<'_, 'k> {
        let start = Splice { before: self.sentinel(), after: None };
        let mut search = Search {
            probe,
            level: self.height.load(Ordering::Relaxed) - 1,
            before: start.before,
            greater: None,
            candidate: None,
            found: None,
            splices: [start; HEIGHT_MAX],
        };
        search.descend();
        search
    }

    /// Adds a cell under the key of `search`, with a new node if there is none. `chance` is random,
    /// and determines the height of the node.
    pub(super) fn insert<'a>(
        &'a self,
        search: &mut Search<'a, '_>,
        sequence: Sequence,
        cell: &CellRef<'_>,
        chance: u64,
    ) -> InsertedCell<'a> {
        search.end();
        let first = CellNode::new(&self.arena, sequence, cell);
        if let Some(node) = search.found {
            return Self::add(node, first);
        }
        let height = tower_height(chance);
        let node = KeyNode::new(&self.arena, height, search.probe.key(), first);
        for (level, splice) in search.splices.iter_mut().enumerate().take(height) {
            loop {
                node.set_next(level, splice.after);
                if splice.before.link_next(level, splice.after, node) {
                    break;
                }
                match Splice::on_level(level, splice.before, &search.probe) {
                    Ok(moved) => *splice = moved,
                    // Another thread's node has the key. This node stays unlinked, and its cell
                    // moves to the other.
                    Err(theirs) => return Self::add(theirs, first),
                }
            }
        }
        if height > self.height.load(Ordering::Relaxed) {
            self.height.fetch_max(height, Ordering::Relaxed);
        }
        InsertedCell { node, superseded: false }
    }

    /// Adds a cell under a key that has a node.
    pub(super) fn insert_under<'a>(
        &'a self,
        node: KeyNode<'a>,
        sequence: Sequence,
        cell: &CellRef<'_>,
    ) -> InsertedCell<'a> {
        Self::add(node, CellNode::new(&self.arena, sequence, cell))
    }

    fn add<'a>(node: KeyNode<'a>, cell: CellNode<'a>) -> InsertedCell<'a> {
        InsertedCell { node, superseded: node.insert_cell(cell) }
    }

    fn sentinel(&self) -> KeyNode<'_> {
        // SAFETY: the sentinel is in the arena of `self`, which lives as long as the borrow.
        unsafe { KeyNode::at(self.sentinel) }
    }
}

/// A search for a key, in steps of one comparison. Each step prefetches the memory of the next. So
/// a caller with several keys alternates between their searches, and waits for their memory in
/// parallel.
pub(super) struct Search<'a, 'k> {
    probe: Probe<'k>,
    /// The present level.
    level: usize,
    /// The last node with a lesser key.
    before: KeyNode<'a>,
    /// The last node with a greater key.
    greater: Option<KeyNode<'a>>,
    /// The node that the next step compares; `None` at the end of the search.
    candidate: Option<KeyNode<'a>>,
    /// The node of the key.
    found: Option<KeyNode<'a>>,
    /// The splices of the levels above; of all levels when the search ended without finding the
    /// key.
    splices: [Splice<'a>; HEIGHT_MAX],
}

impl Search<'_, '_> {
    /// Makes the next comparison. Returns whether another one follows.
    pub(super) fn step(&mut self) -> bool {
        let Some(node) = self.candidate else { return false };
        match node.compare(&self.probe) {
            Order::Less => self.before = node,
            Order::Greater => self.greater = Some(node),
            Order::Equal => {
                (self.found, self.candidate) = (Some(node), None);
                return false;
            }
        }
        self.descend();
        self.candidate.is_some()
    }

    /// Makes all remaining comparisons.
    fn end(&mut self) {
        while self.step() {
            self.prefetch_below();
        }
    }

    /// Descends to the first level with a node that must be compared.
    fn descend(&mut self) {
        loop {
            let after = self.before.next(self.level);
            self.candidate = after.filter(|_| after != self.greater);
            if let Some(node) = self.candidate {
                return node.prefetch();
            }
            self.splices[self.level] = Splice { before: self.before, after };
            match self.level.checked_sub(1) {
                Some(below) => self.level = below,
                None => return,
            }
        }
    }

    /// Prefetches the first node of the next level: half of the comparisons end a level. Only for
    /// searches of a single key; in a batch it would displace lines that other searches are certain
    /// to need.
    fn prefetch_below(&self) {
        if let Some(below) = self.level.checked_sub(1).and_then(|level| self.before.next(level)) {
            below.prefetch();
        }
    }
}

/// The two neighbours between which a key belongs on one level (a splice, as in LevelDB's
/// descendants).
#[derive(Clone, Copy)]
struct Splice<'a> {
    /// The last node with a lesser key.
    before: KeyNode<'a>,
    /// The node behind it.
    after: Option<KeyNode<'a>>,
}

impl<'a> Splice<'a> {
    /// Searches the splice on `level` from `before` on. The error is the node that has the key.
    fn on_level(level: usize, mut before: KeyNode<'a>, probe: &Probe<'_>) -> Result<Self, KeyNode<'a>> {
        loop {
            let after = before.next(level);
            let Some(node) = after else { return Ok(Self { before, after }) };
            match node.compare(probe) {
                Order::Less => before = node,
                Order::Equal => return Err(node),
                Order::Greater => return Ok(Self { before, after }),
            }
        }
    }
}

/// A random height with the distribution of a skiplist, from uniform bits.
fn tower_height(chance: u64) -> usize {
    (1 + (chance.trailing_zeros() / BITS_PER_LEVEL) as usize).min(HEIGHT_MAX)
}
