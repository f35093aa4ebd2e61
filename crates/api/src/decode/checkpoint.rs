//! Checkpoints: `POST` and `DELETE` on `/v0/checkpoint`.

use super::query::Parameters;
use super::{check_headers, check_no_parameters};
use crate::Problem;
use http::Method;
use http::request::Parts;

const METHODS: &str = "POST, DELETE";
const PARAMETERS: &[&str] = &["name"];

/// The longest name of a checkpoint, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// What is to be done with checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checkpoint {
    /// Make one.
    Make,
    /// Remove this one.
    Remove {
        /// Its name: letters, digits, `-`, `_` and `.`, which is not the first.
        name: String,
    },
}

pub(super) fn decode(parts: &Parts) -> Result<Checkpoint, Problem> {
    match parts.method {
        Method::POST => {
            check_headers(parts, false)?;
            check_no_parameters(parts)?;
            Ok(Checkpoint::Make)
        }
        Method::DELETE => {
            check_headers(parts, false)?;
            let parameters = Parameters::parse(parts.uri.query().unwrap_or_default(), PARAMETERS)?;
            let name = parameters.text("name")?.unwrap_or_default();
            let name = name_of(&name).ok_or_else(|| {
                Problem::bad_request(
                    "The parameter name is not that of a checkpoint. Use the one that its answer had.",
                )
            })?;
            Ok(Checkpoint::Remove { name })
        }
        _ => Err(Problem::method_not_allowed(METHODS)),
    }
}

/// A name that is one file's, in whatever directory it is looked for.
fn name_of(name: &[u8]) -> Option<String> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && name[0] != b'.' && name.iter().all(is_part);
    if is_name { String::from_utf8(name.to_vec()).ok() } else { None }
}
