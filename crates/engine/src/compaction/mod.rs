//! Merging tables, so that reads look into few of them and what is superseded goes.
//!
//! **Promise.** A compaction changes no answer: after it, as before, a read finds the cell with the greatest
//! version of its key. A tombstone goes only when nothing it hides can still be there ([`drop_rule`]). What a
//! flush or a compaction writes becomes live as a whole, or not at all.
//!
//! **Mechanism.** [`pick`] looks at the levels and decides what is worth doing: it is pure, reads no file and
//! is tested by scripts. A [`Plan`] is carried out by a [`Job`], step by step, each within a budget of bytes,
//! so that whoever steps it decides the pace. A [`FlushJob`] is the same for a memtable. Both end with a
//! [`VersionEdit`](crate::manifest::VersionEdit) for the manifest; until that is durable nothing they did
//! counts. [`Debt`] is what is left to do, in bytes, for the control of writes.
//!
//! Because a level says nothing about versions, any tables may be merged into any level as long as the
//! tables of that level do not overlap: several plans run at once, and a table that overlaps nothing on the
//! next level moves there without being read.
//!
//! **Caveats.** One job is one thread. A tombstone on the last level that is blocked by the bounds of a table
//! above it stays until that table comes down.

pub mod drop_rule;
mod flush;
mod job;
mod output;
mod outside;
mod picker;
mod plan;

pub use flush::FlushJob;
pub use job::{Dropped, Job, JobContext, Step};
pub use picker::{Debt, level_target_bytes, pick, pick_within};
pub use plan::{Busy, Horizon, Input, LocalHorizon, Plan, PlanId, Reason};
