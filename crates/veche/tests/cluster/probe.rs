//! Clients that write, delete and read a few keys through all nodes of a cluster. Their history is
//! checked against the contract.
//!
//! The quorums overlap (`ack` 2 of 3 for reads and writes, or 1 of 1), so a key is a
//! last-write-wins register ([`history`](crate::history)).

use crate::common::eventually;
use crate::common::http::{Connection, Response, delete, get, put};
use crate::harness::version;
use crate::history::{Action, Losses, Operation, check};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};
use stdx::Rng;

const CLIENTS: u64 = 6;
const KEYS: u64 = 5;
/// Longer than a node takes to answer, shorter than it is worth waiting for a hung one.
const CLIENT_PATIENCE: Duration = Duration::from_secs(3);

/// The clients of a run, as the operator sees them.
pub(crate) struct Probe {
    epoch: Instant,
    /// Addresses of the nodes that the clients use.
    addresses: RwLock<Vec<SocketAddr>>,
    ended: AtomicBool,
    answered: AtomicU64,
    /// Responses that say that a request failed: `503` and `504`.
    failed: Mutex<Vec<String>>,
    /// Names values, so that each is written once.
    values: AtomicU64,
}

struct Client<'a> {
    probe: &'a Probe,
    /// The node that it uses.
    address: SocketAddr,
    connection: Option<Connection>,
    rng: Rng,
    history: Vec<Operation>,
}

impl Probe {
    /// Runs clients through these nodes while `operate` does what an operator and the faults do.
    /// Checks their history.
    #[track_caller]
    pub(crate) fn run(addresses: Vec<SocketAddr>, seed: u64, operate: impl FnOnce(&Self)) {
        let probe = Self {
            epoch: Instant::now(),
            addresses: RwLock::new(addresses),
            ended: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            failed: Mutex::default(),
            values: AtomicU64::new(1),
        };
        let history: Vec<Operation> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let mut rng = Rng::new(seed << 8 | number);
                    let address = probe.draw_address(&mut rng);
                    let client =
                        Client { probe: &probe, address, connection: None, rng, history: Vec::new() };
                    scope.spawn(|| client.run())
                })
                .collect();
            // The clients end also if the operator fails.
            let end = EndOnDrop(&probe.ended);
            operate(&probe);
            drop(end);
            clients.into_iter().flat_map(|client| client.join().expect("clients do not fail")).collect()
        });
        tell(&history, &check(&history).unwrap_or_else(|error| panic!("seed {seed}: {error}")));
    }

    /// Sets the nodes that the clients use from now on.
    pub(crate) fn use_nodes(&self, addresses: Vec<SocketAddr>) {
        *self.addresses.write().expect("no client panics") = addresses;
    }

    /// Waits until the clients have got this number of answers.
    #[track_caller]
    pub(crate) fn wait_for_answers(&self, count: u64) {
        let enough = self.answered.load(Ordering::SeqCst) + count;
        eventually("clients are answered", || self.answered.load(Ordering::SeqCst) >= enough);
    }

    /// Asserts that no response has said that a request failed.
    #[track_caller]
    pub(crate) fn assert_none_failed(&self) {
        let failed = self.failed.lock().expect("no client panics");
        let first: Vec<_> = failed.iter().take(3).collect();
        assert!(failed.is_empty(), "{} requests failed, such as {first:#?}", failed.len());
    }

    fn draw_address(&self, rng: &mut Rng) -> SocketAddr {
        let addresses = self.addresses.read().expect("no client panics");
        addresses[rng.below(addresses.len() as u64) as usize]
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }
}

struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
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
        while !self.probe.ended.load(Ordering::SeqCst) {
            self.step();
        }
        self.history
    }

    /// One operation.
    fn step(&mut self) {
        // An operator who retires a node takes it from the clients before.
        if !self.probe.addresses.read().expect("no client panics").contains(&self.address) {
            self.look_elsewhere();
        }
        let key = self.rng.below(KEYS);
        let name = format!("register-{key}");
        match self.rng.below(10) {
            0..4 => {
                let value = self.probe.values.fetch_add(1, Ordering::SeqCst);
                self.perform(
                    (key, &name),
                    put(&name, value.to_string()),
                    Some(Action::Put { value, version: None }),
                );
            }
            4 => self.perform((key, &name), delete(&name), Some(Action::Delete { version: None })),
            _ => self.perform((key, &name), get(&name), None),
        }
    }

    /// Sends the request and records the result: `unanswered` if there is no answer.
    fn perform(&mut self, (key, name): (u64, &str), request: impl AsRef<[u8]>, unanswered: Option<Action>) {
        let begin = self.probe.now();
        let answer = self.exchange(request);
        let end = self.probe.now();
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
                (503 | 504, _) => {
                    let failed = format!(
                        "{} {name} by {}: {} {}",
                        answer.header("date").unwrap_or("-"),
                        self.address,
                        answer.status,
                        answer.text()
                    );
                    self.probe.failed.lock().expect("no client panics").push(failed);
                    self.look_elsewhere();
                }
                _ => panic!("{answer:?}"),
            },
            None => self.look_elsewhere(),
        }
        if let Some(action) = action {
            self.history.push(Operation { key: key as usize, begin, end, action });
        }
    }

    fn exchange(&mut self, request: impl AsRef<[u8]>) -> Option<Response> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::try_open_with(self.address, CLIENT_PATIENCE).ok()?,
        };
        let answer = self.connection.insert(connection).try_exchange(request).ok()?;
        self.probe.answered.fetch_add(1, Ordering::SeqCst);
        Some(answer)
    }

    /// Goes on with a node that is drawn anew.
    fn look_elsewhere(&mut self) {
        self.connection = None;
        self.address = self.probe.draw_address(&mut self.rng);
    }
}
