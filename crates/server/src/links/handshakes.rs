//! Admission control for handshakes with nodes that dial this one.
//!
//! **Promise.** The number of handshakes in flight and the memory of each are bounded. Connections
//! of unknown dialers, even if they are silent, slow or use a wrong secret, do not block known
//! peers. One peer does not block another.
//!
//! **Mechanism.** A connection passes three stages. While its head is read, it is one of a
//! fixed number. A further connection displaces the one whose head has been read for longest. The
//! head of a peer arrives in one piece, so it is complete before it could be displaced. It contains
//! an early proof (`wire::handshake`), which is checked with one HMAC. With a valid proof the
//! handshake takes one of the [`PEER_MAX`] permits of that node, without one it takes one of as
//! many permits of unknown dialers. If no permit is free, the connection is dropped and counted.
//!
//! **Caveats.** Peers of releases without an early proof, and peers whose clock is hours off, count
//! as unknown dialers. They dial again. A process that observes an early proof can use up the
//! permits of that one node for two hours.

use cluster::{NODES_MAX, NodeIndex};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot;

/// Most handshakes of one peer in flight: twice the links that a node can dial.
const PEER_MAX: usize = 512;

/// Permits for the handshakes of a process.
#[derive(Debug)]
pub(crate) struct Handshakes {
    /// Most connections whose heads are read at a time, and most handshakes of unknown dialers.
    max: usize,
    state: Mutex<State>,
    unknown_dropped: AtomicU64,
    peers_dropped: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// Connections whose heads are read, oldest first. Dropping the sender displaces the
    /// connection.
    heads: BTreeMap<u64, oneshot::Sender<()>>,
    next_head: u64,
    unknown_dialers: usize,
    /// Handshakes in flight by the slot of the dialing node.
    peers: Vec<usize>,
}

/// Permit for a handshake. Dropping it releases the permit.
#[derive(Debug)]
pub(crate) struct HandshakePermit {
    handshakes: Arc<Handshakes>,
    dialer: Option<NodeIndex>,
}

/// Registration of a connection whose head is read.
struct Head<'a> {
    handshakes: &'a Handshakes,
    number: u64,
}

impl Handshakes {
    /// Permits with `max` heads and as many handshakes of unknown dialers.
    pub(crate) fn new(max: usize) -> Self {
        let (heads, peers) = (BTreeMap::new(), vec![0; NODES_MAX]);
        let state = State { heads, next_head: 0, unknown_dialers: 0, peers };
        Self {
            max,
            state: Mutex::new(state),
            unknown_dropped: AtomicU64::new(0),
            peers_dropped: AtomicU64::new(0),
        }
    }

    /// Runs `work`, which reads the head of a connection. `None`: later connections displaced it.
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

    /// Permit for a handshake with `dialer`, which is `None` for an unknown dialer. `None`: all
    /// permits of this kind are taken.
    pub(crate) fn admit(self: &Arc<Self>, dialer: Option<NodeIndex>) -> Option<HandshakePermit> {
        let mut state = self.state.lock();
        let (taken, max, dropped) = match dialer {
            Some(node) => (&mut state.peers[node.as_usize()], PEER_MAX, &self.peers_dropped),
            None => (&mut state.unknown_dialers, self.max, &self.unknown_dropped),
        };
        if *taken == max {
            dropped.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        *taken += 1;
        Some(HandshakePermit { handshakes: Arc::clone(self), dialer })
    }

    /// Connections of unknown dialers that got no permit, or were displaced.
    pub(crate) fn unknown_dropped(&self) -> u64 {
        self.unknown_dropped.load(Ordering::Relaxed)
    }

    /// Connections of known peers that got no permit.
    pub(crate) fn peers_dropped(&self) -> u64 {
        self.peers_dropped.load(Ordering::Relaxed)
    }

    fn begin_head(&self, displaces: oneshot::Sender<()>) -> Head<'_> {
        let mut state = self.state.lock();
        if state.heads.len() == self.max {
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

    const MAX: usize = 32;

    #[test]
    fn unknown_dialers_and_other_peers_take_no_permits_of_a_peer() {
        let handshakes = Arc::new(Handshakes::new(MAX));
        let unknown_dialers: Vec<_> =
            (0..MAX).map(|_| handshakes.admit(None).expect("a free permit")).collect();
        assert!(handshakes.admit(None).is_none());
        let first = Some(NodeIndex(1));
        let peers: Vec<_> = (0..PEER_MAX).map(|_| handshakes.admit(first).expect("a free permit")).collect();
        assert!(handshakes.admit(first).is_none());
        assert!(handshakes.admit(Some(NodeIndex(2))).is_some());
        assert_eq!((handshakes.unknown_dropped(), handshakes.peers_dropped()), (1, 1));
        drop((unknown_dialers, peers));
        assert!(handshakes.admit(None).is_some() && handshakes.admit(first).is_some());
    }

    #[test]
    fn a_head_above_the_limit_displaces_the_oldest() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let handshakes = Arc::new(Handshakes::new(MAX));
            let mut silent = JoinSet::new();
            for number in 0..MAX + 1 {
                let handshakes = Arc::clone(&handshakes);
                silent.spawn(async move { (number, handshakes.while_reading_head(pending::<()>()).await) });
                tokio::task::yield_now().await;
            }
            let (number, read) = silent.join_next().await.expect("one ends").expect("no panic");
            assert_eq!((number, read), (0, None), "the last connection displaces the first");
            assert_eq!(handshakes.while_reading_head(async { 7 }).await, Some(7));
            assert_eq!(handshakes.unknown_dropped(), 1);
            silent.abort_all();
            while silent.join_next().await.is_some() {}
            assert!(handshakes.state.lock().heads.is_empty());
        });
    }
}
