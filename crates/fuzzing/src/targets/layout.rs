//! Layout records: any bytes are a record that has the same bytes again, or refused.

use crate::repair;
use cluster::{ClusterOrigin, Layout, LayoutRecord, NodeIndex};
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

/// Records of one member and of several, of epoch 1 and of a later one.
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
    [first(0, 1), first(1, 2), first(3, 8), later].map(|record| record.encode()).to_vec()
}
