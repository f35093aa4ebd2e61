//! The checkpoint that a node keeps for a backup that is being taken.
//!
//! It is noted in the repository, so that one whose backup was killed is removed by the next: a node keeps only a few,
//! and each holds back space.

use super::Repository;
use crate::error::CtlError;
use crate::files;
use crate::node::NodeCheckpoint;

const FILE: &str = "checkpoint";
const FILE_BYTES_MAX: u64 = 64 << 10;

impl Repository {
    /// Notes what the node keeps.
    pub(crate) fn note_held(&self, checkpoint: &NodeCheckpoint) -> Result<(), CtlError> {
        let text = serde_json::to_vec(checkpoint)
            .map_err(|error| CtlError::damaged(&checkpoint.path, error.to_string()))?;
        files::replace(&**self.fs(), self.dir(), FILE, &text)
    }

    /// What a backup has noted that did not come to its end. A note that is not understood is none.
    pub(crate) fn held(&self) -> Result<Option<NodeCheckpoint>, CtlError> {
        let path = self.dir().join(FILE);
        if !self.fs().exists(&path).map_err(CtlError::io("look for", &path))? {
            return Ok(None);
        }
        let text = files::read_small(&**self.fs(), &path, FILE_BYTES_MAX)?;
        Ok(serde_json::from_slice(&text).ok())
    }

    /// The node keeps it no longer.
    pub(crate) fn forget_held(&self) -> Result<(), CtlError> {
        let path = self.dir().join(FILE);
        self.fs().remove_file(&path).map_err(CtlError::io("remove", &path))
    }
}
