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
//! one pool. What is small and frequent does not come here each time: each thread takes for it in steps ([`Purse`]).
//!
//! **Caveats.** What the store takes is looked at some times a second. Of what is large and read from disk, 16 MiB together may
//! be there untaken: pages, and a value without room, until they are taken or let go. So may be as many small pages as threads
//! read. What a flush or a compaction holds of large values, one or two of them, is in no account. Where the budget is small
//! for the largest value, what there always is room for ([`Largest`]) goes over it.

use crate::config::Limits;
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// What memory is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
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

impl Part {
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
const PART_SHARE: u64 = 2;
/// Of the server's share, one in so many is reserved, the same for each part.
const RESERVED_SHARE: u64 = 3;
/// Of its bound a part is short of memory from so many hundredths on.
const SHORT_PERCENT: u64 = 75;

/// What is held beside a value, for one request; more than any takes.
const BESIDE_VALUE_BYTES: u64 = 2 << 20;

/// In so many copies a value is held for one request, at most: that is a range in a form that is written anew.
pub(crate) const COPIES_OF_VALUE: u64 = 3;

/// The least share of a server with values of up to `value_bytes_max`: each part has room for one of them.
pub(crate) const fn least_bytes(value_bytes_max: usize) -> u64 {
    PART_SHARE * (value_bytes_max as u64 + BESIDE_VALUE_BYTES)
}

/// What one of the largest values takes, for which there always is room.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Largest {
    /// On its way to or from a client.
    client_bytes: u64,
    /// On its way to or from all other nodes at once: a write leaves for each of them, and a range comes from each.
    links_bytes: u64,
}

impl Largest {
    /// With values of up to `value_bytes_max`, in a cluster of so many nodes.
    pub(crate) const fn of(value_bytes_max: usize, nodes: usize) -> Self {
        let value_bytes = value_bytes_max as u64;
        Self {
            client_bytes: COPIES_OF_VALUE * value_bytes + BESIDE_VALUE_BYTES,
            links_bytes: (nodes as u64).saturating_sub(1) * (value_bytes + BESIDE_VALUE_BYTES),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    part_max: u64,
    reserve: u64,
    links_reserve: u64,
    pool_max: u64,
    /// Of the pool, what the store cannot take.
    pool_min: u64,
    store_share: u64,
    state: Mutex<State>,
}

/// What is taken.
#[derive(Debug, Default)]
struct State {
    taken: [u64; Part::ALL.len()],
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
    parts: [u64; Part::ALL.len()],
    /// Because all of them together had.
    pool: u64,
}

/// Bytes taken for a part; given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    budget: Arc<MemoryBudget>,
    part: Part,
    bytes: u64,
}

impl MemoryBudget {
    /// A budget of which nothing is taken, beside a store that may take `store_share`.
    pub(crate) fn new(limits: &Limits, store_share: u64, largest: Largest) -> Self {
        let part_max = limits.memory_bytes / PART_SHARE;
        let reserve = limits.memory_bytes / RESERVED_SHARE / Part::ALL.len() as u64;
        let links_reserve = largest.links_bytes.max(reserve);
        let reserved = reserve * (Part::ALL.len() as u64 - 1) + links_reserve;
        let pool_min = largest.client_bytes.min(part_max).saturating_sub(reserve);
        Self {
            part_max,
            reserve,
            links_reserve,
            pool_max: limits.memory_bytes.saturating_sub(reserved).max(pool_min),
            pool_min,
            store_share,
            state: Mutex::default(),
        }
    }

    /// What a part has taken, in bytes.
    pub(crate) fn taken(&self, part: Part) -> u64 {
        self.state.lock().taken[part as usize]
    }

    /// What all parts have taken, in bytes.
    pub(crate) fn taken_in_all(&self) -> u64 {
        self.state.lock().taken.iter().sum()
    }

    /// What a part may take at most, in bytes.
    pub(crate) fn part_max(&self, part: Part) -> u64 {
        self.part_max.max(self.reserve(part))
    }

    /// What a part has to itself.
    const fn reserve(&self, part: Part) -> u64 {
        match part {
            Part::PeerLinks => self.links_reserve,
            _ => self.reserve,
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
    pub(crate) fn is_short(&self, part: Part, since: &Refusals) -> bool {
        let is_near = |taken: u64, max: u64| taken * 100 > max * SHORT_PERCENT;
        let state = self.state.lock();
        let taken = state.taken[part as usize];
        let is_full = is_near(taken, self.part_max(part))
            || state.refusals.parts[part as usize] > since.parts[part as usize];
        let is_pool_full = is_near(state.pooled, self.pool(&state)) || state.refusals.pool > since.pool;
        is_full || (taken > self.reserve(part) && is_pool_full)
    }

    /// Begins to take bytes for a part.
    pub(crate) fn begin(self: &Arc<Self>, part: Part) -> Taken {
        Taken { budget: Arc::clone(self), part, bytes: 0 }
    }

    /// Takes bytes for a part; `None`: so many are not left.
    pub(crate) fn take(self: &Arc<Self>, part: Part, bytes: u64) -> Option<Taken> {
        let mut taken = self.begin(part);
        taken.take(bytes).then_some(taken)
    }

    /// What the pool holds, less what the store takes of it.
    fn pool(&self, state: &State) -> u64 {
        self.pool_max.saturating_sub(state.store_excess).max(self.pool_min)
    }

    fn grow(&self, part: Part, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let before = state.taken[part as usize];
        let after = before.saturating_add(bytes);
        if after > self.part_max(part) {
            state.refusals.parts[part as usize] += 1;
            return false;
        }
        let pooled = state.pooled + self.beyond(part, after) - self.beyond(part, before);
        // Whoever stays within the reserve is not held up by a pool that the store has shrunk meanwhile.
        if pooled > state.pooled && pooled > self.pool(&state) {
            state.refusals.pool += 1;
            return false;
        }
        state.taken[part as usize] = after;
        state.pooled = pooled;
        true
    }

    fn shrink(&self, part: Part, bytes: u64) {
        let mut state = self.state.lock();
        let before = state.taken[part as usize];
        let after = before - bytes;
        state.taken[part as usize] = after;
        state.pooled -= self.beyond(part, before) - self.beyond(part, after);
    }

    /// What of `bytes` lies beyond the reserve of a part.
    fn beyond(&self, part: Part, bytes: u64) -> u64 {
        bytes.saturating_sub(self.reserve(part))
    }
}

impl Taken {
    /// Takes `bytes` more. `false`: so many are not left, and none were taken.
    #[must_use]
    pub(crate) fn take(&mut self, bytes: u64) -> bool {
        let grown = self.budget.grow(self.part, bytes);
        if grown {
            self.bytes += bytes;
        }
        grown
    }

    /// Holds `bytes` from now on, more or fewer than before. `false`: so many more are not left, and it holds what it
    /// did.
    #[must_use]
    pub(crate) fn hold(&mut self, bytes: u64) -> bool {
        if let Some(more) = bytes.checked_sub(self.bytes) {
            return more == 0 || self.take(more);
        }
        self.budget.shrink(self.part, self.bytes - bytes);
        self.bytes = bytes;
        true
    }

    /// What is held.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.shrink(self.part, self.bytes);
    }
}

/// What a purse takes and gives back at once, at most.
const STEP_BYTES_MAX: u64 = 256 << 10;
/// All purses together lie idle on one in so many of a part, at most.
const IDLE_SHARE: u64 = 16;

/// What one thread takes for many small things of a part. Only a step of it is taken of the budget.
#[derive(Debug)]
pub(crate) struct Purse {
    taken: RefCell<Taken>,
    lent: Cell<u64>,
    step: u64,
}

/// Bytes lent by a purse; they go back when this is dropped.
#[derive(Debug)]
pub(crate) struct Lent {
    purse: Rc<Purse>,
    bytes: u64,
}

impl Purse {
    /// An empty purse of one of so many threads.
    pub(crate) fn new(budget: &Arc<MemoryBudget>, part: Part, threads: usize) -> Rc<Self> {
        let step = (budget.part_max(part) / IDLE_SHARE / threads as u64).clamp(1, STEP_BYTES_MAX);
        Rc::new(Self { taken: RefCell::new(budget.begin(part)), lent: Cell::new(0), step })
    }

    /// Lends bytes; `None`: so many are not left.
    pub(crate) fn lend(self: &Rc<Self>, bytes: u64) -> Option<Lent> {
        let lent = self.lent.get() + bytes;
        if lent > self.taken.borrow().bytes() && !self.hold(lent) {
            return None;
        }
        self.lent.set(lent);
        Some(Lent { purse: Rc::clone(self), bytes })
    }

    /// Takes what is needed to lend so much, in whole steps if there are any left.
    fn hold(&self, lent: u64) -> bool {
        let mut taken = self.taken.borrow_mut();
        taken.hold(lent.next_multiple_of(self.step)) || taken.hold(lent)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let lent = self.purse.lent.get() - self.bytes;
        self.purse.lent.set(lent);
        if self.purse.taken.borrow().bytes() > lent + 2 * self.purse.step {
            assert!(self.purse.hold(lent), "less is always to be had");
        }
    }
}

#[cfg(test)]
mod tests;
