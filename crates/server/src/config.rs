//! The configuration of a node, and the limits that rarely need configuration.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Part of the server's memory share that does not grow with the budget. [`Limits::for_process`]
/// explains it.
const SHARE_BYTES: u64 = 128 << 20;

/// The configuration with which a node starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to listen on. Port 0 selects a free port, which [`crate::Server::address`] returns.
    pub listen: SocketAddr,
    /// The data directory. It is created if it does not exist.
    pub data: PathBuf,
    /// Additional address for peers only. `None`: peers use the address for clients. Peers dial the
    /// addresses in `membership`.
    pub peer_listen: Option<SocketAddr>,
    /// The cluster: the names of all nodes including this one, each `http://host:port`. An empty
    /// list, or one with only this node, means a single-node cluster. For a data directory with a
    /// layout record, these are the members of the record.
    pub membership: store::Membership,
    /// This node's name in `membership`. Unused in a single-node cluster.
    pub self_name: String,
    /// Address at which this node is reached, as its peers are told. `None`: it is `self_name`.
    pub moved_to: Option<String>,
    /// The addresses that the operator lists, each once. Where a layout record has the members,
    /// the list only helps to find them.
    pub listed: Vec<String>,
    /// Number of replicas of a key if a request does not specify it: 1 to the number of nodes. For
    /// a data directory with a layout record, the value of the record.
    pub default_from: u8,
    /// The value that the operator chooses. It has no effect where a layout record has another one.
    pub default_from_flag: Option<u8>,
    /// Declares the cluster as new: a majority of new nodes need not hear from the others. Ignored
    /// in a single-node cluster and once the directory has settled. Only for the first start: with
    /// this option, a directory that was emptied later counts as new.
    pub new_cluster: bool,
    /// The shared secret that every node of the cluster must prove to know. `None`: no secret.
    pub secret: Option<String>,
    /// Policy for the data of a node that was away for longer than its peers keep tombstones.
    pub after_absence: store::AfterAbsence,
    /// Options of the engine, with its share of the memory budget. The server's share is in
    /// `limits`.
    pub engine: engine::Options,
    /// Number of I/O threads, at least 1.
    pub threads: usize,
    /// Time limit from the last byte of a request to its reply.
    pub request_timeout: Duration,
    /// Requests that take at least this long are logged with their stages. Zero disables the log.
    pub slow_request: Duration,
    /// Largest value, in bytes.
    pub value_bytes_max: usize,
    /// Time for which connections are still accepted after the process was told to stop.
    pub drain_delay: Duration,
    /// Whether metrics are recorded and served at `/metrics`.
    pub metrics: bool,
    /// Longest time for which a range reads one snapshot. After it, the range continues with a new
    /// one.
    pub snapshot_age: Duration,
    /// Greatest feature level of the layout records that this node carries out. The command has
    /// [`cluster::FEATURE_LEVEL_MAX_DEFAULT`].
    pub feature_level_max: u32,
    /// Limits on the resources of clients and peers.
    pub limits: Limits,
    /// Warnings about this configuration for the operator. They are logged at the start and shown
    /// in the status.
    pub warnings: Vec<String>,
}

impl Config {
    /// Memory budget of the store and the server together, in bytes.
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

/// Limits on the resources of clients and peers. The defaults suit production; tests use small
/// values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most open connections. Further ones get `503` and are closed.
    pub connections_max: usize,
    /// Most handshakes of dialers that have not proved to be known peers, and most connections of
    /// dialers whose head is read.
    pub handshakes_max: usize,
    /// Memory that the server may hold beside the store, in bytes: connections, bodies, replies,
    /// ranges, batches, and messages between nodes. Requests beyond it get `503`.
    pub memory_bytes: u64,
    /// Time limit from the first byte of a request to the end of its head.
    pub head_time: Duration,
    /// A connection without a request is closed after this time.
    pub idle_time: Duration,
    /// A connection is closed if its body or response moves less than [`Limits::PROGRESS_BYTES`] in
    /// this time.
    pub progress_time: Duration,
    /// The same limit for a streamed response. Its reader may pause for longer, which costs a
    /// bounded buffer.
    pub reader_time: Duration,
    /// Approximate limit of the hints for all peers on disk, in bytes.
    pub hint_bytes_max: u64,
    /// Time limit from the signal to stop to the end of the process, without `drain_delay`.
    pub drain_time: Duration,
}

impl Limits {
    /// Smallest progress within [`Limits::progress_time`], in bytes.
    pub const PROGRESS_BYTES: u64 = 16 << 10;

    /// The limits of a process that may hold `connections_max` connections of clients, for the
    /// server's share of a memory budget of `budget_bytes`, with values of up to `value_bytes_max`.
    ///
    /// The server gets three eighths of a small budget, because a slow reader of a large value uses
    /// as much memory there as with a large budget. Of a large budget it gets 128 MiB and an
    /// eighth, because the store makes better use of the rest.
    pub fn for_process(connections_max: usize, budget_bytes: u64, value_bytes_max: usize) -> Self {
        let share = (budget_bytes / 8 * 3).min(SHARE_BYTES + budget_bytes / 8);
        // A request that can never be admitted would be told to try again forever.
        let memory_bytes = share.max(limits::budget_bytes_min(value_bytes_max));
        Self { connections_max, memory_bytes, ..Self::default() }
    }
}

/// Division of the file descriptors of the process.
///
/// Links to peers and the process's own files have priority, because the node is useless without
/// them. An eighth of the rest is for handshakes of peers, up to the most that they can use. What
/// remains is divided equally between tables and client connections, in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileShares {
    /// Most tables that are kept open.
    pub tables_max: usize,
    /// Most connections of clients.
    pub connections_max: usize,
    /// Most handshakes of unknown dialers, and most connections of dialers whose head is read.
    pub handshakes_max: usize,
    /// Recommended limit of open files. Below it, clients or tables get fewer descriptors than they
    /// can use.
    pub wanted: u64,
}

/// The limit of open files is too low for a node that serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the limit of open files is {files_max}, and this node needs at least {files_min}: raise the hard limit (ulimit -Hn \
     {files_min}; LimitNOFILE={files_min} for systemd; --ulimit nofile={files_min} for a container); 65536 suffices for \
     any node"
)]
pub struct TooFewFiles {
    /// The limit of the process.
    pub files_max: u64,
    /// The lowest limit with which the node starts.
    pub files_min: u64,
}

impl FileShares {
    /// Descriptors of the process itself: 48 for log, manifest, locks, listeners, standard streams
    /// and files of jobs and backups, and 16 for reserved connections. 64 are for connections that
    /// wait for a permit or linger after their refusal.
    const OWN: u64 = 128;
    /// Descriptors of each I/O thread: poller, wake-up, timer and a listener.
    const OWN_PER_THREAD: u64 = 4;
    const TABLES: std::ops::RangeInclusive<u64> = 16..=8_192;
    const CONNECTIONS: std::ops::RangeInclusive<u64> = 16..=10_240;
    /// Heads and handshakes of unknown dialers, each.
    const HANDSHAKES: std::ops::RangeInclusive<u64> = 8..=256;
    /// Fraction of the descriptors that heads and handshakes get, each: 1 / 16.
    const HANDSHAKES_DIVISOR: u64 = 16;
    /// Descriptors that tables (512), connections (1,024), heads and handshakes (256 each) should
    /// have at least.
    const WANTED: u64 = 512 + 1_024 + 2 * 256;

    /// The division for a process that may open `files_max` files, in a cluster of `nodes`, with
    /// `threads` I/O threads.
    ///
    /// # Errors
    /// The shares do not fit into `files_max`, even at their minimums.
    pub fn of(files_max: u64, nodes: usize, threads: usize) -> Result<Self, TooFewFiles> {
        let (threads, peers) = (threads as u64, (nodes as u64).saturating_sub(1));
        // Each thread and the node itself dial a link to each peer, and each peer dials as many to
        // this node.
        let links = 2 * (threads + 1) * peers;
        let taken = Self::OWN + Self::OWN_PER_THREAD * threads + links;
        let files_min =
            taken + Self::TABLES.start() + Self::CONNECTIONS.start() + 2 * Self::HANDSHAKES.start();
        if files_max < files_min {
            return Err(TooFewFiles { files_max, files_min });
        }
        let left = files_max - taken;
        let handshakes =
            (left / Self::HANDSHAKES_DIVISOR).clamp(*Self::HANDSHAKES.start(), *Self::HANDSHAKES.end());
        let left = left - 2 * handshakes;
        let tables = (left / 2).clamp(*Self::TABLES.start(), *Self::TABLES.end());
        let connections = (left - tables).clamp(*Self::CONNECTIONS.start(), *Self::CONNECTIONS.end());
        Ok(Self {
            tables_max: tables as usize,
            connections_max: connections as usize,
            handshakes_max: handshakes as usize,
            wanted: taken + Self::WANTED,
        })
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 10_240,
            handshakes_max: 256,
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
    fn the_shares_of_descriptors_stay_within_every_limit_that_is_accepted() {
        for (nodes, threads) in [(1, 1), (1, 2), (3, 8), (64, 32), (5, 4)] {
            let TooFewFiles { files_min, .. } =
                FileShares::of(64, nodes, threads).expect_err("64 files are too few");
            assert!(FileShares::of(files_min - 1, nodes, threads).is_err());
            for files_max in (files_min..files_min + 2_000).chain([65_536, 1 << 20]) {
                let shares = FileShares::of(files_max, nodes, threads).expect("enough files");
                let links = 2 * (threads + 1) * (nodes - 1);
                let own = links + 4 * threads + 128;
                let sum = shares.tables_max + shares.connections_max + 2 * shares.handshakes_max + own;
                assert!(sum as u64 <= files_max, "{sum} of {files_max}: {nodes} nodes, {threads} threads");
            }
        }
        let plenty = FileShares::of(1 << 20, 3, 4).expect("enough files");
        assert_eq!((plenty.tables_max, plenty.connections_max, plenty.handshakes_max), (8_192, 10_240, 256));
        let few = FileShares::of(212, 3, 4).expect("enough files");
        assert_eq!((few.tables_max, few.connections_max, few.handshakes_max), (16, 16, 8));
        assert!(FileShares::of(65_536, 64, 16).expect("enough files").wanted < 65_536);
    }
}
