//! Chunked bodies: sizes, extensions, data, trailers (RFC 9112, section 7.1).

use super::Step;
use super::head::{self, BODY_BYTES_MAX};
use super::line_scanner::LineScanner;
use crate::Problem;
use http::StatusCode;
use httparse::{EMPTY_HEADER, Status};

/// Greatest number of digits of a chunk size, with leading zeros.
const SIZE_DIGITS_MAX: u8 = 64;
/// Greatest total length of the extensions of all chunks of a body, in bytes. hyper's limit is less
/// than twice as large.
const EXTENSION_BYTES_MAX: u32 = 8 << 10;
/// Greatest length of the trailers of a body, in bytes. hyper's limit is less than twice as large.
const TRAILER_BYTES_MAX: usize = 8 << 10;
/// Greatest number of trailer lines of a body.
const TRAILERS_MAX: usize = 32;

/// Position in a chunked body.
#[derive(Debug, Default)]
pub(super) struct Chunked {
    state: ChunkState,
    extension_bytes: u32,
}

#[derive(Debug)]
enum ChunkState {
    /// In the size.
    Size { digits: u8, size: u64 },
    /// In an extension after the size.
    Extension { size: u64 },
    /// After the CR of a size line.
    SizeLf { size: u64 },
    /// In the data, of which `left` bytes are missing, at least 1.
    Data { left: u64 },
    /// After the data.
    DataCr,
    /// After the CR that follows the data.
    DataLf,
    /// After the last chunk.
    Trailers(LineScanner),
}

impl Default for ChunkState {
    fn default() -> Self {
        Self::Size { digits: 0, size: 0 }
    }
}

impl Chunked {
    /// Number of bytes that the current chunk still announces.
    pub(super) const fn announced_bytes(&self) -> u64 {
        match self.state {
            ChunkState::Extension { size } | ChunkState::SizeLf { size } => size,
            ChunkState::Data { left } => left,
            _ => 0,
        }
    }

    /// Passes as many waiting bytes as are well-formed.
    pub(super) fn step(&mut self, waiting: &[u8]) -> Result<Step, Problem> {
        let mut passed = 0;
        while let Some(&byte) = waiting.get(passed) {
            match &mut self.state {
                ChunkState::Trailers(_) if passed > 0 => break,
                ChunkState::Trailers(lines) => return find_trailers(lines, waiting),
                ChunkState::Data { left } => {
                    let len = ((waiting.len() - passed) as u64).min(*left);
                    *left -= len;
                    passed += len as usize;
                    if *left == 0 {
                        self.state = ChunkState::DataCr;
                    }
                }
                _ => match self.step_byte(byte) {
                    Ok(()) => passed += 1,
                    Err(problem) if passed == 0 => return Err(problem),
                    Err(_) => break,
                },
            }
        }
        Ok(Step::Pass(passed))
    }

    fn step_byte(&mut self, byte: u8) -> Result<(), Problem> {
        self.state = match (&self.state, byte) {
            (&ChunkState::Size { digits, size }, byte) if byte.is_ascii_hexdigit() => {
                next_digit(digits, size, byte)?
            }
            (&ChunkState::Size { digits: 1.., size }, b'\r') => ChunkState::SizeLf { size },
            (&ChunkState::Size { digits: 1.., size }, b';') => ChunkState::Extension { size },
            (&ChunkState::Extension { size }, b'\r') => ChunkState::SizeLf { size },
            (&ChunkState::Extension { size }, b'\t' | b' '..=0x7e | 0x80..) => {
                self.extension_bytes += 1;
                if self.extension_bytes > EXTENSION_BYTES_MAX {
                    return Err(malformed("chunk extensions that are too long"));
                }
                ChunkState::Extension { size }
            }
            (ChunkState::SizeLf { size: 0 }, b'\n') => ChunkState::Trailers(LineScanner::default()),
            (&ChunkState::SizeLf { size }, b'\n') => ChunkState::Data { left: size },
            (ChunkState::DataCr, b'\r') => ChunkState::DataLf,
            (ChunkState::DataLf, b'\n') => ChunkState::default(),
            (ChunkState::Size { .. }, _) => {
                return Err(malformed("a chunk size that is not a hexadecimal number"));
            }
            (ChunkState::Extension { .. }, _) => {
                return Err(malformed("a control character in a chunk extension"));
            }
            (ChunkState::SizeLf { .. } | ChunkState::DataCr | ChunkState::DataLf, _) => {
                return Err(malformed("a chunk that does not end in CR LF where its size says"));
            }
            (ChunkState::Data { .. } | ChunkState::Trailers(_), _) => {
                unreachable!("data and trailers are not read byte by byte")
            }
        };
        Ok(())
    }
}

fn next_digit(digits: u8, size: u64, byte: u8) -> Result<ChunkState, Problem> {
    if digits == SIZE_DIGITS_MAX {
        return Err(malformed("a chunk size with too many digits"));
    }
    let digit = u64::from(char::from(byte).to_digit(16).expect("a hexadecimal digit"));
    match size.checked_mul(16).map(|size| size + digit) {
        Some(size) if size <= BODY_BYTES_MAX => Ok(ChunkState::Size { digits: digits + 1, size }),
        _ => Err(head::body_too_large()),
    }
}

/// Passes the trailers once they are complete.
fn find_trailers(lines: &mut LineScanner, waiting: &[u8]) -> Result<Step, Problem> {
    if waiting.starts_with(b"\r\n") {
        return Ok(Step::End(2));
    }
    let window = &waiting[..waiting.len().min(TRAILER_BYTES_MAX)];
    match lines.find_end(window, 0)? {
        Some(end) => check_trailers(&window[..end]).map(|()| Step::End(end)),
        None if waiting.len() > window.len() => Err(trailers_too_large()),
        None => Ok(Step::NeedMore),
    }
}

fn check_trailers(trailers: &[u8]) -> Result<(), Problem> {
    let mut headers = [EMPTY_HEADER; TRAILERS_MAX];
    let headers = match httparse::parse_headers(trailers, &mut headers) {
        Ok(Status::Complete((len, headers))) if len == trailers.len() => headers,
        Err(httparse::Error::TooManyHeaders) => return Err(trailers_too_large()),
        Ok(_) | Err(_) => return Err(malformed("a malformed trailer")),
    };
    let frames = |name: &str| {
        ["content-length", "transfer-encoding", "host"].iter().any(|known| name.eq_ignore_ascii_case(known))
    };
    if headers.iter().any(|header| frames(header.name)) {
        return Err(malformed("a trailer that belongs to the head"));
    }
    Ok(())
}

fn malformed(what: &str) -> Problem {
    Problem::bad_request(format!(
        "The body has {what}. Nothing was stored. Send well-formed chunks, or a Content-Length."
    ))
}

fn trailers_too_large() -> Problem {
    Problem::new(
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        "The body has too many or too long trailers. Nothing was stored. Send none.",
    )
}
