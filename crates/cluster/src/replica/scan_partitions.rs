//! The part of a node in the scans of others.
//!
//! A source sends the cells of its partitions. A checker reads what it holds of the partitions that it checks, without
//! values, and says nothing but that it is the same, if it is. Which partitions these are follows from the roles alone;
//! as one scan asks for its parts many times, the last few answers to that are kept.

use crate::{
    Member, PageContent, PageRequest, PartitionSet, RangeDigest, ScanAnswer, ScanLimit, ScanRequest,
    ScanRoles, ScanTask, StoreRequest,
};

/// Roles of which the partitions are remembered.
const CACHED_MAX: usize = 8;
/// What may be asked for at once.
const CELLS_MAX: ScanLimit = ScanLimit { entries: 16 << 10, bytes: 1 << 20 };
/// What is compared at once; more than sources send at once.
const CHECK: ScanLimit = ScanLimit { entries: 16 << 10, bytes: 1 << 20 };

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ScanPartitions {
    /// The latest last.
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
    /// What the store is to read.
    pub(super) fn page(&mut self, member: &Member, request: ScanRequest) -> StoreRequest {
        let ScanRequest { snapshot, range, roles, at, dead_since, task } = request;
        let parts = self.partitions_of(member, roles);
        let content = |versions_only| PageContent::Cells { at, dead_since, versions_only };
        StoreRequest::ReadPage(match task {
            ScanTask::Cells { limit } => PageRequest {
                snapshot,
                range,
                partitions: Some(parts.sourced.clone()),
                limit: ScanLimit {
                    entries: limit.entries.min(CELLS_MAX.entries),
                    bytes: limit.bytes.min(CELLS_MAX.bytes),
                },
                content: content(false),
            },
            ScanTask::Check { .. } => PageRequest {
                snapshot,
                range,
                partitions: Some(parts.checked.clone()),
                limit: CHECK,
                content: content(true),
            },
        })
    }

    fn partitions_of(&mut self, member: &Member, roles: ScanRoles) -> &RolePartitions {
        let parts = match self.cached.iter().position(|cached| cached.roles == roles) {
            Some(at) => self.cached.remove(at),
            None => {
                let sourced = roles.sourced_by(&member.layout, member.me);
                let checked = roles.checked_by(&member.layout, member.me);
                RolePartitions { roles, sourced, checked }
            }
        };
        if self.cached.len() == CACHED_MAX {
            self.cached.remove(0);
        }
        self.cached.push(parts);
        self.cached.last().expect("it was put there a moment ago")
    }
}

/// The answer to a check for this digest, when the store answered with this page.
pub(super) fn checked(digest: RangeDigest, answer: ScanAnswer) -> ScanAnswer {
    // A digest is one of the whole range: that of a part says nothing.
    if let ScanAnswer::Page { page, rest: None } = &answer
        && digest == RangeDigest::of(page.entries().map(|entry| (entry.key, entry.cell.meta.version)))
    {
        return ScanAnswer::Same;
    }
    answer
}
