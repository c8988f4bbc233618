//! A log in group commit: one batch is in flight, and the next one fills meanwhile.

use super::ring::{RECEIVE_LEN, Ring, memory};
use super::{DEPTH_MAX, FRAME_LEN, FloorError, FloorMode, PAYLOAD_LEN, SERVERS, io};
use io_uring::{opcode, squeue::Flags, types::Fd, types::FsyncFlags};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Limit of the payloads that one receive can bring.
const RECEIVED_MAX: usize = RECEIVE_LEN / FRAME_LEN + 1;
/// Payloads that the receives of all connections of a server can bring: those to the other servers, and the client's.
const ROOM: usize = SERVERS * RECEIVED_MAX;
/// Length of a batch: a header block, then as many payloads as can be in flight, and one more receive of each connection. A
/// log that is slower than the majority lags behind the acknowledged writes.
const BATCH_LEN_MAX: usize = PAYLOAD_LEN * (1 + DEPTH_MAX as usize + ROOM);
/// Tag of a batch's last completion, and of a write that a flush follows.
pub const TAG_DONE: u64 = 100;
pub const TAG_WRITE: u64 = 101;

/// A write in the log, and the connection that it came by.
#[derive(Clone, Copy)]
pub struct Logged {
    pub from: usize,
    pub sequence: u64,
}

struct Batch {
    bytes: &'static mut [u8],
    len: usize,
    writes: Vec<Logged>,
}

impl Batch {
    fn new() -> Batch {
        Batch { bytes: memory(BATCH_LEN_MAX), len: PAYLOAD_LEN, writes: Vec::new() }
    }
}

pub struct Journal {
    file: File,
    size: u64,
    at: u64,
    mode: FloorMode,
    filling: Batch,
    going: Batch,
    busy: bool,
}

impl Journal {
    pub fn open(path: &Path, mode: FloorMode) -> Result<Journal, FloorError> {
        let file = direct(path)?;
        let size = file.metadata().map_err(io(path.display().to_string()))?.len();
        if size < 2 * BATCH_LEN_MAX as u64 {
            return Err(FloorError::Config(format!("log {} is too small: {size} B", path.display())));
        }
        Ok(Journal { file, size, at: 0, mode, filling: Batch::new(), going: Batch::new(), busy: false })
    }

    /// Whether everything that one receive of each connection can bring fits into the batch that fills.
    pub fn has_room(&self) -> bool {
        self.filling.len + ROOM * PAYLOAD_LEN <= BATCH_LEN_MAX
    }

    pub fn append(&mut self, write: Logged, payload: &[u8]) {
        let batch = &mut self.filling;
        batch.bytes[batch.len..][..PAYLOAD_LEN].copy_from_slice(payload);
        batch.len += PAYLOAD_LEN;
        batch.writes.push(write);
    }

    /// Starts the next batch if none is in flight.
    pub fn kick(&mut self, ring: &mut Ring) -> Result<(), FloorError> {
        if self.busy || self.filling.writes.is_empty() {
            return Ok(());
        }
        std::mem::swap(&mut self.filling, &mut self.going);
        self.busy = true;
        let len = self.going.len;
        if self.at + len as u64 > self.size {
            self.at = 0;
        }
        let fd = Fd(self.file.as_raw_fd());
        let write = opcode::Write::new(fd, self.going.bytes.as_ptr(), len as u32).offset(self.at).build();
        self.at += len as u64;
        match self.mode {
            FloorMode::Plp => ring.push(&write.user_data(TAG_DONE)),
            FloorMode::Sync => {
                ring.push(&write.flags(Flags::IO_LINK).user_data(TAG_WRITE))?;
                let sync = opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build();
                ring.push(&sync.user_data(TAG_DONE))
            }
        }
    }

    /// Ends the batch in flight, and moves its writes to `done`.
    pub fn done(&mut self, done: &mut Vec<Logged>) {
        self.busy = false;
        self.going.len = PAYLOAD_LEN;
        done.append(&mut self.going.writes);
    }
}

fn direct(path: &Path) -> Result<File, FloorError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_DIRECT);
    options.open(path).map_err(io(format!("{} (O_DIRECT)", path.display())))
}

/// Makes sure that the log is `len` long and was written once: uninitialised extents cost more.
pub fn prepare(path: &Path, len: u64) -> Result<(), FloorError> {
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.len() == len) {
        return Ok(());
    }
    let name = path.display().to_string();
    let mut file = direct(path)?;
    file.set_len(0).map_err(io(name.clone()))?;
    let zeros = types::IoBufMut::zeroed(1 << 20);
    for _ in 0..len >> 20 {
        file.write_all(&zeros).map_err(io(name.clone()))?;
    }
    file.sync_all().map_err(io(name))
}
