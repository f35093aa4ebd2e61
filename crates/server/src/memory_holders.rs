//! The clients that hold memory, by address, and the choice of those that lose it when memory is
//! short.
//!
//! **Promise.** Clients of one address cannot take all memory for bodies from clients of other
//! addresses. Without pressure one address may hold all of it, because a proxy has one address for
//! many clients. When a body finds no memory and another address holds more than a quarter of the
//! maximum, and more than the address of the body:
//!
//! 1. Slow clients of that address are disconnected at once, until there is enough memory: those of
//!    the address that holds the most first, the slowest for the longest first.
//! 2. If that address has no slow client yet, the body waits for one, or for memory that is
//!    released, at most [`WAIT_TIME`]. Meanwhile addresses that hold more get no further memory.
//!
//! A client is slow if it moves less than `connection_activity` requires for the bytes it holds.
//!
//! **Mechanism.** Each holder is registered with its address and its bytes, which costs one short
//! lock at its begin and its end. Bodies that arrive with their heads are not registered. The sweep
//! of each thread publishes for how long its clients have been slow. A lack of memory is the only
//! reason to examine all holders. An eviction sets a flag and wakes the connection on its thread.
//!
//! **Caveats.** A body for which [`WAITING_MAX`] others wait already, or [`WAITING_ADDRESS_MAX`] of
//! its address, is refused at once. A client with more than four addresses can hold all memory with
//! less than a quarter for each. Its slow connections are then closed by the sweep alone.

use crate::budget::{MemoryBudget, MemoryCategory, Reservation};
use crate::connection_activity::{HoldsMemory, STALLED_SWEEPS};
use crate::connection_limit::ClientAddress;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

/// Under pressure the clients of one address hold at most this fraction of a category's maximum:
/// 1 / 4.
const ADDRESS_DIVISOR: u64 = 4;
/// Longest wait for memory that another address holds: a client counts as slow after 3 s.
const WAIT_TIME: Duration = Duration::from_secs(5);
/// Interval in which a waiting client tries to get memory.
const WAIT_PAUSE: Duration = Duration::from_millis(50);
/// Most clients that wait for memory.
const WAITING_MAX: usize = 32;
/// Most clients of one address that wait for memory.
const WAITING_ADDRESS_MAX: usize = 8;

/// The clients of a process that hold memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryHolders {
    state: Mutex<State>,
    /// Number of waiting clients, readable without the lock.
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    holders: slab::Slab<Arc<MemoryHolder>>,
    waiting: slab::Slab<Demand>,
}

/// A client that holds memory.
#[derive(Debug)]
pub(crate) struct MemoryHolder {
    client: ClientAddress,
    category: MemoryCategory,
    bytes: AtomicU64,
    /// Consecutive sweeps in which the client was slow.
    slow_sweeps: AtomicU32,
    is_evicted: AtomicBool,
    /// Wakes the connection.
    waker: Option<Waker>,
}

/// Registration of a holder. Dropping it ends the registration.
#[derive(Debug)]
pub(crate) struct HolderEntry {
    holders: Arc<MemoryHolders>,
    index: usize,
    pub(crate) holder: Arc<MemoryHolder>,
}

/// A client's need of memory.
#[derive(Clone, Copy, Debug)]
struct Demand {
    client: ClientAddress,
    /// The category whose maximum is reached; `None`: the pool of all categories is used up.
    scope: Option<MemoryCategory>,
    /// Bytes above which an address holds more than its share.
    share: u64,
}

/// A holder that waits for more memory.
#[derive(Debug)]
pub(crate) struct WaitingHolder<'a> {
    entry: &'a HolderEntry,
    demand: Demand,
    /// Bytes that the holder is to have next.
    bytes: u64,
    /// Bytes that the holder lacks in total.
    missing: u64,
    _ticket: WaitTicket<'a>,
}

/// Membership in the clients that wait. Dropping it ends the wait.
#[derive(Debug)]
struct WaitTicket<'a> {
    holders: &'a MemoryHolders,
    index: usize,
}

impl MemoryHolders {
    /// Registers a client that holds memory of `category`. An eviction wakes it by `waker`.
    pub(crate) fn register(
        self: &Arc<Self>,
        client: ClientAddress,
        category: MemoryCategory,
        waker: Option<Waker>,
    ) -> HolderEntry {
        let holder = Arc::new(MemoryHolder {
            client,
            category,
            bytes: AtomicU64::new(0),
            slow_sweeps: AtomicU32::new(0),
            is_evicted: AtomicBool::new(false),
            waker,
        });
        let index = self.state.lock().holders.insert(Arc::clone(&holder));
        HolderEntry { holders: Arc::clone(self), index, holder }
    }

    /// Evicts slow clients of addresses that hold more than their share and more than the client of
    /// `demand`, so that `bytes` become free. `false`: there is no such address.
    fn make_room(&self, demand: Demand, bytes: u64) -> bool {
        let state = self.state.lock();
        let mut totals = state.totals(demand.scope);
        let held = totals.get(&demand.client).copied().unwrap_or(0);
        totals.retain(|client, total| *client != demand.client && *total > demand.share.max(held));
        if totals.is_empty() {
            return false;
        }
        let in_scope =
            || state.holders.iter().map(|(_, holder)| holder).filter(|holder| demand.covers(holder));
        let closing: u64 = in_scope().filter(|holder| holder.is_evicted()).map(|holder| holder.bytes()).sum();
        let mut missing = bytes.saturating_sub(closing);
        let mut slow: Vec<_> = in_scope()
            .filter(|holder| holder.is_slow() && !holder.is_evicted() && totals.contains_key(&holder.client))
            .collect();
        slow.sort_by_key(|holder| {
            let sweeps = holder.slow_sweeps.load(Ordering::Relaxed);
            Reverse((totals[&holder.client], sweeps, holder.bytes()))
        });
        for holder in slow {
            let total = totals.get_mut(&holder.client).expect("only holders of these addresses are left");
            if missing > 0 && *total > demand.share {
                holder.evict();
                *total -= holder.bytes().min(*total);
                missing = missing.saturating_sub(holder.bytes());
            }
        }
        true
    }

    /// Whether a client that holds less waits for memory, and the address of `holder` has more than
    /// its share.
    fn must_yield(&self, holder: &MemoryHolder) -> bool {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let state = self.state.lock();
        state.waiting.iter().any(|(_, demand)| {
            demand.client != holder.client && demand.covers(holder) && {
                let held = |client| state.held(client, demand.scope);
                held(holder.client) > demand.share.max(held(demand.client))
            }
        })
    }

    /// Joins the clients that wait; `None`: too many do.
    fn wait(&self, demand: Demand) -> Option<WaitTicket<'_>> {
        let mut state = self.state.lock();
        let of_address = state.waiting.iter().filter(|(_, other)| other.client == demand.client).count();
        if state.waiting.len() >= WAITING_MAX || of_address >= WAITING_ADDRESS_MAX {
            return None;
        }
        let index = state.waiting.insert(demand);
        self.waiting.store(state.waiting.len(), Ordering::Relaxed);
        Some(WaitTicket { holders: self, index })
    }
}

impl State {
    /// Bytes that each address holds.
    fn totals(&self, scope: Option<MemoryCategory>) -> HashMap<ClientAddress, u64> {
        let mut totals = HashMap::new();
        for (_, holder) in &self.holders {
            if scope.is_none_or(|category| category == holder.category) {
                *totals.entry(holder.client).or_insert(0) += holder.bytes();
            }
        }
        totals
    }

    /// Bytes that the address `client` holds.
    fn held(&self, client: ClientAddress, scope: Option<MemoryCategory>) -> u64 {
        let is_meant = |holder: &&Arc<MemoryHolder>| {
            holder.client == client && scope.is_none_or(|category| category == holder.category)
        };
        self.holders.iter().map(|(_, holder)| holder).filter(is_meant).map(|holder| holder.bytes()).sum()
    }
}

impl Demand {
    /// The demand of `client` for `bytes` more of `category`, which were refused.
    fn of(client: ClientAddress, category: MemoryCategory, bytes: u64, memory: &MemoryBudget) -> Self {
        let max = memory.category_max(category);
        let is_category_full = memory.reserved_bytes(category).saturating_add(bytes) > max;
        Self { client, scope: is_category_full.then_some(category), share: max / ADDRESS_DIVISOR }
    }

    /// Whether memory of `holder` would serve this demand.
    fn covers(&self, holder: &MemoryHolder) -> bool {
        self.scope.is_none_or(|category| category == holder.category)
    }
}

impl MemoryHolder {
    pub(crate) const fn category(&self) -> MemoryCategory {
        self.category
    }

    /// Bytes that the client holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Publishes the bytes that the client holds.
    pub(crate) fn note_bytes(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Publishes the number of consecutive sweeps in which the client was slow.
    pub(crate) fn note_slow(&self, sweeps: u32) {
        self.slow_sweeps.store(sweeps, Ordering::Relaxed);
    }

    /// Whether the client is to lose its memory.
    pub(crate) fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Relaxed)
    }

    fn is_slow(&self) -> bool {
        self.slow_sweeps.load(Ordering::Relaxed) >= STALLED_SWEEPS
    }

    fn evict(&self) {
        self.is_evicted.store(true, Ordering::Relaxed);
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

impl HolderEntry {
    /// Grows `reservation` to `bytes`. `false`: they are not available, or a client of another
    /// address that holds less waits for memory.
    pub(crate) fn grow(&self, reservation: &mut Reservation, bytes: u64) -> bool {
        if bytes == reservation.bytes() {
            return true;
        }
        let grown = !self.holders.must_yield(&self.holder) && reservation.resize(bytes);
        if grown {
            self.holder.note_bytes(bytes);
        }
        grown
    }

    /// Begins to wait for memory after a failed attempt to grow `reservation` to `bytes`, of
    /// `wanted` in the end. `None`: no other address holds more than its share, or too many wait.
    pub(crate) fn wait(
        &self,
        memory: &MemoryBudget,
        reservation: &Reservation,
        bytes: u64,
        wanted: u64,
    ) -> Option<WaitingHolder<'_>> {
        let (holders, holder, before) = (&self.holders, &self.holder, reservation.bytes());
        let demand = Demand::of(holder.client, holder.category, bytes - before, memory);
        let missing = wanted.max(bytes) - before;
        let ticket = holders.make_room(demand, missing).then(|| holders.wait(demand)).flatten()?;
        Some(WaitingHolder { entry: self, demand, bytes, missing, _ticket: ticket })
    }
}

impl WaitingHolder<'_> {
    /// Tries to grow `reservation`. `None`: the memory may become available later.
    pub(crate) fn attempt(&self, reservation: &mut Reservation) -> Option<bool> {
        if self.entry.grow(reservation, self.bytes) {
            return Some(true);
        }
        // Memory may have been released after the first attempt.
        let has_hope = self.entry.holders.make_room(self.demand, self.missing);
        (!has_hope).then(|| self.entry.grow(reservation, self.bytes))
    }

    async fn grow(self, reservation: &mut Reservation) -> bool {
        let ends = tokio::time::Instant::now() + WAIT_TIME;
        loop {
            tokio::time::sleep(WAIT_PAUSE).await;
            if let Some(grown) = self.attempt(reservation) {
                return grown;
            }
            if tokio::time::Instant::now() >= ends {
                return false;
            }
        }
    }
}

impl HoldsMemory {
    /// Grows `reservation` of a body to `bytes`, of `wanted` in the end. Waits if other addresses
    /// hold more than their share. `false`: the memory is not available.
    pub(crate) async fn grow(
        &self,
        memory: &MemoryBudget,
        reservation: &mut Reservation,
        bytes: u64,
        wanted: u64,
    ) -> bool {
        let entry = self.entry();
        if entry.grow(reservation, bytes) {
            return true;
        }
        match entry.wait(memory, reservation, bytes, wanted) {
            // The wait is rare, so its state is allocated apart.
            Some(waiting) => Box::pin(waiting.grow(reservation)).await,
            None => false,
        }
    }
}

impl Drop for HolderEntry {
    fn drop(&mut self) {
        self.holders.state.lock().holders.remove(self.index);
    }
}

impl Drop for WaitTicket<'_> {
    fn drop(&mut self) {
        let mut state = self.holders.state.lock();
        state.waiting.remove(self.index);
        self.holders.waiting.store(state.waiting.len(), Ordering::Relaxed);
    }
}
