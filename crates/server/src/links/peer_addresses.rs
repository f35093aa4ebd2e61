//! Addresses at which the peers are dialed.
//!
//! **Promise.** A peer is dialed at the address that it stated last, if it stated one that the
//! layout record does not have. If it does not answer there, the other known addresses are tried
//! one after the other: that of the record, and listed ones that no member has. The handshake finds
//! out who answers, so a wrong address costs a dial.
//!
//! **Mechanism.** A [`StatedUrl`] that is news is queued, and the control thread passes it on. All
//! threads dial a peer at the same address, and one failure moves all of them to the next one.

use super::address::{InvalidAddress, PeerAddress};
use cluster::{LayoutRecord, NodeIndex};
use parking_lot::Mutex;
use stdx::NodeTag;

/// Most addresses of the list that are tried for a peer.
const OTHERS_MAX: usize = cluster::NODES_MAX;

/// An address that a node has stated for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StatedUrl {
    pub(crate) node: NodeIndex,
    pub(crate) url: String,
}

/// Addresses of all peers.
#[derive(Debug)]
pub(crate) struct PeerAddresses {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// By slot. The entry of this node is unused.
    peers: Vec<Candidates>,
    /// Listed addresses that no member has.
    others: Vec<PeerAddress>,
    /// Stated addresses that were not passed on yet.
    news: Vec<StatedUrl>,
}

#[derive(Debug)]
struct Candidates {
    recorded: PeerAddress,
    /// The id and the URL that the node stated last. They count if the layout record names the id.
    heard: Option<(NodeTag, String)>,
    stated: Option<PeerAddress>,
    /// Number of the address that is dialed: among the stated one, the recorded one and the others.
    next: usize,
}

impl PeerAddresses {
    /// The addresses of nodes with these names. `others` are listed addresses that no member has.
    ///
    /// # Errors
    /// If a name is not an address.
    pub(crate) fn new(names: &[String], others: &[String]) -> Result<Self, InvalidAddress> {
        let candidates = |name: &String| {
            PeerAddress::of(name).map(|recorded| Candidates { recorded, heard: None, stated: None, next: 0 })
        };
        let peers = names.iter().map(candidates).collect::<Result<_, _>>()?;
        let others = others.iter().take(OTHERS_MAX).map(|url| PeerAddress::of(url));
        let others = others.collect::<Result<_, _>>()?;
        Ok(Self { state: Mutex::new(State { peers, others, news: Vec::new() }) })
    }

    /// The address at which `node` is dialed.
    pub(crate) fn current(&self, node: NodeIndex) -> PeerAddress {
        let state = self.state.lock();
        state.peers[node.as_usize()].current(&state.others).clone()
    }

    /// Whether `address` is the one of the layout record or the one that the node states.
    pub(crate) fn is_own(&self, node: NodeIndex, address: &PeerAddress) -> bool {
        let state = self.state.lock();
        let peer = &state.peers[node.as_usize()];
        peer.recorded == *address || peer.stated.as_ref() == Some(address)
    }

    /// Records that `node` was not reached at `address`: the next one is tried.
    pub(crate) fn failed(&self, node: NodeIndex, address: &PeerAddress) {
        let mut state = self.state.lock();
        let State { peers, others, .. } = &mut *state;
        let peer = &mut peers[node.as_usize()];
        // Another thread may have moved on already.
        if peer.current(others) == address {
            peer.next += 1;
        }
    }

    /// Records that `node` was reached at `address`.
    pub(crate) fn reached(&self, node: NodeIndex, address: &PeerAddress) {
        let mut state = self.state.lock();
        let State { peers, others, .. } = &mut *state;
        let peer = &mut peers[node.as_usize()];
        let found = peer.all(others).position(|known| known == address);
        peer.next = found.unwrap_or(peer.next);
    }

    /// Records the address that `node` states, which has the id `tag`. It counts once the layout
    /// record names this id for the node, unless another member has the address.
    pub(crate) fn state(&self, record: &LayoutRecord, node: NodeIndex, tag: NodeTag, url: &str) {
        let mut state = self.state.lock();
        if let Some(peer) = state.peers.get_mut(node.as_usize()) {
            peer.heard = Some((tag, url.to_owned()));
            state.judge(record, node);
        }
    }

    /// Takes the addresses of the members from a new layout record, and judges by it what the nodes
    /// have stated.
    pub(crate) fn adopt(&self, record: &LayoutRecord) {
        let mut state = self.state.lock();
        for member in &record.members {
            let Some(peer) = state.peers.get_mut(member.slot.as_usize()) else { continue };
            // The URL of a node on its own may be empty.
            if let Ok(recorded) = PeerAddress::of(&member.url)
                && recorded != peer.recorded
            {
                peer.recorded = recorded;
                peer.next = 0;
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
    /// Dials `node` at the address that it has stated, if that counts.
    fn judge(&mut self, record: &LayoutRecord, node: NodeIndex) {
        let peer = &mut self.peers[node.as_usize()];
        let (Some(member), Some((tag, url))) = (record.member(node), &peer.heard) else { return };
        let is_of_other = record.members.iter().any(|other| other.slot != node && other.url == *url);
        let counts = member.node_id == Some(*tag) && member.url != *url && !is_of_other;
        let stated = PeerAddress::of(url).ok().filter(|_| counts);
        if peer.stated == stated {
            return;
        }
        self.news.push(StatedUrl { node, url: url.clone() });
        peer.stated = stated;
        peer.next = 0;
    }
}

impl Candidates {
    fn all<'a>(&'a self, others: &'a [PeerAddress]) -> impl Iterator<Item = &'a PeerAddress> {
        self.stated.iter().chain([&self.recorded]).chain(others)
    }

    fn current<'a>(&'a self, others: &'a [PeerAddress]) -> &'a PeerAddress {
        let count = usize::from(self.stated.is_some()) + 1 + others.len();
        self.all(others).nth(self.next % count).expect("there is a recorded one")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::ClusterOrigin;

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

    fn names() -> Vec<String> {
        ["http://a:1", "http://b:1"].map(String::from).to_vec()
    }

    fn address(url: &str) -> PeerAddress {
        PeerAddress::of(url).expect("an address")
    }

    #[test]
    fn one_address_after_the_other_is_dialed_and_the_one_that_answers_is_kept() {
        let others = ["http://x:1", "http://y:1"].map(String::from);
        let addresses = PeerAddresses::new(&names(), &others).expect("addresses");
        let mut tried = Vec::new();
        for _ in 0..4 {
            let current = addresses.current(B);
            addresses.failed(B, &current);
            // The failure of another thread, which had dialed at the same time.
            addresses.failed(B, &current);
            tried.push(current);
        }
        assert_eq!(tried, ["http://b:1", "http://x:1", "http://y:1", "http://b:1"].map(address));
        addresses.reached(B, &address("http://y:1"));
        assert_eq!(addresses.current(B), address("http://y:1"));
        assert!(!addresses.is_own(B, &address("http://y:1")) && addresses.is_own(B, &address("http://b:1")));
        assert_eq!(addresses.current(A), address("http://a:1"));
    }

    #[test]
    fn a_peer_that_has_moved_is_dialed_at_the_address_that_it_states_first() {
        let addresses = PeerAddresses::new(&names(), &[]).expect("addresses");
        for _ in 0..2 {
            addresses.state(&record(), B, ID, "http://b:2");
        }
        assert_eq!(addresses.current(B), address("http://b:2"));
        let news = addresses.take_news();
        assert_eq!(news, [StatedUrl { node: B, url: "http://b:2".to_owned() }], "it is news once");
        addresses.failed(B, &address("http://b:2"));
        assert_eq!(addresses.current(B), address("http://b:1"));
        let mut adopted = record();
        adopted.members[B.as_usize()].url = "http://b:2".to_owned();
        addresses.adopt(&adopted);
        assert_eq!(addresses.current(B), address("http://b:2"));
        addresses.failed(B, &address("http://b:2"));
        assert_eq!(addresses.current(B), address("http://b:2"), "there is no other");
        addresses.take_news();
        addresses.state(&adopted, B, ID, "http://b:3");
        addresses.state(&adopted, B, ID, "http://b:2");
        assert_eq!(addresses.current(B), address("http://b:2"), "it has moved back");
        let news: Vec<_> = addresses.take_news().into_iter().map(|stated| stated.url).collect();
        assert_eq!(news, ["http://b:3", "http://b:2"], "the node is told that too");
    }

    #[test]
    fn an_address_that_was_stated_before_the_record_named_the_node_counts_later() {
        let addresses = PeerAddresses::new(&names(), &[]).expect("addresses");
        let mut unnamed = record();
        unnamed.members[B.as_usize()].node_id = None;
        addresses.state(&unnamed, B, ID, "http://b:2");
        assert_eq!(addresses.current(B), address("http://b:1"));
        addresses.adopt(&record());
        assert_eq!(addresses.current(B), address("http://b:2"));
        addresses.state(&record(), B, NodeTag(0xc), "http://b:1");
        assert_eq!(addresses.current(B), address("http://b:1"), "another directory replaces it");
    }

    #[test]
    fn only_the_named_node_moves_and_not_to_the_address_of_another_member() {
        let addresses = PeerAddresses::new(&names(), &[]).expect("addresses");
        addresses.state(&record(), B, NodeTag(0xbad), "http://b:2");
        addresses.state(&record(), A, ID, "http://a:2");
        addresses.state(&record(), B, ID, "http://a:1");
        addresses.state(&record(), B, ID, "no address");
        assert_eq!(addresses.take_news(), []);
        assert_eq!(
            (addresses.current(A), addresses.current(B)),
            (address("http://a:1"), address("http://b:1"))
        );
    }
}
