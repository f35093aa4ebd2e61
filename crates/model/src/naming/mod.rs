//! Agreement on the first record that names the ids of the voters.
//!
//! The parent of such a record names no ids: its voters are known by their slots only. A node that
//! lost its disk votes in the slot of the lost one, and its votes cannot be told from those that
//! were lost. The model shows that nodes agree nevertheless, whichever disks are lost:
//!
//! * A record is proposed after *all* voters have promised, its proposer among them
//!   ([`NamingRule::AllPromise`]).
//! * It is decided by the votes of *all* voters ([`NamingRule::AllVote`]).
//! * A node with a new disk promises and votes after all others have heard it. From then on they
//!   handle no requests and no news of the lost one ([`NamingRule::SuccessorIsHeard`]).
//! * A proposer that hears the successor of a voter which has answered it gives up its ballot
//!   ([`NamingRule::SuccessorEndsBallot`]).
//!
//! **Promise.** No two nodes hold different records. A record that was decided may be forgotten if
//! all nodes that hold it lose their disks.
//!
//! **Mechanism.** Each voter may propose, with a record of its own for each ballot. A voter that
//! loses its disk begins again without promises and votes, and its proposal ends. Each message may
//! arrive at any later time, repeatedly or never, as far as the rules permit. Requests of a
//! proposer to itself are no messages: they end with its process.
//!
//! **Proof sketch.** Call the moment at which a proposer has all promises for a ballot the barrier
//! of the ballot. By the last two rules, each promise comes from the newest disk of its slot that
//! has answered anything. So the disks whose votes decide a record are all in place at its barrier,
//! and none holds a record then. Let records be decided with ballots b and c, and let the barrier
//! of b come first.
//!
//! * If b was decided before the barrier of c, no voter holds its record at that barrier, and news
//!   of it are no longer heard. It is forgotten.
//! * Otherwise the proposer of b, on W, keeps its disk up to the barrier of c, and votes for b. If
//!   c < b, it has promised b and does not vote for c. So c > b, and W reports its vote for b to
//!   the proposer of c, and of each ballot d > b whose barrier is between the two. A vote for a
//!   ballot above b that is reported after the barrier of b was given after it. So its own barrier
//!   came after that of b as well: a proposer that has promised more than b does not vote for b,
//!   and one that was lost before is not heard. By induction the record of d and of c is that of b.
//!
//! **A stronger promise.** If only voters propose that have kept their disks since the first start
//! ([`NamingConfig::only_kept_disks_propose`]), no two records are ever decided, and the last two
//! rules are not needed. Nodes do not have this rule: a cluster whose voters all lost their disks,
//! one after the other, or cannot know that they have not, could never name its ids.
//!
//! **Caveats.** A voter whose directory is an older state of itself counts as one that lost its
//! disk. Two processes that run in one slot at the same time are not modelled. Nor are members that
//! do not vote: a proposer waits until all of them state that they hold the parent.

mod bounds;

pub use bounds::{bounds, without};

use crate::search::Model;
use std::fmt;

/// Greatest number of voters.
pub const VOTERS: usize = 3;
/// Greatest number of ballots of a voter.
pub const ROUNDS: usize = 2;
/// Greatest number of ballots.
const BALLOTS: usize = VOTERS * ROUNDS;

/// A rule of the design. Without it, nodes hold different records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamingRule {
    /// A record is proposed after all voters have promised, not the proposer alone.
    AllPromise,
    /// A record counts as decided by the votes of all voters, not of a majority.
    AllVote,
    /// A proposer gives up its ballot when it hears a new disk of a voter that has answered it.
    SuccessorEndsBallot,
    /// Before a node with a new disk promises or votes, all others have heard it. After that they
    /// handle no requests and no news of the node that lost its disk.
    SuccessorIsHeard,
}

/// Bounds of the model.
#[derive(Clone, Copy, Debug)]
pub struct NamingConfig {
    /// Number of voters.
    pub voters: usize,
    /// Number of ballots that each voter may use as a proposer.
    pub rounds: [u8; VOTERS],
    /// Number of disks that may be lost, those of one voter counted each time.
    pub losses: u8,
    /// Whether voters that have lost their disks do not propose. Then no two records are decided.
    pub only_kept_disks_propose: bool,
    /// The rule that is left out.
    pub without: Option<NamingRule>,
}

/// A ballot, from 1; 0 is none. A ballot has one proposer.
pub type NamingBallot = u8;
/// A record, named by the ballot for which it was made; 0 is none.
pub type NamingRecord = u8;

/// A voter, which may also propose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamingVoter {
    /// The greatest ballot that it promised.
    pub promised: NamingBallot,
    /// The ballot of its last vote.
    pub accepted: NamingBallot,
    /// The decided record that it holds.
    pub held: NamingRecord,
    /// The decided records of which others may hear from this slot, as bits: those of lost disks
    /// count until its new disk is heard.
    pub news: u8,
    /// Number of the disk that it has: the number of disks lost before.
    pub disk: u8,
    /// Whether its disk is new, and not all others have heard it.
    pub is_unheard: bool,
    /// Number of ballots that it has used.
    pub round: u8,
    /// The ballot for which it collects promises.
    pub preparing: NamingBallot,
    /// The ballot for which it collects votes.
    pub proposing: NamingBallot,
}

/// Messages of one ballot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamingMessages {
    /// Whether promises were requested.
    pub is_prepared: bool,
    /// The promises of each voter, by the ballot of the last vote that they report, as bits.
    pub promises: [u8; VOTERS],
    /// The record that was proposed.
    pub record: NamingRecord,
    /// Whether requests to accept it may still arrive.
    pub is_proposed: bool,
    /// The voters that have accepted the record, as bits.
    pub votes: u8,
    /// The voters that have answered the proposer, as bits.
    pub answered: u8,
}

/// A state.
#[derive(Clone, Copy, Debug, Default)]
pub struct NamingState {
    /// The voters.
    pub voters: [NamingVoter; VOTERS],
    /// The messages of each ballot.
    pub messages: [NamingMessages; BALLOTS + 1],
    /// The records that were decided, as bits.
    pub decided: u8,
    /// Number of disks that were lost.
    pub losses: u8,
    /// Whether a record was decided although no majority of the voters had kept its disks.
    pub is_decided_by_few: bool,
}

/// One step.
#[derive(Clone, Copy, Debug)]
pub enum NamingEvent {
    /// A voter requests promises for a new ballot.
    Prepares(usize, NamingBallot),
    /// A voter promises and reports its last vote.
    Promises(usize, NamingBallot, NamingBallot),
    /// A voter sends a record for acceptance.
    Proposes(usize, NamingBallot, NamingRecord),
    /// A voter accepts a record.
    Votes(usize, NamingBallot, NamingRecord),
    /// A proposer has the votes that decide a record.
    Decides(usize, NamingRecord),
    /// A voter learns that a record is decided.
    Learns(usize, NamingRecord),
    /// A voter loses its disk, and its process ends.
    LosesDisk(usize),
    /// All others have heard a voter with a new disk.
    IsHeard(usize),
}

impl NamingConfig {
    const fn omits(&self, rule: NamingRule) -> bool {
        matches!(self.without, Some(omitted) if omitted as u8 == rule as u8)
    }

    fn voters(&self) -> std::ops::Range<usize> {
        0..self.voters
    }

    /// The number of votes that decide a record.
    const fn decisive(&self) -> usize {
        if self.omits(NamingRule::AllVote) { self.voters / 2 + 1 } else { self.voters }
    }

    fn proposer_steps(
        &self,
        state: &NamingState,
        node: usize,
        next: &mut dyn FnMut(NamingEvent, NamingState),
    ) {
        let voter = &state.voters[node];
        let may_propose = voter.disk == 0 || !self.only_kept_disks_propose;
        if voter.held != 0 || voter.is_unheard {
            return;
        }
        if voter.round < self.rounds[node] && may_propose {
            let mut after = *state;
            let ballot = ballot_of(node, voter.round);
            after.end_proposal(node);
            after.voters[node].round += 1;
            after.voters[node].preparing = ballot;
            after.messages[usize::from(ballot)].is_prepared = true;
            next(NamingEvent::Prepares(node, ballot), after);
        }
        if voter.preparing > 0 {
            for greatest in self.greatest_reported(&state.messages[usize::from(voter.preparing)], node) {
                let (mut after, ballot) = (*state, voter.preparing);
                let record = match greatest {
                    0 => ballot,
                    greatest => state.messages[usize::from(greatest)].record,
                };
                after.end_proposal(node);
                after.voters[node].proposing = ballot;
                let messages = &mut after.messages[usize::from(ballot)];
                (messages.record, messages.is_proposed) = (record, true);
                messages.answered = state.messages[usize::from(ballot)].answered;
                next(NamingEvent::Proposes(node, ballot, record), after);
            }
        }
        if voter.proposing > 0 {
            let NamingMessages { record, votes, .. } = state.messages[usize::from(voter.proposing)];
            if votes.count_ones() as usize >= self.decisive() {
                let mut after = *state;
                let keeps = |node: &usize| state.voters[*node].disk == 0;
                after.is_decided_by_few |= 2 * self.voters().filter(keeps).count() <= self.voters;
                after.decided |= 1 << record;
                after.learn(node, record);
                next(NamingEvent::Decides(node, record), after);
            }
        }
    }

    /// The greatest ballots that the promises for a ballot of the proposer `own` may report: one
    /// promise of each voter counts, and any one that it has given.
    fn greatest_reported(&self, messages: &NamingMessages, own: usize) -> Vec<NamingBallot> {
        let mut greatest = vec![0];
        for node in self.voters() {
            let may_be_absent = node != own && self.omits(NamingRule::AllPromise);
            let reported = messages.promises[node] | u8::from(may_be_absent);
            let answers = (0..=BALLOTS as NamingBallot).filter(|ballot| reported & 1 << ballot != 0);
            let greater = |answer: NamingBallot| greatest.iter().map(move |it: &u8| (*it).max(answer));
            greatest = answers.flat_map(greater).collect();
            greatest.sort_unstable();
            greatest.dedup();
        }
        greatest
    }

    fn voter_steps(&self, state: &NamingState, node: usize, next: &mut dyn FnMut(NamingEvent, NamingState)) {
        let voter = &state.voters[node];
        if voter.is_unheard {
            let mut after = *state;
            after.hear(node);
            if !self.omits(NamingRule::SuccessorEndsBallot) {
                after.end_answered(node);
            }
            next(NamingEvent::IsHeard(node), after);
            return;
        }
        if voter.held == 0 {
            let known = state.voters.iter().fold(0, |known, voter| known | voter.news);
            for record in (1..=BALLOTS as NamingRecord).filter(|record| known & 1 << record != 0) {
                let mut after = *state;
                after.learn(node, record);
                next(NamingEvent::Learns(node, record), after);
            }
            for ballot in voter.promised.max(1)..=BALLOTS as NamingBallot {
                self.answers(state, node, ballot, next);
            }
        }
        if state.losses < self.losses {
            let mut after = *state;
            after.end_proposal(node);
            let NamingVoter { round, disk, news, .. } = *voter;
            let new = NamingVoter { round, disk: disk + 1, news, is_unheard: true, ..NamingVoter::default() };
            after.voters[node] = new;
            if self.omits(NamingRule::SuccessorIsHeard) {
                after.voters[node].is_unheard = false;
            }
            after.losses += 1;
            next(NamingEvent::LosesDisk(node), after);
        }
    }

    /// The answers of a voter to the requests with a ballot that it has not refused to take.
    fn answers(
        &self,
        state: &NamingState,
        node: usize,
        ballot: NamingBallot,
        next: &mut dyn FnMut(NamingEvent, NamingState),
    ) {
        let (voter, messages) = (&state.voters[node], &state.messages[usize::from(ballot)]);
        let is_own = proposer_of(ballot) == node;
        let reported = 1 << voter.accepted;
        let is_new = messages.promises[node] & reported == 0 || voter.promised < ballot;
        if messages.is_prepared && is_new && (!is_own || voter.preparing == ballot) {
            let mut after = *state;
            after.voters[node].promised = ballot;
            let messages = &mut after.messages[usize::from(ballot)];
            messages.promises[node] |= reported;
            messages.answered |= 1 << node;
            next(NamingEvent::Promises(node, ballot, voter.accepted), after);
        }
        let is_new = voter.accepted != ballot;
        if messages.is_proposed && is_new && (!is_own || voter.proposing == ballot) {
            let mut after = *state;
            (after.voters[node].promised, after.voters[node].accepted) = (ballot, ballot);
            let is_awaited = state.voters[proposer_of(ballot)].proposing == ballot;
            let messages = &mut after.messages[usize::from(ballot)];
            messages.votes |= u8::from(is_awaited) << node;
            messages.answered |= u8::from(is_awaited) << node;
            next(NamingEvent::Votes(node, ballot, messages.record), after);
        }
    }
}

const fn ballot_of(node: usize, round: u8) -> NamingBallot {
    1 + round * VOTERS as u8 + node as u8
}

const fn proposer_of(ballot: NamingBallot) -> usize {
    (ballot as usize - 1) % VOTERS
}

impl NamingState {
    /// Ends the proposal of a node. Its answers in flight have no effect any more, and requests for
    /// promises have none but to refuse smaller ballots, as if those were lost.
    fn end_proposal(&mut self, node: usize) {
        let NamingVoter { preparing, proposing, .. } = self.voters[node];
        let messages = &mut self.messages[usize::from(preparing)];
        (messages.is_prepared, messages.promises, messages.answered) = (false, [0; VOTERS], 0);
        let messages = &mut self.messages[usize::from(proposing)];
        (messages.votes, messages.answered) = (0, 0);
        (self.voters[node].preparing, self.voters[node].proposing) = (0, 0);
    }

    /// From now on nothing of the lost disks of this voter is heard but answers that have arrived.
    fn hear(&mut self, node: usize) {
        (self.voters[node].is_unheard, self.voters[node].news) = (false, 0);
        for ballot in (1..=BALLOTS as NamingBallot).filter(|ballot| proposer_of(*ballot) == node) {
            let messages = &mut self.messages[usize::from(ballot)];
            (messages.is_prepared, messages.is_proposed) = (false, false);
        }
    }

    /// Ends the proposals of other nodes that this voter has answered with a lost disk.
    fn end_answered(&mut self, node: usize) {
        for proposer in (0..VOTERS).filter(|proposer| *proposer != node) {
            let NamingVoter { preparing, proposing, .. } = self.voters[proposer];
            let answered = self.messages[usize::from(preparing.max(proposing))].answered;
            if answered & 1 << node != 0 {
                self.end_proposal(proposer);
            }
        }
    }

    /// The records that nodes hold as decided, as bits.
    fn held(&self) -> u8 {
        self.voters.iter().filter(|voter| voter.held > 0).fold(0, |held, voter| held | 1 << voter.held)
    }

    fn learn(&mut self, node: usize, record: NamingRecord) {
        self.end_proposal(node);
        let voter = &mut self.voters[node];
        (voter.promised, voter.accepted, voter.held) = (0, 0, record);
        voter.news |= 1 << record;
    }
}

impl Model for NamingConfig {
    type State = NamingState;
    type Step = NamingEvent;

    fn start(&self) -> NamingState {
        NamingState::default()
    }

    fn for_each_step(&self, state: &NamingState, next: &mut dyn FnMut(NamingEvent, NamingState)) {
        for node in self.voters() {
            self.proposer_steps(state, node, next);
            self.voter_steps(state, node, next);
        }
    }

    fn canonicalize(&self, _: &mut NamingState) {}

    fn encode(&self, state: &NamingState, bytes: &mut Vec<u8>) {
        for voter in &state.voters[..self.voters] {
            let NamingVoter { promised, accepted, held, news, disk, is_unheard, .. } = *voter;
            bytes.extend([promised, accepted, held, news, disk, is_unheard.into()]);
            bytes.extend([voter.round, voter.preparing, voter.proposing]);
        }
        for messages in &state.messages[1..] {
            let NamingMessages { is_prepared, promises, record, is_proposed, votes, answered } = messages;
            bytes.extend([u8::from(*is_prepared), *record, u8::from(*is_proposed), *votes, *answered]);
            bytes.extend(promises);
        }
        bytes.extend([state.decided, state.losses, state.is_decided_by_few.into()]);
    }

    fn violation(&self, state: &NamingState) -> Option<String> {
        if self.only_kept_disks_propose && state.decided.count_ones() > 1 {
            return Some("two records are decided".to_owned());
        }
        (state.held().count_ones() > 1).then(|| "two nodes hold different records".to_owned())
    }

    fn goals(&self) -> Vec<&'static str> {
        let mut goals = vec!["a record is decided", "a proposer adopts the record of another ballot"];
        let kept = self.voters.saturating_sub(usize::from(self.losses));
        let may_be_few = 2 * kept.max(usize::from(self.only_kept_disks_propose)) <= self.voters;
        goals.extend(may_be_few.then_some("a record is decided although no majority kept its disks"));
        goals.extend((self.losses > 0).then_some("a disk is lost after a decision"));
        let may_forget = kept == 0 && !self.only_kept_disks_propose;
        goals.extend(may_forget.then_some("a record is forgotten, and another one is decided"));
        goals
    }

    fn reached(&self, state: &NamingState) -> u64 {
        let adopted = |ballot: usize| {
            let record = state.messages[ballot].record;
            record > 0 && usize::from(record) != ballot
        };
        let is_lost = |voter: &NamingVoter| voter.disk > 0 && voter.held == 0;
        let reaches = |goal| match goal {
            "a record is decided" => state.decided != 0,
            "a proposer adopts the record of another ballot" => (1..=BALLOTS).any(adopted),
            "a record is decided although no majority kept its disks" => state.is_decided_by_few,
            "a record is forgotten, and another one is decided" => state.decided.count_ones() > 1,
            "a disk is lost after a decision" => state.decided != 0 && state.voters.iter().any(is_lost),
            _ => false,
        };
        let bits = self.goals().into_iter().enumerate();
        bits.filter(|(_, goal)| reaches(goal)).fold(0, |reached, (bit, _)| reached | 1 << bit)
    }

    fn may_end(&self, _: &NamingState) -> bool {
        true
    }
}

impl fmt::Display for NamingEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prepares(node, ballot) => write!(f, "node {node} requests promises of ballot {ballot}"),
            Self::Promises(node, ballot, 0) => {
                write!(f, "node {node} promises ballot {ballot}; it has not voted")
            }
            Self::Promises(node, ballot, voted) => {
                write!(f, "node {node} promises ballot {ballot}; its last vote was with ballot {voted}")
            }
            Self::Proposes(node, ballot, record) => {
                write!(f, "node {node} proposes record {record} with ballot {ballot}")
            }
            Self::Votes(node, ballot, record) => {
                write!(f, "node {node} votes for record {record} with ballot {ballot}")
            }
            Self::Decides(node, record) => write!(f, "node {node} has decided record {record}"),
            Self::Learns(node, record) => write!(f, "node {node} learns that record {record} is decided"),
            Self::LosesDisk(node) => write!(f, "node {node} loses its disk"),
            Self::IsHeard(node) => write!(f, "all others have heard node {node} with its new disk"),
        }
    }
}
