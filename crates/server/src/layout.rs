//! The content of `GET /v0/layout`.

use crate::layout_status::LayoutStatus;
use crate::local::Local;
use api::{LayoutDocument, Problem};
use stdx::Instant;

/// The layout record that the node holds, how it sees the members, and the running change.
///
/// # Errors
/// The response before the data directory is open.
pub(crate) fn of(local: Option<&Local>, own_name: &str, now: Instant) -> Result<LayoutDocument, Problem> {
    let local = local.ok_or_else(Problem::starting)?;
    let status = LayoutStatus::of(local);
    let plan = local.layout_progress.document(&status.record, status.agreement.as_deref(), now);
    let document = LayoutDocument::of(&status.record, own_name, |slot| status.seen(slot));
    Ok(LayoutDocument { plan, ..document })
}
