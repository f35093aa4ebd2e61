//! Paths of the files of an engine.

use crate::sstable::{TableId, file_name};
use std::path::{Path, PathBuf};

/// The directories and files below the root of one engine.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    root: PathBuf,
}

impl Paths {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn wal(&self) -> PathBuf {
        self.root.join("wal")
    }

    pub(crate) fn tables(&self) -> PathBuf {
        self.root.join("tables")
    }

    pub(crate) fn table(&self, id: TableId) -> PathBuf {
        self.tables().join(file_name(id))
    }
}
