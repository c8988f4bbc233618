//! Reads all bytes of a volume over NBD, with the part of the protocol that a reader needs.

use crate::dev::Dev;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;

const STEP: usize = 1 << 20;

/// Exports `volume` read-only for a moment and reads it.
pub fn of(dev: &Dev, volume: &str) -> Vec<u8> {
    let socket = dev.file("bytes.sock");
    let mut export = dev.spawn(&["nbd", volume, "--socket", &socket, "--read-only"]);
    let mut stream = None;
    dev.wait("the export", || {
        stream = UnixStream::connect(&socket).ok();
        stream.is_some()
    });
    let mut stream = stream.expect("just connected");
    stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a timeout");
    let bytes = read(&mut stream, volume);
    let _ = Command::new("kill").arg(export.id().to_string()).status();
    let _ = export.wait();
    bytes.unwrap_or_else(|e| panic!("{volume} cannot be read: {e}"))
}

fn read(stream: &mut UnixStream, volume: &str) -> std::io::Result<Vec<u8>> {
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
    let size = u64::from_be_bytes(export[..8].try_into().expect("eight bytes")) as usize;
    let mut bytes = vec![0; size];
    for (nth, part) in bytes.chunks_mut(STEP).enumerate() {
        let mut request = [0; 28];
        request[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
        request[16..24].copy_from_slice(&((nth * STEP) as u64).to_be_bytes());
        request[24..].copy_from_slice(&(part.len() as u32).to_be_bytes());
        stream.write_all(&request)?;
        let mut reply = [0; 16];
        stream.read_exact(&mut reply)?;
        assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "a simple reply without an error");
        stream.read_exact(part)?;
    }
    Ok(bytes)
}
