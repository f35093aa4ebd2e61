//! Batch requests: many writes in one request, whose results are read while it is sent.
//!
//! The request is encoded in advance, so that encoding is not measured.

use api::entries::{BatchAction, BatchEntry, EntryEncoder, Format, ResultDecoder};
use bench::keys::KeyNumber;
use bench::response::ResponseParser;
use bench::threads::join_scoped;
use bench::values::{ValueGenerator, ValueSizes};
use bytes::Bytes;
use cluster::{Key, Lifetime};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use stdx::Rng;

/// Maximum size of a read, in bytes.
const READ_BYTES: usize = 256 << 10;
/// Timeout of each read and write.
const IO_TIMEOUT: Duration = Duration::from_secs(60);

/// An encoded batch of `PUT` operations.
#[derive(Debug)]
pub struct PutBatch {
    body: Vec<u8>,
    entries: u64,
}

impl PutBatch {
    /// Encodes `entries` writes with values of `value_bytes` bytes, to keys drawn uniformly from
    /// `0..keys`, in the binary format.
    pub fn of_writes(entries: u64, keys: u64, value_bytes: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self::of_keys((0..entries).map(|_| KeyNumber(rng.below(keys))), value_bytes)
    }

    /// Encodes writes with values of `value_bytes` bytes to these keys, in the binary format.
    pub fn of_keys(keys: impl Iterator<Item = KeyNumber>, value_bytes: usize) -> Self {
        let values = ValueGenerator::standard(ValueSizes::Fixed(value_bytes));
        let (mut encoder, mut body, mut entries) = (EntryEncoder::new(Format::Binary), Vec::new(), 0);
        for number in keys {
            entries += 1;
            let mut value = Vec::with_capacity(value_bytes);
            values.append(number, &mut value);
            let key = Key::new(Bytes::copy_from_slice(&number.stored_key())).expect("16 bytes are a key");
            let action = BatchAction::Put { value: value.into(), lifetime: Lifetime::Forever };
            encoder.put_batch_entry(&BatchEntry { key, action }, &mut body);
        }
        encoder.end(&mut body);
        Self { body, entries }
    }

    /// Number of writes.
    pub const fn entries(&self) -> u64 {
        self.entries
    }

    /// Sends the batch on a new connection. Returns the time until the last result.
    ///
    /// # Errors
    /// Errors of the socket; [`ErrorKind::InvalidData`] unless the response has one `201` for each
    /// write.
    pub fn send(&self, target: SocketAddr) -> io::Result<Duration> {
        let mut socket = TcpStream::connect(target)?;
        socket.set_read_timeout(Some(IO_TIMEOUT))?;
        socket.set_write_timeout(Some(IO_TIMEOUT))?;
        let reader = socket.try_clone()?;
        let media_type = Format::Binary.media_type();
        let begun = Instant::now();
        write!(
            socket,
            "POST /v0/entities HTTP/1.1\r\nHost: {target}\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\n\r\n",
            self.body.len()
        )?;
        let written = thread::scope(|scope| {
            let reading = scope.spawn(move || read_results(reader));
            socket.write_all(&self.body)?;
            join_scoped(reading)
        })?;
        if written == self.entries {
            Ok(begun.elapsed())
        } else {
            Err(invalid(format!("{written} of {} writes were done", self.entries)))
        }
    }
}

/// Reads the results. Returns the number of entries that were written.
fn read_results(mut socket: TcpStream) -> io::Result<u64> {
    let (mut parser, mut decoder) = (ResponseParser::default(), ResultDecoder::new(Format::Binary));
    let mut buffer = vec![0; READ_BYTES];
    let mut written = 0;
    loop {
        let len = socket.read(&mut buffer)?;
        if len == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut pieces = Vec::new();
        let keep = |bytes: &[u8]| pieces.push(Bytes::copy_from_slice(bytes));
        let (_, response) =
            parser.advance(&buffer[..len], keep).map_err(|error| invalid(error.to_string()))?;
        for piece in pieces {
            decoder.feed(piece);
        }
        while let Some(result) = decoder.next().map_err(|error| invalid(format!("{error:?}")))? {
            if result.status().as_u16() != 201 {
                return Err(invalid(format!("{result:?}")));
            }
            written += 1;
        }
        if response.is_some() {
            return Ok(written);
        }
    }
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}
