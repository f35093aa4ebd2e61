//! Log lines about rebuilding, about copies of swaps, and about settling with a new data directory.

use crate::local::Local;
use cluster::{Event, NodeSet, RebuildReason};

/// Logs `event` if it concerns the sync state of this node.
pub(super) fn log_event(local: &Local, event: &Event) {
    match event {
        Event::RebuildBegan { why } => {
            tracing::warn!(
                reason = reason(local, *why),
                "the node rebuilds: its answers to reads do not count before it has been filled from the others"
            );
        }
        Event::RebuildEnded { cells, took, from } if from.is_empty() => {
            tracing::error!(
                cells,
                took_ms = took.as_millis() as u64,
                "the node has settled, though every node that it could be filled from has lost its data too: what was \
                 acknowledged before is gone unless a set-aside directory or a backup holds it; docs/operations.md says \
                 what to do"
            );
        }
        Event::RebuildEnded { cells, took, from } => {
            let took_ms = took.as_millis() as u64;
            tracing::info!(cells, took_ms, from = names(local, *from), "the node has been rebuilt");
        }
        Event::CopyBegan { loser } => {
            tracing::info!(loser = local.url_of(*loser), "the node copies partitions that it gains");
        }
        Event::CopyBlocked { loser, by } => {
            tracing::warn!(
                loser = local.url_of(*loser),
                reason = api::describe_obstacle(*by, |node| local.url_of(node)),
                "the node cannot copy partitions that it gains"
            );
        }
        Event::CopyEnded { loser, cells, bytes, took } => {
            let (loser, took_ms) = (local.url_of(*loser), took.as_millis() as u64);
            tracing::info!(loser, cells, bytes, took_ms, "the node has copied the partitions that it gains");
        }
        Event::PlanStalled { reason } => {
            tracing::warn!(
                waits_for = api::describe_stall(*reason, |node| local.url_of(node)),
                "the change of the layout has made no progress for five minutes: veche layout show has all that it \
                 waits for, and what can be done"
            );
        }
        Event::SettledAsNew { unheard } if unheard.is_empty() => {
            tracing::info!("no other node remembers this one: it is a node of a new cluster");
        }
        Event::SettledAsNew { unheard } => {
            tracing::warn!(
                unheard = names(local, *unheard),
                "the node has settled as one of a new cluster without having heard all nodes, as it was told"
            );
        }
        _ => {}
    }
}

fn reason(local: &Local, why: RebuildReason) -> String {
    match why {
        RebuildReason::Directory => {
            "the data directory lost data, is a restored copy, or was being rebuilt before".into()
        }
        RebuildReason::LostDisk { told_by } => {
            format!(
                "the data directory is new, and {} remembers another one of this node",
                local.url_of(told_by)
            )
        }
        RebuildReason::OlderState { told_by } => format!(
            "the data directory is an older state or a copy: {} remembers a later start of this node",
            local.url_of(told_by)
        ),
        RebuildReason::Copy => {
            "peers are linked with another process of this node, which lacks what is written through that one"
                .into()
        }
        RebuildReason::PeerRebuilds { peer } => {
            format!(
                "the data directory is new, and {} cannot tell, because it rebuilds itself",
                local.url_of(peer)
            )
        }
    }
}

fn names(local: &Local, nodes: NodeSet) -> String {
    let names: Vec<String> = nodes.iter().map(|node| local.url_of(node)).collect();
    names.join(",")
}
