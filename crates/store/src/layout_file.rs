//! The file `layout`: the newest layout record that the node has adopted.
//!
//! **Promise.** A data directory with an identity has a layout record from its first start with
//! this release on. A start finds the newest record that was ever adopted here, whole, after a
//! crash at any operation. A record is adopted ([`LayoutFile::adopt`]) only if it belongs to the
//! cluster of the present one and is newer, and it is durable before it is used.
//!
//! **Mechanism.** The file contains the bytes of the record, which have a checksum, and is replaced
//! like a [sealed file](crate::sealed). A new directory gets the record before its identity: a
//! record without an identity belongs to a start that did not finish, and is replaced. A directory
//! with an identity and without a record was last used by an earlier release, which computed the
//! layout at each start. Its epoch 1 is built from the list in the identity, and from the default
//! number of replicas that the node is started with.
//!
//! **The first peer.** A node that was alone does not record when it was alive. Before the record
//! that names its first peer is durable, the file `alive` is. So its next start knows how long it
//! was absent.
//!
//! **Caveats.** A directory whose record was removed cannot be told from one of an earlier release.
//! Its epoch 1 is built again. Peers refuse the node if that is another record than theirs.

use crate::alive_mark::AliveMark;
use crate::error::StoreError;
use crate::identity::{Identity, Membership};
use crate::pause::PauseDetector;
use crate::sealed;
use cluster::{ClusterOrigin, LayoutRecord, default_from_of_new_cluster};
use env::{Clock, Env, Fs};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use stdx::NodeTag;

/// Name of the file.
pub const LAYOUT_FILE: &str = "layout";

/// The cluster that a data directory belongs to, as far as the directory knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryCluster {
    /// None: the directory is new.
    New,
    /// The node list of an earlier release, which stored no layout record.
    Listed(Membership),
    /// The members of the layout record, and its default number of replicas.
    Recorded(Membership),
    /// The same, of a record that names the id of the directory: the node is the member `own` at
    /// whatever address it is reached.
    Named(Membership),
}

impl DirectoryCluster {
    /// Looks up the cluster of the data directory `dir`, which need not exist or be locked.
    ///
    /// # Errors
    /// [`StoreError`] if the identity or the layout record is corrupt or cannot be read, or if the
    /// record is that of another cluster.
    pub fn find(env: &Env, dir: &Path) -> Result<Self, StoreError> {
        let fs = &*env.fs;
        match Identity::exists(fs, dir) {
            Ok(true) => {}
            Ok(false) => return Ok(Self::New),
            // A path that is no directory is reported when it is locked.
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotADirectory => {
                return Ok(Self::New);
            }
            Err(error) => return Err(error),
        }
        let identity = Identity::load(fs, dir)?;
        Ok(match find(fs, dir)? {
            Some(record) => {
                check_member(dir, &record, &identity)?;
                let membership = membership_of(&record, &identity);
                match named_url(&record, &identity) {
                    Some(_) => Self::Named(membership),
                    None => Self::Recorded(membership),
                }
            }
            None => Self::Listed(identity.membership),
        })
    }

    /// Default number of replicas of a cluster of `nodes` if the operator does not choose it: an
    /// existing directory keeps the one that it ran with.
    pub fn default_from(&self, nodes: u8) -> u8 {
        match self {
            Self::New => default_from_if_unset(nodes, false),
            Self::Listed(_) => default_from_if_unset(nodes, true),
            Self::Recorded(membership) | Self::Named(membership) => membership.default_from.unwrap_or(nodes),
        }
    }
}

/// The layout record of the data directory `dir`, or of a copy of one, and the cluster that it
/// describes as the node of the directory sees it. `None`: an earlier release made the directory.
///
/// # Errors
/// [`StoreError`] if the identity or the record is corrupt or cannot be read.
pub fn recorded_layout(fs: &dyn Fs, dir: &Path) -> Result<Option<(LayoutRecord, Membership)>, StoreError> {
    let identity = Identity::load(fs, dir)?;
    let record = find(fs, dir)?;
    Ok(record.map(|record| {
        let membership = membership_of(&record, &identity);
        (record, membership)
    }))
}

/// Default number of replicas in epoch 1. Earlier releases had the number of nodes.
const fn default_from_if_unset(nodes: u8, is_listed: bool) -> u8 {
    if is_listed { nodes } else { default_from_of_new_cluster(nodes) }
}

/// Loads the record in `dir`, if there is one.
pub(crate) fn find(fs: &dyn Fs, dir: &Path) -> Result<Option<LayoutRecord>, StoreError> {
    let path = dir.join(LAYOUT_FILE);
    if !fs.exists(&path).map_err(StoreError::io("look for", &path))? {
        return Ok(None);
    }
    let bytes = sealed::read(fs, &path)?;
    let corrupt = |detail: String| StoreError::LayoutCorrupt { path: path.clone(), detail };
    LayoutRecord::decode(&bytes).map(Some).map_err(|error| corrupt(error.to_string()))
}

/// Stores `record` in `dir` durably.
pub(crate) fn store(fs: &dyn Fs, dir: &Path, record: &LayoutRecord) -> Result<(), StoreError> {
    sealed::replace_bytes(fs, dir, LAYOUT_FILE, &record.encode())
}

/// Builds epoch 1 for a directory without a record and stores it durably. `is_listed`: the
/// directory is not new, and an earlier release has used it.
///
/// # Errors
/// Also if `membership` is no cluster of this release.
pub(crate) fn create(
    fs: &dyn Fs,
    dir: &Path,
    membership: &Membership,
    is_listed: bool,
    tag: NodeTag,
) -> Result<LayoutRecord, StoreError> {
    let Membership { nodes, own: _, partitions, hash_version, default_from } = membership.clone();
    let count = nodes.len().max(1) as u8;
    let default_from = default_from.unwrap_or_else(|| default_from_if_unset(count, is_listed));
    let record = LayoutRecord::first(ClusterOrigin { nodes, partitions, hash_version, default_from, tag })
        .map_err(|error| StoreError::LayoutRefused { detail: error.to_string() })?;
    store(fs, dir, &record)?;
    Ok(record)
}

/// The URL of the member whose node id is the tag of `identity`. It changes with the records; the
/// URL in the identity is the one at which the directory was made.
fn named_url<'a>(record: &'a LayoutRecord, identity: &Identity) -> Option<&'a str> {
    let member = record.members.iter().find(|member| member.node_id == Some(identity.tag));
    member.map(|member| member.url.as_str()).filter(|url| !url.is_empty())
}

/// Checks that the node with this identity is a member of `record`, which is in `dir`: the record
/// names its id, or has a member at the address for which the directory was made. A directory of a
/// cluster that was made without an address of its own is not judged: all its members may have
/// moved since.
///
/// # Errors
/// [`StoreError::ForeignLayout`], or [`StoreError::RemovedNode`] if the record refuses the node for
/// ever.
pub(crate) fn check_member(dir: &Path, record: &LayoutRecord, identity: &Identity) -> Result<(), StoreError> {
    if record.has_removed(identity.tag) {
        return Err(StoreError::RemovedNode { path: dir.to_owned(), epoch: record.epoch });
    }
    let Membership { nodes, own, .. } = &identity.membership;
    let is_member = record.members.iter().any(|member| {
        member.node_id == Some(identity.tag) || own.as_ref().is_some_and(|own| member.url == *own)
    });
    let is_alone = nodes.is_empty() && record.members.len() > 1;
    if is_member || own.is_none() && !is_alone {
        return Ok(());
    }
    let urls = record.members.iter().map(|member| member.url.as_str()).filter(|url| !url.is_empty());
    let urls: Vec<_> = urls.collect();
    Err(StoreError::ForeignLayout {
        path: dir.join(LAYOUT_FILE),
        cluster: record.cluster,
        members: if urls.is_empty() { "one node without an address".to_owned() } else { urls.join(", ") },
        own: own.clone().unwrap_or_else(|| "a node on its own".to_owned()),
    })
}

/// The identity of the node with this id, which `record` names or which takes the place of the
/// member at the URL `own`, before it has data.
pub(crate) fn identity_of(record: &LayoutRecord, tag: NodeTag, own: &str) -> Identity {
    let membership = Membership { own: Some(own.to_owned()), ..Membership::of(Vec::new()) };
    let unnamed = Identity::without_log_mark(tag, membership);
    Identity::without_log_mark(tag, membership_of(record, &unnamed))
}

/// The cluster of `record`, seen by the node with this identity.
pub(crate) fn membership_of(record: &LayoutRecord, identity: &Identity) -> Membership {
    let urls = record.members.iter().map(|member| member.url.clone()).filter(|url| !url.is_empty());
    Membership {
        nodes: urls.collect(),
        own: named_url(record, identity).map(str::to_owned).or_else(|| identity.membership.own.clone()),
        partitions: record.partitions(),
        hash_version: record.hash_version,
        default_from: Some(record.default_from),
    }
}

/// The layout record of an open data directory.
pub(crate) struct LayoutFile {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    current: Mutex<Arc<LayoutRecord>>,
    first_peer: FirstPeer,
}

/// What has to be durable before a node that was alone has a peer: that it has missed nothing until
/// now. Otherwise its next start would not know for how long it was absent.
pub(crate) struct FirstPeer {
    pub(crate) tag: NodeTag,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) alive: Arc<AliveMark>,
    pub(crate) pauses: Arc<PauseDetector>,
}

impl FirstPeer {
    fn prepare(&self, record: &LayoutRecord) -> Result<(), StoreError> {
        self.alive.note(self.clock.now().wall)?;
        let peers = record.members.iter().filter(|member| member.node_id != Some(self.tag));
        self.pauses.begin(peers.map(|member| member.slot).collect());
        Ok(())
    }
}

impl LayoutFile {
    pub(crate) fn new(fs: Arc<dyn Fs>, dir: &Path, record: LayoutRecord, first_peer: FirstPeer) -> Self {
        Self { fs, dir: dir.to_owned(), current: Mutex::new(Arc::new(record)), first_peer }
    }

    /// The record that was adopted last.
    pub(crate) fn current(&self) -> Arc<LayoutRecord> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adopts a decided record. When this returns, the record is durable and
    /// [`LayoutFile::current`] returns it.
    ///
    /// # Errors
    /// [`StoreError::LayoutRefused`] if the record does not follow the present one, or another
    /// epoch 1 of the same cluster in its place; otherwise the refusal of the operating system. The
    /// present record is unchanged.
    pub(crate) fn adopt(&self, record: Arc<LayoutRecord>) -> Result<Arc<LayoutRecord>, StoreError> {
        // Held until the record is durable, so that of two records the newer one stays.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = record.verify_newer(&current)
            && !record.follows_other_first(&current)
        {
            return Err(StoreError::LayoutRefused { detail: error.to_string() });
        }
        if current.members.len() == 1 && record.members.len() > 1 {
            self.first_peer.prepare(&record)?;
        }
        store(&*self.fs, &self.dir, &record)?;
        *current = record;
        Ok(Arc::clone(&current))
    }
}
