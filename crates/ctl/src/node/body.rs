//! The body of a request that is made while it is sent.

use bytes::Bytes;
use http_body::{Body, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// So many pieces wait to be sent at most.
const PIECES_MAX: usize = 2;

/// A body, and what fills it.
pub(crate) fn body() -> (BodySender, StreamedBody) {
    let (sender, receiver) = mpsc::channel(PIECES_MAX);
    (BodySender(sender), StreamedBody(receiver))
}

/// Fills a body. It ends when this is dropped.
pub(crate) struct BodySender(mpsc::Sender<Bytes>);

impl BodySender {
    /// Waits until there is room. Returns whether anybody still wants it.
    pub(crate) async fn send(&self, piece: Bytes) -> bool {
        self.0.send(piece).await.is_ok()
    }
}

/// See [`body`].
pub(crate) struct StreamedBody(mpsc::Receiver<Bytes>);

impl Body for StreamedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
