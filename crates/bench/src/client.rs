//! Blocking HTTP client with one request at a time, for status requests and for clients that
//! examine each response.

use crate::response::ResponseParser;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const RESPONSE_BYTES_MAX: usize = 16 * 1024 * 1024;
const READ_BYTES: usize = 16 * 1024;

/// A complete response.
#[derive(Debug)]
pub struct HttpResponse {
    /// Status code.
    pub status: u16,
    /// Status line and headers as received, up to and including the empty line.
    pub head: Vec<u8>,
    /// Body.
    pub body: Vec<u8>,
}

impl HttpResponse {
    /// Value of a header, without surrounding white space.
    pub fn header(&self, name: &str) -> Option<&str> {
        let head = str::from_utf8(&self.head).ok()?;
        let mut fields = head.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// A keep-alive connection that carries one request at a time.
#[derive(Debug)]
pub struct HttpClient {
    socket: TcpStream,
    target: SocketAddr,
}

impl HttpClient {
    /// Connects. `timeout` bounds the connection attempt, and each read and write.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn connect(target: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&target, timeout)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(timeout))?;
        socket.set_write_timeout(Some(timeout))?;
        Ok(Self { socket, target })
    }

    /// Sends a request and waits for its response. The connection cannot be used after an error.
    ///
    /// # Errors
    /// Errors of the socket; [`io::ErrorKind::InvalidData`] for a response that is not HTTP or
    /// longer than 16 MiB.
    pub fn exchange(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<HttpResponse> {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.target).into_bytes();
        if !body.is_empty() {
            write!(request, "Content-Length: {}\r\n", body.len())?;
        }
        request.extend_from_slice(b"\r\n");
        request.extend_from_slice(body);
        self.socket.write_all(&request)?;
        receive(&mut self.socket)
    }
}

/// Sends a request on a new connection. `timeout` bounds the connection attempt and each read.
///
/// # Errors
/// Errors of the socket; [`io::ErrorKind::InvalidData`] for a response that is not HTTP or longer
/// than 16 MiB.
pub fn fetch(
    target: SocketAddr,
    method: &str,
    path: &str,
    body: &[u8],
    timeout: Duration,
) -> io::Result<HttpResponse> {
    HttpClient::connect(target, timeout)?.exchange(method, path, body)
}

fn receive(socket: &mut TcpStream) -> io::Result<HttpResponse> {
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
        if raw.len() > RESPONSE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer does not end"));
        }
    };
    let head_len = raw.windows(4).position(|four| four == b"\r\n\r\n").map_or(raw.len(), |at| at + 4);
    raw.truncate(head_len);
    Ok(HttpResponse { status: response.status, head: raw, body })
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
