//! The requests of an operator, resolved to members.

use super::super::record::WEIGHT_DEFAULT;
use super::super::{
    LayoutMember, LayoutRecord, MemberState, NODES_MAX, NodeIndex, NodeSet, URL_BYTES_MAX, ZONE_BYTES_MAX,
};
use super::PlacementRefusal;

/// A requested change of the members. A node is named by its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementChange {
    /// The node shall hold data: a joining member, or a node that is not a member yet.
    Add {
        /// URL of the node.
        url: String,
    },
    /// The member shall hold no data, and be removed.
    Remove {
        /// URL of the member.
        url: String,
    },
    /// `new` shall hold the data of `old`, which is removed.
    Replace {
        /// URL of the member that is removed.
        old: String,
        /// URL of a joining member, or of a node that is not a member yet.
        new: String,
        /// Whether `old` does not come back: its data is copied from other members.
        is_dead: bool,
    },
    /// The weight of a member changes.
    Weight {
        /// URL of the member.
        url: String,
        /// The new weight, at least 1.
        weight: u16,
    },
    /// The zone of a member changes.
    Zone {
        /// URL of the member.
        url: String,
        /// Name of the new zone; empty if the member is a zone of its own.
        zone: String,
    },
}

/// The members during a change, and the part of each.
pub(super) struct RequestedMembers {
    /// All members during the change, in the order of their slots. Their weights, zones and states
    /// are those after the change.
    pub(super) members: Vec<LayoutMember>,
    /// Members that hold data after the change.
    pub(super) placed: NodeSet,
    /// Members that are removed.
    pub(super) removed: NodeSet,
    /// Members that do not come back.
    pub(super) dead: NodeSet,
    /// Pairs of a removed member and its replacement.
    pub(super) replaced: Vec<(NodeIndex, NodeIndex)>,
    /// Members of the record.
    former: NodeSet,
}

impl RequestedMembers {
    pub(super) fn resolve(
        record: &LayoutRecord,
        changes: &[PlacementChange],
    ) -> Result<Self, PlacementRefusal> {
        if record.plan.is_some() {
            return Err(PlacementRefusal::PlanRuns);
        }
        let has_state = |state| move |member: &&LayoutMember| member.state == state;
        let slots = |state| record.members.iter().filter(has_state(state)).map(|member| member.slot);
        let mut requested = Self {
            members: record.members.clone(),
            placed: slots(MemberState::Active).collect(),
            removed: slots(MemberState::Leaving).collect(),
            dead: slots(MemberState::Dead).collect(),
            replaced: Vec::new(),
            former: record.slots(),
        };
        let mut named = NodeSet::EMPTY;
        for change in changes {
            match change {
                PlacementChange::Add { url } => {
                    requested.add(url, &mut named)?;
                }
                PlacementChange::Remove { url } => {
                    requested.remove(url, &mut named)?;
                }
                PlacementChange::Replace { old, new, is_dead } => {
                    let old = requested.remove(old, &mut named)?;
                    let new = requested.add(new, &mut named)?;
                    requested.replaced.push((old, new));
                    if *is_dead {
                        requested.dead.insert(old);
                    }
                }
                PlacementChange::Weight { .. } | PlacementChange::Zone { .. } => {}
            }
        }
        requested.set_weights_and_zones(changes)?;
        requested.check(record.default_from)?;
        for member in requested.members.iter_mut().filter(|member| requested.placed.contains(member.slot)) {
            member.state = MemberState::Active;
        }
        Ok(requested)
    }

    fn find(&mut self, url: &str) -> Option<&mut LayoutMember> {
        self.members.iter_mut().find(|member| member.url == url)
    }

    /// Adds the node to those that hold data, and to the members if it is none.
    fn add(&mut self, url: &str, named: &mut NodeSet) -> Result<NodeIndex, PlacementRefusal> {
        let slot = match self.find(url) {
            None => self.append(url)?,
            Some(member) if named.contains(member.slot) => return Err(named_twice(url)),
            Some(member) if member.state != MemberState::Joining => {
                return Err(PlacementRefusal::NotJoining { url: url.to_owned(), state: member.state });
            }
            Some(member) => member.slot,
        };
        named.insert(slot);
        self.placed.insert(slot);
        Ok(slot)
    }

    /// Appends a joining member in the least free slot.
    fn append(&mut self, url: &str) -> Result<NodeIndex, PlacementRefusal> {
        if !(1..=URL_BYTES_MAX).contains(&url.len()) {
            return Err(PlacementRefusal::UrlLength { len: url.len() });
        }
        if self.members.iter().any(|member| member.url.is_empty()) {
            return Err(PlacementRefusal::MemberWithoutUrl);
        }
        let position = (0..).zip(&self.members).take_while(|(slot, member)| member.slot.0 == *slot).count();
        if self.members.len() == NODES_MAX {
            return Err(PlacementRefusal::TooManyMembers { members: NODES_MAX + 1 });
        }
        let slot = NodeIndex(position as u8);
        let member = LayoutMember {
            slot,
            node_id: None,
            url: url.to_owned(),
            zone: String::new(),
            weight: WEIGHT_DEFAULT,
            state: MemberState::Joining,
        };
        self.members.insert(position, member);
        Ok(slot)
    }

    fn remove(&mut self, url: &str, named: &mut NodeSet) -> Result<NodeIndex, PlacementRefusal> {
        let slot = self.find(url).ok_or_else(|| not_a_member(url))?.slot;
        if !named.insert(slot) {
            return Err(named_twice(url));
        }
        self.placed.remove(slot);
        self.removed.insert(slot);
        Ok(slot)
    }

    fn set_weights_and_zones(&mut self, changes: &[PlacementChange]) -> Result<(), PlacementRefusal> {
        let (mut weighted, mut zoned) = (NodeSet::EMPTY, NodeSet::EMPTY);
        let removed = self.removed;
        for change in changes {
            let (url, named) = match change {
                PlacementChange::Weight { url, .. } => (url, &mut weighted),
                PlacementChange::Zone { url, .. } => (url, &mut zoned),
                _ => continue,
            };
            let member = self.find(url).ok_or_else(|| not_a_member(url))?;
            if member.state == MemberState::Leaving {
                return Err(PlacementRefusal::Leaving { url: url.clone() });
            }
            if removed.contains(member.slot) || !named.insert(member.slot) {
                return Err(named_twice(url));
            }
            match change {
                PlacementChange::Weight { weight: 0, .. } => {
                    return Err(PlacementRefusal::WeightZero { url: url.clone() });
                }
                PlacementChange::Zone { zone, .. } if zone.len() > ZONE_BYTES_MAX => {
                    return Err(PlacementRefusal::ZoneLength { url: url.clone(), len: zone.len() });
                }
                PlacementChange::Weight { weight, .. } => member.weight = *weight,
                PlacementChange::Zone { zone, .. } => member.zone.clone_from(zone),
                _ => {}
            }
        }
        Ok(())
    }

    fn check(&self, default_from: u8) -> Result<(), PlacementRefusal> {
        let dead = self.dead.without(self.removed);
        if let Some(member) = self.members.iter().find(|member| dead.contains(member.slot)) {
            return Err(PlacementRefusal::DeadMember { url: member.url.clone() });
        }
        let remaining = usize::from(self.placed.len());
        match remaining < usize::from(default_from) {
            true => Err(PlacementRefusal::TooFewMembers { remaining, default_from }),
            false => Ok(()),
        }
    }

    /// Slots of the members that are not in the record, in order.
    pub(super) fn appended(&self) -> Vec<NodeIndex> {
        let is_new = |slot: &NodeIndex| !self.former.contains(*slot);
        self.members.iter().map(|member| member.slot).filter(is_new).collect()
    }

    /// The members after the change.
    pub(super) fn remaining(self) -> Vec<LayoutMember> {
        let Self { members, removed, .. } = self;
        members.into_iter().filter(|member| !removed.contains(member.slot)).collect()
    }
}

fn named_twice(url: &str) -> PlacementRefusal {
    PlacementRefusal::NamedTwice { url: url.to_owned() }
}

fn not_a_member(url: &str) -> PlacementRefusal {
    PlacementRefusal::NotAMember { url: url.to_owned() }
}
