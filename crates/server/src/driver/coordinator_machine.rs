//! Drives the coordinator of one I/O thread: commands in, replies out. The tasks that submit
//! commands use the types of [`executing`](super::executing).

use super::{Core, DriverContext, Machine, MachineDriver};
use crate::gauges::ThreadGauges;
use crate::local::Local;
use crate::messages::ControlMessage;
use crate::metrics::{CommandOutcome, RequestRecorder};
use crate::replies::Replies;
use crate::stages::{CommandStart, TracedRequest};
use api::{EntityRequest, RequestKind};
use cluster::{
    ClusterView, Command, CommandFailure, Coordinator, CoordinatorLimits, Effect, Layout, LayoutEpoch,
    LinkEvent, Message, NodeIndex, Origin, PeerState, Reply, RequestId, Requester, ScanId, StoreId,
    StoreResponse,
};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use stdx::{Instant, Now, Rng};
use store::Store;
use tokio::sync::oneshot;

/// From this number of operations in flight on, the drain time of the thread is published for
/// `Retry-After`.
const DRAIN_NOTED_FROM: usize = 64;
/// How often a thread that shuts down checks whether it is idle.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// A coordinator and the replies that its requesters wait for.
pub(crate) struct CoordinatorMachine {
    coordinator: Coordinator,
    replies: Replies,
    recorder: Rc<RequestRecorder>,
    load: Arc<ThreadGauges>,
    view: Arc<ClusterView>,
    /// The epoch that the control thread was last told to be fenced.
    fenced: LayoutEpoch,
    me: NodeIndex,
    wait_for_links: Vec<oneshot::Sender<()>>,
    /// Number of scans opened; the last [`ScanId`] issued.
    scans: u64,
    /// Number of the I/O thread.
    number: u8,
    /// The published drain time is not zero and must be updated when the number of operations
    /// falls.
    drain_is_noted: bool,
}

impl MachineDriver<CoordinatorMachine> {
    /// Starts the driver of I/O thread `number`.
    pub(crate) fn of_thread(
        context: DriverContext,
        local: &Arc<Local>,
        number: u8,
        load: &Arc<ThreadGauges>,
        recorder: &Rc<RequestRecorder>,
    ) -> Rc<Self> {
        let limits =
            CoordinatorLimits { request_timeout: context.request_timeout, ..CoordinatorLimits::default() };
        let member = local.member.clone();
        let (me, view) = (member.me, Arc::clone(&local.view.lock()));
        let rng = Rng::new(env::os_process::entropy_u64());
        let machine = CoordinatorMachine {
            coordinator: Coordinator::new(member, number, limits, Arc::clone(&view), rng),
            replies: Replies::default(),
            recorder: Rc::clone(recorder),
            load: Arc::clone(load),
            view,
            fenced: local.member.layout.newest_change(),
            me,
            wait_for_links: Vec::new(),
            scans: 0,
            number,
            drain_is_noted: false,
        };
        let counters = Arc::clone(&load.links);
        Self::start(context, Arc::clone(local), Requester::Coordinator(number), machine, counters)
    }

    /// Submits `command` to the coordinator. The caller polls or abandons its reply by the returned
    /// id.
    pub(super) fn submit(self: &Rc<Self>, kind: RequestKind, command: Command) -> (RequestId, TracedRequest) {
        self.run_machine(|core, now| {
            let request = TracedRequest::of(kind, &command, now.mono);
            (core.machine.submit(now, kind, command), request)
        })
    }

    /// Submits commands in order, with one pass over their effects. The caller limits their number
    /// to [`free_write_count`](Self::free_write_count), or exceeds it by a few.
    pub(super) fn submit_all(
        self: &Rc<Self>,
        kind: RequestKind,
        commands: impl Iterator<Item = Command>,
        ids: &mut impl Extend<RequestId>,
    ) {
        self.run_machine(|core, now| {
            ids.extend(commands.map(|command| {
                let id = core.machine.replies.open(CommandStart { kind, at: now.mono });
                core.machine.coordinator.submit_paced(now, id, command);
                id
            }));
        });
    }

    /// Returns the time after which the client should retry if the coordinator has no capacity for
    /// this write of `value_len` bytes (`None`: a delete).
    pub(crate) fn refuses_write(&self, entity: &EntityRequest, value_len: Option<usize>) -> Option<Duration> {
        self.with_core(|core| core.machine.coordinator.write_refusal(&entity.key, value_len, entity.quorum))
    }

    /// Number of further writes that the coordinator has capacity for.
    pub(super) fn free_write_count(&self) -> usize {
        self.with_core(|core| core.machine.coordinator.write_capacity())
    }

    /// Accesses the replies of this coordinator.
    pub(super) fn with_replies<R>(&self, at: impl FnOnce(&mut Replies) -> R) -> R {
        self.with_core(|core| at(&mut core.machine.replies))
    }

    /// Returns a new scan id, unique within this driver.
    pub(super) fn next_scan(&self) -> ScanId {
        self.with_core(|core| {
            core.machine.scans += 1;
            ScanId(core.machine.scans)
        })
    }

    /// Closes a scan whose further pages are not needed.
    pub(super) fn close_scan(self: &Rc<Self>, id: ScanId) {
        self.run_machine(|core, now| core.machine.coordinator.close_scan(now, id));
    }

    /// Passes a new view of the cluster to the coordinator.
    pub(crate) fn handle_view(self: &Rc<Self>, view: Arc<ClusterView>) {
        self.run_machine(|core, now| {
            core.machine.view = Arc::clone(&view);
            core.machine.coordinator.handle_view(now, view);
        });
    }

    /// Passes a newer layout to the coordinator.
    pub(crate) fn handle_layout(self: &Rc<Self>, layout: Arc<Layout>) {
        self.run_machine(|core, now| core.machine.coordinator.handle_layout(now, layout));
    }

    /// Tells the control thread the epoch that the coordinator has fenced.
    fn report_fence(&self, thread: u8, epoch: LayoutEpoch) {
        let control = self.context.control.clone();
        tokio::task::spawn_local(async move {
            // An error means that the control thread has ended, and the process with it.
            let _ = control.send(ControlMessage::Fenced { thread, epoch }).await;
        });
    }

    /// Waits until no operation is in flight, including the work that remains after the reply, but
    /// for no longer than the request timeout.
    pub(crate) async fn until_idle(&self) {
        let operation_ends = tokio::time::Instant::now() + self.context.request_timeout;
        let is_idle = || self.with_core(|core| core.machine.coordinator.poll_timeout().is_none());
        while !is_idle() && tokio::time::Instant::now() < operation_ends {
            tokio::time::sleep(IDLE_CHECK_INTERVAL).await;
        }
    }

    /// Sends `done` once every peer that is up has been linked with, or a dial of it has failed.
    pub(crate) fn notify_when_linked(self: &Rc<Self>, done: oneshot::Sender<()>) {
        self.run_machine(|core, _| core.machine.wait_for_links.push(done));
    }
}

impl CoordinatorMachine {
    fn submit(&mut self, now: Now, kind: RequestKind, command: Command) -> RequestId {
        let id = self.replies.open(CommandStart { kind, at: now.mono });
        self.coordinator.submit(now, id, command);
        id
    }
}

impl Machine for CoordinatorMachine {
    fn handle_stored(&mut self, now: Now, id: StoreId, response: StoreResponse) {
        self.coordinator.handle_stored(now, id, response);
    }

    fn handle_link(&mut self, now: Now, event: LinkEvent) {
        self.coordinator.handle_link(now, event);
    }

    fn handle_message(&mut self, now: Now, origin: Origin, message: Message) {
        self.coordinator.handle_message(now, origin, message);
    }

    fn handle_timeout(&mut self, now: Now) {
        self.coordinator.handle_timeout(now);
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        self.coordinator.poll_effect()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.coordinator.poll_timeout()
    }

    fn carry_out(core: &mut Core<Self>, driver: &Rc<MachineDriver<Self>>, now: Now, effect: Effect) {
        match effect {
            Effect::Reply { to, reply, wait } => {
                let reply = with_names(with_figures(reply, &driver.local.store), core, &driver.local);
                if let Reply::Failed(failure) = &reply {
                    driver.context.counters.count_failure(failure);
                    if matches!(failure, CommandFailure::Overloaded { .. }) {
                        driver.context.refusals.count_operation(core.machine.number);
                    }
                }
                let outcome = CommandOutcome::of(&reply);
                let (stages, store_times) = (&driver.context.stages, core.store_times.as_ref());
                let trace = |start| stages.trace(start, &wait, store_times, now.mono);
                let start = core.machine.replies.put(to, reply, trace);
                core.machine.recorder.record_reply(start, now.mono, outcome);
            }
            effect => unreachable!("a coordinator does not emit {effect:?}"),
        }
    }

    fn after_effects(core: &mut Core<Self>, driver: &Rc<MachineDriver<Self>>, _: Now) {
        let Core { machine, links, .. } = core;
        let fenced = machine.coordinator.fenced();
        if fenced != machine.fenced {
            machine.fenced = fenced;
            driver.report_fence(machine.number, fenced);
        }
        let operations = machine.coordinator.operations();
        machine.load.operations.store(operations, Ordering::Relaxed);
        if operations >= DRAIN_NOTED_FROM || machine.drain_is_noted {
            driver.context.refusals.note_drain(machine.number, machine.coordinator.drain_time());
            machine.drain_is_noted = operations >= DRAIN_NOTED_FROM;
        }
        if machine.wait_for_links.is_empty() {
            return;
        }
        let is_tried = |node: NodeIndex| node == machine.me || links.was_tried(node);
        let peers = (0..).map(NodeIndex).zip(&machine.view.peers);
        if peers.filter(|(_, peer)| peer.state == PeerState::Up).all(|(node, _)| is_tried(node)) {
            for done in machine.wait_for_links.drain(..) {
                let _ = done.send(());
            }
        }
    }
}

/// Adds to a shortage of replicas the names of the nodes to start, if this node is new and has to
/// hear them first.
fn with_names(reply: Reply, core: &Core<CoordinatorMachine>, local: &Local) -> Reply {
    let unheard_peers = core.machine.view.unheard_peers;
    let Reply::Failed(CommandFailure::NotEnoughReplicas { acks, ack, shortfall }) = &reply else {
        return reply;
    };
    if unheard_peers.is_empty() {
        return reply;
    }
    let (acks, ack, shortfall) = (*acks, *ack, *shortfall);
    let missing = local.names_of_missing(unheard_peers);
    Reply::Failed(CommandFailure::NotEnoughHeard { acks, ack, shortfall, missing })
}

/// Adds the figures of the disk to the failure `DiskFull` if the full disk is this node's own.
fn with_figures(reply: Reply, store: &Store) -> Reply {
    let Reply::Failed(CommandFailure::DiskFull { acks, here: true, maybe_stored }) = reply else {
        return reply;
    };
    let disk = store.engine().disk_stats();
    Reply::Failed(CommandFailure::DiskFullHere {
        acks,
        maybe_stored,
        available_bytes: disk.available_bytes,
        reserve_bytes: disk.reserve_bytes,
        reopen_bytes: disk.reopen_bytes,
    })
}
