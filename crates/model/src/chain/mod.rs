//! The epoch chain: agreement on layout records by one instance of Paxos for each epoch.
//!
//! **Promises.**
//!
//! 1. At most one record is decided for an epoch, and nodes hold decided records only.
//! 2. A decided record is the child of the decided record before it.
//! 3. A decided record is not forgotten: a running node holds it, or so do the votes of every
//!    majority of the voters that decided it, and such a majority runs.
//!
//! **Mechanism.** Record e+1 is decided by a majority of the voters of record e (Lamport, "Paxos
//! Made Simple", 2001). Two drivers propose different records with different voters, restart and
//! use several ballots. Messages are kept as sets: each may arrive at any later time, or never. A
//! node that loses its disk never votes again. Its new id is another node, which may vote when a
//! record names it. [`ChainRule`] names each rule, and [`ChainConfig::without`] leaves one out.
//!
//! **Caveats.** Two epochs are decided. A new lineage, by which an operator replaces a lost
//! majority of voters, is not modelled.

mod bounds;
mod state;

pub use bounds::{bounds, without};
pub use state::{
    BALLOTS, Ballot, ChainAcceptor, ChainDriver, ChainState, ChainValue, DRIVERS, INSTANCES, NODES, Vote,
};

use crate::search::Model;
use crate::swap::{SwapNode, SwapNodeSet};
use state::{Messages, Promise, VALUES};
use std::fmt;

/// A rule of the design. A chain without it must break a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainRule {
    /// A promise survives a restart.
    DurablePromise,
    /// A vote survives a restart.
    DurableVote,
    /// A voter accepts no ballot that is smaller than the one that it promised.
    AcceptChecksPromise,
    /// A driver proposes after a majority has promised.
    PromisesBeforeProposal,
    /// A driver proposes the value of the greatest ballot among its promises.
    AdoptsGreatestVote,
    /// A driver uses no ballot twice, through restarts.
    DurableBallot,
    /// A node whose disk is lost does not vote by its old id.
    LostDiskDoesNotVote,
    /// A node that holds the decided record of an epoch does not vote for that epoch any more.
    DecidedEndsVoting,
    /// A record counts as decided by a majority of votes, not by one.
    DecidedByMajority,
    /// A record replaces at most one voter.
    OneVoterAtATime,
    /// A removed voter runs until a majority of the new voters holds the record.
    RetiresLate,
}

/// Bounds of a chain.
#[derive(Clone, Copy, Debug)]
pub struct ChainConfig {
    /// Ballots of each driver in each instance, at most 2.
    pub rounds: [u8; INSTANCES],
    /// Number of drivers that may restart.
    pub restarts: usize,
    /// Number of nodes that may lose their disk.
    pub losses: u8,
    /// Whether removed voters may be switched off.
    pub retires: bool,
    /// The rule that is left out.
    pub without: Option<ChainRule>,
}

/// One step.
#[derive(Clone, Copy, Debug)]
pub enum ChainEvent {
    /// A driver requests promises.
    Prepares {
        /// The driver.
        driver: usize,
        /// The instance.
        instance: u8,
        /// The ballot.
        ballot: Ballot,
    },
    /// A voter promises.
    Promises {
        /// The voter.
        node: SwapNode,
        /// The ballot.
        ballot: Ballot,
        /// Its last vote.
        accepted: Vote,
    },
    /// A driver sends a value for acceptance.
    Proposes {
        /// The driver.
        driver: usize,
        /// The ballot and the value.
        vote: Vote,
    },
    /// A voter accepts.
    Votes {
        /// The voter.
        node: SwapNode,
        /// The ballot and the value.
        vote: Vote,
    },
    /// A node or a driver takes a record as decided.
    Learns {
        /// The node, or none for a driver.
        node: Option<SwapNode>,
        /// The driver, if there is no node.
        driver: usize,
        /// The instance.
        instance: u8,
        /// The value.
        value: ChainValue,
    },
    /// A driver restarts.
    DriverRestarts {
        /// The driver.
        driver: usize,
    },
    /// A voter restarts and has forgotten something.
    Forgets {
        /// The voter.
        node: SwapNode,
    },
    /// A node loses its disk.
    LosesDisk {
        /// The node.
        node: SwapNode,
    },
    /// A removed voter is switched off.
    Retires {
        /// The voter.
        node: SwapNode,
    },
}

impl ChainConfig {
    const fn omits(&self, rule: ChainRule) -> bool {
        matches!(self.without, Some(omitted) if omitted as u8 == rule as u8)
    }

    /// The voters of the record of epoch 1 and of the records that follow it: driver 0 replaces
    /// voter 2, driver 1 replaces voter 0 or nobody.
    fn voters(&self, held: &[ChainValue; INSTANCES], instance: u8) -> SwapNodeSet {
        let first = SwapNodeSet(0b00111);
        let at_once = self.omits(ChainRule::OneVoterAtATime);
        held[..usize::from(instance)].iter().fold(first, |voters, value| match value {
            0 | 1 if at_once => SwapNodeSet(0b11001),
            0 => SwapNodeSet(0b01011),
            2 => SwapNodeSet(0b01110),
            _ => voters,
        })
    }

    fn is_majority(&self, nodes: SwapNodeSet, voters: SwapNodeSet) -> bool {
        2 * nodes.intersection(voters).len() > voters.len()
    }

    /// The decided values of an instance whose voters are known.
    fn decided(&self, messages: &Messages, voters: SwapNodeSet) -> impl Iterator<Item = ChainValue> {
        let least = if self.omits(ChainRule::DecidedByMajority) { 1 } else { voters.len() / 2 + 1 };
        (0..VALUES as ChainValue).filter(move |value| {
            let votes = messages.votes.iter().map(|by_value| by_value[usize::from(*value)]);
            votes.into_iter().any(|votes| votes.intersection(voters).len() >= least)
        })
    }

    fn own_value(driver: usize, state: &ChainDriver) -> ChainValue {
        2 * driver as ChainValue + ChainValue::from(state.has_restarted)
    }
}

impl Model for ChainConfig {
    type State = ChainState;
    type Step = ChainEvent;

    fn start(&self) -> ChainState {
        ChainState::default()
    }

    fn for_each_step(&self, state: &ChainState, next: &mut dyn FnMut(ChainEvent, ChainState)) {
        for driver in 0..DRIVERS {
            self.driver_steps(state, driver, next);
        }
        for node in state.running().iter() {
            self.voter_steps(state, node, next);
            self.fault_steps(state, node, next);
        }
    }

    /// Orders the voters of epoch 1, if no record treats them differently.
    fn canonicalize(&self, state: &mut ChainState) {
        if self.rounds[1] == 0 && !self.retires {
            state.sort_voters();
        }
    }

    fn encode(&self, state: &ChainState, bytes: &mut Vec<u8>) {
        state.encode(bytes);
    }

    fn violation(&self, state: &ChainState) -> Option<String> {
        let rules =
            Self { without: self.without.filter(|rule| *rule == ChainRule::OneVoterAtATime), ..*self };
        let mut held = [0; INSTANCES];
        for instance in 0..INSTANCES {
            let voters = rules.voters(&held, instance as u8);
            let messages = &state.messages[instance];
            let mut decided = rules.decided(messages, voters);
            let first = decided.next();
            if decided.next().is_some() {
                return Some(format!("two records are decided for epoch {}", instance + 2));
            }
            let holds_another = |known: u8, held: &[ChainValue]| {
                usize::from(known) > instance && Some(held[instance]) != first
            };
            if state.acceptors.iter().any(|it| holds_another(it.instance, &it.held))
                || state.drivers.iter().any(|it| holds_another(it.instance, &it.held))
            {
                return Some(format!("a record of epoch {} is held that is not decided", instance + 2));
            }
            let first = first?;
            let is_child = |ballot: usize| instance == 0 || messages.parents[ballot] == held[instance - 1];
            let has_votes = |ballot: &usize| !messages.votes[*ballot][usize::from(first)].is_empty();
            if !(1..=BALLOTS).filter(has_votes).all(is_child) {
                return Some(format!("the record of epoch {} is no child of its parent", instance + 2));
            }
            let running = state.running();
            let is_held = running.iter().any(|node| usize::from(state.acceptor(node).instance) > instance);
            if !is_held && !self.is_majority(running, voters) {
                return Some(format!("the record of epoch {} is forgotten", instance + 2));
            }
            held[instance] = first;
        }
        None
    }

    fn goals(&self) -> Vec<&'static str> {
        let mut goals = vec!["epoch 2 is decided", "a driver adopts a record of the other one"];
        goals.extend((self.rounds[1] > 0).then_some("epoch 3 is decided by changed voters"));
        goals.extend((self.losses > 0).then_some("a disk is lost after a decision"));
        goals.extend(self.retires.then_some("a removed voter is switched off"));
        goals
    }

    fn reached(&self, state: &ChainState) -> u64 {
        let first = self.decided(&state.messages[0], self.voters(&[0; INSTANCES], 0)).next();
        let held = [first.unwrap_or(0); INSTANCES];
        let second = || self.decided(&state.messages[1], self.voters(&held, 1)).next().is_some();
        let adopted = |ballot: usize, values: u8| values & (0b11 << (2 * (ballot & 1))) != 0;
        let bits = self.goals().into_iter().enumerate();
        let reaches = |goal| match goal {
            "epoch 2 is decided" => first.is_some(),
            "a driver adopts a record of the other one" => {
                (1..=BALLOTS).any(|ballot| adopted(ballot, state.messages[0].proposed[ballot]))
            }
            "epoch 3 is decided by changed voters" => matches!(first, Some(0 | 2)) && second(),
            "a disk is lost after a decision" => first.is_some() && !state.lost.is_empty(),
            "a removed voter is switched off" => !state.retired.is_empty(),
            _ => false,
        };
        bits.filter(|(_, goal)| reaches(goal)).fold(0, |reached, (bit, _)| reached | 1 << bit)
    }

    fn may_end(&self, _: &ChainState) -> bool {
        true
    }
}

impl ChainConfig {
    /// Whether anything depends on the node's holding of the record of an instance.
    fn needs(&self, node: SwapNode, instance: usize, voters: SwapNodeSet) -> bool {
        let decides = instance + 1 < INSTANCES && self.rounds[instance + 1] > 0;
        let is_old_voter = SwapNodeSet(0b00111).contains(node);
        (decides && voters.contains(node)) || (self.retires && is_old_voter)
    }

    /// Gives up the ballot for which a driver collects promises. Requests for promises and promises
    /// that are still in flight have no further effect but to refuse smaller ballots.
    fn give_up_ballot(&self, state: &mut ChainState, index: usize) {
        let driver = &mut state.drivers[index];
        let ballot = usize::from(std::mem::take(&mut driver.preparing));
        if ballot > 0 && !self.omits(ChainRule::DurableBallot) {
            let messages = &mut state.messages[usize::from(driver.instance)];
            messages.prepared &= !(1 << ballot);
            messages.promises[ballot] = Default::default();
        }
    }

    fn driver_steps(&self, state: &ChainState, index: usize, next: &mut dyn FnMut(ChainEvent, ChainState)) {
        let driver = &state.drivers[index];
        let instance = usize::from(driver.instance);
        if instance == INSTANCES {
            return;
        }
        let voters = self.voters(&driver.held, driver.instance);
        let decides = instance + 1 < INSTANCES && self.rounds[instance + 1] > 0;
        for value in self.decided(&state.messages[instance], voters).filter(|_| decides) {
            let mut after = *state;
            self.give_up_ballot(&mut after, index);
            let driver = &mut after.drivers[index];
            driver.held[instance] = value;
            (driver.instance, driver.round) = (driver.instance + 1, 0);
            next(ChainEvent::Learns { node: None, driver: index, instance: instance as u8, value }, after);
        }
        if driver.round < self.rounds[instance] {
            let mut after = *state;
            let ballot = 1 + 2 * driver.round + index as u8;
            self.give_up_ballot(&mut after, index);
            after.drivers[index].round += 1;
            after.drivers[index].preparing = ballot;
            after.messages[instance].prepared |= 1 << ballot;
            next(ChainEvent::Prepares { driver: index, instance: instance as u8, ballot }, after);
        }
        if driver.preparing > 0 {
            self.proposals(state, index, voters, next);
        }
        let restarted = state.drivers.iter().filter(|driver| driver.has_restarted).count();
        if !driver.has_restarted && restarted < self.restarts {
            let mut after = *state;
            self.give_up_ballot(&mut after, index);
            let driver = &mut after.drivers[index];
            driver.has_restarted = true;
            if self.omits(ChainRule::DurableBallot) {
                driver.round = 0;
            }
            next(ChainEvent::DriverRestarts { driver: index }, after);
        }
    }

    /// A driver proposes by the promises of a majority.
    fn proposals(
        &self,
        state: &ChainState,
        index: usize,
        voters: SwapNodeSet,
        next: &mut dyn FnMut(ChainEvent, ChainState),
    ) {
        let driver = &state.drivers[index];
        let (instance, ballot) = (usize::from(driver.instance), driver.preparing);
        let promises = &state.messages[instance].promises[usize::from(ballot)];
        let promised = voters.iter().filter(|node| promises[node.index()].is_some());
        let promised = promised.fold(SwapNodeSet::EMPTY, |set, node| set.union(node.set()));
        let majority = voters.len() / 2 + 1;
        let needed = if self.omits(ChainRule::PromisesBeforeProposal) { 0 } else { majority };
        let mut proposed = Vec::new();
        for from in promised.subsets(needed) {
            let votes = from.iter().filter_map(|node| promises[node.index()]).map(|Promise(vote)| vote);
            let greatest =
                votes.max().filter(|vote| vote.ballot > 0 && !self.omits(ChainRule::AdoptsGreatestVote));
            let value = greatest.map_or(Self::own_value(index, driver), |vote| vote.value);
            if proposed.contains(&value) {
                continue;
            }
            proposed.push(value);
            let mut after = *state;
            self.give_up_ballot(&mut after, index);
            let messages = &mut after.messages[instance];
            messages.proposed[usize::from(ballot)] |= 1 << value;
            messages.parents[usize::from(ballot)] = if instance > 0 { driver.held[instance - 1] } else { 0 };
            next(ChainEvent::Proposes { driver: index, vote: Vote { ballot, value } }, after);
        }
    }

    fn voter_steps(&self, state: &ChainState, node: SwapNode, next: &mut dyn FnMut(ChainEvent, ChainState)) {
        let acceptor = state.acceptor(node);
        let instance = usize::from(acceptor.instance);
        if instance == INSTANCES {
            return;
        }
        let messages = &state.messages[instance];
        let voters = self.voters(&acceptor.held, acceptor.instance);
        for value in self.decided(messages, voters) {
            let mut held = acceptor.held;
            held[instance] = value;
            let is_needed = self.needs(node, instance, self.voters(&held, acceptor.instance + 1));
            if !is_needed && !self.omits(ChainRule::DecidedEndsVoting) {
                continue;
            }
            let mut after = *state;
            let acceptor = &mut after.acceptors[node.index()];
            if self.omits(ChainRule::DecidedEndsVoting) && acceptor.accepted.ballot > 0 {
                (acceptor.promised, acceptor.accepted) = Default::default();
            } else {
                *acceptor =
                    ChainAcceptor { instance: acceptor.instance + 1, held, ..ChainAcceptor::default() };
            }
            next(ChainEvent::Learns { node: Some(node), driver: 0, instance: instance as u8, value }, after);
        }
        if !voters.contains(node) {
            return;
        }
        for ballot in (acceptor.promised + 1)..=BALLOTS as u8 {
            let is_requested = messages.prepared & 1 << ballot != 0;
            if is_requested && messages.promises[usize::from(ballot)][node.index()].is_none() {
                let mut after = *state;
                after.acceptors[node.index()].promised = ballot;
                let promise = Some(Promise(acceptor.accepted));
                after.messages[instance].promises[usize::from(ballot)][node.index()] = promise;
                next(ChainEvent::Promises { node, ballot, accepted: acceptor.accepted }, after);
            }
        }
        let least = if self.omits(ChainRule::AcceptChecksPromise) { 1 } else { acceptor.promised.max(1) };
        for ballot in least..=BALLOTS as u8 {
            let values = messages.proposed[usize::from(ballot)];
            for value in (0..VALUES as ChainValue).filter(|value| values & 1 << value != 0) {
                let vote = Vote { ballot, value };
                let mut after = *state;
                let acceptor = &mut after.acceptors[node.index()];
                (acceptor.promised, acceptor.accepted) = (acceptor.promised.max(ballot), vote);
                let votes = &mut after.messages[instance].votes[usize::from(ballot)][usize::from(value)];
                let is_new = !votes.contains(node);
                votes.insert(node);
                if is_new {
                    next(ChainEvent::Votes { node, vote }, after);
                }
            }
        }
    }

    fn fault_steps(&self, state: &ChainState, node: SwapNode, next: &mut dyn FnMut(ChainEvent, ChainState)) {
        let acceptor = state.acceptor(node);
        let forgets = [
            (ChainRule::DurablePromise, ChainAcceptor { promised: acceptor.accepted.ballot, ..*acceptor }),
            (ChainRule::DurableVote, ChainAcceptor { accepted: Vote::default(), ..*acceptor }),
        ];
        for (_, forgetful) in forgets.iter().filter(|(rule, _)| self.omits(*rule)) {
            if forgetful != acceptor {
                let mut after = *state;
                after.acceptors[node.index()] = *forgetful;
                next(ChainEvent::Forgets { node }, after);
            }
        }
        if state.lost.len() < self.losses {
            let mut after = *state;
            after.acceptors[node.index()] = ChainAcceptor::default();
            if !self.omits(ChainRule::LostDiskDoesNotVote) {
                after.lost.insert(node);
                next(ChainEvent::LosesDisk { node }, after);
            } else if acceptor.promised > 0 {
                next(ChainEvent::LosesDisk { node }, after);
            }
        }
        let voters = |instance| self.voters(&acceptor.held, instance);
        let is_removed = !voters(acceptor.instance).contains(node)
            && (0..acceptor.instance).any(|instance| voters(instance).contains(node));
        if self.retires && is_removed {
            let voters = voters(acceptor.instance);
            let holders =
                state.running().iter().filter(|it| state.acceptor(*it).instance >= acceptor.instance);
            let holders = holders.fold(SwapNodeSet::EMPTY, |set, node| set.union(node.set()));
            if self.omits(ChainRule::RetiresLate)
                || self.omits(ChainRule::OneVoterAtATime)
                || self.is_majority(holders, voters)
            {
                let mut after = *state;
                after.acceptors[node.index()] = ChainAcceptor::default();
                after.retired.insert(node);
                next(ChainEvent::Retires { node }, after);
            }
        }
    }
}

impl fmt::Display for ChainEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |node: &SwapNode| node.0;
        match self {
            Self::Prepares { driver, instance, ballot } => {
                write!(f, "driver {driver} requests promises of ballot {ballot} for epoch {}", instance + 2)
            }
            Self::Promises { node, ballot, accepted: Vote { ballot: 0, .. } } => {
                write!(f, "node {} promises ballot {ballot}; it has not voted", number(node))
            }
            Self::Promises { node, ballot, accepted: Vote { ballot: voted, value } } => {
                write!(
                    f,
                    "node {} promises ballot {ballot}; it voted {voted} for record {value}",
                    number(node)
                )
            }
            Self::Proposes { driver, vote: Vote { ballot, value } } => {
                write!(f, "driver {driver} proposes record {value} with ballot {ballot}")
            }
            Self::Votes { node, vote: Vote { ballot, value } } => {
                write!(f, "node {} votes {ballot} for record {value}", number(node))
            }
            Self::Learns { node: Some(node), instance, value, .. } => {
                write!(f, "node {} takes record {value} as that of epoch {}", number(node), instance + 2)
            }
            Self::Learns { driver, instance, value, .. } => {
                write!(f, "driver {driver} takes record {value} as that of epoch {}", instance + 2)
            }
            Self::DriverRestarts { driver } => write!(f, "driver {driver} restarts"),
            Self::Forgets { node } => write!(f, "node {} restarts and forgets", number(node)),
            Self::LosesDisk { node } => write!(f, "node {} loses its disk", number(node)),
            Self::Retires { node } => write!(f, "node {} is removed and switched off", number(node)),
        }
    }
}
