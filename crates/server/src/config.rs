//! What an operator chose, and the bounds that nobody has to choose.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// See [`Limits::for_process`].
const SHARE_BYTES: u64 = 128 << 20;

/// What a node is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen. Port 0: any free one, see [`crate::Server::address`].
    pub listen: SocketAddr,
    /// The data directory; made where it is missing.
    pub data: PathBuf,
    /// Where peers reach this node as well, apart from its clients; `None`: only where clients do. The addresses
    /// in `membership` are those that peers dial.
    pub peer_listen: Option<SocketAddr>,
    /// The cluster it belongs to: the names of all nodes, `http://host:port` each, this one's too. Empty, or
    /// this one's alone: a node on its own.
    pub membership: store::Membership,
    /// This node's name among those of `membership`. Means nothing for a node on its own.
    pub self_name: String,
    /// How many replicas hold a key when a request does not say it: 1 to the number of nodes.
    pub default_from: u8,
    /// The operator says that the cluster is new: a majority of new nodes need not hear the others. Means nothing to a
    /// node whose directory has settled, or that is on its own. For the first start only: with it, a directory that was
    /// emptied later counts as new.
    pub new_cluster: bool,
    /// What all nodes of the cluster must know to be let in; `None`: nothing.
    pub secret: Option<String>,
    /// What becomes of the data if the node was away for longer than its peers keep deletes.
    pub after_absence: store::AfterAbsence,
    /// Options of the engine, its part of the memory budget among them; the server's is in `limits`.
    pub engine: engine::Options,
    /// I/O threads, at least 1.
    pub threads: usize,
    /// From the last byte of a request to its reply.
    pub request_timeout: Duration,
    /// Requests that take so long or longer are told of, by stage; after no time, none is.
    pub slow_request: Duration,
    /// The largest value, in bytes.
    pub value_bytes_max: usize,
    /// How long connections are still accepted once the process was told to stop.
    pub drain_delay: Duration,
    /// Whether what happens is recorded and told at `/metrics`.
    pub metrics: bool,
    /// How long a range reads one snapshot; past that it goes on with a fresh one.
    pub snapshot_age: Duration,
    /// Bounds on what clients and peers can hold.
    pub limits: Limits,
    /// Sentences for the operator about these settings, told in the log at the start and in the status.
    pub warnings: Vec<String>,
}

impl Config {
    /// What all may take in memory together, in bytes.
    pub const fn memory_bytes(&self) -> u64 {
        self.engine.memory_bytes + self.limits.memory_bytes
    }

    /// The names of all nodes, in byte order.
    pub(crate) fn node_names(&self) -> Vec<String> {
        if self.membership.nodes.is_empty() { vec![self.own_name()] } else { self.membership.nodes.clone() }
    }

    /// This node's name.
    pub(crate) fn own_name(&self) -> String {
        match &self.membership.nodes[..] {
            [] => format!("http://{}", self.listen),
            [alone] => alone.clone(),
            _ => self.self_name.clone(),
        }
    }
}

/// Bounds on what clients and peers can hold. The defaults are meant to be kept; tests make them small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once; more are told `503` and closed.
    pub connections_max: usize,
    /// What the server may hold in memory beside the store, in bytes: connections, bodies, replies, ranges, batches,
    /// what is on its way between nodes. What finds no room is told `503`.
    pub memory_bytes: u64,
    /// From the first byte of a request to the end of its head.
    pub head_time: Duration,
    /// A connection without a request is closed after this.
    pub idle_time: Duration,
    /// A body or a response that moved less than [`Limits::PROGRESS_BYTES`] in this time ends its connection.
    pub progress_time: Duration,
    /// The same of a response that is streamed: its reader may stop for a while, which costs a bounded buffer.
    pub reader_time: Duration,
    /// Bytes that the hints for all peers together may take on disk, about.
    pub hint_bytes_max: u64,
    /// From the signal to stop to the end of the process, at most, without `drain_delay`.
    pub drain_time: Duration,
}

impl Limits {
    /// See [`Limits::progress_time`].
    pub const PROGRESS_BYTES: u64 = 16 << 10;

    /// The bounds for a process that may hold `connections_max` connections of clients, and for the
    /// server's part of a memory budget of `budget_bytes`, with values of up to `value_bytes_max`.
    ///
    /// Of a small budget the server has three eighths, for one slow reader of a large value takes as much there as in a
    /// large one; of a large budget little more than an eighth, since the store can make more of it.
    pub fn for_process(connections_max: usize, budget_bytes: u64, value_bytes_max: usize) -> Self {
        let share = (budget_bytes / 8 * 3).min(SHARE_BYTES + budget_bytes / 8);
        // What could never be taken in would be told to try again for ever.
        let memory_bytes = share.max(crate::budget::budget_bytes_min(value_bytes_max));
        Self { connections_max, memory_bytes, ..Self::default() }
    }
}

/// How the descriptors of the process are shared out.
///
/// Links to peers and the files of the process itself come first, for the node is of no use without them. What is left is
/// for tables and for connections of clients, half and half, as far as each can use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileShares {
    /// Files of tables that are kept open.
    pub tables_max: usize,
    /// Connections of clients.
    pub connections_max: usize,
    /// With a lower limit of open files, clients or tables have fewer than is of use.
    pub wanted: u64,
}

impl FileShares {
    /// Log, manifest, locks, listeners, standard streams, files of jobs and backups, and the reserved
    /// places of connections.
    const OWN: u64 = 128;
    /// Poller, wake-up, timer and a listener of each I/O thread.
    const OWN_PER_THREAD: u64 = 4;
    const TABLES: std::ops::RangeInclusive<u64> = 16..=8_192;
    const CONNECTIONS: std::ops::RangeInclusive<u64> = 16..=10_240;
    /// What a node should have of each.
    const WANTED: u64 = 512 + 1_024;

    /// Of a process that may open `files_max` files, in a cluster of `nodes`, with `threads` I/O threads.
    pub fn of(files_max: u64, nodes: usize, threads: usize) -> Self {
        let (threads, peers) = (threads as u64, (nodes as u64).saturating_sub(1));
        // Each thread, and the node itself, has a link to each peer, and each of theirs one to this node.
        let links = 2 * (threads + 1) * peers;
        let taken = Self::OWN + Self::OWN_PER_THREAD * threads + links;
        let left = files_max.saturating_sub(taken);
        let tables = (left / 2).clamp(*Self::TABLES.start(), *Self::TABLES.end());
        let connections =
            left.saturating_sub(tables).clamp(*Self::CONNECTIONS.start(), *Self::CONNECTIONS.end());
        Self {
            tables_max: tables as usize,
            connections_max: connections as usize,
            wanted: taken + Self::WANTED,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 10_240,
            memory_bytes: 256 << 20,
            head_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(600),
            progress_time: Duration::from_secs(30),
            reader_time: Duration::from_secs(600),
            hint_bytes_max: 1 << 30,
            drain_time: Duration::from_secs(8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_shared_out_within_the_limit() {
        for (files_max, nodes, threads) in [(1_024, 1, 2), (1_024, 3, 8), (65_536, 64, 32), (1 << 20, 5, 4)] {
            let shares = FileShares::of(files_max, nodes, threads);
            let links = 2 * (threads + 1) * (nodes - 1);
            let sum = shares.tables_max + shares.connections_max + links + 4 * threads + 128;
            assert!(sum as u64 <= files_max, "{sum} of {files_max} for {nodes} nodes, {threads} threads");
        }
        let plenty = FileShares::of(1 << 20, 3, 4);
        assert_eq!((plenty.tables_max, plenty.connections_max), (8_192, 10_240));
        let few = FileShares::of(100, 3, 4);
        assert_eq!((few.tables_max, few.connections_max), (16, 16));
        assert!(few.wanted > 100 && FileShares::of(65_536, 64, 16).wanted < 65_536);
    }
}
