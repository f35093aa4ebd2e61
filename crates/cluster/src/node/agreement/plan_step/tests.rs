//! The driver takes each transition exactly when its statements are made, and carries random
//! changes to their end through deaths, lost disks and commands.

use super::super::next_record::{HeardMember, next_record};
use super::*;
use crate::layout::NODES_MAX;
use crate::{
    ClusterOrigin, FEATURE_LEVEL_PLANS, JoiningNode, PlacementChange, PlacementPlan, PlanStatements,
    RunningPlan, SwapAttempt,
};
use std::collections::BTreeSet;
use stdx::{NodeTag, Rng};

const LOSER: NodeIndex = NodeIndex(1);
const GAINER: NodeIndex = NodeIndex(3);

fn url(node: usize) -> String {
    format!("http://n{node}:1")
}

/// A record of the level of plans with all ids, in epoch 2.
fn cluster(nodes: usize, partitions: u32, default_from: u8) -> LayoutRecord {
    let origin = ClusterOrigin {
        nodes: (0..nodes).map(url).collect(),
        partitions,
        hash_version: 1,
        default_from,
        tag: NodeTag(7),
    };
    let mut record = LayoutRecord::first(origin).expect("a small cluster").next().expect("epoch 2");
    record.feature_level = FEATURE_LEVEL_PLANS;
    for member in &mut record.members {
        member.node_id = Some(NodeTag(100 + u64::from(member.slot.0)));
    }
    record
}

fn heard_as(id: NodeTag, is_settled: bool, holds_adopted: bool, statements: PlanStatements) -> HeardMember {
    HeardMember {
        id,
        is_settled,
        holds_adopted,
        has_votes: true,
        feature_level_max: FEATURE_LEVEL_PLANS,
        statements,
    }
}

/// The members as they are heard that have fenced up to these epochs and hold complete copies.
fn heard(
    record: &LayoutRecord,
    fenced: impl Fn(NodeIndex) -> Option<LayoutEpoch>,
    complete: &BTreeSet<SwapAttempt>,
) -> HeardCluster {
    let hear = |member: &LayoutMember| {
        let id = member.node_id?;
        let copies = complete.iter().copied().filter(|attempt| attempt.gainer == id).collect();
        let complete = record.swaps_with_copies(&copies);
        let statements =
            PlanStatements { fenced: fenced(member.slot), complete, ..PlanStatements::default() };
        Some((member.slot, heard_as(id, true, true, statements)))
    };
    let members: BTreeMap<_, _> = record.members.iter().filter_map(hear).collect();
    let linked = members.values().map(|its| its.id).collect();
    HeardCluster { members, linked, ..HeardCluster::default() }
}

/// A record in which the swap of loser and gainer is in this phase, in partition 0 of four nodes.
/// The loser is second and the gainer last, so three replicas change.
fn in_phase(phase: SwapPhase, dead: &[NodeIndex], is_cancelled: bool) -> LayoutRecord {
    let mut record = cluster(4, 1, 3);
    record.lists = [0, 1, 2, 3].map(NodeIndex).to_vec();
    let begin = record.next().expect("a small epoch");
    record = LayoutRecord {
        plan: Some(RunningPlan {
            target: [0, 3, 2].map(NodeIndex).to_vec(),
            ..RunningPlan::new(begin.epoch)
        }),
        ..begin
    };
    let pair = (LOSER, GAINER);
    record.begin_swap(pair, vec![PartitionId(0)]);
    let phases: &[SwapPhase] = match phase {
        SwapPhase::Prepare => &[],
        SwapPhase::ReadNew => &[SwapPhase::ReadNew],
        SwapPhase::Back => &[SwapPhase::ReadNew, SwapPhase::Back],
        SwapPhase::New => &[SwapPhase::ReadNew, SwapPhase::New],
    };
    for phase in phases {
        record = record.next().expect("a small epoch");
        record.enter_phase(pair, Some(*phase));
    }
    if !dead.is_empty() {
        record = record.next().expect("a small epoch");
        record.declare_dead(dead.iter().copied().collect());
    }
    if is_cancelled {
        record = record.next().expect("a small epoch");
        record.plan.as_mut().expect("it has a plan").target.clear();
    }
    assert_eq!(record.check(), Ok(()));
    record
}

/// Every phase, for every set of dead members of the pair, and for every set of members that have
/// fenced the newest change. With and without a complete copy and a cancellation.
#[test]
fn each_transition_waits_for_its_statements_and_for_nothing_else() {
    let phases = [SwapPhase::Prepare, SwapPhase::ReadNew, SwapPhase::Back, SwapPhase::New];
    let mut cases = 0;
    for phase in phases {
        for dead in [&[][..], &[LOSER], &[GAINER], &[LOSER, GAINER]] {
            for is_cancelled in [false, true] {
                let record = in_phase(phase, dead, is_cancelled);
                // A death of the gainer has taken the swap along.
                if record.swaps().first().is_none_or(|swap| swap.phase != phase) {
                    continue;
                }
                for bits in 0..32_u8 {
                    assert_transition(&record, dead, bits, is_cancelled);
                    cases += 1;
                }
            }
        }
    }
    assert!(cases > 500, "{cases}");
}

fn assert_transition(record: &LayoutRecord, dead: &[NodeIndex], bits: u8, is_cancelled: bool) {
    let swap = &record.swaps()[0];
    let has_fenced = |slot: NodeIndex| bits & 1 << slot.0 != 0;
    let is_dead = |slot| dead.contains(&slot);
    let newest = record.changed[0];
    let before = LayoutEpoch(swap.since.0 - 1);
    let fenced = |slot| Some(if has_fenced(slot) { newest } else { before });
    let is_complete = bits & 1 << 4 != 0;
    let attempt = record.attempt_of(swap).expect("the gainer has an id");
    let complete = is_complete.then_some(attempt).into_iter().collect();
    // Two of the three replicas of a key are needed in place of a dead one: both that are left.
    let others = has_fenced(NodeIndex(0)) && has_fenced(NodeIndex(2));
    let serves_no_more = |slot| if is_dead(slot) { others } else { has_fenced(slot) };
    let expected = match swap.phase {
        SwapPhase::Prepare if is_cancelled => Some(None),
        SwapPhase::ReadNew if is_cancelled => Some(Some(SwapPhase::Back)),
        SwapPhase::Prepare => (is_complete && serves_no_more(LOSER)).then_some(Some(SwapPhase::ReadNew)),
        SwapPhase::ReadNew => serves_no_more(LOSER).then_some(Some(SwapPhase::New)),
        SwapPhase::Back => serves_no_more(GAINER).then_some(None),
        SwapPhase::New => (is_dead(LOSER) || has_fenced(LOSER)).then_some(None),
    };
    let heard = heard(record, fenced, &complete);
    let next = next_plan_step(record, &heard);
    let phase = next.as_ref().map(|next| next.swaps().first().map(|swap| swap.phase));
    let case = format!("{} after {dead:?} died, statements {bits:05b}", swap.phase.name());
    assert_eq!(phase, expected, "{case}");
    if let Some(next) = next {
        assert_eq!(next.verify(record), Ok(()), "{case}");
    }
}

#[test]
fn statements_of_another_node_or_another_record_do_not_count() {
    let record = in_phase(SwapPhase::ReadNew, &[], false);
    let good = heard(&record, |_| Some(record.epoch), &BTreeSet::new());
    assert!(next_plan_step(&record, &good).is_some());
    let mut stale = good.clone();
    stale.members.get_mut(&LOSER).expect("it is heard").holds_adopted = false;
    assert_eq!(next_plan_step(&record, &stale), None, "it holds another record");
    let mut other = good.clone();
    other.members.get_mut(&LOSER).expect("it is heard").id = NodeTag(9);
    assert_eq!(next_plan_step(&record, &other), None, "it is another node");
    let mut absent = good;
    absent.members.remove(&LOSER);
    assert_eq!(next_plan_step(&record, &absent), None, "it is not heard");
}

#[test]
fn a_copy_of_an_earlier_attempt_does_not_count() {
    let record = in_phase(SwapPhase::Prepare, &[], false);
    let attempt = record.attempt_of(&record.swaps()[0]).expect("the gainer has an id");
    let others = [
        SwapAttempt { attempt: LayoutEpoch(attempt.attempt.0 - 1), ..attempt },
        SwapAttempt { plan: LayoutEpoch(attempt.plan.0 - 1), ..attempt },
        SwapAttempt { loser: Some(NodeTag(9)), ..attempt },
        SwapAttempt { gainer: NodeTag(9), ..attempt },
    ];
    for other in others {
        let heard = heard(&record, |_| Some(record.epoch), &[other].into());
        assert_eq!(next_plan_step(&record, &heard), None, "{other:?}");
    }
}

#[test]
fn a_paused_plan_begins_no_swap_and_finishes_those_that_run() {
    let mut record = in_phase(SwapPhase::ReadNew, &[], false);
    record.plan.as_mut().expect("it has a plan").is_paused = true;
    let all = |record: &LayoutRecord| heard(record, |_| Some(record.epoch), &BTreeSet::new());
    let new = next_plan_step(&record, &all(&record)).expect("NEW");
    assert_eq!(new.swaps()[0].phase, SwapPhase::New);
    // The target of the paused plan asks for another swap.
    let mut old = new.next().expect("a small epoch");
    old.plan.as_mut().expect("it has a plan").target = [3, 0, 2].map(NodeIndex).to_vec();
    let ended = next_plan_step(&old, &all(&old)).expect("the end of the swap");
    assert!(ended.swaps().is_empty());
    assert_eq!(next_plan_step(&ended, &all(&ended)), None);
    let mut resumed = ended;
    resumed.plan.as_mut().expect("it has a plan").is_paused = false;
    let begun = next_plan_step(&resumed, &all(&resumed)).expect("a swap");
    assert_eq!(begun.swaps()[0].phase, SwapPhase::Prepare);
}

#[test]
fn no_swap_begins_with_a_member_that_is_rebuilt_or_not_heard() {
    let mut record = cluster(4, 1, 3);
    record.lists = [0, 1, 2, 3].map(NodeIndex).to_vec();
    let target = [0, 3, 2].map(NodeIndex).to_vec();
    record.plan = Some(RunningPlan { target, ..RunningPlan::new(record.epoch) });
    let good = heard(&record, |_| None, &BTreeSet::new());
    assert!(next_plan_step(&record, &good).is_some());
    for slot in [0, 1, 2, 3].map(NodeIndex) {
        let mut rebuilt = good.clone();
        rebuilt.members.get_mut(&slot).expect("it is heard").is_settled = false;
        assert_eq!(next_plan_step(&record, &rebuilt), None, "{slot:?} is rebuilt");
        let mut absent = good.clone();
        absent.members.remove(&slot);
        let is_needed = [LOSER, GAINER].contains(&slot);
        assert_eq!(next_plan_step(&record, &absent).is_none(), is_needed, "{slot:?} is not heard");
    }
}

#[test]
fn no_swap_begins_while_its_gainer_purges() {
    let mut record = cluster(4, 1, 3);
    record.lists = [0, 1, 2, 3].map(NodeIndex).to_vec();
    let target = [0, 3, 2].map(NodeIndex).to_vec();
    record.plan = Some(RunningPlan { target, ..RunningPlan::new(record.epoch) });
    for slot in [0, 1, 2, 3].map(NodeIndex) {
        let mut purging = heard(&record, |_| None, &BTreeSet::new());
        purging.members.get_mut(&slot).expect("it is heard").statements.is_purging = true;
        assert_eq!(next_plan_step(&record, &purging).is_none(), slot == GAINER, "{slot:?} purges");
    }
}

#[test]
fn the_reason_why_a_plan_begins_no_swap_and_does_not_end_is_told() {
    let mut record = cluster(4, 1, 3);
    record.lists = [0, 1, 2, 3].map(NodeIndex).to_vec();
    let target = [0, 3, 2].map(NodeIndex).to_vec();
    let plan = RunningPlan { target, ..RunningPlan::new(record.epoch) };
    record.plan = Some(plan.clone());
    let good = heard(&record, |_| None, &BTreeSet::new());
    assert_eq!(plan_wait(&record, &good), None, "a swap can begin");
    for node in [LOSER, GAINER] {
        let mut unheard = good.clone();
        unheard.members.remove(&node);
        assert_eq!(plan_wait(&record, &unheard), Some(PlanWait::Unheard { node }));
        let mut older = good.clone();
        older.members.get_mut(&node).expect("it is heard").holds_adopted = false;
        assert_eq!(plan_wait(&record, &older), Some(PlanWait::Unheard { node }));
    }
    for node in [0, 1, 2, 3].map(NodeIndex) {
        let mut rebuilt = good.clone();
        rebuilt.members.get_mut(&node).expect("it is heard").is_settled = false;
        assert_eq!(plan_wait(&record, &rebuilt), Some(PlanWait::Unsettled { node }));
    }
    let mut purging = good.clone();
    purging.members.get_mut(&GAINER).expect("it is heard").statements.is_purging = true;
    assert_eq!(plan_wait(&record, &purging), Some(PlanWait::Purge { node: GAINER }));
    let mut dead = record.clone();
    dead.members[GAINER.as_usize()].state = MemberState::Dead;
    assert_eq!(plan_wait(&dead, &good), Some(PlanWait::DeadHolder { node: GAINER }));
    let mut paused = record.clone();
    paused.plan = Some(RunningPlan { is_paused: true, ..plan.clone() });
    assert_eq!(plan_wait(&paused, &good), Some(PlanWait::Paused));
    let mut cancelled = record.clone();
    cancelled.plan = Some(RunningPlan { target: Vec::new(), ..plan.clone() });
    assert_eq!(plan_wait(&cancelled, &good), None);
    let mut reached = record;
    reached.lists = [0, 3, 2, 1].map(NodeIndex).to_vec();
    assert_eq!(plan_wait(&reached, &good), None, "it ends");
    reached.members[LOSER.as_usize()].state = MemberState::Leaving;
    reached.voters = vec![LOSER];
    assert_eq!(plan_wait(&reached, &good), Some(PlanWait::LeavingVoter { node: LOSER }));
    let swapping = in_phase(SwapPhase::Prepare, &[], false);
    assert_eq!(plan_wait(&swapping, &HeardCluster::default()), None, "its swap waits");
}

#[test]
fn the_number_of_swaps_in_flight_is_bounded() {
    for (joins, nodes) in [(1, 12), (12, 12), (30, 30)] {
        let mut record = cluster(nodes, 256, 3);
        for node in nodes..nodes + joins {
            let joining = JoiningNode {
                id: NodeTag(500 + node as u64),
                url: url(node),
                zone: String::new(),
                weight: 1,
                feature_level_max: FEATURE_LEVEL_PLANS,
                member_url: "http://a:1".to_owned(),
            };
            record = record.with_joined(joining).expect("a new node");
        }
        let changes: Vec<_> =
            (nodes..nodes + joins).map(|node| PlacementChange::Add { url: url(node) }).collect();
        let plan = PlacementPlan::new(&record, &changes).expect("a plan");
        record = record.with_plan(&plan).expect("a change");
        let begun = next_plan_step(&record, &heard(&record, |_| None, &BTreeSet::new())).expect("swaps");
        let count =
            |is_meant: &dyn Fn(&PairSwap) -> bool| begun.swaps().iter().filter(|it| is_meant(it)).count();
        assert!(begun.swaps().len() <= SWAPS_IN_FLIGHT_MAX);
        for slot in (0..NODES_MAX as u8).map(NodeIndex) {
            assert!(count(&|swap| swap.loser == slot) <= SWAPS_OF_NODE_MAX);
            assert!(count(&|swap| swap.gainer == slot) <= SWAPS_OF_NODE_MAX);
        }
        match joins {
            1 => assert_eq!(count(&|swap| swap.gainer == NodeIndex(12)), SWAPS_OF_NODE_MAX),
            _ => assert_eq!(begun.swaps().len(), SWAPS_IN_FLIGHT_MAX, "{joins} join {nodes}"),
        }
    }
}

/// The true state of a node in the random test, whether or not a driver knows it.
#[derive(Clone, Debug)]
struct TrueNode {
    id: NodeTag,
    is_down: bool,
    is_settled: bool,
    /// Index of the newest record that it holds.
    holds: usize,
    fenced: Option<LayoutEpoch>,
    complete: BTreeSet<SwapAttempt>,
}

/// A cluster with all records that were decided.
struct PlanWorld {
    rng: Rng,
    records: Vec<LayoutRecord>,
    nodes: BTreeMap<NodeIndex, TrueNode>,
    next_id: u64,
}

impl PlanWorld {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = 3 + rng.below(4) as usize;
        let default_from = 1 + rng.below(3) as u8;
        let record = cluster(nodes, 16, default_from);
        let mut world = Self { rng, records: vec![record], nodes: BTreeMap::new(), next_id: 1_000 };
        world.add_nodes();
        world
    }

    fn newest(&self) -> &LayoutRecord {
        self.records.last().expect("there is one")
    }

    /// Starts the nodes of members that have none.
    fn add_nodes(&mut self) {
        let holds = self.records.len() - 1;
        for member in self.newest().members.clone() {
            let id = member.node_id.expect("members have ids");
            self.nodes.entry(member.slot).or_insert(TrueNode {
                id,
                is_down: false,
                is_settled: true,
                holds,
                fenced: None,
                complete: BTreeSet::new(),
            });
        }
    }

    fn decide(&mut self, record: LayoutRecord) {
        assert_eq!(record.verify(self.newest()), Ok(()), "epoch {}", record.epoch);
        self.records.push(record);
        let members = self.newest().slots();
        self.nodes.retain(|slot, _| members.contains(*slot));
        self.add_nodes();
    }

    fn pick(&mut self) -> NodeIndex {
        let slots: Vec<_> = self.nodes.keys().copied().collect();
        slots[self.rng.below(slots.len() as u64) as usize]
    }

    fn is_dead(&self, slot: NodeIndex) -> bool {
        self.newest().member(slot).is_none_or(|member| member.state == MemberState::Dead)
    }

    /// The members as a voter may hear them: some of them, and some with older heartbeats.
    fn hear_some(&mut self) -> HeardCluster {
        let mut heard = HeardCluster::default();
        let newest = self.records.len() - 1;
        for (slot, node) in self.nodes.clone() {
            if node.is_down || self.is_dead(slot) || self.rng.chance(0.2) {
                if self.rng.chance(0.1) {
                    heard.silent.insert(slot);
                }
                continue;
            }
            let record = &self.records[node.holds];
            let statements = PlanStatements {
                fenced: node.fenced,
                complete: record.swaps_with_copies(&node.complete),
                is_purging: self.rng.chance(0.2),
                copying: None,
            };
            let holds_adopted = node.holds == newest;
            let (id, is_settled) = (node.id, node.is_settled);
            heard.members.insert(slot, heard_as(id, is_settled, holds_adopted, statements));
            heard.linked.insert(id);
        }
        heard
    }

    fn has_fenced(&self, slot: NodeIndex, epoch: LayoutEpoch) -> bool {
        let named = self.newest().member(slot).and_then(|member| member.node_id);
        let node = self.nodes.get(&slot).filter(|node| named == Some(node.id));
        node.is_some_and(|node| node.fenced.is_some_and(|fenced| fenced >= epoch))
    }

    /// Whether enough others have fenced the newest change, by the rule of the model: for the
    /// default number of replicas.
    fn is_fenced_by_others(&self, record: &LayoutRecord, swap: &PairSwap) -> bool {
        let from = usize::from(record.default_from);
        swap.partitions.iter().all(|partition| {
            let list = record.preference_list(*partition);
            let changes = list[..from].contains(&swap.loser) && !list[..from].contains(&swap.gainer);
            let kept = list[..from].iter().filter(|slot| **slot != swap.loser && !self.is_dead(**slot));
            let epoch = record.changed[partition.0 as usize];
            let (mut left, mut fenced) = (0, 0);
            for slot in kept {
                left += 1;
                fenced += u8::from(self.has_fenced(*slot, epoch));
            }
            !changes || fenced >= sources_needed(from as u8).min(left)
        })
    }

    /// Asserts that the true state of the nodes permits each transition of a step of the driver.
    fn assert_permitted(&self, step: &LayoutRecord, heard: &HeardCluster) {
        let parent = self.newest();
        let is_cancelled = parent.plan.as_ref().is_some_and(|plan| plan.target.is_empty());
        for former in parent.swaps() {
            let next = step.swaps().iter().find(|swap| swap.pair() == former.pair());
            let serves_no_more = |slot: NodeIndex| match self.is_dead(slot) {
                true => self.is_fenced_by_others(parent, former),
                false => self.has_fenced(slot, former.since),
            };
            let is_complete = || {
                let attempt = parent.attempt_of(former).expect("a gainer has an id");
                self.nodes[&former.gainer].complete.contains(&attempt)
            };
            let is_permitted = match (former.phase, next.map(|swap| swap.phase)) {
                (former, Some(next)) if former == next => true,
                (SwapPhase::Prepare, Some(SwapPhase::ReadNew)) => {
                    is_complete() && serves_no_more(former.loser)
                }
                (SwapPhase::Prepare, None) => is_cancelled || heard.silent.contains(former.gainer),
                (SwapPhase::ReadNew, Some(SwapPhase::Back)) => is_cancelled,
                (SwapPhase::ReadNew, Some(SwapPhase::New)) => serves_no_more(former.loser),
                (SwapPhase::Back, None) => serves_no_more(former.gainer),
                (SwapPhase::New, None) => true,
                _ => false,
            };
            assert!(is_permitted, "{former:?} -> {next:?}");
        }
        let begun = step.swaps().iter().filter(|swap| swap.attempt == step.epoch);
        for swap in begun {
            assert!(!self.is_dead(swap.gainer), "a dead node gains nothing");
            assert!(self.nodes[&swap.gainer].is_settled);
        }
    }

    /// Two voters, who hear different members, compute the next step. One of their records is
    /// decided, or none.
    fn step(&mut self) {
        let views = [self.hear_some(), self.hear_some()];
        let newest = self.newest().clone();
        let steps = views.each_ref().map(|heard| next_plan_step(&newest, heard));
        for (step, heard) in
            steps.iter().zip(&views).filter_map(|(step, heard)| Some((step.as_ref()?, heard)))
        {
            assert_eq!(step.verify(&newest), Ok(()), "epoch {}", step.epoch);
            self.assert_permitted(step, heard);
        }
        if let [Some(one), Some(other)] = &steps {
            assert!(other.verify(one).is_err() && one.verify(other).is_err(), "both hold");
        }
        let decided = self.rng.below(2) as usize;
        if let Some(step) = steps.into_iter().nth(decided).flatten() {
            self.decide(step);
        }
    }

    fn learn(&mut self, slot: NodeIndex) {
        let newest = self.records.len() - 1;
        let skipped = self.rng.below(2) as usize;
        let node = self.nodes.get_mut(&slot).expect("a node");
        if !node.is_down && node.holds < newest {
            node.holds = newest.min(node.holds + 1 + skipped);
        }
    }

    fn fence(&mut self, slot: NodeIndex) {
        let node = self.nodes.get_mut(&slot).expect("a node");
        let epoch = self.records[node.holds].epoch;
        let is_named = self.records[node.holds].member(slot).is_some_and(|it| it.node_id == Some(node.id));
        if !node.is_down && is_named {
            node.fenced = node.fenced.max(Some(epoch));
        }
    }

    /// The node copies all that it may copy by the record that it holds.
    fn copy(&mut self, slot: NodeIndex) {
        let node = &self.nodes[&slot];
        let record = self.records[node.holds].clone();
        let may_copy = |swap: &&PairSwap| {
            let is_gainer = swap.gainer == slot && !node.is_down;
            let has_source = match self.is_dead(swap.loser) {
                true => self.is_fenced_by_others(&record, swap),
                false => self.has_fenced(swap.loser, swap.attempt),
            };
            is_gainer && has_source && matches!(swap.phase, SwapPhase::Prepare | SwapPhase::ReadNew)
        };
        let copied = record.swaps().iter().filter(may_copy).filter_map(|swap| record.attempt_of(swap));
        let copied: Vec<_> = copied.filter(|attempt| attempt.gainer == node.id).collect();
        self.nodes.get_mut(&slot).expect("a node").complete.extend(copied);
    }

    /// A disk is lost. The new node is named at once, and rebuilt later.
    fn lose_disk(&mut self, slot: NodeIndex) {
        let id = NodeTag(self.next_id);
        self.next_id += 1;
        let holds = self.records.len() - 1;
        let mut heard = self.hear_some();
        let former = self.nodes[&slot].id;
        let statements = PlanStatements::default();
        heard.linked.remove(&former);
        heard.members.clear();
        heard.members.insert(slot, heard_as(id, false, true, statements));
        let record = next_record(self.newest(), &heard).expect("a new id is named");
        assert!(record.is_former_id(former) && !self.newest().is_former_id(former));
        let (is_down, is_settled) = (false, false);
        let node = TrueNode { id, is_down, is_settled, holds, fenced: None, complete: BTreeSet::new() };
        self.nodes.insert(slot, node);
        self.decide(record);
    }

    fn begin_change(&mut self) {
        let mut record = self.newest().clone();
        let mut changes = Vec::new();
        if self.rng.chance(0.7) && record.members.len() < 8 {
            let id = NodeTag(self.next_id);
            self.next_id += 1;
            let node = JoiningNode {
                id,
                url: url(self.next_id as usize),
                zone: String::new(),
                weight: 1,
                feature_level_max: FEATURE_LEVEL_PLANS,
                member_url: "http://a:1".to_owned(),
            };
            changes.push(PlacementChange::Add { url: node.url.clone() });
            record = record.with_joined(node).expect("a new node");
            self.decide(record.clone());
        }
        if self.rng.chance(0.5) {
            let slot = self.pick();
            let url = record.member(slot).expect("a member").url.clone();
            changes.push(match self.rng.chance(0.5) {
                true => PlacementChange::Remove { url },
                false => PlacementChange::Weight { url, weight: 2 },
            });
        }
        let dead = record.members.iter().filter(|member| member.state == MemberState::Dead);
        changes.extend(dead.map(|member| PlacementChange::Remove { url: member.url.clone() }));
        let Ok(plan) = PlacementPlan::new(&record, &changes) else { return };
        match record.with_plan(&plan) {
            Ok(begun) => self.decide(begun),
            Err(refusal) => panic!("{refusal} after {changes:?}"),
        }
    }

    fn command(&mut self) {
        let draw = self.rng.below(6);
        let newest = self.newest();
        let record = match draw {
            _ if newest.plan.is_none() => return self.begin_change(),
            0 => newest.with_plan_cancelled(),
            1 | 2 => newest.with_plan_paused(),
            _ => newest.with_plan_resumed(),
        };
        if let Ok(record) = record {
            self.decide(record);
        }
    }

    fn event(&mut self) {
        let slot = self.pick();
        match self.rng.below(100) {
            0..30 => self.learn(slot),
            30..50 => self.fence(slot),
            50..65 => self.copy(slot),
            65..90 => self.step(),
            90..93 => self.command(),
            93..95 => {
                let node = self.nodes.get_mut(&slot).expect("a node");
                node.is_down = !node.is_down;
                // A restarted node has fenced nothing.
                node.fenced = None;
            }
            95..97 => self.nodes.get_mut(&slot).expect("a node").is_settled = true,
            97 if self.rng.chance(0.3) && self.nodes.values().all(|node| node.is_settled) => {
                self.lose_disk(slot);
            }
            98 if self.rng.chance(0.2) => {
                let alive = self.nodes.keys().filter(|slot| !self.is_dead(**slot)).count();
                if alive > usize::from(self.newest().default_from)
                    && let Ok(record) = self.newest().with_dead([slot].into_iter().collect())
                {
                    self.decide(record);
                }
            }
            _ => {}
        }
    }

    /// Every node is up and does all that it can, until the plan ends.
    fn finish(&mut self) {
        if let Ok(record) = self.newest().with_plan_resumed() {
            self.decide(record);
        }
        for round in 0.. {
            let newest = self.newest().clone();
            let Some(plan) = &newest.plan else { break };
            let holders: NodeSet = plan.target.iter().copied().collect();
            let is_stuck = holders.iter().any(|slot| self.is_dead(slot));
            if is_stuck {
                let record = newest.with_plan_cancelled().expect("a plan runs");
                self.decide(record);
            }
            assert!(round < 2_000, "the plan does not end: {:?}", newest.swaps());
            let newest = self.records.len() - 1;
            for slot in self.nodes.keys().copied().collect::<Vec<_>>() {
                let node = self.nodes.get_mut(&slot).expect("a node");
                (node.is_down, node.is_settled, node.holds) = (false, true, newest);
                self.fence(slot);
            }
            for slot in self.nodes.keys().copied().collect::<Vec<_>>() {
                self.copy(slot);
            }
            // A leaving voter is replaced before it is removed.
            let voters: Vec<_> = self.newest().voters.clone();
            let leaving = leaving_members(self.newest());
            if let Some(voter) = voters.iter().find(|voter| leaving.contains(**voter)) {
                let mut record = self.newest().next().expect("a small epoch");
                let kept = record.slots().without(leaving).without(voters.iter().copied().collect());
                record.voters.retain(|other| other != voter);
                record.voters.extend(kept.iter().next());
                record.voters.sort_unstable();
                if record.verify(self.newest()).is_ok() {
                    self.decide(record);
                    continue;
                }
            }
            self.step();
        }
    }
}

#[test]
fn random_changes_are_permitted_at_every_step_and_end() {
    let mut ended = 0;
    for seed in 0..400 {
        let mut world = PlanWorld::new(seed);
        for _ in 0..600 {
            world.event();
        }
        let target = world.newest().plan.as_ref().map(|plan| plan.target.clone());
        world.finish();
        let newest = world.newest();
        ended += usize::from(newest.epoch.0 > 20);
        assert!(newest.plan.is_none(), "seed {seed}");
        let is_reached = target.is_some_and(|target| {
            let from = usize::from(newest.default_from);
            let heads = newest.lists.chunks_exact(newest.members.len()).flat_map(|list| &list[..from]);
            target.iter().eq(heads)
        });
        let states = newest.members.iter().map(|member| member.state);
        assert!(!is_reached || states.into_iter().all(|state| state != MemberState::Leaving), "seed {seed}");
    }
    assert!(ended > 200, "{ended} of 400 worlds changed");
}

/// A change without faults: the lists have the holders of the plan, the new member is active, and
/// the leaving one is gone.
#[test]
fn a_change_ends_with_the_placement_of_its_plan() {
    for seed in 0..40 {
        let mut world = PlanWorld::new(seed);
        world.records[0] = cluster(5, 64, 3);
        world.nodes.clear();
        world.add_nodes();
        let joined = JoiningNode {
            id: NodeTag(900),
            url: url(9),
            zone: String::new(),
            weight: 1,
            feature_level_max: FEATURE_LEVEL_PLANS,
            member_url: "http://a:1".to_owned(),
        };
        let record = world.newest().with_joined(joined).expect("a new node");
        world.decide(record);
        let changes =
            [PlacementChange::Add { url: url(9) }, PlacementChange::Remove { url: url(seed as usize % 5) }];
        let plan = PlacementPlan::new(world.newest(), &changes).expect("a plan");
        let begun = world.newest().with_plan(&plan).expect("a change");
        world.decide(begun);
        world.finish();
        let newest = world.newest();
        let heads = newest.lists.chunks_exact(5).flat_map(|list| list[..3].iter().copied());
        assert_eq!(heads.collect::<Vec<_>>(), plan.target(3), "seed {seed}");
        assert_eq!(newest.check_placement(), Ok(()), "seed {seed}");
        assert!(newest.members.iter().all(|member| member.state == MemberState::Active));
        assert!(newest.is_former_id(NodeTag(100 + seed % 5)) && newest.members.len() == 5);
    }
}

/// An event after which the next record of a swap is made.
#[derive(Clone, Copy, Debug)]
enum PlanEvent {
    /// A driver that knows all statements makes a step.
    Step,
    Died(&'static [NodeIndex]),
    LostDisk(NodeIndex),
    Cancelled,
    Paused,
    Resumed,
}

const PLAN_EVENTS: [PlanEvent; 10] = [
    PlanEvent::Step,
    PlanEvent::Died(&[LOSER]),
    PlanEvent::Died(&[GAINER]),
    PlanEvent::Died(&[LOSER, GAINER]),
    PlanEvent::LostDisk(LOSER),
    PlanEvent::LostDisk(GAINER),
    PlanEvent::LostDisk(NodeIndex(0)),
    PlanEvent::Cancelled,
    PlanEvent::Paused,
    PlanEvent::Resumed,
];

/// The next record after an event. `None`: the event is not possible.
fn after_event(record: &LayoutRecord, event: PlanEvent) -> Option<LayoutRecord> {
    match event {
        PlanEvent::Step => {
            let attempts = record.swaps().iter().filter_map(|swap| record.attempt_of(swap)).collect();
            next_plan_step(record, &heard(record, |_| Some(record.epoch), &attempts))
        }
        PlanEvent::Died(slots) => record.with_dead(slots.iter().copied().collect()).ok(),
        PlanEvent::LostDisk(slot) => {
            let mut next = record.next()?;
            next.replace_node(slot, NodeTag(10 * next.epoch.0 + u64::from(slot.0)));
            Some(next)
        }
        PlanEvent::Cancelled => record.with_plan_cancelled().ok(),
        PlanEvent::Paused => record.with_plan_paused().ok(),
        PlanEvent::Resumed => record.with_plan_resumed().ok(),
    }
}

/// Asserts that each sequence of `events` events makes records that follow each other.
fn assert_events(record: &LayoutRecord, events: usize, seen: &mut BTreeSet<String>) {
    seen.insert(record.swaps().first().map_or("old", |swap| swap.phase.name()).to_owned());
    if events == 0 {
        return;
    }
    for event in PLAN_EVENTS {
        if let Some(next) = after_event(record, event) {
            assert_eq!(next.verify(record), Ok(()), "{event:?} after {record:?}");
            assert_events(&next, events - 1, seen);
        }
    }
}

#[test]
fn every_sequence_of_events_makes_records_that_follow_each_other() {
    let mut record = cluster(4, 1, 3);
    record.lists = [0, 1, 2, 3].map(NodeIndex).to_vec();
    record.voters = vec![NodeIndex(2)];
    let target = [0, 3, 2].map(NodeIndex).to_vec();
    record.plan = Some(RunningPlan { target, ..RunningPlan::new(record.epoch) });
    let mut seen = BTreeSet::new();
    assert_events(&record, 5, &mut seen);
    assert_eq!(seen, ["back", "new", "old", "prepare", "read-new"].map(String::from).into());
}

/// Only PREPARE waits for the gainer alone.
#[test]
fn a_silent_gainer_ends_its_prepare_and_gains_nothing_until_it_is_heard() {
    let phases = [SwapPhase::Prepare, SwapPhase::ReadNew, SwapPhase::Back, SwapPhase::New];
    for phase in phases {
        let record = in_phase(phase, &[], false);
        let mut unheard = heard(&record, |_| None, &BTreeSet::new());
        unheard.members.remove(&GAINER);
        assert_eq!(next_plan_step(&record, &unheard), None, "{phase:?}: it may be heard in a moment");
        unheard.silent.insert(GAINER);
        let next = next_plan_step(&record, &unheard);
        if phase != SwapPhase::Prepare {
            assert_eq!(next, None, "{phase:?}");
            continue;
        }
        let next = next.expect("the swap ends");
        assert_eq!(next.verify(&record), Ok(()));
        assert_eq!((next.swaps(), next.plan.is_some()), (&[][..], true), "the plan goes on");
        assert_eq!(next_plan_step(&next, &unheard), None);
        let heard = heard(&next, |_| None, &BTreeSet::new());
        let again = next_plan_step(&next, &heard).expect("the swap begins again");
        assert_eq!(again.swaps().len(), 1);
        assert_eq!(again.swaps()[0].attempt, again.epoch, "an earlier copy does not count");
    }
}

#[test]
fn the_event_that_a_swap_waits_for_is_told() {
    let waits = |phase, dead: &[NodeIndex], fenced: &[NodeIndex], is_complete: bool| {
        let record = in_phase(phase, dead, false);
        let attempt = record.attempt_of(&record.swaps()[0]).expect("the gainer has an id");
        let complete = is_complete.then_some(attempt).into_iter().collect();
        let fence = |slot| fenced.contains(&slot).then_some(record.epoch);
        swap_waits(&record, &heard(&record, fence, &complete))
    };
    let fence = |node| [SwapWait::Fence { node }];
    let copy = [SwapWait::Copy { gainer: GAINER }];
    assert_eq!(waits(SwapPhase::Prepare, &[], &[LOSER], false), copy);
    assert_eq!(waits(SwapPhase::Prepare, &[], &[], true), fence(LOSER));
    assert_eq!(waits(SwapPhase::Prepare, &[], &[LOSER], true), [SwapWait::Driver]);
    assert_eq!(waits(SwapPhase::Prepare, &[LOSER], &[], true), [SwapWait::FenceOfOthers { dead: LOSER }]);
    assert_eq!(waits(SwapPhase::ReadNew, &[], &[GAINER], false), fence(LOSER));
    assert_eq!(waits(SwapPhase::Back, &[], &[LOSER], false), fence(GAINER));
    assert_eq!(waits(SwapPhase::New, &[], &[], false), fence(LOSER));
    let cancelled = in_phase(SwapPhase::Prepare, &[], true);
    let unheard = heard(&cancelled, |_| None, &BTreeSet::new());
    assert_eq!(swap_waits(&cancelled, &unheard), [SwapWait::Driver], "it is taken back at once");
}
