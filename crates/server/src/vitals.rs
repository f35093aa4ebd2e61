//! Which connections have stalled, without a timer for each.
//!
//! **Promise.** A client that sends its head too slowly, lets a body or a response stand still, or says nothing
//! for long, loses its connection, within two seconds of its time. A request that the node itself is working on
//! is never cut.
//!
//! When memory is short, those for whom it is held and who stand still give it back, those first who have stood still for
//! longest: a response that nobody takes is not to keep others from theirs, nor a body that does not come.
//!
//! When places for connections run short (`places`), connections are evicted in this order
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

use crate::budget::{MemoryBudget, Part, Refusals};
use crate::config::Limits;
use crate::places::{ClientAddress, Eviction, EvictionScope};
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
const STILL_LOOKS: u32 = 2;
/// ... and when memory is short, one in so many of those who hold some of it is cut, at each look.
const CUT_SHARE: usize = 2;
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
    Still { looks: Reverse<u32> },
    /// The connection is new, and its first request may be on its way.
    JustAccepted,
}

/// What the rest of the thread tells a connection to do; the later in this list, the sterner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    /// Close if no request is under way, or none of which the whole head has come.
    Leave,
    /// Finish what is under way, then close.
    Finish,
    /// Tell the client that it was too slow, then close.
    Refuse,
    /// Close.
    Cut,
}

/// What a connection is doing, written by it and read by the sweep.
#[derive(Debug, Default)]
pub(crate) struct Vitals {
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
    turns_owed: Cell<usize>,
    /// What memory is held for the client.
    holds: Cell<Option<Part>>,
    /// For so many looks it has stood still, though it is its turn, ...
    still_looks: Cell<u32>,
    /// ... since so many bytes were moved.
    still_bytes: Cell<u64>,
    watch: Cell<Watch>,
    order: Cell<Option<Order>>,
    client: Cell<Option<ClientAddress>>,
    /// When its connection came.
    entered: Cell<Option<Instant>>,
    waker: RefCell<Option<Waker>>,
}

impl Vitals {
    /// What to do, if anything was ordered.
    pub(crate) fn order(&self) -> Option<Order> {
        self.order.get()
    }

    /// Orders the connection; the sterner of two orders counts.
    pub(crate) fn give(&self, order: Order) {
        self.order.set(self.order.get().max(Some(order)));
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// The rest of a head, or a request, has come since [`Order::Leave`] was given.
    pub(crate) fn take_back_leave(&self) {
        if self.order.get() == Some(Order::Leave) {
            self.order.set(None);
        }
    }

    /// The rank in which it is evicted at `now`, which is second `seconds` of the sweep. `None`:
    /// the node works on its request, the request makes progress, the last one was lately, or it is
    /// closed already.
    fn eviction_rank(&self, seconds: u64, now: Instant) -> Option<EvictionRank> {
        if self.order().is_some() {
            return None;
        }
        let watch = self.watch.get();
        let stage = self.stage();
        let is_as_seen = (watch.stage, watch.requests) == (stage, self.requests.get());
        let is_first = self.requests.get() == 0;
        let age_seconds = if is_as_seen { seconds.saturating_sub(watch.since_seconds) } else { 0 };
        match stage {
            Stage::Head if is_first || age_seconds >= UNFINISHED_HEAD_SECONDS => {
                Some(EvictionRank::UnfinishedHead)
            }
            Stage::Idle if is_first && self.has_just_come(now) => Some(EvictionRank::JustAccepted),
            Stage::Idle if is_first => Some(EvictionRank::UnfinishedHead),
            Stage::Idle if age_seconds >= REST_SECONDS => {
                Some(EvictionRank::Resting { since_seconds: watch.since_seconds })
            }
            Stage::Body | Stage::Writing | Stage::Streaming if self.still_looks.get() >= STILL_LOOKS => {
                Some(EvictionRank::Still { looks: Reverse(self.still_looks.get()) })
            }
            _ => None,
        }
    }

    /// Orders an eviction of this rank.
    fn evict(&self, rank: EvictionRank) {
        self.give(match rank {
            EvictionRank::Still { .. } if self.stage() == Stage::Body => Order::Refuse,
            EvictionRank::Still { .. } => Order::Cut,
            _ => Order::Leave,
        });
    }

    /// Whether it was told to close.
    fn is_leaving(&self) -> bool {
        self.order().is_some_and(|order| order != Order::Finish)
    }

    /// Whether the first request may still be on its way.
    fn has_just_come(&self, now: Instant) -> bool {
        let age = self.entered.get().map_or(Duration::ZERO, |entered| now.duration_since(entered));
        self.requests.get() == 0 && age < FIRST_REQUEST_TIME
    }

    /// Orders wake this one.
    pub(crate) fn wake_with(&self, waker: &Waker) {
        let mut present = self.waker.borrow_mut();
        if present.as_ref().is_none_or(|present| !present.will_wake(waker)) {
            *present = Some(waker.clone());
        }
    }

    /// So many bytes were read or written.
    pub(crate) fn moved(&self, bytes: usize) {
        self.moved_bytes.set(self.moved_bytes.get() + bytes as u64);
    }

    /// What was sent was worth so many turns.
    pub(crate) fn owe_turns(&self, turns: usize) {
        self.turns_owed.set(self.turns_owed.get() + turns);
    }

    /// Whether this turn is one of those that are owed.
    pub(crate) fn skips_turn(&self) -> bool {
        let owed = self.turns_owed.get();
        self.turns_owed.set(owed.saturating_sub(1));
        owed > 0
    }

    /// Whether no request is under way, as far as bytes have come.
    pub(crate) fn is_idle(&self) -> bool {
        self.stage() == Stage::Idle
    }

    /// Whether no request is under way of which the whole head has come.
    pub(crate) fn awaits_head(&self) -> bool {
        matches!(self.stage(), Stage::Idle | Stage::Head)
    }

    /// Whether a request may be on its way: none has come yet, or one has begun to.
    pub(crate) fn may_get_request(&self) -> bool {
        self.requests.get() == 0 || self.stage() == Stage::Head
    }

    fn stage(&self) -> Stage {
        if self.write_blocked.get() {
            if self.responding.get() && !self.has_body.get() { Stage::Streaming } else { Stage::Writing }
        } else if self.handling.get() {
            if self.waits_for_body.get() { Stage::Body } else { Stage::Working }
        } else if self.position.get() == ReadPosition::InHead {
            Stage::Head
        } else {
            Stage::Idle
        }
    }

    /// For how many looks the client has stood still.
    fn look_at_client(&self) -> u32 {
        let moved = self.moved_bytes.get() - self.still_bytes.get();
        if !self.stage().is_clients_turn() || moved >= Limits::PROGRESS_BYTES {
            self.still_looks.set(0);
            self.still_bytes.set(self.moved_bytes.get());
            return 0;
        }
        self.still_looks.set(self.still_looks.get() + 1);
        self.still_looks.get()
    }

    fn look(&self, seconds: u64, limits: &Limits) -> Option<Order> {
        let (watch, order) =
            self.watch.get().look(self.stage(), self.requests.get(), self.moved_bytes.get(), seconds, limits);
        self.watch.set(watch);
        order
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    Head,
    Body,
    Working,
    Writing,
    /// As `Writing`, with more to come than is held.
    Streaming,
}

impl Stage {
    /// Whether it is the client that is to move bytes.
    fn is_clients_turn(self) -> bool {
        matches!(self, Self::Body | Self::Writing | Self::Streaming)
    }
}

/// What the sweep saw, and since when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Watch {
    stage: Stage,
    requests: u64,
    since_seconds: u64,
    moved_bytes: u64,
}

impl Watch {
    fn look(
        self,
        stage: Stage,
        requests: u64,
        moved_bytes: u64,
        seconds: u64,
        limits: &Limits,
    ) -> (Self, Option<Order>) {
        let fresh = Self { stage, requests, since_seconds: seconds, moved_bytes };
        if (stage, requests) != (self.stage, self.requests) {
            return (fresh, None);
        }
        let (limit, order) = match stage {
            Stage::Working => return (self, None),
            Stage::Idle => (limits.idle_time, Order::Cut),
            Stage::Head => (limits.head_time, Order::Refuse),
            Stage::Body => (limits.progress_time, Order::Refuse),
            Stage::Writing => (limits.progress_time, Order::Cut),
            Stage::Streaming => (limits.reader_time, Order::Cut),
        };
        if seconds - self.since_seconds <= limit.as_secs() {
            return (self, None);
        }
        if stage.is_clients_turn() && moved_bytes - self.moved_bytes >= Limits::PROGRESS_BYTES {
            return (fresh, None);
        }
        (self, Some(order))
    }
}

/// Tells the sweep that memory is held for a client, until it is dropped.
#[derive(Debug)]
pub(crate) struct Holding(Rc<Vitals>);

impl Holding {
    pub(crate) fn begin(vitals: &Rc<Vitals>, part: Part) -> Self {
        vitals.holds.set(Some(part));
        Self(Rc::clone(vitals))
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.0.holds.set(None);
    }
}

/// The connections of one thread.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    alive: RefCell<slab::Slab<Weak<Vitals>>>,
    seconds: Cell<u64>,
    /// What the budget had refused at the last look.
    refusals: Cell<Refusals>,
    finishing: Cell<bool>,
    emptied: Notify,
}

/// A connection among [`Connections`] until it is dropped.
pub(crate) struct Entered {
    connections: Rc<Connections>,
    index: usize,
    pub(crate) vitals: Rc<Vitals>,
}

impl Connections {
    /// Takes a connection in that this client has opened at `now`.
    pub(crate) fn enter(self: &Rc<Self>, client: ClientAddress, now: Instant) -> Entered {
        let vitals = Rc::new(Vitals::default());
        vitals.client.set(Some(client));
        vitals.entered.set(Some(now));
        vitals.watch.set(Watch { since_seconds: self.seconds.get(), ..Watch::default() });
        if self.finishing.get() {
            vitals.give(Order::Finish);
        }
        let index = self.alive.borrow_mut().insert(Rc::downgrade(&vitals));
        Entered { connections: Rc::clone(self), index, vitals }
    }

    /// Evicts connections, in the order of their [`EvictionRank`]. Connections that were told to
    /// close and have not done so yet count as evicted.
    pub(crate) fn evict(&self, eviction: Eviction, now: Instant) {
        let Eviction { client, count, scope } = eviction;
        let is_meant = |vitals: &Rc<Vitals>| client.is_none_or(|client| vitals.client.get() == Some(client));
        let (mut leaving, mut candidates) = (0, Vec::new());
        for vitals in self.snapshot().into_iter().filter(is_meant) {
            leaving += usize::from(vitals.is_leaving());
            let rank = vitals.eviction_rank(self.seconds.get(), now);
            candidates.extend(
                rank.filter(|rank| scope == EvictionScope::Inactive || *rank == EvictionRank::UnfinishedHead)
                    .map(|rank| (rank, vitals)),
            );
        }
        if let Some(last) = count.saturating_sub(leaving).min(candidates.len()).checked_sub(1) {
            candidates.select_nth_unstable_by_key(last, |(rank, vitals)| (*rank, vitals.entered.get()));
            candidates[..=last].iter().for_each(|(rank, vitals)| vitals.evict(*rank));
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
        self.snapshot().iter().for_each(|vitals| vitals.give(Order::Finish));
    }

    /// Looks once a second, for ever.
    pub(crate) async fn sweep(self: Rc<Self>, process: Arc<Process>) {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            self.seconds.set(self.seconds.get() + SWEEP_EVERY.as_secs());
            self.look(&process.config.limits, &process.memory);
        }
    }

    fn look(&self, limits: &Limits, memory: &MemoryBudget) {
        let mut still = Vec::new();
        for vitals in self.snapshot() {
            if let Some(order) = vitals.look(self.seconds.get(), limits) {
                vitals.give(order);
            }
            let looks = vitals.look_at_client();
            if looks >= STILL_LOOKS
                && let Some(part) = vitals.holds.get()
            {
                still.push((looks, part, vitals));
            }
        }
        let since = self.refusals.replace(memory.refusals());
        still.sort_by_key(|(looks, ..)| Reverse(*looks));
        for (part, order) in [
            (Part::Bodies, Order::Refuse),
            (Part::Replies, Order::Cut),
            (Part::Ranges, Order::Cut),
            (Part::Batches, Order::Cut),
        ] {
            let of_part = || still.iter().filter(|(_, of, _)| *of == part);
            let cut = if memory.is_short(part, &since) { of_part().count().div_ceil(CUT_SHARE) } else { 0 };
            of_part().take(cut).for_each(|(.., vitals)| vitals.give(order));
        }
    }

    fn snapshot(&self) -> Vec<Rc<Vitals>> {
        self.alive.borrow().iter().filter_map(|(_, vitals)| vitals.upgrade()).collect()
    }
}

impl Drop for Entered {
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
    fn ordered_at(vitals: &Vitals, seconds_max: u64, change: impl Fn(u64, &Vitals)) -> Option<(u64, Order)> {
        (1..=seconds_max).find_map(|seconds| {
            change(seconds, vitals);
            vitals.look(seconds, &LIMITS).map(|order| (seconds, order))
        })
    }

    #[test]
    fn a_slow_head_is_refused_however_steadily_it_drips() {
        let vitals = Vitals::default();
        let ordered = ordered_at(&vitals, 100, |_, vitals| {
            vitals.position.set(ReadPosition::InHead);
            vitals.moved(1);
        });
        assert_eq!(ordered, Some((12, Order::Refuse)));
    }

    #[test]
    fn a_body_is_refused_when_it_drips_and_not_while_it_flows() {
        for (bytes, expected) in [(1, Some((32, Order::Refuse))), (1_024, None)] {
            let vitals = Vitals::default();
            vitals.handling.set(true);
            vitals.waits_for_body.set(true);
            let ordered = ordered_at(&vitals, 1_000, |_, vitals| {
                vitals.moved(bytes);
            });
            assert_eq!(ordered, expected);
        }
    }

    #[test]
    fn a_reader_that_stands_still_is_cut() {
        let vitals = Vitals::default();
        let ordered = ordered_at(&vitals, 100, |_, vitals| vitals.write_blocked.set(true));
        assert_eq!(ordered, Some((32, Order::Cut)));
    }

    #[test]
    fn the_reader_of_a_stream_may_stop_for_longer() {
        let vitals = Vitals::default();
        vitals.responding.set(true);
        let ordered = ordered_at(&vitals, 1_000, |_, vitals| vitals.write_blocked.set(true));
        assert_eq!(ordered, Some((122, Order::Cut)));
    }

    #[test]
    fn a_client_that_reads_no_results_of_its_batch_is_cut_as_one_that_sends_nothing() {
        let vitals = Vitals::default();
        vitals.responding.set(true);
        vitals.has_body.set(true);
        let ordered = ordered_at(&vitals, 1_000, |_, vitals| vitals.write_blocked.set(true));
        assert_eq!(ordered, Some((32, Order::Cut)));
    }

    #[test]
    fn silence_is_cut_late_and_work_never() {
        let vitals = Vitals::default();
        assert_eq!(ordered_at(&vitals, 1_000, |_, _| {}), Some((601, Order::Cut)));
        let vitals = Vitals::default();
        assert_eq!(ordered_at(&vitals, 1_000, |_, vitals| vitals.handling.set(true)), None);
    }

    #[test]
    fn each_request_has_its_own_time() {
        let vitals = Vitals::default();
        let ordered = ordered_at(&vitals, 100, |seconds, vitals| {
            vitals.position.set(ReadPosition::InHead);
            vitals.requests.set(seconds / 5);
        });
        assert_eq!(ordered, None);
    }
}
