//! The listening socket and the distribution of its connections.
//!
//! The listener is one socket without `SO_REUSEPORT`. With that option, a second node on the same
//! port would start silently and take half of the connections. Each accepted connection goes to the
//! thread with the fewest. Client connections are bounded (`connection_limit`); connections of
//! peers are not counted. A connection without a permit waits in a bounded queue ([`AcceptQueue`])
//! until an evicted connection releases its permit (`waiting_connection`).
//!
//! A connection that cannot be accepted, because other parts of the process have used up the
//! descriptors, evicts an inactive one. If none is inactive, it is accepted with one of a few spare
//! descriptors and refused.

use crate::accept_queue::AcceptQueue;
use crate::accept_state::AcceptState;
use crate::connection_limit::{ClientAddress, ConnectionAdmission};
use crate::error::ServerError;
use crate::io_thread::ThreadHandle;
use crate::messages::{ThreadMessage, send_eviction};
use crate::waiting_connection::{WaitingConnection, refuse, serve};
use socket2::{Domain, Socket, Type};
use std::cell::RefCell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};

/// Most connections that the system holds for the node between two accepts. The kernel's own limit
/// (`net.core.somaxconn`) is 4,096. A flood that fills this queue delays other clients by the
/// second after which the kernel repeats a handshake.
const BACKLOG: i32 = 4_096;
/// Time for which binding an address in use is retried. A process that was killed holds its address
/// until the system has cleaned up.
const BIND_TIME: Duration = Duration::from_millis(500);
/// Pause between two attempts to bind.
const BIND_PAUSE: Duration = Duration::from_millis(5);
/// Pause after a failed accept, in which evicted connections release their descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Number of spare descriptors, with which connections are refused when there are no others.
const SPARES_MAX: usize = 4;

/// Binds `address`. Retries for [`BIND_TIME`] while another process holds it.
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
    // Allows binding while connections of a former process are in TIME_WAIT, but never beside a
    // listener.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Accepts connections forever and hands them to the I/O threads.
pub(crate) async fn accept(
    listener: &TcpListener,
    threads: &[ThreadHandle],
    state: &Arc<AcceptState>,
) -> Infallible {
    let queue = Rc::new(AcceptQueue::default());
    let spares = SpareDescriptors::default();
    let mut has_failed = false;
    loop {
        spares.refill(listener);
        match listener.accept().await {
            Ok((stream, from)) => {
                has_failed = false;
                hand_out(stream, from, threads, state, &queue);
                if !queue.is_empty() {
                    // Displaced connections are closed before further ones are accepted.
                    tokio::task::yield_now().await;
                }
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                note_failure(&error, threads, state);
                // The first pause lets evicted connections end.
                if !has_failed || !refuse_with_spare(listener, state, &spares).await {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                has_failed = true;
            }
        }
    }
}

/// Counts a connection that could not be accepted, and evicts inactive ones for their descriptors.
fn note_failure(error: &io::Error, threads: &[ThreadHandle], state: &AcceptState) {
    if state.failures.note(state.clock.now().mono) {
        tracing::warn!(
            %error,
            "a connection could not be accepted: inactive connections are closed; raise the hard limit of open files \
             (ulimit -Hn, LimitNOFILE=)"
        );
    }
    let threads: Vec<_> = threads.iter().map(ThreadHandle::mailbox).collect();
    send_eviction(state.limiter.evict_for_descriptor(), &threads);
}

/// Accepts a connection in place of a spare descriptor, and refuses it. `false`: there is no spare
/// descriptor, or no connection.
async fn refuse_with_spare(
    listener: &TcpListener,
    state: &Arc<AcceptState>,
    spares: &SpareDescriptors,
) -> bool {
    let Some(spare) = spares.0.borrow_mut().pop() else {
        return false;
    };
    drop(spare);
    let accepted = poll_fn(|context| Poll::Ready(listener.poll_accept(context))).await;
    let Poll::Ready(Ok((stream, _))) = accepted else {
        return false;
    };
    let state = Arc::clone(state);
    tokio::task::spawn_local(async move {
        let mut stream = stream;
        refuse(&mut stream, &state).await;
    });
    true
}

/// Descriptors that are held for the time when there are no others.
#[derive(Default)]
struct SpareDescriptors(RefCell<Vec<OwnedFd>>);

impl SpareDescriptors {
    /// Acquires the missing descriptors, as far as the system has them.
    fn refill(&self, listener: &TcpListener) {
        let mut spares = self.0.borrow_mut();
        while spares.len() < SPARES_MAX
            && let Ok(spare) = listener.as_fd().try_clone_to_owned()
        {
            spares.push(spare);
        }
    }
}

/// Accepts connections of peers forever and hands them to the I/O threads.
pub(crate) async fn accept_peers(
    listener: Option<&TcpListener>,
    threads: &[ThreadHandle],
    state: &AcceptState,
) -> Infallible {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    loop {
        match listener.accept().await.and_then(|(stream, _)| stream.into_std()) {
            Ok(stream) => threads[least_loaded(threads)].mailbox().send(ThreadMessage::Peer(stream)),
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                note_failure(&error, threads, state);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Hands out the connections that the system has accepted already, then closes the socket. It polls
/// the system directly, because the runtime may not have reported the last connections yet.
pub(crate) fn accept_last(
    listener: TcpListener,
    threads: &[ThreadHandle],
    state: &Arc<AcceptState>,
) -> io::Result<()> {
    let listener = listener.into_std()?;
    let queue = Rc::new(AcceptQueue::default());
    for _ in 0..=BACKLOG {
        match listener.accept() {
            Ok((stream, from)) => {
                stream.set_nonblocking(true)?;
                hand_out(TcpStream::from_std(stream)?, from, threads, state, &queue);
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
    state: &Arc<AcceptState>,
    queue: &Rc<AcceptQueue>,
) {
    let client = ClientAddress::of(from.ip());
    let mailboxes = || threads.iter().map(ThreadHandle::mailbox).collect::<Vec<_>>();
    let ConnectionAdmission { permit, eviction } = state.limiter.admit(client);
    if let Some(eviction) = eviction {
        send_eviction(eviction, &mailboxes());
    }
    let least = least_loaded(threads);
    if let Some(permit) = permit {
        return serve(stream, permit, &threads[least].mailbox(), state);
    }
    let waiting = WaitingConnection {
        stream,
        client,
        threads: mailboxes(),
        least,
        state: Arc::clone(state),
        ticket: queue.join(client),
    };
    tokio::task::spawn_local(waiting.wait());
}

/// Index of the thread with the fewest connections.
fn least_loaded(threads: &[ThreadHandle]) -> usize {
    (0..threads.len()).min_by_key(|index| threads[*index].load()).expect("there is at least one thread")
}

/// Whether the error concerns the connection that was about to be accepted, not the listener
/// (accept(2)).
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
    fn binding_waits_for_an_address_that_is_released_soon() {
        let former = bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port is free");
        let address = former.local_addr().expect("it is bound");
        let error = bind(address).expect_err("it is in use").to_string();
        assert!(error.contains("stop the process that has it"), "{error}");
        std::thread::scope(|scope| {
            let next = scope.spawn(|| bind(address));
            // The other thread gets the address, whether or not it has tried yet.
            drop(former);
            next.join().expect("no panic").expect("the address is free again");
        });
    }
}
