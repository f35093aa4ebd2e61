//! The write-ahead log under crashes, damage and full disks, and with files of earlier releases.

mod crash;
mod damage;
mod formats;
mod full;
mod lost_sync;
mod segments;
mod support;
