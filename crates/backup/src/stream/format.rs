//! Bytes of a stream: a head, frames with the contents, and an end.
//!
//! ```text
//! head    magic, version, length of the JSON, JSON, hash
//! frame   kind, length of the body, offset, length, body, hash
//! end     a frame with the totals
//! ```
//!
//! Input: bytes that may come from a damaged file or a foreign pipe. Output: checked frames.
//!
//! Invariants:
//! - Each hash is that of the hash before and of all bytes since. So a changed byte, a cut, and a frame that is missing, repeated or
//!   out of its order are found at that place, before the frame is used.
//! - Frames ascend, do not overlap, and lie within the volume. Whatever the bytes are, decoding takes a bounded amount of memory.

use crate::error::Error;
use crate::record::Subject;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use types::Compression;
use types::limits::VOLUME_LEN_MAX;
use types::units::{BLOCK, SECTOR};

/// Version of the layout.
pub const VERSION: u32 = 1;
/// Most bytes of the volume in a frame with data.
pub const FRAME_DATA_MAX: u64 = 1 << 20;

const MAGIC: [u8; 8] = *b"BSLTSTR1";
const PREFIX: usize = 16;
/// Longest JSON of a head: 32 labels and a description, escaped.
const HEAD_MAX: u32 = 64 << 10;
const FRAME: usize = 24;
const HASH: usize = 32;
const TOTALS: usize = 24;

const DATA: u8 = 1;
const ZSTD: u8 = 2;
const ZEROS: u8 = 3;
const END: u8 = 4;

/// The snapshot with which an increment begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// Name of the snapshot, without the volume.
    pub snapshot: String,
    /// Number of the snapshot.
    pub snapshot_id: u64,
    /// Moment of the snapshot: milliseconds of the Unix clock.
    pub created_ms: u64,
    /// Length of the volume at that time, which may be longer than that of the stream.
    pub len_bytes: u64,
}

/// The contents of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The snapshot and its volume.
    #[serde(flatten)]
    pub subject: Subject,
    /// Unit of changes: 4096.
    pub block_bytes: u64,
    /// Compression of the frames.
    pub compression: Compression,
    /// `None`: the stream has all contents.
    pub base: Option<Base>,
}

impl Head {
    /// Begins a stream.
    pub fn new(subject: Subject, compression: Compression, base: Option<Base>) -> Head {
        Head { subject, block_bytes: BLOCK, compression, base }
    }

    /// Names the snapshot for good ([`Subject::key`]).
    pub fn key(&self) -> String {
        self.subject.key()
    }

    /// Names the snapshot with which an increment begins.
    pub fn base_key(&self) -> Option<String> {
        self.base.as_ref().map(|base| self.subject.key_of(base.snapshot_id, base.created_ms))
    }

    fn check(&self) -> Result<(), String> {
        let len = self.subject.len_bytes;
        if self.block_bytes != BLOCK {
            return Err(format!("blocks of {} bytes", self.block_bytes));
        }
        if len == 0 || len > VOLUME_LEN_MAX || !len.is_multiple_of(SECTOR) {
            return Err(format!("a volume of {len} bytes"));
        }
        Ok(())
    }
}

/// Contents of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Body {
    Data(Vec<u8>),
    Zstd(Vec<u8>),
    Zeros,
}

/// A range of the volume with its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    body: Body,
}

impl Frame {
    /// Makes a frame with data. It is compressed where that makes it smaller.
    pub fn of_data(offset: u64, bytes: &[u8], compression: Compression) -> Frame {
        let packed = (compression == Compression::Zstd).then(|| zstd::bulk::compress(bytes, 3).ok()).flatten();
        let body = match packed.filter(|packed| packed.len() < bytes.len()) {
            Some(packed) => Body::Zstd(packed),
            None => Body::Data(bytes.to_vec()),
        };
        Frame { offset, len: bytes.len() as u64, body }
    }

    /// Makes a frame for a range that reads as zeros.
    pub fn of_zeros(offset: u64, len: u64) -> Frame {
        Frame { offset, len, body: Body::Zeros }
    }

    /// Returns the bytes; `None`: the range reads as zeros.
    ///
    /// # Errors
    /// `Stream`: the compressed bytes are no such bytes.
    pub fn into_bytes(self) -> Result<Option<Vec<u8>>, Error> {
        let bad = |reason: String| Error::Stream { at: self.offset, reason };
        match self.body {
            Body::Zeros => Ok(None),
            Body::Data(bytes) => Ok(Some(bytes)),
            Body::Zstd(packed) => {
                let bytes = zstd::bulk::decompress(&packed, self.len as usize)
                    .map_err(|error| bad(format!("data at {} of the volume: {error}", self.offset)))?;
                if bytes.len() as u64 == self.len {
                    return Ok(Some(bytes));
                }
                Err(bad(format!("{} bytes for {} at {} of the volume", bytes.len(), self.len, self.offset)))
            }
        }
    }

    /// Returns the bytes of the volume that it holds.
    pub fn data_len(&self) -> u64 {
        if self.body == Body::Zeros { 0 } else { self.len }
    }

    fn parts(&self) -> (u8, &[u8]) {
        match &self.body {
            Body::Data(bytes) => (DATA, bytes),
            Body::Zstd(bytes) => (ZSTD, bytes),
            Body::Zeros => (ZEROS, &[]),
        }
    }
}

/// Totals of a stream, which its end repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Frames before the end.
    pub frames: u64,
    /// Bytes of the volume in frames with data.
    pub data_bytes: u64,
    /// Bytes of the volume in frames of zeros.
    pub zero_bytes: u64,
}

impl Totals {
    fn add(&mut self, frame: &Frame) {
        self.frames += 1;
        self.data_bytes += frame.data_len();
        self.zero_bytes += frame.len - frame.data_len();
    }

    fn encode(&self) -> [u8; TOTALS] {
        let mut bytes = [0; TOTALS];
        for (n, number) in [self.frames, self.data_bytes, self.zero_bytes].into_iter().enumerate() {
            bytes[n * 8..n * 8 + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }
}

/// Returns the hash of a part of the stream behind `before`.
fn chained(before: &[u8], parts: [&[u8]; 2]) -> [u8; HASH] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before);
    for part in parts {
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

/// The place behind a frame, where a stream can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPlace {
    chain: [u8; HASH],
    totals: Totals,
    /// End of the last frame in the volume.
    end: u64,
    /// Bytes of the stream.
    at: u64,
}

impl StreamPlace {
    /// Returns the place behind the last whole frame of a stream that may be cut or damaged; `None`: it has another head.
    ///
    /// # Errors
    /// `File`.
    pub fn last(input: impl Read, head: &Head) -> Result<Option<StreamPlace>, Error> {
        let mut decoder = match Decoder::begin(input) {
            Ok(decoder) if decoder.head == *head => decoder,
            Ok(_) | Err(Error::Stream { .. } | Error::Newer(_)) => return Ok(None),
            Err(other) => return Err(other),
        };
        loop {
            let place = decoder.place;
            match decoder.read_frame() {
                Ok(Ok(_)) => {}
                Ok(Err(_)) | Err(Error::Stream { .. }) => return Ok(Some(place)),
                Err(other) => return Err(other),
            }
        }
    }

    /// Returns the bytes of the stream up to here.
    pub fn stream_bytes(&self) -> u64 {
        self.at
    }

    /// Returns the end of the last frame: its place in the volume.
    pub fn done_bytes(&self) -> u64 {
        self.end
    }
}

/// Writes a stream.
pub struct Encoder<W> {
    out: W,
    place: StreamPlace,
}

impl<W: Write> Encoder<W> {
    /// Writes the head.
    ///
    /// # Errors
    /// `File`.
    pub fn begin(out: W, head: &Head) -> Result<Encoder<W>, Error> {
        // A head has only strings as keys, which is all that JSON asks for.
        let json = serde_json::to_vec(head).unwrap_or_default();
        let mut prefix = [0; PREFIX];
        prefix[..8].copy_from_slice(&MAGIC);
        prefix[8..12].copy_from_slice(&VERSION.to_le_bytes());
        prefix[12..].copy_from_slice(&(json.len() as u32).to_le_bytes());
        let chain = chained(&[], [&prefix, &json]);
        let mut encoder = Encoder { out, place: StreamPlace { chain, totals: Totals::default(), end: 0, at: 0 } };
        encoder.put([&prefix, &json, &chain])?;
        Ok(encoder)
    }

    /// Goes on with a stream. `out` has it up to `place`, and writes behind that.
    pub fn go_on(out: W, place: StreamPlace) -> Encoder<W> {
        Encoder { out, place }
    }

    /// Returns the end of the last frame: its place in the volume.
    pub fn done_bytes(&self) -> u64 {
        self.place.end
    }

    /// Writes a frame.
    ///
    /// # Errors
    /// `File`.
    pub fn frame(&mut self, frame: &Frame) -> Result<(), Error> {
        let (kind, body) = frame.parts();
        self.place.totals.add(frame);
        self.place.end = frame.offset.saturating_add(frame.len);
        self.part(kind, (frame.offset, frame.len), body)
    }

    /// Writes the end. Returns the totals, the bytes that were written, and the place where they went.
    ///
    /// # Errors
    /// `File`.
    pub fn end(mut self) -> Result<(Totals, u64, W), Error> {
        self.part(END, (0, 0), &self.place.totals.encode())?;
        self.out.flush().map_err(|source| Error::File { what: "the stream cannot be written", source })?;
        Ok((self.place.totals, self.place.at, self.out))
    }

    fn part(&mut self, kind: u8, (offset, len): (u64, u64), body: &[u8]) -> Result<(), Error> {
        let mut header = [0; FRAME];
        header[0] = kind;
        header[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
        header[8..16].copy_from_slice(&offset.to_le_bytes());
        header[16..].copy_from_slice(&len.to_le_bytes());
        self.place.chain = chained(&self.place.chain, [&header, body]);
        let chain = self.place.chain;
        self.put([&header, body, &chain])
    }

    fn put(&mut self, parts: [&[u8]; 3]) -> Result<(), Error> {
        for part in parts {
            self.out.write_all(part).map_err(|source| Error::File { what: "the stream cannot be written", source })?;
            self.place.at += part.len() as u64;
        }
        Ok(())
    }
}

/// Reads a stream.
pub struct Decoder<R> {
    input: R,
    head: Head,
    /// The place up to which it was read.
    place: StreamPlace,
}

impl<R: Read> Decoder<R> {
    /// Reads the head.
    ///
    /// # Errors
    /// `Stream`: it is no stream, or damaged. `Newer`, `File`.
    pub fn begin(mut input: R) -> Result<Decoder<R>, Error> {
        let mut at = 0;
        let bad = |reason: String| Error::Stream { at: 0, reason };
        let mut prefix = [0; PREFIX];
        read(&mut input, &mut prefix, &mut at)?;
        let (version, len) = (number(&prefix, 8), number(&prefix, 12));
        if prefix[..8] != MAGIC {
            return Err(bad("it is no stream of basalt backup export".to_owned()));
        }
        if version > VERSION {
            return Err(Error::Newer(version));
        }
        if version != VERSION || len > HEAD_MAX {
            return Err(bad(format!("version {version}, and a head of {len} bytes")));
        }
        let mut json = vec![0; len as usize];
        read(&mut input, &mut json, &mut at)?;
        let chain = chained(&[], [&prefix, &json]);
        hash(&mut input, chain, &mut at)?;
        let head: Head = serde_json::from_slice(&json).map_err(|error| bad(format!("its head: {error}")))?;
        head.check().map_err(|reason| bad(format!("its head says {reason}")))?;
        Ok(Decoder { input, head, place: StreamPlace { chain, totals: Totals::default(), end: 0, at } })
    }

    /// Returns the head.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Returns the end of the last frame: its place in the volume.
    pub fn done_bytes(&self) -> u64 {
        self.place.end
    }

    /// Reads the next frame; behind the last one the totals.
    ///
    /// # Errors
    /// `Stream`: it is damaged or cut. `File`.
    pub fn read_frame(&mut self) -> Result<Result<Frame, Totals>, Error> {
        let begin = self.place.at;
        let bad = |reason: &str| Error::Stream { at: begin, reason: reason.to_owned() };
        let mut header = [0; FRAME];
        read(&mut self.input, &mut header, &mut self.place.at)?;
        let (offset, len, body_len) = (long(&header, 8), long(&header, 16), number(&header, 4));
        if u64::from(body_len) > FRAME_DATA_MAX {
            return Err(bad("a frame is longer than one can be"));
        }
        let mut body = vec![0; body_len as usize];
        read(&mut self.input, &mut body, &mut self.place.at)?;
        self.place.chain = chained(&self.place.chain, [&header, &body]);
        hash(&mut self.input, self.place.chain, &mut self.place.at)?;
        if header[1..4] != [0; 3] {
            return Err(bad("a reserved byte is set"));
        }
        let body = match header[0] {
            END if (offset, len) == (0, 0) && body == self.place.totals.encode() => return self.finish().map(Err),
            END => return Err(bad("its totals are wrong")),
            DATA if u64::from(body_len) == len => Body::Data(body),
            ZSTD if u64::from(body_len) < len => Body::Zstd(body),
            ZEROS if body_len == 0 && self.head.base.is_some() => Body::Zeros,
            kind => return Err(bad(&format!("a frame of kind {kind} with {body_len} bytes for {len}"))),
        };
        let frame = Frame { offset, len, body };
        self.check_place(&frame).map_err(|reason| bad(&reason))?;
        self.place.totals.add(&frame);
        Ok(Ok(frame))
    }

    /// Checks the place of a frame.
    fn check_place(&mut self, frame: &Frame) -> Result<(), String> {
        let &Frame { offset, len, .. } = frame;
        let end = offset.checked_add(len).filter(|end| *end <= self.head.subject.len_bytes);
        let is_whole = offset.is_multiple_of(BLOCK)
            && end.is_some_and(|end| end.is_multiple_of(BLOCK) || end == self.head.subject.len_bytes);
        let fits = len > 0 && (len <= FRAME_DATA_MAX || frame.body == Body::Zeros);
        match end {
            Some(end) if is_whole && fits && offset >= self.place.end => {
                self.place.end = end;
                Ok(())
            }
            _ => Err(format!("a frame of {len} bytes at {offset} of the volume")),
        }
    }

    /// Checks that nothing follows the end.
    fn finish(&mut self) -> Result<Totals, Error> {
        let at = self.place.at;
        match read(&mut self.input, &mut [0], &mut self.place.at) {
            Err(Error::Stream { .. }) => Ok(self.place.totals),
            Err(other) => Err(other),
            Ok(()) => Err(Error::Stream { at, reason: "bytes follow its end".to_owned() }),
        }
    }
}

/// Fills a buffer. A stream that ends before is cut.
fn read(input: &mut impl Read, into: &mut [u8], at: &mut u64) -> Result<(), Error> {
    match input.read_exact(into) {
        Ok(()) => {
            *at += into.len() as u64;
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            Err(Error::Stream { at: *at, reason: "it ends too early: it is cut".to_owned() })
        }
        Err(source) => Err(Error::File { what: "the stream cannot be read", source }),
    }
}

/// Reads a hash, and compares it.
fn hash(input: &mut impl Read, chain: [u8; HASH], at: &mut u64) -> Result<(), Error> {
    let begin = *at;
    let mut found = [0; HASH];
    read(input, &mut found, at)?;
    let reason = "its bytes do not have the checksum that follows them".to_owned();
    (found == chain).then_some(()).ok_or(Error::Stream { at: begin, reason })
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(number(bytes, at)) | u64::from(number(bytes, at + 4)) << 32
}
