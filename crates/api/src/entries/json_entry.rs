//! Entries as JSON objects, one on each line.
//!
//! `{"key":"a","value":"1","version":"<32 hexadecimal digits>","expires_at":<ms>}` is a value, and
//! `{"key":"a","delete":true}` is a delete. Bytes that are not UTF-8 are written in base64, which
//! `key_encoding` and `value_encoding` then state. A batch may have `ttl` instead of `expires_at`.
//! Batches ignore the version, so an export can be imported.

use super::binary::{Attributes, lifetime_of};
use super::byte_queue::ByteQueue;
use super::decoder::EntryFault;
use super::json::{JsonToken, Lexer, put_string};
use super::{BatchAction, BatchEntry};
use crate::encode::version_digits;
use base64::DecodeError;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use cluster::Key;
use stdx::Version;

/// Value of the fields `key_encoding` and `value_encoding`.
const BASE64: &str = "base64";
/// Bound of the length of field names, versions and encodings, in bytes. It is greater than any of
/// them.
const NAME_BYTES_MAX: usize = 64;

/// Appends a value as a line.
pub(super) fn put_json_value(out: &mut Vec<u8>, key: &[u8], attributes: Attributes, value: &[u8]) {
    out.reserve(key.len() + value.len() + 128);
    out.push(b'{');
    put_bytes(out, "key", key);
    out.push(b',');
    put_bytes(out, "value", value);
    put_attributes(out, attributes);
}

/// Appends the key of a value as a line.
pub(super) fn put_json_key(out: &mut Vec<u8>, key: &[u8], attributes: Attributes) {
    out.reserve(key.len() + 128);
    out.push(b'{');
    put_bytes(out, "key", key);
    put_attributes(out, attributes);
}

/// Appends the attributes of an entry, and the end of its line.
fn put_attributes(out: &mut Vec<u8>, attributes: Attributes) {
    if let Some(version) = attributes.version {
        out.extend_from_slice(b",\"version\":\"");
        out.extend_from_slice(&version_digits(version));
        out.push(b'"');
    }
    for (name, number) in [("expires_at", attributes.expires_at_ms), ("ttl", attributes.ttl_ms)] {
        if let Some(number) = number {
            out.extend_from_slice(format!(",\"{name}\":{number}").as_bytes());
        }
    }
    out.extend_from_slice(b"}\n");
}

/// Appends a delete as a line.
pub(super) fn put_json_delete(out: &mut Vec<u8>, key: &[u8]) {
    out.push(b'{');
    put_bytes(out, "key", key);
    out.extend_from_slice(b",\"delete\":true}\n");
}

/// Appends a field with bytes, and its encoding if it needs one.
fn put_bytes(out: &mut Vec<u8>, name: &str, bytes: &[u8]) {
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    if let Ok(text) = std::str::from_utf8(bytes) {
        return put_string(out, text);
    }
    out.push(b'"');
    let begin = out.len();
    out.resize(begin + bytes.len().div_ceil(3) * 4, 0);
    let written =
        BASE64_STANDARD.encode_slice(bytes, &mut out[begin..]).expect("4 characters for each 3 bytes");
    debug_assert_eq!(begin + written, out.len());
    out.extend_from_slice(b"\",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"_encoding\":\"base64\"");
}

/// Length of `bytes_max` bytes in base64.
const fn base64_len(bytes_max: usize) -> usize {
    bytes_max.div_ceil(3) * 4
}

const NO_OBJECT: EntryFault = EntryFault::of(
    "its line does not begin with {: each line is one JSON object, such as {\"key\":\"a\",\"value\":\"1\"}",
);

/// A field of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Key,
    KeyEncoding,
    Value,
    ValueEncoding,
    Version,
    ExpiresAt,
    Ttl,
    Delete,
}

impl Field {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "key" => Self::Key,
            "key_encoding" => Self::KeyEncoding,
            "value" => Self::Value,
            "value_encoding" => Self::ValueEncoding,
            "version" => Self::Version,
            "expires_at" => Self::ExpiresAt,
            "ttl" => Self::Ttl,
            "delete" => Self::Delete,
            _ => return None,
        })
    }
}

/// Decoder of the JSON format.
#[derive(Debug)]
pub(super) struct JsonReader {
    value_bytes_max: usize,
    lexer: Lexer,
    state: State,
    fields: Fields,
    last_version: Option<Version>,
}

/// Expected token.
#[derive(Clone, Copy, Debug)]
enum State {
    Entry,
    FirstField,
    NextField,
    Colon(Field),
    Value(Field),
    Comma,
    LineEnd,
}

/// Fields of an unfinished entry. A text is `Some(None)` if it is longer than allowed.
#[derive(Debug, Default)]
struct Fields {
    seen: u8,
    key: Option<Option<String>>,
    key_is_base64: bool,
    value: Option<Option<String>>,
    value_is_base64: bool,
    expires_at_ms: Option<u64>,
    ttl_ms: Option<u64>,
    is_delete: bool,
    version: Option<Version>,
}

impl JsonReader {
    pub(super) fn new(value_bytes_max: usize) -> Self {
        let (lexer, fields) = (Lexer::default(), Fields::default());
        Self { value_bytes_max, lexer, state: State::Entry, fields, last_version: None }
    }

    /// Whether the stream may end here. The last line may lack its line feed.
    pub(super) const fn is_between_entries(&self) -> bool {
        matches!(self.state, State::Entry | State::LineEnd) && self.lexer.is_between()
    }

    /// Version of the last entry, if it had one.
    pub(super) const fn last_version(&self) -> Option<Version> {
        self.last_version
    }

    /// Length of the unfinished entry, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        let texts = [&self.fields.key, &self.fields.value].into_iter().flatten().flatten();
        self.lexer.held_bytes() + texts.map(String::len).sum::<usize>()
    }

    pub(super) fn next(&mut self, pieces: &mut ByteQueue) -> Result<Option<BatchEntry>, EntryFault> {
        loop {
            let string_bytes_max = match self.state {
                State::Value(Field::Key) => base64_len(Key::LEN_MAX),
                State::Value(Field::Value) => base64_len(self.value_bytes_max),
                _ => NAME_BYTES_MAX,
            };
            let token = match (self.lexer.next(pieces, string_bytes_max), self.state) {
                (Err(_), State::Entry) => return Err(NO_OBJECT),
                (token, _) => token?,
            };
            let Some(token) = token else { return Ok(None) };
            if let Some(entry) = self.take(token)? {
                return Ok(Some(entry));
            }
        }
    }

    /// Handles a token. Returns the entry that it completes.
    fn take(&mut self, token: JsonToken) -> Result<Option<BatchEntry>, EntryFault> {
        self.state = match (self.state, token) {
            (State::Entry | State::LineEnd, JsonToken::LineEnd) => State::Entry,
            (State::Entry, JsonToken::Open) => State::FirstField,
            (State::Entry, _) => return Err(NO_OBJECT),
            (State::LineEnd, _) => return Err("it stands on the line of the entry before it".into()),
            (_, JsonToken::LineEnd) => return Err("its line ends before the object does".into()),
            (State::FirstField | State::NextField, JsonToken::String(name)) => {
                State::Colon(field_of(name.as_deref())?)
            }
            (State::Colon(field), JsonToken::Colon) => State::Value(field),
            (State::Value(field), token) => {
                self.fields.set(field, token)?;
                State::Comma
            }
            (State::Comma, JsonToken::Comma) => State::NextField,
            (State::FirstField | State::Comma, JsonToken::Close) => {
                self.state = State::LineEnd;
                let fields = std::mem::take(&mut self.fields);
                self.last_version = fields.version;
                return fields.into_entry(self.value_bytes_max).map(Some);
            }
            _ => return Err("it is not a JSON object".into()),
        };
        Ok(None)
    }
}

fn field_of(name: Option<&str>) -> Result<Field, EntryFault> {
    name.and_then(Field::of).ok_or_else(|| {
        let name = name.unwrap_or("of so long a name");
        EntryFault::malformed(format!(
            "it has no field {name:?}; there are key, value, delete, ttl, expires_at, version, key_encoding, \
             value_encoding"
        ))
    })
}

impl Fields {
    fn set(&mut self, field: Field, token: JsonToken) -> Result<(), EntryFault> {
        let bit = 1 << field as u8;
        if self.seen & bit != 0 {
            return Err("it has a field twice".into());
        }
        self.seen |= bit;
        match (field, token) {
            (Field::Key, JsonToken::String(text)) => self.key = Some(text),
            (Field::Value, JsonToken::String(text)) => self.value = Some(text),
            (Field::KeyEncoding, JsonToken::String(name)) => self.key_is_base64 = is_base64(name.as_deref())?,
            (Field::ValueEncoding, JsonToken::String(name)) => {
                self.value_is_base64 = is_base64(name.as_deref())?;
            }
            (Field::Version, JsonToken::String(text)) => {
                self.version = text.and_then(|text| text.parse().ok());
            }
            (Field::ExpiresAt, JsonToken::Number(millis)) => self.expires_at_ms = Some(millis),
            (Field::Ttl, JsonToken::Number(millis)) => self.ttl_ms = Some(millis),
            (Field::Delete, JsonToken::Bool(is_delete)) => self.is_delete = is_delete,
            (Field::Key | Field::Value | Field::KeyEncoding | Field::ValueEncoding | Field::Version, _) => {
                return Err("key, value, their encodings and version are strings".into());
            }
            (Field::ExpiresAt | Field::Ttl, _) => {
                return Err("expires_at and ttl are whole numbers of milliseconds".into());
            }
            (Field::Delete, _) => return Err("delete is true or false".into()),
        }
        Ok(())
    }

    fn into_entry(self, value_bytes_max: usize) -> Result<BatchEntry, EntryFault> {
        let key = self.key.ok_or("it has no key")?;
        let key = key
            .ok_or_else(|| EntryFault::malformed(format!("its key is longer than {} bytes", Key::LEN_MAX)))?;
        let key = Key::new(bytes_of(key, self.key_is_base64)?);
        let key = key.map_err(|error| EntryFault::malformed(error.to_string()))?;
        let action = match (self.value, self.is_delete) {
            (None, true) if self.expires_at_ms.is_some() || self.ttl_ms.is_some() => {
                return Err("a delete has a lifetime".into());
            }
            (None, true) => BatchAction::Delete,
            (Some(_), true) => return Err("a delete has a value".into()),
            (None, false) => return Err("it has neither a value nor \"delete\":true".into()),
            (Some(value), false) => {
                let lifetime = lifetime_of(self.expires_at_ms, self.ttl_ms)?;
                let value = bytes_of(value.ok_or(EntryFault::TooLarge)?, self.value_is_base64)?;
                if value.len() > value_bytes_max {
                    return Err(EntryFault::TooLarge);
                }
                BatchAction::Put { value, lifetime }
            }
        };
        Ok(BatchEntry { key, action })
    }
}

fn is_base64(name: Option<&str>) -> Result<bool, EntryFault> {
    match name {
        Some(BASE64) => Ok(true),
        _ => Err("the only encoding is base64".into()),
    }
}

fn bytes_of(text: String, is_base64: bool) -> Result<Bytes, EntryFault> {
    match is_base64 {
        false => Ok(text.into()),
        true => match BASE64_STANDARD.decode(&text) {
            Ok(bytes) => Ok(bytes.into()),
            Err(error) => {
                let reason = reason_of(&error, &text);
                Err(EntryFault::malformed(format!("its base64 is invalid: {reason}")))
            }
        },
    }
}

/// The reason why `text` is not base64. [`DecodeError`] shows a character as a number.
fn reason_of(error: &DecodeError, text: &str) -> String {
    match error {
        DecodeError::InvalidByte(offset, _) => {
            let character = text.get(*offset..).and_then(|rest| rest.chars().next());
            format!("it has {:?} at byte {offset}", character.unwrap_or(char::REPLACEMENT_CHARACTER))
        }
        DecodeError::InvalidLastSymbol { .. } => {
            "its last character has bits beyond the last byte".to_owned()
        }
        DecodeError::InvalidLength(_) => "its length is not that of base64".to_owned(),
        DecodeError::InvalidPadding => "it does not end with the right number of =".to_owned(),
    }
}
