//! What a run is like: everything that is chosen once, drawn from the seed. Traits of the world beside faults are in
//! [`Dimension`].
//!
//! **Mechanism.** Swarm testing (Groce et al., "Swarm testing", 2012): a run has some kinds of faults and not
//! others, some sizes and not others, so that what one of them would hide is seen in a run without it.
//!
//! **What is kept within the promises.** A run that loses data ([`FaultKind::LoseDisk`],
//! [`FaultKind::DamageTable`]) writes with the default `from` and at least a majority, for only that survives the loss of a
//! disk; the next disk is lost, or table damaged, when the last one was rebuilt or healed. A run with a short grace period has clocks that agree, room for
//! hints, faults one at a time, and outages far shorter than the grace period, for only then is every replica certain to hear of a
//! delete in time; and one `from`, for a node that is not within the `from` of a delete, and holds an older cell,
//! hears of it only when it is read. A run with *one slow disk at a time* has no other fault, and what it takes to
//! promise that no write of the others notices: memtables and values that fit, clocks that agree. A run with a *flood* has
//! no fault at all: clients ask for somewhat less than the disks bear, then for far more, then for a little. A run with
//! *fixed faults* ([`FixedFaults`]) has only those; plants that need several faults within a second are run so.

mod change;
mod dimension;

pub use dimension::{Dimension, Dimensions, NarrowLinks};

use crate::Plant;
use std::time::Duration;
use stdx::Rng;

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Commands of clients in the safety phase.
    pub operations: u64,
    /// The safety phase.
    pub duration: Duration,
    /// Faults, at least.
    pub faults_min: u64,
}

impl Scale {
    /// A whole run.
    pub const FULL: Self = Self { operations: 2_000, duration: Duration::from_secs(60), faults_min: 5 };
    /// A run for tests of debug builds.
    pub const SMALL: Self = Self { operations: 400, duration: Duration::from_secs(12), faults_min: 5 };
}

/// What may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// A process dies; what it wrote stays.
    Kill,
    /// A machine loses power; what it did not sync is lost or torn.
    PowerLoss,
    /// All machines lose power at once.
    PowerLossOfAll,
    /// A process dies, or its machine, at one of its next file operations.
    StopAtFileOperation,
    /// A process stands still and goes on.
    Pause,
    /// A process drains and ends.
    Drain,
    /// A machine loses its disk and gets an empty one.
    LoseDisk,
    /// A bit of a table flips on the disk of a machine.
    DamageTable,
    /// Some nodes do not reach the others, nor those them.
    Partition,
    /// Nothing gets from one node to another; the other way all is well.
    OneWayCut,
    /// What one node sends to another is held, and comes at once at the end.
    Clog,
    /// Connections between two nodes are reset.
    Reset,
    /// A node refuses connections.
    RefuseDials,
    /// Messages are late.
    SlowNetwork,
    /// Messages are lost, doubled and out of order although their connection generation.
    LossyNetwork,
    /// A disk takes long.
    SlowDisk,
    /// Reads of a disk fail or bring wrong bits.
    BadReads,
    /// A write to a disk fails.
    BadWrite,
    /// A disk is full.
    FullDisk,
    /// A wall clock jumps.
    ClockJump,
    /// A wall clock stands still.
    ClockFreeze,
    /// The wall clock of one node steps by seconds to years, and is set right later.
    ClockStep,
    /// Two machines lose their disks at once.
    LoseTwoDisks,
    /// A data directory comes back as it was in an earlier generation of its node.
    RollBack,
    /// A data directory comes back without some of its files.
    LoseFiles,
    /// The log of a node that is down is cut short.
    CutLog,
    /// A node is restored from a backup, while the others go on.
    RestoreNode,
    /// All nodes are restored together from backups.
    RestoreCluster,
    /// A second process of a node is started from a copy of its directory, at its address or another.
    DuplicateMember,
    /// A cell from a clock that is ahead is on two nodes, and a third loses its disk.
    FutureCell,
    /// A process is suspended for longer than deletes are kept.
    Suspend,
    /// A process is down for longer than deletes are kept.
    LongAbsence,
}

impl FaultKind {
    /// Kinds that runs draw, each by itself.
    pub const ALL: [Self; 21] = [
        Self::Kill,
        Self::PowerLoss,
        Self::PowerLossOfAll,
        Self::StopAtFileOperation,
        Self::Pause,
        Self::Drain,
        Self::LoseDisk,
        Self::DamageTable,
        Self::Partition,
        Self::OneWayCut,
        Self::Clog,
        Self::Reset,
        Self::RefuseDials,
        Self::SlowNetwork,
        Self::LossyNetwork,
        Self::SlowDisk,
        Self::BadReads,
        Self::BadWrite,
        Self::FullDisk,
        Self::ClockJump,
        Self::ClockFreeze,
    ];

    /// Kinds of change: a clock, a directory or a process comes back as something else than what it was. A run has one
    /// of them at most.
    pub const CHANGES: [Self; 11] = [
        Self::ClockStep,
        Self::LoseTwoDisks,
        Self::RollBack,
        Self::LoseFiles,
        Self::CutLog,
        Self::RestoreNode,
        Self::RestoreCluster,
        Self::DuplicateMember,
        Self::FutureCell,
        Self::Suspend,
        Self::LongAbsence,
    ];

    /// The kind of this name: that of the variant, in lower case with hyphens.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain(Self::CHANGES).find(|kind| kind.name() == name)
    }

    /// The name by which [`FaultKind::named`] finds it.
    pub fn name(self) -> String {
        let mut name = String::new();
        for character in format!("{self:?}").chars() {
            if character.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(character.to_ascii_lowercase());
        }
        name
    }

    /// Needs a peer.
    const fn is_between_nodes(self) -> bool {
        matches!(
            self,
            Self::Partition
                | Self::OneWayCut
                | Self::Clog
                | Self::Reset
                | Self::RefuseDials
                | Self::SlowNetwork
                | Self::LossyNetwork
                | Self::LoseDisk
                | Self::DamageTable
        )
    }

    /// A node has less than it acknowledged.
    const fn loses_data(self) -> bool {
        matches!(
            self,
            Self::LoseDisk
                | Self::DamageTable
                | Self::LoseTwoDisks
                | Self::RollBack
                | Self::LoseFiles
                | Self::CutLog
                | Self::RestoreNode
                | Self::RestoreCluster
                | Self::DuplicateMember
                | Self::FutureCell
        )
    }
}

/// How clients choose their quorums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuorumStyle {
    /// The default: a majority of `default_from`.
    Majority,
    /// Writes wait for a majority or more of `default_from`, reads for anything.
    AtLeastMajorityWrites,
    /// Writes wait for all of `default_from`, reads for anything.
    EveryReplicaWrites,
    /// Anything that is a quorum.
    Any,
    /// Half of the commands as [`QuorumStyle::Majority`], the others as [`QuorumStyle::Any`].
    Mixed,
}

/// What a run is like.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What all of it was drawn from.
    pub seed: u64,
    /// How long it is.
    pub scale: Scale,
    /// A bug that is put in.
    pub plant: Option<Plant>,
    /// Nodes of the cluster.
    pub nodes: u8,
    /// I/O threads of each.
    pub coordinators: u8,
    /// How many replicas hold a key when nobody says otherwise.
    pub default_from: u8,
    /// How clients choose their quorums.
    pub quorums: QuorumStyle,
    /// Ranges that clients read.
    pub scans: u64,
    /// For how long a snapshot is kept for the pages of a range.
    pub snapshot_age: Duration,
    /// The share of pages after which a client pauses.
    pub pause_share: f64,
    /// What a store puts on a page at most, whatever is asked for, in bytes.
    pub page_bytes_max: usize,
    /// Keys that are used again and again.
    pub keys: u64,
    /// The share of writes to keys that nobody uses again.
    pub cold_share: f64,
    /// The share of reads.
    pub read_share: f64,
    /// Of the writes, the share of deletes.
    pub delete_share: f64,
    /// Of the writes of values, the share of those that expire.
    pub ttl_share: f64,
    /// The longest time to live.
    pub ttl_max: Duration,
    /// The longest value, in bytes.
    pub value_bytes_max: u64,
    /// Within what time each node reads all its tables, if it does.
    pub scrub_period: Option<Duration>,
    /// What hints may take on a node, in bytes.
    pub hint_bytes_max: u64,
    /// A hint that is older is dropped.
    pub hint_age_max: Duration,
    /// How long the dead are kept.
    pub grace: Duration,
    /// A node that was away for longer does not come back with its data.
    pub away_max: Duration,
    /// The longest that a fault lasts.
    pub outage_max: Duration,
    /// Between two messages' sending and arrival, at most while nothing is wrong.
    pub delay_max: Duration,
    /// The longest sync of a disk, while nothing is wrong.
    pub sync_max: Duration,
    /// The share of reads that find their bytes in memory.
    pub warm_share: f64,
    /// How far a wall clock may be off at the start, either way.
    pub skew_max: Duration,
    /// How far a wall clock may jump, either way.
    pub jump_max: Duration,
    /// The share of messages that are lost, doubled and late, each, while the network is lossy.
    pub lossy_share: f64,
    /// The kinds of faults of this run; at least one.
    pub fault_kinds: Vec<FaultKind>,
    /// How many faults.
    pub faults: u64,
    /// Memtables are flushed at this size, in bytes.
    pub memtable_bytes: u64,
    /// Commands under way in a coordinator.
    pub operations_max: u16,
    /// One disk at a time is slow, and nothing else goes wrong.
    pub one_slow_disk: bool,
    /// Clients ask for more than disks bear, and nothing else goes wrong.
    pub flood: Option<FloodLoad>,
    /// The safety phase has these faults, in a fixed order, in endpoint of those that are drawn.
    pub fixed: Option<FixedFaults>,
    /// Traits of the world beside faults.
    pub dimensions: Dimensions,
}

/// What disks bear, and what clients ask for; commands are for each second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloodLoad {
    /// What a disk writes to its log in a second.
    pub disk_bytes: u64,
    /// Before the flood.
    pub calm: u64,
    /// In it.
    pub flood: u64,
    /// After it.
    pub after: u64,
}

/// Faults and commands in a fixed order: see `nemesis::fixed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixedFaults {
    /// A node is cut off and the others drop hints for it. Then all nodes stop.
    StopWithPendingRepairs,
    /// A node loses its disk while writes are under way that only this node has acknowledged.
    LoseDiskDuringWrites,
}

/// Where tables are scrubbed, a round is over within this time.
const SCRUB_PERIOD: Duration = Duration::from_secs(10);
/// The longest time to live, unless a kind of change asks for another.
const TTL_MAX: Duration = Duration::from_secs(8);
/// As long as hints are kept by default.
const HINT_AGE_MAX: Duration = Duration::from_secs(3 * 24 * 3600);
/// Longer than any run.
const GRACE_LONG: Duration = Duration::from_secs(10 * 24 * 3600);
/// Long against the outages of a run with a short grace period, short against the run.
const GRACE_SHORT: Duration = Duration::from_secs(20);
/// A third of it is longer than a run with fixed faults, until owed repairs must be done.
const GRACE_WITHOUT_ROUND: Duration = Duration::from_secs(600);

impl Scenario {
    /// The run of a seed; with a planted bug, one in which that can matter.
    pub fn draw(seed: u64, scale: Scale, plant: Option<Plant>) -> Self {
        let mut scenario = Self::draw_any(seed, scale, plant);
        match plant {
            Some(plant) => scenario.expose(plant),
            None => {
                scenario.draw_change();
                scenario.draw_dimensions();
            }
        }
        scenario
    }

    /// As [`Scenario::draw`], a run in which half of the faults are of this kind.
    pub fn draw_with_fault(seed: u64, scale: Scale, kind: FaultKind) -> Self {
        let mut scenario = Self::draw_any(seed, scale, None);
        scenario.focus_on(kind);
        scenario
    }

    /// As [`Scenario::draw`], a run in which one disk at a time is slow.
    pub fn draw_slow_disks(seed: u64, scale: Scale) -> Self {
        let mut scenario = Self::draw_any(seed, scale, None);
        scenario.slow_one_disk();
        scenario
    }

    /// As [`Scenario::draw`], a run with a flood.
    pub fn draw_flood(seed: u64, scale: Scale) -> Self {
        let mut scenario = Self::draw_any(seed, scale, None);
        scenario.flood_disks();
        scenario
    }

    fn draw_any(seed: u64, scale: Scale, plant: Option<Plant>) -> Self {
        let rng = &mut Rng::new(seed);
        let nodes = [1, 2, 3, 3, 3, 3, 3, 4, 5, 5][rng.below(10) as usize];
        let has_short_grace = rng.chance(0.2) || plant == Some(Plant::TombstoneDroppedEarly);
        let mut fault_kinds = draw_fault_kinds(rng, nodes);
        if has_short_grace {
            fault_kinds.retain(|kind| is_fit_for_short_grace(*kind));
        }
        if fault_kinds.is_empty() {
            fault_kinds.push(FaultKind::Kill);
        }
        let loses_data = fault_kinds.iter().any(|kind| kind.loses_data());
        let is_tight = |rng: &mut Rng, chance: f64| !has_short_grace && rng.chance(chance);
        let few_keys = rng.chance(0.3);
        let outage_max = if has_short_grace { 5 } else { 3 + rng.below(15) };
        Self {
            seed,
            scale,
            plant,
            nodes,
            coordinators: 1 + rng.below(3) as u8,
            default_from: if rng.chance(0.5) { nodes } else { nodes.min(3) },
            quorums: draw_quorums(rng, loses_data || has_short_grace),
            keys: 1 + rng.below(if few_keys { 4 } else { 60 }),
            cold_share: if rng.chance(0.5) { 0.1 } else { 0.0 },
            read_share: 0.3 + 0.4 * rng.unit(),
            delete_share: if rng.chance(0.7) { 0.4 * rng.unit() } else { 0.0 },
            ttl_share: if rng.chance(0.4) { 0.4 * rng.unit() } else { 0.0 },
            ttl_max: TTL_MAX,
            // Tombstones are purged once the log has moved on, which takes many bytes.
            value_bytes_max: match has_short_grace {
                true => 64 << 10,
                false => [16, 256, 2 << 10, 100 << 10][rng.below(4) as usize],
            },
            // Without a draw: half of all runs are what they were without it.
            scrub_period: seed.is_multiple_of(2).then_some(SCRUB_PERIOD),
            hint_bytes_max: if is_tight(rng, 0.15) { 1 + rng.below(2_000) } else { 64 << 20 },
            hint_age_max: HINT_AGE_MAX,
            grace: if has_short_grace { GRACE_SHORT } else { GRACE_LONG },
            away_max: GRACE_LONG,
            outage_max: Duration::from_secs(outage_max).min(scale.duration / 4),
            delay_max: Duration::from_micros([200, 2_000, 20_000][rng.below(3) as usize]),
            sync_max: Duration::from_micros([300, 3_000, 15_000][rng.below(3) as usize]),
            warm_share: if rng.chance(0.7) { 0.9 } else { 0.2 },
            skew_max: Duration::from_millis(if is_tight(rng, 0.4) { 4_000 } else { 100 }),
            jump_max: Duration::from_millis(if is_tight(rng, 0.3) { 12_000 } else { 3_000 }),
            lossy_share: 0.01 + 0.1 * rng.unit(),
            faults: scale.faults_min + rng.below(10),
            fault_kinds,
            operations_max: if is_tight(rng, 0.15) { 6 } else { 256 },
            memtable_bytes: [1 << 10, 8 << 10, 32 << 10, 256 << 10][rng.below(4) as usize],
            scans: scale.operations / 100 + rng.below(scale.operations / 50),
            snapshot_age: Duration::from_millis([100, 1_000, 5_000, 20_000][rng.below(4) as usize]),
            pause_share: if rng.chance(0.5) { 0.2 } else { 0.01 },
            page_bytes_max: [256, 1 << 10, 8 << 10, 128 << 10][rng.below(4) as usize],
            one_slow_disk: false,
            flood: None,
            fixed: None,
            dimensions: Dimensions::default(),
        }
    }

    /// Some bugs show only under faults that few runs have: this one has them, and a few hot keys.
    fn expose(&mut self, plant: Plant) {
        use FaultKind::{
            DamageTable, Kill, Partition, Pause, PowerLoss, PowerLossOfAll, SlowDisk, StopAtFileOperation,
        };
        self.fault_kinds = match plant {
            Plant::ReadBeforeSync => vec![SlowDisk, PowerLoss, PowerLossOfAll, StopAtFileOperation],
            Plant::EmptyReplicaServesReads | Plant::RebuildSkipped => return self.expose_rebuilds(),
            Plant::HealingSkipped | Plant::ScrubSkipped => vec![DamageTable, DamageTable, Partition, Kill],
            Plant::RepairSkipped => vec![Kill, PowerLoss, Partition],
            Plant::WriteBackTooSmall => return self.expose_write_backs(),
            Plant::RollbackIgnored => return self.expose_roll_backs(),
            Plant::RebuildTooEarly => return self.expose_early_rebuilds(),
            Plant::PendingRepairForgotten => return self.expose_pending_repairs(),
            Plant::TombstoneDroppedEarly => vec![Kill, Partition, Pause],
            Plant::ExpiryByOwnClock => return self.expose_wrong_clocks(),
            Plant::PullsUnchecked => return self.focus_on(FaultKind::FutureCell),
            Plant::TakeoverSkips => return self.expose_takeovers(),
            Plant::DiskFullAcknowledged | Plant::DiskFullNeverEnds => return self.expose_full_disks(),
            Plant::SlowReplicaAwaited => return self.slow_one_disk(),
            Plant::AdmissionSkipped | Plant::OverloadNeverEnds => return self.flood_disks(),
            _ => return,
        };
        self.nodes = if plant == Plant::ReadBeforeSync { 1 } else { 3 };
        self.default_from = self.nodes;
        self.quorums = QuorumStyle::Majority;
        self.faults = self.faults.max(12);
        self.keys = self.keys.min(12);
        self.ttl_share = 0.0;
        self.memtable_bytes = 1 << 10;
        if plant == Plant::TombstoneDroppedEarly {
            self.delete_share = 0.4;
        } else {
            self.value_bytes_max = 64;
        }
        if plant == Plant::RepairSkipped {
            self.leave_to_repair();
        }
        if plant == Plant::HealingSkipped {
            self.leave_to_damage();
        }
        if plant == Plant::ScrubSkipped {
            self.leave_to_scrubbing();
        }
    }

    /// Room for a hint or two, and keys that are written once and never read, which a read would repair.
    const fn leave_to_repair(&mut self) {
        self.hint_bytes_max = 200;
        self.cold_share = 0.3;
        self.delete_share = 0.0;
    }

    /// Reads that may have to write back to several replicas, and writes that reach few of them.
    fn expose_write_backs(&mut self) {
        self.fault_kinds = vec![FaultKind::Partition];
        self.nodes = 5;
        self.default_from = 5;
        self.quorums = QuorumStyle::AtLeastMajorityWrites;
        self.faults = 2 * self.scale.duration.as_secs();
        self.outage_max = Duration::from_millis(1_500);
        self.keys = 3;
        self.cold_share = 0.0;
        self.read_share = 0.7;
        self.ttl_share = 0.0;
        self.value_bytes_max = 64;
        self.hint_bytes_max = 1;
    }

    /// Directories that go back, and writes that all replicas must have, which one of them shows to lack.
    fn expose_roll_backs(&mut self) {
        self.fault_kinds = vec![FaultKind::Kill];
        self.focus_on(FaultKind::RollBack);
        self.fault_kinds.retain(|kind| *kind == FaultKind::RollBack);
        self.default_from = self.nodes.min(3);
        self.write_to_every_replica();
    }

    /// Disks that are lost, and writes that all replicas must have, which an emptied one shows to lack.
    fn expose_rebuilds(&mut self) {
        self.fault_kinds = vec![FaultKind::LoseDisk];
        self.faults = self.faults.max(12);
        self.nodes = 3;
        self.default_from = 3;
        self.write_to_every_replica();
    }

    /// Writes are stored on every replica, reads ask as few as then suffice, and outages are short.
    fn write_to_every_replica(&mut self) {
        self.quorums = QuorumStyle::EveryReplicaWrites;
        self.outage_max = Duration::from_millis(500);
        self.keys = self.keys.max(20);
        self.ttl_share = 0.0;
        self.value_bytes_max = 64;
    }

    /// Keys that are written or deleted once, and compacted again and again, on nodes whose clocks step past their expiry
    /// and the grace period.
    fn expose_wrong_clocks(&mut self) {
        self.fault_kinds = vec![FaultKind::ClockStep];
        self.focus_on(FaultKind::ClockStep);
        self.faults = self.faults.max(12);
        self.ttl_max = Duration::from_secs(3_600);
        self.ttl_share = 0.5;
        self.cold_share = 0.5;
        self.delete_share = 0.3;
        self.value_bytes_max = 2 << 10;
        self.memtable_bytes = 1 << 10;
        if !self.has_short_grace() {
            self.quorums = QuorumStyle::Any;
        }
    }

    /// A disk that is lost while writes are under way. There is one node more than replicas, so that
    /// the coordinator of the writes is none of them.
    fn expose_early_rebuilds(&mut self) {
        self.fixed = Some(FixedFaults::LoseDiskDuringWrites);
        self.fault_kinds = vec![FaultKind::LoseDisk];
        self.nodes = 4;
        self.default_from = 3;
        self.quorums = QuorumStyle::Majority;
        self.grace = GRACE_LONG;
        self.hint_bytes_max = 64 << 20;
        self.operations_max = 256;
        self.ttl_share = 0.0;
        self.value_bytes_max = 64;
        self.delay_max = Duration::from_millis(2);
        self.sync_max = Duration::from_millis(3);
        self.skew_max = Duration::from_millis(100);
    }

    /// Room for a few hints, and keys that are written once and never read, since a read would repair
    /// them. No operator asks for a repair. The first round of anti-entropy is due only after the
    /// time within which owed repairs must be done.
    fn expose_pending_repairs(&mut self) {
        self.fixed = Some(FixedFaults::StopWithPendingRepairs);
        self.fault_kinds = vec![FaultKind::Partition];
        self.nodes = 3;
        self.default_from = 3;
        self.quorums = QuorumStyle::Majority;
        self.hint_bytes_max = 200;
        self.cold_share = 1.0;
        self.read_share = 0.0;
        self.delete_share = 0.0;
        self.ttl_share = 0.0;
        self.value_bytes_max = 64;
        self.grace = GRACE_LONG;
        self.operations_max = 256;
        self.skew_max = Duration::from_millis(100);
        self.add_dimension(Dimension::UnforcedRepair, &mut Rng::new(self.seed));
        self.grace = GRACE_WITHOUT_ROUND;
    }

    /// No room for hints, so that what one node has lost another may lack, and keys that are seldom written again.
    const fn leave_to_damage(&mut self) {
        self.hint_bytes_max = 200;
        self.keys = 60;
        self.read_share = 0.7;
        self.faults = 30;
    }

    /// Keys that are written once and seldom read, with values in blocks of their own, which the comparison of replicas does
    /// not read.
    const fn leave_to_scrubbing(&mut self) {
        self.scrub_period = Some(SCRUB_PERIOD);
        self.value_bytes_max = 100 << 10;
        self.cold_share = 0.9;
        self.read_share = 0.1;
        self.delete_share = 0.0;
        self.scans = 0;
    }

    /// Long scans in which several nodes are sources, some of which die or stand still meanwhile.
    fn expose_takeovers(&mut self) {
        self.fault_kinds = vec![FaultKind::Kill, FaultKind::Pause, FaultKind::Partition];
        self.nodes = 5;
        self.default_from = 3;
        self.quorums = QuorumStyle::Majority;
        self.faults = self.faults.max(12);
        self.keys = 60;
        self.scans = self.scale.operations / 5;
        self.pause_share = 0.2;
        self.page_bytes_max = 256;
    }

    /// Keys that are written once, on disks that fill again and again.
    fn expose_full_disks(&mut self) {
        self.fault_kinds = vec![FaultKind::FullDisk];
        self.nodes = 1;
        self.default_from = 1;
        self.quorums = QuorumStyle::Majority;
        self.faults = self.faults.max(12);
        self.outage_max = Duration::from_secs(2).min(self.scale.duration / 4);
        self.cold_share = 0.5;
        self.delete_share = 0.0;
        self.ttl_share = 0.0;
        self.grace = GRACE_LONG;
    }

    fn slow_one_disk(&mut self) {
        self.one_slow_disk = true;
        self.fault_kinds = vec![FaultKind::SlowDisk];
        self.nodes = 3;
        self.default_from = 3;
        self.quorums = QuorumStyle::Majority;
        self.ttl_share = 0.0;
        self.value_bytes_max = 256;
        self.memtable_bytes = 256 << 10;
        self.operations_max = 256;
        self.hint_bytes_max = 64 << 20;
        self.grace = GRACE_LONG;
        self.delay_max = Duration::from_millis(2);
        self.sync_max = Duration::from_millis(3);
        self.skew_max = Duration::from_millis(100);
    }

    /// A write brings about 5 KiB to each disk: most values are small, a few are large. In half of the runs one key takes
    /// all of it, reads too.
    fn flood_disks(&mut self) {
        let (nodes, disk_bytes, calm) =
            if self.seed.is_multiple_of(2) { (1, 1 << 20, 100) } else { (3, 2 << 20, 200) };
        // Its reads would take their time of the disk.
        self.scrub_period = None;
        self.flood = Some(FloodLoad { disk_bytes, calm, flood: 2_000, after: 50 });
        self.fault_kinds = Vec::new();
        self.faults = 0;
        self.scans = 0;
        self.nodes = nodes;
        self.coordinators = 1;
        self.default_from = self.nodes;
        self.quorums = QuorumStyle::Majority;
        let has_hot_key = self.seed % 4 >= 2;
        (self.keys, self.cold_share, self.read_share) =
            if has_hot_key { (1, 0.0, 0.3) } else { (60, 0.1, 0.1) };
        self.delete_share = 0.0;
        self.ttl_share = 0.0;
        self.value_bytes_max = 100 << 10;
        self.memtable_bytes = 256 << 10;
        self.operations_max = 4_096;
        self.hint_bytes_max = 64 << 20;
        self.grace = GRACE_LONG;
        self.delay_max = Duration::from_millis(2);
        self.sync_max = Duration::from_millis(3);
        self.warm_share = 0.9;
        self.skew_max = Duration::from_millis(100);
    }

    /// Whether nodes lose what they acknowledged in this run.
    pub fn loses_data(&self) -> bool {
        self.fault_kinds.iter().any(|kind| kind.loses_data())
    }

    /// Whether tombstones are purged within the run.
    pub fn has_short_grace(&self) -> bool {
        self.grace <= GRACE_SHORT
    }

    /// Whether a node that was away for some seconds does not come back with its data.
    pub fn has_short_absences(&self) -> bool {
        self.away_max < GRACE_SHORT
    }

    /// How many answers are a majority of `default_from`.
    pub const fn majority(&self) -> u8 {
        self.default_from / 2 + 1
    }

    /// In runs in which nodes lose data: how many of the `default_from` replicas must hold what is to survive.
    pub fn survives_with(&self) -> Option<u8> {
        let all_are_needed = self.default_from == 3 && self.fault_kinds.contains(&FaultKind::LoseTwoDisks);
        let sets_aside = self.has_short_absences();
        (self.loses_data() || sets_aside)
            .then(|| if all_are_needed { self.default_from } else { self.majority() })
    }
}

fn draw_fault_kinds(rng: &mut Rng, nodes: u8) -> Vec<FaultKind> {
    let density = 0.15 + 0.5 * rng.unit();
    FaultKind::ALL
        .into_iter()
        .filter(|kind| rng.chance(density) && (nodes > 1 || !kind.is_between_nodes()))
        .collect()
}

/// Outages must be short, clocks agree and disks keep what they have.
const fn is_fit_for_short_grace(kind: FaultKind) -> bool {
    !matches!(kind, FaultKind::ClockJump | FaultKind::ClockFreeze | FaultKind::FullDisk | FaultKind::BadReads)
        && !kind.loses_data()
}

fn draw_quorums(rng: &mut Rng, keeps_from: bool) -> QuorumStyle {
    match rng.below(10) {
        0..=4 => QuorumStyle::Majority,
        5..=6 => QuorumStyle::AtLeastMajorityWrites,
        _ if keeps_from => QuorumStyle::AtLeastMajorityWrites,
        _ => QuorumStyle::Any,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_is_within_what_is_promised() {
        for seed in 0..2_000 {
            let scenario = Scenario::draw(seed, Scale::FULL, None);
            assert!(scenario.faults >= 5 && !scenario.fault_kinds.is_empty(), "seed {seed}");
            assert!((1..=scenario.nodes).contains(&scenario.default_from), "seed {seed}");
            assert!(!scenario.loses_data() || scenario.quorums != QuorumStyle::Any, "seed {seed}");
            assert!(!scenario.has_short_grace() || scenario.jump_max < GRACE_SHORT / 4, "seed {seed}");
        }
    }

    #[test]
    fn every_kind_of_fault_is_drawn() {
        for kind in FaultKind::ALL {
            let drawn =
                (0..200).any(|seed| Scenario::draw(seed, Scale::FULL, None).fault_kinds.contains(&kind));
            assert!(drawn, "{kind:?}");
        }
    }
}
