//! The metadata server: one task owns [`control::Control`], and gRPC and HTTP services send it inputs.
//!
//! Ring 3. OSD streams, clients and administrators come in through tonic; transactions go out to a
//! [`metastore::Store`]. [`start`] returns the bound addresses; [`Meta::stop`] ends the meta in order.
//!
//! Invariant: one task owns the records, and performs the actions of `Control` in their order. A commit is
//! done before anything that rests on it leaves. When a commit fails, all waiting requests are dropped
//! unanswered, and the records are read again under a new leadership.

mod admin;
mod http;
mod metrics;
mod owner;
mod services;
mod socket;

pub use metrics::rows as metric_rows;

use metastore::{EtcdConfig, EtcdStore, MemStore, RedbStore, Store, StoreError};
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// The store of the records.
#[derive(Clone)]
pub enum StoreConfig {
    /// A redb file; this is the only meta.
    Redb { path: PathBuf },
    /// etcd; there may be other metas.
    Etcd(EtcdConfig),
    /// The memory of this process, for tests.
    Memory(MemStore),
}

impl StoreConfig {
    /// Opens the store; nothing of etcd is connected yet.
    ///
    /// # Errors
    /// When the file cannot be opened, or another process uses it.
    #[allow(clippy::unused_async)] // callers are on the runtime that the store will use
    pub async fn open(self) -> Result<Box<dyn Store>, StoreError> {
        Ok(match self {
            StoreConfig::Redb { path } => Box::new(RedbStore::open(&path)?),
            StoreConfig::Etcd(config) => Box::new(EtcdStore::new(config)),
            StoreConfig::Memory(store) => Box::new(store),
        })
    }
}

/// Settings of a meta.
#[derive(Clone)]
pub struct MetaConfig {
    /// gRPC; port 0 takes a free one.
    pub listen: SocketAddr,
    /// `/metrics`, `/healthz`, `/status`; `None` serves none.
    pub http: Option<SocketAddr>,
    /// The address that peers are told to connect to; the bound address when `None`.
    pub advertise: Option<String>,
    pub store: StoreConfig,
    /// Metrics of the process; the meta adds its own.
    pub registry: telemetry::Registry,
    /// Version of the program, for display only.
    pub version: String,
}

/// Reason why a meta does not start, or why it ended.
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    #[error("cannot listen on {addr}")]
    Listen { addr: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A restart would not help: an operator must look.
    #[error("the stored records cannot be used")]
    Records(#[from] control::LoadError),
    #[error("the gRPC server ended")]
    Server(#[source] tonic::transport::Error),
}

/// The leader, as far as this meta knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Leading,
    /// Another meta leads, or none. `why` is set while the store does not answer.
    Following {
        leader: Option<String>,
        why: Option<String>,
    },
}

/// A running meta. Dropping it lets it run on; [`Meta::stop`] ends it.
pub struct Meta {
    /// Address of the gRPC listener.
    pub addr: SocketAddr,
    /// Address of the HTTP listener.
    pub http: Option<SocketAddr>,
    stop: watch::Sender<bool>,
    owner: JoinHandle<Result<(), MetaError>>,
    servers: Vec<JoinHandle<()>>,
    role: watch::Receiver<Role>,
}

/// Most inputs that wait for the owner.
const INBOX_MAX: usize = 1024;
/// Time in which open calls may end when the meta stops.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// Binds, and starts the tasks on the present runtime. The meta may be following at first.
///
/// # Errors
/// When an address cannot be bound or the store cannot be opened.
pub async fn start(config: MetaConfig) -> Result<Meta, MetaError> {
    let (listener, addr) = bind(config.listen).await?;
    let http = match config.http {
        Some(addr) => Some(bind(addr).await?),
        None => None,
    };
    let store = config.store.open().await?;
    let (stop, stopped) = watch::channel(false);
    let (role_tx, role) = watch::channel(Role::Following { leader: None, why: None });
    let (inbox, inbox_rx) = mpsc::channel(INBOX_MAX);
    let (registry, cluster) = (config.registry, telemetry::Registry::default());
    let metrics = (metrics::MetaMetrics::new(&registry), metrics::ClusterMetrics::new(&cluster));
    let advertise = config.advertise.unwrap_or_else(|| addr.to_string());
    let mut owner = owner::Owner::new(store, advertise, inbox_rx, role_tx, stopped.clone(), metrics);
    let about = services::About { version: config.version.as_str().into(), started_ms: owner.wall_ms() };
    owner.version = config.version;
    let owner = tokio::spawn(owner.run());
    let served = services::serve(listener, inbox.clone(), role.clone(), about, stopped.clone());
    let mut servers = vec![tokio::spawn(served)];
    let http_addr = http.map(|(listener, addr)| {
        let state = http::Pages { registry, cluster, inbox, role: role.clone() };
        servers.push(tokio::spawn(http::serve(listener, state, stopped)));
        addr
    });
    Ok(Meta { addr, http: http_addr, stop, owner, servers, role })
}

async fn bind(addr: SocketAddr) -> Result<(TcpListener, SocketAddr), MetaError> {
    let listen = |source| MetaError::Listen { addr, source };
    let listener = TcpListener::bind(addr).await.map_err(listen)?;
    let bound = listener.local_addr().map_err(listen)?;
    Ok((listener, bound))
}

/// Runs a meta until `shutdown` is done or it fails; `ready` gets the addresses.
///
/// # Errors
/// See [`MetaError`].
pub async fn serve(
    config: MetaConfig,
    shutdown: impl Future<Output = ()>,
    ready: impl FnOnce(SocketAddr, Option<SocketAddr>),
) -> Result<(), MetaError> {
    let mut meta = start(config).await?;
    ready(meta.addr, meta.http);
    tokio::select! {
        () = shutdown => meta.stop().await,
        ended = &mut meta.owner => ended.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic())),
    }
}

impl Meta {
    /// Whether this meta leads now.
    pub fn is_leading(&self) -> bool {
        *self.role.borrow() == Role::Leading
    }

    /// Waits until this meta leads.
    pub async fn leading(&mut self) {
        // The sender lives as long as the owner; when the owner has ended, there is nothing to wait for.
        let _ = self.role.wait_for(|role| *role == Role::Leading).await;
    }

    /// Ends the meta: it gives the leadership up, and open calls get a moment to end.
    ///
    /// # Errors
    /// The error that the owner ended with.
    pub async fn stop(self) -> Result<(), MetaError> {
        let _ = self.stop.send(true);
        let ended = self.owner.await;
        for server in self.servers {
            let abort = server.abort_handle();
            if tokio::time::timeout(STOP_PATIENCE, server).await.is_err() {
                abort.abort();
            }
        }
        ended.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()))
    }

    /// Ends the meta as a crash would: the leadership is not given up, and no call is completed.
    pub fn kill(self) {
        self.owner.abort();
        self.servers.iter().for_each(JoinHandle::abort);
    }
}
