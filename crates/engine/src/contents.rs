//! Contents of a store for observers, without a read in flight: the bytes of a replica as of its applied index, and the
//! fill level of its log.
//!
//! The simulator's observers call it between two turns, with the bytes of the device; it returns checksums. It changes
//! nothing, and no request passes through it.
//!
//! Invariant: contents are given only when they are certain. A replica has none when it has failed, while it is being
//! installed, while payloads or blocks wait for repair, and while a destage round runs.

use crate::engine::Engine;
use crate::lineage::View;
use crate::log::RESERVED;
use crate::overlay::{Found, Source, block_range};
use crate::replica::{Replica, ReplicaState};
use std::collections::{BTreeMap, BTreeSet};
use types::range::fragment_bytes;
use types::units::SECTORS_PER_BLOCK;
use types::{BLOCK, ChunkKey, IoBuf, IoBufMut, ReplicaId, block_hash};

/// Checksum ([`block_hash`]) of each block that is not all zeros.
pub type Contents = BTreeMap<(ChunkKey, u16), u32>;

/// A block that the map names, that the overlay does not cover whole, and whose bytes are not those of its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign {
    pub chunk: ChunkKey,
    pub block: u16,
}

/// Fill level of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRoom {
    /// Entries with a payload wait: the free segments are reserved for work that frees the log.
    pub at_reserve: bool,
    /// Number of the first batch of the oldest segment: it grows when segments are freed.
    pub tail: u64,
    /// At the reserve: bytes of the entries above the checkpoint indexes, which copying forward does not reduce.
    pub held_bytes: u64,
    pub len_bytes: u64,
}

impl Replica {
    fn is_certain(&self) -> bool {
        matches!(self.state, ReplicaState::Running) && self.bad.is_empty() && self.born
    }
}

impl Engine {
    /// Returns the checksums of the replica's blocks as of its applied index, as reads of their generations show them. `read` reads the block of 4 KiB at an
    /// offset of the device. `None`: the contents are not certain at this moment.
    ///
    /// # Errors
    /// Names a block whose bytes on the device do not match the checksum in home's map.
    pub fn contents_for_tools(
        &self,
        replica: ReplicaId,
        mut read: impl FnMut(u64) -> IoBuf,
    ) -> Option<Result<Contents, Foreign>> {
        let home = self.home.as_ref().filter(|_| self.is_round_idle())?;
        let r = self.replicas.get(&replica).filter(|r| r.is_certain())?;
        let sources = r.sources(home);
        let named: BTreeMap<(ChunkKey, u16), (u64, u32)> =
            home.named_blocks(replica).map(|(chunk, block, offset, hash)| ((chunk, block), (offset, hash))).collect();
        let (mut contents, zeros) = (Contents::new(), IoBuf::zeros(BLOCK as usize));
        let touched =
            r.overlay.active().chunks.iter().flat_map(|(chunk, l)| l.blocks_from(0).map(|(b, _)| (*chunk, b)));
        let uncut = named.keys().copied().filter(|(chunk, _)| !r.overlay.active().hides(*chunk));
        // Members merge dissolved generations at different times: their blocks count under the owner.
        let owned = |(chunk, block): (ChunkKey, u16)| {
            (ChunkKey { generation: r.lineage.owner(chunk.generation), ..chunk }, block)
        };
        for (chunk, block) in touched.chain(uncut).map(owned).collect::<BTreeSet<_>>() {
            let above = sources.resolve(View::Full, chunk, block_range(block)).parts;
            let key_at_home = |f: &Found| if let Source::Home(key) = f.source { Some(key) } else { None };
            let key = above.iter().find_map(key_at_home);
            let below = key.and_then(|key| Some((key, named.get(&(key, block))?)));
            let mut bytes = below.map_or_else(|| zeros.clone(), |(_, (offset, _))| read(*offset));
            let place = r.lineage.place(chunk, block);
            if let Some((chunk, _)) = below.filter(|(_, (_, hash))| block_hash(place, &bytes) != *hash) {
                return Some(Err(Foreign { chunk, block }));
            }
            let hash = match below {
                Some((_, (_, hash))) if above.iter().all(|f| key_at_home(f).is_some()) => *hash,
                _ => {
                    bytes = laid_over(&above, block, &bytes);
                    block_hash(place, &bytes)
                }
            };
            if bytes != zeros {
                contents.insert((chunk, block), hash);
            }
        }
        Some(Ok(contents))
    }

    /// Returns the fill level of the log. `None` until it is mounted. Also `None` at the reserve while segments cannot
    /// be freed for a reason outside the log: a full device, bad blocks, a replica under repair or installation.
    pub fn log_room_for_tools(&self) -> Option<LogRoom> {
        let log = self.log.as_ref()?;
        let (tail, len_bytes) = (log.ring.tail_seq(), log.ring.count() as u64 * log.ring.segment_bytes());
        if self.free_segments() > RESERVED {
            return Some(LogRoom { at_reserve: false, tail, held_bytes: 0, len_bytes });
        }
        if self.pressure().full || !self.replicas.values().all(|r| r.is_certain() || !r.born) {
            return None;
        }
        let above = |r: &Replica| {
            let kept = r.log.iter().filter(|kept| kept.index > r.checkpoint.0);
            kept.map(|kept| (kept.payload_len() + kept.descriptor.len()) as u64).sum::<u64>()
        };
        Some(LogRoom { at_reserve: true, tail, held_bytes: self.replicas.values().map(above).sum(), len_bytes })
    }
}

/// Returns a block: the overlay's bytes over those from home.
fn laid_over(above: &[Found], block: u16, below: &[u8]) -> IoBuf {
    let mut bytes = IoBufMut::new(below.len());
    bytes.copy_from_slice(below);
    for found in above {
        let part = &mut bytes[fragment_bytes(u32::from(block) * SECTORS_PER_BLOCK, found.range)];
        match &found.source {
            Source::Home(_) => {}
            Source::Zeros | Source::Open | Source::Hidden => part.fill(0),
            Source::Data(payload) => part.copy_from_slice(&payload.slice(found.range)),
        }
    }
    bytes.freeze()
}
