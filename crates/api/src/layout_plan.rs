//! The documents of changes of the layout: the preview of a plan, and the running change.

use crate::layout::rounded;
use crate::layout_wait::{SeenWaits, describe_plan};
use cluster::{
    LayoutRecord, MemberPreview, NodeIndex, PLAN_STALLED_AFTER, PairMove, PlacementPreview, PlannedChange,
    SwapWait,
};
use serde::Serialize;
use std::time::Duration;

/// Most waits, and most lines of advice, in a warning. The document has all of them.
const WAITS_WARNED_MAX: usize = 3;

/// The preview of a plan, and the name by which it is applied.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanDocument {
    /// Name of the plan, in hexadecimal digits.
    pub plan: String,
    /// Epoch of the record that it was made from.
    pub epoch: u64,
    /// Number of copies of partitions in the cluster.
    pub copies: u32,
    /// Number of copies that move.
    pub copies_moved: u32,
    /// Bytes that move; `None` if the node cannot estimate them.
    pub bytes_moved: Option<u64>,
    /// Bytes of a partition, estimated by the data of the answering node.
    pub bytes_per_partition: Option<u64>,
    /// The rate at which data moves to and from each node; `None` without a limit.
    pub bytes_per_second: Option<u64>,
    /// Time that the node with the most data to move takes at this rate.
    pub seconds_at_limit: Option<u64>,
    /// The members of before and after, in the order of their slots.
    pub members: Vec<PlanMemberDocument>,
    /// The data that moves, by pair of members.
    pub moves: Vec<PlanMoveDocument>,
    /// Explanations of results that may surprise.
    pub notes: Vec<String>,
}

/// A member before and after a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanMemberDocument {
    /// URL of the member.
    pub url: String,
    /// Failure domain after the plan; `None` if it has none.
    pub zone: Option<String>,
    /// Weight after the plan.
    pub weight: u16,
    /// Whether the plan removes it.
    pub is_removed: bool,
    /// Fraction of all replicas that it holds.
    pub share_before: f64,
    /// Fraction of all replicas after the plan.
    pub share_after: f64,
    /// Number of partitions that it receives.
    pub partitions_gained: u32,
    /// Number of partitions that it gives away.
    pub partitions_lost: u32,
    /// Bytes that it receives, estimated.
    pub bytes_gained: Option<u64>,
    /// Bytes that it gives away, estimated.
    pub bytes_lost: Option<u64>,
}

/// The partitions that pass from one member to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanMoveDocument {
    /// URL of the member that loses them.
    pub from: String,
    /// URL of the member that gains them.
    pub to: String,
    /// Number of partitions.
    pub partitions: u32,
    /// Their bytes, estimated.
    pub bytes: Option<u64>,
    /// Whether `from` does not come back: other members have the data.
    pub is_from_dead: bool,
}

/// The running change of the layout.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunningPlanDocument {
    /// Epoch in which it began.
    pub began: u64,
    /// `running`, `paused` or `cancelled`.
    pub state: &'static str,
    /// The rate at which data moves to and from each node; `None` without a limit.
    pub bytes_per_second: Option<u64>,
    /// Number of copies of partitions that are still to be moved; `None` after a cancellation.
    pub copies_left: Option<u32>,
    /// Number of copies that were moved while the answering node has followed the change.
    pub copies_moved: Option<u32>,
    /// Time for which the answering node has followed the change.
    pub seconds: u64,
    /// Time left, if copies move as fast as until now.
    pub seconds_left: Option<u64>,
    /// Time since the last progress that the answering node has noticed.
    pub seconds_without_progress: u64,
    /// The reason why no further step begins and the change does not end; `None` if there is none,
    /// or if the change waits for its steps.
    pub waits_for: Option<String>,
    /// What an operator can do. Empty: wait.
    pub advice: Vec<String>,
    /// The pairs of members that exchange partitions now.
    pub steps: Vec<RunningStepDocument>,
}

/// The partitions that pass from one member to another now.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunningStepDocument {
    /// URL of the member that loses them.
    pub from: String,
    /// URL of the member that gains them.
    pub to: String,
    /// Phase of the step: `prepare`, `read-new`, `back` or `new`.
    pub phase: &'static str,
    /// Number of partitions.
    pub partitions: usize,
    /// Epoch in which the phase began.
    pub since_epoch: u64,
    /// Time for which the answering node has known the phase.
    pub seconds: u64,
    /// The event that ends the phase.
    pub waits_for: String,
    /// The copy of the data; `None` if another node than the answering one makes it.
    pub copy: Option<CopyDocument>,
}

/// The copy of the data that a node gains from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CopyDocument {
    /// Progress in thousandths of all keys.
    pub permille: u16,
    /// Number of cells that were copied.
    pub cells: u64,
    /// Size of their keys and values.
    pub bytes: u64,
}

/// The progress of a running change, as the answering node has followed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenProgress {
    /// Time since the node has followed the change.
    pub followed: Duration,
    /// Number of copies that were left to be moved then.
    pub copies_left_first: u32,
    /// The event that each running swap waits for, in the order of the record, and the time for
    /// which the node has known its phase.
    pub waits: Vec<(Option<SwapWait>, Duration)>,
    /// Further facts about what the change waits for.
    pub known: SeenWaits,
}

impl PlanDocument {
    /// The document of a plan. `bytes_per_partition`: the mean size of a copy of a partition, if it
    /// is known.
    pub fn of(change: &PlannedChange, bytes_per_partition: Option<u64>) -> Self {
        let preview = change.plan.preview(&change.base);
        let bytes = |partitions: u32| bytes_per_partition.map(|bytes| bytes * u64::from(partitions));
        let busiest = preview.members.iter().map(|member| member.gained.max(member.lost)).max();
        let rate = change.rate_limit.map(cluster::RateLimit::bytes_per_second);
        let seconds = |(bytes, rate): (u64, u64)| bytes.div_ceil(rate);
        let mut notes: Vec<String> = preview.notes.iter().map(ToString::to_string).collect();
        if preview.moved() > 0 {
            notes.push(
                "the free space of the other nodes is not known here: each needs room for the bytes that it receives, until \
                 the change has ended"
                    .to_owned(),
            );
        }
        Self {
            plan: change.name(),
            epoch: change.base.epoch.0,
            copies: preview.copies,
            copies_moved: preview.moved(),
            bytes_moved: bytes(preview.moved()),
            bytes_per_partition,
            bytes_per_second: rate,
            seconds_at_limit: bytes(busiest.unwrap_or(0)).zip(rate).map(seconds),
            members: preview.members.iter().map(|member| member_of(&preview, member, bytes)).collect(),
            moves: preview.moves.iter().map(|pair| move_of(&preview, pair, bytes)).collect(),
            notes,
        }
    }
}

fn member_of(
    preview: &PlacementPreview,
    member: &MemberPreview,
    bytes: impl Fn(u32) -> Option<u64>,
) -> PlanMemberDocument {
    PlanMemberDocument {
        url: member.url.clone(),
        zone: Some(member.zone.clone()).filter(|zone| !zone.is_empty()),
        weight: member.weight,
        is_removed: member.is_removed,
        share_before: rounded(preview.fraction(member.held_before)),
        share_after: rounded(preview.fraction(member.held_after)),
        partitions_gained: member.gained,
        partitions_lost: member.lost,
        bytes_gained: bytes(member.gained),
        bytes_lost: bytes(member.lost),
    }
}

fn move_of(
    preview: &PlacementPreview,
    pair: &PairMove,
    bytes: impl Fn(u32) -> Option<u64>,
) -> PlanMoveDocument {
    let url = |slot: NodeIndex| {
        let member = preview.members.iter().find(|member| member.slot == slot);
        member.map_or_else(String::new, |member| member.url.clone())
    };
    PlanMoveDocument {
        from: url(pair.from),
        to: url(pair.to),
        partitions: pair.partitions,
        bytes: bytes(pair.partitions),
        is_from_dead: pair.is_from_dead,
    }
}

impl RunningPlanDocument {
    /// The document of the running change of `record`. `None`: no change runs.
    pub fn of(record: &LayoutRecord, seen: &SeenProgress) -> Option<Self> {
        let plan = record.plan.as_ref()?;
        let is_cancelled = plan.target.is_empty();
        let state = match (is_cancelled, plan.is_paused) {
            (true, _) => "cancelled",
            (false, true) => "paused",
            (false, false) => "running",
        };
        let copies_left = (!is_cancelled).then(|| record.copies_left());
        let copies_moved = copies_left.map(|left| seen.copies_left_first.saturating_sub(left));
        let seconds_left = match (copies_left, copies_moved, plan.is_paused) {
            (Some(left), Some(moved @ 1..), false) => {
                Some((seen.followed.as_secs_f64() * f64::from(left) / f64::from(moved)).ceil() as u64)
            }
            _ => None,
        };
        let url = |slot| record.member(slot).map_or_else(String::new, |member| member.url.clone());
        let (known, unseen) = (&seen.known, (None, Duration::ZERO));
        let steps = plan.swaps.iter().enumerate().map(|(index, swap)| {
            let (wait, since) = seen.waits.get(index).copied().unwrap_or(unseen);
            let copy = known.copies.iter().find(|copy| (copy.loser, copy.gainer) == swap.pair());
            RunningStepDocument {
                from: url(swap.loser),
                to: url(swap.gainer),
                phase: swap.phase.name(),
                partitions: swap.partitions.len(),
                since_epoch: swap.since.0,
                seconds: since.as_secs(),
                waits_for: known.describe_step(wait, copy, url),
                copy: copy.map(|copy| CopyDocument {
                    permille: copy.permille,
                    cells: copy.cells,
                    bytes: copy.bytes,
                }),
            }
        });
        let waits =
            plan.swaps.iter().enumerate().map(|(index, _)| seen.waits.get(index).copied().unwrap_or(unseen));
        let of_steps = waits.filter_map(|(wait, _)| known.advise_on_step(wait, url));
        let mut advice = Vec::new();
        for line in of_steps.chain(known.advise_on_plan(url)) {
            if !advice.contains(&line) {
                advice.push(line);
            }
        }
        Some(Self {
            began: plan.began.0,
            state,
            bytes_per_second: plan.rate_limit.map(cluster::RateLimit::bytes_per_second),
            copies_left,
            copies_moved,
            seconds: seen.followed.as_secs(),
            seconds_left,
            seconds_without_progress: known.without_progress.as_secs(),
            waits_for: known.plan_wait.map(|wait| describe_plan(wait, url)),
            advice,
            steps: steps.collect(),
        })
    }

    /// Warning for the operator. `None`: the change makes progress, or waits for its operator.
    pub fn warning(&self) -> Option<String> {
        if self.seconds_without_progress < PLAN_STALLED_AFTER.as_secs() {
            return None;
        }
        let of_steps = self.steps.iter().map(|step| step.waits_for.as_str());
        let mut waits: Vec<_> = of_steps.chain(self.waits_for.as_deref()).collect();
        waits.dedup();
        waits.truncate(WAITS_WARNED_MAX);
        let waits = match waits.is_empty() {
            true => String::new(),
            false => format!(" It waits for {}.", waits.join("; ")),
        };
        let advice: String = self
            .advice
            .iter()
            .take(WAITS_WARNED_MAX)
            .map(|line| format!(" {}.", capitalized(line)))
            .collect();
        Some(format!(
            "The change of the layout that began in epoch {} has made no progress for {} min.{waits}{advice}",
            self.began,
            self.seconds_without_progress / 60
        ))
    }
}

/// The sentence with a capital letter.
fn capitalized(sentence: &str) -> String {
    let mut characters = sentence.chars();
    let first = characters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(characters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(seconds_without_progress: u64) -> RunningPlanDocument {
        let step = |to: &str, waits_for: &str| RunningStepDocument {
            from: "http://a:1".to_owned(),
            to: to.to_owned(),
            phase: "prepare",
            partitions: 1,
            since_epoch: 5,
            seconds: 400,
            waits_for: waits_for.to_owned(),
            copy: None,
        };
        RunningPlanDocument {
            began: 4,
            state: "running",
            bytes_per_second: None,
            copies_left: Some(3),
            copies_moved: Some(0),
            seconds: 400,
            seconds_left: None,
            seconds_without_progress,
            waits_for: None,
            advice: vec!["make room on the disk of http://b:1".to_owned()],
            steps: vec![
                step("http://b:1", "http://b:1 to copy the data"),
                step("http://b:1", "http://b:1 to copy the data"),
            ],
        }
    }

    #[test]
    fn a_change_without_progress_is_warned_of_with_its_waits_and_advice() {
        assert_eq!(document(299).warning(), None);
        let expected = "The change of the layout that began in epoch 4 has made no progress for 6 min. It waits for \
                        http://b:1 to copy the data. Make room on the disk of http://b:1.";
        assert_eq!(document(370).warning().as_deref(), Some(expected));
        let bare = RunningPlanDocument { steps: Vec::new(), advice: Vec::new(), ..document(300) };
        let told = bare.warning().expect("a warning");
        assert!(told.ends_with("no progress for 5 min."), "{told}");
    }
}
