//! Entries are decoded as they were encoded, independent of the pieces of the stream. Malformed
//! streams are errors, and decoders buffer at most one entry.

#![allow(clippy::disallowed_methods, reason = "the pinned files are what is tested")]

use api::entries::{
    BatchAction, BatchEntry, EntryDecoder, EntryEncoder, EntryError, EntryResult, Format, MAGIC,
    RESULTS_MAGIC, ResultDecoder, ResultEncoder, ResultScope,
};
use bytes::Bytes;
use cluster::{Key, Lifetime, Page, PageBuilder};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use std::path::PathBuf;
use std::time::Duration;
use stdx::{Cell, CellMeta, Hlc, NodeTag, Version, WallTime};

const VALUE_BYTES_MAX: usize = 1_000;
const FORMATS: [Format; 2] = [Format::Ndjson, Format::Binary];

fn key(bytes: &[u8]) -> Key {
    Key::new(Bytes::copy_from_slice(bytes)).unwrap()
}

fn version(number: u64) -> Version {
    Version::new(Hlc::from_bits(0x0102_0304_0506_0700 + number), NodeTag(0x1112_1314_1516_1718))
}

fn until_ms(millis: u64) -> WallTime {
    WallTime::from_micros_since_unix_epoch(millis * 1_000)
}

fn put(key_bytes: &[u8], value: impl Into<Bytes>) -> BatchEntry {
    let action = BatchAction::Put { value: value.into(), lifetime: Lifetime::Forever };
    BatchEntry { key: key(key_bytes), action }
}

fn delete(key_bytes: &[u8]) -> BatchEntry {
    BatchEntry { key: key(key_bytes), action: BatchAction::Delete }
}

fn encode_batch(format: Format, entries: &[BatchEntry]) -> Vec<u8> {
    let (mut encoder, mut out) = (EntryEncoder::new(format), Vec::new());
    entries.iter().for_each(|entry| encoder.put_batch_entry(entry, &mut out));
    encoder.end(&mut out);
    out
}

/// Decodes pieces in order: entries, with those that were too large as `None`, and the end of the
/// stream.
fn decode_pieces<'a>(
    mut decoder: EntryDecoder,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Option<BatchEntry>>, Result<(), EntryError>) {
    let mut entries = Vec::new();
    for piece in pieces {
        decoder.feed(Bytes::copy_from_slice(piece));
        loop {
            match decoder.next() {
                Ok(Some(entry)) => entries.push(Some(entry)),
                Ok(None) => break,
                Err(EntryError::TooLarge { entry, .. }) => {
                    entries.push(None);
                    assert_eq!(entry, entries.len() as u64);
                }
                Err(error) => {
                    assert_eq!(decoder.next(), Err(error.clone()), "a final error repeats");
                    return (entries, Err(error));
                }
            }
        }
        // The bound is a key, a value and the rest of a record; base64 adds a third.
        assert!(decoder.held_bytes() <= (VALUE_BYTES_MAX + Key::LEN_MAX) * 4 / 3 + 200);
    }
    (entries, decoder.end())
}

fn decode(format: Format, bytes: &[u8]) -> (Vec<Option<BatchEntry>>, Result<(), EntryError>) {
    decode_pieces(EntryDecoder::new(format, VALUE_BYTES_MAX), [bytes])
}

/// Entries of a well-formed stream.
fn entries_of(format: Format, bytes: &[u8]) -> Vec<BatchEntry> {
    let (entries, end) = decode(format, bytes);
    assert_eq!(end, Ok(()));
    entries.into_iter().map(|entry| entry.expect("not too large")).collect()
}

fn json(text: &str) -> (Vec<Option<BatchEntry>>, Result<(), EntryError>) {
    decode(Format::Ndjson, text.as_bytes())
}

/// Detail of the error of a malformed line.
fn fault_of(line: &str) -> String {
    match json(&format!("{line}\n")).1 {
        Err(EntryError::Malformed { entry: 1, detail }) => detail.into_owned(),
        other => panic!("{line}: {other:?}"),
    }
}

/// Bytes that may be UTF-8 or not.
fn any_bytes(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), len.clone()),
        vec(prop_oneof![Just(b'\n'), Just(b'"'), Just(b'\\'), Just(0), b'a'..=b'z'], len.clone()),
        vec(any::<char>(), len).prop_map(|chars| chars.into_iter().collect::<String>().into_bytes()),
    ]
}

fn any_lifetime() -> impl Strategy<Value = Lifetime> {
    prop_oneof![
        Just(Lifetime::Forever),
        (1_u64..).prop_map(|millis| Lifetime::For(Duration::from_millis(millis))),
        (0..u64::MAX / 1_000).prop_map(|millis| Lifetime::Until(until_ms(millis))),
    ]
}

fn any_entry() -> impl Strategy<Value = BatchEntry> {
    let any_key = any_bytes(1..30).prop_map(|bytes| key(&bytes));
    let action = prop_oneof![
        4 => (any_bytes(0..200), any_lifetime())
            .prop_map(|(value, lifetime)| BatchAction::Put { value: value.into(), lifetime }),
        1 => Just(BatchAction::Delete),
    ];
    (any_key, action).prop_map(|(key, action)| BatchEntry { key, action })
}

fn any_page() -> impl Strategy<Value = Page> {
    let cell = (any_bytes(0..200), option::of(0..u64::MAX / 1_000), any::<u64>());
    btree_map(any_bytes(1..30), cell, 0..20).prop_map(|entries| {
        let mut builder = PageBuilder::default();
        for (key, (value, expires_at, number)) in entries {
            let expires_at = expires_at.map(until_ms);
            let meta = CellMeta { expires_at, ..CellMeta::value(version(number >> 8), 3) };
            builder.push(&key, Cell { meta, value: value.into() }.as_ref());
        }
        builder.finish()
    })
}

/// Writes that copy a page.
fn copy_of(page: &Page) -> Vec<BatchEntry> {
    let copy = |at| {
        let cell = page.cell(at);
        let lifetime = cell.meta.expires_at.map_or(Lifetime::Forever, Lifetime::Until);
        BatchEntry { key: page.key(at), action: BatchAction::Put { value: cell.value, lifetime } }
    };
    (0..page.len()).map(copy).collect()
}

proptest! {
    #[test]
    fn batches_are_decoded_as_encoded_in_any_pieces(
        entries in vec(any_entry(), 0..20),
        piece in 1_usize..300,
    ) {
        for format in FORMATS {
            let bytes = encode_batch(format, &entries);
            let decoder = EntryDecoder::new(format, VALUE_BYTES_MAX);
            let (arrived, end) = decode_pieces(decoder, bytes.chunks(piece));
            prop_assert_eq!(end, Ok(()));
            let expected: Vec<_> = entries.iter().cloned().map(Some).collect();
            prop_assert_eq!(arrived, expected);
        }
    }

    #[test]
    fn an_export_can_be_imported(page in any_page(), piece in 1_usize..300) {
        for format in FORMATS {
            let (mut encoder, mut bytes) = (EntryEncoder::new(format), Vec::new());
            encoder.put_page(&page, &mut bytes);
            encoder.end(&mut bytes);
            let decoder = EntryDecoder::of_export(format, VALUE_BYTES_MAX);
            let (arrived, end) = decode_pieces(decoder, bytes.chunks(piece));
            prop_assert_eq!(end, Ok(()));
            let expected: Vec<_> = copy_of(&page).into_iter().map(Some).collect();
            prop_assert_eq!(arrived, expected);
        }
    }

    #[test]
    fn each_line_of_an_export_is_json_with_the_fields_of_the_entry(page in any_page()) {
        let mut bytes = Vec::new();
        EntryEncoder::new(Format::Ndjson).put_page(&page, &mut bytes);
        let text = String::from_utf8(bytes).expect("JSON is UTF-8");
        prop_assert_eq!(text.lines().count(), page.len());
        for (line, entry) in text.lines().zip(page.entries()) {
            let object: serde_json::Value = serde_json::from_str(line).expect("JSON");
            prop_assert_eq!(object["version"].as_str(), Some(&entry.cell.meta.version.to_string()[..]));
            let millis = entry.cell.meta.expires_at.map(|at| at.micros_since_unix_epoch() / 1_000);
            prop_assert_eq!(object["expires_at"].as_u64(), millis);
            for (name, bytes) in [("key", entry.key), ("value", entry.cell.value)] {
                let encoding = object[format!("{name}_encoding")].as_str();
                prop_assert_eq!(encoding, std::str::from_utf8(bytes).err().map(|_| "base64"));
                if encoding.is_none() {
                    prop_assert_eq!(object[name].as_str().map(str::as_bytes), Some(bytes));
                }
            }
        }
    }

    #[test]
    fn bytes_of_any_origin_are_entries_or_an_error(
        bytes in vec(any::<u8>(), 0..400),
        text in "([{}:,\"\n\\\\ ]|\"key\"|\"value\"|\"delete\"|true|\"ttl\"|[0-9]{1,3}|\\\\u[dD]8[0-9]{2}|[a-z])*",
        piece in 1_usize..50,
    ) {
        let framed = [&MAGIC[..], &bytes].concat();
        for (format, bytes) in [
            (Format::Binary, &bytes[..]),
            (Format::Binary, &framed),
            (Format::Ndjson, &bytes),
            (Format::Ndjson, text.as_bytes()),
        ] {
            let in_pieces = decode_pieces(EntryDecoder::new(format, VALUE_BYTES_MAX), bytes.chunks(piece));
            prop_assert_eq!(in_pieces, decode_pieces(EntryDecoder::new(format, VALUE_BYTES_MAX), [bytes]));
        }
    }

    #[test]
    fn a_flipped_bit_of_the_binary_format_is_never_another_entry(
        entries in vec(any_entry(), 1..6),
        bit: prop::sample::Index,
    ) {
        let mut bytes = encode_batch(Format::Binary, &entries);
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let decoder = EntryDecoder::of_export(Format::Binary, VALUE_BYTES_MAX);
        let (arrived, end) = decode_pieces(decoder, [&bytes[..]]);
        prop_assert!(end.is_err());
        let arrived: Vec<_> = arrived.into_iter().flatten().collect();
        prop_assert!(entries.starts_with(&arrived), "bit {}", bit);
    }
}

#[test]
fn an_export_that_is_truncated_anywhere_is_not_complete() {
    let entries = [put(b"a", "1"), delete(b"b"), put(b"c", "3")];
    let bytes = encode_batch(Format::Binary, &entries);
    for end in 0..bytes.len() {
        let decoder = EntryDecoder::of_export(Format::Binary, VALUE_BYTES_MAX);
        let (arrived, result) = decode_pieces(decoder, [&bytes[..end]]);
        assert_eq!(result, Err(EntryError::CutShort { entries: arrived.len() as u64 }), "{end}");
    }
}

#[test]
fn a_batch_may_end_behind_any_entry() {
    assert_eq!(decode(Format::Binary, b""), (vec![], Ok(())));
    assert_eq!(decode(Format::Ndjson, b""), (vec![], Ok(())));
    let mut bytes = Vec::new();
    let mut encoder = EntryEncoder::new(Format::Binary);
    encoder.put_batch_entry(&put(b"a", "1"), &mut bytes);
    assert_eq!(entries_of(Format::Binary, &bytes), [put(b"a", "1")]);
    bytes.pop();
    assert_eq!(decode(Format::Binary, &bytes).1, Err(EntryError::CutShort { entries: 0 }));
    assert_eq!(json("{\"key\":\"a\",\"delete\":true}").1, Ok(()), "the end of the last line may be missing");
    assert_eq!(json("{\"key\":\"a\",\"delete\":true").1, Err(EntryError::CutShort { entries: 0 }));
}

#[test]
fn values_of_a_binary_batch_are_slices_of_the_fed_pieces() {
    let bytes = Bytes::from(encode_batch(Format::Binary, &[put(b"a", vec![1; 900])]));
    let mut decoder = EntryDecoder::new(Format::Binary, VALUE_BYTES_MAX);
    decoder.feed(bytes.clone());
    let Ok(Some(BatchEntry { action: BatchAction::Put { value, .. }, .. })) = decoder.next() else {
        panic!("an entry was fed");
    };
    assert!(bytes.as_ptr_range().contains(&value.as_ptr()));
}

#[test]
fn only_a_value_that_is_too_large_is_skipped() {
    let fits = vec![b'v'; VALUE_BYTES_MAX];
    for (format, too_large) in [
        (Format::Binary, vec![b'v'; VALUE_BYTES_MAX + 1]),
        (Format::Binary, vec![b'v'; 1_000_000]),
        (Format::Ndjson, vec![b'v'; VALUE_BYTES_MAX + 1]),
        (Format::Ndjson, vec![0xff; VALUE_BYTES_MAX + 1]),
        (Format::Ndjson, vec![0; 200_000]),
        (Format::Ndjson, vec![b'v'; 1_000_000]),
    ] {
        let entries = [
            put(b"a", fits.clone()),
            put(b"b", too_large),
            put(b"c", vec![0xff; VALUE_BYTES_MAX]),
            delete(b"d"),
        ];
        let bytes = encode_batch(format, &entries);
        let (arrived, end) = decode_pieces(EntryDecoder::new(format, VALUE_BYTES_MAX), bytes.chunks(1_000));
        assert_eq!(end, Ok(()), "the end counts those that were too large");
        let [a, _, c, d] = entries.map(Some);
        assert!(arrived == [a, None, c, d], "{format:?}");
    }
}

#[test]
fn damage_of_a_skipped_value_is_found() {
    let mut bytes = encode_batch(Format::Binary, &[put(b"a", vec![1; 100_000]), put(b"b", "2")]);
    bytes[50_000] ^= 1;
    let (arrived, end) = decode_pieces(EntryDecoder::new(Format::Binary, VALUE_BYTES_MAX), bytes.chunks(999));
    assert_eq!(arrived, []);
    assert!(matches!(end, Err(EntryError::Malformed { entry: 1, .. })), "{end:?}");
}

#[test]
fn a_value_of_escapes_takes_no_more_memory_than_its_length() {
    let entry = put(b"a", vec![0; VALUE_BYTES_MAX]);
    let bytes = encode_batch(Format::Ndjson, std::slice::from_ref(&entry));
    assert!(bytes.len() > 6 * VALUE_BYTES_MAX);
    let decoder = EntryDecoder::new(Format::Ndjson, VALUE_BYTES_MAX);
    assert_eq!(decode_pieces(decoder, bytes.chunks(100)), (vec![Some(entry)], Ok(())));
}

#[test]
fn entries_in_json_are_understood_as_people_write_them() {
    let until =
        BatchAction::Put { value: "1".into(), lifetime: Lifetime::Until(until_ms(1_800_000_000_000)) };
    let lived = BatchAction::Put { value: "1".into(), lifetime: Lifetime::For(Duration::from_millis(5)) };
    let entry = |action| BatchEntry { key: key(b"a"), action };
    for (line, expected) in [
        (r#"{"key":"a","value":""}"#, put(b"a", "")),
        (r#" { "value" : "1" , "key" : "a" } "#, put(b"a", "1")),
        (r#"{"key":"a","delete":true}"#, delete(b"a")),
        (r#"{"key":"a","value":"1","delete":false}"#, put(b"a", "1")),
        (r#"{"key":"a","value":"1","ttl":5}"#, entry(lived)),
        (r#"{"key":"a","value":"1","expires_at":1800000000000,"version":"x"}"#, entry(until)),
        (r#"{"key":"a","delete":true,"version":"x"}"#, delete(b"a")),
        (r#"{"key":"/w==","key_encoding":"base64","value":"\u00fc\ud83d\ude00\n"}"#, put(b"\xff", "ü😀\n")),
        (r#"{"value_encoding":"base64","value":"AAE=","key":"ключ"}"#, put("ключ".as_bytes(), vec![0, 1])),
    ] {
        for text in [format!("{line}\n"), format!("\n{line}\r\n\n \n"), line.to_owned()] {
            assert_eq!(
                entries_of(Format::Ndjson, text.as_bytes()),
                std::slice::from_ref(&expected),
                "{line}"
            );
        }
    }
}

#[test]
fn the_error_of_a_malformed_line_describes_the_fault() {
    for (line, says) in [
        ("{}", "no key"),
        (r#"{"key":"a"}"#, "neither a value"),
        (r#"{"key":"a","delete":false}"#, "neither a value"),
        (r#"{"value":"1"}"#, "no key"),
        (r#"{"key":"","value":"1"}"#, "at least 1 byte"),
        (r#"{"key":"a","value":"1","delete":true}"#, "has a value"),
        (r#"{"key":"a","delete":true,"ttl":1}"#, "lifetime"),
        (r#"{"key":"a","value":"1","ttl":0}"#, "least is 1"),
        (r#"{"key":"a","value":"1","ttl":1,"expires_at":1}"#, "both"),
        (r#"{"key":"a","value":"1","ttl":-1}"#, "whole number"),
        (r#"{"key":"a","value":"1","ttl":1.5}"#, "whole number"),
        (r#"{"key":"a","value":"1","ttl":"1"}"#, "milliseconds"),
        (r#"{"key":"a","value":1}"#, "are strings"),
        (r#"{"key":"a","value":{}}"#, "are strings"),
        (r#"{"key":"a","value":null}"#, "null"),
        (r#"{"key":"a","value":[]}"#, "array"),
        (r#"{"key":"a","delete":1}"#, "true or false"),
        (r#"{"key":"a","key":"a"}"#, "twice"),
        (r#"{"key":"a","valeu":"1"}"#, "valeu"),
        (r#"{"key":"a","value":"1",}"#, "not a JSON object"),
        (r#"{"key" "a"}"#, "not a JSON object"),
        (r#"["key"]"#, "begin with {"),
        (r#""key""#, "begin with {"),
        (r#"{"key":"a","value":"/w","value_encoding":"base64"}"#, "base64"),
        (r#"{"key":"a","value":"/w==","value_encoding":"hex"}"#, "base64"),
        (r#"{"key":"a"#, "ends inside a string"),
        (r#"{"key":"a","#, "ends before"),
        ("{\"key\":\"a\tb\"}", "control character"),
        (r#"{"key":"\ud800"}"#, "half"),
        (r#"{"key":"\ud800a"}"#, "half"),
        (r#"{"key":"\udc00"}"#, "half"),
        (r#"{"key":"\x"}"#, "escapes nothing"),
        (r#"{"key":"\u12g4"}"#, "digits"),
        ("null", "its line does not begin with {: each line is one JSON object"),
        ("[]", "its line does not begin with {"),
        (r#"{"key":"a","value":null}"#, "leave the field out"),
    ] {
        let detail = fault_of(line);
        assert!(detail.contains(says), "{line}: {detail}");
    }
    assert!(
        fault_of(&format!(r#"{{"key":"{}","value":""}}"#, "k".repeat(Key::LEN_MAX + 1))).contains("8192")
    );
    assert!(fault_of(&format!(r#"{{"key":"{}","value":""}}"#, "k".repeat(20_000))).contains("8192"));
    assert!(decode(Format::Ndjson, b"{\"key\":\"\xff\"}\n").1.is_err());
}

#[test]
fn the_error_of_a_bad_base64_text_is_one_sentence_that_shows_the_character() {
    for (text, says) in [
        ("a!==", "it has '!' at byte 1"),
        ("ab\u{436}=", "it has '\u{436}' at byte 2"),
        ("/x==", "its last character has bits beyond the last byte"),
        ("/w", "it does not end with the right number of ="),
        ("abcde", "its length is not that of base64"),
    ] {
        let detail = fault_of(&format!(r#"{{"key":"a","value":"{text}","value_encoding":"base64"}}"#));
        assert_eq!(detail, format!("its base64 is invalid: {says}"), "{text}");
    }
}

#[test]
fn entries_before_a_malformed_line_are_decoded() {
    let (arrived, end) =
        json("{\"key\":\"a\",\"delete\":true}\n\nnot JSON\n{\"key\":\"b\",\"delete\":true}\n");
    assert_eq!(arrived, [Some(delete(b"a"))]);
    let error = end.expect_err("the second is none");
    assert!(error.is_final() && error.status() == 400);
    assert!(error.to_problem().detail().starts_with("Entry 2 is malformed"));
    for behind in ["{\"key\":\"b\",\"delete\":true}", "}", ","] {
        let (arrived, end) = json(&format!("{{\"key\":\"a\",\"delete\":true}} {behind}\n"));
        assert_eq!((arrived.len(), end.is_err()), (1, true), "{behind}");
    }
}

/// A stream of one record with this payload and a correct checksum.
fn stream_of(payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_le_bytes();
    let crc = crc_fast::crc32_iscsi(payload).to_le_bytes();
    [&MAGIC[..], &len, &crc, payload].concat()
}

#[test]
fn malformed_records_are_refused() {
    for (payload, says) in [
        (&[][..], "ends inside"),
        (&[1, 0, 1], "ends inside"),
        (&[1, 0, 2, 0, b'k'], "ends inside"),
        (&[1, 1, 1, 0, b'k'], "ends inside"),
        (&[1, 0, 0, 0], "at least 1 byte"),
        (&[1, 8, 1, 0, b'k'], "unknown flag bits"),
        (&[1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'k'], "ttl is 0"),
        (&[1, 3, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'k'], "both"),
        (&[2, 0, 1, 0, b'k', b'v'], "has a value"),
        (&[2, 2, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, b'k'], "lifetime"),
        (&[3, 0, 1, 0, b'k'], "kind 3"),
        (&[0xff, 0, 0, 0], "end record"),
        (&[0xff, 1, 0, 0, 0, 0, 0, 0, 0], "counts 1 entries"),
    ] {
        match decode(Format::Binary, &stream_of(payload)).1 {
            Err(EntryError::Malformed { entry: 1, detail }) => {
                assert!(detail.contains(says), "{payload:?}: {detail}");
            }
            other => panic!("{payload:?}: {other:?}"),
        }
    }
    let too_long = [&[1, 0, 0xff, 0xff][..], &vec![b'k'; 0xffff]].concat();
    assert_eq!(decode(Format::Binary, &stream_of(&too_long)).1, Ok(()), "too large, whichever bytes it has");
    assert!(decode(Format::Binary, b"VECHEEN2").1.is_err());
    let behind_the_end = [&encode_batch(Format::Binary, &[])[..], &[0]].concat();
    assert!(decode(Format::Binary, &behind_the_end).1.is_err());
}

/// Contents of a pinned file. With `UPDATE` set, writes `written` to it first.
fn pinned(name: &str, written: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/formats").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, written).unwrap();
    }
    std::fs::read(path).unwrap()
}

/// A page with text, bytes and an expiry.
fn pinned_page() -> Page {
    let mut builder = PageBuilder::default();
    builder.push(b"a\n\"b\"", Cell::value(version(1), 3, "line\nline".into()).as_ref());
    let expiring =
        CellMeta { expires_at: Some(until_ms(1_800_000_000_000)), ..CellMeta::value(version(2), 1) };
    builder.push(b"c", Cell { meta: expiring, value: Bytes::new() }.as_ref());
    builder.push(b"\xff\x00", Cell::value(version(3), 3, Bytes::from_static(b"\x00\xfe")).as_ref());
    builder.finish()
}

fn pinned_batch() -> Vec<BatchEntry> {
    let lived = Lifetime::For(Duration::from_millis(1_500));
    let until = Lifetime::Until(until_ms(1_800_000_000_000));
    vec![
        put(b"a", "ü\t1"),
        BatchEntry { key: key(b"b"), action: BatchAction::Put { value: "2".into(), lifetime: lived } },
        BatchEntry { key: key(b"c"), action: BatchAction::Put { value: "3".into(), lifetime: until } },
        delete(b"\xff"),
    ]
}

#[test]
fn the_bytes_of_version_1_are_read_and_written() {
    for (format, name) in [(Format::Ndjson, "ndjson"), (Format::Binary, "bin")] {
        let batch = encode_batch(format, &pinned_batch());
        let bytes = pinned(&format!("batch-v1.{name}"), &batch);
        assert_eq!(entries_of(format, &bytes), pinned_batch());
        assert!(bytes == batch, "other bytes are written than were released");

        let (mut encoder, mut export) = (EntryEncoder::new(format), Vec::new());
        encoder.put_page(&pinned_page(), &mut export);
        encoder.end(&mut export);
        let bytes = pinned(&format!("export-v1.{name}"), &export);
        assert_eq!(entries_of(format, &bytes), copy_of(&pinned_page()));
        assert!(bytes == export, "other bytes are written than were released");

        let results = encode_results(format, &pinned_results());
        let bytes = pinned(&format!("results-v1.{name}"), &results);
        assert_eq!(decode_results(format, [&bytes[..]]), (pinned_results(), Ok(())));
        assert!(bytes == results, "other bytes are written than were released");
    }
}

#[test]
fn lines_are_the_bytes_of_the_page() {
    let mut out = Vec::new();
    let mut encoder = EntryEncoder::new(Format::Lines);
    encoder.put_page(&pinned_page(), &mut out);
    pinned_page().entries().for_each(|entry| encoder.put(entry, &mut out));
    encoder.end(&mut out);
    assert_eq!(out, [&pinned_page().bytes()[..]; 2].concat());
    assert_eq!(encoder.entries(), 6);
}

fn pinned_results() -> Vec<EntryResult> {
    let done = |is_delete, superseded| EntryResult::Done { is_delete, version: version(9), superseded };
    let failed = |status: u16, detail: &'static str, retry_after_secs| EntryResult::Failed {
        status: status.try_into().unwrap(),
        detail: detail.into(),
        retry_after_secs,
    };
    vec![
        done(false, false),
        done(false, true),
        done(true, false),
        failed(413, "The value is \"large\".", None),
        failed(503, "Später.", Some(30)),
    ]
}

fn encode_results(format: Format, results: &[EntryResult]) -> Vec<u8> {
    let (mut encoder, mut out) = (ResultEncoder::new(format, ResultScope::All), Vec::new());
    results.iter().for_each(|result| encoder.put(result, &mut out));
    encoder.end(&mut out);
    out
}

#[test]
fn a_list_of_failures_has_entry_numbers_and_a_count() {
    let (mut encoder, mut out) = (ResultEncoder::new(Format::Ndjson, ResultScope::Errors), Vec::new());
    pinned_results().iter().for_each(|result| encoder.put(result, &mut out));
    encoder.end(&mut out);
    let lines = "{\"entry\":4,\"status\":413,\"detail\":\"The value is \\\"large\\\".\"}\n\
                 {\"entry\":5,\"status\":503,\"detail\":\"Später.\",\"retry_after\":30}\n\
                 {\"entries\":5,\"failed\":2}\n";
    assert_eq!(String::from_utf8(out).expect("text"), lines);
}

fn decode_results<'a>(
    format: Format,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<EntryResult>, Result<(), EntryError>) {
    ResultDecoder::decode_all(format, pieces.into_iter().map(Bytes::copy_from_slice))
}

fn any_result() -> impl Strategy<Value = EntryResult> {
    prop_oneof![
        any::<(bool, u64, bool)>().prop_map(|(is_delete, number, superseded)| EntryResult::Done {
            is_delete,
            version: version(number >> 8),
            superseded
        }),
        (400_u16..600, ".{0,80}", option::of(1_u32..)).prop_map(|(status, detail, retry_after_secs)| {
            EntryResult::Failed {
                status: status.try_into().unwrap(),
                detail: detail.into(),
                retry_after_secs,
            }
        }),
    ]
}

proptest! {
    #[test]
    fn results_are_decoded_as_encoded_in_any_pieces(
        results in vec(any_result(), 0..30),
        piece in 1_usize..100,
    ) {
        for format in FORMATS {
            let bytes = encode_results(format, &results);
            prop_assert_eq!(decode_results(format, bytes.chunks(piece)), (results.clone(), Ok(())));
        }
    }

    #[test]
    fn bytes_of_any_origin_are_results_or_an_error(bytes in vec(any::<u8>(), 0..300), piece in 1_usize..50) {
        let framed = [&RESULTS_MAGIC[..], &bytes].concat();
        for (format, bytes) in
            [(Format::Binary, &bytes), (Format::Binary, &framed), (Format::Ndjson, &bytes)]
        {
            prop_assert_eq!(decode_results(format, bytes.chunks(piece)), decode_results(format, [&bytes[..]]));
        }
    }
}

#[test]
fn truncated_results_are_not_complete() {
    let bytes = encode_results(Format::Binary, &pinned_results());
    for end in 0..bytes.len() {
        let (results, result) = decode_results(Format::Binary, [&bytes[..end]]);
        assert_eq!(result, Err(EntryError::CutShort { entries: results.len() as u64 }), "{end}");
    }
    let last = bytes.len() - 8;
    let miscounted = [&bytes[..last], &[4], &bytes[last + 1..]].concat();
    assert!(decode_results(Format::Binary, [&miscounted[..]]).1.is_err(), "one was lost");
    assert!(decode_results(Format::Binary, [&bytes[..], &[0]]).1.is_err(), "bytes follow the end");
    let line = b"{\"status\":201,\"version\"";
    assert_eq!(decode_results(Format::Ndjson, [&line[..]]).1, Err(EntryError::CutShort { entries: 0 }));
    let endless = vec![b' '; 100_000];
    assert!(decode_results(Format::Ndjson, endless.chunks(1_000)).1.is_err());
}

#[test]
fn an_expiry_that_is_too_late_for_the_clock_is_encoded_as_it_was_decoded() {
    for millis in [u64::MAX, u64::MAX / 1_000, u64::MAX / 1_000 + 1] {
        let line = format!("{{\"key\":\"k\",\"value\":\"v\",\"expires_at\":{millis}}}\n");
        let decoder = || EntryDecoder::new(Format::Ndjson, VALUE_BYTES_MAX);
        let (decoded, end) = decode_pieces(decoder(), [line.as_bytes()]);
        assert_eq!(end, Ok(()));
        let entries: Vec<BatchEntry> = decoded.into_iter().flatten().collect();
        let again = encode_batch(Format::Ndjson, &entries);
        let (decoded_again, end) = decode_pieces(decoder(), [again.as_slice()]);
        assert_eq!((decoded_again, end), (vec![Some(entries[0].clone())], Ok(())));
    }
}
