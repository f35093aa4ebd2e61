//! Bytes from clients: heads, targets, entries, and the results that clients read.

use super::{halves, split_number};
use api::entries::{
    BatchEntry, EntryDecoder, EntryEncoder, EntryError, EntryResult, Format, MAGIC, RESULTS_MAGIC,
    ResultDecoder,
};
use api::{HeadCheck, HeadLimits, HeadVerdict};
use bytes::Bytes;
use std::num::NonZeroU8;

const RULES: api::RequestRules =
    api::RequestRules { nodes: NonZeroU8::new(3).unwrap(), default_from: 3, value_bytes_max: 16 << 20 };
const VALUE_BYTES_MAX: usize = 64;
const HELD_BYTES_MAX: usize = (VALUE_BYTES_MAX + 8_192) * 4 / 3 + 200;

/// Decodes any method, target and headers as a request. The result is a command, or a problem with
/// its reason.
pub fn decode(bytes: &[u8]) {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let builder = http::Request::builder()
        .method(lines.next().unwrap_or_default())
        .uri(lines.next().unwrap_or_default());
    let builder = lines.fold(builder, |builder, line| match line.iter().position(|byte| *byte == b':') {
        Some(colon) => builder.header(&line[..colon], &line[colon + 1..]),
        None => builder,
    });
    if let Ok(request) = builder.body(()) {
        let _ = api::decode_head(&request.into_parts().0, &RULES);
    }
}

/// Requests of every kind.
pub fn decode_seeds() -> Vec<Vec<u8>> {
    let requests: [&str; 7] = [
        "PUT\n/v0/entity?id=a%20b&ack=2&from=3&ttl=60\nveche-version:1-2",
        "GET\n/v0/entity?id=key&ack=1\nrange:bytes=0-9\nif-range:\"x\"\nif-none-match:*",
        "DELETE\n/v0/entity?id=key",
        "GET\n/v0/entities?start=a&end=b&limit=10&local=1&keys=1\naccept:application/x-ndjson",
        "POST\n/v0/entities?results=errors&ack=1\ncontent-type:application/x-ndjson",
        "GET\n/v0/status",
        "POST\n/v0/checkpoint?name=one",
    ];
    requests.map(|request| request.as_bytes().to_vec()).to_vec()
}

/// Checks any bytes on a connection, split in two at any position: no panic, and the split changes
/// nothing.
pub fn head_check(bytes: &[u8]) {
    let (at, bytes) = split_number(bytes);
    assert_eq!(passed(&[bytes]), passed(&halves(bytes, at)));
}

/// Returns the bytes that pass of `pieces`, which arrive in order, and whether the rest was
/// refused.
fn passed(pieces: &[&[u8]]) -> (Vec<u8>, bool) {
    let mut check = HeadCheck::new(HeadLimits::default());
    let (mut waiting, mut passed) = (Vec::new(), Vec::new());
    for piece in pieces {
        waiting.extend_from_slice(piece);
        loop {
            match check.check(&waiting) {
                HeadVerdict::Pass(len) => passed.extend(waiting.drain(..len)),
                HeadVerdict::NeedMore => break,
                HeadVerdict::Refuse(_) => return (passed, true),
                HeadVerdict::Ended => return (passed, false),
            }
        }
    }
    (passed, false)
}

/// Requests with bodies of either framing, and pipelined ones.
pub fn head_check_seeds() -> Vec<Vec<u8>> {
    let streams: [&str; 3] = [
        "PUT /v0/entity?id=a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabcGET / HTTP/1.1\r\nhost: x\r\n\r\n",
        "POST /v0/entities HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nt: u\r\n\r\n",
        "GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n\r\n",
    ];
    streams.map(|stream| [&[20, 0], stream.as_bytes()].concat()).to_vec()
}

/// Decodes any bytes as a batch, split in two at any position.
///
/// It does not panic, the split changes nothing, and the decoder buffers at most one entry. Decoded
/// entries survive encoding and decoding. The binary format is tried with the bytes as they are,
/// and with the bytes as a payload with a correct checksum.
pub fn entries(bytes: &[u8]) {
    let (at, bytes) = split_number(bytes);
    let stream = stream_of(bytes);
    for (format, bytes) in [(Format::Ndjson, bytes), (Format::Binary, bytes), (Format::Binary, &stream)] {
        let whole = entries_of(format, &[bytes]);
        assert_eq!(whole, entries_of(format, &halves(bytes, at)));
        let again = written_again(format, &whole.0);
        assert_eq!(entries_of(format, &[&again]), (whole.0.clone(), whole.0.len() as u64, Ok(())));
    }
}

/// Decodes `pieces`, which arrive in order.
fn entries_of(format: Format, pieces: &[&[u8]]) -> (Vec<BatchEntry>, u64, Result<(), EntryError>) {
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

/// Entries in both formats, and a payload of the binary format.
pub fn entries_seeds() -> Vec<Vec<u8>> {
    let lines = "{\"id\":\"a\",\"value\":\"v\"}\n{\"id64\":\"YQ==\",\"value64\":\"dg==\",\"ttl\":5}\n{\"id\":\"b\",\"delete\":true}\n";
    let text = [&[9, 0], lines.as_bytes()].concat();
    let (parsed, ..) = entries_of(Format::Ndjson, &[lines.as_bytes()]);
    let binary = written_again(Format::Binary, &parsed);
    let payload = binary.get(MAGIC.len() + 8..).unwrap_or_default();
    vec![text, [&[9, 0], &binary[..]].concat(), [&[9, 0], payload].concat()]
}

/// Decodes any bytes as the results of a batch, split in two at any position: no panic, and the
/// split changes nothing.
pub fn results(bytes: &[u8]) {
    let (at, bytes) = split_number(bytes);
    let framed = [&RESULTS_MAGIC[..], bytes].concat();
    for (format, bytes) in [(Format::Ndjson, bytes), (Format::Binary, bytes), (Format::Binary, &framed)] {
        assert_eq!(results_of(format, &[bytes]), results_of(format, &halves(bytes, at)));
    }
}

/// Decodes `pieces`, which arrive in order.
fn results_of(format: Format, pieces: &[&[u8]]) -> (Vec<EntryResult>, Result<(), EntryError>) {
    ResultDecoder::decode_all(format, pieces.iter().map(|piece| Bytes::copy_from_slice(piece)))
}

/// Results as lines.
pub fn results_seeds() -> Vec<Vec<u8>> {
    let lines = "{\"status\":200,\"version\":\"1-1\"}\n{\"status\":504,\"detail\":\"x\"}\n{\"end\":true,\"entries\":2}\n";
    vec![[&[9, 0], lines.as_bytes()].concat(), vec![3, 0, 0, 1, 0, 0, 0, 200, 0, 0, 0, 0, 0]]
}
