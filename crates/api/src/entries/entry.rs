//! An entry of a batch.

use bytes::Bytes;
use cluster::{Command, Key, Lifetime, Quorum};

/// A write of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchEntry {
    /// Of which key.
    pub key: Key,
    /// Which.
    pub action: BatchAction,
}

/// What is to be done with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchAction {
    /// Write it.
    Put {
        /// The value; may be empty.
        value: Bytes,
        /// How long it lives.
        lifetime: Lifetime,
    },
    /// Delete it.
    Delete,
}

impl BatchEntry {
    /// The command that does it.
    pub fn into_command(self, quorum: Quorum) -> Command {
        let Self { key, action } = self;
        match action {
            BatchAction::Put { value, lifetime } => Command::Put { key, value, lifetime, quorum },
            BatchAction::Delete => Command::Delete { key, quorum },
        }
    }
}
