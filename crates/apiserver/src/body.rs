//! Bodies of answers: whole, made piece by piece, or endless.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use http_body::{Frame, SizeHint};

/// An answer's body.
pub enum Body {
    Whole(Option<Bytes>),
    /// Made when the connection asks for more, so that a slow client holds no more than one piece.
    Pieces(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
}

impl Body {
    pub fn empty() -> Body {
        Body::Whole(None)
    }

    pub fn whole(bytes: impl Into<Bytes>) -> Body {
        Body::Whole(Some(bytes.into()))
    }

    pub fn pieces(stream: impl Stream<Item = Bytes> + Send + 'static) -> Body {
        Body::Pieces(Box::pin(stream))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut *self {
            Body::Whole(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Body::Pieces(stream) => stream.as_mut().poll_next(cx).map(|piece| piece.map(|b| Ok(Frame::data(b)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Body::Pieces(_) => SizeHint::default(),
        }
    }
}
