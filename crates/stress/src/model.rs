//! Registers, their keys, and the content of each version.

use bytes::Bytes;
use stdx::{Cell, CellMeta, Hlc, NodeTag, Rng, Version, WallTime};

/// Number of registers of a run.
pub const REGISTERS: usize = 300;
/// Number of registers with [`GROUP_KEYS`] keys, which come first. The others have one key.
const GROUPS: usize = 60;
/// Number of keys of a group register.
pub const GROUP_KEYS: usize = 6;
/// First byte from which keys are not local, if the configuration has local keys.
pub const LOCAL_KEYS_END: u8 = b'c';

/// One or several keys that are written together, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegisterId(pub usize);

/// Content of a version of a register. All keys of a register have the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterContent {
    /// A value that never expires.
    Value,
    /// A value whose expiry is in the past when it is written.
    Expired,
    /// A delete.
    Tombstone,
}

impl RegisterId {
    /// All registers.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..REGISTERS).map(Self)
    }

    /// Number of keys of the register.
    pub fn keys(self) -> usize {
        if self.0 < GROUPS { GROUP_KEYS } else { 1 }
    }

    /// Key number `index` of the register. The keys of a group lie far apart, so that they are in
    /// different tables.
    pub fn key(self, index: usize) -> Vec<u8> {
        let spread = (index * 26 / GROUP_KEYS + self.0) % 26;
        let first = b'a' + spread as u8;
        // Some keys share a prefix that is longer than the prefix that the memtable compares at
        // once.
        let filler = if self.0.is_multiple_of(3) { "/with/a/long/common/prefix" } else { "" };
        format!("{}{filler}/{:05}/{index}", first as char, self.0).into_bytes()
    }

    /// Register and index of a key; `None` for a key of no register.
    pub fn of_key(key: &[u8]) -> Option<(Self, usize)> {
        let text = std::str::from_utf8(key).ok()?;
        let mut parts = text.rsplit('/');
        let index = parts.next()?.parse().ok()?;
        let register = Self(parts.next()?.parse().ok()?);
        let is_one = register.0 < REGISTERS && index < register.keys() && register.key(index) == key;
        is_one.then_some((register, index))
    }

    /// Content of this version of the register.
    pub fn content(self, version: u64) -> RegisterContent {
        match Self::dice(self.0 as u64, version, u64::MAX).below(100) {
            0..18 => RegisterContent::Tombstone,
            18..26 => RegisterContent::Expired,
            _ => RegisterContent::Value,
        }
    }

    /// Cell of key number `index` in this version.
    pub fn cell(self, index: usize, version: u64) -> Cell {
        let stamp = Version::new(Hlc::from_bits(version), NodeTag(1));
        let meta = match self.content(version) {
            RegisterContent::Tombstone => return Cell::tombstone(stamp, 1),
            RegisterContent::Expired => {
                let expires_at = Some(WallTime::from_micros_since_unix_epoch(1 + version));
                CellMeta { expires_at, ..CellMeta::value(stamp, 1) }
            }
            RegisterContent::Value => CellMeta::value(stamp, 1),
        };
        let mut dice = Self::dice(self.0 as u64, version, index as u64);
        let bytes = match dice.below(1_000) {
            0 => dice.below(300 << 10),
            1..20 => dice.below(9_000),
            20..100 => 0,
            _ => dice.below(150),
        };
        let mut value = vec![0; bytes as usize];
        dice.fill(&mut value);
        Cell { meta, value: Bytes::from(value) }
    }

    /// Version of a cell that was read from key number `index`.
    ///
    /// # Errors
    /// A sentence, if no version of this register has this cell.
    pub fn version_of(self, index: usize, seen: &Cell) -> Result<u64, String> {
        let version = seen.meta.version.hlc.to_bits();
        let written = self.cell(index, version);
        // Compaction replaces an expired value by a tombstone with the same version and expiry.
        let is_buried = self.content(version) == RegisterContent::Expired
            && seen.value.is_empty()
            && seen.meta == written.meta.buried();
        if *seen == written || is_buried {
            return Ok(version);
        }
        Err(format!(
            "{self:?} key {index}: the cell is not version {version} as it was written: {:?}, {} bytes",
            seen.meta,
            seen.value.len()
        ))
    }

    fn dice(register: u64, version: u64, index: u64) -> Rng {
        Rng::new(register ^ version.rotate_left(20) ^ index.rotate_left(50))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_belongs_to_one_register() {
        for register in RegisterId::all() {
            for index in 0..register.keys() {
                assert_eq!(RegisterId::of_key(&register.key(index)), Some((register, index)));
            }
        }
        assert_eq!(RegisterId::of_key(b"a/00001/9"), None);
        assert_eq!(RegisterId::of_key(b"stray"), None);
    }

    #[test]
    fn a_cell_identifies_its_version_and_a_changed_cell_is_refused() {
        let register = RegisterId(3);
        for version in 1..200 {
            let cell = register.cell(2, version);
            assert_eq!(register.version_of(2, &cell), Ok(version));
            if register.content(version) == RegisterContent::Value && !cell.value.is_empty() {
                let mut value = cell.value.to_vec();
                value[0] ^= 1;
                let changed = Cell { value: value.into(), ..cell };
                assert!(register.version_of(2, &changed).is_err());
            }
        }
    }
}
