//! A soak client: writes its own keys, reads them, and switches to another node if one does not
//! answer.

use super::counts::SoakCounts;
use super::register::{ClientRegister, ReadValue, ReadViolation};
use bench::{HttpClient, HttpResponse, StopFlag};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};
use stdx::{Rng, Version};

const KEYS: u64 = 500;
/// Keys with a time to live.
const EXPIRING: u64 = 200;
const TTL_MS: u64 = 2_000;
const VALUE_BYTES: [usize; 4] = [16, 200, 1_000, 4_000];
const RANGE_LIMIT: u64 = 50;
/// Pairs of `ack` and `from`. With `ack` 1 a single node acknowledges.
const QUORUMS: [(u64, u64); 5] = [(1, 3), (2, 3), (3, 3), (1, 2), (2, 2)];
const NODES: u64 = super::NODES as u64;
/// Request timeout: longer than a healthy node needs, short enough to leave a hung one.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Pause after a refusal or a failure.
const PAUSE: Duration = Duration::from_millis(20);
/// Time to read everything back at the end, when all nodes are healthy. Keys that cannot be read by
/// then count as unreadable.
const READ_BACK_WITHIN: Duration = Duration::from_secs(60);

/// A client with the registers of its keys.
pub(super) struct SoakClient {
    number: u64,
    nodes: Vec<SocketAddr>,
    /// Index of the node that receives the requests.
    at: usize,
    connection: Option<HttpClient>,
    rng: Rng,
    registers: Vec<ClientRegister>,
    counts: SoakCounts,
}

/// A key that is read back at the end, by number.
#[derive(Clone, Copy, Debug)]
enum ReadBackKey {
    Key(u64),
    /// A key with a time to live.
    Expiring(u64),
}

/// Result of a write.
enum WriteResult {
    Acknowledged(Version),
    /// The write was not executed.
    Refused,
    /// The write may have been executed.
    Unknown,
}

impl SoakClient {
    pub(super) fn new(number: u64, seed: u64, nodes: Vec<SocketAddr>) -> Self {
        Self {
            number,
            at: number as usize % nodes.len(),
            nodes,
            connection: None,
            rng: Rng::new(seed << 8 | number),
            registers: vec![ClientRegister::default(); KEYS as usize],
            counts: SoakCounts::default(),
        }
    }

    /// Sends requests until `stop` is set, then reads everything back.
    pub(super) fn run(mut self, stop: &StopFlag) -> SoakCounts {
        while !stop.is_set() {
            self.step();
        }
        // By then the last keys with a time to live have expired.
        thread::sleep(Duration::from_millis(TTL_MS) + TIMEOUT);
        self.read_all_back(Instant::now() + READ_BACK_WITHIN);
        self.counts
    }

    fn step(&mut self) {
        let key = self.rng.below(KEYS);
        match self.rng.below(100) {
            0..35 => self.put(key),
            35..45 => self.delete(key),
            45..50 => self.put_expiring(),
            50..95 => self.read(key),
            _ => self.range(key),
        }
    }

    fn put(&mut self, key: u64) {
        let number = self.registers[key as usize].next();
        let (ack, from) = self.draw_quorum();
        let path = format!("{}&ack={ack}&from={from}", self.path(key));
        let answer = self.ask("PUT", &path, &value(number));
        self.written(key, Some(number), answer.as_ref(), ack);
    }

    fn delete(&mut self, key: u64) {
        let (ack, from) = self.draw_quorum();
        let path = format!("{}&ack={ack}&from={from}", self.path(key));
        let answer = self.ask("DELETE", &path, b"");
        self.written(key, None, answer.as_ref(), ack);
    }

    fn put_expiring(&mut self) {
        let path = format!("{}&ttl={TTL_MS}", self.expiring_path(self.counts.acknowledged % EXPIRING));
        if let Some(answer) = self.ask("PUT", &path, b"gone soon") {
            self.expect(&answer, &[201]);
        }
    }

    fn written(&mut self, key: u64, put: Option<u64>, answer: Option<&HttpResponse>, ack: u64) {
        let status = if put.is_some() { 201 } else { 202 };
        let written = match answer {
            Some(answer) if self.expect(answer, &[status]) => {
                version(answer).map_or(WriteResult::Unknown, WriteResult::Acknowledged)
            }
            Some(answer) if answer.status == 503 => WriteResult::Refused,
            Some(_) | None => WriteResult::Unknown,
        };
        let register = &mut self.registers[key as usize];
        match written {
            WriteResult::Acknowledged(version) => {
                self.counts.acknowledged += 1;
                register.acknowledged(put, version, ack > NODES / 2);
            }
            WriteResult::Refused => {}
            WriteResult::Unknown => register.unknown(put),
        }
    }

    fn read(&mut self, key: u64) {
        let path = self.path(key);
        if let Some(answer) = self.ask("GET", &path, b"")
            && self.expect(&answer, &[200, 404])
        {
            self.counts.reads += 1;
            self.check(key, &answer, ClientRegister::check, |counts| &mut counts.older);
        }
    }

    fn range(&mut self, key: u64) {
        let path = format!("/v0/entities?start={}&limit={RANGE_LIMIT}&cluster=1", self.name(key));
        if let Some(answer) = self.ask("GET", &path, b"")
            && self.expect(&answer, &[200])
        {
            self.counts.ranges += 1;
        }
    }

    /// Reads every key from all replicas, and retries those that could not be read, until none is
    /// left or `ends` has passed.
    fn read_all_back(&mut self, ends: Instant) {
        let mut left: Vec<ReadBackKey> =
            (0..KEYS).map(ReadBackKey::Key).chain((0..EXPIRING).map(ReadBackKey::Expiring)).collect();
        while !left.is_empty() && Instant::now() < ends {
            // A key that is not requested any more has not been read either.
            left.retain(|kept| Instant::now() >= ends || !self.read_back(*kept));
        }
        self.counts.unreadable += left.len() as u64;
    }

    /// Reads one key from all replicas, and checks its value. Returns whether it could be read.
    fn read_back(&mut self, kept: ReadBackKey) -> bool {
        let path = match kept {
            ReadBackKey::Key(key) => self.path(key),
            ReadBackKey::Expiring(key) => self.expiring_path(key),
        };
        let path = format!("{path}&ack={NODES}&from={NODES}");
        let Some(answer) = self.ask("GET", &path, b"") else { return false };
        if !self.expect(&answer, &[200, 404]) {
            return false;
        }
        match kept {
            ReadBackKey::Key(key) => {
                self.counts.read_back += 1;
                self.check(key, &answer, ClientRegister::check_final, |counts| &mut counts.lost);
            }
            ReadBackKey::Expiring(_) => {
                self.counts.expiring += 1;
                self.counts.outlived += u64::from(answer.status == 200);
            }
        }
        true
    }

    /// Checks a read, and counts and prints a violation. `older` selects the counter for values
    /// that are too old.
    fn check(
        &mut self,
        key: u64,
        answer: &HttpResponse,
        check: fn(&ClientRegister, ReadValue) -> Result<(), ReadViolation>,
        older: fn(&mut SoakCounts) -> &mut u64,
    ) {
        let (register, found) = (&self.registers[key as usize], found(answer));
        let Err(fault) = found.and_then(|found| check(register, found)) else { return };
        println!("  BROKEN: {} of {register:?} is answered {} {found:?}", self.name(key), answer.status);
        let count = match fault {
            ReadViolation::Older => older(&mut self.counts),
            ReadViolation::Wrong => &mut self.counts.wrong,
        };
        *count += 1;
    }

    /// Sends one request. Without a response, switches to another node.
    fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> Option<HttpResponse> {
        let connection = match self.connection.take() {
            Some(connection) => Ok(connection),
            None => HttpClient::connect(self.nodes[self.at], TIMEOUT),
        };
        let exchanged = connection.and_then(|mut connection| {
            let answer = connection.exchange(method, path, body)?;
            Ok((connection, answer))
        });
        match exchanged {
            Ok((connection, answer)) => {
                let is_last =
                    answer.header("connection").is_some_and(|field| field.eq_ignore_ascii_case("close"));
                self.connection = Some(connection).filter(|_| !is_last);
                Some(answer)
            }
            Err(_) => {
                self.counts.unanswered += 1;
                self.switch_node();
                None
            }
        }
    }

    /// Whether the status is one of `statuses`. Counts refusals and unexpected statuses.
    fn expect(&mut self, answer: &HttpResponse, statuses: &[u16]) -> bool {
        let status = answer.status;
        if statuses.contains(&status) {
            return true;
        }
        match status {
            503 | 507 => self.counts.refused += 1,
            504 => self.counts.unanswered += 1,
            _ => {
                self.counts.note_unexpected(|| format!("{status} {}", String::from_utf8_lossy(&answer.body)));
            }
        }
        self.switch_node();
        false
    }

    fn switch_node(&mut self) {
        self.connection = None;
        self.at = (self.at + 1 + self.rng.below(NODES - 1) as usize) % self.nodes.len();
        thread::sleep(PAUSE);
    }

    fn draw_quorum(&mut self) -> (u64, u64) {
        QUORUMS[self.rng.below(QUORUMS.len() as u64) as usize]
    }

    fn name(&self, key: u64) -> String {
        format!("soak-{}-{key}", self.number)
    }

    fn path(&self, key: u64) -> String {
        format!("/v0/entity?id={}", self.name(key))
    }

    fn expiring_path(&self, key: u64) -> String {
        format!("/v0/entity?id=expiring-{}-{key}", self.number)
    }
}

/// Value of a put: its number, followed by bytes derived from it.
fn value(number: u64) -> Vec<u8> {
    let mut value = format!("{number} ").into_bytes();
    let len = VALUE_BYTES[(number % VALUE_BYTES.len() as u64) as usize];
    value.resize(value.len() + len, b'a' + (number % 26) as u8);
    value
}

fn version(answer: &HttpResponse) -> Option<Version> {
    answer.header("etag")?.trim_matches('"').parse().ok()
}

/// Parses the value of a read. An error means that the value was never written.
fn found(answer: &HttpResponse) -> Result<ReadValue, ReadViolation> {
    if answer.status == 404 {
        return Ok(None);
    }
    let text = str::from_utf8(&answer.body).ok().and_then(|text| text.split_once(' '));
    let number: u64 = text.and_then(|(number, _)| number.parse().ok()).ok_or(ReadViolation::Wrong)?;
    let version = version(answer).ok_or(ReadViolation::Wrong)?;
    if answer.body == value(number) { Ok(Some((version, number))) } else { Err(ReadViolation::Wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: Vec<u8>) -> HttpResponse {
        let head = b"HTTP/1.1 200 OK\r\nETag: \"00000000000000010000000000000002\"\r\n\r\n".to_vec();
        HttpResponse { status, head, body }
    }

    #[test]
    fn keys_that_are_not_read_back_in_time_are_unreadable_and_not_requested() {
        let mut client = SoakClient::new(1, 1, vec![SocketAddr::from(([127, 0, 0, 1], 0))]);
        client.read_all_back(Instant::now());
        let expected = SoakCounts { unreadable: KEYS + EXPIRING, ..SoakCounts::default() };
        assert_eq!(client.counts, expected);
    }

    #[test]
    fn a_refused_write_is_counted_and_changes_nothing() {
        let mut client = SoakClient::new(1, 1, vec![SocketAddr::from(([127, 0, 0, 1], 0))]);
        client.written(0, Some(1), Some(&answer(503, Vec::new())), 2);
        assert_eq!(client.counts, SoakCounts { refused: 1, ..SoakCounts::default() });
        let version = "00000000000000010000000000000002".parse().unwrap();
        assert_eq!(
            client.registers[0].check_final(Some((version, 1))),
            Err(ReadViolation::Wrong),
            "it was not done"
        );
        client.written(0, Some(2), Some(&answer(201, Vec::new())), 2);
        assert_eq!(client.counts, SoakCounts { refused: 1, acknowledged: 1, ..SoakCounts::default() });
        assert_eq!(client.registers[0].check_final(None), Err(ReadViolation::Older));
    }

    #[test]
    fn a_read_value_is_checked_to_its_last_byte() {
        let version = "00000000000000010000000000000002".parse().unwrap();
        assert_eq!(found(&answer(200, value(7))), Ok(Some((version, 7))));
        assert_eq!(found(&answer(404, Vec::new())), Ok(None));
        let mut damaged = value(7);
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(found(&answer(200, damaged)), Err(ReadViolation::Wrong));
        assert_eq!(found(&answer(200, b"7".to_vec())), Err(ReadViolation::Wrong));
    }
}
