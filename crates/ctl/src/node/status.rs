//! Whether a veche node answers at an address.

use super::{NodeAddress, SILENCE_MAX};
use crate::error::CtlError;
use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::Empty;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Maximum length of the response, in bytes.
const STATUS_BYTES_MAX: usize = 1 << 20;

/// The members that every version of the status has.
#[derive(Deserialize)]
#[allow(dead_code, reason = "read by the parser only")]
struct Status {
    state: String,
    nodes: Vec<IgnoredAny>,
}

impl NodeAddress {
    /// Waits for the status of the node, in whatever state it is.
    ///
    /// # Errors
    /// [`CtlError::Unreachable`], [`CtlError::BrokenAnswer`], [`CtlError::Refused`].
    pub async fn expect_status(&self) -> Result<(), CtlError> {
        let request =
            self.request(Method::GET, "/v0/status").body(Empty::<Bytes>::new()).expect("a valid request");
        let mut answer = self.send(request, SILENCE_MAX).await?;
        let text = answer.text(STATUS_BYTES_MAX).await?;
        let is_status = serde_json::from_slice::<Status>(&text).is_ok();
        match answer.status() {
            StatusCode::OK | StatusCode::SERVICE_UNAVAILABLE if is_status => Ok(()),
            StatusCode::OK => Err(CtlError::NotANode { node: self.to_string() }),
            _ => Err(answer.refusal(&text)),
        }
    }
}
