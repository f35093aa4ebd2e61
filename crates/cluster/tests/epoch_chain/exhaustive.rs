//! Every order of messages of a few proposals to three voters.
//!
//! Requests are kept as a set: each may arrive at any later time, repeatedly or never. So may
//! promises, until their proposal has begun its second phase, after which it ignores them. Votes
//! need not arrive, because the search counts them where they are given. Each [`Fault`] breaks a
//! condition of the proof, and the search must then find two decided records.

use crate::record::NamedRecord;
use cluster::{
    AcceptorState, ChainNode, ChainProposal, ChainRequest, ChainResponse, ChainVote, EpochAcceptor,
    Incarnation, NodeIndex, ProposalBallot,
};
use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use stdx::NodeTag;
use xxhash_rust::xxh3::Xxh3;

const VOTERS: usize = 3;

fn voter(index: usize) -> ChainNode {
    ChainNode { slot: NodeIndex(index as u8), id: NodeTag(index as u64 + 1) }
}

fn first() -> NamedRecord {
    NamedRecord::first(&[0, 1, 2].map(voter))
}

/// A condition of the proof that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A promise is lost when a voter restarts.
    ForgetsPromise,
    /// An accepted record is lost when a voter restarts.
    ForgetsVote,
    /// A voter that has lost its disk votes on.
    VotesFromEmptyDisk,
    /// A proposer uses a ballot again, for another record.
    ReusesBallot,
}

/// Ballots that each of the proposers may use, in this order.
struct Bounds {
    rounds: Vec<Vec<u64>>,
    fault: Option<Fault>,
}

/// A message, with the index of the proposer and of the voter.
type Request = (usize, usize, ChainRequest<NamedRecord>);
type Response = (usize, usize, ChainResponse<NamedRecord>);

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    acceptors: Vec<EpochAcceptor<NamedRecord>>,
    proposals: Vec<Option<ChainProposal<NamedRecord>>>,
    /// Number of ballots that each proposer has used.
    used: Vec<usize>,
    requests: Vec<Request>,
    responses: Vec<Response>,
    /// Votes: round, proposer, record, voter.
    votes: BTreeSet<(u64, u64, u64, usize)>,
    has_failed: bool,
}

impl World {
    fn new(bounds: &Bounds) -> Self {
        let acceptor = |index| EpochAcceptor::new(voter(index), AcceptorState::of(first()));
        Self {
            acceptors: (0..VOTERS).map(acceptor).collect(),
            proposals: vec![None; bounds.rounds.len()],
            used: vec![0; bounds.rounds.len()],
            requests: Vec::new(),
            responses: Vec::new(),
            votes: BTreeSet::new(),
            has_failed: false,
        }
    }

    fn fingerprint(&self) -> u64 {
        let mut hasher = Xxh3::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// Begins the next ballot of a proposer. The one before, if any, is given up, as after a
    /// restart of its process.
    fn begin(&mut self, proposer: usize, bounds: &Bounds) {
        let used = self.used[proposer];
        let incarnation =
            Incarnation(if bounds.fault == Some(Fault::ReusesBallot) { 0 } else { used as u64 });
        let ballot = ProposalBallot {
            round: bounds.rounds[proposer][used],
            proposer: voter(proposer).id,
            incarnation,
        };
        self.used[proposer] += 1;
        let parent = first();
        let own = parent.child(10 * (proposer as u64 + 1) + used as u64);
        self.proposals[proposer] = Some(ChainProposal::new(parent, own, ballot));
        self.send(proposer);
        self.drop_ignored(proposer);
    }

    fn send(&mut self, proposer: usize) {
        let request = self.proposals[proposer].as_ref().and_then(ChainProposal::request);
        for voter in 0..VOTERS {
            if let Some(request) = request.clone() {
                insert(&mut self.requests, (proposer, voter, request));
            }
        }
    }

    fn deliver_request(&mut self, (proposer, voter, request): &Request) {
        let response = self.acceptors[*voter].handle(request.clone());
        match (&response, request) {
            (ChainResponse::Accepted { .. }, ChainRequest::Accept(ChainVote { ballot, record })) => {
                self.votes.insert((ballot.round, ballot.proposer.0, record.name, *voter));
            }
            (ChainResponse::Promised { .. }, _) => {
                insert(&mut self.responses, (*proposer, *voter, response));
                self.drop_ignored(*proposer);
            }
            _ => {}
        }
    }

    fn deliver_response(&mut self, (proposer, voter, response): &Response) {
        let Some(proposal) = &mut self.proposals[*proposer] else { return };
        if proposal.handle(self::voter(*voter), response) {
            self.send(*proposer);
        }
        self.drop_ignored(*proposer);
    }

    /// Removes the responses that the proposal ignores from now on.
    fn drop_ignored(&mut self, proposer: usize) {
        let Some(proposal) = &self.proposals[proposer] else { return };
        self.responses.retain(|(of, voter, response)| {
            let mut after = proposal.clone();
            after.handle(self::voter(*voter), response);
            *of != proposer || after != *proposal
        });
    }

    fn fail(&mut self, voter: usize, fault: Fault) {
        let mut state = self.acceptors[voter].state().clone();
        match fault {
            Fault::ForgetsPromise => state.promised = state.accepted.as_ref().map(|vote| vote.ballot),
            Fault::ForgetsVote => state.accepted = None,
            Fault::VotesFromEmptyDisk => (state.promised, state.accepted) = (None, None),
            Fault::ReusesBallot => {}
        }
        self.has_failed = true;
        self.acceptors[voter] = EpochAcceptor::new(self::voter(voter), state);
    }

    /// Records that a majority has accepted with one ballot.
    fn chosen(&self) -> BTreeSet<u64> {
        let ballots: BTreeSet<_> = self.votes.iter().map(|vote| (vote.0, vote.1, vote.2)).collect();
        let voters = |of: &(u64, u64, u64)| self.votes.iter().filter(|it| (it.0, it.1, it.2) == *of).count();
        ballots.iter().filter(|ballot| voters(ballot) >= 2).map(|ballot| ballot.2).collect()
    }
}

fn insert<T: PartialEq + Hash>(set: &mut Vec<T>, item: T) {
    if !set.contains(&item) {
        set.push(item);
        // Equal sets have equal order.
        set.sort_by_cached_key(|item| {
            let mut hasher = Xxh3::new();
            item.hash(&mut hasher);
            hasher.finish()
        });
    }
}

/// The result of a search: the number of states, and whether two records were decided.
struct Found {
    states: usize,
    two_decided: bool,
    adopted: bool,
    own: BTreeSet<u64>,
}

fn search(bounds: &Bounds) -> Found {
    let mut seen: HashSet<u64, BuildHasherDefault<Xxh3>> = HashSet::default();
    let mut open = vec![World::new(bounds)];
    let mut found = Found { states: 0, two_decided: false, adopted: false, own: BTreeSet::new() };
    while let Some(world) = open.pop() {
        if !seen.insert(world.fingerprint()) {
            continue;
        }
        found.states += 1;
        let chosen = world.chosen();
        found.adopted |= world.votes.iter().any(|(_, proposer, record, _)| record / 10 != *proposer);
        found.two_decided |= chosen.len() > 1;
        found.own.extend(chosen);
        if found.two_decided {
            return found;
        }
        open.extend(next(&world, bounds));
    }
    found
}

fn next(world: &World, bounds: &Bounds) -> Vec<World> {
    let mut worlds = Vec::new();
    let mut step = |act: &dyn Fn(&mut World)| {
        let mut next = world.clone();
        act(&mut next);
        if next != *world {
            worlds.push(next);
        }
    };
    for proposer in 0..bounds.rounds.len() {
        if world.used[proposer] < bounds.rounds[proposer].len() {
            step(&|world| world.begin(proposer, bounds));
        }
    }
    for request in &world.requests {
        step(&|world| world.deliver_request(request));
    }
    for response in &world.responses {
        step(&|world| world.deliver_response(response));
    }
    for fault in bounds.fault.iter().filter(|_| !world.has_failed) {
        for voter in 0..VOTERS {
            step(&|world| world.fail(voter, *fault));
        }
    }
    worlds
}

fn bounds(rounds: &[&[u64]], fault: Option<Fault>) -> Bounds {
    Bounds { rounds: rounds.iter().map(|rounds| rounds.to_vec()).collect(), fault }
}

#[test]
fn two_proposers_decide_one_record_in_every_order_of_messages() {
    let found = search(&bounds(&[&[1], &[2]], None));
    assert!(!found.two_decided);
    assert!(found.adopted, "no proposer adopted the record of the other one");
    assert_eq!(found.own, BTreeSet::from([10, 20]), "each proposer's record is decided in some order");
    println!("{} states", found.states);
}

#[test]
fn a_proposer_that_restarts_decides_one_record_in_every_order_of_messages() {
    // The rounds are equal: the incarnation tells the ballots apart.
    let found = search(&bounds(&[&[1, 1]], None));
    assert!(!found.two_decided);
    println!("{} states", found.states);
}

#[test]
fn a_forgotten_promise_decides_two_records() {
    assert!(search(&bounds(&[&[1], &[2]], Some(Fault::ForgetsPromise))).two_decided);
}

#[test]
fn a_forgotten_vote_decides_two_records() {
    assert!(search(&bounds(&[&[1], &[2]], Some(Fault::ForgetsVote))).two_decided);
}

#[test]
fn a_vote_from_an_empty_disk_decides_two_records() {
    assert!(search(&bounds(&[&[1], &[2]], Some(Fault::VotesFromEmptyDisk))).two_decided);
}

#[test]
fn a_ballot_that_is_used_twice_decides_two_records() {
    assert!(search(&bounds(&[&[1, 1]], Some(Fault::ReusesBallot))).two_decided);
}
