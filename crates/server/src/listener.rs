//! The listening socket, and who gets its connections.
//!
//! One socket without `SO_REUSEPORT`: with it a second node on the same port would start silently
//! and take half of the connections. Each accepted connection goes to the thread with the fewest.
//! Connections of clients are bounded ([`limiter`]); those of peers are not among them. A connection
//! that finds no place waits in a bounded line ([`AcceptQueue`]) until an evicted connection leaves
//! its place.

use crate::accept_queue::{AcceptQueue, QueueTicket};
use crate::connection_limit::{self, ClientAddress, ConnectionAdmission, ConnectionPermit, Eviction};
use crate::counters::Refusal;
use crate::date::http_date;
use crate::error::ServerError;
use crate::links::accept;
use crate::process::Process;
use crate::thread::{self, Mailbox, ThreadHandle};
use rustix::net::{RecvFlags, recv};
use socket2::{Domain, Socket, Type};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// Connections that the system may hold for the node between two accepts. The kernel has a limit of
/// its own (`net.core.somaxconn`, 4,096). A flood that fills this queue delays other clients by the
/// second after which the kernel repeats a handshake.
const BACKLOG: i32 = 4_096;
/// An address in use is tried for so long: a process that was killed holds it until the system has cleared it away.
const BIND_TIME: Duration = Duration::from_millis(500);
/// How long between two tries.
const BIND_PAUSE: Duration = Duration::from_millis(5);
/// After a failed accept (no more files, mostly) the next is tried after this.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a connection that is refused has to take its refusal.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// How long a connection without a place has to show its first bytes.
const BEGIN_TIME: Duration = Duration::from_millis(200);
/// Connections that wait for a place, or for the end of their refusal.
const WAITING_MAX: usize = 64;
/// A first head of which this many bytes have come counts as whole. Clients send longer ones
/// rarely.
const HEAD_BYTES: usize = 2 << 10;
/// How long a connection waits for a place, ...
const PLACE_TIME: Duration = Duration::from_secs(1);
/// ... and how often it looks for one.
const PLACE_PAUSE: Duration = Duration::from_millis(50);

/// Binds `address`; waits a moment for a process that is about to leave it.
pub(crate) fn bind(address: SocketAddr) -> Result<std::net::TcpListener, ServerError> {
    let tries_end = Instant::now() + BIND_TIME;
    loop {
        match try_bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < tries_end => {
                std::thread::sleep(BIND_PAUSE);
            }
            bound => return bound.map_err(|source| ServerError::Listen { address, source }),
        }
    }
}

fn try_bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // Allows to bind while connections of a former process are in TIME_WAIT, never beside a listener.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Hands out connections for ever.
pub(crate) async fn accept(
    listener: &TcpListener,
    threads: &[ThreadHandle],
    process: &Arc<Process>,
) -> Infallible {
    let queue = Rc::new(AcceptQueue::new(WAITING_MAX));
    loop {
        match listener.accept().await {
            Ok((stream, from)) => hand_out(stream, from, threads, process, &queue),
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Hands out connections of peers alone, for ever.
pub(crate) async fn accept_peers(listener: Option<&TcpListener>, threads: &[ThreadHandle]) -> Infallible {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    loop {
        match listener.accept().await.and_then(|(stream, _)| stream.into_std()) {
            Ok(stream) => threads[least_loaded(threads)].mailbox().send(thread::Message::Peer(stream)),
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "a peer's connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Closes the socket after it has handed out the connections that the system has accepted for us already. It asks
/// the system for them, not the runtime, which may have yet to hear of the last ones.
pub(crate) fn accept_last(
    listener: TcpListener,
    threads: &[ThreadHandle],
    process: &Arc<Process>,
) -> io::Result<()> {
    let listener = listener.into_std()?;
    let queue = Rc::new(AcceptQueue::new(WAITING_MAX));
    for _ in 0..=BACKLOG {
        match listener.accept() {
            Ok((stream, from)) => {
                stream.set_nonblocking(true)?;
                hand_out(TcpStream::from_std(stream)?, from, threads, process, &queue);
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn hand_out(
    stream: TcpStream,
    from: SocketAddr,
    threads: &[ThreadHandle],
    process: &Arc<Process>,
    queue: &Rc<AcceptQueue>,
) {
    let client = ClientAddress::of(from.ip());
    let mailboxes = || threads.iter().map(ThreadHandle::mailbox).collect::<Vec<_>>();
    let ConnectionAdmission { permit, eviction } = process.limiter.admit(client);
    if let Some(eviction) = eviction {
        relieve(eviction, &mailboxes());
    }
    let least = least_loaded(threads);
    if let Some(permit) = permit {
        return serve(stream, permit, &threads[least].mailbox(), process);
    }
    let waiting = Waiting {
        stream,
        client,
        threads: mailboxes(),
        least,
        process: Arc::clone(process),
        ticket: queue.join(),
    };
    tokio::task::spawn_local(waiting.wait());
}

/// Has the threads evict connections, each its share of `eviction`.
fn relieve(eviction: Eviction, threads: &[Mailbox]) {
    let count = eviction.count.div_ceil(threads.len());
    threads.iter().for_each(|thread| thread.evict(Eviction { count, ..eviction }));
}

fn serve(stream: TcpStream, permit: ConnectionPermit, thread: &Mailbox, process: &Process) {
    match stream.into_std() {
        Ok(stream) => {
            process.counters.connections_accepted.count();
            thread.serve(stream, permit);
        }
        Err(error) => tracing::warn!(%error, "a connection could not be handed to its thread"),
    }
}

/// Index of the thread with the fewest connections.
fn least_loaded(threads: &[ThreadHandle]) -> usize {
    (0..threads.len()).min_by_key(|index| threads[*index].load()).expect("there is at least one thread")
}

/// What has come of the first request of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begin {
    /// No whole head.
    Unfinished,
    /// The request of a peer that wants to link.
    Peer,
    /// The whole head of a request about the node itself.
    Administration,
    /// Another whole head.
    Other,
}

/// A connection that waits for a place.
struct Waiting {
    stream: TcpStream,
    client: ClientAddress,
    threads: Vec<Mailbox>,
    /// Index of the thread with the fewest connections.
    least: usize,
    process: Arc<Process>,
    ticket: QueueTicket,
}

impl Waiting {
    /// Waits for a place that an evicted connection leaves, and refuses the client if there is none
    /// in time. Peers are let through, since clients are not to cut nodes off from each other, and
    /// so are requests about the node itself.
    async fn wait(self) {
        let Self { stream, client, threads, least, process, ticket } = self;
        tokio::select! {
            () = ticket.displaced() => process.admission.count(Refusal::Connections),
            () = wait_for_permit(stream, client, &threads, least, &process, &ticket) => {}
        }
    }
}

async fn wait_for_permit(
    stream: TcpStream,
    client: ClientAddress,
    threads: &[Mailbox],
    least: usize,
    process: &Process,
    ticket: &QueueTicket,
) {
    let thread = &threads[least];
    let ends = tokio::time::Instant::now() + PLACE_TIME;
    // Clients and peers send a short request in one piece.
    let _ = tokio::time::timeout(BEGIN_TIME, stream.readable()).await;
    loop {
        let begin = begin_of(&stream);
        ticket.note_head(begin != Begin::Unfinished);
        match begin {
            Begin::Peer => {
                if let Ok(stream) = stream.into_std() {
                    thread.send(thread::Message::Peer(stream));
                }
                return;
            }
            Begin::Administration => {
                if let Some(permit) = process.limiter.admit_reserved(client) {
                    return serve(stream, permit, thread, process);
                }
            }
            Begin::Unfinished | Begin::Other => {}
        }
        let is_over = tokio::time::Instant::now() >= ends;
        // Whole heads come first: an unfinished one would be evicted again.
        if begin != Begin::Unfinished || is_over {
            let ConnectionAdmission { permit, eviction } = process.limiter.admit(client);
            if let Some(permit) = permit {
                return serve(stream, permit, thread, process);
            }
            if let Some(eviction) = eviction {
                relieve(eviction, threads);
            }
        }
        if is_over {
            ticket.note_head(false);
            return refuse(stream, process).await;
        }
        tokio::time::sleep(PLACE_PAUSE).await;
    }
}

/// Looks at the first bytes, and leaves them where they are.
fn begin_of(stream: &TcpStream) -> Begin {
    let mut bytes = [0; HEAD_BYTES];
    let Ok((len, _)) = recv(stream, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT) else {
        return Begin::Unfinished;
    };
    let bytes = &bytes[..len];
    if accept::is_peer(bytes) {
        return Begin::Peer;
    }
    let is_whole = len == HEAD_BYTES || bytes.windows(4).any(|bytes| bytes == b"\r\n\r\n");
    match is_whole {
        false => Begin::Unfinished,
        true if connection_limit::is_administration(bytes) => Begin::Administration,
        true => Begin::Other,
    }
}

async fn refuse(mut stream: TcpStream, process: &Process) {
    let problem = process.admission.refuse(Refusal::Connections);
    let refused = async {
        stream.write_all(&problem.to_http1_bytes(&http_date(process.clock.now().wall))).await?;
        stream.shutdown().await?;
        crate::connection::linger(&mut stream).await
    };
    // The client is told as far as it listens.
    let _ = tokio::time::timeout(REFUSAL_TIME, refused).await;
}

/// Errors of the connection that would have been accepted, not of the listener (accept(2)).
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_left_in_a_moment_is_waited_for() {
        let former = bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port is free");
        let address = former.local_addr().expect("it is bound");
        let error = bind(address).expect_err("it is in use").to_string();
        assert!(error.contains("stop the process that has it"), "{error}");
        std::thread::scope(|scope| {
            let next = scope.spawn(|| bind(address));
            // Whether it has tried by now or not, it gets the address.
            drop(former);
            next.join().expect("no panic").expect("the address is free again");
        });
    }
}
