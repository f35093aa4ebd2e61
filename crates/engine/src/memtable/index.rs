//! The nodes of a memtable by the hash of their key.
//!
//! **Promise.** After [`Index::publish`] of a node returned, [`Index::find`] of its key finds the node or says
//! that it does not know; it never says that the key is absent.
//!
//! **Mechanism.** A table of buckets, one cache line each. A node goes to the first empty slot of the few
//! buckets from the one its hash names; slots are never emptied. So an empty slot ends a search, and a
//! *window* that is full once is full for ever: its further keys are left to the skiplist. Publishing a node
//! twice, even at the same time, puts it in one slot, since both come by the same slots in the same order.
//! A slot keeps 16 bits of the hash in the upper bits of the address, so that other keys are seldom touched.
//!
//! **Caveats.** The table does not grow. Keys chosen to share a window make it answer that it does not know,
//! which costs a search of the skiplist and no more.

use super::arena::Arena;
use super::node::{KeyHead, KeyNode, Probe};
use super::sync::{AtomicPtr, Ordering};
use crate::prefetch::prefetch;
use std::cmp::Ordering as Order;
use std::ptr::{self, NonNull};

/// One slot for so many bytes of capacity.
const BYTES_PER_SLOT: usize = 128;
const SLOTS_PER_BUCKET: usize = 8;
/// The buckets a key may be in.
const WINDOW_BUCKETS: usize = 4;
const BUCKETS_MIN: usize = 8;
/// User space ends below 2^48 on all systems we run on, unless a process asks for more.
const ADDRESS_BITS: u32 = 48;

type Slot = AtomicPtr<KeyHead>;

#[repr(align(64))]
struct Bucket([Slot; SLOTS_PER_BUCKET]);

/// See the module.
pub(super) struct Index {
    buckets: Box<[Bucket]>,
}

/// What an [`Index`] knows of a key.
pub(super) enum Lookup<'a> {
    /// Its node.
    Found(KeyNode<'a>),
    /// It is not in the memtable.
    Absent,
    /// There was no room to know.
    Unknown,
}

impl Index {
    /// An index for a memtable that is to hold about `capacity_bytes`.
    pub(super) fn new(capacity_bytes: usize) -> Self {
        let slots = (capacity_bytes / BYTES_PER_SLOT).next_power_of_two();
        let buckets = (slots / SLOTS_PER_BUCKET).max(BUCKETS_MIN);
        let empty = || Bucket(std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())));
        Self { buckets: (0..buckets).map(|_| empty()).collect() }
    }

    /// What the index holds of the global allocator, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// Asks the processor for where a key with this hash is looked for first.
    pub(super) fn prefetch(&self, hash: u64) {
        if let Some(slot) = self.window(hash).next() {
            prefetch(ptr::from_ref(slot).cast());
        }
    }

    /// Asks the processor for the node that is probably that of a key with this hash.
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

    /// Looks for the node of a key with this hash. `arena` is that of the published nodes.
    pub(super) fn find<'a>(&self, hash: u64, probe: &Probe<'_>, arena: &'a Arena) -> Lookup<'a> {
        for slot in self.window(hash) {
            let entry = slot.load(Ordering::Acquire);
            if entry.is_null() {
                return Lookup::Absent;
            }
            if entry.addr() & TAG_MASK != tag(hash) {
                continue;
            }
            let node = node_of(entry, arena);
            if node.compare(probe) == Order::Equal {
                return Lookup::Found(node);
            }
        }
        Lookup::Unknown
    }

    /// Whether a key with this hash may be in the index, or may be elsewhere for want of room.
    pub(super) fn may_contain(&self, hash: u64) -> bool {
        for slot in self.window(hash) {
            let entry = slot.load(Ordering::Acquire);
            if entry.is_null() || entry.addr() & TAG_MASK == tag(hash) {
                return !entry.is_null();
            }
        }
        true
    }

    /// Makes `node`, whose key has this hash, known. It may be known already, or become so at the same time.
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

/// The part of the hash that a slot holds, where it holds it.
fn tag(hash: u64) -> usize {
    hash as usize & TAG_MASK
}

/// The node of an entry of a slot.
fn node_of(entry: *mut KeyHead, _: &Arena) -> KeyNode<'_> {
    let address = entry.map_addr(|address| address & !TAG_MASK);
    let address = NonNull::new(address).expect("a slot holds a node");
    // SAFETY: slots hold only what `publish` put there, nodes of the arena that callers of `find` pass.
    unsafe { KeyNode::at(address) }
}
