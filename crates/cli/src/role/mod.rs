//! Composition roots: each role puts its rooms, its threads and its endpoints together.

pub mod http;
pub mod meta;
pub mod nbd;
pub mod osd;
pub mod session;
pub mod tools;

use crate::errors::UserError;
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::Runtime;

/// The control plane's threads of a data-plane process: one worker is plenty.
pub fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("control")
        .enable_all()
        .build()
        .context("starting the control plane's thread")
}

/// The clock on the wall: for what people read, and for incarnations, which must grow from run to run.
#[allow(clippy::disallowed_methods, reason = "a composition root is where wall time enters")]
pub fn unix_now() -> std::time::Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Where a daemon that listens at `listen` serves HTTP unless told: one port above. Port 0 is any free one, here too.
///
/// # Errors
/// BSLT-1006 when there is no port above.
pub fn http_addr(listen: SocketAddr, told: Option<SocketAddr>) -> Result<SocketAddr, UserError> {
    let port = match listen.port() {
        0 => Some(0),
        port => port.checked_add(1),
    };
    let above = port.map(|port| SocketAddr::new(listen.ip(), port));
    let what = || UserError::new(1006, format!("{listen} has no port above it for HTTP"), "give --http HOST:PORT");
    told.or(above).ok_or_else(what)
}

/// Set when the process is asked to end.
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it at SIGTERM or SIGINT and wakes the loop.
    pub fn on_signal(runtime: &Runtime, waker: env::Waker) -> Stop {
        use tokio::signal::unix::{SignalKind, signal};
        let stop = Stop::default();
        let ours = stop.clone();
        runtime.spawn(async move {
            let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
                tracing::warn!("signals cannot be watched");
                return;
            };
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
            ours.0.store(true, Ordering::Relaxed);
            waker.wake();
        });
        stop
    }
}

/// What an env could not do, in the user's words.
pub fn env_error(error: env::EnvError) -> anyhow::Error {
    use env::EnvError as E;
    let text = error.to_string();
    // The parts of a message that say what to do are behind its first `;`.
    let what = text.split_once("; ").map_or(text.as_str(), |(what, _)| what);
    let (code, next) = match &error {
        E::NoDirectIo { .. } => (3001, "put the device on ext4 or xfs, or use a block device".to_owned()),
        E::Locked { path } => (3002, format!("fuser -v {}", path.display())),
        E::NoIoUring { .. } => (1010, "sysctl kernel.io_uring_disabled   # must print 0".to_owned()),
        E::Listen { addr, .. } => {
            (6001, format!("choose another address, or see who has it: ss -lxtnp | grep '{addr}'"))
        }
        E::Open { source, path } if source.kind() == std::io::ErrorKind::NotFound => {
            (1006, format!("look for it: ls -l {}; a new file needs --size", path.display()))
        }
        E::Open { path, .. } => (1006, format!("ls -l {}", path.display())),
        E::Ring(_) => (1006, "basalt explain 1010".to_owned()),
    };
    UserError::new(code, what, next).into()
}

#[cfg(test)]
mod tests {
    use super::http_addr;

    #[test]
    fn http_is_served_one_port_above_and_at_any_port_where_any_was_asked_for() {
        let addr = |text: &str| text.parse().expect("an address");
        assert_eq!(http_addr(addr("10.0.0.1:7410"), None).expect("one above"), addr("10.0.0.1:7411"));
        assert_eq!(http_addr(addr("127.0.0.1:0"), None).expect("any"), addr("127.0.0.1:0"), "not port 1");
        assert_eq!(http_addr(addr("[::1]:65535"), Some(addr("[::1]:9"))).expect("as told"), addr("[::1]:9"));
        assert_eq!(http_addr(addr("[::1]:65535"), None).expect_err("none above").code, 1006);
    }
}
