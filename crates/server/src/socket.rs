//! Receiving and sending by calls of the system itself, without the C library between.
//!
//! **Promise.** What the runtime does for its sockets is done here with the same calls, and no more of them: a socket
//! that is not ready is waited for, and none is asked that is known to have nothing, or to take nothing.
//!
//! **Mechanism.** The C library's `recv` and `send` use the register of the frame pointer for something else, so that in
//! a profile they stand without those who called them; of small requests they are a quarter of the time. A call that
//! receives less than its buffer takes has emptied the socket, and one that sends less than it has has filled it: as the
//! runtime's own, it then takes back that the socket is ready.
//!
//! **Caveats.** It holds where the system tells of sockets that become ready, not of those that are: with `epoll`.

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::task::{Context, Poll, ready};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Receives once; how many bytes. None: the other side sends no more.
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

/// Sends once; how many of the bytes.
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

/// Sends once; how many of the bytes.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`]: the socket is not ready.
pub(crate) fn try_send(socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    try_once(socket, Interest::WRITABLE, bytes.len(), || send(socket, bytes, SendFlags::NOSIGNAL))
}

fn would_wait(done: &io::Result<usize>) -> bool {
    done.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Moves up to `most` bytes by a call, if the socket is ready for it.
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
        // Said in place of what was done, for the next call would wait.
        moved = Some(len);
        Err(Errno::WOULDBLOCK.into())
    });
    moved.map_or(done, Ok)
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
        (here.expect("it listens"), there.expect("it came").0)
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        runtime.expect("a runtime").block_on(future)
    }

    #[test]
    fn everything_comes_in_order_however_often_either_side_has_to_wait() {
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
                    let len = len.expect("it is closed well");
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
    fn a_socket_that_was_filled_is_not_asked_again_before_it_takes_more() {
        block_on(async {
            let (here, there) = pair().await;
            here.writable().await.expect("it is open");
            let bytes = vec![7; 4 * LEN];
            let sent = try_send(&here, &bytes).expect("there is room for some");
            assert!(0 < sent && sent < bytes.len());
            assert!(would_wait(&try_send(&here, &bytes)));
            assert!(would_wait(&here.try_io(Interest::WRITABLE, || -> io::Result<usize> {
                panic!("the runtime takes it for ready")
            })));
            let (mut received, mut buffer) = (0, vec![0; LEN]);
            while received < sent {
                let len = poll_fn(|context| poll_receive(&there, context, &mut buffer)).await;
                received += len.expect("it is open");
            }
            let more = poll_fn(|context| poll_send(&here, context, b"more")).await;
            assert_eq!(more.expect("there is room again"), 4);
        });
    }
}
