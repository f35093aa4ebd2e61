//! Compaction: merging tables, so that reads consult few of them and superseded cells are dropped.
//!
//! **Promise.** A compaction changes no read result: before and after it, a read finds the cell
//! with the greatest version of its key. A tombstone is dropped only when nothing that it hides can
//! still exist ([`drop_rule`]). The output of a flush or a compaction becomes live as a whole or
//! not at all.
//!
//! **Mechanism.** [`pick`] chooses the next compaction from the levels. It is pure, reads no file
//! and is tested by scripts. A [`Job`] executes a [`Plan`] in steps, each with a budget of bytes,
//! so the caller controls the rate. A [`FlushJob`] does the same for a memtable. Both end with a
//! [`VersionEdit`](crate::manifest::VersionEdit) for the manifest; until that is durable, their
//! output is not part of the database. [`CompactionDebt`] estimates the remaining work in bytes,
//! for the admission control of writes.
//!
//! Levels are not ordered by version. So any tables may be merged into any level, as long as the
//! tables of that level do not overlap. Several plans run concurrently. A table that overlaps
//! nothing on the next level moves there without being read.
//!
//! **Caveats.** A job runs on one thread. A tombstone on the last level that is blocked by the key
//! range of a table above it stays until that table is compacted downwards.

pub mod drop_rule;
mod flush;
mod job;
mod output;
mod outside;
mod picker;
mod plan;

pub use flush::FlushJob;
pub use job::{CompactionStep, DroppedVersions, Job, JobContext};
pub(crate) use output::Outputs;
pub(crate) use picker::GRANDPARENT_TABLES_MAX;
pub use picker::{CompactionDebt, level_target_bytes, pick, pick_within};
pub use plan::{Horizon, Input, LocalHorizon, Plan, PlanId, Reason, RunningPlans};
