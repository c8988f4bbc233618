//! The gRPC services: they check an incoming message, pass it to the owner, and wait for the answer.

use crate::Role;
use crate::owner::{Answered, Input};
use crate::socket::Socket;
use api::pb::{
    self, admin_server::AdminServer, client_server, client_server::ClientServer, osd_server, osd_server::OsdServer,
};
use api::{MESSAGE_LEN_MAX, convert, status};
use control::StreamId;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};
use types::control::{ClientAnswer, ClientAsk, OsdUp};

/// Most messages that wait for one OSD; one more closes the stream.
const DOWN_MAX: usize = 8192;
/// Most calls that are under way on one connection.
const CALLS_MAX: usize = 512;
const KEEPALIVE: Duration = Duration::from_secs(3);

/// State that every call needs.
#[derive(Clone)]
pub(crate) struct Gate {
    pub inbox: mpsc::Sender<Input>,
    pub role: watch::Receiver<Role>,
    pub about: About,
    streams: Arc<AtomicU64>,
}

/// Report of a metadata server about itself.
#[derive(Clone)]
pub(crate) struct About {
    pub version: Arc<str>,
    /// Start time in milliseconds of the Unix clock.
    pub started_ms: u64,
}

impl Gate {
    /// # Errors
    /// When another meta leads, or none.
    #[allow(clippy::result_large_err)] // tonic's own error type
    pub fn leading(&self) -> Result<(), Status> {
        match &*self.role.borrow() {
            Role::Leading => Ok(()),
            Role::Following { leader, why } => Err(status::not_leader(leader.as_deref(), why.as_deref())),
        }
    }

    /// Passes an input to the owner and waits for the answer.
    pub async fn ask<T>(&self, input: impl FnOnce(oneshot::Sender<Answered<T>>) -> Input) -> Result<T, Status> {
        self.leading()?;
        let (answer, answered) = oneshot::channel();
        self.inbox.send(input(answer)).await.map_err(|_| Status::unavailable("this meta is stopping"))?;
        match answered.await {
            Ok(Answered::Answer(answer)) => Ok(answer),
            Ok(Answered::NotLeading) => Err(status::not_leader(None, None)),
            Err(_) => Err(Status::aborted("the leadership ended before the answer: it may have been done or not")),
        }
    }
}

/// Serves until stopped.
pub(crate) async fn serve(
    listener: TcpListener,
    inbox: mpsc::Sender<Input>,
    role: watch::Receiver<Role>,
    about: About,
    mut stopped: watch::Receiver<bool>,
) {
    let gate = Gate { inbox: inbox.clone(), role, about, streams: Arc::new(AtomicU64::new(1)) };
    let incoming = TcpListenerStream::new(listener).map(move |accepted| {
        accepted.map(|socket| {
            if let Err(e) = socket.set_nodelay(true) {
                tracing::debug!(%e, "no nodelay");
            }
            Socket::new(socket, inbox.clone())
        })
    });
    let served = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .concurrency_limit_per_connection(CALLS_MAX)
        .add_service(AdminServer::new(gate.clone()))
        .add_service(ClientServer::new(gate.clone()))
        .add_service(OsdServer::new(gate).max_decoding_message_size(MESSAGE_LEN_MAX))
        .serve_with_incoming_shutdown(incoming, async move {
            crate::owner::stop_asked(&mut stopped).await;
        })
        .await;
    if let Err(e) = served {
        tracing::error!(%e, "the gRPC server ended");
    }
}

#[tonic::async_trait]
impl client_server::Client for Gate {
    async fn ask(&self, request: Request<pb::ClientAskRequest>) -> Result<Response<pb::ClientAskReply>, Status> {
        let address = request.remote_addr().map_or_else(|| "unknown".to_string(), |a| a.to_string());
        let request = request.into_inner();
        let (client, id) = (request.client, request.id);
        let ask = request.ask.ok_or(convert::Malformed::Missing("ask")).and_then(ClientAsk::try_from);
        let ask = ask.map_err(|e| Status::invalid_argument(e.to_string()))?;
        let answer: ClientAnswer = Gate::ask(self, |answer| Input::Client { client, id, address, ask, answer }).await?;
        Ok(Response::new(answer.into()))
    }
}

type Down = Pin<Box<dyn Stream<Item = Result<pb::OsdDown, Status>> + Send>>;

#[tonic::async_trait]
impl osd_server::Osd for Gate {
    type StreamStream = Down;

    async fn stream(&self, request: Request<Streaming<pb::OsdUp>>) -> Result<Response<Down>, Status> {
        self.leading()?;
        let stream = StreamId(self.streams.fetch_add(1, Ordering::Relaxed));
        let (down, queue) = mpsc::channel(DOWN_MAX);
        let stopping = || Status::unavailable("this meta is stopping");
        self.inbox.send(Input::OsdNew { stream, down }).await.map_err(|_| stopping())?;
        tokio::spawn(pump(request.into_inner(), stream, self.inbox.clone()));
        let down = ReceiverStream::new(queue).filter_map(convert::osd_down).map(Ok);
        Ok(Response::new(Box::pin(down)))
    }
}

/// Passes the messages of an OSD to the owner, until either ends.
async fn pump(mut incoming: Streaming<pb::OsdUp>, stream: StreamId, inbox: mpsc::Sender<Input>) {
    loop {
        let up = match incoming.message().await {
            Ok(Some(message)) => OsdUp::try_from(message),
            Ok(None) | Err(_) => break,
        };
        match up {
            Ok(up) => {
                if inbox.send(Input::Osd { stream, up }).await.is_err() {
                    return;
                }
            }
            Err(why) => {
                tracing::warn!(%why, "an OSD sent a malformed message; its stream is closed");
                break;
            }
        }
    }
    let _ = inbox.send(Input::OsdGone { stream }).await;
}
