//! How the copies of a partition are spread over zones.

use super::super::{LayoutMember, NODES_MAX, NodeIndex, NodeSet};

/// The rule for the copies of one partition: the numbers of copies in two zones differ by at most
/// one, except where a zone has too few members.
///
/// A member whose operator has not named a zone is a zone of its own.
pub(super) struct ZoneSpread {
    pub(super) zones: Vec<SpreadZone>,
    /// Index into `zones`, by slot.
    zone_of: [u8; NODES_MAX],
    /// Number of zones that hold one copy more than their least number.
    fuller_zones: u8,
}

/// A zone, and the bounds of its number of copies of a partition.
#[derive(Clone, Copy)]
pub(super) struct SpreadZone {
    pub(super) members: NodeSet,
    pub(super) least: u8,
    pub(super) most: u8,
}

impl ZoneSpread {
    /// The rule for `copies` copies on the members `placed`, which are at least as many.
    pub(super) fn new(members: &[LayoutMember], placed: NodeSet, copies: usize) -> Self {
        let mut zones: Vec<(&str, NodeSet)> = Vec::new();
        for member in members.iter().filter(|member| placed.contains(member.slot)) {
            let is_same = |(name, _): &&mut (&str, NodeSet)| !name.is_empty() && *name == member.zone;
            match zones.iter_mut().find(is_same) {
                Some((_, zone)) => {
                    zone.insert(member.slot);
                }
                None => zones.push((&member.zone, NodeSet::from_iter([member.slot]))),
            }
        }
        Self::of_zones(zones.into_iter().map(|(_, zone)| zone).collect(), copies)
    }

    /// The rule that permits any `copies` of the members `placed`.
    pub(super) fn anywhere(placed: NodeSet, copies: usize) -> Self {
        Self::of_zones(placed.iter().map(|slot| NodeSet::from_iter([slot])).collect(), copies)
    }

    fn of_zones(sets: Vec<NodeSet>, copies: usize) -> Self {
        let most = |level: u8| move |zone: &NodeSet| usize::from(zone.len().min(level));
        let room = |level| sets.iter().map(most(level)).sum::<usize>();
        let level = (1..=NODES_MAX as u8).find(|level| room(*level) >= copies);
        let level = level.expect("a copy has a member of its own");
        let mut zone_of = [0; NODES_MAX];
        for (index, zone) in (0..).zip(&sets) {
            zone.iter().for_each(|slot| zone_of[slot.as_usize()] = index);
        }
        let fuller_zones = (copies - room(level - 1)) as u8;
        let zone = |members: NodeSet| {
            let len = members.len();
            SpreadZone { members, least: len.min(level - 1), most: len.min(level) }
        };
        Self { zones: sets.into_iter().map(zone).collect(), zone_of, fuller_zones }
    }

    /// The zone of a member that holds data.
    pub(super) fn zone_index(&self, slot: NodeIndex) -> usize {
        usize::from(self.zone_of[slot.as_usize()])
    }

    /// Whether these members can hold copies of one partition, alone or with further members.
    pub(super) fn permits(&self, holders: NodeSet) -> bool {
        let (mut rest, mut fuller_zones) = (holders, 0);
        while let Some(slot) = rest.iter().next() {
            let SpreadZone { members, least, most } = self.zones[self.zone_index(slot)];
            let copies = holders.intersection(members).len();
            if copies > most {
                return false;
            }
            fuller_zones += u8::from(copies > least);
            rest = rest.without(members);
        }
        fuller_zones <= self.fuller_zones
    }
}
