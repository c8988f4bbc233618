//! Requests to an S3 server over lines of any speed: one ends when no byte has moved for a while, and not because it takes long.
//!
//! The body of a request goes out in chunks. A chunk that is dropped has left the program, so its end is progress. Of an answer,
//! each part that comes is.

use bytes::Bytes;
use futures_util::future::poll_fn;
use http_body::{Body, Frame, SizeHint};
use object_store::PutPayload;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep};

/// Time without progress after which a request has failed.
const STALL: Duration = Duration::from_secs(60);
/// Bytes of a request whose departure is progress: some seconds on the slowest lines.
const CHUNK: usize = 64 << 10;

type Answering<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

/// Makes clients that watch the progress of their requests.
#[derive(Debug)]
pub struct Watching;

impl HttpConnector for Watching {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Client { inner }))
    }
}

#[derive(Debug)]
struct Client {
    inner: HttpClient,
}

impl HttpService for Client {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Answering<'b>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let moved = Arc::new(Notify::new());
            let request = in_chunks(request, &moved).await?;
            let answer = watched(&moved, || sleep(STALL), self.inner.execute(request)).await;
            let (parts, body) = answer.ok_or_else(stalled)??.into_parts();
            let body = HttpResponseBody::new(Answer { body, patience: Box::pin(sleep(STALL)) });
            Ok(HttpResponse::from_parts(parts, body))
        })
    }
}

fn stalled() -> HttpError {
    let reason = format!("no byte has moved for {} s", STALL.as_secs());
    HttpError::new(HttpErrorKind::Timeout, std::io::Error::new(std::io::ErrorKind::TimedOut, reason))
}

/// Waits for the end of work that makes progress; `None`: it has made none for as long as `patience` takes.
async fn watched<T, S: Future<Output = ()>>(
    moved: &Notify,
    patience: impl Fn() -> S,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            () = moved.notified() => {}
            () = patience() => return None,
        }
    }
}

/// A part of a request. Its end is progress.
struct Chunk {
    bytes: Bytes,
    moved: Arc<Notify>,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.moved.notify_one();
    }
}

/// Cuts the body of a request into chunks. The bytes are not copied.
async fn in_chunks(request: HttpRequest, moved: &Arc<Notify>) -> Result<HttpRequest, HttpError> {
    let (parts, mut body) = request.into_parts();
    // An object; other bodies are short.
    if body.as_bytes().is_some() {
        return Ok(HttpRequest::from_parts(parts, body));
    }
    let mut chunks: Vec<Bytes> = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(mut left) = frame?.into_data() else { continue };
        while !left.is_empty() {
            let bytes = left.split_to(left.len().min(CHUNK));
            chunks.push(Bytes::from_owner(Chunk { bytes, moved: Arc::clone(moved) }));
        }
    }
    let body = HttpRequestBody::from(chunks.into_iter().collect::<PutPayload>());
    Ok(HttpRequest::from_parts(parts, body))
}

/// The body of an answer.
struct Answer {
    body: HttpResponseBody,
    patience: Pin<Box<Sleep>>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let until = tokio::time::Instant::now() + STALL;
            self.patience.as_mut().reset(until);
            return Poll::Ready(frame);
        }
        ready!(self.patience.as_mut().poll(cx));
        Poll::Ready(Some(Err(stalled())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends at its third poll.
    fn three_polls() -> impl Future<Output = ()> {
        let mut left = 2;
        poll_fn(move |cx| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(work)
    }

    #[test]
    fn request_that_makes_progress_is_not_given_up() {
        let moved = Notify::new();
        let slow = async {
            for _ in 0..100 {
                moved.notify_one();
                tokio::task::yield_now().await;
            }
        };
        assert_eq!(run(watched(&moved, three_polls, slow)), Some(()));
        assert_eq!(run(watched(&moved, three_polls, std::future::pending::<()>())), None);
    }

    #[test]
    fn departure_of_each_part_of_an_object_is_progress() {
        let object: Vec<u8> = (0..CHUNK * 2 + 5).map(|n| n as u8).collect();
        let moved = Arc::new(Notify::new());
        let request = HttpRequest::new(PutPayload::from(object.clone()).into());
        // An attempt that is repeated keeps the object: that must hide no progress.
        let (_kept, request) = (request.clone(), run(in_chunks(request, &moved)).expect("memory"));
        let mut body = request.into_body();
        let mut sent = Vec::new();
        while let Some(frame) = run(poll_fn(|cx| Pin::new(&mut body).poll_frame(cx))) {
            let chunk = frame.expect("memory").into_data().expect("data");
            assert!(chunk.len() <= CHUNK);
            sent.push(chunk);
        }
        assert_eq!((sent.len(), sent.concat() == object), (3, true));
        drop(body);
        for chunk in sent {
            assert_eq!(run(watched(&moved, three_polls, std::future::pending::<()>())), None, "nothing has left");
            drop(chunk);
            run(moved.notified());
        }
    }
}
