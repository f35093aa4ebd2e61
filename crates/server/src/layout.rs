//! The content of `GET /v0/layout`.

use crate::local::Local;
use api::{LayoutDocument, Problem};
use std::time::Duration;

const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The layout record that the node holds.
///
/// # Errors
/// The response before the data directory is open.
pub(crate) fn of(local: Option<&Local>, own_name: &str) -> Result<LayoutDocument, Problem> {
    let local = local
        .ok_or_else(|| Problem::unavailable(RETRY_AFTER, "The node is starting. Try again in a moment."))?;
    Ok(LayoutDocument::of(&local.layout.get().record, own_name))
}
