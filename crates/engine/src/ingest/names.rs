//! Names of ingests. A name is used by one handle at a time, so that a cursor never goes back.

use super::Ingest;
use crate::Error;
use crate::engine::Engine;
use bytes::Bytes;

/// A name that is reserved until this is dropped.
pub(super) struct IngestName {
    engine: Engine,
    name: Bytes,
}

impl IngestName {
    pub(super) fn reserve(engine: &Engine, name: &[u8]) -> Result<Self, Error> {
        if !(1..=Ingest::NAME_BYTES_MAX).contains(&name.len()) {
            let (max, len) = (Ingest::NAME_BYTES_MAX, name.len());
            return Err(Error::Invalid(format!("the name of an ingest has 1 to {max} bytes, not {len}")));
        }
        let cursors = engine.ingest_cursors();
        let name = Bytes::copy_from_slice(name);
        let mut open = engine.shared.jobs.open_ingests.lock();
        let is_durable = |name: &Bytes| cursors.iter().any(|cursor| cursor.name == *name);
        let others = cursors.len() + open.iter().filter(|open| !is_durable(open)).count();
        if !is_durable(&name) && others >= Ingest::CURSORS_MAX {
            return Err(Error::Invalid(format!("there are {others} ingests, the greatest number")));
        }
        if !open.insert(name.clone()) {
            return Err(Error::Invalid(format!("the ingest \"{}\" is open", name.escape_ascii())));
        }
        drop(open);
        Ok(Self { engine: engine.clone(), name })
    }

    pub(super) fn bytes(&self) -> &Bytes {
        &self.name
    }
}

impl Drop for IngestName {
    fn drop(&mut self) {
        self.engine.shared.jobs.open_ingests.lock().remove(&self.name);
    }
}
