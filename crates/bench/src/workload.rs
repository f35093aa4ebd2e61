//! Workload of a lane: a mix of operations, with keys and values.

use crate::keys::{KeyNumber, KeyOrder, KeyPicker, KeySpace};
use crate::protocol::{self, Protocol};
use crate::target::Target;
use crate::values::{ValueGenerator, ValueSizes};
use serde::Serialize;
use std::fmt::{self, Write};
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use stdx::Rng;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Reads a key that may exist.
    Get,
    /// Writes the value of a key.
    Put,
    /// Deletes a key.
    Delete,
    /// Reads a key that never existed, but lies between stored keys.
    GetMissing,
    /// Reads a range that starts at a key.
    Range,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 5] = [Self::Get, Self::Put, Self::Delete, Self::GetMissing, Self::Range];

    /// Name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Delete => "delete",
            Self::GetMissing => "get-missing",
            Self::Range => "range",
        }
    }

    /// Status of a successful response. A [`Operation::Get`] may also be answered with `404`.
    pub const fn expected_status(self) -> u16 {
        match self {
            Self::Get | Self::Range => 200,
            Self::Put => 201,
            Self::Delete => 202,
            Self::GetMissing => 404,
        }
    }
}

/// Shares of the operations. Its text is `get=80,put=20`, or the name of a single operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    shares: [u64; Operation::ALL.len()],
}

impl Mix {
    /// A mix of this operation only.
    pub const fn only(operation: Operation) -> Self {
        let mut shares = [0; Operation::ALL.len()];
        shares[operation as usize] = 1;
        Self { shares }
    }

    /// Whether the mix contains the operation.
    pub const fn has(&self, operation: Operation) -> bool {
        self.shares[operation as usize] > 0
    }

    fn draw(&self, rng: &mut Rng) -> Operation {
        let mut left = rng.below(self.shares.iter().sum());
        for operation in Operation::ALL {
            let share = self.shares[operation as usize];
            if left < share {
                return operation;
            }
            left -= share;
        }
        unreachable!("a number below the sum of the shares lies in one of them")
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut shares = [0u64; Operation::ALL.len()];
        for part in text.split(',') {
            let (name, share) = part.split_once('=').unwrap_or((part, "1"));
            let operation = (Operation::ALL.into_iter().find(|operation| operation.name() == name))
                .ok_or_else(|| {
                    format!("{name:?} is not an operation: get, get-missing, put, delete or range")
                })?;
            let share: u32 = share.parse().map_err(|_| format!("{share:?} is not a share"))?;
            shares[operation as usize] = u64::from(share);
        }
        if shares.iter().sum::<u64>() == 0 {
            Err("a mix without shares".to_owned())
        } else {
            Ok(Self { shares })
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<Operation> =
            Operation::ALL.into_iter().filter(|operation| self.has(*operation)).collect();
        if let [only] = parts[..] {
            return f.write_str(only.name());
        }
        let texts: Vec<String> = parts
            .iter()
            .map(|operation| format!("{}={}", operation.name(), self.shares[*operation as usize]))
            .collect();
        f.write_str(&texts.join(","))
    }
}

/// Number of replicas of an operation, and of required acknowledgements. The server's defaults
/// apply to `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuorumOverride {
    /// Number of replicas that must acknowledge.
    pub ack: Option<u32>,
    /// Number of replicas of the key.
    pub from: Option<u32>,
}

/// Scope of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RangeScope {
    /// Data of the node that receives the request.
    #[default]
    Node,
    /// Data of the whole cluster.
    Cluster,
}

/// Specification of a lane's requests.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadSpec {
    /// Shares of the operations.
    pub mix: Mix,
    /// Number of keys that exist, or will exist after a preload.
    pub keys: u64,
    /// Order in which keys are drawn.
    pub order: KeyOrder,
    /// Sizes of the values that are written, and that a verification expects.
    pub sizes: ValueSizes,
    /// Seed of the order of operations and keys.
    pub seed: u64,
    /// Replicas and acknowledgements of each operation.
    pub quorum: QuorumOverride,
    /// Time to live of written values, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// Maximum number of entries of a range.
    pub limit: u64,
    /// Scope of ranges.
    pub scope: RangeScope,
    /// Protocol of the servers.
    pub protocol: Protocol,
}

impl Default for WorkloadSpec {
    fn default() -> Self {
        Self {
            mix: Mix::only(Operation::Get),
            keys: 1_000_000,
            order: KeyOrder::Uniform,
            sizes: ValueSizes::Fixed(100),
            seed: 1,
            quorum: QuorumOverride::default(),
            ttl_ms: None,
            limit: 100,
            scope: RangeScope::Node,
            protocol: Protocol::Entities,
        }
    }
}

impl WorkloadSpec {
    /// Generator of values. It does not depend on the seed of the lane, so that all lanes and runs
    /// agree on the data.
    pub fn values(&self) -> ValueGenerator {
        ValueGenerator::standard(self.sizes)
    }

    /// Query parameters that follow the key in the request line.
    fn parameters(&self, operation: Operation) -> String {
        let mut out = String::new();
        if self.protocol == Protocol::Files {
            return out;
        }
        let mut add = |name: &str, value: u64| {
            write!(out, "&{name}={value}").expect("writing to a String cannot fail");
        };
        if operation == Operation::Range {
            add("limit", self.limit);
            if self.scope == RangeScope::Node {
                return out;
            }
            add("cluster", 1);
        }
        self.quorum.ack.into_iter().for_each(|ack| add("ack", ack.into()));
        self.quorum.from.into_iter().for_each(|from| add("from", from.into()));
        if operation == Operation::Put {
            self.ttl_ms.into_iter().for_each(|ttl| add("ttl", ttl));
        }
        out
    }
}

/// A request before it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) operation: Operation,
    pub(crate) key: KeyNumber,
}

/// Encodes requests for each of `connections` connections, at least `bytes_min` bytes each.
pub fn encode_requests(
    spec: &WorkloadSpec,
    target: &Target,
    connections: usize,
    bytes_min: usize,
) -> Vec<Vec<u8>> {
    let targets = std::slice::from_ref(target);
    let mut workload = Workload::new(spec, KeySpace::new(spec.keys), targets, 0);
    let encode = |_| {
        let mut requests = Vec::new();
        while requests.len() < bytes_min {
            let request = workload.next();
            workload.encode(request, 0, &mut requests);
        }
        requests
    };
    (0..connections).map(encode).collect()
}

/// Requests of one lane on one thread.
#[derive(Debug)]
pub(crate) struct Workload {
    mix: Mix,
    picker: KeyPicker,
    rng: Rng,
    values: ValueGenerator,
    protocol: Protocol,
    /// Request text from behind the key to the end of the `Host` line: by target, then by
    /// operation.
    tails: Vec<[String; Operation::ALL.len()]>,
}

impl Workload {
    pub(crate) fn new(spec: &WorkloadSpec, space: Arc<KeySpace>, targets: &[Target], thread: u64) -> Self {
        let mut rng = Rng::new(spec.seed.wrapping_add(thread.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let picker = KeyPicker::new(spec.order, space, rng.fork());
        let tail = |target: &Target, operation| {
            format!("{} HTTP/1.1\r\nHost: {}\r\n", spec.parameters(operation), target.authority())
        };
        let tails =
            targets.iter().map(|target| Operation::ALL.map(|operation| tail(target, operation))).collect();
        Self { mix: spec.mix, picker, rng, values: spec.values(), protocol: spec.protocol, tails }
    }

    pub(crate) const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Draws the next request.
    pub(crate) fn next(&mut self) -> Request {
        let operation = self.mix.draw(&mut self.rng);
        let key = match operation {
            Operation::Put => self.picker.for_write(),
            Operation::Get | Operation::GetMissing | Operation::Delete | Operation::Range => {
                self.picker.for_read()
            }
        };
        Request { operation, key }
    }

    /// Appends the encoded request to `out`. `target` is the index of its target.
    pub(crate) fn encode(&self, request: Request, target: usize, out: &mut Vec<u8>) {
        let key = match request.operation {
            Operation::GetMissing => request.key.missing_key(),
            _ => request.key.stored_key(),
        };
        if self.protocol == Protocol::Resp {
            self.encode_resp(request, &key, out);
            return;
        }
        let start: &[u8] = match request.operation {
            _ if self.protocol == Protocol::Files => b"GET /",
            Operation::Get | Operation::GetMissing => b"GET /v0/entity?id=",
            Operation::Put => b"PUT /v0/entity?id=",
            Operation::Delete => b"DELETE /v0/entity?id=",
            Operation::Range => b"GET /v0/entities?start=",
        };
        for part in [start, &key, self.tails[target][request.operation as usize].as_bytes()] {
            out.extend_from_slice(part);
        }
        if request.operation != Operation::Put {
            out.extend_from_slice(b"\r\n");
            return;
        }
        io::Write::write_fmt(out, format_args!("Content-Length: {}\r\n\r\n", self.values.len(request.key)))
            .expect("writing to a Vec cannot fail");
        self.values.append(request.key, out);
    }

    fn encode_resp(&self, request: Request, key: &[u8], out: &mut Vec<u8>) {
        let stores = request.operation == Operation::Put;
        let value_bytes = stores.then(|| self.values.len(request.key));
        protocol::command(request.operation, key, value_bytes, out);
        if stores {
            self.values.append(request.key, out);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Whether `body` is the expected value of this key.
    pub(crate) fn is_value_of(&self, key: KeyNumber, body: &[u8], scratch: &mut Vec<u8>) -> bool {
        scratch.clear();
        self.values.append(key, scratch);
        scratch == body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(mix: &str, seed: u64) -> Workload {
        let spec = WorkloadSpec {
            mix: mix.parse().unwrap(),
            keys: 100,
            sizes: ValueSizes::Fixed(5),
            seed,
            quorum: QuorumOverride { ack: Some(2), from: Some(3) },
            ttl_ms: Some(9),
            limit: 7,
            ..WorkloadSpec::default()
        };
        Workload::new(&spec, KeySpace::new(spec.keys), &["127.0.0.1:1".parse().unwrap()], 0)
    }

    #[test]
    fn requests_of_a_seed_repeat_and_keep_their_shares() {
        let draw = |seed| {
            let mut workload = workload("get=80,put=20", seed);
            std::iter::repeat_with(|| workload.next()).take(10_000).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let puts = draw(1).iter().filter(|request| request.operation == Operation::Put).count();
        assert!((1_800..2_200).contains(&puts), "{puts} puts");
    }

    #[test]
    fn a_put_carries_the_value_that_a_get_is_checked_against() {
        let workload = workload("put", 1);
        let mut bytes = Vec::new();
        workload.encode(Request { operation: Operation::Put, key: KeyNumber(5) }, 0, &mut bytes);
        let (head, body) = bytes.split_at(bytes.len() - 5);
        let expected = "PUT /v0/entity?id=000000000000000a&ack=2&from=3&ttl=9 HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(std::str::from_utf8(head), Ok(expected));
        assert!(workload.is_value_of(KeyNumber(5), body, &mut Vec::new()));
        assert!(!workload.is_value_of(KeyNumber(6), body, &mut Vec::new()));
    }

    #[test]
    fn reads_carry_their_parameters_only() {
        let workload = workload("get", 1);
        let line_of = |operation| {
            let mut bytes = Vec::new();
            workload.encode(Request { operation, key: KeyNumber(5) }, 0, &mut bytes);
            String::from_utf8(bytes).unwrap().lines().next().unwrap().to_owned()
        };
        for (operation, line) in [
            (Operation::Get, "GET /v0/entity?id=000000000000000a&ack=2&from=3 HTTP/1.1"),
            (Operation::GetMissing, "GET /v0/entity?id=000000000000000b&ack=2&from=3 HTTP/1.1"),
            (Operation::Delete, "DELETE /v0/entity?id=000000000000000a&ack=2&from=3 HTTP/1.1"),
            (Operation::Range, "GET /v0/entities?start=000000000000000a&limit=7 HTTP/1.1"),
        ] {
            assert_eq!(line_of(operation), line);
        }
        let files = WorkloadSpec { protocol: Protocol::Files, ..WorkloadSpec::default() };
        let files = Workload::new(&files, KeySpace::new(9), &["127.0.0.1:1".parse().unwrap()], 0);
        let mut bytes = Vec::new();
        files.encode(Request { operation: Operation::Get, key: KeyNumber(5) }, 0, &mut bytes);
        assert_eq!(bytes, b"GET /000000000000000a HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n");
        let spec = WorkloadSpec { scope: RangeScope::Cluster, ..WorkloadSpec::default() };
        assert_eq!(spec.parameters(Operation::Range), "&limit=100&cluster=1");
    }

    #[test]
    fn mixes_are_read_and_shown() {
        assert_eq!("get=80,put=20".parse::<Mix>().unwrap().to_string(), "get=80,put=20");
        assert_eq!("get-missing".parse(), Ok(Mix::only(Operation::GetMissing)));
        assert!("fetch".parse::<Mix>().is_err() && "get=0".parse::<Mix>().is_err());
    }
}
