//! The document of `/v0/status`, as its readers see it.

use api::{
    ClockStatus, Durability, IoStatus, JobStatus, LevelStatus, MemoryStatus, NodeState, NodeStatus,
    QueueStatus, QuorumStatus, RequestStatus, ServingState, Status, StorageStatus, encode_status,
};

fn status(state: ServingState) -> Status {
    Status {
        version: "0.1.0",
        state,
        uptime_ms: 1,
        nodes: vec![NodeStatus { url: "http://127.0.0.1:8080".to_owned(), state: NodeState::Up }],
        default_quorum: QuorumStatus { ack: 1, from: 1 },
        clock: ClockStatus { ahead_ms: 0, bound_ahead_ms: 3_000 },
        queues: QueueStatus {
            connections: 1,
            operations: 0,
            operations_max: 16_384,
            commit_waiting_bytes: 0,
        },
        requests: RequestStatus { superseded: 0, deadlines_passed: 1, refused: 2 },
        storage: StorageStatus {
            durability: Durability::Fdatasync,
            disk_available_bytes: 2,
            wal_bytes: 3,
            levels: vec![LevelStatus { level: 0, tables: 4, bytes: 5 }],
            memory: MemoryStatus {
                budget_bytes: 6,
                memtables_bytes: 7,
                cache_bytes: 8,
                tables_bytes: 14,
                queue_bytes: 15,
            },
            jobs: JobStatus { flushes: 16, flushed_bytes: 17, compactions: 18, compacted_bytes: 19 },
            io: IoStatus { reads: 9, read_bytes: 10, writes: 11, written_bytes: 12, syncs: 13 },
        },
        warnings: vec![],
    }
}

#[test]
fn the_document_keeps_its_names() {
    let response = encode_status(&status(ServingState::Serving), false).response;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/json");
    let expected = concat!(
        r#"{"version":"0.1.0","state":"serving","uptime_ms":1,"#,
        r#""nodes":[{"url":"http://127.0.0.1:8080","state":"up"}],"default_quorum":{"ack":1,"from":1},"#,
        r#""clock":{"ahead_ms":0,"bound_ahead_ms":3000},"#,
        r#""queues":{"connections":1,"operations":0,"operations_max":16384,"commit_waiting_bytes":0},"#,
        r#""requests":{"superseded":0,"deadlines_passed":1,"refused":2},"#,
        r#""storage":{"durability":"fdatasync","disk_available_bytes":2,"wal_bytes":3,"#,
        r#""levels":[{"level":0,"tables":4,"bytes":5}],"#,
        r#""memory":{"budget_bytes":6,"memtables_bytes":7,"cache_bytes":8,"tables_bytes":14,"queue_bytes":15},"#,
        r#""jobs":{"flushes":16,"flushed_bytes":17,"compactions":18,"compacted_bytes":19},"#,
        r#""io":{"reads":9,"read_bytes":10,"writes":11,"written_bytes":12,"syncs":13}},"warnings":[]}"#,
    );
    assert_eq!(response.body(), expected);
}

#[test]
fn a_node_that_does_not_serve_says_503() {
    for state in [ServingState::Starting, ServingState::Draining] {
        let response = encode_status(&status(state), true).response;
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "1");
        assert!(response.body().is_empty());
    }
}
