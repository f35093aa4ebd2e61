//! Errors that end a node.

use crate::links::InvalidAddress;
use cluster::LayoutEpoch;
use engine::ErrorKind;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use store::StoreError;

/// Error with which a node fails to start, or ends without being told to stop.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The node cannot listen on the address.
    #[error("cannot listen on {address}: {source}; {}", advice(source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The data directory cannot be opened.
    #[error("{_0}{}", advice_on_data(_0))]
    Store(#[from] StoreError),
    /// The list of nodes is not a valid cluster.
    #[error(transparent)]
    Layout(#[from] cluster::LayoutError),
    /// This node is not in the list of nodes.
    #[error(
        "this node, {name}, is not in the list of nodes; list it, or give it the name by which it is listed"
    )]
    NotListed {
        /// The name that this node has for itself.
        name: String,
    },
    /// The node was removed from its cluster or replaced, or is declared dead.
    #[error(
        "this node is no member of its cluster any more, and has stopped: it was removed, replaced or declared dead, as the \
         layout record of epoch {epoch} says. The other nodes refuse it for ever: do not start it again on this data directory"
    )]
    Removed {
        /// Epoch of the record.
        epoch: LayoutEpoch,
    },
    /// A node's name is not an address.
    #[error(transparent)]
    Name(#[from] InvalidAddress),
    /// The operating system refused a thread or a runtime.
    #[error("cannot start {what}: {source}")]
    Start {
        /// The part of the node that could not be started.
        what: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A write to disk failed in a way that leaves unknown which data is durable.
    #[error("the store stopped: {reason}; look at the disk, then start again")]
    Poisoned {
        /// The failure.
        reason: String,
    },
    /// The data directory was removed or replaced while the node ran on it.
    #[error(
        "the data directory {} is not whole any more: {} was removed or replaced while the node ran on it, so the node has \
         stopped: what it would have acknowledged would be lost. Put it back and start the node again. If it is gone, move \
         what is left of the directory away: in a cluster the node is filled from the others then, and a node on its own \
         needs a backup (veche restore)", .path.display(), .missing.display()
    )]
    DirectoryLost {
        /// The data directory.
        path: PathBuf,
        /// The missing name: the directory itself, or a file in it.
        missing: PathBuf,
    },
    /// The store could not be closed cleanly. A restart recovers the data from the log.
    #[error("cannot close the store: {0}")]
    Close(engine::Error),
    /// A thread of the node panicked.
    #[error("{0} panicked; this is a bug")]
    Panicked(&'static str),
}

/// Advice for an address that cannot be listened on.
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

/// Advice for a data directory that cannot be opened, where the error of the engine lacks it. The
/// engine knows files, but neither backups nor other nodes.
fn advice_on_data(error: &StoreError) -> &'static str {
    match error {
        StoreError::Engine(error) if error.kind() == ErrorKind::Corrupt => {
            "; veche verify lists all that is damaged. Restore a backup, or, in a cluster, move the data directory away: \
             the node is filled from the others then"
        }
        _ => "",
    }
}
