//! The keys of a memtable in order.
//!
//! **Promise.** Each key has one node, whoever inserts it and however many try at once. A walk along level 0
//! meets every key whose insertion had ended when the walk came by, in order.
//!
//! **Mechanism.** A skiplist (Pugh, 1990) with a quarter of the nodes of each level on the next. A node is
//! linked from level 0 upwards, each link by one compare-and-swap; it exists once level 0 has it, and two
//! threads that bring the same key are told apart there. Nothing is ever unlinked, so a predecessor that was
//! found once stays one, and a lost race is repeated from where it was lost.

use super::arena::Arena;
use super::chunk_pool::ChunkPool;
use super::node::{CellNode, HEIGHT_MAX, KeyHead, KeyNode, Probe};
use super::sync::{AtomicUsize, Ordering};
use crate::sequence::Sequence;
use std::cmp::Ordering as Order;
use std::ptr::NonNull;
use std::sync::Arc;
use stdx::CellRef;

/// A level has a quarter of the nodes of the one below it: two bits of chance for each.
const BITS_PER_LEVEL: u32 = 2;

/// See the module.
pub(super) struct Skiplist {
    arena: Arena,
    sentinel: NonNull<KeyHead>,
    height: AtomicUsize,
}

// SAFETY: the sentinel is a node of the arena, which the skiplist owns and which may be sent.
unsafe impl Send for Skiplist {}
// SAFETY: nodes may be shared, and what changes here is atomic.
unsafe impl Sync for Skiplist {}

/// What became of a cell.
pub(super) struct InsertedCell<'a> {
    /// The node of its key.
    pub(super) node: KeyNode<'a>,
    /// Whether a cell that supersedes it was there already.
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

    /// Begins to look for where a key belongs.
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

    /// Puts a cell under the key that `search` was for, and makes a node if there is none. `chance` is random: it
    /// chooses the height of the node.
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
                    // Somebody else's node has the key; ours stays unlinked, but its cell does not.
                    Err(theirs) => return Self::add(theirs, first),
                }
            }
        }
        if height > self.height.load(Ordering::Relaxed) {
            self.height.fetch_max(height, Ordering::Relaxed);
        }
        InsertedCell { node, superseded: false }
    }

    /// Puts a cell under a key that has a node.
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
        // SAFETY: the sentinel is in our arena, which lives as long as the borrow of `self`.
        unsafe { KeyNode::at(self.sentinel) }
    }
}

/// The way down to where a key belongs, in steps of one comparison. What a step is to look at was asked for by the
/// one before, so whoever has several keys makes a step of each in turn and waits for the memory once.
pub(super) struct Search<'a, 'k> {
    probe: Probe<'k>,
    /// The level it has come down to.
    level: usize,
    /// The last node met with a lesser key.
    before: KeyNode<'a>,
    /// The last node met with a greater key.
    greater: Option<KeyNode<'a>>,
    /// What the next step compares; none when there is nothing to look for any more.
    candidate: Option<KeyNode<'a>>,
    /// The node of the very key.
    found: Option<KeyNode<'a>>,
    /// The splices on the levels above, and on all when the search ends without having found the key.
    splices: [Splice<'a>; HEIGHT_MAX],
}

impl Search<'_, '_> {
    /// Makes the next comparison. Whether there is another one.
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

    /// Makes all comparisons that are left.
    fn end(&mut self) {
        while self.step() {
            self.prefetch_below();
        }
    }

    /// Goes down to the first level with a node that must be compared.
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

    /// Half of the comparisons end a level: has the first node of the next one on its way. That is for who looks for one
    /// key alone; with others it would take the place of lines that they are sure to need.
    fn prefetch_below(&self) {
        if let Some(below) = self.level.checked_sub(1).and_then(|level| self.before.next(level)) {
            below.prefetch();
        }
    }
}

/// Between which nodes of one level a key belongs.
#[derive(Clone, Copy)]
struct Splice<'a> {
    /// The last node with a lesser key.
    before: KeyNode<'a>,
    /// The node behind it.
    after: Option<KeyNode<'a>>,
}

impl<'a> Splice<'a> {
    /// The place on `level`, sought from `before` on; or the node that has the very key.
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

/// A height with the distribution of a skiplist, from uniform bits.
fn tower_height(chance: u64) -> usize {
    (1 + (chance.trailing_zeros() / BITS_PER_LEVEL) as usize).min(HEIGHT_MAX)
}
