//! A read that waited for links has the deadline of any other read.

mod world;

use cluster::{
    ClusterView, Command, CommandFailure, CoordinatorLimits, Destination, Effect, LinkEvent, Message,
    NodeIndex, NodeSet, PeerView, Reply, Shortfall,
};
use std::sync::Arc;
use world::{TIMEOUT, World, key};

#[test]
fn a_read_that_waited_for_its_link_sends_the_remaining_time() {
    let mut cluster = World::of_coordinators(
        3,
        CoordinatorLimits { reads_for_one_of_all: 0, ..CoordinatorLimits::default() },
        1,
    );
    let replicas = cluster.layout.replicas(&key("k"), 3).to_vec();
    let quorum = cluster.quorum(3, 3);
    let (me, others) = (replicas[0].as_usize(), [replicas[1], replicas[2]]);
    let mut now = cluster.now_at(0);
    let (_, coordinator) = cluster.coordinator_mut(me);
    while coordinator.poll_effect().is_some() {}
    for node in others {
        coordinator.handle_link(now, LinkEvent::Closed { node });
    }
    coordinator.submit(now, cluster::RequestId(1), Command::Get { key: key("k"), quorum });
    let effects: Vec<_> = std::iter::from_fn(|| coordinator.poll_effect()).collect();
    assert!(!effects.iter().any(|effect| within(effect).is_some()), "it waits: {effects:?}");

    now.mono = now.mono + TIMEOUT / 4;
    for node in others {
        coordinator.handle_link(now, LinkEvent::Opened(World::hello_of(node)));
    }
    let left: Vec<_> =
        std::iter::from_fn(|| coordinator.poll_effect()).filter_map(|effect| within(&effect)).collect();
    assert_eq!(left.len(), 2, "both are asked");
    assert!(left.iter().all(|(_, within)| *within == TIMEOUT - TIMEOUT / 4), "{left:?}");
}

#[test]
fn a_read_of_a_new_node_fails_at_once_while_peers_are_unheard() {
    let mut cluster = World::of_coordinators(3, CoordinatorLimits::default(), 2);
    let quorum = cluster.quorum(2, 3);
    let (now, coordinator) = cluster.coordinator_mut(0);
    let peers = vec![PeerView { read_eligible: false, ..PeerView::UP }; 3];
    let unheard_peers = NodeSet::from_iter([NodeIndex(2)]);
    coordinator.handle_view(now, Arc::new(ClusterView { peers, unheard_peers, ..ClusterView::default() }));
    while coordinator.poll_effect().is_some() {}
    coordinator.submit(now, cluster::RequestId(1), Command::Get { key: key("k"), quorum });
    let replies = std::iter::from_fn(|| coordinator.poll_effect());
    let fails = |effect: Effect| match effect {
        Effect::Reply {
            reply: Reply::Failed(CommandFailure::NotEnoughReplicas { shortfall, .. }), ..
        } => Some(shortfall),
        _ => None,
    };
    assert_eq!(replies.filter_map(fails).collect::<Vec<_>>(), [Shortfall::Unreachable]);
}

/// The recipient of a request, and the time for which its answer is awaited.
fn within(effect: &Effect) -> Option<(NodeIndex, std::time::Duration)> {
    match effect {
        Effect::Send { to: Destination::Dialed(node), message: Message::Request { within, .. } } => {
            Some((*node, within.expect("reads have a deadline")))
        }
        _ => None,
    }
}
