//! Shares by weight, and their rounding to whole partitions.

use super::super::{LayoutMember, NODES_MAX, NodeSet};
use super::spread::{SpreadZone, ZoneSpread};
use std::cmp::Reverse;

/// One partition, as shares count: fixed-point numbers give the same results on every machine.
pub(super) const PARTITION: u128 = 1 << 40;

/// The shares of zones and members by weight.
///
/// All members hold the same number of partitions for each unit of weight, with two exceptions. A
/// member holds at most one copy of each partition, and a zone has the bounds of [`ZoneSpread`].
/// The others share the rest.
pub(super) struct WeightShares<'a> {
    spread: &'a ZoneSpread,
    weights: [u128; NODES_MAX],
    partitions: u32,
    copies: usize,
}

impl<'a> WeightShares<'a> {
    pub(super) fn new(
        members: &[LayoutMember],
        spread: &'a ZoneSpread,
        partitions: u32,
        copies: usize,
    ) -> Self {
        let mut weights = [0; NODES_MAX];
        for member in members {
            weights[member.slot.as_usize()] = u128::from(member.weight);
        }
        Self { spread, weights, partitions, copies }
    }

    /// A copy of every partition.
    pub(super) fn all_partitions(&self) -> u128 {
        u128::from(self.partitions) * PARTITION
    }

    /// The share of each zone, in the order of the zones.
    pub(super) fn of_zones(&self) -> Vec<u128> {
        let all = self.all_partitions();
        let share = |level: u128, zone: &SpreadZone| {
            let (least, most) = (all * u128::from(zone.least), all * u128::from(zone.most));
            self.held(level, zone.members).clamp(least, most)
        };
        let zones = &self.spread.zones;
        let level =
            self.level(all * self.copies as u128, |level| zones.iter().map(|zone| share(level, zone)).sum());
        zones.iter().map(|zone| share(level, zone)).collect()
    }

    /// The share of each of these members of one zone if they hold `copies` copies, in order.
    pub(super) fn of_members(&self, members: NodeSet, copies: u32) -> Vec<u128> {
        let total = u128::from(copies) * PARTITION;
        let level = self.level(total, |level| self.held(level, members));
        members.iter().map(|slot| self.held(level, NodeSet::from_iter([slot]))).collect()
    }

    /// Copies of partitions that these members hold at `level` for each unit of weight.
    fn held(&self, level: u128, members: NodeSet) -> u128 {
        let all = self.all_partitions();
        members.iter().map(|slot| all.min(level * self.weights[slot.as_usize()])).sum()
    }

    /// The greatest level at which at most `total` is held.
    fn level(&self, total: u128, held: impl Fn(u128) -> u128) -> u128 {
        // At the upper end, every member holds a copy of every partition.
        let (mut low, mut high) = (0, self.all_partitions());
        while low < high {
            let middle = (low + high).div_ceil(2);
            match held(middle) <= total {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        low
    }

    /// The number of partitions that each member is to hold, by slot. `held` are the numbers of
    /// today: of two members with equal remainders, the one that holds more is rounded up.
    pub(super) fn quotas(&self, held: &[u32; NODES_MAX]) -> [u32; NODES_MAX] {
        let mut quotas = [0; NODES_MAX];
        let zones = &self.spread.zones;
        let held_in = |zone: &SpreadZone| zone.members.iter().map(|slot| held[slot.as_usize()]).sum();
        let held_by_zone: Vec<u32> = zones.iter().map(held_in).collect();
        let total = self.partitions * self.copies as u32;
        let zone_quotas = apportion(total, &self.of_zones(), &held_by_zone);
        for (zone, zone_quota) in zones.iter().zip(zone_quotas) {
            let held: Vec<u32> = zone.members.iter().map(|slot| held[slot.as_usize()]).collect();
            let member_quotas = apportion(zone_quota, &self.of_members(zone.members, zone_quota), &held);
            for (slot, quota) in zone.members.iter().zip(member_quotas) {
                quotas[slot.as_usize()] = quota;
            }
        }
        quotas
    }
}

/// Rounds the shares to whole partitions, `total` in all: each is rounded down, and those with the
/// largest remainders get one more.
fn apportion(total: u32, shares: &[u128], held: &[u32]) -> Vec<u32> {
    let mut quotas: Vec<u32> = shares.iter().map(|share| (share / PARTITION) as u32).collect();
    let mut by_remainder: Vec<usize> = (0..shares.len()).collect();
    // Of equal remainders, first those whose extra partition need not move.
    by_remainder.sort_by_key(|&index| (Reverse(shares[index] % PARTITION), held[index] <= quotas[index]));
    let left = total - quotas.iter().sum::<u32>();
    by_remainder[..left as usize].iter().for_each(|&index| quotas[index] += 1);
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_remainders_are_rounded_up() {
        let shares = [5, 3, 2].map(|tenths| 7 * PARTITION * tenths / 10);
        assert_eq!(apportion(7, &shares, &[0; 3]), [4, 2, 1], "3.5, 2.1, 1.4");
    }

    #[test]
    fn rounding_again_moves_nothing() {
        let shares = [11, 21].map(|weight| 16 * PARTITION * weight / 32);
        let first = apportion(16, &shares, &[16, 0]);
        assert_eq!((first.as_slice(), apportion(16, &shares, &first)), ([6, 10].as_slice(), first.clone()));
    }

    #[test]
    fn of_equal_remainders_the_greater_holder_is_rounded_up() {
        let shares = [PARTITION / 2; 4];
        assert_eq!(apportion(2, &shares, &[0, 1, 0, 1]), [0, 1, 0, 1]);
        assert_eq!(apportion(2, &shares, &[0; 4]), [1, 1, 0, 0]);
    }
}
