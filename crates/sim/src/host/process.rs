//! One generation of a host's process: the shipped store, node and coordinators, put together.

use super::hidden_generation;
use crate::network::ConnectionId;
use crate::{Nanos, Plant, Scenario};
use cluster::{
    ClusterView, Command, Coordinator, CoordinatorLimits, Effect, HintLedger, HybridClock, Incarnation, Key,
    Layout, LinkEvent, LinkId, Member, Message, Node, NodeIndex, NodeLimits, Origin, RequestId, Requester,
    ScanId, StoreId, StoreRequest, StoreResponse,
};
use env::Env;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stdx::{Hlc, Instant, NodeTag, Now, Rng, Version};
use store::{AfterAbsence, Membership, Opened, Store, StoreError, StoreOptions, WriteGroup};

/// Where the data of every host is, on its own disk.
const DATA: &str = "/data";
/// From `submit` to the reply.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// What a machine is given.
#[derive(Debug)]
pub(crate) enum Input {
    /// A command of a client.
    Submit(RequestId, Command),
    /// What a peer says.
    Message(Origin, Message, Hlc),
    /// A client does not want more of a scan.
    CloseScan(ScanId),
    /// News of a link.
    Link(LinkEvent),
    /// An answer of the store.
    Stored(StoreId, StoreResponse),
    /// What the node says of the cluster: the newest that it has published.
    View,
    /// Time has come.
    Timeout,
    /// The process is about to end. Only to `Node`.
    Drain,
    /// An operator wants the replicas compared. Only to `Node`.
    Repair,
}

/// Answers of the store, with the machine that waits for each.
pub(crate) type Answers = Vec<(Requester, StoreId, StoreResponse)>;

/// One generation of a host's process.
pub(crate) struct Process {
    /// Counts the generation of the host.
    pub(crate) generation: u64,
    pub(crate) store: Store,
    pub(crate) member: Member,
    pub(crate) node: Node,
    coordinators: Vec<(Coordinator, Arc<HybridClock>)>,
    view: Arc<ClusterView>,
    answers: Arc<Mutex<Answers>>,
    /// What each machine has dialed.
    pub(crate) dialed: BTreeMap<(Requester, NodeIndex), ConnectionId>,
    /// When each machine is woken next.
    pub(crate) timers: BTreeMap<Requester, Nanos>,
    /// When the last writes of each machine were or will be handed to the store, where threads are busy.
    pub(crate) last_submits: BTreeMap<Requester, Nanos>,
    /// The writes that its store has not answered.
    pub(crate) writes: BTreeMap<(Requester, StoreId), (Key, Version)>,
    /// A commit is on its way.
    pub(crate) is_committing: bool,
    /// The chain of turns in which its engine does what it owes.
    pub(crate) jobs_chain: u64,
    /// Its engine owed nothing at the last turn, and the next is far away.
    pub(crate) has_idle_jobs: bool,
    /// It ends as soon as it has drained.
    pub(crate) is_draining: bool,
    /// Hints that it gave up.
    pub(crate) hints_dropped: u64,
    /// A planted bug: no command is refused for what is under way.
    skips_admission: bool,
    /// A planted bug: the clocks of frames are not observed.
    ignores_frame_clocks: bool,
    /// A planted bug gives up what is damaged at once.
    skips_healing: bool,
    /// A planted bug: what peers remember of its generation is not heard.
    ignores_generations: bool,
    /// A planted bug: compaction goes by the wall clock of this host.
    expires_by_own_clock: bool,
    /// A planted bug: compaction does not wait until the peers have exchanged a delete.
    drops_tombstones_early: bool,
}

/// What a process is started with.
pub(crate) struct ProcessStart<'a> {
    pub(crate) generation: u64,
    pub(crate) env: Env,
    pub(crate) now: Now,
    pub(crate) me: NodeIndex,
    /// What becomes of its data if it seems to have been away for too long.
    pub(crate) after_absence: AfterAbsence,
    pub(crate) layout: &'a Arc<Layout>,
    pub(crate) names: &'a [String],
    pub(crate) scenario: &'a Scenario,
    pub(crate) rng: Rng,
}

impl Process {
    /// Opens the directory and begins a generation.
    pub(crate) fn start(start: ProcessStart<'_>) -> Result<Self, StoreError> {
        let ProcessStart { generation, env, now, me, after_absence, layout, names, scenario, mut rng } =
            start;
        let options = StoreOptions {
            engine: engine_options(scenario),
            membership: Membership::of(names.to_vec()),
            new_tag: NodeTag(rng.next_u64()),
            away_max: scenario.away_max,
            after_absence,
            snapshot_age: scenario.snapshot_age,
        };
        let (store, opened) = Store::open(env, Path::new(DATA), options)?;
        let Opened { identity, clock_start, mut record, .. } = opened;
        if scenario.plant == Some(Plant::EmptyReplicaServesReads) {
            record.sync_state = cluster::SyncState::Settled;
        }
        let member = Member {
            layout: Arc::clone(layout),
            me,
            tag: identity.tag,
            incarnation: Incarnation(rng.next_u64()),
            clock: Arc::new(HybridClock::new(clock_start)),
            hints: Arc::new(HintLedger::new(scenario.hint_bytes_max)),
        };
        let node = Node::new(now, member.clone(), record, node_limits(scenario, me), rng.fork());
        let view = Arc::clone(node.view());
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
            skips_admission: scenario.plant == Some(Plant::AdmissionSkipped),
            ignores_frame_clocks: scenario.plant == Some(Plant::FrameClocksIgnored),
            skips_healing: scenario.plant == Some(Plant::HealingSkipped),
            ignores_generations: scenario.plant == Some(Plant::RollbackIgnored),
            expires_by_own_clock: scenario.plant == Some(Plant::ExpiryByOwnClock),
            drops_tombstones_early: scenario.plant == Some(Plant::TombstoneDroppedEarly),
        })
    }

    /// Gives a machine its input and takes what it wants done.
    pub(crate) fn handle(&mut self, now: Now, requester: Requester, input: Input) -> Vec<Effect> {
        match requester {
            Requester::Node => self.handle_as_node(now, input),
            Requester::Coordinator(number) => self.handle_as_coordinator(now, number, input),
        }
    }

    fn handle_as_node(&mut self, now: Now, mut input: Input) -> Vec<Effect> {
        if self.ignores_generations {
            hidden_generation::hide(&mut input);
        }
        let node = &mut self.node;
        match input {
            Input::Message(origin, message, clock) => {
                if !self.ignores_frame_clocks {
                    self.member.clock.observe(clock, now);
                }
                node.handle_message(now, origin, message);
            }
            Input::Link(event) => node.handle_link(now, event),
            Input::Stored(id, response) => node.handle_stored(now, id, response),
            Input::Timeout => {
                let mut damage = self.store.damage();
                if self.skips_healing {
                    for damage in damage.drain(..) {
                        self.store.answer_blocking(&StoreRequest::AbandonTable(damage));
                    }
                }
                node.handle_damage(now, damage);
                node.handle_absences(now, self.store.absences());
                if let Some(absences) = node.absences_owed() {
                    self.store.note_absences_owed(absences);
                }
                node.handle_timeout(now);
                let horizon = if self.expires_by_own_clock { now.wall } else { node.horizon(now) };
                let exchanged_to =
                    if self.drops_tombstones_early { now.wall } else { node.exchanged_to(now) };
                self.store.set_horizon(horizon, exchanged_to);
            }
            Input::Drain => node.begin_drain(now),
            Input::Repair => node.begin_repair(now),
            Input::Submit(..) | Input::CloseScan(_) | Input::View => unreachable!("that is for coordinators"),
        }
        let effects: Vec<_> = std::iter::from_fn(|| node.poll_effect()).collect();
        for effect in &effects {
            if let Effect::Publish(view) = effect {
                self.view = Arc::clone(view);
            }
        }
        effects
    }

    fn handle_as_coordinator(&mut self, now: Now, number: u8, input: Input) -> Vec<Effect> {
        let (coordinator, version_clock) = &mut self.coordinators[usize::from(number)];
        match input {
            Input::Message(origin, message, clock) => {
                if !self.ignores_frame_clocks {
                    version_clock.observe(clock, now);
                }
                coordinator.handle_message(now, origin, message);
            }
            Input::Link(event) => coordinator.handle_link(now, event),
            Input::Stored(id, response) => coordinator.handle_stored(now, id, response),
            Input::Timeout => coordinator.handle_timeout(now),
            Input::Submit(id, command) if self.skips_admission => coordinator.submit_paced(now, id, command),
            Input::Submit(id, command) => coordinator.submit(now, id, command),
            Input::CloseScan(id) => coordinator.close_scan(now, id),
            Input::View => coordinator.handle_view(now, Arc::clone(&self.view)),
            Input::Drain | Input::Repair => unreachable!("that is for the node"),
        }
        std::iter::from_fn(|| coordinator.poll_effect()).collect()
    }

    /// When a machine wants to be woken, by the monotonic clock.
    pub(crate) fn poll_timeout(&self, requester: Requester) -> Option<Instant> {
        match requester {
            Requester::Node => self.node.poll_timeout(),
            Requester::Coordinator(number) => self.coordinators[usize::from(number)].0.poll_timeout(),
        }
    }

    /// All of its machines.
    pub(crate) fn requesters(&self) -> impl Iterator<Item = Requester> + use<> {
        let coordinators = (0..self.coordinators.len()).map(|number| Requester::Coordinator(number as u8));
        std::iter::once(Requester::Node).chain(coordinators)
    }

    /// An empty group of writes.
    pub(crate) fn write_group(&self) -> WriteGroup {
        self.store.write_group()
    }

    /// Hands the writes of one turn of a machine to the engine.
    pub(crate) fn submit(&self, requester: Requester, group: WriteGroup) {
        let answers = Arc::clone(&self.answers);
        self.store.submit(group, move |responses, _| {
            let mut answers = answers.lock().expect("nobody panics with it");
            answers.extend(responses.into_iter().map(|(id, response)| (requester, id, response)));
        });
    }

    /// The answers to writes that are there.
    pub(crate) fn take_answers(&self) -> Answers {
        std::mem::take(&mut *self.answers.lock().expect("nobody panics with it"))
    }

    /// Whether a memtable is full, and so waits to be flushed.
    pub(crate) fn needs_flush(&self) -> bool {
        let engine = self.store.engine();
        engine.backlog().buffered_fraction * engine.options().memtables_max as f64 >= 1.0
    }

    /// Whether it must end because its engine has stopped for good.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.store.engine().poison().is_some()
    }

    /// The newest durable cell of each key that `request` asks for, as the machines would be outcome.
    pub(crate) fn read(&self, request: &StoreRequest) -> StoreResponse {
        self.store.answer_blocking(request)
    }

    /// The accepted link of this name is this connection.
    pub(crate) const fn link_of(connection: ConnectionId) -> LinkId {
        LinkId(connection.0)
    }
}

/// Little memory, small tables: everything happens with little data.
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
        // Only the waits before a rebuild and before healing depend on it, and no run with this bug
        // damages tables.
        request_timeout: match scenario.plant {
            Some(Plant::RebuildTooEarly) => Duration::ZERO,
            _ => REQUEST_TIMEOUT,
        },
        ..NodeLimits::default()
    }
}
