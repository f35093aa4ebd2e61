//! Receives and sends with direct system calls, without the C library; discards unread input.
//!
//! **Promise.** The functions here issue the same system calls as the runtime does for its sockets,
//! and no more. They wait for a socket that is not ready, and do not call on a socket that is known
//! to be empty or full.
//!
//! **Mechanism.** The C library's `recv` and `send` use the frame pointer register for other
//! purposes. In a profile they would appear without their callers, and with small requests they are
//! a quarter of the time. A receive that does not fill its buffer has emptied the socket, and a
//! send of fewer bytes than given has filled it. As in the runtime's own implementation, such a
//! call clears the readiness of the socket.
//!
//! **Caveats.** This is correct only with edge-triggered notifications, as the runtime uses them
//! with `epoll`.

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::net::TcpStream;

/// Longest pause in the input while it is discarded.
const LINGER_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Most bytes that are discarded: twice the largest value that a node can be configured to accept.
const LINGER_BYTES_MAX: usize = 128 << 20;
/// Size of one read of discarded input, in bytes.
const LINGER_BUFFER_BYTES: usize = 64 << 10;

/// Receives once and returns the number of bytes; 0: the other side has closed its end.
pub(crate) fn poll_receive(
    socket: &TcpStream,
    context: &mut Context<'_>,
    buffer: &mut [u8],
) -> Poll<io::Result<usize>> {
    loop {
        ready!(socket.poll_read_ready(context))?;
        let most = buffer.len();
        let call = || recv(socket, &mut *buffer, RecvFlags::empty()).map(|(len, _)| len);
        let received = try_once(socket, Interest::READABLE, most, call);
        if !would_wait(&received) {
            return Poll::Ready(received);
        }
    }
}

/// Sends once and returns the number of bytes that were accepted.
pub(crate) fn poll_send(
    socket: &TcpStream,
    context: &mut Context<'_>,
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    loop {
        ready!(socket.poll_write_ready(context))?;
        let sent = try_send(socket, bytes);
        if !would_wait(&sent) {
            return Poll::Ready(sent);
        }
    }
}

/// Sends once and returns the number of bytes that were accepted.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`]: the socket is not ready.
pub(crate) fn try_send(socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    try_once(socket, Interest::WRITABLE, bytes.len(), || send(socket, bytes, SendFlags::NOSIGNAL))
}

fn would_wait(done: &io::Result<usize>) -> bool {
    done.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Moves up to `most` bytes with a system call, if the socket is ready for it.
fn try_once(
    socket: &TcpStream,
    interest: Interest,
    most: usize,
    mut call: impl FnMut() -> rustix::io::Result<usize>,
) -> io::Result<usize> {
    let mut moved = None;
    let done = socket.try_io(interest, || {
        let len = retry_on_intr(&mut call)?;
        if len == 0 || len == most {
            return Ok(len);
        }
        // `WouldBlock` clears the readiness, because the next call would wait. `moved` holds the
        // result.
        moved = Some(len);
        Err(Errno::WOULDBLOCK.into())
    });
    moved.map_or(done, Ok)
}

/// Reads and discards input until the client closes its side or a limit is reached.
pub(crate) async fn linger(socket: &mut TcpStream) -> io::Result<()> {
    let mut read = 0;
    while read < LINGER_BYTES_MAX {
        match tokio::time::timeout(LINGER_PAUSE_MAX, read_over(socket)).await?? {
            0 => return Ok(()),
            bytes => read += bytes,
        }
    }
    Ok(())
}

/// Reads once and returns the number of bytes. The buffer lives on the stack for this call only, so
/// a lingering connection holds no memory.
async fn read_over(socket: &mut TcpStream) -> io::Result<usize> {
    poll_fn(|context| {
        let mut buffer = [MaybeUninit::uninit(); LINGER_BUFFER_BYTES];
        let mut read = ReadBuf::uninit(&mut buffer);
        ready!(Pin::new(&mut *socket).poll_read(context, &mut read))?;
        Poll::Ready(Ok(read.filled().len()))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::net::TcpListener;

    const LEN: usize = 8 << 20;

    fn byte(at: usize) -> u8 {
        (at % 251) as u8
    }

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (here, there) = tokio::join!(TcpStream::connect(address), listener.accept());
        (here.expect("the listener accepts"), there.expect("a connection").0)
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        runtime.expect("a runtime").block_on(future)
    }

    #[test]
    fn bytes_arrive_in_order_even_if_both_sides_wait_often() {
        block_on(async {
            let (here, there) = pair().await;
            let bytes: Vec<_> = (0..LEN).map(byte).collect();
            let sends = async {
                let mut sent = 0;
                while sent < LEN {
                    let some = poll_fn(|context| poll_send(&here, context, &bytes[sent..])).await;
                    sent += some.expect("the other side reads");
                }
                drop(here);
            };
            let receives = async {
                let (mut received, mut buffer) = (0, vec![0; 100_000]);
                loop {
                    let len = poll_fn(|context| poll_receive(&there, context, &mut buffer)).await;
                    let len = len.expect("the stream ends without an error");
                    if len == 0 {
                        break received;
                    }
                    assert!(buffer[..len].iter().zip(received..).all(|(has, at)| *has == byte(at)));
                    received += len;
                }
            };
            let ((), received) = tokio::join!(sends, receives);
            assert_eq!(received, LEN);
        });
    }

    #[test]
    fn a_full_socket_is_not_called_again_before_it_is_writable() {
        block_on(async {
            let (here, there) = pair().await;
            here.writable().await.expect("the connection is open");
            let bytes = vec![7; 4 * LEN];
            let sent = try_send(&here, &bytes).expect("the socket accepts some bytes");
            assert!(0 < sent && sent < bytes.len());
            assert!(would_wait(&try_send(&here, &bytes)));
            assert!(would_wait(&here.try_io(Interest::WRITABLE, || -> io::Result<usize> {
                panic!("the runtime considers the socket ready")
            })));
            let (mut received, mut buffer) = (0, vec![0; LEN]);
            while received < sent {
                let len = poll_fn(|context| poll_receive(&there, context, &mut buffer)).await;
                received += len.expect("the connection is open");
            }
            let more = poll_fn(|context| poll_send(&here, context, b"more")).await;
            assert_eq!(more.expect("the socket accepts bytes again"), 4);
        });
    }
}
