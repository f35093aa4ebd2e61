//! Responses as the bytes of HTTP/1.1.
//!
//! **Promise.** The bytes have the fields that hyper writes for the same [`EncodedResponse`], in
//! the same order. The most frequent responses, values and versions, are written without an
//! intermediate map of headers.

use super::{EncodedResponse, EntityHead, etag_text, outcome};
use crate::{Action, ResponseContext};
use bytes::Bytes;
use cluster::{Acks, Reply};
use http::StatusCode;
use http::header::CONTENT_LENGTH;

/// A time in the form of the `Date` header (RFC 9110, section 5.6.7).
pub type HttpDate = [u8; 29];

const CLOSE: &[u8] = b"connection: close\r\n";

/// Appends the head of a response to `out`. Returns its status, and the body to send after it. If
/// `goes_on` is false, the head closes the connection.
pub fn encode_http1(
    reply: Reply,
    asked: &ResponseContext,
    goes_on: bool,
    date: &HttpDate,
    out: &mut Vec<u8>,
) -> (StatusCode, Bytes) {
    let answered = match outcome(reply, asked) {
        Ok((head, body)) => {
            head.append_http1(out);
            (head.status, body)
        }
        Err(problem) => {
            let answer = problem.to_response(asked.action == Action::Head);
            answer.append_http1(out);
            (answer.response.status(), answer.response.into_body())
        }
    };
    if !goes_on {
        out.extend_from_slice(CLOSE);
    }
    append_date(out, date);
    answered
}

/// Appends the last field of a head, and the empty line behind it.
fn append_date(out: &mut Vec<u8>, date: &HttpDate) {
    out.extend_from_slice(b"date: ");
    out.extend_from_slice(date);
    out.extend_from_slice(b"\r\n\r\n");
}

impl EntityHead {
    /// Appends the head without `Date`, `Connection` and the empty line at its end. It has the same
    /// fields as `into_response`.
    fn append_http1(self, out: &mut Vec<u8>) {
        append_status(out, self.status, None);
        append_field(out, "etag", &etag_text(self.version));
        append_acks(out, self.acks);
        if self.superseded {
            append_field(out, "veche-superseded", b"1");
        }
        if let Some(expires_at) = self.expires_at {
            append_field(out, "veche-expires-at", super::expiry_ms(expires_at).to_string().as_bytes());
        }
        if let Some(part) = self.part {
            append_field(out, "content-range", part.to_string().as_bytes());
        }
        if self.value_len.is_some() {
            append_field(out, "content-type", super::CONTENT_TYPE_VALUE.as_bytes());
        }
        append_length(out, self.value_len.unwrap_or(0));
    }
}

impl EncodedResponse {
    /// Appends the head without the empty line at its end.
    pub(crate) fn append_http1(&self, out: &mut Vec<u8>) {
        append_status(out, self.response.status(), self.reason);
        let headers = self.response.headers();
        for (name, value) in headers {
            append_field(out, name.as_str(), value.as_bytes());
        }
        if !headers.contains_key(CONTENT_LENGTH) {
            append_length(out, self.response.body().len());
        }
    }

    /// Encodes the whole response, for a connection that closes after it.
    pub(crate) fn to_last_http1_bytes(&self, date: &HttpDate) -> Bytes {
        let mut out = Vec::with_capacity(512);
        self.append_http1(&mut out);
        out.extend_from_slice(CLOSE);
        append_date(&mut out, date);
        out.extend_from_slice(self.response.body());
        out.into()
    }
}

fn append_status(out: &mut Vec<u8>, status: StatusCode, reason: Option<&'static str>) {
    if status == StatusCode::OK {
        return out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(reason.or(status.canonical_reason()).unwrap_or("Error").as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn append_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn append_acks(out: &mut Vec<u8>, acks: Acks) {
    out.extend_from_slice(b"veche-acks: ");
    append_number(out, usize::from(acks.got));
    out.push(b'/');
    append_number(out, usize::from(acks.from));
    out.extend_from_slice(b"\r\n");
}

fn append_length(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(b"content-length: ");
    append_number(out, len);
    out.extend_from_slice(b"\r\n");
}

fn append_number(out: &mut Vec<u8>, number: usize) {
    if number >= 10 {
        append_number(out, number / 10);
    }
    out.push(b'0' + (number % 10) as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::CommandFailure;
    use proptest::prelude::*;
    use stdx::{Cell, Hlc, NodeTag, Version, WallTime};

    const DATE: &HttpDate = b"Sun, 06 Nov 1994 08:49:37 GMT";

    /// Splits a head into its status line and its sorted fields.
    fn parse(bytes: &[u8]) -> Vec<String> {
        let text = std::str::from_utf8(bytes).expect("text");
        let mut lines: Vec<_> =
            text.strip_suffix("\r\n\r\n").expect("a head").split("\r\n").map(String::from).collect();
        lines[1..].sort();
        lines
    }

    fn replies() -> impl Strategy<Value = Reply> {
        let acks = (1..=7u8, 1..=7u8).prop_map(|(got, from)| Acks { got, from });
        let version =
            any::<(u64, u64)>().prop_map(|(hlc, tag)| Version::new(Hlc::from_bits(hlc), NodeTag(tag)));
        let value = prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from);
        prop_oneof![
            (version.clone(), acks.clone(), value, prop::option::of(0..u64::MAX / 2)).prop_map(
                |(version, acks, value, expires_at)| {
                    let mut cell = Cell::value(version, 1, value);
                    cell.meta.expires_at = expires_at.map(WallTime::from_micros_since_unix_epoch);
                    Reply::Found { cell, acks }
                }
            ),
            acks.clone().prop_map(|acks| Reply::Missing { acks }),
            (version, acks.clone(), any::<bool>()).prop_map(|(version, acks, superseded)| Reply::Written {
                version,
                superseded,
                acks
            }),
            acks.prop_map(|acks| {
                let shortfall = cluster::Shortfall::MaybeStored;
                Reply::Failed(CommandFailure::NotEnoughReplicas { acks, ack: 7, shortfall })
            }),
            Just(Reply::Failed(CommandFailure::DiskFull {
                acks: Acks { got: 1, from: 3 },
                here: false,
                maybe_stored: true
            })),
        ]
    }

    fn contexts() -> impl Strategy<Value = ResponseContext> {
        let lifetime = cluster::Lifetime::Forever;
        let actions = vec![Action::Get, Action::Head, Action::Put { lifetime }, Action::Delete];
        let ranges = vec![None, Some("bytes=1-20"), Some("bytes=-7"), Some("bytes=300-")];
        (prop::sample::select(actions), prop::sample::select(ranges)).prop_map(|(action, range)| {
            let byte_range = range.filter(|_| action == Action::Get).map(byte_range);
            ResponseContext { byte_range, ..ResponseContext::new(action) }
        })
    }

    fn byte_range(text: &str) -> crate::ByteRange {
        let request = http::Request::get("/v0/entity?id=k").header("range", text);
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        let nodes = std::num::NonZeroU8::MIN;
        let rules = crate::RequestRules { nodes, default_from: 1, value_bytes_max: 1 };
        match crate::decode_head(&parts, &rules) {
            Ok(crate::DecodedRequest::Entity(entity)) => entity.byte_range.expect("a range"),
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #[test]
        fn the_bytes_have_the_fields_of_the_response(reply in replies(), asked in contexts(), goes_on in any::<bool>()) {
            let mut out = Vec::new();
            let (status, body) = encode_http1(reply.clone(), &asked, goes_on, DATE, &mut out);
            let answer = super::super::encode(reply, &asked);
            prop_assert_eq!((status, &body), (answer.response.status(), answer.response.body()));
            let mut expected = Vec::new();
            answer.append_http1(&mut expected);
            if !goes_on {
                expected.extend_from_slice(CLOSE);
            }
            expected.extend_from_slice(b"date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n");
            prop_assert_eq!(parse(&out), parse(&expected));
        }
    }
}
