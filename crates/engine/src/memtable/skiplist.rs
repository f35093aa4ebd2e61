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
use super::node::{CellNode, HEIGHT_MAX, KeyHead, KeyNode, Probe};
use super::sync::{AtomicUsize, Ordering};
use crate::sequence::Sequence;
use std::cmp::Ordering as Order;
use std::ptr::NonNull;
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
pub(super) struct Inserted<'a> {
    /// The node of its key.
    pub(super) node: KeyNode<'a>,
    /// Whether a cell that supersedes it was there already.
    pub(super) superseded: bool,
}

impl Skiplist {
    pub(super) fn new(capacity_bytes: usize) -> Self {
        let arena = Arena::new(capacity_bytes);
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
        let probe = Probe::new(key);
        self.seek(key).filter(|node| node.compare(&probe) == Order::Equal)
    }

    /// The first node whose key is not less than `key`.
    pub(super) fn seek(&self, key: &[u8]) -> Option<KeyNode<'_>> {
        let probe = Probe::new(key);
        let mut before = self.sentinel();
        let mut after = None;
        for level in (0..self.height.load(Ordering::Relaxed)).rev() {
            let place = Place::on_level(level, before, after, &probe);
            if place.found {
                return place.after;
            }
            (before, after) = (place.before, place.after);
        }
        after
    }

    /// Puts a cell under its key, for which it makes a node if there is none. `chance` is random: it chooses
    /// the height of the node.
    pub(super) fn insert(
        &self,
        key: &[u8],
        sequence: Sequence,
        cell: &CellRef<'_>,
        chance: u64,
    ) -> Inserted<'_> {
        let probe = Probe::new(key);
        let height = tower_height(chance);
        let mut splice = [Place { before: self.sentinel(), after: None, found: false }; HEIGHT_MAX];
        let top = self.height.load(Ordering::Relaxed).max(height);
        let (mut before, mut after) = (self.sentinel(), None);
        for level in (0..top).rev() {
            let place = Place::on_level(level, before, after, &probe);
            if place.found {
                let node = place.after.expect("a key was found at a node");
                return Self::add(node, CellNode::new(&self.arena, sequence, cell));
            }
            (before, after) = (place.before, place.after);
            splice[level] = place;
        }

        let first = CellNode::new(&self.arena, sequence, cell);
        let node = KeyNode::new(&self.arena, height, key, first);
        for (level, place) in splice.iter_mut().enumerate().take(height) {
            loop {
                node.set_next(level, place.after);
                if place.before.link_next(level, place.after, node) {
                    break;
                }
                *place = Place::on_level(level, place.before, None, &probe);
                if place.found {
                    // Somebody else's node has the key; ours stays unlinked, but its cell does not.
                    return Self::add(place.after.expect("a key was found at a node"), first);
                }
            }
        }
        if height > self.height.load(Ordering::Relaxed) {
            self.height.fetch_max(height, Ordering::Relaxed);
        }
        Inserted { node, superseded: false }
    }

    /// Puts a cell under a key that has a node.
    pub(super) fn insert_under<'a>(
        &'a self,
        node: KeyNode<'a>,
        sequence: Sequence,
        cell: &CellRef<'_>,
    ) -> Inserted<'a> {
        Self::add(node, CellNode::new(&self.arena, sequence, cell))
    }

    fn add<'a>(node: KeyNode<'a>, cell: CellNode<'a>) -> Inserted<'a> {
        Inserted { node, superseded: node.insert_cell(cell) }
    }

    fn sentinel(&self) -> KeyNode<'_> {
        // SAFETY: the sentinel is in our arena, which lives as long as the borrow of `self`.
        unsafe { KeyNode::at(self.sentinel) }
    }
}

/// Between which nodes of one level a key belongs.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// The last node with a lesser key.
    before: KeyNode<'a>,
    /// The node behind it.
    after: Option<KeyNode<'a>>,
    /// Whether `after` has the very key.
    found: bool,
}

impl<'a> Place<'a> {
    /// The place on `level`, sought from `before` on. `greater` is a node known to have a greater key, which
    /// need not be compared again.
    fn on_level(
        level: usize,
        mut before: KeyNode<'a>,
        greater: Option<KeyNode<'a>>,
        probe: &Probe<'_>,
    ) -> Self {
        loop {
            let after = before.next(level);
            let Some(node) = after.filter(|_| after != greater) else {
                return Self { before, after, found: false };
            };
            // Half of the comparisons end a level: have the first node of the next one on its way.
            if let Some(below) = level.checked_sub(1).and_then(|level| before.next(level)) {
                below.prefetch();
            }
            match node.compare(probe) {
                Order::Less => before = node,
                Order::Equal => return Self { before, after, found: true },
                Order::Greater => return Self { before, after, found: false },
            }
        }
    }
}

/// A height with the distribution of a skiplist, from uniform bits.
fn tower_height(chance: u64) -> usize {
    (1 + (chance.trailing_zeros() / BITS_PER_LEVEL) as usize).min(HEIGHT_MAX)
}
