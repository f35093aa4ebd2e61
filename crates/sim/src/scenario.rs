//! The parameters of a run, drawn from its seed. Traits of the world beside faults are in
//! [`Dimension`].
//!
//! **Mechanism.** Swarm testing (Groce et al., "Swarm testing", 2012): a run has some kinds of
//! faults and some sizes, and lacks others. So a bug that one of them would hide shows in a run
//! without it.
//!
//! **Limits.** Each run stays within the promises of veche:
//!
//! - A run that loses data ([`FaultKind::LoseDisk`], [`FaultKind::DamageTable`]) writes with the
//!   default `from` and at least a majority. Only such writes survive the loss of a disk. The next
//!   disk is lost, or table damaged, only when the previous one is rebuilt or healed.
//! - A run with a short grace period has clocks that agree, space for hints, faults that do not
//!   overlap, and outages far shorter than the grace period. Otherwise a replica might miss a
//!   delete. All its commands have the same `from`. Otherwise a node outside of the `from` of a
//!   delete might hold an older cell, and learn of the delete only when the key is read.
//! - A run with *one slow disk at a time* has no other fault. It has the conditions under which
//!   other nodes' writes do not notice the disk: memtables and values that fit, and clocks that
//!   agree.
//! - A run with a *flood* has no fault. Clients ask for somewhat less than the disks bear, then for
//!   far more, then for little.
//! - A run with *fixed faults* ([`FixedFaults`]) has only those. It is for planted bugs that need
//!   several faults within a second.

mod change;
mod dimension;

pub use dimension::{Dimension, Dimensions, LayoutChanges, MemberChanges, NarrowLinks};

use crate::Plant;
use std::time::Duration;
use stdx::Rng;

/// Length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Number of client commands in the safety phase.
    pub operations: u64,
    /// Duration of the safety phase.
    pub duration: Duration,
    /// Least number of faults.
    pub faults_min: u64,
}

impl Scale {
    /// Scale of a full run.
    pub const FULL: Self = Self { operations: 2_000, duration: Duration::from_secs(60), faults_min: 5 };
    /// Scale of a short run, for tests of debug builds.
    pub const SMALL: Self = Self { operations: 400, duration: Duration::from_secs(12), faults_min: 5 };
}

/// Kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// A process is killed; its writes to the disk stay.
    Kill,
    /// A host loses power; unsynced data is lost or torn.
    PowerLoss,
    /// All hosts lose power at once.
    PowerLossOfAll,
    /// A process is killed, or its host loses power, at one of its next file operations.
    StopAtFileOperation,
    /// A process is paused and resumed.
    Pause,
    /// A process drains and ends.
    Drain,
    /// A host loses its disk and gets an empty one.
    LoseDisk,
    /// A bit of a table flips on the disk of a host.
    DamageTable,
    /// The network is partitioned into two sides.
    Partition,
    /// The path from one node to another is cut; the opposite path works.
    OneWayCut,
    /// Packets from one node to another are held, and arrive together at the end.
    Clog,
    /// Connections between two nodes are reset.
    Reset,
    /// A node refuses connections.
    RefuseDials,
    /// Messages are delayed.
    SlowNetwork,
    /// Messages are lost, duplicated and reordered although their connection stays open.
    LossyNetwork,
    /// A disk is slow.
    SlowDisk,
    /// Reads of a disk fail or return flipped bits.
    BadReads,
    /// A write to a disk fails.
    BadWrite,
    /// A disk is full.
    FullDisk,
    /// A wall clock jumps.
    ClockJump,
    /// A wall clock is frozen.
    ClockFreeze,
    /// The wall clock of one node steps by seconds to years, and is set right later.
    ClockStep,
    /// Two hosts lose their disks at once.
    LoseTwoDisks,
    /// A data directory is rolled back to its state in an earlier generation of its node.
    RollBack,
    /// A data directory loses some of its files.
    LoseFiles,
    /// The log of a node that is down is truncated.
    CutLog,
    /// A node is restored from a backup, while the others go on.
    RestoreNode,
    /// All nodes are restored together from backups.
    RestoreCluster,
    /// A second process of a node is started from a copy of its directory, at its address or
    /// another.
    DuplicateMember,
    /// A cell from a clock that is ahead is on two nodes, and a third loses its disk.
    FutureCell,
    /// A process is suspended for longer than deletes are kept.
    Suspend,
    /// A process is down for longer than deletes are kept.
    LongAbsence,
}

impl FaultKind {
    /// Kinds that runs draw independently of each other.
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

    /// Kinds of change: a clock, a directory or a process returns in another state than it had. A
    /// run has at most one of them.
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

    /// Kind of this name: the name of the variant, in lower case with hyphens.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain(Self::CHANGES).find(|kind| kind.name() == name)
    }

    /// Name by which [`FaultKind::named`] finds it.
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

    /// Whether the fault needs a peer.
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

    /// Whether a node loses data that it acknowledged.
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

/// Choice of quorums by clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuorumStyle {
    /// The default: a majority of `default_from`.
    Majority,
    /// Writes with a majority or more of `default_from`, and reads with any `ack`.
    AtLeastMajorityWrites,
    /// Writes with all of `default_from`, and reads with any `ack`.
    EveryReplicaWrites,
    /// Any valid quorum.
    Any,
    /// Half of the commands as [`QuorumStyle::Majority`], the others as [`QuorumStyle::Any`].
    Mixed,
}

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Seed from which everything is drawn.
    pub seed: u64,
    /// Length of the run.
    pub scale: Scale,
    /// Planted bug.
    pub plant: Option<Plant>,
    /// Number of nodes.
    pub nodes: u8,
    /// Number of I/O threads of each node.
    pub coordinators: u8,
    /// Number of replicas of a key if a command does not choose it.
    pub default_from: u8,
    /// Choice of quorums by clients.
    pub quorums: QuorumStyle,
    /// Number of scans.
    pub scans: u64,
    /// Time for which a snapshot is kept for the next page of a scan.
    pub snapshot_age: Duration,
    /// Fraction of pages after which a client pauses.
    pub pause_share: f64,
    /// Greatest size of a page of a store, in bytes.
    pub page_bytes_max: usize,
    /// Number of keys that are used repeatedly.
    pub keys: u64,
    /// Fraction of writes to keys that are used once.
    pub cold_share: f64,
    /// Fraction of reads among all commands.
    pub read_share: f64,
    /// Fraction of deletes among the writes.
    pub delete_share: f64,
    /// Fraction of values that expire.
    pub ttl_share: f64,
    /// Longest time to live.
    pub ttl_max: Duration,
    /// Greatest length of a value, in bytes.
    pub value_bytes_max: u64,
    /// Time within which each node reads all its tables, if it scrubs.
    pub scrub_period: Option<Duration>,
    /// Greatest size of the hints of a node, in bytes.
    pub hint_bytes_max: u64,
    /// Age beyond which a hint is dropped.
    pub hint_age_max: Duration,
    /// Grace period for which dead cells are kept.
    pub grace: Duration,
    /// Longest absence after which a node still returns with its data.
    pub away_max: Duration,
    /// Longest duration of a fault.
    pub outage_max: Duration,
    /// Longest delay of a message without faults.
    pub delay_max: Duration,
    /// Longest sync of a disk without faults.
    pub sync_max: Duration,
    /// Fraction of reads that find their bytes in memory.
    pub warm_share: f64,
    /// Greatest error of a wall clock at the start, in both directions.
    pub skew_max: Duration,
    /// Greatest jump of a wall clock, in both directions.
    pub jump_max: Duration,
    /// Fraction of messages that are lost, of those that are duplicated, and of those that are
    /// delayed, while the network is lossy.
    pub lossy_share: f64,
    /// Kinds of faults of this run; at least one.
    pub fault_kinds: Vec<FaultKind>,
    /// Number of faults.
    pub faults: u64,
    /// Size at which memtables are flushed, in bytes.
    pub memtable_bytes: u64,
    /// Greatest number of commands in flight in a coordinator.
    pub operations_max: u16,
    /// Whether one disk at a time is slow and there is no other fault.
    pub one_slow_disk: bool,
    /// Load of a run in which clients ask for more than the disks bear and there is no fault.
    pub flood: Option<FloodLoad>,
    /// Faults of the safety phase in a fixed order, in place of drawn faults.
    pub fixed: Option<FixedFaults>,
    /// Traits of the world beside faults.
    pub dimensions: Dimensions,
}

/// Rate of the disks and of the clients in a run with a flood. Commands are counted per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloodLoad {
    /// Bytes that a disk writes to its log per second.
    pub disk_bytes: u64,
    /// Commands per second before the flood.
    pub calm: u64,
    /// Commands per second during the flood.
    pub flood: u64,
    /// Commands per second after the flood.
    pub after: u64,
}

/// Faults and commands in a fixed order, defined in `nemesis::fixed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixedFaults {
    /// A node is cut off and the others drop hints for it. Then all nodes stop.
    StopWithPendingRepairs,
    /// A node loses its disk while writes are in flight that only this node has acknowledged.
    LoseDiskDuringWrites,
    /// A voter loses its votes after a decision of which only one other node knows.
    LoseVotesOfVoter,
    /// A proposer restarts while one of the other voters has its record.
    RestartProposer,
}

/// Time within which a scrub round ends, if tables are scrubbed.
const SCRUB_PERIOD: Duration = Duration::from_secs(10);
/// Longest time to live, unless a kind of change chooses another.
const TTL_MAX: Duration = Duration::from_secs(8);
/// Default age limit of hints.
const HINT_AGE_MAX: Duration = Duration::from_secs(3 * 24 * 3600);
/// Grace period longer than any run.
const GRACE_LONG: Duration = Duration::from_secs(10 * 24 * 3600);
/// Grace period that is long compared with the outages of its run, and short compared with the run.
const GRACE_SHORT: Duration = Duration::from_secs(20);
/// Grace period of which a third, the period of anti-entropy, ends after the pending repairs of a
/// run with fixed faults.
const GRACE_WITHOUT_ROUND: Duration = Duration::from_secs(600);

impl Scenario {
    /// Draws the run of a seed. With a planted bug, draws a run in which the bug can show.
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

    /// Draws a run in which half of the faults are of this kind.
    pub fn draw_with_fault(seed: u64, scale: Scale, kind: FaultKind) -> Self {
        let mut scenario = Self::draw_any(seed, scale, None);
        scenario.focus_on(kind);
        scenario
    }

    /// Draws a run in which one disk at a time is slow.
    pub fn draw_slow_disks(seed: u64, scale: Scale) -> Self {
        let mut scenario = Self::draw_any(seed, scale, None);
        scenario.slow_one_disk();
        scenario
    }

    /// Draws a run with a flood.
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
            // Uses no draw, so half of all seeds give the runs that they gave before scrubbing
            // existed.
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

    /// Some bugs show only under faults that few runs have. Gives the run these faults, and a few
    /// hot keys.
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
            Plant::PromiseNotDurable | Plant::AcceptsBelowPromise | Plant::TwoVotersReplaced => {
                return self.expose_layout_changes();
            }
            Plant::LostVotesIgnored => return self.expose_voters(FixedFaults::LoseVotesOfVoter),
            Plant::BallotReused => return self.expose_voters(FixedFaults::RestartProposer),
            Plant::CopyLeftOut | Plant::CopyStatedEarly => return self.expose_plans(),
            Plant::EarlierCopyStated
            | Plant::RemovedNodeServes
            | Plant::RemovalHidden
            | Plant::JoiningIdForgotten
            | Plant::AddressOfFormerNode => return self.expose_members(),
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

    /// Space for a hint or two, and keys that are written once and never read, since a read would
    /// repair them.
    const fn leave_to_repair(&mut self) {
        self.hint_bytes_max = 200;
        self.cold_share = 0.3;
        self.delete_share = 0.0;
    }

    /// Reads that may have to write back to several replicas, and writes that reach few replicas.
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

    /// Directories that are rolled back, and writes to all replicas, whose loss one replica can
    /// show.
    fn expose_roll_backs(&mut self) {
        self.fault_kinds = vec![FaultKind::Kill];
        self.focus_on(FaultKind::RollBack);
        self.fault_kinds.retain(|kind| *kind == FaultKind::RollBack);
        self.default_from = self.nodes.min(3);
        self.write_to_every_replica();
    }

    /// Lost disks, and writes to all replicas, whose loss an emptied replica can show.
    fn expose_rebuilds(&mut self) {
        self.fault_kinds = vec![FaultKind::LoseDisk];
        self.faults = self.faults.max(12);
        self.nodes = 3;
        self.default_from = 3;
        self.write_to_every_replica();
    }

    /// Writes go to every replica, reads ask as few replicas as then suffice, and outages are
    /// short.
    fn write_to_every_replica(&mut self) {
        self.quorums = QuorumStyle::EveryReplicaWrites;
        self.outage_max = Duration::from_millis(500);
        self.keys = self.keys.max(20);
        self.ttl_share = 0.0;
        self.value_bytes_max = 64;
    }

    /// Keys that are written or deleted once and compacted repeatedly, on nodes whose clocks step
    /// past their expiry and the grace period.
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

    /// A disk that is lost while writes are in flight. There is one node more than replicas, so
    /// that the coordinator of the writes is no replica.
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

    /// Space for a few hints, and keys that are written once and never read, since a read would
    /// repair them. No operator requests a repair. The first round of anti-entropy is due only
    /// after the time within which pending repairs must be done.
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

    /// Several nodes that are asked for changes of the layout at the same time.
    fn expose_layout_changes(&mut self) {
        self.nodes = self.nodes.max(3);
        self.default_from = self.nodes.min(3);
        self.add_dimension(Dimension::LayoutChanges, &mut Rng::new(self.seed));
        self.dimensions.ask_together();
    }

    /// Many plans, and replicas that stay behind: a cell that a gainer lacks is not written again.
    fn expose_plans(&mut self) {
        self.nodes = 5;
        self.default_from = 3;
        self.quorums = QuorumStyle::Majority;
        self.add_dimension(Dimension::PlannedChanges, &mut Rng::new(self.seed));
        self.dimensions.plan_often();
    }

    /// Many plans that members join, leave and replace each other by, and a fault now and then that
    /// keeps a node from learning of its removal.
    fn expose_members(&mut self) {
        self.fault_kinds = vec![FaultKind::Kill, FaultKind::PowerLoss, FaultKind::Partition];
        self.nodes = 4;
        self.default_from = 3;
        self.quorums = QuorumStyle::Majority;
        self.outage_max = Duration::from_millis(1_500);
        self.ttl_share = 0.0;
        self.grace = GRACE_LONG;
        self.hint_bytes_max = 64 << 20;
        self.value_bytes_max = 64;
        self.skew_max = Duration::from_millis(100);
        self.add_dimension(Dimension::PlannedChanges, &mut Rng::new(self.seed));
        self.dimensions.plan_often();
    }

    /// Three voters, and faults in the moment of a decision. No client sends commands.
    fn expose_voters(&mut self, fixed: FixedFaults) {
        self.fixed = Some(fixed);
        self.fault_kinds = vec![FaultKind::LoseDisk];
        self.nodes = 3;
        self.default_from = 3;
        self.quorums = QuorumStyle::Majority;
        self.grace = GRACE_LONG;
        self.delay_max = Duration::from_millis(2);
        self.sync_max = Duration::from_millis(3);
        self.skew_max = Duration::from_millis(100);
    }

    /// No space for hints, so that data lost by one node may be missing on another, and keys that
    /// are seldom written again.
    const fn leave_to_damage(&mut self) {
        self.hint_bytes_max = 200;
        self.keys = 60;
        self.read_share = 0.7;
        self.faults = 30;
    }

    /// Keys that are written once and seldom read, with values in blocks of their own. The
    /// comparison of replicas does not read these blocks.
    const fn leave_to_scrubbing(&mut self) {
        self.scrub_period = Some(SCRUB_PERIOD);
        self.value_bytes_max = 100 << 10;
        self.cold_share = 0.9;
        self.read_share = 0.1;
        self.delete_share = 0.0;
        self.scans = 0;
    }

    /// Long scans with several sources, some of which are killed or paused meanwhile.
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

    /// Keys that are written once, on disks that fill repeatedly.
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

    /// A write puts about 5 KiB on each disk: most values are small, a few are large. In half of
    /// the runs one key gets all commands, reads too. Draws from a generator of its own: a sweep
    /// runs floods of every tenth seed only, so the seed's digits would exclude some runs.
    fn flood_disks(&mut self) {
        let rng = &mut Rng::new(self.seed ^ 0x666c_6f6f_6473);
        let (is_cluster, has_hot_key) = (rng.chance(0.5), rng.chance(0.5));
        let (nodes, disk_bytes, calm) = if is_cluster { (3, 2 << 20, 200) } else { (1, 1 << 20, 100) };
        // The reads of scrubbing would take disk time.
        self.scrub_period = None;
        self.flood = Some(FloodLoad { disk_bytes, calm, flood: 2_000, after: 50 });
        self.fault_kinds = Vec::new();
        self.faults = 0;
        self.scans = 0;
        self.nodes = nodes;
        self.coordinators = 1;
        self.default_from = self.nodes;
        self.quorums = QuorumStyle::Majority;
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

    /// Whether nodes lose acknowledged data in this run.
    pub fn loses_data(&self) -> bool {
        self.fault_kinds.iter().any(|kind| kind.loses_data())
    }

    /// Whether tombstones are purged within the run.
    pub fn has_short_grace(&self) -> bool {
        self.grace <= GRACE_SHORT
    }

    /// Whether a node that was absent for some seconds does not return with its data.
    pub fn has_short_absences(&self) -> bool {
        self.away_max < GRACE_SHORT
    }

    /// Number of answers that are a majority of `default_from`.
    pub const fn majority(&self) -> u8 {
        cluster::majority(self.default_from as u32) as u8
    }

    /// Number of the `default_from` replicas that must hold a write for it to survive, in runs in
    /// which nodes lose data.
    pub fn survives_with(&self) -> Option<u8> {
        let all_are_needed = self.default_from == 3 && self.fault_kinds.contains(&FaultKind::LoseTwoDisks);
        let has_deaths = self.dimensions.member_changes().is_some_and(|changes| changes.has_deaths);
        let sets_aside = self.has_short_absences();
        (self.loses_data() || sets_aside || has_deaths)
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

/// Whether the kind keeps outages short, clocks in agreement, and data on the disks.
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
    fn every_scenario_is_within_the_promises() {
        for seed in 0..2_000 {
            let scenario = Scenario::draw(seed, Scale::FULL, None);
            assert!(scenario.faults >= 5 && !scenario.fault_kinds.is_empty(), "seed {seed}");
            assert!((1..=scenario.nodes).contains(&scenario.default_from), "seed {seed}");
            assert!(!scenario.loses_data() || scenario.quorums != QuorumStyle::Any, "seed {seed}");
            assert!(!scenario.has_short_grace() || scenario.jump_max < GRACE_SHORT / 4, "seed {seed}");
        }
    }

    #[test]
    fn a_sweep_draws_floods_of_one_key_and_of_many_on_one_node_and_on_three() {
        let floods = || (0..40).map(|tens| Scenario::draw_flood(tens * 10, Scale::FULL));
        for nodes in [1, 3] {
            for has_hot_key in [false, true] {
                let drawn = floods().any(|flood| (flood.nodes, flood.keys == 1) == (nodes, has_hot_key));
                assert!(drawn, "{nodes} nodes, hot key: {has_hot_key}");
            }
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
