//! Explanations of a plan: why its result may surprise.

use super::super::{LayoutMember, LayoutRecord, MemberState, NODES_MAX, NodeIndex, NodeSet, PartitionId};
use super::PlacementPlan;
use super::holders::counts;
use super::quotas::{PARTITION, WeightShares};
use super::spread::{SpreadZone, ZoneSpread};
use std::collections::BTreeMap;
use std::fmt;

/// An explanation of a result that may surprise. Its text is one sentence or two.
#[derive(Clone, Debug, PartialEq)]
pub enum PlacementNote {
    /// A zone holds less than its members have by weight.
    ZoneFull {
        /// The zone.
        zone: String,
        /// Number of members in it.
        members: u8,
        /// Most copies of a partition in the zone.
        most: u8,
        /// Number of copies of a partition.
        copies: u8,
        /// Fraction of all data that the zone holds.
        share: f64,
        /// Fraction of all data by weight.
        by_weight: f64,
    },
    /// A zone holds more than its members have by weight.
    ZoneShort {
        /// The zone, or the URL of its only member.
        zone: String,
        /// Least copies of a partition in the zone.
        least: u8,
        /// Number of copies of a partition.
        copies: u8,
        /// Fraction of all data that the zone holds.
        share: f64,
        /// Fraction of all data by weight.
        by_weight: f64,
    },
    /// A member holds a copy of every partition, and less than it has by weight.
    MemberFull {
        /// URL of the member.
        url: String,
        /// Fraction of all data that it holds.
        share: f64,
        /// Fraction of all data by weight.
        by_weight: f64,
    },
    /// There are fewer zones than copies.
    FewZones {
        /// Number of zones.
        zones: usize,
        /// Number of copies of a partition.
        copies: u8,
        /// Most copies of a partition in one zone.
        most: u8,
    },
    /// Some members have a zone, and others have none.
    WithoutZone {
        /// Number of members without a zone.
        members: usize,
    },
    /// Members of equal weight differ by one partition.
    Rounded {
        /// Least number of partitions of these members.
        least: u32,
        /// Greatest number of partitions.
        most: u32,
    },
    /// A member holds nothing after the plan, because of its weight.
    NoShare {
        /// URL of the member.
        url: String,
    },
    /// A member that joins is not part of the request.
    NotAdded {
        /// URL of the member.
        url: String,
    },
    /// A node of the request is not a member yet.
    HasToJoin {
        /// URL of the node.
        url: String,
    },
    /// All holders of some partitions are dead.
    DataLost {
        /// Number of these partitions.
        partitions: u32,
    },
}

impl fmt::Display for PlacementNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |fraction: &f64| format!("{:.1} %", fraction * 100.0);
        match self {
            Self::ZoneFull { zone, members, most, copies, share, by_weight } => write!(
                f,
                "the {members} nodes of zone {zone} share {} of the data, and not {} as by weight: at most \
                 {most} of {copies} copies may be in one zone",
                percent(share),
                percent(by_weight)
            ),
            Self::ZoneShort { zone, least, copies, share, by_weight } => write!(
                f,
                "{zone} holds {} of the data, and not {} as by weight: at least {least} of {copies} copies \
                 are there, so that no zone has two more than another",
                percent(share),
                percent(by_weight)
            ),
            Self::MemberFull { url, share, by_weight } => write!(
                f,
                "{url} holds {} of the data, and not {} as by weight: it has a copy of every partition \
                 already",
                percent(share),
                percent(by_weight)
            ),
            Self::FewZones { zones, copies, most } => write!(
                f,
                "there are {zones} zones for {copies} copies, so up to {most} copies of a key are in one zone"
            ),
            Self::WithoutZone { members } => {
                write!(f, "nodes without a zone: {members}; each counts as a zone of its own")
            }
            Self::Rounded { least, most } => {
                write!(f, "partitions are whole: nodes of equal weight hold {least} or {most}")
            }
            Self::NoShare { url } => write!(
                f,
                "{url} holds nothing: by its weight it has less than one partition; raise its weight, or \
                 lower the others"
            ),
            Self::NotAdded { url } => {
                write!(f, "{url} has joined and holds nothing: `--add {url}` gives it its share")
            }
            Self::HasToJoin { url } => {
                write!(f, "{url} is not a member yet: it has to join before the change")
            }
            Self::DataLost { partitions } => {
                write!(f, "all holders of {partitions} partitions are dead: their data is lost")
            }
        }
    }
}

/// The facts that explain a plan.
pub(super) struct Explanation<'a> {
    pub(super) plan: &'a PlacementPlan,
    pub(super) record: &'a LayoutRecord,
}

impl Explanation<'_> {
    pub(super) fn notes(&self) -> Vec<PlacementNote> {
        let members = &self.plan.members;
        let active = members.iter().filter(|member| member.state == MemberState::Active);
        let placed: NodeSet = active.map(|member| member.slot).collect();
        let spread = ZoneSpread::new(members, placed, usize::from(self.record.default_from));
        let mut notes = self.zone_notes(&spread, placed);
        notes.extend(self.zones_at_limits(&spread));
        notes.extend(self.rounded(&spread));
        notes.extend(self.without_data(placed));
        notes.extend(self.lost());
        notes
    }

    fn url(&self, slot: NodeIndex) -> String {
        let member = self.plan.members.iter().find(|member| member.slot == slot);
        member.map(|member| member.url.clone()).unwrap_or_default()
    }

    fn zone_name(&self, zone: &SpreadZone) -> String {
        let first = zone.members.iter().next();
        let member = self.plan.members.iter().find(|member| Some(member.slot) == first);
        member.map(|member| member.zone.clone()).unwrap_or_default()
    }

    fn held(&self) -> [u32; NODES_MAX] {
        let from = usize::from(self.record.default_from);
        counts(self.plan.lists.chunks_exact(self.plan.members.len()).flat_map(|list| &list[..from]).copied())
    }

    fn zone_notes(&self, spread: &ZoneSpread, placed: NodeSet) -> Vec<PlacementNote> {
        let copies = self.record.default_from;
        let has_zone = |slot: &NodeIndex| {
            self.plan.members.iter().any(|member| member.slot == *slot && !member.zone.is_empty())
        };
        let with_zone = placed.iter().filter(has_zone).count();
        let without = usize::from(placed.len()) - with_zone;
        let zones = spread.zones.len();
        let most = spread.zones.iter().map(|zone| zone.most).max().unwrap_or_default();
        let few = (zones < usize::from(copies)).then_some(PlacementNote::FewZones { zones, copies, most });
        let mixed = (with_zone > 0 && without > 0).then_some(PlacementNote::WithoutZone { members: without });
        few.into_iter().chain(mixed).collect()
    }

    /// Zones and members whose share differs from their weight by more than rounding.
    fn zones_at_limits(&self, spread: &ZoneSpread) -> Vec<PlacementNote> {
        let copies = self.record.default_from;
        let shares =
            WeightShares::new(&self.plan.members, spread, self.record.partitions(), usize::from(copies));
        let all = shares.all_partitions();
        let total = (all * u128::from(copies)) as f64;
        let weight = |members: NodeSet| -> f64 {
            let is_in = |member: &&LayoutMember| members.contains(member.slot);
            self.plan.members.iter().filter(is_in).map(|member| f64::from(member.weight)).sum()
        };
        let everyone = spread.zones.iter().fold(NodeSet::EMPTY, |all, zone| all.union(zone.members));
        let held = self.held();
        let mut notes = Vec::new();
        for (zone, zone_share) in spread.zones.iter().zip(shares.of_zones()) {
            let by_weight = weight(zone.members) / weight(everyone);
            let share = zone_share as f64 / total;
            let is_at = |copies: u8| zone_share == all * u128::from(copies);
            let (members, SpreadZone { least, most, .. }) = (zone.members.len(), *zone);
            let differs = (share - by_weight).abs() * total > PARTITION as f64;
            if differs && is_at(most) && most < members && share < by_weight {
                let zone = self.zone_name(zone);
                notes.push(PlacementNote::ZoneFull { zone, members, most, copies, share, by_weight });
            } else if differs && is_at(least) && share > by_weight {
                let zone = match self.zone_name(zone) {
                    name if name.is_empty() => zone.members.iter().map(|slot| self.url(slot)).collect(),
                    name => format!("zone {name}"),
                };
                notes.push(PlacementNote::ZoneShort { zone, least, copies, share, by_weight });
            }
            for slot in zone.members.iter() {
                let by_weight = weight(NodeSet::from_iter([slot])) / weight(everyone);
                let share = all as f64 / total;
                if held[slot.as_usize()] == self.record.partitions()
                    && (by_weight - share) * total > PARTITION as f64
                {
                    notes.push(PlacementNote::MemberFull { url: self.url(slot), share, by_weight });
                }
            }
        }
        notes
    }

    /// The first members of one zone and weight that differ.
    fn rounded(&self, spread: &ZoneSpread) -> Option<PlacementNote> {
        let held = self.held();
        let mut groups: BTreeMap<(usize, u16), (u32, u32)> = BTreeMap::new();
        let has_zones = spread.zones.iter().any(|zone| zone.members.len() > 1);
        for member in self.plan.members.iter().filter(|member| member.state == MemberState::Active) {
            let zone = if has_zones { spread.zone_index(member.slot) } else { 0 };
            let count = held[member.slot.as_usize()];
            let (least, most) = groups.entry((zone, member.weight)).or_insert((count, count));
            (*least, *most) = (count.min(*least), count.max(*most));
        }
        let (least, most) = groups.into_values().find(|(least, most)| least < most)?;
        Some(PlacementNote::Rounded { least, most })
    }

    fn without_data(&self, placed: NodeSet) -> Vec<PlacementNote> {
        let held = self.held();
        let appended: NodeSet = self.plan.appended.iter().map(|member| member.slot).collect();
        let mut notes = Vec::new();
        for LayoutMember { slot, url, .. } in &self.plan.members {
            let url = url.clone();
            if !placed.contains(*slot) {
                notes.push(PlacementNote::NotAdded { url });
                continue;
            }
            if held[slot.as_usize()] == 0 {
                notes.push(PlacementNote::NoShare { url: url.clone() });
            }
            if appended.contains(*slot) {
                notes.push(PlacementNote::HasToJoin { url });
            }
        }
        notes
    }

    fn lost(&self) -> Option<PlacementNote> {
        let from = usize::from(self.record.default_from);
        let is_lost = |partition: &u32| {
            let holders = &self.record.preference_list(PartitionId(*partition))[..from];
            holders.iter().all(|slot| self.plan.dead.contains(*slot))
        };
        let partitions = (0..self.record.partitions()).filter(is_lost).count() as u32;
        (partitions > 0).then_some(PlacementNote::DataLost { partitions })
    }
}
