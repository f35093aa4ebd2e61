//! The clock seal: the state of the version clock after a clean stop.
//!
//! **Promise.** After a clean stop, a node starts its version clock at the greatest version that
//! the previous generation issued or received, not at the bound that it had reserved. After any
//! other end it starts at the bound. No version is issued twice.
//!
//! **Mechanism.** The last write of a process is a *seal*: the durable bound, and the greatest
//! version issued. A start that finds a seal for the durable bound begins with that version. Before
//! it does, it breaks the seal durably. So the next start begins with the bound, unless this
//! generation seals the clock again.
//!
//! **Caveats.** If the seal cannot be broken, for example on a full disk, the start begins with the
//! bound. The same holds if a table cannot be read that may hold the seal; an older seal is not
//! used instead.

use crate::error::StoreError;
use crate::group::{clock_bound_at_start, durable_clock_bound};
use crate::keyspace::CLOCK_SEAL;
use engine::{Batch, Engine, ReadableCell, UnreadCell};
use stdx::{CellMeta, CellRef, Hlc, NodeTag, Version};

/// Length of a seal in bytes: the bound and the last version issued, both big-endian.
const SEAL_BYTES: usize = 16;

/// Returns the start of the version clock. Breaks the seal, if there is one.
pub(crate) fn begin(engine: &Engine, tag: NodeTag) -> Result<Hlc, StoreError> {
    let bound = clock_bound_at_start(engine)?;
    let ReadableCell { cell, unread } = engine.get_readable(CLOCK_SEAL)?;
    if let Some(UnreadCell { version_max, error }) = unread {
        // A broken seal that is newer than the one that cannot be read, so that seals are readable
        // again.
        if let Err(put) = put(engine, tag, version_max.hlc.next(), &[]) {
            tracing::warn!(%error, %put, "the seal of the version clock can neither be read nor broken");
        }
        return Ok(bound);
    }
    let Some(cell) = cell else { return Ok(bound) };
    let Some((sealed, issued)) = decode(&cell.value) else { return Ok(bound) };
    if sealed != bound {
        return Ok(bound);
    }
    match put(engine, tag, cell.meta.version.hlc.next(), &[]) {
        Ok(()) => Ok(issued),
        Err(error) => {
            tracing::warn!(%error, "the version clock begins at its durable bound");
            Ok(bound)
        }
    }
}

/// Seals the clock. No version may be issued afterwards.
pub(crate) fn seal(engine: &Engine, tag: NodeTag, issued: Hlc) -> Result<(), StoreError> {
    let bound = durable_clock_bound(engine)?;
    if issued >= bound {
        return Ok(());
    }
    let before = engine.get(CLOCK_SEAL)?.map_or(Hlc::ZERO, |cell| cell.meta.version.hlc.next());
    put(engine, tag, issued.max(before), &encode(bound, issued))
}

fn put(engine: &Engine, tag: NodeTag, hlc: Hlc, value: &[u8]) -> Result<(), StoreError> {
    let meta = CellMeta::value(Version::new(hlc, tag), 1);
    let mut batch = Batch::new();
    batch.put_critical(CLOCK_SEAL, CellRef { meta, value });
    engine.write(batch)?;
    Ok(())
}

fn encode(bound: Hlc, issued: Hlc) -> [u8; SEAL_BYTES] {
    (u128::from(bound.to_bits()) << 64 | u128::from(issued.to_bits())).to_be_bytes()
}

/// The bound and the last version issued; `None` for a broken seal.
fn decode(value: &[u8]) -> Option<(Hlc, Hlc)> {
    let bits = u128::from_be_bytes(<[u8; SEAL_BYTES]>::try_from(value).ok()?);
    Some((Hlc::from_bits((bits >> 64) as u64), Hlc::from_bits(bits as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_reads_back_and_a_broken_one_does_not() {
        let (bound, issued) = (Hlc::from_bits(0x0102_0304_0506_0708), Hlc::from_bits(u64::MAX));
        let bytes = encode(bound, issued);
        assert_eq!(bytes[..8], [1, 2, 3, 4, 5, 6, 7, 8], "big-endian, the bound first");
        assert_eq!(decode(&bytes), Some((bound, issued)));
        assert_eq!(decode(&[]), None);
    }
}
