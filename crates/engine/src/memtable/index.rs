//! A lock-free hash index of the nodes of a memtable.
//!
//! **Promise.** After [`Index::publish`] of a node has returned, [`Index::find`] of its key returns
//! the node or [`IndexLookup::Unknown`], never [`IndexLookup::Absent`].
//!
//! **Mechanism.** A table of buckets of one cache line each. A node takes the first empty slot in a
//! *window* of buckets that begins at the one for its hash. Slots are never emptied. So an empty
//! slot ends a search, and a full window stays full: its further keys are found by the skiplist
//! only. A node that is published twice, even concurrently, takes one slot, because both searches
//! visit the same slots in the same order. A slot keeps 16 bits of the hash in the upper bits of
//! the address, so that nodes of other keys are seldom read.
//!
//! **Caveats.** The table does not grow. Keys that are chosen to share a window only cause
//! `Unknown` results, each of which costs a search of the skiplist.

use super::arena::Arena;
use super::node::{KeyHead, KeyNode, Probe};
use super::sync::{AtomicPtr, Ordering};
use crate::prefetch::prefetch;
use std::cmp::Ordering as Order;
use std::ptr::{self, NonNull};

/// Bytes of capacity per slot.
const BYTES_PER_SLOT: usize = 128;
const SLOTS_PER_BUCKET: usize = 8;
/// Number of buckets in a window.
const WINDOW_BUCKETS: usize = 4;
const BUCKETS_MIN: usize = 8;
/// User space ends below 2^48 on all supported systems, unless a process requests more.
const ADDRESS_BITS: u32 = 48;

type Slot = AtomicPtr<KeyHead>;

#[repr(align(64))]
struct Bucket([Slot; SLOTS_PER_BUCKET]);

/// Hash table of the nodes.
pub(super) struct Index {
    buckets: Box<[Bucket]>,
}

/// Result of a lookup.
pub(super) enum IndexLookup<'a> {
    /// The node of the key.
    Found(KeyNode<'a>),
    /// The key is not in the memtable.
    Absent,
    /// The window is full: the key may be in the skiplist.
    Unknown,
}

impl Index {
    /// An index for a memtable of about `capacity_bytes`.
    pub(super) fn new(capacity_bytes: usize) -> Self {
        let slots = (capacity_bytes / BYTES_PER_SLOT).next_power_of_two();
        let buckets = (slots / SLOTS_PER_BUCKET).max(BUCKETS_MIN);
        let empty = || Bucket(std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())));
        Self { buckets: (0..buckets).map(|_| empty()).collect() }
    }

    /// Memory that the index holds of the global allocator, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// Prefetches the first bucket for a key with this hash.
    pub(super) fn prefetch(&self, hash: u64) {
        if let Some(slot) = self.window(hash).next() {
            prefetch(ptr::from_ref(slot).cast());
        }
    }

    /// Prefetches the node that probably has a key with this hash.
    pub(super) fn prefetch_node(&self, hash: u64, arena: &Arena) {
        for slot in self.window(hash).take(SLOTS_PER_BUCKET) {
            let entry = slot.load(Ordering::Acquire);
            if entry.is_null() {
                return;
            }
            if entry.addr() & TAG_MASK == tag(hash) {
                return node_of(entry, arena).prefetch();
            }
        }
    }

    /// Finds the node of a key with this hash. `arena` is that of the published nodes.
    pub(super) fn find<'a>(&self, hash: u64, probe: &Probe<'_>, arena: &'a Arena) -> IndexLookup<'a> {
        for slot in self.window(hash) {
            let entry = slot.load(Ordering::Acquire);
            if entry.is_null() {
                return IndexLookup::Absent;
            }
            if entry.addr() & TAG_MASK != tag(hash) {
                continue;
            }
            let node = node_of(entry, arena);
            if node.compare(probe) == Order::Equal {
                return IndexLookup::Found(node);
            }
        }
        IndexLookup::Unknown
    }

    /// Whether a key with this hash may be in the memtable. `false` is certain.
    pub(super) fn may_contain(&self, hash: u64) -> bool {
        for slot in self.window(hash) {
            let entry = slot.load(Ordering::Acquire);
            if entry.is_null() || entry.addr() & TAG_MASK == tag(hash) {
                return !entry.is_null();
            }
        }
        true
    }

    /// Adds `node`, whose key has this hash. It may be in the index already, or be added
    /// concurrently.
    pub(super) fn publish(&self, hash: u64, node: KeyNode<'_>) {
        let address = node.address().as_ptr();
        assert_eq!(address.addr() & TAG_MASK, 0, "user space beyond {ADDRESS_BITS} bits");
        let entry = address.map_addr(|address| address | tag(hash));
        for slot in self.window(hash) {
            let mut there = slot.load(Ordering::Acquire);
            if there.is_null() {
                let exchanged =
                    slot.compare_exchange(ptr::null_mut(), entry, Ordering::AcqRel, Ordering::Acquire);
                there = exchanged.map_or_else(|there| there, |_| entry);
            }
            if there == entry {
                return;
            }
        }
    }

    fn window(&self, hash: u64) -> impl Iterator<Item = &Slot> {
        let mask = self.buckets.len() - 1;
        let home = hash as usize & mask;
        (home..home + WINDOW_BUCKETS).flat_map(move |bucket| &self.buckets[bucket & mask].0)
    }
}

const _: () = assert!(usize::BITS == 64 && BUCKETS_MIN >= WINDOW_BUCKETS);

/// The bits of a slot that hold a part of the hash.
const TAG_MASK: usize = !0 << ADDRESS_BITS;

/// The part of the hash that a slot holds, in place.
fn tag(hash: u64) -> usize {
    hash as usize & TAG_MASK
}

/// The node in a slot.
fn node_of(entry: *mut KeyHead, _: &Arena) -> KeyNode<'_> {
    let address = entry.map_addr(|address| address & !TAG_MASK);
    let address = NonNull::new(address).expect("a slot holds a node");
    // SAFETY: slots hold only nodes that `publish` stored, of the arena that callers of `find`
    // pass.
    unsafe { KeyNode::at(address) }
}
