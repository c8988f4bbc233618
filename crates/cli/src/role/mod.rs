//! Composition roots: each role assembles its crates, its threads and its endpoints.

pub mod advertised;
pub mod format;
pub mod http;
mod late;
pub mod memory;
pub mod meta;
pub mod nbd;
mod nbd_device;
pub mod nbd_metrics;
pub mod osd;
pub mod process;
pub mod session;
mod signals;
pub mod tools;

pub use signals::{Signals, Stop};

use crate::address::Address;
use crate::errors::UserError;
use anyhow::{Context, Result};
use env::NetAddr;
use std::io::ErrorKind;
use std::net::SocketAddr;
use tokio::runtime::Runtime;
use types::codes;

/// Returns the runtime of the control plane in a data-plane process: one worker thread is enough.
pub fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("control")
        .enable_all()
        .build()
        .context("starting the control plane's thread")
}

/// Returns the wall clock, for display and for incarnations, which must differ from run to run.
#[allow(clippy::disallowed_methods, reason = "a composition root is where wall time enters")]
pub fn unix_now() -> std::time::Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Returns the HTTP address of a daemon that listens at `listen`: the given one, or one port above. Port 0 stays any
/// free one.
///
/// # Errors
/// BSLT-1006 when there is no port above, BSLT-4006 when a name cannot be resolved.
pub fn http_addr(listen: SocketAddr, told: Option<&Address>) -> Result<SocketAddr, UserError> {
    if let Some(told) = told {
        return told.resolve();
    }
    let port = match listen.port() {
        0 => Some(0),
        port => port.checked_add(1),
    };
    let above = port.map(|port| SocketAddr::new(listen.ip(), port));
    let what = || {
        UserError::new(codes::FILE_UNUSABLE, format!("{listen} has no port above it for HTTP"), "give --http HOST:PORT")
    };
    above.ok_or_else(what)
}

/// Returns the advice for an address that cannot be listened on.
fn listen_advice(addr: &NetAddr, why: &std::io::Error) -> String {
    match (addr, why.kind()) {
        (NetAddr::Unix(path), ErrorKind::NotFound) => {
            let folder = path.parent().unwrap_or(path).display();
            format!("mkdir -p {folder}")
        }
        (NetAddr::Unix(path), ErrorKind::PermissionDenied) => {
            let folder = path.parent().unwrap_or(path).display();
            format!("choose a folder that this user may write: ls -ld {folder}")
        }
        (NetAddr::Unix(_), ErrorKind::InvalidInput) => "choose a path of at most 107 bytes".to_owned(),
        (NetAddr::Unix(path), ErrorKind::AddrInUse) if !path_serves(path) => {
            format!("it is not a socket: move it away, or choose another path: ls -ld {}", path.display())
        }
        (NetAddr::Tcp(_), ErrorKind::PermissionDenied) => "choose a port from 1024 on".to_owned(),
        (NetAddr::Tcp(_), ErrorKind::AddrNotAvailable) => {
            "choose an address of this host: ip -brief address".to_owned()
        }
        (NetAddr::Unix(path), _) => {
            format!("choose another address; ss -lxnp | grep '{}' shows the listener", path.display())
        }
        _ => format!("choose another address; ss -ltnp | grep '{addr}' shows the listener"),
    }
}

fn path_serves(path: &std::path::Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

/// Returns an error of the env in the user's terms.
pub fn env_error(error: env::EnvError) -> anyhow::Error {
    use env::EnvError as E;
    let text = error.to_string();
    // The advice of a message follows its first `;`.
    let what = text.split_once("; ").map_or(text.as_str(), |(what, _)| what);
    let (code, next) = match &error {
        E::NoDirectIo { .. } => {
            (codes::NO_DIRECT_IO, "put the device on ext4 or xfs, or use a block device".to_owned())
        }
        E::Locked { path } => (codes::DEVICE_IN_USE, format!("fuser -v {}", path.display())),
        E::NoIoUring { .. } => (codes::NO_IO_URING, "sysctl kernel.io_uring_disabled   # must print 0".to_owned()),
        E::Listen { addr, source } => (codes::EXPORT_FAILED, listen_advice(addr, source)),
        E::Open { source, path } if source.kind() == std::io::ErrorKind::NotFound => {
            (codes::FILE_UNUSABLE, format!("check the path: ls -l {}; a new file needs --size", path.display()))
        }
        E::Open { path, .. } => (codes::FILE_UNUSABLE, format!("ls -l {}", path.display())),
        E::Random(_) => (codes::FILE_UNUSABLE, "dmesg   # must show why getrandom fails".to_owned()),
        E::Ring(_) => (codes::FILE_UNUSABLE, format!("basalt explain {}", codes::NO_IO_URING)),
    };
    UserError::new(code, what, next).into()
}

#[cfg(test)]
mod tests {
    use super::http_addr;

    #[test]
    fn http_is_served_one_port_above_and_at_any_port_where_any_was_asked_for() {
        let addr = |text: &str| text.parse::<std::net::SocketAddr>().expect("an address");
        assert_eq!(http_addr(addr("10.0.0.1:7410"), None).expect("one above"), addr("10.0.0.1:7411"));
        assert_eq!(http_addr(addr("127.0.0.1:0"), None).expect("any"), addr("127.0.0.1:0"), "not port 1");
        assert_eq!(http_addr(addr("[::1]:65535"), Some(&addr("[::1]:9").into())).expect("as told"), addr("[::1]:9"));
        assert_eq!(http_addr(addr("[::1]:65535"), None).expect_err("none above").code, 1006);
    }
}
