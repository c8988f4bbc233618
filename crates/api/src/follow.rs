//! Finding the leading meta: one connection at a time, to the address that answered or was named last.

use std::time::Duration;
use tokio::sync::Mutex;
use tonic::transport::{Channel, Endpoint};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A silent peer is noticed after this and as much again.
const KEEPALIVE: Duration = Duration::from_secs(2);

/// The metas of a cluster, shared by the calls of a process.
pub(crate) struct Metas {
    state: Mutex<State>,
}

struct State {
    addrs: Vec<String>,
    next: usize,
    /// Who was said to lead; tried before the list.
    hint: Option<String>,
    channel: Option<Channel>,
    generation: u64,
}

/// A connection, and its number for [`Metas::failed`].
pub(crate) struct Held {
    pub channel: Channel,
    pub generation: u64,
}

impl Metas {
    /// `addrs` are `host:port`, with or without `http://`.
    pub fn new(addrs: Vec<String>) -> Metas {
        let state = State { addrs, next: 0, hint: None, channel: None, generation: 0 };
        Metas { state: Mutex::new(state) }
    }

    /// The present connection, or a new one to the next address.
    pub async fn held(&self) -> Result<Held, String> {
        let mut state = self.state.lock().await;
        if let Some(channel) = &state.channel {
            return Ok(Held { channel: channel.clone(), generation: state.generation });
        }
        let addr = match state.hint.take() {
            Some(hint) => hint,
            None if state.addrs.is_empty() => return Err("no address of a meta is known".to_string()),
            None => {
                state.next = (state.next + 1) % state.addrs.len();
                state.addrs[(state.next + state.addrs.len() - 1) % state.addrs.len()].clone()
            }
        };
        let channel = connect(&addr).await.map_err(|why| format!("meta at {addr}: {why}"))?;
        state.generation += 1;
        state.channel = Some(channel.clone());
        Ok(Held { channel, generation: state.generation })
    }

    /// That connection is of no use; `leader` is where to go next, if known.
    pub async fn failed(&self, generation: u64, leader: Option<String>) {
        let mut state = self.state.lock().await;
        if state.generation == generation {
            state.channel = None;
            state.hint = leader;
        }
    }
}

async fn connect(addr: &str) -> Result<Channel, String> {
    let uri = if addr.contains("://") { addr.to_string() } else { format!("http://{addr}") };
    let endpoint = Endpoint::from_shared(uri).map_err(|e| e.to_string())?;
    let endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true);
    match tokio::time::timeout(CONNECT_TIMEOUT * 2, endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(e)) => Err(std::error::Error::source(&e).map_or_else(|| e.to_string(), |s| format!("{e}: {s}"))),
        Err(_) => Err("no connection in time".to_string()),
    }
}
