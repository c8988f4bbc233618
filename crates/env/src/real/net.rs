//! Connections and listeners of the real form: the owners of descriptors, and when these may be closed.
//!
//! Invariant: a descriptor is closed only when no operation on it is in flight. Ids are never reused, because the
//! generation counts all connections of the process.

use super::{after_predecessor, sys};
use crate::op::{ConnId, EnvError, ListenerId, NetAddr};
use slab::Slab;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use types::Time;

/// One connection.
pub(super) struct Conn {
    generation: u32,
    fd: OwnedFd,
    /// Slab keys of the connection's flights.
    pub recv: Option<usize>,
    pub send: Option<usize>,
    pub closing: bool,
}

/// All connections.
#[derive(Default)]
pub(super) struct Conns {
    slots: Slab<Conn>,
    next_generation: u32,
}

impl Conns {
    pub fn add(&mut self, fd: OwnedFd) -> ConnId {
        let generation = self.next_generation;
        self.next_generation = generation.checked_add(1).expect("fewer than 2^32 connections in one life");
        let slot = self.slots.insert(Conn { generation, fd, recv: None, send: None, closing: false });
        ConnId { slot: u32::try_from(slot).expect("fewer than 2^32 connections"), generation }
    }

    /// Returns the connection, unless it is closed or closing.
    pub fn open(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.any(id).filter(|c| !c.closing)
    }

    fn any(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.slots.get_mut(id.slot as usize).filter(|c| c.generation == id.generation)
    }

    /// Notes that a flight has ended; closes the descriptor if that was awaited. Returns whether the connection was
    /// closing.
    pub fn landed(&mut self, id: ConnId, key: usize) -> bool {
        let conn = self.any(id).expect("a connection outlives the operations on it");
        for slot in [&mut conn.recv, &mut conn.send] {
            if *slot == Some(key) {
                *slot = None;
            }
        }
        let closing = conn.closing;
        self.reap(id);
        closing
    }

    /// Frees a closing connection without operations in flight.
    pub fn reap(&mut self, id: ConnId) {
        let idle = self.any(id).is_some_and(|c| c.closing && c.recv.is_none() && c.send.is_none());
        if idle {
            self.slots.remove(id.slot as usize);
        }
    }
}

impl Conn {
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// One listening socket.
pub(super) struct Listener {
    pub id: ListenerId,
    socket: OwnedFd,
    tcp: bool,
    /// The path that this listener bound, with its inode, to be removed at the end.
    bound: Option<(PathBuf, u64)>,
    /// An accept is in the ring.
    pub armed: bool,
    /// The kernel accepts many connections with one entry.
    pub multishot: bool,
    /// Time of the next accept after a failed one (for lack of descriptors, for example).
    pub retry_at: Time,
}

impl Listener {
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Prepares an accepted descriptor and returns its peer; `None` when it is already broken.
    pub fn greet(&self, fd: OwnedFd) -> Option<(OwnedFd, NetAddr)> {
        if !self.tcp {
            return Some((fd, NetAddr::Unnamed));
        }
        sys::tune_tcp(&fd).ok()?;
        let stream = TcpStream::from(fd);
        let peer = stream.peer_addr().ok()?;
        Some((stream.into(), NetAddr::Tcp(peer)))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some((path, inode)) = &self.bound
            && std::fs::symlink_metadata(path).is_ok_and(|m| m.ino() == *inode)
        {
            // A file that stays is harmless: the next listener finds it stale and replaces it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Listens; waits for a predecessor that still holds the address.
pub(super) fn listen(addr: &NetAddr, id: ListenerId) -> Result<(Listener, NetAddr), EnvError> {
    let is_taken =
        |e: &EnvError| matches!(e, EnvError::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse);
    after_predecessor(|| listen_now(addr, id), is_taken)
}

fn listen_now(addr: &NetAddr, id: ListenerId) -> Result<(Listener, NetAddr), EnvError> {
    let failed = |source: io::Error| EnvError::Listen { addr: addr.clone(), source };
    let (socket, tcp, bound, real) = match addr {
        NetAddr::Tcp(addr) => {
            let listener = TcpListener::bind(addr).map_err(failed)?;
            let real = listener.local_addr().map_err(failed)?;
            (OwnedFd::from(listener), true, None, NetAddr::Tcp(real))
        }
        NetAddr::Unix(path) => {
            let listener = bind_unix(path).map_err(failed)?;
            let inode = std::fs::symlink_metadata(path).map_err(failed)?.ino();
            (OwnedFd::from(listener), false, Some((path.clone(), inode)), addr.clone())
        }
        NetAddr::Unnamed => return Err(failed(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL))),
    };
    let listener = Listener { id, socket, tcp, bound, armed: false, multishot: true, retry_at: Time::ZERO };
    Ok((listener, real))
}

/// Binds a path; a stale socket file, on which no process listens, is replaced.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            let stale = std::fs::symlink_metadata(path)?.file_type().is_socket() && !sys::somebody_listens(path)?;
            if !stale {
                return Err(e);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }
}
