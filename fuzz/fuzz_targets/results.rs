//! Any bytes as the results of a batch, split in two anywhere: no panic, and the split changes nothing.
#![no_main]

use api::entries::{EntryError, EntryResult, Format, RESULTS_MAGIC, ResultDecoder};
use bytes::Bytes;

/// What comes of `pieces` that come one after the other.
fn results(format: Format, pieces: &[&[u8]]) -> (Vec<EntryResult>, Result<(), EntryError>) {
    let mut decoder = ResultDecoder::new(format);
    let mut results = Vec::new();
    for piece in pieces {
        decoder.feed(Bytes::copy_from_slice(piece));
        loop {
            match decoder.next() {
                Ok(Some(result)) => results.push(result),
                Ok(None) => break,
                Err(error) => return (results, Err(error)),
            }
        }
    }
    let end = decoder.end();
    (results, end)
}

libfuzzer_sys::fuzz_target!(|input: (u16, &[u8])| {
    let (at, bytes) = input;
    let framed = [&RESULTS_MAGIC[..], bytes].concat();
    for (format, bytes) in [(Format::Ndjson, bytes), (Format::Binary, bytes), (Format::Binary, &framed)] {
        let (head, tail) = bytes.split_at(usize::from(at).min(bytes.len()));
        assert_eq!(results(format, &[bytes]), results(format, &[head, tail]));
    }
});
