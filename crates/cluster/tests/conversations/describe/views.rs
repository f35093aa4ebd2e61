//! Changes of a node's view of its cluster.

use super::nodes;
use crate::player::Player;
use cluster::{ClusterView, PeerState, PeerView, RefusedKeys};

/// The changes in one line; `None` if no shown part has changed.
pub(super) fn change(
    player: &Player,
    host: usize,
    before: &ClusterView,
    after: &ClusterView,
) -> Option<String> {
    let mut changes = Vec::new();
    for (peer, (old, new)) in before.peers.iter().zip(&after.peers).enumerate() {
        let (old, new) = (peer_text(*old), peer_text(*new));
        if peer != host && old != new {
            changes.push(format!("n{} {new}", peer + 1));
        }
    }
    for (is_so, was_so, text) in [
        (after.clock_ahead, before.clock_ahead, "its clock ahead"),
        (after.holds_writes, before.holds_writes, "its writes held"),
    ] {
        match (was_so, is_so) {
            (false, true) => changes.push(text.to_owned()),
            (true, false) => changes.push(format!("{text} no more")),
            _ => {}
        }
    }
    if after.refusing != before.refusing {
        changes.push(format!("its versions refused by [{}]", nodes(after.refusing)));
    }
    if after.unheard_peers != before.unheard_peers {
        changes.push(format!("[{}] unheard", nodes(after.unheard_peers)));
    }
    if after.refused != before.refused {
        changes.push(format!("[{}] refused", refused(player, &after.refused)));
    }
    (!changes.is_empty()).then(|| format!("n{} sees {}", host + 1, changes.join(", ")))
}

fn refused(player: &Player, keys: &RefusedKeys) -> String {
    let names: Vec<String> = keys.iter().map(|(key, _)| player.names.of_key(key.as_bytes())).collect();
    names.join(", ")
}

/// State of a peer in words. That a live peer is read-eligible is not said.
fn peer_text(peer: PeerView) -> String {
    let mut text = peer.state.name().to_owned();
    if matches!(peer.state, PeerState::Unknown | PeerState::Unreachable) {
        return text;
    }
    for (is_shown, word) in [
        (peer.rebuilding, " rebuilding"),
        (!peer.read_eligible && !peer.rebuilding, " not read-eligible"),
        (peer.disk_full, " full"),
        (peer.draining, " draining"),
    ] {
        if is_shown {
            text.push_str(word);
        }
    }
    text
}
