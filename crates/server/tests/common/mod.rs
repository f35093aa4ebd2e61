//! Helpers of the server tests.

use server::{Config, Limits};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use store::Membership;

/// Time after which an awaited condition fails the test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `happens` returns true; `what` describes the condition.
#[track_caller]
pub(crate) fn eventually(what: &str, mut happens: impl FnMut() -> bool) {
    let started = Instant::now();
    while !happens() {
        assert!(started.elapsed() < PATIENCE, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns an address that no other process binds, not even briefly as the local end of a
/// connection. The nodes of a cluster must know each other's addresses before they start, and bind
/// them again after a restart.
#[allow(dead_code, reason = "a node on its own takes any port")]
pub(crate) fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 15_000;
    const PORTS: u16 = 17_000;
    let offset = (std::process::id() % 400) as u16 * 40;
    loop {
        let port = FIRST + (offset + NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// The configuration of a single node with little memory, on a port that the system chooses.
#[allow(dead_code, reason = "clusters have their own")]
pub(crate) fn config(limits: Limits) -> Config {
    Config {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        data: PathBuf::from("/data"),
        peer_listen: None,
        membership: Membership::of(Vec::new()),
        self_name: String::new(),
        moved_to: None,
        listed: Vec::new(),
        default_from_flag: None,
        default_from: 1,
        new_cluster: false,
        secret: None,
        after_absence: store::AfterAbsence::default(),
        engine: engine::Options {
            memory_bytes: 16 << 20,
            memtable_bytes: Some(256 << 10),
            wal_segment_bytes: 256 << 10,
            table_bytes: 1 << 20,
            level1_bytes: 4 << 20,
            ..engine::Options::default()
        },
        threads: 2,
        request_timeout: Duration::from_secs(60),
        slow_request: Duration::ZERO,
        value_bytes_max: 1 << 20,
        drain_delay: Duration::ZERO,
        feature_level_max: cluster::FEATURE_LEVEL_MAX_DEFAULT,
        snapshot_age: Duration::from_secs(60),
        warnings: Vec::new(),
        metrics: true,
        limits,
    }
}
