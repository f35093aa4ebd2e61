//! The clients that hold memory, by address, and the choice of those that lose it when memory is
//! short.
//!
//! **Promise.** Clients of one address cannot take all memory for bodies, ranges or large values
//! from clients of other addresses. Without pressure one address may hold all of it, because a
//! proxy has one address for many clients. When a client finds no memory and another address holds
//! more than a quarter of the maximum, and more than the address of the client:
//!
//! 1. Slow clients of that address are disconnected at once, until there is enough memory: those of
//!    the address that holds the most first, the slowest for the longest first.
//! 2. If that address has no slow client yet, the client waits for one, or for memory that is
//!    released, at most [`WAIT_TIME`]. Meanwhile addresses that hold more get no further memory.
//! 3. After the wait, addresses that hold more than a quarter leave an eighth of the maximum free,
//!    or as much as the client needed. This lasts for [`CONTENDED_TIME`] after the last client of
//!    an address with less. Such clients therefore rarely have to wait again.
//!
//! A client is slow if it moves less than `connection_activity` requires for the bytes it holds.
//!
//! **Mechanism.** Each holder is registered with its address and its bytes, which costs one short
//! lock at its begin and its end. Bodies that arrive with their heads and small values are not
//! registered. A holder adds its bytes to the total of its address, so the rule above costs two
//! look-ups for each client that waits, however many holders there are. The sweep of each thread
//! publishes for how long its clients have been slow. Only the choice of slow clients examines all
//! holders. An eviction sets a flag and wakes the
//! connection on its thread. A client that waits tries again every [`WAIT_PAUSE`], so no release of
//! memory has to wake it, and dropping its future ends the wait.
//!
//! **Caveats.** A client for which [`WAITING_MAX`] others wait already, or [`WAITING_ADDRESS_MAX`]
//! of its address, is refused at once. A client with more than four addresses can hold all memory
//! with less than a quarter for each. Its slow connections are then closed by the sweep alone.
//! Clients of one address that are all fast enough keep their memory until they release it.

mod holder;
#[cfg(test)]
mod tests;

use crate::connection_limit::ClientAddress;
use holder::HeldBytes;
pub(crate) use holder::{MemoryHolder, STALLED_SWEEPS};
use limits::{Budget, MemoryCategory, Reservation};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

/// Under pressure the clients of one address hold at most this fraction of a category's maximum:
/// 1 / 4.
const ADDRESS_DIVISOR: u64 = 4;
/// Longest wait for memory that another address holds: a client counts as slow after 3 s.
pub(crate) const WAIT_TIME: Duration = Duration::from_secs(5);
/// Interval in which a waiting client tries to get memory.
pub(crate) const WAIT_PAUSE: Duration = Duration::from_millis(50);
/// Time for which an address with more than its share leaves memory free after a client of another
/// address had to wait.
const CONTENDED_TIME: Duration = Duration::from_secs(10);
/// Fraction of its share that such an address leaves free at least: 1 / 2.
const FREE_DIVISOR: u64 = 2;
/// Number of addresses that are kept without holders: those that have holders again and again.
const KEPT_ADDRESSES_MAX: usize = 64;
/// Most clients that wait for memory.
const WAITING_MAX: usize = 32;
/// Most clients of one address that wait for memory.
const WAITING_ADDRESS_MAX: usize = 8;

/// The memory budget of a process, and the clients that hold parts of it.
#[derive(Debug)]
pub(crate) struct MemoryHolders {
    budget: Arc<Budget>,
    state: Mutex<State>,
    /// Number of holders, readable without the lock.
    count: AtomicUsize,
    /// Whether clients wait or have waited recently, readable without the lock.
    is_contended: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    holders: slab::Slab<Arc<MemoryHolder>>,
    /// The addresses of the holders, and some that had holders. They are few, so comparing costs
    /// less than hashing.
    addresses: BTreeMap<ClientAddress, AddressEntry>,
    waiting: slab::Slab<Demand>,
    /// The last client that waited, until this time.
    waited: Option<(Demand, Instant)>,
    /// Number of holders that were examined.
    #[cfg(test)]
    examined: AtomicUsize,
}

/// An address with holders, or one that had some.
#[derive(Debug, Default)]
struct AddressEntry {
    held: Arc<HeldBytes>,
    holders: usize,
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
pub(crate) struct Demand {
    client: ClientAddress,
    /// The category whose maximum is reached; `None`: the pool of all categories is used up.
    scope: Option<MemoryCategory>,
    /// Bytes above which an address holds more than its share.
    share: u64,
    /// Bytes that the client lacks.
    missing: u64,
}

/// A holder that waits for more memory.
#[derive(Debug)]
pub(crate) struct WaitingHolder<'a> {
    entry: &'a HolderEntry,
    demand: Demand,
    /// Bytes that the holder is to have next.
    bytes: u64,
    _ticket: WaitTicket,
}

/// Membership in the clients that wait. Dropping it ends the wait.
#[derive(Debug)]
pub(crate) struct WaitTicket {
    holders: Arc<MemoryHolders>,
    index: usize,
}

impl MemoryHolders {
    /// The budget without clients that hold memory.
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        let (state, count, is_contended) = Default::default();
        Self { budget, state, count, is_contended }
    }

    /// The budget from which the clients reserve memory.
    pub(crate) const fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Registers a client that holds memory of `category`. An eviction wakes it by `waker`.
    pub(crate) fn register(
        self: &Arc<Self>,
        client: ClientAddress,
        category: MemoryCategory,
        waker: Option<Waker>,
    ) -> HolderEntry {
        let mut state = self.state.lock();
        let address = state.addresses.entry(client).or_default();
        address.holders += 1;
        let holder = Arc::new(MemoryHolder::new(client, category, Arc::clone(&address.held), waker));
        let index = state.holders.insert(Arc::clone(&holder));
        self.count.store(state.holders.len(), Ordering::Relaxed);
        state.note_client(client, Instant::now);
        HolderEntry { holders: Arc::clone(self), index, holder }
    }

    /// Whether any client holds memory.
    pub(crate) fn are_present(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Evicts slow clients of addresses that hold more than their share and more than the client of
    /// `demand`, so that its bytes become free. `false`: there is no such address.
    pub(crate) fn make_room(&self, demand: Demand) -> bool {
        let state = self.state.lock();
        let mut totals = state.totals(demand.scope);
        let held = totals.remove(&demand.client).unwrap_or(0);
        totals.retain(|_, total| *total > demand.share.max(held));
        if totals.is_empty() {
            return false;
        }
        let in_scope = || state.examine_all().filter(|holder| demand.covers(holder.category()));
        let closing: u64 = in_scope().filter(|holder| holder.is_evicted()).map(MemoryHolder::bytes).sum();
        let mut missing = demand.missing.saturating_sub(closing);
        let mut slow: Vec<_> = in_scope()
            .filter(|holder| {
                holder.is_slow() && !holder.is_evicted() && totals.contains_key(&holder.client())
            })
            .collect();
        slow.sort_by_key(|holder| Reverse((totals[&holder.client()], holder.slow_sweeps(), holder.bytes())));
        for holder in slow {
            let total = totals.get_mut(&holder.client()).expect("only holders of these addresses are left");
            if missing > 0 && *total > demand.share {
                holder.evict();
                *total -= holder.bytes().min(*total);
                missing = missing.saturating_sub(holder.bytes());
            }
        }
        true
    }

    /// Whether `client` may not have `bytes` more of `category`: it has more than its share, and a
    /// client that holds less waits for memory or needs what is left. No client needs to yield for
    /// 0 bytes.
    pub(crate) fn must_yield(&self, client: ClientAddress, category: MemoryCategory, bytes: u64) -> bool {
        if bytes == 0 || !self.is_contended.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.state.lock();
        if state.waited.is_some_and(|(_, until)| until <= Instant::now()) {
            state.waited = None;
            self.note_contention(&state);
        }
        let holds_more = |demand: &Demand| {
            let held = |client| state.held(client, demand.scope);
            demand.client != client
                && demand.covers(category)
                && held(client) > demand.share.max(held(demand.client))
        };
        let leaves_too_little = |demand: &Demand| {
            let free = self.budget.available(category).saturating_sub(bytes);
            free < demand.missing.max(demand.share / FREE_DIVISOR)
        };
        state.waiting.iter().any(|(_, demand)| holds_more(demand))
            || state.waited.is_some_and(|(demand, _)| leaves_too_little(&demand) && holds_more(&demand))
    }

    /// The demand of `client` for `bytes` more of `category`, which were refused, of `missing` in
    /// the end.
    pub(crate) fn demand(
        &self,
        client: ClientAddress,
        category: MemoryCategory,
        bytes: u64,
        missing: u64,
    ) -> Demand {
        let max = self.budget.category_max(category);
        let is_category_full = self.budget.reserved_bytes(category).saturating_add(bytes) > max;
        Demand { client, scope: is_category_full.then_some(category), share: max / ADDRESS_DIVISOR, missing }
    }

    /// Joins the clients that wait; `None`: too many do, or no other address holds more than its
    /// share and more than this client.
    pub(crate) fn wait(self: &Arc<Self>, demand: Demand) -> Option<WaitTicket> {
        if !self.make_room(demand) {
            return None;
        }
        let mut state = self.state.lock();
        let of_address = state.waiting.iter().filter(|(_, other)| other.client == demand.client).count();
        if state.waiting.len() >= WAITING_MAX || of_address >= WAITING_ADDRESS_MAX {
            return None;
        }
        let index = state.waiting.insert(demand);
        self.note_contention(&state);
        Some(WaitTicket { holders: Arc::clone(self), index })
    }

    fn note_contention(&self, state: &State) {
        let is_contended = state.waited.is_some() || !state.waiting.is_empty();
        self.is_contended.store(is_contended, Ordering::Relaxed);
    }
}

impl State {
    /// Prolongs the time in which memory is left free for clients with no more than their share.
    fn note_client(&mut self, client: ClientAddress, now: impl FnOnce() -> Instant) {
        if let Some((demand, _)) = self.waited
            && self.held(client, demand.scope) <= demand.share
        {
            self.waited = Some((demand, now() + CONTENDED_TIME));
        }
    }

    /// Bytes that each address holds.
    fn totals(&self, scope: Option<MemoryCategory>) -> BTreeMap<ClientAddress, u64> {
        self.addresses.iter().map(|(client, address)| (*client, address.held.bytes(scope))).collect()
    }

    /// Bytes that the address `client` holds.
    fn held(&self, client: ClientAddress, scope: Option<MemoryCategory>) -> u64 {
        self.addresses.get(&client).map_or(0, |address| address.held.bytes(scope))
    }

    /// All holders, one after the other.
    fn examine_all(&self) -> impl Iterator<Item = &MemoryHolder> {
        self.holders.iter().map(|(_, holder)| {
            #[cfg(test)]
            self.examined.fetch_add(1, Ordering::Relaxed);
            &**holder
        })
    }

    /// Ends the registration of a holder.
    fn remove(&mut self, index: usize) {
        let holder = self.holders.remove(index);
        holder.note_bytes(0);
        let known = self.addresses.len();
        if let Entry::Occupied(mut address) = self.addresses.entry(holder.client()) {
            address.get_mut().holders -= 1;
            if address.get().holders == 0 && known > KEPT_ADDRESSES_MAX {
                address.remove();
            }
        }
    }
}

impl Demand {
    /// Whether memory of `category` would serve this demand.
    fn covers(&self, category: MemoryCategory) -> bool {
        self.scope.is_none_or(|scope| scope == category)
    }
}

impl HolderEntry {
    /// Grows `reservation` to `bytes`. `false`: they are not available, or a client of another
    /// address that holds less has precedence. A smaller size always succeeds.
    pub(crate) fn grow(&self, reservation: &mut Reservation, bytes: u64) -> bool {
        let is_granted =
            !self.must_yield(bytes.saturating_sub(reservation.bytes())) && reservation.resize(bytes);
        if is_granted {
            self.holder.note_bytes(bytes);
        }
        is_granted
    }

    /// Grows `reservation` to `bytes`, of `wanted` in the end. Waits if other addresses hold more
    /// than their share. `false`: the memory is not available.
    pub(crate) async fn grow_or_wait(&self, reservation: &mut Reservation, bytes: u64, wanted: u64) -> bool {
        if self.grow(reservation, bytes) {
            return true;
        }
        match self.wait(reservation, bytes, wanted) {
            // The wait is rare, so its state is allocated apart.
            Some(waiting) => Box::pin(waiting.grow(reservation)).await,
            None => false,
        }
    }

    /// Begins to wait for memory after a failed attempt to grow `reservation` to `bytes`, of
    /// `wanted` in the end. `None`: no other address holds more than its share, or too many wait.
    pub(crate) fn wait(
        &self,
        reservation: &Reservation,
        bytes: u64,
        wanted: u64,
    ) -> Option<WaitingHolder<'_>> {
        let before = reservation.bytes();
        let demand = self.demand(bytes - before, wanted.max(bytes) - before);
        let ticket = self.holders.wait(demand)?;
        Some(WaitingHolder { entry: self, demand, bytes, _ticket: ticket })
    }

    /// Reserves `bytes` for the holder. `None`: they are not available, or a client of another
    /// address has precedence. Slow clients of addresses that hold more are then disconnected.
    pub(crate) fn reserve(&self, bytes: u64) -> Option<Reservation> {
        if self.must_yield(bytes) {
            return None;
        }
        let mut reservation = self.empty_reservation();
        let is_granted = reservation.resize(bytes);
        if !is_granted {
            self.holders.make_room(self.demand(bytes, bytes));
        }
        is_granted.then_some(reservation)
    }

    /// A reservation of 0 bytes for the holder.
    pub(crate) fn empty_reservation(&self) -> Reservation {
        self.holders.budget.empty_reservation(self.holder.category())
    }

    fn must_yield(&self, bytes: u64) -> bool {
        self.holders.must_yield(self.holder.client(), self.holder.category(), bytes)
    }

    fn demand(&self, bytes: u64, missing: u64) -> Demand {
        self.holders.demand(self.holder.client(), self.holder.category(), bytes, missing)
    }
}

impl WaitingHolder<'_> {
    /// Tries to grow `reservation`. `None`: the memory may become available later.
    pub(crate) fn attempt(&self, reservation: &mut Reservation) -> Option<bool> {
        if self.entry.grow(reservation, self.bytes) {
            return Some(true);
        }
        // Memory may have been released after the first attempt.
        let has_hope = self.entry.holders.make_room(self.demand);
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

impl Drop for HolderEntry {
    fn drop(&mut self) {
        let mut state = self.holders.state.lock();
        state.remove(self.index);
        self.holders.count.store(state.holders.len(), Ordering::Relaxed);
    }
}

impl Drop for WaitTicket {
    fn drop(&mut self) {
        let mut state = self.holders.state.lock();
        let demand = state.waiting.remove(self.index);
        state.waited = Some((demand, Instant::now() + CONTENDED_TIME));
        self.holders.note_contention(&state);
    }
}
