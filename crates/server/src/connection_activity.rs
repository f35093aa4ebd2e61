//! Which connections have stalled, without a timer for each.
//!
//! **Promise.** A client that sends its head too slowly, lets a body or a response stand still, or says nothing
//! for long, loses its connection, within two seconds of its time. A request that the node itself is working on
//! is never cut.
//!
//! When memory is short, those for whom it is held and who stand still give it back, those first who have stood still for
//! longest: a response that nobody takes is not to keep others from theirs, nor a body that does not come.
//!
//! When places for connections run short (`limiter`), connections are evicted in this order
//! ([`EvictionRank`]):
//!
//! 1. Connections with an unfinished head, oldest first. On a new connection the head counts as
//!    unfinished from its first byte on, or 200 ms after the connection was accepted. On a
//!    connection that has had a request, it counts after a second.
//! 2. Connections that rest, those first that have rested for longest.
//! 3. Connections whose client stands still, those first that have stood still for longest: bodies
//!    that do not come and answers that are not read. They move less than
//!    [`Limits::PROGRESS_BYTES`] in two seconds.
//! 4. Connections that were accepted in the last 200 ms and have sent nothing, oldest first.
//!
//! **Mechanism.** The connection writes down what it is doing in a few cells, at the cost of a store each; once
//! a second the thread's sweep looks at all of its connections. Only the sweep knows the time.

use crate::budget::{MemoryBudget, MemoryCategory, Refusals};
use crate::config::Limits;
use crate::connection_limit::{ClientAddress, Eviction, EvictionScope};
use crate::process::Process;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How often the sweep looks.
pub(crate) const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// A client that has moved less than [`Limits::PROGRESS_BYTES`] between each two of so many looks stands still, ...
const STALLED_SWEEPS: u32 = 2;
/// ... and when memory is short, one in so many of those who hold some of it is cut, at each look.
const CUT_DIVISOR: usize = 2;
/// A connection that has just come is not taken for idle: its first request has this time to arrive.
const FIRST_REQUEST_TIME: Duration = Duration::from_millis(200);
/// An unfinished head counts as such after this time, in seconds of the sweep, on a connection that
/// has had a request.
const UNFINISHED_HEAD_SECONDS: u64 = 1;
/// A connection that has had a request rests when none has come for so long, in seconds of the sweep.
const REST_SECONDS: u64 = 2;

/// Where the bytes that were read last end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum ReadPosition {
    #[default]
    BetweenRequests,
    InHead,
    InBody,
}

/// The order in which connections are evicted, the first one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EvictionRank {
    /// The head of a request is not whole.
    UnfinishedHead,
    /// No request has come since this second of the sweep.
    Resting { since_seconds: u64 },
    /// The client has stood still for this number of looks.
    Stalled { sweeps: Reverse<u32> },
    /// The connection is new, and its first request may be on its way.
    JustAccepted,
}

/// What the rest of the thread tells a connection to do; the later in this list, the sterner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CloseOrder {
    /// Close if no request is under way, or none of which the whole head has come.
    CloseIfIdle,
    /// Finish what is under way, then close.
    Finish,
    /// Tell the client that it was too slow, then close.
    Refuse,
    /// Close.
    Cut,
}

/// What a connection is doing, written by it and read by the sweep.
#[derive(Debug, Default)]
pub(crate) struct ConnectionActivity {
    pub(crate) position: Cell<ReadPosition>,
    /// Requests whose handling began.
    pub(crate) requests: Cell<u64>,
    /// A request is being handled; `waits_for_body` says whose turn it is.
    pub(crate) handling: Cell<bool>,
    pub(crate) waits_for_body: Cell<bool>,
    /// A response is being streamed: it has begun and not ended.
    pub(crate) responding: Cell<bool>,
    /// The request has more of its body to come: a reader that stops holds that up, too.
    pub(crate) has_body: Cell<bool>,
    /// Its next part is at hand: what is there of it may wait for that.
    pub(crate) more_follows: Cell<bool>,
    /// Bytes read and written.
    moved_bytes: Cell<u64>,
    /// The client does not take the response.
    pub(crate) write_blocked: Cell<bool>,
    /// So many turns its last response was worth, beside its own.
    slices_owed: Cell<usize>,
    /// What memory is held for the client.
    memory_category: Cell<Option<MemoryCategory>>,
    /// For so many looks it has stood still, though it is its turn, ...
    stalled_sweeps: Cell<u32>,
    /// ... since so many bytes were moved.
    stalled_since_bytes: Cell<u64>,
    watch: Cell<PhaseWatch>,
    order: Cell<Option<CloseOrder>>,
    client: Cell<Option<ClientAddress>>,
    /// When its connection came.
    entered: Cell<Option<Instant>>,
    waker: RefCell<Option<Waker>>,
}

impl ConnectionActivity {
    /// What to do, if anything was ordered.
    pub(crate) fn close_order(&self) -> Option<CloseOrder> {
        self.order.get()
    }

    /// Orders the connection; the sterner of two orders counts.
    pub(crate) fn order_close(&self, order: CloseOrder) {
        self.order.set(self.order.get().max(Some(order)));
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// The rest of a head, or a request, has come since [`CloseOrder::CloseIfIdle`] was given.
    pub(crate) fn withdraw_close_if_idle(&self) {
        if self.order.get() == Some(CloseOrder::CloseIfIdle) {
            self.order.set(None);
        }
    }

    /// The rank in which it is evicted at `now`, which is second `seconds` of the sweep. `None`:
    /// the node works on its request, the request makes progress, the last one was lately, or it is
    /// closed already.
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
            Phase::Body | Phase::Writing | Phase::Streaming
                if self.stalled_sweeps.get() >= STALLED_SWEEPS =>
            {
                Some(EvictionRank::Stalled { sweeps: Reverse(self.stalled_sweeps.get()) })
            }
            _ => None,
        }
    }

    /// Orders an eviction of this rank.
    fn evict(&self, rank: EvictionRank) {
        self.order_close(match rank {
            EvictionRank::Stalled { .. } if self.phase() == Phase::Body => CloseOrder::Refuse,
            EvictionRank::Stalled { .. } => CloseOrder::Cut,
            _ => CloseOrder::CloseIfIdle,
        });
    }

    /// Whether it was told to close.
    fn is_closing(&self) -> bool {
        self.close_order().is_some_and(|order| order != CloseOrder::Finish)
    }

    /// Whether the first request may still be on its way.
    fn is_just_accepted(&self, now: Instant) -> bool {
        let age = self.entered.get().map_or(Duration::ZERO, |entered| now.duration_since(entered));
        self.requests.get() == 0 && age < FIRST_REQUEST_TIME
    }

    /// Orders wake this one.
    pub(crate) fn register_waker(&self, waker: &Waker) {
        let mut present = self.waker.borrow_mut();
        if present.as_ref().is_none_or(|present| !present.will_wake(waker)) {
            *present = Some(waker.clone());
        }
    }

    /// So many bytes were read or written.
    pub(crate) fn count_moved(&self, bytes: usize) {
        self.moved_bytes.set(self.moved_bytes.get() + bytes as u64);
    }

    /// What was sent was worth so many turns.
    pub(crate) fn owe_slices(&self, turns: usize) {
        self.slices_owed.set(self.slices_owed.get() + turns);
    }

    /// Whether this turn is one of those that are owed.
    pub(crate) fn skip_owed_slice(&self) -> bool {
        let owed = self.slices_owed.get();
        self.slices_owed.set(owed.saturating_sub(1));
        owed > 0
    }

    /// Whether no request is under way, as far as bytes have come.
    pub(crate) fn is_idle(&self) -> bool {
        self.phase() == Phase::Idle
    }

    /// Whether no request is under way of which the whole head has come.
    pub(crate) fn awaits_head(&self) -> bool {
        matches!(self.phase(), Phase::Idle | Phase::Head)
    }

    /// Whether a request may be on its way: none has come yet, or one has begun to.
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

    /// For how many looks the client has stood still.
    fn count_stalled_sweep(&self) -> u32 {
        let moved = self.moved_bytes.get() - self.stalled_since_bytes.get();
        if !self.phase().is_waiting_for_client() || moved >= Limits::PROGRESS_BYTES {
            self.stalled_sweeps.set(0);
            self.stalled_since_bytes.set(self.moved_bytes.get());
            return 0;
        }
        self.stalled_sweeps.set(self.stalled_sweeps.get() + 1);
        self.stalled_sweeps.get()
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
    /// As `Writing`, with more to come than is held.
    Streaming,
}

impl Phase {
    /// Whether it is the client that is to move bytes.
    fn is_waiting_for_client(self) -> bool {
        matches!(self, Self::Body | Self::Writing | Self::Streaming)
    }
}

/// What the sweep saw, and since when.
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

/// Tells the sweep that memory is held for a client, until it is dropped.
#[derive(Debug)]
pub(crate) struct HoldsMemory(Rc<ConnectionActivity>);

impl HoldsMemory {
    pub(crate) fn begin(activity: &Rc<ConnectionActivity>, category: MemoryCategory) -> Self {
        activity.memory_category.set(Some(category));
        Self(Rc::clone(activity))
    }
}

impl Drop for HoldsMemory {
    fn drop(&mut self) {
        self.0.memory_category.set(None);
    }
}

/// The connections of one thread.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    alive: RefCell<slab::Slab<Weak<ConnectionActivity>>>,
    seconds: Cell<u64>,
    /// What the budget had refused at the last look.
    refusals: Cell<Refusals>,
    finishing: Cell<bool>,
    emptied: Notify,
}

/// A connection among [`Connections`] until it is dropped.
pub(crate) struct ConnectionEntry {
    connections: Rc<Connections>,
    index: usize,
    pub(crate) activity: Rc<ConnectionActivity>,
}

impl Connections {
    /// Takes a connection in that this client has opened at `now`.
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

    /// Evicts connections, in the order of their [`EvictionRank`]. Connections that were told to
    /// close and have not done so yet count as evicted.
    pub(crate) fn evict(&self, eviction: Eviction, now: Instant) {
        let Eviction { client, count, scope } = eviction;
        let is_meant = |activity: &Rc<ConnectionActivity>| {
            client.is_none_or(|client| activity.client.get() == Some(client))
        };
        let (mut closing, mut candidates) = (0, Vec::new());
        for activity in self.snapshot().into_iter().filter(is_meant) {
            closing += usize::from(activity.is_closing());
            let rank = activity.eviction_rank(self.seconds.get(), now);
            candidates.extend(
                rank.filter(|rank| scope == EvictionScope::Inactive || *rank == EvictionRank::UnfinishedHead)
                    .map(|rank| (rank, activity)),
            );
        }
        if let Some(last) = count.saturating_sub(closing).min(candidates.len()).checked_sub(1) {
            candidates.select_nth_unstable_by_key(last, |(rank, activity)| (*rank, activity.entered.get()));
            candidates[..=last].iter().for_each(|(rank, activity)| activity.evict(*rank));
        }
    }

    /// Waits until there are none. One task waits at a time.
    pub(crate) async fn wait_until_empty(&self) {
        while !self.alive.borrow().is_empty() {
            self.emptied.notified().await;
        }
    }

    /// Gives all of them, and all that come, the order to finish.
    pub(crate) fn finish(&self) {
        self.finishing.set(true);
        self.snapshot().iter().for_each(|activity| activity.order_close(CloseOrder::Finish));
    }

    /// Looks once a second, for ever.
    pub(crate) async fn sweep(self: Rc<Self>, process: Arc<Process>) {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            self.seconds.set(self.seconds.get() + SWEEP_EVERY.as_secs());
            self.check_all(&process.config.limits, &process.memory);
        }
    }

    fn check_all(&self, limits: &Limits, memory: &MemoryBudget) {
        let mut still = Vec::new();
        for activity in self.snapshot() {
            if let Some(order) = activity.check_time_limits(self.seconds.get(), limits) {
                activity.order_close(order);
            }
            let looks = activity.count_stalled_sweep();
            if looks >= STALLED_SWEEPS
                && let Some(category) = activity.memory_category.get()
            {
                still.push((looks, category, activity));
            }
        }
        let since = self.refusals.replace(memory.refusals());
        still.sort_by_key(|(looks, ..)| Reverse(*looks));
        for (category, order) in [
            (MemoryCategory::Bodies, CloseOrder::Refuse),
            (MemoryCategory::Replies, CloseOrder::Cut),
            (MemoryCategory::Ranges, CloseOrder::Cut),
            (MemoryCategory::Batches, CloseOrder::Cut),
        ] {
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
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        connections_max: 1,
        memory_bytes: 1,
        head_time: Duration::from_secs(10),
        idle_time: Duration::from_secs(600),
        progress_time: Duration::from_secs(30),
        reader_time: Duration::from_secs(120),
        hint_bytes_max: 1,
        drain_time: Duration::from_secs(8),
    };

    /// Looks at every second until an order comes; `change` is what the connection does in that second.
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
    fn a_slow_head_is_refused_however_steadily_it_drips() {
        let activity = ConnectionActivity::default();
        let ordered = ordered_at(&activity, 100, |_, activity| {
            activity.position.set(ReadPosition::InHead);
            activity.count_moved(1);
        });
        assert_eq!(ordered, Some((12, CloseOrder::Refuse)));
    }

    #[test]
    fn a_body_is_refused_when_it_drips_and_not_while_it_flows() {
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
    fn a_reader_that_stands_still_is_cut() {
        let activity = ConnectionActivity::default();
        let ordered = ordered_at(&activity, 100, |_, activity| activity.write_blocked.set(true));
        assert_eq!(ordered, Some((32, CloseOrder::Cut)));
    }

    #[test]
    fn the_reader_of_a_stream_may_stop_for_longer() {
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
    fn silence_is_cut_late_and_work_never() {
        let activity = ConnectionActivity::default();
        assert_eq!(ordered_at(&activity, 1_000, |_, _| {}), Some((601, CloseOrder::Cut)));
        let activity = ConnectionActivity::default();
        assert_eq!(ordered_at(&activity, 1_000, |_, activity| activity.handling.set(true)), None);
    }

    #[test]
    fn each_request_has_its_own_time() {
        let activity = ConnectionActivity::default();
        let ordered = ordered_at(&activity, 100, |seconds, activity| {
            activity.position.set(ReadPosition::InHead);
            activity.requests.set(seconds / 5);
        });
        assert_eq!(ordered, None);
    }
}
