//! Commands of clients, and writes of tests to the stores.

use super::packet::Machine;
use super::{World, key};
use bytes::Bytes;
use cluster::{Command, Key, NodeIndex, NodeSet, Quorum, QuorumChoice, RequestId, ScanId, hint_bytes};
use std::num::NonZeroU8;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, Hlc, Instant, Version};

impl World {
    /// Submits a command at a host.
    pub(crate) fn submit(&mut self, host: usize, command: Command) -> RequestId {
        let id = RequestId(self.submitted.len() as u64);
        self.submitted.push((host, self.now));
        let (now, coordinator) = self.coordinator_mut(host);
        coordinator.submit(now, id, command);
        self.carry_out_effects(host);
        id
    }

    /// Closes a scan at a host.
    pub(crate) fn close_scan(&mut self, host: usize, id: ScanId) {
        let (now, coordinator) = self.coordinator_mut(host);
        coordinator.close_scan(now, id);
        self.carry_out_effects(host);
    }

    /// The commands that were submitted at a host, with or without a reply.
    pub(crate) fn submitted_at(&self, host: usize) -> impl Iterator<Item = RequestId> {
        let all = self.submitted.iter().enumerate();
        all.filter(move |&(_, (at, _))| *at == host).map(|(id, _)| RequestId(id as u64))
    }

    /// Host and time at which a command was submitted.
    pub(crate) fn submission(&self, id: RequestId) -> (usize, Instant) {
        self.submitted[id.0 as usize]
    }

    /// The quorum of `ack` out of `from`.
    pub(crate) fn quorum(&self, ack: u8, from: u8) -> Quorum {
        let nodes = NonZeroU8::new(self.layout.len()).expect("there are nodes");
        QuorumChoice { ack: Some(u32::from(ack)), from: Some(u32::from(from)) }
            .resolve(nodes, from)
            .expect("a quorum")
    }

    /// A version issued now.
    pub(crate) fn version(&self, host: usize) -> Version {
        Version::new(Hlc::at(self.now_at(host).wall), self.hosts[host].tag)
    }

    /// Writes a new value with hints to a host's store, as a coordinator does. Returns its version,
    /// which is later than all earlier ones.
    pub(crate) fn write(&mut self, host: usize, name: &str, from: u8, hints: &[usize]) -> Version {
        self.now = self.now + Duration::from_micros(1);
        let version = self.version(host);
        let cell = Cell::value(version, from, Bytes::from(format!("{name} at {version}")));
        self.write_cell(host, &key(name), &cell, hints);
        version
    }

    /// Writes a cell with hints to a host's store, as a coordinator does.
    pub(crate) fn write_cell(&mut self, host: usize, key: &Key, cell: &Cell, hints: &[usize]) {
        let version = cell.meta.version;
        let ledger = Arc::clone(&self.hosts[host].member.hints);
        let kept: NodeSet = (hints.iter().map(|&target| NodeIndex(target as u8)))
            .filter(|&target| ledger.try_keep(target, hint_bytes(key)))
            .collect();
        self.hosts[host].store.put(key, cell);
        self.hosts[host].store.keep_hints(key, version, kept);
    }

    pub(crate) fn version_at(&self, host: usize, name: &str) -> Option<Version> {
        self.hosts[host].store.cells.get(&key(name)).map(|cell| cell.meta.version)
    }

    /// Whether a link of the coordinators of two hosts is open.
    pub(crate) fn has_link(&self, dialer: usize, acceptor: usize) -> bool {
        self.link_of(dialer, acceptor, Machine::Coordinator).is_some()
    }
}
