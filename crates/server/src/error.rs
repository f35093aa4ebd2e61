//! Why a node ends.

use crate::links::InvalidAddress;
use engine::ErrorKind;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use store::StoreError;

/// Why a node could not start, or ended other than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; {}", advice(source))]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The data directory cannot be opened.
    #[error("{_0}{}", advice_on_data(_0))]
    Store(#[from] StoreError),
    /// There is no cluster of these nodes.
    #[error(transparent)]
    Layout(#[from] cluster::LayoutError),
    /// This node is not among those of the cluster.
    #[error(
        "this node, {name}, is not in the list of nodes; list it, or give it the name by which it is listed"
    )]
    NotListed {
        /// What it calls itself.
        name: String,
    },
    /// A node's name is not an address.
    #[error(transparent)]
    Name(#[from] InvalidAddress),
    /// The system refused a thread or a runtime.
    #[error("cannot start {what}: {source}")]
    Start {
        /// What was to be started.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A write to disk failed such that nobody knows what is durable.
    #[error("the store stopped: {reason}; look at the disk, then start again")]
    Poisoned {
        /// The failure.
        reason: String,
    },
    /// The data directory is not this node's any more, though the node ran on it.
    #[error(
        "the data directory {} is not whole any more: {} was removed or replaced while the node ran on it, so the node has \
         stopped: what it would have acknowledged would be lost. Put it back and start the node again. If it is gone, move \
         what is left of the directory away: in a cluster the node is filled from the others then, and a node on its own \
         needs a backup (veche restore)", .path.display(), .missing.display()
    )]
    DirectoryLost {
        /// Which one.
        path: PathBuf,
        /// What of it was removed or replaced: the directory, or something in it.
        missing: PathBuf,
    },
    /// The data could not be brought to rest; a restart recovers it from the log.
    #[error("cannot close the store: {0}")]
    Close(engine::Error),
    /// A thread of the node panicked.
    #[error("{0} panicked; this is a bug")]
    Panicked(&'static str),
}

/// What to do when an address cannot be listened on.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "stop the process that has it, or use another --listen (or --peer-listen)"
        }
        io::ErrorKind::AddrNotAvailable => "give --listen (or --peer-listen) an address of this machine",
        io::ErrorKind::PermissionDenied => "give --listen (or --peer-listen) a port above 1023",
        _ => "try another --listen (or --peer-listen)",
    }
}

/// What to do when the data cannot be opened, where the error does not say it. The engine knows files, but neither
/// backups nor other nodes.
fn advice_on_data(error: &StoreError) -> &'static str {
    match error {
        StoreError::Engine(error) if error.kind() == ErrorKind::Corrupt => {
            "; veche verify lists all that is damaged. Restore a backup, or, in a cluster, move the data directory away: \
             the node is filled from the others then"
        }
        _ => "",
    }
}
