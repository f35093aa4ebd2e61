//! The nodes that remain of a cluster that lost most of its voters decide in their new lineage.

use crate::cluster_of_voters::{Cluster, first, new_state};
use crate::world::SECOND;
use cluster::{MemberState, NodeIndex};

#[test]
fn the_remaining_nodes_of_a_recovered_cluster_vote() {
    let mut cluster = Cluster::started(5, 1);
    (0..5).for_each(|host| cluster.crash(host));
    let lost = [2, 3, 4].map(NodeIndex).into_iter().collect();
    let recovered = first(5).recovered(lost).expect("three of five voters are lost");
    assert_eq!(recovered.members[4].state, MemberState::Dead);
    for host in 0..2 {
        cluster.disks[host].state = new_state(recovered.clone());
        cluster.start(host);
    }
    cluster.run(8 * SECOND);
    let record = cluster.propose(0, "a").unwrap();
    cluster.run(SECOND);
    assert_eq!([cluster.adopted(0), cluster.adopted(1)], [record.clone(), record]);
}
