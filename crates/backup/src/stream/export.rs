//! Writing a stream: the data of a snapshot, or its difference from an older one.
//!
//! Invariant: frames are written in the order of the volume, while the next ones are read and compressed. Memory is bounded by
//! [`PIECES_AT_ONCE`].

use super::format::{Encoder, FRAME_DATA_MAX, Frame, Head, Totals};
use crate::create::{Blocks, PIECES_AT_ONCE, Progress, blocks, common, complement};
use crate::error::Error;
use crate::format::PIECE_BLOCKS_MAX;
use crate::volume::Source;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use types::Compression;
use types::units::{BLOCK, SEGMENT};

/// Most blocks of a frame with data.
const FRAME_BLOCKS_MAX: u32 = (FRAME_DATA_MAX / BLOCK) as u32;

/// Blocks of a segment, and whether they have to be read; the others read as zeros.
type Part = (Blocks, bool);

/// A stream that is being written.
struct Export<W> {
    source: Arc<dyn Source>,
    encoder: Encoder<W>,
    compression: Compression,
    has_base: bool,
}

/// Writes what a stream lacks of the contents, and its end. Returns the totals and the bytes of the stream, and the place where it went.
/// `tell` learns the progress.
///
/// # Errors
/// `Incomparable`: the snapshot does not descend from the older one. `Volume`, `File`.
pub async fn export<W: Write + Send + 'static>(
    source: Arc<dyn Source>,
    head: &Head,
    encoder: Encoder<W>,
    tell: &(dyn Fn(Progress) + Sync),
) -> Result<(Totals, u64, W), Error> {
    let from = encoder.done_bytes();
    let mut export = Export { source, encoder, compression: head.compression, has_base: head.base.is_some() };
    let len = head.subject.len_bytes;
    let mut moved_bytes = 0;
    for start in (0..len).step_by(SEGMENT as usize) {
        let range = start.max(from)..(start + SEGMENT).min(len);
        if range.is_empty() {
            continue;
        }
        (export, moved_bytes) = export.segment(range.clone(), moved_bytes).await?;
        tell(Progress { done_bytes: range.end, moved_bytes });
    }
    let encoder = export.encoder;
    tokio::task::spawn_blocking(move || encoder.end()).await.map_err(|_| Error::Lost)?
}

impl<W: Write + Send + 'static> Export<W> {
    /// Writes a segment, or the rest of one. Returns the sum of the bytes that were read.
    async fn segment(mut self, range: Range<u64>, mut read: u64) -> Result<(Export<W>, u64), Error> {
        let parts = self.parts(range.clone()).await?;
        let (source, compression, has_base) = (Arc::clone(&self.source), self.compression, self.has_base);
        let frames = |parts: Vec<Part>| {
            let (source, range) = (Arc::clone(&source), range.clone());
            let made = tokio::task::spawn_blocking(move || frames(&*source, &range, &parts, (compression, has_base)));
            async move { made.await.map_err(|_| Error::Lost)? }
        };
        let mut made = stream::iter(batches(parts)).map(frames).buffered(PIECES_AT_ONCE);
        while let Some((bytes, frames)) = made.try_next().await? {
            read += bytes;
            let mut encoder = self.encoder;
            // A pipe takes its time.
            let written = tokio::task::spawn_blocking(move || {
                frames.iter().try_for_each(|frame| encoder.frame(frame)).map(|()| encoder)
            });
            self.encoder = written.await.map_err(|_| Error::Lost)??;
        }
        Ok((self, read))
    }

    /// Returns what a segment has to tell, in order.
    async fn parts(&self, range: Range<u64>) -> Result<Vec<Part>, Error> {
        let (source, has_base) = (Arc::clone(&self.source), self.has_base);
        let found = tokio::task::spawn_blocking(move || {
            let failed = Error::Volume;
            if !has_base {
                let data = blocks(&source.data(range).map_err(failed)?);
                return Ok(data.into_iter().map(|blocks| (blocks, true)).collect());
            }
            let changed = source.changed(range.clone()).map_err(failed)?.ok_or(Error::Incomparable)?;
            let changed = blocks(&changed);
            let data = if changed.is_empty() { Vec::new() } else { blocks(&source.data(range).map_err(failed)?) };
            let zeros = common(&complement(&data), &changed).into_iter().map(|blocks| (blocks, false));
            let mut parts: Vec<Part> = common(&data, &changed).into_iter().map(|blocks| (blocks, true)).collect();
            parts.extend(zeros);
            parts.sort_by_key(|(blocks, _)| blocks.start);
            Ok(parts)
        });
        found.await.map_err(|_| Error::Lost)?
    }
}

/// Cuts the parts of a segment into batches, each with the data of a piece at most.
fn batches(parts: Vec<Part>) -> Vec<Vec<Part>> {
    let (mut all, mut batch, mut room) = (Vec::new(), Vec::new(), PIECE_BLOCKS_MAX);
    for (blocks, is_data) in parts {
        let mut left = blocks;
        while !left.is_empty() {
            let count = if is_data { room.min(left.end - left.start) } else { left.end - left.start };
            batch.push((left.start..left.start + count, is_data));
            left.start += count;
            // Parts are bounded, too: each costs a frame.
            room -= if is_data { count } else { 1 };
            if room == 0 {
                all.push(std::mem::take(&mut batch));
                room = PIECE_BLOCKS_MAX;
            }
        }
    }
    if !batch.is_empty() {
        all.push(batch);
    }
    all
}

/// Reads the parts of a batch, and makes frames of them. Returns the bytes that were read, too.
fn frames(
    source: &dyn Source,
    segment: &Range<u64>,
    parts: &[Part],
    (compression, has_base): (Compression, bool),
) -> Result<(u64, Vec<Frame>), Error> {
    let bytes_of = |blocks: &Blocks| {
        let at = |block: u32| (segment.start + u64::from(block) * BLOCK).min(segment.end);
        at(blocks.start)..at(blocks.end)
    };
    let ranges: Vec<Range<u64>> =
        parts.iter().filter(|(_, is_data)| *is_data).map(|(blocks, _)| bytes_of(blocks)).collect();
    let bytes = if ranges.is_empty() { Vec::new() } else { source.read(&ranges).map_err(Error::Volume)? };
    let mut left = &bytes[..];
    let mut made = Vec::new();
    for (blocks, is_data) in parts {
        let range = bytes_of(blocks);
        if !is_data {
            made.push(Frame::of_zeros(range.start, range.end - range.start));
            continue;
        }
        let (own, rest) = left.split_at((range.end - range.start) as usize);
        left = rest;
        for (offset, bytes, is_zero) in runs(range.start, own) {
            if !is_zero {
                made.push(Frame::of_data(offset, bytes, compression));
            } else if has_base {
                made.push(Frame::of_zeros(offset, bytes.len() as u64));
            }
        }
    }
    Ok((bytes.len() as u64, made))
}

/// Cuts bytes into runs of blocks that are zeros or not, each of a frame at most.
fn runs(offset: u64, bytes: &[u8]) -> Vec<(u64, &[u8], bool)> {
    let is_zero: Vec<bool> = bytes.chunks(BLOCK as usize).map(|block| block.iter().all(|byte| *byte == 0)).collect();
    let (mut found, mut start) = (Vec::new(), 0);
    while start < is_zero.len() {
        let same = is_zero[start..].iter().take_while(|zero| **zero == is_zero[start]).count();
        let end = start + same.min(FRAME_BLOCKS_MAX as usize);
        let range = start * BLOCK as usize..(end * BLOCK as usize).min(bytes.len());
        found.push((offset + range.start as u64, &bytes[range], is_zero[start]));
        start = end;
    }
    found
}
