//! Faults of the nodes of a [`Cluster`], besides stops and starts.
//!
//! Input: strikes. Output: a world that behaves otherwise.
//!
//! Invariant: a node that stands still gets no message from the control plane either. A disk that has lost flushed
//! bytes without a trace never comes back.

use crate::check::device::Place;
use crate::cluster::{Cluster, DEVICE};
use crate::faults::Class;
use crate::rot;
use crate::stranger::Stranger;
use layout::home::Geometry;
use layout::log::{SALT_KEY_LEN, SaltKey};
use layout::superblock::{DeviceIds, Part, Segments, Superblock};
use simenv::{DiskFaults, DiskImage, NodeId};
use types::rng::Rng;
use types::{Index, OsdId, PgId, Time};

/// A part of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    Superblock,
    Log,
    /// CRC pages, map, decision states.
    Tables,
    Data,
}

/// Number of log batches that must be durable behind a lost one before a mount is sure to miss it: as many as may be in
/// flight at once, and one.
const EVIDENCE: u64 = 5;

impl Cluster {
    pub fn disk_faults(&self, i: usize, change: impl FnOnce(&mut DiskFaults)) {
        self.world.disk_faults(self.osd_node(i), DEVICE, change);
    }

    pub fn image(&self, i: usize) -> DiskImage {
        self.world.disk_image(self.osd_node(i), DEVICE)
    }

    /// Returns the superblock of OSD `i` as it was formatted, but without its salt key.
    pub(crate) fn superblock(&self, i: usize) -> Superblock {
        let (device, segment) = (self.options.device_bytes, self.options.segment_bytes);
        let log = self.options.log_bytes_of(i);
        let count = u32::try_from(log / segment).expect("a log has few segments");
        let no_key = SaltKey::new([0; SALT_KEY_LEN]);
        let (cluster, osd, uuid) = self.identity(i);
        let log = Segments { segment_bytes: segment, segment_count: count };
        Superblock::divide(DeviceIds { cluster, osd, uuid }, Part::Whole, device, log, 0, no_key)
            .expect("it was formatted like this")
    }

    /// Returns the offsets of the pages of a region that hold anything. For the superblock it returns one of two
    /// copies.
    pub fn region(&self, i: usize, region: Region, rng: &mut Rng) -> Vec<u64> {
        let (sb, image) = (self.superblock(i), self.image(i));
        let slots = Geometry::of(sb.home_bytes).map_or(0, |g| u64::from(g.slot_count) * 4096);
        let end = sb.home_start + sb.home_bytes;
        match region {
            Region::Superblock => vec![Superblock::offsets(sb.device_bytes)[rng.below(2) as usize]],
            Region::Log => image.stored_pages(sb.log_start, sb.home_start),
            Region::Tables => image.stored_pages(sb.home_start, sb.home_start + slots),
            Region::Data => image.stored_pages(sb.home_start + slots, end),
        }
    }

    /// Whether no copy of the superblock of OSD `i` is good.
    pub(crate) fn lacks_superblock(&self, i: usize) -> bool {
        let (image, mut page) = (self.image(i), [0; layout::superblock::SUPERBLOCK_LEN]);
        Superblock::offsets(self.options.device_bytes).iter().all(|at| {
            image.read(*at, &mut page);
            image.is_unreadable(*at, page.len() as u64) || Superblock::decode(&page).is_err()
        })
    }

    /// Counts the disk of OSD `i` as lost when lies have left no batch of its log: only an administrator goes on (BSLT-3013).
    pub(crate) fn note_lost_log(&mut self, i: usize) {
        let log = self.superblock(i).log_identity();
        if self.budget.has_mendable_lies_only(i) && !rot::has_whole_batch(&self.image(i), &log) {
            self.budget.lose(i);
        }
    }

    /// Measures the lies of OSD `i` by its log, and follows the claims of its replicas from now on.
    pub(crate) fn watch_log(&self, i: usize) {
        let sb = self.superblock(i);
        self.disk_faults(i, |f| f.watch = (sb.log_start, sb.home_start));
        let (segment_bytes, segments) = (sb.segment_bytes, u64::from(sb.segment_count));
        let log = Place { uuid: sb.uuid.0, start: sb.log_start, segment_bytes, segments };
        self.claims.borrow_mut().add(self.osds[i].node, self.osds[i].id, log);
    }

    /// Zeroes the device, but keeps the superblocks if they are to stay.
    ///
    /// # Panics
    /// When its process runs.
    pub fn wipe_disk(&mut self, i: usize, keep_superblock: bool) {
        let (sb, faults, kind) = (self.superblock(i), self.options.disk.clone(), self.options.disk_kind);
        let node = self.osd_node(i);
        self.world.create_disk(node, DEVICE, self.options.device_bytes, self.options.volatile_cache);
        self.world.disk_faults(node, DEVICE, |f| *f = faults);
        self.world.disk_kind(node, DEVICE, kind);
        self.watch_log(i);
        if keep_superblock {
            let bytes = sb.encode();
            Superblock::offsets(sb.device_bytes).iter().for_each(|at| self.image(i).write(*at, &bytes));
        }
        self.budget.note(i, Class::Wipe);
        let ids = self.meta.records().into_iter().flat_map(|r| r.pgs.values()).flat_map(|pg| &pg.members);
        let last = ids.map(|m| m.replica).max().expect("a strike looks for records first");
        self.budget.wiped(i, last);
        (self.osds[i].durable_batch, self.osds[i].tail_found) = (0, u64::MAX);
    }

    /// Counts a disk as lost if a log write is missing and nothing behind it is durable: a mount cannot tell it from a
    /// write that was never submitted.
    pub(crate) fn note_lost_tail(&mut self, i: usize) {
        let sb = self.superblock(i);
        let lies = self.world.disk_lies(self.osd_node(i), DEVICE);
        let in_log = |at: u64| (sb.log_start..sb.home_start).contains(&at);
        let silent = lies.iter().any(|lie| in_log(lie.offset) && lie.durable_after < EVIDENCE);
        if silent {
            self.budget.lose(i);
        }
        assert!(lies.is_empty() || self.budget.has_lied(i), "a lie that no fault ordered");
    }

    /// Whether the device of OSD `i` carries a poison mark, and no fault keeps a mount from reading it.
    pub(crate) fn is_marked(&self, i: usize) -> bool {
        let mut page = vec![0; layout::poison::POISON_LEN];
        self.image(i).read(layout::poison::POISON_AT, &mut page);
        let (_, _, uuid) = self.identity(i);
        let mut sound = true;
        self.disk_faults(i, |f| {
            sound = f.fail_read.is_none() && f.misdirect_read.is_none() && f.read_error_ppm == 0;
        });
        sound && layout::poison::decode(&page, uuid).is_some()
    }

    /// Whether the device of OSD `i` carries the mark of an older copy.
    pub(crate) fn is_marked_behind(&self, i: usize) -> bool {
        let mut page = vec![0; layout::poison::POISON_LEN];
        self.image(i).read(layout::poison::BEHIND_AT, &mut page);
        let (_, _, uuid) = self.identity(i);
        layout::poison::decode(&page, uuid).is_some()
    }

    /// Starts OSD `i` again, whose device meta has found to be an older copy: as its process does, after the mark (ADR 0012).
    pub(crate) fn start_older(&mut self, i: usize, again: osd::Restart) {
        let (_, _, uuid) = self.identity(i);
        tracing::info!(i, ?again, "its device is an older copy");
        self.stop_osd(i, false);
        let mark = layout::poison::encode(uuid, "an older copy");
        self.image(i).write(layout::poison::BEHIND_AT, &mark);
        self.osds[i].restores = match again {
            osd::Restart::Restored { mount_above } => Some(mount_above),
            osd::Restart::Marked => None,
        };
        self.start_osd(i);
    }

    pub(crate) fn read_faults(&self) -> u64 {
        let counts = self.world.fault_counts();
        counts.misread + counts.disk_errors
    }

    /// An operator reads why OSD `i` was refused, looks at its device, and starts it with a confirmation.
    pub(crate) fn confirm_poison(&mut self, i: usize) {
        self.osds[i].poison_confirmed = true;
        self.poison_confirmed += 1;
        self.start_osd(i);
    }

    /// Restarts OSDs whose stores are poisoned, as an operator would. A write or flush in flight when the faults ended
    /// may still fail, and poison its store.
    pub fn see_to_poisoned(&mut self) {
        for i in (0..self.osd_count()).filter(|i| self.budget.has_lied(*i)).collect::<Vec<_>>() {
            if self.osds[i].running.is_some() && self.is_poisoned(i) {
                self.stop_osd(i, false);
                self.start_osd(i);
            }
        }
    }

    /// Whether every byte that this OSD's disk took and flushed is there, as far as is known.
    pub(crate) fn is_honest(&self, id: OsdId) -> bool {
        !self.budget.has_lied(id.0 as usize - 1) && !self.budget.is_blind()
    }

    /// Whether every byte that this OSD's device acknowledged by a flush is there.
    pub(crate) fn keeps_its_word(&self, id: OsdId) -> bool {
        self.is_honest(id) || (self.budget.has_failed_openly_only(id.0 as usize - 1) && !self.budget.is_blind())
    }

    /// Whether this OSD's device was made to rot outside the budget.
    pub(crate) fn is_rotten(&self, id: OsdId) -> bool {
        self.rotten.contains(&id)
    }

    /// Flips a bit in the header of one batch out of `one_in` in the i-th OSD's log. The process does not run. Returns
    /// the number of damaged headers.
    pub fn rot_headers(&mut self, i: usize, one_in: u64) -> u64 {
        let node = &self.osds[i];
        assert!(node.running.is_none(), "its device is at rest");
        let mut rng = Rng::new(u64::from(node.id.0) ^ one_in ^ self.world.now().0);
        self.rotten.insert(node.id);
        self.rotten_logs.insert(node.id);
        crate::rot::headers(&self.world.disk_image(node.node, DEVICE), one_in, &mut rng)
    }

    /// Pauses the process of OSD `i`, and holds meta's messages to it, until then.
    pub fn pause_osd(&mut self, i: usize, until: Time) {
        self.world.pause(self.osd_node(i));
        self.post().hold_osd(i, until);
    }

    /// Resumes the process of OSD `i`.
    pub fn resume_osd(&mut self, i: usize) {
        self.world.resume(self.osd_node(i));
    }

    pub fn pause_client(&mut self, client: usize, until: Time) {
        self.world.pause(self.clients()[client].node);
        self.post().hold_client(client, until);
    }

    pub fn resume_client(&mut self, client: usize) {
        self.world.resume(self.clients()[client].node);
    }

    /// Returns the machine that has the volumes open, if one has.
    pub fn open_owner(&self) -> Option<usize> {
        let owner = self.owner_number();
        self.clients()[owner].is_open().then_some(owner)
    }

    pub fn owner_node(&self) -> NodeId {
        self.clients()[self.owner_number()].node
    }

    /// Returns some PG that an OSD leads: the PG, its leader, and its other members.
    pub fn any_led(&self, rng: &mut Rng) -> Option<(PgId, usize, Vec<usize>)> {
        let records = self.meta.records()?;
        let led: Vec<(PgId, usize)> = self
            .running()
            .flat_map(|(id, osd)| osd.leading().into_keys().map(move |pg| (pg, id.0 as usize - 1)))
            .collect();
        if led.is_empty() {
            return None;
        }
        let (pg, leader) = led[rng.below(led.len() as u64) as usize];
        let members = records.pgs.get(&pg)?.members.iter().map(|m| m.osd.0 as usize - 1);
        Some((pg, leader, members.filter(|k| *k != leader).collect()))
    }

    /// Whether a destage runs on the i-th OSD.
    pub fn is_in_round(&self, i: usize) -> bool {
        self.running().any(|(id, osd)| id.0 as usize == i + 1 && osd.is_in_round_for_tools())
    }

    /// Returns how many segments of the i-th OSD's log are in use, and how many there are; `None` when it does not run.
    pub fn log_segments(&self, i: usize) -> Option<(u32, u32)> {
        let (_, osd) = self.running().find(|(id, _)| id.0 as usize == i + 1)?;
        let stats = osd.fill_for_tools().0;
        Some((stats.segments_in_use, stats.segments))
    }

    /// Returns the PG of which the i-th OSD holds most entries, and its leader; `None` when the i-th OSD or no OSD
    /// leads it.
    pub fn busiest_led(&self, i: usize) -> Option<(PgId, usize)> {
        let (_, osd) = self.running().find(|(id, _)| id.0 as usize == i + 1)?;
        let busiest = osd.groups_for_tools().max_by_key(|group| group.last_index())?.identity().pg;
        let leader = (0..self.osd_count()).find(|k| self.led_by(*k).contains(&busiest))?;
        (leader != i).then_some((busiest, leader))
    }

    /// Returns the number of PGs of which the i-th OSD holds more entries than these.
    pub fn loaded(&self, i: usize, entries: Index) -> usize {
        let groups =
            self.running().filter(|(id, _)| id.0 as usize == i + 1).flat_map(|(_, osd)| osd.groups_for_tools());
        groups.filter(|group| group.last_index() > entries).count()
    }

    /// Returns the PGs that the i-th OSD leads.
    pub fn led_by(&self, i: usize) -> Vec<PgId> {
        let running = self.running().find(|(id, _)| id.0 as usize == i + 1);
        running.map_or_else(Vec::new, |(_, osd)| osd.leading().into_keys().collect())
    }

    /// Whether the first entry in a leader's log of the PG is more than `entries` beyond the last entry of the i-th
    /// OSD.
    pub fn is_behind_logs(&self, i: usize, pg: PgId, entries: u64) -> bool {
        let Some(last) = self.standing(i, pg).map(|standing| standing.last) else { return false };
        let groups = self.running().flat_map(|(_, osd)| osd.groups_for_tools());
        groups.filter(|g| g.identity().pg == pg && g.is_leader()).any(|g| g.first_index().0 > last.0 + entries)
    }

    /// Returns how many allocation units the i-th OSD needs for its applied entries, with its reserve, and how many its
    /// home has.
    pub fn units(&self, i: usize) -> Option<(u64, u64)> {
        self.running().find(|(id, _)| id.0 as usize == i + 1).map(|(_, osd)| osd.units_for_tools())
    }

    /// Returns the OSD with the small home, when it is full although everything rests.
    pub fn stays_full(&self) -> Option<OsdId> {
        let small = self.options.first_log_extra_bytes > 0 && self.is_full(0);
        small.then_some(OsdId(1))
    }

    /// Whether the i-th OSD says that it is full.
    pub fn is_full(&self, i: usize) -> bool {
        self.running().any(|(id, osd)| id.0 as usize == i + 1 && osd.is_full_for_tools())
    }

    /// Returns the number of the first batch of the newest segment of the i-th OSD's log, and whether its state block is not
    /// written in full; `None` when the OSD does not run.
    pub fn log_head(&self, i: usize) -> Option<(u64, bool)> {
        self.running().find(|(id, _)| id.0 as usize == i + 1)?.1.log_head_for_tools()
    }

    /// Whether the i-th OSD installs a stream.
    pub fn is_installing(&self, i: usize) -> bool {
        self.running().any(|(id, osd)| id.0 as usize == i + 1 && osd.is_installing_for_tools())
    }

    /// Whether the i-th OSD sends a stream to a follower whose log has begun.
    pub fn fills(&self, i: usize) -> bool {
        self.running().any(|(id, osd)| id.0 as usize == i + 1 && osd.fills_for_tools().next().is_some())
    }

    /// Returns how many destages the running OSDs have ended with a checkpoint.
    pub fn checkpoints(&self) -> u64 {
        self.running().map(|(_, osd)| osd.rounds_for_tools()).sum()
    }

    /// Lets a process outside the cluster speak to an OSD.
    pub fn meet_stranger(&mut self, i: usize, script: u64, seed: u64) {
        let addr = self.osd_addr(i);
        let world = self.world.clone();
        self.stranger().get_or_insert_with(|| Stranger::new(&world)).speak(addr, script, seed);
    }
}
