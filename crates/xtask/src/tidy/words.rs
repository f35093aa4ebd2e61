//! The tables of the rules: retired names, phrases of the private dialect, and counted words.
//!
//! One entry is one line. `|` separates alternatives, for example inflected forms. `under` limits
//! an entry to paths that begin with one of its prefixes.

/// How an entry of [`NAMES`] is compared with an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// Equal to one segment: `queue` matches `queue_bytes`, `QUEUE` and `SharedQueue`.
    Segment,
    /// Equal to the whole identifier, including case.
    Exact,
}

/// The paths that an entry applies to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    /// Prefixes of paths, separated by `|`.
    prefixes: &'static str,
}

impl Scope {
    const EVERYWHERE: Self = Self { prefixes: "" };

    pub(crate) fn includes(self, path: &str) -> bool {
        self.prefixes.split('|').any(|prefix| path.starts_with(prefix))
    }
}

/// A retired word in identifiers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    /// The retired word; lower case for [`Match::Segment`].
    pub(crate) old: &'static str,
    /// The name to use instead.
    pub(crate) suggestion: &'static str,
    pub(crate) kind: Match,
    pub(crate) scope: Scope,
}

/// A retired phrase in prose, compared without case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phrase {
    pub(crate) old: &'static str,
    /// The wording to use instead.
    pub(crate) suggestion: &'static str,
    pub(crate) scope: Scope,
}

pub(crate) const fn segment(old: &'static str, suggestion: &'static str) -> Name {
    Name { old, suggestion, kind: Match::Segment, scope: Scope::EVERYWHERE }
}

pub(crate) const fn exact(old: &'static str, suggestion: &'static str) -> Name {
    Name { old, suggestion, kind: Match::Exact, scope: Scope::EVERYWHERE }
}

impl Name {
    pub(crate) const fn under(mut self, prefixes: &'static str) -> Self {
        self.scope = Scope { prefixes };
        self
    }
}

pub(crate) const fn phrase(old: &'static str, suggestion: &'static str) -> Phrase {
    Phrase { old, suggestion, scope: Scope::EVERYWHERE }
}

impl Phrase {
    pub(crate) const fn under(mut self, prefixes: &'static str) -> Self {
        self.scope = Scope { prefixes };
        self
    }
}

/// Retired names.
#[rustfmt::skip]
pub(crate) const NAMES: &[Name] = &[
    // Memory.
    segment("purse|purses", "Budget"),
    segment("lend|lends|lending|lent", "reserve; a Reservation"),
    segment("guest|guests", "overcommit"),
    exact("Taken", "Reservation").under("crates/server/"),
    exact("Leave", "Permit").under("crates/server/"),
    // Admission and requests.
    segment("newcomer|newcomers", "request; batch"),
    exact("would_do_with", "reachable_if_recovered"),
    exact("PlainPath", "FastPath"),
    exact("plain_path", "fast_path"),
    // Commands.
    exact("BackedUp", "BackupReport"),
    exact("NotAChecksum", "ParseChecksumError"),
    exact("QuorumWish", "RequestedQuorum"),
    exact("Unzstd", "ZstdDecoder"),
    exact("LargeApart", "SplitAllocator"),
    exact("Taken", "AddedBackup; FileExists").under("crates/ctl/|crates/veche/"),
    exact("Course", "LatencyTrace; Span").under("crates/server/"),
    segment("course", "latency trace; span").under("crates/server/"),
    exact("Place|Places", "ConnectionPermit, ConnectionLimiter").under("crates/server/"),
    segment("turn|turns", "batch; permit; time slice; flush").under("crates/server/"),
    segment("complain|complaint|complaints", "peer warning").under("crates/server/"),
    segment("talk", "handshake exchange").under("crates/server/"),
    segment("scene", "MetricsSource").under("crates/server/"),
    // The node's driver.
    segment("presiding|presides", "the node's driver: with_node, run_node"),
    // Scans.
    segment("desk|desks", "scan context"),
    segment("errand|errands", "in-flight request; task"),
    segment("cast", "role assignment").under("crates/cluster/"),
    segment("stranger|strangers", "unknown peer; lacks_replica_quorum"),
    // The engine's write path.
    exact("Hurry", "RemovalPace").under("crates/engine/"),
    exact("LargeRead", "LargeReadPermit").under("crates/engine/|crates/store/|crates/server/"),
    exact("read_with_consent|read_with_admission", "ReadMemory, an argument of the read"),
    exact("TakenValue", "OwnedValue").under("crates/engine/|crates/store/"),
    exact("LostKeys", "UnreadableRange").under("crates/engine/|crates/store/"),
    segment("glimpse|glimpsed", "peek").under("crates/engine/"),
    segment("lineup", "queue").under("crates/engine/"),
    segment("huge", "oversized").under("crates/engine/src/sstable/|crates/engine/src/compaction/"),
    exact("Holdable", "Pinnable").under("crates/engine/"),
    exact("HeldBlocks", "PinnedBlocks").under("crates/engine/"),
    exact("WatchedNames", "NameWatch"),
    exact("StoodStill", "PausedTooLong"),
    exact("ReadNow", "TryAnswer"),
    exact("Claimed", "DataDirectory").under("crates/store/|crates/server/"),
    exact("Kept", "OpenSnapshot").under("crates/store/"),
    exact("SetAside", "QuarantinedTable"),
    exact("Unsure", "PossiblySuperseded").under("crates/engine/"),
    exact("Settling", "DeferredSync").under("crates/engine/"),
    exact("NotSwitched", "SwitchError"),
    exact("log_reaches", "known_log_end"),
    // Nodes and their state.
    exact("AskPurpose", "RequestPurpose").under("crates/cluster/"),
    exact("RangeAsked", "PendingRange").under("crates/cluster/"),
    exact("Pulled", "PullTarget").under("crates/cluster/"),
    exact("Exchanged", "DeleteExchange").under("crates/cluster/"),
    segment("patience", "AdaptiveTimeout").under("crates/cluster/src/node/"),
    segment("untold", "unacked_repair_notice").under("crates/cluster/"),
    segment("hinder|hindered", "deferred key").under("crates/cluster/"),
    segment("impostor", "duplicate process").under("crates/cluster/"),
    segment("happening|happenings", "event").under("crates/cluster/"),
    segment("parcel|parcels", "HandshakeBuffer").under("crates/wire/"),
    segment("vitals", "heartbeat payload; connection activity"),
    segment("believed|believes", "read_eligible of a node; accepted of a clock or version"),
    segment("standing|standings", "SyncState").under("crates/cluster/|crates/store/|crates/wire/|crates/api/|crates/server/|crates/veche/|crates/sim/|ARCHITECTURE.md"),
    segment("asker|askers", "requester"),
    segment("straggler|stragglers", "late replica; an operation that has replied"),
    exact("Places", "ReplicaSet").under("crates/cluster/"),
    exact("Life", "Generation").under("crates/cluster/"),
    exact("OwnLives", "GenerationHistory").under("crates/cluster/"),
    exact("LifeNow", "GenerationReport").under("crates/cluster/"),
    // The load generator and the profiler.
    exact("Shell", "HttpServer").under("crates/bench/|bench/"),
    exact("Family", "process tree").under("crates/bench/|bench/"),
    exact("Aimed", "TargetConnection").under("crates/bench/|bench/"),
    exact("Driven", "ThreadResult").under("crates/bench/|bench/"),
    exact("Greedy", "PipelinedClients").under("crates/bench/|bench/"),
    exact("Got", "PipelineCounts").under("crates/bench/|bench/"),
    exact("Streamed", "RangeRead").under("crates/bench/|bench/"),
    exact("Found", "SearchResult; ReadValue").under("crates/bench/|bench/"),
    exact("Kept", "ReadBackKey").under("crates/bench/|bench/"),
    exact("Held", "HoldResult").under("crates/bench/|bench/"),
    exact("Taken", "SideSample; NodeUsage").under("crates/bench/|bench/"),
    exact("Arena", "name it for its work: OverloadBench").under("crates/bench/|bench/"),
    exact("Asking", "LoadSpec").under("crates/bench/|bench/"),
    exact("Which", "part").under("crates/bench/|bench/"),
    exact("Own", "ThreadSampler").under("crates/profile/"),
    exact("Followed", "ThreadSet").under("crates/profile/"),
    exact("Looked", "LazyLoader").under("crates/profile/"),
    exact("Written", "CaptureJson").under("crates/profile/"),
    segment("gatherer", "SampleAggregator").under("crates/profile/"),
    segment("tally", "WeightTable; SoakCounts").under("crates/profile/|crates/bench/|bench/"),
];

/// Retired phrases.
#[rustfmt::skip]
pub(crate) const PHRASES: &[Phrase] = &[
    phrase("see the module", "say it here, or link to the item"),
    phrase("the library", "name it: hyper, jemalloc, libc"),
    phrase("plain path|plain paths", "fast path"),
    phrase("whoever", "name the subject: the client, the caller, the thread"),
    phrase("so many", "give the number and its unit, or name the parameter"),
    phrase("so much", "give the amount and its unit, or name the parameter"),
    phrase("newcomer|newcomers", "request, connection, or node"),
    phrase("would do with", "reachable_if_recovered"),
    phrase("let in|lets in|letting in", "admit"),
    phrase("purse|purses", "budget"),
    phrase("desk|desks", "scan context"),
    phrase("errand|errands", "in-flight request; task"),
    phrase("stranger|strangers", "unknown peer, unauthenticated connection"),
    phrase("vitals", "heartbeat payload; connection activity"),
    phrase("presiding|presides", "the node's driver"),
    phrase("believed|believes", "eligible for reads; accepted"),
    phrase("the way of a request", "request path").under("docs/"),
];

/// Words and phrases that the rule `rate` counts: pronouns that stand in for a subject.
pub(crate) const COUNTED: &[&str] = &["what", "whatever", "whoever", "nobody", "so many", "so much"];

/// Names that are written in lower case, so that a doc comment may begin with them.
#[rustfmt::skip]
pub(crate) const LOWER_CASE_NAMES: &[&str] = &[
    "bash", "etcd", "fish", "fjall", "hyper", "jemalloc", "libc", "nginx", "proptest", "rustix",
    "systemd", "tokio", "veche", "wrk", "xoshiro256++", "zsh", "zstd",
];
