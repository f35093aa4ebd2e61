//! The data directory of a node that joins a cluster.
//!
//! **Promise.** A node asks to be a member by the same id at every attempt, whatever crashes. So a
//! join that is repeated adds one member. Its directory has the layout record that names the node
//! before it has an identity, and the first start in it keeps that identity.
//!
//! **Mechanism.** The file `joining` is durable before the node asks. It has the id, and what the
//! operator has said, so that a later start needs no flag. When the record is decided, it becomes
//! the file `layout`, and then the identity is written: from then on this is a directory like
//! others. An identity without data is otherwise replaced by another one (see `identity`). As long
//! as the file `joining` has the id and there is no log mark, the node has acknowledged nothing,
//! and the id stays. The file is removed once there is one, or if the cluster refuses the first
//! request.
//!
//! **Caveats.** If the directory is removed after the record was decided, the member that it names
//! never starts. An operator removes it like any other.

use crate::directory::{self, SHARD};
use crate::error::StoreError;
use crate::identity::{HASH_VERSION, IDENTITY_FILE, Identity};
use crate::layout_file;
use crate::sealed::{self, field, number};
use cluster::{ClusterId, LayoutMember, LayoutRecord};
use env::{DirLock, Env, Fs};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stdx::NodeTag;

const FILE: &str = "joining";
const HEADER: &str = "veche-joining 1";

/// The request of a node to become a member, as its directory keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRequest {
    /// The URL of a member.
    pub member: String,
    /// The URL at which the peers reach this node.
    pub own: String,
    /// Its failure domain; empty for none.
    pub zone: String,
    /// Its weight.
    pub weight: u16,
}

/// A directory, locked, whose node is to be a member.
pub struct JoiningDirectory {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    tag: NodeTag,
    /// The URL of this node.
    own: String,
    /// No earlier start has asked by the id.
    is_new: bool,
    _lock: Box<dyn DirLock>,
}

impl JoinRequest {
    /// The request that an earlier start in `dir` has not completed.
    ///
    /// # Errors
    /// [`StoreError`] if it cannot be read.
    pub fn unfinished(env: &Env, dir: &Path) -> Result<Option<Self>, StoreError> {
        let fs = &*env.fs;
        let found = match find(fs, dir) {
            // A path that is no directory is reported when it is locked.
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotADirectory => None,
            found => found?,
        };
        match found {
            Some((_, request)) if !Identity::exists(fs, dir)? => Ok(Some(request)),
            _ => Ok(None),
        }
    }

    fn text(&self, tag: NodeTag) -> String {
        let Self { member, own, zone, weight } = self;
        format!("{HEADER}\ntag {:016x}\nmember {member}\nself {own}\nweight {weight}\nzone {zone}\n", tag.0)
    }

    /// Inverse of the stored form; the error describes the defect.
    fn decode(bytes: &[u8]) -> Result<(NodeTag, Self), String> {
        let mut lines = sealed::unseal(bytes, HEADER)?.lines();
        let tag = field(lines.next(), "tag")?;
        let tag = u64::from_str_radix(tag, 16).map_err(|_| format!("{tag:?} is not a tag"))?;
        let member = field(lines.next(), "member")?.to_owned();
        let own = field(lines.next(), "self")?.to_owned();
        let weight = number(lines.next(), "weight")?;
        let zone = field(lines.next(), "zone")?.to_owned();
        Ok((NodeTag(tag), Self { member, own, zone, weight }))
    }
}

fn find(fs: &dyn Fs, dir: &Path) -> Result<Option<(NodeTag, JoinRequest)>, StoreError> {
    let path = dir.join(FILE);
    if !fs.exists(&path).map_err(StoreError::io("look for", &path))? {
        return Ok(None);
    }
    let bytes = sealed::read(fs, &path)?;
    let corrupt = |detail| StoreError::JoiningCorrupt { path: path.clone(), detail };
    JoinRequest::decode(&bytes).map(Some).map_err(corrupt)
}

/// The id with which the node of `dir` has joined, while it has acknowledged nothing: that of the
/// identity `found`, which has no log mark.
pub(crate) fn kept_tag(
    fs: &dyn Fs,
    dir: &Path,
    found: Option<&Identity>,
) -> Result<Option<NodeTag>, StoreError> {
    let Some(identity) = found.filter(|identity| !identity.has_log_mark) else { return Ok(None) };
    let joined = find(fs, dir)?.map(|(tag, _)| tag);
    Ok(joined.filter(|tag| *tag == identity.tag))
}

/// Removes the request, which is complete.
pub(crate) fn forget(fs: &dyn Fs, dir: &Path) -> Result<(), StoreError> {
    let path = dir.join(FILE);
    match fs.remove_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| fs.sync_dir(dir)).map_err(StoreError::io("remove", &path)),
    }
}

/// The cluster of the layout record in `dir`, if there is one.
///
/// # Errors
/// [`StoreError`] if it cannot be read.
pub fn cluster_of(env: &Env, dir: &Path) -> Result<Option<ClusterId>, StoreError> {
    Ok(layout_file::find(&*env.fs, dir)?.map(|record| record.cluster))
}

impl JoiningDirectory {
    /// Locks `dir`, creates it if it is missing, and keeps `request` in it. `new_tag`: 64 random
    /// bits for the id, unless an earlier attempt has chosen one.
    ///
    /// # Errors
    /// [`StoreError`] if the directory is in use or has an identity or data, or if the operating
    /// system refuses an operation.
    pub fn begin(env: &Env, dir: &Path, request: &JoinRequest, new_tag: NodeTag) -> Result<Self, StoreError> {
        let fs = &*env.fs;
        directory::create(fs, dir)?;
        let lock = directory::lock(fs, dir)?;
        directory::warn_if_shared(fs, dir);
        let shard = dir.join(SHARD);
        let has_shard = fs.exists(&shard).map_err(StoreError::io("look for", &shard))?;
        if has_shard || Identity::exists(fs, dir)? {
            return Err(StoreError::IdentityMissing { path: dir.join(IDENTITY_FILE) });
        }
        let earlier = find(fs, dir)?;
        let tag = earlier.as_ref().map_or(new_tag, |(tag, _)| *tag);
        let is_new = earlier.is_none();
        if earlier.is_none_or(|(_, earlier)| earlier != *request) {
            sealed::replace(fs, dir, FILE, &request.text(tag))?;
        }
        Ok(Self {
            fs: Arc::clone(&env.fs),
            dir: dir.to_owned(),
            tag,
            own: request.own.clone(),
            is_new,
            _lock: lock,
        })
    }

    /// Forgets the request, which no member has carried out or will. A request of an earlier start
    /// is kept, because that start may have been cut off after it had asked.
    ///
    /// # Errors
    /// [`StoreError`] if the operating system refuses an operation.
    pub fn withdraw(self) -> Result<(), StoreError> {
        if self.is_new { forget(&*self.fs, &self.dir) } else { Ok(()) }
    }

    /// The id of the node.
    pub const fn tag(&self) -> NodeTag {
        self.tag
    }

    /// Gives the directory the decided `record`, which names the node, and then its identity. If
    /// the record has another node at the URL of this one instead, this node takes its place.
    ///
    /// # Errors
    /// [`StoreError`] if the record has no such member, or has another version of the key hash, or
    /// if the operating system refuses an operation.
    pub fn complete(self, record: &LayoutRecord) -> Result<(), StoreError> {
        let (fs, dir) = (&*self.fs, &*self.dir);
        let refused = |detail: String| Err(StoreError::LayoutRefused { detail });
        let is_own = |member: &LayoutMember| member.node_id == Some(self.tag) || member.url == self.own;
        if !record.members.iter().any(is_own) {
            return refused("it does not have this node as a member".to_owned());
        }
        if record.hash_version != HASH_VERSION {
            let version = record.hash_version;
            return refused(format!(
                "it has version {version} of the key hash, and this build {HASH_VERSION}"
            ));
        }
        layout_file::store(fs, dir, record)?;
        layout_file::identity_of(record, self.tag, &self.own).store(fs, dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> JoinRequest {
        let [member, own] = ["http://a:1", "http://b:1"].map(str::to_owned);
        JoinRequest { member, own, zone: "west 1".to_owned(), weight: 3 }
    }

    /// Every release must read these bytes.
    #[test]
    fn the_file_format_is_stable() {
        let tag = NodeTag(0x0123_4567_89ab_cdef);
        for (zone, line) in [("west 1", "zone west 1"), ("", "zone ")] {
            let request = JoinRequest { zone: zone.to_owned(), ..request() };
            let text = request.text(tag);
            assert_eq!(
                text,
                format!(
                    "veche-joining 1\ntag 0123456789abcdef\nmember http://a:1\nself http://b:1\nweight 3\n{line}\n"
                )
            );
            assert_eq!(JoinRequest::decode(&sealed::seal(&text)), Ok((tag, request)));
        }
        sealed::assert_finds_damage(&sealed::seal(&request().text(tag)), JoinRequest::decode);
    }
}
