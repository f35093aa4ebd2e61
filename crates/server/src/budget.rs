//! The memory that the server holds beside the store, in the words of `limits`.

pub(crate) use limits::{
    Budget as MemoryBudget, LargestValue, MemoryCategory, MemoryRefusals as Refusals, Reservation,
    ThreadBudget, ThreadReservation, VALUE_COPIES_MAX, budget_bytes_min,
};
