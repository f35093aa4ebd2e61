//! The content of `GET /v0/layout`.

use crate::layout_status::LayoutStatus;
use crate::local::Local;
use api::{LayoutDocument, Problem};

/// The layout record that the node holds, and how it sees the members.
///
/// # Errors
/// The response before the data directory is open.
pub(crate) fn of(local: Option<&Local>, own_name: &str) -> Result<LayoutDocument, Problem> {
    let status = LayoutStatus::of(local.ok_or_else(Problem::starting)?);
    Ok(LayoutDocument::of(&status.record, own_name, |slot| status.seen(slot)))
}
