//! Reader of the entries of a file, in chunks. It runs on its own thread, because reading blocks
//! and the connection must not.

use super::zstd_decoder::{self, ZstdDecoder};
use super::{VALUE_BYTES_MAX, is_in_future};
use crate::error::CtlError;
use api::entries::{BatchEntry, EntryDecoder, EntryError, Format, MAGIC};
use bytes::Bytes;
use std::io::{self, Read};
use tokio::sync::mpsc;

/// Size of a read, in bytes.
const READ_BYTES: usize = 256 << 10;
/// Maximum number of chunks that wait for the consumer.
const CHUNKS_MAX: usize = 2;

/// Consecutive entries of a file.
pub(super) struct Chunk {
    /// Entries in order.
    pub(super) entries: Vec<BatchEntry>,
    /// Bytes of the file that were read so far.
    pub(super) bytes_read: u64,
    /// Number of entries that were skipped because their versions lie in the future.
    pub(super) skipped: u64,
}

/// Chunks of a file, up to its end or its first error.
pub(super) type Chunks = mpsc::Receiver<Result<Chunk, CtlError>>;

/// Starts to read. With `skip_future`, entries whose versions lie in the future are skipped.
pub(super) fn read(from: Box<dyn Read + Send>, name: String, skip_future: bool) -> Chunks {
    let (sender, chunks) = mpsc::channel(CHUNKS_MAX);
    let reader = Reader { from, name, skip_future, bytes_read: 0, sender };
    std::thread::spawn(move || reader.run());
    chunks
}

struct Reader {
    from: Box<dyn Read + Send>,
    name: String,
    skip_future: bool,
    bytes_read: u64,
    sender: mpsc::Sender<Result<Chunk, CtlError>>,
}

/// Reason why reading ends.
enum ReadEnd {
    Error(CtlError),
    ReceiverClosed,
}

/// State of the stream that is being read.
struct Stream {
    zstd: Option<ZstdDecoder>,
    /// Decoder, known once the first bytes were read.
    entries: Option<EntryDecoder>,
}

impl Reader {
    fn run(mut self) {
        if let Err(ReadEnd::Error(error)) = self.read_through() {
            // The consumer may be gone already.
            let _ = self.sender.blocking_send(Err(error));
        }
    }

    fn read_through(&mut self) -> Result<(), ReadEnd> {
        let mut piece = self.read_piece()?;
        if piece.starts_with(&GZIP_MAGIC) {
            return Err(self.damaged("it is compressed by gzip; decompress it first"));
        }
        if !piece.is_empty()
            && piece.len() < zstd_decoder::MAGIC.len()
            && zstd_decoder::MAGIC.starts_with(&piece)
        {
            return Err(self.damaged("it is cut short: it ends inside the first bytes of a zstd stream"));
        }
        let is_zstd = piece.starts_with(&zstd_decoder::MAGIC);
        let zstd =
            if is_zstd { Some(ZstdDecoder::new().map_err(|error| self.cannot_read(error))?) } else { None };
        let mut stream = Stream { zstd, entries: None };
        while !piece.is_empty() {
            self.pass(&mut stream, piece)?;
            piece = self.read_piece()?;
        }
        self.end(stream)
    }

    /// Reads the next piece; empty at the end of the file.
    fn read_piece(&mut self) -> Result<Bytes, ReadEnd> {
        let mut piece = Vec::with_capacity(READ_BYTES);
        let read = (&mut self.from).take(READ_BYTES as u64).read_to_end(&mut piece);
        self.bytes_read += read.map_err(|error| self.cannot_read(error))? as u64;
        Ok(piece.into())
    }

    fn pass(&mut self, stream: &mut Stream, piece: Bytes) -> Result<(), ReadEnd> {
        let Stream { zstd, entries } = stream;
        match zstd {
            None => self.decode(entries, piece),
            Some(zstd) => zstd
                .feed(&piece, |out| self.decode(entries, out.into()).map_err(ChunkError::ReadEnd))
                .map_err(|unfit| match unfit {
                    ChunkError::ReadEnd(stop) => stop,
                    ChunkError::Zstd(error) => self.damaged(format!("it cannot be decompressed: {error}")),
                }),
        }
    }

    fn decode(&self, entries: &mut Option<EntryDecoder>, piece: Bytes) -> Result<(), ReadEnd> {
        let entries = match entries {
            Some(entries) => entries,
            None => entries.insert(EntryDecoder::of_export(self.format_of(&piece)?, VALUE_BYTES_MAX)),
        };
        entries.feed(piece);
        let (mut chunk, mut skipped) = (Vec::new(), 0);
        let broken = loop {
            match entries.next() {
                Ok(Some(_)) if self.skip_future && is_in_future(entries.last_version()) => skipped += 1,
                Ok(Some(entry)) => chunk.push(entry),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        if !chunk.is_empty() || skipped > 0 {
            let chunk = Chunk { entries: chunk, bytes_read: self.bytes_read, skipped };
            self.sender.blocking_send(Ok(chunk)).map_err(|_| ReadEnd::ReceiverClosed)?;
        }
        broken.map_or(Ok(()), |error| Err(self.broken(&error)))
    }

    /// Format of a file, by its first bytes.
    fn format_of(&self, beginning: &[u8]) -> Result<Format, ReadEnd> {
        let magic = &MAGIC[..MAGIC.len().min(beginning.len())];
        if beginning.starts_with(magic) {
            return Ok(Format::Binary);
        }
        match beginning.trim_ascii_start().first() {
            Some(b'{') => Ok(Format::Ndjson),
            _ => Err(self.damaged(
                "its format is unknown: it is neither a binary export nor JSON lines, and neither of them compressed by \
                 zstd",
            )),
        }
    }

    fn end(&mut self, stream: Stream) -> Result<(), ReadEnd> {
        let Stream { zstd, entries } = stream;
        let ends_in_frame = !zstd.as_ref().is_none_or(ZstdDecoder::is_complete);
        let Some(mut entries) = entries else {
            return Err(self.damaged(match ends_in_frame {
                true => "it is cut short: it ends inside its first compressed frame, before any entry",
                false => "it is empty: it was cut short, or is an NDJSON export without entries",
            }));
        };
        match entries.end() {
            Err(error) => Err(self.broken(&error)),
            Ok(()) if !ends_in_frame => Ok(()),
            Ok(()) => Err(self.broken(&EntryError::CutShort { entries: entries.entries() })),
        }
    }

    fn broken(&self, error: &EntryError) -> ReadEnd {
        match error {
            EntryError::CutShort { entries } => {
                self.damaged(format!("it is cut short after {entries} entries"))
            }
            other => self.damaged(other.to_string()),
        }
    }

    fn damaged(&self, detail: impl Into<String>) -> ReadEnd {
        ReadEnd::Error(CtlError::damaged(self.name.as_ref(), detail))
    }

    fn cannot_read(&self, error: io::Error) -> ReadEnd {
        ReadEnd::Error(CtlError::io("read", self.name.as_ref())(error))
    }
}

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Reason why a compressed piece was not processed.
enum ChunkError {
    Zstd(io::Error),
    ReadEnd(ReadEnd),
}

impl From<io::Error> for ChunkError {
    fn from(error: io::Error) -> Self {
        Self::Zstd(error)
    }
}
