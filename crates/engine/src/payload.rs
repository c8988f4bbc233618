//! The bytes of one entry or completed block in memory, with the CRCs that came with them.
//!
//! Log and overlay share it by counted reference: a write is in memory once, however many structures refer to it.
//!
//! Invariant: a part of a payload is returned with a CRC that can be trusted. It was stored for exactly that part, or
//! computed after the stored CRC of the whole fragment was verified.

use layout::log::PlacedRun;
use std::sync::OnceLock;
use types::range::fragment_bytes;
use types::store::Crcs;
use types::units::SECTORS_PER_AU;
use types::{AU, CrcList, IoBuf, SECTOR, SectorRange, crc32c};

/// Bytes and their fragment CRCs.
#[derive(Debug)]
pub(crate) struct Payload {
    pub buf: IoBuf,
    pub crcs: Crcs,
    /// Set once, when the batch of its entry is built. Log, queue and overlay share the payload by then.
    place: OnceLock<Place>,
}

/// AUs of home that hold a payload, while its entry is above the checkpoint index (ADR 0030).
#[derive(Debug)]
pub(crate) struct Place {
    /// [`types::entry_hash`] of the payload.
    pub hash: u64,
    pub runs: Vec<PlacedRun>,
}

impl Place {
    pub fn units(&self) -> impl Iterator<Item = u32> {
        self.runs.iter().flat_map(|run| run.unit..run.unit + run.count)
    }
}

impl Payload {
    pub fn new(buf: IoBuf, crcs: Crcs) -> Payload {
        Payload { buf, crcs, place: OnceLock::new() }
    }

    pub fn placed(buf: IoBuf, crcs: Crcs, place: Place) -> Payload {
        let payload = Payload::new(buf, crcs);
        payload.put_at(place);
        payload
    }

    pub fn place(&self) -> Option<&Place> {
        self.place.get()
    }

    /// Notes the place of the bytes at home.
    ///
    /// # Panics
    /// When they have one.
    pub fn put_at(&self, place: Place) {
        assert_eq!(place.units().count() as u64 * AU, self.buf.len() as u64, "a place of another length");
        self.place.set(place).expect("a payload is placed once");
    }

    /// Returns the unit that holds this AU of the chunk.
    pub fn unit_of(&self, au: u32) -> Option<u32> {
        let nth = au.checked_sub(self.crcs.start / SECTORS_PER_AU)?;
        self.place()?.units().nth(nth as usize)
    }

    /// The sectors of its chunk that the payload holds.
    pub fn range(&self) -> SectorRange {
        SectorRange::new(self.crcs.start, (self.buf.len() / SECTOR as usize) as u32)
    }

    /// Returns the bytes of `part`, not copied.
    pub fn slice(&self, part: SectorRange) -> IoBuf {
        assert!(self.range().contains(part), "{part} of {}", self.range());
        self.buf.slice(fragment_bytes(self.crcs.start, part))
    }

    /// Appends one CRC for each fragment of `part`. False when a fragment is used in part and its stored CRC does not
    /// match the bytes.
    pub fn crcs_of(&self, part: SectorRange, out: &mut CrcList) -> bool {
        let whole = self.range();
        assert!(whole.contains(part), "{part} of {whole}");
        for fragment in part.fragments() {
            let Some(crc) = self.crc_of(fragment) else { return false };
            out.push(crc);
        }
        true
    }

    /// Returns the CRC of `fragment`, which lies inside one block. `None`: it is used in part, and its stored CRC does not match
    /// the bytes.
    pub fn crc_of(&self, fragment: SectorRange) -> Option<u32> {
        let (stored, crc) = self.fragment_of(fragment);
        if stored == fragment {
            return Some(crc);
        }
        self.verify_fragment(fragment).then(|| crc32c(&self.buf[fragment_bytes(self.crcs.start, fragment)]))
    }

    /// Returns the stored fragment that holds `part` (which lies inside one block), and its CRC.
    fn fragment_of(&self, part: SectorRange) -> (SectorRange, u32) {
        let whole = self.range();
        let block = part.start / types::units::SECTORS_PER_BLOCK;
        let start = (block * types::units::SECTORS_PER_BLOCK).max(whole.start);
        let end = ((block + 1) * types::units::SECTORS_PER_BLOCK).min(whole.end());
        let nth = block - whole.start / types::units::SECTORS_PER_BLOCK;
        (SectorRange::new(start, end - start), self.crcs.values[nth as usize])
    }

    /// Whether the stored fragment that holds `part` (inside one block) matches its CRC.
    pub fn verify_fragment(&self, part: SectorRange) -> bool {
        let (stored, crc) = self.fragment_of(part);
        crc32c(&self.slice(stored)) == crc
    }
}
