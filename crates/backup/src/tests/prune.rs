//! Sweeps of repositories with many objects, and while backups begin.

use super::{Rig, Volume, two_segments};
use crate::prune::sweep_with;
use crate::{Record, Repository, sweep};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use types::units::SEGMENT;

/// Something that another command does.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// A store that knows its longest list of objects, and lets another command run before the first.
#[derive(Clone)]
struct Watched {
    inner: Arc<InMemory>,
    longest: Arc<AtomicUsize>,
    meanwhile: Arc<Mutex<Option<Meanwhile>>>,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a store that is watched")
    }
}

impl std::fmt::Display for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Watched {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(at, payload, options).await
    }

    async fn put_multipart_opts(&self, at: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(at, options).await
    }

    fn delete_stream(&self, at: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(at)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if !prefix.is_some_and(|prefix| prefix.as_ref().starts_with("objects")) {
            return self.inner.list(prefix);
        }
        let meanwhile = self.meanwhile.lock().expect("no test panicked").take();
        if let Some(act) = meanwhile {
            std::thread::spawn(act).join().expect("it does not panic");
        }
        let (longest, listed) = (Arc::clone(&self.longest), Arc::new(AtomicUsize::new(0)));
        let count = move |_: &Result<ObjectMeta>| {
            longest.fetch_max(listed.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        };
        self.inner.list(prefix).inspect(count).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

fn watched() -> (Rig, Watched) {
    let rig = Rig::new();
    let store = Watched { inner: rig.store.clone(), longest: Arc::default(), meanwhile: Arc::default() };
    let repository = Repository::in_memory(Arc::new(store.clone()));
    (Rig { repository, ..rig }, store)
}

#[test]
fn sweep_lists_a_part_of_the_objects_at_a_time() {
    let (rig, store) = watched();
    let snapshot = two_segments();
    rig.create(&snapshot, 10, None).expect("no fault");
    let needed = rig.objects().len();
    rig.runtime.block_on(async {
        for n in 0..3000_u32 {
            rig.repository.put_object(n.to_le_bytes().to_vec()).await.expect("memory");
        }
    });
    assert_eq!(rig.sweep(u64::MAX).objects, 3000);
    let longest = store.longest.load(Ordering::SeqCst);
    assert!(longest < 3000 / 50, "{longest} objects in one list");
    assert_eq!((rig.objects().len(), rig.verify(&rig.records()).faults.len()), (needed, 0));
}

#[test]
fn sweep_that_keeps_few_names_deletes_the_same() {
    for names_max in [1, 7, 1000] {
        let rig = Rig::new();
        let mut volume = Volume { len: 3 * SEGMENT, ..Volume::default() };
        let mut base = None;
        for id in 10..30 {
            (0..3).for_each(|n| volume.write(n * 262_144 + id * 5, id as u8));
            base = Some(rig.create(&volume.cut(true), id, base.as_ref()).expect("no fault"));
        }
        let mut records = rig.records();
        for record in records.extract_if(.., |record| record.subject.snapshot_id.is_multiple_of(3)) {
            rig.runtime.block_on(rig.repository.drop_record(&record)).expect("memory");
        }
        let kept = rig.verify(&records);
        let swept = sweep_with(&rig.repository, u64::MAX, &[], (false, names_max));
        let swept = rig.runtime.block_on(swept).expect("all can be read");
        assert!(swept.objects > 0);
        assert_eq!((rig.objects().len() as u64, rig.verify(&records).faults.len()), (kept.objects, 0));
    }
}

#[test]
fn objects_of_a_backup_that_begins_during_a_sweep_stay() {
    let (rig, store) = watched();
    let backup = rig.attempt(&two_segments(), 10, None);
    let handle = rig.runtime.handle().clone();
    let begin = move || drop(handle.block_on(backup.run(&|_| {})).expect("no fault"));
    *store.meanwhile.lock().expect("no test panicked") = Some(Box::new(begin));
    let swept = rig.runtime.block_on(sweep(&rig.repository, u64::MAX, &[], false)).expect("all can be read");
    assert_eq!((swept.objects, rig.records().len()), (0, 1));
    assert_eq!(rig.verify(&rig.records()).faults.len(), 0);
}

/// A repository with a piece and an index of a backup, and two objects that are garbage.
fn with_garbage() -> (Rig, Record) {
    let rig = Rig::new();
    let mut volume = Volume { len: SEGMENT, ..Volume::default() };
    volume.write(1, 1);
    let record = rig.create(&volume.cut(false), 10, None).expect("no fault");
    rig.runtime.block_on(async {
        for n in 0..2_u8 {
            rig.repository.put_object(vec![n; 9]).await.expect("memory");
        }
    });
    (rig, record)
}

/// Checks that a sweep deletes nothing, and says which thing is unreadable.
fn must_be_blocked(rig: &Rig, thing: &str) {
    let swept = rig.sweep(u64::MAX);
    assert_eq!((swept.objects, rig.objects().len()), (0, 4), "{swept:?}");
    assert!(matches!(&swept.unreadable[..], [only] if only.contains(thing)), "{swept:?}");
}

#[test]
fn sweep_deletes_nothing_when_a_record_cannot_be_read() {
    let (rig, record) = with_garbage();
    for place in ["backups/main/vm1/20231115T011320Z-10.json", "drafts/main/other/20231115T011320Z-10.a.json"] {
        let mut bytes = record.encode();
        bytes.truncate(100);
        rig.runtime.block_on(rig.store.put(&Path::from(place), bytes.into())).expect("memory");
        must_be_blocked(&rig, place);
        rig.runtime.block_on(rig.store.delete(&Path::from(place))).expect("memory");
    }
    assert_eq!(rig.sweep(u64::MAX).objects, 4, "nothing is needed now");
}

#[test]
fn sweep_deletes_nothing_when_an_index_cannot_be_read() {
    let (rig, record) = with_garbage();
    let index = record.segments[0].expect("it has data");
    let old = rig.flip(index, 30);
    must_be_blocked(&rig, &format!("{index} is damaged"));
    rig.put_back(index, old);
    assert_eq!(rig.sweep(u64::MAX).objects, 2);
    rig.runtime.block_on(rig.repository.drop_object(index)).expect("memory");
    let swept = rig.sweep(u64::MAX);
    assert_eq!((swept.objects, &swept.unreadable[..]), (0, &[format!("object {index} is missing")][..]));
}
