//! The check before every node of a cluster is restored from its own backup.
//!
//! **Promise.** A backup is refused if the backups of the nodes may together lack data that each of
//! them would have had at another time: if data was on its way between nodes, or if the operator
//! does not confirm that all backups were made with the same placement of the partitions. For
//! example, the backup of a node that has lost a partition and purged it, and the earlier backup of
//! the node that has gained it, both lack the partition.
//!
//! **Mechanism.** A backup names the epoch in which the replicas of some partition changed last.
//! The operator states the one that all backups have. It need not be stated as long as no replicas
//! have changed since the cluster was made.
//!
//! **Caveats.** Each node is restored by itself, so this relies on the statement. Backups of
//! earlier releases do not say what the layout was, and are not refused: no replicas changed then.

use crate::repository::{BackupLayout, BackupManifest, BackupNumber, Repository};

/// The reason why a backup is not to be restored together with those of the other nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WholeClusterRefusal {
    /// A change of the layout was running.
    #[error(
        "backup {number} was made while a change of the layout was running: data was on its way between nodes. The backups of \
         all nodes together may lack some of it. Restore every node from a backup that was made while no change \
         was running{}",
        other(*.steady, "here the newest such one is backup")
    )]
    Changing {
        /// The backup.
        number: BackupNumber,
        /// The newest other backup of the repository that was made without a running change.
        steady: Option<BackupNumber>,
    },
    /// The operator has not stated the placement epoch of the other backups.
    #[error(
        "backup {number} has placement epoch {epoch}: data has moved between nodes before, and every node has to be \
         restored from a backup with the same placement epoch. veche verify --backup shows those of a repository. If all \
         nodes have a backup with this one, repeat the command with --placement-epoch {epoch}, on every node"
    )]
    NotStated {
        /// The backup.
        number: BackupNumber,
        /// Its placement epoch.
        epoch: u64,
    },
    /// The operator has stated another placement epoch.
    #[error(
        "backup {number} has placement epoch {found}, not {stated}: with the backups of the other nodes, it may lack data \
         that moved between nodes. Restore every node from a backup with the same placement epoch{}",
        other(*.fitting, "here the newest with the stated one is backup")
    )]
    OtherPlacement {
        /// The backup.
        number: BackupNumber,
        /// Its placement epoch.
        found: u64,
        /// The stated one.
        stated: u64,
        /// The newest backup of the repository with the stated placement epoch.
        fitting: Option<BackupNumber>,
    },
}

fn other(number: Option<BackupNumber>, sentence: &str) -> String {
    number.map_or_else(String::new, |number| format!("; {sentence} {number}"))
}

/// Checks that a backup may be restored together with backups of all other nodes, whose placement
/// epoch the operator has stated.
///
/// # Errors
/// [`WholeClusterRefusal`].
pub fn check_whole_cluster(
    repository: &Repository,
    manifest: &BackupManifest,
    stated: Option<u64>,
) -> Result<(), WholeClusterRefusal> {
    let Some(layout) = &manifest.layout else { return Ok(()) };
    let newest = |is_meant: &dyn Fn(&BackupLayout) -> bool| {
        let numbers = repository.backups().unwrap_or_default();
        numbers.into_iter().rev().find(|number| {
            let other = repository.manifest(*number).ok().and_then(|other| other.layout);
            *number != manifest.number && other.is_some_and(|layout| is_meant(&layout))
        })
    };
    let (number, found) = (manifest.number, layout.placement_epoch);
    if layout.is_changing {
        let steady = newest(&|layout| !layout.is_changing);
        return Err(WholeClusterRefusal::Changing { number, steady });
    }
    match stated {
        None if found > 1 => Err(WholeClusterRefusal::NotStated { number, epoch: found }),
        Some(stated) if stated != found => {
            let fitting = newest(&|layout| layout.placement_epoch == stated && !layout.is_changing);
            Err(WholeClusterRefusal::OtherPlacement { number, found, stated, fitting })
        }
        _ => Ok(()),
    }
}
