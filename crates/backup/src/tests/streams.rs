//! Streams: chains of them against a map of blocks, and streams that are damaged.

use super::{BLOCK_LEN, Blocks, Snapshot, Volume, cut, subject};
use crate::{Base, Decoder, Encoder, Error, Frame, Head, Import, Steps, StreamPlace, Target, Totals, VolumeFailure};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::runtime::Runtime;
use types::Compression;
use types::rng::Rng;
use types::units::{BLOCK, SEGMENT};

/// The volume that gets the contents of streams, one after the other.
#[derive(Default)]
struct Copied {
    blocks: Mutex<Blocks>,
    calls: AtomicU64,
    /// Bytes of all writes.
    written: AtomicU64,
}

impl Copied {
    /// Returns the blocks that do not read as zeros; the last one as long as it is in `len` bytes.
    fn shown(&self, len: u64) -> Blocks {
        let blocks = self.blocks.lock().expect("no test panicked").clone();
        let is_data = |bytes: &Vec<u8>| bytes.iter().any(|byte| *byte != 0);
        let cut = |(n, mut bytes): (u64, Vec<u8>)| {
            bytes.resize((len - n * BLOCK).min(BLOCK) as usize, 0);
            (n, bytes)
        };
        blocks.into_iter().map(cut).filter(|(_, bytes)| is_data(bytes)).collect()
    }
}

impl Target for Copied {
    fn write(&self, pieces: Vec<(u64, &[u8])>) -> Result<(), VolumeFailure> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mut blocks = self.blocks.lock().expect("no test panicked");
        for (offset, bytes) in pieces {
            self.written.fetch_add(bytes.len() as u64, Ordering::SeqCst);
            blocks.extend((offset / BLOCK..).zip(bytes.chunks(BLOCK_LEN).map(<[u8]>::to_vec)));
        }
        Ok(())
    }

    fn clear(&self, ranges: Vec<Range<u64>>) -> Result<(), VolumeFailure> {
        let mut blocks = self.blocks.lock().expect("no test panicked");
        let within = |block: u64, range: &Range<u64>| (range.start / BLOCK..range.end.div_ceil(BLOCK)).contains(&block);
        blocks.retain(|block, _| !ranges.iter().any(|range| within(*block, range)));
        Ok(())
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("threads")
}

fn head(id: u64, len: u64, base: Option<(u64, u64)>) -> Head {
    let base = base.map(|(snapshot_id, len_bytes)| Base {
        snapshot: format!("s{snapshot_id}"),
        snapshot_id,
        created_ms: subject(snapshot_id, len_bytes).created_ms,
        len_bytes,
    });
    let compression = if id.is_multiple_of(2) { Compression::None } else { Compression::Zstd };
    Head::new(subject(id, len), compression, base)
}

fn exported(runtime: &Runtime, snapshot: &Arc<Snapshot>, head: &Head) -> Result<Vec<u8>, Error> {
    let encoder = Encoder::begin(Vec::new(), head)?;
    runtime.block_on(crate::export(snapshot.clone(), head, encoder, &|_| {})).map(|(_, written, bytes)| {
        assert_eq!(written, bytes.len() as u64);
        bytes
    })
}

fn imported(runtime: &Runtime, bytes: Vec<u8>, target: &Arc<Copied>) -> Result<Totals, Error> {
    imported_from(runtime, (bytes, 0), target).1
}

/// Imports a stream to a volume that has what lies before `done_bytes`. Returns what it has then, too.
fn imported_from(
    runtime: &Runtime,
    (bytes, done_bytes): (Vec<u8>, u64),
    target: &Arc<Copied>,
) -> (u64, Result<Totals, Error>) {
    let begun = Decoder::begin(std::io::Cursor::new(bytes))
        .and_then(|decoder| Import::begin(decoder, target.clone(), done_bytes));
    let mut import = match begun {
        Ok(import) => import,
        Err(error) => return (done_bytes, Err(error)),
    };
    let ended = loop {
        match runtime.block_on(import.step(&|_| {})) {
            Ok(None) => {}
            Ok(Some(totals)) => break Ok(totals),
            Err(error) => break Err(error),
        }
    };
    (import.done(), ended)
}

#[test]
fn increments_give_each_moment_on_top_of_the_one_before() {
    let runtime = runtime();
    let (mut moved, mut held) = (0, 0);
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let mut volume = Volume { len: SEGMENT + 5 * 512 + rng.below(9) * BLOCK, ..Volume::default() };
        let target = Arc::new(Copied::default());
        let mut base = None;
        for id in 10..16 {
            volume.change(&mut rng);
            // Between two snapshots the volume may get shorter, longer, or both.
            if rng.chance(1, 3) {
                volume.shrink(rng.below(volume.len / 1024) * 512);
            }
            if rng.chance(1, 3) {
                volume.grow(SEGMENT / 2);
            }
            let snapshot = volume.cut(true);
            let head = head(id, volume.len, base);
            let bytes = exported(&runtime, &snapshot, &head).expect("no fault");
            cut(&mut target.blocks.lock().expect("no test panicked"), volume.len);
            let totals = imported(&runtime, bytes, &target).expect("it is whole");
            let shown = snapshot.volume.shown();
            assert!(target.shown(volume.len) == shown, "seed {seed}: {id}");
            (moved, held) = (moved + totals.data_bytes, held + shown.len() as u64 * BLOCK);
            base = Some((id, volume.len));
        }
    }
    assert!(moved < held, "increments have {moved} bytes of {held}");
}

#[test]
fn increment_of_a_volume_that_was_longer_is_no_damaged_stream() {
    let head = head(9, 8 * BLOCK, Some((7, 16 * BLOCK)));
    let frames = vec![Frame::of_data(7 * BLOCK, &[4; BLOCK_LEN], Compression::None)];
    assert_eq!(decoded(&encoded(&head, &frames).0).expect("it is whole"), frames);
    // A frame behind the new end stays a fault.
    let behind = Frame::of_data(8 * BLOCK, &[4; BLOCK_LEN], Compression::None);
    assert!(matches!(decoded(&encoded(&head, &[behind]).0), Err(Error::Stream { .. })));
}

#[test]
fn increment_of_snapshots_that_cannot_be_compared_is_refused() {
    let mut volume = Volume { len: SEGMENT, ..Volume::default() };
    volume.write(1, 1);
    let refused = exported(&runtime(), &volume.cut(false), &head(11, SEGMENT, Some((10, SEGMENT))));
    assert!(matches!(refused, Err(Error::Incomparable)), "{refused:?}");
}

/// A small increment, whose parts all count. The last block of the volume is cut to 512 bytes.
fn small() -> (Head, Vec<Frame>) {
    let head = head(9, 8 * BLOCK + 512, Some((7, 8 * BLOCK)));
    let frames = vec![
        Frame::of_data(0, &[1; BLOCK_LEN], Compression::Zstd),
        Frame::of_zeros(BLOCK, 3 * BLOCK),
        Frame::of_data(4 * BLOCK, &[2; BLOCK_LEN], Compression::Zstd),
        Frame::of_data(6 * BLOCK, &[2; BLOCK_LEN], Compression::Zstd),
        Frame::of_data(8 * BLOCK, &[3; 512], Compression::None),
    ];
    (head, frames)
}

/// Returns the bytes of a stream, and where each of its parts begins: the frames, the end, and the end of all.
fn encoded(head: &Head, frames: &[Frame]) -> (Vec<u8>, Vec<usize>) {
    let mut starts = Vec::new();
    for count in 0..=frames.len() {
        let mut encoder = Encoder::begin(Vec::new(), head).expect("memory");
        frames[..count].iter().for_each(|frame| encoder.frame(frame).expect("memory"));
        // An end has 24 bytes of header and of totals each, and a hash.
        starts.push(encoder.end().expect("memory").2.len() - 80);
    }
    let mut encoder = Encoder::begin(Vec::new(), head).expect("memory");
    frames.iter().for_each(|frame| encoder.frame(frame).expect("memory"));
    let bytes = encoder.end().expect("memory").2;
    starts.push(bytes.len());
    (bytes, starts)
}

/// Reads a stream to its end. Returns its frames.
fn decoded(bytes: &[u8]) -> Result<Vec<Frame>, Error> {
    let mut decoder = Decoder::begin(bytes)?;
    let mut frames = Vec::new();
    while let Ok(frame) = decoder.read_frame()? {
        frame.clone().into_bytes()?;
        frames.push(frame);
    }
    Ok(frames)
}

#[test]
fn every_flipped_byte_and_every_cut_of_a_stream_is_found() {
    let (head, frames) = small();
    let (bytes, starts) = encoded(&head, &frames);
    assert_eq!(decoded(&bytes).expect("it is whole"), frames);
    assert_eq!(Decoder::begin(&bytes[..]).expect("it is whole").head(), &head);
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        for mask in [1, 0x80, 0xff] {
            bad[at] = bytes[at] ^ mask;
            let found = decoded(&bad);
            let is_found = matches!(found, Err(Error::Stream { .. } | Error::Newer(_)));
            assert!(is_found, "byte {at}, mask {mask}: {found:?}");
        }
        let cut = decoded(&bytes[..at]);
        assert!(matches!(cut, Err(Error::Stream { .. })), "cut at {at}: {cut:?}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(decoded(&longer), Err(Error::Stream { .. })));
    // A frame is used when it has passed its check, and not before.
    let mut decoder = Decoder::begin(&bytes[..starts[2] - 1]).expect("the head is whole");
    assert_eq!(decoder.read_frame().expect("it is whole").expect("a frame"), frames[0]);
    assert!(decoder.read_frame().is_err());
}

#[test]
fn stream_that_was_cut_or_damaged_goes_on_behind_its_last_whole_frame() {
    let (head, frames) = small();
    let (bytes, starts) = encoded(&head, &frames);
    let completed = |place: StreamPlace| {
        let kept = starts.iter().position(|start| *start as u64 == place.stream_bytes()).expect("it is behind a frame");
        assert_eq!(place.done_bytes(), frames[..kept].last().map_or(0, |frame| frame.offset + frame.len));
        let mut encoder = Encoder::go_on(bytes[..starts[kept]].to_vec(), place);
        frames[kept..].iter().for_each(|frame| encoder.frame(frame).expect("memory"));
        let (totals, written, all) = encoder.end().expect("memory");
        assert_eq!((totals.frames, written), (frames.len() as u64, bytes.len() as u64));
        all
    };
    for at in 0..=bytes.len() {
        let whole = starts[..=frames.len()].iter().rposition(|start| *start <= at);
        let found = StreamPlace::last(&bytes[..at], &head).expect("no fault of a device");
        assert_eq!(found.map(|place| place.stream_bytes()), whole.map(|kept| starts[kept] as u64), "cut at {at}");
        assert!(found.is_none_or(|place| completed(place) == bytes), "cut at {at}");
        let mut bad = bytes.clone();
        if let Some(byte) = bad.get_mut(at) {
            *byte ^= 1;
            let found = StreamPlace::last(&bad[..], &head).expect("no fault of a device");
            assert_eq!(found.map(|place| place.stream_bytes()), whole.map(|kept| starts[kept] as u64), "byte {at}");
        }
    }
    let other = Head { compression: Compression::None, ..head };
    assert_eq!(StreamPlace::last(&bytes[..], &other).expect("no fault of a device"), None, "it has another head");
}

#[test]
fn interrupted_export_and_import_go_on() {
    let (runtime, mut passed_over) = (runtime(), 0);
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let mut volume = Volume { len: SEGMENT + 5 * 512 + rng.below(9) * BLOCK, ..Volume::default() };
        (0..3).for_each(|_| volume.change(&mut rng));
        let snapshot = volume.cut(true);
        let head = head(10, volume.len, None);
        let bytes = exported(&runtime, &snapshot, &head).expect("no fault");
        let cut = &bytes[..rng.below(bytes.len() as u64) as usize];
        let Some(place) = StreamPlace::last(cut, &head).expect("no fault of a device") else { continue };

        let encoder = Encoder::go_on(cut[..place.stream_bytes() as usize].to_vec(), place);
        let again = runtime.block_on(crate::export(snapshot.clone(), &head, encoder, &|_| {})).expect("no fault").2;
        let target = Arc::new(Copied::default());
        let whole = imported(&runtime, again, &target).expect("it is whole");
        assert!(target.shown(volume.len) == snapshot.volume.shown(), "seed {seed}: the export");

        let target = Arc::new(Copied::default());
        let (done, ended) = imported_from(&runtime, (cut.to_vec(), 0), &target);
        assert!(matches!(ended, Err(Error::Stream { .. })), "{ended:?}");
        assert_eq!(done, place.done_bytes(), "all whole frames of a stream that is cut are written");
        let before = target.written.swap(0, Ordering::SeqCst);
        let ended = imported_from(&runtime, (bytes, done), &target).1;
        assert_eq!(ended.expect("it is whole").data_bytes, whole.data_bytes);
        assert!(target.shown(volume.len) == snapshot.volume.shown(), "seed {seed}: the import");
        assert_eq!(before + target.written.load(Ordering::SeqCst), whole.data_bytes, "nothing is written twice");
        passed_over += before;
    }
    assert!(passed_over > 0);
}

#[test]
fn frames_that_are_swapped_repeated_or_missing_are_found() {
    let (head, frames) = small();
    let (bytes, starts) = encoded(&head, &frames);
    let parts: Vec<&[u8]> = starts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
    let joined = |parts: &[&[u8]]| [&bytes[..starts[0]], &parts.concat()].concat();
    assert_eq!(joined(&parts), bytes);
    for a in 0..parts.len() {
        for b in a + 1..parts.len() {
            let mut swapped = parts.clone();
            swapped.swap(a, b);
            assert!(decoded(&joined(&swapped)).is_err(), "{a} and {b} are swapped");
        }
        let without: Vec<&[u8]> = (0..parts.len()).filter(|n| *n != a).map(|n| parts[n]).collect();
        assert!(decoded(&joined(&without)).is_err(), "{a} is missing");
        let mut twice = parts.clone();
        twice.insert(a, parts[a]);
        assert!(decoded(&joined(&twice)).is_err(), "{a} is repeated");
    }
    // The frames of another stream do not fit, although each of them is whole.
    let (other, at) = encoded(&Head { compression: Compression::None, ..head }, &frames);
    assert!(decoded(&[&bytes[..starts[0]], &other[at[0]..]].concat()).is_err());
}

#[test]
fn frames_with_right_hashes_in_wrong_places_are_refused() {
    let (head, _) = small();
    let block = |n: u64| Frame::of_data(n * BLOCK, &[1; BLOCK_LEN], Compression::None);
    let refused = |head: &Head, frames: &[Frame]| {
        let found = decoded(&encoded(head, frames).0);
        assert!(matches!(found, Err(Error::Stream { .. })), "{found:?}");
    };
    refused(&head, &[block(3), block(2)]);
    refused(&head, &[block(3), block(3)]);
    refused(&head, &[block(9)]);
    refused(&head, &[Frame::of_data(512, &[1; BLOCK_LEN], Compression::None)]);
    refused(&head, &[Frame::of_data(0, &[1; 512], Compression::None)]);
    refused(&head, &[Frame::of_zeros(BLOCK, 0)]);
    refused(&head, &[Frame::of_zeros(u64::MAX - BLOCK + 1, BLOCK)]);
    refused(&Head { base: None, ..head.clone() }, &[Frame::of_zeros(0, BLOCK)]);
    refused(&Head { block_bytes: 512, ..head.clone() }, &[]);
    refused(&Head { subject: subject(9, 0), ..head.clone() }, &[]);
    refused(&Head { subject: subject(9, 8 * BLOCK - 100), ..head }, &[]);
    assert!(matches!(decoded(b"a text that is longer than the begin of a stream"), Err(Error::Stream { at: 0, .. })));
}

#[test]
fn damaged_stream_ends_the_import_with_an_error() {
    let runtime = runtime();
    let mut volume = Volume { len: SEGMENT, ..Volume::default() };
    (0..3000).for_each(|n| volume.write(n * 2, 1 + (n % 250) as u8));
    let bytes = exported(&runtime, &volume.cut(false), &head(10, SEGMENT, None)).expect("no fault");
    let target = Arc::new(Copied::default());
    let cut = imported(&runtime, bytes[..bytes.len() - 1].to_vec(), &target);
    assert!(matches!(cut, Err(Error::Stream { .. })), "{cut:?}");
    assert!(target.calls.load(Ordering::SeqCst) > 1, "the stream takes several batches");
    let target = Arc::new(Copied::default());
    let totals = imported(&runtime, bytes, &target).expect("it is whole");
    assert_eq!((totals.frames, totals.data_bytes), (3000, 3000 * BLOCK));
    assert!(target.shown(SEGMENT) == volume.shown());
}

#[test]
fn golden_bytes_of_a_stream_never_change() {
    let head = head(8, 8 * BLOCK + 512, Some((7, 8 * BLOCK)));
    let frames = [Frame::of_zeros(BLOCK, 3 * BLOCK), Frame::of_data(8 * BLOCK, &[3; 512], Compression::None)];
    let bytes = encoded(&head, &frames).0;
    let shown: String =
        bytes.chunks(32).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n").collect();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/stream-1.hex");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &shown).expect("the golden file can be written");
    }
    let golden = std::fs::read_to_string(path).expect("the golden file");
    assert_eq!(shown, golden);
    assert_eq!(decoded(&bytes).expect("it is whole"), frames);
}
