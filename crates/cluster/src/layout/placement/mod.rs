//! The placement planner: from today's layout record and a request to the preference lists that
//! the cluster is to have, and the swaps that lead there.
//!
//! **Promise.** The holders of a partition are the members at the first `default_from` positions of
//! its preference list. In the lists of a plan:
//!
//! - each active member holds its share by weight, rounded to whole partitions, and at most one
//!   copy of a partition;
//! - the copies of a partition are spread over the zones as evenly as possible: the numbers of two
//!   zones differ by at most one, except where a zone has too few members;
//! - each member is equally often at each of the first `default_from` positions, give or take one.
//!   The first position counts most, because it serves primary reads;
//! - no other placement with these numbers gives fewer copies to members that do not hold them now.
//!
//! The plan is a function of the record and the request. A second plan of the same request moves
//! nothing. [`LayoutRecord::check_placement`] checks the first three properties of any record, so a
//! peer accepts a plan without knowing the planner.
//!
//! **Mechanism.** A level of data per unit of weight is found at which the shares fill all copies,
//! where members and zones have limits. The largest remainder method (Hamilton, 1792) rounds the
//! shares to quotas. Then a minimum-cost flow chooses the holders. It begins with today's holders
//! and sends each surplus along a shortest augmenting path to a member that lacks copies (Ahuja,
//! Magnanti and Orlin, *Network Flows*, 1993, section 9.7; under zones this is weighted matroid
//! intersection, Frank, 1981). The same algorithm orders the holders, one position at a time. The
//! swaps of a partition are the fewest exchanges of two positions that lead to its new list.
//!
//! A joining member is appended to each list, which moves no data. A leaving member moves to the
//! end of each list, and is removed there. A replacement takes the positions of the replaced member
//! before the rest is planned.
//!
//! **Caveats.** Positions after `default_from` are not balanced: keys with a greater `from` are
//! spread less evenly. Between the swaps of one partition, two copies may share a zone for a while.
//! Sizes of partitions and the space on disks are unknown to the planner. Holders that stay may
//! change their order, which moves data of keys with a lesser `from` only.

mod check;
mod flow;
mod holders;
mod notes;
mod preview;
mod quotas;
mod refusal;
mod request;
mod spread;
mod swaps;

pub use check::PlacementFault;
pub use notes::PlacementNote;
pub use preview::{MemberPreview, PairMove, PlacementPreview};
pub use refusal::PlacementRefusal;
pub use request::PlacementChange;
pub use swaps::PlacementSwap;
pub(crate) use swaps::next_swap;

use super::{LayoutMember, LayoutRecord, NodeIndex, NodeSet, PartitionId};
use holders::Holders;
use request::RequestedMembers;
use swaps::SwapRounds;

/// A change of the placement: its steps, and the members and preference lists after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementPlan {
    /// The members after the change, in the order of their slots.
    pub members: Vec<LayoutMember>,
    /// The preference lists of all partitions after the change, concatenated.
    pub lists: Vec<NodeIndex>,
    /// Nodes that are not members yet, in the order in which they are appended to every preference
    /// list. They have to join before the change can run.
    pub appended: Vec<LayoutMember>,
    /// The swaps, in an order that leads from the lists with appended members to those in which the
    /// removed members are last. Swaps of different partitions may be done in any order.
    pub swaps: Vec<PlacementSwap>,
    /// The members that are removed from the end of every list.
    pub removed: NodeSet,
    /// The members that do not come back: no data is copied from them.
    pub dead: NodeSet,
}

impl PlacementPlan {
    /// Plans `changes` of `record`, which is checked. Without changes, the plan restores the
    /// balance of the members.
    ///
    /// # Errors
    /// [`PlacementRefusal`] if the changes are not possible, or if the record has a running plan:
    /// its lists are those of the middle of a change.
    pub fn new(record: &LayoutRecord, changes: &[PlacementChange]) -> Result<Self, PlacementRefusal> {
        let requested = RequestedMembers::resolve(record, changes)?;
        let from = usize::from(record.default_from);
        let appended = requested.appended();
        let mut lists: Vec<Vec<NodeIndex>> = (0..record.partitions())
            .map(|partition| [record.preference_list(PartitionId(partition)), &appended].concat())
            .collect();
        let heads = Holders::new(&requested, &lists, from).place();
        let mut rounds = SwapRounds::default();
        for ((partition, list), head) in (0..).map(PartitionId).zip(&mut lists).zip(&heads) {
            rounds.lead(partition, list, head, requested.removed);
            list.retain(|slot| !requested.removed.contains(*slot));
        }
        Ok(Self {
            appended: requested.members.iter().filter(|it| appended.contains(&it.slot)).cloned().collect(),
            lists: lists.concat(),
            swaps: rounds.into_swaps(),
            removed: requested.removed,
            dead: requested.dead,
            members: requested.remaining(),
        })
    }

    /// The holders of each partition after the change, concatenated: the first `default_from`
    /// members of its list.
    pub fn target(&self, default_from: u8) -> Vec<NodeIndex> {
        let lists = self.lists.chunks_exact(self.members.len().max(1));
        lists.flat_map(|list| &list[..usize::from(default_from).min(list.len())]).copied().collect()
    }
}
