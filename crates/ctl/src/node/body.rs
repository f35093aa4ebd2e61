//! Request bodies that are produced while they are sent.

use bytes::Bytes;
use http_body::{Body, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Maximum number of pieces that wait to be sent.
const PIECES_MAX: usize = 2;

/// Creates a body and its sender.
pub(crate) fn body() -> (BodySender, StreamedBody) {
    let (sender, receiver) = mpsc::channel(PIECES_MAX);
    (BodySender(sender), StreamedBody(receiver))
}

/// Sender of a body. Dropping it ends the body.
pub(crate) struct BodySender(mpsc::Sender<Bytes>);

impl BodySender {
    /// Waits for capacity and sends a piece. Returns `false` if the body was dropped.
    pub(crate) async fn send(&self, piece: Bytes) -> bool {
        self.0.send(piece).await.is_ok()
    }
}

/// A body whose pieces come from a [`BodySender`].
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
