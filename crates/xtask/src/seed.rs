//! The first seed of sweeps and of the engine's crash tests in continuous integration.
//!
//! Seeded tests read their first seed from the environment variable [`VARIABLE`]. Continuous
//! integration derives it from the commit. So different commits are tested with different seeds,
//! and a second run of a commit repeats its seeds.

use std::process::Command;

/// The environment variable that contains the first seed of tests.
pub(crate) const VARIABLE: &str = "SEED";

/// The first 32 bits of the current commit's hash; `None` outside of a repository.
pub(crate) fn of_commit() -> Option<u64> {
    let output = Command::new("git").args(["rev-parse", "HEAD"]).output().ok()?;
    let hash = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| of_hash(hash.trim()))?
}

/// A seed that differs between runs: the Unix time in seconds.
pub(crate) fn of_time() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

fn of_hash(hash: &str) -> Option<u64> {
    hash.get(..8).and_then(|digits| u64::from_str_radix(digits, 16).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_is_the_beginning_of_the_hash() {
        assert_eq!(of_hash("508f96d14c0b27d0a9c1a2b3c4d5e6f708192a3b"), Some(0x508f_96d1));
        assert_eq!(of_hash("508f"), None);
        assert_eq!(of_hash("not a hash"), None);
    }
}
