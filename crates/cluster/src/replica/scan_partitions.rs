//! The pages that a node reads for scans of other nodes.
//!
//! A source sends the cells of its partitions. A checker reads the versions in the partitions that
//! it checks, and answers only that they are the same, if they are. The partitions follow from the
//! roles and the layout. One scan sends many requests with the same roles, so the partitions of the
//! last few roles are cached. A new layout begins with an empty cache.

use crate::{
    Member, PageRequest, PartitionSet, RangeDigest, ReplicaResponse, ScanLimit, ScanRequest, ScanRoles,
    ScanTask,
};

/// Number of cached roles.
const CACHED_MAX: usize = 8;
/// Greatest limit of a request for cells.
const CELLS_MAX: ScanLimit = ScanLimit { entries: 16 << 10, bytes: 1 << 20 };

/// Cache of the partitions that follow from roles.
#[derive(Debug, Default)]
pub(super) struct ScanPartitions {
    /// The latest is last.
    cached: Vec<RolePartitions>,
}

/// The partitions of this node in these roles.
#[derive(Debug)]
struct RolePartitions {
    roles: ScanRoles,
    sourced: PartitionSet,
    checked: PartitionSet,
}

impl ScanPartitions {
    /// The request to the store for a request of a scan.
    pub(super) fn page(&mut self, member: &Member, mut request: ScanRequest) -> PageRequest {
        let parts = self.partitions_of(member, &request.roles);
        let partitions = match &mut request.task {
            ScanTask::Cells { limit } => {
                limit.entries = limit.entries.min(CELLS_MAX.entries);
                limit.bytes = limit.bytes.min(CELLS_MAX.bytes);
                &parts.sourced
            }
            ScanTask::Check { .. } => &parts.checked,
        };
        let partitions = partitions.clone();
        request.into_page(partitions)
    }

    fn partitions_of(&mut self, member: &Member, roles: &ScanRoles) -> &RolePartitions {
        let parts = match self.cached.iter().position(|cached| cached.roles == *roles) {
            Some(at) => self.cached.remove(at),
            None => {
                let sourced = roles.sourced_by(&member.layout, member.me);
                let checked = roles.checked_by(&member.layout, member.me);
                RolePartitions { roles: roles.clone(), sourced, checked }
            }
        };
        if self.cached.len() == CACHED_MAX {
            self.cached.remove(0);
        }
        self.cached.push(parts);
        self.cached.last().expect("it was just inserted")
    }
}

/// The response to a check for this digest, from the store's response.
pub(super) fn checked(digest: RangeDigest, response: ReplicaResponse) -> ReplicaResponse {
    // The digest covers the whole range: the digest of a part of it proves nothing.
    if let ReplicaResponse::Page { page, rest: None } = &response
        && digest == RangeDigest::of(page.entries().map(|entry| (entry.key, entry.cell.meta.version)))
    {
        return ReplicaResponse::SamePage;
    }
    response
}
