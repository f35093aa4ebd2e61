//! The epoch chain decides one record for each epoch.
//!
//! `exhaustive` visits every order of messages of a few proposals, with the shipped acceptor and
//! proposal. `random` runs proposers, acceptors and faults over many epochs in virtual time.

mod exhaustive;
mod random;
mod record;
