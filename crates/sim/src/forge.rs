//! Forged payloads, which look like batches of the log.
//!
//! A forger may know the format, every device's uuid and size, and the place of the next batch in its log. It may know
//! sequence numbers that are far ahead of those in use. It cannot know the salt of the segment that its bytes will lie
//! in: the salt is drawn when the segment is opened, and never leaves the device.
//!
//! Input: a guess of the place. Output: the head of a block. Invariant: the block still carries its stamp (see
//! `stamp`).

use crate::check::durable::Majority;
use crate::stamp;
use layout::log::{BATCH_ALIGN, BatchHeader, FIXED_LEN, Record};
use simenv::NodeId;
use types::rng::Rng;
use types::store::HardState;
use types::{Index, OsdUuid, ReplicaId, Term};

/// A value far ahead of every number that a run comes to.
const AHEAD: u64 = 1 << 40;

/// The devices that a forger knows.
#[derive(Clone, Debug, Default)]
pub struct Forger {
    pub devices: Vec<(NodeId, OsdUuid)>,
}

/// A place where a payload may come to lie: on this device, from this offset on.
#[derive(Clone, Copy, Debug)]
pub struct Guess {
    uuid: OsdUuid,
    offset: u64,
}

impl Forger {
    /// Guesses a device, and the place behind the header of its next batch.
    pub fn guess(&self, seen: &Majority, rng: &mut Rng) -> Option<Guess> {
        let (node, uuid) = *self.devices.get(rng.below(self.devices.len().max(1) as u64) as usize)?;
        let offset = seen.log_end(node)? + BATCH_ALIGN as u64;
        Some(Guess { uuid, offset })
    }
}

impl Guess {
    /// Returns the head of the first sector of the payload's n-th block: a batch of one record, which says that
    /// everything before it was durable.
    pub fn head(&self, block: u64, rng: &mut Rng) -> Vec<u8> {
        let mut records = Vec::new();
        let hard_state = HardState { term: Term(AHEAD), vote: Some(ReplicaId(1)), commit: Index(0) };
        Record::HardState { replica: ReplicaId(1), hard_state }.encode(&mut records);
        let seq = AHEAD + rng.below(AHEAD);
        let header = BatchHeader {
            header_len: BATCH_ALIGN as u32,
            records_len: records.len() as u32,
            record_count: 1,
            records_crc: types::crc32c(&records),
            payload_len: 0,
            copy_len: 0,
            copy_crc: 0,
            payload_hash: 0,
            salt: rng.next_u64(),
            mount: 1 << 30,
            seq,
            offset: self.offset + block * BATCH_ALIGN as u64,
            durable_seq: seq - 1,
            tail_seq: AHEAD,
            segment_seq: AHEAD,
        };
        let mut head = header.encode(self.uuid).to_vec();
        head.extend_from_slice(&records);
        assert!(head.len() > FIXED_LEN && head.len() <= stamp::FORGED_AT, "the stamp lies behind it");
        head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forged_block_is_a_batch_in_its_place_and_carries_its_stamp() {
        let (mut rng, uuid) = (Rng::new(1), OsdUuid([7; 16]));
        let guess = Guess { uuid, offset: 1 << 20 };
        let mut block = vec![0; BATCH_ALIGN];
        stamp::forge(&mut block[..512], 1, 8, 3, &guess.head(2, &mut rng));
        let at = (1 << 20) + 2 * BATCH_ALIGN as u64;
        let header = BatchHeader::decode(&block, uuid, at).expect("it is forged well");
        let records = header.records(&block).expect("so are its records");
        assert_eq!(layout::log::decode_records(records, header.record_count).map(|all| all.len()), Ok(1));
        assert_eq!(BatchHeader::decode(&block, uuid, 1 << 20), None, "it is good for one place");
        assert_eq!(stamp::read(&block[..512], 1, 8), Ok(Some(3)));
        assert_eq!(stamp::peek(&block[..512]), Some((1, 8, 3)));
        block[200] ^= 1;
        assert!(stamp::read(&block[..512], 1, 8).is_err(), "all of it is checked");
    }
}
