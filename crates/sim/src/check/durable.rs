//! No reply before durable on a majority: when a client is told that its write is done, the very bytes of that
//! write are on the durable side of a majority of disks.
//!
//! It looks at the disk model alone. Every sector that a client writes carries its stamp (see `stamp`), and
//! payloads lie in logs and homes as they came; so each write that an OSD hands to its disk is searched for
//! sectors whose write waits for its reply, and where they went is noted. A disk counts when, at a flush or at
//! the reply, what a power cut would leave there holds that sector. What once was durable stays counted: a
//! log segment may be used again before a late reply. Nothing that the code says of itself is asked.
//!
//! A disk that has lied counts wherever the sector was handed to it: its user could not know. Writes of zeros
//! carry no bytes, so they are not seen here; lost ones show in the histories.

use crate::stamp;
use env::DiskId;
use env::sim::{DiskWatch, Durable, NodeId, World};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use types::IoBuf;
use types::units::SECTOR;

/// A sector of a volume with the stamp of one write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Piece {
    pub volume: u64,
    pub sector: u64,
    pub stamp: u64,
}

/// Where a piece went that waits for its reply.
#[derive(Default)]
struct Held {
    /// Disks that were seen to hold it durably.
    surely: BTreeSet<NodeId>,
    /// Where it was written besides.
    places: BTreeSet<(NodeId, u64)>,
}

/// All writes that wait for their replies.
#[derive(Default)]
pub struct Majority {
    waiting: BTreeMap<Piece, Held>,
    /// Per disk, what the next flush may make durable.
    unflushed: BTreeMap<NodeId, Vec<(Piece, u64)>>,
    checked: u64,
}

/// The handle that the world and the histories share.
pub type Shared = Rc<RefCell<Majority>>;

impl Majority {
    /// A write with these bytes was asked for.
    pub fn asked(&mut self, piece: Piece) {
        self.waiting.entry(piece).or_default();
    }

    /// Replies that were checked.
    pub fn checked(&self) -> u64 {
        self.checked
    }

    /// The reply came. `read` looks at the durable bytes of a node's disk, and says whether it may have lied.
    ///
    /// # Errors
    /// Fewer than `needed` disks hold it.
    pub fn replied(
        &mut self,
        piece: Piece,
        needed: usize,
        mut read: impl FnMut(NodeId, &mut dyn FnMut(Durable<'_>)),
    ) -> Result<(), String> {
        let Some(Held { mut surely, places }) = self.waiting.remove(&piece) else { return Ok(()) };
        for (node, offset) in places {
            if surely.len() >= needed {
                break;
            }
            if !surely.contains(&node) {
                let mut holds = false;
                read(node, &mut |durable| holds = is_there(piece, offset, durable));
                surely.extend(holds.then_some(node));
            }
        }
        self.checked += 1;
        if surely.len() >= needed {
            return Ok(());
        }
        let Piece { volume, sector, stamp } = piece;
        Err(format!(
            "volume {volume} sector {sector}: write {stamp} was acknowledged while {} of the {needed} disks that it \
             takes held it durably",
            surely.len()
        ))
    }
}

/// The check as the histories use it.
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

    pub fn asked(&self, piece: Piece) {
        self.shared.borrow_mut().asked(piece);
    }

    pub fn replied(&mut self, piece: Piece) {
        let read = |node, look: &mut dyn FnMut(Durable<'_>)| self.world.durable(node, self.device, look);
        if let Err(what) = self.shared.borrow_mut().replied(piece, self.needed, read) {
            self.failure.get_or_insert(what);
        }
    }
}

fn is_there(piece: Piece, offset: u64, durable: Durable<'_>) -> bool {
    // Its head is enough: sectors are written whole, and torn ones are for the histories to find.
    let mut bytes = [0; 32];
    durable.read(offset, &mut bytes);
    durable.has_lied() || stamp::peek(&bytes) == Some((piece.volume, piece.sector, piece.stamp))
}

impl DiskWatch for Majority {
    fn submitted(&mut self, (node, _): (NodeId, DiskId), offset: u64, bufs: &[IoBuf]) {
        let mut at = offset;
        for bytes in bufs.iter().flat_map(|b| b.chunks_exact(SECTOR as usize)) {
            if let Some((volume, sector, stamp)) = stamp::peek(bytes) {
                let piece = Piece { volume, sector, stamp };
                if let Some(held) = self.waiting.get_mut(&piece)
                    && !held.surely.contains(&node)
                    && held.places.insert((node, at))
                {
                    self.unflushed.entry(node).or_default().push((piece, at));
                }
            }
            at += SECTOR;
        }
    }

    fn flushed(&mut self, (node, _): (NodeId, DiskId), durable: Durable<'_>) {
        let Majority { waiting, unflushed, .. } = self;
        let Some(pieces) = unflushed.get_mut(&node) else { return };
        pieces.retain(|(piece, offset)| {
            let Some(held) = waiting.get_mut(piece) else { return false };
            if held.surely.contains(&node) {
                return false;
            }
            let there = is_there(*piece, *offset, durable);
            if there {
                held.surely.insert(node);
            }
            !there
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::sim::SimEnv;
    use env::{DiskSpec, Env, Op, Token};
    use types::{IoBufMut, Time};

    const PIECE: Piece = Piece { volume: 1, sector: 7, stamp: 3 };

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
            majority.borrow_mut().asked(PIECE);
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
            stamp::write(&mut buf[512..1024], PIECE.volume, PIECE.sector, stamp);
            let token = Token { room: 1, key: 0, generation: 0 };
            let op = Op::DiskWrite { token, disk: DiskId(0), offset: 8192, bufs: vec![buf.freeze()], flush };
            self.envs[n].turn(&mut vec![op], &mut Vec::new(), Time::NEVER).expect("it lives");
            while let Some(next) = self.world.next_event_time().filter(|t| *t > self.world.now()) {
                self.world.advance_to(next);
            }
            self.envs[n].turn(&mut Vec::new(), &mut Vec::new(), Time::NEVER).expect("it lives");
        }

        fn reply(&mut self) -> Result<(), String> {
            let world = self.world.clone();
            self.majority.borrow_mut().replied(PIECE, 2, |node, look| world.durable(node, "d", &mut *look))
        }
    }

    #[test]
    fn a_reply_that_two_of_three_disks_bear_is_right() {
        let mut disks = Disks::new();
        disks.write(0, PIECE.stamp, true);
        disks.write(2, PIECE.stamp, true);
        disks.write(2, 99, true);
        disks.reply().expect("what was durable once counts, even when its place was used again");
        assert_eq!(disks.majority.borrow().checked(), 1);
    }

    #[test]
    fn what_a_disk_held_before_it_was_replaced_counts() {
        let mut disks = Disks::new();
        disks.write(0, PIECE.stamp, true);
        disks.write(1, PIECE.stamp, true);
        let node = disks.envs.remove(1).node();
        disks.world.crash(node);
        disks.world.create_disk(node, "d", 1 << 20, false);
        disks.reply().expect("it was durable on two");
    }

    #[test]
    fn a_reply_before_the_flush_or_with_a_minority_is_found() {
        let mut disks = Disks::new();
        disks.write(0, PIECE.stamp, true);
        disks.write(1, PIECE.stamp, false);
        disks.write(2, 99, true);
        assert!(disks.reply().expect_err("one disk is no majority").contains("1 of the 2"));
    }
}
