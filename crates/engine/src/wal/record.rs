//! Records: encoded batches of cells.
//!
//! **Promise.** A record is replayed completely or not at all, and only if its bytes are those that
//! were sealed.
//!
//! **Mechanism.** A [`RecordBuilder`] encodes each cell once, behind space for a header that
//! [`seal`] fills in: checksum, length, and number of cells. The log writes the sealed bytes
//! unchanged. [`decode`] verifies the checksum of bytes from disk and walks every cell, so that a
//! second walk cannot fail.
//!
//! **Caveats.** A record does not contain its position: an old record at the right offset would be
//! accepted. The header of its group, with a digest over the checksums of the records, excludes
//! that.
//!
//! [`seal`]: RecordBuilder::seal

use super::checksum::crc32c;
use stdx::codec::{Reader, Truncated, put_varint, put_version, varint_len};
use stdx::{CellKind, CellMeta, CellRef, Version, WallTime};

/// Length of a record header in bytes: checksum, length of the cells, number of cells.
pub const RECORD_HEADER_LEN: usize = 12;

/// Greatest length of a record, in bytes. It fits into the length field with a margin.
pub const RECORD_BYTES_MAX: usize = 1 << 31;

/// Offset of the checksummed bytes, behind the checksum.
const CHECKED_FROM: usize = 4;

const FLAG_TOMBSTONE: u8 = 1 << 0;
const FLAG_EXPIRES: u8 = 1 << 1;

/// A record under construction.
#[derive(Debug, Default)]
pub struct RecordBuilder {
    /// Empty until the first cell; then the space of the header, and the cells.
    bytes: Vec<u8>,
    cells: u32,
    data_bytes: u64,
}

impl RecordBuilder {
    /// Adds a cell of `key`.
    ///
    /// # Panics
    /// When the record would exceed [`RECORD_BYTES_MAX`], which [`RecordBuilder::has_room_for`]
    /// checks.
    pub fn push(&mut self, key: &[u8], cell: CellRef<'_>) {
        let len = self.bytes() + encoded_len(key, cell);
        assert!(len <= RECORD_BYTES_MAX, "a record of {len} bytes exceeds the greatest length");
        self.bytes.reserve(len - self.bytes.len());
        self.begin();
        put_cell(&mut self.bytes, key, cell);
        self.cells += 1;
        self.data_bytes += (key.len() + cell.value.len()) as u64;
    }

    /// Whether the record stays within [`RECORD_BYTES_MAX`] with this cell.
    pub fn has_room_for(&self, key: &[u8], cell: CellRef<'_>) -> bool {
        self.bytes() + encoded_len(key, cell) <= RECORD_BYTES_MAX
    }

    /// Number of cells so far.
    pub fn cells(&self) -> usize {
        self.cells as usize
    }

    /// Encoded length so far, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len().max(RECORD_HEADER_LEN)
    }

    /// Completes the record.
    pub fn seal(mut self) -> Record {
        self.begin();
        let length = (self.bytes.len() - RECORD_HEADER_LEN) as u32;
        self.bytes[4..8].copy_from_slice(&length.to_le_bytes());
        self.bytes[8..12].copy_from_slice(&self.cells.to_le_bytes());
        let crc = crc32c(&self.bytes[CHECKED_FROM..]);
        self.bytes[..4].copy_from_slice(&crc.to_le_bytes());
        Record { bytes: self.bytes, cells: self.cells, data_bytes: self.data_bytes }
    }

    fn begin(&mut self) {
        if self.bytes.is_empty() {
            self.bytes.extend_from_slice(&[0; RECORD_HEADER_LEN]);
        }
    }
}

/// A sealed record.
#[derive(Debug)]
pub struct Record {
    bytes: Vec<u8>,
    cells: u32,
    data_bytes: u64,
}

impl Record {
    /// The checksum in the header.
    pub(super) fn crc(&self) -> u32 {
        u32::from_le_bytes(*self.bytes.first_chunk().expect("a sealed record has a header"))
    }

    /// The encoded record: header and cells.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of cells.
    pub fn cells(&self) -> usize {
        self.cells as usize
    }

    /// Total length of the keys and values, in bytes.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// The cells, in the order in which they were pushed.
    pub fn iter(&self) -> RecordCells<'_> {
        RecordCells { rest: Reader::new(&self.bytes[RECORD_HEADER_LEN..]), cells: self.cells }
    }
}

impl<'a> IntoIterator for &'a Record {
    type Item = (&'a [u8], CellRef<'a>);
    type IntoIter = RecordCells<'a>;

    fn into_iter(self) -> RecordCells<'a> {
        self.iter()
    }
}

/// Iterator over the keys and cells of a record that was sealed, or verified by [`decode`].
#[derive(Clone, Debug)]
pub struct RecordCells<'a> {
    rest: Reader<'a>,
    cells: u32,
}

impl<'a> Iterator for RecordCells<'a> {
    type Item = (&'a [u8], CellRef<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.cells = self.cells.checked_sub(1)?;
        Some(take_cell(&mut self.rest).expect("the cells of a record are verified before they are iterated"))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.cells as usize, Some(self.cells as usize))
    }
}

impl ExactSizeIterator for RecordCells<'_> {}

/// A record that was decoded from bytes.
#[derive(Clone, Debug)]
pub struct Decoded<'a> {
    /// The cells.
    pub cells: RecordCells<'a>,
    /// The checksum in the header.
    pub crc: u32,
    /// Length in bytes, header included.
    pub len: usize,
}

/// Reason for which bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record is longer than the bytes or than [`RECORD_BYTES_MAX`].
    #[error("the record ends beyond the bytes that are there")]
    Truncated,
    /// Header or cells differ from those that were sealed.
    #[error("the record's checksum is {expected:08x} in its header, {got:08x} over its bytes")]
    Checksum {
        /// Checksum in the header.
        expected: u32,
        /// Checksum of the bytes.
        got: u32,
    },
    /// The checksum matches but the cells are malformed: another program wrote them.
    #[error("the record's cells are malformed")]
    Malformed,
}

/// Decodes the record at the start of `bytes`, which may be followed by other data.
///
/// # Errors
/// When there is no whole record. Allocates no memory that depends on the bytes.
pub fn decode(bytes: &[u8]) -> Result<Decoded<'_>, RecordError> {
    let mut header = Reader::new(bytes);
    let crc = header.u32().map_err(truncated)?;
    let length = header.u32().map_err(truncated)?;
    let cells = header.u32().map_err(truncated)?;
    let len = RECORD_HEADER_LEN.checked_add(length as usize).ok_or(RecordError::Truncated)?;
    let record = bytes.get(..len).ok_or(RecordError::Truncated)?;
    let got = crc32c(&record[CHECKED_FROM..]);
    if got != crc {
        return Err(RecordError::Checksum { expected: crc, got });
    }
    let cells = RecordCells { rest: Reader::new(&record[RECORD_HEADER_LEN..]), cells };
    check_cells(cells.clone())?;
    Ok(Decoded { cells, crc, len })
}

/// Decodes a record that [`decode`] has verified before, without verification.
///
/// # Panics
/// When the bytes were never verified; possibly later, while the cells are iterated.
pub(super) fn decode_checked(bytes: &[u8]) -> (RecordCells<'_>, usize) {
    let mut reader = Reader::new(&bytes[CHECKED_FROM..]);
    let fields = reader.u32().and_then(|length| Ok((length as usize, reader.u32()?)));
    let (length, cells) = fields.expect("a record is verified before it is replayed");
    let rest = Reader::new(&bytes[RECORD_HEADER_LEN..RECORD_HEADER_LEN + length]);
    (RecordCells { rest, cells }, RECORD_HEADER_LEN + length)
}

fn truncated(_: Truncated) -> RecordError {
    RecordError::Truncated
}

fn check_cells(mut cells: RecordCells<'_>) -> Result<(), RecordError> {
    for _ in 0..cells.cells {
        take_cell(&mut cells.rest)?;
    }
    if cells.rest.is_empty() { Ok(()) } else { Err(RecordError::Malformed) }
}

fn encoded_len(key: &[u8], cell: CellRef<'_>) -> usize {
    let expiry = if cell.meta.expires_at.is_some() { 8 } else { 0 };
    let lengths = varint_len(key.len() as u64) + varint_len(cell.value.len() as u64);
    2 + Version::ENCODED_LEN + expiry + lengths + key.len() + cell.value.len()
}

fn put_cell(out: &mut Vec<u8>, key: &[u8], cell: CellRef<'_>) {
    let CellMeta { version, kind, expires_at, from } = cell.meta;
    let tombstone = if kind == CellKind::Tombstone { FLAG_TOMBSTONE } else { 0 };
    let expires = if expires_at.is_some() { FLAG_EXPIRES } else { 0 };
    out.extend_from_slice(&[tombstone | expires, from]);
    put_version(out, version);
    if let Some(expires_at) = expires_at {
        out.extend_from_slice(&expires_at.micros_since_unix_epoch().to_le_bytes());
    }
    put_varint(out, key.len() as u64);
    put_varint(out, cell.value.len() as u64);
    out.extend_from_slice(key);
    out.extend_from_slice(cell.value);
}

#[inline]
fn take_cell<'a>(bytes: &mut Reader<'a>) -> Result<(&'a [u8], CellRef<'a>), RecordError> {
    let malformed = |_| RecordError::Malformed;
    let [flags, from] = bytes.array().map_err(malformed)?;
    if flags & !(FLAG_TOMBSTONE | FLAG_EXPIRES) != 0 {
        return Err(RecordError::Malformed);
    }
    let kind = if flags & FLAG_TOMBSTONE != 0 { CellKind::Tombstone } else { CellKind::Value };
    let version = bytes.version().map_err(malformed)?;
    let expires_at = match flags & FLAG_EXPIRES {
        0 => None,
        _ => Some(WallTime::from_micros_since_unix_epoch(bytes.u64().map_err(malformed)?)),
    };
    let key_len = bytes.varint_len().map_err(malformed)?;
    let value_len = bytes.varint_len().map_err(malformed)?;
    let key = bytes.bytes(key_len).map_err(malformed)?;
    let value = bytes.bytes(value_len).map_err(malformed)?;
    Ok((key, CellRef { meta: CellMeta { version, kind, expires_at, from }, value }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use stdx::{Hlc, NodeTag};

    type Pushed = (Vec<u8>, Vec<u8>, Option<u64>, bool, u8, u64);

    fn cell_of((_, value, expiry, tombstone, from, hlc): &Pushed) -> CellRef<'_> {
        let version = Version::new(Hlc::from_bits(*hlc), NodeTag(!*hlc));
        let kind = if *tombstone { CellKind::Tombstone } else { CellKind::Value };
        let expires_at = expiry.map(WallTime::from_micros_since_unix_epoch);
        CellRef { meta: CellMeta { version, kind, expires_at, from: *from }, value }
    }

    fn seal(cells: &[Pushed]) -> Record {
        let mut builder = RecordBuilder::default();
        for pushed in cells {
            builder.push(&pushed.0, cell_of(pushed));
        }
        assert_eq!(builder.cells(), cells.len());
        let bytes = builder.bytes();
        let record = builder.seal();
        assert_eq!((record.bytes().len(), record.cells()), (bytes, cells.len()));
        record
    }

    proptest! {
        #[test]
        fn cells_come_back_as_they_were_pushed(cells: Vec<Pushed>, behind: Vec<u8>) {
            let record = seal(&cells);
            let expected: Vec<_> = cells.iter().map(|pushed| (&pushed.0[..], cell_of(pushed))).collect();
            prop_assert_eq!(record.iter().collect::<Vec<_>>(), expected.clone());
            let bytes = [record.bytes(), &behind].concat();
            let decoded = decode(&bytes).unwrap();
            prop_assert_eq!(decoded.len, record.bytes().len());
            prop_assert_eq!(decoded.cells.collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!(decode_checked(&bytes).0.collect::<Vec<_>>(), expected);
        }

        #[test]
        fn any_bytes_are_a_record_or_refused(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }

        /// A matching checksum does not make the bytes behind it trusted.
        #[test]
        fn malformed_cells_are_refused_even_with_a_matching_checksum(body: Vec<u8>, cells in 0u32..4) {
            let mut bytes = vec![0; RECORD_HEADER_LEN];
            bytes[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
            bytes[8..12].copy_from_slice(&cells.to_le_bytes());
            bytes.extend_from_slice(&body);
            let crc = crc32c(&bytes[CHECKED_FROM..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            if let Ok(decoded) = decode(&bytes) {
                prop_assert_eq!(decoded.cells.count(), cells as usize);
            }
        }
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_detected() {
        let cells =
            [(b"key".to_vec(), b"value".to_vec(), Some(7), false, 3, 9), (vec![0], vec![], None, true, 1, 2)];
        let bytes = seal(&cells).bytes().to_vec();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&flipped).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err(), "cut to {len}");
        }
    }

    #[test]
    fn an_empty_record_is_a_header() {
        let record = RecordBuilder::default().seal();
        assert_eq!(record.bytes().len(), RECORD_HEADER_LEN);
        assert_eq!(decode(record.bytes()).unwrap().cells.count(), 0);
    }
}
