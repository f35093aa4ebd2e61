//! Bugs that are put in to see them caught.
//!
//! All of them are made in the layer between the shipped machines and the world (`host`), so that the shipped
//! code holds nothing of them.

/// A bug to put into every host of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Plant {
    /// A write is acknowledged when it is handed to the engine, before the sync.
    AckBeforeSync,
    /// A read returns what a crash can still undo.
    ReadBeforeSync,
    /// The cell that arrives last is the one that is read, whatever its version.
    LastArrivalWins,
    /// One answer is enough for a read, whatever was asked for.
    ReadOfOne,
    /// One replica fewer than asked for is enough for a write.
    QuorumOffByOne,
    /// Hints are acknowledged and not kept.
    HintLost,
    /// A directory that replaces a lost one is taken for complete.
    EmptyReplicaServesReads,
    /// A rebuild is answered with nothing.
    RebuildSkipped,
    /// What a damaged table has lost is given up and nobody is asked for it.
    HealingSkipped,
    /// Tables are not scrubbed.
    ScrubSkipped,
    /// Anti-entropy is answered with "the same here".
    RepairSkipped,
    /// What a read found is not stored where it lacks.
    ReadRepairSkipped,
    /// Each I/O thread has a clock of its own.
    ClockPerThread,
    /// The clocks that frames carry are not observed.
    FrameClocksIgnored,
    /// Compaction drops tombstones without waiting for the grace period, or for the peers to have exchanged them.
    TombstoneDroppedEarly,
    /// Compaction judges expiry and grace periods by the wall clock of its own node alone.
    ExpiryByOwnClock,
    /// A pull stores the cells of its sources whatever their versions.
    PullsUnchecked,
    /// Replicas outside of a write's `from` are written to as well.
    ExtraReplica,
    /// The answers of checkers of a scan are taken for "the same here".
    ScanChecksIgnored,
    /// A replica that takes over in a scan resumes behind the next key.
    TakeoverSkips,
    /// A page of a scan that is full is taken for the end of the range.
    FullPageIsLast,
    /// The tombstones of a scan are taken for values.
    TombstonesShown,
    /// Each page of a scan comes out of a snapshot of its own.
    SnapshotPerPage,
    /// Stores do not let go of snapshots.
    SnapshotsKept,
    /// A command is answered twice.
    TwoReplies,
    /// Some commands are never answered.
    NoReply,
    /// A write that finds no room is acknowledged.
    DiskFullAcknowledged,
    /// A disk that was full once is taken for full for good.
    DiskFullNeverEnds,
    /// A write waits for all replicas, whatever was asked for.
    SlowReplicaAwaited,
    /// No command is refused for what is under way.
    AdmissionSkipped,
    /// Who was too busy once is too busy for good.
    OverloadNeverEnds,
    /// Of the other replicas that a read must write a version back to, it writes to one only.
    WriteBackTooSmall,
    /// What peers remember of a node's generation is not heard.
    RollbackIgnored,
    /// A rebuild begins at once, while writes that count acknowledgements of the lost disk are under way.
    RebuildTooEarly,
    /// The node's record does not keep that a repair is owed.
    PendingRepairForgotten,
}

impl Plant {
    /// All of them.
    pub const ALL: [Self; 35] = [
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
    ];
}
