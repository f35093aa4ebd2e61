//! The write-ahead log.
pub mod record;
