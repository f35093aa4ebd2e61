//! Commands on the layout: the body of `POST /v0/layout`.
//!
//! **Promise.** A body is understood in full or refused: an unknown command or field, a field twice
//! and a value out of bounds are never ignored.

use super::{check_headers, check_no_parameters, decode_node_read, is_content_coded};
use crate::{DecodedRequest, Problem};
use cluster::{PlacementChange, PlannedChange, RateLimit};
use http::request::Parts;
use http::{Method, StatusCode};
use serde::{Deserialize, Deserializer};

pub(super) const METHODS: &str = "GET, HEAD, POST";

/// Greatest length of the body of a command, in bytes.
pub const LAYOUT_BODY_BYTES_MAX: usize = 64 << 10;

/// A command on the layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutCommandRequest {
    /// Plan a change, and keep the plan at this node.
    Plan {
        /// The requested changes. Without any, the balance of the members is restored.
        changes: Vec<PlacementChange>,
        /// The rate at which its data moves. `None`: without a limit.
        rate_limit: Option<RateLimit>,
    },
    /// Begin the change of the plan that this node keeps.
    Apply {
        /// Name of the plan, in hexadecimal digits.
        plan: String,
    },
    /// Begin no further step of the running change.
    Pause,
    /// Go on with the paused change.
    Resume,
    /// End the running change, and take back its unfinished steps.
    Cancel,
    /// Set the rate at which data of the running change moves.
    Limit {
        /// The rate. `None`: without a limit.
        rate_limit: Option<RateLimit>,
    },
    /// Record that members do not come back.
    DeclareDead {
        /// URLs of the members, at least one.
        members: Vec<String>,
    },
}

/// The body as JSON. The variants without fields have braces, so that further fields are refused.
#[derive(Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
enum Body {
    Plan {
        #[serde(default)]
        add: Vec<String>,
        #[serde(default)]
        remove: Vec<String>,
        #[serde(default)]
        replace: Vec<Replacement>,
        #[serde(default)]
        weight: Vec<NewWeight>,
        #[serde(default)]
        zone: Vec<NewZone>,
        #[serde(default, deserialize_with = "rate_limit")]
        bytes_per_second: Option<RateLimit>,
    },
    Apply {
        plan: String,
    },
    Pause {},
    Resume {},
    Cancel {},
    Limit {
        /// `null` for no limit: a limit is not lifted by a missing field.
        #[serde(deserialize_with = "rate_limit")]
        bytes_per_second: Option<RateLimit>,
    },
    DeclareDead {
        members: Vec<String>,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Replacement {
    old: String,
    new: String,
    #[serde(default)]
    dead: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewWeight {
    url: String,
    weight: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewZone {
    url: String,
    zone: String,
}

fn rate_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<RateLimit>, D::Error> {
    let Some(bytes) = Option::<u64>::deserialize(deserializer)? else { return Ok(None) };
    let limit = RateLimit::new(bytes);
    limit.map(Some).ok_or_else(|| serde::de::Error::custom("bytes_per_second is at least 1, or null"))
}

/// Decodes the head of a request for the layout.
pub(super) fn decode(parts: &Parts) -> Result<DecodedRequest, Problem> {
    match parts.method {
        Method::GET | Method::HEAD => Ok(DecodedRequest::Layout { is_head: decode_node_read(parts)? }),
        Method::POST => {
            check_headers(parts, false)?;
            check_no_parameters(parts)?;
            if is_content_coded(parts) {
                return Err(Problem::content_coding(
                    "A command on the layout is JSON without a Content-Encoding. Nothing was done. Send it uncompressed.",
                ));
            }
            Ok(DecodedRequest::LayoutCommand)
        }
        _ => Err(Problem::method_not_allowed(METHODS)),
    }
}

impl LayoutCommandRequest {
    /// Decodes the body of a command.
    ///
    /// # Errors
    /// The response to a body that is no command.
    pub fn decode(body: &[u8]) -> Result<Self, Problem> {
        if body.len() > LAYOUT_BODY_BYTES_MAX {
            return Err(Self::too_large());
        }
        let body = serde_json::from_slice(body).map_err(|error| {
            Problem::bad_request(format!(
                "The body is not a command on the layout: {error}. Nothing was done. Send JSON such as \
                 {{\"command\":\"pause\"}}; the commands are plan, apply, pause, resume, cancel, limit and declare-dead."
            ))
        })?;
        Self::of(body)
    }

    /// `413`: the body of a command is too long.
    pub fn too_large() -> Problem {
        let detail = format!(
            "The body of a command on the layout has at most {LAYOUT_BODY_BYTES_MAX} bytes. Nothing was done. Name fewer nodes."
        );
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    fn of(body: Body) -> Result<Self, Problem> {
        Ok(match body {
            Body::Plan { add, remove, replace, weight, zone, bytes_per_second } => {
                let add = add.into_iter().map(|url| PlacementChange::Add { url });
                let remove = remove.into_iter().map(|url| PlacementChange::Remove { url });
                let replace = replace.into_iter().map(|Replacement { old, new, dead }| {
                    PlacementChange::Replace { old, new, is_dead: dead }
                });
                let weight = weight
                    .into_iter()
                    .map(|NewWeight { url, weight }| PlacementChange::Weight { url, weight });
                let zone = zone.into_iter().map(|NewZone { url, zone }| PlacementChange::Zone { url, zone });
                let changes = add.chain(remove).chain(replace).chain(weight).chain(zone).collect();
                Self::Plan { changes, rate_limit: bytes_per_second }
            }
            Body::Apply { plan } => {
                const DIGITS: usize = PlannedChange::NAME_DIGITS;
                let is_name = plan.len() == DIGITS && plan.bytes().all(|byte| byte.is_ascii_hexdigit());
                if !is_name {
                    let detail = format!(
                        "A plan is named by {DIGITS} hexadecimal digits. Give those that plan has answered."
                    );
                    return Err(Problem::bad_request(detail));
                }
                Self::Apply { plan: plan.to_ascii_lowercase() }
            }
            Body::Pause {} => Self::Pause,
            Body::Resume {} => Self::Resume,
            Body::Cancel {} => Self::Cancel,
            Body::Limit { bytes_per_second } => Self::Limit { rate_limit: bytes_per_second },
            Body::DeclareDead { members } if members.is_empty() => {
                return Err(Problem::bad_request("Name at least one member that does not come back."));
            }
            Body::DeclareDead { members } => Self::DeclareDead { members },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(body: &str) -> LayoutCommandRequest {
        LayoutCommandRequest::decode(body.as_bytes()).unwrap_or_else(|problem| panic!("{body}: {problem:?}"))
    }

    fn limit(bytes: u64) -> Option<RateLimit> {
        RateLimit::new(bytes)
    }

    #[test]
    fn each_command_is_decoded() {
        let url = |name: &str| format!("http://{name}:1");
        let plan = r#"{"command":"plan","add":["http://d:1"],"remove":["http://a:1"],
            "replace":[{"old":"http://b:1","new":"http://e:1","dead":true},{"old":"http://f:1","new":"http://g:1"}],
            "weight":[{"url":"http://c:1","weight":2}],"zone":[{"url":"http://c:1","zone":"west"}],
            "bytes_per_second":1048576}"#;
        let replace = |old: &str, new: &str, is_dead| PlacementChange::Replace {
            old: url(old),
            new: url(new),
            is_dead,
        };
        let changes = vec![
            PlacementChange::Add { url: url("d") },
            PlacementChange::Remove { url: url("a") },
            replace("b", "e", true),
            replace("f", "g", false),
            PlacementChange::Weight { url: url("c"), weight: 2 },
            PlacementChange::Zone { url: url("c"), zone: "west".to_owned() },
        ];
        let rate_limit = limit(1 << 20);
        assert_eq!(decoded(plan), LayoutCommandRequest::Plan { changes, rate_limit });
        let empty = LayoutCommandRequest::Plan { changes: Vec::new(), rate_limit: None };
        assert_eq!(decoded(r#"{"command":"plan"}"#), empty);
        let apply = LayoutCommandRequest::Apply { plan: "00000000000000ab".to_owned() };
        assert_eq!(decoded(r#"{"command":"apply","plan":"00000000000000AB"}"#), apply);
        assert_eq!(decoded(r#" {"command":"pause"} "#), LayoutCommandRequest::Pause);
        assert_eq!(decoded(r#"{"command":"resume"}"#), LayoutCommandRequest::Resume);
        assert_eq!(decoded(r#"{"command":"cancel"}"#), LayoutCommandRequest::Cancel);
        let limited = LayoutCommandRequest::Limit { rate_limit: limit(9) };
        assert_eq!(decoded(r#"{"bytes_per_second":9,"command":"limit"}"#), limited);
        let unlimited = LayoutCommandRequest::Limit { rate_limit: None };
        assert_eq!(decoded(r#"{"command":"limit","bytes_per_second":null}"#), unlimited);
        let dead = LayoutCommandRequest::DeclareDead { members: vec![url("a")] };
        assert_eq!(decoded(r#"{"command":"declare-dead","members":["http://a:1"]}"#), dead);
    }

    #[test]
    fn a_body_that_is_not_understood_in_full_is_refused() {
        for body in [
            "",
            "{}",
            "null",
            "[]",
            r#""pause""#,
            r#"{"command":"pause"}{"command":"pause"}"#,
            r#"{"command":"pause","x":1}"#,
            r#"{"command":"pause","command":"pause"}"#,
            r#"{"command":"Pause"}"#,
            r#"{"command":"join"}"#,
            r#"{"command":"limit"}"#,
            r#"{"command":"limit","bytes_per_second":0}"#,
            r#"{"command":"limit","bytes_per_second":-1}"#,
            r#"{"command":"limit","bytes_per_second":"1MiB"}"#,
            r#"{"command":"plan","bytes_per_second":0}"#,
            r#"{"command":"plan","add":"http://a:1"}"#,
            r#"{"command":"plan","add":[],"add":[]}"#,
            r#"{"command":"plan","default_from":3}"#,
            r#"{"command":"plan","weight":[{"url":"http://a:1","weight":65536}]}"#,
            r#"{"command":"plan","weight":[{"url":"http://a:1","weight":1,"x":1}]}"#,
            r#"{"command":"plan","replace":[{"old":"http://a:1"}]}"#,
            r#"{"command":"apply"}"#,
            r#"{"command":"apply","plan":"0"}"#,
            r#"{"command":"apply","plan":"gggggggggggggggg"}"#,
            r#"{"command":"declare-dead","members":[]}"#,
        ] {
            let problem = LayoutCommandRequest::decode(body.as_bytes()).expect_err(body);
            assert_eq!(problem.to_response(false).response.status(), 400, "{body}");
        }
        let long = vec![b' '; LAYOUT_BODY_BYTES_MAX + 1];
        let problem = LayoutCommandRequest::decode(&long).expect_err("it is too long");
        assert_eq!(problem.to_response(false).response.status(), 413);
    }

    proptest! {
        #[test]
        fn any_body_is_understood_or_refused(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Err(problem) = LayoutCommandRequest::decode(&body) {
                prop_assert_eq!(problem.to_response(false).response.status(), 400);
            }
        }

        #[test]
        fn any_damaged_command_is_understood_or_refused(
            at in 0_usize..200,
            byte in any::<u8>(),
            cut in 0_usize..200,
        ) {
            let mut body = br#"{"command":"plan","add":["http://d:1"],"weight":[{"url":"http://c:1","weight":2}]}"#.to_vec();
            let position = at % body.len();
            body[position] = byte;
            body.truncate(body.len() - cut % body.len());
            if let Err(problem) = LayoutCommandRequest::decode(&body) {
                prop_assert_eq!(problem.to_response(false).response.status(), 400);
            }
        }
    }
}
