//! Measures the cost of encoding and decoding an entry in each format.

use api::entries::{
    BatchAction, BatchEntry, EntryDecoder, EntryEncoder, EntryResult, Format, ResultEncoder, ResultScope,
};
use bytes::Bytes;
use cluster::{Key, Lifetime, PageBuilder};
use std::hint::black_box;
#[expect(clippy::disallowed_types, reason = "time is what is measured")]
use std::time::Instant;
use stdx::{Cell, Hlc, NodeTag, Version};

const ROUNDS: usize = 200;
const ENTRIES: usize = 1_000;
/// Number of bytes that a socket delivers at once.
const PIECE: usize = 64 << 10;

fn main() {
    println!("{:<34} {:>8} {:>8}", "ns per entry", "encode", "decode");
    for (what, value) in [
        ("100 bytes", vec![b'v'; 100]),
        ("1 KiB of text", b"The quick brown fox ".iter().copied().cycle().take(1_024).collect()),
        ("1 KiB of lines", b"The quick brown fox\n".iter().copied().cycle().take(1_024).collect()),
        ("1 KiB that is not text", vec![0xfe; 1_024]),
    ] {
        for format in [Format::Binary, Format::Ndjson] {
            let (encode, bytes) = encode(format, &value);
            println!("{what:<25} {:<8} {encode:>8.1} {:>8.1}", format!("{format:?}"), decode(format, &bytes));
        }
    }
    for format in [Format::Binary, Format::Ndjson] {
        println!("{:<25} {:<8} {:>8.1}", "result", format!("{format:?}"), results(format));
    }
}

/// Cost of encoding the entries of a page, and a batch with the same entries.
fn encode(format: Format, value: &[u8]) -> (f64, Bytes) {
    let version = Version::new(Hlc::from_bits(1), NodeTag(1));
    let mut page = PageBuilder::default();
    let mut batch = (EntryEncoder::new(format), Vec::new());
    for number in 0..ENTRIES {
        let key = Bytes::from(format!("key{number:08}"));
        page.push(&key, Cell::value(version, 3, Bytes::copy_from_slice(value)).as_ref());
        let action = BatchAction::Put { value: Bytes::copy_from_slice(value), lifetime: Lifetime::Forever };
        let entry = BatchEntry { key: Key::new(key).expect("a short key"), action };
        batch.0.put_batch_entry(&entry, &mut batch.1);
    }
    let page = page.finish();
    let mut out = Vec::new();
    let cost = best(|| {
        out.clear();
        EntryEncoder::new(format).put_page(black_box(&page), &mut out);
    });
    (cost, batch.1.into())
}

fn decode(format: Format, bytes: &Bytes) -> f64 {
    best(|| {
        let mut decoder = EntryDecoder::new(format, 1 << 20);
        for begin in (0..bytes.len()).step_by(PIECE) {
            decoder.feed(bytes.slice(begin..bytes.len().min(begin + PIECE)));
            while let Some(entry) = decoder.next().expect("entries") {
                black_box(entry);
            }
        }
        assert_eq!(decoder.entries(), ENTRIES as u64);
    })
}

fn results(format: Format) -> f64 {
    let version = Version::new(Hlc::from_bits(1), NodeTag(1));
    let result = EntryResult::Done { is_delete: false, version, superseded: false };
    let mut out = Vec::new();
    best(|| {
        out.clear();
        let mut encoder = ResultEncoder::new(format, ResultScope::All);
        (0..ENTRIES).for_each(|_| encoder.put(black_box(&result), &mut out));
    })
}

#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "time is what is measured")]
fn best(mut round: impl FnMut()) -> f64 {
    let cost = |_| {
        let begin = Instant::now();
        round();
        begin.elapsed().as_nanos() as f64 / ENTRIES as f64
    };
    (0..ROUNDS).map(cost).fold(f64::MAX, f64::min)
}
