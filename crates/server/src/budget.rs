//! The memory that the server holds beside the store: bounded by part and as a whole.
//!
//! **Promise.** What stays after a turn of a thread is taken here first: bodies that come in, replies that wait for their
//! reader, ranges, batches, what is on its way between nodes, connections. A part never takes more than its bound, and
//! all of them together no more than the server's share of the memory budget; what the store takes beyond its own share
//! (snapshots that hold memtables, a long commit queue) comes off that. Whoever is refused has taken nothing, and holds
//! what it held. One part that is full leaves room for the others. A node that has nothing else to do has room for one
//! value as large as values may be, whatever the store takes: on its way to or from a client, and each other node. What is
//! resident without being in any account counts as the store's, but for what every process has.
//!
//! **Mechanism.** Each part has a reserve that nobody else can take. What parts take beyond their reserves comes out of
//! one pool. What is small and frequent does not come here each time: each thread takes for it in steps ([`ThreadBudget`]).
//!
//! **Caveats.** What the store takes is looked at some times a second. Of what is large and read from disk, 16 MiB together may
//! be there untaken: pages, and a value without room, until they are taken or let go. So may be as many small pages as threads
//! read. What a flush or a compaction holds of large values, one or two of them, is in no account. Where the budget is small
//! for the largest value, what there always is room for ([`LargestValue`]) goes over it.

use crate::config::Limits;
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// What memory is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryCategory {
    /// Bodies of requests that come piece by piece, until they are answered.
    Bodies,
    /// Values that came at once with their requests, until they are answered.
    Writes,
    /// Large values on their way to readers.
    Replies,
    /// Open ranges: pages, compressors.
    Ranges,
    /// Batches: entries under way, results that wait for their reader.
    Batches,
    /// Messages to and from other nodes.
    PeerLinks,
    /// Connections of clients, and heads that have come in part.
    Connections,
}

impl MemoryCategory {
    pub(crate) const ALL: [Self; 7] = [
        Self::Bodies,
        Self::Writes,
        Self::Replies,
        Self::Ranges,
        Self::Batches,
        Self::PeerLinks,
        Self::Connections,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bodies => "bodies",
            Self::Writes => "writes",
            Self::Replies => "replies",
            Self::Ranges => "ranges",
            Self::Batches => "batches",
            Self::PeerLinks => "peer_links",
            Self::Connections => "connections",
        }
    }
}

/// A part takes no more than one in so many of the server's share.
const CATEGORY_MAX_DIVISOR: u64 = 2;
/// Of the server's share, one in so many is reserved, the same for each part.
const GUARANTEED_DIVISOR: u64 = 3;
/// Of its bound a part is short of memory from so many hundredths on.
const SHORT_PERCENT: u64 = 75;

/// What is held beside a value, for one request; more than any takes.
const VALUE_OVERHEAD_BYTES: u64 = 2 << 20;

/// In so many copies a value is held for one request, at most: that is a range in a form that is written anew.
pub(crate) const VALUE_COPIES_MAX: u64 = 3;

/// The least share of a server with values of up to `value_bytes_max`: each part has room for one of them.
pub(crate) const fn budget_bytes_min(value_bytes_max: usize) -> u64 {
    CATEGORY_MAX_DIVISOR * (value_bytes_max as u64 + VALUE_OVERHEAD_BYTES)
}

/// What one of the largest values takes, for which there always is room.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LargestValue {
    /// On its way to or from a client.
    client_bytes: u64,
    /// On its way to or from all other nodes at once: a write leaves for each of them, and a range comes from each.
    links_bytes: u64,
}

impl LargestValue {
    /// With values of up to `value_bytes_max`, in a cluster of so many nodes.
    pub(crate) const fn of(value_bytes_max: usize, nodes: usize) -> Self {
        let value_bytes = value_bytes_max as u64;
        Self {
            client_bytes: VALUE_COPIES_MAX * value_bytes + VALUE_OVERHEAD_BYTES,
            links_bytes: (nodes as u64).saturating_sub(1) * (value_bytes + VALUE_OVERHEAD_BYTES),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    category_max: u64,
    guaranteed: u64,
    links_guaranteed: u64,
    pool_max: u64,
    /// Of the pool, what the store cannot take.
    pool_min: u64,
    store_share: u64,
    state: Mutex<State>,
}

/// What is taken.
#[derive(Debug, Default)]
struct State {
    reserved: [u64; MemoryCategory::ALL.len()],
    /// What all parts take beyond their reserves.
    pooled: u64,
    /// What the store takes beyond its share.
    store_excess: u64,
    refusals: Refusals,
}

/// How often there was no room.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refusals {
    /// Because a part had taken all that it may.
    categories: [u64; MemoryCategory::ALL.len()],
    /// Because all of them together had.
    pool: u64,
}

/// Bytes taken for a part; given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<MemoryBudget>,
    category: MemoryCategory,
    bytes: u64,
}

impl MemoryBudget {
    /// A budget of which nothing is taken, beside a store that may take `store_share`.
    pub(crate) fn new(limits: &Limits, store_share: u64, largest: LargestValue) -> Self {
        let category_max = limits.memory_bytes / CATEGORY_MAX_DIVISOR;
        let guaranteed = limits.memory_bytes / GUARANTEED_DIVISOR / MemoryCategory::ALL.len() as u64;
        let links_guaranteed = largest.links_bytes.max(guaranteed);
        let reserved = guaranteed * (MemoryCategory::ALL.len() as u64 - 1) + links_guaranteed;
        let pool_min = largest.client_bytes.min(category_max).saturating_sub(guaranteed);
        Self {
            category_max,
            guaranteed,
            links_guaranteed,
            pool_max: limits.memory_bytes.saturating_sub(reserved).max(pool_min),
            pool_min,
            store_share,
            state: Mutex::default(),
        }
    }

    /// What a part has taken, in bytes.
    pub(crate) fn reserved_bytes(&self, category: MemoryCategory) -> u64 {
        self.state.lock().reserved[category as usize]
    }

    /// What all parts have taken, in bytes.
    pub(crate) fn reserved_bytes_total(&self) -> u64 {
        self.state.lock().reserved.iter().sum()
    }

    /// What a part may take at most, in bytes.
    pub(crate) fn category_max(&self, category: MemoryCategory) -> u64 {
        self.category_max.max(self.guaranteed(category))
    }

    /// What a part has to itself.
    const fn guaranteed(&self, category: MemoryCategory) -> u64 {
        match category {
            MemoryCategory::PeerLinks => self.links_guaranteed,
            _ => self.guaranteed,
        }
    }

    /// The store takes so much now.
    pub(crate) fn note_store(&self, bytes: u64) {
        self.state.lock().store_excess = bytes.saturating_sub(self.store_share);
    }

    /// How often there was no room until now.
    pub(crate) fn refusals(&self) -> Refusals {
        self.state.lock().refusals
    }

    /// Whether there is little room left for this part, or somebody found none since then: the slowest of those who hold
    /// it are to let go.
    pub(crate) fn is_short(&self, category: MemoryCategory, since: &Refusals) -> bool {
        let is_near = |reserved: u64, max: u64| reserved * 100 > max * SHORT_PERCENT;
        let state = self.state.lock();
        let reserved = state.reserved[category as usize];
        let is_full = is_near(reserved, self.category_max(category))
            || state.refusals.categories[category as usize] > since.categories[category as usize];
        let is_pool_full = is_near(state.pooled, self.pool(&state)) || state.refusals.pool > since.pool;
        is_full || (reserved > self.guaranteed(category) && is_pool_full)
    }

    /// Begins to take bytes for a part.
    pub(crate) fn empty_reservation(self: &Arc<Self>, category: MemoryCategory) -> Reservation {
        Reservation { budget: Arc::clone(self), category, bytes: 0 }
    }

    /// Takes bytes for a part; `None`: so many are not left.
    pub(crate) fn reserve(self: &Arc<Self>, category: MemoryCategory, bytes: u64) -> Option<Reservation> {
        let mut reservation = self.empty_reservation(category);
        reservation.grow(bytes).then_some(reservation)
    }

    /// What the pool holds, less what the store takes of it.
    fn pool(&self, state: &State) -> u64 {
        self.pool_max.saturating_sub(state.store_excess).max(self.pool_min)
    }

    fn grow(&self, category: MemoryCategory, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let before = state.reserved[category as usize];
        let after = before.saturating_add(bytes);
        if after > self.category_max(category) {
            state.refusals.categories[category as usize] += 1;
            return false;
        }
        let pooled =
            state.pooled + self.beyond_guaranteed(category, after) - self.beyond_guaranteed(category, before);
        // Whoever stays within the reserve is not held up by a pool that the store has shrunk meanwhile.
        if pooled > state.pooled && pooled > self.pool(&state) {
            state.refusals.pool += 1;
            return false;
        }
        state.reserved[category as usize] = after;
        state.pooled = pooled;
        true
    }

    fn shrink(&self, category: MemoryCategory, bytes: u64) {
        let mut state = self.state.lock();
        let before = state.reserved[category as usize];
        let after = before - bytes;
        state.reserved[category as usize] = after;
        state.pooled -= self.beyond_guaranteed(category, before) - self.beyond_guaranteed(category, after);
    }

    /// What of `bytes` lies beyond the reserve of a part.
    fn beyond_guaranteed(&self, category: MemoryCategory, bytes: u64) -> u64 {
        bytes.saturating_sub(self.guaranteed(category))
    }
}

impl Reservation {
    /// Takes `bytes` more. `false`: so many are not left, and none were taken.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: u64) -> bool {
        let grown = self.budget.grow(self.category, bytes);
        if grown {
            self.bytes += bytes;
        }
        grown
    }

    /// Holds `bytes` from now on, more or fewer than before. `false`: so many more are not left, and it holds what it
    /// did.
    #[must_use]
    pub(crate) fn resize(&mut self, bytes: u64) -> bool {
        if let Some(more) = bytes.checked_sub(self.bytes) {
            return more == 0 || self.grow(more);
        }
        self.budget.shrink(self.category, self.bytes - bytes);
        self.bytes = bytes;
        true
    }

    /// What is held.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.shrink(self.category, self.bytes);
    }
}

/// What a purse takes and gives back at once, at most.
const STEP_BYTES_MAX: u64 = 256 << 10;
/// All purses together lie idle on one in so many of a part, at most.
const IDLE_DIVISOR: u64 = 16;

/// What one thread takes for many small things of a part. Only a step of it is taken of the budget.
#[derive(Debug)]
pub(crate) struct ThreadBudget {
    reservation: RefCell<Reservation>,
    reserved: Cell<u64>,
    step: u64,
}

/// Bytes lent by a purse; they go back when this is dropped.
#[derive(Debug)]
pub(crate) struct ThreadReservation {
    budget: Rc<ThreadBudget>,
    bytes: u64,
}

impl ThreadBudget {
    /// An empty purse of one of so many threads.
    pub(crate) fn new(budget: &Arc<MemoryBudget>, category: MemoryCategory, threads: usize) -> Rc<Self> {
        let step = (budget.category_max(category) / IDLE_DIVISOR / threads as u64).clamp(1, STEP_BYTES_MAX);
        Rc::new(Self {
            reservation: RefCell::new(budget.empty_reservation(category)),
            reserved: Cell::new(0),
            step,
        })
    }

    /// Lends bytes; `None`: so many are not left.
    pub(crate) fn reserve(self: &Rc<Self>, bytes: u64) -> Option<ThreadReservation> {
        let reserved = self.reserved.get() + bytes;
        if reserved > self.reservation.borrow().bytes() && !self.resize(reserved) {
            return None;
        }
        self.reserved.set(reserved);
        Some(ThreadReservation { budget: Rc::clone(self), bytes })
    }

    /// Takes what is needed to lend so much, in whole steps if there are any left.
    fn resize(&self, reserved: u64) -> bool {
        let mut reservation = self.reservation.borrow_mut();
        reservation.resize(reserved.next_multiple_of(self.step)) || reservation.resize(reserved)
    }
}

impl Drop for ThreadReservation {
    fn drop(&mut self) {
        let reserved = self.budget.reserved.get() - self.bytes;
        self.budget.reserved.set(reserved);
        if self.budget.reservation.borrow().bytes() > reserved + 2 * self.budget.step {
            assert!(self.budget.resize(reserved), "less is always to be had");
        }
    }
}

#[cfg(test)]
mod tests;
