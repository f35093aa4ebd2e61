//! The placement planner: least movement, constraints, previews and refusals.

mod cluster_state;
mod least_movement;
mod measures;
mod planted_faults;
mod previews;
mod properties;
mod refusals;
