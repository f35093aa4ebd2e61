//! The listening socket, and who gets its connections.
//!
//! One socket without `SO_REUSEPORT`: with it a second node on the same port would start silently and take half
//! of the connections. Each accepted connection goes to the thread with the fewest.

use crate::error::ServerError;
use crate::thread::ThreadHandle;
use api::Problem;
use socket2::{Domain, Socket, Type};
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// Connections that the system may hold for us between two accepts.
const BACKLOG: i32 = 1_024;
/// After a failed accept (no more files, mostly) the next is tried after this.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a connection that is refused has to take its refusal.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Connections that are being refused at once; beyond, they are dropped.
const REFUSALS_MAX: usize = 64;
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Binds `address`.
pub(crate) fn bind(address: SocketAddr) -> Result<std::net::TcpListener, ServerError> {
    let bind = || -> io::Result<std::net::TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        // Allows to bind while connections of a former process are in TIME_WAIT, never beside a listener.
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    bind().map_err(|source| ServerError::Listen { address, source })
}

/// Hands out connections for ever.
pub(crate) async fn accept(
    listener: &TcpListener,
    threads: &[ThreadHandle],
    connections_max: usize,
) -> Infallible {
    let refusals = Rc::new(());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => hand_out(stream, threads, connections_max, &refusals),
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Hands out the connections that the system has accepted for us already.
pub(crate) async fn accept_waiting(listener: &TcpListener, threads: &[ThreadHandle], connections_max: usize) {
    let refusals = Rc::new(());
    while let Poll::Ready(Ok((stream, _))) =
        poll_fn(|context| Poll::Ready(listener.poll_accept(context))).await
    {
        hand_out(stream, threads, connections_max, &refusals);
    }
}

fn hand_out(stream: TcpStream, threads: &[ThreadHandle], connections_max: usize, refusals: &Rc<()>) {
    let connections: usize = threads.iter().map(ThreadHandle::load).sum();
    if connections >= connections_max {
        if Rc::strong_count(refusals) <= REFUSALS_MAX {
            tokio::task::spawn_local(refuse(stream, Rc::clone(refusals)));
        }
        return;
    }
    let thread = threads.iter().min_by_key(|thread| thread.load()).expect("there is at least one thread");
    match stream.into_std() {
        Ok(stream) => thread.serve(stream),
        Err(error) => tracing::warn!(%error, "a connection could not be handed to its thread"),
    }
}

async fn refuse(mut stream: TcpStream, _counts: Rc<()>) {
    let problem =
        Problem::unavailable(RETRY_AFTER, "The node has as many connections as it takes. Try again.");
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
