//! Faults of hosts, disks and the network.

use super::{Store, World};
use cluster::DialFailure;
use stdx::NodeTag;

impl World {
    /// Deletes the directory. The next start has a new identity.
    pub(crate) fn lose_disk(&mut self, host: usize) {
        self.hosts[host].store = Store::default();
        self.hosts[host].tag = NodeTag(self.hosts[host].tag.0 + 100);
    }

    /// Replaces the directory by an older state, such as a snapshot of its volume.
    pub(crate) fn roll_back(&mut self, host: usize, older: &Store) {
        self.hosts[host].store = older.clone();
    }

    /// Stops a host like SIGSTOP: its connections stay open and it does nothing.
    pub(crate) fn stop(&mut self, host: usize) {
        self.hosts[host].stopped = true;
    }

    /// Continues a stopped host, which then handles what has arrived meanwhile.
    pub(crate) fn resume(&mut self, host: usize) {
        self.hosts[host].stopped = false;
        for packet in std::mem::take(&mut self.hosts[host].held) {
            self.at(self.now, packet);
        }
    }

    /// Lets requests wait in the store of a host, or carries out those that wait.
    pub(crate) fn set_hung(&mut self, host: usize, is_hung: bool) {
        self.hosts[host].store.is_hung = is_hung;
        if !is_hung {
            for (_, packet) in std::mem::take(&mut self.hosts[host].store.held) {
                self.at(self.now, packet);
            }
        }
    }

    /// Cuts the link that `dialer` has dialed to `acceptor`. It is dialed again at once if the view
    /// wants it.
    pub(crate) fn cut(&mut self, dialer: usize, acceptor: usize) {
        self.break_dialed(dialer, acceptor);
    }

    /// Loses every message between two hosts from now on.
    pub(crate) fn cut_off(&mut self, a: usize, b: usize) {
        self.cut.extend([(a, b), (b, a)]);
    }

    /// Fails all dials of a host that arrive from now on.
    pub(crate) fn fail_dials(&mut self, acceptor: usize, reason: DialFailure) {
        self.dial_failures.extend((0..self.hosts.len()).map(|dialer| ((dialer, acceptor), reason)));
    }

    /// Ends all losses of messages.
    pub(crate) fn heal(&mut self) {
        self.cut.clear();
        self.rules.clear();
    }
}
