//! The nodes of a memtable: layout of keys and cells in the arena.
//!
//! **Promise.** The handles [`KeyNode`] and [`CellNode`] are safe to use. The data that they expose
//! was written before the node was reachable, never changes except for the links, and lives as long
//! as their lifetime says.
//!
//! **Mechanism.** A key is one allocation of the arena, and so is each of its cells:
//!
//! ```text
//! key:   links of levels height-1 .. 1 | KeyHead: link of level 0, first cell, key length
//!                                      | greatest `from` | key, padded with zeros to 16 bytes at least
//! cell:  CellHead: next cell, sequence, version, value length, flags, from
//!                                      | [expiry] value, or the address of a large value
//! ```
//!
//! The handle of a key points at the link of level 0, so that a search finds a link and the first
//! bytes of the key close together.
//!
//! **Soundness** rests on one rule, which the privacy of the parent module enforces: nodes are
//! linked only to nodes of the same arena, and the holder of a handle of lifetime `'a` has borrowed
//! that arena for `'a`.

use super::arena::{ALLOCATION_ALIGN, Arena, LargeValue};
use super::chunk_pool::CACHE_LINE;
use super::sync::{AtomicPtr, AtomicU8, Ordering};
use crate::prefetch::prefetch;
use crate::prefix::{self, PREFIX_BYTES};
use crate::sequence::Sequence;
use bytes::Bytes;
use std::cmp::Ordering as Order;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::slice;
use stdx::{Cell, CellKind, CellMeta, CellRef, Hlc, NodeTag, Version, WallTime};

/// Greatest height of a tower. A quarter of the nodes of each level is in the next, so it suffices
/// for 16 million keys.
pub(super) const HEIGHT_MAX: usize = 12;
/// Greatest length of a key, in bytes.
pub(super) const KEY_BYTES_MAX: usize = 16 << 10;

const EXPIRY_BYTES: usize = size_of::<u64>();
const LINK_BYTES: usize = size_of::<Link>();

const FLAG_TOMBSTONE: u8 = 1;
const FLAG_EXPIRES: u8 = 2;
const FLAG_LARGE: u8 = 4;

/// Cache lines of a cell to prefetch: enough for a value of about 100 bytes.
const PREFETCHED_LINES: usize = 3;

type Link = AtomicPtr<KeyHead>;

/// The fixed part of a key node.
#[repr(C)]
pub(super) struct KeyHead {
    next: Link,
    cells: AtomicPtr<CellHead>,
    key_bytes: u32,
    /// Greatest `from` of the cells.
    from_max: AtomicU8,
}

/// The fixed part of a cell.
#[repr(C)]
struct CellHead {
    next: AtomicPtr<CellHead>,
    sequence: u64,
    hlc: u64,
    tag: u64,
    value_bytes: u32,
    flags: u8,
    from: u8,
}

const _: () =
    assert!(align_of::<KeyHead>() <= ALLOCATION_ALIGN && align_of::<CellHead>() <= ALLOCATION_ALIGN);

/// A key to search for, with its prefix for fast comparison.
#[derive(Clone, Copy)]
pub(super) struct Probe<'k> {
    key: &'k [u8],
    prefix: u128,
}

impl<'k> Probe<'k> {
    pub(super) fn new(key: &'k [u8]) -> Self {
        Self { key, prefix: prefix::prefix(key) }
    }

    /// The key.
    pub(super) fn key(&self) -> &'k [u8] {
        self.key
    }
}

/// A key of the memtable with its cells.
#[derive(Clone, Copy)]
pub(super) struct KeyNode<'a> {
    head: NonNull<KeyHead>,
    arena: PhantomData<&'a Arena>,
}

// SAFETY: a handle is a shared borrow of memory in which only atomics change.
unsafe impl Send for KeyNode<'_> {}
// SAFETY: as above.
unsafe impl Sync for KeyNode<'_> {}

impl PartialEq for KeyNode<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.head == other.head
    }
}

impl<'a> KeyNode<'a> {
    /// The head of the list: less than every key, without cells, with links on all levels.
    pub(super) fn sentinel(arena: &'a Arena) -> Self {
        Self::allocate(arena, HEIGHT_MAX, &[], None)
    }

    /// An unlinked node of `height` levels with one cell.
    pub(super) fn new(arena: &'a Arena, height: usize, key: &[u8], first: CellNode<'a>) -> Self {
        Self::allocate(arena, height, key, Some(first))
    }

    fn allocate(arena: &'a Arena, height: usize, key: &[u8], first: Option<CellNode<'a>>) -> Self {
        assert!((1..=HEIGHT_MAX).contains(&height), "a tower of {height} levels");
        assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes in a memtable", key.len());
        let tower_bytes = (height - 1) * LINK_BYTES;
        let head_bytes = tower_bytes + size_of::<KeyHead>();
        let piece = arena.allocate_key(head_bytes + key.len().max(PREFIX_BYTES));
        // SAFETY: everything lies within the allocation, which this thread owns. Links and head are
        // aligned, because the allocation is, and because the length of a link is a multiple of the
        // alignment.
        unsafe {
            for level in 0..height - 1 {
                piece.cast::<Link>().add(level).write(AtomicPtr::new(ptr::null_mut()));
            }
            let head = piece.add(tower_bytes).cast::<KeyHead>();
            head.write(KeyHead {
                next: AtomicPtr::new(ptr::null_mut()),
                cells: AtomicPtr::new(first.map_or(ptr::null_mut(), |first| first.head.as_ptr())),
                key_bytes: key.len() as u32,
                from_max: AtomicU8::new(first.map_or(0, CellNode::from)),
            });
            let key_at = piece.add(head_bytes);
            key_at.cast::<[u8; PREFIX_BYTES]>().write([0; PREFIX_BYTES]);
            key_at.copy_from_nonoverlapping(NonNull::from(key).cast(), key.len());
            Self { head, arena: PhantomData }
        }
    }

    /// The handle for an address from [`KeyNode::address`].
    ///
    /// # Safety
    /// The arena of the node lives for `'a`.
    pub(super) unsafe fn at(head: NonNull<KeyHead>) -> Self {
        Self { head, arena: PhantomData }
    }

    /// Address of the node, for [`KeyNode::at`].
    pub(super) fn address(self) -> NonNull<KeyHead> {
        self.head
    }

    /// The key.
    pub(super) fn key(self) -> &'a [u8] {
        let bytes = self.head_ref().key_bytes as usize;
        // SAFETY: `allocate` wrote this many bytes there, and nothing changes them for `'a`.
        unsafe { slice::from_raw_parts(self.key_at().as_ptr(), bytes) }
    }

    /// Compares the key with that of the probe.
    pub(super) fn compare(self, probe: &Probe<'_>) -> Order {
        // SAFETY: `allocate` wrote at least these bytes, and nothing changes them for `'a`.
        let prefix = u128::from_be_bytes(unsafe { self.key_at().cast::<[u8; PREFIX_BYTES]>().read() });
        prefix.cmp(&probe.prefix).then_with(|| self.key().cmp(probe.key))
    }

    /// The next node on `level`, which this node must have.
    pub(super) fn next(self, level: usize) -> Option<KeyNode<'a>> {
        Self::from_link(self.link(level).load(Ordering::Acquire))
    }

    /// Sets the next node on `level`, before the node is visible to other threads.
    pub(super) fn set_next(self, level: usize, next: Option<KeyNode<'a>>) {
        self.link(level).store(Self::to_link(next), Ordering::Relaxed);
    }

    /// Links `new` behind this node on `level` if `next` still follows it. Returns whether it did.
    pub(super) fn link_next(self, level: usize, next: Option<KeyNode<'a>>, new: KeyNode<'a>) -> bool {
        let link = self.link(level);
        let next = Self::to_link(next);
        link.compare_exchange(next, new.head.as_ptr(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The greatest `from` of all cells of the key that are visible to this thread, and possibly of
    /// later ones.
    pub(super) fn greatest_from(self) -> u8 {
        self.head_ref().from_max.load(Ordering::Relaxed)
    }

    /// The cells of the key; each precedes those that it supersedes.
    pub(super) fn cells(self) -> impl Iterator<Item = CellNode<'a>> {
        let mut next = CellNode::from_link(self.head_ref().cells.load(Ordering::Acquire));
        std::iter::from_fn(move || {
            let cell = next?;
            next = CellNode::from_link(cell.head_ref().next.load(Ordering::Acquire));
            Some(cell)
        })
    }

    /// Links `new` in order among the cells of this key. Returns whether a cell with a greater
    /// version was present.
    pub(super) fn insert_cell(self, new: CellNode<'a>) -> bool {
        let from_max = &self.head_ref().from_max;
        if new.from() > from_max.load(Ordering::Relaxed) {
            // Before the link to the cell, which publishes it.
            from_max.fetch_max(new.from(), Ordering::Relaxed);
        }
        let mut link = &self.head_ref().cells;
        let mut superseded = false;
        loop {
            let next = link.load(Ordering::Acquire);
            match CellNode::from_link(next) {
                Some(cell) if cell.precedes(new) => {
                    superseded = superseded || cell.cell().meta.version > new.cell().meta.version;
                    link = &cell.head_ref().next;
                }
                _ => {
                    new.head_ref().next.store(next, Ordering::Relaxed);
                    let new = new.head.as_ptr();
                    if link.compare_exchange(next, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                        return superseded;
                    }
                }
            }
        }
    }

    /// Prefetches the node.
    pub(super) fn prefetch(self) {
        let head = self.head.as_ptr().cast::<u8>();
        prefetch(head);
        // In half of the nodes, the compared bytes extend into the next cache line.
        prefetch(head.wrapping_add(size_of::<KeyHead>() + PREFIX_BYTES - 1));
    }

    /// Prefetches the first cell.
    pub(super) fn prefetch_cell(self) {
        let cell = self.head_ref().cells.load(Ordering::Relaxed).cast::<u8>();
        for line in 0..PREFETCHED_LINES {
            prefetch(cell.wrapping_add(line * CACHE_LINE));
        }
    }

    fn link(self, level: usize) -> &'a Link {
        // SAFETY: the links of higher levels lie below the head, and that of level 0 is its first
        // field. Callers request only levels that the node has, as they reached it by a link of
        // that level.
        unsafe { self.head.cast::<Link>().sub(level).as_ref() }
    }

    fn head_ref(self) -> &'a KeyHead {
        // SAFETY: the head was written by `allocate`, lives for `'a`, and only its atomics change.
        unsafe { self.head.as_ref() }
    }

    fn key_at(self) -> NonNull<u8> {
        // SAFETY: the key follows the head within the allocation.
        unsafe { self.head.add(1).cast() }
    }

    fn from_link(head: *mut KeyHead) -> Option<Self> {
        NonNull::new(head).map(|head| Self { head, arena: PhantomData })
    }

    fn to_link(node: Option<Self>) -> *mut KeyHead {
        node.map_or(ptr::null_mut(), |node| node.head.as_ptr())
    }
}

/// One cell of a key.
#[derive(Clone, Copy)]
pub(super) struct CellNode<'a> {
    head: NonNull<CellHead>,
    arena: PhantomData<&'a Arena>,
}

// SAFETY: a handle is a shared borrow of memory in which only one atomic changes.
unsafe impl Send for CellNode<'_> {}
// SAFETY: as above.
unsafe impl Sync for CellNode<'_> {}

impl<'a> CellNode<'a> {
    /// An unlinked cell.
    pub(super) fn new(arena: &'a Arena, sequence: Sequence, cell: &CellRef<'_>) -> Self {
        assert!(u32::try_from(cell.value.len()).is_ok(), "a value of {} bytes", cell.value.len());
        let large = arena.is_large(cell.value.len()).then(|| arena.allocate_large(cell.value));
        let value_bytes = large.map_or(cell.value.len(), |large| size_of_val(&large));
        let expiry_bytes = if cell.meta.expires_at.is_some() { EXPIRY_BYTES } else { 0 };
        let piece = arena.allocate_cell(size_of::<CellHead>() + expiry_bytes + value_bytes);
        let head = piece.cast::<CellHead>();
        // SAFETY: everything lies within the allocation, which this thread owns. The parts are
        // aligned, because the allocation is, and the lengths of head and expiry are multiples of
        // the alignment.
        unsafe {
            head.write(CellHead::new(sequence, cell, large.is_some()));
            if let Some(expires_at) = cell.meta.expires_at {
                head.add(1).cast::<u64>().write(expires_at.micros_since_unix_epoch());
            }
            let value_at = head.add(1).cast::<u8>().add(expiry_bytes);
            match large {
                Some(large) => value_at.cast::<NonNull<LargeValue>>().write(large),
                None => value_at.copy_from_nonoverlapping(NonNull::from(cell.value).cast(), value_bytes),
            }
        }
        Self { head, arena: PhantomData }
    }

    /// The sequence of its commit.
    pub(super) fn sequence(self) -> Sequence {
        Sequence(self.head_ref().sequence)
    }

    /// The `from` of its write.
    fn from(self) -> u8 {
        self.head_ref().from
    }

    /// The cell, borrowed from the arena.
    pub(super) fn cell(self) -> CellRef<'a> {
        let value = match self.large_value() {
            Some(large) => &large.bytes,
            // SAFETY: `new` wrote a value of this length there, and it never changes.
            None => unsafe {
                slice::from_raw_parts(self.value_at().as_ptr(), self.head_ref().value_bytes as usize)
            },
        };
        CellRef { meta: self.meta(), value }
    }

    /// An owned copy of the cell: a small value is copied, a large one shared.
    pub(super) fn to_cell(self) -> Cell {
        let value = match self.large_value() {
            Some(large) => large.bytes.clone(),
            None => Bytes::copy_from_slice(self.cell().value),
        };
        Cell { meta: self.meta(), value }
    }

    /// Whether this cell precedes `other` of the same key: the superseding cell is first, and of
    /// equal ones the one committed later.
    fn precedes(self, other: Self) -> bool {
        match self.version().cmp(&other.version()) {
            Order::Greater => true,
            Order::Less => false,
            Order::Equal if self.cell().supersedes(&other.cell()) => true,
            Order::Equal => !other.cell().supersedes(&self.cell()) && self.sequence() > other.sequence(),
        }
    }

    fn version(self) -> Version {
        let head = self.head_ref();
        Version::new(Hlc::from_bits(head.hlc), NodeTag(head.tag))
    }

    fn meta(self) -> CellMeta {
        let head = self.head_ref();
        let kind = if head.flags & FLAG_TOMBSTONE == 0 { CellKind::Value } else { CellKind::Tombstone };
        let expires_at = (head.flags & FLAG_EXPIRES != 0).then(|| {
            // SAFETY: the flag says that `new` put an aligned expiry directly behind the head.
            WallTime::from_micros_since_unix_epoch(unsafe { self.head.add(1).cast::<u64>().read() })
        });
        CellMeta { version: self.version(), kind, expires_at, from: head.from }
    }

    fn large_value(self) -> Option<&'a LargeValue> {
        (self.head_ref().flags & FLAG_LARGE != 0).then(|| {
            // SAFETY: the flag says that `new` put the address of a large value of the same arena
            // there, which lives unchanged for `'a`.
            unsafe { self.value_at().cast::<NonNull<LargeValue>>().read().as_ref() }
        })
    }

    fn value_at(self) -> NonNull<u8> {
        let expiry = if self.head_ref().flags & FLAG_EXPIRES == 0 { 0 } else { EXPIRY_BYTES };
        // SAFETY: the value follows the head and the expiry, if there is one, within the
        // allocation.
        unsafe { self.head.add(1).cast::<u8>().add(expiry) }
    }

    fn head_ref(self) -> &'a CellHead {
        // SAFETY: the head was written by `new`, lives for `'a`, and only its atomic changes.
        unsafe { self.head.as_ref() }
    }

    fn from_link(head: *mut CellHead) -> Option<Self> {
        NonNull::new(head).map(|head| Self { head, arena: PhantomData })
    }
}

impl CellHead {
    fn new(sequence: Sequence, cell: &CellRef<'_>, large: bool) -> Self {
        let meta = &cell.meta;
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        Self {
            next: AtomicPtr::new(ptr::null_mut()),
            sequence: sequence.0,
            hlc: meta.version.hlc.to_bits(),
            tag: meta.version.tag.0,
            value_bytes: cell.value.len() as u32,
            flags: flag(meta.kind == CellKind::Tombstone, FLAG_TOMBSTONE)
                | flag(meta.expires_at.is_some(), FLAG_EXPIRES)
                | flag(large, FLAG_LARGE),
            from: meta.from,
        }
    }
}
