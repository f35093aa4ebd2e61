//! The nemesis injects the faults of the scenario and ends them.
//!
//! Faults begin at random times of the safety phase, last a random time, and may overlap. Their
//! limits are in [`scenario`](crate::scenario). Kinds of change have files of their own: `clocks`,
//! `directories`, `future`, `absence`. Faults in a fixed order are in `fixed`.

mod absence;
mod clocks;
mod directories;
pub(crate) mod fault_end;
mod fixed;
mod future;

use crate::Nanos;
use crate::check::disk_recovery::{self, DiskState};
use crate::check::slow_disk::SlowDisk;
use crate::host::EndCause;
use crate::scenario::FaultKind;
use crate::world::{World, WorldEvent};
use cluster::{NodeIndex, SyncState};
use directories::ChangeState;
use env::{Fs, MemFs};
use fault_end::FaultEnd;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stdx::Rng;

/// State of fault injection.
#[derive(Debug)]
pub(crate) struct Nemesis {
    rng: Rng,
    /// Number of faults injected.
    pub(crate) faults: u64,
    /// Number of disks lost.
    pub(crate) disks_lost: u64,
    /// Nodes that lost their disk and are not rebuilt yet.
    emptied: BTreeSet<NodeIndex>,
    /// Number of tables damaged.
    pub(crate) tables_damaged: u64,
    /// The last damaged table, until its file is gone.
    damaged: Option<(NodeIndex, PathBuf)>,
    /// State of the kinds of change.
    changes: ChangeState,
    /// Time before which no fault begins, in runs whose faults do not overlap.
    calm_until: Nanos,
    is_over: bool,
}

/// Delay of a fault that loses data while the previous one is not rebuilt or healed.
const WAIT_FOR_REBUILT: Duration = Duration::from_millis(700);
/// Time between two faults that do not overlap, in which every node receives what it missed.
const CALM: Duration = Duration::from_secs(3);
/// Bounds of the sync time of a slow disk.
const SLOW: Range<Duration> = Duration::from_millis(10)..Duration::from_secs(5);
/// Time after the end of a slow disk within which its last operations finish.
const SLOW_TAIL: Duration = Duration::from_secs(7);

impl Nemesis {
    pub(crate) fn new(rng: Rng) -> Self {
        Self {
            rng,
            faults: 0,
            disks_lost: 0,
            emptied: BTreeSet::new(),
            tables_damaged: 0,
            damaged: None,
            changes: ChangeState::default(),
            calm_until: Nanos::ZERO,
            is_over: false,
        }
    }

    /// Whether all faults have ended for good.
    pub(crate) const fn is_over(&self) -> bool {
        self.is_over
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(1 + self.rng.below(most.as_nanos() as u64))
    }

    fn node(&mut self, nodes: u8) -> NodeIndex {
        NodeIndex(self.rng.below(u64::from(nodes)) as u8)
    }

    fn two_nodes(&mut self, nodes: u8) -> (NodeIndex, NodeIndex) {
        let first = self.rng.below(u64::from(nodes)) as u8;
        let step = 1 + self.rng.below(u64::from(nodes) - 1) as u8;
        (NodeIndex(first), NodeIndex((first + step) % nodes))
    }

    fn draw_end_cause(&mut self) -> EndCause {
        if self.rng.chance(0.5) { EndCause::Kill } else { EndCause::PowerLoss }
    }
}

impl World {
    /// Schedules the faults of the scenario at random times within `within`.
    pub(crate) fn begin_faults(&mut self, within: Duration) {
        for _ in 0..self.scenario.faults {
            let delay = self.nemesis.up_to(within);
            self.after(delay, WorldEvent::Fault);
        }
    }

    /// Injects one fault.
    pub(crate) fn inject_fault(&mut self) {
        if self.nemesis.is_over {
            return;
        }
        if self.now < self.nemesis.calm_until {
            return self.at(self.nemesis.calm_until, WorldEvent::Fault);
        }
        let kinds = &self.scenario.fault_kinds;
        let kind = kinds[self.nemesis.rng.below(kinds.len() as u64) as usize];
        let lasts = self.nemesis.up_to(self.scenario.outage_max);
        let prepared = self.nemesis.changes.take_prepared();
        let kind = prepared.map_or(kind, |(kind, _)| kind);
        self.trace.note(self.now, || format!("! {kind:?} for {lasts:?}"));
        self.nemesis.faults += 1;
        if self.scenario.has_short_grace() {
            self.nemesis.calm_until = self.now + lasts + CALM;
        }
        if self.scenario.one_slow_disk {
            self.nemesis.calm_until = self.now + lasts + SLOW_TAIL;
        }
        let node = self.nemesis.node(self.scenario.hosts());
        let node = prepared.map_or(node, |(_, node)| node);
        match kind {
            FaultKind::Kill => self.end_process(node, EndCause::Kill, Some(lasts)),
            FaultKind::PowerLoss => self.end_process(node, EndCause::PowerLoss, Some(lasts)),
            FaultKind::PowerLossOfAll => self.power_off_all(lasts),
            FaultKind::StopAtFileOperation => self.stop_at_file_operation(node, lasts),
            FaultKind::Pause if self.has_copy(node) => self.postpone_fault(),
            FaultKind::Pause => self.apply_for(lasts, FaultEnd::Resume(node), |world| world.pause(node)),
            FaultKind::Drain => self.drain(node, lasts),
            // Only the first members lose data: see `MemberChanges`.
            FaultKind::LoseDisk => self.lose_disk(NodeIndex(node.0 % self.scenario.nodes), lasts),
            FaultKind::DamageTable => self.damage_table_of(NodeIndex(node.0 % self.scenario.nodes), lasts),
            FaultKind::SlowDisk => self.slow_disk(node, lasts),
            FaultKind::BadReads => {
                let of_thousand = 1 + self.nemesis.rng.below(100);
                self.apply_for(lasts, FaultEnd::EndBadReads(node), |world| {
                    world.host(node).faults.set_bad_reads(of_thousand);
                });
            }
            FaultKind::BadWrite => self.host(node).faults.set_fails_write(true),
            FaultKind::FullDisk => self.fill_disk(node, lasts),
            FaultKind::ClockJump => self.jump_clock(node),
            FaultKind::ClockFreeze => {
                let at = self.now;
                self.apply_for(lasts, FaultEnd::ThawClock(node), |world| world.host(node).clock.freeze(at));
            }
            FaultKind::ClockStep => self.step_clock(node, lasts),
            FaultKind::LoseTwoDisks => self.lose_two_disks(node, lasts),
            FaultKind::RollBack => self.roll_back(node, lasts),
            FaultKind::LoseFiles => self.lose_files(node, lasts),
            FaultKind::CutLog => self.cut_log(node, lasts),
            FaultKind::RestoreNode => self.restore_node(node, lasts),
            FaultKind::RestoreCluster => self.restore_cluster(node, lasts),
            FaultKind::DuplicateMember => self.duplicate(node, lasts),
            FaultKind::FutureCell => self.store_future_cell(node, lasts),
            FaultKind::Suspend => self.suspend(node),
            FaultKind::LongAbsence => self.stop_for_long(node),
            _ if self.scenario.nodes > 1 => self.inject_network_fault(kind, lasts),
            _ => {}
        }
    }

    fn inject_network_fault(&mut self, kind: FaultKind, lasts: Duration) {
        let (from, to) = self.nemesis.two_nodes(self.scenario.hosts());
        match kind {
            FaultKind::Partition => {
                let cuts = self.draw_partition();
                self.cut(lasts, cuts);
            }
            FaultKind::OneWayCut => self.cut(lasts, vec![(from, to)]),
            FaultKind::Clog => {
                self.apply_for(lasts, FaultEnd::Unclog(from, to), |world| world.network.clog(from, to, true));
            }
            FaultKind::Reset => {
                for connection in self.network.between(from, to) {
                    self.reset(connection);
                }
            }
            FaultKind::RefuseDials => {
                self.apply_for(lasts, FaultEnd::AcceptDials(to), |world| world.network.refuse(to, true));
            }
            FaultKind::SlowNetwork => {
                let slowness = self.nemesis.up_to(Duration::from_millis(600));
                self.apply_for(lasts, FaultEnd::RestoreSpeed(from, to), |world| {
                    world.network.slow(from, to, slowness);
                });
            }
            FaultKind::LossyNetwork => {
                self.apply_for(lasts, FaultEnd::EndLoss, |world| world.network.set_lossy(true));
            }
            _ => unreachable!("{kind:?} is not a network fault"),
        }
    }

    /// Ends a fault.
    pub(crate) fn end_fault(&mut self, fault_end: FaultEnd) {
        match fault_end {
            FaultEnd::Resume(node) => self.resume(node),
            FaultEnd::ReconnectPaths(cuts) => {
                cuts.into_iter().for_each(|(from, to)| self.network.cut(from, to, false));
            }
            FaultEnd::Unclog(from, to) => {
                self.network.clog(from, to, false);
                self.release_held();
            }
            FaultEnd::AcceptDials(node) => self.network.refuse(node, false),
            FaultEnd::RestoreSpeed(from, to) => self.network.slow(from, to, Duration::ZERO),
            FaultEnd::EndLoss => self.network.set_lossy(false),
            FaultEnd::RestoreDiskSpeed(node) => self.host(node).sync_max = self.scenario.sync_max,
            FaultEnd::EndBadReads(node) => self.host(node).faults.set_bad_reads(0),
            FaultEnd::FreeDiskSpace(node) => self.free_disk_space(node),
            FaultEnd::ThawClock(node) => self.host(node).clock.thaw(),
            FaultEnd::CorrectClock(node) => self.undo_step(node),
            FaultEnd::EndCopy(node) => self.end_copy_of(node),
        }
    }

    /// Ends all faults, sets the clocks right except for a small error, and starts the processes
    /// that are down.
    pub(crate) fn heal(&mut self) {
        const SKEW_LEFT_MICROS: i64 = 50_000;
        self.nemesis.is_over = true;
        self.end_copy();
        self.isolated.clear();
        self.network.heal();
        self.release_held();
        self.pump_all();
        for node in self.hosts_of_nodes() {
            self.resume(node);
            self.upgrade(node);
            for fault_end in
                [FaultEnd::RestoreDiskSpeed(node), FaultEnd::EndBadReads(node), FaultEnd::FreeDiskSpace(node)]
            {
                self.end_fault(fault_end);
            }
            let error = self.nemesis.rng.below(2 * SKEW_LEFT_MICROS as u64) as i64 - SKEW_LEFT_MICROS;
            let host = self.host(node);
            host.faults.set_fails_write(false);
            host.faults.cancel_stop();
            host.stop_next_start = None;
            host.clock.correct(error);
            host.is_off = false;
            if host.process.is_none() {
                self.at(self.now, WorldEvent::Start(node));
            }
        }
    }

    fn apply_for(&mut self, lasts: Duration, fault_end: FaultEnd, fault: impl FnOnce(&mut Self)) {
        fault(self);
        self.after(lasts, WorldEvent::FaultEnd(fault_end));
    }

    fn release_held(&mut self) {
        for (connection, toward, packet) in self.network.release() {
            self.deliver(connection, toward, packet);
        }
    }

    fn cut(&mut self, lasts: Duration, cuts: Vec<(NodeIndex, NodeIndex)>) {
        for (from, to) in &cuts {
            self.network.cut(*from, *to, true);
        }
        self.after(lasts, WorldEvent::FaultEnd(FaultEnd::ReconnectPaths(cuts)));
    }

    /// Draws the two sides of a partition; neither is empty.
    fn draw_partition(&mut self) -> Vec<(NodeIndex, NodeIndex)> {
        let alone = self.nemesis.node(self.scenario.hosts());
        let other = self.nemesis.node(self.scenario.hosts());
        let side: Vec<bool> = (self.hosts_of_nodes())
            .map(|node| node == alone || (node != other && self.nemesis.rng.chance(0.3)))
            .collect();
        let pairs = self.hosts_of_nodes().flat_map(|a| self.hosts_of_nodes().map(move |b| (a, b)));
        pairs.filter(|(a, b)| side[a.as_usize()] != side[b.as_usize()]).collect()
    }

    /// Cuts a host off from all others.
    pub(crate) fn isolate(&mut self, host: NodeIndex) {
        self.isolated.insert(host);
        self.set_isolation(host, true);
    }

    /// Ends the isolation of a host, if it is isolated.
    pub(crate) fn end_isolation(&mut self, host: NodeIndex) {
        if self.isolated.remove(&host) {
            self.set_isolation(host, false);
        }
    }

    fn set_isolation(&mut self, host: NodeIndex, begins: bool) {
        for other in self.hosts_of_nodes().filter(|other| *other != host) {
            self.network.cut(host, other, begins);
            self.network.cut(other, host, begins);
        }
    }

    fn power_off_all(&mut self, lasts: Duration) {
        for node in self.hosts_of_nodes() {
            let down = lasts / 2 + self.nemesis.up_to(lasts);
            self.end_process(node, EndCause::PowerLoss, Some(down));
        }
    }

    fn stop_at_file_operation(&mut self, node: NodeIndex, down: Duration) {
        let operations = self.nemesis.rng.below(60);
        let end_cause = self.nemesis.draw_end_cause();
        let stops_start = self.nemesis.rng.chance(0.4).then(|| self.nemesis.rng.below(60));
        let host = self.host(node);
        host.planned_stop = (end_cause, down);
        host.faults.stop_after(operations);
        host.stop_next_start = stops_start;
    }

    fn lose_disk(&mut self, node: NodeIndex, down: Duration) {
        if self.has_lost_data() {
            return self.postpone_fault();
        }
        self.end_process(node, EndCause::PowerLoss, Some(down));
        self.replace_disk(node);
    }

    /// Gives a host an empty disk.
    pub(crate) fn replace_disk(&mut self, node: NodeIndex) {
        self.host(node).disk = MemFs::new();
        // The damaged file is gone with the old disk. The new disk may get another file of this
        // name.
        self.nemesis.damaged.take_if(|(damaged, _)| *damaged == node);
        self.judge.note_empty_directory(node);
        self.nemesis.disks_lost += 1;
        self.nemesis.emptied.insert(node);
    }

    /// Damages a table of a node that runs, or of one that is down and starts on the damaged table.
    fn damage_table_of(&mut self, node: NodeIndex, down: Duration) {
        if self.nemesis.rng.chance(0.5) && !self.has_lost_data() {
            self.end_process(node, EndCause::Kill, Some(down));
        }
        self.damage_table(node);
    }

    pub(crate) fn damage_table(&mut self, node: NodeIndex) {
        // Stale shards are kept for the operator. No node reads or heals them.
        let is_table = |path: &PathBuf| {
            path.starts_with(directories::SHARD)
                && path.extension().is_some_and(|extension| extension == "sst")
        };
        let tables: Vec<PathBuf> = self.host(node).disk.file_names().into_iter().filter(is_table).collect();
        if tables.is_empty() || self.has_lost_data() {
            return self.postpone_fault();
        }
        let path = tables[self.nemesis.rng.below(tables.len() as u64) as usize].clone();
        let bytes = self.host(node).disk.read_file(&path).map_or(0, |bytes| bytes.len() as u64);
        let bit = self.nemesis.rng.below(bytes.max(1) * 8);
        self.flip_bit(node, path, bit);
    }

    /// Flips one bit of the file of a table. Does nothing if an unfinished file does not have this
    /// bit.
    pub(crate) fn flip_bit(&mut self, node: NodeIndex, path: PathBuf, bit: u64) {
        if self.host(node).disk.corrupt(&path, bit / 8, (bit % 8) as u8).is_ok() {
            self.trace.note(self.now, || format!("bit {bit} of {} at {node:?}", path.display()));
            self.judge.durable.lose_some(node);
            self.nemesis.tables_damaged += 1;
            self.nemesis.damaged = Some((node, path));
        }
    }

    /// Whether a node is known to hold less than it acknowledged.
    fn has_lost_data(&mut self) -> bool {
        self.has_damage() || !self.nemesis.emptied.is_empty() || self.nemesis.changes.has_changed()
    }

    /// Whether a damaged table still exists.
    pub(crate) fn has_damage(&mut self) -> bool {
        self.update_data_loss();
        self.nemesis.damaged.is_some()
    }

    /// Whether the directory of this node may lack files that a start needs. A damaged table is
    /// none of them.
    pub(crate) fn may_lack_files(&self, node: NodeIndex) -> bool {
        self.nemesis.changes.is_changed(node)
    }

    /// Postpones further faults until [`CALM`] after `lasts`, for a fault that begins now.
    fn pause_faults_for(&mut self, lasts: Duration) {
        self.nemesis.calm_until = self.now + lasts + CALM;
    }

    fn postpone_fault(&mut self) {
        self.nemesis.faults -= 1;
        self.after(WAIT_FOR_REBUILT, WorldEvent::Fault);
    }

    fn update_data_loss(&mut self) {
        self.forget_recovered();
        for node in self.hosts_of_nodes() {
            if self.is_node_settled(node) {
                self.nemesis.emptied.remove(&node);
            }
        }
        if let Some((node, path)) = self.nemesis.damaged.clone()
            && !self.host(node).disk.file_names().contains(&path)
        {
            self.nemesis.damaged = None;
        }
    }

    fn is_node_settled(&mut self, node: NodeIndex) -> bool {
        let process = self.host(node).process.as_ref();
        process.is_some_and(|process| process.node.status().sync_state == SyncState::Settled)
    }

    /// Whether all nodes are up and settled.
    pub(crate) fn is_settled(&mut self) -> bool {
        self.nodes().all(|node| self.is_node_settled(node))
    }

    fn slow_disk(&mut self, node: NodeIndex, lasts: Duration) {
        // A disk is mostly some times too slow, and sometimes hangs.
        let most = if self.nemesis.rng.chance(0.5) { SLOW.end } else { SLOW.end / 10 };
        let sync_max = SLOW.start + self.nemesis.up_to(most);
        self.judge.slow_disks.push(SlowDisk { node, from: self.now, until: self.now + lasts + SLOW_TAIL });
        self.apply_for(lasts, FaultEnd::RestoreDiskSpeed(node), |world| world.host(node).sync_max = sync_max);
    }

    fn fill_disk(&mut self, node: NodeIndex, lasts: Duration) {
        // Draws the remaining space: around the limits of the engine, or less than 256 KiB, so that
        // the engine itself finds none.
        let marks = self.host(node).process.as_ref().map(|process| process.store.engine().disk_stats());
        let around =
            marks.filter(|_| self.nemesis.rng.chance(0.5)).map_or(256 << 10, |disk| disk.soft_bytes * 2);
        let room = self.nemesis.rng.below(around.max(1));
        let disk = &self.host(node).disk;
        let Ok(available) = disk.available_bytes(Path::new("/")) else { return };
        // The used space is unknown while the disk is full already.
        if available < u64::MAX / 2 {
            return;
        }
        disk.set_capacity(u64::MAX - available + room);
        self.host(node).filled = self.now;
        self.after(lasts, WorldEvent::FaultEnd(FaultEnd::FreeDiskSpace(node)));
    }

    fn free_disk_space(&mut self, node: NodeIndex) {
        self.host(node).disk.set_capacity(u64::MAX);
        let generation = self.host(node).process.as_ref().map(|process| process.generation);
        if let Some(generation) = generation {
            self.after(disk_recovery::WITHIN, WorldEvent::DiskSpaceDue(node, generation));
        }
    }

    /// Checks that a node accepts values again after its disk was given space.
    pub(crate) fn check_disk_space(&mut self, node: NodeIndex, generation: u64) {
        let (now, host) = (self.now, self.host(node));
        let Some(process) = host.process.as_ref().filter(|process| process.generation == generation) else {
            return;
        };
        if host.paused.is_some() {
            return;
        }
        let refuses_values = process.store.engine().is_disk_full() || host.plant_state.refuses_values();
        let disk = DiskState { node, filled: host.filled, resumed: host.resumed, refuses_values };
        if let Err(violation) = disk_recovery::check(disk, now) {
            self.judge.fail(violation);
        }
    }

    fn jump_clock(&mut self, node: NodeIndex) {
        let most = self.scenario.jump_max.as_micros() as u64;
        let micros = self.nemesis.rng.below(2 * most) as i64 - most as i64;
        self.host(node).clock.jump(micros);
    }
}
