//! One request to a node, for the subcommands that ask one.

use crate::node_url::NodeUrl;
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Where a node listens unless told otherwise.
pub(crate) const URL_DEFAULT: &str = "http://127.0.0.1:8080";
/// To connect, and, unless told otherwise, for each read.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A longer answer is not one of a node, unless it is told otherwise.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// What a question is held to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For each read and write.
    pub(crate) timeout: Duration,
    pub(crate) answer_bytes_max: u64,
}

/// What a node answered.
#[derive(Debug)]
pub(crate) struct NodeAnswer {
    /// The status code.
    pub(crate) code: u16,
    pub(crate) body: String,
}

/// What a node says of itself.
#[derive(Debug)]
pub(crate) struct NodeReport {
    pub(crate) answer: NodeAnswer,
    /// The body of the answer.
    pub(crate) status: Value,
}

/// `GET /v0/status`.
///
/// # Errors
/// A sentence: nobody answers, or not a node.
pub(crate) fn fetch_status(url: &NodeUrl) -> Result<NodeReport, String> {
    let answer = request(url, "GET", "/v0/status")?;
    let status =
        serde_json::from_str(&answer.body).map_err(|_| format!("{url} does not answer like a veche node"))?;
    Ok(NodeReport { answer, status })
}

/// A request without a body.
///
/// # Errors
/// A sentence: nobody answers, or not in HTTP.
pub(crate) fn request(url: &NodeUrl, method: &str, path: &str) -> Result<NodeAnswer, String> {
    request_within(url, method, path, &Limits { timeout: TIMEOUT, answer_bytes_max: ANSWER_BYTES_MAX })
}

/// The same, of what takes longer or says more.
///
/// # Errors
/// A sentence: nobody answers, or not in HTTP.
pub(crate) fn request_within(
    url: &NodeUrl,
    method: &str,
    path: &str,
    limits: &Limits,
) -> Result<NodeAnswer, String> {
    exchange(url, method, path, limits).map_err(|error| format!("{url} does not answer: {error}"))
}

/// An error of the socket. The system reports a time-out of a read as a call that would block.
fn describe(error: &std::io::Error, timeout: Duration) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("nothing came within {} s", timeout.as_secs())
        }
        _ => error.to_string(),
    }
}

fn exchange(url: &NodeUrl, method: &str, path: &str, limits: &Limits) -> Result<NodeAnswer, String> {
    let host = url.authority();
    let address = host.to_socket_addrs().map_err(|error| error.to_string())?.next();
    let address = address.ok_or("its name has no address")?;
    let mut stream =
        TcpStream::connect_timeout(&address, TIMEOUT).map_err(|error| describe(&error, TIMEOUT))?;
    let request = format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
    let answer =
        exchange_text(&mut stream, &request, limits).map_err(|error| describe(&error, limits.timeout))?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("it does not speak HTTP")?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or("it does not speak HTTP")?;
    Ok(NodeAnswer { code, body: body.to_owned() })
}

fn exchange_text(stream: &mut TcpStream, request: &str, limits: &Limits) -> std::io::Result<String> {
    stream.set_read_timeout(Some(limits.timeout))?;
    stream.set_write_timeout(Some(limits.timeout))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(limits.answer_bytes_max).read_to_string(&mut answer)?;
    Ok(answer)
}
