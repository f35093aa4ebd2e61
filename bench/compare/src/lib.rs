//! Stores under comparison behind one trait, and the workload that is common to all.

mod fjall_store;
pub mod report;
pub mod rocks;
mod rocks_sys;
pub mod scenario;
pub mod store;
mod veche;
pub mod workload;
