//! Warnings for the operator in `GET /v0/status`.
//!
//! Each warning is one sentence, or a few, with the meaning of the condition or the necessary
//! action.

use crate::accept_failures::AcceptFailures;
use crate::config::Config;
use crate::default_from;
use crate::layout_status::LayoutStatus;
use crate::links::{PeerWarnings, UnreachedUrl};
use crate::listed_nodes;
use crate::local::Local;
use crate::readiness::QuorumReach;
use crate::stated_address;
use api::{MemberStatus, NodeState, NodeSyncState};
use cluster::{HybridClock, LayoutRecord, MemberState};
use engine::{DiskSpace, DiskStats, Stats};
use std::time::Duration;
use stdx::{Hlc, Instant, Now, WallTime};

/// Time after a node's start before conditions are reported that may pass in a moment, such as an
/// unsettled sync state. A rebuild is reported at once.
pub(crate) const STARTUP_TIME: Duration = Duration::from_secs(10);
/// Time after a node's start before the lag of its horizon is reported.
const HORIZON_TIME: Duration = Duration::from_secs(60);
/// A horizon further behind the wall clock than this is reported. The lag then exceeds the time for
/// which a clock step is held back.
const HORIZON_LAG_MAX: Duration = Duration::from_secs(2 * 60 * 60);
/// Most failed links that are reported. The log has all of them.
const PEER_WARNINGS_MAX: usize = 8;

/// The state of a node that warnings are about.
pub(crate) struct WarningSource<'a> {
    pub(crate) config: &'a Config,
    pub(crate) started: Instant,
    pub(crate) accept_failures: &'a AcceptFailures,
    pub(crate) peer_warnings: &'a PeerWarnings,
    /// `None` before the store is open.
    pub(crate) local: Option<&'a Local>,
    pub(crate) stats: &'a Stats,
    /// The nodes as this node sees them.
    pub(crate) nodes: &'a [MemberStatus],
    pub(crate) now: Now,
}

/// Warnings about the current state of the node, and about the other nodes.
pub(crate) fn of(source: &WarningSource<'_>) -> Vec<String> {
    let WarningSource { config, local, stats, nodes, now, .. } = *source;
    let own_from = config.default_from;
    let record = local.map(|local| local.layout.get().record.clone());
    let mut warnings = of_configuration(config);
    warnings
        .extend(record.as_deref().map(|record| of_overruled_settings(config, record)).into_iter().flatten());
    if source.accept_failures.is_recent(now.mono) {
        warnings.push(
            "Connections could not be accepted in the last minute, because the process or the machine has no file \
             descriptors left: inactive connections are closed. Raise the hard limit of open files (ulimit -Hn, \
             LimitNOFILE=)."
                .to_owned(),
        );
    }
    warnings.extend(of_store(local, stats, now));
    warnings.extend(of_clocks(&OwnClock::of(local, now), nodes));
    if now.mono.saturating_since(source.started) > HORIZON_TIME {
        warnings.extend(of_horizon(stats.horizon, now));
    }
    let account = local.and_then(|local| local.account.lock().clone());
    warnings.extend(account.as_deref().and_then(|account| of_last_round(account, now)));
    let has_started = now.mono.saturating_since(source.started) > STARTUP_TIME;
    let lost = record.as_deref().map(lost_members).unwrap_or_default();
    warnings.extend(of_sync_states(nodes, &lost, has_started));
    if has_started {
        let quorum = local.and_then(|local| {
            let view = local.view.lock().clone();
            let reach = QuorumReach::of_view(local, own_from, &view);
            reach.warning(|missing| local.names_of_missing(missing))
        });
        warnings.extend(quorum);
    }
    warnings.extend(
        local.map(|local| LayoutStatus::of(local).warnings(now.mono, has_started)).into_iter().flatten(),
    );
    warnings.extend(local.and_then(|local| of_running_change(local, now.mono)));
    warnings.extend(local.map(|local| of_stated_addresses(config, local, has_started)).into_iter().flatten());
    let peers = || nodes.iter().filter(|node| !node.is_self);
    peers().for_each(|node| warnings.extend(of_peer(node, lost.contains(&node.url.as_str()))));
    warnings.extend(peers().filter_map(|node| default_from::of_peer(own_from, &node.url, node.default_from)));
    let is_up = |peer: &str| nodes.iter().any(|node| node.url == peer && node.state == NodeState::Up);
    let peer_warnings = source.peer_warnings.recent(now.mono).into_iter().filter(|(peer, _)| !is_up(peer));
    let told =
        peer_warnings.map(|(peer, reason)| format!("A link with {peer} was refused recently: {reason}."));
    warnings.extend(told.take(PEER_WARNINGS_MAX));
    warnings
}

fn of_configuration(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.engine.durability == engine::Durability::Os {
        warnings.push("--durability os: the loss of power may undo acknowledged writes.".to_owned());
    }
    warnings.extend(default_from::of_many(config.default_from));
    warnings.extend(config.warnings.iter().cloned());
    warnings
}

/// Warns about settings that `record` overrules, also in the log at the start.
pub(crate) fn of_overruled_settings(config: &Config, record: &LayoutRecord) -> Vec<String> {
    let list = listed_nodes::warning(&config.listed, record);
    let flag = default_from::of_flag(config.default_from_flag, record.default_from);
    let process = default_from::of_process(config.default_from, record.default_from);
    list.into_iter().chain(flag).chain(process).collect()
}

/// URLs of the members that `record` declares to be lost.
fn lost_members(record: &LayoutRecord) -> Vec<&str> {
    let lost = record.members.iter().filter(|member| member.state == MemberState::Dead);
    lost.map(|member| member.url.as_str()).collect()
}

/// Warns about a running change of the layout that makes no progress.
fn of_running_change(local: &Local, now: Instant) -> Option<String> {
    let status = LayoutStatus::of(local);
    local.layout_progress.document(&status.record, status.agreement.as_deref(), now)?.warning()
}

/// Warns about addresses that nodes state for themselves and at which they were not reached.
fn of_stated_addresses(config: &Config, local: &Local, has_started: bool) -> Vec<String> {
    let own = config.moved_to.as_deref().filter(|_| has_started);
    let own = own.and_then(|stated| of_own_address(stated, local));
    let of_peer = |UnreachedUrl { node, url, reason }: UnreachedUrl| {
        stated_address::of_peer(&local.url_of(node), &url, &reason)
    };
    own.into_iter().chain(local.addresses.unreached_urls().into_iter().map(of_peer)).collect()
}

/// Warns about the address that this node states, while the layout record has another one.
pub(crate) fn of_own_address(stated: &str, local: &Local) -> Option<String> {
    let recorded = local.url_of(local.member.me);
    (recorded != stated).then(|| stated_address::of_own(stated, &recorded))
}

fn of_store(local: Option<&Local>, stats: &Stats, now: Now) -> Vec<String> {
    let mut warnings = Vec::new();
    warnings.extend(local.and_then(|local| local.version_ahead).and_then(|newest| of_future(newest, now)));
    let checkpoints = local.map_or(0, |local| local.store.checkpoint_count());
    warnings.extend(of_disk(&stats.disk, checkpoints));
    let damaged = local.map(|local| local.store.engine().damaged_tables()).unwrap_or_default();
    warnings.extend(damaged.iter().take(PEER_WARNINGS_MAX).map(|table| {
        format!(
            "{} cannot be read back as it was written: reads of some keys fail here. In a cluster other replicas answer \
             for it, and what it lost is fetched from them by itself; where that does not come to an end, stop this node, \
             move its data directory away and start it, so that it is filled from them. Else restore a backup.",
            table.path.display()
        )
    }));
    warnings
}

/// Warns about versions on disk that a wrong clock issued, until their time is reached.
fn of_future(newest: Hlc, now: Now) -> Option<String> {
    let micros = |wall: WallTime| wall.micros_since_unix_epoch();
    let ahead = Duration::from_micros(micros(newest.wall()).saturating_sub(micros(now.wall)));
    (ahead > HybridClock::SKEW_MAX).then(|| {
        format!(
            "The disk held versions up to {} s ahead of this node's clock when the node started: a wrong clock gave them \
             out, and writes to their keys are superseded until then. docs/operations.md says how to get rid of them.",
            ahead.as_secs()
        )
    })
}

/// Faults of this node's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OwnClock {
    /// Most other clocks are behind this one by more than [`HybridClock::SKEW_MAX`], so they would
    /// refuse its versions.
    is_ahead: bool,
    /// The versions that this node issued are ahead of its own clock by more than
    /// [`HybridClock::SKEW_MAX`].
    was_set_back: bool,
}

impl OwnClock {
    fn of(local: Option<&Local>, now: Now) -> Self {
        local.map_or_else(Self::default, |local| Self {
            is_ahead: local.view.lock().clock_ahead,
            was_set_back: HybridClock::is_ahead(local.member.clock.issued(), now.wall),
        })
    }
}

/// Warns about clocks whose difference makes nodes refuse versions. In a single-node cluster, no
/// node refuses them.
fn of_clocks(own: &OwnClock, nodes: &[MemberStatus]) -> Vec<String> {
    let peers = || nodes.iter().filter(|node| !node.is_self);
    if own.is_ahead {
        let told = "This node's clock is more than 10 s ahead of most others, or was set forward since they last agreed \
                    with it: they would refuse its versions, so it takes no writes. Set the clock.";
        return vec![told.to_owned()];
    }
    let mut warnings = Vec::new();
    if own.was_set_back && peers().next().is_some() {
        let told = "This node's clock is more than 10 s behind the versions that the node gave out before: it was set \
                    back, so the node takes no writes until it has caught up. Set the clock.";
        warnings.push(told.to_owned());
    }
    warnings.extend(peers().filter_map(of_peers_clock));
    warnings
}

fn of_peers_clock(peer: &MemberStatus) -> Option<String> {
    let MemberStatus { url, state, clock_ahead_ms, .. } = peer;
    let is_heard = matches!(state, NodeState::Up | NodeState::Suspected);
    let apart = Duration::from_millis(clock_ahead_ms.unsigned_abs());
    if !is_heard || apart <= HybridClock::SKEW_MAX {
        return None;
    }
    let secs = apart.as_secs();
    Some(match clock_ahead_ms.is_positive() {
        true => format!(
            "The clock of {url} is {secs} s ahead of this node's: what is written through it is refused here. Set the one \
             that is wrong."
        ),
        false => format!(
            "The clock of {url} is {secs} s behind this node's: versions of this node are refused there, so writes that \
             need that node fail here, and all writes while no other node agrees with this one. Set the one that is \
             wrong."
        ),
    })
}

/// Warns about a horizon that is far behind: deleted and expired data stays on disk.
fn of_horizon(horizon: WallTime, now: Now) -> Option<String> {
    let lag = now.wall.micros_since_unix_epoch().saturating_sub(horizon.micros_since_unix_epoch());
    let lag = Duration::from_micros(lag);
    let kept = "Compaction keeps what was deleted or has expired";
    let act = "Compare the clocks of the nodes, and start those that are down.";
    match horizon {
        _ if lag <= HORIZON_LAG_MAX => None,
        horizon if horizon == WallTime::default() => {
            Some(format!("{kept}: this node has not heard the clocks of most nodes since it started. {act}"))
        }
        _ => Some(format!(
            "{kept} in the last {} s: a clock was stepped or is behind, or most nodes are not heard. {act}",
            lag.as_secs()
        )),
    }
}

/// Warns about the last pass over all keys, if a wrong clock recorded its time.
fn of_last_round(account: &cluster::NodeStatus, now: Now) -> Option<String> {
    account.is_repaired_in_future(now.wall).then(|| {
        "The last pass over all keys is recorded with a time in the future, by a clock that was wrong. The time is ignored, and a pass is running or due."
            .to_owned()
    })
}

/// Warns about low disk space, with checkpoints that use it.
fn of_disk(disk: &DiskStats, checkpoints: usize) -> Option<String> {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let (available, reserve) = (mib(disk.available_bytes), mib(disk.reserve_bytes));
    let mut told = match disk.space {
        DiskSpace::Ample => return None,
        DiskSpace::Low => format!(
            "The disk runs out of room: {available} are free, writes are slowed below {}, and values are refused below \
             {reserve}.",
            mib(disk.soft_bytes)
        ),
        DiskSpace::Full => format!(
            "The disk is full: {available} are free, and {reserve} are kept for deletes and for making room; values are \
             refused until {} are free. Delete something, or make room otherwise.",
            mib(disk.reopen_bytes)
        ),
    };
    if checkpoints > 0 {
        told.push_str(&format!(
            " {checkpoints} checkpoints are kept, which hold on to what compaction would free: remove them once they are \
             copied."
        ));
    }
    Some(told)
}

/// Warns that this node is not read eligible, with the meaning of its sync state. `lost`: URLs of
/// the members that were declared lost.
fn of_sync_states(nodes: &[MemberStatus], lost: &[&str], has_started: bool) -> Option<String> {
    let sync_state = nodes.iter().find(|node| node.is_self)?.sync_state?;
    let missing = nodes.iter().filter(|node| !node.is_self && node.state != NodeState::Up);
    let missing = missing.map(|node| node.url.as_str());
    let (lost, startable): (Vec<_>, Vec<_>) = missing.partition(|url| lost.contains(url));
    let mut needs = String::new();
    for (urls, act) in [(startable, "missing, start them"), (lost, "declared lost, replace them")] {
        if !urls.is_empty() {
            needs.push_str(&format!("; these are {act}: {}", urls.join(", ")));
        }
    }
    match sync_state {
        NodeSyncState::Settled => None,
        NodeSyncState::Unsettled if !has_started => None,
        NodeSyncState::Rebuilding => Some(format!(
            "This node lost its data, or its directory is an older state or a copy, and it is being filled by the others; \
             until then its answers to reads do not \
             count{needs}."
        )),
        NodeSyncState::Unsettled => Some(format!(
            "This node's directory is new, and it has not heard from all others whether it stands for a lost one. \
             With --new-cluster, for the first start of a new cluster only, a majority is enough. Until then its \
             answers to reads do not count{needs}."
        )),
    }
}

/// Warnings about a peer. `is_lost`: the layout record declares that it does not come back.
fn of_peer(node: &MemberStatus, is_lost: bool) -> Vec<String> {
    let MemberStatus { url, hints, hints_dropped, .. } = node;
    let mut warnings = Vec::new();
    if node.disk_full {
        warnings
            .push(format!("The disk of {url} is full: {hints} writes that it missed are kept here for it."));
    }
    if is_lost && node.state != NodeState::Up {
        warnings.push(format!(
            "{url} was declared lost, and its former node is refused if it comes back: do not start that node with its data. \
             Start another one there, with an empty --data and the file layout of a remaining node. docs/operations.md says \
             how. {hints} writes that it missed are kept here for it."
        ));
    } else if node.state == NodeState::Unreachable {
        warnings.push(format!(
            "{url} is unreachable: start it, or look at the network; {hints} writes that it missed are kept here for \
             it."
        ));
    }
    if *hints_dropped > 0 {
        warnings.push(format!(
            "{hints_dropped} writes that {url} missed were not kept for it since this node started; once it is \
             reachable, veche repair makes up for them, as does the next pass over all keys."
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(url: &str, is_self: bool, state: NodeState) -> MemberStatus {
        MemberStatus { state, ..MemberStatus::unknown(url.to_owned(), is_self) }
    }

    #[test]
    fn low_disk_space_is_reported_with_figures_and_checkpoints() {
        let disk = |space| DiskStats {
            space,
            available_bytes: 3 << 20,
            reserve_bytes: 8 << 20,
            soft_bytes: 16 << 20,
            reopen_bytes: 10 << 20,
        };
        assert_eq!(of_disk(&disk(DiskSpace::Ample), 3), None);
        let short = of_disk(&disk(DiskSpace::Low), 0).expect("a warning");
        assert!(short.contains("3.0 MiB") && short.contains("16.0 MiB") && !short.contains("checkpoint"));
        let full = of_disk(&disk(DiskSpace::Full), 2).expect("a warning");
        assert!(full.contains("until 10.0 MiB") && full.contains("2 checkpoints"), "{full}");
    }

    #[test]
    fn unreachable_peers_and_dropped_hints_are_reported() {
        let peer =
            |state, hints, hints_dropped| MemberStatus { hints, hints_dropped, ..node("b", false, state) };
        assert_eq!(of_peer(&peer(NodeState::Up, 1, 0), false), Vec::<String>::new());
        let told = of_peer(&peer(NodeState::Unreachable, 7, 0), false);
        assert!(
            told.len() == 1 && told[0].contains("b is unreachable") && told[0].contains("7 writes"),
            "{told:?}"
        );
        let told = of_peer(&peer(NodeState::Up, 0, 3), false);
        assert!(told.len() == 1 && told[0].starts_with("3 writes that b missed"), "{told:?}");
        let told = of_peer(&peer(NodeState::Unreachable, 7, 0), true);
        assert!(told.len() == 1 && told[0].starts_with("b was declared lost"), "{told:?}");
        assert!(!told[0].contains("start it") && told[0].contains("7 writes"), "{told:?}");
        assert_eq!(of_peer(&peer(NodeState::Up, 0, 0), true), Vec::<String>::new(), "its replacement");
    }

    #[test]
    fn a_horizon_that_is_far_behind_is_reported_with_its_lag() {
        let hours = |hours: u64| WallTime::EPOCH_2020.saturating_add(Duration::from_secs(hours * 3_600));
        let now = Now { wall: hours(10), ..Now::default() };
        assert_eq!(of_horizon(hours(10), now), None);
        assert_eq!(of_horizon(hours(8), now), None);
        assert_eq!(of_horizon(hours(11), now), None);
        let told = of_horizon(hours(7), now).expect("a warning");
        assert!(told.contains("in the last 10800 s"), "{told}");
        let told = of_horizon(WallTime::default(), now).expect("a warning");
        assert!(told.contains("has not heard the clocks of most nodes"), "{told}");
    }

    #[test]
    fn clock_differences_that_make_writes_refused_are_reported() {
        let me = || node("a", true, NodeState::Up);
        let peer = |clock_ahead_ms, state| MemberStatus { clock_ahead_ms, ..node("b", false, state) };
        let told = |own, peer| of_clocks(&own, &[me(), peer]);
        let (right, up) = (OwnClock::default(), NodeState::Up);
        assert_eq!(told(right, peer(10_000, up)), Vec::<String>::new());
        assert_eq!(told(right, peer(-10_000, up)), Vec::<String>::new());
        assert_eq!(
            told(right, peer(60_000, NodeState::Unreachable)),
            Vec::<String>::new(),
            "the offset is an old observation"
        );
        let of_one = |own, peer| -> String { told(own, peer).concat() };
        assert!(of_one(right, peer(61_500, up)).starts_with("The clock of b is 61 s ahead of this node's"));
        assert!(
            of_one(right, peer(-61_500, NodeState::Suspected)).starts_with("The clock of b is 61 s behind")
        );
        let set_back = OwnClock { was_set_back: true, ..right };
        assert!(of_one(set_back, peer(0, up)).contains("it was set back"));
        assert_eq!(of_clocks(&set_back, &[me()]), Vec::<String>::new(), "no node refuses its writes");
        let is_ahead = OwnClock { is_ahead: true, ..right };
        let told = told(is_ahead, peer(-61_500, up));
        assert!(told.len() == 1 && told[0].contains("ahead of most others"), "{told:?}");
    }

    #[test]
    fn versions_from_the_future_are_reported_until_their_time() {
        let at = |secs: u64| WallTime::EPOCH_2020.saturating_add(Duration::from_secs(secs));
        let now = |secs| Now { wall: at(secs), ..Now::default() };
        let newest = Hlc::at(at(3_600));
        assert!(of_future(newest, now(0)).expect("a warning").contains("up to 3600 s ahead"));
        assert_eq!(of_future(newest, now(3_590)), None);
        assert_eq!(of_future(newest, now(9_000)), None);
    }

    #[test]
    fn a_node_that_is_not_read_eligible_names_the_missing_nodes() {
        let told_when = |has_started, sync_state, state| {
            let me = MemberStatus { sync_state: Some(sync_state), ..node("a", true, NodeState::Up) };
            of_sync_states(&[me, node("b", false, state), node("c", false, NodeState::Up)], &[], has_started)
        };
        let told = |sync_state, state| told_when(true, sync_state, state);
        assert!(told_when(false, NodeSyncState::Rebuilding, NodeState::Up).is_some(), "at once");
        assert_eq!(
            told_when(false, NodeSyncState::Unsettled, NodeState::Up),
            None,
            "the state may pass in a moment"
        );
        assert_eq!(told(NodeSyncState::Settled, NodeState::Unreachable), None);
        for sync_state in [NodeSyncState::Unsettled, NodeSyncState::Rebuilding] {
            let missing = told(sync_state, NodeState::Unreachable).expect("a warning");
            assert!(missing.ends_with("start them: b."), "{missing}");
            let complete = told(sync_state, NodeState::Up).expect("a warning");
            assert!(complete.ends_with("do not count."), "{complete}");
        }
        let me =
            MemberStatus { sync_state: Some(NodeSyncState::Unsettled), ..node("a", true, NodeState::Up) };
        let down = |url| node(url, false, NodeState::Unreachable);
        let told = of_sync_states(&[me, down("b"), down("c")], &["c"], true).expect("a warning");
        assert!(told.ends_with("start them: b; these are declared lost, replace them: c."), "{told}");
    }
}
