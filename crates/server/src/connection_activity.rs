//! Detects stalled connections without a timer for each.
//!
//! **Promise.** A client that sends its head too slowly, stalls a body or a response, or is silent
//! for too long loses its connection, within two seconds after its time limit. A request that the
//! node itself executes is never cut off.
//!
//! When memory is short, stalled clients for which memory is held are disconnected, the longest
//! stalled first. An unread response does not block other responses, and neither does a body that
//! does not arrive. The more memory a client holds, the faster it must be: it is stalled if it
//! moves less than 1 / 15 of that memory in two seconds. If clients of one address hold too much,
//! its slow clients are disconnected for those of others (`memory_holders`).
//!
//! When connection permits run short (`connection_limit`), connections are evicted in this order
//! ([`EvictionRank`]):
//!
//! 1. Connections with an unfinished head, oldest first. On a new connection the head counts as
//!    unfinished from its first byte on, or 200 ms after the connection was accepted. On a
//!    connection that has had a request, it counts after a second.
//! 2. Idle connections, the longest idle first.
//! 3. Connections with a stalled client, the longest stalled first: bodies that do not arrive and
//!    responses that are not read. They move less than [`Limits::PROGRESS_BYTES`], or than 1 / 15
//!    of the memory that they hold, in two seconds.
//! 4. Connections that were accepted in the last 200 ms and have sent nothing, oldest first, of an
//!    address that holds more than its share.
//! 5. One connection that is between two requests and not idle yet, and only for a client whose
//!    address holds less than its share of the permits.
//!
//! **Mechanism.** The connection records its activity in a few cells, which costs a store each.
//! Once a second the thread's sweep examines all of its connections. Recording activity does not
//! read the clock.

use crate::config::Limits;
use crate::connection_limit::{ClientAddress, Eviction, EvictionScope};
use crate::memory_holders::{HolderEntry, MemoryHolder, MemoryHolders, STALLED_SWEEPS};
use limits::{Budget, MemoryCategory, MemoryRefusals};
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Interval of the sweep.
pub(crate) const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// A client is stalled if it moves less than this fraction of its memory, or less than
/// [`Limits::PROGRESS_BYTES`], within [`STALLED_SWEEPS`]. At this rate it moves all of its memory
/// in [`Limits::progress_time`], 30 s by default.
const HELD_DIVISOR: u64 = 15;
/// When memory is short, each sweep cuts this fraction of the stalled clients that hold it: 1 / 2.
const CUT_DIVISOR: usize = 2;
/// A new connection does not count as idle for this time, in which its first request can arrive.
const FIRST_REQUEST_TIME: Duration = Duration::from_millis(200);
/// On a connection that has had a request, an unfinished head counts as such after this time, in
/// seconds of the sweep.
const UNFINISHED_HEAD_SECONDS: u64 = 1;
/// A connection that has had a request is idle after this time without another one, in seconds of
/// the sweep.
const REST_SECONDS: u64 = 2;

/// Position in the input after the last read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum ReadPosition {
    #[default]
    BetweenRequests,
    InHead,
    InBody,
}

/// The order in which connections are evicted, the smallest rank first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionRank {
    /// The head of a request is not complete.
    UnfinishedHead,
    /// No request has arrived since this second of the sweep.
    Resting { since_seconds: u64 },
    /// The client has been stalled for this number of sweeps.
    Stalled { sweeps: Reverse<u32> },
    /// The connection is new, and its first request may be on its way.
    JustAccepted,
    /// The last request was recent, and the next one has not begun to arrive.
    BetweenRequests,
}

impl EvictionRank {
    /// Whether the eviction may select the rank.
    fn is_of(self, eviction: &Eviction) -> bool {
        if self == Self::JustAccepted && eviction.client.is_none() {
            return false;
        }
        match eviction.scope {
            EvictionScope::UnfinishedHeads => self == Self::UnfinishedHead,
            EvictionScope::Inactive => self != Self::BetweenRequests,
            EvictionScope::BetweenRequests => true,
        }
    }
}

/// An order to close a connection. Later variants take precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CloseOrder {
    /// Close if no request is in flight, or only one with an incomplete head.
    CloseIfIdle,
    /// Finish the request in flight, then close.
    Finish,
    /// Tell the client that it was too slow, then close.
    Refuse,
    /// Close.
    Cut,
}

/// Activity of a connection, written by the connection and read by the sweep.
#[derive(Debug, Default)]
pub(crate) struct ConnectionActivity {
    pub(crate) position: Cell<ReadPosition>,
    /// Requests whose handling has begun.
    pub(crate) requests: Cell<u64>,
    /// A request is being handled. `waits_for_body` says whether the node waits for the client.
    pub(crate) handling: Cell<bool>,
    pub(crate) waits_for_body: Cell<bool>,
    /// Bytes that the current chunk of the body announces and that have not been read.
    pub(crate) announced_bytes: Cell<u64>,
    /// A response is being streamed: it has begun and not ended.
    pub(crate) responding: Cell<bool>,
    /// The body of the request is not complete. A reader that stalls also blocks it.
    pub(crate) has_body: Cell<bool>,
    /// The next part of the response is available, so the parts before it may wait for it.
    pub(crate) more_follows: Cell<bool>,
    /// Bytes read and written.
    moved_bytes: Cell<u64>,
    /// The client does not read the response.
    pub(crate) write_blocked: Cell<bool>,
    /// Number of batches that the connection must skip for its last response.
    slices_owed: Cell<usize>,
    /// The memory that is held for the client.
    memory_holder: RefCell<Option<Arc<MemoryHolder>>>,
    /// Consecutive sweeps in which the client was stalled while the node waited for it.
    stalled_sweeps: Cell<u32>,
    /// Value of `moved_bytes` when the count began.
    stalled_since_bytes: Cell<u64>,
    watch: Cell<PhaseWatch>,
    order: Cell<Option<CloseOrder>>,
    client: Cell<Option<ClientAddress>>,
    /// Time at which the connection was accepted.
    entered: Cell<Option<Instant>>,
    waker: RefCell<Option<Waker>>,
}

impl ConnectionActivity {
    /// The address of the client.
    pub(crate) fn client(&self) -> ClientAddress {
        let unknown = || ClientAddress::of(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        self.client.get().unwrap_or_else(unknown)
    }

    /// The order to close, if there is one.
    pub(crate) fn close_order(&self) -> Option<CloseOrder> {
        self.order.get()
    }

    /// Orders the connection to close. The stricter of two orders applies.
    pub(crate) fn order_close(&self, order: CloseOrder) {
        self.order.set(self.order.get().max(Some(order)));
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Turns an eviction for lack of memory into an order to close.
    pub(crate) fn obey_memory_eviction(&self) {
        let order = match &*self.memory_holder.borrow() {
            Some(holder) if holder.is_evicted() => memory_close_order(holder.category()),
            _ => return,
        };
        if self.order.get() < Some(order) {
            self.order_close(order);
        }
    }

    /// Withdraws [`CloseOrder::CloseIfIdle`], because the rest of a head or a request has arrived
    /// since.
    pub(crate) fn withdraw_close_if_idle(&self) {
        if self.order.get() == Some(CloseOrder::CloseIfIdle) {
            self.order.set(None);
        }
    }

    /// The rank for an eviction at `now`, which is second `seconds` of the sweep. `None`: the node
    /// executes the request, the request makes progress, or the connection is closing.
    fn eviction_rank(&self, seconds: u64, now: Instant) -> Option<EvictionRank> {
        if self.close_order().is_some() {
            return None;
        }
        let watch = self.watch.get();
        let phase = self.phase();
        let is_as_seen = (watch.phase, watch.requests) == (phase, self.requests.get());
        let is_first = self.requests.get() == 0;
        let age_seconds = if is_as_seen { seconds.saturating_sub(watch.since_seconds) } else { 0 };
        match phase {
            Phase::Head if is_first || age_seconds >= UNFINISHED_HEAD_SECONDS => {
                Some(EvictionRank::UnfinishedHead)
            }
            Phase::Idle if is_first && self.is_just_accepted(now) => Some(EvictionRank::JustAccepted),
            Phase::Idle if is_first => Some(EvictionRank::UnfinishedHead),
            Phase::Idle if age_seconds >= REST_SECONDS => {
                Some(EvictionRank::Resting { since_seconds: watch.since_seconds })
            }
            Phase::Idle => Some(EvictionRank::BetweenRequests),
            Phase::Body | Phase::Writing | Phase::Streaming
                if self.stalled_sweeps.get() >= STALLED_SWEEPS =>
            {
                Some(EvictionRank::Stalled { sweeps: Reverse(self.stalled_sweeps.get()) })
            }
            _ => None,
        }
    }

    /// Gives the order for an eviction of this rank.
    fn evict(&self, rank: EvictionRank) {
        self.order_close(match rank {
            EvictionRank::Stalled { .. } if self.phase() == Phase::Body => CloseOrder::Refuse,
            EvictionRank::Stalled { .. } => CloseOrder::Cut,
            _ => CloseOrder::CloseIfIdle,
        });
    }

    /// Whether the connection was ordered to close.
    fn is_closing(&self) -> bool {
        self.close_order().is_some_and(|order| order != CloseOrder::Finish)
    }

    /// Whether the first request may still be on its way.
    fn is_just_accepted(&self, now: Instant) -> bool {
        let age = self.entered.get().map_or(Duration::ZERO, |entered| now.duration_since(entered));
        self.requests.get() == 0 && age < FIRST_REQUEST_TIME
    }

    /// Registers the waker that orders wake.
    pub(crate) fn register_waker(&self, waker: &Waker) {
        let mut present = self.waker.borrow_mut();
        if present.as_ref().is_none_or(|present| !present.will_wake(waker)) {
            *present = Some(waker.clone());
        }
    }

    /// Counts bytes that were read or written.
    pub(crate) fn count_moved(&self, bytes: usize) {
        self.moved_bytes.set(self.moved_bytes.get() + bytes as u64);
    }

    /// Adds batches that the connection must skip for the response that it received.
    pub(crate) fn owe_slices(&self, slices: usize) {
        self.slices_owed.set(self.slices_owed.get() + slices);
    }

    /// Skips a batch. `false`: none must be skipped.
    pub(crate) fn skip_owed_slice(&self) -> bool {
        let owed = self.slices_owed.get();
        self.slices_owed.set(owed.saturating_sub(1));
        owed > 0
    }

    /// Whether no request is in flight, and none has begun to arrive.
    pub(crate) fn is_idle(&self) -> bool {
        self.phase() == Phase::Idle
    }

    /// Whether no request with a complete head is in flight.
    pub(crate) fn awaits_head(&self) -> bool {
        matches!(self.phase(), Phase::Idle | Phase::Head)
    }

    /// Whether a request may be on its way: none has arrived yet, or one has begun to.
    pub(crate) fn can_receive_request(&self) -> bool {
        self.requests.get() == 0 || self.phase() == Phase::Head
    }

    fn phase(&self) -> Phase {
        if self.write_blocked.get() {
            if self.responding.get() && !self.has_body.get() { Phase::Streaming } else { Phase::Writing }
        } else if self.handling.get() {
            if self.waits_for_body.get() { Phase::Body } else { Phase::Working }
        } else if self.position.get() == ReadPosition::InHead {
            Phase::Head
        } else {
            Phase::Idle
        }
    }

    /// Counts a sweep in which the client is stalled. Returns the number of consecutive ones.
    fn count_stalled_sweep(&self) -> u32 {
        let moved = self.moved_bytes.get() - self.stalled_since_bytes.get();
        let holder = self.memory_holder.borrow();
        let held = holder.as_ref().map_or(0, |holder| holder.bytes());
        let sweeps = if !self.phase().is_waiting_for_client()
            || moved >= Limits::PROGRESS_BYTES.max(held / HELD_DIVISOR)
        {
            self.stalled_since_bytes.set(self.moved_bytes.get());
            0
        } else {
            self.stalled_sweeps.get() + 1
        };
        self.stalled_sweeps.set(sweeps);
        if let Some(holder) = &*holder {
            holder.note_slow(sweeps);
        }
        sweeps
    }

    /// Category of the memory that is held for the client.
    fn memory_category(&self) -> Option<MemoryCategory> {
        self.memory_holder.borrow().as_ref().map(|holder| holder.category())
    }

    fn check_time_limits(&self, seconds: u64, limits: &Limits) -> Option<CloseOrder> {
        let (watch, order) = self.watch.get().check(
            self.phase(),
            self.requests.get(),
            self.moved_bytes.get(),
            seconds,
            limits,
        );
        self.watch.set(watch);
        order
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    Head,
    Body,
    Working,
    Writing,
    /// As `Writing`, with more data to come than is buffered.
    Streaming,
}

impl Phase {
    /// Whether the node waits for the client to move bytes.
    fn is_waiting_for_client(self) -> bool {
        matches!(self, Self::Body | Self::Writing | Self::Streaming)
    }
}

/// The phase that the sweep observed, and its begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PhaseWatch {
    phase: Phase,
    requests: u64,
    since_seconds: u64,
    moved_bytes: u64,
}

impl PhaseWatch {
    fn check(
        self,
        phase: Phase,
        requests: u64,
        moved_bytes: u64,
        seconds: u64,
        limits: &Limits,
    ) -> (Self, Option<CloseOrder>) {
        let fresh = Self { phase, requests, since_seconds: seconds, moved_bytes };
        if (phase, requests) != (self.phase, self.requests) {
            return (fresh, None);
        }
        let (limit, order) = match phase {
            Phase::Working => return (self, None),
            Phase::Idle => (limits.idle_time, CloseOrder::Cut),
            Phase::Head => (limits.head_time, CloseOrder::Refuse),
            Phase::Body => (limits.progress_time, CloseOrder::Refuse),
            Phase::Writing => (limits.progress_time, CloseOrder::Cut),
            Phase::Streaming => (limits.reader_time, CloseOrder::Cut),
        };
        if seconds - self.since_seconds <= limit.as_secs() {
            return (self, None);
        }
        if phase.is_waiting_for_client() && moved_bytes - self.moved_bytes >= Limits::PROGRESS_BYTES {
            return (fresh, None);
        }
        (self, Some(order))
    }
}

/// Marks a client for which memory is held, for the sweep. Dropping it removes the mark.
#[derive(Debug)]
pub(crate) struct HoldsMemory {
    activity: Rc<ConnectionActivity>,
    entry: HolderEntry,
}

impl HoldsMemory {
    /// Marks the client of `activity` as a holder of `bytes` of `category`.
    pub(crate) fn begin(
        activity: &Rc<ConnectionActivity>,
        category: MemoryCategory,
        bytes: u64,
        holders: &Arc<MemoryHolders>,
    ) -> Self {
        let entry = holders.register(activity.client(), category, activity.waker.borrow().clone());
        entry.holder.note_bytes(bytes);
        *activity.memory_holder.borrow_mut() = Some(Arc::clone(&entry.holder));
        Self { activity: Rc::clone(activity), entry }
    }

    /// The registration with the holders of the process.
    pub(crate) const fn entry(&self) -> &HolderEntry {
        &self.entry
    }
}

/// Marks a request as in flight for the sweep.
pub(crate) struct InFlightGuard(Rc<ConnectionActivity>);

impl InFlightGuard {
    pub(crate) fn begin(activity: &Rc<ConnectionActivity>) -> Self {
        activity.handling.set(true);
        Self(Rc::clone(activity))
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.handling.set(false);
    }
}

/// The order for a client whose memory of `category` is needed.
fn memory_close_order(category: MemoryCategory) -> CloseOrder {
    if category == MemoryCategory::Bodies { CloseOrder::Refuse } else { CloseOrder::Cut }
}

impl Drop for HoldsMemory {
    fn drop(&mut self) {
        let mut present = self.activity.memory_holder.borrow_mut();
        if present.as_ref().is_some_and(|present| Arc::ptr_eq(present, &self.entry.holder)) {
            *present = None;
        }
    }
}

/// The connections of one thread.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    alive: RefCell<slab::Slab<Weak<ConnectionActivity>>>,
    seconds: Cell<u64>,
    /// MemoryRefusals of the memory budget until the last sweep.
    refusals: Cell<MemoryRefusals>,
    finishing: Cell<bool>,
    emptied: Notify,
}

/// Membership of a connection in [`Connections`]. Dropping it removes the connection.
pub(crate) struct ConnectionEntry {
    connections: Rc<Connections>,
    index: usize,
    pub(crate) activity: Rc<ConnectionActivity>,
}

impl Connections {
    /// Registers a connection that `client` opened at `now`.
    pub(crate) fn register(self: &Rc<Self>, client: ClientAddress, now: Instant) -> ConnectionEntry {
        let activity = Rc::new(ConnectionActivity::default());
        activity.client.set(Some(client));
        activity.entered.set(Some(now));
        activity.watch.set(PhaseWatch { since_seconds: self.seconds.get(), ..PhaseWatch::default() });
        if self.finishing.get() {
            activity.order_close(CloseOrder::Finish);
        }
        let index = self.alive.borrow_mut().insert(Rc::downgrade(&activity));
        ConnectionEntry { connections: Rc::clone(self), index, activity }
    }

    /// Evicts connections in the order of their [`EvictionRank`]. Connections that were ordered to
    /// close and have not done so yet count as evicted.
    pub(crate) fn evict(&self, eviction: Eviction, now: Instant) {
        let Eviction { client, count, .. } = eviction;
        let is_meant = |activity: &Rc<ConnectionActivity>| {
            client.is_none_or(|client| activity.client.get() == Some(client))
        };
        let (mut closing, mut candidates) = (0, Vec::new());
        for activity in self.snapshot().into_iter().filter(is_meant) {
            closing += usize::from(activity.is_closing());
            let rank = activity.eviction_rank(self.seconds.get(), now);
            candidates.extend(rank.filter(|rank| rank.is_of(&eviction)).map(|rank| (rank, activity)));
        }
        let inactive = candidates.iter().filter(|(rank, _)| *rank != EvictionRank::BetweenRequests).count();
        // A connection in use is closed only for want of others, and one at a time.
        let count_max = if inactive == 0 && closing == 0 { 1 } else { inactive };
        let left = count.saturating_sub(closing).min(count_max).min(candidates.len());
        if let Some(last) = left.checked_sub(1) {
            candidates.select_nth_unstable_by_key(last, |(rank, activity)| (*rank, activity.entered.get()));
            candidates[..=last].iter().for_each(|(rank, activity)| activity.evict(*rank));
        }
    }

    /// Waits until no connections are left. At most one task may wait.
    pub(crate) async fn wait_until_empty(&self) {
        while !self.alive.borrow().is_empty() {
            self.emptied.notified().await;
        }
    }

    /// Orders all connections to finish, including those that are registered later.
    pub(crate) fn finish(&self) {
        self.finishing.set(true);
        self.snapshot().iter().for_each(|activity| activity.order_close(CloseOrder::Finish));
    }

    /// Sweeps once a second, forever.
    pub(crate) async fn sweep(self: Rc<Self>, limits: Limits, memory: Arc<Budget>) {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            self.seconds.set(self.seconds.get() + SWEEP_EVERY.as_secs());
            self.check_all(&limits, &memory);
        }
    }

    fn check_all(&self, limits: &Limits, memory: &Budget) {
        let mut still = Vec::new();
        for activity in self.snapshot() {
            if let Some(order) = activity.check_time_limits(self.seconds.get(), limits) {
                activity.order_close(order);
            }
            let looks = activity.count_stalled_sweep();
            if looks >= STALLED_SWEEPS
                && let Some(category) = activity.memory_category()
            {
                still.push((looks, category, activity));
            }
        }
        let since = self.refusals.replace(memory.refusals());
        still.sort_by_key(|(looks, ..)| Reverse(*looks));
        for category in
            [MemoryCategory::Bodies, MemoryCategory::Replies, MemoryCategory::Ranges, MemoryCategory::Batches]
        {
            let order = memory_close_order(category);
            let of_category = || still.iter().filter(|(_, of, _)| *of == category);
            let cut = if memory.is_short(category, &since) {
                of_category().count().div_ceil(CUT_DIVISOR)
            } else {
                0
            };
            of_category().take(cut).for_each(|(.., activity)| activity.order_close(order));
        }
    }

    fn snapshot(&self) -> Vec<Rc<ConnectionActivity>> {
        self.alive.borrow().iter().filter_map(|(_, activity)| activity.upgrade()).collect()
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        let mut alive = self.connections.alive.borrow_mut();
        alive.remove(self.index);
        if alive.is_empty() {
            self.connections.emptied.notify_one();
        }
    }
}

#[cfg(test)]
mod hostile_arrivals;
#[cfg(test)]
mod hostile_bodies;
#[cfg(test)]
mod hostile_readers;

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        connections_max: 1,
        handshakes_max: 1,
        memory_bytes: 1,
        head_time: Duration::from_secs(10),
        idle_time: Duration::from_secs(600),
        progress_time: Duration::from_secs(30),
        reader_time: Duration::from_secs(120),
        hint_bytes_max: 1,
        drain_time: Duration::from_secs(8),
    };

    /// Sweeps every second until an order is given. `change` is the activity of the connection in
    /// that second.
    fn ordered_at(
        activity: &ConnectionActivity,
        seconds_max: u64,
        change: impl Fn(u64, &ConnectionActivity),
    ) -> Option<(u64, CloseOrder)> {
        (1..=seconds_max).find_map(|seconds| {
            change(seconds, activity);
            activity.check_time_limits(seconds, &LIMITS).map(|order| (seconds, order))
        })
    }

    #[test]
    fn a_slow_head_is_refused_even_if_it_arrives_steadily() {
        let activity = ConnectionActivity::default();
        let ordered = ordered_at(&activity, 100, |_, activity| {
            activity.position.set(ReadPosition::InHead);
            activity.count_moved(1);
        });
        assert_eq!(ordered, Some((12, CloseOrder::Refuse)));
    }

    #[test]
    fn a_slow_body_is_refused_and_a_flowing_one_is_not() {
        for (bytes, expected) in [(1, Some((32, CloseOrder::Refuse))), (1_024, None)] {
            let activity = ConnectionActivity::default();
            activity.handling.set(true);
            activity.waits_for_body.set(true);
            let ordered = ordered_at(&activity, 1_000, |_, activity| {
                activity.count_moved(bytes);
            });
            assert_eq!(ordered, expected);
        }
    }

    #[test]
    fn a_stalled_reader_is_cut() {
        let activity = ConnectionActivity::default();
        let ordered = ordered_at(&activity, 100, |_, activity| activity.write_blocked.set(true));
        assert_eq!(ordered, Some((32, CloseOrder::Cut)));
    }

    #[test]
    fn the_reader_of_a_stream_may_stall_for_longer() {
        let activity = ConnectionActivity::default();
        activity.responding.set(true);
        let ordered = ordered_at(&activity, 1_000, |_, activity| activity.write_blocked.set(true));
        assert_eq!(ordered, Some((122, CloseOrder::Cut)));
    }

    #[test]
    fn a_client_that_reads_no_results_of_its_batch_is_cut_as_one_that_sends_nothing() {
        let activity = ConnectionActivity::default();
        activity.responding.set(true);
        activity.has_body.set(true);
        let ordered = ordered_at(&activity, 1_000, |_, activity| activity.write_blocked.set(true));
        assert_eq!(ordered, Some((32, CloseOrder::Cut)));
    }

    #[test]
    fn an_idle_connection_is_cut_late_and_a_busy_one_never() {
        let activity = ConnectionActivity::default();
        assert_eq!(ordered_at(&activity, 1_000, |_, _| {}), Some((601, CloseOrder::Cut)));
        let activity = ConnectionActivity::default();
        assert_eq!(ordered_at(&activity, 1_000, |_, activity| activity.handling.set(true)), None);
    }

    #[test]
    fn each_request_has_its_own_time_limit() {
        let activity = ConnectionActivity::default();
        let ordered = ordered_at(&activity, 100, |seconds, activity| {
            activity.position.set(ReadPosition::InHead);
            activity.requests.set(seconds / 5);
        });
        assert_eq!(ordered, None);
    }
}
