//! Occurrences as lines of a conversation.

mod answers;
mod failures;
mod views;

use crate::player::Player;
use crate::world::{Machine, Occurrence};
use cluster::{
    Cut, Event, Key, KeyRange, Message, NodeIndex, NodeRequest, NodeSet, PeerRequest, RangeRequest,
    RebuildReason, ReplicaRequest, ScanLimit, ScanTask, StoreRequest, SyncState,
};
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, WallTime};

/// Size of the value `large` in bytes.
pub(crate) const LARGE_BYTES: usize = 200_000;
/// Greatest number of entries of a page that is shown; usual pages have more.
const SHOWN_ENTRIES_MAX: usize = 64;

/// The line of an occurrence; `None`: it is not shown.
pub(crate) fn occurrence(player: &mut Player, occurrence: &Occurrence) -> Option<String> {
    match occurrence {
        Occurrence::Sent { from, to, message, is_lost } => {
            let text = match message {
                Message::Request { request, .. } => request_of_peer(player, request),
                Message::Answer { answer, .. } => answers::answer(player, answer),
            };
            let lost = if *is_lost { " (lost)" } else { "" };
            Some(format!("n{} -> n{} {text}{lost}", from + 1, to + 1))
        }
        Occurrence::Stored { is_replica: true, .. }
        | Occurrence::Stored {
            machine: Machine::Node, request: StoreRequest::RaiseClockBound { .. }, ..
        } => None,
        Occurrence::Stored { host, request, .. } => {
            let text = store_request(player, request)?;
            Some(format!("n{} {text}", host + 1))
        }
        Occurrence::DiskFailed { host, fault } => {
            Some(format!("n{} disk: {}", host + 1, failures::store_fault(fault)))
        }
        Occurrence::Event { host, event } => {
            let text = event_text(event)?;
            Some(format!("n{} {text}", host + 1))
        }
        Occurrence::Viewed { host, before, after } => views::change(player, *host, before, after),
        Occurrence::State { host, sync_state, is_ready } => {
            let ready = if *is_ready { " and ready" } else { ", not ready" };
            Some(format!("n{} is {}{ready}", host + 1, sync_state_name(*sync_state)))
        }
        Occurrence::Replied { id, reply } => {
            let took = player.world.waits[id].1 - player.world.submission(*id).1;
            let text = answers::reply(player, reply);
            Some(format!("{}: {text}, {}", player.commands[id], after(took)))
        }
    }
}

pub(crate) const fn sync_state_name(state: SyncState) -> &'static str {
    match state {
        SyncState::Unsettled => "unsettled",
        SyncState::Rebuilding => "rebuilding",
        SyncState::Settled => "settled",
    }
}

/// A duration, with a resolution of 100 microseconds.
fn after(duration: Duration) -> String {
    match duration.as_micros() / 100 {
        0 => "at once".to_owned(),
        tenths => format!("after {:?}", Duration::from_micros(tenths as u64 * 100)),
    }
}

fn request_of_peer(player: &mut Player, request: &PeerRequest) -> String {
    match request {
        PeerRequest::Replica(request) => replica_request(player, request),
        PeerRequest::Scan(request) => {
            let range = range(player, &request.range);
            match request.task {
                ScanTask::Cells { .. } => format!("scan {range}"),
                ScanTask::Check { digest } => format!("check {range}, {} keys", digest.keys),
            }
        }
        PeerRequest::Node(NodeRequest::Range(request)) => range_request(player, request),
        PeerRequest::Node(NodeRequest::Heartbeat(_)) => "heartbeat".to_owned(),
        PeerRequest::Node(NodeRequest::Chain(request)) => format!("{request:?}"),
        PeerRequest::Node(NodeRequest::ReadLayout) => "read layout record".to_owned(),
        PeerRequest::Node(NodeRequest::Copy(request)) => format!("{request:?}"),
    }
}

fn range_request(player: &Player, request: &RangeRequest) -> String {
    let verb = if request.cells { "fetch" } else { "compare" };
    let name = |key: &Option<Key>| {
        let name = key.as_ref().map(|key| player.names.of_key(key.as_bytes())).unwrap_or_default();
        name.trim_end_matches('~').to_owned()
    };
    format!("{verb} keys ({}..{}]", name(&request.after), name(&request.until))
}

fn replica_request(player: &mut Player, request: &ReplicaRequest) -> String {
    match request {
        ReplicaRequest::Read { key } => format!("read {}", player.names.of_key(key.as_bytes())),
        ReplicaRequest::ReadMeta { key } => {
            format!("read version of {}", player.names.of_key(key.as_bytes()))
        }
        ReplicaRequest::Write { key, cell: written, hints } => {
            let hints =
                if hints.is_empty() { String::new() } else { format!(", hint for {}", nodes(*hints)) };
            format!("write {}{hints}", cell(player, key.as_bytes(), written))
        }
        ReplicaRequest::KeepHints { key, version, targets } => {
            let (key, version) = (player.names.of_key(key.as_bytes()), player.names.of_version(*version));
            format!("keep hint for {}: {key}{version}", nodes(*targets))
        }
        ReplicaRequest::EndSnapshot { .. } => "end scan".to_owned(),
    }
}

fn store_request(player: &mut Player, request: &StoreRequest) -> Option<String> {
    Some(match request {
        StoreRequest::Replica(request) => format!("disk: {}", replica_request(player, request)),
        StoreRequest::ReadPage(request) => {
            let (range, limit) = (range(player, &request.range), page_limit(request.limit));
            format!("disk: read page {range} of {limit}")
        }
        StoreRequest::RaiseClockBound { .. } => "disk: reserve versions".to_owned(),
        StoreRequest::ForgetHints { target, hints } => {
            let hints: Vec<String> = hints
                .iter()
                .map(|(key, version)| {
                    let version = player.names.of_version(*version);
                    format!("{}{version}", player.names.of_key(key.as_bytes()))
                })
                .collect();
            format!("disk: forget hints for n{}: {}", target.0 + 1, hints.join(", "))
        }
        StoreRequest::AbandonTable(damage) => format!("disk: give up table {}", damage.table),
        StoreRequest::Disown(parts) => format!("disk: disown {} parts", parts.len()),
        StoreRequest::OwnAgain(parts) => format!("disk: own {} parts again", parts.len()),
        StoreRequest::ReadHints { .. }
        | StoreRequest::Scan { .. }
        | StoreRequest::PersistRecord { .. }
        | StoreRequest::Ingest(_)
        | StoreRequest::ReadDisowned => return None,
    })
}

/// A cell with its key: `k=v@1`, or `k deleted@2`.
pub(crate) fn cell(player: &mut Player, key: &[u8], cell: &Cell) -> String {
    let key = player.names.of_key(key);
    let value = match &cell.value {
        value if value.len() == LARGE_BYTES => "large".to_owned(),
        value => value.escape_ascii().to_string(),
    };
    let value =
        if cell.meta.kind == CellKind::Tombstone { " deleted".to_owned() } else { format!("={value}") };
    format!("{key}{value}{}", meta(player, &cell.meta))
}

/// Version of a cell, and its `from` if it is not the default.
fn meta(player: &mut Player, meta: &CellMeta) -> String {
    let version = player.names.of_version(meta.version);
    let from = if meta.from == player.world.limits.default_from {
        String::new()
    } else {
        format!(" from {}", meta.from)
    };
    let expires = meta.expires_at.filter(|_| meta.kind == CellKind::Value);
    let expires = expires.map_or_else(String::new, |at| format!(" until {}", time(player, at)));
    format!("{version}{from}{expires}")
}

/// Time by the clock of the world, in seconds since its beginning.
fn time(player: &Player, at: WallTime) -> String {
    let begin = player.world.now_at(usize::MAX).wall.micros_since_unix_epoch() as i128
        - i128::from(player.world.now.as_nanos() / 1_000);
    let micros = at.micros_since_unix_epoch() as i128 - begin;
    let sign = if micros < 0 { "-" } else { "" };
    format!("{sign}{:?}", Duration::from_millis((micros.unsigned_abs() / 1_000) as u64))
}

/// The greatest size of a page. Its greatest number of entries is shown if it is small.
fn page_limit(limit: ScanLimit) -> String {
    let entries = match limit.entries {
        0..=SHOWN_ENTRIES_MAX => format!(", {} entries", limit.entries),
        _ => String::new(),
    };
    format!("{} KiB{entries}", limit.bytes >> 10)
}

pub(crate) fn range(player: &Player, range: &KeyRange) -> String {
    // A bound behind a key has a bracket.
    let bound = |cut: &Option<Cut>| {
        let Some(cut) = cut else { return (String::new(), false) };
        let name = player.names.of_key(cut.key().as_bytes());
        let is_behind = name.ends_with('~') || matches!(cut, Cut::After(_));
        (name.trim_end_matches('~').to_owned(), is_behind)
    };
    let ((from, is_after), (to, is_through)) = (bound(&range.from), bound(&range.to));
    format!("{}{from}..{to}{}", if is_after { "(" } else { "" }, if is_through { "]" } else { "" })
}

pub(crate) fn nodes(set: NodeSet) -> String {
    set.iter().map(node).collect::<Vec<_>>().join(", ")
}

fn node(node: NodeIndex) -> String {
    format!("n{}", node.0 + 1)
}

fn event_text(event: &Event) -> Option<String> {
    Some(match event {
        Event::WriteSuperseded => "reports a superseded write".to_owned(),
        Event::DeadlinePassed => "reports a passed deadline".to_owned(),
        Event::Expired => "drops an expired request".to_owned(),
        Event::Refused => "refuses a command".to_owned(),
        Event::ClockBehind { .. } => "reports that its clock was set back".to_owned(),
        Event::ClockAhead { node: peer } => format!("refuses a version of {}: it is ahead", node(*peer)),
        Event::CellRefused { node: peer } => format!("refuses a cell of {}: it is ahead", node(*peer)),
        Event::Hedged => "hedges".to_owned(),
        Event::ReadRepaired { blocking: true } => "repairs before it replies".to_owned(),
        Event::ReadRepaired { blocking: false } => "repairs after its reply".to_owned(),
        Event::HintDropped { target } => format!("drops a hint for {}", node(*target)),
        Event::HintDelivered { target } => format!("delivered a hint to {}", node(*target)),
        Event::RoundInFuture { .. } => "ignores a round of the future".to_owned(),
        Event::RangeSkipped { node: peer } => format!("skips a range with {}", node(*peer)),
        Event::Repaired { node: peer } => format!("exchanged a cell with {}", node(*peer)),
        Event::RebuildBegan { why } => format!("begins to rebuild: {}", rebuild_reason(*why)),
        Event::RebuildEnded { cells, from, .. } => format!("is rebuilt: {cells} cells of {}", nodes(*from)),
        Event::CopyBegan { loser } => format!("begins to copy from {}", node(*loser)),
        Event::CopyBlocked { loser, by } => format!("cannot copy from {}: {by:?}", node(*loser)),
        Event::PlanStalled { reason } => format!("sees no progress of the plan: {reason:?}"),
        Event::CopyEnded { loser, cells, .. } => format!("has copied {cells} cells of {}", node(*loser)),
        Event::SettledAsNew { unheard } if unheard.is_empty() => "settles as new".to_owned(),
        Event::SettledAsNew { unheard } => format!("settles as new without {}", nodes(*unheard)),
    })
}

fn rebuild_reason(why: RebuildReason) -> String {
    match why {
        RebuildReason::Directory => "its directory says so".to_owned(),
        RebuildReason::LostDisk { told_by } => format!("{} remembers another directory", node(told_by)),
        RebuildReason::OlderState { told_by } => format!("{} remembers a later state", node(told_by)),
        RebuildReason::Copy => "its directory is a copy".to_owned(),
        RebuildReason::PeerRebuilds { peer } => format!("{} rebuilds too", node(peer)),
    }
}
