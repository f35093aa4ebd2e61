//! The checkpoint that a node keeps for a backup that is being taken.
//!
//! Its name is noted in the repository before the node is asked for it, so that one whose backup was killed is removed by
//! the next, even where nobody heard the answer: a node keeps only a few, and each holds back space.

use super::Repository;
use crate::error::CtlError;
use crate::files;
use serde::{Deserialize, Serialize};

const FILE: &str = "checkpoint";
const FILE_BYTES_MAX: u64 = 64 << 10;

/// What the file says. There may be more in it.
#[derive(Serialize, Deserialize)]
struct Note {
    name: String,
}

impl Repository {
    /// Notes the name of what the node is asked to keep.
    pub(crate) fn note_held(&self, name: &str) -> Result<(), CtlError> {
        let text = serde_json::to_vec(&Note { name: name.to_owned() }).expect("strings are JSON");
        files::replace(&**self.fs(), self.dir(), FILE, &text)
    }

    /// What a backup has noted that did not come to its end. A note that is not understood is none.
    pub(crate) fn held(&self) -> Result<Option<String>, CtlError> {
        let path = self.dir().join(FILE);
        if !self.fs().exists(&path).map_err(CtlError::io("look for", &path))? {
            return Ok(None);
        }
        let text = files::read_small(&**self.fs(), &path, FILE_BYTES_MAX)?;
        Ok(serde_json::from_slice(&text).ok().map(|Note { name }| name))
    }

    /// The node keeps it no longer.
    pub(crate) fn forget_held(&self) -> Result<(), CtlError> {
        let path = self.dir().join(FILE);
        self.fs().remove_file(&path).map_err(CtlError::io("remove", &path))
    }
}
