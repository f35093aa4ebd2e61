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
    /// Reserves a name whose ingest may set a cursor.
    pub(super) fn reserve(engine: &Engine, name: &[u8]) -> Result<Self, Error> {
        let reserved = Self::reserve_existing(engine, name)?;
        let cursors = engine.ingest_cursors();
        let is_durable = |name: &Bytes| cursors.iter().any(|cursor| cursor.name == *name);
        // This name is among the open ones.
        let open = engine.shared.jobs.open_ingests.lock();
        let ingests = cursors.len() + open.iter().filter(|open| !is_durable(open)).count();
        drop(open);
        if !is_durable(&reserved.name) && ingests > Ingest::CURSORS_MAX {
            let others = ingests - 1;
            return Err(Error::Invalid(format!("there are {others} ingests, the greatest number")));
        }
        Ok(reserved)
    }

    /// Reserves a name, whether or not it has a cursor.
    pub(super) fn reserve_existing(engine: &Engine, name: &[u8]) -> Result<Self, Error> {
        if !(1..=Ingest::NAME_BYTES_MAX).contains(&name.len()) {
            let (max, len) = (Ingest::NAME_BYTES_MAX, name.len());
            return Err(Error::Invalid(format!("the name of an ingest has 1 to {max} bytes, not {len}")));
        }
        let name = Bytes::copy_from_slice(name);
        if !engine.shared.jobs.open_ingests.lock().insert(name.clone()) {
            return Err(Error::Invalid(format!("the ingest \"{}\" is open", name.escape_ascii())));
        }
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
