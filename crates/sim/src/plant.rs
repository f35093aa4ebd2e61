//! Planted bugs, which show that the invariants catch them.
//!
//! All of them are implemented between the shipped state machines and the world (`host`). So the
//! shipped code contains no part of them.

/// A bug to plant into every host of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Plant {
    /// A write is acknowledged when it is submitted to the engine, before the sync.
    AckBeforeSync,
    /// A read returns a cell that a crash can still undo.
    ReadBeforeSync,
    /// A read returns the cell that arrived last, independent of its version.
    LastArrivalWins,
    /// A read takes one answer for enough, independent of its quorum.
    ReadOfOne,
    /// A write takes one replica fewer than its `ack` for enough.
    QuorumOffByOne,
    /// Hints are acknowledged and not kept.
    HintLost,
    /// A directory that replaces a lost one counts as complete.
    EmptyReplicaServesReads,
    /// A rebuild gets no cells.
    RebuildSkipped,
    /// Data lost with a damaged table is abandoned, and no peer is asked for it.
    HealingSkipped,
    /// Tables are not scrubbed.
    ScrubSkipped,
    /// Anti-entropy is answered as if the ranges were equal.
    RepairSkipped,
    /// Reads do not repair replicas.
    ReadRepairSkipped,
    /// Each I/O thread has a version clock of its own.
    ClockPerThread,
    /// The clocks of frames are not observed.
    FrameClocksIgnored,
    /// Compaction drops tombstones before the grace period ends and before the peers have exchanged
    /// them.
    TombstoneDroppedEarly,
    /// Compaction judges expiry and grace periods by the wall clock of its own node alone.
    ExpiryByOwnClock,
    /// A pull stores the cells of its sources without checking their versions.
    PullsUnchecked,
    /// A write also goes to a replica outside of its `from`.
    ExtraReplica,
    /// A coordinator ignores the differences that the checking replicas of a scan report.
    ScanChecksIgnored,
    /// A replica that takes over a scan resumes behind the next key.
    TakeoverSkips,
    /// A full page of a scan counts as the end of the range.
    FullPageIsLast,
    /// The tombstones of a scan are returned as values.
    TombstonesShown,
    /// Each page of a scan comes from a snapshot of its own.
    SnapshotPerPage,
    /// Stores never release snapshots.
    SnapshotsKept,
    /// Some commands are answered twice.
    TwoReplies,
    /// Some commands are never answered.
    NoReply,
    /// A write that finds the disk full is acknowledged.
    DiskFullAcknowledged,
    /// A disk that was full once counts as full for good.
    DiskFullNeverEnds,
    /// A write waits for all replicas, independent of its `ack`.
    SlowReplicaAwaited,
    /// No command is refused for the number of commands in flight.
    AdmissionSkipped,
    /// A host that was overloaded once stays overloaded.
    OverloadNeverEnds,
    /// A read that must write a version back to several replicas writes it to one only.
    WriteBackTooSmall,
    /// A node ignores the generations of itself that its peers remember.
    RollbackIgnored,
    /// A rebuild begins at once, although writes in flight count acknowledgements of the lost disk.
    RebuildTooEarly,
    /// The node's record does not keep that a repair is pending.
    PendingRepairForgotten,
    /// A voter reports promises that are not durable.
    PromiseNotDurable,
    /// A voter reports that it accepts a record although it has promised a greater ballot.
    AcceptsBelowPromise,
    /// A voter that lost its votes takes them for none.
    LostVotesIgnored,
    /// A node uses ballots of its earlier processes.
    BallotReused,
    /// A node passes on a record in which two voters of the decided one are missing.
    TwoVotersReplaced,
    /// The gainer of a swap receives no cells from its sources.
    CopyLeftOut,
    /// The gainer of a swap states that its copy is complete before it is.
    CopyStatedEarly,
    /// The gainer of a swap states that its copy is complete because an earlier copy of the same
    /// pair was. That copy may have been purged, or lost with its disk.
    EarlierCopyStated,
    /// A node that has learned that it was removed goes on.
    RemovedNodeServes,
    /// A removed node is refused like any other one, and does not learn that it was removed.
    RemovalHidden,
    /// A node that joins asks by another id at each attempt.
    JoiningIdForgotten,
    /// A node dials a slot at the address of the first node that had it.
    AddressOfFormerNode,
}

impl Plant {
    /// All planted bugs.
    pub const ALL: [Self; 47] = [
        Self::AckBeforeSync,
        Self::ReadBeforeSync,
        Self::LastArrivalWins,
        Self::ReadOfOne,
        Self::QuorumOffByOne,
        Self::HintLost,
        Self::EmptyReplicaServesReads,
        Self::RebuildSkipped,
        Self::HealingSkipped,
        Self::ScrubSkipped,
        Self::RepairSkipped,
        Self::ReadRepairSkipped,
        Self::ClockPerThread,
        Self::FrameClocksIgnored,
        Self::TombstoneDroppedEarly,
        Self::ExpiryByOwnClock,
        Self::PullsUnchecked,
        Self::ExtraReplica,
        Self::ScanChecksIgnored,
        Self::TakeoverSkips,
        Self::FullPageIsLast,
        Self::TombstonesShown,
        Self::SnapshotPerPage,
        Self::SnapshotsKept,
        Self::TwoReplies,
        Self::NoReply,
        Self::DiskFullAcknowledged,
        Self::DiskFullNeverEnds,
        Self::SlowReplicaAwaited,
        Self::AdmissionSkipped,
        Self::OverloadNeverEnds,
        Self::WriteBackTooSmall,
        Self::RollbackIgnored,
        Self::RebuildTooEarly,
        Self::PendingRepairForgotten,
        Self::PromiseNotDurable,
        Self::AcceptsBelowPromise,
        Self::LostVotesIgnored,
        Self::BallotReused,
        Self::TwoVotersReplaced,
        Self::CopyLeftOut,
        Self::CopyStatedEarly,
        Self::EarlierCopyStated,
        Self::RemovedNodeServes,
        Self::RemovalHidden,
        Self::JoiningIdForgotten,
        Self::AddressOfFormerNode,
    ];
}
