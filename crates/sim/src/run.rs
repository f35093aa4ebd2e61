//! A run: safety phase, heal phase, liveness phase.
//!
//! **Safety.** Clients send commands and the nemesis injects faults. Each invariant is checked as
//! soon as it can be checked. In a run with a flood, clients ask for more than the disks bear, and
//! there is no fault. In a run with fixed faults, commands and faults come in the order that
//! `nemesis::fixed` defines.
//!
//! **Heal.** All links are up, disks and clocks are right, and every process is started.
//!
//! **Liveness.** The following must hold within bounded time:
//!
//! - Every member serves. Nodes that join are members, and those that were removed have ended.
//! - All members have adopted the same layout record, and a change of it is decided at once.
//! - Running plans end, and dead members are removed.
//! - If tables are scrubbed, no damaged table is left, including tables that no client reads.
//! - No hint is left, and acknowledged writes were handed over without anti-entropy.
//! - Every quorum succeeds at every node.
//! - After a repair all replicas agree, including replicas of keys that no client reads.
//! - Every key can be read from all replicas, and every scan of the cluster and of each node
//!   returns the cells that they hold.
//! - No snapshot is kept beyond its age limit.
//! - No acknowledged write is missing.
//!
//! In half of the runs no operator requests that repair. Then the pending repairs of the nodes
//! deliver the writes whose hints were dropped, and soon. The next round of anti-entropy delivers
//! everything else.

mod agreement;

use crate::check::{InvariantViolation, complete_ranges, convergence, durability, floods, handed_over};
use crate::history::{ClientOperation, ClientOutcome, CommandKind, ScanEnd, ScanRecord};
use crate::host::clock::EPOCH;
use crate::host::process::{HostProcess, ProcessInput, REQUEST_TIMEOUT};
use crate::judge::Judge;
use crate::network::Endpoint;
use crate::scenario::FloodLoad;
use crate::trace::Trace;
use crate::workload::quorum;
use crate::world::World;
use crate::world::members::host_of;
use crate::{Nanos, Scenario};
use cluster::{
    Key, KeyRange, MemberState, NodeIndex, ReplicaRequest, ReplicaResponse, RequestId, Requester, Scan,
    ScanLimit, ScanScope, StoreRequest, StoreResponse,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;
use stdx::{CellMeta, WallTime};

/// Time until all nodes serve, from the first start and from the heal phase.
const READY_WITHIN: Duration = Duration::from_secs(40);
/// Greatest number of members of which each uses every quorum at the end.
const EVERY_QUORUM_MAX: u8 = 5;
/// Time until removed nodes that run have learned that they were removed.
const REMOVED_WITHIN: Duration = Duration::from_secs(10);
/// Time until nodes that lost their disk are rebuilt.
pub(crate) const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// Scrub rounds until no damaged table is left. A table that was damaged after it was read in one
/// round is found in the next. It may also become live only after that round.
const SCRUB_ROUNDS: u32 = 3;
/// Time until no table is damaged.
const HEALED_WITHIN: Duration = Duration::from_secs(60);
/// Time until no hint is left.
const HINTS_WITHIN: Duration = Duration::from_secs(60);
/// Time until no key is refused. A node tries its refused keys again every ten seconds.
const REFUSED_WITHIN: Duration = Duration::from_secs(30);
/// Time until all replicas agree, from the beginning of a repair.
const CONVERGED_WITHIN: Duration = Duration::from_secs(120);
/// Time from the due time of a round of anti-entropy to its end.
const ROUND_WITHIN: Duration = Duration::from_secs(60);
/// Time until all pending repairs of dropped hints have succeeded.
const PENDING_REPAIRS_WITHIN: Duration = Duration::from_secs(60);
/// Interval between checks of a condition that must become true.
const POLL_EVERY: Duration = Duration::from_millis(250);
/// Attempts of a command of the liveness phase. A queue may be full for a moment.
const TRIES: usize = 5;
/// A coordinator that runs for this long after the beginning of a write has made its hints durable
/// or dropped them.
const HINTS_DURABLE_WITHIN: Duration = Duration::from_secs(6);
/// A node that runs for this long after the beginning of a write has durably noted the hints of it
/// that were dropped.
pub(crate) const PENDING_NOTED_WITHIN: Duration = Duration::from_secs(8);
/// Greatest distance of a wall clock behind the true time, including all jumps.
const BEHIND_MAX: Duration = Duration::from_secs(60);
/// Greatest distance of the clocks behind the newest issued version when the liveness phase begins.
const AHEAD_MAX: Duration = Duration::from_secs(3);

/// Durations of the phases of a run with a flood.
const CALM: Duration = Duration::from_secs(2);
const FLOOD: Duration = Duration::from_secs(3);
/// Greatest length of values after a flood, in bytes.
const AFTER_FLOOD_BYTES_MAX: u64 = 8 << 10;
const AFTER_FLOOD: Duration = floods::RECOVERED_AFTER.saturating_add(Duration::from_secs(2));

/// Period with which stores release snapshots that are too old, with slack.
const SNAPSHOT_EXPIRY_PERIOD: Duration = Duration::from_secs(3);

/// Result of a run.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// Seed of the run.
    pub seed: u64,
    /// Invariant that did not hold.
    pub violation: Option<InvariantViolation>,
    /// Hash of all events.
    pub hash: u64,
    /// Number of events.
    pub events: u64,
    /// Number of client commands that succeeded, and of all client commands.
    pub operations: (u64, u64),
    /// Number of scans that reached their end, and of all scans.
    pub scans: (u64, u64),
    /// Number of faults injected.
    pub faults: u64,
    /// Number of layout records decided.
    pub layouts: usize,
    /// Duration of the run in virtual time.
    pub took: Duration,
}

/// Runs a scenario. With `prints`, prints every event.
pub fn run(scenario: Scenario, prints: bool) -> RunReport {
    let seed = scenario.seed;
    let mut world = World::new(scenario, Trace::new(prints));
    if let Err(violation) = world.run_phases() {
        world.judge.fail(violation);
    }
    let succeeded = |operation: &&ClientOperation| {
        matches!(
            operation.outcome,
            Some((_, ClientOutcome::Found { .. } | ClientOutcome::Missing | ClientOutcome::Written { .. }))
        )
    };
    let is_complete = |record: &&ScanRecord| matches!(record.ended, Some((_, ScanEnd::Complete)));
    let (history, scans) = (&world.judge.history, &world.judge.scans);
    RunReport {
        seed,
        operations: (history.iter().filter(succeeded).count() as u64, history.iter().count() as u64),
        scans: (scans.iter().filter(is_complete).count() as u64, scans.iter().count() as u64),
        hash: world.trace.hash(),
        events: world.trace.events(),
        faults: world.nemesis.faults,
        layouts: world.judge.agreement.decided_records(),
        took: world.now - Nanos::ZERO,
        violation: world.judge.violation,
    }
}

/// Metadata of the cell that each node holds of a key.
type HeldCells = Vec<(NodeIndex, Option<CellMeta>)>;

fn newest(held: &HeldCells) -> Option<CellMeta> {
    held.iter().filter_map(|(_, meta)| *meta).max_by_key(|meta| meta.version)
}

fn at_node(held: &HeldCells, node: NodeIndex) -> Option<CellMeta> {
    held.iter().find(|(at, _)| *at == node)?.1
}

/// Whether a process can read all keys that it holds, and keys that it does not hold.
///
/// A scan reads no filters, while a read of a missing key reads the filters of the tables around
/// it. So one missing key is read before the first key, and one behind each key.
fn can_read_all(process: &HostProcess) -> bool {
    let limit = ScanLimit { entries: usize::MAX, bytes: usize::MAX };
    let all = StoreRequest::Scan { after: None, until: None, limit, values: false };
    let StoreResponse::Scanned { entries, .. } = process.read(&all) else { return false };
    let behind = |key: &Key| [key.as_bytes(), &[0]].concat();
    let missing = std::iter::once(vec![0]).chain(entries.iter().map(|(key, _)| behind(key)));
    missing.map(|key| Key::new(key.into()).expect("keys of a run are short")).all(|key| {
        let read = process.read(&StoreRequest::Replica(ReplicaRequest::Read { key }));
        !matches!(read, StoreResponse::Failed(_))
    })
}

impl World {
    fn run_phases(&mut self) -> Result<(), InvariantViolation> {
        self.note("all nodes start");
        if self.scenario.dimensions.late_node().is_some() {
            self.empty_before_naming()?;
        }
        self.wait_until("a started node does not serve", READY_WITHIN, Self::are_all_serving)?;
        match (self.scenario.flood, self.scenario.fixed) {
            (Some(load), _) => self.run_flood(load)?,
            (None, Some(fixed)) => {
                self.note("fixed faults");
                self.run_fixed_faults(fixed)?;
            }
            (None, None) => self.run_random_faults()?,
        }
        self.note("heal");
        self.heal();
        self.run_for(REQUEST_TIMEOUT)?;
        self.wait_until_joined()?;
        self.wait_until(
            "a node does not serve although there is no fault",
            READY_WITHIN,
            Self::are_all_serving,
        )?;
        self.let_clocks_catch_up()?;
        self.note("rebuild");
        self.wait_until(
            "a node is not settled although there is no fault",
            SETTLED_WITHIN,
            Self::is_settled,
        )?;
        self.note("layout records");
        self.check_agreement()?;
        self.note("plans");
        self.wait_until_plans_end()?;
        self.wait_until(
            "a removed node runs although there is no fault",
            REMOVED_WITHIN,
            Self::have_removed_ended,
        )?;
        if self.has_dead_members() {
            // The layout cannot change any more, and the quorums of all members fail.
            return self.check_durability();
        }
        if let Some(period) = self.scenario.scrub_period {
            self.note("scrubbing");
            let otherwise = "a damaged table is left although all tables are scrubbed";
            self.wait_until(otherwise, period * SCRUB_ROUNDS + HEALED_WITHIN, |world| !world.has_damage())?;
        }
        self.note("healing");
        self.wait_until("a table stays damaged although there is no fault", HEALED_WITHIN, Self::is_healed)?;
        self.note("handoff");
        self.wait_until("hints are left although there is no fault", HINTS_WITHIN, Self::has_no_hints)?;
        self.check_handed_over()?;
        let is_forced = !self.scenario.repairs_unforced();
        if is_forced {
            self.let_versions_pass()?;
            self.note("all quorums");
            self.repair_all();
        } else {
            self.note("pending repairs");
            self.wait_for_pending_repairs()?;
            self.note("all quorums");
        }
        self.use_all_quorums()?;
        self.note("convergence");
        let within = if is_forced { CONVERGED_WITHIN } else { self.converged_unforced_within() };
        self.wait_until_converged(within)?;
        self.wait_until(
            "a key stays refused although there is no fault",
            REFUSED_WITHIN,
            Self::has_no_refused_keys,
        )?;
        self.read_all_keys()?;
        self.note("ranges");
        // Waits until the repairs of those reads are stored.
        self.run_for(REQUEST_TIMEOUT)?;
        self.scan_all()?;
        let aged = self.scenario.snapshot_age + SNAPSHOT_EXPIRY_PERIOD;
        self.wait_until("a snapshot is kept for too long", aged, Self::has_no_snapshots)?;
        self.check_durability()
    }

    fn run_random_faults(&mut self) -> Result<(), InvariantViolation> {
        self.note("safety phase");
        let scale = self.scenario.scale;
        self.begin_workload(scale.operations, self.now + scale.duration);
        self.begin_faults(scale.duration.mul_f64(0.9));
        self.begin_layout_changes(scale.duration.mul_f64(0.9));
        self.begin_plan_commands(scale.duration.mul_f64(0.9));
        self.run_for(scale.duration + REQUEST_TIMEOUT)
    }

    fn run_flood(&mut self, load: FloodLoad) -> Result<(), InvariantViolation> {
        self.note("calm");
        let calm = self.run_load(load.calm, CALM)?;
        self.note("flood");
        let flood = self.run_load(load.flood, FLOOD)?;
        self.note("after the flood");
        // A value of 100 KiB takes such a disk a tenth of a second, the longest that a write may
        // wait for admission. A few of them at a time would look like the rest of a flood.
        self.scenario.value_bytes_max = self.scenario.value_bytes_max.min(AFTER_FLOOD_BYTES_MAX);
        let after = self.run_load(load.after, AFTER_FLOOD)?;
        self.run_for(REQUEST_TIMEOUT * 2)?;
        floods::check(
            self.judge.history.iter(),
            &floods::FloodPhases { deadline: REQUEST_TIMEOUT, calm, flood, after },
        )
    }

    /// Submits `a_second` commands per second for `lasts`. Returns the period.
    fn run_load(&mut self, a_second: u64, lasts: Duration) -> Result<Range<Nanos>, InvariantViolation> {
        let (from, until) = (self.now, self.now + lasts);
        self.begin_commands(a_second * lasts.as_secs(), until);
        self.run_for(lasts)?;
        self.end_workload();
        Ok(from..until)
    }

    fn note(&self, phase: &str) {
        self.trace.note(self.now, || format!("=== {phase}"));
    }

    pub(crate) fn run_for(&mut self, duration: Duration) -> Result<(), InvariantViolation> {
        let end = self.now + duration;
        self.run_until(end);
        self.judge.violation.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn wait_until(
        &mut self,
        otherwise: &str,
        within: Duration,
        holds: impl Fn(&mut Self) -> bool,
    ) -> Result<(), InvariantViolation> {
        let end = self.now + within;
        while !holds(self) {
            if self.now >= end {
                return Err(InvariantViolation::new(
                    "liveness",
                    format!("{otherwise}, after {within:?}: {}", self.state()),
                ));
            }
            self.run_for(POLL_EVERY)?;
        }
        Ok(())
    }

    /// State of all nodes, for messages of violations.
    fn state(&mut self) -> String {
        let nodes: Vec<String> = (self.hosts_of_nodes())
            .map(|node| match &self.host(node).process {
                Some(process) => format!("{node:?}: {:?}", process.node.status()),
                None => format!("{node:?}: down"),
            })
            .collect();
        nodes.join("; ")
    }

    pub(crate) fn are_all_serving(&mut self) -> bool {
        self.nodes().all(|node| {
            let process = self.host(node).process.as_ref();
            process.is_some_and(|process| process.node.is_ready() && !process.is_draining)
        })
    }

    /// Whether no process of a removed node runs, unless it knows no address of a member.
    fn have_removed_ended(&mut self) -> bool {
        let Some(newest) = self.newest_record().cloned() else { return true };
        self.hosts_of_nodes().all(|host| {
            let process = self.hosts[host.as_usize()].process.as_ref();
            process.is_none_or(|process| {
                let knows = |slot: NodeIndex| {
                    let name = &process.member.layout.names()[slot.as_usize()];
                    newest.member(slot).is_some_and(|member| {
                        member.state != MemberState::Dead && host_of(&member.url) == host_of(name)
                    })
                };
                !newest.has_removed(process.member.tag) || !process.member.layout.nodes().any(knows)
            })
        })
    }

    /// Waits until the clocks come near the newest version: a version far ahead is refused by other
    /// nodes until then.
    fn let_clocks_catch_up(&mut self) -> Result<(), InvariantViolation> {
        self.wait_for_clock(AHEAD_MAX)
    }

    /// Waits until all versions are in the past. A pass of anti-entropy leaves out versions later
    /// than its own beginning, which may still be in flight. So the passes that make all replicas
    /// equal begin after the newest version.
    fn let_versions_pass(&mut self) -> Result<(), InvariantViolation> {
        self.wait_for_clock(Duration::ZERO)
    }

    /// Waits until the newest version, and the greatest time that a node has shown, is at most
    /// `ahead` in the future.
    fn wait_for_clock(&mut self, ahead: Duration) -> Result<(), InvariantViolation> {
        let first = NodeIndex(0);
        let latest = self.judge.latest_wall.max(self.judge.issued_cells.latest());
        while self.show_clocks(first).wall.saturating_add(ahead) < latest {
            self.run_for(POLL_EVERY)?;
        }
        Ok(())
    }

    /// Whether every node can read all its keys, and keys that it lacks. These reads find the
    /// damage.
    pub(crate) fn is_healed(&mut self) -> bool {
        self.nodes().all(|node| {
            // A node whose own default makes it the only replica does not heal: see
            // `cluster::node::healing`.
            let has_others = self.scenario.default_from_of(node.as_usize()) > 1;
            let process = self.host(node).process.as_ref();
            process.is_some_and(|process| {
                can_read_all(process) && (!has_others || process.store.damage().is_empty())
            })
        })
    }

    /// Whether no node refuses a key because of a cell whose version was in the future.
    fn has_no_refused_keys(&mut self) -> bool {
        self.nodes().all(|node| {
            let process = self.host(node).process.as_ref();
            process.is_some_and(|process| process.node.status().refused_keys == 0)
        })
    }

    fn has_no_hints(&mut self) -> bool {
        self.nodes().all(|node| {
            let process = self.host(node).process.as_ref();
            process.is_some_and(|process| {
                process.member.layout.nodes().all(|target| process.member.hints.held(target).hints == 0)
            })
        })
    }

    /// Cell of the key that each member holds, by slot. A node that fails to read after the heal
    /// phase violates liveness.
    fn held(&mut self, key: &Key) -> Result<HeldCells, InvariantViolation> {
        (self.nodes())
            .map(|node| {
                let member = self.member_of(node);
                let process = self.host(node).process.as_ref();
                let response = process.map(|process| {
                    process.read(&StoreRequest::Replica(ReplicaRequest::Read { key: key.clone() }))
                });
                match response {
                    Some(StoreResponse::Replica(ReplicaResponse::Cell(cell))) => {
                        Ok((member, cell.map(|cell| cell.meta)))
                    }
                    None => Ok((member, None)),
                    Some(response) => Err(InvariantViolation::new(
                        "liveness",
                        format!("there is no fault, and {node:?} reads {key:?} as {response:?}"),
                    )),
                }
            })
            .collect()
    }

    fn held_of_all(&mut self) -> Result<BTreeMap<Key, HeldCells>, InvariantViolation> {
        let keys: Vec<Key> = self.judge.issued_cells.keys().cloned().collect();
        keys.into_iter().map(|key| Ok((key.clone(), self.held(&key)?))).collect()
    }

    /// Time up to which dead cells may be purged; `None` if nothing may be purged in this run.
    fn purged(&self) -> Option<WallTime> {
        let first_may_die = EPOCH.saturating_sub(BEHIND_MAX);
        let is_possible = first_may_die.saturating_add(self.scenario.grace) <= self.judge.latest_wall;
        is_possible.then_some(self.judge.latest_wall)
    }

    fn check_handed_over(&mut self) -> Result<(), InvariantViolation> {
        if self.judge.hints_dropped > 0 || self.nemesis.disks_lost + self.nemesis.tables_damaged > 0 {
            return Ok(());
        }
        self.check_handed_over_of(|judge, write| {
            // A node that is removed takes its hints with it.
            !judge.was_removed(write.node) && judge.has_outlived(write.node, write, HINTS_DURABLE_WITHIN)
        })
    }

    /// Waits until each write is on its replicas, including writes whose hints were dropped. The
    /// nodes note durably that a repair is pending, if all of them ran for a moment after the
    /// write.
    fn wait_for_pending_repairs(&mut self) -> Result<(), InvariantViolation> {
        if self.nemesis.disks_lost + self.nemesis.tables_damaged > 0 {
            return Ok(());
        }
        let nodes: Vec<NodeIndex> = self.nodes().collect();
        let is_owed = |judge: &Judge, write: &ClientOperation| {
            !judge.was_removed(write.node)
                && nodes.iter().all(|node| judge.has_outlived(*node, write, PENDING_NOTED_WITHIN))
        };
        let end = self.now + PENDING_REPAIRS_WITHIN;
        while let Err(violation) = self.check_handed_over_of(is_owed) {
            if self.now >= end {
                return Err(InvariantViolation::new("pending_repairs", violation.detail));
            }
            self.run_for(POLL_EVERY)?;
        }
        Ok(())
    }

    fn check_handed_over_of(
        &mut self,
        counts: impl Fn(&Judge, &ClientOperation) -> bool,
    ) -> Result<(), InvariantViolation> {
        let (held, layout) = (self.held_of_all()?, self.layout());
        for write in self.judge.history.iter().filter(|write| counts(&self.judge, write)) {
            if let Some(held) = held.get(&write.key) {
                handed_over::check(&layout, write, held, &self.judge.issued_cells, self.purged())?;
            }
        }
        Ok(())
    }

    fn repair_all(&mut self) {
        for node in self.nodes() {
            if let Some(endpoint) = self.endpoint(node, Requester::Node) {
                self.step(Endpoint { ..endpoint }, ProcessInput::Repair);
            }
        }
    }

    fn use_all_quorums(&mut self) -> Result<(), InvariantViolation> {
        let nodes = self.layout().len();
        let quorums: Vec<(u8, u8)> =
            (1..=nodes).flat_map(|from| (1..=from).map(move |ack| (ack, from))).collect();
        // Each of them at each node of a large cluster would leave tombstones for so long a time
        // that a scan of all replicas takes longer than a page may.
        let (step, spread) = if nodes > EVERY_QUORUM_MAX { (usize::from(nodes), 1) } else { (1, 0) };
        for (index, node) in self.nodes().enumerate() {
            for &(ack, from) in quorums.iter().skip(index * spread).step_by(step) {
                let key =
                    Key::new(format!("alive-{}-{ack}-{from}", node.0).into()).expect("short and not empty");
                for kind in [CommandKind::Put { ttl: None }, CommandKind::Get, CommandKind::Delete] {
                    self.must_succeed(node, kind, &key, (ack, from))?;
                }
            }
        }
        Ok(())
    }

    fn read_all_keys(&mut self) -> Result<(), InvariantViolation> {
        let nodes: Vec<NodeIndex> = self.nodes().collect();
        let count = nodes.len() as u8;
        let keys: Vec<Key> = self.judge.issued_cells.keys().cloned().collect();
        for (key, node) in keys.into_iter().zip(nodes.iter().cycle().skip(1)) {
            self.must_succeed(*node, CommandKind::Get, &key, (count, count))?;
        }
        Ok(())
    }

    fn must_succeed(
        &mut self,
        node: NodeIndex,
        kind: CommandKind,
        key: &Key,
        of: (u8, u8),
    ) -> Result<(), InvariantViolation> {
        const STEP: Duration = Duration::from_millis(5);
        let mut last = String::new();
        for _ in 0..TRIES {
            let id = self.submit_command(node, kind, key.clone(), quorum(of.0, of.1, self.scenario.nodes));
            while self.outcome_of(id).is_none() {
                self.run_for(STEP)?;
            }
            match self.outcome_of(id) {
                Some(ClientOutcome::Failed { reason, .. }) => last = reason,
                Some(ClientOutcome::NoReply) => last = "no reply".to_owned(),
                _ => return Ok(()),
            }
            self.run_for(REQUEST_TIMEOUT)?;
        }
        let (ack, from) = of;
        let detail =
            format!("{kind:?} of {key:?} with {ack}/{from} at {node:?} although there is no fault: {last}");
        Err(InvariantViolation::new("liveness", detail))
    }

    /// Scans all keys at every node, with cluster scope and with node scope.
    fn scan_all(&mut self) -> Result<(), InvariantViolation> {
        let (nodes, majority, from) =
            (self.layout().len(), self.scenario.majority(), self.scenario.default_from);
        for node in self.nodes() {
            let held = self.held_of_all()?;
            let member = self.member_of(node);
            let of_node = held.iter().filter_map(|(key, held)| Some((key.clone(), at_node(held, member)?)));
            self.must_scan(node, ScanScope::Node, Some(&of_node.collect()))?;
            let of_all = held.iter().filter_map(|(key, held)| Some((key.clone(), newest(held)?)));
            let all = ScanScope::Cluster(quorum(nodes, nodes, nodes));
            self.must_scan(node, all, Some(&of_all.collect()))?;
            self.must_scan(node, ScanScope::Cluster(quorum(majority, from, nodes)), None)?;
        }
        Ok(())
    }

    fn must_scan(
        &mut self,
        node: NodeIndex,
        scope: ScanScope,
        held: Option<&BTreeMap<Key, CellMeta>>,
    ) -> Result<(), InvariantViolation> {
        const STEP: Duration = Duration::from_millis(5);
        let scan = Scan { range: KeyRange::default(), limit: None, scope };
        let mut last = "the node does not serve".to_owned();
        for _ in 0..TRIES {
            if let Some((id, _)) = self.begin_scan(node, scan.clone()) {
                while self.judge.scans.is_open(id) {
                    self.run_for(STEP)?;
                }
                let record = self.judge.scans.get(id);
                if let Some((_, ScanEnd::Complete)) = record.ended {
                    return held
                        .map_or(Ok(()), |held| complete_ranges::check(record, held, self.judge.latest_wall));
                }
                last = format!("{:?}", record.ended);
            }
            self.run_for(REQUEST_TIMEOUT)?;
        }
        Err(InvariantViolation::new(
            "liveness",
            format!("{scan:?} at {node:?} although there is no fault: {last}"),
        ))
    }

    fn has_no_snapshots(&mut self) -> bool {
        self.nodes().all(|node| {
            let process = self.host(node).process.as_ref();
            process.is_some_and(|process| process.store.snapshot_count() == 0)
        })
    }

    fn outcome_of(&self, id: RequestId) -> Option<ClientOutcome> {
        self.judge.history.get(id).and_then(|operation| operation.outcome.clone()).map(|(_, outcome)| outcome)
    }

    /// Time until all replicas agree without a requested repair. Each node must have its next round
    /// of anti-entropy, by a clock that may have been ahead when the last round began.
    fn converged_unforced_within(&mut self) -> Duration {
        let wall = self.show_clocks(NodeIndex(0)).wall;
        let latest = self.judge.latest_wall.micros_since_unix_epoch();
        let ahead = Duration::from_micros(latest.saturating_sub(wall.micros_since_unix_epoch()));
        self.scenario.grace / 3 + ahead + ROUND_WITHIN
    }

    fn wait_until_converged(&mut self, within: Duration) -> Result<(), InvariantViolation> {
        let end = self.now + within;
        let keys: Vec<Key> = self.judge.issued_cells.keys().cloned().collect();
        // Waits for one key after the other: checking all keys each time takes long.
        loop {
            for key in &keys {
                while let Err(violation) = self.check_converged(key) {
                    if self.now >= end {
                        return Err(violation);
                    }
                    self.run_for(POLL_EVERY)?;
                }
            }
            if keys.iter().all(|key| self.check_converged(key).is_ok()) {
                return Ok(());
            }
        }
    }

    fn check_converged(&mut self, key: &Key) -> Result<(), InvariantViolation> {
        let held = self.held(key)?;
        convergence::check(&self.layout(), key, &held, self.scenario.grace, self.judge.latest_wall)
    }

    fn check_durability(&mut self) -> Result<(), InvariantViolation> {
        let held = self.held_of_all()?;
        for (key, held) in &held {
            for meta in held.iter().filter_map(|(_, meta)| meta.as_ref()) {
                self.judge.check_held_version(key, meta.version)?;
            }
        }
        let counts = |write: &&ClientOperation| {
            self.judge.facts.survives(write.quorum) && !self.judge.is_undone(write)
        };
        for write in self.judge.history.iter().filter(counts) {
            if let Some(held) = held.get(&write.key) {
                durability::check(write, held, &self.judge.issued_cells, self.purged())?;
            }
        }
        Ok(())
    }
}
