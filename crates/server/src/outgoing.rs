//! Parts of a response, gathered so that many small ones leave in one write.
//!
//! hyper flushes after 16 frames at the latest. Of a range each entry is a frame, so with small entries that would be
//! a call to the system for every few of them. While the body has more at hand, what hyper writes is copied here
//! instead, up to a bound: a copy of 64 KiB costs a tenth of the calls that it saves. Large parts are not copied.

use crate::connection_activity::ConnectionActivity;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;

/// What is gathered, at most.
const GATHERED_BYTES_MAX: usize = 64 << 10;
/// Parts of one write, as many as hyper gives and what was gathered.
const PARTS_MAX: usize = 65;

/// Bytes on their way to the socket.
#[derive(Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    /// So many of them were written.
    written: usize,
}

impl Outgoing {
    /// Takes of `parts` what there is room for, or writes.
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
            // Nothing of `parts` may have left because of what was before them.
            if written > 0 || was_empty {
                return Poll::Ready(Ok(written));
            }
        }
    }

    /// Writes what was gathered, unless more is about to follow.
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

    /// Whether nothing is gathered.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Writes once, what was gathered and then `parts`; how many bytes of `parts` left.
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

    /// Forgets what was written; how much more that was.
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

    /// Writes all of `part`; more follows, or not. Returns how much of it was left for the last write.
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
    fn everything_leaves_in_order_and_what_is_small_together() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let reader = std::thread::spawn(move || {
            let mut came = Vec::new();
            listener.accept().expect("a connection").0.read_to_end(&mut came).expect("it is closed well");
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
                    // Of a part that does not fit, the socket may have left so little that it does.
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
