//! Finds the leading meta: one connection at a time, to the last address that answered or was named as
//! leader.
//!
//! Addresses stay text. A name is resolved at each connect, so a meta may move behind its name.

use control::find::Finder;
use std::time::Duration;
use tokio::sync::Mutex;
use tonic::transport::{Channel, Endpoint};
use types::codes;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Additional time for a name: resolvers try one server after the other.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of keepalives; a silent peer is noticed after two intervals.
const KEEPALIVE: Duration = Duration::from_secs(2);

/// The metas of a cluster, shared by the calls of a process.
pub(crate) struct Metas {
    state: Mutex<State>,
}

struct State {
    finder: Finder,
    channel: Option<(Channel, String)>,
    generation: u64,
    /// Failed connects since the last successful one.
    failures: usize,
    /// Whether outages are logged: a daemon logs them, a command reports errors itself.
    logs: bool,
}

/// A connection, and its number for [`Metas::failed`].
pub(crate) struct Held {
    pub channel: Channel,
    /// Address of the connection.
    pub addr: String,
    pub generation: u64,
}

impl Metas {
    /// `addrs` are `host:port`, with or without `http://`.
    pub fn new(addrs: Vec<String>) -> Metas {
        let finder = Finder::new(addrs);
        let state = State { finder, channel: None, generation: 0, failures: 0, logs: false };
        Metas { state: Mutex::new(state) }
    }

    /// Returns the metas as [`Metas::new`] does; it also logs once when no address answers, and when
    /// one does again.
    pub fn logged(addrs: Vec<String>) -> Metas {
        let mut metas = Metas::new(addrs);
        metas.state.get_mut().logs = true;
        metas
    }

    /// Returns the present connection, or a new one to the next address.
    pub async fn held(&self) -> Result<Held, String> {
        let mut state = self.state.lock().await;
        if let Some((channel, addr)) = &state.channel {
            return Ok(Held { channel: channel.clone(), addr: addr.clone(), generation: state.generation });
        }
        let Some(addr) = state.finder.take() else { return Err("no address of a meta is known".to_string()) };
        let channel = match connect(&addr).await {
            Ok(channel) => channel,
            Err(why) => {
                state.failed_at(&addr, &why);
                return Err(format!("meta at {addr}: {why}"));
            }
        };
        state.answered(&addr);
        state.generation += 1;
        state.channel = Some((channel.clone(), addr.clone()));
        Ok(Held { channel, addr, generation: state.generation })
    }

    /// Returns how many addresses there are.
    pub async fn count(&self) -> usize {
        self.state.lock().await.finder.count()
    }

    /// Drops the connection with this number; `leader` is the next address, if known.
    pub async fn failed(&self, generation: u64, leader: Option<String>) {
        let mut state = self.state.lock().await;
        if state.generation == generation {
            state.channel = None;
            state.finder.failed(leader);
        }
    }
}

impl State {
    fn failed_at(&mut self, addr: &str, why: &str) {
        self.failures += 1;
        if self.logs && self.failures == self.finder.count() {
            tracing::warn!(addr, why, metas = self.finder.count(), "no metadata server answers; retrying");
        }
    }

    fn answered(&mut self, addr: &str) {
        let failures = std::mem::take(&mut self.failures);
        if self.logs && failures >= self.finder.count() {
            tracing::info!(addr, attempts = failures, "a metadata server answers again");
        }
    }
}

/// Whether the error of a connect says that a name has no address.
pub(crate) fn is_unresolved(why: &str) -> bool {
    why.contains(&codes::label(codes::HOST_NAME_UNRESOLVED))
}

/// Returns the messages of an error and of its causes, without those that carry no information.
fn words(error: &dyn std::error::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut cause = Some(error);
    while let Some(error) = cause {
        let text = error.to_string();
        let text = match text.strip_prefix("failed to lookup address information: ") {
            Some(why) => format!("the name cannot be resolved ({}): {why}", codes::label(codes::HOST_NAME_UNRESOLVED)),
            None => text,
        };
        let empty = ["transport error", "dns error", "tcp connect error"].contains(&text.as_str());
        if !empty && !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
        cause = error.source();
    }
    if parts.is_empty() { error.to_string() } else { parts.join(": ") }
}

pub(crate) async fn connect(addr: &str) -> Result<Channel, String> {
    let uri = if addr.contains("://") { addr.to_string() } else { format!("http://{addr}") };
    let endpoint = Endpoint::from_shared(uri).map_err(|e| e.to_string())?;
    let endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true);
    let host = addr.rsplit("://").next().and_then(|at| at.rsplit_once(':')).map_or("", |(host, _)| host);
    let is_name = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_err();
    let limit = CONNECT_TIMEOUT * 2 + if is_name { RESOLVE_TIMEOUT } else { Duration::ZERO };
    match tokio::time::timeout(limit, endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(e)) => Err(words(&e)),
        Err(_) => Err("no connection in time".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Metas, connect};

    #[tokio::test]
    async fn a_name_is_resolved_at_the_connect_and_one_that_cannot_be_is_said() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        drop(listener);
        let refused = connect(&format!("localhost:{port}")).await.expect_err("nothing listens");
        assert!(refused.contains("refused"), "{refused}");
        let metas = Metas::logged(vec!["nowhere.invalid:7300".to_owned()]);
        let why = metas.held().await.map(|_| ()).expect_err("no such name");
        assert!(why.starts_with("meta at nowhere.invalid:7300: ") && why.contains("BSLT-4006"), "{why}");
    }
}
