//! A stress test of the engine in real processes on a real disk, as `db_stress` is for RocksDB.
//!
//! **Promise.** A run fails in each of these cases:
//!
//! - The engine loses an acknowledged write over `kill -9`.
//! - It returns a value that was never written, or an older version than one already read.
//! - It shows a part of a batch, or a snapshot or a checkpoint of more than one moment.
//! - It does not open again.
//!
//!  The message names the register and the versions.
//!
//! **Concepts.** A *register* is one key, or several keys that are always written together in one
//! batch. Its versions are 1, 2, 3 and so on. The register and the version determine the content of
//! a cell ([`model`]). So a reader knows from a cell alone whether it was written, and the expected
//! state is a few numbers for each register ([`expected`]). A *round* is one process, and a
//! *session* is the time for which a round has the engine open.
//!
//! **Mechanism.** The [`driver`] starts rounds, each a process of its own that works on the same
//! directory ([`round`]), and kills them at random times. A round begins with the check of
//! everything that earlier rounds acknowledged. Then its threads ([`client`]) write, read, scan,
//! and take snapshots and checkpoints. Between sessions the engine is closed and opened again with
//! other options ([`config`]). The expected state is in a file that all rounds map into memory, so
//! stores to it survive the process.
//!
//! **Caveats.** The seed determines the random draws, but not the interleaving of threads or the
//! moment of a kill. A failing seed is a hint, and the directory that it leaves is the evidence.
//! `kill -9` loses nothing that the kernel has. A missing `fdatasync` is invisible here and is
//! tested by `crates/engine/tests/crash.rs`.

pub mod client;
pub mod config;
pub mod driver;
pub mod expected;
mod mapped_words;
pub mod model;
pub mod plant;
pub mod round;
pub mod verify;
