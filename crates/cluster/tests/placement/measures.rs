//! Imbalance and movement of large clusters. The example `placement` measures more of them.

use crate::cluster_state::{add, first, held, moved, planned, remove, weight};
use crate::least_movement::assert_no_exchange_moves_less;
use cluster::LayoutRecord;

const PARTITIONS: u32 = 4_096;
const FROM: u8 = 3;

/// The greatest deviation of a member from its share by weight, as a fraction of the share. No
/// member and zone is at a limit.
fn imbalance(record: &LayoutRecord) -> f64 {
    let weights: u32 = record.members.iter().map(|member| u32::from(member.weight)).sum();
    let held = held(record, FROM);
    let deviation = record.members.iter().map(|member| {
        let share = f64::from(PARTITIONS * u32::from(FROM)) * f64::from(member.weight) / f64::from(weights);
        (f64::from(held[&member.slot]) / share - 1.0).abs()
    });
    deviation.fold(0.0, f64::max)
}

/// A lower bound for every placement within rounding of equal weights.
fn least(before: &LayoutRecord, members: usize) -> u32 {
    let share = PARTITIONS * u32::from(FROM) / members as u32;
    let former = held(before, FROM);
    let slots = (0..members as u8).map(cluster::NodeIndex);
    let gains = slots.map(|slot| share.saturating_sub(former.get(&slot).copied().unwrap_or_default()));
    gains.sum()
}

#[test]
fn a_new_node_moves_the_least_and_leaves_an_imbalance_of_at_most_3_percent() {
    for nodes in [3, 4, 7, 12, 31, 63] {
        let (_, record) = planned(&first(nodes, PARTITIONS, FROM), &[]).expect("no changes");
        let (_, after) = planned(&record, &[add(nodes)]).expect("a new node");
        let (imbalance, moved) = (imbalance(&after), moved(&record, &after));
        assert!(imbalance <= 0.03, "{nodes} nodes and one: {imbalance}");
        assert_no_exchange_moves_less(&record, &after);
        let least = least(&record, nodes + 1);
        assert!(
            f64::from(moved) <= 1.05 * f64::from(least),
            "{nodes} nodes and one: {moved}, {least} at least"
        );
    }
}

#[test]
fn a_removed_node_moves_its_own_data_only() {
    for nodes in [4, 8, 64] {
        let (_, record) = planned(&first(nodes, PARTITIONS, FROM), &[]).expect("no changes");
        let (_, after) = planned(&record, &[remove(1)]).expect("enough nodes");
        assert_eq!(moved(&record, &after), held(&record, FROM)[&cluster::NodeIndex(1)], "{nodes} nodes");
    }
}

#[test]
fn weights_leave_an_imbalance_of_at_most_3_percent() {
    for nodes in [12, 64] {
        let weights: Vec<_> = (0..nodes).map(|node| weight(node, 1 + (node % 4) as u16)).collect();
        let record = first(nodes, PARTITIONS, FROM);
        let (_, after) = planned(&record, &weights).expect("new weights");
        let imbalance = imbalance(&after);
        assert!(imbalance <= 0.03, "{nodes} nodes: {imbalance}");
        assert_no_exchange_moves_less(&record, &after);
    }
}
