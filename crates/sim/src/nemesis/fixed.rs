//! Safety phases in which the commands and the faults come in a fixed order.
//!
//! Some planted bugs show only when several faults and commands meet within a second or two. Faults
//! at random times do so in hardly any run. Here only delays, and the nodes that take each part,
//! are drawn. Each of these phases also passes without the bug that it is for.

use crate::check::Violation;
use crate::history::{Asked, Told};
use crate::host::process::REQUEST_TIMEOUT;
use crate::run::OWED_KEPT_WITHIN;
use crate::scenario::FixedFaults;
use crate::workload::quorum;
use crate::world::World;
use cluster::{Key, NodeIndex, RequestId};
use std::time::Duration;

/// Commands are asked within this time, before anything else goes wrong.
const LOAD_LASTS: Duration = Duration::from_secs(3);
/// Writes in that time.
const LOAD: u64 = 60;
/// All nodes are down for so long.
const DOWN: Duration = Duration::from_secs(1);

/// Writes that are under way when a disk is lost.
const LATE_WRITES: usize = 40;
/// They arrive at one replica this late: before their deadline, after a rebuild that does not wait.
const LATE_BY: Duration = Duration::from_millis(700);
/// The replica that loses its disk has acknowledged the writes within this time.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_millis(40);
/// The keys of those writes are read so often, with this time between.
const READS: u32 = 12;
const READ_EVERY: Duration = Duration::from_millis(100);

impl World {
    /// Goes through a safety phase of this kind. What is still wrong at its end, the heal mends.
    pub(crate) fn go_through_fixed(&mut self, fixed: FixedFaults) -> Result<(), Violation> {
        match fixed {
            FixedFaults::OwingNodesStop => self.stop_all_that_owe(),
            FixedFaults::LostDiskAmidWrites => self.lose_disk_amid_writes(),
        }
    }

    /// A node is cut off, so that the others drop hints for it and owe it a repair. Then all nodes
    /// stop, and the cut ends before they start again: only their records still hold the debt.
    ///
    /// No command is asked after the cut. A hint that is dropped after a start would be a new debt,
    /// and the pass that pays it compares all keys.
    fn stop_all_that_owe(&mut self) -> Result<(), Violation> {
        let away = self.nemesis.node(self.scenario.nodes);
        let others = self.nodes().filter(|node| *node != away);
        let cuts: Vec<_> = others.flat_map(|node| [(node, away), (away, node)]).collect();
        let writes_last = LOAD_LASTS + REQUEST_TIMEOUT;
        let until_stop = writes_last + OWED_KEPT_WITHIN + self.nemesis.up_to(REQUEST_TIMEOUT);
        self.nemesis.faults += 2;
        self.cut(until_stop, cuts);
        self.begin_commands(LOAD, self.now + LOAD_LASTS);
        self.go_on(until_stop)?;
        let ending = self.nemesis.ending();
        for node in self.nodes() {
            self.end_process(node, ending, Some(DOWN));
        }
        self.go_on(DOWN * 2)
    }

    /// Writes are under way that one replica has acknowledged and no other has received. That replica
    /// loses its disk and is started again at once. Then the writes arrive at a second replica, and so
    /// are acknowledged. Reads through the node that lost its disk must find them.
    ///
    /// Two other defenses must not help. A coordinator that is a replica stores the write at once, or
    /// its slow disk delays the rebuild too, since it must record the new identity first: so the
    /// coordinator is no replica. A coordinator that reaches the new process takes back the
    /// acknowledgements of the old one: so the node with the lost disk refuses connections.
    fn lose_disk_amid_writes(&mut self) -> Result<(), Violation> {
        self.begin_commands(LOAD, self.now + LOAD_LASTS);
        self.go_on(LOAD_LASTS + REQUEST_TIMEOUT)?;
        let (nodes, from) = (self.scenario.nodes, self.scenario.default_from);
        let majority = quorum(self.scenario.majority(), from, nodes);
        let (coordinator, lost) = self.nemesis.two_nodes(nodes);
        let rest: Vec<_> = self.nodes().filter(|node| *node != coordinator && *node != lost).collect();
        let is_first_late = self.nemesis.rng.chance(0.5);
        let (late, cut_off) = if is_first_late { (rest[0], rest[1]) } else { (rest[1], rest[0]) };
        self.nemesis.faults += 3;
        self.network.slow(coordinator, late, LATE_BY);
        self.network.cut(coordinator, cut_off, true);
        let keys = self.keys_not_at(coordinator).into_iter();
        let ask = |key: Key| (key.clone(), self.ask(coordinator, Asked::Put { ttl: None }, key, majority));
        let writes: Vec<(Key, RequestId)> = keys.map(ask).collect();
        self.go_on(ACKNOWLEDGED_WITHIN)?;
        self.network.refuse(lost, true);
        let down = self.nemesis.up_to(Duration::from_millis(10));
        self.lose_disk(lost, down);
        self.go_on(LATE_BY - ACKNOWLEDGED_WITHIN)?;
        for _ in 0..READS {
            for (key, id) in &writes {
                if self.is_acknowledged(*id) {
                    self.ask(lost, Asked::Get, key.clone(), majority);
                }
            }
            self.go_on(READ_EVERY)?;
        }
        self.go_on(REQUEST_TIMEOUT)
    }

    fn is_acknowledged(&self, id: RequestId) -> bool {
        let told = self.judge.history.get(id).and_then(|operation| operation.told.as_ref());
        told.is_some_and(|(_, told)| matches!(told, Told::Written { .. }))
    }

    /// Keys of which this node is no replica by default.
    fn keys_not_at(&self, node: NodeIndex) -> Vec<Key> {
        let from = self.scenario.default_from;
        (0..)
            .map(|number: u64| Key::new(format!("late-{number}").into()).expect("short and not empty"))
            .filter(|key| !self.layout().is_replica(node, key, from))
            .take(LATE_WRITES)
            .collect()
    }
}
