//! A client's requests to the leading meta, for a data plane that sees two queues.
//!
//! Each request has an id that comes back with its answer. A lost request is sent again, to the meta
//! that leads by then, under the same (client, id), so that an open is not taken twice. Every request is
//! answered: by the leader, or after its patience with a refusal META_UNAVAILABLE (BSLT-2001).

use crate::convert::client_ask;
use crate::follow::Metas;
use crate::osd_link::Wake;
use crate::pb::client_client::ClientClient;
use crate::status::{self, Failure};
use crate::{MESSAGE_LEN_MAX, pb};
use control::find::{CLIENT_RETRY_AFTER, NAMED_AFTER, patience};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use types::codes;
use types::control::{ClientAnswer, ClientAsk, Refusal};

/// Most requests that wait to be sent, and most answers that wait to be read.
pub const QUEUE_MAX: usize = 1024;
/// Most requests that are under way at once.
const UNDER_WAY_MAX: usize = 256;

/// The data plane's end of the link. Dropping it ends the task.
pub struct ClientLink {
    asks: mpsc::Sender<(u64, ClientAsk)>,
    answers: mpsc::Receiver<(u64, ClientAnswer)>,
}

impl ClientLink {
    /// Queues a request; `id` is unique in this link. Returns the request when the queue is full.
    ///
    /// # Errors
    /// The request, which was not taken.
    pub fn try_ask(&self, id: u64, ask: ClientAsk) -> Result<(), ClientAsk> {
        self.asks.try_send((id, ask)).map_err(|e| match e {
            mpsc::error::TrySendError::Full((_, ask)) | mpsc::error::TrySendError::Closed((_, ask)) => ask,
        })
    }

    /// Returns the next answer, with the id of its request.
    pub fn try_recv(&mut self) -> Option<(u64, ClientAnswer)> {
        self.answers.try_recv().ok()
    }
}

/// Starts the task on `runtime`. `client` names this process, for example a random number; `metas` are
/// `host:port`.
pub fn start(runtime: &tokio::runtime::Handle, metas: Vec<String>, client: u64, wake: Wake) -> ClientLink {
    let (asks, asks_rx) = mpsc::channel(QUEUE_MAX);
    let (answers_tx, answers) = mpsc::channel(QUEUE_MAX);
    runtime.spawn(run(Arc::new(Metas::logged(metas)), client, asks_rx, answers_tx, wake));
    ClientLink { asks, answers }
}

async fn run(
    metas: Arc<Metas>,
    client: u64,
    mut asks: mpsc::Receiver<(u64, ClientAsk)>,
    answers: mpsc::Sender<(u64, ClientAnswer)>,
    wake: Wake,
) {
    let mut under_way: JoinSet<(u64, ClientAnswer)> = JoinSet::new();
    loop {
        tokio::select! {
            ask = asks.recv(), if under_way.len() < UNDER_WAY_MAX => {
                let Some((id, ask)) = ask else { return };
                under_way.spawn(answer(Arc::clone(&metas), client, id, ask));
            }
            Some(done) = under_way.join_next() => {
                let done = done.expect("a question does not panic and is not aborted");
                if answers.send(done).await.is_err() {
                    return;
                }
                wake();
            }
        }
    }
}

async fn answer(metas: Arc<Metas>, client: u64, id: u64, ask: ClientAsk) -> (u64, ClientAnswer) {
    let patience = patience(&ask);
    let request = client_ask(client, id, ask);
    let asking = insist(&metas, request);
    let answer = match patience {
        None => asking.await,
        Some(limit) => tokio::time::timeout(limit, asking).await.unwrap_or_else(|_| {
            let why = format!("no metadata server gave an answer in {} s", limit.as_secs());
            ClientAnswer::Refused(control::refuse(codes::META_UNAVAILABLE, why))
        }),
    };
    (id, answer)
}

/// Repeats the request until a leading meta has answered.
async fn insist(metas: &Metas, request: pb::ClientAskRequest) -> ClientAnswer {
    loop {
        let Ok(held) = metas.held().await else {
            tokio::time::sleep(CLIENT_RETRY_AFTER).await;
            continue;
        };
        let mut rpc = ClientClient::new(held.channel).max_decoding_message_size(MESSAGE_LEN_MAX);
        let failure = match rpc.ask(request.clone()).await {
            Ok(reply) => match ClientAnswer::try_from(reply.into_inner()) {
                Ok(answer) => return answer,
                Err(why) => {
                    let code = codes::BAD_REQUEST;
                    let message = format!("the metadata server sent a malformed answer: {why}");
                    return ClientAnswer::Refused(Refusal { code, message });
                }
            },
            Err(status) => status::read(&status),
        };
        let leader = match failure {
            Failure::Refused(refusal) => return ClientAnswer::Refused(refusal),
            Failure::NotLeader { leader, .. } => leader,
            Failure::Lost(why) => {
                tracing::debug!(%why, "a request to the metadata server was dropped");
                None
            }
        };
        let pause = if leader.is_some() { NAMED_AFTER } else { CLIENT_RETRY_AFTER };
        metas.failed(held.generation, leader).await;
        tokio::time::sleep(pause).await;
    }
}
