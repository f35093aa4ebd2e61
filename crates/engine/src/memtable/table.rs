//! The memtable: skiplist, index, visibility and counters combined.

use super::chunk_pool::ChunkPool;
use super::cursor::MemtableCursor;
use super::hash_key;
use super::index::{Index, IndexLookup};
use super::node::{CellNode, KeyNode, Probe};
use super::skiplist::{InsertedCell, Search, Skiplist};
use super::sync::{AtomicBool, AtomicU64, Ordering};
use crate::sequence::Sequence;
use parking_lot::RwLock;
use std::ops::Range;
use std::sync::Arc;
use stdx::{Cell, CellMeta, CellRef, Hlc, NodeTag, Version};

/// Number of keys whose searches are interleaved. A core has fewer cache misses in flight at once,
/// but many steps hit the caches.
const WAVE_CELLS: usize = 64;

/// The cells that are in memory and not yet in a table.
pub struct Memtable {
    id: u64,
    /// Seed of the tower heights.
    seed: u64,
    skiplist: Skiplist,
    index: Index,
    cells: AtomicU64,
    hlc_min: AtomicU64,
    hlc_max: AtomicU64,
    aborted: Aborted,
}

impl Memtable {
    /// An empty memtable of about `capacity_bytes`, its own overhead included, with a pool of its
    /// own.
    pub fn new(id: u64, capacity_bytes: u64) -> Self {
        Self::from_pool(id, &Arc::new(ChunkPool::new(capacity_bytes)), 0)
    }

    /// An empty memtable of about the capacity of the pool, its own overhead included. It can hold
    /// more, but becomes slower. Allocates and touches about a sixteenth of the capacity at once.
    /// `seed` determines the heights of the towers.
    pub fn from_pool(id: u64, pool: &Arc<ChunkPool>, seed: u64) -> Self {
        Self {
            id,
            seed,
            skiplist: Skiplist::new(Arc::clone(pool)),
            index: Index::new(pool.capacity_bytes()),
            cells: AtomicU64::new(0),
            hlc_min: AtomicU64::new(u64::MAX),
            hlc_max: AtomicU64::new(0),
            aborted: Aborted::default(),
        }
    }

    /// Id with which the memtable was created.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Inserts a cell that was committed as `sequence`. Returns whether a cell of the key that
    /// supersedes it was present, visible or not.
    ///
    /// # Panics
    /// When the key is longer than 16 KiB or the value longer than 4 GiB.
    pub fn insert(&self, sequence: Sequence, key: &[u8], cell: CellRef<'_>) -> bool {
        let new_cell = self.prepare(0, key, cell);
        let mut location = self.locate(&new_cell);
        self.insert_at(sequence, &new_cell, &mut location)
    }

    /// Inserts cells that were committed as `first` and the sequences after it. Equivalent to
    /// repeated calls of [`Memtable::insert`], but faster. Returns the positions of cells whose key
    /// had a greater version, in ascending order.
    ///
    /// # Panics
    /// As [`Memtable::insert`].
    pub fn insert_all<'c>(
        &self,
        first: Sequence,
        cells: impl IntoIterator<Item = (&'c [u8], CellRef<'c>)>,
    ) -> Vec<u32> {
        let mut superseded = Vec::new();
        let mut coming = (0..).zip(cells);
        let width = coming.size_hint().0.min(WAVE_CELLS);
        let (mut wave, mut locations) = (Vec::with_capacity(width), Vec::with_capacity(width));
        loop {
            wave.extend(
                coming.by_ref().take(WAVE_CELLS).map(|(at, (key, cell))| self.prepare(at, key, cell)),
            );
            if wave.is_empty() {
                return superseded;
            }
            self.locate_all(&wave, &mut locations);
            for (new_cell, location) in wave.iter().zip(&mut locations) {
                if self.insert_at(first.plus(new_cell.at), new_cell, location) {
                    superseded.push(new_cell.at as u32);
                }
            }
            wave.clear();
            locations.clear();
        }
    }

    fn prepare<'c>(&self, at: u64, key: &'c [u8], cell: CellRef<'c>) -> NewCell<'c> {
        let hash = hash_key(key);
        self.index.prefetch(hash);
        NewCell { at, key, hash, cell }
    }

    /// Searches the keys of a wave in an interleaved way: nearly all time is spent waiting for
    /// memory.
    fn locate_all<'a, 'c>(&'a self, wave: &[NewCell<'c>], locations: &mut Vec<Location<'a, 'c>>) {
        for new_cell in wave {
            self.index.prefetch_node(new_cell.hash, self.skiplist.arena());
        }
        locations.extend(wave.iter().map(|new_cell| self.locate(new_cell)));
        let mut goes_on = locations.len() > 1;
        while goes_on {
            goes_on = false;
            for location in &mut *locations {
                goes_on |= location.step();
            }
        }
    }

    fn locate<'c>(&self, new_cell: &NewCell<'c>) -> Location<'_, 'c> {
        let probe = Probe::new(new_cell.key);
        match self.index.find(new_cell.hash, &probe, self.skiplist.arena()) {
            IndexLookup::Found(node) => {
                node.prefetch_cell();
                Location::Known(node)
            }
            IndexLookup::Absent | IndexLookup::Unknown => Location::Searching(self.skiplist.search(probe)),
        }
    }

    /// Inserts a cell whose key was searched. Returns whether its key had a greater version.
    fn insert_at<'a>(
        &'a self,
        sequence: Sequence,
        new_cell: &NewCell<'_>,
        location: &mut Location<'a, '_>,
    ) -> bool {
        let NewCell { hash, cell, .. } = new_cell;
        self.count(cell.meta.version.hlc);
        match location {
            Location::Known(node) => self.skiplist.insert_under(*node, sequence, cell).superseded,
            Location::Searching(search) => {
                let chance = tower_chance(self.seed, sequence, *hash);
                let InsertedCell { node, superseded } = self.skiplist.insert(search, sequence, cell, chance);
                self.index.publish(*hash, node);
                superseded
            }
        }
    }

    /// The superseding cell of the key among those committed at or before `visible`. `hash` is the
    /// key's [`hash_key`].
    pub fn get(&self, key: &[u8], hash: u64, visible: Sequence) -> Option<Cell> {
        self.find(key, hash, visible).map(CellNode::to_cell)
    }

    /// As [`Memtable::get`], without the value.
    pub fn get_meta(&self, key: &[u8], hash: u64, visible: Sequence) -> Option<CellMeta> {
        self.find(key, hash, visible).map(|node| node.cell().meta)
    }

    /// As [`Memtable::get`]: the result of `examine` for the cell and its sequence.
    pub fn find_with<T>(
        &self,
        key: &[u8],
        hash: u64,
        visible: Sequence,
        examine: impl FnOnce(Sequence, CellRef<'_>) -> T,
    ) -> Option<T> {
        self.find(key, hash, visible).map(|node| examine(node.sequence(), node.cell()))
    }

    /// The greatest `from` of the key's cells, if one of them was committed at or before `visible`.
    /// It may be that of a later cell.
    pub fn greatest_from(&self, key: &[u8], hash: u64, visible: Sequence) -> Option<u8> {
        let node = self.find_key(key, hash)?;
        self.visible_cell(node, visible).map(|_| node.greatest_from())
    }

    #[inline]
    fn find(&self, key: &[u8], hash: u64, visible: Sequence) -> Option<CellNode<'_>> {
        self.visible_cell(self.find_key(key, hash)?, visible)
    }

    #[inline]
    fn find_key(&self, key: &[u8], hash: u64) -> Option<KeyNode<'_>> {
        match self.index.find(hash, &Probe::new(key), self.skiplist.arena()) {
            IndexLookup::Found(node) => Some(node),
            IndexLookup::Absent => None,
            IndexLookup::Unknown => self.skiplist.find(key),
        }
    }

    /// Whether a key with this [`hash_key`] may be present: `false` is certain.
    pub fn may_contain(&self, hash: u64) -> bool {
        self.index.may_contain(hash)
    }

    /// A cursor over the keys, each with its superseding cell among those committed at or before
    /// `visible`.
    pub fn cursor(self: &Arc<Self>, visible: Sequence) -> MemtableCursor {
        MemtableCursor::new(Arc::clone(self), visible)
    }

    /// Hides the cells of these sequences permanently, because their group failed. To be called
    /// before any reader is given a sequence at or beyond them.
    pub fn abort(&self, sequences: Range<Sequence>) {
        self.aborted.add(sequences);
    }

    /// Memory that the memtable holds of the global allocator, in bytes. It returns to the
    /// allocator or the pool.
    pub fn bytes(&self) -> u64 {
        (self.skiplist.arena().bytes() + self.index.bytes()) as u64
    }

    /// The part of [`Memtable::bytes`] in use: all but the free rest of the arena's current chunks.
    pub fn bytes_used(&self) -> u64 {
        (self.skiplist.arena().bytes_used() + self.index.bytes()) as u64
    }

    /// Number of cells inserted, aborted ones included.
    pub fn cells(&self) -> u64 {
        self.cells.load(Ordering::Relaxed)
    }

    /// Whether nothing was inserted.
    pub fn is_empty(&self) -> bool {
        self.cells() == 0
    }

    /// Lower bound of the versions of all cells; [`Version::MAX`] while there is none.
    pub fn version_min(&self) -> Version {
        let hlc = self.hlc_min.load(Ordering::Relaxed);
        if hlc == u64::MAX { Version::MAX } else { Version::new(Hlc::from_bits(hlc), NodeTag(0)) }
    }

    /// Upper bound of the versions of all cells; [`Version::MIN`] while there is none.
    pub fn version_max(&self) -> Version {
        if self.is_empty() {
            return Version::MIN;
        }
        Version::new(Hlc::from_bits(self.hlc_max.load(Ordering::Relaxed)), NodeTag(u64::MAX))
    }

    /// The first cell of the node that is visible at `visible`: it supersedes the later ones.
    pub(super) fn visible_cell<'a>(&self, node: KeyNode<'a>, visible: Sequence) -> Option<CellNode<'a>> {
        node.cells().find(|cell| cell.sequence() <= visible && !self.aborted.contains(cell.sequence()))
    }

    pub(super) fn skiplist(&self) -> &Skiplist {
        &self.skiplist
    }

    /// Counts a cell, before it is visible to any thread.
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

/// A cell to be inserted.
struct NewCell<'c> {
    /// Position in its batch.
    at: u64,
    key: &'c [u8],
    hash: u64,
    cell: CellRef<'c>,
}

/// State of the search for a key.
#[expect(clippy::large_enum_variant, reason = "most values are of the large variant")]
enum Location<'a, 'c> {
    Known(KeyNode<'a>),
    Searching(Search<'a, 'c>),
}

impl Location<'_, '_> {
    /// Makes the next step. Returns whether another one follows.
    fn step(&mut self) -> bool {
        match self {
            Self::Known(_) => false,
            Self::Searching(search) => search.step(),
        }
    }
}

/// The sequences of failed groups. The common case, none, costs one load.
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
    /// Adds a range. Groups fail in the order of their sequences, usually in succession, so
    /// adjacent ranges are merged.
    fn add(&self, range: Range<Sequence>) {
        let mut ranges = self.ranges.write();
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
        drop(ranges);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Relaxed suffices: a reader that has a sequence beyond an aborted one received it after the
    /// abort.
    fn contains(&self, sequence: Sequence) -> bool {
        self.any.load(Ordering::Relaxed) && self.ranges.read().iter().any(|range| range.contains(&sequence))
    }
}

/// Uniform bits for the height of a new node.
///
/// A client chooses the hash and may guess the sequence. Without the seed it cannot choose either
/// to control the heights.
pub(super) fn tower_chance(seed: u64, sequence: Sequence, hash: u64) -> u64 {
    // The seed is mixed into the sequence first: otherwise a hash that cancels the sequence out
    // would give all nodes the same height, for any seed.
    scramble(scramble(seed ^ sequence.0) ^ hash)
}

/// Mixes bits that are nearly a counter (the finalizer of splitmix64; Steele et al., 2014).
fn scramble(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
