//! Operators that change the members: hosts join, leave, replace each other and are declared dead.
//!
//! **Mechanism.** Each host that is not a member at first begins to join at a random time. Then
//! operators begin plans that mix additions, removals, replacements and weights, and cancel, pause
//! and resume them. Sometimes two operators give commands to two nodes at the same time. A node
//! that was removed may join again with an empty directory.
//!
//! A member that is to be declared dead is switched off for good, or cut off while it runs and has
//! clients. It may return later, with its directory. Plans of operators remove or replace it.
//!
//! **Limits.** See [`MemberChanges`].

use super::plans::{WEIGHT_MAX, WITHIN_MAX, WITHIN_MIN, draw_control};
use crate::host::EndCause;
use crate::scenario::MemberChanges;
use crate::world::members::{has_member_on, host_of};
use crate::world::{World, WorldEvent};
use cluster::{
    LayoutCommand, LayoutMember, LayoutRecord, MemberState, NodeIndex, PlacementChange, PlacementPlan,
    PlannedChange, Requester,
};
use std::sync::Arc;
use std::time::Duration;
use stdx::{NodeTag, Rng};

/// Part of the safety phase in which the hosts begin to join for the first time.
const FIRST_JOINS: f64 = 0.5;
/// Longest time for which a member that is declared dead is off or cut off, if it returns.
const AWAY_MAX: Duration = Duration::from_secs(10);

/// Number of times at which operators act beside the commands on plans that every run has.
const TIMES: u64 = 12;
/// Fraction of commands that resume a paused plan, and of those that change a running one. The
/// others are none, so that plans come to their ends.
const RESUMED: f64 = 0.5;
const CONTROLLED: f64 = 0.3;

/// A member that is off or cut off, and declared dead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeadMember {
    pub(crate) host: NodeIndex,
    pub(crate) id: NodeTag,
}

impl World {
    /// Schedules the first joins within a part of `within`, and the times at which operators act.
    pub(super) fn begin_member_changes(&mut self, within: Duration) {
        if self.scenario.dimensions.member_changes().is_none() {
            return;
        }
        for host in self.scenario.nodes..self.scenario.hosts() {
            let most = within.mul_f64(FIRST_JOINS).as_nanos() as u64;
            let delay = Duration::from_nanos(1 + self.layout_rng().below(most));
            self.after(delay, WorldEvent::BeginJoin(NodeIndex(host)));
        }
        for _ in 0..TIMES {
            let delay = Duration::from_nanos(1 + self.layout_rng().below(within.as_nanos() as u64));
            self.after(delay, WorldEvent::CommandLayout);
        }
    }

    /// Has one or two operators act.
    pub(super) fn change_members(&mut self, changes: MemberChanges) {
        const TWO: f64 = 0.2;
        let operators = 1 + u64::from(self.layout_rng().chance(TWO));
        for _ in 0..operators {
            match self.layout_rng().below(8) {
                0 => self.join_again(),
                1 | 2 if changes.has_deaths => self.declare_a_death(changes),
                _ => self.command_members(changes),
            }
        }
    }

    /// Has the node of a host that was removed, or was refused, join again.
    fn join_again(&mut self) {
        let Some(record) = self.newest_record().cloned() else { return };
        let idle = self.idle_hosts(&record);
        if !idle.is_empty() {
            let host = idle[self.layout_rng().below(idle.len() as u64) as usize];
            self.begin_join_again(host);
        }
    }

    /// Hosts without a process whose nodes are no members.
    fn idle_hosts(&self, record: &LayoutRecord) -> Vec<NodeIndex> {
        let is_idle = |host: &NodeIndex| {
            let state = &self.hosts[host.as_usize()];
            state.process.is_none() && !state.is_off && !has_member_on(record, *host)
        };
        self.hosts_of_nodes().filter(is_idle).collect()
    }

    /// Has the node of a host that is no member join, with an empty directory if it was a member.
    pub(crate) fn begin_join_again(&mut self, host: NodeIndex) {
        let is_member = self.newest_record().is_none_or(|record| has_member_on(record, host));
        if self.host(host).process.is_some() || self.is_joining(host) || is_member {
            return;
        }
        if self.has_identity(host) {
            self.empty_for_join(host);
        }
        self.begin_join(host);
    }

    /// Gives a node a command on the members, or on the running plan.
    fn command_members(&mut self, changes: MemberChanges) {
        let node = self.draw_proposer();
        let Some((node, record)) = self.adopted_by_running(node) else { return };
        let (nodes, limit_min) = (self.scenario.nodes, self.limit_min());
        let victim = self.dead_member.map(|dead| dead.host);
        // A member that is to be declared dead holds no data soon.
        let may_leave =
            |host: NodeIndex| Some(host) != victim && (changes.first_members_leave || host.0 >= nodes);
        let rng = self.layout_rng();
        let command = match &record.plan {
            None => {
                draw_member_plan(&record, changes.members_min + u8::from(victim.is_some()), may_leave, rng)
                    .map(|change| LayoutCommand::Begin(Box::new(change)))
            }
            Some(plan) if plan.is_paused && rng.chance(RESUMED) => Some(LayoutCommand::Resume),
            Some(_) => rng.chance(CONTROLLED).then(|| draw_control(limit_min, rng)),
        };
        if let Some(command) = command {
            self.command_at(node, command);
        }
    }

    /// The record of a node that runs and is not paused.
    fn adopted_by_running(&self, node: NodeIndex) -> Option<(NodeIndex, Arc<LayoutRecord>)> {
        let record = self.adopted_layout(node)?;
        self.hosts[node.as_usize()].paused.is_none().then_some((node, record))
    }

    fn command_at(&mut self, node: NodeIndex, command: LayoutCommand) {
        let spread = (WITHIN_MAX - WITHIN_MIN).as_nanos() as u64;
        let within = WITHIN_MIN + Duration::from_nanos(self.layout_rng().below(spread));
        if let Some(endpoint) = self.endpoint(node, Requester::Node) {
            self.give_layout_command(endpoint, command, within);
        }
    }

    /// Switches a member off for good or cuts it off, and declares it dead; or declares the member
    /// dead again that is off, if that was not decided.
    fn declare_a_death(&mut self, changes: MemberChanges) {
        let Some(record) = self.newest_record().cloned() else { return };
        let is_named = |dead: &DeadMember| record.members.iter().any(|it| it.node_id == Some(dead.id));
        self.dead_member = self.dead_member.filter(is_named);
        if self.dead_member.is_none() {
            self.dead_member = self.draw_death(&record, changes);
        }
        let Some(DeadMember { host, id }) = self.dead_member else { return };
        let others: Vec<NodeIndex> = self.nodes().filter(|node| *node != host).collect();
        if others.is_empty() {
            return;
        }
        let node = others[self.layout_rng().below(others.len() as u64) as usize];
        if let Some((node, _)) = self.adopted_by_running(node) {
            self.command_at(node, LayoutCommand::DeclareDead(vec![id]));
        }
    }

    fn draw_death(&mut self, record: &LayoutRecord, changes: MemberChanges) -> Option<DeadMember> {
        let has_state = |state| record.members.iter().filter(move |member| member.state == state);
        let holders = has_state(MemberState::Active).count();
        let has_enough = holders > usize::from(changes.members_min) && record.voters.len() >= 3;
        if has_state(MemberState::Dead).next().is_some() || !has_enough {
            return None;
        }
        let named = record.members.iter().filter_map(|it| Some((host_of(&it.url)?, it.node_id?)));
        let named: Vec<(NodeIndex, NodeTag)> = named.collect();
        let rng = self.layout_rng();
        let (host, id) = *named.get(rng.below(named.len().max(1) as u64) as usize)?;
        let (is_off, returns) = (rng.chance(0.5), rng.chance(0.5));
        let after = Duration::from_nanos(rng.below(AWAY_MAX.as_nanos() as u64));
        self.trace.note(self.now, || format!("! {host:?} is to be declared dead, off: {is_off}"));
        if is_off {
            self.end_process(host, EndCause::PowerLoss, None);
            self.host(host).is_off = true;
        } else {
            self.isolate(host);
        }
        if returns {
            self.after(after, WorldEvent::Return(host));
        }
        Some(DeadMember { host, id })
    }

    /// Whether the newest record has dead members.
    pub(crate) fn has_dead_members(&self) -> bool {
        let is_dead = |member: &LayoutMember| member.state == MemberState::Dead;
        self.newest_record().is_some_and(|record| record.members.iter().any(is_dead))
    }

    /// Has operators remove members that are dead, and cancel a plan that needs one of them. If too
    /// few members would be left, another node joins and replaces the dead one. Returns whether
    /// nothing was left to do.
    pub(crate) fn remove_dead_members(&mut self) -> bool {
        let Some(record) = self.newest_record().cloned() else { return true };
        let is_dead = |member: &&LayoutMember| member.state == MemberState::Dead;
        let dead: Vec<&LayoutMember> = record.members.iter().filter(is_dead).collect();
        if dead.is_empty() {
            return true;
        }
        let node = self.draw_proposer();
        let needs_dead = |target: &[NodeIndex]| dead.iter().any(|member| target.contains(&member.slot));
        match &record.plan {
            Some(plan) if needs_dead(&plan.target) => self.command_at(node, LayoutCommand::Cancel),
            Some(_) => {}
            None => {
                let mut joining = record.members.iter().filter(|it| it.state == MemberState::Joining);
                let change = |member: &&LayoutMember| match joining.next() {
                    Some(new) => PlacementChange::Replace {
                        old: member.url.clone(),
                        new: new.url.clone(),
                        is_dead: true,
                    },
                    None => PlacementChange::Remove { url: member.url.clone() },
                };
                let changes: Vec<PlacementChange> = dead.iter().map(change).collect();
                match PlacementPlan::new(&record, &changes) {
                    Ok(plan) => {
                        let change = PlannedChange { base: Arc::clone(&record), plan, rate_limit: None };
                        self.command_at(node, LayoutCommand::Begin(Box::new(change)));
                    }
                    Err(_) if !self.has_joins() => {
                        let idle = self.idle_hosts(&record).first().copied();
                        idle.into_iter().for_each(|host| self.begin_join_again(host));
                    }
                    Err(_) => {}
                }
            }
        }
        false
    }
}

/// Draws a plan that mixes changes of the members. At least `members_min` members hold data after
/// it. `may_leave`: whether the member on a host may be removed.
fn draw_member_plan(
    record: &Arc<LayoutRecord>,
    members_min: u8,
    may_leave: impl Fn(NodeIndex) -> bool,
    rng: &mut Rng,
) -> Option<PlannedChange> {
    const REPLACES: f64 = 0.5;
    const ADDS: f64 = 0.8;
    const LEAVES: f64 = 0.5;
    const WEIGHS: f64 = 0.2;
    let with_state = |state| {
        let members = record.members.iter().filter(move |member| member.state == state);
        members.map(|member| member.url.clone()).collect::<Vec<String>>()
    };
    let mut joining = with_state(MemberState::Joining);
    let active = with_state(MemberState::Active);
    let mut left = active.len();
    let mut changes = Vec::new();
    for old in with_state(MemberState::Dead) {
        match joining.pop().filter(|_| rng.chance(REPLACES)) {
            Some(new) => {
                left += 1;
                changes.push(PlacementChange::Replace { old, new, is_dead: true });
            }
            None => changes.push(PlacementChange::Remove { url: old }),
        }
    }
    let first = rng.below(active.len().max(1) as u64) as usize;
    for url in active.iter().cycle().skip(first).take(active.len()) {
        let leaves = host_of(url).is_some_and(&may_leave) && rng.chance(LEAVES);
        if leaves
            && rng.chance(REPLACES)
            && let Some(new) = joining.pop()
        {
            changes.push(PlacementChange::Replace { old: url.clone(), new, is_dead: false });
        } else if leaves && left > usize::from(members_min) {
            left -= 1;
            changes.push(PlacementChange::Remove { url: url.clone() });
        } else if rng.chance(WEIGHS) {
            let weight = 1 + rng.below(WEIGHT_MAX) as u16;
            changes.push(PlacementChange::Weight { url: url.clone(), weight });
        }
    }
    for url in joining {
        if rng.chance(ADDS) {
            changes.push(PlacementChange::Add { url });
        }
    }
    let plan = PlacementPlan::new(record, &changes).ok()?;
    Some(PlannedChange { base: Arc::clone(record), plan, rate_limit: None })
}
