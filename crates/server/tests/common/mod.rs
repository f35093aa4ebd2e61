//! What the tests of servers share.

use server::{Config, Limits};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use store::Membership;

/// What does not happen in so long has failed the test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something happens.
#[track_caller]
pub(crate) fn eventually(what: &str, mut happens: impl FnMut() -> bool) {
    let started = Instant::now();
    while !happens() {
        assert!(started.elapsed() < PATIENCE, "this never came true: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// An address that nobody else takes, not even for a moment as the near end of a connection: nodes of a cluster
/// must know each other's before they start, and take theirs again after a restart.
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

/// The configuration of a node on its own, with little memory, on a port that the system chooses.
#[allow(dead_code, reason = "clusters have their own")]
pub(crate) fn config(limits: Limits) -> Config {
    Config {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        data: PathBuf::from("/data"),
        peer_listen: None,
        membership: Membership::of(Vec::new()),
        self_name: String::new(),
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
        snapshot_age: Duration::from_secs(60),
        warnings: Vec::new(),
        metrics: true,
        limits,
    }
}
