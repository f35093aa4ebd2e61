//! Record of the checkpoint that a node keeps for a backup in progress.
//!
//! Its name is recorded in the repository before the node is asked for it. If the backup is killed
//! or the response is lost, the next backup removes the checkpoint: a node keeps only a few, and
//! each holds disk space.

use super::Repository;
use crate::error::CtlError;
use crate::files;
use serde::{Deserialize, Serialize};

const FILE: &str = "checkpoint";
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Contents of the file. Unknown fields are ignored.
#[derive(Serialize, Deserialize)]
struct Note {
    name: String,
}

impl Repository {
    /// Records the name of the requested checkpoint.
    pub(crate) fn store_checkpoint_note(&self, name: &str) -> Result<(), CtlError> {
        let text = serde_json::to_vec(&Note { name: name.to_owned() }).expect("strings are JSON");
        files::replace(&**self.fs(), self.dir(), FILE, &text)
    }

    /// Checkpoint of a backup that did not finish. A malformed record counts as none.
    pub(crate) fn checkpoint_note(&self) -> Result<Option<String>, CtlError> {
        let path = self.dir().join(FILE);
        if !self.fs().exists(&path).map_err(CtlError::io("look for", &path))? {
            return Ok(None);
        }
        let text = files::read_small(&**self.fs(), &path, FILE_BYTES_MAX)?;
        Ok(serde_json::from_slice(&text).ok().map(|Note { name }| name))
    }

    /// Removes the record, once the node does not keep the checkpoint any more.
    pub(crate) fn remove_checkpoint_note(&self) -> Result<(), CtlError> {
        let path = self.dir().join(FILE);
        self.fs().remove_file(&path).map_err(CtlError::io("remove", &path))
    }
}
