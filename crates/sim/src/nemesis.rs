//! The nemesis: lets things go wrong, as the scenario says, and mends them.
//!
//! Faults come at random times of the safety phase, last a random time, and overlap. What they are kept from is
//! in [`scenario`](crate::scenario). Kinds of change have files of their own: `clocks`, `directories`,
//! `future`, `absence`. Faults in a fixed order are in `fixed`.

mod absence;
mod clocks;
mod directories;
mod fixed;
mod future;

use crate::Nanos;
use crate::check::room_again::{self, Room};
use crate::check::slow_disk::SlowDisk;
use crate::host::Ending;
use crate::scenario::FaultKind;
use crate::world::{Event, World};
use cluster::{NodeIndex, SyncState};
use directories::Changes;
use env::{Fs, MemFs};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stdx::Rng;

/// Lets things go wrong.
#[derive(Debug)]
pub(crate) struct Nemesis {
    rng: Rng,
    /// Faults so far.
    pub(crate) faults: u64,
    /// Disks lost so far.
    pub(crate) disks_lost: u64,
    /// Nodes that lost their disk, and were not rebuilt yet.
    emptied: BTreeSet<NodeIndex>,
    /// Tables damaged so far.
    pub(crate) tables_damaged: u64,
    /// The table that was damaged last, until it is gone.
    damaged: Option<(NodeIndex, PathBuf)>,
    /// What kinds of change need to know.
    changes: Changes,
    /// In runs in which faults do not overlap: until then nothing goes wrong.
    calm_until: Nanos,
    is_over: bool,
}

/// What ends a fault.
#[derive(Clone, Debug)]
pub(crate) enum Mend {
    Resume(NodeIndex),
    Join(Vec<(NodeIndex, NodeIndex)>),
    Unclog(NodeIndex, NodeIndex),
    AcceptDials(NodeIndex),
    SpeedUp(NodeIndex, NodeIndex),
    StopLosing,
    FastDisk(NodeIndex),
    GoodReads(NodeIndex),
    RoomOnDisk(NodeIndex),
    Thaw(NodeIndex),
    RightClock(NodeIndex),
    EndCopy(NodeIndex),
}

/// The next disk is lost, or table damaged, when the last one was rebuilt or healed; until then the nemesis waits so long.
const WAIT_FOR_REBUILT: Duration = Duration::from_millis(700);
/// Between two faults that do not overlap, everybody hears of what was missed.
const CALM: Duration = Duration::from_secs(3);
/// The least and the greatest time that a slow disk takes for a sync, at most.
const SLOW: Range<Duration> = Duration::from_millis(10)..Duration::from_secs(5);
/// What a slow disk was given last is done so long after it is fast again.
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
            changes: Changes::default(),
            calm_until: Nanos::ZERO,
            is_over: false,
        }
    }

    /// Whether everything was mended for good.
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

    fn ending(&mut self) -> Ending {
        if self.rng.chance(0.5) { Ending::Kill } else { Ending::PowerLoss }
    }
}

impl World {
    /// Spreads the faults of the scenario over the time from now.
    pub(crate) fn begin_faults(&mut self, within: Duration) {
        for _ in 0..self.scenario.faults {
            let delay = self.nemesis.up_to(within);
            self.after(delay, Event::Fault);
        }
    }

    /// Lets one thing go wrong.
    pub(crate) fn strike(&mut self) {
        if self.nemesis.is_over {
            return;
        }
        if self.now < self.nemesis.calm_until {
            return self.at(self.nemesis.calm_until, Event::Fault);
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
        let node = self.nemesis.node(self.scenario.nodes);
        let node = prepared.map_or(node, |(_, node)| node);
        match kind {
            FaultKind::Kill => self.end_process(node, Ending::Kill, Some(lasts)),
            FaultKind::PowerLoss => self.end_process(node, Ending::PowerLoss, Some(lasts)),
            FaultKind::PowerLossOfAll => self.black_out(lasts),
            FaultKind::StopAtFileOperation => self.stop_at_file_operation(node, lasts),
            FaultKind::Pause if self.has_copy(node) => self.strike_later(),
            FaultKind::Pause => self.begin(lasts, Mend::Resume(node), |world| world.pause(node)),
            FaultKind::Drain => self.drain(node, lasts),
            FaultKind::LoseDisk => self.lose_disk(node, lasts),
            FaultKind::DamageTable => self.damage_table(node),
            FaultKind::SlowDisk => self.slow_disk(node, lasts),
            FaultKind::BadReads => {
                let of_thousand = 1 + self.nemesis.rng.below(100);
                self.begin(lasts, Mend::GoodReads(node), |world| {
                    world.host(node).faults.set_bad_reads(of_thousand);
                });
            }
            FaultKind::BadWrite => self.host(node).faults.set_fails_write(true),
            FaultKind::FullDisk => self.fill_disk(node, lasts),
            FaultKind::ClockJump => self.jump(node),
            FaultKind::ClockFreeze => {
                let at = self.now;
                self.begin(lasts, Mend::Thaw(node), |world| world.host(node).clock.freeze(at));
            }
            FaultKind::ClockStep => self.step_clock(node, lasts),
            FaultKind::LoseTwoDisks => self.lose_two_disks(node, lasts),
            FaultKind::RollBack => self.roll_back(node, lasts),
            FaultKind::LoseFiles => self.lose_files(node, lasts),
            FaultKind::CutLog => self.cut_log(node, lasts),
            FaultKind::RestoreNode => self.restore_node(node, lasts),
            FaultKind::RestoreCluster => self.restore_cluster(node, lasts),
            FaultKind::DuplicateMember => self.duplicate(node, lasts),
            FaultKind::FutureCell => self.leave_future_cell(node, lasts),
            FaultKind::Suspend => self.suspend(node),
            FaultKind::LongAbsence => self.be_away(node),
            _ if self.scenario.nodes > 1 => self.strike_network(kind, lasts),
            _ => {}
        }
    }

    fn strike_network(&mut self, kind: FaultKind, lasts: Duration) {
        let (from, to) = self.nemesis.two_nodes(self.scenario.nodes);
        match kind {
            FaultKind::Partition => {
                let cuts = self.draw_partition();
                self.cut(lasts, cuts);
            }
            FaultKind::OneWayCut => self.cut(lasts, vec![(from, to)]),
            FaultKind::Clog => {
                self.begin(lasts, Mend::Unclog(from, to), |world| world.network.clog(from, to, true));
            }
            FaultKind::Reset => {
                for connection in self.network.between(from, to) {
                    self.reset(connection);
                }
            }
            FaultKind::RefuseDials => {
                self.begin(lasts, Mend::AcceptDials(to), |world| world.network.refuse(to, true));
            }
            FaultKind::SlowNetwork => {
                let slowness = self.nemesis.up_to(Duration::from_millis(600));
                self.begin(lasts, Mend::SpeedUp(from, to), |world| world.network.slow(from, to, slowness));
            }
            FaultKind::LossyNetwork => {
                self.begin(lasts, Mend::StopLosing, |world| world.network.set_lossy(true));
            }
            _ => unreachable!("{kind:?} is not of the network"),
        }
    }

    /// Ends a fault.
    pub(crate) fn mend(&mut self, mend: Mend) {
        match mend {
            Mend::Resume(node) => self.resume(node),
            Mend::Join(cuts) => cuts.into_iter().for_each(|(from, to)| self.network.cut(from, to, false)),
            Mend::Unclog(from, to) => {
                self.network.clog(from, to, false);
                self.release_held();
            }
            Mend::AcceptDials(node) => self.network.refuse(node, false),
            Mend::SpeedUp(from, to) => self.network.slow(from, to, Duration::ZERO),
            Mend::StopLosing => self.network.set_lossy(false),
            Mend::FastDisk(node) => self.host(node).sync_max = self.scenario.sync_max,
            Mend::GoodReads(node) => self.host(node).faults.set_bad_reads(0),
            Mend::RoomOnDisk(node) => self.make_room(node),
            Mend::Thaw(node) => self.host(node).clock.thaw(),
            Mend::RightClock(node) => self.undo_step(node),
            Mend::EndCopy(node) => self.end_copy_of(node),
        }
    }

    /// Mends everything, sets the clocks right but for a little, and starts what is down.
    pub(crate) fn heal(&mut self) {
        const SKEW_LEFT_MICROS: i64 = 50_000;
        self.nemesis.is_over = true;
        self.end_copy();
        self.network.heal();
        self.release_held();
        self.pump_all();
        for node in self.nodes() {
            self.resume(node);
            for mend in [Mend::FastDisk(node), Mend::GoodReads(node), Mend::RoomOnDisk(node)] {
                self.mend(mend);
            }
            let error = self.nemesis.rng.below(2 * SKEW_LEFT_MICROS as u64) as i64 - SKEW_LEFT_MICROS;
            let host = self.host(node);
            host.faults.set_fails_write(false);
            host.faults.let_live();
            host.stop_next_start = None;
            host.clock.correct(error);
            if host.process.is_none() {
                self.at(self.now, Event::Start(node));
            }
        }
    }

    fn begin(&mut self, lasts: Duration, mend: Mend, fault: impl FnOnce(&mut Self)) {
        fault(self);
        self.after(lasts, Event::Mend(mend));
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
        self.after(lasts, Event::Mend(Mend::Join(cuts)));
    }

    /// Two sides, at random; none of them is empty.
    fn draw_partition(&mut self) -> Vec<(NodeIndex, NodeIndex)> {
        let alone = self.nemesis.node(self.scenario.nodes);
        let other = self.nemesis.node(self.scenario.nodes);
        let side: Vec<bool> = (self.nodes())
            .map(|node| node == alone || (node != other && self.nemesis.rng.chance(0.3)))
            .collect();
        let pairs = self.nodes().flat_map(|a| self.nodes().map(move |b| (a, b)));
        pairs.filter(|(a, b)| side[a.as_usize()] != side[b.as_usize()]).collect()
    }

    fn black_out(&mut self, lasts: Duration) {
        for node in self.nodes() {
            let down = lasts / 2 + self.nemesis.up_to(lasts);
            self.end_process(node, Ending::PowerLoss, Some(down));
        }
    }

    fn stop_at_file_operation(&mut self, node: NodeIndex, down: Duration) {
        let operations = self.nemesis.rng.below(60);
        let ending = self.nemesis.ending();
        let stops_start = self.nemesis.rng.chance(0.4).then(|| self.nemesis.rng.below(60));
        let host = self.host(node);
        host.at_stop = (ending, down);
        host.faults.stop_after(operations);
        host.stop_next_start = stops_start;
    }

    fn lose_disk(&mut self, node: NodeIndex, down: Duration) {
        if self.has_lost_data() {
            return self.strike_later();
        }
        self.end_process(node, Ending::PowerLoss, Some(down));
        self.replace_disk(node);
    }

    /// A machine gets an empty disk.
    pub(crate) fn replace_disk(&mut self, node: NodeIndex) {
        self.host(node).disk = MemFs::new();
        // The damaged file went with the old disk; the new one may come to have another of this name.
        self.nemesis.damaged.take_if(|(damaged, _)| *damaged == node);
        self.judge.lost_directory(node);
        self.nemesis.disks_lost += 1;
        self.nemesis.emptied.insert(node);
    }

    pub(crate) fn damage_table(&mut self, node: NodeIndex) {
        // A shard that was set aside is kept for its operator. No node reads it, and nothing heals it.
        let is_table = |path: &PathBuf| {
            path.starts_with(directories::SHARD)
                && path.extension().is_some_and(|extension| extension == "sst")
        };
        let tables: Vec<PathBuf> = self.host(node).disk.file_names().into_iter().filter(is_table).collect();
        if tables.is_empty() || self.has_lost_data() {
            return self.strike_later();
        }
        let path = tables[self.nemesis.rng.below(tables.len() as u64) as usize].clone();
        let bytes = self.host(node).disk.read_file(&path).map_or(0, |bytes| bytes.len() as u64);
        let bit = self.nemesis.rng.below(bytes.max(1) * 8);
        self.flip_bit(node, path, bit);
    }

    /// Flips one bit of the file of a table. A file that was only begun may not have this bit: then
    /// nothing happens.
    pub(crate) fn flip_bit(&mut self, node: NodeIndex, path: PathBuf, bit: u64) {
        if self.host(node).disk.corrupt(&path, bit / 8, (bit % 8) as u8).is_ok() {
            self.trace.note(self.now, || format!("bit {bit} of {} at {node:?}", path.display()));
            self.judge.stored.lose_some(node);
            self.nemesis.tables_damaged += 1;
            self.nemesis.damaged = Some((node, path));
        }
    }

    /// Whether a node has less than it acknowledged, as far as is known.
    fn has_lost_data(&mut self) -> bool {
        self.has_damage() || !self.nemesis.emptied.is_empty() || self.nemesis.changes.has_changed()
    }

    /// Whether a table was damaged that is still there.
    pub(crate) fn has_damage(&mut self) -> bool {
        self.look_for_rebuilt();
        self.nemesis.damaged.is_some()
    }

    /// Whether the directory of this node may lack what a start needs: a table of it was damaged and may still be there, or
    /// files of it are gone.
    pub(crate) fn is_damaged(&self, node: NodeIndex) -> bool {
        let has_damaged_table = self.nemesis.damaged.as_ref().is_some_and(|(damaged, _)| *damaged == node);
        has_damaged_table || self.nemesis.changes.is_changed(node)
    }

    /// In runs in which faults do not overlap: the fault that strikes now lasts for so long.
    fn be_calm_after(&mut self, lasts: Duration) {
        self.nemesis.calm_until = self.now + lasts + CALM;
    }

    fn strike_later(&mut self) {
        self.nemesis.faults -= 1;
        self.after(WAIT_FOR_REBUILT, Event::Fault);
    }

    fn look_for_rebuilt(&mut self) {
        self.look_for_whole();
        for node in self.nodes() {
            if self.has_standing(node) {
                self.nemesis.emptied.remove(&node);
            }
        }
        if let Some((node, path)) = self.nemesis.damaged.clone()
            && !self.host(node).disk.file_names().contains(&path)
        {
            self.nemesis.damaged = None;
        }
    }

    fn has_standing(&mut self, node: NodeIndex) -> bool {
        let process = self.host(node).process.as_ref();
        process.is_some_and(|process| process.node.status().sync_state == SyncState::Settled)
    }

    /// Whether all nodes are up and hold what they are to hold.
    pub(crate) fn is_settled(&mut self) -> bool {
        self.nodes().all(|node| self.has_standing(node))
    }

    fn slow_disk(&mut self, node: NodeIndex, lasts: Duration) {
        // Most often it is some times too slow, and now and then it hangs.
        let most = if self.nemesis.rng.chance(0.5) { SLOW.end } else { SLOW.end / 10 };
        let sync_max = SLOW.start + self.nemesis.up_to(most);
        self.judge.slow_disks.push(SlowDisk { node, from: self.now, until: self.now + lasts + SLOW_TAIL });
        self.begin(lasts, Mend::FastDisk(node), |world| world.host(node).sync_max = sync_max);
    }

    fn fill_disk(&mut self, node: NodeIndex, lasts: Duration) {
        // Around the marks of its engine, or where it finds no room itself.
        let marks = self.host(node).process.as_ref().map(|process| process.store.engine().disk_stats());
        let around =
            marks.filter(|_| self.nemesis.rng.chance(0.5)).map_or(256 << 10, |disk| disk.soft_bytes * 2);
        let room = self.nemesis.rng.below(around.max(1));
        let disk = &self.host(node).disk;
        let Ok(available) = disk.available_bytes(Path::new("/")) else { return };
        // While it is full already, what is used is not known.
        if available < u64::MAX / 2 {
            return;
        }
        disk.set_capacity(u64::MAX - available + room);
        self.host(node).filled = self.now;
        self.after(lasts, Event::Mend(Mend::RoomOnDisk(node)));
    }

    fn make_room(&mut self, node: NodeIndex) {
        self.host(node).disk.set_capacity(u64::MAX);
        let life = self.host(node).process.as_ref().map(|process| process.life);
        if let Some(life) = life {
            self.after(room_again::WITHIN, Event::RoomDue(node, life));
        }
    }

    /// Checks that a node has found its room, if it has run since and its disk was not filled again.
    pub(crate) fn room_due(&mut self, node: NodeIndex, life: u64) {
        let (now, host) = (self.now, self.host(node));
        let Some(process) = host.process.as_ref().filter(|process| process.life == life) else { return };
        if host.paused.is_some() {
            return;
        }
        let refuses_values = process.store.engine().is_disk_full() || host.planted.refuses_values();
        let room = Room { node, filled: host.filled, resumed: host.resumed, refuses_values };
        if let Err(violation) = room_again::check(room, now) {
            self.judge.fail(violation);
        }
    }

    fn jump(&mut self, node: NodeIndex) {
        let most = self.scenario.jump_max.as_micros() as u64;
        let micros = self.nemesis.rng.below(2 * most) as i64 - most as i64;
        self.host(node).clock.jump(micros);
    }
}
