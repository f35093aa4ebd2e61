//! The budget of the memory that the server holds beside the store, by category and in total.
//!
//! **Promise.** Memory that outlives one iteration of a thread's event loop is reserved here first:
//! request bodies, responses that wait for their reader, ranges, batches, messages between nodes,
//! and connections. Each category has a maximum. All categories together stay within the server's
//! share of the memory budget. If the store exceeds its own share (snapshots that pin memtables, a
//! long commit queue), the excess is subtracted from the server's share. A failed reservation
//! changes nothing. A category at its maximum leaves memory for the others. An otherwise idle node
//! can always hold one value of the largest size, even if the store exceeds its share: on its way
//! to or from a client, and to or from each other node. Resident memory that no reservation covers
//! is charged to the store, except for a fixed allowance.
//!
//! **Mechanism.** Each category has a guaranteed amount that no other category can use.
//! Reservations beyond it come from one shared pool. Small and frequent reservations go through a
//! [`ThreadBudget`], which reserves from the process budget in steps.
//!
//! **Caveats.** The memory of the store is sampled several times a second. Large data read from
//! disk is outside the budget until its I/O thread has reserved or released it: up to 16 MiB
//! together, which are pages and one value in overcommit, plus one small page
//! for each read thread. One or two large values held by a flush or a compaction are not counted.
//! If the budget is small compared to the largest value, the guarantee for it ([`LargestValue`])
//! can exceed the budget.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The purpose of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryCategory {
    /// Request bodies that arrive in several reads, until their requests are answered.
    Bodies,
    /// Values that arrive in the same read as their request head, until the requests are answered.
    Writes,
    /// Large values on their way to readers.
    Replies,
    /// Open ranges: pages and compressors.
    Ranges,
    /// Batches: entries in flight, and results that wait for their reader.
    Batches,
    /// Messages to and from other nodes.
    PeerLinks,
    /// Connections of clients, and request heads that arrived in part.
    Connections,
}

impl MemoryCategory {
    /// All categories, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Bodies,
        Self::Writes,
        Self::Replies,
        Self::Ranges,
        Self::Batches,
        Self::PeerLinks,
        Self::Connections,
    ];

    /// Name of the category in metrics.
    pub const fn name(self) -> &'static str {
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

/// A category may use at most this fraction of the server's share: 1 / 2.
const CATEGORY_MAX_DIVISOR: u64 = 2;
/// This fraction of the server's share is guaranteed, in equal parts to the categories: 1 / 3.
const GUARANTEED_DIVISOR: u64 = 3;
/// A category is short of memory above this percentage of its maximum.
const SHORT_PERCENT: u64 = 75;

/// `Retry-After` of a read that is refused for lack of memory: it is free when another reader has
/// received its value, which is not predicted.
pub const MEMORY_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Upper bound of the memory of one request beside its value, in bytes.
const VALUE_OVERHEAD_BYTES: u64 = 2 << 20;

/// Most copies of a value that one request holds at a time. A range in a format that is re-encoded
/// holds three.
pub const VALUE_COPIES_MAX: u64 = 3;

/// Smallest share of a server with values of up to `value_bytes_max`: each category can hold one of
/// them.
pub const fn budget_bytes_min(value_bytes_max: usize) -> u64 {
    CATEGORY_MAX_DIVISOR * (value_bytes_max as u64 + VALUE_OVERHEAD_BYTES)
}

/// Memory for one value of the largest size, which the budget always grants.
#[derive(Clone, Copy, Debug, Default)]
pub struct LargestValue {
    /// Bytes for the value on its way to or from a client.
    client_bytes: u64,
    /// Bytes for the value on its way to or from all other nodes at once. A write is sent to each
    /// of them, and a range arrives from each.
    links_bytes: u64,
}

impl LargestValue {
    /// The guarantee for values of up to `value_bytes_max` in a cluster of `nodes`.
    pub const fn of(value_bytes_max: usize, nodes: usize) -> Self {
        let value_bytes = value_bytes_max as u64;
        Self {
            client_bytes: VALUE_COPIES_MAX * value_bytes + VALUE_OVERHEAD_BYTES,
            links_bytes: (nodes as u64).saturating_sub(1) * (value_bytes + VALUE_OVERHEAD_BYTES),
        }
    }
}

/// The memory budget of the server. Threads share it.
#[derive(Debug)]
pub struct Budget {
    category_max: u64,
    guaranteed: u64,
    links_guaranteed: u64,
    pool_max: u64,
    /// Part of the pool that the store cannot use, in bytes.
    pool_min: u64,
    store_share: u64,
    /// Whether a reservation is in overcommit.
    is_overcommitted: AtomicBool,
    state: Mutex<State>,
}

/// Current reservations.
#[derive(Debug, Default)]
struct State {
    reserved: [u64; MemoryCategory::ALL.len()],
    /// Bytes that all categories reserve beyond their guaranteed amounts.
    pooled: u64,
    /// Bytes that the store uses beyond its share.
    store_excess: u64,
    refusals: MemoryRefusals,
}

/// Numbers of failed reservations.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryRefusals {
    /// Failures because a category was at its maximum, by category.
    categories: [u64; MemoryCategory::ALL.len()],
    /// Failures because the pool was used up.
    pool: u64,
}

/// Bytes reserved for a category. Dropping it releases them.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    category: MemoryCategory,
    bytes: u64,
    is_overcommitted: bool,
}

impl Budget {
    /// An unused budget of `bytes`, beside a store whose share is `store_share` bytes.
    pub fn new(bytes: u64, store_share: u64, largest: LargestValue) -> Self {
        let category_max = bytes / CATEGORY_MAX_DIVISOR;
        let guaranteed = bytes / GUARANTEED_DIVISOR / MemoryCategory::ALL.len() as u64;
        let links_guaranteed = largest.links_bytes.max(guaranteed);
        let reserved = guaranteed * (MemoryCategory::ALL.len() as u64 - 1) + links_guaranteed;
        let pool_min = largest.client_bytes.min(category_max).saturating_sub(guaranteed);
        Self {
            category_max,
            guaranteed,
            links_guaranteed,
            pool_max: bytes.saturating_sub(reserved).max(pool_min),
            pool_min,
            store_share,
            is_overcommitted: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Bytes that `category` reserves.
    pub fn reserved_bytes(&self, category: MemoryCategory) -> u64 {
        self.state().reserved[category as usize]
    }

    /// Bytes that all categories reserve.
    pub fn reserved_bytes_total(&self) -> u64 {
        self.state().reserved.iter().sum()
    }

    /// Largest amount that `category` may reserve, in bytes.
    pub fn category_max(&self, category: MemoryCategory) -> u64 {
        self.category_max.max(self.guaranteed(category))
    }

    /// Bytes that `category` can still reserve.
    pub fn available(&self, category: MemoryCategory) -> u64 {
        let state = self.state();
        let reserved = state.reserved[category as usize];
        let pool = self.pool(&state).saturating_sub(state.pooled);
        let beyond_category = self.category_max(category).saturating_sub(reserved);
        beyond_category.min(self.guaranteed(category).saturating_sub(reserved) + pool)
    }

    /// Guaranteed amount of `category`, in bytes.
    const fn guaranteed(&self, category: MemoryCategory) -> u64 {
        match category {
            MemoryCategory::PeerLinks => self.links_guaranteed,
            _ => self.guaranteed,
        }
    }

    /// Updates the memory use of the store, in bytes.
    pub fn note_store(&self, bytes: u64) {
        self.state().store_excess = bytes.saturating_sub(self.store_share);
    }

    /// Numbers of failed reservations since the start.
    pub fn refusals(&self) -> MemoryRefusals {
        self.state().refusals
    }

    /// Whether `category` is short of memory: little is left for it, or a reservation failed after
    /// `since`. The clients that have stalled for longest are then cut off.
    pub fn is_short(&self, category: MemoryCategory, since: &MemoryRefusals) -> bool {
        let is_near = |reserved: u64, max: u64| reserved * 100 > max * SHORT_PERCENT;
        let state = self.state();
        let reserved = state.reserved[category as usize];
        let is_full = is_near(reserved, self.category_max(category))
            || state.refusals.categories[category as usize] > since.categories[category as usize];
        let is_pool_full = is_near(state.pooled, self.pool(&state)) || state.refusals.pool > since.pool;
        is_full || (reserved > self.guaranteed(category) && is_pool_full)
    }

    /// A reservation of 0 bytes.
    pub fn empty_reservation(self: &Arc<Self>, category: MemoryCategory) -> Reservation {
        Reservation { budget: Arc::clone(self), category, bytes: 0, is_overcommitted: false }
    }

    /// Reserves `bytes` for `category`; `None` if they are not available.
    pub fn reserve(self: &Arc<Self>, category: MemoryCategory, bytes: u64) -> Option<Reservation> {
        let mut reservation = self.empty_reservation(category);
        reservation.grow(bytes).then_some(reservation)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent at each release of the lock, so a poisoned lock is usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Size of the pool in bytes, less the excess of the store.
    fn pool(&self, state: &State) -> u64 {
        self.pool_max.saturating_sub(state.store_excess).max(self.pool_min)
    }

    fn grow(&self, category: MemoryCategory, bytes: u64) -> bool {
        let mut state = self.state();
        let before = state.reserved[category as usize];
        let after = before.saturating_add(bytes);
        if after > self.category_max(category) {
            state.refusals.categories[category as usize] += 1;
            return false;
        }
        let pooled =
            state.pooled + self.beyond_guaranteed(category, after) - self.beyond_guaranteed(category, before);
        // Reservations within the guaranteed amount succeed even if the store has shrunk the pool
        // meanwhile.
        if pooled > state.pooled && pooled > self.pool(&state) {
            state.refusals.pool += 1;
            return false;
        }
        state.reserved[category as usize] = after;
        state.pooled = pooled;
        true
    }

    fn shrink(&self, category: MemoryCategory, bytes: u64) {
        let mut state = self.state();
        let before = state.reserved[category as usize];
        let after = before - bytes;
        state.reserved[category as usize] = after;
        state.pooled -= self.beyond_guaranteed(category, before) - self.beyond_guaranteed(category, after);
    }

    /// Part of `bytes` that exceeds the guaranteed amount of `category`.
    fn beyond_guaranteed(&self, category: MemoryCategory, bytes: u64) -> u64 {
        bytes.saturating_sub(self.guaranteed(category))
    }
}

impl Reservation {
    /// Reserves `bytes` more. `false`: they are not available, and the reservation is unchanged.
    #[must_use]
    pub fn grow(&mut self, bytes: u64) -> bool {
        let grown = self.budget.grow(self.category, bytes);
        if grown {
            self.bytes += bytes;
        }
        grown
    }

    /// Changes the reservation to `bytes`. `false`: the additional bytes are not available, and the
    /// reservation is unchanged. A smaller size always succeeds.
    #[must_use]
    pub fn resize(&mut self, bytes: u64) -> bool {
        if let Some(more) = bytes.checked_sub(self.bytes) {
            return more == 0 || self.grow(more);
        }
        self.shrink_to(bytes);
        true
    }

    /// Reduces the reservation to `bytes`, if it has more.
    pub fn shrink_to(&mut self, bytes: u64) {
        if let Some(less) = self.bytes.checked_sub(bytes) {
            self.budget.shrink(self.category, less);
            self.bytes = bytes;
        }
    }

    /// Makes the reservation cover a value of `bytes`. If they are not available, the reservation
    /// goes into *overcommit*: it covers any value without reserved bytes. Only one reservation of
    /// the budget is in overcommit at a time. `false`: neither is possible, and the reservation is
    /// unchanged.
    #[must_use]
    pub fn cover(&mut self, bytes: u64) -> bool {
        if self.is_overcommitted || bytes <= self.bytes || self.resize(bytes) {
            return true;
        }
        self.is_overcommitted = !self.budget.is_overcommitted.swap(true, Ordering::Acquire);
        if self.is_overcommitted {
            self.shrink_to(0);
        }
        self.is_overcommitted
    }

    /// Whether the reservation covers a value in overcommit, without reserved bytes.
    pub const fn is_overcommitted(&self) -> bool {
        self.is_overcommitted
    }

    /// Reserved bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.shrink(self.category, self.bytes);
        if self.is_overcommitted {
            self.budget.is_overcommitted.store(false, Ordering::Release);
        }
    }
}

/// Largest step in which a thread budget grows and shrinks, in bytes.
const STEP_BYTES_MAX: u64 = 256 << 10;
/// Idle steps of all thread budgets together use at most this fraction of a category's maximum: 1 /
/// 16.
const IDLE_DIVISOR: u64 = 16;

/// A thread's own budget for frequent small reservations of one category. It reserves from the
/// [`Budget`] in steps, so that most reservations take no lock.
#[derive(Debug)]
pub struct ThreadBudget {
    reservation: RefCell<Reservation>,
    reserved: Cell<u64>,
    step: u64,
}

/// Bytes reserved from a [`ThreadBudget`]. Dropping it releases them.
#[derive(Debug)]
pub struct ThreadReservation {
    budget: Rc<ThreadBudget>,
    bytes: u64,
}

impl ThreadBudget {
    /// An empty budget of one of `threads` threads.
    pub fn new(budget: &Arc<Budget>, category: MemoryCategory, threads: usize) -> Rc<Self> {
        let step = (budget.category_max(category) / IDLE_DIVISOR / threads as u64).clamp(1, STEP_BYTES_MAX);
        Rc::new(Self {
            reservation: RefCell::new(budget.empty_reservation(category)),
            reserved: Cell::new(0),
            step,
        })
    }

    /// Reserves `bytes`; `None` if they are not available.
    pub fn reserve(self: &Rc<Self>, bytes: u64) -> Option<ThreadReservation> {
        let reserved = self.reserved.get() + bytes;
        if reserved > self.reservation.borrow().bytes() && !self.resize(reserved) {
            return None;
        }
        self.reserved.set(reserved);
        Some(ThreadReservation { budget: Rc::clone(self), bytes })
    }

    /// Resizes the reservation behind this budget to cover `reserved` bytes: in whole steps if
    /// possible, else exactly.
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
            let in_steps = reserved.next_multiple_of(self.budget.step);
            self.budget.reservation.borrow_mut().shrink_to(in_steps);
        }
    }
}

#[cfg(test)]
mod tests;
