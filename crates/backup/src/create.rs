//! Making a backup: the blocks of a snapshot, or those that differ from an older backup, go to pieces.
//!
//! Segment after segment: its extents come from the maps of the cluster, data is read and packed by several threads, then the
//! index is written. A draft says how far it came, so an interrupted backup goes on.
//!
//! Invariants:
//! - What an index names is written before it, and what a record names before that. Memory is bounded by [`PIECES_AT_ONCE`].
//! - An attempt has drafts of its own from its begin to its record. When another command deletes them, it ends without a record.
//! - A draft never changes, except for the first, which names no object. Each has the next number, and counts while the one before it is
//!   there: so one that arrives late, when its attempt was given up and its objects were deleted, does not.

use crate::error::Error;
use crate::format::{self, ObjectId, PIECE_BLOCKS_MAX};
use crate::index::{Index, Place};
use crate::record::{Record, Subject};
use crate::repository::Repository;
use crate::volume::Source;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;
use types::Compression;
use types::units::{BLOCK, SEGMENT};

/// Pieces that are read, packed or sent at the same time: 4 MiB each, twice.
pub const PIECES_AT_ONCE: usize = 8;
/// Bytes behind which a draft is written, by default.
pub const DRAFT_BYTES: u64 = 256 << 20;

/// Blocks of a segment.
pub type Blocks = Range<u32>;

/// How far a backup or a restore has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the volume that are done.
    pub done_bytes: u64,
    /// Bytes that were read from the volume, or written to it.
    pub moved_bytes: u64,
}

/// A backup to make.
pub struct Create {
    /// Where it goes.
    pub repository: Repository,
    /// The snapshot.
    pub source: Arc<dyn Source>,
    /// The contents that it has.
    pub subject: Subject,
    /// The older backup with which [`Source::changed`] compares.
    pub base: Option<Record>,
    /// Compression of pieces.
    pub compression: Compression,
    /// Random: that of this attempt alone.
    pub salt: u64,
    /// The present time: milliseconds of the Unix clock.
    pub begun_ms: u64,
    /// Written bytes behind which a draft is written: an interrupted backup repeats no more than these and a segment.
    pub draft_bytes: u64,
}

/// A piece that is written.
struct Packed {
    /// The blocks of the segment that it was made of; those that no place has are zeros.
    of: Vec<Blocks>,
    runs: Vec<(u32, Place)>,
    read_bytes: u64,
    written_bytes: u64,
}

impl Create {
    /// Makes the backup, or goes on with it, and returns its record. `tell` learns the progress.
    ///
    /// # Errors
    /// The failure of the repository or of the volume; what is done stays for the next attempt. `GivenUp`: another command ended this
    /// attempt.
    pub async fn run(&self, tell: &(dyn Fn(Progress) + Sync)) -> Result<Record, Error> {
        self.repository.begin().await?;
        let (mut record, base) = self.begin().await?;
        let len = self.subject.len_bytes;
        let mut drafted = record.written_bytes;
        for n in record.segments.len() as u64..len.div_ceil(SEGMENT) {
            let range = n * SEGMENT..((n + 1) * SEGMENT).min(len);
            let older = base.map(|base| base.segments.get(n as usize).copied().flatten());
            let index = self.segment(older, range.clone(), &mut record).await?;
            record.segments.push(index);
            tell(Progress { done_bytes: range.end, moved_bytes: record.read_bytes });
            if record.written_bytes - drafted >= self.draft_bytes {
                self.draft(&mut record).await?;
                self.must_have(&record, base).await?;
                drafted = record.written_bytes;
            }
        }
        self.finish(record).await
    }

    /// Returns the draft of this attempt, which is in the repository from now on, and the older backup to begin with.
    async fn begin(&self) -> Result<(Record, Option<&Record>), Error> {
        let owner = format!("{:016x}", self.salt);
        let fresh = |base: Option<&Record>| {
            let parent = base.map(|base| base.id.clone());
            Record::begin(self.subject.clone(), parent, (owner.clone(), self.begun_ms))
        };
        let mut base = self.base.as_ref();
        let mut record = fresh(base);
        let drafts = self.repository.drafts(Some(&record.volume())).await?;
        let mut others: Vec<Record> = drafts.into_iter().flatten().collect();
        others.retain(|draft| draft.subject.is_same_snapshot(&record.subject));
        let mut goes_on = None;
        if let Some(best) = self.longest_whole(&others, &record).await? {
            let begun_ms = best.begun_ms.min(self.begun_ms);
            let (owner, subject) = (owner.clone(), self.subject.clone());
            let second = Record { owner, begun_ms, subject, draft: 1, ..best.clone() };
            self.repository.put_draft(&second).await?;
            // It protects the objects that it names from now on. If the one that it was made of is gone, they may be, too. The first
            // draft, which comes behind it, says that they were there.
            match self.is_whole(best).await? {
                true => goes_on = Some(second),
                false => self.repository.drop_draft(&second).await?,
            }
        }
        self.repository.put_draft(&record).await?;
        // A sweep that has not seen the draft may have deleted what the older backup names: then its record had gone before.
        if let Some(older) = base
            && !self.repository.has(older).await?
        {
            base = None;
            record = fresh(None);
            self.repository.put_draft(&record).await?;
            if let Some(second) = goes_on.take() {
                self.repository.drop_draft(&second).await?;
            }
        }
        record = goes_on.unwrap_or(record);
        // The attempts that they belong to end.
        for other in &others {
            self.repository.drop_draft(other).await?;
        }
        Ok((record, base))
    }

    /// Writes the next draft. The last two stay: one counts while the one before it is there.
    async fn draft(&self, record: &mut Record) -> Result<(), Error> {
        self.must_own(record).await?;
        let old = record.before();
        record.draft += 1;
        self.repository.put_draft(record).await?;
        // It was given up meanwhile: the draft protects what may be deleted already.
        if let Err(error) = self.must_own(record).await {
            self.repository.drop_draft(record).await?;
            return Err(error);
        }
        match old {
            Some(old) => self.repository.drop_draft(&old).await,
            None => Ok(()),
        }
    }

    /// Checks that no other command has ended this attempt.
    async fn must_own(&self, record: &Record) -> Result<(), Error> {
        let is_own = self.is_whole(record).await?;
        is_own.then_some(()).ok_or_else(|| Error::GivenUp(record.id.clone()))
    }

    /// Whether a draft is there, and the one before it: then what it names was protected all the time.
    async fn is_whole(&self, draft: &Record) -> Result<bool, Error> {
        for one in [Some(draft.clone()), draft.before()].into_iter().flatten() {
            if !self.repository.has_draft(&one).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the draft with the most segments that counts, of those with the parent of `record`.
    async fn longest_whole<'a>(&self, drafts: &'a [Record], record: &Record) -> Result<Option<&'a Record>, Error> {
        let mut drafts: Vec<&Record> = drafts.iter().filter(|draft| draft.parent == record.parent).collect();
        drafts.sort_by_key(|draft| Reverse(draft.segments.len()));
        for draft in drafts {
            if self.is_whole(draft).await? {
                return Ok(Some(draft));
            }
        }
        Ok(None)
    }

    /// Checks that the older backup is still there, if there is one: what it names is in this one, too.
    async fn must_have(&self, record: &Record, base: Option<&Record>) -> Result<(), Error> {
        match base {
            Some(older) if !self.repository.has(older).await? => Err(Error::GivenUp(record.id.clone())),
            _ => Ok(()),
        }
    }

    /// Writes the record. The draft is looked for behind it: a command that gives it up from then on sees the record.
    async fn finish(&self, record: Record) -> Result<Record, Error> {
        self.must_own(&record).await?;
        self.repository.put_record(&record).await?;
        if let Err(error) = self.must_own(&record).await {
            self.repository.drop_own_record(&record).await?;
            return Err(error);
        }
        // The backup is there. A draft that stays beside its record counts for nothing.
        for draft in [Some(record.clone()), record.before()].into_iter().flatten() {
            let _ = self.repository.drop_draft(&draft).await;
        }
        Ok(Record { draft: 0, ..record })
    }

    /// Saves a segment; `base` is its index in the older backup. Returns its index; `None`: it reads as zeros.
    async fn segment(
        &self,
        base: Option<Option<ObjectId>>,
        range: Range<u64>,
        record: &mut Record,
    ) -> Result<Option<ObjectId>, Error> {
        let (data, changed) = self.extents(range.clone(), base.is_some()).await?;
        let older = match (base, &changed) {
            (Some(id), Some(changed)) if changed.is_empty() && !self.is_cut(&range) => {
                record.data_bytes += self.repository.index(id).await?.blocks() * BLOCK;
                return Ok(id);
            }
            (Some(id), Some(_)) => Some(self.repository.index(id).await?),
            _ => None,
        };
        let mut index = Index::default();
        let mut wanted = data.clone();
        if let (Some(older), Some(changed)) = (older, changed) {
            index = older;
            index.clear(blocks_of(range.end - range.start)..format::SEGMENT_BLOCKS);
            changed.iter().for_each(|blocks| index.clear(blocks.clone()));
            wanted = common(&data, &changed);
        }
        let mut packed = stream::iter(pieces(&wanted)).map(|of| self.pack(range.clone(), of)).buffered(PIECES_AT_ONCE);
        while let Some(piece) = packed.try_next().await? {
            piece.of.into_iter().for_each(|blocks| index.clear(blocks));
            piece.runs.into_iter().for_each(|(start, place)| index.insert(start, place));
            record.read_bytes += piece.read_bytes;
            record.written_bytes += piece.written_bytes;
        }
        record.data_bytes += index.blocks() * BLOCK;
        if index.is_empty() {
            return Ok(None);
        }
        let bytes = format::encode_index(&index, self.salt)?;
        record.written_bytes += bytes.len() as u64;
        self.repository.put_object(bytes).await.map(Some)
    }

    /// Whether the volume ends within the segment: the older backup may have more of it.
    fn is_cut(&self, range: &Range<u64>) -> bool {
        !(range.end - range.start).is_multiple_of(SEGMENT)
    }

    /// Returns the blocks of a segment with data, and those that may have changed; `None`: this is not known.
    async fn extents(&self, range: Range<u64>, since: bool) -> Result<(Vec<Blocks>, Option<Vec<Blocks>>), Error> {
        let source = Arc::clone(&self.source);
        let found = tokio::task::spawn_blocking(move || {
            let changed = if since { source.changed(range.clone())?.map(|runs| blocks(&runs)) } else { None };
            let nothing = changed.as_ref().is_some_and(Vec::is_empty);
            let data = if nothing { Vec::new() } else { blocks(&source.data(range)?) };
            Ok((data, changed))
        });
        found.await.map_err(|_| Error::Lost)?.map_err(Error::Volume)
    }

    /// Reads the blocks of a piece, packs those that are not zeros, and writes them.
    async fn pack(&self, segment: Range<u64>, of: Vec<Blocks>) -> Result<Packed, Error> {
        let (source, compression, salt) = (Arc::clone(&self.source), self.compression, self.salt);
        let packing = tokio::task::spawn_blocking(move || {
            let at = |block: u32| (segment.start + u64::from(block) * BLOCK).min(segment.end);
            let ranges: Vec<Range<u64>> = of.iter().map(|blocks| at(blocks.start)..at(blocks.end)).collect();
            let mut bytes = source.read(&ranges).map_err(Error::Volume)?;
            let read_bytes = bytes.len() as u64;
            // The last block of a volume may be cut.
            bytes.resize(bytes.len().next_multiple_of(BLOCK as usize), 0);
            let (kept, places) = without_zeros(&of, bytes);
            let object = (!kept.is_empty()).then(|| format::encode_piece(&kept, compression, salt));
            Ok((of, read_bytes, places, object))
        });
        let (of, read_bytes, places, object) = packing.await.map_err(|_| Error::Lost)??;
        let Some(object) = object else { return Ok(Packed { of, runs: Vec::new(), read_bytes, written_bytes: 0 }) };
        let written_bytes = object.len() as u64;
        let piece = self.repository.put_object(object).await?;
        let runs = places.into_iter().map(|(start, at)| (start, Place { count: 1, piece, at })).collect();
        Ok(Packed { of, runs, read_bytes, written_bytes })
    }
}

fn blocks_of(bytes: u64) -> u32 {
    bytes.div_ceil(BLOCK) as u32
}

/// Returns the marked parts of a tiling as blocks: one that is marked in part counts as a whole.
pub fn blocks(runs: &[(u64, bool)]) -> Vec<Blocks> {
    let mut found: Vec<Blocks> = Vec::new();
    let mut at = 0;
    for (len, is) in runs {
        if *is {
            let next = (at / BLOCK) as u32..blocks_of(at + len);
            match found.last_mut() {
                Some(last) if last.end >= next.start => last.end = next.end,
                _ => found.push(next),
            }
        }
        at += len;
    }
    found
}

/// Returns the blocks that are in both lists; each is ascending.
pub fn common(a: &[Blocks], b: &[Blocks]) -> Vec<Blocks> {
    let (mut a, mut b) = (a.iter().cloned().peekable(), b.iter().cloned().peekable());
    let mut found = Vec::new();
    while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
        let both = x.start.max(y.start)..x.end.min(y.end);
        let a_ends = x.end <= y.end;
        if !both.is_empty() {
            found.push(both);
        }
        if a_ends {
            a.next();
        } else {
            b.next();
        }
    }
    found
}

/// Returns the blocks of a segment that are not in an ascending list.
pub fn complement(of: &[Blocks]) -> Vec<Blocks> {
    let starts = std::iter::once(0).chain(of.iter().map(|blocks| blocks.end));
    let ends = of.iter().map(|blocks| blocks.start).chain([format::SEGMENT_BLOCKS]);
    starts.zip(ends).map(|(start, end)| start..end).filter(|blocks| !blocks.is_empty()).collect()
}

/// Cuts blocks into pieces, in order.
fn pieces(wanted: &[Blocks]) -> Vec<Vec<Blocks>> {
    let mut all: Vec<Vec<Blocks>> = Vec::new();
    let (mut piece, mut room) = (Vec::new(), PIECE_BLOCKS_MAX);
    for blocks in wanted {
        let mut left = blocks.clone();
        while !left.is_empty() {
            let count = room.min(left.end - left.start);
            piece.push(left.start..left.start + count);
            (left.start, room) = (left.start + count, room - count);
            if room == 0 {
                all.push(std::mem::take(&mut piece));
                room = PIECE_BLOCKS_MAX;
            }
        }
    }
    if !piece.is_empty() {
        all.push(piece);
    }
    all
}

/// Leaves blocks of zeros out. Returns the others, each with its number in the segment and in the piece.
fn without_zeros(of: &[Blocks], bytes: Vec<u8>) -> (Vec<u8>, Vec<(u32, u32)>) {
    let numbers: Vec<u32> = of.iter().cloned().flatten().collect();
    let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let mut kept = bytes;
    let (mut places, mut to) = (Vec::with_capacity(numbers.len()), 0);
    for (n, number) in numbers.into_iter().enumerate() {
        let from = n * BLOCK as usize;
        if is_zero(&kept[from..from + BLOCK as usize]) {
            continue;
        }
        kept.copy_within(from..from + BLOCK as usize, to);
        places.push((number, (to / BLOCK as usize) as u32));
        to += BLOCK as usize;
    }
    kept.truncate(to);
    (kept, places)
}
