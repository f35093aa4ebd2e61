//! Metrics of peers, of the links with them, and of the version clock.

use super::exposition::{Exposition, Family, SECONDS};
use super::source::MetricsSource;
use crate::layout_progress::without_progress;
use crate::layout_status::LayoutStatus;
use crate::local::Local;
use cluster::{HybridClock, NodeIndex, NodeStatus, PeerState, PeerStatus, RepairKind, SyncState};
use std::sync::Arc;
use std::time::Duration;
use stdx::Hlc;

const STATES: [(&str, PeerState); 4] = [
    ("unknown", PeerState::Unknown),
    ("up", PeerState::Up),
    ("suspected", PeerState::Suspected),
    ("unreachable", PeerState::Unreachable),
];

const SYNC_STATES: [(&str, SyncState); 3] = [
    ("unsettled", SyncState::Unsettled),
    ("rebuilding", SyncState::Rebuilding),
    ("settled", SyncState::Settled),
];

/// A peer and its last published status.
struct Peer {
    node: NodeIndex,
    /// Its URL in the adopted layout record.
    url: String,
    status: Option<PeerStatus>,
}

pub(super) fn write(out: &mut Exposition, source: &MetricsSource<'_>) {
    let account = source.local.and_then(|local| local.account.lock().clone());
    let peers = peers(source, account.as_ref());
    layout(out, source, &peers, account.as_deref());
    states(out, &peers);
    default_froms(out, source, &peers);
    links(out, source, &peers);
    hints(out, source, &peers);
    repair(out, source, &peers, account.as_deref());
    clocks(out, source, &peers);
}

/// Returns all nodes but this one; none before the store is open.
fn peers(source: &MetricsSource<'_>, account: Option<&Arc<NodeStatus>>) -> Vec<Peer> {
    let Some(local) = source.local else { return Vec::new() };
    let status =
        |node| account.and_then(|account| account.peers.iter().find(|peer| peer.node == node)).copied();
    local
        .urls()
        .into_iter()
        .filter(|(node, _)| *node != local.member.me)
        .map(|(node, url)| Peer { node, url, status: status(node) })
        .collect()
}

/// Adds a sample for each peer.
fn each(family: &mut Family<'_>, peers: &[Peer], value: impl Fn(&Peer) -> u64) {
    for peer in peers {
        family.count(&[("peer", &peer.url)], value(peer));
    }
}

fn default_froms(out: &mut Exposition, source: &MetricsSource<'_>, peers: &[Peer]) {
    let own = source.process.config.default_from;
    let help = "1 for a peer whose default_from differs from this node's, else 0.";
    each(&mut out.gauge("veche_peer_default_from_differs", help), peers, |peer| {
        let theirs = peer.status.and_then(|status| status.default_from);
        u64::from(theirs.is_some_and(|theirs| theirs != own))
    });
}

fn layout(out: &mut Exposition, source: &MetricsSource<'_>, peers: &[Peer], account: Option<&NodeStatus>) {
    let status = source.local.map(LayoutStatus::of);
    let of = |value: fn(&LayoutStatus) -> u64| status.as_ref().map_or(0, value);
    out.gauge("veche_layout_epoch", "Epoch of the layout record that the node holds; 0 before it is open.")
        .count(&[], of(|status| status.record.epoch.0));
    let help = "Epoch up to which the node carries out no request of an older plan; 0 before it is open.";
    out.gauge("veche_layout_fenced_epoch", help).count(&[], account.map_or(0, |account| account.fenced.0));
    let purge = account.map(|account| account.purge).unwrap_or_default();
    let help = "Partitions of which this node has lost a part that is still to be purged.";
    out.gauge("veche_purging_partitions", help).count(&[], purge.partitions as u64);
    let help = "Bytes of the tables that are still to be rewritten for that.";
    out.gauge("veche_purge_left_bytes", help).count(&[], purge.bytes_left);
    let help = "Members that this node reaches and that hold an older layout record.";
    out.gauge("veche_layout_members_behind", help).count(&[], of(|status| status.behind_count() as u64));
    let help = "Voters on layout records that this node cannot reach, by their ids.";
    out.gauge("veche_layout_voters_unreachable", help)
        .count(&[], of(|status| status.unreachable_voters().len() as u64));
    let help = "Time without progress of the running change of the layout; 0 while none runs.";
    let agreement = source.local.and_then(|local| local.agreement.lock().clone());
    let stalled = agreement.map_or(Duration::ZERO, |agreement| without_progress(&agreement, source.now.mono));
    out.gauge("veche_layout_change_stalled_seconds", help).value(&[], stalled.as_secs_f64());
    let help = "Layout records of a peer that contradict the one of this node.";
    each(&mut out.counter("veche_layout_conflicts_total", help), peers, |peer| {
        source.process.counters.peer(peer.node).layout_conflicts.get()
    });
}

fn states(out: &mut Exposition, peers: &[Peer]) {
    let mut family = out.gauge("veche_peer_state", "1 for the state a peer is in, 0 for the others.");
    for peer in peers {
        let state = peer.status.map_or(PeerState::Unknown, |status| status.state);
        for (name, each) in STATES {
            family.count(&[("peer", &peer.url), ("state", name)], u64::from(each == state));
        }
    }
}

fn links(out: &mut Exposition, source: &MetricsSource<'_>, peers: &[Peer]) {
    let MetricsSource { process, metrics, .. } = source;
    let mut family = out.histogram("veche_peer_round_trip_seconds", "Time from a heartbeat to its answer.");
    for peer in peers {
        let round_trips = metrics.round_trips(peer.node).snapshot();
        family.distribution(&[("peer", &peer.url)], &round_trips, &SECONDS);
    }
    let with = |peer: &Peer| process.gauges.links_with(peer.node);
    each(&mut out.counter("veche_peer_messages_sent_total", "Messages sent to a peer."), peers, |peer| {
        with(peer).messages_sent
    });
    each(&mut out.counter("veche_peer_messages_received_total", "Messages of a peer."), peers, |peer| {
        with(peer).messages_received
    });
    each(&mut out.counter("veche_peer_sent_bytes_total", "Bytes sent to a peer."), peers, |peer| {
        with(peer).bytes_sent
    });
    each(
        &mut out.counter("veche_peer_received_bytes_total", "Bytes that came from a peer."),
        peers,
        |peer| with(peer).bytes_received,
    );
    let help = "Links opened with a peer, by either side, those of all threads.";
    each(&mut out.counter("veche_peer_links_opened_total", help), peers, |peer| with(peer).opened);
    let help = "Failed dials to a peer.";
    each(&mut out.counter("veche_peer_dials_failed_total", help), peers, |peer| with(peer).dials_failed);
    let all = process.gauges.links();
    out.gauge("veche_links", "Links with other nodes that are open, by who dialed.")
        .count(&[("dialed_by", "self")], all.dialed)
        .count(&[("dialed_by", "peer")], all.accepted);
    let help = "Links refused here or by a peer because the nodes do not fit together.";
    out.counter("veche_links_refused_total", help).count(&[], process.peer_links.warnings.refused_count());
    let help = "Connections that were dropped before their handshake for lack of a place, by who dialed.";
    out.counter("veche_handshakes_dropped_total", help)
        .count(&[("dialer", "peer")], process.peer_links.handshakes.peers_dropped())
        .count(&[("dialer", "stranger")], process.peer_links.handshakes.unknown_dropped());
    out.counter("veche_link_write_calls_total", "Calls to the system that wrote to peers.")
        .count(&[], all.write_calls);
}

fn hints(out: &mut Exposition, source: &MetricsSource<'_>, peers: &[Peer]) {
    let MetricsSource { process, local, .. } = source;
    let held = |peer: &Peer| local.map(|local| local.member.hints.held(peer.node)).unwrap_or_default();
    let help = "Writes that a peer missed and this node keeps for it.";
    each(&mut out.gauge("veche_hints", help), peers, |peer| held(peer).hints);
    let help = "Approximate size on disk of the hints kept for a peer.";
    each(&mut out.gauge("veche_hints_bytes", help), peers, |peer| held(peer).bytes);
    out.gauge("veche_hints_bytes_max", "Approximate limit of the size on disk of all hints.")
        .count(&[], process.config.limits.hint_bytes_max);
    let help = "Hinted writes that reached the peer they were kept for.";
    each(&mut out.counter("veche_hints_delivered_total", help), peers, |peer| {
        process.counters.peer(peer.node).hints_delivered.get()
    });
    let help = "Hints that found no room or were kept for too long; anti-entropy makes up for them.";
    each(&mut out.counter("veche_hints_dropped_total", help), peers, |peer| {
        local.map_or(0, |local| local.member.hints.dropped(peer.node))
    });
}

fn repair(out: &mut Exposition, source: &MetricsSource<'_>, peers: &[Peer], account: Option<&NodeStatus>) {
    let sync_state = account.map(|account| account.sync_state);
    let mut family = out.gauge("veche_standing", "1 for the sync state of the node, 0 for the others.");
    for (name, each) in SYNC_STATES {
        family.count(&[("standing", name)], u64::from(sync_state == Some(each)));
    }
    let counters = &source.process.counters;
    let help = "Cells that anti-entropy or rebuilding exchanged with a peer.";
    each(&mut out.counter("veche_repaired_cells_total", help), peers, |peer| {
        counters.peer(peer.node).repaired.get()
    });
    let help = "Ranges of keys that anti-entropy did not compare with a peer, because a block is damaged.";
    each(&mut out.counter("veche_repair_ranges_passed_over_total", help), peers, |peer| {
        counters.peer(peer.node).ranges_passed_over.get()
    });
    let in_flight = account.and_then(|account| account.repair);
    let running = |kind| u64::from(in_flight.is_some_and(|pass| pass.kind == kind));
    out.gauge(
        "veche_repair_running",
        "1 while a pass over all keys, or over those of a damaged range, is running.",
    )
    .count(&[("kind", "repair")], running(RepairKind::AntiEntropy))
    .count(&[("kind", "rebuild")], running(RepairKind::Rebuild))
    .count(&[("kind", "healing")], running(RepairKind::Healing));
    let progress = in_flight.map_or(0.0, |pass| f64::from(pass.permille) / 1e3);
    out.gauge(
        "veche_repair_progress_ratio",
        "Approximate fraction of the keys that the running pass has passed.",
    )
    .value(&[], progress);
    let account = account.filter(|account| !account.is_repaired_in_future(source.now.wall));
    let ended = account.and_then(|account| account.repaired_at);
    let help = "When the last pass over all keys was begun, in seconds since 1970; 0: none was, or a wrong clock recorded it \
                for the future.";
    out.gauge("veche_repair_ended_timestamp_seconds", help).time(ended);
}

fn clocks(out: &mut Exposition, source: &MetricsSource<'_>, peers: &[Peer]) {
    let help = "How far a peer's wall clock is ahead of this node's, less than 0 when it is behind.";
    let mut family = out.gauge("veche_peer_clock_ahead_seconds", help);
    for (peer, status) in peers.iter().filter_map(|peer| Some((peer, peer.status?))) {
        family.value(&[("peer", &peer.url)], status.clock_ahead_micros as f64 / 1e6);
    }
    let counters = &source.process.counters;
    let help = "Writes of a peer that were refused because its clock is too far ahead of this node's.";
    each(&mut out.counter("veche_clock_refusals_total", help), peers, |peer| {
        counters.peer(peer.node).clock_ahead.get()
    });
    let help =
        "Cells of a peer that were asked for and not stored, because their versions are too far ahead.";
    each(&mut out.counter("veche_future_cells_refused_total", help), peers, |peer| {
        counters.peer(peer.node).cells_refused.get()
    });
    let ahead = |hlc: fn(&HybridClock) -> Hlc| {
        let ahead = |local: &Local| hlc(&local.member.clock).wall().saturating_since(source.now.wall);
        source.local.map_or(0.0, |local| ahead(local).as_secs_f64())
    };
    let help = "How far the newest version issued is ahead of the wall clock; 0 when it is not.";
    out.gauge("veche_clock_issued_ahead_seconds", help).value(&[], ahead(HybridClock::issued));
    let help = "How far the durable bound of versions is ahead of the wall clock; 0 when it is not.";
    out.gauge("veche_clock_bound_ahead_seconds", help).value(&[], ahead(HybridClock::bound));
}
