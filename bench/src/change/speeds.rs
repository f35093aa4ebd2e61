//! The speeds that bound a copy, each measured alone: writing a file, and reading a range.

use crate::BenchResult;
use lab::stream::{ReadOptions, read_range};
use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;
use stdx::Rng;

const PIECE_BYTES: usize = 1 << 20;
/// Path of all entries of a node.
const EVERYTHING: &str = "/v0/entities?start=0";

/// Bytes per second of a file of `size` bytes in `dir` that is written in order and synced once.
pub(super) fn write_speed(dir: &Path, size: u64) -> BenchResult<f64> {
    let path = dir.join("sequential-write");
    let mut rng = Rng::new(1);
    // A disk may compress what it stores.
    let piece: Vec<u8> = (0..PIECE_BYTES).map(|_| rng.below(256) as u8).collect();
    let pieces = size.div_ceil(PIECE_BYTES as u64).max(1);
    let begun = Instant::now();
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&path)?;
        (0..pieces).try_for_each(|_| file.write_all(&piece))?;
        file.sync_all()
    };
    let written = write();
    let took = begun.elapsed();
    fs::remove_file(&path)?;
    written?;
    Ok((pieces * PIECE_BYTES as u64) as f64 / took.as_secs_f64())
}

/// Bytes of keys and values per second of a range over all data of a node, which has
/// `stored_bytes` of them.
pub(super) fn scan_speed(node: SocketAddr, stored_bytes: u64) -> BenchResult<f64> {
    let read = read_range(node, EVERYTHING, ReadOptions::default())?;
    // The body has framing as well.
    if read.bytes < stored_bytes {
        return Err(format!("{node} has {} of {stored_bytes} bytes", read.bytes).into());
    }
    Ok(stored_bytes as f64 / read.all.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_measurement_is_removed() {
        let dir = std::env::temp_dir().join(format!("lab-write-speed-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let speed = write_speed(&dir, 3_000_000);
        let left = fs::read_dir(&dir).unwrap().count();
        fs::remove_dir_all(&dir).unwrap();
        assert!(speed.unwrap() > 0.0 && left == 0);
    }
}
