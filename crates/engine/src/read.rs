//! Reads: bytes of the overlay from memory, the rest from home, joined and verified.
//!
//! A read pins what it looked up: payloads by counted references, places of home by its lookup clock. When home reports
//! that the chunk was rewritten meanwhile, the whole read is looked up again, overlay first. So the two halves of a
//! block are always of one version.
//!
//! Invariant: every CRC returned was stored with exactly these bytes, or computed after the stored CRCs of all bytes in
//! it were verified.

use crate::api::EngineEvent;
use crate::engine::{Engine, State};
use crate::home::Home;
use crate::home_api::{At, HomeEvent, HomeReadError, Piece};
use crate::lineage::{Lineage, LineageError, View};
use crate::overlay::{Found, Source};
use crate::payload::Payload;
use crate::replica::Replica;
use crate::resolve::{Resolved, Sources};
use crate::{ReadData, ReadError};
use env::Event;
use std::collections::BTreeMap;
use std::sync::Arc;
use types::planted::{Bug, on};
use types::range::fragment_bytes;
use types::{ChunkKey, CrcList, GenerationId, IoBuf, IoBufMut, ReplicaId, SectorRange, crc32c};

/// Origin of a read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asker {
    /// The OSD's loop, with its token.
    Loop(u64),
    /// The OSD's loop, for the comparison of older contents with a stream's.
    Base(u64),
    /// The running round, for a block that the overlay covers in part.
    Completion,
    /// A merge, with the number of its plan.
    Merge(u64),
}

/// A read that waits for home.
#[derive(Debug)]
pub(crate) struct Job {
    pub asker: Asker,
    pub replica: ReplicaId,
    pub chunk: ChunkKey,
    pub range: SectorRange,
    found: Vec<Found>,
}

/// Reads that wait for home, by ticket.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    jobs: BTreeMap<u64, Job>,
    next: u64,
    /// Number of reads that were looked up a second time.
    pub again: u64,
}

/// A run of sectors whose bytes are in memory.
#[derive(Debug)]
pub(crate) enum Part {
    Zeros,
    Data(Arc<Payload>),
    /// Bytes from home: verified there, with the CRCs of their fragments.
    Home {
        crcs: CrcList,
        payload: IoBuf,
    },
}

impl Engine {
    /// Reads `range` as it is now; [`EngineEvent::ReadDone`] follows, perhaps at once.
    pub fn read(
        &mut self,
        token: u64,
        replica: ReplicaId,
        chunk: ChunkKey,
        range: SectorRange,
        out: &mut Vec<EngineEvent>,
    ) {
        self.start_read(Asker::Loop(token), replica, chunk, range);
        out.append(&mut self.events);
    }

    pub(crate) fn start_read(&mut self, asker: Asker, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) {
        let refusal = match self.replicas.get(&replica) {
            _ if !matches!(self.state, State::Running) => Some(ReadError::Poisoned),
            _ if matches!(asker, Asker::Base(_)) => self.refuse_base(replica, chunk),
            Some(r) if r.is_filling() && !self.sources_of(r).covers(chunk, range) => {
                Some(ReadError::NoReplica(replica))
            }
            None => Some(ReadError::NoReplica(replica)),
            Some(r) => r.failure().map(|f| ReadError::Damaged { replica, chunk, reason: f.reason.clone() }),
        };
        if let Some(error) = refusal {
            return self.answer(asker, Err(error));
        }
        let (Resolved { parts: found, looked }, family) = match self.look_up(asker, replica, chunk, range) {
            Ok(resolved) => resolved,
            Err(error) => {
                let reason = error.to_string();
                return self.answer(asker, Err(ReadError::Damaged { replica, chunk, reason }));
            }
        };
        let gap = |f: &Found| if let Source::Home(key) = f.source { Some((key, f.range)) } else { None };
        let gaps: Vec<(ChunkKey, SectorRange)> = found.iter().filter_map(gap).collect();
        if gaps.is_empty() {
            let parts = found.into_iter().map(|f| (f.range, at_hand(f.source))).collect();
            return self.finish_read(asker, replica, chunk, range, parts);
        }
        let ticket = self.reads.next;
        self.reads.next += 1;
        self.reads.jobs.insert(ticket, Job { asker, replica, chunk, range, found });
        let mut events = Vec::new();
        let home = self.home.as_mut().expect("a running engine has a home");
        home.read(ticket, replica, (family, &looked), &gaps, &mut self.ops, &mut events);
        self.home_events(events);
    }

    /// Returns the sources of a read, and the family of its blocks.
    fn look_up(
        &self,
        asker: Asker,
        replica: ReplicaId,
        chunk: ChunkKey,
        range: SectorRange,
    ) -> Result<(Resolved, GenerationId), LineageError> {
        let resolved = |of: Sources<'_>| (of.resolve(View::Full, chunk, range), of.lineage.family(chunk.generation));
        if matches!(asker, Asker::Base(_)) && self.is_only_home(replica) {
            let lineage = self.home_lineage(replica)?;
            return Ok(resolved(self.home_sources(replica, &lineage)));
        }
        let r = &self.replicas[&replica];
        Ok(resolved(match asker {
            Asker::Base(_) => r.base_sources(self.running_home()),
            Asker::Loop(_) | Asker::Merge(_) => self.sources_of(r),
            // R2: the lineage is as of the checkpoint index, as is the frozen layer.
            Asker::Completion => {
                let lineage = self.destage.round.lineage_of(replica).unwrap_or(&r.lineage);
                Sources { frozen: true, lineage, ..self.sources_of(r) }
            }
        }))
    }

    pub(crate) fn running_home(&self) -> &Home {
        self.home.as_ref().expect("a running engine has a home")
    }

    /// Returns the contents of a replica as applied.
    pub(crate) fn sources_of<'a>(&'a self, r: &'a Replica) -> Sources<'a> {
        r.sources(self.running_home())
    }

    /// Returns the contents of a replica at home alone, with the lineage of its checkpoint.
    pub(crate) fn home_sources<'a>(&'a self, replica: ReplicaId, lineage: &'a Lineage) -> Sources<'a> {
        Sources { replica, home: Some(self.running_home()), overlay: None, frozen: false, lineage }
    }

    /// Returns the lineage of a replica's contents at home.
    ///
    /// # Errors
    /// Its checkpoint has none.
    pub(crate) fn home_lineage(&self, replica: ReplicaId) -> Result<Arc<Lineage>, LineageError> {
        let state = self.running_home().state(replica);
        state.map_or_else(|| Ok(Arc::default()), |state| self.home_lineages.borrow_mut().of(state))
    }

    /// Returns the reason why this chunk of a base cannot be read now, if there is one.
    fn refuse_base(&self, replica: ReplicaId, chunk: ChunkKey) -> Option<ReadError> {
        let only_home = self.is_only_home(replica);
        let home = self.home.as_ref().expect("a running engine has a home");
        let reason = || "its last round is not over".to_owned();
        let is_rewriting = |lineage: Arc<Lineage>| {
            let mut steps = lineage.steps(chunk.generation, chunk.index, View::Full);
            steps.any(|generation| home.is_rewriting(replica, ChunkKey { generation, ..chunk }))
        };
        match only_home || self.replicas.contains_key(&replica) {
            false => Some(ReadError::NoReplica(replica)),
            true if only_home && self.home_lineage(replica).is_ok_and(is_rewriting) => {
                Some(ReadError::Damaged { replica, chunk, reason: reason() })
            }
            true => None,
        }
    }

    /// Starts the read of a block that the running round must complete.
    pub(crate) fn read_for_completion(&mut self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) {
        self.start_read(Asker::Completion, replica, chunk, range);
    }

    /// Starts the read of adjacent blocks that home holds, for a merge.
    pub(crate) fn read_for_merge(&mut self, plan: u64, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) {
        let family = self.replicas[&replica].lineage.family(chunk.generation);
        let ticket = self.reads.next;
        self.reads.next += 1;
        let found = vec![Found { range, source: Source::Home(chunk) }];
        self.reads.jobs.insert(ticket, Job { asker: Asker::Merge(plan), replica, chunk, range, found });
        let mut events = Vec::new();
        let home = self.home.as_mut().expect("a running engine has a home");
        home.read(ticket, replica, (family, &[]), &[(chunk, range)], &mut self.ops, &mut events);
        self.home_events(events);
    }

    fn finish_read(
        &mut self,
        asker: Asker,
        replica: ReplicaId,
        chunk: ChunkKey,
        range: SectorRange,
        parts: Vec<(SectorRange, Part)>,
    ) {
        if parts.len() > 1 {
            let copied = parts.iter().filter(|(_, part)| !matches!(part, Part::Zeros));
            self.stats.copied_bytes += copied.map(|(range, _)| range.len_bytes() as u64).sum::<u64>();
        }
        match (asker, join(range, parts)) {
            (Asker::Loop(_) | Asker::Base(_), Ok(data)) => self.answer(asker, Ok(data)),
            (Asker::Completion, Ok(data)) => self.block_read(replica, chunk, range, data),
            (Asker::Merge(plan), Ok(data)) => self.merge_read(plan, replica, chunk, range, data),
            (_, Err(at)) => {
                let reason = format!("sectors {at} were damaged in memory");
                self.answer_damage(asker, replica, chunk, reason);
            }
        }
    }

    fn answer(&mut self, asker: Asker, result: Result<ReadData, ReadError>) {
        match asker {
            Asker::Loop(token) | Asker::Base(token) => self.events.push(EngineEvent::ReadDone { token, result }),
            Asker::Completion => self.block_unreadable(),
            Asker::Merge(plan) => self.merge_read_ended(plan),
        }
    }

    fn answer_damage(&mut self, asker: Asker, replica: ReplicaId, chunk: ChunkKey, reason: String) {
        self.fail(replica, reason.clone());
        self.answer(asker, Err(ReadError::Damaged { replica, chunk, reason }));
    }

    /// Handles a completion of home.
    pub(crate) fn home_event(&mut self, event: Event) {
        let mut events = Vec::new();
        let home = self.home.as_mut().expect("home made this token");
        home.handle_event(self.now, event, &mut self.ops, &mut events);
        self.home_events(events);
    }

    pub(crate) fn home_events(&mut self, events: Vec<HomeEvent>) {
        for event in events {
            match event {
                HomeEvent::Mounted { states, damaged } => self.home_mounted(states, damaged),
                HomeEvent::MountFailed { reason } => self.fail_mount(crate::MountError::Home { reason }),
                HomeEvent::ReadDone { ticket, result } => self.home_read_done(ticket, result),
                HomeEvent::ReadRetry { ticket } => {
                    let job = self.reads.jobs.remove(&ticket);
                    if let Some(Job { asker: Asker::Merge(plan), .. }) = job {
                        // The chunk has changed since.
                        self.merge_read_ended(plan);
                    } else if let Some(job) = job {
                        self.reads.again += 1;
                        self.start_read(job.asker, job.replica, job.chunk, job.range);
                    }
                }
                HomeEvent::Staged { ticket } => self.events.push(EngineEvent::Staged { token: ticket }),
                HomeEvent::RoundReady { records } => self.round_ready(records),
                HomeEvent::RoundFull => self.round_full(),
                HomeEvent::Failed { during, source } => self.poison(during, source),
            }
        }
    }

    fn home_read_done(&mut self, ticket: u64, result: Result<Vec<(SectorRange, Piece)>, HomeReadError>) {
        let job = self.reads.jobs.remove(&ticket).expect("home answers each ticket once");
        let Job { asker, replica, chunk, range, found } = job;
        let pieces = match result {
            Ok(pieces) => pieces,
            Err(error) => return self.home_read_failed(asker, replica, chunk, range, error),
        };
        let late = matches!(asker, Asker::Loop(_)) && self.replicas.contains_key(&replica) && on(Bug::OverlayReadLate);
        let found = if late { self.found_now(replica, chunk, found) } else { found };
        let mut pieces = pieces.into_iter().peekable();
        let mut parts = Vec::with_capacity(found.len());
        for f in found {
            if !matches!(f.source, Source::Home(_)) {
                parts.push((f.range, at_hand(f.source)));
                continue;
            }
            let mut at = f.range.start;
            while let Some((piece_range, piece)) = pieces.next_if(|(r, _)| r.end() <= f.range.end()) {
                assert_eq!(piece_range.start, at, "home's pieces tile what was asked");
                at = piece_range.end();
                let part = match piece {
                    Piece::Zeros => Part::Zeros,
                    Piece::Bytes { crcs, payload } => Part::Home { crcs, payload },
                };
                parts.push((piece_range, part));
            }
            assert_eq!(at, f.range.end(), "home's pieces tile what was asked");
        }
        self.finish_read(asker, replica, chunk, range, parts);
    }

    /// Looks the sources in the overlay up a second time: the mistake [`Bug::OverlayReadLate`].
    fn found_now(&self, replica: ReplicaId, chunk: ChunkKey, found: Vec<Found>) -> Vec<Found> {
        let again = |f: Found| match f.source {
            Source::Home(_) => vec![f],
            _ => {
                let now = self.sources_of(&self.replicas[&replica]).resolve(View::Full, chunk, f.range).parts;
                if now.iter().any(|f| matches!(f.source, Source::Home(_))) { vec![f] } else { now }
            }
        };
        found.into_iter().flat_map(again).collect()
    }

    fn home_read_failed(
        &mut self,
        asker: Asker,
        replica: ReplicaId,
        chunk: ChunkKey,
        range: SectorRange,
        error: HomeReadError,
    ) {
        if on(Bug::ReadErrorAsZeros) && matches!((asker, &error), (Asker::Loop(_), HomeReadError::Disk { .. })) {
            return self.answer(asker, Ok(ReadData::Zeros));
        }
        if !matches!(asker, Asker::Base(_)) {
            self.blocks_are_bad(asker, replica, &error);
        }
        let reason = error.to_string();
        self.answer(asker, Err(ReadError::BadBlocks { replica, chunk, range, reason }));
    }

    /// Returns runs of (sectors, whether they may hold data) that tile `range`.
    pub fn extents(&self, replica: ReplicaId, chunk: ChunkKey, range: SectorRange) -> Vec<(u32, bool)> {
        let mut runs: Vec<(u32, bool)> = Vec::new();
        let mut push = |sectors: u32, data: bool| match runs.last_mut() {
            Some((count, kind)) if *kind == data => *count += sectors,
            _ => runs.push((sectors, data)),
        };
        let (Some(r), Some(home)) = (self.replicas.get(&replica), &self.home) else {
            return vec![(range.count, false)];
        };
        if r.is_filling() {
            // The part that its log does not cover is not known.
            return vec![(range.count, true)];
        }
        for f in r.sources(home).resolve(View::Full, chunk, range).parts {
            match f.source {
                Source::Data(_) => push(f.range.count, true),
                Source::Zeros | Source::Open | Source::Hidden => push(f.range.count, false),
                Source::Home(key) => {
                    home.at(replica, key, f.range).iter().for_each(|(run, at)| push(run.count, *at == At::Data));
                }
            }
        }
        runs
    }
}

fn at_hand(source: Source) -> Part {
    match source {
        Source::Data(payload) => Part::Data(payload),
        Source::Zeros | Source::Open => Part::Zeros,
        Source::Hidden | Source::Home(_) => unreachable!("gaps were asked of home"),
    }
}

/// Joins parts that tile `range`. On failure returns the sectors whose bytes in memory fail their CRC.
pub(crate) fn join(range: SectorRange, mut parts: Vec<(SectorRange, Part)>) -> Result<ReadData, SectorRange> {
    if parts.iter().all(|(_, part)| matches!(part, Part::Zeros)) {
        return Ok(ReadData::Zeros);
    }
    if parts.len() == 1 {
        let (part_range, part) = parts.pop().expect("there is one");
        assert_eq!(part_range, range, "parts tile the range");
        return match part {
            Part::Data(payload) => {
                let mut crcs = CrcList::with_capacity(range.fragment_count());
                if !payload.crcs_of(range, &mut crcs) {
                    return Err(range);
                }
                Ok(ReadData::Bytes { crcs, payload: payload.slice(range) })
            }
            Part::Home { crcs, payload } => Ok(ReadData::Bytes { crcs, payload }),
            Part::Zeros => unreachable!("all zeros was settled above"),
        };
    }
    let mut bytes = IoBufMut::new(range.len_bytes());
    // CRC of each fragment that one part covers whole.
    let mut known: Vec<Option<u32>> = vec![None; range.fragment_count()];
    let mut at = range.start;
    for (part_range, part) in &parts {
        assert_eq!(part_range.start, at, "parts tile the range");
        at = part_range.end();
        let into = fragment_bytes(range.start, *part_range);
        match part {
            Part::Zeros => bytes[into].fill(0),
            Part::Home { crcs, payload } => {
                bytes[into].copy_from_slice(payload);
                note_whole(range, *part_range, crcs, &mut known);
            }
            Part::Data(payload) => {
                let mut crcs = CrcList::with_capacity(part_range.fragment_count());
                if !payload.crcs_of(*part_range, &mut crcs) || !verify_ends(range, *part_range, payload) {
                    return Err(*part_range);
                }
                bytes[into].copy_from_slice(&payload.slice(*part_range));
                note_whole(range, *part_range, &crcs, &mut known);
            }
        }
    }
    assert_eq!(at, range.end(), "parts tile the range");
    let crcs = range
        .fragments()
        .zip(known)
        .map(|(f, crc)| crc.unwrap_or_else(|| crc32c(&bytes[fragment_bytes(range.start, f)])))
        .collect();
    Ok(ReadData::Bytes { crcs, payload: bytes.freeze() })
}

fn note_whole(range: SectorRange, part: SectorRange, crcs: &[u32], known: &mut [Option<u32>]) {
    let first_block = range.start / types::units::SECTORS_PER_BLOCK;
    for (fragment, crc) in part.fragments().zip(crcs) {
        let nth = (fragment.start / types::units::SECTORS_PER_BLOCK - first_block) as usize;
        if whole_in(range, fragment) {
            known[nth] = Some(*crc);
        }
    }
}

/// Whether `fragment` is all that `range` has of its block.
fn whole_in(range: SectorRange, fragment: SectorRange) -> bool {
    let block = crate::overlay::block_range((fragment.start / types::units::SECTORS_PER_BLOCK) as u16);
    range.intersect(block) == Some(fragment)
}

/// Verifies fragments that become part of a larger fragment: the larger one gets a new CRC.
fn verify_ends(range: SectorRange, part: SectorRange, payload: &Payload) -> bool {
    part.fragments().filter(|f| !whole_in(range, *f)).all(|f| payload.verify_fragment(f))
}
