//! Collects small parts of a response, so that many of them leave in one write.
//!
//! hyper flushes after 16 frames at the latest. Each entry of a range is a frame, so small entries
//! would cost a system call for every few of them. While the body has further parts ready, hyper's
//! writes are copied here instead, up to 64 KiB. The copy costs a tenth of the system calls that it
//! saves. Large parts are not copied.

use crate::connection_activity::ConnectionActivity;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;

/// Most bytes that are collected.
const GATHERED_BYTES_MAX: usize = 64 << 10;
/// Most parts of one write: those that hyper passes, and the collected bytes.
const PARTS_MAX: usize = 65;

/// Bytes on their way to the socket.
#[derive(Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    /// Number of these bytes that were written.
    written: usize,
}

impl Outgoing {
    /// Copies `parts` into the buffer if they fit and more follows. Otherwise writes.
    pub(crate) fn poll_write(
        &mut self,
        socket: &mut TcpStream,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
        activity: &ConnectionActivity,
    ) -> Poll<io::Result<usize>> {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        let gathers = activity.more_follows.get() || !self.is_empty();
        if gathers && self.bytes.len() + len <= GATHERED_BYTES_MAX {
            parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
            return Poll::Ready(Ok(len));
        }
        loop {
            let was_empty = self.is_empty();
            let written = ready!(self.poll_write_with(socket, context, parts, activity))?;
            // If nothing of `parts` left, only the collected bytes before them were written.
            if written > 0 || was_empty {
                return Poll::Ready(Ok(written));
            }
        }
    }

    /// Writes the collected bytes, unless more is about to follow.
    pub(crate) fn poll_flush(
        &mut self,
        socket: &mut TcpStream,
        context: &mut Context<'_>,
        activity: &ConnectionActivity,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() && !activity.more_follows.get() {
            ready!(self.poll_write_with(socket, context, &[], activity))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Whether no bytes are collected.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Writes the collected bytes and then `parts`, in one call. Returns the number of bytes of
    /// `parts` that were written.
    fn poll_write_with(
        &mut self,
        socket: &mut TcpStream,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
        activity: &ConnectionActivity,
    ) -> Poll<io::Result<usize>> {
        let polled = match self.is_empty() {
            true => Pin::new(socket).poll_write_vectored(context, parts),
            false => {
                let mut all = [IoSlice::new(&[]); PARTS_MAX];
                all[0] = IoSlice::new(&self.bytes[self.written..]);
                let count = parts.len().min(PARTS_MAX - 1);
                all[1..=count].copy_from_slice(&parts[..count]);
                Pin::new(socket).poll_write_vectored(context, &all[..=count])
            }
        };
        activity.write_blocked.set(polled.is_pending());
        let written = ready!(polled)?;
        activity.count_moved(written);
        if written == 0 && !self.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        Poll::Ready(Ok(self.advance(written)))
    }

    /// Removes `written` bytes from the front. Returns the number of bytes beyond the collected
    /// ones.
    fn advance(&mut self, written: usize) -> usize {
        let gathered = self.bytes.len() - self.written;
        if written < gathered {
            self.written += written;
            return 0;
        }
        *self = Self::default();
        written - gathered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::io::Read;
    use std::net::TcpListener;

    /// Writes all of `part`. Returns the length of the rest that the last write was given.
    async fn write(
        outgoing: &mut Outgoing,
        socket: &mut TcpStream,
        activity: &ConnectionActivity,
        part: &[u8],
        more_follows: bool,
    ) -> usize {
        activity.more_follows.set(more_follows);
        let (mut written, mut last) = (0, part.len());
        while written < part.len() {
            last = part.len() - written;
            let rest = [IoSlice::new(&part[written..])];
            let write = poll_fn(|context| outgoing.poll_write(socket, context, &rest, activity)).await;
            written += write.expect("the other side reads");
        }
        let flushed = poll_fn(|context| outgoing.poll_flush(socket, context, activity)).await;
        flushed.expect("the other side reads");
        last
    }

    #[test]
    fn parts_leave_in_order_and_small_ones_together() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let reader = std::thread::spawn(move || {
            let mut came = Vec::new();
            listener
                .accept()
                .expect("a connection")
                .0
                .read_to_end(&mut came)
                .expect("the stream ends without an error");
            came
        });
        let mut sent = Vec::new();
        tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime").block_on(
            async {
                let mut socket = TcpStream::connect(address).await.expect("it listens");
                let (mut outgoing, activity) = (Outgoing::default(), ConnectionActivity::default());
                for round in 0..200_usize {
                    let len = [1, 1_000, 100, 70_000, 3_000_000][round % 5] + round;
                    let part: Vec<_> = (0..len).map(|at| (at + round) as u8).collect();
                    let (gathered, more_follows) = (outgoing.bytes.len(), round % 7 != 0);
                    let last = write(&mut outgoing, &mut socket, &activity, &part, more_follows).await;
                    sent.extend_from_slice(&part);
                    // The socket may have left so little of a part that the rest fits the buffer.
                    let together = if last == len { gathered + len } else { last };
                    let is_gathered = more_follows && together <= GATHERED_BYTES_MAX;
                    let expected = if is_gathered { together } else { 0 };
                    assert_eq!(outgoing.bytes.len(), expected, "round {round}");
                }
                write(&mut outgoing, &mut socket, &activity, b"end", false).await;
            },
        );
        sent.extend_from_slice(b"end");
        assert!(reader.join().expect("no panic") == sent);
    }
}
