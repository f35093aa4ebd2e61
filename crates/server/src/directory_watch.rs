//! Detects that the data directory was removed or replaced.
//!
//! **Promise.** The node ends with an error within a second after its data directory, or a part of
//! it that the node writes to, is removed, moved or replaced. Otherwise its open descriptors would
//! accept writes into files that no restart finds again.
//!
//! **Mechanism.** Every [`CHECK_INTERVAL`] the watch asks the store which names are lost
//! ([`store::NameWatch`]).
//!
//! **Caveats.** Writes between the loss and the next check are acknowledged.

use crate::error::ServerError;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::{IDENTITY_FILE, Store};

/// Interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(300);

/// Waits until the directory `data` of `store` is incomplete, and returns the error with which the
/// node must end.
pub(crate) async fn lost(data: PathBuf, store: Store) -> ServerError {
    let missing = match store.watch_names() {
        // A file that existed at the start is missing already.
        Err(_) => data.join(IDENTITY_FILE),
        Ok(names) => {
            let names = Arc::new(names);
            loop {
                tokio::time::sleep(CHECK_INTERVAL).await;
                let names = Arc::clone(&names);
                // The check can block for long, for example on a disk that hangs. The panic hook
                // reports a panic in it.
                if let Ok(Some(missing)) = tokio::task::spawn_blocking(move || names.lost()).await {
                    break missing;
                }
            }
        }
    };
    ServerError::DirectoryLost { path: data, missing }
}
