//! Results of writes, and the callback that receives them.

use super::times::CommitTimes;
use crate::Error;
use bytes::Bytes;
use stdx::Version;

/// Result of a committed batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitOutcome {
    /// Positions in the batch, in ascending order, of cells whose key already had a greater version
    /// in the active memtable. Older memtables and tables are not searched. A greater version
    /// counts even if its own group failed on a full disk.
    pub superseded: Vec<u32>,
    /// The other cells that may have been superseded by older memtables or tables, which hold a
    /// version at least as great, of this or another key. A read of the key decides. Cells of local
    /// keys are left out.
    pub possibly_superseded: Vec<PossiblySuperseded>,
    /// Timestamps of the commit stages of its group; the default for an empty batch.
    pub times: CommitTimes,
}

/// A cell for which the commit does not determine whether a greater version existed already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PossiblySuperseded {
    /// Position of the cell in the batch.
    pub position: u32,
    /// Key of the cell.
    pub key: Bytes,
    /// Version of the cell.
    pub version: Version,
}

/// Called once with the result of a batch, usually by the commit thread, which holds the log. So it
/// must be quick, and must not commit or call [`Engine::write`](crate::Engine::write).
///
/// It should not panic. If it does, the other batches of its group are completed all the same; then
/// the panic resumes on the commit thread.
pub type Completion = Box<dyn FnOnce(Result<CommitOutcome, Error>) + Send>;
