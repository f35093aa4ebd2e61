//! Data directories that were copied from a checkpoint.
//!
//! **Promise.** A copy of the directory of a node with peers is not opened before an operator has decided what happened
//! since ([`prepare_restored`]): it lacks writes that the node acknowledged later, and may hold what was deleted since.
//!
//! * [`AfterRestore::Rebuild`]: other nodes went on. The node is another one to them: it draws a new identity, so that
//!   no peer counts on what the former one was told or had read. Its answers to reads count only when it has been
//!   filled from its peers, like those of a node that lost its disk. What was copied is a head start for that, and the
//!   only copy of keys that no other node held, as long as the peers surely keep the deletes made since: the copy must
//!   be younger than half of the time after which a node that was away does not come back with its data, so that the
//!   other half is left to be filled in; until it is filled its age goes on to count from the checkpoint. An older copy is set aside, and the node begins empty.
//! * [`AfterRestore::Keep`]: no node went on. All were restored together. The identity is kept, there is no delete it
//!   could have missed, and it owes all peers a repair, for no two checkpoints are of quite the same moment. What it
//!   remembers of the peers' lives is forgotten: their checkpoints may be of earlier lives.
//!
//! **Mechanism.** The file `copied` comes with each checkpoint of a node with peers and says "undecided". The decision
//! replaces that. It is carried out when the directory is next opened, and the file goes last, so that a crash in
//! between carries it out once more. A node on its own has nobody who could have gone on without it: its copy is
//! opened as it is.
//!
//! Whatever is decided, the versions that are issued then are greater than all that are in the copy: the bound of the
//! version clock is in it, as the greatest version is.
//!
//! **Caveats.** A wrong `Keep` is noticed only by peers that were not restored and remember a later life of the node
//! ([`cluster::GenerationHistory`]): they make it rebuild. Where all peers were restored or are of an older release, they take
//! the node for the one that they know: a quorum of reads may then miss acknowledged writes, and deletes that the peers
//! have forgotten come back. Nor are checkpoints compared that are restored together: they
//! should be made within days of each other, and a delete made in the moments between them may be lost where all are
//! restored after the grace period of tombstones.

use crate::alive::Alive;
use crate::claimed::AfterAbsence;
use crate::directory::{self, SHARD};
use crate::error::StoreError;
use crate::identity::{Identity, Membership};
use crate::log_mark;
use crate::sealed::{self, field};

use cluster::{GenerationHistory, NODES_MAX, NodeIndex, NodeRecord, NodeSet, SyncState};
use engine::manifest::Manifest;
use engine::sstable::file_name;
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

/// What became of the cluster since the checkpoint was made that a directory was copied from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterRestore {
    /// Other nodes went on: the node is not believed until it has been filled from them.
    Rebuild,
    /// None did: the whole cluster is restored together, or the node is on its own.
    Keep,
}

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied {
    Undecided,
    Decided(AfterRestore),
}

/// Makes a directory startable that was copied from a checkpoint. It is opened as any other then; may be called again
/// before, also with another decision. Of a node on its own both decisions are the same. Blocks: looks at each file.
///
/// Returns whose directory it is; see the module for what `after` makes of it.
///
/// # Errors
/// [`StoreError::CopyIncomplete`] when files are missing or cut short, [`StoreError::Locked`] when a process has it; else
/// what is corrupt or refused by the operating system. Their bytes are checked by [`verify`](crate::verify()) only.
pub fn prepare_restored(env: &Env, dir: &Path, after: AfterRestore) -> Result<Identity, StoreError> {
    let fs = &*env.fs;
    let mut identity = load_whole(env, dir)?;
    let _lock = directory::lock(fs, dir)?;
    // What was copied into the place of a lost shard has another log.
    if identity.has_log_mark {
        identity.has_log_mark = false;
        identity.store(fs, dir)?;
    }
    log_mark::remove(fs, dir)?;
    if identity.membership.has_peers() {
        mark(fs, dir, Copied::Decided(after))?;
    }
    Ok(identity)
}

/// The identity of a directory in which no file is missing.
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
    if identity.membership.has_peers() {
        let alive = Alive::new(Arc::clone(&env.fs), dir);
        alive
            .away_for(env.clock.now().wall)?
            .ok_or_else(|| incomplete("it does not say when it was made"))?;
    }
    let shard = dir.join(SHARD);
    let recovered = Manifest::inspect(&env.fs, &shard)?;
    for (_, meta) in &recovered.tables {
        let path = shard.join("tables").join(file_name(meta.id));
        let file = fs.open(&path, OpenMode::Read).map_err(StoreError::io("open", &path))?;
        let len = file.len().map_err(StoreError::io("read", &path))?;
        if len != meta.file_bytes {
            let (path, whole) = (path.display(), meta.file_bytes);
            return Err(incomplete(&format!("{path} has {len} bytes and not {whole}")));
        }
    }
    Ok(identity)
}

/// Makes durable what is decided for the copy in `dir`.
pub(crate) fn mark(fs: &dyn Fs, dir: &Path, copied: Copied) -> Result<(), StoreError> {
    sealed::replace(fs, dir, FILE, &text(copied))
}

/// What is decided for `dir`, if it is a copy that was not opened since.
pub(crate) fn find(fs: &dyn Fs, dir: &Path) -> Result<Option<AfterRestore>, StoreError> {
    let path = dir.join(FILE);
    if !fs.exists(&path).map_err(StoreError::io("look for", &path))? {
        return Ok(None);
    }
    match decode(&sealed::read(fs, &path)?) {
        Ok(Copied::Decided(after)) => Ok(Some(after)),
        Ok(Copied::Undecided) => Err(StoreError::CopyUndecided { path: dir.to_owned() }),
        Err(detail) => Err(StoreError::CopiedCorrupt { path, detail }),
    }
}

/// Notes, durably, that what was decided for `dir` is carried out.
pub(crate) fn forget(fs: &dyn Fs, dir: &Path) -> Result<(), StoreError> {
    let path = dir.join(FILE);
    fs.remove_file(&path).map_err(StoreError::io("remove", &path))?;
    fs.sync_dir(dir).map_err(StoreError::io("sync", dir))
}

impl AfterRestore {
    /// How old the copy may be if its data is to be kept, where a node may have been away for `away_max`.
    pub(crate) fn age_max(self, away_max: Duration) -> Duration {
        match self {
            Self::Rebuild => away_max / 2,
            Self::Keep => away_max,
        }
    }

    /// What becomes of a copy that is older.
    pub(crate) const fn after_absence(self) -> AfterAbsence {
        match self {
            Self::Rebuild => AfterAbsence::Rebuild,
            Self::Keep => AfterAbsence::Keep,
        }
    }

    /// What the node is to remember, of which the copy says `record`.
    pub(crate) fn record(self, record: NodeRecord, membership: &Membership) -> NodeRecord {
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
                let repair_pending = record.repair_pending.union(peers_of(membership));
                NodeRecord { revision, repair_pending, peer_generations: BTreeMap::new(), ..record }
            }
        }
    }
}

/// All nodes but the one itself.
pub(crate) fn peers_of(membership: &Membership) -> NodeSet {
    let is_peer = |name: &String| Some(name) != membership.own.as_ref();
    let nodes = (0..NODES_MAX as u8).map(NodeIndex).zip(&membership.nodes);
    nodes.filter(|(_, name)| is_peer(name)).map(|(node, _)| node).collect()
}

fn text(copied: Copied) -> String {
    let after = match copied {
        Copied::Undecided => UNDECIDED,
        Copied::Decided(AfterRestore::Rebuild) => REBUILD,
        Copied::Decided(AfterRestore::Keep) => KEEP,
    };
    format!("{HEADER}\nafter {after}\n")
}

fn decode(bytes: &[u8]) -> Result<Copied, String> {
    let body = sealed::unseal(bytes, HEADER)?;
    match field(body.lines().next(), "after")? {
        UNDECIDED => Ok(Copied::Undecided),
        REBUILD => Ok(Copied::Decided(AfterRestore::Rebuild)),
        KEEP => Ok(Copied::Decided(AfterRestore::Keep)),
        other => Err(format!("{other:?} is no decision")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes of the first release that made checkpoints wrote these bytes; they must be read for ever.
    #[test]
    fn the_file_is_what_it_was() {
        let files = [
            (Copied::Undecided, "veche-copied 1\nafter undecided\ncrc32c 5f5ccd1b\n"),
            (Copied::Decided(AfterRestore::Rebuild), "veche-copied 1\nafter rebuild\ncrc32c 37bb0f56\n"),
            (Copied::Decided(AfterRestore::Keep), "veche-copied 1\nafter keep\ncrc32c cba6e25b\n"),
        ];
        for (copied, bytes) in files {
            assert_eq!(String::from_utf8_lossy(&sealed::seal(&text(copied))), bytes);
            assert_eq!(decode(bytes.as_bytes()), Ok(copied));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let bytes = sealed::seal(&text(Copied::Undecided));
        sealed::assert_finds_damage(&bytes, decode);
    }

    #[test]
    fn all_other_nodes_are_peers() {
        let names = ["http://a:1", "http://b:1", "http://c:1"].map(str::to_owned);
        let membership = Membership::of(names.to_vec());
        let set = |indexes: &[u8]| indexes.iter().copied().map(NodeIndex).collect::<NodeSet>();
        assert_eq!(peers_of(&membership.seen_by("http://b:1")), set(&[0, 2]));
    }
}
