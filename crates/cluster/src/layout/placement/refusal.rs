//! Reasons why a change of the placement is refused.

use super::super::{MemberState, NODES_MAX, URL_BYTES_MAX, ZONE_BYTES_MAX};

/// The reason why a change of the placement is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementRefusal {
    /// The URL is not one of a member.
    #[error("{url} is not a member: `veche layout show` lists the members")]
    NotAMember {
        /// The URL.
        url: String,
    },
    /// A member that holds data, or will not hold any, is to be added.
    #[error("{url} is a member already, and is {}: name a node that joins", state.name())]
    NotJoining {
        /// URL of the member.
        url: String,
        /// State of the member.
        state: MemberState,
    },
    /// The changes name a member more than once.
    #[error("{url} is named more than once: name a node in one change, and not at all if it is removed")]
    NamedTwice {
        /// URL of the member.
        url: String,
    },
    /// The properties of a member that is to be removed do not matter.
    #[error("{url} is leaving: its weight and its zone do not matter any more")]
    Leaving {
        /// URL of the member.
        url: String,
    },
    /// A change is running.
    #[error("a change is running: wait for its end, or cancel it")]
    PlanRuns,
    /// The only member has no URL, and no other member could reach it.
    #[error("the only member has no URL: it gets one once another node joins by `veche serve --join`")]
    MemberWithoutUrl,
    /// A dead member is in the way.
    #[error("{url} is dead: add `--remove {url}` or `--replace {url}=NEW` to the request")]
    DeadMember {
        /// URL of the member.
        url: String,
    },
    /// Fewer members than the default number of replicas would hold data.
    #[error(
        "{remaining} nodes would hold data, and each key has {default_from} replicas: add {} more, or remove fewer",
        usize::from(*default_from) - remaining
    )]
    TooFewMembers {
        /// Number of members that would hold data.
        remaining: usize,
        /// The default number of replicas.
        default_from: u8,
    },
    /// There would be too many members while the change runs.
    #[error(
        "the cluster would have {members} members during the change, and has at most {NODES_MAX}: remove nodes first"
    )]
    TooManyMembers {
        /// Number of members, removed ones included.
        members: usize,
    },
    /// The weight is zero.
    #[error("the weight of {url} is 0: give at least 1, or remove the node")]
    WeightZero {
        /// URL of the member.
        url: String,
    },
    /// The URL of a node that joins is out of bounds.
    #[error("the URL of a node that joins has {len} bytes: give 1 to {URL_BYTES_MAX}")]
    UrlLength {
        /// Length of the URL, in bytes.
        len: usize,
    },
    /// The name of the zone is too long.
    #[error("the zone of {url} has {len} bytes: give at most {ZONE_BYTES_MAX}")]
    ZoneLength {
        /// URL of the member.
        url: String,
        /// Length of the name, in bytes.
        len: usize,
    },
}
