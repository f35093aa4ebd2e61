//! Responses about the node: its readiness, its methods, and a page with links.

use super::{EncodedResponse, NOT_SERVING_RETRY_AFTER, document_response, json};
use crate::{Problem, ReadyForm};
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;

const CONTENT_TYPE_PAGE: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// Body of the response of a node that is ready.
#[derive(Serialize)]
struct Ready {
    ready: bool,
}

/// Encodes the response to `GET /v0/ready`: `200`, or `503` with the `obstacle`.
pub fn encode_ready(obstacle: Option<String>, form: ReadyForm) -> EncodedResponse {
    let is_head = form == ReadyForm::Head;
    let mut answer = match obstacle {
        None => json(&Ready { ready: true }, is_head).into(),
        Some(obstacle) => Problem::unavailable(NOT_SERVING_RETRY_AFTER, obstacle).to_response(is_head),
    };
    if form == ReadyForm::Options {
        *answer.response.body_mut() = Bytes::new();
        answer.response.headers_mut().remove(CONTENT_TYPE);
        answer.response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(0));
    }
    answer
}

/// Encodes the response to `OPTIONS` on a path with these methods.
pub fn encode_options(allow: &'static str) -> EncodedResponse {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response.into()
}

/// Encodes the response to `GET /`: a short page with links.
pub fn encode_root(version: &str, is_head: bool) -> EncodedResponse {
    let page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<title>veche</title>\n<h1>veche {version}</h1>\n\
         <p>A distributed key-value store. Store and read a value:</p>\n\
         <pre>curl -X PUT --data-binary value '/v0/entity?id=key'\ncurl '/v0/entity?id=key'</pre>\n<ul>\n\
         <li><a href=\"/v0/status\">/v0/status</a>: how the node and its peers are, with warnings</li>\n\
         <li><a href=\"/v0/ready\">/v0/ready</a>: whether operations with the default quorum can be had here</li>\n\
         <li><a href=\"/metrics\">/metrics</a>: figures for Prometheus</li>\n\
         <li><a href=\"/v0/entities?start=%00&amp;limit=100\">/v0/entities?start=%00&amp;limit=100</a>: the first entries \
         on this node</li>\n</ul>\n"
    );
    document_response(CONTENT_TYPE_PAGE, page.into_bytes().into(), is_head).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_is_a_status_and_a_reason() {
        let reason = || Some("The node is starting.".to_owned());
        let ready = encode_ready(None, ReadyForm::Get).response;
        assert_eq!((ready.status(), &ready.body()[..]), (StatusCode::OK, &b"{\"ready\":true}"[..]));
        let unready = encode_ready(reason(), ReadyForm::Get).response;
        assert_eq!(unready.status(), 503);
        assert!(String::from_utf8_lossy(unready.body()).contains("The node is starting."));
        assert_eq!(unready.headers()["retry-after"], "1");
        let head = encode_ready(reason(), ReadyForm::Head).response;
        assert_eq!(head.headers(), unready.headers());
        assert!(head.body().is_empty());
        for (obstacle, status) in [(None, 200), (reason(), 503)] {
            let probe = encode_ready(obstacle, ReadyForm::Options).response;
            assert_eq!((probe.status().as_u16(), probe.body().len()), (status, 0));
            assert_eq!(probe.headers()[CONTENT_LENGTH], "0");
        }
    }

    #[test]
    fn options_have_no_body_and_no_length() {
        let answer = encode_options("GET, HEAD").response;
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()[ALLOW]),
            (204, &HeaderValue::from_static("GET, HEAD"))
        );
        assert!(answer.body().is_empty() && !answer.headers().contains_key(CONTENT_LENGTH));
    }
}
