//! Drives the node of the process on the control thread: membership views, admission of links, and
//! reports to operators.
//!
//! **Promise.** Every coordinator of the process receives each view of the cluster, in order. A
//! peer that has authenticated itself is admitted or refused when the node decides so, and dropped
//! if the node does not decide in time.
//!
//! **Mechanism.** Handshakes run on any thread and pass the authenticated peer to the control
//! thread ([`ControlMessage`]). An admitted link goes to the machine that it is for. The node's own
//! links stay on the control thread. The coordinators of a peer are spread over the I/O threads by
//! their number, so two nodes with the same number of threads link them one to one.

use super::agreement::VotePersistence;
use super::layout_commands::CommandRequesters;
use super::{Core, DriverContext, Machine, MachineDriver};
use crate::default_from;
use crate::error::ServerError;
use crate::layout_status::PeerEpochs;
use crate::links::LinkCounters;
use crate::links::accept::Arrival;
use crate::local::Local;
use crate::messages::{ControlMessage, Mailbox, ThreadMessage};
use crate::metrics::Metrics;
use crate::server::FatalError;
use cluster::{
    ClusterView, Effect, LinkAction, LinkEvent, LinkId, Member, Message, NODES_MAX, Node, NodeIndex,
    NodeLimits, NodeRecord, NodeRequest, NodeResponse, NodeSet, NodeStatus, Origin, PeerAnswer, PeerRequest,
    PeerState, ProcessFence, Requester, StoreId, StoreResponse, VoterState,
};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, Now, Rng};
use store::Store;
use tokio::sync::{Notify, mpsc};

/// Time after which a peer that was neither admitted nor refused is dropped: it has given up by
/// then.
const ARRIVAL_TIME: Duration = Duration::from_secs(1);
/// Delay before an initial failure to reach a peer is logged: the nodes of a cluster start one
/// after the other. It is logged if the peer is still unreachable then.
const FIRST_DIAL_TIME: Duration = Duration::from_secs(1);
/// If no coordinator of a peer links for this time, all of them are taken to have linked.
const LINKING_PAUSE: Duration = Duration::from_millis(20);
/// How often the store records that the node is alive.
const NOTE_ALIVE_EVERY: Duration = Duration::from_secs(5 * 60);
/// How often expired snapshots of ranges are searched for.
const EXPIRE_SNAPSHOTS_EVERY: Duration = Duration::from_secs(1);
/// How often checkpoints that were not renewed are searched for.
const EXPIRE_CHECKPOINTS_EVERY: Duration = Duration::from_secs(60);
/// How often the durable end of the log is recorded, while it moves.
const NOTE_LOG_END_EVERY: Duration = Duration::from_secs(1);
/// Maximum age of the node's published status, unless nothing has happened since.
const ACCOUNT_AGE: Duration = Duration::from_millis(50);
/// A node, and the peers and threads that its decisions concern.
pub(crate) struct NodeMachine {
    pub(super) node: Node,
    /// The storing of the node's votes on layout records.
    pub(super) vote_persistence: VotePersistence,
    /// The commands on the layout that have not ended.
    pub(super) commands: CommandRequesters,
    store: Store,
    /// The layout records that the peers hold.
    peer_epochs: Arc<PeerEpochs>,
    /// Whether the node has peers, or has had some in this process.
    has_peers: bool,
    /// The task that records that the node is alive runs.
    notes_alive: bool,
    /// The epochs that the I/O threads have fenced.
    fence: ProcessFence,
    /// Told when the node is no member any more.
    pub(super) fatal_error: Arc<FatalError>,
    arrivals: BTreeMap<LinkId, Arrival>,
    pub(super) threads: Vec<Mailbox>,
    accounted: Option<Instant>,
    /// A task that renews the published status is scheduled.
    account_is_due: bool,
    /// Last published round-trip time of each node.
    round_trips: Vec<Option<Duration>>,
    /// The metrics, if they are enabled.
    metrics: Option<Arc<Metrics>>,
    /// Default number of replicas of this node.
    pub(super) default_from: u8,
    /// Number of coordinator links admitted.
    admitted: u64,
    /// Nodes of which at least one coordinator link was admitted.
    linked_back: NodeSet,
    /// Notified after each input: the node may have become ready or drained.
    moved: Rc<Notify>,
}

/// The durable record, the limits and the surroundings of a node that starts.
pub(crate) struct NodeStart {
    pub(crate) record: NodeRecord,
    /// The node's votes on layout records.
    pub(crate) voter: VoterState,
    pub(crate) limits: NodeLimits,
    /// The I/O threads.
    pub(crate) threads: Vec<Mailbox>,
    pub(crate) control_messages: mpsc::Receiver<ControlMessage>,
    /// Counters of the node's own links.
    pub(crate) link_counters: Arc<LinkCounters>,
    /// The metrics, if they are enabled.
    pub(crate) metrics: Option<Arc<Metrics>>,
    /// Told when the node is no member any more.
    pub(crate) fatal_error: Arc<FatalError>,
}

impl MachineDriver<NodeMachine> {
    /// Starts the driver of the node.
    pub(crate) fn of_node(context: DriverContext, local: &Arc<Local>, start: NodeStart) -> Rc<Self> {
        let NodeStart {
            record,
            voter,
            limits,
            threads,
            control_messages,
            link_counters,
            metrics,
            fatal_error,
        } = start;
        let rng = Rng::new(env::os_process::entropy_u64());
        let default_from = limits.default_from;
        let now = context.clock.now();
        let mut node = Node::new(now, local.member.clone(), record, limits, rng);
        node.join_agreement(now, voter);
        local.layout_progress.follow(&local.layout.get().record, now.mono);
        let machine = NodeMachine {
            node,
            vote_persistence: VotePersistence::default(),
            commands: CommandRequesters::default(),
            store: local.store.clone(),
            peer_epochs: Arc::clone(&local.peer_epochs),
            has_peers: local.member.layout.len() > 1,
            notes_alive: false,
            fence: ProcessFence::new(threads.len(), local.member.layout.newest_change()),
            fatal_error,
            arrivals: BTreeMap::new(),
            threads,
            accounted: None,
            account_is_due: false,
            round_trips: vec![None; NODES_MAX],
            metrics,
            default_from,
            admitted: 0,
            linked_back: NodeSet::EMPTY,
            moved: Rc::default(),
        };
        let driver = Self::start(context, Arc::clone(local), Requester::Node, machine, link_counters);
        tokio::task::spawn_local(Rc::clone(&driver).listen(control_messages));
        tokio::task::spawn_local(Rc::clone(&driver).expire_snapshots());
        tokio::task::spawn_local(Rc::clone(&driver).expire_checkpoints());
        tokio::task::spawn_local(Rc::clone(&driver).note_log_end());
        driver.with_core(|core| driver.note_alive_of(core));
        driver
    }

    /// Has the node follow the layout of a record that it has adopted. Returns whether it is a
    /// member; a node that is not ends.
    pub(super) fn follow(self: &Rc<Self>, core: &mut Core<NodeMachine>, now: Now) -> bool {
        let adopted = self.local.layout.get();
        let machine = &mut core.machine;
        let Member { me, tag, .. } = &self.local.member;
        if !adopted.layout.members().contains(*me) || adopted.record.has_removed(*tag) {
            machine.fatal_error.set(ServerError::Removed { epoch: adopted.record.epoch });
            return false;
        }
        // Requests of a thread name the epoch of their plan, so threads need not change at once.
        for thread in &machine.threads {
            thread.send(ThreadMessage::Layout(Arc::clone(&adopted.layout)));
        }
        machine.has_peers |= adopted.layout.len() > 1;
        machine.node.handle_layout(now, Arc::clone(&adopted.layout));
        self.note_alive_of(core);
        self.carry_out_effects(core, now);
        true
    }

    /// Starts to record that the node is alive, unless it has no peers.
    fn note_alive_of(self: &Rc<Self>, core: &mut Core<NodeMachine>) {
        let machine = &mut core.machine;
        if machine.has_peers && !std::mem::replace(&mut machine.notes_alive, true) {
            tokio::task::spawn_local(Rc::clone(self).note_alive());
        }
    }

    /// Waits until the node may serve clients.
    pub(crate) async fn until_ready(&self) {
        self.until(|machine| machine.node.is_ready()).await;
    }

    /// Whether this node is eligible for reads.
    pub(crate) fn is_read_eligible(&self) -> bool {
        self.local.view.lock().peer(self.local.member.me).read_eligible
    }

    /// Waits until the read eligibility of every reachable peer is known.
    pub(crate) async fn until_peers_are_known(&self) {
        let me = self.local.member.me;
        let are_known = || {
            let view = self.local.view.lock();
            let mut peers = (0..).map(NodeIndex).zip(&view.peers).filter(|(node, _)| *node != me);
            peers.all(|(_, peer)| match peer.state {
                PeerState::Up => peer.read_eligible || peer.rebuilding,
                PeerState::Unreachable => !peer.linking,
                PeerState::Unknown | PeerState::Suspected => false,
            })
        };
        self.until(|_| are_known()).await;
    }

    /// Waits until the coordinators of every peer that is up have linked with this node. Their
    /// number is not known here, so it waits until none has linked for [`LINKING_PAUSE`].
    pub(crate) async fn until_linked_back(&self) {
        let is_linked = |machine: &NodeMachine| {
            let view = self.local.view.lock();
            let up = (0..).map(NodeIndex).zip(&view.peers).filter(|(_, peer)| peer.state == PeerState::Up);
            up.map(|(node, _)| node)
                .all(|node| node == self.local.member.me || machine.linked_back.contains(node))
        };
        loop {
            self.until(is_linked).await;
            let admitted = self.with_core(|core| core.machine.admitted);
            tokio::time::sleep(LINKING_PAUSE).await;
            if self.with_core(|core| core.machine.admitted == admitted) {
                return;
            }
        }
    }

    /// Tells the peers that this node is about to shut down.
    pub(crate) fn begin_drain(self: &Rc<Self>) {
        self.run_machine(|core, now| core.machine.node.begin_drain(now));
    }

    /// Waits until the node has nothing left to hand over to its peers, and stores no votes.
    pub(crate) async fn until_drained(&self) {
        self.until(|machine| machine.node.is_drained() && !machine.vote_persistence.is_in_flight()).await;
    }

    async fn until(&self, is_so: impl Fn(&NodeMachine) -> bool) {
        let moved = self.with_core(|core| Rc::clone(&core.machine.moved));
        while !self.with_core(|core| is_so(&core.machine)) {
            moved.notified().await;
        }
    }

    /// Periodically records in the store that the node is alive.
    async fn note_alive(self: Rc<Self>) {
        loop {
            tokio::time::sleep(NOTE_ALIVE_EVERY).await;
            let now = self.context.clock.now();
            // Before the node is ready, peers may still hold hints for it.
            let times = self.with_core(|core| {
                let node = &core.machine.node;
                Some((node.heard_to(now)?, node.supported_wall(now)))
            });
            let Some((heard_to, supported)) = times else { continue };
            let store = self.local.store.clone();
            let note = move || {
                supported.map_or(Ok(()), |wall| store.limit_alive(wall))?;
                store.note_alive(heard_to)
            };
            let noted = tokio::task::spawn_blocking(note).await;
            if let Ok(Err(error)) = noted {
                tracing::warn!(%error, "it could not be noted that the node is alive");
            }
        }
    }

    /// Releases expired snapshots, so that a client that stops reading a range does not pin tables.
    async fn expire_snapshots(self: Rc<Self>) {
        loop {
            tokio::time::sleep(EXPIRE_SNAPSHOTS_EVERY).await;
            if self.local.store.snapshot_count() > 0 {
                let store = self.local.store.clone();
                // Dropping the last reference to a table removes its file. A panic is reported by
                // the blocking thread.
                let _ = tokio::task::spawn_blocking(move || store.expire_snapshots()).await;
            }
        }
    }

    /// Removes checkpoints that are no longer renewed.
    async fn expire_checkpoints(self: Rc<Self>) {
        loop {
            tokio::time::sleep(EXPIRE_CHECKPOINTS_EVERY).await;
            let store = self.local.store.clone();
            // A panic is reported by the blocking thread.
            if let Ok(Err(error)) = tokio::task::spawn_blocking(move || store.expire_checkpoints()).await {
                tracing::warn!(%error, "a checkpoint that was not renewed cannot be removed");
            }
        }
    }

    /// Records the durable end of the log if it has moved; a node without writes writes nothing.
    async fn note_log_end(self: Rc<Self>) {
        let mut is_failing = false;
        loop {
            tokio::time::sleep(NOTE_LOG_END_EVERY).await;
            if !self.local.store.has_stale_log_mark() {
                continue;
            }
            let store = self.local.store.clone();
            match tokio::task::spawn_blocking(move || store.note_log_end()).await {
                Ok(Err(error)) if !is_failing => {
                    is_failing = true;
                    tracing::warn!(%error, "it could not be noted how far the log is durable; it will be tried again");
                }
                // A panic is reported by the blocking thread.
                Ok(Err(_)) | Err(_) => {}
                Ok(Ok(())) => is_failing = false,
            }
        }
    }

    async fn listen(self: Rc<Self>, mut control_messages: mpsc::Receiver<ControlMessage>) {
        while let Some(message) = control_messages.recv().await {
            match message {
                ControlMessage::Arrived(arrival) => self.handle_arrived(*arrival),
                ControlMessage::Repair => self.run_machine(|core, now| core.machine.node.begin_repair(now)),
                ControlMessage::LayoutCommand(requested) => self.begin_layout_command(*requested),
                ControlMessage::Fenced { thread, epoch } => self.run_machine(|core, now| {
                    let epoch = core.machine.fence.record(thread, epoch);
                    core.machine.node.handle_coordinators_fenced(now, epoch);
                }),
            }
        }
    }

    fn handle_arrived(self: &Rc<Self>, arrival: Arrival) {
        let (link, hello) = (arrival.link, arrival.hello);
        self.run_machine(|core, now| {
            core.machine.arrivals.insert(link, arrival);
            core.machine.node.handle_link(now, LinkEvent::AdmissionRequested { link, hello });
        });
        let is_waiting = self.with_core(|core| core.machine.arrivals.contains_key(&link));
        if is_waiting {
            let driver = Rc::clone(self);
            tokio::task::spawn_local(async move {
                tokio::time::sleep(ARRIVAL_TIME).await;
                driver.with_core(|core| core.machine.arrivals.remove(&link));
            });
        }
    }

    fn admit(self: &Rc<Self>, core: &mut Core<NodeMachine>, now: Now, link: LinkId) {
        let Some(arrival) = core.machine.arrivals.remove(&link) else {
            return;
        };
        // The record may have been adopted since the handshake.
        if !self.permits(arrival.version()) {
            let (peer, adopted) = (self.local.url_of(arrival.hello.node), self.local.layout.get());
            arrival.refuse_version(&self.context.peer_links, &peer, &adopted);
            return core.machine.handle_link(now, LinkEvent::AcceptedClosed { link });
        }
        let requester = arrival.hello.requester;
        self.local.record_statement(&arrival.hello, arrival.statement());
        let admitted = arrival.admit();
        match requester {
            Requester::Node => self.adopt(core, now, admitted),
            Requester::Coordinator(number) => {
                core.machine.admitted += 1;
                core.machine.linked_back.insert(admitted.node);
                let threads = &core.machine.threads;
                threads[usize::from(number) % threads.len()].send(ThreadMessage::Link(Box::new(admitted)));
            }
        }
    }

    /// Logs a change of a peer.
    fn log_change(self: &Rc<Self>, node: NodeIndex, change: PeerChange) {
        let peer = self.local.url_of(node);
        match change {
            PeerChange::Gone => tracing::warn!(peer, "a peer cannot be reached"),
            PeerChange::State(state) => {
                tracing::info!(peer, state = state.name(), "a peer's state has changed");
            }
            PeerChange::Rebuilds => tracing::warn!(
                peer,
                "a peer rebuilds: it lost data, or was told by this node or another one that its directory is not the one \
                 that it was known by"
            ),
            PeerChange::Rebuilt => tracing::info!(peer, "a peer rebuilds no longer"),
            PeerChange::NotThereYet => {
                let driver = Rc::clone(self);
                tokio::task::spawn_local(async move {
                    tokio::time::sleep(FIRST_DIAL_TIME).await;
                    let state = driver.local.view.lock().peer(node).state;
                    if state == PeerState::Unreachable {
                        driver.log_change(node, PeerChange::Gone);
                    }
                });
            }
        }
    }

    fn refuse(&self, core: &mut Core<NodeMachine>, link: LinkId) {
        if let Some(arrival) = core.machine.arrivals.remove(&link) {
            return arrival.refuse();
        }
        if !core.links.close(link) {
            core.machine.threads.iter().for_each(|thread| thread.send(ThreadMessage::CloseLink(link)));
        }
    }
}

/// A change of a peer that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerChange {
    /// The peer has become unreachable.
    Gone,
    /// The first dial has failed. When a cluster starts, the peer may be up a moment later.
    NotThereYet,
    State(PeerState),
    Rebuilds,
    Rebuilt,
}

/// Returns the changes of the peers between two views.
fn changes(me: NodeIndex, before: &ClusterView, now: &ClusterView) -> Vec<(NodeIndex, PeerChange)> {
    let mut changes = Vec::new();
    for (node, now) in (0..).map(NodeIndex).zip(&now.peers).filter(|(node, _)| *node != me) {
        let before = before.peer(node);
        match now.state {
            state if state == before.state => {}
            PeerState::Unreachable if before.state == PeerState::Unknown => {
                changes.push((node, PeerChange::NotThereYet));
            }
            PeerState::Unreachable => changes.push((node, PeerChange::Gone)),
            state => changes.push((node, PeerChange::State(state))),
        }
        if now.state == PeerState::Up && now.rebuilding != before.rebuilding {
            changes.push((node, if now.rebuilding { PeerChange::Rebuilds } else { PeerChange::Rebuilt }));
        }
    }
    changes
}

/// Logs peers whose default replica count differs from this node's, once for each change.
fn log_default_from_change(local: &Local, own: u8, before: Option<&NodeStatus>, account: &NodeStatus) {
    for peer in &account.peers {
        let earlier = before.and_then(|before| before.peers.iter().find(|it| it.node == peer.node));
        let former = earlier.and_then(|earlier| earlier.default_from);
        let Some(theirs) = peer.default_from.filter(|_| former != peer.default_from) else { continue };
        let name = local.url_of(peer.node);
        match default_from::of_peer(own, &name, Some(theirs)) {
            Some(warning) => tracing::warn!(peer = name, theirs, own, "{warning}"),
            None if former.is_some() => {
                tracing::info!(peer = name, theirs, "default_from is the same on both nodes now");
            }
            None => {}
        }
    }
}

/// The nodes among these that are reached.
fn reached_of(nodes: &[NodeIndex], account: &NodeStatus) -> NodeSet {
    let is_reached = |node: &NodeIndex| {
        let mut peers = account.peers.iter();
        peers.any(|peer| peer.node == *node && matches!(peer.state, PeerState::Up | PeerState::Suspected))
    };
    nodes.iter().copied().filter(is_reached).collect()
}

/// Records new round-trip times. The status is renewed more often than heartbeats are sent; an
/// unchanged time, to the nanosecond, is taken for the same measurement.
fn record_round_trips(metrics: &Metrics, last: &mut [Option<Duration>], account: &NodeStatus) {
    for peer in &account.peers {
        let last = &mut last[peer.node.as_usize()];
        if let Some(took) = peer.round_trip.filter(|took| Some(*took) != *last) {
            *last = Some(took);
            metrics.record_round_trip(peer.node, took);
        }
    }
}

impl NodeMachine {
    /// Whether the adopted layout record names the ids of all members, and none is being proposed
    /// by this node alone.
    fn is_named(&self) -> bool {
        let record = self.node.adopted_layout();
        let is_named = record.is_some_and(|record| record.members.iter().all(|it| it.node_id.is_some()));
        is_named && !self.vote_persistence.is_in_flight()
    }

    /// Records the epoch of a peer's layout record, if the message is a heartbeat.
    fn note_epoch(&self, origin: Origin, message: &Message) {
        let heartbeat = match message {
            Message::Request { request: PeerRequest::Node(NodeRequest::Heartbeat(payload)), .. }
            | Message::Answer { answer: PeerAnswer::Node(NodeResponse::Heartbeat(payload)), .. } => payload,
            _ => return,
        };
        if let Some(stamp) = heartbeat.layout {
            self.peer_epochs.hear(origin.node, stamp.epoch);
        }
    }
}

impl Machine for NodeMachine {
    fn handle_stored(&mut self, now: Now, id: StoreId, response: StoreResponse) {
        self.node.handle_stored(now, id, response);
    }

    fn handle_link(&mut self, now: Now, event: LinkEvent) {
        self.node.handle_link(now, event);
    }

    fn handle_message(&mut self, now: Now, origin: Origin, message: Message) {
        self.note_epoch(origin, &message);
        self.node.handle_message(now, origin, message);
    }

    fn handle_timeout(&mut self, now: Now) {
        self.node.handle_disk_full(now, self.store.engine().is_disk_full());
        self.node.handle_damage(now, self.store.damage());
        self.node.handle_absences(now, self.store.absences());
        if let Some(absences) = self.node.absences_recorded() {
            self.store.note_repair_recorded(absences);
        }
        self.node.handle_timeout(now);
        self.store.set_horizon(self.node.horizon(now), self.node.deletes_exchanged_to(now));
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        self.node.poll_effect()
    }

    /// A node without peers has no timeouts once it is ready and named by its layout record, so its
    /// idle process sleeps.
    fn poll_timeout(&self) -> Option<Instant> {
        let sleeps = !self.has_peers && self.node.is_ready() && self.is_named();
        if sleeps { None } else { self.node.poll_timeout() }
    }

    fn carry_out(core: &mut Core<Self>, driver: &Rc<MachineDriver<Self>>, now: Now, effect: Effect) {
        match effect {
            Effect::Publish(view) => {
                let before = std::mem::replace(&mut *driver.local.view.lock(), Arc::clone(&view));
                let members = driver.local.layout().members();
                for (node, change) in changes(driver.local.member.me, &before, &view) {
                    if members.contains(node) {
                        driver.log_change(node, change);
                    }
                }
                core.machine.accounted = None;
                for thread in &core.machine.threads {
                    thread.send(ThreadMessage::View(Arc::clone(&view)));
                }
            }
            Effect::Link(LinkAction::Admit(link)) => driver.admit(core, now, link),
            Effect::Link(LinkAction::Refuse(link)) => driver.refuse(core, link),
            Effect::Link(LinkAction::RefuseCopy(link)) => {
                if let Some(arrival) = core.machine.arrivals.remove(&link) {
                    let peer = driver.local.url_of(arrival.hello.node);
                    arrival.refuse_copy(&driver.context.peer_links, &peer);
                }
            }
            effect => unreachable!("a node does not emit {effect:?}"),
        }
    }

    fn after_effects(core: &mut Core<Self>, driver: &Rc<MachineDriver<Self>>, now: Now) {
        driver.carry_out_agreement_effects(core, now);
        driver.handle_stated_urls();
        let machine = &mut core.machine;
        if machine.accounted.is_none_or(|then| now.mono.saturating_since(then) >= ACCOUNT_AGE) {
            machine.accounted = Some(now.mono);
            machine.account_is_due = false;
            let account = machine.node.status();
            let agreement = machine.node.agreement_status();
            if let Some(agreement) = &agreement {
                machine.peer_epochs.note_behind(now.mono, reached_of(&agreement.behind, &account));
            }
            *driver.local.agreement.lock() = agreement.map(Arc::new);
            if let Some(metrics) = &machine.metrics {
                record_round_trips(metrics, &mut machine.round_trips, &account);
            }
            let before = driver.local.account.lock().replace(Arc::new(account.clone()));
            log_default_from_change(&driver.local, machine.default_from, before.as_deref(), &account);
        } else if !machine.account_is_due {
            machine.account_is_due = true;
            let driver = Rc::clone(driver);
            tokio::task::spawn_local(async move {
                tokio::time::sleep(ACCOUNT_AGE).await;
                driver.run_machine(|_, _| ());
            });
        }
        machine.moved.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::PeerView;

    const ME: NodeIndex = NodeIndex(0);

    fn view(peer: PeerView) -> ClusterView {
        ClusterView { peers: vec![PeerView::UP, peer], ..ClusterView::default() }
    }

    #[test]
    fn only_a_peer_that_was_up_is_reported_as_unreachable_at_once() {
        let view = |state| view(PeerView { state, ..PeerView::UNKNOWN });
        let reported = |before, now| changes(ME, &view(before), &view(now));
        let (unknown, up, gone) = (PeerState::Unknown, PeerState::Up, PeerState::Unreachable);
        assert_eq!(reported(unknown, gone), [(NodeIndex(1), PeerChange::NotThereYet)]);
        assert_eq!(reported(up, gone), [(NodeIndex(1), PeerChange::Gone)]);
        assert_eq!(reported(gone, up), [(NodeIndex(1), PeerChange::State(up))]);
        assert_eq!(reported(up, up), []);
    }

    #[test]
    fn the_begin_and_the_end_of_a_rebuild_of_a_peer_are_reported_once() {
        let is = |rebuilding| view(PeerView { rebuilding, ..PeerView::UP });
        assert_eq!(changes(ME, &is(false), &is(true)), [(NodeIndex(1), PeerChange::Rebuilds)]);
        assert_eq!(changes(ME, &is(true), &is(true)), []);
        assert_eq!(changes(ME, &is(true), &is(false)), [(NodeIndex(1), PeerChange::Rebuilt)]);
    }
}
