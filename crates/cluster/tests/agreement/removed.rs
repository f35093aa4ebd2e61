//! A node that was removed, replaced or declared dead learns that from the peers that refuse it.

use crate::cluster_of_voters::Cluster;
use crate::world::SECOND;
use cluster::{AgreementEffect, DialFailure, LayoutEpoch};

fn removals(cluster: &Cluster, host: usize) -> Vec<LayoutEpoch> {
    let epoch = |effect: &AgreementEffect| match effect {
        AgreementEffect::Removed { epoch } => Some(*epoch),
        _ => None,
    };
    cluster.effects[host].iter().filter_map(epoch).collect()
}

#[test]
fn a_node_that_a_peer_refuses_for_ever_tells_its_host() {
    let mut cluster = Cluster::started(3, 1);
    cluster.crash(2);
    let epoch = LayoutEpoch(9);
    cluster.world.dial_failures.insert((2, 1), DialFailure::Removed { epoch });
    cluster.start(2);
    cluster.run(SECOND);
    assert_eq!(removals(&cluster, 2).first(), Some(&epoch));
    assert!(removals(&cluster, 0).is_empty() && removals(&cluster, 1).is_empty());
}

#[test]
fn a_node_that_is_refused_for_another_reason_goes_on() {
    for reason in [DialFailure::Rejected, DialFailure::NotAdmitted, DialFailure::Refused] {
        let mut cluster = Cluster::started(3, 1);
        cluster.crash(2);
        cluster.world.dial_failures.extend([0, 1].map(|peer| ((2, peer), reason)));
        cluster.start(2);
        cluster.run(3 * SECOND);
        assert_eq!(removals(&cluster, 2), [], "{reason:?}");
    }
}
