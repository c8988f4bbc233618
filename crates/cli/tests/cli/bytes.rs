//! Reads and writes volumes over NBD, with the part of the protocol that this needs.

use crate::dev::Dev;
use std::io::{Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;

const STEP: usize = 1 << 20;

/// A connection to an export.
pub struct Nbd {
    stream: UnixStream,
    /// The size as the export told it to this connection.
    pub len_bytes: usize,
}

impl Nbd {
    /// Connects to the export of `volume` at `socket`.
    pub fn connect(socket: &str, volume: &str) -> Result<Nbd> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20)))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle, no zeroes; then NBD_OPT_EXPORT_NAME.
        stream.write_all(&3u32.to_be_bytes())?;
        stream.write_all(b"IHAVEOPT\0\0\0\x01")?;
        stream.write_all(&(volume.len() as u32).to_be_bytes())?;
        stream.write_all(volume.as_bytes())?;
        let mut export = [0; 10];
        stream.read_exact(&mut export)?;
        let len_bytes = u64::from_be_bytes(export[..8].try_into().expect("eight bytes")) as usize;
        Ok(Nbd { stream, len_bytes })
    }

    fn request(&mut self, kind: u16, at: usize, len: usize, payload: &[u8]) -> Result<()> {
        let mut request = [0; 28];
        request[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
        request[6..8].copy_from_slice(&kind.to_be_bytes());
        request[16..24].copy_from_slice(&(at as u64).to_be_bytes());
        request[24..].copy_from_slice(&(len as u32).to_be_bytes());
        self.stream.write_all(&request)?;
        self.stream.write_all(payload)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], [0x67, 0x44, 0x66, 0x98], "a simple reply");
        match u32::from_be_bytes(reply[4..8].try_into().expect("four bytes")) {
            0 => Ok(()),
            errno => Err(std::io::Error::from_raw_os_error(errno as i32)),
        }
    }

    pub fn read(&mut self, at: usize, part: &mut [u8]) -> Result<()> {
        self.request(0, at, part.len(), &[])?;
        self.stream.read_exact(part)
    }

    pub fn write(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        self.request(1, at, bytes.len(), bytes)
    }
}

/// Exports `volume` read-only for a moment and reads it.
pub fn of(dev: &Dev, volume: &str) -> Vec<u8> {
    let all = |nbd: &mut Nbd| {
        let mut bytes = vec![0; nbd.len_bytes];
        let mut parts = bytes.chunks_mut(STEP).enumerate();
        parts.try_for_each(|(nth, part)| nbd.read(nth * STEP, part)).map(|()| bytes)
    };
    exported(dev, volume, all)
}

/// Exports `volume` read-only for the time of `look`.
pub fn exported<T>(dev: &Dev, volume: &str, look: impl FnOnce(&mut Nbd) -> Result<T>) -> T {
    exported_with(dev, volume, &["--read-only"], look)
}

/// Exports a volume with these flags while `work` runs.
pub fn exported_with<T>(dev: &Dev, volume: &str, flags: &[&str], work: impl FnOnce(&mut Nbd) -> Result<T>) -> T {
    let socket = dev.file("bytes.sock");
    let mut export = dev.spawn(&[&["nbd", volume, "--socket", &socket][..], flags].concat());
    let mut nbd = None;
    dev.wait("the export", || {
        nbd = Nbd::connect(&socket, volume).ok();
        nbd.is_some()
    });
    let done = work(&mut nbd.expect("just connected"));
    let _ = Command::new("kill").arg(export.id().to_string()).status();
    let _ = export.wait();
    done.unwrap_or_else(|e| panic!("{volume} cannot be used: {e}"))
}
