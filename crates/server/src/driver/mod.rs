//! Drives a state machine of `cluster`: feeds it time, messages, link events and store responses,
//! and carries out its effects.
//!
//! **Promise.** A read that memory can answer completes before the call that submitted it returns,
//! also for a peer. All writes of one event-loop iteration (of the tasks that were ready together)
//! reach the engine as one group. All messages of one iteration leave a link in one write. The
//! driver takes no decisions: those belong to the machine, which the simulator drives in the same
//! way.
//!
//! **Mechanism.** A driver belongs to one thread and keeps its state in one `RefCell` that is never
//! borrowed across an await point. Each input is passed to the [`Machine`]; then its effects are
//! carried out until none is left. Writes are collected in a [`WriteGroup`], messages in their
//! links. The first of an iteration wakes the flush task, which runs after the tasks that are
//! already ready. A group whose last deadline has passed by then, as after a suspension of the
//! process, is failed instead of submitted. Responses of other threads arrive through the
//! [`ResponseInbox`]. A batch with a large value also carries its [`LargeReadPermit`], which is
//! released after the tasks that waited for the value have run.
//!
//! There are two kinds of driver. Each I/O thread drives its `Coordinator`
//! ([`coordinator_machine`]); the control thread drives the `Node` ([`node_machine`]).

mod agreement;
pub(crate) mod coordinator_machine;
mod deadlines;
pub(crate) mod executing;
pub(crate) mod layout_commands;
mod linking;
mod machine;
pub(crate) mod node_machine;
mod sync_state_log;

use crate::counters::EventCounters;
use crate::inbox::{ResponseInbox, StoreResponses};
use crate::links::{LinkCounters, Links, PeerLinks};
use crate::local::Local;
use crate::messages::ControlMessage;
use crate::refusals::Refusals;
use crate::stages::{Stages, StoreTimes};
use cluster::{Effect, LinkAction, LinkEvent, Requester, StoreFault, StoreId, StoreRequest};
use deadlines::Deadlines;
use engine::LargeReadPermit;
use env::Clock;
use limits::{Budget, Deadline};
pub(crate) use machine::Machine;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, Now};
use store::{TryAnswer, WriteGroup};
use tokio::sync::{Notify, mpsc};

/// A write group with this number of writes is submitted at once.
const GROUP_WRITES_MAX: usize = 512;
/// A write group of this size in bytes is submitted at once.
const GROUP_BYTES_MAX: usize = 1 << 20;

/// The parts of the process that a driver uses.
pub(crate) struct DriverContext {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) memory: Arc<Budget>,
    pub(crate) peer_links: Arc<PeerLinks>,
    pub(crate) counters: Arc<EventCounters>,
    pub(crate) refusals: Arc<Refusals>,
    pub(crate) stages: Arc<Stages>,
    /// Messages to the control thread.
    pub(crate) control: mpsc::Sender<ControlMessage>,
    pub(crate) request_timeout: Duration,
    pub(crate) value_bytes_max: usize,
}

/// Drives one state machine on the current thread.
pub(crate) struct MachineDriver<M> {
    core: RefCell<Core<M>>,
    inbox: Arc<ResponseInbox>,
    requester: Requester,
    context: DriverContext,
    local: Arc<Local>,
    flush_requested: Notify,
    deadlines: Deadlines,
    counters: Arc<LinkCounters>,
    read_buffer: RefCell<Box<[u8]>>,
}

/// The mutable state of a driver.
pub(crate) struct Core<M> {
    pub(crate) machine: M,
    pub(crate) links: Links,
    group: WriteGroup,
    /// Latest deadline of the writes in `group`.
    group_deadline: Deadline,
    /// The flush task has been woken and has not run yet.
    is_flush_scheduled: bool,
    /// Timestamps of the store responses that are being handled; `None` outside of
    /// [`MachineDriver::handle_store_responses`].
    pub(crate) store_times: Option<StoreTimes>,
}

impl<M: Machine> MachineDriver<M> {
    /// Starts a driver and its tasks on the current thread's runtime.
    pub(crate) fn start(
        context: DriverContext,
        local: Arc<Local>,
        requester: Requester,
        machine: M,
        counters: Arc<LinkCounters>,
    ) -> Rc<Self> {
        let DriverContext { value_bytes_max, memory, .. } = &context;
        let links = Links::new(&local.member, *value_bytes_max, memory, Arc::clone(&counters));
        let group = local.store.write_group();
        let driver = Rc::new(Self {
            core: RefCell::new(Core {
                machine,
                links,
                group,
                group_deadline: Deadline::at(Instant::ZERO),
                is_flush_scheduled: false,
                store_times: None,
            }),
            inbox: Arc::default(),
            requester,
            context,
            local,
            flush_requested: Notify::new(),
            deadlines: Deadlines::default(),
            counters,
            read_buffer: RefCell::new(linking::read_buffer()),
        });
        tokio::task::spawn_local(Rc::clone(&driver).flush_batches());
        tokio::task::spawn_local(Rc::clone(&driver).handle_inbox());
        tokio::task::spawn_local(Rc::clone(&driver).watch_deadlines());
        driver.run_machine(|_, _| ());
        driver
    }

    /// Passes an input to the machine and carries out the resulting effects.
    pub(crate) fn run_machine<R>(self: &Rc<Self>, input: impl FnOnce(&mut Core<M>, Now) -> R) -> R {
        let now = self.context.clock.now();
        let mut core = self.core.borrow_mut();
        let result = input(&mut core, now);
        self.carry_out(&mut core, now);
        result
    }

    /// Accesses the state without carrying out effects.
    pub(crate) fn with_core<R>(&self, at: impl FnOnce(&mut Core<M>) -> R) -> R {
        at(&mut self.core.borrow_mut())
    }

    fn carry_out(self: &Rc<Self>, core: &mut Core<M>, now: Now) {
        self.carry_out_effects(core, now);
        M::after_effects(core, self, now);
        self.deadlines.note(core.machine.poll_timeout());
    }

    fn carry_out_effects(self: &Rc<Self>, core: &mut Core<M>, now: Now) {
        while let Some(effect) = core.machine.poll_effect() {
            match effect {
                Effect::Store { id, request, deadline } => self.store(core, now, (id, request), deadline),
                Effect::Send { to, message } => {
                    core.links.push(to, &message);
                    self.schedule_flush(core);
                }
                Effect::Link(LinkAction::Dial(node)) => self.dial(core, node),
                Effect::Link(LinkAction::HangUp(node)) => core.links.hang_up(node),
                Effect::Link(LinkAction::Dismiss(node)) => {
                    for link in core.links.close_accepted_from(node) {
                        core.machine.handle_link(now, LinkEvent::AcceptedClosed { link });
                    }
                }
                Effect::Event(event) => {
                    sync_state_log::log_event(&self.local, &event);
                    self.context.counters.count(event);
                }
                effect => M::carry_out(core, self, now, effect),
            }
        }
    }

    fn store(
        &self,
        core: &mut Core<M>,
        now: Now,
        (id, request): (StoreId, StoreRequest),
        deadline: Deadline,
    ) {
        if matches!(request, StoreRequest::Ingest(_)) {
            return self.ingest(id, request);
        }
        if !request.is_read() {
            self.schedule_flush(core);
            core.group.add(id, &request);
            core.group_deadline = core.group_deadline.max(deadline);
            return self.flush_group_if_large(core);
        }
        match self.local.store.try_answer(&request) {
            TryAnswer::Done(response) => core.machine.handle_stored(now, id, response),
            TryAnswer::WouldWait => self.local.reads.read(now, (id, request), deadline, &self.inbox),
        }
    }

    /// Carries out an ingest on a thread that may wait for the disk.
    fn ingest(&self, id: StoreId, request: StoreRequest) {
        let (store, inbox) = (self.local.store.clone(), Arc::clone(&self.inbox));
        // A panic is reported by the blocking thread.
        tokio::task::spawn_blocking(move || {
            let responses = vec![(id, store.answer_blocking(&request))];
            inbox.put(StoreResponses { responses, times: StoreTimes::Refused, large_read: None });
        });
    }

    fn schedule_flush(&self, core: &mut Core<M>) {
        if !core.is_flush_scheduled {
            core.is_flush_scheduled = true;
            self.flush_requested.notify_one();
        }
    }

    /// Flushes links and the write group once for each event-loop iteration that has filled them.
    async fn flush_batches(self: Rc<Self>) {
        loop {
            self.flush_requested.notified().await;
            let mut core = self.core.borrow_mut();
            core.is_flush_scheduled = false;
            self.flush_links(&mut core);
            self.flush_group(&mut core);
        }
    }

    fn flush_group_if_large(&self, core: &mut Core<M>) {
        if core.group.len() >= GROUP_WRITES_MAX || core.group.bytes() >= GROUP_BYTES_MAX {
            self.flush_group(core);
        }
    }

    fn flush_group(&self, core: &mut Core<M>) {
        if core.group.is_empty() {
            return;
        }
        let group = std::mem::replace(&mut core.group, self.local.store.write_group());
        let deadline = std::mem::replace(&mut core.group_deadline, Deadline::at(Instant::ZERO));
        let (inbox, submitted) = (Arc::clone(&self.inbox), self.context.clock.now().mono);
        if deadline.has_passed(submitted) {
            let responses = group.failed(&StoreFault::Expired);
            return inbox.put(StoreResponses { responses, times: StoreTimes::Refused, large_read: None });
        }
        self.local.store.submit(group, move |responses, commit| {
            let times = StoreTimes::Written { submitted, commit };
            inbox.put(StoreResponses { responses, times, large_read: None });
        });
    }

    /// Handles the store responses that other threads put into the inbox.
    async fn handle_inbox(self: Rc<Self>) {
        let receiver = self.inbox.receiver();
        loop {
            let batches = receiver.take().await;
            let large_reads = self.handle_store_responses(batches);
            if !large_reads.is_empty() {
                // The tasks that wait for the large values run first: they reserve memory for them
                // or drop them.
                tokio::task::yield_now().await;
            }
        }
    }

    /// Handles each batch of responses separately, so that its timestamps apply to exactly its own
    /// effects. Returns the permits of large reads whose values have no memory reservation yet.
    fn handle_store_responses(self: &Rc<Self>, batches: Vec<StoreResponses>) -> Vec<LargeReadPermit> {
        let mut large_reads = Vec::new();
        self.run_machine(|core, now| {
            for StoreResponses { responses, times, large_read } in batches {
                core.store_times = Some(times);
                for (id, response) in responses {
                    core.machine.handle_stored(now, id, response);
                }
                self.carry_out_effects(core, now);
                large_reads.extend(large_read);
            }
            core.store_times = None;
        });
        large_reads
    }

    /// Calls the machine at each of its timeouts.
    async fn watch_deadlines(self: Rc<Self>) {
        loop {
            let deadline = self.with_core(|core| core.machine.poll_timeout());
            if self.deadlines.wait(deadline, &*self.context.clock).await {
                self.run_machine(|core, now| core.machine.handle_timeout(now));
            }
        }
    }
}
