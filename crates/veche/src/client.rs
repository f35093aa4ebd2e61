//! A minimal blocking HTTP client for subcommands that send one request to a node.

use crate::node_url::NodeUrl;
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Default address of a node.
pub(crate) const URL_DEFAULT: &str = "http://127.0.0.1:8080";
/// Timeout for connecting and, by default, for each read and write.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Default limit for the length of an answer.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Limits of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLimits {
    /// Timeout of each read and write.
    pub(crate) timeout: Duration,
    pub(crate) answer_bytes_max: u64,
}

/// A request to a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandRequest<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) body: &'a str,
}

impl CommandRequest<'_> {
    /// Sends the request, within `limits`.
    ///
    /// # Errors
    /// A sentence: there is no answer, or it is not HTTP.
    pub(crate) fn send(&self, url: &NodeUrl, limits: &RequestLimits) -> Result<NodeAnswer, String> {
        exchange(url, self, limits).map_err(|error| format!("{url} does not answer: {error}"))
    }
}

/// Answer of a node.
#[derive(Debug)]
pub(crate) struct NodeAnswer {
    /// The status code.
    pub(crate) code: u16,
    pub(crate) body: String,
}

/// Status report of a node.
#[derive(Debug)]
pub(crate) struct NodeReport {
    pub(crate) answer: NodeAnswer,
    /// The parsed body of the answer.
    pub(crate) status: Value,
}

/// Requests `GET /v0/status`.
///
/// # Errors
/// A sentence: there is no answer, or it is not the answer of a veche node.
pub(crate) fn fetch_status(url: &NodeUrl) -> Result<NodeReport, String> {
    let answer = request(url, "GET", "/v0/status")?;
    let status: Value = serde_json::from_str(&answer.body).map_err(|_| not_a_node(url))?;
    if status["state"].is_string() && status["nodes"].is_array() {
        return Ok(NodeReport { answer, status });
    }
    Err(refusal(url, answer.code, &status))
}

/// The sentence about an answer that no node gives.
pub(crate) fn not_a_node(url: &NodeUrl) -> String {
    format!("{url} does not answer as a veche node does")
}

/// The document of a successful answer.
///
/// # Errors
/// A sentence: the node refuses the request, or the answer is not that of a veche node.
pub(crate) fn document_of(url: &NodeUrl, answer: &NodeAnswer) -> Result<Value, String> {
    let document: Value = serde_json::from_str(&answer.body).map_err(|_| not_a_node(url))?;
    if answer.code == 200 { Ok(document) } else { Err(refusal(url, answer.code, &document)) }
}

/// The sentence about an answer without the expected document.
fn refusal(url: &NodeUrl, code: u16, document: &Value) -> String {
    match document["detail"].as_str() {
        Some(detail) if code >= 400 => format!("{url} answers {code}: {detail}"),
        _ => not_a_node(url),
    }
}

/// Sends a request without a body, with the default limits.
///
/// # Errors
/// A sentence: there is no answer, or it is not HTTP.
pub(crate) fn request(url: &NodeUrl, method: &str, path: &str) -> Result<NodeAnswer, String> {
    let limits = RequestLimits { timeout: TIMEOUT, answer_bytes_max: ANSWER_BYTES_MAX };
    CommandRequest { method, path, body: "" }.send(url, &limits)
}

/// Describes a socket error. The system reports a read timeout as an operation that would block.
fn describe(error: &std::io::Error, timeout: Duration) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("no data within {} s", timeout.as_secs())
        }
        _ => error.to_string(),
    }
}

fn exchange(
    url: &NodeUrl,
    request: &CommandRequest<'_>,
    limits: &RequestLimits,
) -> Result<NodeAnswer, String> {
    let CommandRequest { method, path, body } = request;
    let host = url.authority();
    let address = host.to_socket_addrs().map_err(|error| error.to_string())?.next();
    let address = address.ok_or("its host name has no address")?;
    let mut stream =
        TcpStream::connect_timeout(&address, TIMEOUT).map_err(|error| describe(&error, TIMEOUT))?;
    let len = body.len();
    let request = format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\nContent-Length: {len}\r\n\r\n{body}");
    let answer =
        exchange_text(&mut stream, &request, limits).map_err(|error| describe(&error, limits.timeout))?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("the answer is not HTTP")?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or("the answer is not HTTP")?;
    Ok(NodeAnswer { code, body: body.to_owned() })
}

fn exchange_text(stream: &mut TcpStream, request: &str, limits: &RequestLimits) -> std::io::Result<String> {
    stream.set_read_timeout(Some(limits.timeout))?;
    stream.set_write_timeout(Some(limits.timeout))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(limits.answer_bytes_max).read_to_string(&mut answer)?;
    Ok(answer)
}
