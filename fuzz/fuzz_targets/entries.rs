//! Any bytes as a batch, split in two anywhere: no panic, the split changes nothing, no more is held than one entry,
//! and what was understood survives being written and read again. Of the binary format once as they are, once as a
//! payload, past its checksum.
#![no_main]

use api::entries::{BatchEntry, EntryDecoder, EntryEncoder, EntryError, Format, MAGIC};
use bytes::Bytes;

const VALUE_BYTES_MAX: usize = 64;
const HELD_BYTES_MAX: usize = (VALUE_BYTES_MAX + 8_192) * 4 / 3 + 200;

/// What comes of `pieces` that come one after the other.
fn entries(format: Format, pieces: &[&[u8]]) -> (Vec<BatchEntry>, u64, Result<(), EntryError>) {
    let mut decoder = EntryDecoder::new(format, VALUE_BYTES_MAX);
    let mut entries = Vec::new();
    for piece in pieces {
        decoder.feed(Bytes::copy_from_slice(piece));
        loop {
            match decoder.next() {
                Ok(Some(entry)) => entries.push(entry),
                Ok(None) => break,
                Err(error) if !error.is_final() => {}
                Err(error) => return (entries, decoder.entries(), Err(error)),
            }
        }
        assert!(decoder.held_bytes() <= HELD_BYTES_MAX);
    }
    let end = decoder.end();
    (entries, decoder.entries(), end)
}

fn written_again(format: Format, entries: &[BatchEntry]) -> Vec<u8> {
    let (mut encoder, mut out) = (EntryEncoder::new(format), Vec::new());
    entries.iter().for_each(|entry| encoder.put_batch_entry(entry, &mut out));
    encoder.end(&mut out);
    out
}

fn stream_of(payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_le_bytes();
    [&MAGIC[..], &len, &crc_fast::crc32_iscsi(payload).to_le_bytes(), payload].concat()
}

libfuzzer_sys::fuzz_target!(|input: (u16, &[u8])| {
    let (at, bytes) = input;
    let stream = stream_of(bytes);
    for (format, bytes) in [(Format::Ndjson, bytes), (Format::Binary, bytes), (Format::Binary, &stream)] {
        let (head, tail) = bytes.split_at(usize::from(at).min(bytes.len()));
        let whole = entries(format, &[bytes]);
        assert_eq!(whole, entries(format, &[head, tail]));
        let again = written_again(format, &whole.0);
        assert_eq!(entries(format, &[&again]), (whole.0.clone(), whole.0.len() as u64, Ok(())));
    }
});
