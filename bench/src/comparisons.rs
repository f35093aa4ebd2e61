//! The comparisons as tables: their sides, loads and figures.
//!
//! The names of the constants are indexes into the tables below them.

use crate::comparison::{
    Comparison, FigureSpec, LoadSpec, Meanwhile, Metric, NODES, Pace, ServerSpec, SideSpec,
};
use crate::others::AppendOnly;
use crate::servers::Durability;
use Metric::{Counter, Cpu, DiskRead, P50, P99, P999, Rate};
use Operation::{Get, GetMissing, Put};
use bench::Operation;

const SYNCED: &str = "the write is synced";
const SYNCED_TWICE: &str = "the write is synced on two nodes";
const WITH_SYSTEM: &str = "the operating system has the write";
const LATEST: &str = "the latest value";

const fn side(name: &'static str, guarantee: &'static str, server: ServerSpec) -> SideSpec {
    SideSpec { name, guarantee, server }
}

const fn closed(name: &'static str, operation: Operation, connections: usize) -> LoadSpec {
    LoadSpec { name, operation, connections, pace: Pace::Closed, meanwhile: Meanwhile::Nothing }
}

const fn half(name: &'static str, operation: Operation, meanwhile: Meanwhile) -> LoadSpec {
    LoadSpec { name, operation, connections: 64, pace: Pace::Half, meanwhile }
}

const fn ratio(title: &'static str, metric: Metric, cell: (usize, usize), by: (usize, usize)) -> FigureSpec {
    FigureSpec::ratio(title, metric, cell, by)
}

const GET_64: LoadSpec = closed("GET, 64 connections", Get, 64);
const PUT_64: LoadSpec = closed("PUT, 64 connections", Put, 64);
const OS: ServerSpec = ServerSpec::Veche { durability: Durability::Os, memory: None, flags: &[] };
const CLUSTER: ServerSpec = ServerSpec::VecheCluster { memory: "512MiB" };

/// All comparisons, in the order in which their scenarios run them.
pub(crate) const COMPARISONS: [Comparison; 9] =
    [REQUESTS, READS_BESIDE_WRITES, METRICS, CLUSTERS, READS, FILES, DURABLE, NOT_SYNCED, THREE];

const REQUESTS: Comparison = {
    const HYPER: usize = 0;
    const DURABLE: usize = 1;
    const OS_ONLY: usize = 2;
    const GET: usize = 0;
    const PUT: usize = 1;
    const PUT_256: usize = 2;
    Comparison {
        scenario: "http",
        name: "requests",
        title: "the cost of a request of one key",
        keys_max: u64::MAX,
        value_bytes: 100,
        sides: &[
            side("bare hyper", "a value of a map", ServerSpec::BareHyper),
            side("veche", SYNCED, ServerSpec::VECHE),
            side("veche --durability os", WITH_SYSTEM, OS),
        ],
        loads: &[GET_64, PUT_64, closed("PUT, 256 connections", Put, 256)],
        figures: &[
            ratio("GET x64: CPU, bare hyper / veche", Cpu, (HYPER, GET), (DURABLE, GET)).at_least(0.85),
            ratio("GET x64: requests/s, veche / bare hyper", Rate, (DURABLE, GET), (HYPER, GET)),
            ratio("PUT x64: CPU, bare hyper / veche", Cpu, (HYPER, PUT), (DURABLE, PUT)).at_least(0.55),
            ratio("PUT x64: requests/s, veche / bare hyper", Rate, (DURABLE, PUT), (HYPER, PUT)),
            ratio("PUT x256: CPU, bare hyper / veche", Cpu, (HYPER, PUT_256), (DURABLE, PUT_256)),
            ratio("PUT x256: requests/s, veche / bare hyper", Rate, (DURABLE, PUT_256), (HYPER, PUT_256)),
            ratio("PUT x256: requests/s, durable / os", Rate, (DURABLE, PUT_256), (OS_ONLY, PUT_256))
                .at_least(0.8),
            ratio("PUT x256: CPU, os / durable", Cpu, (OS_ONLY, PUT_256), (DURABLE, PUT_256)),
        ],
    }
};

/// The memory is small, so that the node flushes often.
const SMALL_MEMORY: ServerSpec =
    ServerSpec::Veche { durability: Durability::Sync, memory: Some("256MiB"), flags: &[] };

const READS_BESIDE_WRITES: Comparison = Comparison {
    scenario: "http",
    name: "writes",
    title: "reads at half of their maximum rate, with and without writes",
    keys_max: u64::MAX,
    value_bytes: 100,
    sides: &[side("veche --memory 256MiB", LATEST, SMALL_MEMORY)],
    loads: &[
        half("GET", Get, Meanwhile::Nothing),
        half("GET during 10,000 PUT/s of 1 KiB", Get, Meanwhile::Writes),
    ],
    figures: &[ratio("GET at half rate: p99.9, with writes / without", P999, (0, 1), (0, 0)).at_most(3.0)],
};

const METRICS: Comparison = {
    const ON: usize = 0;
    const OFF: usize = 1;
    Comparison {
        scenario: "metrics",
        name: "metrics",
        title: "the cost of metrics",
        keys_max: u64::MAX,
        value_bytes: 100,
        sides: &[
            side("veche", SYNCED, ServerSpec::VECHE),
            side(
                "veche --metrics=off",
                SYNCED,
                ServerSpec::Veche { durability: Durability::Sync, memory: None, flags: &["--metrics=off"] },
            ),
        ],
        loads: &[GET_64, PUT_64],
        figures: &[
            ratio("GET x64: CPU, metrics on / off", Cpu, (ON, 0), (OFF, 0)).at_most(1.02),
            ratio("PUT x64: CPU, metrics on / off", Cpu, (ON, 1), (OFF, 1)).at_most(1.02),
        ],
    }
};

/// Path in the status of the number of system calls that write to peers.
const PEER_WRITES: Metric = Counter("links.write_calls");

const CLUSTERS: Comparison = {
    const ONE: usize = 0;
    const THREE: usize = 1;
    const PUT: usize = 0;
    const GET: usize = 1;
    const PUT_HALF: usize = 2;
    const PUT_STOPPED: usize = 3;
    const GET_HALF: usize = 4;
    const GET_STOPPED: usize = 5;
    const fn per_response(title: &'static str, load: usize) -> FigureSpec {
        FigureSpec { by: None, ..ratio(title, PEER_WRITES, (THREE, load), (THREE, load)).at_most(0.5) }
    }
    Comparison {
        scenario: "cluster",
        name: "cluster",
        title: "three nodes, 2 of 3, compared with one",
        keys_max: u64::MAX,
        value_bytes: 100,
        sides: &[
            side(
                "one node",
                SYNCED,
                ServerSpec::Veche { durability: Durability::Sync, memory: Some("512MiB"), flags: &[] },
            ),
            side("three nodes", SYNCED_TWICE, CLUSTER),
        ],
        loads: &[
            PUT_64,
            GET_64,
            half("PUT at half rate", Put, Meanwhile::Nothing),
            half("PUT at half rate, a node stopped", Put, Meanwhile::NodeStopped),
            half("GET at half rate", Get, Meanwhile::Nothing),
            half("GET at half rate, a node stopped", Get, Meanwhile::NodeStopped),
        ],
        figures: &[
            ratio("PUT x64: CPU, three nodes / one", Cpu, (THREE, PUT), (ONE, PUT)).at_most(2.5),
            per_response("PUT x64: write calls on peer links per response", PUT),
            ratio(
                "PUT at half rate: p99, a node stopped / none",
                P99,
                (THREE, PUT_STOPPED),
                (THREE, PUT_HALF),
            )
            .at_most(1.5),
            ratio("GET x64: CPU, three nodes / one", Cpu, (THREE, GET), (ONE, GET)).at_most(2.2),
            per_response("GET x64: write calls on peer links per response", GET),
            ratio(
                "GET at half rate: p99, a node stopped / none",
                P99,
                (THREE, GET_STOPPED),
                (THREE, GET_HALF),
            )
            .at_most(1.5),
        ],
    }
};

const READS: Comparison = {
    const VECHE: usize = 0;
    const HYPER: usize = 1;
    const REDIS: usize = 2;
    const LINEARIZABLE: usize = 3;
    const SERIALIZABLE: usize = 4;
    const GET: usize = 0;
    const GET_256: usize = 1;
    Comparison {
        scenario: "compare",
        name: "reads",
        title: "GET from memory",
        keys_max: u64::MAX,
        value_bytes: 100,
        sides: &[
            side("veche", LATEST, ServerSpec::VECHE),
            side("bare hyper", "a value of a map", ServerSpec::BareHyper),
            side("redis", LATEST, ServerSpec::Redis(AppendOnly::Always)),
            side("etcd, linearizable", LATEST, ServerSpec::Etcd { nodes: 1, syncs: false }),
            side(
                "etcd, serializable",
                "the value of the node",
                ServerSpec::EtcdSerializable { of: LINEARIZABLE },
            ),
        ],
        loads: &[GET_64, closed("GET, 256 connections", Get, 256)],
        figures: &[
            ratio("GET x64: CPU, bare hyper / veche", Cpu, (HYPER, GET), (VECHE, GET)).at_least(0.9),
            ratio("GET x64: CPU, redis / veche", Cpu, (REDIS, GET), (VECHE, GET)),
            ratio("GET x64: CPU, etcd serializable / veche", Cpu, (SERIALIZABLE, GET), (VECHE, GET)),
            ratio("GET x64: CPU, etcd linearizable / veche", Cpu, (LINEARIZABLE, GET), (VECHE, GET)),
            ratio("GET x64: requests/s, veche / bare hyper", Rate, (VECHE, GET), (HYPER, GET)),
            ratio("GET x64: requests/s, veche / redis", Rate, (VECHE, GET), (REDIS, GET)),
            ratio("GET x64: requests/s, veche / etcd serializable", Rate, (VECHE, GET), (SERIALIZABLE, GET)),
            ratio("GET x64: requests/s, veche / etcd linearizable", Rate, (VECHE, GET), (LINEARIZABLE, GET)),
            ratio("GET x256: CPU, bare hyper / veche", Cpu, (HYPER, GET_256), (VECHE, GET_256)).at_least(0.9),
            ratio("GET x256: requests/s, veche / bare hyper", Rate, (VECHE, GET_256), (HYPER, GET_256)),
        ],
    }
};

const FILES: Comparison = Comparison {
    scenario: "compare",
    name: "reads",
    title: "GET of few values, which nginx has as open files",
    keys_max: 4_096,
    value_bytes: 100,
    sides: &[
        side("veche", LATEST, ServerSpec::VECHE),
        side("nginx, static files", "the bytes of the file", ServerSpec::Nginx),
    ],
    loads: &[GET_64],
    figures: &[
        ratio("GET x64: CPU, nginx / veche", Cpu, (1, 0), (0, 0)),
        ratio("GET x64: requests/s, veche / nginx", Rate, (0, 0), (1, 0)),
    ],
};

const DURABLE: Comparison = Comparison {
    scenario: "compare",
    name: "durable",
    title: "PUT, synced before the response",
    keys_max: u64::MAX,
    value_bytes: 100,
    sides: &[
        side("veche", SYNCED, ServerSpec::VECHE),
        side("redis, appendfsync always", SYNCED, ServerSpec::Redis(AppendOnly::Always)),
        side("etcd, one node", SYNCED, ServerSpec::Etcd { nodes: 1, syncs: true }),
    ],
    loads: &[PUT_64],
    figures: &[
        ratio("PUT x64: CPU, redis / veche", Cpu, (1, 0), (0, 0)).at_least(1.0),
        ratio("PUT x64: CPU, etcd / veche", Cpu, (2, 0), (0, 0)),
        ratio("PUT x64: requests/s, veche / redis", Rate, (0, 0), (1, 0)).at_least(1.0),
        ratio("PUT x64: requests/s, veche / etcd", Rate, (0, 0), (2, 0)).at_least(5.0),
    ],
};

const NOT_SYNCED: Comparison = Comparison {
    scenario: "compare",
    name: "os",
    title: "PUT, not synced before the response",
    keys_max: u64::MAX,
    value_bytes: 100,
    sides: &[
        side("veche --durability os", WITH_SYSTEM, OS),
        side("redis without a log", "the process has the write", ServerSpec::Redis(AppendOnly::Off)),
        side("redis, appendfsync no", WITH_SYSTEM, ServerSpec::Redis(AppendOnly::Os)),
    ],
    loads: &[PUT_64],
    figures: &[
        ratio("PUT x64: CPU, redis without a log / veche", Cpu, (1, 0), (0, 0)).at_least(0.8),
        ratio("PUT x64: CPU, redis, appendfsync no / veche", Cpu, (2, 0), (0, 0)),
        ratio("PUT x64: requests/s, veche / redis without a log", Rate, (0, 0), (1, 0)).at_least(0.8),
        ratio("PUT x64: requests/s, veche / redis, appendfsync no", Rate, (0, 0), (2, 0)),
    ],
};

/// The load goes to one node: the first of veche, the leader of etcd, which is its fastest.
const THREE: Comparison = Comparison {
    scenario: "compare",
    name: "three",
    title: "three nodes",
    keys_max: u64::MAX,
    value_bytes: 100,
    sides: &[
        side("veche, 2 of 3", "writes are synced on two nodes, reads consult two", CLUSTER),
        side(
            "etcd, three nodes",
            "writes are synced on two nodes, reads are linearizable",
            ServerSpec::Etcd { nodes: NODES, syncs: true },
        ),
    ],
    loads: &[PUT_64, GET_64],
    figures: &[
        ratio("PUT x64: CPU, etcd / veche", Cpu, (1, 0), (0, 0)),
        ratio("PUT x64: requests/s, veche / etcd", Rate, (0, 0), (1, 0)).at_least(5.0),
        ratio("GET x64: CPU, etcd / veche", Cpu, (1, 1), (0, 1)),
        ratio("GET x64: requests/s, veche / etcd", Rate, (0, 1), (1, 1)),
    ],
};

/// Reads of more data than memory; [`crate::large`] starts the sides.
pub(crate) const LARGE: Comparison = Comparison {
    scenario: "large",
    name: "large",
    title: "GET at random from more data than memory",
    keys_max: u64::MAX,
    value_bytes: 1024,
    sides: &[
        side("veche", LATEST, ServerSpec::VECHE),
        side("RocksDB over HTTP", LATEST, ServerSpec::BareHyper),
    ],
    loads: &[GET_64, half("GET at half rate", Get, Meanwhile::Nothing)],
    figures: &[
        ratio("GET x64: requests/s, veche / RocksDB", Rate, (0, 0), (1, 0)).at_least(1.0),
        ratio("GET x64: CPU, RocksDB / veche", Cpu, (1, 0), (0, 0)),
        ratio("GET x64: bytes read from the disk, veche / RocksDB", DiskRead, (0, 0), (1, 0)),
        ratio("GET at half rate: p50, veche / RocksDB", P50, (0, 1), (1, 1)),
        ratio("GET at half rate: p99, veche / RocksDB", P99, (0, 1), (1, 1)),
    ],
};

/// Reads beside ranges; [`crate::range`] starts the node.
pub(crate) const READS_BESIDE_RANGES: Comparison = Comparison {
    scenario: "range",
    name: "range",
    title: "reads at half of their maximum rate, with and without ranges",
    keys_max: u64::MAX,
    value_bytes: 1024,
    sides: &[side("veche --memory 4GiB", LATEST, ServerSpec::VECHE)],
    loads: &[half("GET", Get, Meanwhile::Nothing), half("GET during 4 ranges", Get, Meanwhile::Ranges)],
    figures: &[ratio("GET at half rate: p99, with 4 ranges / without", P99, (0, 1), (0, 0)).at_most(3.0)],
};

/// Reads of absent keys; [`crate::big`] starts the node. The path in the status is that of the
/// number of `read_at` calls.
pub(crate) const ABSENT: Comparison = Comparison {
    scenario: "big",
    name: "big",
    title: "GET of absent keys, which lie between stored ones",
    keys_max: u64::MAX,
    value_bytes: 1024,
    sides: &[side("veche --memory 512MiB", LATEST, ServerSpec::VECHE)],
    loads: &[closed("GET of absent keys, 64 connections", GetMissing, 64)],
    figures: &[FigureSpec {
        title: "GET of absent keys: read_at calls per response",
        metric: Counter("storage.io.reads"),
        cell: (0, 0),
        by: None,
        target: crate::table::Threshold::AtMost(0.02),
    }],
};
