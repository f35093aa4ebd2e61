//! The document of `/v0/status`, as clients read it.

use api::{
    ClockStatus, ClusterStatus, DiskRoom, DurabilityStatus, IoStatus, JobStatus, LevelStatus, LinkStatus,
    MemberStatus, MemoryStatus, NodeState, NodeSyncState, QueueStatus, QuorumStatus, RangeStatus,
    RequestStatus, ServingState, Status, StorageStatus, encode_status,
};
use cluster::{HintCount, NodeIndex, PeerState, PeerStatus, RepairKind, RepairStatus, SyncState};
use std::time::Duration;
use stdx::WallTime;

/// State of a suspected peer that lost its disk a while ago.
const PEER: PeerStatus = PeerStatus {
    remembered: None,
    node: NodeIndex(1),
    state: PeerState::Suspected,
    sync_state: SyncState::Rebuilding,
    disk_full: true,
    hints: HintCount { hints: 20, bytes: 21 },
    hints_dropped: 22,
    clock_ahead_micros: -23_999,
    round_trip: Some(Duration::from_micros(24)),
    default_from: Some(3),
};

fn cluster_status() -> ClusterStatus {
    ClusterStatus::from(&cluster::NodeStatus {
        sync_state: SyncState::Settled,
        ready: true,
        peers: vec![PEER],
        repair: Some(RepairStatus { kind: RepairKind::AntiEntropy, permille: 25, cells: 26 }),
        repaired_at: Some(WallTime::from_micros_since_unix_epoch(27_000)),
        refused_keys: 28,
        fenced: cluster::LayoutEpoch(29),
        purge: cluster::PurgeStatus::default(),
    })
}

fn status(state: ServingState) -> Status {
    Status {
        version: "0.1.0",
        state,
        uptime_ms: 1,
        nodes: vec![
            MemberStatus::unknown("http://127.0.0.1:8080".to_owned(), true),
            MemberStatus::of("http://127.0.0.1:8081".to_owned(), false, &PEER),
        ],
        cluster: Some(cluster_status()),
        links: LinkStatus {
            dialed: 28,
            accepted: 29,
            refused: 30,
            sent_messages: 31,
            sent_bytes: 32,
            write_calls: 33,
            received_messages: 34,
            received_bytes: 35,
        },
        default_quorum: QuorumStatus { ack: 1, from: 1 },
        clock: ClockStatus { ahead_ms: 0, bound_ahead_ms: 3_000 },
        queues: QueueStatus {
            connections: 1,
            operations: 0,
            operations_max: 16_384,
            commit_waiting_bytes: 0,
        },
        requests: RequestStatus {
            superseded: 0,
            deadlines_passed: 1,
            not_enough_replicas: 41,
            refused: 2,
            clock_ahead: 36,
            hedged: 37,
            repaired_before_reply: 38,
            repaired_after_reply: 39,
            hints_delivered: 40,
        },
        ranges: RangeStatus { open: 42, snapshots: 43 },
        storage: StorageStatus {
            durability: DurabilityStatus::Fdatasync,
            disk_available_bytes: 2,
            disk_room: DiskRoom::Short,
            disk_soft_bytes: 44,
            disk_reserve_bytes: 45,
            wal_bytes: 3,
            levels: vec![LevelStatus { level: 0, tables: 4, bytes: 5 }],
            memory: MemoryStatus {
                budget_bytes: 6,
                memtables_bytes: 7,
                snapshots_bytes: 44,
                cache_bytes: 8,
                tables_bytes: 14,
                queue_bytes: 15,
                bodies_bytes: 45,
                writes_bytes: 51,
                replies_bytes: 46,
                ranges_bytes: 47,
                batches_bytes: 48,
                peer_links_bytes: 49,
                connections_bytes: 50,
            },
            jobs: JobStatus { flushes: 16, flushed_bytes: 17, compactions: 18, compacted_bytes: 19 },
            io: IoStatus { reads: 9, read_bytes: 10, writes: 11, written_bytes: 12, syncs: 13 },
        },
        warnings: vec![],
    }
}

#[test]
fn the_field_names_of_the_document_are_pinned() {
    let response = encode_status(&status(ServingState::Serving), false).response;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/json");
    let expected = concat!(
        r#"{"version":"0.1.0","state":"serving","uptime_ms":1,"#,
        r#""nodes":[{"url":"http://127.0.0.1:8080","self":true,"state":"up","standing":null,"disk_full":false,"hints":0,"#,
        r#""hints_bytes":0,"hints_dropped":0,"clock_ahead_ms":0,"round_trip_us":null,"default_from":null},"#,
        r#"{"url":"http://127.0.0.1:8081","self":false,"state":"suspected","standing":"rebuilding","disk_full":true,"hints":20,"#,
        r#""hints_bytes":21,"hints_dropped":22,"clock_ahead_ms":-23,"round_trip_us":null,"default_from":3}],"#,
        r#""cluster":{"standing":"settled","ready":true,"#,
        r#""repair":{"rebuilding":false,"healing":false,"permille":25,"cells":26},"repaired_at_ms":27,"refused_keys":28},"#,
        r#""links":{"dialed":28,"accepted":29,"refused":30,"sent_messages":31,"sent_bytes":32,"write_calls":33,"#,
        r#""received_messages":34,"received_bytes":35},"default_quorum":{"ack":1,"from":1},"#,
        r#""clock":{"ahead_ms":0,"bound_ahead_ms":3000},"#,
        r#""queues":{"connections":1,"operations":0,"operations_max":16384,"commit_waiting_bytes":0},"#,
        r#""requests":{"superseded":0,"deadlines_passed":1,"not_enough_replicas":41,"refused":2,"clock_ahead":36,"#,
        r#""hedged":37,"repaired_before_reply":38,"repaired_after_reply":39,"hints_delivered":40},"#,
        r#""ranges":{"open":42,"snapshots":43},"storage":{"durability":"fdatasync","disk_available_bytes":2,"#,
        r#""disk_room":"short","disk_soft_bytes":44,"disk_reserve_bytes":45,"wal_bytes":3,"#,
        r#""levels":[{"level":0,"tables":4,"bytes":5}],"#,
        r#""memory":{"budget_bytes":6,"memtables_bytes":7,"snapshots_bytes":44,"cache_bytes":8,"tables_bytes":14,"#,
        r#""queue_bytes":15,"bodies_bytes":45,"writes_bytes":51,"replies_bytes":46,"ranges_bytes":47,"#,
        r#""batches_bytes":48,"peer_links_bytes":49,"connections_bytes":50},"#,
        r#""jobs":{"flushes":16,"flushed_bytes":17,"compactions":18,"compacted_bytes":19},"#,
        r#""io":{"reads":9,"read_bytes":10,"writes":11,"written_bytes":12,"syncs":13}},"warnings":[]}"#,
    );
    assert_eq!(response.body(), expected);
}

#[test]
fn only_peers_that_answer_have_a_round_trip() {
    let states = [PeerState::Up, PeerState::Suspected, PeerState::Unreachable, PeerState::Unknown];
    let nodes = states.map(|state| MemberStatus::of("b".to_owned(), false, &PeerStatus { state, ..PEER }));
    assert_eq!(nodes.map(|node| node.round_trip_us), [Some(24), None, None, None]);
}

#[test]
fn an_unknown_peer_has_no_sync_state() {
    let peer = PeerStatus { state: PeerState::Unknown, round_trip: None, ..PEER };
    let node = MemberStatus::of("http://b:1".to_owned(), false, &peer);
    assert_eq!((node.state, node.sync_state), (NodeState::Unknown, None));
    let own = MemberStatus::of("http://a:1".to_owned(), true, &peer);
    assert_eq!((own.state, own.sync_state), (NodeState::Up, Some(NodeSyncState::Rebuilding)));
}

#[test]
fn a_node_that_does_not_serve_answers_503() {
    for state in [ServingState::Starting, ServingState::Draining] {
        let response = encode_status(&status(state), true).response;
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "1");
        assert!(response.body().is_empty());
    }
}
