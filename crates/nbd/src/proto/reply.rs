//! Replies of the transmission phase, heads only. The data of a read follows its head as shared buffers,
//! without a copy.
//!
//! Reads and block status are answered in chunks when that was negotiated. All other requests get a
//! simple reply, which is shorter and always allowed.

use super::{CONTEXT_ALLOCATION_ID, NbdError};

const SIMPLE_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;
const FLAG_DONE: u16 = 1;

const TYPE_OFFSET_DATA: u16 = 1;
const TYPE_OFFSET_HOLE: u16 = 2;
const TYPE_BLOCK_STATUS: u16 = 5;
const TYPE_ERROR: u16 = 1 << 15 | 1;

/// `NBD_STATE_HOLE | NBD_STATE_ZERO`.
const STATE_HOLE_ZERO: u32 = 3;

/// Writes a simple reply of 16 bytes; for a successful read, the data follows.
pub fn simple(out: &mut Vec<u8>, cookie: u64, error: Option<NbdError>) {
    out.extend_from_slice(&SIMPLE_MAGIC.to_be_bytes());
    out.extend_from_slice(&error.map_or(0, |e| e as u32).to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
}

fn chunk(out: &mut Vec<u8>, cookie: u64, done: bool, kind: u16, len: u32) {
    out.extend_from_slice(&CHUNK_MAGIC.to_be_bytes());
    out.extend_from_slice(&(if done { FLAG_DONE } else { 0 }).to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
}

/// Writes the head of a chunk of read data; `data_len` bytes follow it.
pub fn offset_data(out: &mut Vec<u8>, cookie: u64, done: bool, offset: u64, data_len: u32) {
    assert!(data_len > 0, "a content chunk describes at least one byte");
    chunk(out, cookie, done, TYPE_OFFSET_DATA, data_len + 8);
    out.extend_from_slice(&offset.to_be_bytes());
}

/// Writes a chunk for bytes that read as zeros.
pub fn offset_hole(out: &mut Vec<u8>, cookie: u64, done: bool, offset: u64, hole_len: u32) {
    assert!(hole_len > 0, "a hole is not empty");
    chunk(out, cookie, done, TYPE_OFFSET_HOLE, 12);
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&hole_len.to_be_bytes());
}

/// Writes the only chunk of a failed request, with a text for display.
pub fn error(out: &mut Vec<u8>, cookie: u64, error: NbdError, text: &str) {
    let text = text.as_bytes();
    assert!(text.len() < 1024, "error texts are our own and short");
    chunk(out, cookie, true, TYPE_ERROR, 6 + text.len() as u32);
    out.extend_from_slice(&(error as u32).to_be_bytes());
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text);
}

/// Writes the one chunk of a block status reply; each extent is (bytes, holds data).
pub fn block_status(out: &mut Vec<u8>, cookie: u64, extents: &[(u32, bool)]) {
    assert!(!extents.is_empty(), "a block status reply describes at least one extent");
    chunk(out, cookie, true, TYPE_BLOCK_STATUS, 4 + extents.len() as u32 * 8);
    out.extend_from_slice(&CONTEXT_ALLOCATION_ID.to_be_bytes());
    for (len, data) in extents {
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(&(if *data { 0 } else { STATE_HOLE_ZERO }).to_be_bytes());
    }
}
