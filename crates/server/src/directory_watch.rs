//! Whether the data directory is still this node's.
//!
//! **Promise.** Within a second after the directory was removed, moved away or replaced under a running node, the node
//! ends with an error. Its open descriptors would otherwise go on to take writes into files that no start finds again.
//!
//! **Mechanism.** A file of the directory, its identity, never changes while a node runs. Every [`LOOK_EVERY`] the watch
//! asks the system which file has that name. The watch keeps the file open, so that no other file gets its number.
//!
//! **Caveats.** Writes are acknowledged until the watch has looked.

use crate::process::Process;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::IDENTITY_FILE;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// Returns the directory when it is not this node's any more.
pub(crate) async fn lost(process: Arc<Process>) -> PathBuf {
    let (path, fs) = (process.config.data.join(IDENTITY_FILE), Arc::clone(&process.env.fs));
    let held = fs.open(&path, env::OpenMode::Read).and_then(|file| Ok((file, fs.file_number(&path)?)));
    if let Ok((_open, number)) = held {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let (path, fs) = (path.clone(), Arc::clone(&fs));
            // The file system may take long, as on a disk that hangs. A panic there is told by its own thread.
            let found = tokio::task::spawn_blocking(move || fs.file_number(&path)).await;
            if found.is_ok_and(|found| is_lost(&found, number)) {
                break;
            }
        }
    }
    process.config.data.clone()
}

/// Whether another file, or none, has the name. An error of the disk says neither.
fn is_lost(found: &io::Result<u64>, number: u64) -> bool {
    match found {
        Ok(found) => *found != number,
        Err(error) => matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_or_none_is_a_loss_and_a_failing_disk_is_not() {
        assert!(!is_lost(&Ok(7), 7) && is_lost(&Ok(8), 7));
        assert!(is_lost(&Err(io::ErrorKind::NotFound.into()), 7));
        assert!(is_lost(&Err(io::ErrorKind::NotADirectory.into()), 7));
        assert!(!is_lost(&Err(io::Error::other("input/output error")), 7));
    }
}
