//! The listening socket, and who gets its connections.
//!
//! One socket without `SO_REUSEPORT`: with it a second node on the same port would start silently and take half
//! of the connections. Each accepted connection goes to the thread with the fewest. Connections of clients are
//! bounded; those of peers are not among them.

use crate::budget::Part;
use crate::counters::Refusal;
use crate::error::ServerError;
use crate::links::accept;
use crate::process::Process;
use crate::thread::{self, Mailbox, ThreadHandle};
use socket2::{Domain, Socket, Type};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// Connections that the system may hold for us between two accepts.
const BACKLOG: i32 = 1_024;
/// An address in use is tried for so long: a process that was killed holds it until the system has cleared it away.
const BIND_TIME: Duration = Duration::from_millis(500);
/// How long between two tries.
const BIND_PAUSE: Duration = Duration::from_millis(5);
/// After a failed accept (no more files, mostly) the next is tried after this.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a connection that is refused has to take its refusal.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// How long a connection that clients would not get has to show that it is a peer's.
const PEER_TIME: Duration = Duration::from_millis(200);
/// Connections that are being refused at once; beyond, they are dropped.
const REFUSALS_MAX: usize = 64;
/// What a connection takes in memory while it rests: its task, its socket's registration, what the sweep knows of it.
const CONNECTION_BYTES: u64 = 8 << 10;

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
    let refusals = Rc::new(());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => hand_out(stream, threads, process, &refusals),
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
            Ok(stream) => least_loaded(threads).mailbox().send(thread::Message::Peer(stream)),
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
    let refusals = Rc::new(());
    for _ in 0..=BACKLOG {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                hand_out(TcpStream::from_std(stream)?, threads, process, &refusals);
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn hand_out(stream: TcpStream, threads: &[ThreadHandle], process: &Arc<Process>, refusals: &Rc<()>) {
    let connections: usize = threads.iter().map(ThreadHandle::load).sum();
    let thread = least_loaded(threads);
    let has_place = connections < process.config.limits.connections_max;
    let room = if has_place { process.memory.take(Part::Connections, CONNECTION_BYTES) } else { None };
    let Some(room) = room else {
        if Rc::strong_count(refusals) <= REFUSALS_MAX {
            let refused = refuse(stream, thread.mailbox(), Arc::clone(process), Rc::clone(refusals));
            tokio::task::spawn_local(refused);
        } else {
            process.admission.count(Refusal::Connections);
        }
        return;
    };
    match stream.into_std() {
        Ok(stream) => {
            process.counters.connections_accepted.count();
            thread.serve(stream, room);
        }
        Err(error) => tracing::warn!(%error, "a connection could not be handed to its thread"),
    }
}

fn least_loaded(threads: &[ThreadHandle]) -> &ThreadHandle {
    threads.iter().min_by_key(|thread| thread.load()).expect("there is at least one thread")
}

/// Refuses a client. Peers are let through: it is not for clients to cut nodes off from each other.
async fn refuse(mut stream: TcpStream, thread: Mailbox, process: Arc<Process>, _counts: Rc<()>) {
    if let Ok(true) = tokio::time::timeout(PEER_TIME, accept::turns_out_as_peer(&stream)).await {
        if let Ok(stream) = stream.into_std() {
            thread.send(thread::Message::Peer(stream));
        }
        return;
    }
    let problem = process.admission.refuse(Refusal::Connections);
    let refused = async {
        stream.write_all(&problem.to_http1_bytes()).await?;
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
