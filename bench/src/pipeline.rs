//! Pipelined clients: connections that send request after request without waiting for responses.
//!
//! They generate the background load beside which other clients are measured. One thread drives all
//! of them, so that they use at most one core. Each connection has [`REQUESTS_BYTES`] bytes of
//! requests, encoded in advance and sent repeatedly. Responses are read and counted as served or
//! refused.
//!
//! **Caveats.** The requests of a connection repeat, so they use few keys. A connection that the
//! server closes is opened again.

use bench::affinity::pin_current_thread;
use bench::response::ResponseParser;
use bench::timeline::is_ok;
use bench::{StopFlag, Target, WorkloadSpec, encode_requests};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::Timespec;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Approximate size of the requests that a connection repeats, in bytes.
const REQUESTS_BYTES: usize = 256 * 1024;
const READ_BYTES: usize = 64 * 1024;
/// Maximum number of writes, and of reads, on a connection per readiness event.
const CALLS_PER_EVENT: usize = 4;
const EVENTS_MAX: usize = 64;
/// Interval of checks for the end when no event occurs.
const TICK: Duration = Duration::from_millis(50);
const TIMEOUT: Duration = Duration::from_secs(4);

/// Specification of pipelined clients.
#[derive(Clone, Debug)]
pub struct PipelinedClients {
    /// Server.
    pub target: Target,
    /// Number of connections.
    pub connections: usize,
    /// Cores for their thread; empty: not pinned.
    pub cores: Vec<usize>,
    /// Requests to send.
    pub workload: WorkloadSpec,
}

/// Counts of the responses to pipelined clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PipelineCounts {
    /// Successful responses.
    pub served: u64,
    /// Other responses.
    pub refused: u64,
    /// Connections that the server closed.
    pub disconnects: u64,
}

struct Client {
    socket: TcpStream,
    /// Complete requests; `sent` is the position of the next byte to send.
    requests: Vec<u8>,
    sent: usize,
    parser: ResponseParser,
}

/// The connection was lost.
struct Disconnected;

impl PipelinedClients {
    /// Sends requests until `stop` is set. Blocks.
    ///
    /// # Errors
    /// No connection can be established, or an error of the kernel.
    pub fn run(&self, stop: &StopFlag) -> io::Result<PipelineCounts> {
        pin_current_thread(&self.cores)?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let requests = encode_requests(&self.workload, &self.target, self.connections, REQUESTS_BYTES);
        let mut clients = Vec::new();
        for (number, requests) in requests.into_iter().enumerate() {
            let socket = self.connect(&poll, number)?;
            clients.push(Client { socket, requests, sent: 0, parser: ResponseParser::default() });
        }
        let (mut counts, mut scratch) = (PipelineCounts::default(), vec![0; READ_BYTES]);
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let tick = Timespec::try_from(TICK).ok();
        while !stop.is_set() {
            match epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), tick.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in events.drain(..) {
                let number = event.data.u64() as usize;
                let client = &mut clients[number];
                if client.drive(&mut scratch, &mut counts).is_err() {
                    counts.disconnects += 1;
                    client.socket = self.connect(&poll, number)?;
                    (client.sent, client.parser) = (0, ResponseParser::default());
                }
            }
        }
        Ok(counts)
    }

    fn connect(&self, poll: &OwnedFd, number: usize) -> io::Result<TcpStream> {
        let socket = TcpStream::connect_timeout(&self.target.address(), TIMEOUT)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        epoll::add(poll, &socket, EventData::new_u64(number as u64), EventFlags::IN | EventFlags::OUT)?;
        Ok(socket)
    }
}

impl Client {
    /// Sends and reads as much as possible, at most [`CALLS_PER_EVENT`] calls each.
    fn drive(&mut self, scratch: &mut [u8], counts: &mut PipelineCounts) -> Result<(), Disconnected> {
        for _ in 0..CALLS_PER_EVENT {
            match transferred(self.socket.write(&self.requests[self.sent..]))? {
                None => break,
                Some(len) => self.sent = (self.sent + len) % self.requests.len(),
            }
        }
        for _ in 0..CALLS_PER_EVENT {
            let Some(len) = transferred(self.socket.read(scratch))? else { break };
            let mut rest = &scratch[..len];
            while !rest.is_empty() {
                let (used, response) = self.parser.advance(rest, |_| {}).map_err(|_| Disconnected)?;
                rest = &rest[used..];
                if let Some(response) = response {
                    *(if is_ok(response.status) { &mut counts.served } else { &mut counts.refused }) += 1;
                }
            }
        }
        Ok(())
    }
}

/// Number of bytes transferred; `None` if the socket is not ready.
fn transferred(called: io::Result<usize>) -> Result<Option<usize>, Disconnected> {
    match called {
        Ok(0) => Err(Disconnected),
        Ok(len) => Ok(Some(len)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(_) => Err(Disconnected),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench::threads::join_scoped;
    use std::net::TcpListener;
    use std::thread;

    /// A server that refuses every second request, and closes each connection after ten.
    fn serve(listener: &TcpListener, connections: usize) {
        for socket in listener.incoming().take(connections) {
            let mut socket = socket.unwrap();
            let (mut bytes, mut piece) = (Vec::new(), [0; 256]);
            while bytes.windows(4).filter(|four| four == b"\r\n\r\n").count() < 10 {
                let len = socket.read(&mut piece).unwrap();
                bytes.extend_from_slice(&piece[..len]);
            }
            for answer in 0..10 {
                let status = if answer % 2 == 0 { "200 OK" } else { "503 Service Unavailable" };
                write!(socket, "HTTP/1.1 {status}\r\nContent-Length: 3\r\n\r\nabc").unwrap();
            }
            // Drain the remaining requests, so that a reset does not discard the responses.
            socket.shutdown(std::net::Shutdown::Write).unwrap();
            while socket.read(&mut piece).is_ok_and(|len| len > 0) {}
        }
    }

    #[test]
    fn answers_are_counted_by_kind_and_ended_connections_are_made_anew() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let greedy = PipelinedClients {
            target: listener.local_addr().unwrap().into(),
            connections: 1,
            cores: Vec::new(),
            workload: WorkloadSpec { keys: 10, ..WorkloadSpec::default() },
        };
        let stop = StopFlag::default();
        let counts = thread::scope(|scope| {
            let clients = scope.spawn(|| greedy.run(&stop));
            serve(&listener, 3);
            stop.set();
            join_scoped(clients).unwrap()
        });
        assert_eq!(counts.disconnects, 3);
        assert_eq!((counts.served, counts.refused), (15, 15));
    }
}
