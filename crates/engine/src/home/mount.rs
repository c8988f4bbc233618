//! Loads the pages that the last checkpoint names: decision states, directory, maps, CRC pages.
//!
//! The records of the checkpoint come in; reads go out, a bounded number at a time. The result is the replicas, the
//! free maps and one event. A page that cannot be read or does not verify damages its replica, never the store: every
//! page below the root belongs to one replica.
//!
//! Invariant (R8): the free maps hold exactly the numbers that no page names. A number that two owners name is in
//! neither map, and both owners are damaged.

use super::chunk::{Chunk, DirPage, DirPlace, Paged, Replica};
use super::space::FreeMap;
use super::{Home, InFlight, State};
use crate::home_api::{HomeEvent, LostHome, RoundState};
use bytes::Bytes;
use env::{DiskError, Op};
use layout::checkpoint::{Checkpoint, ReplicaRecord};
use layout::home::{CHUNK_PAGES, CRC_PAGES, DirEntry, PAGE, PageId, PageKind, PagePtr};
use std::collections::{BTreeMap, VecDeque};
use types::store::DecisionState;
use types::{IoBuf, IoBufMut, ReplicaId};

/// A page that is being read.
#[derive(Clone, Copy)]
pub(super) struct MountRead {
    id: PageId,
    ptr: PagePtr,
    /// Number of earlier reads of the page, which failed or returned other bytes.
    before: u32,
}

/// Most reads of one page until it counts as lost: a device may fail a read, and a read may go astray.
const READS_MAX: u32 = 4;

/// A mount that is running.
pub(super) struct Mount {
    queue: VecDeque<MountRead>,
    in_flight: u32,
    paged: BTreeMap<ReplicaId, PagedParts>,
}

/// Pages of a replica without a head, as far as they are read.
struct PagedParts {
    decision: Vec<IoBuf>,
    dissolved: Vec<IoBuf>,
}

impl Home {
    pub(super) fn mount(&mut self, checkpoint: Option<Vec<Bytes>>, ops: &mut Vec<Op>, out: &mut Vec<HomeEvent>) {
        let Some(parts) = checkpoint else {
            self.state = State::Open;
            out.push(HomeEvent::Mounted { states: Vec::new(), damaged: Vec::new() });
            return;
        };
        let checkpoint = match Checkpoint::decode(&parts) {
            Ok(checkpoint) if checkpoint.geometry.len_bytes() <= self.region.len_bytes => checkpoint,
            Ok(checkpoint) => {
                let (needs, has) = (checkpoint.geometry.len_bytes(), self.region.len_bytes);
                let reason = format!("the checkpoint describes a data area of {needs} bytes, and the device has {has}");
                out.push(HomeEvent::MountFailed { reason });
                return;
            }
            Err(error) => {
                out.push(HomeEvent::MountFailed { reason: error.to_string() });
                return;
            }
        };
        self.geometry = checkpoint.geometry;
        self.aus = FreeMap::new(self.geometry.au_count, self.limits.reuse_at_once);
        self.slots = FreeMap::new(self.geometry.slot_count, self.limits.reuse_at_once);
        self.sequence = checkpoint.sequence;
        let mut mount = Mount { queue: VecDeque::new(), in_flight: 0, paged: BTreeMap::new() };
        for record in checkpoint.replicas {
            let id = record.replica;
            let parts = |pages: &[PagePtr]| vec![IoBuf::EMPTY; pages.len()];
            let (decision, dissolved) = (parts(&record.decision), parts(&record.dissolved.1));
            mount.paged.insert(id, PagedParts { decision, dissolved });
            let decision = record.decision.iter().zip(0..).map(|(ptr, n)| (PageId::decision(id, n), *ptr));
            let dissolved = record.dissolved.1.iter().zip(0..).map(|(ptr, n)| (PageId::dissolved(id, n), *ptr));
            let directory =
                record.directory.iter().zip(0..).filter_map(|(ptr, n)| ptr.map(|ptr| (PageId::directory(id, n), ptr)));
            mount.queue.extend(decision.chain(dissolved).chain(directory).map(|(id, ptr)| MountRead {
                id,
                ptr,
                before: 0,
            }));
            self.replicas.insert(id, replica_of(record));
        }
        self.state = State::Mounting(Box::new(mount));
        self.pump_mount(ops, out);
    }

    fn pump_mount(&mut self, ops: &mut Vec<Op>, out: &mut Vec<HomeEvent>) {
        loop {
            let State::Mounting(mount) = &mut self.state else { panic!("no mount is running") };
            if mount.in_flight == self.limits.background_ops_max {
                return;
            }
            let Some(page) = mount.queue.pop_front() else { break };
            mount.in_flight += 1;
            let token = self.token(InFlight::MountRead(page));
            let (offset, buf) = (self.slot_offset(page.ptr.slot), IoBufMut::new(PAGE));
            ops.push(Op::DiskRead { token, disk: self.disk.id, offset, buf });
        }
        let State::Mounting(mount) = &mut self.state else { panic!("no mount is running") };
        if mount.in_flight == 0 {
            self.finish_mount(out);
        }
    }

    pub(super) fn mount_read_done(
        &mut self,
        page: MountRead,
        buf: IoBufMut,
        result: Result<(), DiskError>,
        ops: &mut Vec<Op>,
        out: &mut Vec<HomeEvent>,
    ) {
        let State::Mounting(mount) = &mut self.state else { panic!("no mount is running") };
        mount.in_flight -= 1;
        self.stats.read_bytes += PAGE as u64;
        let verified = match result {
            Err(error) => Err(error.to_string()),
            Ok(()) if !page.id.verify(&buf, page.ptr.crc) => Err("it fails its checksum".to_owned()),
            Ok(()) => Ok(buf.freeze()),
        };
        if verified.is_err() && page.before + 1 < READS_MAX {
            mount.queue.push_front(MountRead { before: page.before + 1, ..page });
            return self.pump_mount(ops, out);
        }
        if page.before > 0 && verified.is_ok() {
            tracing::warn!(page = %page.id, "transient read error on a metadata page; the second read succeeded");
        }
        let loaded = verified.and_then(|page_bytes| self.load_page(page.id, page_bytes));
        if let Err(reason) = loaded {
            self.damage(page.id.replica, format!("{} in slot {}: {reason}", page.id, page.ptr.slot));
        }
        self.pump_mount(ops, out);
    }

    /// Loads a page that verifies.
    fn load_page(&mut self, id: PageId, page: IoBuf) -> Result<(), String> {
        let State::Mounting(mount) = &mut self.state else { panic!("no mount is running") };
        let replica = self.replicas.get_mut(&id.replica).expect("pages are read of listed replicas");
        match id.kind {
            PageKind::Decision => {
                mount.paged.get_mut(&id.replica).expect("one list a replica").decision[id.n as usize] = page;
            }
            PageKind::Dissolved => {
                mount.paged.get_mut(&id.replica).expect("one list a replica").dissolved[id.n as usize] = page;
            }
            PageKind::Directory => {
                let entries = layout::home::decode_dir_page(id, &page, self.geometry).map_err(|e| e.to_string())?;
                for (position, entry) in entries {
                    load_entry(replica, id, position, entry)?;
                    let pages = entry.pages.iter().enumerate().filter_map(|(n, ptr)| ptr.map(|ptr| (n, ptr)));
                    mount.queue.extend(pages.map(|(n, ptr)| MountRead {
                        id: PageId::of_chunk(id.replica, entry.chunk, n),
                        ptr,
                        before: 0,
                    }));
                }
                // A full page is not open for new chunks.
                if replica.directory[id.n as usize].chunks.iter().all(Option::is_some) {
                    replica.open_pages.remove(&id.n);
                }
            }
            PageKind::Map => {
                let map = layout::home::decode_map_page(id, &page, self.geometry).map_err(|e| e.to_string())?;
                let placed = replica.chunks.change(id.chunk, |chunk| chunk.map = map);
                placed.expect("its directory entry was loaded");
            }
            PageKind::CrcPage => {
                let crcs = layout::home::decode_crc_page(&page);
                let placed = replica.chunks.change(id.chunk, |chunk| chunk.crcs[id.n as usize] = Some(crcs));
                placed.expect("its directory entry was loaded");
            }
        }
        Ok(())
    }

    /// Records the first damage of a replica (R11).
    fn damage(&mut self, replica: ReplicaId, reason: String) {
        let replica = self.replicas.get_mut(&replica).expect("a listed replica");
        replica.damage.get_or_insert(reason);
    }

    fn finish_mount(&mut self, out: &mut Vec<HomeEvent>) {
        let State::Mounting(mount) = std::mem::replace(&mut self.state, State::Open) else {
            panic!("no mount is running")
        };
        for (id, parts) in mount.paged {
            let replica = self.replicas.get_mut(&id).expect("a listed replica");
            let (decision, dissolved) =
                (joined(&parts.decision, &replica.decision), joined(&parts.dissolved, &replica.dissolved));
            let is_whole = decision.is_some() && dissolved.is_some();
            assert!(is_whole || replica.damage.is_some(), "{id}: a page is missing without damage");
            replica.state.decision.bytes = decision.unwrap_or_default();
            replica.state.dissolved = dissolved.unwrap_or_default();
        }
        self.check_chunks();
        self.claim_space();
        let listed = |r: &&Replica| {
            let lens = [r.state.decision.bytes.len(), r.state.dissolved.len()];
            lens == [r.decision.len as usize, r.dissolved.len as usize]
        };
        let states = self.replicas.values().filter(listed).map(|r| r.state.clone()).collect();
        let damaged = self.replicas.iter().filter_map(|(id, r)| {
            let checkpoint = (r.state.decision.index, r.state.decision.term);
            Some(LostHome { replica: *id, checkpoint, reason: r.damage.clone()? })
        });
        let damaged = damaged.collect();
        out.push(HomeEvent::Mounted { states, damaged });
    }

    /// Checks that each quarter has CRCs exactly when it has an AU, and that no chunk is empty: home writes no other
    /// state.
    fn check_chunks(&mut self) {
        for replica in self.replicas.values_mut().filter(|r| r.damage.is_none()) {
            let odd = replica.chunks.iter().find(|(_, chunk)| {
                chunk.is_empty() || (0..CRC_PAGES).any(|n| chunk.has_quarter(n) != chunk.crcs[n].is_some())
            });
            if let Some((key, _)) = odd {
                replica.damage = Some(format!("map and CRC pages of {key} contradict each other"));
            }
        }
    }

    /// Derives the free maps, and finds double-owned numbers.
    fn claim_space(&mut self) {
        for replica in self.replicas.values() {
            for slot in replica.slots() {
                if !self.slots.claim(slot) {
                    self.double_owned.slots.insert(slot);
                }
            }
            for au in replica.chunks.values().flat_map(|chunk| chunk.aus()) {
                if !self.aus.claim(au) {
                    self.double_owned.aus.insert(au);
                }
            }
        }
        if self.double_owned.slots.is_empty() && self.double_owned.aus.is_empty() {
            return;
        }
        for replica in self.replicas.values_mut() {
            let slot = replica.slots().find(|slot| self.double_owned.slots.contains(slot));
            let au = replica.chunks.values().flat_map(|c| c.aus()).find(|au| self.double_owned.aus.contains(au));
            if let Some(slot) = slot {
                replica.damage.get_or_insert(format!("slot {slot} has two owners"));
            } else if let Some(au) = au {
                replica.damage.get_or_insert(format!("AU {au} has two owners"));
            }
        }
    }
}

/// Joins pages without a head; `None`: one of them could not be read.
fn joined(parts: &[IoBuf], of: &Paged) -> Option<Bytes> {
    let mut bytes = parts.iter().map(|part| &**part).collect::<Vec<_>>().concat();
    bytes.truncate(of.len as usize);
    (bytes.len() == of.len as usize).then(|| bytes.into())
}

/// Returns a replica without its chunks.
fn replica_of(record: ReplicaRecord) -> Replica {
    let (index, term, commit) = (record.index, record.term, record.commit);
    let decision = DecisionState { replica: record.replica, index, term, bytes: Bytes::new() };
    let mut replica = Replica::new(RoundState { decision, commit, dissolved: Bytes::new() });
    replica.decision = Paged { len: record.decision_len, pages: record.decision, dirty: false };
    let (len, pages) = record.dissolved;
    replica.dissolved = Paged { len, pages, dirty: false };
    replica.open_pages = (0..record.directory.len() as u32).collect();
    replica.directory = record.directory.into_iter().map(DirPage::new).collect();
    replica
}

/// Loads a chunk without its map and CRCs.
fn load_entry(replica: &mut Replica, id: PageId, position: usize, entry: DirEntry) -> Result<(), String> {
    let mut chunk = Chunk::new(DirPlace { page: id.n, position: position as u8 });
    chunk.pages = entry.pages;
    assert_eq!(chunk.pages.len(), CHUNK_PAGES);
    if replica.chunks.contains_key(&entry.chunk) {
        return Err(format!("{} is listed twice", entry.chunk));
    }
    replica.chunks.insert(entry.chunk, chunk);
    replica.directory[id.n as usize].chunks[position] = Some(entry.chunk);
    Ok(())
}
