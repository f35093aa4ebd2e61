//! The constraints that a placement meets, independent of the planner.

use super::super::{LayoutMember, LayoutRecord, MemberState, NODES_MAX, NodeIndex, NodeSet, PartitionId};
use super::holders::counts;
use super::quotas::{PARTITION, WeightShares};
use super::spread::ZoneSpread;

/// The constraint that a placement breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementFault {
    /// There are fewer active members than replicas of a key.
    #[error("{active} members are active, and default_from is {default_from}")]
    TooFewActive {
        /// Number of active members.
        active: usize,
        /// The default number of replicas.
        default_from: u8,
    },
    /// A member that is not active holds data.
    #[error("slot {} is not active and holds {partitions} partitions", slot.0)]
    NotActive {
        /// Slot of the member.
        slot: NodeIndex,
        /// Number of partitions that it holds.
        partitions: u32,
    },
    /// The copies of a partition are not spread over the zones.
    #[error("the copies of partition {} could be spread over the zones more evenly", partition.0)]
    ZoneSpread {
        /// The partition.
        partition: PartitionId,
    },
    /// A zone holds more or less than its share.
    #[error("the zone of slot {} holds {partitions} copies, and {least} to {most} are its share", slot.0)]
    ZoneShare {
        /// Slot of the first member of the zone.
        slot: NodeIndex,
        /// Number of copies that the zone holds.
        partitions: u32,
        /// The share, rounded down.
        least: u32,
        /// The share, rounded up.
        most: u32,
    },
    /// A member holds more or less than its share.
    #[error("slot {} holds {partitions} partitions, and {least} to {most} are its share", slot.0)]
    MemberShare {
        /// Slot of the member.
        slot: NodeIndex,
        /// Number of partitions that it holds.
        partitions: u32,
        /// The share, rounded down.
        least: u32,
        /// The share, rounded up.
        most: u32,
    },
    /// A member is more or less often at one position than at others.
    #[error("slot {} is {partitions} times at position {position}, and should be {least} to {most} times", slot.0)]
    Position {
        /// Slot of the member.
        slot: NodeIndex,
        /// The position, from 0.
        position: usize,
        /// Number of partitions in which the member is there.
        partitions: u32,
        /// The number of partitions that it holds, divided by the positions and rounded down.
        least: u32,
        /// The same, rounded up.
        most: u32,
    },
}

impl LayoutRecord {
    /// Checks the placement of this record, which meets [`LayoutRecord::check`]: that of a finished
    /// plan. Epoch 1 and the records of a running change need not meet it.
    ///
    /// # Errors
    /// The first [`PlacementFault`] that is found.
    pub fn check_placement(&self) -> Result<(), PlacementFault> {
        check_placement(&self.members, self.default_from, &self.lists)
    }
}

/// Checks the preference lists of these members.
pub(super) fn check_placement(
    members: &[LayoutMember],
    default_from: u8,
    lists: &[NodeIndex],
) -> Result<(), PlacementFault> {
    let from = usize::from(default_from);
    let is_active = |member: &&LayoutMember| member.state == MemberState::Active;
    let active: NodeSet = members.iter().filter(is_active).map(|member| member.slot).collect();
    if usize::from(active.len()) < from {
        return Err(PlacementFault::TooFewActive { active: active.len().into(), default_from });
    }
    let heads = || lists.chunks_exact(members.len()).map(|list| &list[..from]);
    let held = counts(heads().flatten().copied());
    for slot in members.iter().map(|member| member.slot).filter(|slot| !active.contains(*slot)) {
        let partitions = held[slot.as_usize()];
        if partitions > 0 {
            return Err(PlacementFault::NotActive { slot, partitions });
        }
    }
    let spread = ZoneSpread::new(members, active, from);
    for (partition, head) in (0..).map(PartitionId).zip(heads()) {
        if !spread.permits(head.iter().copied().collect()) {
            return Err(PlacementFault::ZoneSpread { partition });
        }
    }
    let partitions = (lists.len() / members.len()) as u32;
    check_shares(&WeightShares::new(members, &spread, partitions, from), &spread, &held)?;
    (0..from).try_for_each(|position| {
        check_position(position, &counts(heads().map(|head| head[position])), &held, from, active)
    })
}

fn check_shares(
    shares: &WeightShares<'_>,
    spread: &ZoneSpread,
    held: &[u32; NODES_MAX],
) -> Result<(), PlacementFault> {
    for (zone, share) in spread.zones.iter().zip(shares.of_zones()) {
        let copies = zone.members.iter().map(|slot| held[slot.as_usize()]).sum();
        let first = zone.members.iter().next().expect("a zone has a member");
        if !is_rounded(share, copies) {
            let (least, most) = bounds(share);
            return Err(PlacementFault::ZoneShare { slot: first, partitions: copies, least, most });
        }
        for (slot, share) in zone.members.iter().zip(shares.of_members(zone.members, copies)) {
            let partitions = held[slot.as_usize()];
            if !is_rounded(share, partitions) {
                let (least, most) = bounds(share);
                return Err(PlacementFault::MemberShare { slot, partitions, least, most });
            }
        }
    }
    Ok(())
}

fn check_position(
    position: usize,
    at_position: &[u32; NODES_MAX],
    held: &[u32; NODES_MAX],
    from: usize,
    active: NodeSet,
) -> Result<(), PlacementFault> {
    for slot in active.iter() {
        let (partitions, held) = (at_position[slot.as_usize()], held[slot.as_usize()]);
        let (least, most) = (held / from as u32, held.div_ceil(from as u32));
        if !(least..=most).contains(&partitions) {
            return Err(PlacementFault::Position { slot, position, partitions, least, most });
        }
    }
    Ok(())
}

/// Whether `partitions` is the share, rounded up or down.
fn is_rounded(share: u128, partitions: u32) -> bool {
    let (least, most) = bounds(share);
    (least..=most).contains(&partitions)
}

/// The share, rounded down and up. A share that is whole but for the rounding of the fixed-point
/// numbers is whole: the level is less than one unit too small, and a share is the level times
/// weights.
fn bounds(share: u128) -> (u32, u32) {
    const ERROR_MAX: u128 = NODES_MAX as u128 * u16::MAX as u128;
    const { assert!(ERROR_MAX < PARTITION / 2) };
    let rest = share % PARTITION;
    let whole = (share / PARTITION) as u32;
    match rest {
        0 => (whole, whole),
        rest if rest + ERROR_MAX >= PARTITION => (whole + 1, whole + 1),
        _ => (whole, whole + 1),
    }
}
