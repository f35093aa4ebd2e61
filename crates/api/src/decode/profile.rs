//! Profiles: `GET /v0/profile`.

use super::check_headers;
use super::query::{Parameters, WholeNumber};
use crate::Problem;
use http::Method;
use http::request::Parts;
use std::time::Duration;

pub(super) const METHODS: &str = "GET";
const PARAMETERS: &[&str] = &["kind", "seconds"];

/// Longest profile, in seconds.
const SECONDS_MAX: u64 = 300;
/// Duration of a profile by default, in seconds.
const SECONDS_DEFAULT: u64 = 30;

/// A request for a profile of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileRequest {
    /// Measured resource.
    pub kind: ProfileKind,
    /// Duration, from 1 to 300 s.
    pub time: Duration,
}

/// Resource that a profile measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileKind {
    /// Processor time.
    Cpu,
    /// Allocated memory.
    Alloc,
    /// Time that requests wait.
    Wait,
}

pub(super) fn decode(parts: &Parts) -> Result<ProfileRequest, Problem> {
    if parts.method != Method::GET {
        return Err(Problem::method_not_allowed(METHODS));
    }
    check_headers(parts, false)?;
    let parameters = Parameters::parse(parts.uri.query().unwrap_or_default(), PARAMETERS)?;
    let kind = match parameters.text("kind")?.as_deref() {
        None | Some(b"cpu") => ProfileKind::Cpu,
        Some(b"alloc") => ProfileKind::Alloc,
        Some(b"wait") => ProfileKind::Wait,
        Some(_) => {
            let detail = "The parameter kind is not that of a profile. Use cpu, alloc or wait.";
            return Err(Problem::bad_request(detail));
        }
    };
    let seconds = match parameters.text("seconds")? {
        None => SECONDS_DEFAULT,
        Some(text) => {
            let given = WholeNumber::parse(&text).and_then(WholeNumber::value);
            let given = given.filter(|seconds| (1..=SECONDS_MAX).contains(seconds));
            given.ok_or_else(|| {
                Problem::bad_request(format!(
                    "The parameter seconds is not a whole number from 1 to {SECONDS_MAX}."
                ))
            })?
        }
    };
    Ok(ProfileRequest { kind, time: Duration::from_secs(seconds) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, StatusCode};

    fn decoded(method: &str, query: &str) -> Result<ProfileRequest, StatusCode> {
        let request = Request::builder().method(method).uri(format!("/v0/profile{query}"));
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        decode(&parts).map_err(|problem| problem.status())
    }

    #[test]
    fn a_profile_has_a_kind_and_a_time() {
        let profile = |kind, seconds| Ok(ProfileRequest { kind, time: Duration::from_secs(seconds) });
        assert_eq!(decoded("GET", ""), profile(ProfileKind::Cpu, 30));
        assert_eq!(decoded("GET", "?kind=cpu&seconds=1"), profile(ProfileKind::Cpu, 1));
        assert_eq!(decoded("GET", "?seconds=300&kind=alloc"), profile(ProfileKind::Alloc, 300));
        assert_eq!(decoded("GET", "?kind=wait"), profile(ProfileKind::Wait, 30));
    }

    #[test]
    fn invalid_kinds_times_and_methods_are_refused() {
        for query in [
            "?kind=",
            "?kind=heat",
            "?seconds=0",
            "?seconds=301",
            "?seconds=1.5",
            "?seconds=-1",
            "?seconds=",
            "?second=1",
            "?kind=cpu&kind=cpu",
        ] {
            assert_eq!(decoded("GET", query), Err(StatusCode::BAD_REQUEST), "{query}");
        }
        for method in ["HEAD", "POST"] {
            assert_eq!(decoded(method, ""), Err(StatusCode::METHOD_NOT_ALLOWED));
        }
    }
}
