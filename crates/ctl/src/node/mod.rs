//! HTTP client of a running node.
//!
//! Each request uses a new connection, because requests are few and long. A request fails if the
//! node is silent for [`SILENCE_MAX`]; a response that keeps arriving may take any time.

mod body;
mod checkpoint;
mod status;

pub(crate) use body::{BodySender, body};
pub use checkpoint::NodeCheckpoint;

use crate::error::CtlError;
use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::fmt;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Timeout of connecting.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Maximum silence of a node within a response.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Maximum length of a problem document, in bytes; the rest is ignored.
const PROBLEM_BYTES_MAX: usize = 64 << 10;

/// Address of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    authority: String,
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

impl NodeAddress {
    /// Creates the address from `host:port`.
    pub fn new(authority: &str) -> Self {
        Self { authority: authority.to_owned() }
    }

    /// Starts a request for `target`, a path with or without a query.
    pub(crate) fn request(&self, method: http::Method, target: &str) -> http::request::Builder {
        Request::builder().method(method).uri(target).header(http::header::HOST, &self.authority)
    }

    /// Sends a request. Returns when the head of the response has arrived, which may be before the
    /// end of the request.
    pub(crate) async fn send<B>(&self, request: Request<B>, patience: Duration) -> Result<Answer, CtlError>
    where
        B: Body<Data = Bytes, Error = std::convert::Infallible> + Send + 'static,
    {
        let unreachable = |detail: String| CtlError::Unreachable { node: self.to_string(), detail };
        let socket = match timeout(CONNECT_MAX, TcpStream::connect(&self.authority)).await {
            Ok(connected) => connected.map_err(|error| unreachable(error.to_string()))?,
            Err(_) => return Err(unreachable("the connection attempt timed out".to_owned())),
        };
        socket.set_nodelay(true).map_err(|error| unreachable(error.to_string()))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(socket)).await.map_err(|error| unreachable(error.to_string()))?;
        // The request or the response reports the same error.
        let connection = Connection(tokio::spawn(async { drop(connection.await) }));
        let broken = |detail: String| CtlError::BrokenAnswer { node: self.to_string(), detail };
        match timeout(patience, sender.send_request(request)).await {
            Ok(Ok(response)) => Ok(Answer { node: self.clone(), response, _connection: connection }),
            Ok(Err(error)) => Err(broken(with_source(&error))),
            Err(_) => Err(broken(format!("it sent nothing for {} s", patience.as_secs()))),
        }
    }
}

/// A connection task, aborted when this is dropped.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Response to a request, whose body may still be arriving.
pub(crate) struct Answer {
    node: NodeAddress,
    response: Response<Incoming>,
    _connection: Connection,
}

impl Answer {
    pub(crate) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(crate) fn header(&self, name: http::HeaderName) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// Next piece of the body; `None` at its end.
    ///
    /// # Errors
    /// [`CtlError::BrokenAnswer`] if the body is cut short.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, CtlError> {
        self.next_within(SILENCE_MAX).await
    }

    /// Next piece of the body, from a node that may be silent for `silence_max`.
    ///
    /// # Errors
    /// [`CtlError::BrokenAnswer`] if the body is cut short.
    pub(crate) async fn next_within(&mut self, silence_max: Duration) -> Result<Option<Bytes>, CtlError> {
        loop {
            let broken = |detail: String| CtlError::BrokenAnswer { node: self.node.to_string(), detail };
            match timeout(silence_max, self.response.frame()).await {
                Ok(None) => return Ok(None),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Ok(Some(Err(error))) => return Err(broken(with_source(&error))),
                Err(_) => return Err(broken(format!("it sent nothing for {} s", silence_max.as_secs()))),
            }
        }
    }

    /// Returns the response if it has the expected status.
    ///
    /// # Errors
    /// [`CtlError::Refused`] with the node's problem document.
    pub(crate) async fn expect(self, status: StatusCode) -> Result<Self, CtlError> {
        if self.status() == status { Ok(self) } else { Err(self.into_refusal().await) }
    }

    /// Reads the body, at most `bytes_max` bytes of it.
    pub(crate) async fn text(&mut self, bytes_max: usize) -> Result<BytesMut, CtlError> {
        let mut text = BytesMut::new();
        while text.len() < bytes_max
            && let Some(piece) = self.next().await?
        {
            text.extend_from_slice(&piece[..piece.len().min(bytes_max - text.len())]);
        }
        Ok(text)
    }

    /// Converts the response to an error with the node's problem document.
    pub(crate) async fn into_refusal(mut self) -> CtlError {
        let text = self.text(PROBLEM_BYTES_MAX).await.unwrap_or_default();
        self.refusal(&text)
    }

    /// The error for a response whose body is this problem document.
    fn refusal(&self, text: &[u8]) -> CtlError {
        #[derive(Deserialize)]
        struct Problem {
            detail: String,
        }
        let retry_after = self.header(http::header::RETRY_AFTER).and_then(|secs| secs.parse().ok());
        let detail = serde_json::from_slice(text).map_or_else(|_| String::new(), |Problem { detail }| detail);
        let (node, status) = (self.node.to_string(), self.status().as_u16());
        CtlError::Refused { node, status, detail, retry_after: retry_after.map(Duration::from_secs) }
    }
}

/// Text of a hyper error with its source, which has the useful part.
fn with_source(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
