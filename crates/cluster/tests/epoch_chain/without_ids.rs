//! Every order of messages and of lost disks, for voters that the record does not name.
//!
//! A voter that loses its disk begins again without promises and votes. Its proposal ends, and its
//! requests to itself with it. What it has sent to others arrives at any later time, until the
//! others have heard its successor. A proposer that has an answer of the lost one gives up then. A
//! node learns of a decided record from any node that holds it. Each [`Fault`] leaves out a rule,
//! and the search must then find two nodes that hold different records.

use crate::record::NamedRecord;
use cluster::{
    AcceptorState, ChainNode, ChainProposal, ChainRecord as _, ChainRequest, ChainResponse, EpochAcceptor,
    Incarnation, LayoutEpoch, NodeIndex, ProposalBallot,
};
use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use stdx::NodeTag;
use xxhash_rust::xxh3::Xxh3;

/// A rule that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A majority of the voters suffices.
    Majority,
    /// A proposer goes on with the answers of a lost disk.
    GoesOn,
    /// A new node votes before the others have heard it, and they go on to hear the lost one.
    Unheard,
}

struct Bounds {
    /// Ballots that each voter may use, in this order.
    rounds: Vec<Vec<u64>>,
    losses: usize,
    fault: Option<Fault>,
}

/// A request, with its sender and receiver.
type Request = (usize, usize, ChainRequest<NamedRecord>);
/// An answer, with its sender and receiver.
type Response = (usize, usize, ChainResponse<NamedRecord>);

#[derive(Clone, PartialEq, Eq, Hash)]
struct Host {
    acceptor: EpochAcceptor<NamedRecord>,
    proposal: Option<ChainProposal<NamedRecord>>,
    /// Number of ballots that it has used.
    used: usize,
    /// Number of disks that it has lost.
    lost: u64,
    /// Whether the others have heard it since then.
    is_heard: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    hosts: Vec<Host>,
    requests: BTreeSet<Hashed<Request>>,
    responses: BTreeSet<Hashed<Response>>,
    /// Decided records that others may hear of, by the host that has held them.
    news: BTreeSet<(usize, u64)>,
}

/// A message, ordered by its hash.
#[derive(Clone, PartialEq, Eq)]
struct Hashed<T>(u64, T);

impl<T: Hash> Hashed<T> {
    fn new(message: T) -> Self {
        let mut hasher = Xxh3::new();
        message.hash(&mut hasher);
        Self(hasher.finish(), message)
    }
}

impl<T: Eq> PartialOrd for Hashed<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Eq> Ord for Hashed<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

impl<T> Hash for Hashed<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.0);
    }
}

impl Bounds {
    fn first(&self) -> NamedRecord {
        let mut first = NamedRecord::first_without_ids(self.rounds.len());
        first.needs_all = self.fault != Some(Fault::Majority);
        first
    }

    fn node(host: usize, lost: u64) -> ChainNode {
        ChainNode { slot: NodeIndex(host as u8), id: NodeTag(10 * (host as u64 + 1) + lost) }
    }
}

impl World {
    fn new(bounds: &Bounds) -> Self {
        let host = |index| Host {
            acceptor: EpochAcceptor::new(Bounds::node(index, 0), AcceptorState::of(bounds.first())),
            proposal: None,
            used: 0,
            lost: 0,
            is_heard: true,
        };
        let hosts = (0..bounds.rounds.len()).map(host).collect();
        Self { hosts, requests: BTreeSet::new(), responses: BTreeSet::new(), news: BTreeSet::new() }
    }

    fn is_named(&self, host: usize) -> bool {
        self.hosts[host].acceptor.state().decided.epoch() > LayoutEpoch(1)
    }

    fn begin(&mut self, host: usize, bounds: &Bounds) {
        self.end_proposal(host);
        let Host { used, lost, .. } = self.hosts[host];
        let id = Bounds::node(host, lost).id;
        let round = bounds.rounds[host][used];
        let ballot = ProposalBallot { round, proposer: id, incarnation: Incarnation(lost) };
        let own = bounds.first().child(10 * (host as u64 + 1) + used as u64);
        self.hosts[host].used += 1;
        self.hosts[host].proposal = Some(ChainProposal::new(bounds.first(), own, ballot));
        self.send(host);
    }

    fn send(&mut self, host: usize) {
        let request = self.hosts[host].proposal.as_ref().and_then(ChainProposal::request);
        for to in 0..self.hosts.len() {
            self.requests.extend(request.clone().map(|request| Hashed::new((host, to, request))));
        }
        self.drop_ignored(host);
    }

    /// Ends a proposal. Its requests for promises have no effect but to refuse smaller ballots.
    fn end_proposal(&mut self, host: usize) {
        self.hosts[host].proposal = None;
        self.requests.retain(|Hashed(_, (from, to, request))| {
            *from != host || *to != host && matches!(request, ChainRequest::Accept(_))
        });
        self.drop_ignored(host);
    }

    /// Removes the answers that the proposal of a host ignores.
    fn drop_ignored(&mut self, host: usize) {
        let proposal = self.hosts[host].proposal.clone();
        self.responses.retain(|Hashed(_, (from, to, response))| {
            let takes = |proposal: &ChainProposal<NamedRecord>| {
                let mut after = proposal.clone();
                after.handle(Bounds::node(*from, 0), response);
                after != *proposal
            };
            *to != host || proposal.as_ref().is_some_and(takes)
        });
    }

    fn deliver_request(&mut self, (from, to, request): &Request) {
        let response = self.hosts[*to].acceptor.handle(request.clone());
        if !matches!(response, ChainResponse::Promised { .. } | ChainResponse::Accepted { .. }) {
            return;
        }
        if from == to {
            self.deliver_response(&(*to, *to, response));
        } else {
            self.responses.insert(Hashed::new((*to, *from, response)));
            self.drop_ignored(*from);
        }
    }

    fn deliver_response(&mut self, (from, to, response): &Response) {
        let Some(proposal) = &mut self.hosts[*to].proposal else { return };
        if !proposal.handle(Bounds::node(*from, 0), response) {
            return self.drop_ignored(*to);
        }
        match proposal.decided().cloned() {
            Some(record) => self.learn(*to, &record),
            None => self.send(*to),
        }
    }

    fn learn(&mut self, host: usize, record: &NamedRecord) {
        self.hosts[host].acceptor.handle(ChainRequest::Learn(record.clone()));
        self.end_proposal(host);
        self.news.insert((host, record.name));
    }

    fn lose_disk(&mut self, host: usize, bounds: &Bounds) {
        self.end_proposal(host);
        let Host { used, lost, .. } = self.hosts[host];
        let node = Bounds::node(host, lost + 1);
        self.hosts[host] = Host {
            acceptor: EpochAcceptor::new(node, AcceptorState::of(bounds.first())),
            proposal: None,
            used,
            lost: lost + 1,
            is_heard: bounds.fault == Some(Fault::Unheard),
        };
    }

    fn hear(&mut self, host: usize, bounds: &Bounds) {
        self.hosts[host].is_heard = true;
        self.news.retain(|(of, _)| *of != host);
        self.requests.retain(|Hashed(_, (from, ..))| *from != host);
        if bounds.fault == Some(Fault::GoesOn) {
            return;
        }
        for proposer in (0..self.hosts.len()).filter(|proposer| *proposer != host) {
            let proposal = self.hosts[proposer].proposal.as_ref();
            let slot = NodeIndex(host as u8);
            // In the second phase, all voters have promised.
            let has_answered = |it: &ChainProposal<NamedRecord>| {
                matches!(it.request(), Some(ChainRequest::Accept(_))) || it.unanswered().all(|it| it != slot)
            };
            if proposal.is_some_and(has_answered) {
                self.end_proposal(proposer);
            }
        }
        self.responses.retain(|Hashed(_, (from, ..))| *from != host);
    }

    /// The records that hosts hold as decided.
    fn held(&self) -> BTreeSet<u64> {
        let hosts = (0..self.hosts.len()).filter(|host| self.is_named(*host));
        hosts.map(|host| self.hosts[host].acceptor.state().decided.name).collect()
    }
}

/// The result of a search.
#[derive(Debug, Default)]
struct Found {
    states: usize,
    two_held: bool,
    /// A record is held although no majority of the voters has kept its disks.
    held_by_few: bool,
    /// A host holds a record of another one's.
    adopted: bool,
}

fn search(bounds: &Bounds) -> Found {
    let mut seen: HashSet<u64, BuildHasherDefault<Xxh3>> = HashSet::default();
    let mut open = vec![World::new(bounds)];
    let mut found = Found::default();
    while let Some(world) = open.pop() {
        let mut hasher = Xxh3::new();
        world.hash(&mut hasher);
        if !seen.insert(hasher.finish()) {
            continue;
        }
        found.states += 1;
        let held = world.held();
        let kept = world.hosts.iter().filter(|host| host.lost == 0).count();
        found.held_by_few |= !held.is_empty() && 2 * kept <= world.hosts.len();
        found.adopted |= held.iter().any(|name| !world.news.contains(&((name / 10) as usize - 1, *name)));
        found.two_held |= held.len() > 1;
        if found.two_held {
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
    let lost: u64 = world.hosts.iter().map(|host| host.lost).sum();
    for (index, host) in world.hosts.iter().enumerate() {
        if !host.is_heard {
            step(&|world| world.hear(index, bounds));
            continue;
        }
        if host.used < bounds.rounds[index].len() && !world.is_named(index) {
            step(&|world| world.begin(index, bounds));
        }
        if (lost as usize) < bounds.losses {
            step(&|world| world.lose_disk(index, bounds));
        }
        for (_, name) in world.news.iter().filter(|_| !world.is_named(index)) {
            step(&|world| world.learn(index, &bounds.first().child(*name)));
        }
    }
    for Hashed(_, request) in world.requests.iter().filter(|it| world.hosts[it.1.1].is_heard) {
        step(&|world| world.deliver_request(request));
    }
    for Hashed(_, response) in &world.responses {
        step(&|world| world.deliver_response(response));
    }
    worlds
}

fn bounds(rounds: &[&[u64]], losses: usize, fault: Option<Fault>) -> Bounds {
    Bounds { rounds: rounds.iter().map(|rounds| rounds.to_vec()).collect(), losses, fault }
}

#[test]
fn voters_without_ids_agree_whichever_disks_are_lost() {
    let two_of_three: &[&[u64]] = &[&[1], &[2], &[]];
    for (rounds, losses) in [(&[&[1, 3][..], &[2]][..], 2), (two_of_three, 2)] {
        let found = search(&bounds(rounds, losses, None));
        println!("{found:?}");
        assert!(!found.two_held, "{rounds:?}");
        assert!(found.adopted && found.held_by_few, "{rounds:?}");
    }
}

#[test]
fn a_majority_of_voters_without_ids_decides_two_records() {
    assert!(search(&bounds(&[&[1], &[2], &[]], 2, Some(Fault::Majority))).two_held);
}

#[test]
fn a_proposer_that_goes_on_with_the_answers_of_a_lost_disk_decides_two_records() {
    assert!(search(&bounds(&[&[1], &[2], &[]], 3, Some(Fault::GoesOn))).two_held);
}

#[test]
fn a_new_node_that_votes_unheard_decides_two_records() {
    assert!(search(&bounds(&[&[1], &[2]], 2, Some(Fault::Unheard))).two_held);
}
