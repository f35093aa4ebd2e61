//! Data directories that were copied from a checkpoint.
//!
//! **Promise.** A copy of the directory of a node with peers is not opened before an operator has
//! decided how to use it ([`prepare_restored`]): it lacks writes that the node acknowledged later,
//! and may hold cells that were deleted since.
//!
//! * [`AfterRestore::Rebuild`]: other nodes continued. The copy becomes a different node with a new
//!   identity, so that no peer relies on what the former one was told or had read. Its answers to
//!   reads count only when it has been filled from its peers, like those of a node that lost its
//!   disk. The copied data is a head start for that, and the only copy of keys that no other node
//!   held. That is valid only as long as the peers certainly keep the deletes made since. So the
//!   copy must be younger than half of the maximum absence, which leaves the other half for the
//!   filling; until the node is filled, its age continues to count from the checkpoint. An older
//!   copy is renamed, and the node begins empty.
//! * [`AfterRestore::Keep`]: no node continued. All were restored together. The identity is kept.
//!   The node can have missed no delete, and it schedules a repair with all peers, because no two
//!   checkpoints are of exactly the same moment. Its record of the peers' generations is cleared:
//!   their checkpoints may be of earlier generations.
//!
//! **Mechanism.** The file `copied` is part of each checkpoint of a node with peers and says
//! "undecided". The decision replaces that. It is carried out when the directory is next opened,
//! and the file is removed last, so that a crash in between repeats it. A standalone node has no
//! peers that could have continued: its copy is opened unchanged.
//!
//! With either decision, the versions issued afterwards are greater than all versions in the copy:
//! the copy contains the bound of the version clock and the greatest version.
//!
//! **Caveats.** A wrong `Keep` is detected only by peers that were not restored and remember a
//! later generation of the node ([`cluster::GenerationHistory`]): they make it rebuild. If all
//! peers were restored or run an older release, they take the node for the one that they know. A
//! quorum of reads may then miss acknowledged writes, and deletes that the peers have dropped may
//! reappear. Checkpoints that are restored together are not compared either. They should be made
//! within days of each other. A delete made in the moments between them may be lost if all are
//! restored after the grace period of tombstones.

use crate::alive_mark::{AfterAbsence, AliveMark};
use crate::directory::{self, SHARD};
use crate::error::StoreError;
use crate::identity::Identity;
use crate::layout_file;
use crate::log_mark;
use crate::sealed::{self, field};

use cluster::{GenerationHistory, LayoutMember, LayoutRecord, NodeRecord, NodeSet, SyncState};
use env::{Env, Fs, OpenMode};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const FILE: &str = "copied";
const HEADER: &str = "veche-copied 1";
const UNDECIDED: &str = "undecided";
const REBUILD: &str = "rebuild";
const KEEP: &str = "keep";

/// What happened to the cluster since the checkpoint that a directory was copied from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterRestore {
    /// Other nodes continued: the node's answers to reads do not count until it is filled from
    /// them.
    Rebuild,
    /// No node continued: the whole cluster is restored together, or the node is standalone.
    Keep,
}

/// Content of the file `copied`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyState {
    Undecided,
    Decided(AfterRestore),
}

/// Prepares a directory that was copied from a checkpoint for a start. It can then be opened like
/// any other. The call may be repeated before that, also with another decision. For a standalone
/// node both decisions are equivalent. Blocks: examines each file.
///
/// Returns the owner of the directory. [`AfterRestore`] describes the effect of `after`.
///
/// # Errors
/// [`StoreError::CopyIncomplete`] if files are missing or truncated, [`StoreError::Locked`] if a
/// process uses the directory; otherwise the file that is corrupt or the refusal of the operating
/// system. The content of tables and the log is checked only by [`verify`](crate::verify()).
pub fn prepare_restored(env: &Env, dir: &Path, after: AfterRestore) -> Result<Identity, StoreError> {
    let fs = &*env.fs;
    let mut identity = load_whole(env, dir)?;
    let _lock = directory::lock(fs, dir)?;
    // A copy in place of a lost shard has another log.
    if identity.has_log_mark {
        identity.has_log_mark = false;
        identity.store(fs, dir)?;
    }
    log_mark::remove(fs, dir)?;
    if has_peers(fs, dir, &identity)? {
        mark(fs, dir, CopyState::Decided(after))?;
    }
    Ok(identity)
}

/// Returns the identity of a directory in which no file is missing.
fn load_whole(env: &Env, dir: &Path) -> Result<Identity, StoreError> {
    let fs = &*env.fs;
    let incomplete =
        |detail: &str| StoreError::CopyIncomplete { path: dir.to_owned(), detail: detail.to_owned() };
    let identity = match Identity::load(fs, dir) {
        Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Err(incomplete("its identity is missing"));
        }
        identity => identity?,
    };
    if has_peers(fs, dir, &identity)? {
        let alive = AliveMark::new(Arc::clone(&env.fs), dir);
        alive
            .absence_at(env.clock.now().wall)?
            .ok_or_else(|| incomplete("it does not say when it was made"))?;
    }
    let shard = dir.join(SHARD);
    for table in engine::checkpoint_tables(&env.fs, &shard)? {
        let path = shard.join("tables").join(&table.file_name);
        let file = fs.open(&path, OpenMode::Read).map_err(StoreError::io("open", &path))?;
        let len = file.len().map_err(StoreError::io("read", &path))?;
        if len != table.file_bytes {
            let (path, whole) = (path.display(), table.file_bytes);
            return Err(incomplete(&format!("{path} has {len} bytes and not {whole}")));
        }
    }
    Ok(identity)
}

/// Records the decision for the copy in `dir` durably.
pub(crate) fn mark(fs: &dyn Fs, dir: &Path, copied: CopyState) -> Result<(), StoreError> {
    sealed::replace(fs, dir, FILE, &text(copied))
}

/// The decision for `dir`, if it is a copy that was not opened since.
pub(crate) fn find(fs: &dyn Fs, dir: &Path) -> Result<Option<AfterRestore>, StoreError> {
    let path = dir.join(FILE);
    if !fs.exists(&path).map_err(StoreError::io("look for", &path))? {
        return Ok(None);
    }
    match decode(&sealed::read(fs, &path)?) {
        Ok(CopyState::Decided(after)) => Ok(Some(after)),
        Ok(CopyState::Undecided) => Err(StoreError::CopyUndecided { path: dir.to_owned() }),
        Err(detail) => Err(StoreError::CopiedCorrupt { path, detail }),
    }
}

/// Records durably that the decision for `dir` is carried out.
pub(crate) fn forget(fs: &dyn Fs, dir: &Path) -> Result<(), StoreError> {
    let path = dir.join(FILE);
    fs.remove_file(&path).map_err(StoreError::io("remove", &path))?;
    fs.sync_dir(dir).map_err(StoreError::io("sync", dir))
}

impl AfterRestore {
    /// Maximum age of a copy whose data may be used, if a node may be absent for `away_max`.
    pub(crate) fn age_max(self, away_max: Duration) -> Duration {
        match self {
            Self::Rebuild => away_max / 2,
            Self::Keep => away_max,
        }
    }

    /// Policy for an older copy.
    pub(crate) const fn after_absence(self) -> AfterAbsence {
        match self {
            Self::Rebuild => AfterAbsence::Rebuild,
            Self::Keep => AfterAbsence::Keep,
        }
    }

    /// Derives the node record from `record`, which the copy contains. `peers`: all other nodes.
    pub(crate) fn record(self, record: NodeRecord, peers: NodeSet) -> NodeRecord {
        let revision = record.revision + 1;
        match self {
            Self::Rebuild => NodeRecord {
                revision,
                sync_state: SyncState::Rebuilding,
                own_generations: GenerationHistory::default(),
                unheard: NodeSet::EMPTY,
                ..record
            },
            Self::Keep => {
                let repair_pending = record.repair_pending.union(peers);
                NodeRecord { revision, repair_pending, peer_generations: BTreeMap::new(), ..record }
            }
        }
    }
}

/// All nodes except this one.
///
/// `record` names the members. The identity has those of the first start of the directory.
pub(crate) fn peers_of(record: &LayoutRecord, identity: &Identity) -> NodeSet {
    let own = layout_file::membership_of(record, identity).own;
    let is_own =
        |member: &LayoutMember| member.node_id == Some(identity.tag) || own.as_ref() == Some(&member.url);
    let peers = record.members.iter().filter(|member| !is_own(member)).map(|member| member.slot);
    if record.members.len() > 1 { peers.collect() } else { NodeSet::EMPTY }
}

/// Whether the node of the directory `dir` has peers: by its layout record, or by its identity if
/// it has none.
pub(crate) fn has_peers(fs: &dyn Fs, dir: &Path, identity: &Identity) -> Result<bool, StoreError> {
    let record = layout_file::find(fs, dir)?;
    Ok(record.map_or_else(|| identity.membership.has_peers(), |record| record.members.len() > 1))
}

fn text(copied: CopyState) -> String {
    let after = match copied {
        CopyState::Undecided => UNDECIDED,
        CopyState::Decided(AfterRestore::Rebuild) => REBUILD,
        CopyState::Decided(AfterRestore::Keep) => KEEP,
    };
    format!("{HEADER}\nafter {after}\n")
}

fn decode(bytes: &[u8]) -> Result<CopyState, String> {
    let body = sealed::unseal(bytes, HEADER)?;
    match field(body.lines().next(), "after")? {
        UNDECIDED => Ok(CopyState::Undecided),
        REBUILD => Ok(CopyState::Decided(AfterRestore::Rebuild)),
        KEEP => Ok(CopyState::Decided(AfterRestore::Keep)),
        other => Err(format!("{other:?} is no decision")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Membership;
    use cluster::{ClusterOrigin, NodeIndex};
    use stdx::NodeTag;

    /// The first release with checkpoints wrote these bytes. Every later release must read them.
    #[test]
    fn the_file_format_is_stable() {
        let files = [
            (CopyState::Undecided, "veche-copied 1\nafter undecided\ncrc32c 5f5ccd1b\n"),
            (CopyState::Decided(AfterRestore::Rebuild), "veche-copied 1\nafter rebuild\ncrc32c 37bb0f56\n"),
            (CopyState::Decided(AfterRestore::Keep), "veche-copied 1\nafter keep\ncrc32c cba6e25b\n"),
        ];
        for (copied, bytes) in files {
            assert_eq!(String::from_utf8_lossy(&sealed::seal(&text(copied))), bytes);
            assert_eq!(decode(bytes.as_bytes()), Ok(copied));
        }
    }

    #[test]
    fn every_flipped_bit_and_truncation_is_detected() {
        let bytes = sealed::seal(&text(CopyState::Undecided));
        sealed::assert_finds_damage(&bytes, decode);
    }

    #[test]
    fn all_other_nodes_are_peers() {
        let nodes = ["http://a:1", "http://b:1", "http://c:1"].map(str::to_owned).to_vec();
        let identity =
            |own: &str| Identity::without_log_mark(NodeTag(9), Membership::of(nodes.clone()).seen_by(own));
        let of = |nodes: Vec<String>| {
            let origin =
                ClusterOrigin { nodes, partitions: 4, hash_version: 1, default_from: 1, tag: NodeTag(9) };
            LayoutRecord::first(origin).expect("a cluster")
        };
        let set = |indexes: &[u8]| indexes.iter().copied().map(NodeIndex).collect::<NodeSet>();
        let mut record = of(nodes.clone());
        assert_eq!(peers_of(&record, &identity("http://b:1")), set(&[0, 2]), "by its address");
        record.members[2].node_id = Some(NodeTag(9));
        assert_eq!(peers_of(&record, &identity("http://moved:1")), set(&[0, 1]), "by its id");
        record.members.remove(0);
        assert_eq!(peers_of(&record, &identity("http://c:1")), set(&[1]), "slots, not positions");
        assert_eq!(peers_of(&of(Vec::new()), &identity("http://a:1")), NodeSet::EMPTY, "it is alone");
    }
}
