//! Places for handshakes with those who dial this node.
//!
//! **Promise.** Handshakes under way are bounded, and so is what is kept for each. Connections of strangers, be they silent,
//! slow or with a wrong secret, keep no known peer out, and one peer does not keep another one out.
//!
//! **Mechanism.** A connection has three stages. While its head is read it is one of [`HEADS_MAX`]; one more takes the place
//! of the one that has been read for longest, so that a peer, whose head comes in one piece, is through before it is
//! displaced. The head of a peer has an early proof (`wire::handshake`), checked with one HMAC. With it the handshake
//! has one of the [`PEER_MAX`] places of that node; without it, one of [`UNKNOWN_DIALERS_MAX`]. Where the places are taken
//! the connection is dropped, and counted.
//!
//! **Caveats.** Peers of releases that send no early proof, or with a clock that is off by hours, are strangers: they
//! dial again. A process that overhears an early proof can take the places of that one node for two hours.

use cluster::NodeIndex;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot;

/// Connections whose heads are read at once.
const HEADS_MAX: usize = 256;
/// Handshakes of strangers under way at once.
const UNKNOWN_DIALERS_MAX: usize = 256;
/// Handshakes of one peer under way at once: twice the links that a node can dial.
const PEER_MAX: usize = 512;

/// The places of a process.
#[derive(Debug)]
pub(crate) struct Handshakes {
    state: Mutex<State>,
    unknown_dropped: AtomicU64,
    peers_dropped: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// Displaced when dropped, from the oldest on.
    heads: BTreeMap<u64, oneshot::Sender<()>>,
    next_head: u64,
    unknown_dialers: usize,
    /// By node.
    peers: Vec<usize>,
}

/// The place of a handshake, until it is dropped.
#[derive(Debug)]
pub(crate) struct HandshakePermit {
    handshakes: Arc<Handshakes>,
    dialer: Option<NodeIndex>,
}

/// A head that is read.
struct Head<'a> {
    handshakes: &'a Handshakes,
    number: u64,
}

impl Handshakes {
    /// The places of a node among `nodes`.
    pub(crate) fn new(nodes: usize) -> Self {
        let (heads, peers) = (BTreeMap::new(), vec![0; nodes]);
        let state = State { heads, next_head: 0, unknown_dialers: 0, peers };
        Self {
            state: Mutex::new(state),
            unknown_dropped: AtomicU64::new(0),
            peers_dropped: AtomicU64::new(0),
        }
    }

    /// Does `work`, which reads the head of a connection. `None`: too many came after it.
    pub(crate) async fn while_reading_head<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let (displaces, displaced) = oneshot::channel();
        let _head = self.begin_head(displaces);
        tokio::select! {
            biased;
            done = work => Some(done),
            _ = displaced => {
                self.unknown_dropped.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// A place for a handshake with `dialer`, a peer that has proved to be one; `None`: a stranger. No place: all that it may
    /// use are taken.
    pub(crate) fn admit(self: &Arc<Self>, dialer: Option<NodeIndex>) -> Option<HandshakePermit> {
        let mut state = self.state.lock();
        let (taken, max, dropped) = match dialer {
            Some(node) => (&mut state.peers[node.as_usize()], PEER_MAX, &self.peers_dropped),
            None => (&mut state.unknown_dialers, UNKNOWN_DIALERS_MAX, &self.unknown_dropped),
        };
        if *taken == max {
            dropped.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        *taken += 1;
        Some(HandshakePermit { handshakes: Arc::clone(self), dialer })
    }

    /// Connections of strangers that found no place, or lost it to later ones.
    pub(crate) fn unknown_dropped(&self) -> u64 {
        self.unknown_dropped.load(Ordering::Relaxed)
    }

    /// Connections of known peers that found no place.
    pub(crate) fn peers_dropped(&self) -> u64 {
        self.peers_dropped.load(Ordering::Relaxed)
    }

    fn begin_head(&self, displaces: oneshot::Sender<()>) -> Head<'_> {
        let mut state = self.state.lock();
        if state.heads.len() == HEADS_MAX {
            state.heads.pop_first();
        }
        let number = state.next_head;
        state.next_head += 1;
        state.heads.insert(number, displaces);
        Head { handshakes: self, number }
    }
}

impl Drop for Head<'_> {
    fn drop(&mut self) {
        self.handshakes.state.lock().heads.remove(&self.number);
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        let mut state = self.handshakes.state.lock();
        match self.dialer {
            Some(node) => state.peers[node.as_usize()] -= 1,
            None => state.unknown_dialers -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use tokio::task::JoinSet;

    #[test]
    fn unknown_dialers_and_other_peers_take_no_permits_of_a_peer() {
        let handshakes = Arc::new(Handshakes::new(3));
        let unknown_dialers: Vec<_> =
            (0..UNKNOWN_DIALERS_MAX).map(|_| handshakes.admit(None).expect("a place")).collect();
        assert!(handshakes.admit(None).is_none());
        let first = Some(NodeIndex(1));
        let peers: Vec<_> = (0..PEER_MAX).map(|_| handshakes.admit(first).expect("a place")).collect();
        assert!(handshakes.admit(first).is_none());
        assert!(handshakes.admit(Some(NodeIndex(2))).is_some());
        assert_eq!((handshakes.unknown_dropped(), handshakes.peers_dropped()), (1, 1));
        drop((unknown_dialers, peers));
        assert!(handshakes.admit(None).is_some() && handshakes.admit(first).is_some());
    }

    #[test]
    fn of_too_many_heads_the_oldest_gives_way() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let handshakes = Arc::new(Handshakes::new(1));
            let mut silent = JoinSet::new();
            for number in 0..HEADS_MAX + 1 {
                let handshakes = Arc::clone(&handshakes);
                silent.spawn(async move { (number, handshakes.while_reading_head(pending::<()>()).await) });
                tokio::task::yield_now().await;
            }
            let (number, read) = silent.join_next().await.expect("one ends").expect("no panic");
            assert_eq!((number, read), (0, None), "the first to come, displaced by the last");
            assert_eq!(handshakes.while_reading_head(async { 7 }).await, Some(7));
            assert_eq!(handshakes.unknown_dropped(), 1);
            silent.abort_all();
            while silent.join_next().await.is_some() {}
            assert!(handshakes.state.lock().heads.is_empty());
        });
    }
}
