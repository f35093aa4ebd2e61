//! A stress test of the engine in a real process on a real disk, as `db_stress` is one of RocksDB.
//!
//! **Promise.** A run fails when the engine loses an acknowledged write over `kill -9`, returns a value that was never
//! written, goes back behind what a reader has seen, shows a part of a batch, shows a snapshot or a checkpoint of more
//! than one moment, or does not open again. The message names the register and the versions.
//!
//! **Concepts.** A *register* is one key, or several keys that are always written together in one batch. Its versions
//! are 1, 2, 3 and so on, and its register and version decide the content of a cell ([`model`]). So a reader knows
//! from a cell alone whether it was written, and the expected state is a few numbers for each register ([`expected`]).
//!
//! **Mechanism.** The [`driver`] starts rounds, each a process of its own that works on the same directory
//! ([`round`]), and kills them at random times. A round begins with the check of everything that the rounds
//! before it acknowledged. Then its threads ([`client`]) write, read, scan, take snapshots and checkpoints, and the
//! engine is closed and opened again with other options ([`config`]) now and then. The expected state is in a file
//! that all rounds map into their memory: what a process has stored in it survives the process.
//!
//! **Caveats.** The seed decides what is drawn, and not how threads interleave or where a kill strikes: a failing seed
//! is a hint, and the directory that it leaves is the evidence. `kill -9` loses nothing that the kernel has: a
//! missing `fdatasync` is invisible here, and is the matter of `crates/engine/tests/crash.rs`.

pub mod client;
pub mod config;
pub mod driver;
pub mod expected;
mod mapped_words;
pub mod model;
pub mod plant;
pub mod round;
pub mod verify;
