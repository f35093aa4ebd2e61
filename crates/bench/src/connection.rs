//! Connection of the generator: a non-blocking socket, unsent bytes, and the parser of its
//! responses.

use crate::protocol::{Parser, Protocol};
use crate::response::{MalformedResponse, Response};
use socket2::{Domain, Socket, Type};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Timeout of connecting. The kernel retransmits a lost first packet after one second, and again
/// two seconds later.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// A larger send buffer is shrunk to this size after its request.
const OUT_BYTES_RETAINED: usize = 64 * 1024;
/// Maximum number of reads from a connection per readiness event, so that other connections are
/// served too.
const READS_PER_EVENT: usize = 16;

/// Reason why a connection cannot be used any more.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ConnectionError {
    /// The server closed or reset the connection.
    Broken,
    /// The bytes were not a response.
    Malformed,
}

impl From<io::Error> for ConnectionError {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

impl From<MalformedResponse> for ConnectionError {
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
    parser: Parser,
    body: Vec<u8>,
    is_connecting: bool,
}

impl Connection {
    /// Connects, blocking for at most [`CONNECT_TIMEOUT`].
    pub(crate) fn open(target: SocketAddr, protocol: Protocol) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&target, CONNECT_TIMEOUT)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        Ok(Self::from_socket(socket, protocol, false))
    }

    /// Starts to connect, without blocking. A request that is sent meanwhile is written once the
    /// connection is established.
    pub(crate) fn start_connect(target: SocketAddr, protocol: Protocol) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(socket2::Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&target.into()) {
            Ok(()) => Ok(Self::from_socket(socket.into(), protocol, false)),
            Err(error) if is_in_progress(&error) => Ok(Self::from_socket(socket.into(), protocol, true)),
            Err(error) => Err(error),
        }
    }

    fn from_socket(socket: TcpStream, protocol: Protocol, is_connecting: bool) -> Self {
        let parser = protocol.parser();
        Self { socket, out: Vec::new(), sent: 0, parser, body: Vec::new(), is_connecting }
    }

    /// Closes the connection by a reset. A client that closes connections in the usual way at a
    /// high rate would use up its ports.
    pub(crate) fn reset(self) {
        // Without the option the connection is closed in the usual way.
        let _ = socket2::SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
    }

    /// Whether the connection is not established yet.
    pub(crate) const fn is_connecting(&self) -> bool {
        self.is_connecting
    }

    /// Sends a request, as far as the socket accepts it. Returns whether all of it was written.
    pub(crate) fn send(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<bool, ConnectionError> {
        debug_assert!(self.sent == self.out.len(), "one request at a time");
        self.out.clear();
        self.out.shrink_to(OUT_BYTES_RETAINED);
        self.sent = 0;
        self.body.clear();
        encode(&mut self.out);
        if self.is_connecting { Ok(false) } else { self.flush() }
    }

    /// Handles a writable or failed socket: writes the rest of the request. Returns whether all of
    /// it was written.
    pub(crate) fn flush(&mut self) -> Result<bool, ConnectionError> {
        if self.is_connecting {
            match self.socket.take_error()? {
                Some(error) => return Err(error.into()),
                None => self.is_connecting = false,
            }
        }
        while self.sent < self.out.len() {
            match self.socket.write(&self.out[self.sent..]) {
                Ok(0) => return Err(ConnectionError::Broken),
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Reads the available bytes through `scratch`. Keeps the body only if `keep_body` is set.
    /// `None`: the response is not complete.
    pub(crate) fn receive(
        &mut self,
        scratch: &mut [u8],
        keep_body: bool,
    ) -> Result<Option<Response>, ConnectionError> {
        for _ in 0..READS_PER_EVENT {
            let len = match self.socket.read(scratch) {
                Ok(0) => return self.parser.finish().ok().flatten().map(Some).ok_or(ConnectionError::Broken),
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
                (_, Some(_)) => return Err(ConnectionError::Malformed),
                (_, None) if len < scratch.len() => return Ok(None),
                (_, None) => {}
            }
        }
        Ok(None)
    }

    /// Body of the last response, if it was kept.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }
}

fn is_in_progress(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error())
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

    /// Calls `step` until it returns a value; loopback sockets are quick.
    fn until<T>(mut step: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(done) = step() {
                return done;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_request_waits_for_its_connection_and_is_answered_over_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut connection =
            Connection::start_connect(listener.local_addr().unwrap(), Protocol::Entities).unwrap();
        let sent = connection.send(|out| out.extend_from_slice(b"request")).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        assert!(sent || until(|| connection.flush().unwrap().then_some(true)));
        let mut request = [0; 7];
        server.read_exact(&mut request).unwrap();
        server.write_all(HELLO).unwrap();
        let mut scratch = [0; 16];
        let response = until(|| connection.receive(&mut scratch, true).unwrap());
        assert_eq!((response.status, connection.body()), (200, b"hello".as_slice()));
    }

    #[test]
    fn a_refused_connection_and_one_that_ends_inside_an_answer_are_lost() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap();
        let mut connection = Connection::open(target, Protocol::Entities).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(&HELLO[..40]).unwrap();
        drop((server, listener));
        let mut scratch = [0; 1_024];
        let lost = until(|| connection.receive(&mut scratch, false).err());
        assert!(matches!(lost, ConnectionError::Broken));
        let refused = Connection::start_connect(target, Protocol::Entities).map(|mut connection| {
            connection.send(|out| out.push(b'x')).and_then(|sent| {
                assert!(!sent);
                until(|| match connection.flush() {
                    Ok(true) => Some(Ok(())),
                    Ok(false) => None,
                    Err(lost) => Some(Err(lost)),
                })
            })
        });
        assert!(!matches!(refused, Ok(Ok(()))));
    }
}
