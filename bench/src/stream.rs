//! Reader of ranges: one response of any length, counted and not stored.
//!
//! Bytes are counted as they arrive on the socket, including chunk framing: two servers that send
//! the same entries, one per chunk, send the same number of bytes. The last bytes show whether the
//! stream is complete.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum size of a read, in bytes.
const READ_BYTES: usize = 256 << 10;
/// Timeout of a read.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Terminating chunk.
const END: &[u8] = b"\r\n0\r\n\r\n";
/// Number of reads per second of a paced reader.
const READS_PER_SECOND: u32 = 100;

/// Measurement of a range that was read.
#[derive(Clone, Copy, Debug)]
pub struct RangeRead {
    /// Bytes of the body as received, including framing.
    pub bytes: u64,
    /// Time from the request to the first bytes of the body.
    pub first: Duration,
    /// Time from the request to the last bytes of the body.
    pub all: Duration,
}

impl RangeRead {
    /// Bytes per second.
    pub fn per_second(&self) -> f64 {
        self.bytes as f64 / self.all.as_secs_f64()
    }
}

/// Pace and extent of reading a range.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOptions<'a> {
    /// Bytes per second; `None`: as fast as they arrive.
    pub bytes_per_second: Option<u64>,
    /// Read only up to the first bytes of the body.
    pub first_only: bool,
    /// Flag that ends the reading.
    pub stop: Option<&'a AtomicBool>,
}

/// Requests `path` and reads the body of the response.
///
/// # Errors
/// Errors of the socket; [`ErrorKind::InvalidData`] for a response that is not `200` and chunked;
/// [`ErrorKind::UnexpectedEof`] for an incomplete one.
pub fn read_range(target: SocketAddr, path: &str, options: ReadOptions<'_>) -> io::Result<RangeRead> {
    let mut socket = TcpStream::connect(target)?;
    socket.set_read_timeout(Some(READ_TIMEOUT))?;
    let begun = Instant::now();
    // One write: a server may respond and close before a second write.
    let request = format!("GET {path} HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes())?;
    let mut buffer = vec![0; READ_BYTES];
    let mut tail = Tail::default();
    let (mut bytes, head_bytes) = read_head(&mut socket, &mut buffer)?;
    tail.push(&buffer[head_bytes..head_bytes + bytes as usize]);
    if bytes == 0 {
        bytes += tail.read(&mut socket, &mut buffer)? as u64;
    }
    let first = begun.elapsed();
    let paced = buffer.len().min(
        options.bytes_per_second.map_or(usize::MAX, |pace| (pace / u64::from(READS_PER_SECOND)) as usize),
    );
    while !options.first_only && !options.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
        let len = tail.read(&mut socket, &mut buffer[..paced])?;
        if len == 0 {
            break;
        }
        bytes += len as u64;
        if let Some(pace) = options.bytes_per_second {
            let due = Duration::from_secs_f64(bytes as f64 / pace as f64);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }
    let is_cut_short = options.first_only || options.stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
    if !is_cut_short && tail.bytes != END {
        return Err(io::Error::new(ErrorKind::UnexpectedEof, "the range was broken off"));
    }
    Ok(RangeRead { bytes, first, all: begun.elapsed() })
}

/// Reads at least the head. Returns the number of body bytes that arrived with it, and their
/// position in the buffer.
fn read_head(socket: &mut TcpStream, buffer: &mut [u8]) -> io::Result<(u64, usize)> {
    let mut filled = 0;
    loop {
        let len = socket.read(&mut buffer[filled..])?;
        filled += len;
        let head = &buffer[..filled];
        if let Some(at) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&head[..at]).to_ascii_lowercase();
            if !text.starts_with("http/1.1 200") || !text.contains("transfer-encoding: chunked") {
                return Err(io::Error::new(ErrorKind::InvalidData, format!("not a range: {text}")));
            }
            return Ok(((filled - at - 4) as u64, at + 4));
        }
        if len == 0 || filled == buffer.len() {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "closed before the answer"));
        }
    }
}

/// The last received bytes.
#[derive(Debug, Default)]
struct Tail {
    bytes: Vec<u8>,
}

impl Tail {
    fn read(&mut self, socket: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        let len = socket.read(buffer)?;
        self.push(&buffer[..len]);
        Ok(len)
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(&bytes[bytes.len().saturating_sub(END.len())..]);
        let surplus = self.bytes.len().saturating_sub(END.len());
        self.bytes.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const HEAD: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

    fn answer(body: &'static str) -> io::Result<RangeRead> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let target = listener.local_addr()?;
        let server = std::thread::spawn(move || -> io::Result<()> {
            let (mut socket, _) = listener.accept()?;
            let mut request = [0; 1024];
            let _ = socket.read(&mut request)?;
            socket.write_all(body.as_bytes())
        });
        let streamed = read_range(target, "/v0/entities?start=a", ReadOptions::default());
        server.join().expect("the server does not panic")?;
        streamed
    }

    #[test]
    fn a_whole_range_is_counted_with_its_framing() {
        let body: &str = Box::leak(format!("{HEAD}3\r\na\n1\r\n0\r\n\r\n").into_boxed_str());
        assert_eq!(answer(body).unwrap().bytes, 13);
    }

    #[test]
    fn a_cut_or_refused_range_is_an_error() {
        let body: &str = Box::leak(format!("{HEAD}3\r\na\n1\r\n").into_boxed_str());
        assert_eq!(answer(body).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let refused = answer("HTTP/1.1 504 Not Enough Replicas\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
