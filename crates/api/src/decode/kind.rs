//! Kinds of requests, by which metrics count them.

use super::{
    Action, CHECKPOINT_PATH, ENTITIES_PATH, ENTITY_PATH, LAYOUT_PATH, METRICS_PATH, PROFILE_PATH, READY_PATH,
    REPAIR_PATH, ROOT_PATH, SLOW_PATH, STATUS_PATH,
};
use http::Method;
use http::request::Parts;

/// Kind of a request, independent of its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestKind {
    /// Read of one entity.
    Get,
    /// Read of the headers of one entity.
    Head,
    /// Write of one entity.
    Put,
    /// Delete of one entity.
    Delete,
    /// Range, up to its first page.
    Range,
    /// Later page of a range. It is not a request of its own.
    RangePage,
    /// Batch as a whole.
    Batch,
    /// Entry of a batch. It is not a request of its own.
    BatchEntry,
    /// Request about checkpoints.
    Checkpoint,
    /// Status of the node.
    Status,
    /// Layout record of the cluster, or a command on it.
    Layout,
    /// Metrics of the node.
    Metrics,
    /// Pass of anti-entropy.
    Repair,
    /// List of slow requests.
    Slow,
    /// Profile of the node.
    Profile,
    /// Readiness of the node.
    Ready,
    /// Page with links.
    Root,
    /// Request with an unknown path or method, or refused before these were known.
    Other,
}

impl RequestKind {
    /// All kinds, in order.
    pub const ALL: [Self; 18] = [
        Self::Get,
        Self::Head,
        Self::Put,
        Self::Delete,
        Self::Range,
        Self::RangePage,
        Self::Batch,
        Self::BatchEntry,
        Self::Checkpoint,
        Self::Status,
        Self::Layout,
        Self::Metrics,
        Self::Repair,
        Self::Slow,
        Self::Profile,
        Self::Ready,
        Self::Root,
        Self::Other,
    ];

    /// Kind of a request with this head. Only path and method count: the rest may be invalid.
    pub fn of(parts: &Parts) -> Self {
        let method = &parts.method;
        let is_get = matches!(*method, Method::GET | Method::HEAD);
        match parts.uri.path() {
            ENTITY_PATH => match *method {
                Method::GET => Self::Get,
                Method::HEAD => Self::Head,
                Method::PUT => Self::Put,
                Method::DELETE => Self::Delete,
                _ => Self::Other,
            },
            ENTITIES_PATH if *method == Method::GET => Self::Range,
            ENTITIES_PATH if *method == Method::POST => Self::Batch,
            CHECKPOINT_PATH if is_get || matches!(*method, Method::POST | Method::PUT | Method::DELETE) => {
                Self::Checkpoint
            }
            STATUS_PATH if is_get => Self::Status,
            LAYOUT_PATH if is_get || *method == Method::POST => Self::Layout,
            METRICS_PATH if is_get => Self::Metrics,
            REPAIR_PATH if *method == Method::POST => Self::Repair,
            SLOW_PATH if is_get => Self::Slow,
            PROFILE_PATH if *method == Method::GET => Self::Profile,
            READY_PATH if is_get => Self::Ready,
            ROOT_PATH | "*" if *method == Method::OPTIONS => Self::Ready,
            ROOT_PATH if is_get => Self::Root,
            _ => Self::Other,
        }
    }

    /// Name of the kind in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Head => "head",
            Self::Put => "put",
            Self::Delete => "delete",
            Self::Range => "range",
            Self::RangePage => "range_page",
            Self::Batch => "batch",
            Self::BatchEntry => "batch_entry",
            Self::Checkpoint => "checkpoint",
            Self::Status => "status",
            Self::Layout => "layout",
            Self::Metrics => "metrics",
            Self::Repair => "repair",
            Self::Slow => "slow",
            Self::Profile => "profile",
            Self::Ready => "ready",
            Self::Root => "root",
            Self::Other => "other",
        }
    }
}

impl From<Action> for RequestKind {
    fn from(action: Action) -> Self {
        match action {
            Action::Get => Self::Get,
            Action::Head => Self::Head,
            Action::Put { .. } => Self::Put,
            Action::Delete => Self::Delete,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    #[test]
    fn a_request_is_counted_by_path_and_method_only() {
        let kinds = [
            ("GET", "/v0/entity?id=", RequestKind::Get),
            ("HEAD", "/v0/entity", RequestKind::Head),
            ("PUT", "/v0/entity?nonsense", RequestKind::Put),
            ("DELETE", "/v0/entity?id=a", RequestKind::Delete),
            ("PATCH", "/v0/entity?id=a", RequestKind::Other),
            ("GET", "/v0/entities", RequestKind::Range),
            ("POST", "/v0/entities", RequestKind::Batch),
            ("PUT", "/v0/entities", RequestKind::Other),
            ("GET", "/v0/checkpoint", RequestKind::Checkpoint),
            ("POST", "/v0/checkpoint", RequestKind::Checkpoint),
            ("DELETE", "/v0/checkpoint", RequestKind::Checkpoint),
            ("PUT", "/v0/checkpoint", RequestKind::Checkpoint),
            ("HEAD", "/v0/status", RequestKind::Status),
            ("GET", "/v0/layout", RequestKind::Layout),
            ("POST", "/v0/layout", RequestKind::Layout),
            ("PUT", "/v0/layout", RequestKind::Other),
            ("GET", "/metrics?x=1", RequestKind::Metrics),
            ("POST", "/metrics", RequestKind::Other),
            ("POST", "/v0/repair", RequestKind::Repair),
            ("GET", "/v0/slow", RequestKind::Slow),
            ("POST", "/v0/slow", RequestKind::Other),
            ("GET", "/v0/profile?seconds=x", RequestKind::Profile),
            ("HEAD", "/v0/profile", RequestKind::Other),
            ("GET", "/", RequestKind::Root),
            ("HEAD", "/v0/ready", RequestKind::Ready),
            ("OPTIONS", "/", RequestKind::Ready),
            ("OPTIONS", "*", RequestKind::Ready),
            ("OPTIONS", "/v0/ready", RequestKind::Other),
        ];
        for (method, target, kind) in kinds {
            let (parts, ()) = Request::builder().method(method).uri(target).body(()).unwrap().into_parts();
            assert_eq!(RequestKind::of(&parts), kind, "{method} {target}");
        }
    }

    #[test]
    fn kinds_are_listed_in_order_with_names_of_their_own() {
        assert!(RequestKind::ALL.is_sorted_by(|a, b| a < b));
        assert!(RequestKind::ALL.iter().enumerate().all(|(index, kind)| *kind as usize == index));
        let mut names = RequestKind::ALL.map(RequestKind::name);
        names.sort_unstable();
        assert!(names.is_sorted_by(|a, b| a < b), "two kinds have the same name");
    }
}
