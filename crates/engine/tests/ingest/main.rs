//! Ingest: sorted cells become tables without the log, together with a durable position.

mod amplification;
mod crash;
mod dropped_tombstones;
mod interplay;
mod model;
mod promises;
mod source;
#[path = "../support/mod.rs"]
mod support;
