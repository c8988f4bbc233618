//! Flatten: the leader of a PG copies into the head of a volume all that it shows of older generations, and then ends their kinship.
//!
//! Input: orders of meta, which are repeated while the flatten goes on; the head and its maps; results of reads and of copies. Output: reads, copies,
//! which are entries of the PG, and the order to detach. Nothing is stored: another leader looks at the maps and goes on.
//!
//! Invariant: a head is detached when every block that was found to need a copy has got one by an entry of this leader. The maps here tell what
//! is to be copied, and never what is: this replica may have completed a block that others have in part.

use crate::stream::{Budget, LOG_WAIT_MAX};
use crate::tuning::FlattenTuning;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use types::cut::{CutRefusal, FlattenStep};
use types::limits::PART_MAX;
use types::planted::{Bug, on};
use types::store::{Inherited, ReadData, ReadError};
use types::units::{SECTOR, SECTORS_PER_BLOCK};
use types::{
    ChunkKey, CrcList, GenerationId, Index, IoBuf, PgId, ReplicaId, SectorRange, Term, Time, VolumeChunk, VolumeId,
};

/// Places that one OSD copies at once, of one part each, and those of one flatten among them.
const PLACES_MAX: usize = 8;
const PLACES_OF_ONE_MAX: usize = 4;
/// Steps of the walks over chunks that all flattens take in one turn. A step looks at a few chunks.
const LOOKS_MAX: usize = 4;
/// Pause after a place that could not be copied, and while the volume is held or rounds need the device.
const PAUSE: Duration = Duration::from_millis(20);
/// Pause after a block that cannot be read.
const PAUSE_DAMAGED: Duration = Duration::from_secs(1);
/// Pause after copies for which the queue or the device has no room.
const PAUSE_NO_ROOM: Duration = Duration::from_millis(500);
/// The order to detach is repeated after this time.
const DETACH_AGAIN: Duration = Duration::from_secs(1);
const PART_SECTORS: u32 = (PART_MAX / SECTOR) as u32;

/// The head of a volume in a PG that is led here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub replica: ReplicaId,
    pub term: Term,
    pub applied: Index,
    pub head: GenerationId,
    pub chunks: u32,
    /// It stands on nothing.
    pub is_flat: bool,
}

/// A place that is being copied, as the result of its read names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillRead {
    pub replica: ReplicaId,
    pub volume: VolumeId,
    pub fill: u64,
}

/// Blocks with their checksums.
pub type Copied = (SectorRange, IoBuf, CrcList);

/// The PGs of this OSD, as a flatten sees them.
pub trait Heads {
    fn now(&self) -> Time;

    /// Whether rounds that free the log need the device.
    fn is_pressed(&self) -> bool;

    /// Returns for how long the log has waited for its device.
    fn log_wait(&self) -> Duration;

    /// Returns the head of a volume that may be worked on now.
    ///
    /// # Errors
    /// The PG is not led here, is busy, does not have the volume, or the volume has a snapshot of its own.
    fn head(&self, pg: PgId, volume: VolumeId) -> Result<Head, CutRefusal>;

    /// Returns the next chunk with blocks that are to be copied into the head.
    fn next_inherited(&self, replica: ReplicaId, head: GenerationId, from: u32) -> Inherited;

    /// Returns runs of sectors of a range, `true` where they are to be copied.
    fn inherited(&self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) -> Vec<(u32, bool)>;

    /// Begins to copy a place: its number, its chunk, and the entry as of which it is to be read.
    fn begin_fill(
        &mut self,
        replica: ReplicaId,
        chunk: VolumeChunk,
        range: SectorRange,
    ) -> Option<(u64, ChunkKey, Index)>;

    fn end_fill(&mut self, replica: ReplicaId, fill: u64);

    /// Reads a place; [`Flattens::handle_read`] takes the result.
    fn read_fill(&mut self, read: FillRead, chunk: ChunkKey, range: SectorRange);

    /// Proposes copies of a place; [`Flattens::handle_filled`] takes the end of each, or [`Flattens::handle_refused`] that of all.
    fn propose_fill(&mut self, fill: (ReplicaId, u64), chunk: ChunkKey, parts: Vec<Copied>);

    fn detach(&mut self, replica: ReplicaId, volume: VolumeId, head: GenerationId);
}

#[derive(Debug)]
enum Copy {
    /// Waits until this entry is applied.
    Waits {
        after: Index,
    },
    Reads {
        runs: Vec<SectorRange>,
    },
    /// So many copies have not ended; `ok`: all others took effect.
    Proposed {
        left: usize,
        ok: bool,
    },
}

#[derive(Debug)]
struct Place {
    chunk: ChunkKey,
    range: SectorRange,
    copy: Copy,
}

/// The pass over the chunks of a head.
#[derive(Debug, Default)]
struct Pass {
    /// The next chunk; `None`: all were looked at.
    next: Option<u32>,
    /// Places that are still to be copied: those of the present chunk, and those whose copies did not take effect.
    parts: VecDeque<(u32, SectorRange)>,
}

impl Pass {
    fn begin() -> Pass {
        Pass { next: Some(0), ..Pass::default() }
    }

    /// Takes a place back of which nothing was copied.
    fn again(&mut self, place: &Place) {
        self.parts.push_back((place.chunk.index, place.range));
    }

    /// Takes a place back in which a change came in between: in halves, so that a block that is written all the time holds up no others.
    fn again_in_halves(&mut self, place: &Place) {
        let (index, range) = (place.chunk.index, place.range);
        let half = range.count / SECTORS_PER_BLOCK / 2 * SECTORS_PER_BLOCK;
        if half > 0 {
            self.parts.push_back((index, SectorRange::new(range.start, half)));
        }
        self.parts.push_back((index, SectorRange::new(range.start + half, range.count - half)));
    }
}

#[derive(Debug)]
struct Job {
    heard_at: Time,
    /// The head that the pass is about.
    of: Option<(ReplicaId, Term, GenerationId)>,
    pass: Pass,
    places: BTreeMap<u64, Place>,
    paused_until: Time,
    detached_at: Option<Time>,
    /// The most chunks that a pass of this head has looked at.
    done: u32,
}

/// The work that the flattens may still do in this turn.
struct Turn<'a> {
    budget: &'a mut Budget,
    looks: usize,
    places: usize,
}

/// All flattens of one OSD.
pub struct Flattens {
    tuning: FlattenTuning,
    budget: Budget,
    jobs: BTreeMap<(PgId, VolumeId), Job>,
    /// The one that was the last to do something: the next turn begins behind it.
    last: (PgId, VolumeId),
}

impl Flattens {
    pub fn new(tuning: FlattenTuning) -> Flattens {
        Flattens { tuning, budget: Budget::new(tuning.bytes_per_s), jobs: BTreeMap::new(), last: Default::default() }
    }

    /// Whether there is nothing to do. The hot path asks this before anything else.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Handles an order of meta, and says how far the flatten is.
    ///
    /// # Errors
    /// Those of [`Heads::head`].
    pub fn handle_order(
        &mut self,
        host: &mut impl Heads,
        pg: PgId,
        volume: VolumeId,
    ) -> Result<FlattenStep, CutRefusal> {
        let head = host.head(pg, volume)?;
        if head.is_flat {
            if let Some(mut job) = self.jobs.remove(&(pg, volume)) {
                job.end(host);
            }
            return Ok(FlattenStep::Flat);
        }
        let now = host.now();
        if self.jobs.is_empty() {
            self.budget.begin(now);
        }
        let job = self.jobs.entry((pg, volume)).or_insert_with(|| Job::new(now));
        job.heard_at = now;
        Ok(FlattenStep::Copying { done: job.done.min(head.chunks), chunks: head.chunks })
    }

    /// Once a turn: brings each flatten forward. Every effect that groups have applied is in the maps.
    pub fn step(&mut self, host: &mut impl Heads) {
        if self.jobs.is_empty() {
            return;
        }
        let now = host.now();
        let waits = host.log_wait() >= LOG_WAIT_MAX;
        self.budget.fill(now, waits, host.is_pressed());
        let places = PLACES_MAX.saturating_sub(self.places());
        let keys: Vec<(PgId, VolumeId)> = self.jobs.keys().copied().collect();
        let first = keys.partition_point(|key| *key <= self.last);
        let mut turn = Turn { budget: &mut self.budget, looks: LOOKS_MAX, places };
        for key in keys[first..].iter().chain(&keys[..first]) {
            let job = self.jobs.get_mut(key).expect("it was just seen");
            let before = (turn.looks, turn.places);
            let heard = now < job.heard_at + self.tuning.patience;
            if !(heard && job.step(host, *key, &mut turn)) {
                job.end(host);
                self.jobs.remove(key);
            }
            if (turn.looks, turn.places) != before {
                self.last = *key;
            }
        }
    }

    fn places(&self) -> usize {
        self.jobs.values().map(|job| job.places.len()).sum()
    }

    /// Takes the bytes of a place.
    pub fn handle_read(&mut self, host: &mut impl Heads, read: FillRead, result: Result<ReadData, ReadError>) {
        let FillRead { replica, volume, fill } = read;
        let Some(job) = self.job(replica, volume) else { return host.end_fill(replica, fill) };
        let Some(Place { chunk, range, copy: Copy::Reads { runs } }) = job.places.get_mut(&fill) else {
            return host.end_fill(replica, fill);
        };
        let (chunk, whole, runs) = (*chunk, *range, std::mem::take(runs));
        let parts: Vec<Copied> = match result {
            Ok(ReadData::Bytes { crcs, payload }) => {
                runs.into_iter().map(|run| part_of(run, whole, &payload, &crcs)).collect()
            }
            // All replicas show zeros, also without the parent: it has no data here, or a client has discarded it.
            Ok(ReadData::Zeros) => {
                job.places.remove(&fill);
                return host.end_fill(replica, fill);
            }
            Err(error) => {
                tracing::warn!(%replica, %volume, %error, "a flatten waits for a block that cannot be read");
                job.paused_until = host.now() + PAUSE_DAMAGED;
                let place = job.places.remove(&fill).expect("it was just seen");
                job.pass.again(&place);
                return host.end_fill(replica, fill);
            }
        };
        job.places.insert(fill, Place { chunk, range: whole, copy: Copy::Proposed { left: parts.len(), ok: true } });
        host.propose_fill((replica, fill), chunk, parts);
    }

    /// Notes that no copy of a place was proposed, because the queue or the device has no room.
    pub fn handle_refused(&mut self, now: Time, replica: ReplicaId, fill: u64) {
        let mut jobs = self.jobs.values_mut();
        if let Some(job) = jobs.find(|job| job.is_of(replica) && job.places.contains_key(&fill)) {
            let place = job.places.remove(&fill).expect("it was just found");
            job.pass.again(&place);
            job.paused_until = now + PAUSE_NO_ROOM;
        }
    }

    /// Takes the end of a copy. A place with one that was not carried out comes again.
    pub fn handle_filled(&mut self, now: Time, replica: ReplicaId, fill: u64, ok: bool) {
        let job = self.jobs.values_mut().find(|job| job.is_of(replica) && job.places.contains_key(&fill));
        let Some(job) = job else { return };
        if !ok {
            job.paused_until = job.paused_until.max(now + PAUSE);
        }
        let Some(Place { copy: Copy::Proposed { left, ok: all }, .. }) = job.places.get_mut(&fill) else { return };
        *left -= 1;
        *all &= ok;
        let (is_last, is_copied) = (*left == 0, *all);
        if is_last {
            let place = job.places.remove(&fill).expect("it was just seen");
            if !is_copied {
                job.pass.again_in_halves(&place);
            }
        }
    }

    /// Returns the time of the next step, if no event comes before.
    pub fn next_deadline(&self) -> Time {
        // The end of a place is an event.
        let is_full = self.places() >= PLACES_MAX;
        let next = |job: &Job| {
            let wants = job.places.is_empty() && !is_full;
            let waits = if self.budget.tokens <= 0 { self.budget.ready_at() } else { Time::ZERO };
            let detach = job.detached_at.map_or(Time::ZERO, |at| at + DETACH_AGAIN);
            let work = if wants { waits.max(job.paused_until).max(detach) } else { Time::NEVER };
            work.min(job.heard_at + self.tuning.patience)
        };
        self.jobs.values().map(next).min().unwrap_or(Time::NEVER)
    }

    /// The store is poisoned.
    pub fn clear(&mut self) {
        self.jobs.clear();
    }

    fn job(&mut self, replica: ReplicaId, volume: VolumeId) -> Option<&mut Job> {
        self.jobs.iter_mut().find(|((_, of), job)| *of == volume && job.is_of(replica)).map(|(_, job)| job)
    }
}

impl Job {
    fn new(now: Time) -> Job {
        Job {
            heard_at: now,
            of: None,
            pass: Pass::begin(),
            places: BTreeMap::new(),
            paused_until: Time::ZERO,
            detached_at: None,
            done: 0,
        }
    }

    fn is_of(&self, replica: ReplicaId) -> bool {
        self.of.is_some_and(|(of, ..)| of == replica)
    }

    /// Forgets all places.
    fn end(&mut self, host: &mut impl Heads) {
        if let Some((replica, ..)) = self.of {
            std::mem::take(&mut self.places).into_keys().for_each(|fill| host.end_fill(replica, fill));
        }
    }

    /// Does what can be done now; false when the flatten has ended here.
    fn step(&mut self, host: &mut impl Heads, (pg, volume): (PgId, VolumeId), turn: &mut Turn<'_>) -> bool {
        let head = match host.head(pg, volume) {
            Ok(head) if !head.is_flat => head,
            Ok(_) | Err(CutRefusal::NotLeader { .. } | CutRefusal::Absent) => return false,
            Err(_) => {
                self.paused_until = host.now() + PAUSE;
                return true;
            }
        };
        let of = (head.replica, head.term, head.head);
        if self.of != Some(of) {
            self.end(host);
            (self.of, self.pass, self.done, self.detached_at) = (Some(of), Pass::begin(), 0, None);
        }
        self.read_places(host, volume, &head);
        if host.is_pressed() {
            self.paused_until = self.paused_until.max(host.now() + PAUSE);
        }
        if host.now() < self.paused_until {
            return true;
        }
        self.look(host, &head, turn);
        while self.places.len() < PLACES_OF_ONE_MAX && turn.places > 0 && turn.budget.tokens > 0 {
            let Some((index, range)) = self.pass.parts.pop_front() else { break };
            let Some((fill, chunk, after)) = host.begin_fill(head.replica, VolumeChunk { volume, index }, range) else {
                self.pass.parts.push_front((index, range));
                self.paused_until = host.now() + PAUSE;
                break;
            };
            turn.budget.tokens -= range.len_bytes() as i64;
            turn.places -= 1;
            self.places.insert(fill, Place { chunk, range, copy: Copy::Waits { after } });
        }
        // A place whose entry is applied already is read in this turn.
        self.read_places(host, volume, &head);
        let looked = self.pass.next.is_none() && self.pass.parts.is_empty();
        if looked && (self.places.is_empty() || on(Bug::DetachTooEarly)) {
            self.end_pass(host, volume, &head);
        }
        true
    }

    /// Reads the places whose entry is applied.
    fn read_places(&mut self, host: &mut impl Heads, volume: VolumeId, head: &Head) {
        let due = |place: &Place| matches!(place.copy, Copy::Waits { after } if after <= head.applied);
        let fills: Vec<u64> = self.places.iter().filter(|(_, place)| due(place)).map(|(fill, _)| *fill).collect();
        for fill in fills {
            let place = self.places.get_mut(&fill).expect("it was just found");
            let runs = runs_in(place.range, &host.inherited(head.replica, place.chunk, place.range));
            let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
                self.places.remove(&fill);
                host.end_fill(head.replica, fill);
                continue;
            };
            place.range = SectorRange::new(first.start, last.end() - first.start);
            let (chunk, range) = (place.chunk, place.range);
            place.copy = Copy::Reads { runs };
            host.read_fill(FillRead { replica: head.replica, volume, fill }, chunk, range);
        }
    }

    /// Looks for the next chunk with something to copy, when the present one is done.
    fn look(&mut self, host: &mut impl Heads, head: &Head, turn: &mut Turn<'_>) {
        while self.pass.parts.len() < PLACES_OF_ONE_MAX && turn.looks > 0 && turn.budget.tokens > 0 {
            let Some(from) = self.pass.next else { return };
            turn.looks -= 1;
            match host.next_inherited(head.replica, head.head, from) {
                Inherited::Chunk { index, .. } if index >= head.chunks => self.pass.next = None,
                Inherited::Chunk { index, runs } => {
                    self.pass.next = index.checked_add(1);
                    self.pass.parts.extend(parts_of(&runs).into_iter().map(|range| (index, range)));
                }
                Inherited::Further(index) => self.pass.next = Some(index),
                Inherited::End => self.pass.next = None,
            }
            self.done = self.done.max(self.pass.next.unwrap_or(head.chunks));
        }
    }

    fn end_pass(&mut self, host: &mut impl Heads, volume: VolumeId, head: &Head) {
        let now = host.now();
        if self.detached_at.is_none_or(|at| now >= at + DETACH_AGAIN) {
            self.detached_at = Some(now);
            host.detach(head.replica, volume, head.head);
        }
    }
}

/// Returns the runs of a range that are to be copied.
fn runs_in(range: SectorRange, runs: &[(u32, bool)]) -> Vec<SectorRange> {
    let mut at = range.start;
    let mut found = Vec::new();
    for (count, is) in runs {
        if *is {
            found.push(SectorRange::new(at, *count));
        }
        at += count;
    }
    found
}

/// Returns the places of a chunk that are to be copied, each within one part.
fn parts_of(runs: &[(u32, bool)]) -> Vec<SectorRange> {
    let mut parts: Vec<SectorRange> = Vec::new();
    for run in runs_in(SectorRange::CHUNK, runs) {
        let mut at = run.start;
        while at < run.end() {
            let end = run.end().min((at / PART_SECTORS + 1) * PART_SECTORS);
            match parts.last_mut().filter(|last| last.start / PART_SECTORS == at / PART_SECTORS) {
                Some(last) => *last = SectorRange::new(last.start, end - last.start),
                None => parts.push(SectorRange::new(at, end - at)),
            }
            at = end;
        }
    }
    parts
}

/// Returns a run of whole blocks out of what was read.
fn part_of(run: SectorRange, whole: SectorRange, payload: &IoBuf, crcs: &[u32]) -> Copied {
    let first = run.start - whole.start;
    let bytes = first as usize * SECTOR as usize..(first as usize * SECTOR as usize + run.len_bytes());
    let blocks = (first / SECTORS_PER_BLOCK) as usize..((first + run.count) / SECTORS_PER_BLOCK) as usize;
    (run, payload.slice(bytes), CrcList::from_slice(&crcs[blocks]))
}
