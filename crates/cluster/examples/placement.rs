//! Measures plans of the placement planner: balance, movement and time.
//!
//! ```text
//! cargo run --release -p cluster --example placement
//! ```
//!
//! The cluster has 4,096 partitions and 3 copies. `weights` is the greatest deviation of a member
//! from its share by weight, in partitions; `bytes` is the same in bytes, of 4 million keys of 1 to
//! 2,047 bytes. `least` is a lower bound on the copies that move, from the counts of the members
//! alone: new zones need more. `order` is the number of swaps that move none of these copies.
//! `pairs` is the number of pairs of members that exchange data, and `all pairs` that of all swaps:
//! one pass over a member serves all partitions of a pair.

use cluster::{
    ClusterOrigin, Key, Layout, LayoutEpoch, LayoutRecord, PartitionId, PlacementChange, PlacementPlan,
};
use std::collections::BTreeSet;
use std::time::Duration;
use stdx::{NodeTag, Rng};

const PARTITIONS: u32 = 4_096;
const FROM: u8 = 3;
const KEYS: u64 = 4_000_000;

fn main() {
    let sizes = partition_sizes();
    println!(
        "{:>24} {:>8} {:>8} {:>8} {:>6} {:>6} {:>9} {:>9} {:>9} {:>9}",
        "change", "moved", "least", "ratio", "order", "pairs", "all pairs", "weights", "bytes", "ms"
    );
    for nodes in [3, 4, 5, 7, 9, 12, 16, 24, 32, 48, 63] {
        let record = balanced(nodes, &[]);
        measure(&format!("{nodes} + 1"), &record, &[add(nodes)], &sizes);
    }
    for nodes in [4, 8, 16, 32, 64] {
        let record = balanced(nodes, &[]);
        measure(&format!("{nodes} - 1"), &record, &[PlacementChange::Remove { url: url(1) }], &sizes);
    }
    let many = |begin: usize, end| (begin..end).map(add).collect::<Vec<_>>();
    measure("3 + 61", &balanced(3, &[]), &many(3, 64), &sizes);
    measure("32 + 32", &balanced(32, &[]), &many(32, 64), &sizes);
    let removed: Vec<_> = (0..32).map(|node| PlacementChange::Remove { url: url(node) }).collect();
    measure("64 - 32", &balanced(64, &[]), &removed, &sizes);
    let weights: Vec<_> =
        (0..64).map(|node| PlacementChange::Weight { url: url(node), weight: 1 + node as u16 % 4 }).collect();
    measure("64, weights 1 to 4", &balanced(64, &[]), &weights, &sizes);
    let zones: Vec<_> = (0..64).map(|node| zone(node, 4)).collect();
    measure("64, now in 4 zones", &balanced(64, &[]), &zones, &sizes);
    let zoned: Vec<_> = (0..63).map(|node| zone(node, 7)).collect();
    measure("63 in 7 zones + 1", &balanced(63, &zoned), &[add(63), zone(63, 7)], &sizes);
}

fn url(node: usize) -> String {
    format!("http://node{node}.example:8080")
}

fn add(node: usize) -> PlacementChange {
    PlacementChange::Add { url: url(node) }
}

fn zone(node: usize, zones: usize) -> PlacementChange {
    PlacementChange::Zone { url: url(node), zone: format!("z{}", node % zones) }
}

/// Bytes of each partition.
fn partition_sizes() -> Vec<u64> {
    let layout = Layout::new(vec![url(0)], PARTITIONS).expect("a list");
    let mut rng = Rng::new(1);
    let mut sizes = vec![0; PARTITIONS as usize];
    for key in 0..KEYS {
        let key = Key::new(format!("user/{key}").into()).expect("a short key");
        sizes[layout.partition_of(&key).0 as usize] += 1 + rng.below(2_047);
    }
    sizes
}

/// A cluster of this many nodes after a plan of `changes`.
fn balanced(nodes: usize, changes: &[PlacementChange]) -> LayoutRecord {
    let nodes = (0..nodes).map(url).collect();
    let origin =
        ClusterOrigin { nodes, partitions: PARTITIONS, hash_version: 1, default_from: FROM, tag: NodeTag(1) };
    let record = LayoutRecord::first(origin).expect("a valid origin");
    after(&record, &PlacementPlan::new(&record, changes).expect("a plan"))
}

fn after(record: &LayoutRecord, plan: &PlacementPlan) -> LayoutRecord {
    LayoutRecord {
        epoch: LayoutEpoch(record.epoch.0 + 1),
        parent: record.hash(),
        members: plan.members.clone(),
        voters: vec![plan.members[0].slot],
        lists: plan.lists.clone(),
        ..record.clone()
    }
}

/// The sum of `amount` over the partitions that each slot holds.
fn held(record: &LayoutRecord, amount: impl Fn(usize) -> u64) -> Vec<u64> {
    let mut held = vec![0; 64];
    for partition in 0..record.partitions() {
        for slot in &record.preference_list(PartitionId(partition))[..usize::from(FROM)] {
            held[slot.as_usize()] += amount(partition as usize);
        }
    }
    held
}

/// The greatest deviation from the share by weight.
fn imbalance(record: &LayoutRecord, held: &[u64]) -> f64 {
    let weights: u64 = record.members.iter().map(|member| u64::from(member.weight)).sum();
    let all: u64 = held.iter().sum();
    let deviation = record.members.iter().map(|member| {
        let share = all as f64 * f64::from(member.weight) / weights as f64;
        (held[member.slot.as_usize()] as f64 / share - 1.0).abs()
    });
    deviation.fold(0.0, f64::max)
}

#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures")]
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begin = std::time::Instant::now();
    let result = work();
    (result, begin.elapsed())
}

fn measure(name: &str, record: &LayoutRecord, changes: &[PlacementChange], sizes: &[u64]) {
    let (plan, took) = timed(|| PlacementPlan::new(record, changes).expect("a plan"));
    let after = after(record, &plan);
    after.check().expect("a valid record");
    after.check_placement().expect("the constraints");
    let preview = plan.preview(record);
    let (before, now) = (held(record, |_| 1), held(&after, |_| 1));
    let least: u64 = now.iter().zip(&before).map(|(now, before)| now.saturating_sub(*before)).sum();
    let moved = preview.moved();
    let ratio = match least {
        0 => "-".to_owned(),
        least => format!("{:.3}", f64::from(moved) / least as f64),
    };
    println!(
        "{name:>24} {moved:>8} {least:>8} {:>8} {:>6} {:>6} {:>9} {:>7.2} % {:>7.2} % {:>9.1}",
        ratio,
        preview.order_swaps,
        preview.moves.len(),
        plan.swaps.iter().map(|swap| (swap.loses, swap.gains)).collect::<BTreeSet<_>>().len(),
        imbalance(&after, &now) * 100.0,
        imbalance(&after, &held(&after, |partition| sizes[partition])) * 100.0,
        took.as_secs_f64() * 1e3,
    );
}
