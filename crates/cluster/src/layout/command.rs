//! Commands of operators on the members and the placement, as pure functions on records.
//!
//! **Promise.** A command returns the child of the record in which it takes effect, or the reason
//! why it does not. The child meets [`LayoutRecord::verify`]. The record itself is not changed, and
//! a command that is refused has no effect.
//!
//! **Mechanism.** A change of the placement takes these commands, each of which is one record:
//!
//! 1. [`LayoutRecord::with_joined`]: the node is a joining member, last in every list. It moves no
//!    data.
//! 2. [`LayoutRecord::with_plan`]: the change that [`PlacementPlan`] has found begins. Members that
//!    are to be removed are leaving, and weights and zones are those after the change.
//! 3. The driver carries out the plan, record by record. At its end the joining members are active,
//!    and the leaving ones are removed.
//!
//! Meanwhile an operator may pause, resume and cancel it. A cancelled plan begins no swap and takes
//! back those that are not complete. Leaving members are active again.
//!
//! **Caveats.** Data that a cancelled plan has moved already stays in its place. A plan without
//! changes restores the balance of the active members: it also empties members that were joining.
//! Joining, a death and the end of a plan are records of their own, so two commands at once may
//! meet a newer record. Then one of them is refused by the agreement, and is to be repeated.

use super::record::WEIGHT_DEFAULT;
use super::{
    FEATURE_LEVEL_PLANS, LayoutMember, LayoutRecord, LayoutRecordError, MemberState, NODES_MAX, NodeIndex,
    NodeSet, PlacementPlan, RateLimit, RunningPlan, URL_BYTES_MAX, ZONE_BYTES_MAX,
};
use stdx::NodeTag;

/// A node that asks to be a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoiningNode {
    /// Id of its data directory.
    pub id: NodeTag,
    /// Address at which it is reached.
    pub url: String,
    /// Its failure domain; empty for none.
    pub zone: String,
    /// Its weight, at least 1.
    pub weight: u16,
    /// Greatest feature level of the layout records that it carries out.
    pub feature_level_max: u32,
    /// Address at which it has reached the member that it asks. A node that was alone and has no
    /// URL gets this one.
    pub member_url: String,
}

/// The reason why a command on the layout is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandRefusal {
    /// The members of the cluster need not support plans.
    #[error(
        "the cluster has feature level {level}, and members change from level {FEATURE_LEVEL_PLANS} on: upgrade \
         all nodes"
    )]
    NoPlans {
        /// Feature level of the record.
        level: u32,
    },
    /// A plan runs, and only one can.
    #[error("a change is running: wait for its end, or cancel it")]
    PlanRuns,
    /// No plan runs.
    #[error("no change is running")]
    NoPlan,
    /// The plan was cancelled already.
    #[error("the change was cancelled, and ends once its swaps are taken back")]
    IsCancelled,
    /// The plan is paused already.
    #[error("the change is paused already")]
    IsPaused,
    /// The plan is not paused.
    #[error("the change is not paused")]
    NotPaused,
    /// The members have changed since the plan was made.
    #[error("the members have changed since this plan was made: plan again")]
    PlanOutdated,
    /// A node of the plan is not a member yet.
    #[error("{url} is not a member yet: start it with `veche serve --join` first")]
    HasToJoin {
        /// URL of the node.
        url: String,
    },
    /// Fewer members than the default number of replicas would be left.
    #[error("{remaining} nodes would hold data, and each key has {default_from} replicas")]
    TooFewMembers {
        /// Number of members that would hold data.
        remaining: usize,
        /// The default number of replicas.
        default_from: u8,
    },
    /// There are as many members as a cluster can have.
    #[error("the cluster has {NODES_MAX} members, which is the most: remove one first")]
    TooManyMembers,
    /// The URL, zone, weight or id of the node is out of bounds.
    #[error(
        "the URL of a node has 1 to {URL_BYTES_MAX} bytes, its zone at most {ZONE_BYTES_MAX}, its weight is at \
         least {WEIGHT_DEFAULT}, and its id is not zero"
    )]
    NodeBounds,
    /// A member has the URL or the id of the node.
    #[error("a member has the URL or the id of {url} already")]
    IsMember {
        /// URL of the node.
        url: String,
    },
    /// The node does not carry out the records of the cluster.
    #[error(
        "the cluster has feature level {level}, and {url} supports up to {max}: install the release of the members on it"
    )]
    NodeLevel {
        /// URL of the node.
        url: String,
        /// Feature level of the record.
        level: u32,
        /// Greatest feature level of the node.
        max: u32,
    },
    /// The node was removed, or another node has taken its slot.
    #[error("this node was removed from the cluster or replaced: start it with an empty data directory")]
    FormerNode,
    /// No member has this slot.
    #[error("there is no member with slot {}", slot.0)]
    NoSuchMember {
        /// The slot.
        slot: NodeIndex,
    },
    /// No member has this id.
    #[error("no member has the node id {:016x}", id.0)]
    NoSuchNode {
        /// The id.
        id: NodeTag,
    },
    /// The member is dead already.
    #[error("the member in slot {} is dead already", slot.0)]
    IsDead {
        /// The slot.
        slot: NodeIndex,
    },
    /// The record that the command makes breaks a constraint.
    #[error("the record would not follow from the present one: {0}")]
    Record(#[from] LayoutRecordError),
}

impl LayoutRecord {
    /// The record in which `node` has joined: last in every list, in the least free slot.
    ///
    /// # Errors
    /// [`CommandRefusal`].
    pub fn with_joined(&self, node: JoiningNode) -> Result<Self, CommandRefusal> {
        let mut record = self.next_with_plans()?;
        let JoiningNode { id, url, zone, weight, feature_level_max: max, member_url } = node;
        let is_url = |url: &str| (1..=URL_BYTES_MAX).contains(&url.len());
        let is_bounded = is_url(&url) && is_url(&member_url) && zone.len() <= ZONE_BYTES_MAX;
        if !is_bounded || weight < WEIGHT_DEFAULT || id == NodeTag(0) {
            return Err(CommandRefusal::NodeBounds);
        }
        let level = self.feature_level;
        if max < level {
            return Err(CommandRefusal::NodeLevel { url, level, max });
        }
        if self.is_former_id(id) {
            return Err(CommandRefusal::FormerNode);
        }
        if self.members.iter().any(|member| member.url == url || member.node_id == Some(id)) {
            return Err(CommandRefusal::IsMember { url });
        }
        if let [alone] = &mut record.members[..]
            && alone.url.is_empty()
        {
            if member_url == url {
                return Err(CommandRefusal::IsMember { url });
            }
            alone.url = member_url;
        }
        if self.members.len() == NODES_MAX {
            return Err(CommandRefusal::TooManyMembers);
        }
        let position = (0..).zip(&self.members).take_while(|(slot, member)| member.slot.0 == *slot).count();
        let slot = NodeIndex(position as u8);
        let state = MemberState::Joining;
        record.members.insert(position, LayoutMember { slot, node_id: Some(id), url, zone, weight, state });
        let lists = self.lists.chunks_exact(self.members.len());
        record.lists = lists.flat_map(|list| list.iter().copied().chain([slot])).collect();
        record.verified_after(self)
    }

    /// The record in which these members are dead. Their operator states that they do not come
    /// back.
    ///
    /// # Errors
    /// [`CommandRefusal`].
    pub fn with_dead(&self, dead: NodeSet) -> Result<Self, CommandRefusal> {
        let mut record = self.next_with_plans()?;
        for slot in dead.iter() {
            match self.member(slot) {
                None => return Err(CommandRefusal::NoSuchMember { slot }),
                Some(member) if member.state == MemberState::Dead => {
                    return Err(CommandRefusal::IsDead { slot });
                }
                Some(_) => {}
            }
        }
        record.declare_dead(dead);
        if record.members.iter().all(|member| member.state == MemberState::Dead) {
            return Err(LayoutRecordError::NoMemberRemains.into());
        }
        record.verified_after(self)
    }

    /// The record in which `plan` begins.
    ///
    /// # Errors
    /// [`CommandRefusal`].
    pub fn with_plan(&self, plan: &PlacementPlan) -> Result<Self, CommandRefusal> {
        let mut record = self.next_with_plans()?;
        if self.plan.is_some() {
            return Err(CommandRefusal::PlanRuns);
        }
        if let Some(member) = plan.appended.first() {
            return Err(CommandRefusal::HasToJoin { url: member.url.clone() });
        }
        let remaining: NodeSet = plan.members.iter().map(|member| member.slot).collect();
        let is_same = |planned: &LayoutMember| {
            self.member(planned.slot).is_some_and(|member| {
                (member.node_id, &member.url) == (planned.node_id, &planned.url)
                    && member.state != MemberState::Dead
            })
        };
        let has_all = remaining.union(plan.removed) == self.slots()
            && remaining.intersection(plan.removed).is_empty()
            && plan.lists.len() == self.changed.len() * plan.members.len();
        if !has_all || !plan.members.iter().all(is_same) {
            return Err(CommandRefusal::PlanOutdated);
        }
        let default_from = self.default_from;
        let target = plan.target(default_from);
        let holders = target.iter().copied().collect::<NodeSet>().len();
        if holders < default_from {
            return Err(CommandRefusal::TooFewMembers { remaining: holders.into(), default_from });
        }
        for planned in &plan.members {
            let member = record.members.iter_mut().find(|member| member.slot == planned.slot);
            let member = member.expect("the members are the same");
            (member.weight, member.zone) = (planned.weight, planned.zone.clone());
        }
        let is_dead = |member: &LayoutMember| member.state == MemberState::Dead;
        let died = record.members.iter().filter(|member| plan.dead.contains(member.slot) && !is_dead(member));
        let died: NodeSet = died.map(|member| member.slot).collect();
        if !died.is_empty() {
            record.declare_dead(died);
        }
        for member in record.members.iter_mut().filter(|member| plan.removed.contains(member.slot)) {
            if !is_dead(member) {
                member.state = MemberState::Leaving;
            }
        }
        record.plan = Some(RunningPlan { target, ..RunningPlan::new(record.epoch) });
        record.verified_after(self)
    }

    /// The record in which the plan begins no further swap.
    ///
    /// # Errors
    /// [`CommandRefusal`].
    pub fn with_plan_paused(&self) -> Result<Self, CommandRefusal> {
        self.with_changed_plan(|plan| match plan.is_paused {
            true => Err(CommandRefusal::IsPaused),
            false => {
                plan.is_paused = true;
                Ok(())
            }
        })
    }

    /// The record in which a paused plan goes on.
    ///
    /// # Errors
    /// [`CommandRefusal`].
    pub fn with_plan_resumed(&self) -> Result<Self, CommandRefusal> {
        self.with_changed_plan(|plan| match plan.is_paused {
            true => {
                plan.is_paused = false;
                Ok(())
            }
            false => Err(CommandRefusal::NotPaused),
        })
    }

    /// The record in which the data of the plan moves at most at this rate.
    ///
    /// # Errors
    /// [`CommandRefusal`].
    pub fn with_plan_limited(&self, limit: Option<RateLimit>) -> Result<Self, CommandRefusal> {
        self.with_changed_plan(|plan| {
            plan.rate_limit = limit;
            Ok(())
        })
    }

    /// This record with another limit of its plan.
    pub(crate) fn with_rate_limit(mut self, limit: Option<RateLimit>) -> Self {
        if let Some(plan) = &mut self.plan {
            plan.rate_limit = limit;
        }
        self
    }

    /// The record in which the plan is cancelled. Members that were leaving are active again.
    ///
    /// # Errors
    /// [`CommandRefusal`].
    pub fn with_plan_cancelled(&self) -> Result<Self, CommandRefusal> {
        let mut record = self.with_changed_plan(|plan| {
            (plan.target, plan.is_paused) = (Vec::new(), false);
            Ok(())
        })?;
        for member in record.members.iter_mut().filter(|member| member.state == MemberState::Leaving) {
            member.state = MemberState::Active;
        }
        record.verified_after(self)
    }

    fn with_changed_plan(
        &self,
        change: impl FnOnce(&mut RunningPlan) -> Result<(), CommandRefusal>,
    ) -> Result<Self, CommandRefusal> {
        let mut record = self.next_with_plans()?;
        let plan = record.plan.as_mut().ok_or(CommandRefusal::NoPlan)?;
        if plan.target.is_empty() {
            return Err(CommandRefusal::IsCancelled);
        }
        change(plan)?;
        record.verified_after(self)
    }

    /// Checks that members may change: all of them support plans.
    ///
    /// # Errors
    /// [`CommandRefusal::NoPlans`].
    pub const fn check_plans_supported(&self) -> Result<(), CommandRefusal> {
        let level = self.feature_level;
        match level < FEATURE_LEVEL_PLANS {
            true => Err(CommandRefusal::NoPlans { level }),
            false => Ok(()),
        }
    }

    /// The next record, if members need to support plans.
    fn next_with_plans(&self) -> Result<Self, CommandRefusal> {
        self.check_plans_supported()?;
        Ok(self.next().ok_or(LayoutRecordError::NotTheChild)?)
    }

    fn verified_after(self, parent: &Self) -> Result<Self, CommandRefusal> {
        self.verify(parent)?;
        Ok(self)
    }
}
