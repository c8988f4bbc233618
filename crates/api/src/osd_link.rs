//! An OSD's stream to the leading meta, for a data plane that sees two queues.
//!
//! A task on the control plane's runtime keeps the stream and follows the leader. The data-plane thread
//! calls [`OsdLink::try_send`] and [`OsdLink::try_recv`], which never block. The task calls `wake` when
//! a message can be received. Each new stream begins with [`OsdDown::Connected`], which the OSD answers
//! with a Hello and a full heartbeat; messages that it queued before that are dropped.

use crate::MESSAGE_LEN_MAX;
use crate::follow::Metas;
use crate::pb::{self, osd_client::OsdClient};
use crate::status::{self, Failure};
use control::find::{NAMED_AFTER, OSD_RETRY_AFTER};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use types::control::{OsdDown, OsdUp};

/// Messages that wait in each direction. A heartbeat or a Hello is one message.
pub const QUEUE_MAX: usize = 1024;
/// Pause after a refusal, which is not urgent.
const REFUSED_AFTER: Duration = Duration::from_secs(2);
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);

/// Called when the receiving thread should check its queue: writes to an eventfd, for example.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// The data plane's end of the link. Dropping it ends the task.
pub struct OsdLink {
    up: mpsc::Sender<OsdUp>,
    down: mpsc::Receiver<OsdDown>,
}

impl OsdLink {
    /// Queues a message; returns it when the queue is full.
    ///
    /// # Errors
    /// The message, which was not taken.
    #[allow(clippy::result_large_err)] // the message goes back to its owner, unboxed as it came
    pub fn try_send(&self, up: OsdUp) -> Result<(), OsdUp> {
        self.up.try_send(up).map_err(|e| match e {
            mpsc::error::TrySendError::Full(up) | mpsc::error::TrySendError::Closed(up) => up,
        })
    }

    /// Returns the next message from meta.
    pub fn try_recv(&mut self) -> Option<OsdDown> {
        self.down.try_recv().ok()
    }
}

/// Starts the task on `runtime`. `metas` are `host:port`.
pub fn start(runtime: &tokio::runtime::Handle, metas: Vec<String>, wake: Wake) -> OsdLink {
    let (up, up_rx) = mpsc::channel(QUEUE_MAX);
    let (down_tx, down) = mpsc::channel(QUEUE_MAX);
    let task = Task { metas: Metas::logged(metas), up: up_rx, down: down_tx, wake };
    runtime.spawn(task.run());
    OsdLink { up, down }
}

struct Task {
    metas: Metas,
    up: mpsc::Receiver<OsdUp>,
    down: mpsc::Sender<OsdDown>,
    wake: Wake,
}

/// End of a stream.
enum End {
    /// The data plane is gone, and the task stops.
    Dropped,
    Again(Duration),
}

impl Task {
    async fn run(mut self) {
        loop {
            let end = tokio::select! {
                () = self.down.closed() => End::Dropped,
                end = attempt(&self.metas, &mut self.up, &self.down, &self.wake) => end,
            };
            match end {
                End::Dropped => return,
                End::Again(after) => {
                    tokio::select! {
                        () = self.down.closed() => return,
                        () = tokio::time::sleep(after) => {}
                    }
                }
            }
        }
    }
}

async fn attempt(metas: &Metas, up: &mut mpsc::Receiver<OsdUp>, down: &mpsc::Sender<OsdDown>, wake: &Wake) -> End {
    let Ok(held) = metas.held().await else { return End::Again(OSD_RETRY_AFTER) };
    let (tx, rx) = mpsc::channel::<pb::OsdUp>(64);
    let mut rpc = OsdClient::new(held.channel).max_decoding_message_size(MESSAGE_LEN_MAX);
    let opened = tokio::time::timeout(OPEN_TIMEOUT, rpc.stream(ReceiverStream::new(rx))).await;
    let mut incoming = match opened {
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => {
            let (leader, after) = match status::read(&status) {
                Failure::NotLeader { leader: Some(leader), .. } => (Some(leader), NAMED_AFTER),
                Failure::NotLeader { leader: None, .. } | Failure::Lost(_) => (None, OSD_RETRY_AFTER),
                Failure::Refused(_) => (None, REFUSED_AFTER),
            };
            metas.failed(held.generation, leader).await;
            return End::Again(after);
        }
        Err(_) => {
            metas.failed(held.generation, None).await;
            return End::Again(OSD_RETRY_AFTER);
        }
    };
    while up.try_recv().is_ok() {}
    if down.send(OsdDown::Connected).await.is_err() {
        return End::Dropped;
    }
    wake();
    let end = carry(&mut incoming, &tx, up, down, wake).await;
    metas.failed(held.generation, None).await;
    end
}

/// Carries messages both ways until the stream ends.
async fn carry(
    incoming: &mut tonic::Streaming<pb::OsdDown>,
    tx: &mpsc::Sender<pb::OsdUp>,
    up: &mut mpsc::Receiver<OsdUp>,
    down: &mpsc::Sender<OsdDown>,
    wake: &Wake,
) -> End {
    let mut greeted = false;
    loop {
        tokio::select! {
            message = incoming.message() => {
                let message = match message {
                    Ok(Some(message)) => message,
                    Ok(None) => return End::Again(OSD_RETRY_AFTER),
                    Err(status) => {
                        tracing::debug!(%status, "the stream to meta ended");
                        return End::Again(OSD_RETRY_AFTER);
                    }
                };
                let message = match OsdDown::try_from(message) {
                    Ok(message) => message,
                    Err(why) => {
                        tracing::warn!(%why, "meta sent a malformed message");
                        return End::Again(REFUSED_AFTER);
                    }
                };
                let refused = matches!(message, OsdDown::Refused { .. });
                if down.send(message).await.is_err() {
                    return End::Dropped;
                }
                wake();
                if refused {
                    return End::Again(REFUSED_AFTER);
                }
            }
            message = up.recv() => {
                let Some(message) = message else { return End::Dropped };
                greeted |= matches!(message, OsdUp::Hello(_));
                if greeted && tx.send(message.into()).await.is_err() {
                    return End::Again(OSD_RETRY_AFTER);
                }
            }
        }
    }
}
