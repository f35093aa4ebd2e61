//! Running plans of layout records: the transitions of swaps are those of the model, the bytes are
//! pinned, and a plan that breaks a constraint is refused.

#![allow(clippy::disallowed_methods, reason = "the files are what is tested")]

use cluster::{
    ClusterOrigin, FEATURE_LEVEL_NAMED, FEATURE_LEVEL_PLANS, FORMER_IDS_MAX, LayoutDecodeError, LayoutEpoch,
    LayoutRecord, LayoutRecordError, MemberState, NODES_MAX, NodeIndex, NodeSet, PairSwap, PartitionId,
    RateLimit, RecordHash, RunningPlan, SWAPS_MAX, SwapPhase, URL_BYTES_MAX, ZONE_BYTES_MAX,
};
use proptest::prelude::*;
use std::path::PathBuf;
use stdx::NodeTag;

/// Slots of the pair that is swapped.
const LOSER: NodeIndex = NodeIndex(1);
const GAINER: NodeIndex = NodeIndex(3);
/// Epoch of the parent of the records that are judged.
const PARENT: LayoutEpoch = LayoutEpoch(5);
const CHILD: LayoutEpoch = LayoutEpoch(6);
const PHASES: [SwapPhase; 4] = [SwapPhase::Prepare, SwapPhase::ReadNew, SwapPhase::Back, SwapPhase::New];

/// A record of the parent's epoch without a plan, with the same list for each partition.
fn base(nodes: usize, partitions: u32) -> LayoutRecord {
    let origin = ClusterOrigin {
        nodes: (0..nodes).map(|node| format!("http://node{node:02}.example:8080")).collect(),
        partitions,
        hash_version: 1,
        default_from: 3,
        tag: NodeTag(7),
    };
    let mut record = LayoutRecord::first(origin).expect("a valid origin");
    (record.epoch, record.parent) = (PARENT, RecordHash([1; 32]));
    record.feature_level = FEATURE_LEVEL_PLANS;
    for member in &mut record.members {
        member.node_id = Some(NodeTag(100 + u64::from(member.slot.0)));
    }
    let list: Vec<NodeIndex> = (0..nodes as u8).map(NodeIndex).collect();
    record.lists = list.repeat(partitions as usize);
    record
}

fn child(parent: &LayoutRecord) -> LayoutRecord {
    let epoch = parent.epoch.next().expect("a small epoch");
    LayoutRecord { epoch, parent: parent.hash(), ..parent.clone() }
}

fn partitions(ids: impl IntoIterator<Item = u32>) -> Vec<PartitionId> {
    ids.into_iter().map(PartitionId).collect()
}

fn swap(phase: SwapPhase, attempt: u64, since: u64) -> PairSwap {
    PairSwap {
        loser: LOSER,
        gainer: GAINER,
        phase,
        attempt: LayoutEpoch(attempt),
        since: LayoutEpoch(since),
        partitions: partitions([0, 2]),
    }
}

/// A record with this swap: epochs of its partitions and their lists are as the phase needs them.
fn with_swap(record: &LayoutRecord, swap: PairSwap) -> LayoutRecord {
    let mut record = record.clone();
    let len = record.members.len();
    for partition in &swap.partitions {
        let partition = partition.0 as usize;
        record.changed[partition] = record.changed[partition].max(swap.since);
        let list = &mut record.lists[partition * len..][..len];
        let places = [swap.loser, swap.gainer].map(|slot| list.iter().position(|it| *it == slot));
        let [Some(loser), Some(gainer)] = places else { panic!("both are members") };
        if (swap.phase == SwapPhase::New) != (gainer < loser) {
            list.swap(loser, gainer);
        }
    }
    record.plan = Some(RunningPlan { swaps: vec![swap], ..RunningPlan::new(LayoutEpoch(2)) });
    record
}

/// An event that a record states together with the transition of a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    None,
    Died(NodeIndex),
    LostDisk(NodeIndex),
}

impl Loss {
    const ALL: [Self; 5] =
        [Self::None, Self::Died(LOSER), Self::Died(GAINER), Self::LostDisk(LOSER), Self::LostDisk(GAINER)];

    const fn name(self) -> &'static str {
        match self {
            Self::None => "calm",
            Self::Died(LOSER) => "x died",
            Self::Died(_) => "g died",
            Self::LostDisk(LOSER) => "x lost its disk",
            Self::LostDisk(_) => "g lost its disk",
        }
    }

    fn strike(self, record: &mut LayoutRecord) {
        let (Self::Died(slot) | Self::LostDisk(slot)) = self else { return };
        let member = record.members.iter_mut().find(|member| member.slot == slot).expect("a member");
        match self {
            Self::LostDisk(_) => {
                let former = member.node_id.replace(NodeTag(999));
                record.former_ids.extend(former);
            }
            _ => member.state = MemberState::Dead,
        }
        record.changed.fill(record.epoch);
    }
}

/// Each state of a swap in the parent; `None` is OLD.
fn states() -> [Option<PairSwap>; 5] {
    [
        None,
        Some(swap(SwapPhase::Prepare, 3, 3)),
        Some(swap(SwapPhase::ReadNew, 3, 4)),
        Some(swap(SwapPhase::Back, 3, 4)),
        Some(swap(SwapPhase::New, 3, 4)),
    ]
}

fn parent_with(state: Option<&PairSwap>) -> LayoutRecord {
    let mut parent = base(4, 4);
    parent.plan = Some(RunningPlan::new(LayoutEpoch(2)));
    match state {
        Some(state) => with_swap(&parent, state.clone()),
        None => parent,
    }
}

/// The child with this state of the swap. All that follows from the state is as it must be.
fn child_with(parent: &LayoutRecord, state: Option<&PairSwap>, loss: Loss) -> LayoutRecord {
    let mut record = child(parent);
    match state {
        Some(state) => {
            record = with_swap(&record, state.clone());
            if parent.swaps() != record.swaps() {
                (record.changed[0], record.changed[2]) = (record.epoch, record.epoch);
            }
        }
        None => {
            record.plan = Some(RunningPlan::new(LayoutEpoch(2)));
            if parent.swaps().iter().any(|swap| swap.phase != SwapPhase::New) {
                (record.changed[0], record.changed[2]) = (record.epoch, record.epoch);
            }
        }
    }
    loss.strike(&mut record);
    record
}

fn name(state: Option<&PairSwap>) -> String {
    state.map_or_else(
        || "old".to_owned(),
        |swap| format!("{} {} {}", swap.phase.name(), swap.attempt, swap.since),
    )
}

/// Every state after every other one, with old and new epochs, beside every loss. The legal ones
/// are those of the model in `crates/model/src/swap/driver.rs`.
#[test]
fn a_swap_takes_the_transitions_of_the_model_and_no_other() {
    let mut legal = Vec::new();
    for former in states() {
        let parent = parent_with(former.as_ref());
        assert_eq!(parent.check(), Ok(()), "{former:?}");
        let nexts = PHASES.into_iter().flat_map(|phase| {
            [3, 6].into_iter().flat_map(move |attempt| {
                [3, 4, 6].into_iter().map(move |since| Some(swap(phase, attempt, since)))
            })
        });
        for next in nexts.chain([None]) {
            for loss in Loss::ALL {
                let record = child_with(&parent, next.as_ref(), loss);
                if record.verify(&parent).is_ok() {
                    legal.push((loss, format!("{} -> {}", name(former.as_ref()), name(next.as_ref()))));
                }
            }
        }
    }
    let of = |loss| {
        let of_loss = legal.iter().filter(|(other, _)| *other == loss);
        let mut names: Vec<_> = of_loss.map(|(_, transition)| transition.as_str()).collect();
        names.sort_unstable();
        names
    };
    let expected = [
        &[
            "back 3 4 -> back 3 4",
            "back 3 4 -> old",
            "new 3 4 -> new 3 4",
            "new 3 4 -> old",
            "old -> old",
            "old -> prepare 6 6",
            "prepare 3 3 -> old",
            "prepare 3 3 -> prepare 3 3",
            "prepare 3 3 -> prepare 6 6",
            "prepare 3 3 -> read-new 3 6",
            "read-new 3 4 -> back 3 6",
            "read-new 3 4 -> new 3 6",
            "read-new 3 4 -> read-new 3 4",
        ][..],
        // A loser that is dead is replaced by kept replicas as sources of a new copy.
        &[
            "back 3 4 -> back 3 4",
            "new 3 4 -> new 3 4",
            "new 3 4 -> old",
            "old -> old",
            "old -> prepare 6 6",
            "prepare 3 3 -> old",
            "prepare 3 3 -> prepare 6 6",
            "read-new 3 4 -> read-new 3 4",
        ],
        &[
            "back 3 4 -> back 3 4",
            "new 3 4 -> new 3 4",
            "new 3 4 -> old",
            "old -> old",
            "prepare 3 3 -> old",
            "read-new 3 4 -> back 3 6",
        ],
        &[
            "back 3 4 -> back 3 4",
            "new 3 4 -> new 3 4",
            "new 3 4 -> old",
            "old -> old",
            "prepare 3 3 -> old",
            "read-new 3 4 -> new 3 6",
        ],
        &[
            "back 3 4 -> old",
            "new 3 4 -> new 3 4",
            "new 3 4 -> old",
            "old -> old",
            "prepare 3 3 -> old",
            "prepare 3 3 -> prepare 6 6",
            "read-new 3 4 -> prepare 6 6",
        ],
    ];
    for (loss, expected) in Loss::ALL.into_iter().zip(expected) {
        assert_eq!(of(loss), expected, "{}", loss.name());
    }
}

#[test]
fn a_swap_keeps_its_partitions_and_changes_their_epochs() {
    for former in states().into_iter().flatten() {
        let parent = parent_with(Some(&former));
        let next = match former.phase {
            SwapPhase::Prepare => Some(swap(SwapPhase::ReadNew, 3, 6)),
            SwapPhase::ReadNew => Some(swap(SwapPhase::New, 3, 6)),
            SwapPhase::Back => None,
            SwapPhase::New => continue,
        };
        let record = child_with(&parent, next.as_ref(), Loss::None);
        assert_eq!(record.verify(&parent), Ok(()));
        let mut unchanged = record.clone();
        unchanged.changed[2] = parent.changed[2];
        assert!(unchanged.verify(&parent).is_err(), "after {former:?}");
        let Some(next) = next else { continue };
        for ids in [&[0][..], &[0, 1, 2], &[0, 3]] {
            let moved = PairSwap { partitions: partitions(ids.iter().copied()), ..next.clone() };
            let mut moved = with_swap(&child(&parent), moved);
            moved.changed.fill(CHILD);
            assert_eq!(
                moved.verify(&parent),
                Err(LayoutRecordError::SwapTransition { loser: LOSER, gainer: GAINER })
            );
        }
    }
}

/// A list changes by the exchange of its swap, when that enters NEW, and in no other way.
#[test]
fn a_list_changes_by_a_swap_only() {
    for former in states() {
        let parent = parent_with(former.as_ref());
        for (i, j) in [(0, 1), (0, 2), (1, 3), (2, 3)] {
            let mut record = child(&parent);
            record.changed[1] = CHILD;
            record.lists.swap(4 + i, 4 + j);
            let refused = Err(LayoutRecordError::ListChange { partition: PartitionId(1) });
            assert_eq!(record.verify(&parent), refused, "{i} and {j} beside {former:?}");
        }
    }
    let parent = parent_with(Some(&swap(SwapPhase::ReadNew, 3, 4)));
    let mut record = child_with(&parent, Some(&swap(SwapPhase::New, 3, 6)), Loss::None);
    assert_eq!(record.verify(&parent), Ok(()));
    // The kept members exchange their positions as well.
    record.lists.swap(0, 2);
    assert_eq!(record.verify(&parent), Err(LayoutRecordError::ListChange { partition: PartitionId(0) }));
}

#[test]
fn a_partition_begins_a_swap_after_its_former_one_has_ended() {
    let other = |attempt| PairSwap {
        loser: NodeIndex(0),
        gainer: NodeIndex(2),
        partitions: partitions([2, 3]),
        ..swap(SwapPhase::Prepare, attempt, attempt)
    };
    for former in states().into_iter().flatten() {
        let parent = parent_with(Some(&former));
        let mut record = child(&parent);
        record.plan = Some(RunningPlan { swaps: vec![other(6)], ..RunningPlan::new(LayoutEpoch(2)) });
        record.changed[2..].fill(CHILD);
        record.changed[0] = CHILD;
        let is_ended = former.phase == SwapPhase::New;
        assert_eq!(record.verify(&parent).is_ok(), is_ended, "{former:?}");
        let mut ended = child_with(&parent, None, Loss::None);
        if ended.verify(&parent).is_ok() {
            ended.changed.fill(ended.epoch);
            let mut next = child(&ended);
            next.plan = Some(RunningPlan { swaps: vec![other(7)], ..RunningPlan::new(LayoutEpoch(2)) });
            next.changed.fill(next.epoch);
            assert_eq!(next.verify(&ended), Ok(()), "{former:?}");
        }
    }
}

#[test]
fn one_plan_runs_at_a_time() {
    let parent = base(4, 4);
    let with = |record: &LayoutRecord, began| LayoutRecord {
        plan: Some(RunningPlan::new(LayoutEpoch(began))),
        ..child(record)
    };
    let begun = with(&parent, 6);
    assert_eq!(begun.verify(&parent), Ok(()));
    assert_eq!(with(&parent, 5).verify(&parent), Err(LayoutRecordError::PlanBounds));
    assert_eq!(with(&begun, 6).verify(&begun), Ok(()));
    assert_eq!(with(&begun, 7).verify(&begun), Err(LayoutRecordError::PlanBounds));
    let ended = LayoutRecord { plan: None, ..child(&begun) };
    assert_eq!(ended.verify(&begun), Ok(()));
    assert_eq!(with(&ended, 8).verify(&ended), Ok(()));
    let running = parent_with(Some(&swap(SwapPhase::ReadNew, 3, 4)));
    let mut torn_off = LayoutRecord { plan: None, ..child(&running) };
    torn_off.changed.fill(CHILD);
    let refused = Err(LayoutRecordError::SwapTransition { loser: LOSER, gainer: GAINER });
    assert_eq!(torn_off.verify(&running), refused);
}

#[test]
fn each_constraint_of_a_plan_is_checked() {
    type Change = fn(&mut LayoutRecord);
    fn plan(record: &mut LayoutRecord) -> &mut RunningPlan {
        record.plan.as_mut().expect("it has a plan")
    }
    let of_swap = LayoutRecordError::Swap { loser: LOSER, gainer: GAINER };
    let of = |partition| LayoutRecordError::SwapPartition { partition: PartitionId(partition) };
    let cases: [(Change, LayoutRecordError); 19] = [
        (|it| it.feature_level = FEATURE_LEVEL_NAMED, LayoutRecordError::PlanLevel),
        (|it| plan(it).began = LayoutEpoch(1), LayoutRecordError::PlanBounds),
        (|it| plan(it).began = LayoutEpoch(6), LayoutRecordError::PlanBounds),
        (|it| plan(it).began = LayoutEpoch(4), of_swap),
        (|it| plan(it).swaps.push(swap(SwapPhase::New, 3, 4)), LayoutRecordError::PlanBounds),
        (
            |it| plan(it).swaps.push(PairSwap { loser: NodeIndex(0), ..swap(SwapPhase::Prepare, 3, 3) }),
            LayoutRecordError::PlanBounds,
        ),
        (|it| plan(it).swaps[0].gainer = LOSER, LayoutRecordError::Swap { loser: LOSER, gainer: LOSER }),
        (
            |it| plan(it).swaps[0].gainer = NodeIndex(9),
            LayoutRecordError::Swap { loser: LOSER, gainer: NodeIndex(9) },
        ),
        (|it| plan(it).swaps[0].partitions.clear(), of_swap),
        (|it| plan(it).swaps[0].attempt = LayoutEpoch(4), of_swap),
        (|it| plan(it).swaps[0].since = LayoutEpoch(6), of_swap),
        (|it| plan(it).swaps[0].phase = SwapPhase::Prepare, of_swap),
        (|it| it.members[3].state = MemberState::Dead, of_swap),
        (|it| plan(it).swaps[0].partitions[1] = PartitionId(4), of(4)),
        (|it| plan(it).swaps[0].partitions[1] = PartitionId(0), of(0)),
        (|it| it.changed[2] = LayoutEpoch(3), of(2)),
        (|it| it.lists.swap(9, 11), of(2)),
        (|it| plan(it).swaps[0].phase = SwapPhase::New, of(0)),
        (
            |it| {
                let second = PairSwap { gainer: NodeIndex(2), ..swap(SwapPhase::ReadNew, 3, 4) };
                plan(it).swaps.insert(0, second);
            },
            of(0),
        ),
    ];
    let valid = with_swap(&base(4, 4), swap(SwapPhase::ReadNew, 3, 4));
    assert_eq!(valid.check(), Ok(()));
    for (number, (change, error)) in cases.into_iter().enumerate() {
        let mut record = valid.clone();
        change(&mut record);
        assert_eq!(record.check(), Err(error), "case {number}");
    }
}

/// Lost disks and deaths beside every state of a swap: the record that is built for them is legal.
#[test]
fn a_lost_disk_and_a_death_take_the_swap_along() {
    let mut seen = Vec::new();
    for former in states() {
        let parent = parent_with(former.as_ref());
        for loss in Loss::ALL {
            let mut record = child(&parent);
            match loss {
                Loss::None => continue,
                Loss::Died(slot) => record.declare_dead([slot].into_iter().collect()),
                Loss::LostDisk(slot) => record.replace_node(slot, NodeTag(999)),
            }
            assert_eq!(record.verify(&parent), Ok(()), "{} after {former:?}", loss.name());
            let after = name(record.swaps().first());
            seen.push(format!("{}: {} -> {after}", loss.name(), name(former.as_ref())));
        }
    }
    let of = |text: &str| seen.iter().any(|line| line == text);
    assert!(of("x died: prepare 3 3 -> prepare 6 6") && of("x died: read-new 3 4 -> read-new 3 4"));
    assert!(of("g died: prepare 3 3 -> old") && of("g died: read-new 3 4 -> back 3 6"));
    assert!(of("x lost its disk: read-new 3 4 -> new 3 6") && of("g lost its disk: back 3 4 -> old"));
}

/// One record declares both nodes of a pair dead.
#[test]
fn both_nodes_of_a_pair_may_die_in_one_record() {
    for former in states() {
        let parent = parent_with(former.as_ref());
        let mut record = child(&parent);
        record.declare_dead([LOSER, GAINER].into_iter().collect());
        assert_eq!(record.verify(&parent), Ok(()), "after {former:?}");
        let expected = match former.as_ref().map(|swap| swap.phase) {
            None | Some(SwapPhase::Prepare) => None,
            Some(SwapPhase::ReadNew) => Some(swap(SwapPhase::Back, 3, 6)),
            Some(SwapPhase::Back | SwapPhase::New) => former,
        };
        assert_eq!(record.swaps(), expected.as_slice());
    }
}

/// A swap whose loser died before may be cancelled, as in the model.
#[test]
fn a_swap_is_cancelled_after_the_death_of_its_loser() {
    let cases = [(SwapPhase::Prepare, None), (SwapPhase::ReadNew, Some(SwapPhase::Back))];
    for (phase, cancelled) in cases {
        let since = if phase == SwapPhase::Prepare { 3 } else { 4 };
        let mut parent = parent_with(Some(&swap(phase, 3, since)));
        parent.declare_dead([LOSER].into_iter().collect());
        let attempt = parent.swaps()[0].attempt.0;
        let next = cancelled.map(|phase| swap(phase, attempt, 6));
        let record = child_with(&parent, next.as_ref(), Loss::None);
        assert_eq!(record.verify(&parent), Ok(()), "from {}", phase.name());
    }
}

#[test]
fn the_target_of_a_plan_stays_or_is_cancelled() {
    let parent = base(4, 4);
    let with_target = |record: &LayoutRecord, target: &[u8]| {
        let mut next = child(record);
        let plan = next.plan.get_or_insert(RunningPlan::new(next.epoch));
        plan.target = target.iter().copied().map(NodeIndex).collect();
        next
    };
    let refused = Err(LayoutRecordError::PlanTarget);
    let target = [0, 1, 3].repeat(4);
    let begun = with_target(&parent, &target);
    assert_eq!(begun.verify(&parent), Ok(()));
    assert_eq!(child(&begun).verify(&begun), Ok(()));
    assert_eq!(with_target(&begun, &[0, 1, 2].repeat(4)).verify(&begun), refused);
    let cancelled = with_target(&begun, &[]);
    assert_eq!(cancelled.verify(&begun), Ok(()));
    assert_eq!(with_target(&cancelled, &target).verify(&cancelled), refused);
    for impossible in [&[0, 1, 3].repeat(3)[..], &[0, 1, 1].repeat(4), &[0, 1, 9].repeat(4), &[0, 1, 3, 0]] {
        assert_eq!(with_target(&parent, impossible).check(), refused, "{impossible:?}");
    }
    for state in [MemberState::Leaving, MemberState::Dead] {
        let mut parent = parent.clone();
        parent.members[3].state = state;
        assert_eq!(
            with_target(&parent, &target).verify(&parent),
            refused,
            "a gainer that is {}",
            state.name()
        );
    }
}

#[test]
fn a_death_or_a_lost_disk_changes_every_partition_of_a_record_with_plans() {
    let parent = base(4, 4);
    for loss in [Loss::Died(NodeIndex(0)), Loss::LostDisk(NodeIndex(0))] {
        let mut record = child(&parent);
        loss.strike(&mut record);
        assert_eq!(record.verify(&parent), Ok(()));
        record.changed[3] = parent.changed[3];
        assert_eq!(
            record.verify(&parent),
            Err(LayoutRecordError::ChangedEpoch { partition: PartitionId(3) }),
            "{loss:?}"
        );
    }
    let before = LayoutRecord { feature_level: FEATURE_LEVEL_NAMED, ..base(4, 4) };
    let mut record = child(&before);
    record.replace_node(NodeIndex(0), NodeTag(999));
    assert_eq!(record.changed, before.changed, "earlier releases do not record this");
    assert_eq!(record.verify(&before), Ok(()));
}

#[test]
fn a_recovered_record_goes_on_without_dead_gainers() {
    let mut before = base(5, 4);
    before.voters = [2, 3, 4].map(NodeIndex).to_vec();
    for former in states().into_iter().flatten() {
        let parent = with_swap(&before, former.clone());
        let lost: NodeSet = [GAINER, NodeIndex(4)].into_iter().collect();
        let recovered = parent.recovered(lost).expect("most voters are lost");
        let expected = match former.phase {
            SwapPhase::Prepare => None,
            SwapPhase::ReadNew => Some(swap(SwapPhase::Back, 3, 6)),
            SwapPhase::Back | SwapPhase::New => Some(former),
        };
        assert_eq!(recovered.swaps(), expected.as_slice());
        assert_eq!(child(&recovered).verify(&recovered), Ok(()));
    }
}

/// A record with every field of the format of plans.
fn sample() -> LayoutRecord {
    let mut record = with_swap(&base(4, 256), swap(SwapPhase::ReadNew, 3, 4));
    record.epoch = LayoutEpoch(300);
    let other = |loser, gainer, phase, since, ids: &[u32]| PairSwap {
        loser: NodeIndex(loser),
        gainer: NodeIndex(gainer),
        phase,
        attempt: LayoutEpoch(200),
        since: LayoutEpoch(since),
        partitions: partitions(ids.iter().copied()),
    };
    let others = [
        other(0, 2, SwapPhase::Prepare, 200, &[1, 200]),
        other(0, 3, SwapPhase::Back, 300, &[3, 4, 5]),
        other(1, 2, SwapPhase::New, 299, &[255]),
    ];
    for swap in &others {
        let plan = record.plan.take().expect("it has one");
        record = with_swap(&record, swap.clone());
        let added = record.plan.replace(plan).expect("it was just set");
        record.plan.as_mut().expect("it was just set").swaps.extend(added.swaps);
    }
    let plan = record.plan.as_mut().expect("it has one");
    plan.swaps.sort_by_key(PairSwap::pair);
    (plan.is_paused, plan.target) = (true, [0, 3, 2].map(NodeIndex).repeat(256));
    record.former_ids = [900, 901].map(NodeTag).to_vec();
    assert_eq!(record.check(), Ok(()));
    record
}

/// The sample, cancelled: its bytes end with those of the swaps.
fn without_target() -> LayoutRecord {
    let mut record = sample();
    let plan = record.plan.as_mut().expect("it has one");
    (plan.is_paused, plan.target) = (false, Vec::new());
    record
}

/// The content of a record, with its checksum.
fn sealed(mut content: Vec<u8>) -> Vec<u8> {
    let checksum = crc_fast::crc32_iscsi(&content);
    content.extend(checksum.to_le_bytes());
    content
}

/// The bytes of the plan of a record.
fn plan_bytes(record: &LayoutRecord) -> Vec<u8> {
    let before = LayoutRecord { plan: None, ..record.clone() }.encode().len() - 4;
    let bytes = record.encode();
    bytes[before..bytes.len() - 4].to_vec()
}

/// The record with these bytes as its plan, of which the record says that there are `len`.
fn with_plan_bytes(record: &LayoutRecord, plan: &[u8], len: usize) -> Vec<u8> {
    let mut content = LayoutRecord { plan: None, ..record.clone() }.encode();
    content.truncate(content.len() - 8);
    content.extend((len as u32).to_le_bytes());
    content.extend(plan);
    sealed(content)
}

#[test]
fn the_bytes_of_a_plan_are_pinned() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/formats/layout-v2-plan.bin");
    let record = sample();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, record.encode()).unwrap();
    }
    let pinned = std::fs::read(path).unwrap();
    assert_eq!(LayoutRecord::decode(&pinned).as_ref(), Ok(&record));
    assert_eq!(record.encode(), pinned);
}

#[test]
fn the_largest_plan_fits_into_a_record_of_350_kib() {
    let mut record = base(NODES_MAX, 4_096);
    record.epoch = LayoutEpoch(16_000);
    record.changed.fill(LayoutEpoch(16_000));
    for (member, tag) in record.members.iter_mut().zip(1..) {
        member.node_id = Some(NodeTag(tag));
        member.url = format!("{tag:0>URL_BYTES_MAX$}");
        member.zone = "z".repeat(ZONE_BYTES_MAX);
    }
    // Each partition is in a swap, and those of a swap are as far apart as possible.
    let pairs = (0..64).flat_map(|loser| (loser + 1..64).map(move |gainer| (loser, gainer)));
    let swaps = pairs.take(SWAPS_MAX).zip(0..).map(|((loser, gainer), first)| PairSwap {
        loser: NodeIndex(loser),
        gainer: NodeIndex(gainer),
        phase: SwapPhase::Back,
        attempt: LayoutEpoch(15_999),
        since: LayoutEpoch(16_000),
        partitions: partitions((first..4_096).step_by(SWAPS_MAX)),
    });
    let target = [0, 1, 2].map(NodeIndex).repeat(4_096);
    record.plan =
        Some(RunningPlan { target, swaps: swaps.collect(), ..RunningPlan::new(LayoutEpoch(15_000)) });
    record.former_ids = (1_000..).map(NodeTag).take(FORMER_IDS_MAX).collect();
    assert_eq!(record.check(), Ok(()));
    let bytes = record.encode();
    assert!(bytes.len() <= 350 << 10, "{} bytes", bytes.len());
    assert_eq!(LayoutRecord::decode(&bytes).as_ref(), Ok(&record));
    let plan = record.plan.as_mut().expect("it was just set");
    let last = plan.swaps.pop().expect("there are many");
    let half = PairSwap { gainer: NodeIndex(last.gainer.0 + 1), partitions: partitions([255]), ..last };
    let other_half = PairSwap { partitions: last.partitions[1..].to_vec(), ..last };
    plan.swaps.extend([other_half, half]);
    assert_eq!(record.check(), Err(LayoutRecordError::PlanBounds), "one more than {SWAPS_MAX}");
    assert_eq!(
        LayoutRecord::decode(&record.encode()),
        Err(LayoutDecodeError::Record(LayoutRecordError::PlanBounds))
    );
}

/// Decodes the record with these bytes as its plan.
fn decoded(record: &LayoutRecord, plan: &[u8]) -> Result<LayoutRecord, LayoutDecodeError> {
    LayoutRecord::decode(&with_plan_bytes(record, plan, plan.len()))
}

#[test]
fn the_checksum_of_a_record_with_a_plan_is_checked() {
    let bytes = sample().encode();
    for bit in (bytes.len() - 4) * 8..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(LayoutRecord::decode(&flipped), Err(LayoutDecodeError::Checksum));
    }
}

/// Behind a valid checksum: a flipped bit makes another record with the same bytes, or none.
#[test]
fn every_flipped_bit_of_a_plan_is_refused_or_another_plan() {
    let (mut accepted, mut refused) = (0, 0);
    for record in [sample(), without_target()] {
        let plan = plan_bytes(&record);
        for bit in 0..plan.len().min(200) * 8 {
            let mut flipped = plan.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match decoded(&record, &flipped) {
                Ok(other) => {
                    assert_eq!((plan_bytes(&other), other.check()), (flipped, Ok(())), "bit {bit}");
                    accepted += 1;
                }
                Err(LayoutDecodeError::Checksum) => panic!("the checksum is repaired"),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(accepted > 20 && refused > 500, "{accepted} accepted, {refused} refused");
}

#[test]
fn every_truncation_and_extension_of_a_plan_is_refused() {
    for record in [sample(), without_target()] {
        let plan = plan_bytes(&record);
        assert_eq!(decoded(&record, &plan), Ok(record.clone()));
        for len in 1..plan.len() {
            let cut = decoded(&record, &plan[..len]);
            assert_eq!(cut, Err(LayoutDecodeError::Length), "{len} of {} bytes", plan.len());
        }
        let longer = [plan.as_slice(), &[0]].concat();
        assert_eq!(decoded(&record, &longer), Err(LayoutDecodeError::Length));
        for len in [plan.len() - 1, plan.len() + 1, 1 << 31] {
            let bytes = with_plan_bytes(&record, &plan, len);
            assert_eq!(LayoutRecord::decode(&bytes), Err(LayoutDecodeError::Length), "length {len}");
        }
    }
}

#[test]
fn each_field_of_a_plan_is_decoded_within_its_bounds() {
    let record = without_target();
    let plan = plan_bytes(&record);
    // Format, flags, epoch, number of swaps; then loser, gainer, phase, and the epoch 200.
    assert_eq!(plan[..9], [1, 0, 2, 4, 0, 2, 1, 200, 1]);
    let field = |field| LayoutDecodeError::Field { field };
    let too_many = LayoutDecodeError::Record(LayoutRecordError::PlanBounds);
    let cases: [(usize, &[u8], LayoutDecodeError); 15] = [
        (0, &[2], LayoutDecodeError::Plan),
        (1, &[8], field("flags of a plan")),
        (1, &[4], LayoutDecodeError::Length),
        (1, &[2], LayoutDecodeError::Length),
        (2, &[0x82, 0], field("epoch of a plan")),
        (3, &[0x81, 2], too_many),
        (3, &[0x84, 0], field("number of swaps")),
        (3, &[5], LayoutDecodeError::Length),
        (3, &[3], LayoutDecodeError::Length),
        (4, &[4], field("member of a swap")),
        (5, &[255], field("member of a swap")),
        (6, &[0], field("phase of a swap")),
        (6, &[5], field("phase of a swap")),
        (11, &[120], LayoutDecodeError::Length),
        (12, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], field("partition")),
    ];
    for (at, bytes, error) in cases {
        let changed = [&plan[..at], bytes, &plan[at + 1..]].concat();
        assert_eq!(decoded(&record, &changed), Err(error), "byte {at} is {bytes:?}");
    }
    let record = sample();
    let mut plan = plan_bytes(&record);
    let last = plan.len() - 1;
    plan[last] = 4;
    assert_eq!(decoded(&record, &plan), Err(field("target of a plan")));
    plan[last] = plan[last - 1];
    assert_eq!(decoded(&record, &plan), Err(LayoutDecodeError::Record(LayoutRecordError::PlanTarget)));
}

/// The format follows from the feature level, so a record has one encoding.
#[test]
fn a_format_that_contradicts_the_feature_level_is_refused() {
    let reformatted = |record: &LayoutRecord, format: u32| {
        let mut content = record.encode();
        content.truncate(content.len() - 4);
        content[8..12].copy_from_slice(&format.to_le_bytes());
        LayoutRecord::decode(&sealed(content))
    };
    let mut with_plans = base(4, 4);
    assert_eq!(reformatted(&with_plans, 2), Ok(with_plans.clone()));
    assert!(reformatted(&with_plans, 1).is_err());
    assert_eq!(reformatted(&with_plans, 3), Err(LayoutDecodeError::Format { format: 3 }));
    with_plans.feature_level = FEATURE_LEVEL_NAMED;
    assert!(reformatted(&with_plans, 2).is_err());
    let mut content = base(4, 4).encode();
    content.truncate(content.len() - 4);
    content[68..72].copy_from_slice(&FEATURE_LEVEL_NAMED.to_le_bytes());
    assert_eq!(
        LayoutRecord::decode(&sealed(content)),
        Err(LayoutDecodeError::Field { field: "format version" })
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn an_accepted_plan_is_encoded_as_it_was_read(back in 5usize..80, byte: u8, inserts: bool) {
        let mut bytes = without_target().encode();
        bytes.truncate(bytes.len() - 4);
        let at = bytes.len() - back;
        match inserts {
            true => bytes.insert(at, byte),
            false => bytes[at] = byte,
        }
        let bytes = sealed(bytes);
        if let Ok(record) = LayoutRecord::decode(&bytes) {
            prop_assert_eq!(record.check(), Ok(()));
            prop_assert_eq!(record.encode(), bytes);
        }
    }
}

#[test]
fn a_rate_limit_is_part_of_a_plan_and_changes_in_any_record() {
    let mut record = sample();
    let before = plan_bytes(&record).len();
    let plan = record.plan.as_mut().expect("it has one");
    plan.rate_limit = RateLimit::new(300);
    assert_eq!(LayoutRecord::decode(&record.encode()).as_ref(), Ok(&record));
    let bytes = plan_bytes(&record);
    assert_eq!(bytes.len(), before + 2, "a varint");
    assert_eq!(bytes[1] & 0b100, 0b100);
    // The limit follows the format, the flags and the epoch of the plan.
    let at = 2 + stdx::codec::varint_len(record.plan.as_ref().expect("it has one").began.0);
    let mut zero = bytes.clone();
    zero.splice(at..at + 2, [0]);
    let field = LayoutDecodeError::Field { field: "rate limit of a plan" };
    assert_eq!(LayoutRecord::decode(&with_plan_bytes(&record, &zero, zero.len())), Err(field));
    let mut unknown = bytes;
    unknown[1] |= 0b1000;
    let field = LayoutDecodeError::Field { field: "flags of a plan" };
    assert_eq!(LayoutRecord::decode(&with_plan_bytes(&record, &unknown, unknown.len())), Err(field));
}
