//! Commands on the layout that the host lets the node carry out: joins, plans and their control.
//!
//! **Promise.**
//!
//! 1. A command that [`Node::begin_layout_command`] takes ends with exactly one
//!    [`LayoutCommandOutcome`], unless the process ends first.
//! 2. [`Done`](LayoutCommandOutcome::Done): a decided record has the effect of the command.
//!    [`Refused`](LayoutCommandOutcome::Refused) and
//!    [`NotDecided`](LayoutCommandOutcome::NotDecided): no record has it because of this command,
//!    and none will. [`Unknown`](LayoutCommandOutcome::Unknown) promises nothing.
//! 3. A command takes effect at most once.
//!
//! **Mechanism.** Any member carries out a command, whether it is a voter or not. The node computes
//! the child of the newest record that it has adopted, by the functions of
//! [`LayoutRecord`](crate::LayoutRecord), and proposes it. If another record is decided for that
//! epoch, the node computes the child of that one, and so on until the time of the command is over.
//! A command that does not apply to the newest record is refused.
//!
//! A node that lags is brought up to date on the way: it waits for the records that its peers
//! report, and voters answer a proposal of an old epoch with the record that they hold.
//!
//! Whether a proposed record may be decided later depends on whether it was *offered*: sent to
//! voters in an accept request. A record that was not offered is never decided, so its command can
//! be proposed again. A record that was offered is decided or not as soon as the node knows the
//! decided record of its epoch, or the parent hash of the next one. If the node finds neither, it
//! looks for the effect of the command in the newest record. A command whose fate stays open is not
//! proposed again.
//!
//! Commands of a node are carried out one after the other. A command goes before reconciliation,
//! whose proposal it ends, and waits for a proposal of the host.
//!
//! **Caveats.** A refusal is judged by the newest record that the node has heard of, which an
//! isolated node cannot know. Two nodes at which the same command is begun in one epoch propose
//! equal records, and both report it as done.

use super::proposal::ProposalRequester;
use super::{Agreement, AgreementEffect};
use crate::quorum::is_majority;
use crate::{
    ChainRecord, CommandRefusal, JoiningNode, LayoutEpoch, LayoutMember, LayoutRecord, MemberState, Node,
    NodeSet, PlacementPlan, ProposalOutcome, ProposeError, RateLimit, RecordHash,
};
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, NodeTag, Now};

/// Most commands of a node that wait or are being decided.
const COMMANDS_MAX: usize = 16;

/// Number of a command, which the host chooses. The outcome names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayoutCommandId(pub u64);

/// A change of the layout record on request of an operator or of a node that joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutCommand {
    /// The node becomes a member that holds nothing yet.
    Join(JoiningNode),
    /// The nodes with these ids do not come back.
    DeclareDead(Vec<NodeTag>),
    /// The change of the placement begins.
    Begin(Box<PlannedChange>),
    /// The running change begins no further swap.
    Pause,
    /// The paused change goes on.
    Resume,
    /// The running change ends, and takes back the swaps that are not complete.
    Cancel,
    /// The rate at which data of the running change moves. `None`: without a limit.
    Limit(Option<RateLimit>),
}

/// A change of the placement that was planned from a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedChange {
    /// The record that the plan was made from. The change is refused if members or lists have
    /// changed since.
    pub base: Arc<LayoutRecord>,
    /// The plan.
    pub plan: PlacementPlan,
    /// The rate at which its data moves. `None`: without a limit.
    pub rate_limit: Option<RateLimit>,
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutCommandOutcome {
    /// The command has taken effect.
    Done {
        /// Epoch of the record with its effect. If several records were decided meanwhile, the
        /// first one in which this node has found it.
        epoch: LayoutEpoch,
        /// The newest record that this node has adopted: of this epoch or a later one.
        record: Arc<LayoutRecord>,
    },
    /// The command does not apply to the newest record.
    Refused(CommandRefusal),
    /// The command was not decided in time. It has no effect and will have none.
    NotDecided(CommandObstacle),
    /// The command may have taken effect, or may do so later.
    Unknown,
}

/// The reason why a command was not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandObstacle {
    /// The node takes no part in the agreement on layout records.
    #[error("this node takes no part in the agreement on layout records")]
    NoPart,
    /// Another change was being decided, or too many were requested.
    #[error("other changes of the layout were being decided")]
    Busy,
    /// A newer record was heard of and not adopted.
    #[error("the newest layout record was not adopted here")]
    Lags,
    /// Too few voters are reachable and vote.
    #[error("{able} of the {voters} voters can be reached and vote, which is no majority")]
    NoMajority {
        /// Number of voters that are reachable and vote.
        able: usize,
        /// Number of voters.
        voters: usize,
    },
    /// A majority of voters is reachable and has not answered.
    #[error("no majority of the voters has answered")]
    NoAnswer,
}

/// The commands that have not ended, in the order in which they are carried out.
#[derive(Debug, Default)]
pub(super) struct Commands {
    queue: VecDeque<PendingCommand>,
}

#[derive(Debug)]
struct PendingCommand {
    id: LayoutCommandId,
    command: LayoutCommand,
    end_at: Instant,
    /// The last reason why it was not proposed.
    obstacle: CommandObstacle,
    /// Epoch of the last record that it was found to apply to: the child is not computed again
    /// while the command waits.
    applies_to: Option<LayoutEpoch>,
}

/// The end of a proposal, for the command that it was made for.
#[derive(Debug)]
pub(super) struct CommandProposalEnd {
    pub(super) own: Arc<LayoutRecord>,
    pub(super) outcome: ProposalOutcome,
    /// Whether the own record was sent to voters in an accept request.
    pub(super) is_offered: bool,
}

/// The next step of the first command.
enum CommandStep {
    Propose(Arc<LayoutRecord>, Arc<LayoutRecord>),
    End(LayoutCommandOutcome),
    Wait { obstacle: CommandObstacle, applies_to: Option<LayoutEpoch> },
}

impl LayoutCommand {
    /// The child of `record` in which the command takes effect.
    ///
    /// # Errors
    /// [`CommandRefusal`].
    pub fn apply(&self, record: &LayoutRecord) -> Result<LayoutRecord, CommandRefusal> {
        match self {
            Self::Join(node) => record.with_joined(node.clone()),
            Self::DeclareDead(ids) => record.with_dead(slots_of(record, ids)?),
            Self::Begin(change) => change.apply(record),
            Self::Pause => record.with_plan_paused(),
            Self::Resume => record.with_plan_resumed(),
            Self::Cancel => record.with_plan_cancelled(),
            Self::Limit(limit) => record.with_plan_limited(*limit),
        }
    }

    /// Whether `record`, which is later than the proposed record `own`, has the effect of the
    /// command.
    fn has_effect_in(&self, record: &LayoutRecord, own: &LayoutRecord) -> bool {
        let (Some(plan), Some(proposed)) = (&record.plan, &own.plan) else {
            return self.has_effect_on_members(record);
        };
        let is_same = plan.began == proposed.began;
        match self {
            Self::Join(_) | Self::DeclareDead(_) => self.has_effect_on_members(record),
            Self::Begin(_) => is_same && plan.target == proposed.target,
            Self::Pause | Self::Resume => is_same && plan.is_paused == proposed.is_paused,
            Self::Cancel => is_same && plan.target.is_empty(),
            Self::Limit(limit) => is_same && plan.rate_limit == *limit,
        }
    }

    fn has_effect_on_members(&self, record: &LayoutRecord) -> bool {
        let member = |id: &NodeTag| record.members.iter().find(|member| member.node_id == Some(*id));
        match self {
            Self::Join(node) => member(&node.id).is_some(),
            Self::DeclareDead(ids) => {
                ids.iter().all(|id| member(id).is_none_or(|member| member.state == MemberState::Dead))
            }
            _ => false,
        }
    }
}

impl PlannedChange {
    /// Number of hexadecimal digits of a name.
    pub const NAME_DIGITS: usize = 16;

    /// Name of the plan: 16 hexadecimal digits of a hash of the record that it was made from, of
    /// its result and of its limit. Equal plans have equal names.
    pub fn name(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.base.hash().0);
        let PlacementPlan { members, lists, appended: _, swaps: _, removed, dead } = &self.plan;
        for LayoutMember { slot, node_id, url, zone, weight, state: _ } in members {
            hash.update([slot.0]);
            hash.update(node_id.map_or(0, |id| id.0).to_le_bytes());
            hash.update(weight.to_le_bytes());
            for text in [url, zone] {
                hash.update((text.len() as u64).to_le_bytes());
                hash.update(text);
            }
        }
        let slots = [*removed, *dead].map(|set| set.iter().map(|slot| slot.0).collect::<Vec<_>>());
        slots.iter().for_each(|slots| {
            hash.update([slots.len() as u8]);
            hash.update(slots);
        });
        hash.update(lists.iter().map(|slot| slot.0).collect::<Vec<_>>());
        hash.update(self.rate_limit.map_or(0, RateLimit::bytes_per_second).to_le_bytes());
        let digits = RecordHash(hash.finalize().into()).to_string();
        digits[..Self::NAME_DIGITS].to_owned()
    }

    fn apply(&self, record: &LayoutRecord) -> Result<LayoutRecord, CommandRefusal> {
        let begun = record.with_plan(&self.plan)?;
        let is_same = |former: &LayoutRecord| {
            (&former.members, &former.lists, former.default_from)
                == (&record.members, &record.lists, record.default_from)
        };
        match is_same(&self.base) {
            true => Ok(begun.with_rate_limit(self.rate_limit)),
            false => Err(CommandRefusal::PlanOutdated),
        }
    }
}

/// The slots of the members with these ids.
fn slots_of(record: &LayoutRecord, ids: &[NodeTag]) -> Result<NodeSet, CommandRefusal> {
    let slot = |id: &NodeTag| {
        let member = record.members.iter().find(|member| member.node_id == Some(*id));
        member.map(|member| member.slot).ok_or(CommandRefusal::NoSuchNode { id: *id })
    };
    ids.iter().map(slot).collect()
}

impl Node {
    /// Begins to carry out `command`, for at most `within`. The end is reported with
    /// [`AgreementEffect::CommandEnded`].
    ///
    /// # Errors
    /// [`ProposeError::NoPart`], or [`ProposeError::Busy`] if too many commands have not ended.
    /// Nothing was begun, and no outcome follows.
    pub fn begin_layout_command(
        &mut self,
        now: Now,
        id: LayoutCommandId,
        command: LayoutCommand,
        within: Duration,
    ) -> Result<(), ProposeError> {
        let agreement = self.agreement.as_mut().ok_or(ProposeError::NoPart)?;
        let queue = &mut agreement.commands.queue;
        if queue.len() >= COMMANDS_MAX {
            return Err(ProposeError::Busy);
        }
        queue.push_back(PendingCommand {
            id,
            command,
            end_at: now.mono + within,
            obstacle: CommandObstacle::Busy,
            applies_to: None,
        });
        self.advance(now);
        Ok(())
    }

    /// Takes the next step of the first command. Returns whether a proposal was begun.
    pub(super) fn advance_commands(&mut self, now: Now) -> bool {
        match &mut self.agreement {
            Some(agreement) if !agreement.commands.queue.is_empty() => agreement.end_late_commands(now.mono),
            _ => return false,
        }
        while let Some(step) = self.next_command_step() {
            let Some(agreement) = &mut self.agreement else { return false };
            match step {
                CommandStep::End(outcome) => agreement.end_command(outcome),
                CommandStep::Wait { obstacle, applies_to } => {
                    let queue = &mut agreement.commands.queue;
                    queue.iter_mut().for_each(|pending| pending.obstacle = obstacle);
                    if let Some(first) = queue.front_mut() {
                        first.applies_to = applies_to;
                    }
                    return false;
                }
                CommandStep::Propose(parent, own) => {
                    let Some(first) = agreement.commands.queue.front() else { return false };
                    let within = first.end_at.saturating_since(now.mono);
                    agreement.proposals.end();
                    self.begin_proposal(now, (parent, own), within, ProposalRequester::Command);
                    return true;
                }
            }
        }
        false
    }

    /// The next step of the first command. `None`: there is no command, or it is being decided.
    fn next_command_step(&self) -> Option<CommandStep> {
        let agreement = self.agreement.as_ref()?;
        let first = agreement.commands.queue.front()?;
        if agreement.proposals.is_for_command() {
            return None;
        }
        let parent = &agreement.adopted.record;
        if agreement.voter.decided().epoch > parent.epoch || self.hears_newer_record() {
            return Some(CommandStep::Wait { obstacle: CommandObstacle::Lags, applies_to: first.applies_to });
        }
        let obstacle = self.obstacle_to_proposal(agreement);
        if obstacle.is_none() || first.applies_to != Some(parent.epoch) {
            let child = first.command.apply(parent).and_then(|child| {
                agreement.voter.check_supported(&child)?;
                Ok(child)
            });
            match (child, obstacle) {
                (Err(refusal), _) => return Some(CommandStep::End(LayoutCommandOutcome::Refused(refusal))),
                (Ok(own), None) => return Some(CommandStep::Propose(Arc::clone(parent), Arc::new(own))),
                (Ok(_), Some(_)) => {}
            }
        }
        obstacle.map(|obstacle| CommandStep::Wait { obstacle, applies_to: Some(parent.epoch) })
    }

    /// The reason why the child of the adopted record cannot be proposed now.
    fn obstacle_to_proposal(&self, agreement: &Agreement) -> Option<CommandObstacle> {
        if agreement.proposals.is_for_host() {
            return Some(CommandObstacle::Busy);
        }
        let parent = &agreement.adopted.record;
        let able = self.reachable_voters(parent).without(self.forgetful_voters(parent)).len();
        let (able, voters) = (usize::from(able), parent.voters.len());
        let can_decide = !parent.needs_all_voters() && is_majority(able, voters);
        (!can_decide).then_some(CommandObstacle::NoMajority { able, voters })
    }
}

impl Agreement {
    /// Handles the end of the proposal of the first command.
    pub(super) fn end_command_proposal(&mut self, end: CommandProposalEnd) {
        let Some(first) = self.commands.queue.front() else { return };
        if let Some(outcome) = self.outcome_of(&first.command, end) {
            self.end_command(outcome);
        }
    }

    /// The outcome of a command after its proposal has ended. `None`: it has not taken effect, and
    /// may be proposed again.
    fn outcome_of(&self, command: &LayoutCommand, end: CommandProposalEnd) -> Option<LayoutCommandOutcome> {
        let CommandProposalEnd { own, outcome, is_offered } = end;
        let done = |epoch| {
            let record = Arc::clone(&self.adopted.record);
            Some(LayoutCommandOutcome::Done { epoch, record })
        };
        match outcome {
            ProposalOutcome::Decided(_) => done(own.epoch),
            ProposalOutcome::OtherDecided(_) => None,
            ProposalOutcome::TimedOut if is_offered => Some(LayoutCommandOutcome::Unknown),
            ProposalOutcome::TimedOut => Some(LayoutCommandOutcome::NotDecided(CommandObstacle::NoAnswer)),
            ProposalOutcome::Overtaken(_) if !is_offered => None,
            ProposalOutcome::Overtaken(record) if own.epoch.next() == Some(record.epoch) => {
                if record.parent == own.hash() { done(own.epoch) } else { None }
            }
            ProposalOutcome::Overtaken(record) => match command.has_effect_in(&record, &own) {
                true => done(record.epoch),
                false => Some(LayoutCommandOutcome::Unknown),
            },
        }
    }

    /// Ends the commands whose time is over, but for one that is being decided: its proposal ends
    /// at the same time.
    fn end_late_commands(&mut self, now: Instant) {
        let being_decided = usize::from(self.proposals.is_for_command());
        let waiting = self.commands.queue.split_off(being_decided.min(self.commands.queue.len()));
        for pending in waiting {
            if pending.end_at > now {
                self.commands.queue.push_back(pending);
                continue;
            }
            let outcome = LayoutCommandOutcome::NotDecided(pending.obstacle);
            self.effects.push_back(AgreementEffect::CommandEnded { id: pending.id, outcome });
        }
    }

    /// Ends the first command.
    fn end_command(&mut self, outcome: LayoutCommandOutcome) {
        if let Some(PendingCommand { id, .. }) = self.commands.queue.pop_front() {
            self.effects.push_back(AgreementEffect::CommandEnded { id, outcome });
        }
    }
}

impl Commands {
    /// The time at which the first of the commands ends.
    pub(super) fn due(&self) -> Option<Instant> {
        self.queue.iter().map(|pending| pending.end_at).min()
    }
}
