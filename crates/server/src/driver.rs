//! Drives the coordinator of one I/O thread: time, requests and the store's answers in, effects out.
//!
//! **Promise.** A read that the memory can answer is answered when [`Driver::execute`] returns. All writes of one
//! turn (of the connection tasks that were ready together) reach the engine as one group. No decision is taken
//! here: that is the coordinator's, which a simulator drives alike.
//!
//! **Mechanism.** Everything is of one thread, in one `RefCell` that is never borrowed across a wait. Writes
//! are gathered in a [`WriteGroup`]; the first of a turn wakes the flushing task, which runs after the
//! connection tasks that are ready already. Answers of other threads come through the [`Inbox`].

use crate::gauges::Load;
use crate::inbox::Inbox;
use crate::node::Node;
use crate::process::Process;
use crate::replies::Replies;
use cluster::{Command, Coordinator, Effect, Limits, Reply, RequestId, StoreId, StoreRequest, StoreResponse};
use env::Clock;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use stdx::{Instant, Now};
use store::{ReadNow, WriteGroup};
use tokio::sync::Notify;

/// A group of so many writes is handed over before the turn ends.
const GROUP_WRITES_MAX: usize = 512;
/// A group of so many bytes is handed over before the turn ends.
const GROUP_BYTES_MAX: usize = 1 << 20;

/// See the module.
pub(crate) struct Driver {
    core: RefCell<Core>,
    inbox: Arc<Inbox>,
    clock: Arc<dyn Clock>,
    process: Arc<Process>,
    load: Arc<Load>,
    group_begun: Notify,
    deadline_set: Notify,
    deadlines_watched: Cell<bool>,
}

struct Core {
    coordinator: Coordinator,
    replies: Replies,
    group: WriteGroup,
    node: Arc<Node>,
}

impl Driver {
    /// A driver with its tasks, on the current thread's runtime.
    pub(crate) fn start(process: Arc<Process>, node: Arc<Node>, limits: Limits, load: Arc<Load>) -> Rc<Self> {
        let driver = Rc::new(Self {
            core: RefCell::new(Core {
                coordinator: Coordinator::new(Arc::clone(&node.version_clock), node.store.tag(), limits),
                replies: Replies::default(),
                group: node.store.write_group(),
                node,
            }),
            inbox: Arc::default(),
            clock: Arc::clone(&process.clock),
            process,
            load,
            group_begun: Notify::new(),
            deadline_set: Notify::new(),
            deadlines_watched: Cell::new(false),
        });
        tokio::task::spawn_local(Rc::clone(&driver).flush_groups());
        tokio::task::spawn_local(Rc::clone(&driver).take_answers());
        tokio::task::spawn_local(Rc::clone(&driver).watch_deadlines());
        driver
    }

    /// Carries out `command`. Submitted at once, not only when the future is polled.
    pub(crate) fn execute(self: &Rc<Self>, command: Command) -> Execution {
        let now = self.clock.now();
        let mut core = self.core.borrow_mut();
        let id = core.replies.open();
        core.coordinator.submit(now, id, command);
        self.carry_out(&mut core, now);
        Execution { driver: Rc::clone(self), waits_for: Some(id) }
    }

    fn carry_out(&self, core: &mut Core, now: Now) {
        while let Some(effect) = core.coordinator.poll_effect() {
            match effect {
                Effect::Store { id, request } => self.store(core, now, id, request),
                Effect::Reply { to, reply } => core.replies.put(to, reply),
                Effect::Event(event) => self.process.counters.count(event),
            }
        }
        self.load.operations.store(core.coordinator.operations(), Ordering::Relaxed);
        if !self.deadlines_watched.get() && core.coordinator.poll_timeout().is_some() {
            self.deadlines_watched.set(true);
            self.deadline_set.notify_one();
        }
    }

    fn store(&self, core: &mut Core, now: Now, id: StoreId, request: StoreRequest) {
        match request {
            StoreRequest::Read { key } => match core.node.store.try_read(&key) {
                ReadNow::Done(response) => core.coordinator.handle_stored(now, id, response),
                ReadNow::WouldWait => core.node.reads.read(id, key, &self.inbox),
            },
            StoreRequest::Write { key, cell } => {
                self.begin_group(core);
                core.group.write(id, &key, &cell);
                self.flush_if_large(core);
            }
            StoreRequest::RaiseClockBound { bound } => {
                self.begin_group(core);
                core.group.raise_clock_bound(id, bound);
            }
        }
    }

    fn begin_group(&self, core: &Core) {
        if core.group.is_empty() {
            self.group_begun.notify_one();
        }
    }

    fn flush_if_large(&self, core: &mut Core) {
        if core.group.len() >= GROUP_WRITES_MAX || core.group.bytes() >= GROUP_BYTES_MAX {
            self.flush(core);
        }
    }

    fn flush(&self, core: &mut Core) {
        if core.group.is_empty() {
            return;
        }
        let group = std::mem::replace(&mut core.group, core.node.store.write_group());
        let inbox = Arc::clone(&self.inbox);
        core.node.store.submit(group, move |responses| inbox.put(responses));
    }

    /// Hands over each group at the end of its turn.
    async fn flush_groups(self: Rc<Self>) {
        loop {
            self.group_begun.notified().await;
            self.flush(&mut self.core.borrow_mut());
        }
    }

    /// Takes the answers that other threads leave.
    async fn take_answers(self: Rc<Self>) {
        loop {
            let responses = self.inbox.take().await;
            self.handle_answers(responses);
        }
    }

    fn handle_answers(&self, responses: Vec<(StoreId, StoreResponse)>) {
        let now = self.clock.now();
        let mut core = self.core.borrow_mut();
        for (id, response) in responses {
            core.coordinator.handle_stored(now, id, response);
        }
        self.carry_out(&mut core, now);
    }

    /// Brings the coordinator the passing of time. While requests flow it sleeps from one deadline to the one
    /// that is earliest by then, so most requests never touch a timer.
    async fn watch_deadlines(self: Rc<Self>) {
        loop {
            match self.time_to_deadline() {
                None => self.deadline_set.notified().await,
                Some(duration) => {
                    tokio::time::sleep(duration).await;
                    self.handle_timeout();
                }
            }
        }
    }

    fn time_to_deadline(&self) -> Option<Duration> {
        let deadline: Option<Instant> = self.core.borrow().coordinator.poll_timeout();
        self.deadlines_watched.set(deadline.is_some());
        deadline.map(|deadline| deadline.saturating_since(self.clock.now().mono))
    }

    fn handle_timeout(&self) {
        let now = self.clock.now();
        let mut core = self.core.borrow_mut();
        core.coordinator.handle_timeout(now);
        self.carry_out(&mut core, now);
    }
}

/// Waits for the reply to a command. Dropping it gives up the reply, not the command.
pub(crate) struct Execution {
    driver: Rc<Driver>,
    waits_for: Option<RequestId>,
}

impl Execution {
    /// The reply, if it has come already. Ends the wait.
    pub(crate) fn take_now(&mut self) -> Option<Reply> {
        let id = self.waits_for.expect("not asked after its end");
        let reply = self.driver.core.borrow_mut().replies.take(id);
        if reply.is_some() {
            self.waits_for = None;
        }
        reply
    }
}

impl Future for Execution {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        let id = self.waits_for.expect("not polled after its end");
        let polled = self.driver.core.borrow_mut().replies.poll(id, context.waker());
        if polled.is_ready() {
            self.waits_for = None;
        }
        polled
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        if let Some(id) = self.waits_for {
            self.driver.core.borrow_mut().replies.leave(id);
        }
    }
}
