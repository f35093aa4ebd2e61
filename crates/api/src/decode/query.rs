//! The parameters of an entity: `id`, `ack`, `from`, `replicas`, `ttl`.
//!
//! A query is what form encoders write: `name=value` pairs between `&`, percent-encoded, `+` for a space. Names
//! are compared as they stand. Each may be given once.

use super::Rules;
use crate::Problem;
use bytes::Bytes;
use cluster::{Key, KeyError, Lifetime, Quorum, QuorumChoice};
use http::StatusCode;
use std::time::Duration;

/// How much of a user's text an answer repeats, in characters.
const QUOTED_CHARS_MAX: usize = 64;

/// The parameters, as they stand in the query.
#[derive(Debug, Default)]
pub(super) struct Parameters<'a> {
    id: Option<&'a str>,
    ack: Option<&'a str>,
    from: Option<&'a str>,
    replicas: Option<&'a str>,
    ttl: Option<&'a str>,
}

impl<'a> Parameters<'a> {
    /// Takes a query apart.
    pub(super) fn parse(query: &'a str) -> Result<Self, Problem> {
        let mut parameters = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let place = match name {
                "id" => &mut parameters.id,
                "ack" => &mut parameters.ack,
                "from" => &mut parameters.from,
                "replicas" => &mut parameters.replicas,
                "ttl" => &mut parameters.ttl,
                _ => return Err(unknown(name)),
            };
            if place.replace(value).is_some() {
                let detail = format!("The parameter {name} is given twice. Give it once.");
                return Err(Problem::bad_request(detail));
            }
        }
        Ok(parameters)
    }

    pub(super) fn key(&self) -> Result<Key, Problem> {
        let id = self.id.ok_or_else(|| {
            Problem::bad_request("The parameter id is missing. Name the key: ?id=<percent-encoded key>.")
        })?;
        Key::new(decode_component("id", id)?).map_err(|error| match error {
            KeyError::Empty => {
                Problem::bad_request("The parameter id is empty. A key has at least 1 byte: ?id=<key>.")
            }
            KeyError::TooLong { len } => {
                let detail =
                    format!("The key has {len} bytes, the most is {}. Use a shorter key.", Key::LEN_MAX);
                Problem::new(StatusCode::URI_TOO_LONG, detail)
            }
        })
    }

    pub(super) fn quorum(&self, rules: &Rules) -> Result<Quorum, Problem> {
        let choice = match self.replicas {
            None => QuorumChoice { ack: count("ack", self.ack)?, from: count("from", self.from)? },
            Some(_) if self.ack.is_some() || self.from.is_some() => {
                return Err(Problem::bad_request(
                    "The parameter replicas says the same as ack and from. Give either replicas or the others.",
                ));
            }
            Some(replicas) => choice_of(replicas)?,
        };
        choice.resolve(rules.nodes, rules.default_from).map_err(|error| {
            Problem::bad_request(format!(
                "This is no quorum of this cluster: {error}. Choose ack and from in these bounds, or leave them out."
            ))
        })
    }

    pub(super) const fn has_lifetime(&self) -> bool {
        self.ttl.is_some()
    }

    pub(super) fn lifetime(&self) -> Result<Lifetime, Problem> {
        let Some(ttl) = self.ttl else {
            return Ok(Lifetime::Forever);
        };
        match number(&decode_component("ttl", ttl)?) {
            Some(millis) if millis > 0 => Ok(Lifetime::For(Duration::from_millis(millis))),
            _ => Err(Problem::bad_request(
                "The parameter ttl is not a whole number of milliseconds of at least 1. \
                 Leave it out for a value that never expires.",
            )),
        }
    }
}

fn unknown(name: &str) -> Problem {
    let name: String = name.chars().take(QUOTED_CHARS_MAX).collect();
    let detail =
        format!("The parameter {name:?} is not known here. Known are id, ack, from, replicas and ttl.");
    Problem::bad_request(detail)
}

fn choice_of(replicas: &str) -> Result<QuorumChoice, Problem> {
    let text = decode_component("replicas", replicas)?;
    let numbers = memchr::memchr(b'/', &text)
        .and_then(|slash| Some((small_number(&text[..slash])?, small_number(&text[slash + 1..])?)));
    match numbers {
        Some((ack, from)) => Ok(QuorumChoice { ack: Some(ack), from: Some(from) }),
        None => Err(Problem::bad_request(
            "The parameter replicas is not two whole numbers with a slash between them. Write <ack>/<from>, as 2/3.",
        )),
    }
}

fn count(name: &'static str, value: Option<&str>) -> Result<Option<u32>, Problem> {
    let Some(value) = value else {
        return Ok(None);
    };
    match small_number(&decode_component(name, value)?) {
        Some(number) => Ok(Some(number)),
        None => Err(Problem::bad_request(format!(
            "The parameter {name} is not a number of replicas. Write a whole number of at least 1, or leave it out."
        ))),
    }
}

fn small_number(text: &[u8]) -> Option<u32> {
    number(text).and_then(|number| u32::try_from(number).ok())
}

/// A whole number without a sign.
fn number(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    if is_number { std::str::from_utf8(text).ok()?.parse().ok() } else { None }
}

/// The bytes that a parameter stands for.
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

    proptest! {
        #[test]
        fn every_key_can_be_named(key in prop::collection::vec(any::<u8>(), 1..100), form in any::<bool>()) {
            let id: String = key.iter().map(|byte| match byte {
                b'a'..=b'z' => char::from(*byte).to_string(),
                b' ' if form => "+".to_owned(),
                byte => format!("%{byte:02X}"),
            }).collect();
            let query = format!("id={id}");
            let decoded = Parameters::parse(&query).and_then(|parameters| parameters.key());
            let decoded = decoded.expect("a key");
            prop_assert_eq!(decoded.as_bytes(), key);
        }

        #[test]
        fn any_query_is_understood_or_refused(query in "(id|ack|from|ttl|replicas|=|&|%|\\+|[0-9a-f]|.){0,40}") {
            if let Ok(parameters) = Parameters::parse(&query) {
                let _ = (parameters.key().is_ok(), parameters.lifetime().is_ok());
            }
        }
    }
}
