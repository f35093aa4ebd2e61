//! Quorum arithmetic: the number of replicas that hold a key, and the number that must answer.
//!
//! **Promise.** `from` replicas hold the key, `ack` of them must answer. A read and a write of the
//! same key share at least one replica if `ack(read) + ack(write) > from`. A [`Tally`] counts each
//! replica once, even if it answers repeatedly.

use crate::replica_set::ReplicaSet;
use crate::{Acks, Failure, Shortfall};
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
        let ack = self.ack.unwrap_or(from / 2 + 1);
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
    /// Number of replicas that must answer.
    pub const fn ack(self) -> u8 {
        self.ack
    }

    /// Number of replicas that hold the key.
    pub const fn from(self) -> u8 {
        self.from
    }
}

/// Counts the answers of the replicas of one key, which are named by their replica index,
/// `0..from`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    quorum: Quorum,
    acked: ReplicaSet,
    failed: ReplicaSet,
}

impl Tally {
    /// Creates a tally without answers.
    pub(crate) const fn new(quorum: Quorum) -> Self {
        Self { quorum, acked: ReplicaSet::EMPTY, failed: ReplicaSet::EMPTY }
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

    /// Whether enough replicas did as asked.
    pub(crate) const fn is_reached(&self) -> bool {
        self.acked.len() >= self.quorum.ack
    }

    /// Whether too many replicas failed for the quorum ever to be reached.
    pub(crate) const fn is_impossible(&self) -> bool {
        self.quorum.from - self.failed.len() < self.quorum.ack
    }

    /// Whether the quorum is impossible only because the replicas in `lacking` have failed.
    pub(crate) const fn is_reachable_if_recovered(&self, lacking: ReplicaSet) -> bool {
        let failed = self.failed.without(lacking);
        self.is_impossible() && self.quorum.from - failed.len() >= self.quorum.ack
    }

    /// Number of replicas that did as asked, of those that hold the key.
    pub(crate) const fn acks(&self) -> Acks {
        Acks { got: self.acked.len(), from: self.quorum.from }
    }

    /// The failure of a command with these answers.
    pub(crate) const fn short(&self, shortfall: Shortfall) -> Failure {
        Failure::NotEnoughReplicas { acks: self.acks(), ack: self.quorum.ack, shortfall }
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
        ReplicaSet::first(self.quorum.from).without(self.acked).without(self.failed)
    }

    /// The quorum to reach.
    pub(crate) const fn quorum(&self) -> Quorum {
        self.quorum
    }

    fn is_first_answer_of(&self, replica: u8) -> bool {
        let from = self.quorum.from;
        assert!(replica < from, "replica {replica} of {from} does not hold the key");
        !self.acked.contains(replica) && !self.failed.contains(replica)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES_MAX: u8 = 5;

    fn resolve(ack: Option<u32>, from: Option<u32>, nodes: u8) -> Result<(u8, u8), QuorumError> {
        let nodes = NonZeroU8::new(nodes).expect("at least one node");
        QuorumChoice { ack, from }.resolve(nodes, nodes.get()).map(|quorum| (quorum.ack(), quorum.from()))
    }

    /// All quorums that clusters of up to [`NODES_MAX`] nodes can form.
    fn quorums() -> impl Iterator<Item = Quorum> {
        (1..=NODES_MAX).flat_map(|from| (1..=from).map(move |ack| Quorum { ack, from }))
    }

    #[test]
    fn the_default_is_a_majority_of_all_nodes() {
        let expected = [(1, 1), (2, 2), (2, 3), (3, 4), (3, 5)];
        for (nodes, expected) in (1..=NODES_MAX).zip(expected) {
            assert_eq!(resolve(None, None, nodes), Ok(expected));
        }
        let choice = QuorumChoice::default().resolve(NonZeroU8::MAX, 3);
        assert_eq!(choice.map(|quorum| (quorum.ack(), quorum.from())), Ok((2, 3)));
    }

    #[test]
    fn every_choice_resolves_to_its_quorum_or_an_error() {
        let choices = || (0..=u32::from(NODES_MAX) + 2).map(Some).chain([None, Some(256), Some(u32::MAX)]);
        for nodes in 1..=NODES_MAX {
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
