//! Reconciliation: the node proposes the next record by itself when the adopted one does not
//! describe the cluster as it is.
//!
//! **Promise.**
//!
//! 1. While a majority of the voters is reachable, a change that the [rules](super::next_record)
//!    call for is proposed until a record is decided. A record has one change.
//! 2. The voter with the least slot among the reachable ones proposes at once. The others wait
//!    longer, so two nodes rarely propose at the same time.
//! 3. A proposal on request of the host goes first: it ends one of reconciliation, whose end is not
//!    reported to the host.
//!
//! **Mechanism.** At each interval of heartbeats the node compares the adopted record with the
//! members as it hears them. The first time that a change is called for, it sets the time of the
//! proposal. That is at once for the reachable voter with the least slot. For each further one it
//! is [`RANK_DELAY`] later, with a random part. After a proposal that has failed, the back-off
//! doubles up to [`BACK_OFF_MAX`]. A voter that becomes reachable ends the back-off. A new record
//! begins with a new time.
//!
//! **Stated URLs.** Voters may have heard different URLs of a node, because only some of them hear
//! of its move. Two rules keep them from replacing each other's URL again and again:
//!
//! * A statement counts only while the node is linked. So a voter that has lost the node proposes
//!   nothing for it. The statement is kept, because the host does not repeat a URL that is no news.
//! * A record that changes the URL of a peer ends the statements about it that this node has heard
//!   before. A node keeps the statement about itself: it alone knows its URL for certain.
//!
//! **Caveats.** A link to a process that has ended may count as open for as long as the failure
//! detector needs. If the host repeats a former URL in that time, the record has it until the link
//! ends. In epoch 1 every member has to be heard. So one that is down, is of a release without the
//! agreement, or holds another record of the epoch keeps the record as it is. Reachable voters need
//! not have the right to vote, which only they know: a proposal among too few of them fails and is
//! repeated. The node of a member that was declared dead does not become active again; another node
//! in its slot does. Below the feature level of plans, the id of a replaced node can be named again
//! while the new one is down. That node lacks the writes that the new one acknowledged. A node
//! whose adopted record has a feature level that it does not carry out proposes nothing: it was put
//! back to an earlier release.

use super::next_record::{HeardCluster, HeardMember, next_record};
use super::proposal::ProposalRequester;
use crate::quorum::is_majority;
use crate::{
    ChainRecord, LayoutEpoch, LayoutRecord, LayoutRecordError, Node, NodeIndex, NodeSet, PeerState,
    SyncState, URL_BYTES_MAX,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Instant, NodeTag, Now, Rng};

/// Time between the proposals of two voters with consecutive ranks, for the same change.
const RANK_DELAY: Duration = Duration::from_millis(400);
/// Time after which a proposal has failed: voters with slow disks have the longest time to answer
/// in the proposer's later attempts.
const WITHIN: Duration = Duration::from_secs(30);
/// Delay after the first failure. It doubles with each further one.
const BACK_OFF_FIRST: Duration = Duration::from_millis(500);
/// Upper bound of the delay after a failure, without its random part.
const BACK_OFF_MAX: Duration = Duration::from_secs(30);
/// Time after which a peer that is not heard is [silent](HeardCluster::silent).
const SILENT_AFTER: Duration = Duration::from_secs(30);

/// The state of reconciliation.
#[derive(Debug, Default)]
pub(super) struct Reconciliation {
    is_paused: bool,
    /// Epoch of the record that the state below is about.
    epoch: Option<LayoutEpoch>,
    /// The voters that were reachable at the last comparison.
    reachable: NodeSet,
    /// Time of the proposal of a change, once one is called for.
    propose_at: Option<Instant>,
    /// Number of proposals that have failed since the last record or the last voter that became
    /// reachable.
    failures: u32,
    /// The last URL that the node in a slot has stated, with its id.
    stated_urls: BTreeMap<NodeIndex, (NodeTag, String)>,
    /// The peers that are not heard, with the time of the first comparison that found it.
    unheard_since: BTreeMap<NodeIndex, Instant>,
    /// The peers that were not heard for [`SILENT_AFTER`].
    silent: NodeSet,
}

impl Reconciliation {
    /// Records that a proposal of reconciliation has ended without a record.
    pub(super) fn record_failure(&mut self) {
        self.failures += 1;
        self.propose_at = None;
    }

    /// Forgets the statements about peers whose URLs differ in the adopted record `new` and in the
    /// `former` one. `me`: slot of this node.
    pub(super) fn record_adopted(&mut self, me: NodeIndex, former: &LayoutRecord, new: &LayoutRecord) {
        let url_in = |record: &LayoutRecord, slot| record.member(slot).map(|member| member.url.clone());
        self.stated_urls.retain(|slot, _| *slot == me || url_in(former, *slot) == url_in(new, *slot));
    }

    /// Records the voters of the record of this `epoch` that are reachable.
    fn observe(&mut self, epoch: LayoutEpoch, reachable: NodeSet) {
        let is_news = self.epoch != Some(epoch) || !reachable.without(self.reachable).is_empty();
        if is_news {
            (self.epoch, self.propose_at, self.failures) = (Some(epoch), None, 0);
        }
        self.reachable = reachable;
    }

    /// Records the peers that are not heard now.
    fn note_unheard(&mut self, now: Instant, unheard: NodeSet) {
        self.unheard_since.retain(|node, _| unheard.contains(*node));
        for node in unheard.iter() {
            self.unheard_since.entry(node).or_insert(now);
        }
        let is_silent = |(_, since): &(&NodeIndex, &Instant)| now.saturating_since(**since) >= SILENT_AFTER;
        self.silent = self.unheard_since.iter().filter(is_silent).map(|(node, _)| *node).collect();
    }

    /// The time of the proposal of a change that is called for since `now` or earlier. `rank`:
    /// number of reachable voters before this node.
    fn proposal_time(&mut self, now: Instant, rank: u8, rng: &mut Rng) -> Instant {
        let failures = self.failures;
        *self.propose_at.get_or_insert_with(|| now + delay(rank, failures, rng))
    }
}

/// Delay of the proposal of the voter with this rank, after this number of failures.
fn delay(rank: u8, failures: u32, rng: &mut Rng) -> Duration {
    let back_off = match failures {
        0 => Duration::ZERO,
        failures => BACK_OFF_FIRST.saturating_mul(1 << (failures - 1).min(16)).min(BACK_OFF_MAX),
    };
    let delay = RANK_DELAY * u32::from(rank) + back_off;
    let random_max = delay / 4;
    match random_max.is_zero() {
        true => delay,
        false => delay + Duration::from_micros(rng.below(random_max.as_micros() as u64)),
    }
}

impl Node {
    /// Has the node propose no record by itself any more, until it starts again. A record that it
    /// has proposed may still be decided.
    pub fn pause_reconciliation(&mut self) {
        if let Some(agreement) = &mut self.agreement {
            agreement.reconciliation.is_paused = true;
        }
    }

    /// Records that the node with this id, in this slot, states this URL. It may be this node. If
    /// the adopted record names the id and has another URL, a record with the stated one is
    /// proposed while the node is linked. Only voters propose, so the peers of a node that is no
    /// voter have to be told too. Has no effect while this node takes no part in the agreement, or
    /// if it is the only member and has no URL.
    ///
    /// # Errors
    /// [`LayoutRecordError`]: the slot has no member, the URL is empty or too long, or another
    /// member has it.
    pub fn record_stated_url(
        &mut self,
        now: Now,
        node: NodeIndex,
        id: NodeTag,
        url: String,
    ) -> Result<(), LayoutRecordError> {
        let Some(agreement) = &mut self.agreement else { return Ok(()) };
        let adopted = &agreement.adopted.record;
        let member = adopted.member(node).ok_or(LayoutRecordError::NoSuchMember { slot: node })?;
        if url.is_empty() || url.len() > URL_BYTES_MAX {
            return Err(LayoutRecordError::MemberBounds { slot: node });
        }
        if adopted.members.iter().any(|other| other.slot != node && other.url == url) {
            return Err(LayoutRecordError::DuplicateMember { slot: node });
        }
        if member.url.is_empty() {
            return Ok(());
        }
        agreement.reconciliation.stated_urls.insert(node, (id, url));
        self.advance(now);
        Ok(())
    }

    /// Compares the adopted record with the cluster, and proposes the next record once it is due.
    pub(in crate::node) fn reconcile(&mut self, now: Now) {
        let unheard = self.peer_nodes().filter(|node| self.heard_peer(*node).is_none()).collect();
        let Some(agreement) = &mut self.agreement else { return };
        agreement.reconciliation.note_unheard(now.mono, unheard);
        let adopted = Arc::clone(&agreement.adopted.record);
        let is_adopting = agreement.voter.decided().epoch > adopted.epoch;
        let is_busy = agreement.reconciliation.is_paused || agreement.proposals.is_running() || is_adopting;
        if is_busy || self.drain.is_some() || agreement.voter.check_supported(&adopted).is_err() {
            return;
        }
        let (me, reachable) = (self.member.me, self.reachable_voters(&adopted));
        let able = reachable.without(self.forgetful_voters(&adopted));
        let can_decide = reachable.contains(me) && is_majority(usize::from(able.len()), adopted.voters.len());
        let heard = can_decide.then(|| self.heard_cluster());
        let next = heard.and_then(|heard| next_record(&adopted, &heard));
        let Some(agreement) = &mut self.agreement else { return };
        let reconciliation = &mut agreement.reconciliation;
        reconciliation.observe(adopted.epoch, reachable);
        let Some(next) = next else {
            reconciliation.propose_at = None;
            return;
        };
        let rank = reachable.iter().filter(|voter| *voter < me).count() as u8;
        if now.mono >= reconciliation.proposal_time(now.mono, rank, &mut self.rng) {
            reconciliation.propose_at = None;
            self.begin_proposal(now, (adopted, Arc::new(next)), WITHIN, ProposalRequester::Reconciliation);
        }
    }

    /// The voters of `record` that this node hears, itself included.
    pub(super) fn reachable_voters(&self, record: &LayoutRecord) -> NodeSet {
        record.voters.iter().copied().filter(|slot| self.hears(record, *slot)).collect()
    }

    /// The voters of `record` that this node knows to have forgotten votes, itself included. None
    /// while all voters are needed, because then that does not matter.
    pub(super) fn forgetful_voters(&self, record: &LayoutRecord) -> NodeSet {
        if record.needs_all_voters() {
            return NodeSet::EMPTY;
        }
        let has_forgotten = |slot: NodeIndex| match slot == self.member.me {
            true => self.has_forgotten_votes(),
            false => self.is_peer(slot) && self.peer(slot).heartbeat().is_some_and(|its| its.votes_forgotten),
        };
        record.voters.iter().copied().filter(|slot| has_forgotten(*slot)).collect()
    }

    /// The members of the adopted record as this node hears them.
    pub(super) fn heard_cluster(&self) -> HeardCluster {
        let Some(agreement) = &self.agreement else { return HeardCluster::default() };
        let own = HeardMember {
            id: self.member.tag,
            is_settled: self.is_read_eligible() && self.is_in_place(),
            holds_adopted: true,
            has_votes: !self.has_forgotten_votes(),
            feature_level_max: self.limits.feature_level_max,
            statements: self.plan_statements(),
        };
        let peers = self.peer_nodes().filter_map(|node| self.heard_peer(node).map(|heard| (node, heard)));
        HeardCluster {
            members: peers.chain([(self.member.me, own)]).collect(),
            linked: self.member.layout.nodes().flat_map(|node| self.linked_ids(node)).collect(),
            stated_urls: agreement.reconciliation.stated_urls.clone(),
            silent: agreement.reconciliation.silent,
        }
    }

    pub(super) fn heard_peer(&self, node: NodeIndex) -> Option<HeardMember> {
        let peer = self.peer(node);
        let is_heard = self.speaks_chain(node) && peer.state == PeerState::Up;
        let dialed = peer.dialed.as_ref().filter(|_| is_heard)?;
        let stamp = self.layout_stamp();
        let stated = peer.stated_plan.filter(|_| self.has_running_plan());
        let stated = stated.and_then(|stated| stated.of(dialed.hello.tag, stamp));
        Some(HeardMember {
            id: dialed.hello.tag,
            is_settled: peer.sync_state() == SyncState::Settled,
            holds_adopted: stated.is_some() || dialed.heartbeat.is_some_and(|its| its.layout == stamp),
            has_votes: dialed.heartbeat.is_some_and(|its| !its.votes_forgotten),
            feature_level_max: dialed.heartbeat.map_or(0, |its| its.feature_level_max),
            statements: stated.unwrap_or_default(),
        })
    }

    /// Ids of the nodes in this slot that are linked, that of an accepted link first: a node whose
    /// address has changed cannot be dialed.
    pub(super) fn linked_ids(&self, node: NodeIndex) -> Vec<NodeTag> {
        if node == self.member.me {
            return vec![self.member.tag];
        }
        let Some(peer) = self.peers.get(node.as_usize()) else { return Vec::new() };
        let accepted = peer.accepted.map(|accepted| accepted.hello.tag);
        accepted.into_iter().chain(peer.dialed.as_ref().map(|dialed| dialed.hello.tag)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reachable_voter_proposes_at_once_and_the_others_in_turn() {
        for seed in 0..100 {
            let mut rng = Rng::new(seed);
            let delays = [0, 1, 2, 3, 4].map(|rank| delay(rank, 0, &mut rng));
            assert_eq!(delays[0], Duration::ZERO);
            assert!(delays[1] >= RANK_DELAY && delays.is_sorted(), "{delays:?}");
        }
    }

    #[test]
    fn the_back_off_grows_up_to_its_bound() {
        let mut rng = Rng::new(1);
        let delays: Vec<_> = (0..20).map(|failures| delay(0, failures, &mut rng)).collect();
        assert!(delays[..8].is_sorted(), "{delays:?}");
        assert!(delays.iter().all(|delay| *delay <= BACK_OFF_MAX * 5 / 4), "{delays:?}");
        assert!(delays[19] >= BACK_OFF_MAX);
    }

    #[test]
    fn a_peer_is_silent_after_thirty_seconds_in_which_it_was_not_heard_at_all() {
        let node = NodeIndex(1);
        let (unheard, heard) = (NodeSet::from_iter([node]), NodeSet::EMPTY);
        let mut state = Reconciliation::default();
        for (second, unheard, is_silent) in [
            (100, unheard, false),
            (129, unheard, false),
            (130, unheard, true),
            (131, heard, false),
            (132, unheard, false),
            (161, unheard, false),
            (162, unheard, true),
        ] {
            state.note_unheard(Instant::from_nanos(second * 1_000_000_000), unheard);
            assert_eq!(state.silent.contains(node), is_silent, "second {second}");
        }
    }

    #[test]
    fn a_voter_that_becomes_reachable_and_a_new_record_end_the_back_off() {
        let set = |nodes: &[u8]| nodes.iter().copied().map(NodeIndex).collect::<NodeSet>();
        let mut state = Reconciliation::default();
        for (epoch, reachable, failures) in
            [(1, &[0, 1][..], 0), (1, &[0, 1], 1), (1, &[0], 1), (1, &[0, 2], 0), (2, &[0, 2], 0)]
        {
            state.observe(LayoutEpoch(epoch), set(reachable));
            assert_eq!(state.failures, failures, "epoch {epoch}, {reachable:?}");
            if failures == 0 {
                state.record_failure();
            }
        }
    }
}
