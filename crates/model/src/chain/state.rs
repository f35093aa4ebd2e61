//! The state of the chain of layout records.

use crate::swap::{SwapNode, SwapNodeSet};

/// Epochs that are decided one after another: epoch 2 by the voters of epoch 1, then epoch 3.
pub const INSTANCES: usize = 2;
/// Number of drivers.
pub const DRIVERS: usize = 2;
/// Greatest number of ballots of an instance.
pub const BALLOTS: usize = 4;
/// Number of nodes.
pub const NODES: usize = 5;
/// Number of records that may be proposed: two by each driver, one before and one after a restart.
pub(super) const VALUES: usize = 4;

/// A ballot of an instance, from 1; 0 is none.
pub type Ballot = u8;
/// A proposed record. Driver `d` proposes `2 * d`, and after a restart `2 * d + 1`.
pub type ChainValue = u8;

/// A vote: a ballot and the value that it carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vote {
    /// The ballot; 0 if there is no vote.
    pub ballot: Ballot,
    /// The value.
    pub value: ChainValue,
}

/// A node as a voter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainAcceptor {
    /// The instance in which it votes: 0 if it holds the record of epoch 1 only.
    pub instance: u8,
    /// The decided record that it holds of each instance before.
    pub held: [ChainValue; INSTANCES],
    /// The greatest ballot that it promised in its instance.
    pub promised: Ballot,
    /// Its last vote in its instance.
    pub accepted: Vote,
}

/// A driver of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainDriver {
    /// The instance that it drives.
    pub instance: u8,
    /// The decided record that it holds of each instance before.
    pub held: [ChainValue; INSTANCES],
    /// Number of ballots that it has used in its instance.
    pub round: u8,
    /// The ballot for which it collects promises; 0 for none.
    pub preparing: Ballot,
    /// Whether it has restarted.
    pub has_restarted: bool,
}

/// A promise as a message: its sender's last vote before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise(pub Vote);

/// Messages of one instance. A sent message may arrive at any later time, or never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Messages {
    /// Ballots for which promises were requested, as bits.
    pub prepared: u8,
    /// Promises, by ballot and node.
    pub promises: [[Option<Promise>; NODES]; BALLOTS + 1],
    /// Values that were sent for acceptance with each ballot, as bits.
    pub proposed: [u8; BALLOTS + 1],
    /// Voters that have accepted a value with a ballot.
    pub votes: [[SwapNodeSet; VALUES]; BALLOTS + 1],
    /// The decided record of the instance before, as the proposer of each ballot holds it.
    pub parents: [ChainValue; BALLOTS + 1],
}

/// A state.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChainState {
    /// Nodes as voters.
    pub acceptors: [ChainAcceptor; NODES],
    /// Drivers.
    pub drivers: [ChainDriver; DRIVERS],
    /// Messages of each instance.
    pub messages: [Messages; INSTANCES],
    /// Nodes whose disk is lost. A node with a new disk has another id and is another node.
    pub lost: SwapNodeSet,
    /// Removed voters that are switched off.
    pub retired: SwapNodeSet,
}

impl ChainState {
    /// The acceptor of a node.
    pub const fn acceptor(&self, node: SwapNode) -> &ChainAcceptor {
        &self.acceptors[node.index()]
    }

    /// Nodes that run.
    pub const fn running(&self) -> SwapNodeSet {
        SwapNodeSet((1 << NODES) - 1).without(self.lost).without(self.retired)
    }

    /// Orders nodes 0 to 2, which are interchangeable.
    pub(super) fn sort_voters(&mut self) {
        let messages = self.messages[0];
        let column = |node: usize| {
            let acceptor = self.acceptors[node];
            let promises = messages.promises.map(|by_node| by_node[node].map(|Promise(vote)| vote));
            let votes = messages.votes.map(|by_value| by_value.map(|set| set.contains(SwapNode(node as u8))));
            let is_lost = self.lost.contains(SwapNode(node as u8));
            (is_lost, acceptor.instance, acceptor.promised, acceptor.accepted, promises, votes)
        };
        let mut order = [0, 1, 2];
        order.sort_by_key(|node| column(*node));
        let moved = |set: SwapNodeSet| {
            let places = (0..3).filter(|place| set.contains(SwapNode(order[*place] as u8)));
            places.fold(SwapNodeSet(set.0 & !0b111), |moved, place| moved.union(SwapNode(place as u8).set()))
        };
        let before = *self;
        self.lost = moved(before.lost);
        for (place, from) in order.into_iter().enumerate() {
            self.acceptors[place] = before.acceptors[from];
            for (ballot, promises) in self.messages[0].promises.iter_mut().enumerate() {
                promises[place] = messages.promises[ballot][from];
            }
        }
        for votes in self.messages[0].votes.iter_mut().flatten() {
            *votes = moved(*votes);
        }
    }

    /// Appends an encoding.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend([self.lost.0, self.retired.0]);
        for acceptor in &self.acceptors {
            let ChainAcceptor { instance, held, promised, accepted } = *acceptor;
            bytes.extend([instance, promised, accepted.ballot, accepted.value]);
            bytes.extend(held);
        }
        for driver in &self.drivers {
            bytes.extend([driver.instance, driver.round, driver.preparing, driver.has_restarted.into()]);
            bytes.extend(driver.held);
        }
        for messages in &self.messages {
            bytes.push(messages.prepared);
            for promise in messages.promises.iter().flatten() {
                bytes.push(promise.map_or(0, |Promise(vote)| 1 + vote.ballot * VALUES as u8 + vote.value));
            }
            bytes.extend(messages.proposed);
            bytes.extend(messages.votes.iter().flatten().map(|set| set.0));
            bytes.extend(messages.parents);
        }
    }
}
