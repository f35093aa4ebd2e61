//! A process on a host: the shipped store, node and coordinators, put together.

use super::{handshake, hidden_generation, layout_plants};
use crate::network::ConnectionId;
use crate::scenario::Dimension;
use crate::world::members::slot_in;
use crate::{Nanos, Plant, Scenario};
use cluster::{
    AgreementEffect, ClusterView, Command, Coordinator, CoordinatorLimits, Effect, FEATURE_LEVEL_MAX_DEFAULT,
    FEATURE_LEVEL_PLANS, HintLedger, HybridClock, Incarnation, Key, Layout, LayoutCommand, LayoutCommandId,
    LayoutEpoch, LayoutRecord, LinkEvent, LinkId, Member, Message, Node, NodeIndex, NodeLimits, Origin,
    ProposalOutcome, ProposeError, RequestId, Requester, ScanId, StoreId, StoreRequest, StoreResponse,
    VoterState,
};
use env::Env;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stdx::{Hlc, Instant, NodeTag, Now, Rng, Version};
use store::{
    AfterAbsence, DirectoryCluster, Membership, OpenReport, Store, StoreError, StoreOptions, WriteGroup,
};
use wire::handshake::{LayoutStatement, NamedMember, ProtocolVersions};

/// Data directory of every host, on its own disk.
pub(crate) const DATA: &str = "/data";
/// Deadline of a command, from `submit` to the reply.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Input of a state machine.
#[derive(Debug)]
pub(crate) enum ProcessInput {
    /// A command of a client. For coordinators.
    Submit(RequestId, Command),
    /// A message of a peer, with the clock of its frame.
    Message(Origin, Message, Hlc),
    /// The client closes a scan. For coordinators.
    CloseScan(ScanId),
    /// A change of a link.
    Link(LinkEvent),
    /// An answer of the store.
    Stored(StoreId, StoreResponse),
    /// The node has published a new view of the cluster. For coordinators.
    View,
    /// The node has adopted a record with this layout.
    Layout(Arc<Layout>),
    /// The timer of the state machine has expired.
    Timeout,
    /// The process is about to end. For the node.
    Drain,
    /// An operator requests a comparison of the replicas. For the node.
    Repair,
    /// An operator requests a change of the layout, for at most this long. For the node.
    ProposeLayout(Box<LayoutRecord>, Duration),
    /// An operator gives a command on the layout, for at most this long. For the node.
    CommandLayout(LayoutCommandId, LayoutCommand, Duration),
    /// The state of the voter with this number is durable, or could not be stored. For the node.
    VoterPersisted(u64, bool),
}

/// Answers of the store, each with the state machine that waits for it.
pub(crate) type StoreAnswers = Vec<(Requester, StoreId, StoreResponse)>;

/// A process of a host.
pub(crate) struct HostProcess {
    /// Generation of the process: counts the starts on its host, from 1.
    pub(crate) generation: u64,
    pub(crate) store: Store,
    pub(crate) member: Member,
    pub(crate) node: Node,
    coordinators: Vec<(Coordinator, Arc<HybridClock>)>,
    /// The epoch of the coordinators' fence that the node was last told.
    fenced: LayoutEpoch,
    view: Arc<ClusterView>,
    answers: Arc<Mutex<StoreAnswers>>,
    /// Connections that each state machine has dialed.
    pub(crate) dialed: BTreeMap<(Requester, NodeIndex), ConnectionId>,
    /// Time of the next timer event of each state machine.
    pub(crate) timers: BTreeMap<Requester, Nanos>,
    /// Time at which the last writes of each state machine reach the store, in runs with busy
    /// threads.
    pub(crate) last_submits: BTreeMap<Requester, Nanos>,
    /// Writes that the store has not answered.
    pub(crate) writes: BTreeMap<(Requester, StoreId), (Key, Version)>,
    /// Whether a commit event is scheduled.
    pub(crate) is_committing: bool,
    /// Number of the current chain of job events of the engine.
    pub(crate) jobs_chain: u64,
    /// Whether the engine had no job at the last job event, so that the next one is far away.
    pub(crate) has_idle_jobs: bool,
    /// Whether the process ends as soon as it has drained.
    pub(crate) is_draining: bool,
    /// Number of hints dropped.
    pub(crate) hints_dropped: u64,
    /// Whether the process takes part in the agreement on layout records. A process of an older
    /// release does not.
    pub(crate) is_voter: bool,
    /// The layout record that the process holds, as it states it to peers.
    pub(crate) statement: LayoutStatement,
    /// The members that this record names.
    pub(crate) named: Arc<[NamedMember]>,
    /// The ids of the nodes that the record refuses for ever.
    pub(crate) removed: Arc<[NodeTag]>,
    /// Versions of the protocol that the process speaks.
    pub(crate) versions: ProtocolVersions,
    /// State of the voter with which the process started.
    pub(crate) first_votes: VoterState,
    /// Outcome of the last request to propose a layout record.
    pub(crate) proposed: Result<(), ProposeError>,
    /// End of the last proposal of the node.
    pub(crate) proposal_end: Option<ProposalOutcome>,
    /// Planted bug: no command is refused for the number of commands in flight.
    skips_admission: bool,
    /// Planted bug: the clocks of frames are not observed.
    ignores_frame_clocks: bool,
    /// Planted bug: damaged data is abandoned at once.
    skips_healing: bool,
    /// Planted bug: the generations that peers remember are ignored.
    ignores_generations: bool,
    /// Planted bug: compaction uses the wall clock of this host.
    expires_by_own_clock: bool,
    /// Planted bug: compaction does not wait until the peers have exchanged a delete.
    drops_tombstones_early: bool,
}

/// Arguments of a process start.
pub(crate) struct ProcessStart<'a> {
    pub(crate) generation: u64,
    pub(crate) env: Env,
    pub(crate) now: Now,
    /// Slot of the node, unless the record of the directory names its id or its host.
    pub(crate) me: NodeIndex,
    /// Its host; that of the original for a copy.
    pub(crate) host: NodeIndex,
    /// Treatment of the data if the node seems to have been away for too long.
    pub(crate) after_absence: AfterAbsence,
    /// The cluster that the data directory belongs to.
    pub(crate) directory: DirectoryCluster,
    /// Whether the process is of a release without the agreement on layout records.
    pub(crate) is_old: bool,
    pub(crate) layout: &'a Arc<Layout>,
    pub(crate) names: &'a [String],
    pub(crate) scenario: &'a Scenario,
    pub(crate) rng: Rng,
}

impl HostProcess {
    /// Opens the data directory and starts the state machines.
    pub(crate) fn start(start: ProcessStart<'_>) -> Result<Self, StoreError> {
        let ProcessStart { generation, env, now, me, host, directory, layout, names, scenario, .. } = start;
        let ProcessStart { after_absence, is_old, mut rng, .. } = start;
        let membership = match directory {
            DirectoryCluster::Recorded(membership) | DirectoryCluster::Named(membership) => membership,
            DirectoryCluster::New | DirectoryCluster::Listed(_) => Membership {
                partitions: layout.partitions(),
                default_from: Some(scenario.default_from_of(me.as_usize())),
                ..Membership::of(names.to_vec())
            },
        };
        let options = StoreOptions {
            engine: engine_options(scenario),
            membership,
            new_tag: NodeTag(rng.next_u64()),
            away_max: scenario.away_max,
            after_absence,
            snapshot_age: scenario.snapshot_age,
        };
        let (store, opened) = Store::open(env, Path::new(DATA), options)?;
        let OpenReport { identity, clock_start, mut record, mut voter, .. } = opened;
        layout_plants::alter_start(scenario.plant, &mut record, &mut voter);
        let decided = &voter.acceptor.decided;
        let layout = match is_old {
            true => Arc::clone(layout),
            false => Arc::new(Layout::of_record(decided)),
        };
        let named = decided.members.iter().find(|member| member.node_id == Some(identity.tag));
        let me = named.map(|member| member.slot).or_else(|| slot_in(&layout, host)).unwrap_or(me);
        if !layout.members().contains(me) {
            return Err(StoreError::RemovedNode { path: DATA.into(), epoch: decided.epoch });
        }
        let member = Member {
            layout,
            me,
            tag: identity.tag,
            incarnation: Incarnation(rng.next_u64()),
            clock: Arc::new(HybridClock::new(clock_start)),
            hints: Arc::new(HintLedger::new(scenario.hint_bytes_max)),
        };
        let mut node = Node::new(now, member.clone(), record, node_limits(scenario, me), rng.fork());
        if !is_old {
            node.join_agreement(now, voter.clone());
        }
        let view = Arc::clone(node.view());
        let fenced = member.layout.newest_change();
        let coordinators = (0..scenario.coordinators)
            .map(|number| {
                let mut member = member.clone();
                if scenario.plant == Some(Plant::ClockPerThread) {
                    member.clock = Arc::new(HybridClock::new(clock_start));
                }
                let clock = Arc::clone(&member.clock);
                let limits = CoordinatorLimits {
                    operations_max: scenario.operations_max,
                    request_timeout: REQUEST_TIMEOUT,
                    grace: scenario.grace,
                    ..CoordinatorLimits::default()
                };
                (Coordinator::new(member, number, limits, Arc::clone(&view), rng.fork()), clock)
            })
            .collect();
        Ok(Self {
            generation,
            store,
            member,
            node,
            coordinators,
            fenced,
            view,
            answers: Arc::default(),
            dialed: BTreeMap::new(),
            timers: BTreeMap::new(),
            last_submits: BTreeMap::new(),
            writes: BTreeMap::new(),
            is_committing: false,
            jobs_chain: 0,
            has_idle_jobs: false,
            is_draining: false,
            hints_dropped: 0,
            is_voter: !is_old,
            statement: LayoutStatement::of(&voter.acceptor.decided),
            named: NamedMember::all_of(&voter.acceptor.decided).into(),
            removed: voter.acceptor.decided.removed_ids().collect(),
            versions: match is_old {
                true => handshake::OLD_VERSIONS,
                false => ProtocolVersions::with_record(&voter.acceptor.decided),
            },
            first_votes: voter,
            proposed: Ok(()),
            proposal_end: None,
            skips_admission: scenario.plant == Some(Plant::AdmissionSkipped),
            ignores_frame_clocks: scenario.plant == Some(Plant::FrameClocksIgnored),
            skips_healing: scenario.plant == Some(Plant::HealingSkipped),
            ignores_generations: scenario.plant == Some(Plant::RollbackIgnored),
            expires_by_own_clock: scenario.plant == Some(Plant::ExpiryByOwnClock),
            drops_tombstones_early: scenario.plant == Some(Plant::TombstoneDroppedEarly),
        })
    }

    /// Gives a state machine its input. Returns the effects that it requests.
    pub(crate) fn handle(&mut self, now: Now, requester: Requester, input: ProcessInput) -> Vec<Effect> {
        match requester {
            Requester::Node => self.handle_as_node(now, input),
            Requester::Coordinator(number) => self.handle_as_coordinator(now, number, input),
        }
    }

    fn handle_as_node(&mut self, now: Now, mut input: ProcessInput) -> Vec<Effect> {
        if self.ignores_generations {
            hidden_generation::hide(&mut input);
        }
        let fenced = self.coordinators.iter().map(|(coordinator, _)| coordinator.fenced()).min();
        let node = &mut self.node;
        if let Some(fenced) = fenced.filter(|fenced| *fenced > self.fenced) {
            self.fenced = fenced;
            node.handle_coordinators_fenced(now, fenced);
        }
        match input {
            ProcessInput::Message(origin, message, clock) => {
                if !self.ignores_frame_clocks {
                    self.member.clock.observe(clock, now);
                }
                node.handle_message(now, origin, message);
            }
            ProcessInput::Link(event) => node.handle_link(now, event),
            ProcessInput::Stored(id, response) => node.handle_stored(now, id, response),
            ProcessInput::Timeout => {
                let mut damage = self.store.damage();
                if self.skips_healing {
                    for damage in damage.drain(..) {
                        self.store.answer_blocking(&StoreRequest::AbandonTable(damage));
                    }
                }
                node.handle_damage(now, damage);
                node.handle_absences(now, self.store.absences());
                if let Some(absences) = node.absences_recorded() {
                    self.store.note_repair_recorded(absences);
                }
                node.handle_timeout(now);
                let horizon = if self.expires_by_own_clock { now.wall } else { node.horizon(now) };
                let exchanged_to =
                    if self.drops_tombstones_early { now.wall } else { node.deletes_exchanged_to(now) };
                self.store.set_horizon(horizon, exchanged_to);
            }
            ProcessInput::Layout(layout) => node.handle_layout(now, layout),
            ProcessInput::Drain => node.begin_drain(now),
            ProcessInput::Repair => node.begin_repair(now),
            ProcessInput::ProposeLayout(record, within) => {
                self.proposed = node.propose_layout(now, *record, within);
            }
            ProcessInput::CommandLayout(number, command, within) => {
                // A node refuses a command while too many wait. The operator gives another one.
                let _ = node.begin_layout_command(now, number, command, within);
            }
            ProcessInput::VoterPersisted(revision, is_durable) => {
                node.handle_voter_persisted(now, revision, is_durable);
            }
            ProcessInput::Submit(..) | ProcessInput::CloseScan(_) | ProcessInput::View => {
                unreachable!("an input for coordinators")
            }
        }
        let effects: Vec<_> = std::iter::from_fn(|| node.poll_effect()).collect();
        for effect in &effects {
            if let Effect::Publish(view) = effect {
                self.view = Arc::clone(view);
            }
        }
        effects
    }

    fn handle_as_coordinator(&mut self, now: Now, number: u8, input: ProcessInput) -> Vec<Effect> {
        let (coordinator, version_clock) = &mut self.coordinators[usize::from(number)];
        match input {
            ProcessInput::Message(origin, message, clock) => {
                if !self.ignores_frame_clocks {
                    version_clock.observe(clock, now);
                }
                coordinator.handle_message(now, origin, message);
            }
            ProcessInput::Link(event) => coordinator.handle_link(now, event),
            ProcessInput::Stored(id, response) => coordinator.handle_stored(now, id, response),
            ProcessInput::Timeout => coordinator.handle_timeout(now),
            ProcessInput::Submit(id, command) if self.skips_admission => {
                coordinator.submit_paced(now, id, command);
            }
            ProcessInput::Submit(id, command) => coordinator.submit(now, id, command),
            ProcessInput::CloseScan(id) => coordinator.close_scan(now, id),
            ProcessInput::View => coordinator.handle_view(now, Arc::clone(&self.view)),
            ProcessInput::Layout(layout) => coordinator.handle_layout(now, layout),
            ProcessInput::Drain
            | ProcessInput::Repair
            | ProcessInput::ProposeLayout(..)
            | ProcessInput::CommandLayout(..)
            | ProcessInput::VoterPersisted(..) => unreachable!("an input for the node"),
        }
        std::iter::from_fn(|| coordinator.poll_effect()).collect()
    }

    /// Takes the next effect of the agreement on layout records.
    pub(crate) fn poll_agreement_effect(&mut self) -> Option<AgreementEffect> {
        self.node.poll_agreement_effect()
    }

    /// Time at which a state machine wants its timer to expire, by the monotonic clock.
    pub(crate) fn poll_timeout(&self, requester: Requester) -> Option<Instant> {
        match requester {
            Requester::Node => self.node.poll_timeout(),
            Requester::Coordinator(number) => self.coordinators[usize::from(number)].0.poll_timeout(),
        }
    }

    /// All state machines of the process.
    pub(crate) fn requesters(&self) -> impl Iterator<Item = Requester> + use<> {
        let coordinators = (0..self.coordinators.len()).map(|number| Requester::Coordinator(number as u8));
        std::iter::once(Requester::Node).chain(coordinators)
    }

    /// Creates an empty group of writes.
    pub(crate) fn write_group(&self) -> WriteGroup {
        self.store.write_group()
    }

    /// Submits the writes of one step of a state machine to the engine.
    pub(crate) fn submit(&self, requester: Requester, group: WriteGroup) {
        let answers = Arc::clone(&self.answers);
        self.store.submit(group, move |responses, _| {
            let mut answers = answers.lock().expect("no thread panics while it holds this lock");
            answers.extend(responses.into_iter().map(|(id, response)| (requester, id, response)));
        });
    }

    /// Takes the answers to writes that have arrived.
    pub(crate) fn take_answers(&self) -> StoreAnswers {
        std::mem::take(&mut *self.answers.lock().expect("no thread panics while it holds this lock"))
    }

    /// Whether a memtable is full and waits for its flush.
    pub(crate) fn needs_flush(&self) -> bool {
        let engine = self.store.engine();
        engine.backlog().buffered_fraction * engine.options().memtables_max as f64 >= 1.0
    }

    /// Whether the process must end because its engine has stopped for good.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.store.engine().poison().is_some()
    }

    /// Answers a read with the newest durable cells.
    pub(crate) fn read(&self, request: &StoreRequest) -> StoreResponse {
        self.store.answer_blocking(request)
    }

    /// Link identifier of an accepted connection.
    pub(crate) const fn link_of(connection: ConnectionId) -> LinkId {
        LinkId(connection.0)
    }
}

/// Engine options with little memory and small tables, so that a small amount of data reaches every
/// code path.
fn engine_options(scenario: &Scenario) -> engine::Options {
    let tombstone_grace = match scenario.plant {
        Some(Plant::TombstoneDroppedEarly) => Duration::ZERO,
        _ => scenario.grace,
    };
    engine::Options {
        memory_bytes: 16 << 20,
        memtable_bytes: Some(scenario.memtable_bytes),
        memtables_max: 4,
        block_bytes: 1 << 10,
        table_bytes: 16 << 10,
        level0_tables: 2,
        level1_bytes: 64 << 10,
        level_growth: 4,
        tombstone_grace,
        wal_segment_bytes: 64 << 10,
        scrub_period: scenario.scrub_period,
        ..engine::Options::default()
    }
}

fn node_limits(scenario: &Scenario, me: NodeIndex) -> NodeLimits {
    NodeLimits {
        hint_age_max: scenario.hint_age_max,
        grace: scenario.grace,
        default_from: scenario.default_from_of(me.as_usize()),
        // Only the delays before a rebuild and before healing depend on it, and no run with this
        // planted bug damages tables.
        request_timeout: match scenario.plant {
            Some(Plant::RebuildTooEarly) => Duration::ZERO,
            _ => REQUEST_TIMEOUT,
        },
        feature_level_max: match scenario.dimensions.has(Dimension::PlannedChanges) {
            true => FEATURE_LEVEL_PLANS,
            false => FEATURE_LEVEL_MAX_DEFAULT,
        },
        ..NodeLimits::default()
    }
}
