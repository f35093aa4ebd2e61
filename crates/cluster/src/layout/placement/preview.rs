//! The preview of a plan: the data of each member before and after, and the data that moves.

use super::super::{LayoutMember, LayoutRecord, NodeIndex};
use super::holders::counts;
use super::notes::Explanation;
use super::{PlacementNote, PlacementPlan, PlacementSwap};
use std::collections::BTreeMap;

/// The effects of a plan, for its operator.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacementPreview {
    /// The members of before and after, in the order of their slots.
    pub members: Vec<MemberPreview>,
    /// The data that moves, by pair of members.
    pub moves: Vec<PairMove>,
    /// Number of swaps that move data of keys with the default number of replicas.
    pub data_swaps: usize,
    /// Number of all other swaps: of the order of holders, and of members that hold no data.
    pub order_swaps: usize,
    /// Explanations of the result.
    pub notes: Vec<PlacementNote>,
    /// Number of all copies of partitions.
    pub copies: u32,
}

/// A member before and after a plan. The numbers are numbers of partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberPreview {
    /// Number of the member.
    pub slot: NodeIndex,
    /// URL of the member.
    pub url: String,
    /// Failure domain after the plan.
    pub zone: String,
    /// Weight after the plan.
    pub weight: u16,
    /// Whether the member is removed.
    pub is_removed: bool,
    /// Partitions that it holds today.
    pub held_before: u32,
    /// Partitions that it holds after the plan.
    pub held_after: u32,
    /// Partitions of which it is the first holder today.
    pub first_before: u32,
    /// Partitions of which it is the first holder after the plan.
    pub first_after: u32,
    /// Partitions that it receives.
    pub gained: u32,
    /// Partitions that it gives away.
    pub lost: u32,
}

/// The partitions that pass from one member to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairMove {
    /// The member that loses them.
    pub from: NodeIndex,
    /// The member that gains them.
    pub to: NodeIndex,
    /// Number of partitions.
    pub partitions: u32,
    /// Whether `from` does not come back: the data is copied from the other holders.
    pub is_from_dead: bool,
}

impl PlacementPreview {
    /// The fraction of all stored data in `partitions` copies, if partitions are equally large.
    pub fn fraction(&self, partitions: u32) -> f64 {
        f64::from(partitions) / f64::from(self.copies)
    }

    /// Number of copies of partitions that move.
    pub fn moved(&self) -> u32 {
        self.moves.iter().map(|pair| pair.partitions).sum()
    }
}

impl PlacementPlan {
    /// Explains this plan, which was made from `record`.
    pub fn preview(&self, record: &LayoutRecord) -> PlacementPreview {
        let from = record.default_from;
        let moves = self.moves(from);
        let data_swaps = self.swaps.iter().filter(|swap| swap.moves_data(from)).count();
        PlacementPreview {
            members: self.member_previews(record, &moves),
            notes: Explanation { plan: self, record }.notes(),
            moves,
            data_swaps,
            order_swaps: self.swaps.len() - data_swaps,
            copies: record.partitions() * u32::from(from),
        }
    }

    fn moves(&self, from: u8) -> Vec<PairMove> {
        let mut pairs: BTreeMap<(NodeIndex, NodeIndex), u32> = BTreeMap::new();
        for PlacementSwap { loses, gains, .. } in self.swaps.iter().filter(|swap| swap.moves_data(from)) {
            *pairs.entry((*loses, *gains)).or_default() += 1;
        }
        let pair_move = |((from, to), partitions)| {
            let is_from_dead = self.dead.contains(from);
            PairMove { from, to, partitions, is_from_dead }
        };
        pairs.into_iter().map(pair_move).collect()
    }

    fn member_previews(&self, record: &LayoutRecord, moves: &[PairMove]) -> Vec<MemberPreview> {
        let from = usize::from(record.default_from);
        let held = |lists: &[NodeIndex], members: usize, positions: usize| {
            counts(lists.chunks_exact(members).flat_map(|list| &list[..positions]).copied())
        };
        let (before, after) = (record.members.len(), self.members.len());
        let (held_before, first_before) = (held(&record.lists, before, from), held(&record.lists, before, 1));
        let (held_after, first_after) = (held(&self.lists, after, from), held(&self.lists, after, 1));
        let mut members: BTreeMap<NodeIndex, &LayoutMember> = BTreeMap::new();
        members.extend(record.members.iter().chain(&self.members).map(|member| (member.slot, member)));
        let preview = |(slot, member): (NodeIndex, &LayoutMember)| {
            let sum = |is_meant: &dyn Fn(&PairMove) -> bool| {
                moves.iter().filter(|pair| is_meant(pair)).map(|pair| pair.partitions).sum()
            };
            MemberPreview {
                slot,
                url: member.url.clone(),
                zone: member.zone.clone(),
                weight: member.weight,
                is_removed: self.removed.contains(slot),
                held_before: held_before[slot.as_usize()],
                held_after: held_after[slot.as_usize()],
                first_before: first_before[slot.as_usize()],
                first_after: first_after[slot.as_usize()],
                gained: sum(&|pair| pair.to == slot),
                lost: sum(&|pair| pair.from == slot),
            }
        };
        members.into_iter().map(preview).collect()
    }
}
