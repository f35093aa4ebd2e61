//! Check of a complete head: whether it may pass, and the framing of its body.

use super::HeadLimits;
use crate::Problem;
use http::{StatusCode, Uri};
use httparse::{Error, Header, ParserConfig, Request, Status};
use std::mem::MaybeUninit;

/// Greatest length of a request target, in bytes. A range has two keys of the greatest length, all
/// percent-encoded, and the other parameters need some space too.
const TARGET_BYTES_MAX: usize = 56 << 10;

/// Greatest length of a body, in bytes. Arithmetic on greater lengths might overflow in some
/// reader.
pub(super) const BODY_BYTES_MAX: u64 = i64::MAX as u64;

/// A head that may pass.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CheckedHead<'a> {
    pub(super) method: &'a str,
    pub(super) target: &'a str,
    pub(super) framing: Framing,
    /// Whether the request is of HTTP/1.1 and has no header with a meaning for any reader of
    /// fast-path requests, except `Host` and a length.
    pub(super) is_fast_path: bool,
}

/// Framing after a head.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Framing {
    /// Body of the request.
    pub(super) body: Body,
    /// Whether no bytes may pass after the request.
    pub(super) is_last: bool,
}

/// Body after a head.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// No body.
    None,
    /// A body of this length, at least 1 byte.
    Sized(u64),
    /// A chunked body.
    Chunked,
}

/// Headers about the connection.
#[derive(Default)]
struct HeaderSummary<'a> {
    content_length: Option<&'a [u8]>,
    transfer_encoding: Option<&'a [u8]>,
    host: Option<&'a [u8]>,
    has_keep_alive: bool,
    has_close: bool,
    /// Whether there is a header that may have a meaning for a reader of fast-path requests.
    has_special: bool,
}

/// Checks `head`, which ends with its empty line.
pub(super) fn check_head(head: &[u8], limits: HeadLimits) -> Result<CheckedHead<'_>, Problem> {
    let mut headers = [MaybeUninit::<Header<'_>>::uninit(); HeadLimits::HEADERS_MAX];
    let mut request = Request::new(&mut []);
    let parsed = ParserConfig::default().parse_request_with_uninit_headers(
        &mut request,
        head,
        &mut headers[..limits.headers_max],
    );
    match parsed {
        Ok(Status::Complete(len)) if len == head.len() => {}
        Ok(_) => return Err(Problem::bad_request("The request is malformed: its head ends too early.")),
        Err(Error::Token) if has_raw_target(head) => return Err(raw_target()),
        Err(error) => return Err(problem_of(error, limits)),
    }
    let (method, target) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    check_target(target)?;
    let findings = HeaderSummary::of(request.headers)?;
    let is_http_11 = request.version == Some(1);
    check_host(findings.host, is_http_11)?;
    // To hyper, a tunnel follows a `CONNECT`. There is no tunnel here, so no bytes may follow.
    let is_last = findings.is_last(is_http_11) || method == "CONNECT";
    let framing = Framing { body: findings.body(is_http_11)?, is_last };
    Ok(CheckedHead { method, target, framing, is_fast_path: is_http_11 && !findings.has_special })
}

impl<'a> HeaderSummary<'a> {
    #[inline]
    fn of(headers: &[Header<'a>]) -> Result<Self, Problem> {
        let mut findings = Self::default();
        for header in headers {
            match header.name.len() {
                4 if header.name.eq_ignore_ascii_case("host") => {
                    set_once(&mut findings.host, header.value, TWO_HOSTS)?;
                }
                10 if header.name.eq_ignore_ascii_case("connection") => {
                    findings.has_keep_alive |= has_token(header.value, b"keep-alive");
                    findings.has_close |= has_token(header.value, b"close");
                    findings.has_special |= !header.value.eq_ignore_ascii_case(b"keep-alive");
                }
                14 if header.name.eq_ignore_ascii_case("content-length") => {
                    set_once(&mut findings.content_length, header.value, TWO_LENGTHS)?;
                }
                17 if header.name.eq_ignore_ascii_case("transfer-encoding") => {
                    set_once(&mut findings.transfer_encoding, header.value, TWO_CODINGS)?;
                    findings.has_special = true;
                }
                _ => findings.has_special |= !is_without_meaning(header.name),
            }
        }
        Ok(findings)
    }

    fn body(&self, is_http_11: bool) -> Result<Body, Problem> {
        match (self.content_length, self.transfer_encoding) {
            (None, None) => Ok(Body::None),
            (Some(length), None) => Ok(match parse_length(length)? {
                0 => Body::None,
                length => Body::Sized(length),
            }),
            (None, Some(coding)) if is_http_11 => check_coding(coding).map(|()| Body::Chunked),
            (None, Some(_)) => Err(Problem::bad_request(
                "HTTP/1.0 has no Transfer-Encoding. Send the length of the body as Content-Length, or HTTP/1.1.",
            )),
            (Some(_), Some(_)) => Err(Problem::bad_request(
                "The request has both Content-Length and Transfer-Encoding. Send one of them.",
            )),
        }
    }

    fn is_last(&self, is_http_11: bool) -> bool {
        self.has_close || (!is_http_11 && !self.has_keep_alive)
    }
}

/// Whether a header has no meaning for any reader of a request for one entity. The list has the
/// headers that common clients send.
fn is_without_meaning(name: &str) -> bool {
    let known: &[&str] = match name.len() {
        6 => &["accept", "pragma", "origin"],
        7 => &["referer"],
        10 => &["user-agent", "keep-alive", "tracestate"],
        11 => &["traceparent"],
        12 => &["content-type"],
        13 => &["cache-control"],
        15 => &["accept-encoding", "accept-language"],
        _ => &[],
    };
    known.iter().any(|known| name.eq_ignore_ascii_case(known))
}

const TWO_HOSTS: &str = "The request has more than one Host header. Send one.";
const TWO_LENGTHS: &str = "The request has more than one Content-Length header. Send one.";
const TWO_CODINGS: &str = "The request has more than one Transfer-Encoding header. Send one.";

fn set_once<'a>(field: &mut Option<&'a [u8]>, value: &'a [u8], problem: &'static str) -> Result<(), Problem> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(Problem::bad_request(problem)),
    }
}

/// Whether a list has a token. As in hyper, a list with bytes beyond ASCII has no tokens.
fn has_token(list: &[u8], token: &[u8]) -> bool {
    list.is_ascii()
        && list.split(|byte| *byte == b',').any(|item| item.trim_ascii().eq_ignore_ascii_case(token))
}

fn parse_length(text: &[u8]) -> Result<u64, Problem> {
    let mut length = 0u64;
    for &byte in text {
        let digit = u64::from(byte.wrapping_sub(b'0'));
        if digit > 9 {
            return Err(bad_length());
        }
        length = length.saturating_mul(10).saturating_add(digit);
    }
    match text.is_empty() {
        true => Err(bad_length()),
        false if length > BODY_BYTES_MAX => Err(body_too_large()),
        false => Ok(length),
    }
}

fn bad_length() -> Problem {
    Problem::bad_request("Content-Length is not one whole number. Send the length of the body, in bytes.")
}

/// `413`: the length of a body, or of one of its chunks, is beyond [`BODY_BYTES_MAX`].
pub(super) fn body_too_large() -> Problem {
    let detail = "The length of the body, or of one of its chunks, is larger than any node accepts. Nothing was \
                  stored. Send a smaller body.";
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
}

fn check_coding(coding: &[u8]) -> Result<(), Problem> {
    if coding.eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    let mut codings = coding.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let is_list = codings.clone().all(is_token);
    if is_list && codings.any(|coding| !coding.eq_ignore_ascii_case(b"chunked")) {
        return Err(Problem::new(
            StatusCode::NOT_IMPLEMENTED,
            "The only transfer coding that is understood is chunked. Send the body in chunks or with a Content-Length.",
        ));
    }
    Err(Problem::bad_request("Transfer-Encoding is malformed. Write: chunked."))
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty()
        && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

fn check_host(host: Option<&[u8]>, is_http_11: bool) -> Result<(), Problem> {
    let Some(host) = host else {
        return if is_http_11 {
            Err(Problem::bad_request("The request has no Host header, which HTTP/1.1 demands. Send it."))
        } else {
            Ok(())
        };
    };
    let is_host_byte = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+;=:[]%".contains(byte);
    if host.iter().all(is_host_byte) {
        return Ok(());
    }
    Err(Problem::bad_request("The Host header is not a host with an optional port. Send the node's address."))
}

fn check_target(target: &str) -> Result<(), Problem> {
    if target.len() > TARGET_BYTES_MAX {
        let detail = format!(
            "The target of the request is longer than {TARGET_BYTES_MAX} bytes, more than any keys need. \
             Send a shorter one."
        );
        return Err(Problem::new(StatusCode::URI_TOO_LONG, detail));
    }
    let bytes = target.as_bytes();
    if bytes.first() == Some(&b'/')
        && bytes.iter().fold(true, |all, byte| all & IS_TARGET_BYTE[usize::from(*byte)])
    {
        return Ok(());
    }
    if bytes.contains(&b'#') {
        return Err(Problem::bad_request(
            "The target of the request has a #, which no reader may see. Write it as %23 where it belongs to the key.",
        ));
    }
    match Uri::try_from(target) {
        Ok(_) => Ok(()),
        Err(error) => Err(Problem::bad_request(format!(
            "The target of the request is malformed: {error}. Percent-encode every byte that is not plain text."
        ))),
    }
}

/// Bytes of which every target that begins with `/` is well-formed (RFC 3986: unreserved, reserved
/// except `#`, and `%`).
static IS_TARGET_BYTE: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0u8;
    while byte < 0x7f {
        plain[byte as usize] = byte.is_ascii_alphanumeric()
            || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'%' | b':' | b'/' | b'?' | b'@')
            || matches!(byte, b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=');
        byte += 1;
    }
    plain
};

/// Whether the target of a head is not ASCII.
fn has_raw_target(head: &[u8]) -> bool {
    let line = head.trim_ascii_start().split(|byte| *byte == b'\r').next().unwrap_or_default();
    line.splitn(2, |byte| *byte == b' ').nth(1).is_some_and(|target| !target.is_ascii())
}

fn raw_target() -> Problem {
    Problem::bad_request(
        "The target of the request has bytes that are not ASCII. Percent-encode every byte that is not plain text.",
    )
}

fn problem_of(error: Error, limits: HeadLimits) -> Problem {
    match error {
        Error::TooManyHeaders => Problem::new(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            format!("The request has more than {} headers. Send fewer.", limits.headers_max),
        ),
        Error::Version => Problem::bad_request(
            "The request line names no version that is spoken here. Send HTTP/1.1 or HTTP/1.0.",
        ),
        Error::HeaderName => Problem::bad_request(
            "A header is malformed: a name is followed by its colon at once, and no line begins with a space.",
        ),
        Error::HeaderValue => {
            Problem::bad_request("A header has a value with characters that are not allowed.")
        }
        Error::Token | Error::NewLine | Error::Status => Problem::bad_request(
            "The request line is malformed. Write: <method> <target> HTTP/1.1, with single spaces.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(head: &str) -> Result<Framing, u16> {
        let checked = check_head(head.as_bytes(), HeadLimits::default());
        checked.map(|checked| checked.framing).map_err(|problem| problem.status().as_u16())
    }

    fn body(headers: &str) -> Result<Body, u16> {
        checked(&format!("PUT /v0/entity?id=k HTTP/1.1\r\nHost: h\r\n{headers}\r\n"))
            .map(|framing| framing.body)
    }

    #[test]
    fn the_headers_define_the_body() {
        assert_eq!(body(""), Ok(Body::None));
        assert_eq!(body("Content-Length: 0\r\n"), Ok(Body::None));
        assert_eq!(body("content-length:\t007 \r\n"), Ok(Body::Sized(7)));
        assert_eq!(body("Transfer-Encoding: Chunked\r\n"), Ok(Body::Chunked));
    }

    #[test]
    fn the_problem_of_an_unencoded_target_advises_percent_encoding() {
        for target in
            [&b"/v0/entity?id=\xff"[..], b"/v0/entity?id=\xe9t\xe9", b"/v0/entity?id=\"", b"/v0/entity?id=<"]
        {
            for before in ["GET ", "\r\nGET "] {
                let head = [before.as_bytes(), target, b" HTTP/1.1\r\nHost: h\r\n\r\n"].concat();
                let problem = check_head(&head, HeadLimits::default()).expect_err("a bad target");
                assert!(problem.detail().contains("Percent-encode"), "{target:?}: {}", problem.detail());
            }
        }
        let of_method = check_head(b"G\xff / HTTP/1.1\r\nHost: h\r\n\r\n", HeadLimits::default());
        assert!(of_method.expect_err("a bad method").detail().contains("request line is malformed"));
    }

    #[test]
    fn the_last_request_of_a_connection_is_detected() {
        let is_last = |version: &str, connection: &str| {
            checked(&format!("GET / HTTP/{version}\r\nHost: h\r\n{connection}\r\n"))
                .map(|framing| framing.is_last)
        };
        assert_eq!(is_last("1.1", ""), Ok(false));
        assert_eq!(is_last("1.1", "Connection: keep-alive\r\n"), Ok(false));
        assert_eq!(is_last("1.1", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"), Ok(false));
        assert_eq!(is_last("1.1", "Connection: foo, Close\r\n"), Ok(true));
        assert_eq!(is_last("1.1", "Connection: close\r\nConnection: keep-alive\r\n"), Ok(true));
        assert_eq!(is_last("1.0", ""), Ok(true));
        assert_eq!(is_last("1.0", "Connection: foo\r\n"), Ok(true));
        assert_eq!(is_last("1.0", "Connection: keep-alive\r\n"), Ok(false));
    }

    #[test]
    fn heads_with_meaningful_headers_are_not_on_the_fast_path() {
        let is_fast_path = |version: &str, header: &str| {
            let head = format!("GET /v0/entity?id=k HTTP/{version}\r\nHost: h\r\n{header}\r\n");
            check_head(head.as_bytes(), HeadLimits::default()).expect("a valid head").is_fast_path
        };
        for header in
            ["", "ACCEPT: */*\r\n", "connection: Keep-Alive\r\n", "User-Agent: a\r\nAccept-Encoding: b\r\n"]
        {
            assert!(is_fast_path("1.1", header), "{header}");
            assert!(!is_fast_path("1.0", header), "{header}");
        }
        let special = [
            "If-None-Match: *",
            "If-Match: *",
            "If-Unmodified-Since: x",
            "Expect: 100-continue",
            "Connection: close",
            "Connection: keep-alive, Upgrade",
            "Upgrade: h2c",
            "Transfer-Encoding: chunked",
            "Content-Range: bytes 0-1/2",
            "X-Other: 1",
        ];
        for header in special {
            assert!(!is_fast_path("1.1", &format!("{header}\r\n")), "{header}");
        }
    }

    #[test]
    fn targets_of_allowed_bytes_are_valid_for_the_http_crate() {
        for byte in (0..=255u8).filter(|byte| IS_TARGET_BYTE[usize::from(*byte)]) {
            for target in [format!("/{}", char::from(byte)), format!("/?{}", char::from(byte))] {
                let uri = Uri::try_from(target.as_str()).expect("a valid target");
                assert_eq!(uri.path_and_query().map(http::uri::PathAndQuery::as_str), Some(target.as_str()));
            }
        }
    }
}
