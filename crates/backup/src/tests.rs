//! Backups of a volume that is written, zeroed and made longer, against a map of its blocks.

use crate::Steps;
use crate::create::DRAFT_BYTES;
use crate::{Create, Error, ObjectId, Record, Repository, Retention, Source, Subject, Target, VolumeFailure};
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::runtime::Runtime;
use types::Compression;
use types::rng::Rng;
use types::units::{BLOCK, SEGMENT};

mod prune;
mod streams;

const BLOCK_LEN: usize = BLOCK as usize;
/// Begin of every attempt: long before any object.
const BEGUN_MS: u64 = 1_700_000_000_000;

type Blocks = BTreeMap<u64, Vec<u8>>;

pub(crate) fn subject(snapshot_id: u64, len_bytes: u64) -> Subject {
    Subject {
        cluster: "c".to_owned(),
        pool: "main".to_owned(),
        volume: "vm1".to_owned(),
        volume_id: 4,
        snapshot: format!("s{snapshot_id}"),
        snapshot_id,
        created_ms: 1_700_000_000_000 + (snapshot_id - 7) * 3_600_000,
        len_bytes,
        stripe: None,
        description: "d".to_owned(),
        labels: BTreeMap::from([("tier".to_owned(), "front".to_owned())]),
        limits: None,
        when_full: types::WhenFull::Client,
    }
}

/// A volume, with the blocks that were touched since its last snapshot.
#[derive(Clone, Default)]
struct Volume {
    len: u64,
    blocks: Blocks,
    touched: BTreeSet<u64>,
}

/// A snapshot of it.
struct Snapshot {
    volume: Volume,
    can_compare: bool,
    /// Reads that succeed before one fails.
    reads_left: AtomicU64,
    read_bytes: AtomicU64,
    /// Runs before the next read.
    meanwhile: Mutex<Option<Meanwhile>>,
}

/// Something that another command does.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// Returns the runs of a range in which each block is marked or not.
fn runs(range: Range<u64>, is: impl Fn(u64) -> bool) -> Vec<(u64, bool)> {
    let mut runs: Vec<(u64, bool)> = Vec::new();
    for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
        let len = (range.end - block * BLOCK).min(BLOCK);
        match runs.last_mut() {
            Some((sum, kind)) if *kind == is(block) => *sum += len,
            _ => runs.push((len, is(block))),
        }
    }
    runs
}

impl Source for Snapshot {
    fn len_bytes(&self) -> u64 {
        self.volume.len
    }

    fn data(&self, range: Range<u64>) -> Result<Vec<(u64, bool)>, VolumeFailure> {
        Ok(runs(range, |block| self.volume.blocks.contains_key(&block)))
    }

    fn changed(&self, range: Range<u64>) -> Result<Option<Vec<(u64, bool)>>, VolumeFailure> {
        Ok(self.can_compare.then(|| runs(range, |block| self.volume.touched.contains(&block))))
    }

    fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<u8>, VolumeFailure> {
        let meanwhile = self.meanwhile.lock().expect("no test panicked").take();
        meanwhile.into_iter().for_each(|act| act());
        let left = self.reads_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        left.map_err(|_| VolumeFailure::from("the connection is lost"))?;
        let mut bytes = Vec::new();
        for range in ranges {
            for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
                let len = (range.end - block * BLOCK).min(BLOCK) as usize;
                let stored = self.volume.blocks.get(&block).map(|bytes| bytes[..len].to_vec());
                bytes.extend(stored.unwrap_or_else(|| vec![0; len]));
            }
        }
        self.read_bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        Ok(bytes)
    }
}

/// Drops data behind an end. Returns the blocks that have lost some.
fn cut(blocks: &mut Blocks, len: u64) -> Vec<u64> {
    let mut lost: Vec<u64> = blocks.split_off(&len.div_ceil(BLOCK)).into_keys().collect();
    let (last, rest) = (len / BLOCK, (len % BLOCK) as usize);
    if let Some(bytes) = blocks.get_mut(&last).filter(|bytes| bytes.len() > rest) {
        bytes.truncate(rest);
        lost.push(last);
    }
    lost
}

/// The volume that a backup is restored to.
#[derive(Default)]
struct Restored(Mutex<Blocks>);

impl Target for Restored {
    fn write(&self, pieces: Vec<(u64, &[u8])>) -> Result<(), VolumeFailure> {
        let mut blocks = self.0.lock().expect("no test panicked");
        for (offset, bytes) in pieces {
            assert!(offset.is_multiple_of(BLOCK));
            for (n, block) in (0..).zip(bytes.chunks(BLOCK_LEN)) {
                assert!(blocks.insert(offset / BLOCK + n, block.to_vec()).is_none(), "a block is written twice");
            }
        }
        Ok(())
    }

    fn clear(&self, _: Vec<Range<u64>>) -> Result<(), VolumeFailure> {
        Err("a restore has nothing to clear".into())
    }
}

impl Volume {
    fn write(&mut self, block: u64, byte: u8) {
        let len = (self.len - block * BLOCK).min(BLOCK) as usize;
        self.blocks.insert(block, vec![byte; len]);
        self.touched.insert(block);
    }

    fn grow(&mut self, bytes: u64) {
        let last = self.len.div_ceil(BLOCK) - 1;
        self.len += bytes;
        // Behind the old end there are zeros.
        if let Some(block) = self.blocks.get_mut(&last) {
            block.resize(BLOCK_LEN, 0);
        }
    }

    /// Makes the volume shorter. Blocks with data behind the new end have changed if it grows again.
    fn shrink(&mut self, bytes: u64) {
        self.len -= bytes;
        self.touched.extend(cut(&mut self.blocks, self.len));
    }

    fn clear(&mut self, block: u64) {
        self.blocks.remove(&block);
        self.touched.insert(block);
    }

    /// Changes some blocks near the borders of segments.
    fn change(&mut self, rng: &mut Rng) {
        let last = self.len.div_ceil(BLOCK) - 1;
        for _ in 0..rng.between(1, 30) {
            let segment = rng.below(self.len.div_ceil(SEGMENT)) * (SEGMENT / BLOCK);
            let near = segment.saturating_sub(8) + rng.below(40);
            let block = if rng.chance(1, 6) { last } else { near.min(last) };
            match rng.below(4) {
                0 => self.clear(block),
                // Zeros that are written are data to the volume.
                1 => self.write(block, 0),
                _ => self.write(block, 1 + rng.below(255) as u8),
            }
        }
    }

    /// Takes a snapshot.
    fn cut(&mut self, can_compare: bool) -> Arc<Snapshot> {
        let (reads_left, read_bytes) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        let meanwhile = Mutex::new(None);
        let snapshot = Snapshot { volume: self.clone(), can_compare, reads_left, read_bytes, meanwhile };
        self.touched.clear();
        Arc::new(snapshot)
    }

    /// Returns the blocks that do not read as zeros.
    fn shown(&self) -> Blocks {
        let is_data = |bytes: &Vec<u8>| bytes.iter().any(|byte| *byte != 0);
        self.blocks.iter().filter(|(_, bytes)| is_data(bytes)).map(|(n, bytes)| (*n, bytes.clone())).collect()
    }
}

/// A repository in memory, and a runtime to use it.
struct Rig {
    runtime: Runtime,
    store: Arc<InMemory>,
    repository: Repository,
    attempts: Arc<AtomicU64>,
}

impl Rig {
    fn new() -> Rig {
        let store = Arc::new(InMemory::new());
        let repository = Repository::in_memory(store.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("threads");
        Rig { runtime, store, repository, attempts: Arc::default() }
    }

    fn create(&self, snapshot: &Arc<Snapshot>, id: u64, base: Option<&Record>) -> Result<Record, Error> {
        self.runtime.block_on(self.attempt(snapshot, id, base).run(&|_| {}))
    }

    fn attempt(&self, snapshot: &Arc<Snapshot>, id: u64, base: Option<&Record>) -> Create {
        Create {
            repository: self.repository.clone(),
            source: snapshot.clone(),
            subject: subject(id, snapshot.volume.len),
            base: base.cloned(),
            compression: if id.is_multiple_of(2) { Compression::None } else { Compression::Zstd },
            salt: self.attempts.fetch_add(1, Ordering::SeqCst),
            begun_ms: BEGUN_MS,
            draft_bytes: if id > 900 { 1 } else { DRAFT_BYTES },
        }
    }

    fn restored(&self, record: &Record) -> Result<Blocks, Error> {
        let target = Arc::new(Restored::default());
        let mut restore = crate::Restore::new(&self.repository, record, target.clone(), 0);
        while self.runtime.block_on(restore.step(&|_| {}))?.is_none() {}
        Ok(std::mem::take(&mut target.0.lock().expect("no test panicked")))
    }

    fn records(&self) -> Vec<Record> {
        let records = self.runtime.block_on(self.repository.records(None)).expect("memory");
        records.into_iter().map(|record| record.expect("it is whole")).collect()
    }

    fn verify(&self, records: &[Record]) -> crate::Verified {
        self.runtime.block_on(crate::verify(&self.repository, records)).expect("memory")
    }

    fn objects(&self) -> Vec<ObjectId> {
        let listed = |shard| self.runtime.block_on(self.repository.objects(shard)).expect("memory");
        (0..=u8::MAX).flat_map(listed).map(|object| object.id).collect()
    }

    fn sweep(&self, before_ms: u64) -> crate::Swept {
        self.runtime.block_on(crate::sweep(&self.repository, before_ms, &[], false)).expect("all can be read")
    }

    fn path(id: ObjectId) -> Path {
        let name = id.to_string();
        Path::from(format!("objects/{}/{name}", &name[..2]))
    }

    /// Flips a bit of an object. Returns its bytes from before.
    fn flip(&self, id: ObjectId, at: usize) -> Vec<u8> {
        self.runtime.block_on(async {
            let path = Rig::path(id);
            let old = self.store.get(&path).await.expect("it is there").bytes().await.expect("memory").to_vec();
            let mut bad = old.clone();
            let at = at % bad.len();
            bad[at] ^= 1 << (at % 8);
            self.store.put(&path, bad.into()).await.expect("memory");
            old
        })
    }

    fn put_back(&self, id: ObjectId, bytes: Vec<u8>) {
        self.runtime.block_on(self.store.put(&Rig::path(id), bytes.into())).expect("memory");
    }
}

/// Each backup of a chain gives the contents of its moment back, whichever others are deleted.
#[test]
fn each_backup_of_a_chain_restores_its_moment_whatever_was_deleted() {
    let (mut saved, mut shared) = (0, 0);
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let rig = Rig::new();
        // The last block is cut, too.
        let mut volume = Volume { len: 2 * SEGMENT + 5 * 512 + rng.below(9) * BLOCK, ..Volume::default() };
        let mut kept: Vec<(Record, Blocks)> = Vec::new();
        for id in 10..10 + rng.between(3, 7) {
            volume.change(&mut rng);
            if rng.chance(1, 3) {
                volume.grow(SEGMENT / 2);
            }
            let snapshot = volume.cut(!rng.chance(1, 8));
            let record = rig.create(&snapshot, id, kept.last().map(|(record, _)| record)).expect("no fault");
            let shown = snapshot.volume.shown();
            // A last block that is cut is a whole one in the backup.
            let whole: u64 = shown.len() as u64 * BLOCK;
            assert_eq!(record.data_bytes, whole, "seed {seed}: data of {id}");
            kept.push((record, shown));
        }
        assert_eq!(rig.verify(&rig.records()).faults.len(), 0);
        for (record, shown) in &kept {
            assert!(rig.restored(record).expect("no fault") == *shown, "seed {seed}: {}", record.id);
        }
        saved += kept.iter().map(|(record, _)| record.read_bytes).sum::<u64>();
        shared += kept.iter().map(|(record, _)| record.data_bytes).sum::<u64>();
        // Some go, the oldest, too.
        for (record, _) in kept.extract_if(.., |(record, _)| record.subject.snapshot_id.is_multiple_of(2)) {
            rig.runtime.block_on(rig.repository.drop_record(&record)).expect("memory");
        }
        assert_eq!(rig.sweep(0).objects, 0, "young objects stay");
        rig.sweep(u64::MAX);
        for (record, shown) in &kept {
            assert!(rig.restored(record).expect("no fault") == *shown, "seed {seed}: {} after a sweep", record.id);
        }
        let needed = rig.verify(&rig.records());
        assert_eq!((needed.faults.len(), needed.objects), (0, rig.objects().len() as u64), "nothing else is left");
        assert_eq!(rig.sweep(u64::MAX).objects, 0);
    }
    assert!(saved < shared, "{saved} bytes were read for backups with {shared} bytes");
}

#[test]
fn interrupted_backup_goes_on_where_it_was() {
    let rig = Rig::new();
    let mut volume = Volume { len: 6 * SEGMENT, ..Volume::default() };
    (0..6).for_each(|n| volume.write(n * SEGMENT / BLOCK + 3, 7 + n as u8));
    let snapshot = volume.cut(false);
    snapshot.reads_left.store(3, Ordering::SeqCst);
    let error = rig.create(&snapshot, 901, None).expect_err("the connection is lost");
    assert!(matches!(&error, Error::Volume(why) if why.to_string() == "the connection is lost"), "{error}");
    assert!(rig.records().is_empty(), "a backup is there when it is whole");
    // Its objects are no garbage, although no record names them.
    assert_eq!(rig.sweep(u64::MAX).objects, 0);
    snapshot.reads_left.store(u64::MAX, Ordering::SeqCst);
    let record = rig.create(&snapshot, 901, None).expect("it goes on");
    assert_eq!(snapshot.read_bytes.load(Ordering::SeqCst), 6 * BLOCK, "nothing is read twice");
    assert_eq!((record.read_bytes, record.segments.len()), (6 * BLOCK, 6));
    assert!(rig.restored(&record).expect("no fault") == snapshot.volume.shown());
    let drafts = rig.runtime.block_on(rig.repository.drafts(None)).expect("memory");
    assert!(drafts.is_empty());
    // Another snapshot does not go on with the draft of the first.
    let other = volume.cut(false);
    other.reads_left.store(2, Ordering::SeqCst);
    rig.create(&other, 902, None).expect_err("the connection is lost");
    let fresh = volume.cut(false);
    assert_eq!(rig.create(&fresh, 903, None).expect("no fault").read_bytes, 6 * BLOCK);
}

#[test]
fn changed_byte_is_found_in_every_object_and_is_never_restored() {
    let rig = Rig::new();
    let mut volume = Volume { len: 2 * SEGMENT, ..Volume::default() };
    (0..40).for_each(|n| volume.write(n * 13_000, 1 + n as u8));
    let first = rig.create(&volume.cut(false), 10, None).expect("no fault");
    volume.write(5, 200);
    let second = rig.create(&volume.cut(true), 11, Some(&first)).expect("no fault");
    let records = [first.clone(), second.clone()];
    assert_eq!(rig.verify(&records).faults.len(), 0);
    let mut broken = BTreeSet::new();
    for (n, id) in rig.objects().into_iter().enumerate() {
        let old = rig.flip(id, n * 31);
        let found = rig.verify(&records);
        let [fault] = &found.faults[..] else { panic!("{id}: {:?}", found.faults) };
        assert_eq!(fault.object, id.to_string());
        for record in &records {
            let is_named = fault.backups.contains(&format!("main/vm1 {}", record.id));
            let restored = rig.restored(record);
            assert_eq!(is_named, matches!(restored, Err(Error::Damaged { .. })), "{id}: {restored:?}");
            if is_named {
                broken.insert(record.id.clone());
            }
        }
        rig.put_back(id, old);
    }
    assert_eq!(broken.len(), 2);
    let id = second.segments[0].expect("it has data");
    rig.runtime.block_on(rig.repository.drop_object(id)).expect("memory");
    let found = rig.verify(&records);
    assert_eq!((found.faults.len(), &*found.faults[0].reason), (1, "it is missing"));
}

#[test]
fn nothing_is_swept_while_a_backup_is_made_that_began_with_a_deleted_one() {
    let rig = Rig::new();
    let mut volume = Volume { len: 2 * SEGMENT, ..Volume::default() };
    (0..4).for_each(|n| volume.write(n * 100, 9));
    let first = rig.create(&volume.cut(false), 10, None).expect("no fault");
    volume.write(SEGMENT / BLOCK, 3);
    let second = volume.cut(true);
    second.reads_left.store(0, Ordering::SeqCst);
    rig.create(&second, 11, Some(&first)).expect_err("the connection is lost");
    rig.runtime.block_on(rig.repository.drop_record(&first)).expect("memory");
    let swept = rig.sweep(u64::MAX);
    assert_eq!((swept.objects, &swept.blocked_by[..]), (0, &[format!("main/vm1 {}", subject(11, 0).id())][..]));
    assert_eq!(rig.objects().len(), 2);
    // The backup sees that the older one has gone, and reads everything.
    second.reads_left.store(u64::MAX, Ordering::SeqCst);
    let record = rig.create(&second, 11, Some(&first)).expect("no fault");
    assert_eq!((record.parent.as_deref(), record.read_bytes), (None, 5 * BLOCK));
    assert!(rig.sweep(u64::MAX).blocked_by.is_empty());
    assert!(rig.restored(&record).expect("no fault") == second.volume.shown());
}

/// Returns a snapshot of a volume with data in its first two segments.
fn two_segments() -> Arc<Snapshot> {
    let mut volume = Volume { len: 2 * SEGMENT, ..Volume::default() };
    [0, SEGMENT / BLOCK].into_iter().for_each(|block| volume.write(block, 5));
    volume.cut(false)
}

#[test]
fn attempt_whose_draft_was_deleted_ends_without_a_record() {
    for id in [10, 910] {
        let rig = Rig::new();
        let snapshot = two_segments();
        let (repository, handle) = (rig.repository.clone(), rig.runtime.handle().clone());
        let give_up = move || {
            handle.block_on(async {
                for draft in repository.drafts(None).await.expect("memory") {
                    repository.drop_draft(&draft.expect("it is whole")).await.expect("memory");
                }
            });
        };
        *snapshot.meanwhile.lock().expect("no test panicked") = Some(Box::new(give_up));
        let ended = rig.create(&snapshot, id, None);
        assert!(matches!(ended, Err(Error::GivenUp(_))), "{ended:?}");
        assert!(rig.records().is_empty());
        let record = rig.create(&snapshot, id, None).expect("no fault");
        assert!(rig.restored(&record).expect("no fault") == snapshot.volume.shown());
    }
}

#[test]
fn attempt_that_goes_on_with_a_running_one_ends_that() {
    let rig = Rig::new();
    let snapshot = two_segments();
    let (second, handle) = (rig.attempt(&snapshot, 910, None), rig.runtime.handle().clone());
    let take_over = move || {
        handle.block_on(second.run(&|_| {})).expect("no fault");
    };
    *snapshot.meanwhile.lock().expect("no test panicked") = Some(Box::new(take_over));
    let first = rig.create(&snapshot, 910, None);
    assert!(matches!(first, Err(Error::GivenUp(_))), "{first:?}");
    let records = rig.records();
    assert!(rig.restored(&records[0]).expect("no fault") == snapshot.volume.shown());
    let drafts = rig.runtime.block_on(rig.repository.drafts(None)).expect("memory");
    assert_eq!((records.len(), drafts.len()), (1, 0));
    assert_eq!(rig.verify(&records).faults.len(), 0);
}

#[test]
fn objects_of_an_attempt_that_stands_still_are_no_garbage() {
    let rig = Rig::new();
    let snapshot = two_segments();
    snapshot.reads_left.store(1, Ordering::SeqCst);
    // No draft names what it has written: that is less than makes one due.
    rig.create(&snapshot, 10, None).expect_err("the connection is lost");
    let swept = rig.sweep(u64::MAX);
    assert_eq!((swept.objects, swept.young, swept.drafted), (0, 0, 2), "a piece and an index");
    assert_eq!(swept.drafts, [format!("main/vm1 {}", subject(10, 0).id())]);
    assert_eq!(rig.sweep(0).young, 2, "they are young by themselves");
}

#[test]
fn backup_of_another_volume_is_not_overwritten() {
    let rig = Rig::new();
    let record =
        Record { segments: vec![None], ..Record::begin(subject(10, SEGMENT), None, ("a".to_owned(), BEGUN_MS)) };
    rig.runtime.block_on(rig.repository.put_record(&record)).expect("memory");
    let other = Subject { cluster: "another".to_owned(), ..record.subject.clone() };
    let put = rig.runtime.block_on(rig.repository.put_record(&Record { subject: other, ..record.clone() }));
    assert!(matches!(put, Err(Error::Taken(_))));
    rig.runtime.block_on(rig.repository.put_record(&record)).expect("the first answer may be lost");
    let other = Record { owner: "b".to_owned(), ..record.clone() };
    let put = rig.runtime.block_on(rig.repository.put_record(&other));
    assert!(matches!(put, Err(Error::GivenUp(_))), "a record never changes");
    rig.runtime.block_on(rig.repository.drop_own_record(&other)).expect("memory");
    assert_eq!(rig.records(), std::slice::from_ref(&record));
    rig.runtime.block_on(rig.repository.drop_own_record(&record)).expect("memory");
    assert!(rig.records().is_empty());
}

impl Rig {
    fn drafts(&self) -> Vec<Record> {
        let drafts = self.runtime.block_on(self.repository.drafts(None)).expect("memory");
        drafts.into_iter().map(|draft| draft.expect("it is whole")).collect()
    }

    fn drop_drafts(&self) {
        self.drafts().iter().for_each(|one| self.runtime.block_on(self.repository.drop_draft(one)).expect("memory"));
    }
}

/// Returns a snapshot with a block of data in each of six segments.
fn six_segments() -> Arc<Snapshot> {
    let mut volume = Volume { len: 6 * SEGMENT, ..Volume::default() };
    (0..6).for_each(|n| volume.write(n * SEGMENT / BLOCK + 3, 7 + n as u8));
    volume.cut(false)
}

#[test]
fn backup_that_is_interrupted_again_and_again_reads_nothing_twice() {
    let rig = Rig::new();
    let snapshot = six_segments();
    for done in 1..6 {
        snapshot.reads_left.store(1, Ordering::SeqCst);
        rig.create(&snapshot, 901, None).expect_err("the connection is lost");
        assert!(rig.drafts().len() <= 2, "{done}: {:?}", rig.drafts());
        assert_eq!(rig.sweep(u64::MAX).objects, 0);
    }
    snapshot.reads_left.store(u64::MAX, Ordering::SeqCst);
    let record = rig.create(&snapshot, 901, None).expect("it goes on");
    assert_eq!((snapshot.read_bytes.load(Ordering::SeqCst), record.draft), (6 * BLOCK, 0));
    assert!(rig.restored(&record).expect("no fault") == snapshot.volume.shown());
    assert!(rig.drafts().is_empty());
}

/// The request of a draft may arrive when the attempt was given up, and what it names was deleted.
#[test]
fn draft_that_arrives_late_is_not_gone_on_with() {
    let rig = Rig::new();
    let snapshot = six_segments();
    snapshot.reads_left.store(3, Ordering::SeqCst);
    rig.create(&snapshot, 901, None).expect_err("the connection is lost");
    let late = rig.drafts().into_iter().max_by_key(|draft| draft.draft).expect("it has drafts");
    assert_eq!(late.segments.len(), 3);
    rig.drop_drafts();
    assert!(rig.sweep(u64::MAX).objects > 0 && rig.objects().is_empty());
    rig.runtime.block_on(rig.repository.put_draft(&late)).expect("memory");
    snapshot.reads_left.store(u64::MAX, Ordering::SeqCst);
    let record = rig.create(&snapshot, 901, None).expect("no fault");
    assert_eq!(record.read_bytes, 6 * BLOCK);
    assert!(rig.restored(&record).expect("no fault") == snapshot.volume.shown());
    assert!(rig.verify(&rig.records()).faults.is_empty() && rig.drafts().is_empty());
}

/// A draft that counts for nothing hides none that counts, although it names more segments.
#[test]
fn draft_that_arrives_late_hides_no_whole_one() {
    let rig = Rig::new();
    let snapshot = six_segments();
    snapshot.reads_left.store(3, Ordering::SeqCst);
    rig.create(&snapshot, 901, None).expect_err("the connection is lost");
    let late = rig.drafts().into_iter().max_by_key(|draft| draft.draft).expect("it has drafts");
    rig.drop_drafts();
    assert!(rig.sweep(u64::MAX).objects > 0);
    snapshot.reads_left.store(2, Ordering::SeqCst);
    rig.create(&snapshot, 901, None).expect_err("the connection is lost");
    rig.runtime.block_on(rig.repository.put_draft(&late)).expect("memory");
    let segments: Vec<usize> = rig.drafts().iter().map(|draft| draft.segments.len()).collect();
    assert_eq!(segments.iter().max(), Some(&3), "{segments:?}");
    snapshot.reads_left.store(u64::MAX, Ordering::SeqCst);
    let record = rig.create(&snapshot, 901, None).expect("it goes on");
    assert_eq!(snapshot.read_bytes.load(Ordering::SeqCst), (3 + 6) * BLOCK);
    assert!(rig.restored(&record).expect("no fault") == snapshot.volume.shown());
    assert!(rig.verify(&rig.records()).faults.is_empty() && rig.drafts().is_empty());
}

/// Another command gives an attempt up while its next draft is on the way.
#[test]
fn attempt_that_was_given_up_while_it_stood_still_ends() {
    let rig = Rig::new();
    let snapshot = six_segments();
    let (repository, handle) = (rig.repository.clone(), rig.runtime.handle().clone());
    let give_up = move || {
        handle.block_on(async {
            for draft in repository.drafts(None).await.expect("memory").into_iter().flatten() {
                repository.drop_draft(&draft).await.expect("memory");
                // The next one was on its way.
                let next = Record { draft: draft.draft + 1, ..draft };
                repository.put_draft(&next).await.expect("memory");
            }
        });
    };
    *snapshot.meanwhile.lock().expect("no test panicked") = Some(Box::new(give_up));
    let ended = rig.create(&snapshot, 901, None);
    assert!(matches!(ended, Err(Error::GivenUp(_))), "{ended:?}");
    assert!(rig.records().is_empty());
    let record = rig.create(&snapshot, 901, None).expect("no fault");
    assert!(rig.restored(&record).expect("no fault") == snapshot.volume.shown());
}

/// Checks that no other user can read or enter what is below a directory.
fn must_be_private(path: &std::path::Path) {
    let mode = std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    let expected = if path.is_dir() { 0o700 } else { 0o600 };
    assert_eq!(mode, expected, "mode {mode:o} of {}", path.display());
    let entries = path.is_dir().then(|| std::fs::read_dir(path).expect("it can be read"));
    entries.into_iter().flatten().for_each(|entry| must_be_private(&entry.expect("an entry").path()));
}

#[test]
fn directory_is_a_repository_once_a_backup_began_there() {
    let rig = Rig::new();
    let directory = std::env::temp_dir().join(format!("basalt-backup-{}", uuid::Uuid::new_v4()));
    let address = format!("file://{}", directory.display());
    let refused = Repository::open(&address, false).err().expect("there is no directory").to_string();
    assert_eq!(refused, format!("{address}: the directory does not exist"));
    let repository = Repository::open(&address, true).expect("it is made");
    assert!(matches!(rig.runtime.block_on(repository.check()), Err(Error::NoRepository(_))));
    let rig = Rig { repository, ..rig };
    let mut volume = Volume { len: SEGMENT, ..Volume::default() };
    (0..3000).for_each(|n| volume.write(n, 1 + (n % 250) as u8));
    let snapshot = volume.cut(false);
    let record = rig.create(&snapshot, 10, None).expect("no fault");
    assert_eq!(rig.records(), std::slice::from_ref(&record));
    assert!(rig.restored(&record).expect("no fault") == snapshot.volume.shown());
    assert_eq!(rig.verify(&rig.records()).objects, 4, "three pieces and an index");
    must_be_private(&directory);
    std::fs::write(directory.join("basalt-backup.json"), r#"{"format":2,"id":"x"}"#).expect("it can be written");
    assert!(matches!(rig.runtime.block_on(rig.repository.check()), Err(Error::Newer(2))));
    std::fs::remove_dir_all(&directory).expect("it is there");
    for bad in ["ftp://host/x", "s3://", "s3:///x", "s3:/bucket/x"] {
        assert!(matches!(Repository::open(bad, true), Err(Error::Address { .. })), "{bad}");
    }
}

#[test]
fn repository_that_lost_its_marker_gets_a_new_one_by_a_backup() {
    for damaged in [None, Some("{}"), Some("")] {
        let rig = Rig::new();
        let snapshot = two_segments();
        let first = rig.create(&snapshot, 10, None).expect("no fault");
        let path = Path::from("basalt-backup.json");
        rig.runtime.block_on(async {
            match damaged {
                Some(bytes) => drop(rig.store.put(&path, bytes.into()).await.expect("memory")),
                None => rig.store.delete(&path).await.expect("memory"),
            }
        });
        let found = rig.runtime.block_on(rig.repository.check());
        assert!(matches!(found, Err(Error::Marker { .. })), "{damaged:?}: {found:?}");
        assert!(rig.restored(&first).expect("no fault") == snapshot.volume.shown(), "backups do not need it");
        rig.create(&snapshot, 11, Some(&first)).expect("no fault");
        rig.runtime.block_on(rig.repository.check()).expect("the backup has written it");
        assert_eq!(rig.records().len(), 2);
    }
}

#[test]
fn record_is_read_by_its_name_and_a_damaged_one_is_not_unknown() {
    let rig = Rig::new();
    let record = rig.create(&two_segments(), 10, None).expect("no fault");
    let read = |id: &str| rig.runtime.block_on(rig.repository.record("main/vm1", id));
    assert_eq!(read(&record.id).expect("it is whole"), record);
    assert!(matches!(read("another"), Err(Error::Unknown(name)) if name == "another of main/vm1"));
    let path = Path::from(format!("backups/main/vm1/{}.json", record.id));
    rig.runtime.block_on(rig.store.put(&path, "x".into())).expect("memory");
    assert!(matches!(read(&record.id), Err(Error::Damaged { object, .. }) if object == path.to_string()));
}

#[test]
fn retention_keeps_the_last_of_each_period() {
    let hour = 3_600_000;
    // Each 8 hours from Wednesday 2023-11-15, 00:00 UTC.
    let records: Vec<Record> = (0..60)
        .map(|n| {
            Record::begin(
                Subject { created_ms: 1_700_006_400_000 + n * 8 * hour, ..subject(n + 7, SEGMENT) },
                None,
                (String::new(), 0),
            )
        })
        .collect();
    let kept = |retention: Retention| -> Vec<String> {
        let kept = retention.keeps(&records);
        records.iter().filter(|record| kept.contains(&record.id)).map(|record| record.id[..11].to_owned()).collect()
    };
    assert_eq!(kept(Retention { last: 2, ..Retention::default() }), ["20231204T08", "20231204T16"]);
    assert_eq!(kept(Retention { daily: 3, ..Retention::default() }), ["20231202T16", "20231203T16", "20231204T16"]);
    assert_eq!(kept(Retention { weekly: 2, ..Retention::default() }), ["20231203T16", "20231204T16"]);
    assert_eq!(kept(Retention { monthly: 5, ..Retention::default() }), ["20231130T16", "20231204T16"]);
    let both = Retention { last: 1, daily: 2, weekly: 2, monthly: 2 };
    assert_eq!(kept(both), ["20231130T16", "20231203T16", "20231204T16"]);
    assert!(Retention::default().keeps_nothing() && kept(Retention::default()).is_empty());
}
