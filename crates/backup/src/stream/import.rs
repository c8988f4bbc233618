//! Writing the contents of a stream to a volume that is at its base: empty, or as the stream before left it.
//!
//! Invariants:
//! - A frame is written when it has passed its check. The volume has the contents when the end has passed its own.
//! - Batches count in the order of the stream: what lies before [`Steps::done`] is written.

use super::format::{Decoder, Frame, Totals};
use crate::create::{PIECES_AT_ONCE, Progress};
use crate::error::Error;
use crate::format::PIECE_BLOCKS_MAX;
use crate::steps::Steps;
use crate::volume::Target;
use futures_util::stream::{self, BoxStream, StreamExt};
use std::io::Read;
use std::sync::Arc;
use tokio::sync::mpsc::{self, Sender};
use types::units::BLOCK;

/// Bytes of the frames that one task writes.
const BATCH_BYTES: u64 = PIECE_BLOCKS_MAX as u64 * BLOCK;
/// Most frames of them.
const BATCH_FRAMES_MAX: usize = PIECE_BLOCKS_MAX as usize;
/// Batches that wait for their tasks.
const WAITING_MAX: usize = 2;

/// Frames that were read, and the place in the volume where they end; then the end of the stream.
enum Batch {
    Frames(Vec<Frame>, u64),
    End(Totals),
}

/// An import of a stream.
pub struct Import {
    written: BoxStream<'static, Result<Put, Error>>,
    progress: Progress,
}

impl Import {
    /// Begins an import to a volume that has all frames up to `done_bytes` of it already. The stream is read from its begin, by a thread of
    /// its own. A pipe may hold that up for ever; it ends with the pipe or with the process.
    ///
    /// # Errors
    /// `File`: there is no thread.
    pub fn begin<R: Read + Send + 'static>(
        decoder: Decoder<R>,
        target: Arc<dyn Target>,
        done_bytes: u64,
    ) -> Result<Import, Error> {
        let (to, mut from) = mpsc::channel(WAITING_MAX);
        std::thread::Builder::new()
            .name("stream".to_owned())
            .spawn(move || read(decoder, done_bytes, &to))
            .map_err(|source| Error::File { what: "the stream cannot be read", source })?;
        let written = stream::poll_fn(move |cx| from.poll_recv(cx))
            .map(move |batch| put(batch, Arc::clone(&target)))
            .buffered(PIECES_AT_ONCE)
            .boxed();
        Ok(Import { written, progress: Progress { done_bytes, ..Progress::default() } })
    }
}

impl Steps for Import {
    type End = Totals;

    /// Bytes of the volume: it has all frames that end there or before.
    fn done(&self) -> u64 {
        self.progress.done_bytes
    }

    /// Waits for one batch to be written. Errors: `Stream` (it is damaged or cut), `File`, `Volume`. The volume has a part of what follows then.
    async fn step(&mut self, tell: &(dyn Fn(Progress) + Sync)) -> Result<Option<Totals>, Error> {
        match self.written.next().await.ok_or(Error::Lost)?? {
            Put::End(totals) => Ok(Some(totals)),
            Put::Batch { bytes, done_bytes } => {
                self.progress.moved_bytes += bytes;
                self.progress.done_bytes = done_bytes.max(self.progress.done_bytes);
                tell(self.progress);
                Ok(None)
            }
        }
    }
}

/// Result of a batch.
enum Put {
    Batch { bytes: u64, done_bytes: u64 },
    End(Totals),
}

/// Reads the stream to its end, and passes over what the volume has. It stops when the other side has.
fn read<R: Read>(mut decoder: Decoder<R>, has_bytes: u64, to: &Sender<Result<Batch, Error>>) {
    loop {
        let (mut frames, mut bytes, mut end) = (Vec::new(), 0, None);
        while end.is_none() && bytes < BATCH_BYTES && frames.len() < BATCH_FRAMES_MAX {
            match decoder.read_frame() {
                Ok(Ok(frame)) if frame.offset + frame.len <= has_bytes => {}
                Ok(Ok(frame)) => {
                    bytes += frame.data_len();
                    frames.push(frame);
                }
                Ok(Err(totals)) => end = Some(Ok(Batch::End(totals))),
                Err(error) => end = Some(Err(error)),
            }
        }
        let batch = Batch::Frames(frames, decoder.done_bytes());
        if to.blocking_send(Ok(batch)).is_err() {
            return;
        }
        if let Some(end) = end {
            // The other side may have gone.
            let _ = to.blocking_send(end);
            return;
        }
    }
}

/// Writes a batch.
async fn put(batch: Result<Batch, Error>, target: Arc<dyn Target>) -> Result<Put, Error> {
    let (frames, done_bytes) = match batch? {
        Batch::Frames(frames, done_bytes) => (frames, done_bytes),
        Batch::End(totals) => return Ok(Put::End(totals)),
    };
    let written = tokio::task::spawn_blocking(move || {
        let (mut data, mut zeros) = (Vec::new(), Vec::new());
        for frame in frames {
            let (offset, end) = (frame.offset, frame.offset + frame.len);
            match frame.into_bytes()? {
                Some(bytes) => data.push((offset, bytes)),
                None => zeros.push(offset..end),
            }
        }
        let pieces: Vec<(u64, &[u8])> = data.iter().map(|(offset, bytes)| (*offset, &bytes[..])).collect();
        let bytes = pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        target.clear(zeros).map_err(Error::Volume)?;
        target.write(pieces).map_err(Error::Volume)?;
        Ok(Put::Batch { bytes, done_bytes })
    });
    written.await.map_err(|_| Error::Lost)?
}
