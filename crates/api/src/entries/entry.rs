//! Entries of batches.

use bytes::Bytes;
use cluster::{Command, Key, Lifetime, Quorum};

/// A write of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchEntry {
    /// Key to write.
    pub key: Key,
    /// Operation on the key.
    pub action: BatchAction,
}

/// Operation of an entry on its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchAction {
    /// Write of a value.
    Put {
        /// Bytes of the value; may be empty.
        value: Bytes,
        /// Lifetime of the value.
        lifetime: Lifetime,
    },
    /// Delete.
    Delete,
}

impl BatchEntry {
    /// Returns the command of the entry.
    pub fn into_command(self, quorum: Quorum) -> Command {
        let Self { key, action } = self;
        match action {
            BatchAction::Put { value, lifetime } => Command::Put { key, value, lifetime, quorum },
            BatchAction::Delete => Command::Delete { key, quorum },
        }
    }
}
