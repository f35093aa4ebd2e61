//! Problems: the responses to requests that fail.
//!
//! **Promise.** Each states in `detail`, in plain English, the fault and advice. The body is a
//! problem document (RFC 9457) of the type `about:blank`, which is left out.

use crate::encode::acks_value;
use crate::{EncodedResponse, HttpDate};
use bytes::Bytes;
use cluster::Acks;
use http::header::{ACCEPT_ENCODING, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;
use std::borrow::Cow;
use std::time::Duration;

const CONTENT_TYPE_PROBLEM: &str = "application/problem+json";
const RETRY_AFTER_SECS_MAX: u64 = 30;

/// A failure of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    status: StatusCode,
    reason: Option<&'static str>,
    detail: Cow<'static, str>,
    allow: Option<&'static str>,
    retry_after_secs: Option<u64>,
    acks: Option<Acks>,
    /// Length of the value, in bytes, for a range that cannot be satisfied.
    value_len: Option<usize>,
    /// The content codings of a body that are read, where the request's body has another one.
    accept_encoding: Option<&'static str>,
}

/// Body of the response.
#[derive(Serialize)]
struct Document<'a> {
    title: &'a str,
    status: u16,
    detail: &'a str,
}

impl Problem {
    /// Creates a problem with this status. `detail` states the fault and gives advice.
    pub fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        let detail = detail.into();
        Self {
            status,
            reason: None,
            detail,
            allow: None,
            retry_after_secs: None,
            acks: None,
            value_len: None,
            accept_encoding: None,
        }
    }

    /// `400`: the request is malformed, or asks for something impossible.
    pub fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// `413`: a value of more than `bytes_max` bytes.
    pub fn value_too_large(bytes_max: usize) -> Self {
        let detail = format!(
            "The value is larger than {bytes_max} bytes, the most that this node accepts. Nothing was stored. \
             Store it in parts, or raise --value-max on each node."
        );
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// `413`: a body of more than `bytes_max` bytes in a request that needs none.
    pub fn body_too_large(bytes_max: usize) -> Self {
        let detail = format!(
            "The body is larger than {bytes_max} bytes, the most that this node reads, and means nothing in this \
             request. Nothing was done. Send it without a body."
        );
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// `503` with `Retry-After`: the request may succeed later.
    pub fn unavailable(retry_after: Duration, detail: impl Into<Cow<'static, str>>) -> Self {
        let secs = retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0);
        let retry_after_secs = Some(secs.clamp(1, RETRY_AFTER_SECS_MAX));
        Self { retry_after_secs, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, detail) }
    }

    /// `503`: the node has not recovered yet.
    pub fn starting() -> Self {
        Self::unavailable(Duration::from_secs(1), "The node is starting. Try again in a moment.")
    }

    /// `503`: the node is overloaded. It expects capacity after `retry_after`.
    pub fn overloaded(retry_after: Duration) -> Self {
        let detail = "The node has more to do than it can take in. Nothing was done. \
                      Try again after the time in Retry-After.";
        Self::unavailable(retry_after, detail)
    }

    /// `503`: the node has no capacity for a read. It expects some after `retry_after`.
    pub(crate) fn read_overloaded(retry_after: Duration) -> Self {
        let detail = "The node has no capacity for this read now: too many reads wait, or there is no memory for the value \
                      beside other large values on their way to their readers. Nothing was done. Try again after the time in \
                      Retry-After. If this happens often, read fewer large values at a time, or raise --memory.";
        Self::unavailable(retry_after, detail)
    }

    pub(crate) fn method_not_allowed(allow: &'static str) -> Self {
        let choice = if allow.contains(',') { "one of: " } else { "" };
        let detail = format!("This path has no such method. Use {choice}{allow}.");
        Self { allow: Some(allow), ..Self::new(StatusCode::METHOD_NOT_ALLOWED, detail) }
    }

    /// `415`: the body has a content coding that is not read.
    pub(crate) fn content_coding(detail: &'static str) -> Self {
        let accept_encoding = Some("identity");
        Self { accept_encoding, ..Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail) }
    }

    pub(crate) fn not_enough_replicas(acks: Acks, detail: String) -> Self {
        let reason = Some("Not Enough Replicas");
        Self { reason, acks: Some(acks), ..Self::new(StatusCode::GATEWAY_TIMEOUT, detail) }
    }

    /// `416`: a value of `value_len` bytes has none of the bytes that `Range` names.
    pub(crate) fn range_not_satisfiable(value_len: usize) -> Self {
        let detail = format!(
            "The value has {value_len} bytes, and none of those that Range names. Ask for bytes that it has, or leave Range out."
        );
        Self { value_len: Some(value_len), ..Self::new(StatusCode::RANGE_NOT_SATISFIABLE, detail) }
    }

    pub(crate) fn with_acks(self, acks: Acks) -> Self {
        Self { acks: Some(acks), ..self }
    }

    /// Status of the response.
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// The fault, and advice.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Takes the detail.
    pub(crate) fn into_detail(self) -> Cow<'static, str> {
        self.detail
    }

    /// Value of `Retry-After`, in seconds: at most [`RETRY_AFTER_SECS_MAX`].
    pub(crate) const fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after_secs
    }

    /// Encodes the response. For a `HEAD` it has no body, but the headers of the `GET`.
    pub fn to_response(&self, is_head: bool) -> EncodedResponse {
        let document = self.document();
        let document_len = document.len();
        let mut response = Response::new(if is_head { Bytes::new() } else { document });
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE_PROBLEM));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(document_len));
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if let Some(codings) = self.accept_encoding {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(codings));
        }
        if let Some(secs) = self.retry_after_secs {
            headers.insert(RETRY_AFTER, HeaderValue::from(secs));
        }
        if let Some(value_len) = self.value_len {
            let range = HeaderValue::try_from(format!("bytes */{value_len}"))
                .expect("digits and punctuation are a header value");
            headers.insert(CONTENT_RANGE, range);
        }
        if let Some(acks) = self.acks {
            headers.insert(crate::encode::VECHE_ACKS, acks_value(acks));
        }
        EncodedResponse { response, reason: self.reason }
    }

    /// Encodes the response as bytes, for a connection that closes after it. `date` is the time of
    /// the response.
    pub fn to_http1_bytes(&self, date: &HttpDate) -> Bytes {
        self.to_response(false).to_last_http1_bytes(date)
    }

    fn title(&self) -> &'static str {
        self.reason.or(self.status.canonical_reason()).unwrap_or("Error")
    }

    fn document(&self) -> Bytes {
        let document =
            Document { title: self.title(), status: self.status.as_u16(), detail: self.detail.as_ref() };
        serde_json::to_vec(&document).expect("strings and a number are JSON").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_status_title_and_detail() {
        let problem = Problem::bad_request("It says \"no\".");
        let answer = problem.to_response(false);
        assert_eq!(answer.response.status(), 400);
        assert_eq!(answer.response.headers()[CONTENT_TYPE], "application/problem+json");
        assert_eq!(
            answer.response.body(),
            &r#"{"title":"Bad Request","status":400,"detail":"It says \"no\"."}"#
        );
    }

    #[test]
    fn a_head_request_gets_the_headers_alone() {
        let problem = Problem::bad_request("No.");
        let (get, head) = (problem.to_response(false).response, problem.to_response(true).response);
        assert_eq!(get.headers(), head.headers());
        assert_eq!(head.headers()[CONTENT_LENGTH], get.body().len().to_string().as_str());
        assert!(head.body().is_empty());
    }

    #[test]
    fn retry_after_is_1_to_30_whole_seconds() {
        for (millis, expected) in [(0, "1"), (1, "1"), (1_000, "1"), (1_001, "2"), (99_000, "30")] {
            let answer = Problem::unavailable(Duration::from_millis(millis), "Wait.").to_response(false);
            assert_eq!(answer.response.headers()[RETRY_AFTER], expected, "{millis} ms");
        }
    }

    #[test]
    fn a_response_as_bytes_closes_the_connection() {
        let bytes = Problem::bad_request("No.").to_http1_bytes(b"Sun, 06 Nov 1994 08:49:37 GMT");
        let document = r#"{"title":"Bad Request","status":400,"detail":"No."}"#;
        let expected = format!(
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\
             connection: close\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n{document}",
            document.len()
        );
        assert_eq!(bytes, expected);
    }
}
