//! The memtable itself: skiplist, index, visibility and counters put together.

use super::cursor::MemtableCursor;
use super::hash_key;
use super::index::{Index, Lookup};
use super::node::{CellNode, KeyNode, Probe};
use super::skiplist::{Inserted, Skiplist};
use super::sync::{AtomicBool, AtomicU64, Ordering};
use crate::sequence::Sequence;
use parking_lot::RwLock;
use std::ops::Range;
use std::sync::Arc;
use stdx::{Cell, CellRef, Hlc, NodeTag, Version};

/// The cells that are in memory and not yet in a table. See the module.
pub struct Memtable {
    id: u64,
    skiplist: Skiplist,
    index: Index,
    cells: AtomicU64,
    hlc_min: AtomicU64,
    hlc_max: AtomicU64,
    aborted: Aborted,
}

impl Memtable {
    /// An empty memtable that is to hold about `capacity_bytes`, its own overhead included. It can hold more,
    /// but gets slower then. Takes about a sixteenth of the capacity at once, and touches it.
    pub fn new(id: u64, capacity_bytes: u64) -> Self {
        let capacity_bytes = usize::try_from(capacity_bytes).unwrap_or(usize::MAX / 2);
        Self {
            id,
            skiplist: Skiplist::new(capacity_bytes),
            index: Index::new(capacity_bytes),
            cells: AtomicU64::new(0),
            hlc_min: AtomicU64::new(u64::MAX),
            hlc_max: AtomicU64::new(0),
            aborted: Aborted::default(),
        }
    }

    /// The number it was made with.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Inserts a cell that was committed as `sequence`. Whether a cell of the key that supersedes it was here
    /// already, visible or not.
    ///
    /// # Panics
    /// When the key is longer than 16 KiB or the value than 4 GiB.
    pub fn insert(&self, sequence: Sequence, key: &[u8], cell: CellRef<'_>) -> bool {
        self.insert_hashed(sequence, key, hash_key(key), cell)
    }

    /// [`Memtable::insert`] of a key whose [`hash_key`] is known to be `hash`.
    pub fn insert_hashed(&self, sequence: Sequence, key: &[u8], hash: u64, cell: CellRef<'_>) -> bool {
        self.count(cell.meta.version.hlc);
        let known = self.index.find(hash, &Probe::new(key), self.skiplist.arena());
        if let Lookup::Found(node) = known {
            return self.skiplist.insert_under(node, sequence, &cell).superseded;
        }
        let Inserted { node, superseded } =
            self.skiplist.insert(key, sequence, &cell, scramble(sequence.0 ^ hash));
        self.index.publish(hash, node);
        superseded
    }

    /// The superseding cell of the key among those committed at or before `visible`. `hash` is the key's
    /// [`hash_key`].
    pub fn get(&self, key: &[u8], hash: u64, visible: Sequence) -> Option<Cell> {
        let node = match self.index.find(hash, &Probe::new(key), self.skiplist.arena()) {
            Lookup::Found(node) => node,
            Lookup::Absent => return None,
            Lookup::Unknown => self.skiplist.find(key)?,
        };
        self.visible_cell(node, visible).map(CellNode::to_cell)
    }

    /// Whether a key with this [`hash_key`] may be here: false is certain.
    pub fn may_contain(&self, hash: u64) -> bool {
        self.index.may_contain(hash)
    }

    /// A cursor over the keys, each with its superseding cell among those committed at or before `visible`.
    pub fn cursor(self: &Arc<Self>, visible: Sequence) -> MemtableCursor {
        MemtableCursor::new(Arc::clone(self), visible)
    }

    /// Hides the cells of these sequences for ever: their group failed. To be called before any reader is
    /// given a sequence at or beyond them.
    pub fn abort(&self, sequences: Range<Sequence>) {
        self.aborted.add(sequences);
    }

    /// What the memtable holds of the global allocator, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.skiplist.arena().bytes() + self.index.bytes()) as u64
    }

    /// What of [`Memtable::bytes`] is in use: all but the free rest of the current chunk of its arena.
    pub fn bytes_used(&self) -> u64 {
        (self.skiplist.arena().bytes_used() + self.index.bytes()) as u64
    }

    /// Cells inserted, aborted ones included.
    pub fn cells(&self) -> u64 {
        self.cells.load(Ordering::Relaxed)
    }

    /// Whether nothing was inserted.
    pub fn is_empty(&self) -> bool {
        self.cells() == 0
    }

    /// Less than or equal to the version of every cell inserted; [`Version::MAX`] while there is none.
    pub fn version_min(&self) -> Version {
        let hlc = self.hlc_min.load(Ordering::Relaxed);
        if hlc == u64::MAX { Version::MAX } else { Version::new(Hlc::from_bits(hlc), NodeTag(0)) }
    }

    /// Greater than or equal to the version of every cell inserted; [`Version::MIN`] while there is none.
    pub fn version_max(&self) -> Version {
        if self.is_empty() {
            return Version::MIN;
        }
        Version::new(Hlc::from_bits(self.hlc_max.load(Ordering::Relaxed)), NodeTag(u64::MAX))
    }

    /// The first cell of the node that a reader at `visible` may see: it supersedes those behind it.
    pub(super) fn visible_cell<'a>(&self, node: KeyNode<'a>, visible: Sequence) -> Option<CellNode<'a>> {
        node.cells().find(|cell| cell.sequence() <= visible && !self.aborted.contains(cell.sequence()))
    }

    pub(super) fn skiplist(&self) -> &Skiplist {
        &self.skiplist
    }

    /// Counts a cell, before anybody can see it.
    fn count(&self, hlc: Hlc) {
        let hlc = hlc.to_bits();
        if hlc < self.hlc_min.load(Ordering::Relaxed) {
            self.hlc_min.fetch_min(hlc, Ordering::Relaxed);
        }
        if hlc > self.hlc_max.load(Ordering::Relaxed) {
            self.hlc_max.fetch_max(hlc, Ordering::Relaxed);
        }
        self.cells.fetch_add(1, Ordering::Relaxed);
    }
}

/// The sequences of failed groups. There are none on most days, which takes one load to know.
struct Aborted {
    any: AtomicBool,
    ranges: RwLock<Vec<Range<Sequence>>>,
}

impl Default for Aborted {
    fn default() -> Self {
        Self { any: AtomicBool::new(false), ranges: RwLock::default() }
    }
}

impl Aborted {
    /// Groups fail in the order of their sequences, mostly one after the other: neighbours become one range.
    fn add(&self, range: Range<Sequence>) {
        let mut ranges = self.ranges.write();
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
        drop(ranges);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Relaxed suffices: who was given a sequence beyond an aborted one learned of the abort by that.
    fn contains(&self, sequence: Sequence) -> bool {
        self.any.load(Ordering::Relaxed) && self.ranges.read().iter().any(|range| range.contains(&sequence))
    }
}

/// Spreads what is nearly a counter over all bits (the finalizer of splitmix64; Steele et al., 2014).
fn scramble(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
