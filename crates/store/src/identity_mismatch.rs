//! Differences between a data directory and the node that opens it, in words for operators.

use std::fmt;

/// Difference between a directory's membership and the requested one. Its `Display` is the rest of
/// a sentence about the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdentityMismatch {
    /// The node lists differ.
    Nodes {
        /// Value in the directory.
        remembered: Vec<String>,
        /// Requested value.
        asked: Vec<String>,
    },
    /// The directory belongs to another of the nodes.
    Own {
        /// Value in the directory.
        remembered: String,
        /// Requested value.
        asked: String,
    },
    /// The partition counts differ.
    Partitions {
        /// Value in the directory.
        remembered: u32,
        /// Requested value.
        asked: u32,
    },
    /// The default numbers of replicas differ.
    DefaultFrom {
        /// Value in the directory.
        remembered: u8,
        /// Requested value.
        asked: u8,
    },
    /// The versions of the key hash differ.
    Hash {
        /// Value in the directory.
        remembered: u32,
        /// Requested value.
        asked: u32,
    },
}

impl fmt::Display for IdentityMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes { remembered, asked } => write!(
                f,
                "was made for {}, not for {}: keys would be looked for on the wrong nodes; start it {}, or use \
                 another --data",
                Cluster(remembered),
                Cluster(asked),
                AsBefore(remembered)
            ),
            Self::Own { remembered, asked } => write!(
                f,
                "was made for {remembered}, not for {asked}: it holds other keys than that node is to hold; start it with \
                 --self-url {remembered}, or use another --data. A node may change its address once the layout record names \
                 its id, which veche layout show has"
            ),
            Self::Partitions { remembered, asked } => write!(
                f,
                "was made with {remembered} partitions, not {asked}: keys would be looked for in the wrong ones; \
                 start it with {remembered}, or use another --data"
            ),
            Self::DefaultFrom { remembered, asked } => write!(
                f,
                "has a layout record by which a key has {remembered} replicas, not {asked}, if a request does not choose it; \
                 start it with --default-from {remembered}, or without it"
            ),
            Self::Hash { remembered, asked } => write!(
                f,
                "was made with version {remembered} of the key hash, and this build has version {asked}: keys \
                 would be looked for in the wrong partitions; use the build that made it, or another --data"
            ),
        }
    }
}

struct Cluster<'a>(&'a [String]);

impl fmt::Display for Cluster<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("a node on its own"),
            nodes => write!(f, "the cluster {}", nodes.join(",")),
        }
    }
}

struct AsBefore<'a>(&'a [String]);

impl fmt::Display for AsBefore<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("without --cluster"),
            nodes => write!(f, "with --cluster {}", nodes.join(",")),
        }
    }
}
