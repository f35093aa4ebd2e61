//! A connection before it is a link: what is said in turns.

use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Read at once; more than any head or hello.
const READ_BYTES: usize = 4 << 10;
/// Waiting to be understood, at most.
const WAITING_BYTES_MAX: usize = 16 << 10;
/// How a head of HTTP ends.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// A connection, and what has come over it and was not understood yet.
pub(super) struct HandshakeExchange {
    pub(super) socket: TcpStream,
    pub(super) waiting: Vec<u8>,
}

impl HandshakeExchange {
    /// Sends.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes).await
    }

    /// Waits for more.
    ///
    /// # Errors
    /// Also when the other side has ended, or says more than it should.
    pub(super) async fn receive(&mut self) -> io::Result<()> {
        if self.waiting.len() >= WAITING_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it says too much"));
        }
        self.waiting.reserve(READ_BYTES);
        match self.socket.read_buf(&mut self.waiting).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Waits for a whole head of HTTP, and takes it.
    pub(super) async fn take_head(&mut self) -> io::Result<Vec<u8>> {
        loop {
            let end = self.waiting.windows(HEAD_END.len()).position(|bytes| bytes == HEAD_END);
            if let Some(end) = end {
                let rest = self.waiting.split_off(end + HEAD_END.len());
                return Ok(std::mem::replace(&mut self.waiting, rest));
            }
            self.receive().await?;
        }
    }
}
