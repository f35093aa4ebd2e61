//! One request, one answer, blocking: for asking a server about itself.

use crate::response::ResponseParser;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
const READ_BYTES: usize = 16 * 1024;

/// An answer, whole.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Status line and headers as they came, with the empty line behind them.
    pub head: Vec<u8>,
    /// The body.
    pub body: Vec<u8>,
}

/// Sends a request on a connection of its own. `timeout` bounds connecting and each read.
///
/// # Errors
/// The socket's; [`io::ErrorKind::InvalidData`] for an answer that is not HTTP or longer than 16 MiB.
pub fn fetch(
    target: SocketAddr,
    method: &str,
    path: &str,
    body: &[u8],
    timeout: Duration,
) -> io::Result<Answer> {
    let mut socket = TcpStream::connect_timeout(&target, timeout)?;
    socket.set_read_timeout(Some(timeout))?;
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
    if !body.is_empty() {
        write!(request, "Content-Length: {}\r\n", body.len())?;
    }
    request.extend_from_slice(b"\r\n");
    request.extend_from_slice(body);
    socket.write_all(&request)?;
    receive(&mut socket)
}

fn receive(socket: &mut TcpStream) -> io::Result<Answer> {
    let (mut parser, mut raw, mut body) = (ResponseParser::default(), Vec::new(), Vec::new());
    let mut piece = vec![0; READ_BYTES];
    let response = loop {
        let len = socket.read(&mut piece)?;
        if len == 0 {
            let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, "closed before the answer");
            break parser.finish().map_err(invalid)?.ok_or_else(cut)?;
        }
        raw.extend_from_slice(&piece[..len]);
        let keep = |bytes: &[u8]| body.extend_from_slice(bytes);
        if let (_, Some(response)) = parser.advance(&piece[..len], keep).map_err(invalid)? {
            break response;
        }
        if raw.len() > ANSWER_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer does not end"));
        }
    };
    let head_len = raw.windows(4).position(|four| four == b"\r\n\r\n").map_or(raw.len(), |at| at + 4);
    raw.truncate(head_len);
    Ok(Answer { status: response.status, head: raw, body })
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
