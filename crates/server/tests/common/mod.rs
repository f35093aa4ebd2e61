//! What the tests of servers share.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

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
