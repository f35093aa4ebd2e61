//! The identity of a data directory: the node and the cluster that it belongs to.
//!
//! **Promise.** Once there is data beside an identity, every later start in this directory finds
//! that identity or fails, independent of crashes. A second identity is never created over data,
//! except for a copy that becomes another node (see `restored`).
//!
//! **Mechanism.** A small text file (see `sealed`), durable before anything else in the directory.
//! So data without an identity means that the file was lost, not that the node is new. An identity
//! without data remains from an interrupted first start, or its data was lost or renamed. Another
//! identity is created then, so that peers who remember the old one do not assume that the node
//! still has the writes that it acknowledged.
//!
//! **Caveats.** The node list is compared literally: the caller must have normalized the addresses.

use crate::error::StoreError;
use crate::identity_mismatch::IdentityMismatch;
use crate::layout_file;
use crate::sealed::{self, field, number};
use cluster::LayoutRecord;
use env::Fs;
use std::io;
use std::path::Path;
use stdx::NodeTag;

/// Number of partitions of a new cluster.
pub const PARTITIONS_DEFAULT: u32 = 4_096;
/// Version of the hash that maps keys to partitions: 1 is XXH3, 64 bits.
pub const HASH_VERSION: u32 = 1;

/// Name of the identity file. The file keeps its name and its content while a store is open.
pub const IDENTITY_FILE: &str = "identity";
/// First lines of all versions of the format. Version 1 does not record whether there is a log
/// mark.
const HEADERS: [&str; 2] = ["veche-identity 1", "veche-identity 2"];
const HEADER: &str = HEADERS[1];

/// Parameters that all nodes of a cluster share and that no start may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Addresses of all nodes, including this one, in byte order; empty for a standalone node.
    pub nodes: Vec<String>,
    /// Address of this node. `None` if the opener does not specify it, as tools do, or for a
    /// standalone node.
    pub own: Option<String>,
    /// Number of partitions.
    pub partitions: u32,
    /// Version of the key hash, see [`HASH_VERSION`].
    pub hash_version: u32,
    /// Number of replicas of a key if a request does not choose it; `None` for the default of a
    /// cluster of this size. It is part of the layout record, not of the identity.
    pub default_from: Option<u8>,
}

impl Membership {
    /// Whether there are other nodes.
    pub fn has_peers(&self) -> bool {
        self.nodes.len() > 1
    }

    /// Returns the cluster of these nodes, in any order.
    pub fn of(mut nodes: Vec<String>) -> Self {
        nodes.sort_unstable();
        nodes.dedup();
        Self {
            nodes,
            own: None,
            partitions: PARTITIONS_DEFAULT,
            hash_version: HASH_VERSION,
            default_from: None,
        }
    }

    /// Compares this membership of a directory with the one that the node is started with.
    fn check(&self, asked: &Self) -> Result<(), IdentityMismatch> {
        let remembered = self;
        if !is_same_list(&remembered.nodes, &asked.nodes) {
            let (remembered, asked) = (remembered.nodes.clone(), asked.nodes.clone());
            return Err(IdentityMismatch::Nodes { remembered, asked });
        }
        if let (Some(remembered), Some(asked)) = (&remembered.own, &asked.own)
            && remembered != asked
        {
            return Err(IdentityMismatch::Own { remembered: remembered.clone(), asked: asked.clone() });
        }
        if remembered.partitions != asked.partitions {
            let (remembered, asked) = (remembered.partitions, asked.partitions);
            return Err(IdentityMismatch::Partitions { remembered, asked });
        }
        if let (Some(remembered), Some(asked)) = (remembered.default_from, asked.default_from)
            && remembered != asked
        {
            return Err(IdentityMismatch::DefaultFrom { remembered, asked });
        }
        if remembered.hash_version != asked.hash_version {
            let (remembered, asked) = (remembered.hash_version, asked.hash_version);
            return Err(IdentityMismatch::Hash { remembered, asked });
        }
        Ok(())
    }

    /// Returns this cluster as seen by the node with this address. No effect for a standalone node.
    #[must_use]
    pub fn seen_by(self, own: &str) -> Self {
        let own = self.has_peers().then(|| own.to_owned());
        Self { own, ..self }
    }
}

/// Identity of a data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Random tag, created with the directory. It is part of every version that this node issues.
    pub tag: NodeTag,
    /// The cluster that the directory was created for.
    pub membership: Membership,
    /// Whether the node with this tag has a log mark beside its data (see `log_mark`). Set once the
    /// first mark is durable, and before anything is acknowledged. From then on, a directory
    /// without a mark has lost it.
    pub(crate) has_log_mark: bool,
}

/// A standalone node and a cluster of this one node hold the same keys.
fn is_same_list(remembered: &[String], asked: &[String]) -> bool {
    remembered == asked || matches!((remembered, asked), ([], [_]) | ([_], []))
}

impl Identity {
    /// Returns the identity of a node that has no log mark yet.
    pub(crate) fn without_log_mark(tag: NodeTag, membership: Membership) -> Self {
        Self { tag, membership: Membership { default_from: None, ..membership }, has_log_mark: false }
    }

    /// Whether there is an identity in `dir`.
    pub(crate) fn exists(fs: &dyn Fs, dir: &Path) -> Result<bool, StoreError> {
        let path = dir.join(IDENTITY_FILE);
        fs.exists(&path).map_err(StoreError::io("look for", &path))
    }

    /// Loads the identity in `dir`, and the layout record if there is one, and checks that the
    /// directory belongs to `membership`. `None` if there is neither an identity nor a shard yet.
    pub(crate) fn find(
        fs: &dyn Fs,
        dir: &Path,
        membership: &Membership,
        has_shard: bool,
    ) -> Result<Option<(Self, Option<LayoutRecord>)>, StoreError> {
        if !Self::exists(fs, dir)? {
            let path = dir.join(IDENTITY_FILE);
            return if has_shard { Err(StoreError::IdentityMissing { path }) } else { Ok(None) };
        }
        let identity = Self::load(fs, dir)?;
        let record = layout_file::find(fs, dir)?;
        let remembered = match &record {
            Some(record) => {
                layout_file::check_member(dir, record, &identity)?;
                layout_file::membership_of(record, &identity)
            }
            None => identity.membership.clone(),
        };
        remembered
            .check(membership)
            .map_err(|mismatch| StoreError::IdentityMismatch { path: dir.to_owned(), mismatch })?;
        Ok(Some((identity, record)))
    }

    /// Loads the identity in `dir`, which need not be locked.
    ///
    /// # Errors
    /// [`StoreError::IdentityCorrupt`], [`StoreError::Io`].
    pub fn load(fs: &dyn Fs, dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(IDENTITY_FILE);
        let bytes = sealed::read(fs, &path)?;
        Self::decode(&bytes).map_err(|detail| StoreError::IdentityCorrupt { path, detail })
    }

    /// Stores this identity in `dir` durably.
    pub(crate) fn store(&self, fs: &dyn Fs, dir: &Path) -> Result<(), StoreError> {
        sealed::replace(fs, dir, IDENTITY_FILE, &self.text())
    }

    fn text(&self) -> String {
        let Membership { nodes, own, partitions, hash_version, default_from: _ } = &self.membership;
        let own = own.as_ref().map(|own| format!("self {own}\n"));
        format!(
            "{HEADER}\ntag {:016x}\npartitions {partitions}\nhash {hash_version}\nlog-mark {}\nnodes {}\n{}",
            self.tag.0,
            if self.has_log_mark { "yes" } else { "no" },
            nodes.join(","),
            own.unwrap_or_default()
        )
    }

    /// Inverse of the stored form; the error describes the defect.
    fn decode(bytes: &[u8]) -> Result<Self, String> {
        let (version, body) = sealed::unseal_version(bytes, &HEADERS)?;
        let mut lines = body.lines();
        let tag = field(lines.next(), "tag")?;
        let tag = u64::from_str_radix(tag, 16).map_err(|_| format!("{tag:?} is not a tag"))?;
        let partitions = number(lines.next(), "partitions")?;
        let hash_version = number(lines.next(), "hash")?;
        let has_log_mark = version > 0
            && match field(lines.next(), "log-mark")? {
                "yes" => true,
                "no" => false,
                other => return Err(format!("{other:?} is not yes or no")),
            };
        let nodes = field(lines.next(), "nodes")?;
        let nodes = nodes.split(',').filter(|node| !node.is_empty()).map(str::to_owned).collect();
        let own = lines.next().map(|line| field(Some(line), "self").map(str::to_owned)).transpose()?;
        let membership = Membership { nodes, own, partitions, hash_version, default_from: None };
        Ok(Self { tag: NodeTag(tag), membership, has_log_mark })
    }
}

/// Removes the identity from `dir` durably: it is no data directory any more.
pub(crate) fn remove(fs: &dyn Fs, dir: &Path) -> Result<(), StoreError> {
    let path = dir.join(IDENTITY_FILE);
    match fs.remove_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| fs.sync_dir(dir)).map_err(StoreError::io("remove", &path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn identity(nodes: &[&str]) -> Identity {
        let nodes = nodes.iter().map(ToString::to_string).collect();
        Identity::without_log_mark(NodeTag(0x0123_4567_89ab_cdef), Membership::of(nodes))
    }

    fn encode(identity: &Identity) -> Vec<u8> {
        sealed::seal(&identity.text())
    }

    /// Version 1 is no longer written. Every release must read it.
    #[test]
    fn a_file_of_version_1_has_no_log_mark() {
        let identity = identity(&["http://b:1", "http://a:1"]);
        let bytes = "veche-identity 1\ntag 0123456789abcdef\npartitions 4096\nhash 1\nnodes http://a:1,http://b:1\n\
                     crc32c f8e76262\n";
        assert_eq!(Identity::decode(bytes.as_bytes()), Ok(identity));
    }

    /// Every release must read these bytes.
    #[test]
    fn the_file_format_is_stable() {
        let mut identity = identity(&["http://b:1", "http://a:1"]);
        for (has_log_mark, bytes) in [
            (
                false,
                "veche-identity 2\ntag 0123456789abcdef\npartitions 4096\nhash 1\nlog-mark no\n\
                 nodes http://a:1,http://b:1\ncrc32c 3253ffa6\n",
            ),
            (
                true,
                "veche-identity 2\ntag 0123456789abcdef\npartitions 4096\nhash 1\nlog-mark yes\n\
                 nodes http://a:1,http://b:1\ncrc32c b0d58d8b\n",
            ),
        ] {
            identity.has_log_mark = has_log_mark;
            assert_eq!(String::from_utf8_lossy(&encode(&identity)), bytes);
            assert_eq!(Identity::decode(bytes.as_bytes()).as_ref(), Ok(&identity));
        }
    }

    #[test]
    fn the_directory_of_one_node_is_refused_by_another() {
        let of = |own: &str| {
            let mut identity = identity(&["http://a:1", "http://b:1"]);
            identity.membership = identity.membership.seen_by(own);
            identity
        };
        let first = of("http://a:1");
        assert_eq!(Identity::decode(&encode(&first)).as_ref(), Ok(&first));
        assert_eq!(first.membership.check(&first.membership), Ok(()));
        assert_eq!(
            first.membership.check(&identity(&["http://a:1", "http://b:1"]).membership),
            Ok(()),
            "a tool"
        );
        let sentence = first.membership.check(&of("http://b:1").membership).unwrap_err().to_string();
        assert!(sentence.contains("made for http://a:1, not for http://b:1"), "{sentence}");
        assert!(sentence.contains("--self-url http://a:1"), "{sentence}");
    }

    #[test]
    fn the_identity_of_a_standalone_node_round_trips() {
        let identity = identity(&[]);
        assert_eq!(Identity::decode(&encode(&identity)), Ok(identity));
    }

    #[test]
    fn every_flipped_bit_and_truncation_is_detected() {
        let bytes = encode(&identity(&["http://a:1"]));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Identity::decode(&flipped).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(Identity::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused(bytes: Vec<u8>) {
            prop_assert!(Identity::decode(&bytes).is_err());
        }
    }

    #[test]
    fn a_list_of_one_node_equals_no_list() {
        let (alone, listed) = (identity(&[]), identity(&["http://a:1"]));
        assert_eq!(alone.membership.check(&listed.membership), Ok(()));
        assert_eq!(listed.membership.check(&alone.membership), Ok(()));
        assert!(listed.membership.check(&identity(&["http://b:1"]).membership).is_err());
        assert!(alone.membership.check(&identity(&["http://a:1", "http://b:1"]).membership).is_err());
    }

    #[test]
    fn each_difference_is_reported_with_an_action() {
        let remembered = identity(&["http://a:1", "http://b:1"]);
        let mut asked = remembered.membership.clone();
        assert_eq!(remembered.membership.check(&asked), Ok(()));
        let with_from = |from| Membership { default_from: Some(from), ..remembered.membership.clone() };
        assert_eq!(with_from(2).check(&with_from(2)), Ok(()));
        let sentence = with_from(2).check(&with_from(1)).unwrap_err().to_string();
        assert!(sentence.contains("start it with --default-from 2, or without it"), "{sentence}");
        asked.hash_version = 2;
        assert!(
            remembered.membership.check(&asked).unwrap_err().to_string().contains("the build that made it")
        );
        asked.partitions = 8;
        assert!(remembered.membership.check(&asked).unwrap_err().to_string().contains("start it with 4096"));
        asked.nodes.clear();
        let sentence = remembered.membership.check(&asked).unwrap_err().to_string();
        assert!(sentence.contains("not for a node on its own"), "{sentence}");
        assert!(sentence.contains("start it with --cluster http://a:1,http://b:1"), "{sentence}");
    }
}
