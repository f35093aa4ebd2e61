//! Clients write, delete and read a few keys through all nodes while nodes are killed, hang and
//! lose their data. Their history is checked against the contract.
//!
//! The quorums overlap (`ack` 2 of 3 for reads and writes), so a key is a last-write-wins register
//! ([`history`](crate::history)).

use crate::common::eventually;
use crate::common::http::{Connection, delete, get, put};
use crate::harness::{Cluster, version};
use crate::history::{Action, Losses, Operation, check};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stdx::Rng;

const NODES: usize = 3;
const CLIENTS: u64 = 6;
const KEYS: u64 = 5;
/// Answered operations between two faults.
const BETWEEN_FAULTS: u64 = 120;
const FAULTS: u64 = 6;
/// A hung node is let go on after so long: longer than it takes to be counted out.
const HANG: Duration = Duration::from_millis(1_500);
/// Longer than a node takes to answer, shorter than it is worth waiting for a hung one.
const CLIENT_PATIENCE: Duration = Duration::from_secs(3);

struct Shared {
    epoch: Instant,
    ended: AtomicBool,
    answered: AtomicU64,
    /// Names values, so that each is written once.
    values: AtomicU64,
}

struct Client<'a> {
    shared: &'a Shared,
    addresses: Vec<SocketAddr>,
    /// The node it talks to, and how.
    node: usize,
    connection: Option<Connection>,
    rng: Rng,
    history: Vec<Operation>,
}

#[test]
fn keys_are_last_write_wins_registers_while_nodes_are_killed_hung_and_emptied() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut cluster = Cluster::start_with(NODES, &["--request-timeout", "1s"]);
    let shared = Shared {
        epoch: Instant::now(),
        ended: AtomicBool::new(false),
        answered: AtomicU64::new(0),
        values: AtomicU64::new(1),
    };
    let addresses: Vec<_> = (0..NODES).map(|node| cluster.address(node)).collect();
    let history: Vec<Operation> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let client = Client {
                    shared: &shared,
                    addresses: addresses.clone(),
                    node: number as usize % NODES,
                    connection: None,
                    rng: Rng::new(seed << 8 | number),
                    history: Vec::new(),
                };
                scope.spawn(|| client.run())
            })
            .collect();
        let mut rng = Rng::new(seed);
        for fault in 0..FAULTS {
            wait_for_answers(&shared);
            let node = rng.below(NODES as u64) as usize;
            match fault % 3 {
                0 => {
                    cluster.kill(node);
                    wait_for_answers(&shared);
                    cluster.spawn(node);
                }
                1 => {
                    cluster.pause(node);
                    std::thread::sleep(HANG);
                    cluster.resume(node);
                }
                _ => {
                    cluster.kill(node);
                    cluster.lose_data(node);
                    cluster.spawn(node);
                    // Before that a second loss would be one too many.
                    eventually("it is rebuilt", || cluster.sync_state(node) == "settled");
                }
            }
            cluster.wait_until_up();
        }
        wait_for_answers(&shared);
        shared.ended.store(true, Ordering::SeqCst);
        clients.into_iter().flat_map(|client| client.join().expect("clients do not fail")).collect()
    });
    tell(&history, &check(&history).unwrap_or_else(|error| panic!("seed {seed}: {error}")));
}

/// Waits until the clients have got some answers.
fn wait_for_answers(shared: &Shared) {
    let enough = shared.answered.load(Ordering::SeqCst) + BETWEEN_FAULTS;
    eventually("clients are answered", || shared.answered.load(Ordering::SeqCst) >= enough);
}

/// Statistics of the run, printed for its reader.
fn tell(history: &[Operation], losses: &Losses) {
    let count =
        |matches: fn(&Action) -> bool| history.iter().filter(|operation| matches(&operation.action)).count();
    println!(
        "{} operations: {} reads with a value, {} without; {} writes acknowledged, {} without an answer or refused; \
         {} lost to a concurrent write, {} to an earlier one",
        history.len(),
        count(|action| matches!(action, Action::Read(Some(_)))),
        count(|action| matches!(action, Action::Read(None))),
        count(|action| matches!(
            action,
            Action::Put { version: Some(_), .. } | Action::Delete { version: Some(_) }
        )),
        count(|action| matches!(
            action,
            Action::Put { version: None, .. } | Action::Delete { version: None }
        )),
        losses.to_concurrent,
        losses.to_earlier,
    );
}

impl Client<'_> {
    fn run(mut self) -> Vec<Operation> {
        while !self.shared.ended.load(Ordering::SeqCst) {
            self.step();
        }
        self.history
    }

    /// One operation.
    fn step(&mut self) {
        let key = self.rng.below(KEYS);
        let name = format!("register-{key}");
        match self.rng.below(10) {
            0..4 => {
                let value = self.shared.values.fetch_add(1, Ordering::SeqCst);
                self.perform(key, put(&name, value.to_string()), Some(Action::Put { value, version: None }));
            }
            4 => self.perform(key, delete(&name), Some(Action::Delete { version: None })),
            _ => self.perform(key, get(&name), None),
        }
    }

    /// Sends the request and records the result: `unanswered` if there is no answer.
    fn perform(&mut self, key: u64, request: impl AsRef<[u8]>, unanswered: Option<Action>) {
        let begin = self.now();
        let answer = self.exchange(request);
        let end = self.now();
        let mut action = unanswered;
        match answer {
            Some(answer) => match (answer.status, &mut action) {
                (200, None) => {
                    let value = answer.text().parse().expect("values are numbers");
                    action = Some(Action::Read(Some((version(&answer), value))));
                }
                (404, None) => action = Some(Action::Read(None)),
                (201, Some(Action::Put { version: acknowledged, .. }))
                | (202, Some(Action::Delete { version: acknowledged })) => {
                    *acknowledged = Some(version(&answer));
                }
                (503 | 504, _) => self.look_elsewhere(),
                _ => panic!("{answer:?}"),
            },
            None => self.look_elsewhere(),
        }
        if let Some(action) = action {
            self.history.push(Operation { key: key as usize, begin, end, action });
        }
    }

    fn exchange(&mut self, request: impl AsRef<[u8]>) -> Option<crate::common::http::Response> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::try_open_with(self.addresses[self.node], CLIENT_PATIENCE).ok()?,
        };
        let answer = self.connection.insert(connection).try_exchange(request).ok()?;
        self.shared.answered.fetch_add(1, Ordering::SeqCst);
        Some(answer)
    }

    /// Goes on with another node.
    fn look_elsewhere(&mut self) {
        self.connection = None;
        self.node = (self.node + 1 + self.rng.below(NODES as u64 - 1) as usize) % NODES;
    }

    fn now(&self) -> u64 {
        self.shared.epoch.elapsed().as_nanos() as u64
    }
}
