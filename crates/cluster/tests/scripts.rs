//! Exchanges with a coordinator, as text: `tests/scripts/*.txt`.
//!
//! A script is a list of steps: input lines, `---`, the output, an empty line. Lines with `#` are
//! comments. `UPDATE=1 cargo test -p cluster` writes the actual output into the scripts. Input:
//!
//! ```text
//! limits operations_max=2 timeout=1s
//!     a new coordinator that is alone, with a new clock
//! nodes 3 me=n0 [ask_all] [requests_max=1] [replied_max=1] [hint_bytes_max=100]
//!     one of three nodes; all are up and read-eligible, no link is open
//! at 10s
//!     both clocks show 10 s (versions and expiries count from 2020)
//! wall 10s
//!     the wall clock alone
//! submit 1 get k | put k=v [ttl=1s] | delete k, each with [ACK/FROM]
//! submit 1 scan 7 [a,c) [limit=2] [ACK/FROM]
//!     scan 7 of this range; without quorum, of this node
//! submit 2 next 7 | close 7
//! view n1 up|suspected|unreachable [ineligible] [rebuilding] [linking] [full] [draining]
//! view refusing n1
//!     the clock of n1 is so far behind that it refuses versions
//! view holds-writes | takes-writes
//! ceiling 10s
//!     the wall clock is followed up to 10 s, and further as time passes
//! opened n1 [tag=2] | closed n1 | dial-failed n1
//!     with a tag: with this identity
//! stored 0 written [superseded] | cell none | cell 10.5s+0 value v [expires 11s]
//! stored 0 cell 10s+1 tombstone | raised | full | overloaded 2s | corrupt DETAIL | io DETAIL
//! stored 0 no-memory 1s
//! stored 0 meta none | meta 10s+0 value | meta 10s+0 tombstone
//! stored 0 page [a=v@9s+0] [b@9s+1] [rest=(b]
//!     a value, a tombstone; the rest begins behind b. The value `large` makes its page oversized
//! answer 0 ...
//!     a peer answers send 0; as `stored`, and: hints-kept | busy |
//!     same | page .. | not-read-eligible | not-serving | clock-ahead
//! request 5 n1 read-cell k | read-meta k | write k=v 10s+0 [hints=n2] | keep-hints k 10s+0 n2
//! request 5 n1 cells [a,c) | check [a,c) KEYS | end-scan
//! left n1
//! timeout
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test reads its scripts from files"
)]

use bytes::Bytes;
use cluster::{
    Acks, ClusterView, Command, CommandFailure, Coordinator, CoordinatorLimits, Cut, Destination,
    DialFailure, Effect, HintLedger, HybridClock, Incarnation, Key, KeyRange, Layout, Lifetime, LinkAction,
    LinkEvent, LinkId, Member, Message, MessageId, NodeIndex, NodeSet, Origin, Page, PageBuilder,
    PageContent, PageRequest, PartitionId, PartitionSet, PeerAnswer, PeerHello, PeerRequest, PeerState,
    PeerView, Quorum, QuorumChoice, RangeDigest, ReplicaFault, ReplicaRequest, ReplicaResponse, Reply,
    RequestId, Requester, Scan, ScanId, ScanLimit, ScanRequest, ScanRoles, ScanScope, ScanTask, SnapshotId,
    StoreFault, StoreId, StoreRequest, StoreResponse, SyncState, WallCeiling,
};
use std::fmt::Write as _;
use std::num::NonZeroU8;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stdx::{Cell, CellKind, CellMeta, ClockAnchor, Hlc, Instant, NodeTag, Now, Rng, Version, WallTime};

const PARTITIONS: u32 = 16;
const TAG: NodeTag = NodeTag(1);
/// Incarnation of the peers.
const PEER: Incarnation = Incarnation(100);
/// The `from` of cells of other nodes, and of the default quorum.
const FROM: u8 = 3;
/// Size of the value `large`, which makes its page oversized, in bytes.
const LARGE_BYTES: usize = 200_000;
/// Default bound of the hint ledger, in bytes.
const HINT_BYTES_MAX: u64 = 1 << 20;

#[test]
fn scripts_match_the_coordinator() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let update = std::env::var_os("UPDATE").is_some();
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("the folder of scripts") {
        let path = entry.expect("an entry").path();
        let script = std::fs::read_to_string(&path).expect("a script");
        let played = play(&script);
        if update {
            std::fs::write(&path, &played).expect("the script is written");
        } else {
            assert_eq!(played, script, "{} (UPDATE=1 rewrites it)", path.display());
        }
        count += 1;
    }
    assert!(count >= 5, "only {count} scripts");
}

/// Runs a script, and returns it with the actual output.
fn play(script: &str) -> String {
    let mut world = World::alone(CoordinatorLimits::default());
    let steps: Vec<String> = script.split("\n\n").map(|step| world.play_step(step)).collect();
    steps.join("\n\n") + "\n"
}

struct World {
    coordinator: Coordinator,
    clock: Arc<HybridClock>,
    view: ClusterView,
    now: Now,
    requests: Vec<(StoreId, StoreRequest)>,
    sends: Vec<(NodeIndex, MessageId, PeerRequest)>,
}

impl World {
    fn alone(limits: CoordinatorLimits) -> Self {
        Self::new(1, NodeIndex(0), limits, HINT_BYTES_MAX)
    }

    fn new(nodes: u8, me: NodeIndex, limits: CoordinatorLimits, hint_bytes_max: u64) -> Self {
        let names = (0..nodes).map(|node| format!("http://{node}:1")).collect();
        let layout = Layout::new(names, PARTITIONS).expect("a layout");
        let member = Member {
            layout: Arc::new(layout),
            me,
            tag: TAG,
            incarnation: Incarnation(1),
            clock: Arc::new(HybridClock::new(Hlc::ZERO)),
            hints: Arc::new(HintLedger::new(hint_bytes_max)),
        };
        let up = PeerView::UP;
        let view = ClusterView { peers: vec![up; usize::from(nodes)], ..ClusterView::default() };
        let clock = Arc::clone(&member.clock);
        let coordinator = Coordinator::new(member, 0, limits, Arc::new(view.clone()), Rng::new(1));
        let now = Now { mono: Instant::ZERO, wall: WallTime::EPOCH_2020 };
        Self { coordinator, clock, view, now, requests: Vec::new(), sends: Vec::new() }
    }

    fn play_step(&mut self, step: &str) -> String {
        let input: Vec<&str> = step.lines().take_while(|line| *line != "---").collect();
        let mut out = input.join("\n");
        if input.iter().all(|line| line.starts_with('#')) {
            return out;
        }
        out.push_str("\n---");
        for line in input.into_iter().filter(|line| !line.starts_with('#')) {
            self.play_line(line);
            while let Some(effect) = self.coordinator.poll_effect() {
                out.push('\n');
                out.push_str(&self.describe(effect));
            }
        }
        if let Some(timeout) = self.coordinator.poll_timeout() {
            write!(out, "\n{} in progress until {timeout:?}", self.coordinator.operations())
                .expect("a string");
        }
        out
    }

    fn play_line(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["limits", operations_max, timeout] => {
                let operations_max = operations_max.strip_prefix("operations_max=").expect("operations_max");
                let timeout = timeout.strip_prefix("timeout=").expect("timeout");
                *self = Self::alone(CoordinatorLimits {
                    operations_max: operations_max.parse().expect("a number"),
                    request_timeout: duration(timeout),
                    ..CoordinatorLimits::default()
                });
            }
            ["at", time] => self.now = Now { mono: Instant::ZERO + duration(time), wall: wall(time) },
            ["wall", time] => self.now.wall = wall(time),
            ["submit", id, ref command @ ..] => {
                let command = parse_command(command, self.view.peers.len() as u8);
                self.coordinator.submit(self.now, RequestId(id.parse().expect("a number")), command);
            }
            ["close", id] => {
                self.coordinator.close_scan(self.now, ScanId(id.parse().expect("a number")));
            }
            ["stored", id, ref response @ ..] => {
                let (id, request) = &self.requests[id.parse::<usize>().expect("a number")];
                let from = if self.view.peers.len() == 1 { 1 } else { FROM };
                let response = parse_response(Some(request), from, response);
                self.coordinator.handle_stored(self.now, *id, response);
            }
            ["nodes", nodes, me, ref options @ ..] => {
                let me = node(me.strip_prefix("me=").expect("me="));
                let (limits, hint_bytes_max) = parse_limits(options);
                *self = Self::new(nodes.parse().expect("a number"), me, limits, hint_bytes_max);
                self.coordinator.handle_view(self.now, Arc::new(self.view.clone()));
            }
            ["view", "refusing", peer] => {
                self.view.refusing.insert(node(peer));
                self.coordinator.handle_view(self.now, Arc::new(self.view.clone()));
            }
            ["ceiling", time] => {
                let anchor = ClockAnchor::new(Now { wall: wall(time), ..self.now });
                self.clock.set_ceiling(WallCeiling::At(anchor));
            }
            ["view", word @ ("holds-writes" | "takes-writes")] => {
                self.view.holds_writes = word == "holds-writes";
                self.coordinator.handle_view(self.now, Arc::new(self.view.clone()));
            }
            ["view", peer, ref words @ ..] => {
                self.view.peers[node(peer).as_usize()] = parse_view(words);
                self.coordinator.handle_view(self.now, Arc::new(self.view.clone()));
            }
            ["opened", peer, ref tag @ ..] => {
                let tag = tag.first().map_or(TAG, |tag| parse_tag(tag));
                let event = LinkEvent::Opened(PeerHello { tag, ..hello(node(peer)) });
                self.coordinator.handle_link(self.now, event);
            }
            ["closed", peer] => {
                self.coordinator.handle_link(self.now, LinkEvent::Closed { node: node(peer) });
            }
            ["dial-failed", peer] => {
                let event = LinkEvent::DialFailed { node: node(peer), reason: DialFailure::Refused };
                self.coordinator.handle_link(self.now, event);
            }
            ["left", peer] => {
                self.coordinator
                    .handle_link(self.now, LinkEvent::AcceptedClosed { link: accepted_from(node(peer)) });
            }
            ["answer", number, ref answer @ ..] => {
                let (peer, id, _) = &self.sends[number.parse::<usize>().expect("a number")];
                let origin = Origin { node: *peer, link: Destination::Dialed(*peer) };
                let message = Message::Answer { id: *id, answer: parse_answer(answer) };
                self.coordinator.handle_message(self.now, origin, message);
            }
            ["request", number, peer, ref request @ ..] => {
                let peer = node(peer);
                let number = number.parse().expect("a number");
                let id = MessageId { incarnation: PEER, requester: Requester::Coordinator(0), number };
                let origin = Origin { node: peer, link: Destination::Accepted(accepted_from(peer)) };
                let message = Message::Request { id, request: parse_request(request), within: None };
                self.coordinator.handle_message(self.now, origin, message);
            }
            ["timeout"] => self.coordinator.handle_timeout(self.now),
            _ => panic!("not a line of a script: {line}"),
        }
    }

    /// Describes an effect. Store requests are named by a number, in the order of their effects.
    fn describe(&mut self, effect: Effect) -> String {
        match effect {
            Effect::Event(event) => format!("event {event:?}"),
            Effect::Reply { to, reply, .. } => format!("reply {} {}", to.0, describe_reply(reply)),
            Effect::Store { id, request, .. } => {
                let text = format!("store {} {}", self.requests.len(), describe_request(&request));
                self.requests.push((id, request));
                text
            }
            Effect::Send { to: Destination::Dialed(peer), message: Message::Request { id, request, .. } } => {
                let text = format!("send {} {peer:?} {}", self.sends.len(), describe_peer_request(&request));
                self.sends.push((peer, id, request));
                text
            }
            Effect::Send { to: Destination::Accepted(link), message: Message::Answer { id, answer } } => {
                format!("answer {} n{} {}", id.number, link.0, describe_answer(answer))
            }
            Effect::Link(LinkAction::Dial(peer)) => format!("dial {peer:?}"),
            Effect::Link(LinkAction::HangUp(peer)) => format!("hang-up {peer:?}"),
            effect => panic!("a coordinator does not want {effect:?}"),
        }
    }
}

fn parse_limits(options: &[&str]) -> (CoordinatorLimits, u64) {
    let mut hint_bytes_max = HINT_BYTES_MAX;
    let mut limits = CoordinatorLimits { reads_for_one_of_all: 0, ..CoordinatorLimits::default() };
    for option in options {
        match option.split_once('=') {
            None if *option == "ask_all" => limits.reads_for_one_of_all = 1,
            Some(("requests_max", number)) => limits.peer_requests_max = number.parse().expect("a number"),
            Some(("hint_bytes_max", number)) => hint_bytes_max = number.parse().expect("a number"),
            Some(("replied_max", number)) => limits.replied_max = number.parse().expect("a number"),
            _ => panic!("not an option: {option}"),
        }
    }
    (limits, hint_bytes_max)
}

fn parse_view(words: &[&str]) -> PeerView {
    let state = match words[0] {
        "up" => PeerState::Up,
        "suspected" => PeerState::Suspected,
        "unreachable" => PeerState::Unreachable,
        state => panic!("not a state: {state}"),
    };
    let says = |word| words[1..].contains(&word);
    PeerView {
        state,
        linking: says("linking"),
        read_eligible: !says("ineligible") && !says("rebuilding"),
        rebuilding: says("rebuilding"),
        disk_full: says("full"),
        draining: says("draining"),
    }
}

fn parse_command(words: &[&str], nodes: u8) -> Command {
    match *words {
        ["scan", id, range, ref options @ ..] => {
            let id = ScanId(id.parse().expect("a number"));
            return Command::Scan { id, scan: parse_scan(range, options, nodes) };
        }
        ["next", id] => return Command::NextPage { id: ScanId(id.parse().expect("a number")) },
        _ => {}
    }
    let (words, quorum) = match words.split_last() {
        Some((last, rest)) if last.contains('/') => (rest, parse_quorum(last, nodes)),
        _ => (words, default_quorum(nodes)),
    };
    match *words {
        ["get", name] => Command::Get { key: key(name), quorum },
        ["delete", name] => Command::Delete { key: key(name), quorum },
        ["put", pair, ref ttl @ ..] => {
            let (name, value) = pair.split_once('=').expect("key=value");
            let lifetime = match *ttl {
                [ttl] => Lifetime::For(duration(ttl.strip_prefix("ttl=").expect("ttl="))),
                _ => Lifetime::Forever,
            };
            let value = Bytes::copy_from_slice(value.as_bytes());
            Command::Put { key: key(name), value, lifetime, quorum }
        }
        _ => panic!("not a command: {words:?}"),
    }
}

fn parse_scan(range: &str, options: &[&str], nodes: u8) -> Scan {
    let mut scan = Scan { range: parse_range(range), limit: None, scope: ScanScope::Node };
    for option in options {
        match option.strip_prefix("limit=") {
            Some(limit) => scan.limit = Some(limit.parse().expect("a number")),
            None => scan.scope = ScanScope::Cluster(parse_quorum(option, nodes)),
        }
    }
    scan
}

/// Parses a range like `[a,c)`, with each bracket of either kind. A missing key means the first or
/// the last.
fn parse_range(text: &str) -> KeyRange {
    let (from, to) = text.split_once(',').expect("two ends");
    let to = match to.split_at(to.len() - 1) {
        ("", _) => None,
        (name, ")") => Some(Cut::Before(key(name))),
        (name, "]") => Some(Cut::After(key(name))),
        _ => panic!("not a range: {text}"),
    };
    KeyRange { from: parse_cut(from), to }
}

fn parse_cut(text: &str) -> Option<Cut> {
    match text.split_at(1) {
        (_, "") => None,
        ("[", name) => Some(Cut::Before(key(name))),
        ("(", name) => Some(Cut::After(key(name))),
        _ => panic!("not a cut: {text}"),
    }
}

/// Parses entries, and the begin of the rest behind them.
fn parse_page(words: &[&str], from: u8) -> (Page, Option<Cut>) {
    let mut page = PageBuilder::with_capacity(0);
    let mut rest = None;
    for word in words {
        if let Some(cut) = word.strip_prefix("rest=") {
            rest = parse_cut(cut);
            continue;
        }
        let (name, version) = word.split_once('@').expect("key=value@version");
        let version = parse_version(version);
        match name.split_once('=') {
            Some((name, value)) => {
                let value = match value {
                    "large" => Bytes::from(vec![b'l'; LARGE_BYTES]),
                    value => Bytes::copy_from_slice(value.as_bytes()),
                };
                page.push(name.as_bytes(), Cell::value(version, from, value).as_ref());
            }
            None => page.push(name.as_bytes(), Cell::tombstone(version, from).as_ref()),
        }
    }
    (page.finish(), rest)
}

fn parse_request(words: &[&str]) -> PeerRequest {
    match *words {
        ["read-cell", name] => PeerRequest::Replica(ReplicaRequest::Read { key: key(name) }),
        ["read-meta", name] => PeerRequest::Replica(ReplicaRequest::ReadMeta { key: key(name) }),
        ["write", pair, version, ref hints @ ..] => {
            let (name, value) = pair.split_once('=').expect("key=value");
            let value = Bytes::copy_from_slice(value.as_bytes());
            let hints = hints.iter().map(|hint| node(hint.strip_prefix("hints=").expect("hints="))).collect();
            PeerRequest::Replica(ReplicaRequest::Write {
                key: key(name),
                cell: Cell::value(parse_version(version), 3, value),
                hints,
            })
        }
        ["cells", range] | ["check", range, ..] => PeerRequest::Scan(ScanRequest {
            snapshot: SnapshotId { incarnation: PEER, requester: Requester::Coordinator(0), number: 0 },
            range: parse_range(range),
            roles: ScanRoles { order: vec![NodeIndex(1), NodeIndex(0), NodeIndex(2)], ack: 2, from: 3 },
            at: WallTime::EPOCH_2020,
            dead_since: WallTime::EPOCH_2020,
            task: match words[2..] {
                [keys] => {
                    ScanTask::Check { digest: RangeDigest { keys: keys.parse().expect("a number"), sum: 0 } }
                }
                _ => ScanTask::Cells { limit: ScanLimit { entries: 64, bytes: 16 << 10 } },
            },
        }),
        ["end-scan"] => PeerRequest::Replica(ReplicaRequest::EndSnapshot {
            id: SnapshotId { incarnation: PEER, requester: Requester::Coordinator(0), number: 0 },
        }),
        ["keep-hints", name, version, target] => PeerRequest::Replica(ReplicaRequest::KeepHints {
            key: key(name),
            version: parse_version(version),
            targets: [node(target)].into_iter().collect(),
        }),
        _ => panic!("not a request: {words:?}"),
    }
}

fn parse_answer(words: &[&str]) -> PeerAnswer {
    match *words {
        ["hints-kept"] => PeerAnswer::Replica(ReplicaResponse::HintsKept),
        ["busy"] => PeerAnswer::Failed(ReplicaFault::Busy),
        ["not-read-eligible"] => PeerAnswer::Failed(ReplicaFault::NotReadEligible),
        ["not-serving"] => PeerAnswer::Failed(ReplicaFault::NotServing),
        ["same"] => PeerAnswer::Replica(ReplicaResponse::SamePage),
        ["page", ref entries @ ..] => {
            let (page, rest) = parse_page(entries, FROM);
            PeerAnswer::Replica(ReplicaResponse::Page { page, rest })
        }
        ["scan-ended"] => PeerAnswer::Replica(ReplicaResponse::SnapshotEnded),
        ["clock-ahead"] => PeerAnswer::Failed(ReplicaFault::ClockAhead { wall: WallTime::EPOCH_2020 }),
        _ => match parse_response(None, FROM, words) {
            StoreResponse::Replica(ReplicaResponse::Written { superseded }) => {
                PeerAnswer::Replica(ReplicaResponse::Written { superseded })
            }
            StoreResponse::Replica(ReplicaResponse::Cell(cell)) => {
                PeerAnswer::Replica(ReplicaResponse::Cell(cell))
            }
            StoreResponse::Replica(ReplicaResponse::Meta(meta)) => {
                PeerAnswer::Replica(ReplicaResponse::Meta(meta))
            }
            StoreResponse::Failed(fault) => PeerAnswer::Failed(ReplicaFault::Store(fault)),
            response => panic!("peers do not say {response:?}"),
        },
    }
}

fn parse_response(request: Option<&StoreRequest>, from: u8, words: &[&str]) -> StoreResponse {
    match *words {
        ["written"] => StoreResponse::Replica(ReplicaResponse::Written { superseded: false }),
        ["written", "superseded"] => StoreResponse::Replica(ReplicaResponse::Written { superseded: true }),
        ["cell", "none"] => StoreResponse::Replica(ReplicaResponse::Cell(None)),
        ["cell", version, "tombstone"] => {
            StoreResponse::Replica(ReplicaResponse::Cell(Some(Cell::tombstone(parse_version(version), from))))
        }
        ["cell", version, "value", value, ref expires @ ..] => {
            let expires_at = match *expires {
                ["expires", time] => Some(wall(time)),
                _ => None,
            };
            let meta = CellMeta { expires_at, ..CellMeta::value(parse_version(version), from) };
            StoreResponse::Replica(ReplicaResponse::Cell(Some(Cell {
                meta,
                value: Bytes::copy_from_slice(value.as_bytes()),
            })))
        }
        ["meta", "none"] => StoreResponse::Replica(ReplicaResponse::Meta(None)),
        ["meta", version, "value"] => {
            StoreResponse::Replica(ReplicaResponse::Meta(Some(CellMeta::value(parse_version(version), from))))
        }
        ["meta", version, "tombstone"] => StoreResponse::Replica(ReplicaResponse::Meta(Some(
            CellMeta::tombstone(parse_version(version), from),
        ))),
        ["hints-kept"] => StoreResponse::Replica(ReplicaResponse::HintsKept),
        ["raised"] => match request {
            Some(&StoreRequest::RaiseClockBound { bound }) => StoreResponse::ClockBoundRaised { bound },
            request => panic!("{request:?} raises nothing"),
        },
        ["page", ref entries @ ..] => {
            let (page, rest) = parse_page(entries, from);
            StoreResponse::Replica(ReplicaResponse::Page { page, rest })
        }
        ["full"] => StoreResponse::Failed(StoreFault::Full),
        ["overloaded", time] => StoreResponse::Failed(StoreFault::Overloaded { retry_after: duration(time) }),
        ["no-memory", time] => StoreResponse::Failed(StoreFault::NoMemory { retry_after: duration(time) }),
        ["corrupt", detail] => StoreResponse::Failed(StoreFault::Corrupt { detail: detail.to_owned() }),
        ["io", detail] => StoreResponse::Failed(StoreFault::Io { detail: detail.to_owned() }),
        _ => panic!("not a response: {words:?}"),
    }
}

fn describe_request(request: &StoreRequest) -> String {
    match request {
        StoreRequest::Replica(ReplicaRequest::Read { key }) => format!("read {key:?}"),
        StoreRequest::Replica(ReplicaRequest::ReadMeta { key }) => format!("read-meta {key:?}"),
        StoreRequest::Replica(ReplicaRequest::Write { key, cell, hints }) => {
            format!("write {key:?} {}{}", describe_cell(cell), describe_hints(*hints))
        }
        StoreRequest::Replica(ReplicaRequest::KeepHints { key, version, targets }) => {
            format!("keep-hints {key:?} {} {targets:?}", describe_hlc(version.hlc))
        }
        StoreRequest::ReadPage(request) => {
            let PageRequest { snapshot, range, partitions, limit, content } = request;
            let name = describe_snapshot(*snapshot);
            let partitions = partitions.as_ref().map_or(String::new(), describe_partitions);
            let content = match content {
                PageContent::Live { .. } => "live",
                PageContent::Cells { versions_only: false, .. } => "cells",
                PageContent::Cells { versions_only: true, .. } => "versions",
            };
            let (range, limit) = (describe_range(range), describe_limit(*limit));
            format!("read-page {name} {range} {content} {limit}{partitions}")
        }
        StoreRequest::Replica(ReplicaRequest::EndSnapshot { id }) => {
            format!("end-snapshot {}", describe_snapshot(*id))
        }
        StoreRequest::RaiseClockBound { bound } => format!("raise-clock-bound {}", describe_hlc(*bound)),
        request => panic!("a coordinator does not ask for {request:?}"),
    }
}

fn describe_peer_request(request: &PeerRequest) -> String {
    match request {
        PeerRequest::Replica(ReplicaRequest::Read { key }) => format!("read-cell {key:?}"),
        PeerRequest::Replica(ReplicaRequest::ReadMeta { key }) => format!("read-meta {key:?}"),
        PeerRequest::Replica(ReplicaRequest::Write { key, cell, hints }) => {
            format!("write {key:?} {}{}", describe_cell(cell), describe_hints(*hints))
        }
        PeerRequest::Replica(ReplicaRequest::KeepHints { key, version, targets }) => {
            format!("keep-hints {key:?} {} {targets:?}", describe_hlc(version.hlc))
        }
        PeerRequest::Scan(ScanRequest { snapshot, range, roles, task, .. }) => {
            let (name, range) = (describe_snapshot(*snapshot), describe_range(range));
            let task = match task {
                ScanTask::Cells { limit } => format!("cells {}", describe_limit(*limit)),
                ScanTask::Check { digest } => format!("check {} keys", digest.keys),
            };
            format!("{task} {name} {range} {:?} {}/{}", roles.order, roles.ack, roles.from)
        }
        PeerRequest::Replica(ReplicaRequest::EndSnapshot { id: snapshot }) => {
            format!("end-scan {}", describe_snapshot(*snapshot))
        }
        request => panic!("a coordinator does not ask for {request:?}"),
    }
}

fn describe_snapshot(snapshot: SnapshotId) -> String {
    format!("s{}", snapshot.number)
}

fn describe_range(range: &KeyRange) -> String {
    let name = |cut: &Cut| String::from_utf8(cut.key().as_bytes().to_vec()).expect("a short name");
    let from = match &range.from {
        Some(Cut::After(_)) => "(",
        Some(Cut::Before(_)) | None => "[",
    };
    let to = match &range.to {
        Some(Cut::After(_)) => "]",
        Some(Cut::Before(_)) | None => ")",
    };
    let ends = [&range.from, &range.to].map(|cut| cut.as_ref().map_or(String::new(), name));
    format!("{from}{},{}{to}", ends[0], ends[1])
}

fn describe_limit(limit: ScanLimit) -> String {
    format!("of {} entries or {} bytes", limit.entries, limit.bytes)
}

fn describe_partitions(set: &PartitionSet) -> String {
    let count = (0..PARTITIONS).filter(|partition| set.contains(PartitionId(*partition))).count();
    format!(" in {count} of {PARTITIONS} partitions")
}

fn describe_answer(answer: PeerAnswer) -> String {
    match answer {
        PeerAnswer::Replica(ReplicaResponse::Cell(Some(cell))) => format!("cell {}", describe_cell(&cell)),
        PeerAnswer::Replica(ReplicaResponse::Page { page, rest }) => {
            describe_page(&page, if rest.is_some() { "more" } else { "last" })
        }
        PeerAnswer::Replica(ReplicaResponse::Meta(Some(meta))) => {
            format!("meta {} {:?}", describe_hlc(meta.version.hlc), meta.kind)
        }
        PeerAnswer::Replica(response) => format!("{response:?}"),
        answer => format!("{answer:?}"),
    }
}

fn describe_hints(hints: NodeSet) -> String {
    if hints.is_empty() { String::new() } else { format!(" hints {hints:?}") }
}

fn describe_reply(reply: Reply) -> String {
    match reply {
        Reply::Found { cell, acks } => format!("found {} {}", describe_cell(&cell), describe_acks(acks)),
        Reply::Missing { acks } => format!("missing {}", describe_acks(acks)),
        Reply::Written { version, superseded, acks } => {
            let superseded = if superseded { " superseded" } else { "" };
            format!("written {}{superseded} {}", describe_hlc(version.hlc), describe_acks(acks))
        }
        Reply::Page { page, is_last } => describe_page(&page, if is_last { "last" } else { "more" }),
        Reply::Failed(CommandFailure::ExpiryTooLate { expires_at }) => {
            format!("failed ExpiryTooLate at {expires_at:?}")
        }
        Reply::Failed(failure) => format!("failed {failure:?}"),
    }
}

fn describe_page(page: &Page, rest: &str) -> String {
    let entries: Vec<_> = page
        .entries()
        .map(|entry| format!("{}={}", entry.key.escape_ascii(), describe_cell(&entry.cell.to_cell())))
        .collect();
    format!("page [{}] {rest}", entries.join(", "))
}

fn describe_cell(cell: &Cell) -> String {
    assert_eq!(cell.meta.version.tag, TAG);
    let version = describe_hlc(cell.meta.version.hlc);
    let expires = (cell.meta.expires_at).map(|at| format!(" expires {}", describe_hlc(Hlc::at(at))));
    match cell.meta.kind {
        CellKind::Tombstone => format!("{version} tombstone"),
        CellKind::Value if cell.value.len() == LARGE_BYTES => format!("{version} value large"),
        CellKind::Value => {
            format!("{version} value {}{}", cell.value.escape_ascii(), expires.unwrap_or_default())
        }
    }
}

/// Seconds since 2020, then the counter within the microsecond.
fn describe_hlc(hlc: Hlc) -> String {
    let micros = hlc.wall().micros_since_unix_epoch() - WallTime::EPOCH_2020.micros_since_unix_epoch();
    let counter = hlc.to_bits() - Hlc::at(hlc.wall()).to_bits();
    format!("{:?}+{counter}", Duration::from_micros(micros))
}

fn describe_acks(acks: Acks) -> String {
    format!("{}/{}", acks.got, acks.from)
}

fn parse_version(text: &str) -> Version {
    let (time, counter) = text.split_once('+').expect("time+counter");
    let counter: u64 = counter.parse().expect("a number");
    Version::new(Hlc::from_bits(Hlc::at(wall(time)).to_bits() + counter), TAG)
}

fn parse_tag(text: &str) -> NodeTag {
    NodeTag(text.strip_prefix("tag=").expect("tag=").parse().expect("a number"))
}

fn duration(text: &str) -> Duration {
    Duration::from_secs_f64(text.strip_suffix('s').expect("seconds").parse().expect("a number"))
}

fn wall(text: &str) -> WallTime {
    WallTime::EPOCH_2020.saturating_add(duration(text))
}

fn key(text: &str) -> Key {
    Key::new(Bytes::copy_from_slice(text.as_bytes())).expect("a key")
}

fn default_quorum(nodes: u8) -> Quorum {
    let count = NonZeroU8::new(nodes).expect("there are nodes");
    QuorumChoice::default().resolve(count, nodes.min(FROM)).expect("a majority")
}

fn parse_quorum(text: &str, nodes: u8) -> Quorum {
    let (ack, from) = text.split_once('/').expect("ack/from");
    let choice = QuorumChoice { ack: ack.parse().ok(), from: from.parse().ok() };
    choice.resolve(NonZeroU8::new(nodes).expect("there are nodes"), nodes).expect("a quorum")
}

fn node(text: &str) -> NodeIndex {
    NodeIndex(text.strip_prefix('n').expect("n").parse().expect("a number"))
}

/// The link that a peer dialed has the peer's number.
fn accepted_from(peer: NodeIndex) -> LinkId {
    LinkId(u64::from(peer.0))
}

fn hello(node: NodeIndex) -> PeerHello {
    let (requester, incarnation, clock) = (Requester::Node, PEER, Hlc::ZERO);
    PeerHello { node, tag: TAG, requester, incarnation, clock, sync_state: SyncState::Settled }
}
