//! Dimensions of the world: traits of a run beside its faults.
//!
//! **Mechanism.** As with faults, a run has some dimensions and lacks others. They are drawn from a
//! generator of their own. So a run without any of them is the run that its seed has always given.
//! Runs for a planted bug, for slow disks and for floods have none, unless one is requested.
//!
//! **Limits.** A run stays within the promises of veche:
//!
//! - [`Dimension::MixedQuorums`] needs a grace period longer than the run: a node outside of the
//!   `from` of a delete may hold an older cell. In a run that loses data the invariants judge only
//!   writes that survive the loss of a disk. There no write has a smaller `from` than the default:
//!   see [`Dimension::SmallerWrites`].
//! - [`Dimension::MixedDefaults`] needs disks that keep their data: a rebuild counts majorities of
//!   the node's own default.
//! - [`Dimension::NarrowLinks`] has no lossy network: its connections are byte streams, and a
//!   stream that lost bytes cannot continue.
//! - A run with a kind of change ([`FaultKind::CHANGES`]) chooses its quorums and times itself. So
//!   it has none of `MixedQuorums`, `SmallerWrites`, `MixedDefaults`, [`Dimension::HeavyLoad`] and
//!   [`Dimension::UnforcedRepair`].
//! - [`Dimension::OldRelease`] cuts a node off once a layout record later than the first one is
//!   decided. So it has neither a short grace period nor a kind of change.
//! - [`Dimension::EmptiedAtFirst`] needs nodes that build the same first record and take part in
//!   the agreement, so neither `MixedDefaults` nor `OldRelease`. Its nodes are not settled for some
//!   seconds, in which their alive marks do not advance, so it has no short absences either.
//! - [`Dimension::UnforcedRepair`] shortens a long grace period, since anti-entropy runs every
//!   third of it. The grace period is still longer than the run.
//! - [`Dimension::PlannedChanges`] has hosts that join and members that leave, unless the run has
//!   a kind of change, different defaults or an older release. See [`MemberChanges`].

use super::{FaultKind, GRACE_LONG, QuorumStyle, Scenario};
use crate::history::CommandKind;
use std::collections::BTreeSet;
use std::time::Duration;
use stdx::Rng;

/// A trait of the world of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dimension {
    /// Clients choose `ack` and `from` anew for each command, also for the same key.
    MixedQuorums,
    /// As [`Dimension::MixedQuorums`], and in a run that loses data a write may have a smaller
    /// `from` than the default.
    ///
    /// It is not drawn. A rebuild takes no cell with a smaller `from`. So a node may lack a key
    /// whose cell on the lost disk was superseded by such a cell.
    SmallerWrites,
    /// The nodes of the cluster have different values of `default_from`.
    MixedDefaults,
    /// The events that a paused process missed arrive in another order than the one in which they
    /// happened.
    ShuffledResume,
    /// Connections have a bounded rate, a send buffer, and an outbox that may be full. Long
    /// messages travel in fragments.
    NarrowLinks,
    /// A few values are about a megabyte long or longer.
    LargeValues,
    /// Writes reach the store some time after the step that made them, sometimes after their
    /// deadline.
    BusyThreads,
    /// Ten times as many commands per second.
    HeavyLoad,
    /// At the end of the run no operator requests a repair: nodes converge by their own schedule.
    UnforcedRepair,
    /// Operators propose changes of the layout, often several at the same time.
    LayoutChanges,
    /// One node runs a release without the agreement on layout records, up to the heal phase.
    OldRelease,
    /// One node starts late, and some of the others lose their directories before: the cluster has
    /// not named its ids yet.
    EmptiedAtFirst,
    /// Operators have data move between the members, and change the members.
    PlannedChanges,
}

impl Dimension {
    /// All dimensions.
    pub const ALL: [Self; 13] = [
        Self::MixedQuorums,
        Self::SmallerWrites,
        Self::MixedDefaults,
        Self::ShuffledResume,
        Self::NarrowLinks,
        Self::LargeValues,
        Self::BusyThreads,
        Self::HeavyLoad,
        Self::UnforcedRepair,
        Self::LayoutChanges,
        Self::OldRelease,
        Self::EmptiedAtFirst,
        Self::PlannedChanges,
    ];

    /// Dimensions that are drawn, each with the fraction of runs that have it. The others are
    /// reached only with [`Scenario::with_dimension`].
    const DRAWN: [(Self, f64); 12] = [
        (Self::MixedQuorums, 0.25),
        (Self::MixedDefaults, 0.25),
        (Self::ShuffledResume, 0.5),
        (Self::NarrowLinks, 0.15),
        (Self::LargeValues, 0.1),
        (Self::BusyThreads, 0.2),
        (Self::HeavyLoad, 0.06),
        (Self::UnforcedRepair, 0.5),
        (Self::LayoutChanges, 0.5),
        (Self::OldRelease, 0.08),
        (Self::EmptiedAtFirst, 0.08),
        (Self::PlannedChanges, 0.5),
    ];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MixedQuorums => "mixed-quorums",
            Self::SmallerWrites => "smaller-writes",
            Self::MixedDefaults => "mixed-defaults",
            Self::ShuffledResume => "shuffled-resume",
            Self::NarrowLinks => "narrow-links",
            Self::LargeValues => "large-values",
            Self::BusyThreads => "busy-threads",
            Self::HeavyLoad => "heavy-load",
            Self::UnforcedRepair => "unforced-repair",
            Self::LayoutChanges => "layout-changes",
            Self::OldRelease => "old-release",
            Self::EmptiedAtFirst => "emptied-at-first",
            Self::PlannedChanges => "planned-changes",
        }
    }

    /// Dimension of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dimension| dimension.name() == name)
    }
}

/// Rate and buffers of each direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NarrowLinks {
    /// Bytes per second that a connection carries.
    pub bytes_per_second: u64,
    /// Bytes that the system takes from a process before they are transmitted.
    pub send_buffer_bytes: usize,
    /// Greatest size of the messages that wait for space in the send buffer, in bytes.
    pub outbox_bytes: usize,
}

/// Changes of the layout that operators propose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutChanges {
    /// Number of times at which they do so.
    pub times: u64,
    /// Most nodes that are asked at the same time.
    pub together_max: u64,
}

/// Hosts that join a cluster and leave it, within the limits of the promises:
///
/// - A key that was written with `from` of all members loses a replica when a member is removed,
///   and the next member takes its place without a copy. So commands have a smaller `from` than
///   the cluster has members whenever one is removed: at most `members_min`.
/// - A host that joined may be of another list than the cluster. Then a lost disk of it is replaced
///   by hand. So only the first members lose disks, and in a run that loses data they do not leave.
/// - After a member is declared dead, only writes and reads with a majority of the default `from`
///   keep their promises. All commands of such a run have that quorum, and no disk is lost. One
///   member at a time is dead, and more than half of three voters or more are alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberChanges {
    /// Number of hosts that are no members at first.
    pub joiners: u8,
    /// Least number of members that hold data.
    pub members_min: u8,
    /// Whether members of the first record may be removed.
    pub first_members_leave: bool,
    /// Whether members are declared dead.
    pub has_deaths: bool,
}

/// The dimensions of a run, with their parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dimensions {
    all: BTreeSet<Dimension>,
    /// Default `from` of each node, if nodes differ.
    default_froms: Vec<u8>,
    narrow_links: Option<NarrowLinks>,
    layout_changes: Option<LayoutChanges>,
    /// Number of commands on plans.
    plan_commands: u64,
    /// Changes of the members.
    member_changes: Option<MemberChanges>,
    /// The node of an older release.
    old_node: Option<u8>,
    /// The node that starts after others were emptied.
    late_node: Option<u8>,
}

/// Grace period longer than a run, and short enough to wait for a third of it.
const GRACE_UNFORCED: Duration = Duration::from_secs(240);
/// Factor by which a run under heavy load is shorter. It has twice the commands.
const LOAD_SHORTER: u32 = 5;

impl Dimensions {
    /// Whether the run has this dimension.
    pub fn has(&self, dimension: Dimension) -> bool {
        self.all.contains(&dimension)
    }

    /// Rate and buffers of connections, if they are bounded.
    pub const fn narrow_links(&self) -> Option<NarrowLinks> {
        self.narrow_links
    }

    /// Changes of the layout that operators propose.
    pub const fn layout_changes(&self) -> Option<LayoutChanges> {
        self.layout_changes
    }

    /// Number of commands that operators give to begin, pause and cancel plans.
    pub const fn plan_commands(&self) -> u64 {
        self.plan_commands
    }

    /// Changes of the members, if the run has any.
    pub const fn member_changes(&self) -> Option<MemberChanges> {
        self.member_changes
    }

    /// Lets operators ask several nodes at the same time, and often.
    pub(super) const fn ask_together(&mut self) {
        self.layout_changes = Some(LayoutChanges { times: 60, together_max: 4 });
    }

    /// Lets operators give many commands on plans.
    pub(super) const fn plan_often(&mut self) {
        self.plan_commands = 40;
    }

    /// Index of the node that starts after others have lost their directories.
    pub const fn late_node(&self) -> Option<u8> {
        self.late_node
    }

    /// Index of the node that runs an older release up to the heal phase.
    pub const fn old_node(&self) -> Option<u8> {
        self.old_node
    }
}

impl Scenario {
    /// Returns the same run with this dimension, if the run allows it.
    #[must_use]
    pub fn with_dimension(mut self, dimension: Dimension) -> Self {
        let mut rng = Rng::new(self.seed ^ (0x7769_7468 + dimension as u64));
        self.add_dimension(dimension, &mut rng);
        self
    }

    /// Number of replicas of a key if a command to this node does not choose it.
    pub fn default_from_of(&self, node: usize) -> u8 {
        self.dimensions.default_froms.get(node).copied().unwrap_or(self.default_from)
    }

    /// Least `from` that a client chooses for a command of this kind.
    pub fn from_min(&self, kind: CommandKind) -> u8 {
        let has_all = kind == CommandKind::Get || !self.loses_data();
        if has_all || self.dimensions.has(Dimension::SmallerWrites) { 1 } else { self.default_from }
    }

    /// Whether nodes converge without a requested repair.
    pub fn repairs_unforced(&self) -> bool {
        self.dimensions.has(Dimension::UnforcedRepair)
    }

    pub(super) fn draw_dimensions(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x776f_726c_6400);
        for (dimension, share) in Dimension::DRAWN {
            let is_drawn = rng.chance(share);
            let mut own = rng.fork();
            if is_drawn {
                self.add_dimension(dimension, &mut own);
            }
        }
    }

    pub(super) fn add_dimension(&mut self, dimension: Dimension, rng: &mut Rng) {
        if !self.allows(dimension) {
            return;
        }
        match dimension {
            Dimension::MixedQuorums | Dimension::SmallerWrites => self.quorums = QuorumStyle::Mixed,
            Dimension::MixedDefaults => {
                let mut draw = |_| 1 + rng.below(u64::from(self.nodes)) as u8;
                self.dimensions.default_froms = (0..self.nodes).map(&mut draw).collect();
            }
            Dimension::NarrowLinks => {
                self.fault_kinds.retain(|kind| *kind != FaultKind::LossyNetwork);
                if self.fault_kinds.is_empty() {
                    self.fault_kinds.push(FaultKind::Kill);
                }
                self.dimensions.narrow_links = Some(NarrowLinks {
                    bytes_per_second: [64 << 10, 512 << 10, 4 << 20][rng.below(3) as usize],
                    send_buffer_bytes: [16 << 10, 64 << 10, 256 << 10][rng.below(3) as usize],
                    outbox_bytes: [32 << 10, 256 << 10, 4 << 20][rng.below(3) as usize],
                });
            }
            Dimension::HeavyLoad => {
                self.scale.operations *= 2;
                self.scale.duration /= LOAD_SHORTER;
                self.outage_max = self.outage_max.min(self.scale.duration / 4);
            }
            Dimension::LayoutChanges => {
                self.dimensions.layout_changes = Some(LayoutChanges {
                    times: [5, 30, 100][rng.below(3) as usize],
                    together_max: 1 + rng.below(4),
                });
            }
            Dimension::PlannedChanges => {
                self.dimensions.plan_commands = [4, 12, 40][rng.below(3) as usize];
                self.draw_member_changes();
            }
            Dimension::OldRelease => {
                self.dimensions.old_node = Some(rng.below(u64::from(self.nodes)) as u8);
            }
            Dimension::EmptiedAtFirst => {
                self.dimensions.late_node = Some(rng.below(u64::from(self.nodes)) as u8);
            }
            Dimension::UnforcedRepair if self.grace == GRACE_LONG => self.grace = GRACE_UNFORCED,
            Dimension::UnforcedRepair
            | Dimension::ShuffledResume
            | Dimension::LargeValues
            | Dimension::BusyThreads => {}
        }
        self.dimensions.all.insert(dimension);
    }

    /// Draws the changes of the members. Uses a generator of its own, so that other parts of the
    /// run keep their draws.
    pub(super) fn draw_member_changes(&mut self) {
        let rng = &mut Rng::new(self.seed ^ 0x6a6f_696e_6572);
        let excluded = [Dimension::MixedDefaults, Dimension::OldRelease];
        let is_alike = !excluded.iter().any(|it| self.dimensions.has(*it));
        if !is_alike || self.has_change() || self.fixed.is_some() {
            return;
        }
        let loses_data = self.loses_data();
        let has_mixed_quorums = self.quorums == QuorumStyle::Mixed;
        let may_have_deaths = self.nodes >= 3 && self.default_from >= 2 && !loses_data && !has_mixed_quorums;
        let spared = if rng.chance(0.5) { 2 } else { self.nodes };
        let members_min = self.nodes.saturating_sub(spared).max(self.default_from).max(2);
        let changes = MemberChanges {
            joiners: 1 + rng.below(3) as u8,
            members_min,
            first_members_leave: !loses_data,
            has_deaths: rng.chance(0.5) && may_have_deaths,
        };
        if changes.has_deaths {
            self.quorums = QuorumStyle::Majority;
        }
        self.dimensions.member_changes = Some(changes);
    }

    /// Number of hosts that are members, or may become members.
    pub fn hosts(&self) -> u8 {
        self.nodes + self.dimensions.member_changes.map_or(0, |changes| changes.joiners)
    }

    /// Greatest `from` of the commands of clients.
    pub fn from_max(&self) -> u8 {
        self.dimensions.member_changes.map_or(self.nodes, |changes| changes.members_min.min(self.nodes))
    }

    fn has_change(&self) -> bool {
        FaultKind::CHANGES.iter().any(|kind| self.fault_kinds.contains(kind))
    }

    fn allows(&self, dimension: Dimension) -> bool {
        match dimension {
            _ if self.flood.is_some() || self.one_slow_disk || self.dimensions.has(dimension) => false,
            Dimension::MixedQuorums | Dimension::SmallerWrites => {
                let has_deaths = self.dimensions.member_changes.is_some_and(|changes| changes.has_deaths);
                self.nodes > 1 && !has_deaths && !self.has_short_grace() && !self.has_change()
            }
            Dimension::MixedDefaults => {
                let is_alike = self.dimensions.has(Dimension::EmptiedAtFirst);
                self.nodes > 1
                    && !is_alike
                    && self.dimensions.member_changes.is_none()
                    && !self.has_short_grace()
                    && !self.has_change()
                    && !self.loses_data()
            }
            Dimension::NarrowLinks | Dimension::PlannedChanges => self.nodes > 1,
            Dimension::OldRelease => {
                let is_alike = self.dimensions.has(Dimension::EmptiedAtFirst);
                let is_alike = is_alike || self.dimensions.member_changes.is_some();
                self.nodes > 1 && !is_alike && !self.has_short_grace() && !self.has_change()
            }
            Dimension::EmptiedAtFirst => {
                let excluded = [Dimension::MixedDefaults, Dimension::OldRelease];
                self.nodes > 1
                    && self.fixed.is_none()
                    && !self.has_short_absences()
                    && !excluded.iter().any(|it| self.dimensions.has(*it))
            }
            Dimension::HeavyLoad | Dimension::UnforcedRepair => !self.has_change(),
            Dimension::ShuffledResume
            | Dimension::LargeValues
            | Dimension::BusyThreads
            | Dimension::LayoutChanges => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Scale;
    use super::*;

    #[test]
    fn every_dimension_is_drawn_and_has_a_name_of_its_own() {
        for dimension in Dimension::ALL {
            assert_eq!(Dimension::named(dimension.name()), Some(dimension));
        }
        for (dimension, _) in Dimension::DRAWN {
            let has = |seed| Scenario::draw(seed, Scale::FULL, None).dimensions.has(dimension);
            assert!((0..300).any(has) && !(0..300).all(has), "{dimension:?}");
        }
    }

    #[test]
    fn every_run_with_a_dimension_is_within_the_promises() {
        for dimension in Dimension::ALL {
            for seed in 0..300 {
                let scenario = Scenario::draw(seed, Scale::FULL, None).with_dimension(dimension);
                let has = |dimension| scenario.dimensions.has(dimension);
                assert!(!scenario.fault_kinds.is_empty(), "{dimension:?}, seed {seed}");
                assert!(!has(Dimension::MixedQuorums) || !scenario.has_short_grace(), "seed {seed}");
                assert!(!has(Dimension::MixedDefaults) || !scenario.loses_data(), "seed {seed}");
                let is_lossy = scenario.fault_kinds.contains(&FaultKind::LossyNetwork);
                assert!(!has(Dimension::NarrowLinks) || !is_lossy, "seed {seed}");
                assert!(scenario.outage_max <= scenario.scale.duration / 4, "seed {seed}");
            }
        }
    }
}
