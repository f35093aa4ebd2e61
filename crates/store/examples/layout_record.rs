//! Prints the size of the largest layout record and the time to encode, hash, decode and verify it.
//!
//! ```text
//! cargo run --release -p store --example layout_record
//! ```

use cluster::{ClusterOrigin, LayoutEpoch, LayoutRecord, NODES_MAX};
use std::hint::black_box;
use std::time::{Duration, Instant};
use stdx::NodeTag;
use store::{HASH_VERSION, PARTITIONS_DEFAULT};

const REPETITIONS: u32 = 100;

fn main() {
    let nodes = (0..NODES_MAX).map(|node| format!("http://node{node}.example:8080")).collect();
    let origin = ClusterOrigin {
        nodes,
        partitions: PARTITIONS_DEFAULT,
        hash_version: HASH_VERSION,
        default_from: 3,
        tag: NodeTag(1),
    };
    let started = Instant::now();
    let parent = LayoutRecord::first(origin).expect("a valid origin");
    println!("build epoch 1: {:?}", started.elapsed());
    let mut record = parent.clone();
    (record.epoch, record.parent) = (LayoutEpoch(2), parent.hash());
    for (member, tag) in record.members.iter_mut().zip(1..) {
        member.node_id = Some(NodeTag(tag));
    }
    let bytes = record.encode();
    println!("{} nodes, {} partitions: {} bytes", NODES_MAX, record.partitions(), bytes.len());
    report("encode", || drop(black_box(record.encode())));
    report("hash", || drop(black_box(vec![record.hash()])));
    report("decode and check", || drop(black_box(LayoutRecord::decode(&bytes))));
    report("verify with its parent", || black_box(record.verify(&parent)).expect("a child"));
}

fn report(name: &str, work: impl Fn()) {
    let times: Vec<Duration> = (0..REPETITIONS)
        .map(|_| {
            let started = Instant::now();
            work();
            started.elapsed()
        })
        .collect();
    let sum: Duration = times.iter().sum();
    println!("{name}: mean {:?}, most {:?}", sum / REPETITIONS, times.iter().max().expect("some"));
}
