//! Packets in flight, delivered, copied and lost in any order. For hosts of coordinators.

use super::{Packet, World};
use cluster::StoreFault;
use std::time::Duration;
use stdx::{Instant, Rng};

impl World {
    /// The packets in flight, in the order in which they arrive.
    pub(crate) fn in_flight(&self) -> impl DoubleEndedIterator<Item = &Packet> {
        self.packets.values()
    }

    /// Index of a random packet, unless there is none.
    pub(crate) fn any_in_flight(&self, rng: &mut Rng) -> Option<usize> {
        let len = self.packets.len() as u64;
        (len > 0).then(|| rng.below(len) as usize)
    }

    /// A random host.
    pub(crate) fn any_host(&self, rng: &mut Rng) -> usize {
        rng.below(self.hosts.len() as u64) as usize
    }

    /// Cuts the link between two random hosts, unless they are the same.
    pub(crate) fn cut_any(&mut self, rng: &mut Rng) {
        let (dialer, acceptor) = (self.any_host(rng), self.any_host(rng));
        if dialer != acceptor {
            self.cut(dialer, acceptor);
        }
    }

    /// Index of the first packet that satisfies `is_meant`.
    pub(crate) fn position(&self, is_meant: impl Fn(&Packet) -> bool) -> Option<usize> {
        self.in_flight().position(is_meant)
    }

    /// Handles the packet at `index`; if it is at a store, the store fails with `fault`.
    pub(crate) fn deliver(&mut self, index: usize, fault: Option<StoreFault>) {
        let packet = self.take(index);
        self.handle(packet, fault);
    }

    /// Handles the first packet that satisfies `is_meant`, and returns whether there was one.
    pub(crate) fn deliver_first(&mut self, is_meant: impl Fn(&Packet) -> bool) -> bool {
        let Some(at) = self.packets.iter().find(|(_, packet)| is_meant(packet)).map(|(at, _)| *at) else {
            return false;
        };
        let packet = self.packets.remove(&at).expect("it was just seen");
        self.handle(packet, None);
        true
    }

    /// Handles a copy of the message at `index`, which stays in flight.
    pub(crate) fn deliver_copy(&mut self, index: usize) {
        let packet = self.packets[&self.key_of(index)].clone();
        if let Packet::Message { .. } = packet {
            self.handle(packet, None);
        }
    }

    /// Loses the packet at `index` if it is a message.
    pub(crate) fn lose(&mut self, index: usize) {
        let at = self.key_of(index);
        if let Packet::Message { .. } = self.packets[&at] {
            self.packets.remove(&at);
        }
    }

    /// Handles all packets in order, until none is in flight.
    pub(crate) fn settle(&mut self) {
        while let Some((_, packet)) = self.packets.pop_first() {
            self.handle(packet, None);
        }
    }

    /// Advances the time and handles the timeouts that are due, without a delivery.
    pub(crate) fn pass(&mut self, duration: Duration) {
        self.now = self.now + duration;
        self.handle_all_timeouts();
    }

    pub(super) fn handle_all_timeouts(&mut self) {
        for host in 0..self.hosts.len() {
            while self.hosts[host].poll_timeout().is_some_and(|at| at <= self.now) {
                self.handle_timeouts(host);
            }
        }
    }

    fn take(&mut self, index: usize) -> Packet {
        let at = self.key_of(index);
        self.packets.remove(&at).expect("it was just seen")
    }

    fn key_of(&self, index: usize) -> (Instant, u64) {
        *self.packets.keys().nth(index).expect("a packet has this index")
    }
}
