//! The limits of memory, work in flight, rates and time, in one set of words.
//!
//! **Promise.** A bounded resource of veche is held and refused by one of these types:
//!
//! * [`Budget`]: memory, by category and in total. A [`Reservation`] holds a part of it until it is
//!   dropped. A [`ThreadBudget`] caches a part of it for frequent small reservations of one thread.
//! * [`Admission`]: work in flight at a resource. An operation is admitted if its predicted
//!   wait is short enough, by Little's law.
//! * [`RateLimiter`]: a rate of work, as a token bucket.
//! * [`Deadline`]: the time of work. Work that was not begun by then is dropped.
//!
//! A full resource refuses a request at once: no type here waits. A reservation is passed along
//! with the work that it is for, down to the read of a block.
//!
//! **Mechanism.** The types are values without I/O, clocks and threads. Time is an argument, so a
//! process and the simulator run the same code. Types that threads share have atomics, or a lock
//! that is held for a few instructions. The owner of a resource decides about precedence, and about
//! waiting for it: this crate knows no clients.
//!
//! **Caveats.** A limit that belongs to one data structure, such as the length of a queue, stays
//! with it. `docs/limits.md` lists all limits, with the types of this crate and without.

mod admission;
mod budget;
mod deadline;
mod rate_limiter;

pub use admission::Admission;
pub use budget::{
    Budget, LargestValue, MEMORY_RETRY_AFTER, MemoryCategory, MemoryRefusals, Reservation, ThreadBudget,
    ThreadReservation, VALUE_COPIES_MAX, budget_bytes_min,
};
pub use deadline::Deadline;
pub use rate_limiter::{RateLimiter, bytes_at, time_at};
