//! Stores under comparison, behind one trait, and what is done with all of them alike.

mod fjall_store;
pub mod report;
pub mod rocks;
mod rocks_sys;
pub mod scenario;
pub mod store;
mod veche;
pub mod workload;
