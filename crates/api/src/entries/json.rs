//! Encoder and lexer for the subset of JSON that entries use.
//!
//! **Promise.** A string is decoded as it arrives, and at most the requested number of its bytes is
//! buffered. The rest of a longer string is skipped.
//!
//! **Caveats.** Numbers are whole and have no sign. `null` and arrays are not supported, since
//! entries have none.

use super::byte_queue::ByteQueue;
use super::decoder::EntryFault;

/// Number of bytes that are searched at once for bytes that need an escape.
const BLOCK_LEN: usize = 32;

/// Greatest length of a word or number, in bytes.
const WORD_LEN_MAX: usize = 20;

/// Appends a string in double quotes.
pub(super) fn put_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    loop {
        let plain = plain_len(rest);
        out.extend_from_slice(&rest[..plain]);
        let Some(byte) = rest.get(plain) else { break };
        put_escaped(out, *byte);
        rest = &rest[plain + 1..];
    }
    out.push(b'"');
}

fn put_escaped(out: &mut Vec<u8>, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    match byte {
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        b'\t' => out.extend_from_slice(b"\\t"),
        byte => {
            let [high, low] = [byte >> 4, byte & 0xf].map(|digit| HEX[usize::from(digit)]);
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
        }
    }
}

/// Length of the prefix without bytes that need an escape.
fn plain_len(bytes: &[u8]) -> usize {
    let is_special = |byte: &u8| (*byte == b'"') | (*byte == b'\\') | (*byte < b' ');
    // Whole blocks without a branch compile to vector instructions.
    let blocks = bytes.chunks_exact(BLOCK_LEN);
    let is_plain = |block: &&[u8]| !block.iter().fold(false, |any, byte| any | is_special(byte));
    let plain = blocks.take_while(is_plain).count() * BLOCK_LEN;
    plain + bytes[plain..].iter().position(is_special).unwrap_or(bytes.len() - plain)
}

/// A token of JSON.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum JsonToken {
    /// `{`
    Open,
    /// `}`
    Close,
    /// `:`
    Colon,
    /// `,`
    Comma,
    /// End of a line.
    LineEnd,
    /// A string; `None` if it is longer than the requested length.
    String(Option<String>),
    /// A number.
    Number(u64),
    /// `true` or `false`.
    Bool(bool),
}

/// Splits a stream of JSON into tokens as it arrives.
#[derive(Debug, Default)]
pub(super) struct Lexer {
    state: State,
    /// Decoded bytes of the unfinished string, or characters of the unfinished word or number.
    text: Vec<u8>,
    /// Whether the string is longer than the requested length.
    is_too_long: bool,
    /// High surrogate of a character whose low surrogate must follow.
    high_surrogate: Option<u16>,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Between,
    String,
    Escape,
    /// Inside `\uXXXX`: the number of digits so far, and their value.
    Unicode(u8, u16),
    Word,
}

impl Lexer {
    /// Whether no byte of the next token has arrived.
    pub(super) const fn is_between(&self) -> bool {
        matches!(self.state, State::Between)
    }

    /// Length of the unfinished token, in bytes.
    pub(super) const fn held_bytes(&self) -> usize {
        self.text.len()
    }

    /// Returns the next token once it is complete. Strings are limited to `string_bytes_max` bytes.
    pub(super) fn next(
        &mut self,
        pieces: &mut ByteQueue,
        string_bytes_max: usize,
    ) -> Result<Option<JsonToken>, EntryFault> {
        while let Some(&byte) = pieces.front().first() {
            let token = match self.state {
                State::Between => self.begin(byte, pieces)?,
                State::String => self.string(pieces, string_bytes_max)?,
                State::Escape => self.escape(byte, pieces, string_bytes_max)?,
                State::Unicode(digits, number) => {
                    self.unicode(digits, number, byte, pieces, string_bytes_max)?
                }
                State::Word => self.word(byte, pieces)?,
            };
            if token.is_some() {
                return Ok(token);
            }
        }
        Ok(None)
    }

    fn begin(&mut self, byte: u8, pieces: &mut ByteQueue) -> Result<Option<JsonToken>, EntryFault> {
        let token = match byte {
            b' ' | b'\t' | b'\r' => None,
            b'{' => Some(JsonToken::Open),
            b'}' => Some(JsonToken::Close),
            b':' => Some(JsonToken::Colon),
            b',' => Some(JsonToken::Comma),
            b'\n' => Some(JsonToken::LineEnd),
            b'"' => {
                self.state = State::String;
                None
            }
            b'a'..=b'z' | b'0'..=b'9' | b'-' => {
                self.state = State::Word;
                return Ok(None);
            }
            b'[' => return Err("it has an array, and no field of an entry is one".into()),
            _ => return Err("it is not JSON".into()),
        };
        pieces.advance(1);
        Ok(token)
    }

    fn string(&mut self, pieces: &mut ByteQueue, bytes_max: usize) -> Result<Option<JsonToken>, EntryFault> {
        let front = pieces.front();
        let plain = plain_len(front);
        let end = front.get(plain).copied();
        if plain > 0 {
            self.push(&front[..plain], bytes_max)?;
        }
        pieces.advance(plain + usize::from(end.is_some()));
        match end {
            None => Ok(None),
            Some(b'"') => self.end_string().map(Some),
            Some(b'\\') => {
                self.state = State::Escape;
                Ok(None)
            }
            Some(b'\n') => Err("its line ends inside a string".into()),
            Some(_) => Err("a string has a control character that is not escaped".into()),
        }
    }

    fn end_string(&mut self) -> Result<JsonToken, EntryFault> {
        self.expect_no_high_surrogate()?;
        self.state = State::Between;
        let text = std::mem::take(&mut self.text);
        if std::mem::take(&mut self.is_too_long) {
            return Ok(JsonToken::String(None));
        }
        let text = String::from_utf8(text).map_err(|_| "a string is not UTF-8; write bytes in base64")?;
        Ok(JsonToken::String(Some(text)))
    }

    fn escape(
        &mut self,
        byte: u8,
        pieces: &mut ByteQueue,
        bytes_max: usize,
    ) -> Result<Option<JsonToken>, EntryFault> {
        pieces.advance(1);
        self.state = State::String;
        let character = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                self.state = State::Unicode(0, 0);
                return Ok(None);
            }
            _ => return Err("a string has a backslash that escapes nothing".into()),
        };
        self.push(&[character], bytes_max).map(|()| None)
    }

    fn unicode(
        &mut self,
        digits: u8,
        number: u16,
        byte: u8,
        pieces: &mut ByteQueue,
        bytes_max: usize,
    ) -> Result<Option<JsonToken>, EntryFault> {
        let digit = char::from(byte).to_digit(16).ok_or("\\u stands before something else than 4 digits")?;
        pieces.advance(1);
        let number = number << 4 | digit as u16;
        if digits < 3 {
            self.state = State::Unicode(digits + 1, number);
            return Ok(None);
        }
        self.state = State::String;
        let character = match (self.high_surrogate.take(), number) {
            (None, 0xd800..=0xdbff) => {
                self.high_surrogate = Some(number);
                return Ok(None);
            }
            (Some(high), 0xdc00..=0xdfff) => {
                char::from_u32(0x1_0000 + (u32::from(high - 0xd800) << 10) + u32::from(number - 0xdc00))
            }
            (None, _) => char::from_u32(u32::from(number)),
            (Some(_), _) => None,
        };
        let character = character.ok_or(HALF_A_CHARACTER)?;
        self.push(character.encode_utf8(&mut [0; 4]).as_bytes(), bytes_max).map(|()| None)
    }

    fn push(&mut self, bytes: &[u8], bytes_max: usize) -> Result<(), EntryFault> {
        self.expect_no_high_surrogate()?;
        if self.is_too_long || self.text.len() + bytes.len() > bytes_max {
            self.is_too_long = true;
            self.text = Vec::new();
        } else {
            self.text.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn expect_no_high_surrogate(&self) -> Result<(), EntryFault> {
        if self.high_surrogate.is_some() { Err(HALF_A_CHARACTER) } else { Ok(()) }
    }

    /// Reads a word or number, which ends before another character. No object ends with one.
    fn word(&mut self, byte: u8, pieces: &mut ByteQueue) -> Result<Option<JsonToken>, EntryFault> {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'-') {
            if self.text.len() == WORD_LEN_MAX {
                let is_number = self.text.iter().all(u8::is_ascii_digit) && byte.is_ascii_digit();
                return Err(if is_number { LARGE_NUMBER } else { NO_NUMBER });
            }
            self.text.push(byte);
            pieces.advance(1);
            return Ok(None);
        }
        self.state = State::Between;
        let word = std::mem::take(&mut self.text);
        match &word[..] {
            b"true" => Ok(Some(JsonToken::Bool(true))),
            b"false" => Ok(Some(JsonToken::Bool(false))),
            b"null" => Err("it has a null, which is no value of any field: leave the field out".into()),
            [b'0', _, ..] => Err(NO_NUMBER),
            digits if digits.iter().all(u8::is_ascii_digit) => {
                let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
                number.map(JsonToken::Number).map(Some).ok_or(LARGE_NUMBER)
            }
            _ => Err(NO_NUMBER),
        }
    }
}

const HALF_A_CHARACTER: EntryFault = EntryFault::of("a string has half of a character beyond 16 bits");
const NO_NUMBER: EntryFault =
    EntryFault::of("it has a value that is neither true, false, nor a whole number");
const LARGE_NUMBER: EntryFault =
    EntryFault::of("it has a number that is too large: the most is 18446744073709551615");

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn string_of(json: &[u8], bytes_max: usize) -> Result<Option<JsonToken>, EntryFault> {
        let mut pieces = ByteQueue::default();
        json.chunks(3).for_each(|piece| pieces.feed(Bytes::copy_from_slice(piece)));
        Lexer::default().next(&mut pieces, bytes_max)
    }

    proptest! {
        #[test]
        fn strings_agree_with_serde_json(text: String, blocks in "[a-z\"\\\\\n\u{1}é]{0,100}") {
            for text in [text, blocks] {
                let mut written = Vec::new();
                put_string(&mut written, &text);
                prop_assert_eq!(serde_json::from_slice::<String>(&written).expect("JSON"), text.clone());
                prop_assert_eq!(string_of(&written, text.len()), Ok(Some(JsonToken::String(Some(text.clone())))));
                let theirs = serde_json::to_vec(&text).expect("a string");
                prop_assert_eq!(string_of(&theirs, text.len()), Ok(Some(JsonToken::String(Some(text.clone())))));
                if let Some(less) = text.len().checked_sub(1) {
                    prop_assert_eq!(string_of(&theirs, less), Ok(Some(JsonToken::String(None))));
                }
            }
        }

        #[test]
        fn strings_that_serde_json_refuses_are_refused(json in "\"([ -~é\n\u{1}]|\\\\u[dD][89a-fA-F][0-9]{2}|\\\\u00[0-9a-f]{2}){0,12}\"") {
            let mut stream = serde_json::Deserializer::from_str(&json).into_iter::<String>();
            let first = stream.next();
            match (first, string_of(json.as_bytes(), 1_000)) {
                (Some(Ok(text)), Ok(Some(JsonToken::String(Some(ours))))) => prop_assert_eq!(text, ours),
                (Some(Err(_)), Err(_)) => {}
                (Some(Err(error)), Ok(None)) if error.is_eof() => {}
                (first, ours) => prop_assert!(false, "{json}: {first:?}, {ours:?}"),
            }
        }
    }

    #[test]
    fn words_and_numbers_are_exact() {
        let token = |text: &str| {
            let mut pieces = ByteQueue::default();
            pieces.feed(Bytes::copy_from_slice(text.as_bytes()));
            Lexer::default().next(&mut pieces, 0)
        };
        assert_eq!(token("true}"), Ok(Some(JsonToken::Bool(true))));
        assert_eq!(token("0,"), Ok(Some(JsonToken::Number(0))));
        assert_eq!(token("18446744073709551615 "), Ok(Some(JsonToken::Number(u64::MAX))));
        assert_eq!(token("12"), Ok(None), "more digits may follow");
        for bad in
            ["18446744073709551616 ", "01 ", "1.5 ", "1e3 ", "null ", "True ", "-1 ", "nope ", "[", "'"]
        {
            assert!(token(bad).is_err(), "{bad}");
        }
        for large in ["18446744073709551616 ", "99999999999999999999 ", "999999999999999999999999 "] {
            assert_eq!(token(large), Err(LARGE_NUMBER), "{large}");
        }
        assert_eq!(token("99999999999999999999.5 "), Err(NO_NUMBER));
    }
}
