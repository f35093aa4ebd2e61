//! The epoch chain decides one record for each epoch.
//!
//! `exhaustive` visits every order of messages of a few proposals, with the shipped acceptor and
//! proposal. `without_ids` does the same while voters without ids lose their disks. `random` runs
//! proposers, acceptors and faults over many epochs in virtual time.

mod exhaustive;
mod random;
mod record;
mod without_ids;
