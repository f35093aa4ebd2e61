//! Layout records and files of votes: any bytes are read as one that has the same bytes again, or
//! refused.

use crate::repair;
use cluster::{
    ClusterOrigin, FEATURE_LEVEL_PLANS, Layout, LayoutEpoch, LayoutRecord, NodeIndex, PairSwap, PartitionId,
    RunningPlan, SwapPhase,
};
use stdx::NodeTag;

/// Reads any bytes as a layout record. An accepted record keeps the constraints of every record.
pub fn record(bytes: &[u8]) {
    for bytes in [bytes, &repair::layout_record(bytes)] {
        let Ok(record) = LayoutRecord::decode(bytes) else { continue };
        assert_eq!(record.encode(), bytes);
        assert_eq!(record.check(), Ok(()));
        assert!(record.verify(&record).is_err(), "no record is its own parent");
        assert!((record.shares().iter().sum::<f64>() - 1.0).abs() < 1e-6);
        let layout = Layout::of_record(&record);
        assert_eq!(usize::from(layout.len()), record.members.len());
        assert!(
            layout
                .nodes()
                .all(|node| layout.names()[node.as_usize()] == record.member(node).map_or("", |it| &it.url))
        );
    }
}

/// Reads any bytes as a file of votes.
pub fn votes(bytes: &[u8]) {
    for bytes in [bytes, &repair::votes(bytes)] {
        if let Ok(encoded) = store::internals::encode_votes_again(bytes) {
            assert_eq!(encoded, bytes);
        }
    }
}

/// Votes of each history, with a promise and with an accepted record.
pub fn votes_seeds() -> Vec<Vec<u8>> {
    let files: [&[u8]; 4] = [
        include_bytes!("../../../store/tests/formats/votes-v1-incomplete.bin"),
        include_bytes!("../../../store/tests/formats/votes-v1-of-this-id.bin"),
        include_bytes!("../../../store/tests/formats/votes-v1-promise.bin"),
        include_bytes!("../../../store/tests/formats/votes-v1.bin"),
    ];
    files.map(<[u8]>::to_vec).to_vec()
}

/// Records of one member and of several, of epoch 1 and of later ones, one of them with a running
/// plan.
pub fn record_seeds() -> Vec<Vec<u8>> {
    let first = |nodes: u8, partitions| {
        let nodes = (0..nodes).map(|node| format!("http://n{node}:1")).collect::<Vec<_>>();
        let default_from = nodes.len().clamp(1, 3) as u8;
        let origin = ClusterOrigin { nodes, partitions, hash_version: 1, default_from, tag: NodeTag(7) };
        LayoutRecord::first(origin).expect("a valid origin")
    };
    let mut later = first(3, 8);
    later.parent = later.hash();
    later.epoch = later.epoch.next().expect("a small epoch");
    later.members[1].node_id = Some(NodeTag(9));
    later.members[2].zone = "zone".to_owned();
    later.voters = vec![NodeIndex(1)];
    [first(0, 1), first(1, 2), first(3, 8), with_plan(later.clone()), later]
        .map(|record| record.encode())
        .to_vec()
}

/// The record with a plan whose swaps are in several phases.
fn with_plan(mut record: LayoutRecord) -> LayoutRecord {
    record.feature_level = FEATURE_LEVEL_PLANS;
    record.former_ids = vec![NodeTag(11)];
    record.epoch = LayoutEpoch(9);
    record.changed.fill(record.epoch);
    record.lists = [0, 1, 2].map(NodeIndex).repeat(8);
    let swap = |loser, gainer, phase, since, partitions: &[u32]| PairSwap {
        loser: NodeIndex(loser),
        gainer: NodeIndex(gainer),
        phase,
        attempt: LayoutEpoch(5),
        since: LayoutEpoch(since),
        partitions: partitions.iter().copied().map(PartitionId).collect(),
    };
    let swaps = vec![
        swap(0, 1, SwapPhase::Prepare, 5, &[0, 7]),
        swap(0, 2, SwapPhase::ReadNew, 6, &[1]),
        swap(1, 2, SwapPhase::Back, 7, &[2, 3]),
    ];
    let target = [2, 1, 0].map(NodeIndex).repeat(8);
    record.plan = Some(RunningPlan { is_paused: true, target, swaps, ..RunningPlan::new(LayoutEpoch(4)) });
    assert_eq!(record.check(), Ok(()));
    record
}
