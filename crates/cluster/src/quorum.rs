//! Quorum arithmetic: the number of replicas that hold a key, and the number that must answer.
//!
//! **Promise.** `from` replicas hold the key, `ack` of them must answer. A read and a write of the
//! same key share at least one replica if `ack(read) + ack(write) > from`. A [`Tally`] counts each
//! replica once, even if it answers repeatedly.
//!
//! While a swap of the key's partition runs, the key has two sets of replicas: those before the
//! swap and those after it. Both have `from` replicas, and differ in one of them. Then a write, and
//! what a read returns, needs `ack` replicas of each set. A replica in both sets counts in both. So
//! a quorum of either set meets it, and the reads of no phase miss it.
//!
//! All rules about how many nodes suffice are here: the majority, the replicas that hold a cell,
//! the holders that a later read cannot miss, and the sources that cover every acknowledged write.
//! Other modules know which nodes there are, and ask this one whether they are enough.

use crate::replica_set::ReplicaSet;
use crate::{Acks, CommandFailure, NODES_MAX, Shortfall};
use std::num::NonZeroU8;

/// The quorum parameters of a request; those not given take their defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuorumChoice {
    /// Number of replicas that must answer.
    pub ack: Option<u32>,
    /// Number of replicas that hold the key.
    pub from: Option<u32>,
}

/// A quorum that a cluster can form: `1 <= ack <= from <= nodes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    ack: u8,
    from: u8,
}

/// The reason why a choice is not a quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("1 <= ack <= from <= {nodes} must hold, here ack is {ack} and from is {from}")]
pub struct QuorumError {
    /// `ack`, chosen or default.
    pub ack: u32,
    /// `from`, chosen or default.
    pub from: u32,
    /// Number of nodes.
    pub nodes: u8,
}

impl QuorumChoice {
    /// The quorum for a cluster of `nodes` nodes: `from` defaults to `default_from`, `ack` to the
    /// majority of `from`.
    ///
    /// # Errors
    /// [`QuorumError`] unless `1 <= ack <= from <= nodes`.
    #[inline]
    pub fn resolve(self, nodes: NonZeroU8, default_from: u8) -> Result<Quorum, QuorumError> {
        let from = self.from.unwrap_or(u32::from(default_from));
        let ack = self.ack.unwrap_or(default_ack(from));
        let error = QuorumError { ack, from, nodes: nodes.get() };
        let quorum = Quorum {
            ack: u8::try_from(ack).map_err(|_| error)?,
            from: u8::try_from(from).map_err(|_| error)?,
        };
        let holds = 1 <= quorum.ack && quorum.ack <= quorum.from && quorum.from <= nodes.get();
        if holds { Ok(quorum) } else { Err(error) }
    }
}

impl Quorum {
    /// The quorum of a request that does not choose `ack`, if `from` replicas hold the key.
    pub const fn with_default_ack(from: u8) -> Self {
        Self { ack: default_ack(from as u32) as u8, from }
    }

    /// This quorum in a cluster of `nodes` nodes: all of them, if it names more.
    #[inline]
    #[must_use]
    pub(crate) const fn within(self, nodes: u8) -> Self {
        Self { ack: replica_count(self.ack, nodes), from: replica_count(self.from, nodes) }
    }

    /// Number of replicas that must answer.
    pub const fn ack(self) -> u8 {
        self.ack
    }

    /// Number of replicas that hold the key.
    pub const fn from(self) -> u8 {
        self.from
    }

    /// The replicas that hold the key.
    pub(crate) const fn replicas(self) -> ReplicaSet {
        ReplicaSet::first(self.from)
    }

    /// Whether one replica alone holds the key, so that its fault is that of the command.
    pub(crate) const fn has_one_replica(self) -> bool {
        self.from == 1
    }

    /// Whether answers of this number of replicas suffice.
    pub const fn is_met_by(self, replicas: u8) -> bool {
        replicas >= self.ack
    }

    /// Whether this number of replicas suffices even if one of them does not answer.
    pub(crate) const fn has_spare_in(self, replicas: u8) -> bool {
        replicas > self.ack
    }

    /// Whether a cell with this `from` has fewer replicas than a read with this quorum takes into
    /// account.
    pub(crate) const fn exceeds_replicas_of(self, cell_from: u8) -> bool {
        cell_from < self.from
    }
}

/// Greatest default number of replicas of a new cluster: more cost throughput and disk, and fewer
/// survive no lost node together with their majority.
const REPLICAS_DEFAULT_MAX: u8 = 3;

/// Number of replicas of a key in a new cluster of `nodes`, if neither the operator nor a request
/// chooses it.
pub const fn default_from_of_new_cluster(nodes: u8) -> u8 {
    if nodes < REPLICAS_DEFAULT_MAX { nodes } else { REPLICAS_DEFAULT_MAX }
}

/// `ack` of a request that does not choose it, if `from` replicas hold the key.
const fn default_ack(from: u32) -> u32 {
    majority(from)
}

/// Number of members that are a majority: more than half.
pub const fn majority(members: u32) -> u32 {
    members / 2 + 1
}

/// Whether `count` of `members` are a majority.
pub(crate) const fn is_majority(count: usize, members: usize) -> bool {
    count * 2 > members
}

/// Number of nodes that are a majority of `others` nodes and one more, together with that one.
pub(crate) const fn majority_beside_one(others: usize) -> usize {
    others.div_ceil(2)
}

/// Number of the other replicas of a key that together hold at least one copy of every write that a
/// majority of `from` replicas acknowledged.
pub(crate) const fn sources_needed(from: u8) -> u8 {
    from - majority(from as u32) as u8 + 1
}

/// Number of replicas of a key in a cluster of `nodes` nodes: a cell may have been written with a
/// greater `from`.
pub(crate) const fn replica_count(from: u8, nodes: u8) -> u8 {
    if from < nodes { from } else { nodes }
}

/// The replicas that should hold a cell with this `from`, in both sets.
pub(crate) const fn replicas_of_cell(cell_from: u8, swap: Option<SwappedReplicas>) -> ReplicaSet {
    ReplicaSets::of(replica_count(cell_from, NODES_MAX as u8), swap).union()
}

/// Whether keys with this number of replicas have a replica on another node, from which a node can
/// be filled.
pub(crate) const fn has_other_replicas(replicas: u8) -> bool {
    replicas >= OTHER_REPLICAS_FROM
}

/// The least `from` with which [`has_other_replicas`] holds, or all nodes if they are fewer.
pub(crate) const fn replica_count_with_others(from: u8, nodes: u8) -> u8 {
    replica_count(if has_other_replicas(from) { from } else { OTHER_REPLICAS_FROM }, nodes)
}

/// The least `from` with another replica than this node.
const OTHER_REPLICAS_FROM: u8 = 2;

/// The replicas that a swap exchanges, as indices of the preference list before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SwappedReplicas {
    loser: u8,
    gainer: u8,
}

impl SwappedReplicas {
    /// The exchange of these replica indices. The loser comes first.
    pub(crate) const fn new(loser: u8, gainer: u8) -> Self {
        assert!(loser < gainer && (gainer as usize) < NODES_MAX);
        Self { loser, gainer }
    }

    /// Whether the replicas for this `from` change.
    const fn changes(self, from: u8) -> bool {
        self.loser < from && from <= self.gainer
    }
}

/// The least `from` with which this replica is to hold a cell, in one of the sets.
pub(crate) const fn least_from(replica_index: u8, swap: Option<SwappedReplicas>) -> u8 {
    match swap {
        Some(SwappedReplicas { loser, gainer }) if gainer == replica_index => loser + 1,
        _ => replica_index + 1,
    }
}

/// The replicas of a key for one `from`: one set, or those before and after a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplicaSets {
    union: ReplicaSet,
    /// The loser and the gainer, each of which is in one set only. Empty if there is one set.
    swapped: ReplicaSet,
}

impl ReplicaSets {
    /// The sets for `from` while this swap runs.
    pub(crate) const fn of(from: u8, swap: Option<SwappedReplicas>) -> Self {
        let replicas = ReplicaSet::first(from);
        match swap {
            Some(swap) if swap.changes(from) => {
                let gainer = ReplicaSet::one(swap.gainer);
                Self { union: replicas.union(gainer), swapped: ReplicaSet::one(swap.loser).union(gainer) }
            }
            _ => Self::one(replicas),
        }
    }

    /// One set.
    pub(crate) const fn one(replicas: ReplicaSet) -> Self {
        Self { union: replicas, swapped: ReplicaSet::EMPTY }
    }

    /// The set before the swap.
    pub(crate) const fn before(self) -> ReplicaSet {
        match self.swapped.last_index() {
            Some(gainer) => self.union.without(ReplicaSet::one(gainer)),
            None => self.union,
        }
    }

    /// The set after the swap.
    pub(crate) const fn after(self) -> ReplicaSet {
        match self.swapped.first_index() {
            Some(loser) => self.union.without(ReplicaSet::one(loser)),
            None => self.union,
        }
    }

    /// The replicas of both sets.
    pub(crate) const fn union(self) -> ReplicaSet {
        self.union
    }

    /// The loser and the gainer; empty if there is one set.
    pub(crate) const fn swapped(self) -> ReplicaSet {
        self.swapped
    }

    /// The number of these replicas in the set that has fewer of them.
    pub(crate) const fn count(self, replicas: ReplicaSet) -> u8 {
        let replicas = replicas.intersection(self.union);
        // Each set lacks one of the two. If both are among the replicas, each set has one of them;
        // if one is, the other set has none.
        replicas.len() - !replicas.intersection(self.swapped).is_empty() as u8
    }
}

/// Replicas of a read by their information about the newest cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellReplicas {
    /// The cell's own `from`.
    pub(crate) cell_from: u8,
    /// Replicas that hold the cell.
    pub(crate) held: ReplicaSet,
    /// Replicas that have answered.
    pub(crate) answered: ReplicaSet,
    /// Replicas that cannot be reached in time.
    pub(crate) out_of_reach: ReplicaSet,
    /// The swap that runs.
    pub(crate) swap: Option<SwappedReplicas>,
}

impl CellReplicas {
    /// Whether no later read misses the cell whose quorum overlaps with this one, and with that of
    /// all the cell's replicas. During a swap this holds for reads of either list: the swap may
    /// change the replicas of the cell and not those of the read.
    ///
    /// Only the cell's own replicas count. Another node may hold it because a swap has removed the
    /// node from them, and drops it soon.
    pub(crate) const fn suffice(&self, quorum: Quorum) -> bool {
        let [before, after] = self.lists(quorum);
        before.suffice(self.held, quorum) && after.suffice(self.held, quorum)
    }

    /// Whether they suffice if the cell's replicas that are out of reach are trusted to hold it. A
    /// replica that has answered is never trusted. The `from` of the cell must be less than that of
    /// the read, whose overlap with the write's quorum is what the trust relies on. During a swap
    /// this holds for the replicas before it and for those after it.
    pub(crate) const fn suffice_with_trust(&self, quorum: Quorum) -> bool {
        let [before, after] = self.lists(quorum);
        quorum.exceeds_replicas_of(self.cell_from)
            && self.suffice_with_trust_in(before, quorum)
            && self.suffice_with_trust_in(after, quorum)
    }

    const fn suffice_with_trust_in(&self, list: ReplicasOfList, quorum: Quorum) -> bool {
        let trusted = list.intended.intersection(self.out_of_reach).without(self.answered);
        list.intended.intersection(self.answered).without(self.held).is_empty()
            && list.suffice(self.held.union(trusted), quorum)
    }

    /// The replicas in the list before the swap and in the one after it.
    const fn lists(&self, quorum: Quorum) -> [ReplicasOfList; 2] {
        let intended = ReplicaSets::of(replica_count(self.cell_from, NODES_MAX as u8), self.swap);
        let readers = ReplicaSets::of(quorum.from, self.swap);
        [
            ReplicasOfList { intended: intended.before(), readers: readers.before() },
            ReplicasOfList { intended: intended.after(), readers: readers.after() },
        ]
    }
}

/// The replicas of a cell and those of a read, in one preference list.
#[derive(Clone, Copy, Debug)]
struct ReplicasOfList {
    /// The replicas that should hold the cell.
    intended: ReplicaSet,
    /// The replicas that the read takes into account.
    readers: ReplicaSet,
}

impl ReplicasOfList {
    /// Whether no later overlapping read of this list misses a cell that `held` hold.
    const fn suffice(self, held: ReplicaSet, quorum: Quorum) -> bool {
        let counted = held.intersection(self.intended).intersection(self.readers);
        quorum.is_met_by(counted.len()) || self.intended.without(counted).is_empty()
    }
}

/// Counts the answers of the replicas of one key, which are named by their replica index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    quorum: Quorum,
    /// The replicas that count: of each set, `ack` are needed.
    sets: ReplicaSets,
    acked: ReplicaSet,
    failed: ReplicaSet,
}

impl Tally {
    /// Creates a tally of the only set of replicas, without answers.
    pub(crate) const fn new(quorum: Quorum) -> Self {
        Self::of(quorum, ReplicaSets::one(quorum.replicas()))
    }

    /// Creates a tally of these sets of `from` replicas each, without answers.
    pub(crate) const fn of(quorum: Quorum, sets: ReplicaSets) -> Self {
        Self { quorum, sets, acked: ReplicaSet::EMPTY, failed: ReplicaSet::EMPTY }
    }

    /// Counts a replica that did as asked, and returns whether it counts. Only the first answer of
    /// a replica does.
    ///
    /// # Panics
    /// If `replica` does not hold the key, as [`Tally::fail`].
    pub(crate) fn ack(&mut self, replica: u8) -> bool {
        self.is_first_answer_of(replica) && self.acked.insert(replica)
    }

    /// Counts a replica that cannot do as asked, and returns whether it counts.
    pub(crate) fn fail(&mut self, replica: u8) -> bool {
        self.is_first_answer_of(replica) && self.failed.insert(replica)
    }

    /// Counts a failed replica as one that was not asked. Returns whether it had failed.
    pub(crate) fn reopen(&mut self, replica: u8) -> bool {
        self.failed.remove(replica)
    }

    /// Counts a replica that did as asked as failed. Returns whether it had done as asked.
    pub(crate) fn revoke(&mut self, replica: u8) -> bool {
        self.acked.remove(replica) && self.failed.insert(replica)
    }

    /// The same quorum without `replicas`, which count as failed like those that have failed.
    /// `None`: the others are too few.
    pub(crate) fn restarted_without(&self, replicas: ReplicaSet) -> Option<Self> {
        let tally = Self { failed: self.failed.union(replicas), ..Self::of(self.quorum, self.sets) };
        (!tally.is_impossible()).then_some(tally)
    }

    /// Whether enough replicas did as asked.
    pub(crate) const fn is_reached(&self) -> bool {
        self.is_met_by(self.acked)
    }

    /// Whether more replicas must be asked than those that have been and have not answered.
    pub(crate) const fn needs_more_than(&self, open: ReplicaSet) -> bool {
        !self.is_met_by(self.acked.union(open))
    }

    /// Whether too many replicas failed for the quorum ever to be reached.
    pub(crate) const fn is_impossible(&self) -> bool {
        !self.is_met_by(self.sets.union.without(self.failed))
    }

    /// Whether the quorum is impossible only because the replicas in `lacking` have failed.
    pub(crate) const fn is_reachable_if_recovered(&self, lacking: ReplicaSet) -> bool {
        let failed = self.failed.without(lacking);
        self.is_impossible() && self.is_met_by(self.sets.union.without(failed))
    }

    /// Number of replicas that did as asked, of those that hold the key: in the set that has fewer
    /// of them.
    pub(crate) const fn acks(&self) -> Acks {
        Acks { got: self.sets.count(self.acked), from: self.quorum.from }
    }

    /// The failure of a command with these answers.
    pub(crate) const fn short(&self, shortfall: Shortfall) -> CommandFailure {
        CommandFailure::NotEnoughReplicas { acks: self.acks(), ack: self.quorum.ack, shortfall }
    }

    /// Replicas that did as asked.
    pub(crate) const fn acked(&self) -> ReplicaSet {
        self.acked
    }

    /// Replicas that cannot do as asked.
    pub(crate) const fn failed(&self) -> ReplicaSet {
        self.failed
    }

    /// Replicas that have not answered.
    pub(crate) const fn silent(&self) -> ReplicaSet {
        self.unacked().without(self.failed)
    }

    /// Replicas that have not done as asked, as far as known.
    pub(crate) const fn unacked(&self) -> ReplicaSet {
        self.sets.union.without(self.acked)
    }

    /// The quorum to reach.
    pub(crate) const fn quorum(&self) -> Quorum {
        self.quorum
    }

    const fn is_met_by(&self, replicas: ReplicaSet) -> bool {
        self.quorum.is_met_by(self.sets.count(replicas))
    }

    fn is_first_answer_of(&self, replica: u8) -> bool {
        let from = self.quorum.from;
        assert!(self.sets.union.contains(replica), "replica {replica} of {from} does not hold the key");
        !self.acked.contains(replica) && !self.failed.contains(replica)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Size of the largest cluster of which everything is tried.
    const NODES_TRIED: u8 = 5;

    fn resolve(ack: Option<u32>, from: Option<u32>, nodes: u8) -> Result<(u8, u8), QuorumError> {
        let nodes = NonZeroU8::new(nodes).expect("at least one node");
        QuorumChoice { ack, from }.resolve(nodes, nodes.get()).map(|quorum| (quorum.ack(), quorum.from()))
    }

    /// All quorums that clusters of up to [`NODES_TRIED`] nodes can form.
    fn quorums() -> impl Iterator<Item = Quorum> {
        (1..=NODES_TRIED).flat_map(|from| (1..=from).map(move |ack| Quorum { ack, from }))
    }

    #[test]
    fn the_default_is_a_majority_of_all_nodes() {
        let expected = [(1, 1), (2, 2), (2, 3), (3, 4), (3, 5)];
        for (nodes, expected) in (1..=NODES_TRIED).zip(expected) {
            assert_eq!(resolve(None, None, nodes), Ok(expected));
        }
        let choice = QuorumChoice::default().resolve(NonZeroU8::MAX, 3);
        assert_eq!(choice.map(|quorum| (quorum.ack(), quorum.from())), Ok((2, 3)));
    }

    #[test]
    fn a_choice_of_from_alone_is_the_quorum_with_the_default_ack() {
        for from in 1..=NODES_TRIED {
            let choice = QuorumChoice { ack: None, from: Some(from.into()) };
            let quorum = choice.resolve(NonZeroU8::MAX, 1).expect("one of many nodes");
            assert_eq!(quorum, Quorum::with_default_ack(from));
            assert!((0..=from).all(|replicas| quorum.is_met_by(replicas) == (2 * replicas > from)));
        }
    }

    #[test]
    fn every_choice_resolves_to_its_quorum_or_an_error() {
        let choices = || (0..=u32::from(NODES_TRIED) + 2).map(Some).chain([None, Some(256), Some(u32::MAX)]);
        for nodes in 1..=NODES_TRIED {
            for (ack, from) in choices().flat_map(|ack| choices().map(move |from| (ack, from))) {
                let from_meant = from.unwrap_or(u32::from(nodes));
                let ack_meant = ack.unwrap_or(from_meant / 2 + 1);
                let valid = 1 <= ack_meant && ack_meant <= from_meant && from_meant <= u32::from(nodes);
                let resolved = resolve(ack, from, nodes);
                assert_eq!(resolved.is_ok(), valid, "{ack:?}/{from:?} of {nodes}");
                match resolved {
                    Ok((ack, from)) => assert_eq!((u32::from(ack), u32::from(from)), (ack_meant, from_meant)),
                    Err(error) => assert_eq!(error, QuorumError { ack: ack_meant, from: from_meant, nodes }),
                }
            }
        }
    }

    #[test]
    fn a_default_of_more_replicas_than_nodes_is_an_error() {
        assert!(QuorumChoice::default().resolve(NonZeroU8::MIN, 2).is_err());
    }

    /// Every replica is silent, acknowledges or fails, in every combination, and answers twice.
    #[test]
    fn a_tally_counts_each_replica_once() {
        for quorum in quorums() {
            for mut answers in 0..3u32.pow(u32::from(quorum.from)) {
                let mut tally = Tally::new(quorum);
                let (mut acked, mut failed) = (0, 0);
                for replica in 0..quorum.from {
                    match answers % 3 {
                        0 => {}
                        1 => {
                            acked += 1;
                            assert!(tally.ack(replica) && !tally.fail(replica));
                        }
                        _ => {
                            failed += 1;
                            assert!(tally.fail(replica) && !tally.ack(replica));
                        }
                    }
                    answers /= 3;
                }
                assert_eq!(tally.acks(), Acks { got: acked, from: quorum.from });
                assert_eq!(tally.silent().len(), quorum.from - acked - failed);
                assert_eq!(tally.is_reached(), acked >= quorum.ack);
                assert_eq!(tally.is_impossible(), failed > quorum.from - quorum.ack);
                assert!(!(tally.is_reached() && tally.is_impossible()));
            }
        }
    }

    /// The property that quorums exist for, over every pair of answering sets.
    #[test]
    fn overlapping_quorums_meet_in_a_replica() {
        for (read, write) in quorums().flat_map(|read| quorums().map(move |write| (read, write))) {
            let from = read.from.max(write.from);
            if u32::from(read.ack) + u32::from(write.ack) <= u32::from(from) {
                continue;
            }
            for (a, b) in answering(read).flat_map(|a| answering(write).map(move |b| (a, b))) {
                assert_ne!(a & b, 0, "{read:?} {write:?}");
            }
        }
    }

    /// Sets of replicas, as bits, that reach `quorum`.
    fn answering(quorum: Quorum) -> impl Iterator<Item = u32> {
        (0..1u32 << quorum.from).filter(move |set| set.count_ones() >= u32::from(quorum.ack))
    }

    /// Sets of replicas of `from` replicas.
    fn subsets(from: u8) -> impl Iterator<Item = ReplicaSet> {
        (0..1u32 << from).map(move |bits| (0..from).filter(|index| bits >> index & 1 == 1).collect())
    }

    #[test]
    fn a_majority_is_the_least_number_of_which_any_two_share_a_member() {
        for members in 1..=u32::from(NODES_TRIED) {
            let least = (1..=members).find(|count| 2 * count > members).expect("all members are one");
            assert_eq!(majority(members), least);
            for count in 0..=members {
                assert_eq!(is_majority(count as usize, members as usize), count >= least);
            }
            assert_eq!(majority_beside_one(members as usize - 1), least as usize - 1);
        }
    }

    /// The claim that a rebuild relies on: the others include one of every majority.
    #[test]
    fn enough_sources_meet_every_majority_of_the_other_replicas() {
        for from in 2..=NODES_TRIED {
            let own = ReplicaSet::one(0);
            let majorities: Vec<_> =
                subsets(from).filter(|set| u32::from(set.len()) >= majority(from.into())).collect();
            let covers = |sources: ReplicaSet| {
                majorities.iter().all(|majority| !majority.intersection(sources).is_empty())
            };
            for sources in subsets(from).filter(|sources| sources.intersection(own).is_empty()) {
                assert_eq!(covers(sources), sources.len() >= sources_needed(from), "{from} {sources:?}");
            }
        }
    }

    #[test]
    fn a_read_misses_no_cell_that_enough_replicas_hold() {
        for quorum in quorums() {
            for cell_from in 1..=NODES_TRIED {
                let needed = quorum.ack.min(cell_from);
                assert_eq!(quorum.exceeds_replicas_of(cell_from), cell_from < quorum.from);
                for held in subsets(cell_from.min(quorum.from)) {
                    let none = ReplicaSet::EMPTY;
                    let (answered, out_of_reach, swap) = (held, none, None);
                    let cell = CellReplicas { cell_from, held, answered, out_of_reach, swap };
                    assert_eq!(cell.suffice(quorum), held.len() >= needed);
                    // A quorum that overlaps with itself then meets a holder in every set.
                    if held.len() >= quorum.ack && 2 * quorum.ack > quorum.from {
                        let mut sets = subsets(quorum.from).filter(|set| set.len() >= quorum.ack);
                        assert!(cell.suffice(quorum));
                        assert!(sets.all(|set| !set.intersection(held).is_empty()), "{quorum:?} {held:?}");
                    }
                }
            }
        }
    }

    /// Every partition of the replicas into holders, others that answered, and those out of reach.
    #[test]
    fn only_silent_replicas_of_a_cell_with_a_smaller_from_are_trusted() {
        for quorum in quorums() {
            for cell_from in 1..=NODES_TRIED {
                for answered in subsets(quorum.from) {
                    for held in subsets(quorum.from).filter(|held| held.without(answered).is_empty()) {
                        for out_of_reach in subsets(quorum.from) {
                            let cell = CellReplicas { cell_from, held, answered, out_of_reach, swap: None };
                            let lacks = |index: &u8| answered.contains(*index) && !held.contains(*index);
                            let counts = |index: &u8| {
                                let is_silent = out_of_reach.contains(*index) && !answered.contains(*index);
                                held.contains(*index) || *index < cell_from && is_silent
                            };
                            let expected = cell_from < quorum.from
                                && !(0..cell_from).any(|index| lacks(&index))
                                && (0..cell_from).filter(counts).count()
                                    >= usize::from(quorum.ack.min(cell_from));
                            assert_eq!(cell.suffice_with_trust(quorum), expected, "{quorum:?} {cell:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_replicas_of_a_key_are_at_most_all_nodes() {
        for from in 0..=NODES_TRIED + 2 {
            for nodes in 1..=NODES_TRIED {
                assert_eq!(replica_count(from, nodes), from.min(nodes));
                assert_eq!(replica_count_with_others(from, nodes), from.max(2).min(nodes));
                assert_eq!(has_other_replicas(from), from > 1);
            }
            assert_eq!(replicas_of_cell(from, None), ReplicaSet::first(from));
        }
        assert_eq!(replicas_of_cell(u8::MAX, None).len(), 64);
    }

    /// The replicas for `from` in the list `0..NODES_TRIED`, and in the one after the swap.
    fn naive_sets(from: u8, (loser, gainer): (u8, u8)) -> [Vec<u8>; 2] {
        let old: Vec<u8> = (0..NODES_TRIED).collect();
        let mut new = old.clone();
        new.swap(usize::from(loser), usize::from(gainer));
        [old, new].map(|list| list[..usize::from(from)].to_vec())
    }

    fn pairs() -> impl Iterator<Item = (u8, u8)> {
        (0..NODES_TRIED).flat_map(|loser| (loser + 1..NODES_TRIED).map(move |gainer| (loser, gainer)))
    }

    fn of_each(sets: &[Vec<u8>; 2], replicas: ReplicaSet) -> [u8; 2] {
        [0, 1].map(|set: usize| sets[set].iter().filter(|index| replicas.contains(**index)).count() as u8)
    }

    /// Every swap of every list, and every subset of its nodes.
    #[test]
    fn both_sets_of_a_swap_are_those_of_the_two_lists() {
        for (pair, from) in pairs().flat_map(|pair| (1..=NODES_TRIED).map(move |from| (pair, from))) {
            let swap = Some(SwappedReplicas::new(pair.0, pair.1));
            let sets = ReplicaSets::of(from, swap);
            let naive = naive_sets(from, pair);
            let set_of = |replicas: &[u8]| replicas.iter().copied().collect::<ReplicaSet>();
            assert_eq!([sets.before(), sets.after()], [0, 1].map(|set: usize| set_of(&naive[set])));
            assert_eq!(sets.union(), set_of(&naive[0]).union(set_of(&naive[1])));
            assert_eq!(
                sets.union().without(sets.swapped()),
                set_of(&naive[0]).intersection(set_of(&naive[1]))
            );
            assert_eq!(replicas_of_cell(from, swap), sets.union());
            for replicas in subsets(NODES_TRIED) {
                let least = of_each(&naive, replicas).into_iter().min();
                assert_eq!(Some(sets.count(replicas)), least, "{pair:?} {from} {replicas:?}");
            }
        }
        let sets = ReplicaSets::of(63, Some(SwappedReplicas::new(0, 63)));
        assert_eq!((sets.union().len(), sets.count(ReplicaSet::first(64))), (64, 63));
    }

    /// Every swap, quorum, and way to acknowledge and fail.
    #[test]
    fn a_tally_of_two_sets_needs_a_quorum_of_each() {
        for (pair, quorum) in pairs().flat_map(|pair| quorums().map(move |quorum| (pair, quorum))) {
            let sets = ReplicaSets::of(quorum.from, Some(SwappedReplicas::new(pair.0, pair.1)));
            let naive = naive_sets(quorum.from, pair);
            let is_met = |replicas| of_each(&naive, replicas).into_iter().all(|count| count >= quorum.ack);
            let inside = |replicas: &ReplicaSet| replicas.without(sets.union()).is_empty();
            for acked in subsets(NODES_TRIED).filter(inside) {
                let mut tally = Tally::of(quorum, sets);
                assert!({ acked }.all(|replica| tally.ack(replica) && !tally.fail(replica)));
                assert_eq!(tally.is_reached(), is_met(acked), "{quorum:?} {pair:?} {acked:?}");
                assert_eq!(Some(tally.acks().got), of_each(&naive, acked).into_iter().min());
                let others = sets.union().without(acked);
                assert_eq!((tally.silent(), tally.unacked()), (others, others));
                for more in subsets(NODES_TRIED).filter(|more| more.without(others).is_empty()) {
                    assert_eq!(tally.needs_more_than(more), !is_met(acked.union(more)));
                    let mut tally = tally;
                    assert!({ more }.all(|replica| tally.fail(replica)));
                    assert_eq!(tally.is_impossible(), !is_met(sets.union().without(more)));
                    for lacking in subsets(NODES_TRIED).filter(|lacking| lacking.without(more).is_empty()) {
                        let left = sets.union().without(more.without(lacking));
                        let expected = tally.is_impossible() && is_met(left);
                        assert_eq!(tally.is_reachable_if_recovered(lacking), expected);
                    }
                }
            }
        }
    }

    /// The property that two sets exist for: a quorum of either set meets a write that both hold.
    #[test]
    fn a_quorum_of_either_set_meets_what_both_hold() {
        for (pair, from) in pairs().flat_map(|pair| (1..=NODES_TRIED).map(move |from| (pair, from))) {
            let sets = ReplicaSets::of(from, Some(SwappedReplicas::new(pair.0, pair.1)));
            let overlapping =
                (1..=from).flat_map(|write| (from - write + 1..=from).map(move |read| (write, read)));
            for (write, read) in overlapping {
                let tally = Tally::of(Quorum { ack: write, from }, sets);
                for holders in subsets(NODES_TRIED).filter(|holders| tally.is_met_by(*holders)) {
                    for readers in [sets.before(), sets.after()] {
                        let mut quorums = subsets(NODES_TRIED)
                            .filter(|set| set.without(readers).is_empty() && set.len() >= read);
                        assert!(quorums.all(|set| !set.intersection(holders).is_empty()));
                    }
                }
            }
        }
    }

    /// The property that `suffice` exists for, over every later read of either list.
    #[test]
    fn no_later_overlapping_read_of_either_list_misses_a_cell_that_suffices() {
        let swaps = pairs().map(|(loser, gainer)| Some(SwappedReplicas::new(loser, gainer)));
        for (swap, read) in swaps.chain([None]).flat_map(|swap| quorums().map(move |quorum| (swap, quorum))) {
            for (cell_from, held) in
                (1..=NODES_TRIED).flat_map(|from| subsets(NODES_TRIED).map(move |held| (from, held)))
            {
                let none = ReplicaSet::EMPTY;
                let cell = CellReplicas { cell_from, held, answered: held, out_of_reach: none, swap };
                if !cell.suffice(read) {
                    continue;
                }
                let overlaps = |later: &Quorum| {
                    read.ack + later.ack > read.from.max(later.from) && cell_from + later.ack > later.from
                };
                for later in quorums().filter(overlaps) {
                    let (own, readers) =
                        (ReplicaSets::of(cell_from, swap), ReplicaSets::of(later.from, swap));
                    for (own, readers) in [(own.before(), readers.before()), (own.after(), readers.after())] {
                        // Other nodes than the cell's replicas may drop it at any time.
                        let missing = readers.without(held.intersection(own)).len();
                        assert!(missing < later.ack, "{read:?}, then {later:?} {cell:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_least_from_is_that_of_the_first_set_with_the_replica() {
        for (pair, index) in pairs().flat_map(|pair| (0..NODES_TRIED).map(move |index| (pair, index))) {
            for swap in [None, Some(SwappedReplicas::new(pair.0, pair.1))] {
                let first = (1..=NODES_TRIED).find(|from| replicas_of_cell(*from, swap).contains(index));
                assert_eq!(first, Some(least_from(index, swap)), "{pair:?} {index}");
            }
        }
    }

    /// As the claims above about one set, for both sets of every swap.
    #[test]
    fn a_cell_is_held_where_no_read_of_either_set_misses_it() {
        for (pair, quorum) in pairs().flat_map(|pair| quorums().map(move |quorum| (pair, quorum))) {
            let swap = Some(SwappedReplicas::new(pair.0, pair.1));
            let readers = naive_sets(quorum.from, pair);
            for cell_from in 1..=NODES_TRIED {
                let intended = naive_sets(cell_from, pair);
                for code in 0..4u32.pow(u32::from(NODES_TRIED)) {
                    // Each replica holds the cell, lacks it, is out of reach, or was not asked.
                    let of = |kind: u32| -> ReplicaSet {
                        (0..NODES_TRIED).filter(|index| code >> (2 * index) & 3 == kind).collect()
                    };
                    let (held, lacking, out_of_reach) = (of(0), of(1), of(2));
                    let answered = held.union(lacking);
                    let cell = CellReplicas { cell_from, held, answered, out_of_reach, swap };
                    let in_each = |is_so: &dyn Fn(&[u8], &[u8]) -> bool| {
                        (0..2).all(|set: usize| is_so(&readers[set], &intended[set]))
                    };
                    let is_enough = |readers: &[u8], intended: &[u8], counts: &dyn Fn(&u8) -> bool| {
                        let both = readers.iter().filter(|index| intended.contains(index));
                        let needed = quorum.ack.min(cell_from);
                        both.filter(|index| counts(index)).count() >= usize::from(needed)
                    };
                    let holds = |index: &u8| held.contains(*index);
                    let suffices = in_each(&|readers, intended| is_enough(readers, intended, &holds));
                    assert_eq!(cell.suffice(quorum), suffices);
                    let is_trusted = in_each(&|readers, intended| {
                        let counts = |index: &u8| {
                            holds(index) || intended.contains(index) && out_of_reach.contains(*index)
                        };
                        !intended.iter().any(|index| lacking.contains(*index))
                            && is_enough(readers, intended, &counts)
                    });
                    let expected = cell_from < quorum.from && is_trusted;
                    assert_eq!(cell.suffice_with_trust(quorum), expected, "{quorum:?} {pair:?} {cell:?}");
                }
            }
        }
    }

    #[test]
    fn a_restarted_tally_counts_the_others_anew() {
        for quorum in quorums() {
            for (failed, without) in
                subsets(quorum.from).flat_map(|a| subsets(quorum.from).map(move |b| (a, b)))
            {
                let mut tally = Tally::new(quorum);
                failed.for_each(|replica| assert!(tally.fail(replica)));
                tally.silent().for_each(|replica| assert!(tally.ack(replica)));
                let left = quorum.from - failed.union(without).len();
                let restarted = tally.restarted_without(without);
                assert_eq!(restarted.is_some(), left >= quorum.ack);
                let Some(restarted) = restarted else { continue };
                assert_eq!((restarted.acks().got, restarted.silent().len()), (0, left));
                for open in subsets(quorum.from).filter(|open| open.without(restarted.silent()).is_empty()) {
                    assert_eq!(restarted.needs_more_than(open), open.len() < quorum.ack);
                }
            }
        }
    }

    #[test]
    fn a_tally_counts_the_largest_cluster() {
        let quorum = Quorum { ack: 64, from: 64 };
        let mut tally = Tally::new(quorum);
        (0..63).for_each(|replica| assert!(tally.ack(replica)));
        assert!(!tally.is_reached());
        tally.ack(63);
        assert!(tally.is_reached());
    }

    #[test]
    #[should_panic(expected = "does not hold the key")]
    fn a_node_that_is_no_replica_is_not_counted() {
        Tally::new(Quorum { ack: 1, from: 1 }).ack(1);
    }
}
