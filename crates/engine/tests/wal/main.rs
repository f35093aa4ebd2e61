//! The write-ahead log against crashes, damage, full disks and its own past.

mod crash;
mod damage;
mod formats;
mod full;
mod lost_sync;
mod segments;
mod support;
