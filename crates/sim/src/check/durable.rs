//! No reply before durable on a majority: when a client is told that its write is done, the very bytes of that
//! write are on the durable side of a majority of disks.
//!
//! The check looks at the disk model alone. Every sector that a client writes carries its stamp (see `stamp`), and logs
//! and homes store payloads unchanged. So each write that an OSD hands to its disk is searched for sectors whose write
//! waits for its reply, and their places are noted. A disk counts when, at a flush or at the reply, the bytes that
//! would survive a power cut hold that sector. A sector that was durable once stays counted, because a log segment may
//! be reused before a late reply. The check asks the code for nothing.
//!
//! Where a disk has lied and was not written since, a sector that was handed to it counts, because the OSD could not
//! know. Writes of zeros carry no bytes, so this check does not see them; the histories show lost ones.

use crate::stamp;
use env::DiskId;
use layout::log::{BatchHeader, LogIdentity};
use layout::superblock::Superblock;
use simenv::{DiskWatch, Durable, NodeId, World};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use types::IoBuf;
use types::units::SECTOR;

/// Consecutive sectors of a volume with the stamp of one write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    pub volume: u64,
    pub first: u64,
    pub count: u64,
    pub stamp: u64,
}

/// A write: its volume and its stamp.
type Write = (u64, u64);

/// A set of nodes, a bit each.
#[derive(Clone, Copy, Default)]
struct Nodes(u64);

impl Nodes {
    fn bit(node: NodeId) -> u64 {
        assert!(node.0 < u64::BITS, "a world has few nodes");
        1 << node.0
    }

    fn has(self, node: NodeId) -> bool {
        self.0 & Nodes::bit(node) != 0
    }

    fn add(&mut self, node: NodeId) {
        self.0 |= Nodes::bit(node);
    }

    fn len(self) -> usize {
        self.0.count_ones() as usize
    }
}

/// Consecutive sectors of a write that lie consecutively on a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    node: NodeId,
    offset: u64,
    first: u64,
    count: u64,
}

/// A write that waits for its reply.
struct Waiting {
    first: u64,
    /// For each sector, the disks that were seen to hold it durably.
    surely: Vec<Nodes>,
    /// Places on disks to which the sectors were written.
    places: Vec<Place>,
}

impl Waiting {
    fn surely(&mut self, sector: u64) -> Option<&mut Nodes> {
        self.surely.get_mut(usize::try_from(sector.checked_sub(self.first)?).ok()?)
    }

    /// Notes the durable sectors of a place. Returns whether all of them are durable.
    fn look(&mut self, (volume, stamp): Write, place: Place, durable: Durable<'_>) -> bool {
        let mut all = true;
        for n in 0..place.count {
            let sector = place.first + n;
            let Some(surely) = self.surely(sector).filter(|surely| !surely.has(place.node)) else { continue };
            if is_there((volume, sector, stamp), place.offset + n * SECTOR, durable) {
                surely.add(place.node);
            } else {
                all = false;
            }
        }
        all
    }
}

/// All writes that wait for their replies.
#[derive(Default)]
pub struct Majority {
    waiting: BTreeMap<Write, Waiting>,
    /// Per disk, the places that the next flush may make durable.
    unflushed: BTreeMap<NodeId, Vec<(Write, Place)>>,
    /// The identity of each log, and the last batch that was handed to it.
    logs: BTreeMap<NodeId, LogIdentity>,
    last_batches: BTreeMap<NodeId, BatchHeader>,
    checked: u64,
}

/// The handle that the world and the histories share.
pub type Shared = Rc<RefCell<Majority>>;

impl Majority {
    /// Notes that a write with these bytes was submitted.
    pub fn asked(&mut self, span: Span) {
        let Span { volume, first, count, stamp } = span;
        let surely = vec![Nodes::default(); count as usize];
        let old = self.waiting.insert((volume, stamp), Waiting { first, surely, places: Vec::new() });
        assert!(old.is_none(), "stamp {stamp} was used twice");
    }

    /// Returns the last batch that was handed to this node's log.
    pub fn last_batch(&self, node: NodeId) -> Option<BatchHeader> {
        self.last_batches.get(&node).copied()
    }

    /// Notes a superblock, or a batch of a log whose superblock was noted.
    fn note_header(&mut self, node: NodeId, offset: u64, head: &[u8]) {
        if let Ok(superblock) = Superblock::decode(head) {
            self.logs.insert(node, superblock.log_identity());
        }
        let log = self.logs.get(&node);
        if let Some(header) = log.and_then(|log| BatchHeader::decode(head, log, offset)) {
            self.last_batches.insert(node, header);
        }
    }

    /// Returns the number of sectors whose reply was checked.
    pub fn checked(&self) -> u64 {
        self.checked
    }

    /// Checks a reply. `read` looks at the durable bytes of a node's disk, and says whether it may have lied.
    ///
    /// # Errors
    /// Fewer than `needed` disks hold some sector of it.
    pub fn replied(
        &mut self,
        span: Span,
        needed: usize,
        mut read: impl FnMut(NodeId, &mut dyn FnMut(Durable<'_>)),
    ) -> Result<(), String> {
        let Span { volume, stamp, .. } = span;
        let Some(mut waiting) = self.waiting.remove(&(volume, stamp)) else { return Ok(()) };
        self.checked += span.count;
        let lacks = |waiting: &Waiting| waiting.surely.iter().position(|surely| surely.len() < needed);
        for place in waiting.places.clone() {
            if lacks(&waiting).is_none() {
                break;
            }
            read(place.node, &mut |durable| _ = waiting.look((volume, stamp), place, durable));
        }
        let Some(n) = lacks(&waiting) else { return Ok(()) };
        Err(format!(
            "volume {volume} sector {}: write {stamp} was acknowledged while {} of the {needed} disks that it takes \
             held it durably",
            waiting.first + n as u64,
            waiting.surely[n].len()
        ))
    }

    /// Notes that sectors of one write go to a disk.
    fn goes_to(&mut self, write: Write, place: Place) {
        let Some(waiting) = self.waiting.get_mut(&write) else { return };
        let mut sectors = place.first..place.first + place.count;
        let news = sectors.any(|sector| waiting.surely(sector).is_some_and(|surely| !surely.has(place.node)));
        if news && !waiting.places.contains(&place) {
            waiting.places.push(place);
            self.unflushed.entry(place.node).or_default().push((write, place));
        }
    }
}

/// The check in the form that the histories use.
pub struct Watch {
    pub shared: Shared,
    world: World,
    device: &'static str,
    needed: usize,
    /// The first reply that came too early.
    pub failure: Option<String>,
}

impl Watch {
    /// Watches the disks of this name; `needed` of them make a majority.
    pub fn new(world: &World, device: &'static str, needed: usize) -> Watch {
        let shared = Shared::default();
        world.watch_disks(Rc::clone(&shared) as Rc<RefCell<dyn DiskWatch>>);
        Watch { shared, world: world.clone(), device, needed, failure: None }
    }

    /// Sets how many disks make a majority: PGs that are forced have fewer members for a while.
    pub fn need(&mut self, needed: usize) {
        self.needed = needed;
    }

    pub fn asked(&self, span: Span) {
        self.shared.borrow_mut().asked(span);
    }

    pub fn replied(&mut self, span: Span) {
        let read = |node, look: &mut dyn FnMut(Durable<'_>)| self.world.durable(node, self.device, look);
        if let Err(what) = self.shared.borrow_mut().replied(span, self.needed, read) {
            self.failure.get_or_insert(what);
        }
    }
}

/// Whether a disk durably holds a sector (volume, sector, stamp) there.
fn is_there(sector: (u64, u64, u64), offset: u64, durable: Durable<'_>) -> bool {
    if durable.has_lied_at(offset) {
        return true;
    }
    // The head is enough: sectors are written whole, and the histories find torn ones.
    stamp::peek(durable.bytes(offset, stamp::PEEK_LEN)) == Some(sector)
}

impl DiskWatch for Majority {
    fn submitted(&mut self, (node, _): (NodeId, DiskId), offset: u64, bufs: &[IoBuf]) {
        if let Some(head) = bufs.first() {
            self.note_header(node, offset, head);
        }
        let mut row: Option<(Write, Place)> = None;
        let sectors = bufs.iter().flat_map(|b| b.chunks_exact(SECTOR as usize));
        for (at, bytes) in (offset..).step_by(SECTOR as usize).zip(sectors) {
            let found = stamp::peek(bytes);
            if let (Some((write, place)), Some((volume, sector, stamp))) = (&mut row, found)
                && *write == (volume, stamp)
                && place.first + place.count == sector
            {
                place.count += 1;
                continue;
            }
            let begins = |(volume, first, stamp)| ((volume, stamp), Place { node, offset: at, first, count: 1 });
            if let Some((write, place)) = std::mem::replace(&mut row, found.map(begins)) {
                self.goes_to(write, place);
            }
        }
        if let Some((write, place)) = row {
            self.goes_to(write, place);
        }
    }

    fn flushed(&mut self, (node, _): (NodeId, DiskId), durable: Durable<'_>) {
        let Majority { waiting, unflushed, .. } = self;
        let Some(places) = unflushed.get_mut(&node) else { return };
        places.retain(|(write, place)| waiting.get_mut(write).is_some_and(|w| !w.look(*write, *place, durable)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::{DiskSpec, Env, Op, Token};
    use simenv::SimEnv;
    use types::{IoBufMut, Time};

    const SPAN: Span = Span { volume: 1, first: 7, count: 1, stamp: 3 };

    struct Disks {
        world: World,
        envs: Vec<SimEnv>,
        majority: Shared,
    }

    impl Disks {
        fn new() -> Disks {
            let world = World::new(1);
            let majority = Shared::default();
            world.watch_disks(Rc::clone(&majority) as Rc<RefCell<dyn DiskWatch>>);
            majority.borrow_mut().asked(SPAN);
            let env = |n: usize| {
                let node = world.add_node(&n.to_string());
                world.create_disk(node, "d", 1 << 20, true);
                let mut env = world.env(node);
                env.open_disk(&DiskSpec { path: "d".into(), assume_plp: false, read_only: false }).expect("a disk");
                env
            };
            Disks { envs: (0..3).map(env).collect(), majority, world }
        }

        /// Writes the piece on disk `n`, with a flush behind it or none.
        fn write(&mut self, n: usize, stamp: u64, flush: bool) {
            let mut buf = IoBufMut::zeroed(4096);
            stamp::write(&mut buf[512..1024], SPAN.volume, SPAN.first, stamp);
            let token = Token { owner: 1, key: 0, generation: 0 };
            let op = Op::DiskWrite { token, disk: DiskId(0), offset: 8192, bufs: vec![buf.freeze()], flush };
            self.envs[n].turn(&mut vec![op], &mut Vec::new(), Time::NEVER).expect("it lives");
            while let Some(next) = self.world.next_event_time().filter(|t| *t > self.world.now()) {
                self.world.advance_to(next);
            }
            self.envs[n].turn(&mut Vec::new(), &mut Vec::new(), Time::NEVER).expect("it lives");
        }

        fn reply(&mut self) -> Result<(), String> {
            let world = self.world.clone();
            self.majority.borrow_mut().replied(SPAN, 2, |node, look| world.durable(node, "d", &mut *look))
        }
    }

    #[test]
    fn a_reply_that_two_of_three_disks_bear_is_right() {
        let mut disks = Disks::new();
        disks.write(0, SPAN.stamp, true);
        disks.write(2, SPAN.stamp, true);
        disks.write(2, 99, true);
        disks.reply().expect("what was durable once counts, even when its place was used again");
        assert_eq!(disks.majority.borrow().checked(), 1);
    }

    #[test]
    fn what_a_disk_held_before_it_was_replaced_counts() {
        let mut disks = Disks::new();
        disks.write(0, SPAN.stamp, true);
        disks.write(1, SPAN.stamp, true);
        let node = disks.envs.remove(1).node();
        disks.world.crash(node);
        disks.world.create_disk(node, "d", 1 << 20, false);
        disks.reply().expect("it was durable on two");
    }

    #[test]
    fn lie_excuses_reply_only_where_disk_lied_and_was_not_written_since() {
        let image = |disks: &Disks, n: usize| disks.world.disk_image(disks.envs[n].node(), "d");
        for (at, again, is_right) in [(8192 + 512, false, true), (8192 + 512, true, false), (64 << 10, false, false)] {
            let mut disks = Disks::new();
            disks.write(0, SPAN.stamp, true);
            disks.write(1, SPAN.stamp, false);
            image(&disks, 1).flip_bit(at, 1);
            if again {
                disks.write(1, SPAN.stamp, false);
            }
            assert_eq!(disks.reply().is_ok(), is_right, "a bit flipped at {at}, and written again: {again}");
        }
    }

    #[test]
    fn a_reply_before_the_flush_or_with_a_minority_is_found() {
        let mut disks = Disks::new();
        disks.write(0, SPAN.stamp, true);
        disks.write(1, SPAN.stamp, false);
        disks.write(2, 99, true);
        assert!(disks.reply().expect_err("one disk is no majority").contains("1 of the 2"));
    }
}
