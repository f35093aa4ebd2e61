//! Whether the data directory is still this node's, and whole.
//!
//! **Promise.** Within a second after the directory, or a part of it that the node writes to, was removed, moved away or
//! replaced under a running node, the node ends with an error. Its open descriptors would otherwise go on to take writes
//! into files that no start finds again.
//!
//! **Mechanism.** Every [`CHECK_INTERVAL`] the watch asks the store which names are lost ([`store::NameWatch`]).
//!
//! **Caveats.** Writes are acknowledged until the watch has looked.

use crate::error::ServerError;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::{IDENTITY_FILE, Store};

/// Between two looks.
const CHECK_INTERVAL: Duration = Duration::from_millis(300);

/// Returns why the node must end, once the directory `data` of `store` is not whole any more.
pub(crate) async fn lost(data: PathBuf, store: Store) -> ServerError {
    let missing = match store.watch_names() {
        // What the start has just found is not there any more.
        Err(_) => data.join(IDENTITY_FILE),
        Ok(names) => {
            let names = Arc::new(names);
            loop {
                tokio::time::sleep(CHECK_INTERVAL).await;
                let names = Arc::clone(&names);
                // The file system may take long, as on a disk that hangs. A panic there is told by its own thread.
                if let Ok(Some(missing)) = tokio::task::spawn_blocking(move || names.lost()).await {
                    break missing;
                }
            }
        }
    };
    ServerError::DirectoryLost { path: data, missing }
}
