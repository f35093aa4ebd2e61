//! Exchange of bytes over a connection during the handshake.

use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Size of one read, in bytes; more than any head or hello message.
const READ_BYTES: usize = 4 << 10;
/// Most bytes that wait to be parsed.
const WAITING_BYTES_MAX: usize = 16 << 10;
/// End of an HTTP head.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// A connection, with the bytes that were received and not parsed yet.
pub(super) struct HandshakeExchange {
    pub(super) socket: TcpStream,
    pub(super) waiting: Vec<u8>,
}

impl HandshakeExchange {
    /// Sends all `bytes`.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes).await
    }

    /// Waits for further bytes.
    ///
    /// # Errors
    /// Also if the other side has closed its end, or has sent too much.
    pub(super) async fn receive(&mut self) -> io::Result<()> {
        if self.waiting.len() >= WAITING_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the other side sends too much"));
        }
        self.waiting.reserve(READ_BYTES);
        match self.socket.read_buf(&mut self.waiting).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Waits for a whole HTTP head and takes it.
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
