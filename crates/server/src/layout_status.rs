//! How this node sees the layout of its cluster: the records that its peers hold, and the voters
//! that it reaches.
//!
//! **Mechanism.** Heartbeats report the epoch of the sender's record. The control thread records it
//! in [`PeerEpochs`], and since when members are behind. A [`LayoutStatus`] is put together for
//! each page, with the last published status of the node and of the agreement.

use crate::local::Local;
use api::{NodeState, SeenMember};
use cluster::{
    AgreementStatus, LayoutEpoch, LayoutMember, LayoutRecord, NODES_MAX, NodeIndex, NodeSet, NodeStatus,
    PeerState, VoteHistory,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use stdx::Instant;
use store::VotesFound;

/// Time for which a member may hold an older record before it is warned of. A record takes less
/// than a second to all members that are up.
const BEHIND_TIME: Duration = Duration::from_secs(60);

/// The epoch of a peer's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PeerEpoch {
    /// The epoch in the last heartbeat that reported one.
    epoch: Option<LayoutEpoch>,
    /// Time since which the peer is reached and holds an older record than this node.
    behind_since: Option<Instant>,
}

/// The epochs of the records of all peers, by slot, and the votes that this node has lost.
#[derive(Debug)]
pub(crate) struct PeerEpochs {
    peers: Mutex<Vec<PeerEpoch>>,
    /// Sentence about votes that were lost before this start.
    lost_votes: Option<String>,
}

impl PeerEpochs {
    /// The epochs of nodes that were not heard yet, and the votes that the start has found.
    pub(crate) fn new(found: &VotesFound) -> Self {
        let lost_votes = match found {
            VotesFound::Lost { sentence } => Some(sentence.clone()),
            VotesFound::Present | VotesFound::NeverWritten => None,
        };
        Self { peers: Mutex::new(vec![PeerEpoch::default(); NODES_MAX]), lost_votes }
    }

    /// Records that `node` reports `epoch`.
    pub(crate) fn hear(&self, node: NodeIndex, epoch: LayoutEpoch) {
        if let Some(peer) = self.peers.lock().get_mut(node.as_usize()) {
            peer.epoch = Some(epoch);
        }
    }

    /// Records that the peers in `behind`, and no others, are reached and hold an older record. A
    /// peer that cannot be reached may adopt the newest record unseen, so its lag begins anew when
    /// it is heard again.
    pub(crate) fn note_behind(&self, now: Instant, behind: NodeSet) {
        for (node, peer) in (0..).map(NodeIndex).zip(self.peers.lock().iter_mut()) {
            peer.behind_since = behind.contains(node).then(|| peer.behind_since.unwrap_or(now));
        }
    }

    fn peer(&self, node: NodeIndex) -> PeerEpoch {
        self.peers.lock().get(node.as_usize()).copied().unwrap_or_default()
    }
}

/// The layout of the cluster, as this node sees it.
pub(crate) struct LayoutStatus {
    pub(crate) record: Arc<LayoutRecord>,
    /// The last published status of the agreement. `None`: the node has not started yet.
    pub(crate) agreement: Option<Arc<AgreementStatus>>,
    lost_votes: Option<String>,
    /// The votes that the directory of this node knows. `None`: the node has not started yet.
    history: Option<VoteHistory>,
    /// The voters that are known to have forgotten votes.
    forgetful: NodeSet,
    members: Vec<(SeenMember, Option<Instant>)>,
}

impl LayoutStatus {
    pub(crate) fn of(local: &Local) -> Self {
        let record = Arc::clone(&local.layout.get().record);
        let account = local.account.lock().clone();
        let agreement = local.agreement.lock().clone();
        let seen = |slot: NodeIndex| {
            let peer = local.peer_epochs.peer(slot);
            let (health, epoch, behind_since) = match slot == local.member.me {
                true => (NodeState::Up, Some(record.epoch), None),
                false => (health(account.as_deref(), slot), peer.epoch, peer.behind_since),
            };
            let heard = agreement.as_deref().and_then(|agreement| is_heard(agreement, slot));
            let is_named_heard = heard.unwrap_or(matches!(health, NodeState::Up | NodeState::Suspected));
            (SeenMember { health, epoch, is_named_heard }, behind_since)
        };
        let members = record.members.iter().map(|member| seen(member.slot)).collect();
        let history = agreement.as_deref().map(|agreement| agreement.history);
        let voters = agreement.as_deref().map_or(&[][..], |agreement| &agreement.voters);
        let forgetful = voters.iter().filter(|voter| voter.votes_forgotten).map(|voter| voter.slot).collect();
        let lost_votes = local.peer_epochs.lost_votes.clone();
        Self { record, agreement, lost_votes, history, forgetful, members }
    }

    /// The member in this slot.
    pub(crate) fn seen(&self, slot: NodeIndex) -> SeenMember {
        let position = self.record.members.iter().position(|member| member.slot == slot);
        let unknown = SeenMember { health: NodeState::Unknown, epoch: None, is_named_heard: false };
        position.map_or(unknown, |at| self.members[at].0)
    }

    /// Number of members that are reachable and hold an older record.
    pub(crate) fn behind_count(&self) -> usize {
        self.members.iter().filter(|(seen, _)| seen.is_behind(self.record.epoch)).count()
    }

    /// URLs of the voters that cannot be reached, by their ids.
    pub(crate) fn unreachable_voters(&self) -> Vec<&str> {
        self.urls_of_voters(|_, seen| !seen.is_named_heard)
    }

    /// URLs of the voters of which `is_meant` is true.
    fn urls_of_voters(&self, is_meant: impl Fn(&LayoutMember, SeenMember) -> bool) -> Vec<&str> {
        let voters = self.record.voters.iter().filter_map(|voter| self.record.member(*voter));
        voters.filter(|member| is_meant(member, self.seen(member.slot))).map(|it| it.url.as_str()).collect()
    }

    /// Warnings for operators. Before `has_started`, peers may not have been dialed yet.
    pub(crate) fn warnings(&self, now: Instant, has_started: bool) -> Vec<String> {
        let mut warnings = Vec::new();
        match (&self.lost_votes, self.history) {
            (Some(sentence), _) => warnings.push(capitalized(sentence)),
            (None, Some(VoteHistory::Incomplete)) => warnings.push(
                "This node does not vote on layout records: its directory lacks votes that it may have given, because it is \
                 an older state or a copy. It serves its data. To make it a voter again, start it with an empty --data, so \
                 that the others fill it."
                    .to_owned(),
            ),
            (None, _) => {}
        }
        if has_started {
            warnings.extend(self.warning_of_voters());
        }
        let behind = self.record.members.iter().zip(&self.members).filter(|(_, (seen, since))| {
            let is_late = since.is_some_and(|since| now.saturating_since(since) > BEHIND_TIME);
            is_late && seen.is_behind(self.record.epoch)
        });
        warnings.extend(behind.map(|(member, (seen, _))| {
            format!(
                "{} has held the layout record of epoch {} for more than a minute, and this node holds that of epoch {}: its \
                 log says why. Its disk may refuse the record, or its release cannot read it.",
                member.url,
                seen.epoch.map_or(0, |epoch| epoch.0),
                self.record.epoch
            )
        }));
        warnings
    }

    fn warning_of_forgetful(&self, forgetful: &[&str], reached: usize, missing: &[&str]) -> String {
        let missing = match missing.is_empty() {
            true => String::new(),
            false => format!(" These cannot be reached: {}.", missing.join(", ")),
        };
        format!(
            "{reached} of the {} voters vote, which is no majority: data is served, and changes of the layout stop.{missing} \
             These have forgotten votes, because their directories are older states or copies: {}. Start them with an empty \
             --data, one by one, while the others run.",
            self.record.voters.len(),
            forgetful.join(", ")
        )
    }

    fn warning_of_voters(&self) -> Option<String> {
        let (voters, missing) = (self.record.voters.len(), self.unreachable_voters());
        let forgetful =
            self.urls_of_voters(|member, seen| seen.is_named_heard && self.forgetful.contains(member.slot));
        let reached = voters - missing.len() - forgetful.len();
        if !forgetful.is_empty() && 2 * reached <= voters {
            return Some(self.warning_of_forgetful(&forgetful, reached, &missing));
        }
        let replaced = self.urls_of_voters(|member, seen| seen.is_replaced(member));
        let in_place = match replaced.is_empty() {
            true => String::new(),
            false => format!(
                " At {}, another node has taken the place of the voter: it is named once it is rebuilt and a majority of \
                 voters is in reach.",
                replaced.join(", ")
            ),
        };
        (2 * reached <= voters).then(|| {
            format!(
                "{reached} of the {voters} voters can be reached, which is no majority: data is served, and changes of the \
                 layout stop until the others return: {}.{in_place} If they are lost for good, veche layout recover --unsafe \
                 makes the remaining nodes a new cluster: docs/operations.md says how.",
                missing.join(", ")
            )
        })
    }
}

/// The sentence with a capital letter and a full stop.
pub(crate) fn capitalized(sentence: &str) -> String {
    if sentence.starts_with("http://") {
        return format!("{sentence}.");
    }
    let mut characters = sentence.chars();
    let first = characters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(characters).chain(['.']).collect()
}

/// Whether the voter in this slot is heard, with its id. `None`: it is no voter.
fn is_heard(agreement: &AgreementStatus, slot: NodeIndex) -> Option<bool> {
    agreement.voters.iter().find(|voter| voter.slot == slot).map(|voter| voter.is_reachable)
}

fn health(account: Option<&NodeStatus>, node: NodeIndex) -> NodeState {
    let peer = account.and_then(|account| account.peers.iter().find(|peer| peer.node == node));
    match peer.map_or(PeerState::Unknown, |peer| peer.state) {
        PeerState::Unknown => NodeState::Unknown,
        PeerState::Up => NodeState::Up,
        PeerState::Suspected => NodeState::Suspected,
        PeerState::Unreachable => NodeState::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::ClusterOrigin;
    use stdx::NodeTag;

    const PEER: NodeIndex = NodeIndex(1);

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn record(epoch: u64) -> Arc<LayoutRecord> {
        let nodes = ["http://a:1", "http://b:1", "http://c:1"].map(String::from).to_vec();
        let origin =
            ClusterOrigin { nodes, partitions: 4, hash_version: 1, default_from: 3, tag: NodeTag(7) };
        let record = LayoutRecord::first(origin).expect("three nodes are a cluster");
        Arc::new(LayoutRecord { epoch: LayoutEpoch(epoch), ..record })
    }

    fn status(epoch: u64, states: [NodeState; 3], epochs: &PeerEpochs) -> LayoutStatus {
        let seen = |(slot, health)| {
            let PeerEpoch { epoch, behind_since } = epochs.peer(NodeIndex(slot));
            let is_named_heard = matches!(health, NodeState::Up | NodeState::Suspected);
            (SeenMember { health, epoch, is_named_heard }, behind_since)
        };
        let members = (0..).zip(states).map(seen).collect();
        let history = Some(VoteHistory::Complete);
        let (record, lost_votes) = (record(epoch), epochs.lost_votes.clone());
        LayoutStatus { record, agreement: None, lost_votes, history, forgetful: NodeSet::EMPTY, members }
    }

    #[test]
    fn voters_that_have_forgotten_votes_are_named_once_no_majority_votes() {
        let told = |states, forgetful: &[u8]| {
            let mut status = status(2, states, &PeerEpochs::new(&VotesFound::Present));
            status.forgetful = forgetful.iter().copied().map(NodeIndex).collect();
            status.warnings(at(0), true).concat()
        };
        assert_eq!(told([NodeState::Up; 3], &[1]), "", "two of three vote");
        let warning = told([NodeState::Up, NodeState::Up, NodeState::Unreachable], &[1]);
        assert!(warning.starts_with("1 of the 3 voters vote"), "{warning}");
        assert!(warning.contains("cannot be reached: http://c:1. These have forgotten"), "{warning}");
        assert!(warning.contains("copies: http://b:1. Start them"), "{warning}");
    }

    #[test]
    fn a_reachable_member_is_warned_of_after_a_minute_with_an_older_record() {
        let epochs = PeerEpochs::new(&VotesFound::Present);
        let hear = |seconds, epoch, own| {
            epochs.hear(PEER, LayoutEpoch(epoch));
            epochs.note_behind(at(seconds), [PEER].into_iter().filter(|_| epoch < own).collect());
        };
        let up = [NodeState::Up; 3];
        hear(100, 1, 1);
        assert_eq!(status(1, up, &epochs).behind_count(), 0);
        hear(200, 1, 2);
        hear(230, 1, 2);
        let behind = status(2, up, &epochs);
        assert_eq!((behind.behind_count(), behind.warnings(at(260), true)), (1, Vec::new()));
        let told = behind.warnings(at(261), true).concat();
        assert!(told.starts_with("http://b:1 has held the layout record of epoch 1"), "{told}");
        let gone = status(2, [NodeState::Up, NodeState::Unreachable, NodeState::Up], &epochs);
        assert_eq!((gone.behind_count(), gone.warnings(at(261), true)), (0, Vec::new()));
        hear(270, 2, 2);
        assert_eq!(status(2, up, &epochs).behind_count(), 0);
        hear(400, 2, 3);
        assert_eq!(status(3, up, &epochs).warnings(at(410), true), Vec::<String>::new(), "a new lag");
        epochs.note_behind(at(490), NodeSet::EMPTY);
        hear(500, 2, 3);
        assert_eq!(status(3, up, &epochs).warnings(at(510), true), Vec::<String>::new(), "it was away");
    }

    #[test]
    fn a_lost_majority_of_voters_is_warned_of_once_the_node_has_started() {
        let epochs = PeerEpochs::new(&VotesFound::Present);
        let states = [NodeState::Up, NodeState::Unreachable, NodeState::Unreachable];
        let lost = status(1, states, &epochs);
        assert_eq!(lost.unreachable_voters(), ["http://b:1", "http://c:1"]);
        assert_eq!(lost.warnings(at(0), false), Vec::<String>::new());
        let told = lost.warnings(at(0), true).concat();
        assert!(told.starts_with("1 of the 3 voters") && told.contains("http://b:1, http://c:1"), "{told}");
        assert!(!told.contains("another node"), "{told}");
        let mut replaced = status(1, [NodeState::Up, NodeState::Up, NodeState::Unreachable], &epochs);
        Arc::make_mut(&mut replaced.record).members[1].node_id = Some(NodeTag(0xb));
        replaced.members[1].0.is_named_heard = false;
        assert_eq!(replaced.unreachable_voters(), ["http://b:1", "http://c:1"]);
        let told = replaced.warnings(at(0), true).concat();
        assert!(told.contains("At http://b:1, another node has taken the place of the voter"), "{told}");
        let one = status(1, [NodeState::Up, NodeState::Suspected, NodeState::Unreachable], &epochs);
        assert_eq!(one.unreachable_voters(), ["http://c:1"]);
        assert_eq!(one.warnings(at(0), true), Vec::<String>::new(), "two of three are a majority");
    }

    #[test]
    fn a_node_that_lacks_votes_is_warned_of() {
        let told = |epoch, history, found: &VotesFound| {
            let status = status(epoch, [NodeState::Up; 3], &PeerEpochs::new(found));
            LayoutStatus { history, ..status }.warnings(at(0), true).concat()
        };
        let (of_this_id, incomplete) = (Some(VoteHistory::OfThisId), Some(VoteHistory::Incomplete));
        // It votes once its id is named, and before as all others.
        assert_eq!(told(1, of_this_id, &VotesFound::NeverWritten), "");
        assert_eq!(told(1, None, &VotesFound::Present), "");
        let warning = told(1, incomplete, &VotesFound::Present);
        assert!(warning.contains("does not vote"), "{warning}");
        let lost = VotesFound::Lost { sentence: "the votes are lost".to_owned() };
        assert_eq!(told(1, incomplete, &lost), "The votes are lost.");
    }
}
