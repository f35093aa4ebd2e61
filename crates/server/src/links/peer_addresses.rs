//! Addresses at which the peers are dialed.
//!
//! **Promise.** A peer is dialed at the address that it stated last, if it stated one that the
//! layout record does not have. If it does not answer there, the other known addresses are tried
//! one after the other: that of the record, the one before it until the peer was reached at the
//! new one, and listed ones that no member has. The handshake finds out who answers, so a wrong
//! address costs a dial.
//!
//! A stated address is passed on once it is proved: a link that was dialed to it was answered by
//! the node that states it. So neither a wrong `--self-url` nor a false statement replaces an
//! address in the layout record. A statement ends when a record gives its node another address,
//! because it may be older than that record. A statement whose node was not reached there is kept
//! with the reason, for the warnings of this node.
//!
//! The addresses of members appear and disappear with the adopted record.
//!
//! **Mechanism.** A [`StatedUrl`] that is news is queued, and the control thread passes it on. All
//! threads dial a peer at the same address, and one failure moves all of them to the next one.

use super::address::{InvalidAddress, PeerAddress};
use cluster::{Layout, LayoutRecord, NodeIndex};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use stdx::NodeTag;

/// Most addresses of the list that are tried for a peer.
const OTHERS_MAX: usize = cluster::NODES_MAX;

/// An address that a node has stated for itself, and at which it was reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StatedUrl {
    pub(crate) node: NodeIndex,
    /// The id of the node that has stated it.
    pub(crate) tag: NodeTag,
    pub(crate) url: String,
}

/// An address that a node states for itself, and at which it was not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnreachedUrl {
    pub(crate) node: NodeIndex,
    pub(crate) url: String,
    /// Reason of the last failed dial.
    pub(crate) reason: String,
}

/// Addresses of all peers.
#[derive(Debug)]
pub(crate) struct PeerAddresses {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// By slot. The entry of this node is unused.
    peers: BTreeMap<NodeIndex, Candidates>,
    /// Listed addresses that no member has.
    others: Vec<PeerAddress>,
    /// Stated addresses that were not passed on yet.
    news: Vec<StatedUrl>,
}

#[derive(Debug)]
struct Candidates {
    recorded: PeerAddress,
    /// The address before the recorded one, until the node was reached at the recorded one.
    former: Option<PeerAddress>,
    /// The id and the URL that the node stated last. They count if the layout record names the id.
    heard: Option<(NodeTag, String)>,
    /// The address in `heard`, if it counts and is not the recorded one.
    stated: Option<PeerAddress>,
    /// Reason why the last dial to `stated` has failed, until the node is reached there.
    failure: Option<String>,
    /// The id that answered the last dial, and its address.
    proved: Option<(NodeTag, PeerAddress)>,
    /// The last statement that was queued as news.
    told: Option<(NodeTag, String)>,
    /// Number of the address that is dialed, in the order of [`Candidates::all`].
    next: usize,
}

impl PeerAddresses {
    /// The addresses of the nodes of `layout`. `others` are listed addresses that no member has.
    ///
    /// # Errors
    /// If a name is not an address.
    pub(crate) fn new(layout: &Layout, others: &[String]) -> Result<Self, InvalidAddress> {
        let candidates = |node: NodeIndex| {
            PeerAddress::of(&layout.names()[node.as_usize()]).map(|address| (node, Candidates::of(address)))
        };
        let peers = layout.nodes().map(candidates).collect::<Result<_, _>>()?;
        let others = others.iter().take(OTHERS_MAX).map(|url| PeerAddress::of(url));
        let others = others.collect::<Result<_, _>>()?;
        Ok(Self { state: Mutex::new(State { peers, others, news: Vec::new() }) })
    }

    /// The address at which `node` is dialed. `None`: it is no member, or the record has no address
    /// that can be dialed.
    pub(crate) fn current(&self, node: NodeIndex) -> Option<PeerAddress> {
        let state = self.state.lock();
        state.peers.get(&node).map(|peer| peer.current(&state.others).clone())
    }

    /// Whether `address` is the one of the layout record or the one that the node states.
    pub(crate) fn is_own(&self, node: NodeIndex, address: &PeerAddress) -> bool {
        let state = self.state.lock();
        let peer = state.peers.get(&node);
        peer.is_some_and(|peer| peer.recorded == *address || peer.stated.as_ref() == Some(address))
    }

    /// Records that `node` was not reached at `address`: the next one is tried. Returns the URL
    /// that the node states if `address` is the one, and this is the first failure there.
    pub(crate) fn failed(&self, node: NodeIndex, address: &PeerAddress, reason: &str) -> Option<String> {
        let mut state = self.state.lock();
        let State { peers, others, .. } = &mut *state;
        let peer = peers.get_mut(&node)?;
        // Another thread may have moved on already.
        if peer.current(others) == address {
            peer.next += 1;
        }
        let (tag, url) = peer.heard.as_ref().filter(|_| peer.stated.as_ref() == Some(address))?;
        // A node that was reached there before is down.
        if peer.has_answered(*tag, address) {
            return None;
        }
        let is_first = peer.failure.replace(reason.to_owned()).is_none();
        is_first.then(|| url.clone())
    }

    /// The address that `node` states, if it was not dialed there since the statement counts. A
    /// dial to another address may have begun before the statement arrived.
    pub(crate) fn untried(&self, node: NodeIndex) -> Option<PeerAddress> {
        let state = self.state.lock();
        let peer = state.peers.get(&node)?;
        let stated = peer.stated.as_ref().filter(|_| peer.failure.is_none())?;
        let is_proved = peer.proved.as_ref().is_some_and(|(_, address)| address == stated);
        (!is_proved).then(|| stated.clone())
    }

    /// The addresses that nodes state for themselves and at which they were not reached.
    pub(crate) fn unreached_urls(&self) -> Vec<UnreachedUrl> {
        let state = self.state.lock();
        let unreached = |(node, peer): (&NodeIndex, &Candidates)| {
            let (reason, (_, url)) = peer.failure.as_ref().zip(peer.heard.as_ref())?;
            Some(UnreachedUrl { node: *node, url: url.clone(), reason: reason.clone() })
        };
        state.peers.iter().filter_map(unreached).collect()
    }

    /// Records that a link which was dialed to `address` was answered by `node`, with the id `tag`.
    pub(crate) fn reached(
        &self,
        record: &LayoutRecord,
        node: NodeIndex,
        tag: NodeTag,
        address: &PeerAddress,
    ) {
        let mut state = self.state.lock();
        let State { peers, others, .. } = &mut *state;
        let Some(peer) = peers.get_mut(&node) else { return };
        let found = peer.all(others).position(|known| known == address);
        peer.next = found.unwrap_or(peer.next);
        peer.proved = Some((tag, address.clone()));
        if peer.stated.as_ref() == Some(address) {
            peer.failure = None;
        }
        if peer.recorded == *address {
            peer.former = None;
        }
        state.judge(record, node);
    }

    /// Records the address that `node` states, which has the id `tag`. It counts once the layout
    /// record names this id for the node, unless another member has the address.
    pub(crate) fn state(&self, record: &LayoutRecord, node: NodeIndex, tag: NodeTag, url: &str) {
        let mut state = self.state.lock();
        let Some(peer) = state.peers.get_mut(&node) else { return };
        peer.heard = Some((tag, url.to_owned()));
        state.judge(record, node);
        let State { peers, others, .. } = &mut *state;
        let Some(peer) = peers.get_mut(&node) else { return };
        // A node that says where it is is not dialed at a listed address.
        if let Ok(address) = PeerAddress::of(url)
            && (peer.stated.as_ref() == Some(&address) || peer.recorded == address)
        {
            let found = peer.all(others).position(|known| *known == address);
            peer.next = found.unwrap_or(peer.next);
        }
    }

    /// Takes the addresses of the members from a new layout record, and judges by it what the nodes
    /// have stated.
    pub(crate) fn adopt(&self, record: &LayoutRecord) {
        let mut state = self.state.lock();
        state.peers.retain(|node, _| record.member(*node).is_some());
        for member in &record.members {
            // The URL of a node on its own may be empty.
            if let Ok(recorded) = PeerAddress::of(&member.url) {
                let peer = state.peers.entry(member.slot).or_insert_with(|| Candidates::of(recorded.clone()));
                if recorded != peer.recorded {
                    peer.move_to(recorded);
                }
            }
            state.judge(record, member.slot);
        }
    }

    /// Takes the stated addresses that were not passed on yet.
    pub(crate) fn take_news(&self) -> Vec<StatedUrl> {
        std::mem::take(&mut self.state.lock().news)
    }
}

impl State {
    /// Dials `node` at the address that it has stated, if that counts, and queues the statement as
    /// news if it is proved.
    fn judge(&mut self, record: &LayoutRecord, node: NodeIndex) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let (Some(member), Some((tag, url))) = (record.member(node), &peer.heard) else { return };
        let is_of_other = record.members.iter().any(|other| other.slot != node && other.url == *url);
        let counts = member.node_id == Some(*tag) && !is_of_other;
        let address = PeerAddress::of(url).ok().filter(|_| counts);
        let is_recorded = member.url == *url;
        let stated = address.clone().filter(|_| !is_recorded);
        if peer.stated != stated {
            (peer.stated, peer.failure) = (stated, None);
            peer.next = 0;
        }
        // After it was told of another address, a return to the recorded one is news as well.
        let is_news = peer.told.as_ref().map_or(!is_recorded, |told| *told != (*tag, url.clone()));
        if is_news && address.is_some_and(|address| peer.has_answered(*tag, &address)) {
            peer.told.clone_from(&peer.heard);
            self.news.push(StatedUrl { node, tag: *tag, url: url.clone() });
        }
    }
}

impl Candidates {
    fn of(recorded: PeerAddress) -> Self {
        Self {
            recorded,
            former: None,
            heard: None,
            stated: None,
            failure: None,
            proved: None,
            told: None,
            next: 0,
        }
    }

    /// Dials the node at the address of a new record first. Its statement may be older than that
    /// record, so it ends. The node of this process forgets it as well.
    fn move_to(&mut self, recorded: PeerAddress) {
        let before = std::mem::replace(&mut self.recorded, recorded);
        let last = self.proved.as_ref().map(|(_, address)| address.clone());
        self.former = [last, Some(before)].into_iter().flatten().find(|address| *address != self.recorded);
        if self.proved.as_ref().is_some_and(|(_, address)| *address == self.recorded) {
            self.former = None;
        }
        (self.heard, self.stated, self.failure, self.told) = (None, None, None, None);
        self.next = 0;
    }

    /// Whether the last dial that was answered led to `address`, and to the id `tag`.
    fn has_answered(&self, tag: NodeTag, address: &PeerAddress) -> bool {
        self.proved.as_ref().is_some_and(|(proved, at)| *proved == tag && at == address)
    }

    fn all<'a>(&'a self, others: &'a [PeerAddress]) -> impl Iterator<Item = &'a PeerAddress> {
        self.stated.iter().chain([&self.recorded]).chain(&self.former).chain(others)
    }

    fn current<'a>(&'a self, others: &'a [PeerAddress]) -> &'a PeerAddress {
        let count = self.all(others).count();
        self.all(others).nth(self.next % count).expect("there is a recorded one")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{ClusterOrigin, LayoutMember};

    const A: NodeIndex = NodeIndex(0);
    const B: NodeIndex = NodeIndex(1);
    const ID: NodeTag = NodeTag(0xb);

    fn record() -> LayoutRecord {
        let nodes = names();
        let origin =
            ClusterOrigin { nodes, partitions: 4, hash_version: 1, default_from: 2, tag: NodeTag(7) };
        let mut record = LayoutRecord::first(origin).expect("two nodes are a cluster");
        record.members[B.as_usize()].node_id = Some(ID);
        record
    }

    fn layout() -> Layout {
        Layout::of_record(&record())
    }

    fn names() -> Vec<String> {
        ["http://a:1", "http://b:1"].map(String::from).to_vec()
    }

    fn address(url: &str) -> PeerAddress {
        PeerAddress::of(url).expect("an address")
    }

    fn current(addresses: &PeerAddresses, node: NodeIndex) -> PeerAddress {
        addresses.current(node).expect("it is a member")
    }

    /// A dial of `B` at `address` fails.
    fn fail(addresses: &PeerAddresses, address: &PeerAddress) {
        let _ = addresses.failed(B, address, "refused");
    }

    #[test]
    fn one_address_after_the_other_is_dialed_and_the_one_that_answers_is_kept() {
        let others = ["http://x:1", "http://y:1"].map(String::from);
        let addresses = PeerAddresses::new(&layout(), &others).expect("addresses");
        let mut tried = Vec::new();
        for _ in 0..4 {
            let current = current(&addresses, B);
            fail(&addresses, &current);
            // The failure of another thread, which had dialed at the same time.
            fail(&addresses, &current);
            tried.push(current);
        }
        assert_eq!(tried, ["http://b:1", "http://x:1", "http://y:1", "http://b:1"].map(address));
        addresses.reached(&record(), B, ID, &address("http://y:1"));
        assert_eq!(current(&addresses, B), address("http://y:1"));
        assert!(!addresses.is_own(B, &address("http://y:1")) && addresses.is_own(B, &address("http://b:1")));
        assert_eq!(current(&addresses, A), address("http://a:1"));
    }

    /// The record in which `B` has moved.
    fn moved(url: &str) -> LayoutRecord {
        let mut record = record();
        record.members[B.as_usize()].url = url.to_owned();
        record
    }

    fn news_of(addresses: &PeerAddresses) -> Vec<String> {
        addresses.take_news().into_iter().map(|stated| stated.url).collect()
    }

    #[test]
    fn a_peer_that_has_moved_is_dialed_at_the_address_that_it_states_first() {
        let addresses = PeerAddresses::new(&layout(), &[]).expect("addresses");
        addresses.state(&record(), B, ID, "http://b:2");
        assert_eq!(current(&addresses, B), address("http://b:2"));
        assert_eq!(addresses.take_news(), [], "it is not proved");
        for _ in 0..2 {
            addresses.reached(&record(), B, ID, &address("http://b:2"));
            addresses.state(&record(), B, ID, "http://b:2");
        }
        let news = addresses.take_news();
        assert_eq!(news, [StatedUrl { node: B, tag: ID, url: "http://b:2".to_owned() }], "it is news once");
        fail(&addresses, &address("http://b:2"));
        assert_eq!(current(&addresses, B), address("http://b:1"));
        let adopted = moved("http://b:2");
        addresses.adopt(&adopted);
        assert_eq!(current(&addresses, B), address("http://b:2"));
        fail(&addresses, &address("http://b:2"));
        assert_eq!(current(&addresses, B), address("http://b:2"), "there is no other");
        for url in ["http://b:3", "http://b:2"] {
            addresses.state(&adopted, B, ID, url);
            addresses.reached(&adopted, B, ID, &address(url));
        }
        assert_eq!(current(&addresses, B), address("http://b:2"), "it has moved back");
        assert_eq!(news_of(&addresses), ["http://b:3", "http://b:2"], "the node is told that too");
    }

    #[test]
    fn an_address_is_passed_on_only_when_the_node_that_states_it_has_answered_there() {
        let addresses = PeerAddresses::new(&layout(), &[]).expect("addresses");
        addresses.state(&record(), B, ID, "http://typo:1");
        fail(&addresses, &address("http://typo:1"));
        addresses.reached(&record(), B, ID, &address("http://b:1"));
        addresses.reached(&record(), B, NodeTag(0xbad), &address("http://typo:1"));
        assert_eq!(addresses.take_news(), []);
        addresses.reached(&record(), B, ID, &address("http://typo:1"));
        assert_eq!(news_of(&addresses), ["http://typo:1"]);
    }

    #[test]
    fn a_statement_that_is_older_than_the_record_does_not_undo_a_move() {
        let addresses = PeerAddresses::new(&layout(), &[]).expect("addresses");
        addresses.state(&record(), B, ID, "http://b:1");
        addresses.reached(&record(), B, ID, &address("http://b:1"));
        let adopted = moved("http://b:2");
        addresses.adopt(&adopted);
        assert_eq!((current(&addresses, B), addresses.take_news()), (address("http://b:2"), Vec::new()));
        // The former address is tried until the node is reached at the new one.
        fail(&addresses, &address("http://b:2"));
        assert_eq!(current(&addresses, B), address("http://b:1"));
        addresses.reached(&adopted, B, ID, &address("http://b:2"));
        fail(&addresses, &address("http://b:2"));
        assert_eq!(current(&addresses, B), address("http://b:2"), "there is no other");
        addresses.state(&adopted, B, ID, "http://b:1");
        addresses.reached(&adopted, B, ID, &address("http://b:1"));
        assert_eq!(news_of(&addresses), ["http://b:1"], "it has moved back");
    }

    #[test]
    fn an_address_that_is_stated_during_a_dial_to_the_recorded_one_is_untried() {
        let addresses = PeerAddresses::new(&layout(), &[]).expect("addresses");
        let (stated, recorded) = (address("http://new:1"), address("http://b:1"));
        assert_eq!(current(&addresses, B), recorded);
        addresses.state(&record(), B, ID, "http://new:1");
        addresses.reached(&record(), B, ID, &recorded);
        assert_eq!(addresses.untried(B), Some(stated.clone()));
        fail(&addresses, &stated);
        assert_eq!(addresses.untried(B), None, "it was dialed in vain");
        addresses.reached(&record(), B, ID, &stated);
        assert_eq!(addresses.untried(B), None);
        addresses.reached(&record(), B, ID, &recorded);
        assert_eq!(addresses.untried(B), Some(stated), "it answers at the recorded one again");
    }

    #[test]
    fn a_stated_address_is_unreached_until_the_node_answers_there() {
        let addresses = PeerAddresses::new(&layout(), &[]).expect("addresses");
        let (stated, recorded) = (address("http://typo:1"), address("http://b:1"));
        let fail = |at, reason| addresses.failed(B, at, reason);
        assert_eq!(fail(&recorded, "refused"), None, "it states nothing");
        addresses.state(&record(), B, ID, "http://typo:1");
        assert_eq!(fail(&recorded, "refused"), None);
        assert_eq!(addresses.unreached_urls(), []);
        assert_eq!(fail(&stated, "refused").as_deref(), Some("http://typo:1"));
        assert_eq!(fail(&stated, "no answer in time"), None, "it is news once");
        addresses.reached(&record(), B, ID, &recorded);
        addresses.state(&record(), B, ID, "http://typo:1");
        let reason = "no answer in time".to_owned();
        let unreached = UnreachedUrl { node: B, url: "http://typo:1".to_owned(), reason };
        assert_eq!(addresses.unreached_urls(), [unreached]);
        addresses.reached(&record(), B, ID, &stated);
        assert_eq!(addresses.unreached_urls(), []);
        assert_eq!(fail(&stated, "refused"), None, "it is down");
        assert_eq!(addresses.unreached_urls(), []);
        for other in ["http://typo:2", "http://b:1"] {
            addresses.state(&record(), B, ID, other);
            assert_eq!(fail(&stated, "refused"), None);
            assert_eq!(addresses.unreached_urls(), [], "it states another address now");
        }
        addresses.state(&record(), B, ID, "http://typo:2");
        assert!(fail(&address("http://typo:2"), "refused").is_some());
        addresses.adopt(&moved("http://b:2"));
        assert_eq!(addresses.unreached_urls(), [], "the statement may be older than the record");
    }

    #[test]
    fn the_statement_of_another_id_is_no_news() {
        let addresses = PeerAddresses::new(&layout(), &[]).expect("addresses");
        addresses.state(&record(), B, ID, "http://b:2");
        addresses.state(&record(), B, NodeTag(0xc), "http://b:9");
        addresses.reached(&record(), B, NodeTag(0xc), &address("http://b:9"));
        assert_eq!((current(&addresses, B), addresses.take_news()), (address("http://b:1"), Vec::new()));
    }

    #[test]
    fn a_peer_that_says_where_it_is_is_not_dialed_at_a_listed_address() {
        let others = ["http://x:1"].map(String::from);
        let addresses = PeerAddresses::new(&layout(), &others).expect("addresses");
        for url in ["http://b:1", "http://b:2"] {
            addresses.state(&record(), B, ID, url);
            while current(&addresses, B) != address("http://x:1") {
                fail(&addresses, &current(&addresses, B));
            }
            addresses.state(&record(), B, ID, url);
            assert_eq!(current(&addresses, B), address(url));
        }
    }

    #[test]
    fn an_address_that_was_stated_before_the_record_named_the_node_counts_later() {
        let addresses = PeerAddresses::new(&layout(), &[]).expect("addresses");
        let mut unnamed = record();
        unnamed.members[B.as_usize()].node_id = None;
        addresses.state(&unnamed, B, ID, "http://b:2");
        assert_eq!(current(&addresses, B), address("http://b:1"));
        addresses.adopt(&record());
        assert_eq!(current(&addresses, B), address("http://b:2"));
        addresses.state(&record(), B, NodeTag(0xc), "http://b:1");
        assert_eq!(current(&addresses, B), address("http://b:1"), "another directory replaces it");
    }

    #[test]
    fn only_the_named_node_moves_and_not_to_the_address_of_another_member() {
        let addresses = PeerAddresses::new(&layout(), &[]).expect("addresses");
        addresses.state(&record(), B, NodeTag(0xbad), "http://b:2");
        addresses.state(&record(), A, ID, "http://a:2");
        addresses.state(&record(), B, ID, "http://a:1");
        addresses.state(&record(), B, ID, "no address");
        assert_eq!(addresses.take_news(), []);
        assert_eq!(
            (current(&addresses, A), current(&addresses, B)),
            (address("http://a:1"), address("http://b:1"))
        );
    }

    #[test]
    fn the_addresses_follow_the_members_of_the_record() {
        const C: NodeIndex = NodeIndex(2);
        let addresses = PeerAddresses::new(&layout(), &[]).expect("addresses");
        assert_eq!(addresses.current(C), None);
        let mut record = record();
        let (slot, url) = (C, "http://c:1".to_owned());
        record.members.push(LayoutMember {
            slot,
            url,
            node_id: Some(NodeTag(0xc)),
            ..record.members[0].clone()
        });
        addresses.adopt(&record);
        assert_eq!(addresses.current(C), Some(address("http://c:1")));
        addresses.state(&record, C, NodeTag(0xc), "http://c:2");
        addresses.reached(&record, C, NodeTag(0xc), &address("http://c:2"));
        assert_eq!(news_of(&addresses), ["http://c:2"]);
        record.members.remove(C.as_usize());
        addresses.adopt(&record);
        assert_eq!((addresses.current(C), news_of(&addresses)), (None, Vec::new()));
        assert!(!addresses.is_own(C, &address("http://c:2")));
    }
}
