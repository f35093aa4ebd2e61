//! One connection: a non-blocking socket, the bytes that are still to be sent, the parser of what comes.

use crate::response::{MalformedResponse, Response, ResponseParser};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// A send buffer above this is given back after its request.
const OUT_BYTES_KEPT: usize = 64 * 1024;

/// Why a connection is of no further use.
#[derive(Debug)]
pub(crate) enum Lost {
    /// Closed or reset by the server.
    Broken,
    /// What came was not a response.
    Malformed,
}

impl From<io::Error> for Lost {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

impl From<MalformedResponse> for Lost {
    fn from(_: MalformedResponse) -> Self {
        Self::Malformed
    }
}

/// A connection that carries one request at a time.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: TcpStream,
    out: Vec<u8>,
    sent: usize,
    parser: ResponseParser,
    body: Vec<u8>,
}

impl Connection {
    /// Connects, waiting for at most [`CONNECT_TIMEOUT`]: a lost first packet is sent again after one second.
    pub(crate) fn open(target: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&target, CONNECT_TIMEOUT)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let parser = ResponseParser::default();
        Ok(Self { socket, out: Vec::new(), sent: 0, parser, body: Vec::new() })
    }

    /// Sends a request, as far as the socket takes it. True: all of it.
    pub(crate) fn send(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<bool, Lost> {
        debug_assert!(self.sent == self.out.len(), "one request at a time");
        self.out.clear();
        self.out.shrink_to(OUT_BYTES_KEPT);
        self.sent = 0;
        self.body.clear();
        encode(&mut self.out);
        self.flush()
    }

    /// Sends what is left of a request. True: all of it.
    pub(crate) fn flush(&mut self) -> Result<bool, Lost> {
        while self.sent < self.out.len() {
            match self.socket.write(&self.out[self.sent..]) {
                Ok(0) => return Err(Lost::Broken),
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Reads what has come, into `scratch` first. The body is kept only when asked. `None`: more is to come.
    pub(crate) fn receive(&mut self, scratch: &mut [u8], keep_body: bool) -> Result<Option<Response>, Lost> {
        loop {
            let len = match self.socket.read(scratch) {
                Ok(0) => {
                    return self.parser.finish()?.map_or(Err(Lost::Broken), |response| Ok(Some(response)));
                }
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            let body = &mut self.body;
            let keep = |bytes: &[u8]| {
                if keep_body {
                    body.extend_from_slice(bytes);
                }
            };
            match self.parser.advance(&scratch[..len], keep)? {
                (used, Some(response)) if used == len => return Ok(Some(response)),
                (_, Some(_)) => return Err(Lost::Malformed),
                (_, None) if len < scratch.len() => return Ok(None),
                (_, None) => {}
            }
        }
    }

    /// The body of the last response, when it was kept.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
