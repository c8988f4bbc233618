//! Striped volumes against a model: any layout gives back what was written, with the same extents, from the PGs that the layout
//! names.

use super::script::{Bench, pg, pg_map};
use device::{Answer, Request};
use std::collections::{BTreeMap, BTreeSet};
use types::control::{ClientAnswer, ClientAsk, MapView, Opened, SegmentPlace};
use types::rng::Rng;
use types::{CHUNK, IoBuf, IoBufMut, OsdId, SEGMENT, SegmentIndex, Stripe};
use wire::{Extent, Reply, ReplyBody, RequestBody};

const LEN: u64 = 2 * SEGMENT + (40 << 20);

fn place(stripe: Stripe, segment: SegmentIndex) -> SegmentPlace {
    super::cluster::Cluster::place(stripe, segment)
}

fn view(places: &[SegmentPlace]) -> MapView {
    let pgs = || places.iter().flat_map(|place| place.pgs.iter());
    let leaders = pgs().map(|pg| (*pg, OsdId(1))).collect();
    MapView { pgs: pgs().map(|pg| pg_map(pg.n)).collect(), leaders, osds: Vec::new() }
}

/// Makes a volume of which the first `allocated` segments have PGs.
fn opened(stripe: Stripe, allocated: u32) -> Opened {
    let segments: Vec<SegmentPlace> = (0..allocated).map(|n| place(stripe, SegmentIndex(n))).collect();
    Opened { stripe, view: view(&segments), segments, ..super::script::opened(LEN, 0, true) }
}

fn placed(places: Vec<SegmentPlace>) -> ClientAnswer {
    ClientAnswer::Segments { view: view(&places), segments: places, pending: Vec::new() }
}

/// Sectors with data, each with its stamp.
type Sectors = BTreeMap<u64, u64>;

fn remove(sectors: &mut Sectors, start: u64, end: u64) {
    let mut tail = sectors.split_off(&start);
    sectors.append(&mut tail.split_off(&end));
}

fn stamps(buf: &[u8]) -> impl Iterator<Item = u64> {
    buf.chunks_exact(512).map(|sector| u64::from_le_bytes(sector[..8].try_into().expect("8 bytes")))
}

struct Run {
    rng: Rng,
    stripe: Stripe,
    bench: Bench,
    /// By chunk address, as the PGs hold it.
    store: Sectors,
    /// By volume address, as the user wrote it.
    model: Sectors,
    token: u64,
    messages: usize,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = Rng::new(seed);
        let stripe = Stripe::new(4096 << rng.below(13), 1 << rng.below(7)).expect("powers of two");
        let bench = Bench::new(&opened(stripe, rng.below(3) as u32), None);
        Run { rng, stripe, bench, store: Sectors::new(), model: Sectors::new(), token: 0, messages: 0 }
    }

    /// Draws a range near a border of units, stripes, chunks or segments.
    fn range(&mut self, len_max: u64) -> (u64, u64) {
        let row = self.stripe.unit_bytes() * u64::from(self.stripe.count());
        let borders = [self.stripe.unit_bytes(), row, CHUNK, SEGMENT, 2 * SEGMENT, LEN - 512];
        let border = borders[self.rng.below(6) as usize];
        let offset = (border + 512 * self.rng.below(200)).saturating_sub(512 * self.rng.below(200)).min(LEN - 512);
        let sectors_max = [8, 300, len_max / 512][self.rng.below(3) as usize];
        let len = 512 * self.rng.between(1, sectors_max);
        (offset, len.min(LEN - offset))
    }

    fn change(&mut self) -> Request {
        self.token += 1;
        match self.rng.below(8) {
            0 => {
                let (offset, len) = self.range(1 << 20);
                self.model.extend((offset / 512..(offset + len) / 512).map(|at| (at, 0)));
                Request::WriteZeroes { offset, len, no_hole: true }
            }
            1 | 2 => {
                let (offset, len) = self.range(LEN);
                remove(&mut self.model, offset / 512, (offset + len) / 512);
                match self.rng.chance(1, 2) {
                    true => Request::Trim { offset, len },
                    false => Request::WriteZeroes { offset, len, no_hole: false },
                }
            }
            _ => {
                let (offset, len) = self.range(2 << 20);
                let mut buf = IoBufMut::new(len as usize);
                for (sector, at) in buf.chunks_exact_mut(512).zip(offset / 512..) {
                    let stamp = self.token << 24 | at;
                    sector.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
                    self.model.insert(at, stamp);
                }
                Request::Write { offset, buf: buf.freeze(), fua: false }
            }
        }
    }

    /// Answers messages in any order until all requests have ended.
    fn finish(&mut self) -> Vec<(u64, Answer)> {
        let (mut done, mut open) = (Vec::new(), Vec::new());
        loop {
            open.extend(self.bench.poll());
            let asks = std::mem::take(&mut self.bench.out.meta);
            let quiet = open.is_empty() && asks.is_empty();
            asks.into_iter().for_each(|ask| self.answer_meta(&ask));
            for _ in 0..self.rng.between(1, 100).min(open.len() as u64) {
                let (osd, request) = open.swap_remove(self.rng.below(open.len() as u64) as usize);
                let result = Ok(self.execute(&request));
                self.bench.volume.handle_reply(self.bench.now, osd, Reply { id: request.id, result });
            }
            let ended = std::mem::take(&mut self.bench.out.done).into_iter();
            done.extend(ended.map(|end| (end.token, end.result.expect("no faults"))));
            if quiet && self.bench.volume.is_idle() {
                return done;
            }
            assert!(!quiet, "nothing is on its way, and requests are open");
        }
    }

    fn answer_meta(&mut self, ask: &ClientAsk) {
        let ClientAsk::Segments { segments, allocate, .. } = ask else { panic!("{ask:?}") };
        let places = if *allocate { segments.iter().map(|s| place(self.stripe, *s)).collect() } else { Vec::new() };
        self.bench.volume.handle_meta(self.bench.now, ask, placed(places));
    }

    /// Executes a message as its PG does, and checks that the PG is the one of the chunk's column.
    fn execute(&mut self, request: &wire::Request) -> ReplyBody {
        self.messages += 1;
        let (chunk, range) = match &request.body {
            RequestBody::FenceCheck { .. } => return ReplyBody::Done,
            RequestBody::Read { chunk, range, .. }
            | RequestBody::Extents { chunk, range, .. }
            | RequestBody::Zero { chunk, range, .. }
            | RequestBody::Write { chunk, range, .. } => (chunk.index, *range),
            other => panic!("no faults, so no {other:?}"),
        };
        let segment = SegmentIndex(chunk / types::units::CHUNKS_PER_SEGMENT);
        assert_eq!(request.pg, place(self.stripe, segment).pgs[self.stripe.column_of(chunk) as usize], "chunk {chunk}");
        let start = u64::from(chunk) * (CHUNK / 512) + u64::from(range.start);
        let end = start + u64::from(range.count);
        match &request.body {
            RequestBody::Write { payload, crcs, .. } => {
                assert!(range.verify(payload, crcs));
                self.store.extend((start..).zip(stamps(payload)));
                ReplyBody::Done
            }
            RequestBody::Zero { .. } => {
                remove(&mut self.store, start, end);
                ReplyBody::Done
            }
            RequestBody::Read { .. } => {
                let mut buf = IoBufMut::zeroed(range.len_bytes());
                for (at, stamp) in self.store.range(start..end) {
                    let sector = &mut buf[(at - start) as usize * 512..][..512];
                    sector.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
                }
                ReplyBody::Data { crcs: range.fragment_crcs(&buf), payload: buf.freeze() }
            }
            _ => {
                let extent = |(len, data): (u64, bool)| Extent { sectors: len as u32, data };
                ReplyBody::Extents(extents(&self.store, start, end).into_iter().map(extent).collect())
            }
        }
    }

    fn check_read(&mut self) {
        let (offset, len) = self.range(4 << 20);
        let [data, runs] =
            [Request::Read { offset, len }, Request::Extents { offset, len, since: None }].map(|request| {
                self.bench.submit(request, 0);
                self.finish().pop().expect("one answer").1
            });
        let (Answer::Data(buffers), Answer::Extents(runs)) = (data, runs) else { panic!("answers of another kind") };
        let (start, end) = (offset / 512, (offset + len) / 512);
        let read: Vec<u64> = buffers.iter().flat_map(|buf: &IoBuf| stamps(buf)).collect();
        let wrote: Vec<u64> = (start..end).map(|at| self.model.get(&at).copied().unwrap_or(0)).collect();
        assert!(read == wrote, "{:?}: bytes at {offset}, {len} long", self.stripe);
        let runs: Vec<(u64, bool)> = runs.into_iter().map(|(len, data)| (len / 512, data)).collect();
        assert_eq!(runs, extents(&self.model, start, end), "{:?}: extents at {offset}, {len} long", self.stripe);
    }
}

fn extents(sectors: &Sectors, start: u64, end: u64) -> Vec<(u64, bool)> {
    let (mut runs, mut at) = (Vec::new(), start);
    for sector in sectors.range(start..end).map(|(at, _)| *at) {
        if sector > at {
            device::push_extent(&mut runs, sector - at, false);
        }
        device::push_extent(&mut runs, 1, true);
        at = sector + 1;
    }
    if end > at {
        device::push_extent(&mut runs, end - at, false);
    }
    runs
}

#[test]
fn any_layout_gives_back_what_was_written() {
    for seed in 0..100 {
        let mut run = Run::new(seed);
        for _ in 0..8 {
            let mut under_way: Vec<(u64, u64)> = Vec::new();
            for _ in 0..run.rng.between(1, 4) {
                let change = run.change();
                // Only changes that share no sector commute.
                let (offset, len) = change.span().expect("no flush");
                if under_way.iter().any(|(at, end)| *at < offset + len && offset < *end) {
                    run.finish();
                }
                under_way.push((offset, offset + len));
                run.bench.submit(change, run.token);
            }
            run.finish();
            run.check_read();
        }
        let laid: Sectors =
            run.model.iter().map(|(at, stamp)| (run.stripe.chunk_address(at * 512) / 512, *stamp)).collect();
        assert!(laid == run.store, "{:?}: every sector lies where the layout says", run.stripe);
    }
}

#[test]
fn sequential_mebibyte_reaches_every_column_at_once() {
    for (unit, count) in [(64 << 10, 4), (256 << 10, 4), (16 << 10, 64), (4 << 10, 8)] {
        let stripe = Stripe::new(unit, count).expect("a layout");
        let mut bench = Bench::new(&opened(stripe, 1), None);
        bench.submit(super::script::write(5 << 20, 1 << 20), 1);
        let sent = bench.poll();
        let pgs: BTreeSet<_> = sent.iter().map(|(_, request)| request.pg).collect();
        assert!(pgs.len() >= count as usize, "{stripe:?}: {} PGs before the first answer", pgs.len());
        bench.submit(super::script::read(5 << 20, 1 << 20), 2);
        let reads = bench.poll().len();
        assert_eq!(reads, count as usize, "{stripe:?}: units of a column are read together");
    }
}

#[test]
fn trim_of_whole_stripes_is_one_message_for_each_chunk() {
    let mut run = Run::new(1);
    run.stripe = Stripe::new(4096, 16).expect("a layout");
    run.bench = Bench::new(&opened(run.stripe, 3), None);
    run.bench.submit(Request::Trim { offset: 0, len: SEGMENT }, 1);
    run.finish();
    assert_eq!(run.messages, 64);
}

#[test]
fn place_that_does_not_fit_the_layout_is_asked_for_again() {
    let stripe = Stripe::new(64 << 10, 4).expect("a layout");
    let mut bench = Bench::new(&opened(stripe, 0), None);
    bench.submit(super::script::write(0, 512), 1);
    assert!(bench.poll().is_empty());
    let ask = bench.out.meta.pop().expect("the segment has no place yet");
    let short = SegmentPlace { segment: SegmentIndex(0), pgs: vec![pg(0)] };
    bench.volume.handle_meta(bench.now, &ask, placed(vec![short]));
    assert!(bench.sleep().is_empty());
    let ask = bench.out.meta.pop().expect("it is asked for again");
    bench.volume.handle_meta(bench.now, &ask, placed(vec![place(stripe, SegmentIndex(0))]));
    assert_eq!(bench.poll().len(), 1);
}
