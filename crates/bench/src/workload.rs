//! What a lane asks for: operations in their shares, keys in their order, values by their key.

use crate::keys::{KEY_LEN, KeyNumber, KeyOrder, KeyPicker, KeySpace};
use crate::values::{Sizes, Values};
use serde::Serialize;
use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::sync::Arc;
use stdx::Rng;

/// One kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Reads a key that may be there.
    Get,
    /// Writes the key's value.
    Put,
    /// Deletes a key.
    Delete,
    /// Reads a key that was never there, but lies between others.
    GetMissing,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Get, Self::Put, Self::Delete, Self::GetMissing];

    /// Its name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Delete => "delete",
            Self::GetMissing => "get-missing",
        }
    }

    /// The status that says that it was done. A [`Operation::Get`] may also be answered `404`.
    pub const fn expected_status(self) -> u16 {
        match self {
            Self::Get => 200,
            Self::Put => 201,
            Self::Delete => 202,
            Self::GetMissing => 404,
        }
    }
}

/// Shares of the operations. Text: `get=80,put=20`, or one name alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    shares: [u64; Operation::ALL.len()],
}

impl Mix {
    /// Only this one.
    pub const fn only(operation: Operation) -> Self {
        let mut shares = [0; Operation::ALL.len()];
        shares[operation as usize] = 1;
        Self { shares }
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
                .ok_or_else(|| format!("{name:?} is no operation: get, put, delete or get-missing"))?;
            let share: u32 = share.parse().map_err(|_| format!("{share:?} is no share"))?;
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
        let parts = Operation::ALL.into_iter().filter(|operation| self.shares[*operation as usize] > 0);
        let texts: Vec<String> = parts
            .map(|operation| format!("{}={}", operation.name(), self.shares[operation as usize]))
            .collect();
        f.write_str(&texts.join(","))
    }
}

/// Everything that makes a lane's requests what they are.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadSpec {
    /// Shares of the operations.
    pub mix: Mix,
    /// Keys that there are, or will be after a preload.
    pub keys: u64,
    /// The order in which they are drawn.
    pub order: KeyOrder,
    /// Sizes of the values that are written, and of those that a check expects.
    pub sizes: Sizes,
    /// Of the keys' order and the values' bytes.
    pub seed: u64,
}

impl WorkloadSpec {
    /// The values of all keys: one seed for every lane and run of a data set, whatever their own.
    pub fn values(&self) -> Values {
        Values::of_all_runs(self.sizes)
    }
}

/// A request before it is bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) operation: Operation,
    pub(crate) key: KeyNumber,
}

/// The requests of one lane on one thread.
#[derive(Debug)]
pub(crate) struct Workload {
    mix: Mix,
    picker: KeyPicker,
    rng: Rng,
    values: Values,
    host: String,
}

impl Workload {
    pub(crate) fn new(spec: &WorkloadSpec, space: Arc<KeySpace>, host: String, thread: u64) -> Self {
        let mut rng = Rng::new(spec.seed.wrapping_add(thread.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let picker = KeyPicker::new(spec.order, space, rng.fork());
        Self { mix: spec.mix, picker, rng, values: spec.values(), host }
    }

    /// Draws the next request.
    pub(crate) fn next(&mut self) -> Request {
        let operation = self.mix.draw(&mut self.rng);
        let key = match operation {
            Operation::Get | Operation::GetMissing => self.picker.for_read(),
            Operation::Put | Operation::Delete => self.picker.for_write(),
        };
        Request { operation, key }
    }

    /// Appends the bytes of a request to `out`.
    pub(crate) fn encode(&self, request: Request, out: &mut Vec<u8>) {
        let (method, key): (&[u8], [u8; KEY_LEN]) = match request.operation {
            Operation::Get => (b"GET", request.key.stored()),
            Operation::Put => (b"PUT", request.key.stored()),
            Operation::Delete => (b"DELETE", request.key.stored()),
            Operation::GetMissing => (b"GET", request.key.missing()),
        };
        for part in [method, b" /v0/entity?id=", &key, b" HTTP/1.1\r\nHost: ", self.host.as_bytes(), b"\r\n"]
        {
            out.extend_from_slice(part);
        }
        if request.operation != Operation::Put {
            out.extend_from_slice(b"\r\n");
            return;
        }
        write!(out, "Content-Length: {}\r\n\r\n", self.values.len(request.key)).expect("a Vec takes all");
        self.values.append(request.key, out);
    }

    /// Whether `body` is what the answer to a [`Operation::Get`] of this key must hold.
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
            order: KeyOrder::Uniform,
            sizes: Sizes::Fixed(5),
            seed,
        };
        Workload::new(&spec, KeySpace::new(spec.keys), "host:1".to_owned(), 0)
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
        workload.encode(Request { operation: Operation::Put, key: KeyNumber(5) }, &mut bytes);
        let (head, body) = bytes.split_at(bytes.len() - 5);
        let expected =
            "PUT /v0/entity?id=000000000000000a HTTP/1.1\r\nHost: host:1\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(std::str::from_utf8(head), Ok(expected));
        assert!(workload.is_value_of(KeyNumber(5), body, &mut Vec::new()));
        assert!(!workload.is_value_of(KeyNumber(6), body, &mut Vec::new()));
    }

    #[test]
    fn mixes_are_read_and_shown() {
        assert_eq!("get=80,put=20".parse::<Mix>().unwrap().to_string(), "get=80,put=20");
        assert_eq!("get-missing".parse(), Ok(Mix::only(Operation::GetMissing)));
        assert!("fetch".parse::<Mix>().is_err() && "get=0".parse::<Mix>().is_err());
    }
}
