//! Parameters of a request.
//!
//! A query has the form that form encoders write: `name=value` pairs separated by `&`,
//! percent-encoded, with `+` for a space. Names are compared before decoding. Each name may be
//! given once.

use super::RequestRules;
use crate::Problem;
use bytes::Bytes;
use cluster::{Key, KeyError, Lifetime, Quorum, QuorumChoice};
use http::StatusCode;
use std::time::Duration;

/// Greatest number of characters of a client's text that an answer repeats.
const QUOTED_CHARS_MAX: usize = 64;

/// Greatest number of parameters of a path.
const KNOWN_MAX: usize = 10;

/// Parameters that choose the quorum.
const QUORUM: [&str; 3] = ["ack", "from", "replicas"];

/// Parameters in their encoded form.
#[derive(Debug)]
pub(super) struct Parameters<'a> {
    /// Names of the parameters of the path.
    known: &'static [&'static str],
    /// Encoded value of each given parameter.
    values: [&'a str; KNOWN_MAX],
    /// A bit for each given parameter, by its index in `known`. Most requests give one of many.
    given: u16,
}

const _: () = assert!(KNOWN_MAX <= u16::BITS as usize);

impl<'a> Parameters<'a> {
    /// Splits a query into parameters whose names must be in `known`.
    pub(super) fn parse(query: &'a str, known: &'static [&'static str]) -> Result<Self, Problem> {
        let mut parameters = Self { known, values: [""; KNOWN_MAX], given: 0 };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let index = known.iter().position(|known| *known == name).ok_or_else(|| unknown(name, known))?;
            if parameters.given & (1 << index) != 0 {
                let detail = format!("The parameter {name} is given twice. Give it once.");
                return Err(Problem::bad_request(detail));
            }
            parameters.given |= 1 << index;
            parameters.values[index] = value;
        }
        Ok(parameters)
    }

    /// Encoded value of a parameter.
    fn get(&self, name: &str) -> Option<&'a str> {
        let mut given = self.given;
        while given != 0 {
            let index = given.trailing_zeros() as usize;
            if self.known[index] == name {
                return Some(self.values[index]);
            }
            given &= given - 1;
        }
        None
    }

    /// Key of an entity.
    pub(super) fn key(&self) -> Result<Key, Problem> {
        match self.optional_key("id")? {
            OptionalKey::Key(key) => Ok(key),
            OptionalKey::Absent => Err(Problem::bad_request(
                "The parameter id is missing. Name the key: ?id=<percent-encoded key>.",
            )),
            OptionalKey::Empty => {
                Err(Problem::bad_request("The parameter id is empty. A key has at least 1 byte: ?id=<key>."))
            }
        }
    }

    /// Key that may be absent.
    pub(super) fn optional_key(&self, name: &'static str) -> Result<OptionalKey, Problem> {
        let Some(text) = self.get(name) else { return Ok(OptionalKey::Absent) };
        match Key::new(decode_component(name, text)?) {
            Ok(key) => Ok(OptionalKey::Key(key)),
            Err(KeyError::Empty) => Ok(OptionalKey::Empty),
            Err(KeyError::TooLong { len }) => {
                let detail = format!(
                    "The key in {name} has {len} bytes, the most is {}. Use a shorter key.",
                    Key::LEN_MAX
                );
                Err(Problem::new(StatusCode::URI_TOO_LONG, detail))
            }
        }
    }

    /// Decoded text of a parameter that may be absent.
    pub(super) fn text(&self, name: &'static str) -> Result<Option<Bytes>, Problem> {
        self.get(name).map(|text| decode_component(name, text)).transpose()
    }

    /// Whether a parameter that is `0` or `1` is `1`; it may be absent.
    pub(super) fn is_set(&self, name: &'static str) -> Result<bool, Problem> {
        let Some(text) = self.get(name) else { return Ok(false) };
        match &*decode_component(name, text)? {
            b"0" => Ok(false),
            b"1" => Ok(true),
            _ => Err(Problem::bad_request(format!("The parameter {name} is neither 1 nor 0."))),
        }
    }

    /// Whether the request chooses its quorum.
    pub(super) fn chooses_quorum(&self) -> bool {
        QUORUM.iter().any(|name| self.get(name).is_some())
    }

    pub(super) fn quorum(&self, rules: &RequestRules) -> Result<Quorum, Problem> {
        let [ack, from, replicas] = QUORUM.map(|name| self.get(name));
        let choice = match replicas {
            None => QuorumChoice { ack: count("ack", ack, rules)?, from: count("from", from, rules)? },
            Some(_) if ack.is_some() || from.is_some() => {
                return Err(Problem::bad_request(
                    "The parameter replicas says the same as ack and from. Give either replicas or the others.",
                ));
            }
            Some(replicas) => choice_of(replicas, rules)?,
        };
        choice.resolve(rules.nodes, rules.default_from).map_err(|error| {
            Problem::bad_request(format!(
                "This is no quorum of this cluster: {error}. Choose ack and from in these bounds, or leave them out."
            ))
        })
    }

    pub(super) fn has_lifetime(&self) -> bool {
        self.get("ttl").is_some()
    }

    pub(super) fn lifetime(&self) -> Result<Lifetime, Problem> {
        let Some(ttl) = self.get("ttl") else {
            return Ok(Lifetime::Forever);
        };
        match WholeNumber::parse(&decode_component("ttl", ttl)?) {
            Some(WholeNumber::Fits(millis @ 1..)) => Ok(Lifetime::For(Duration::from_millis(millis))),
            Some(WholeNumber::TooLarge) => Err(Problem::bad_request(
                "The parameter ttl is too large: the value would expire after the year 2100. Nothing was stored. \
                 Use a smaller ttl, or none for a value that never expires.",
            )),
            _ => Err(Problem::bad_request(
                "The parameter ttl is not a whole number of milliseconds of at least 1. \
                 Leave it out for a value that never expires.",
            )),
        }
    }
}

/// A key that may be absent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OptionalKey {
    Absent,
    /// The parameter is given without a byte.
    Empty,
    Key(Key),
}

fn unknown(name: &str, known: &[&str]) -> Problem {
    let name: String = name.chars().take(QUOTED_CHARS_MAX).collect();
    let (last, others) = known.split_last().expect("paths without parameters do not ask for them");
    let known =
        if others.is_empty() { (*last).to_owned() } else { format!("{} and {last}", others.join(", ")) };
    Problem::bad_request(format!("The parameter {name:?} is not known here. Known: {known}."))
}

fn choice_of(replicas: &str, rules: &RequestRules) -> Result<QuorumChoice, Problem> {
    let text = decode_component("replicas", replicas)?;
    let numbers = memchr::memchr(b'/', &text).and_then(|slash| {
        Some((WholeNumber::parse(&text[..slash])?, WholeNumber::parse(&text[slash + 1..])?))
    });
    match numbers {
        Some((ack, from)) => Ok(QuorumChoice {
            ack: Some(replica_count("replicas", ack, rules)?),
            from: Some(replica_count("replicas", from, rules)?),
        }),
        None => Err(Problem::bad_request(
            "The parameter replicas is not two whole numbers with a slash between them. Write <ack>/<from>, as 2/3.",
        )),
    }
}

fn count(name: &'static str, value: Option<&str>, rules: &RequestRules) -> Result<Option<u32>, Problem> {
    let Some(value) = value else {
        return Ok(None);
    };
    match WholeNumber::parse(&decode_component(name, value)?) {
        Some(number) => replica_count(name, number, rules).map(Some),
        None => Err(Problem::bad_request(format!(
            "The parameter {name} is not a number of replicas. Write a whole number of at least 1, or leave it out."
        ))),
    }
}

/// Converts a number of replicas. The cluster's own limits are checked later. A number that does
/// not fit into 32 bits is beyond all of them.
fn replica_count(name: &str, number: WholeNumber, rules: &RequestRules) -> Result<u32, Problem> {
    number.value().and_then(|number| u32::try_from(number).ok()).ok_or_else(|| {
        let nodes = rules.nodes;
        let of_nodes = if nodes.get() == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") };
        Problem::bad_request(format!(
            "The parameter {name} has a number that is too large: this cluster has {of_nodes}. \
             Choose 1 <= ack <= from <= {nodes}, or leave it out."
        ))
    })
}

/// A whole number without a sign, of any length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WholeNumber {
    /// The number fits into 64 bits.
    Fits(u64),
    /// The number does not fit into 64 bits.
    TooLarge,
}

impl WholeNumber {
    /// Parses a number; `None` unless `text` consists of decimal digits.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let digits = std::str::from_utf8(text).ok()?;
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse().map_or(Self::TooLarge, Self::Fits))
    }

    /// The number, if it fits into 64 bits.
    pub(super) const fn value(self) -> Option<u64> {
        match self {
            Self::Fits(number) => Some(number),
            Self::TooLarge => None,
        }
    }
}

/// Decodes the value of a parameter.
fn decode_component(name: &'static str, text: &str) -> Result<Bytes, Problem> {
    let text = text.as_bytes();
    if memchr::memchr2(b'%', b'+', text).is_none() {
        return Ok(Bytes::copy_from_slice(text));
    }
    percent_decode(text).map(Bytes::from).ok_or_else(|| {
        Problem::bad_request(format!(
            "The parameter {name} has a % that two hexadecimal digits do not follow. Write a percent sign as %25."
        ))
    })
}

fn percent_decode(mut text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    while let Some((&byte, rest)) = text.split_first() {
        text = rest;
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let (&[high, low], rest) = text.split_first_chunk()?;
                out.push(hex_digit(high)? << 4 | hex_digit(low)?);
                text = rest;
            }
            byte => out.push(byte),
        }
    }
    Some(out)
}

const fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KNOWN: &[&str] = &["id", "ack", "from", "replicas", "ttl"];

    proptest! {
        #[test]
        fn every_key_can_be_named(key in prop::collection::vec(any::<u8>(), 1..100), form in any::<bool>()) {
            let id: String = key.iter().map(|byte| match byte {
                b'a'..=b'z' => char::from(*byte).to_string(),
                b' ' if form => "+".to_owned(),
                byte => format!("%{byte:02X}"),
            }).collect();
            let query = format!("id={id}");
            let decoded = Parameters::parse(&query, KNOWN).and_then(|parameters| parameters.key());
            let decoded = decoded.expect("a key");
            prop_assert_eq!(decoded.as_bytes(), key);
        }

        #[test]
        fn any_query_is_understood_or_refused(query in "(id|ack|from|ttl|replicas|=|&|%|\\+|[0-9a-f]|.){0,40}") {
            if let Ok(parameters) = Parameters::parse(&query, KNOWN) {
                let _ = (parameters.key().is_ok(), parameters.lifetime().is_ok());
            }
        }
    }
}
