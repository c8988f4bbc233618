//! Forged payloads, which look like batches of the log.
//!
//! A forger knows the format, every device's uuid and size, and all of the last batch header of its log except the salt: the
//! place of the next batch, and every number in use. It also tries numbers that are far ahead. It cannot know the salt of
//! any segment, because the key of the salts never leaves the device (ADR 0024).
//!
//! Input: a guess of the place. Output: the head of a block. Invariant: the block still carries its stamp (see
//! `stamp`).

use crate::check::durable::Majority;
use crate::stamp;
use layout::log::{BATCH_ALIGN, BatchHeader, FIXED_LEN, LogIdentity, Record, SaltKey};
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

/// A place where a payload may come to lie: in this log, in the batch behind the last one.
#[derive(Clone, Copy, Debug)]
pub struct Guess {
    /// The log, with a key that is drawn at random.
    log: LogIdentity,
    last: BatchHeader,
}

impl Forger {
    /// Guesses a device, and the last batch of its log.
    pub fn guess(&self, seen: &Majority, rng: &mut Rng) -> Option<Guess> {
        let (node, uuid) = *self.devices.get(rng.below(self.devices.len().max(1) as u64) as usize)?;
        let last = seen.last_batch(node)?;
        let salt_key = SaltKey::new(std::array::from_fn(|_| rng.next_u64() as u8));
        Some(Guess { log: LogIdentity { uuid, salt_key }, last })
    }
}

impl Guess {
    /// Returns where the n-th block of the next batch's payloads comes to lie.
    fn offset(&self, block: u64) -> u64 {
        self.last.offset + self.last.len_bytes() + (1 + block) * BATCH_ALIGN as u64
    }

    /// Returns the head of the first sector of the payload's n-th block: a batch of one record, which says that
    /// everything before it was durable. Its numbers follow those of the last batch, or are far ahead.
    pub fn head(&self, block: u64, rng: &mut Rng) -> Vec<u8> {
        let mut records = Vec::new();
        let hard_state = HardState { term: Term(AHEAD), vote: Some(ReplicaId(1)), commit: Index(0) };
        Record::HardState { replica: ReplicaId(1), hard_state }.encode(&mut records);
        let BatchHeader { mount, segment_seq, tail_seq, .. } = self.last;
        let (seq, mount, segment_seq, tail_seq) = match rng.chance(1, 4) {
            true => (AHEAD + rng.below(AHEAD), 1 << 30, AHEAD, AHEAD),
            false => (self.last.seq + 1 + rng.below(4), mount, segment_seq, tail_seq),
        };
        let header = BatchHeader {
            mount,
            seq,
            offset: self.offset(block),
            durable_seq: seq - 1,
            tail_seq,
            segment_seq,
            ..BatchHeader::of_records(&records, 1)
        };
        let mut head = header.encode(&self.log).to_vec();
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
        let (mut rng, page) = (Rng::new(1), BATCH_ALIGN as u64);
        let log = LogIdentity { uuid: OsdUuid([7; 16]), salt_key: SaltKey::new([8; 16]) };
        let last = BatchHeader {
            header_len: BATCH_ALIGN as u32,
            records_len: 0,
            record_count: 0,
            records_crc: 0,
            payload_len: 2 * BATCH_ALIGN as u32,
            copy_len: 0,
            copy_crc: 0,
            payload_hash: 0,
            mount: 3,
            seq: 60,
            offset: 1 << 20,
            durable_seq: 59,
            tail_seq: 20,
            segment_seq: 50,
        };
        let guess = Guess { log, last };
        let mut block = vec![0; BATCH_ALIGN];
        stamp::forge(&mut block[..512], 1, 8, 3, &guess.head(2, &mut rng));
        let at = (1 << 20) + 6 * page;
        let header = BatchHeader::decode(&block, &log, at).expect("it is forged well");
        let key = LogIdentity { salt_key: SaltKey::new([9; 16]), ..log };
        assert_eq!(BatchHeader::decode(&block, &key, at), None, "and only the salt gives it away");
        let records = header.records(&block).expect("so are its records");
        assert_eq!(layout::log::decode_records(records, header.record_count).map(|all| all.len()), Ok(1));
        assert_eq!(BatchHeader::decode(&block, &log, 1 << 20), None, "it is good for one place");
        stamp::seal(&mut block[..512]);
        assert_eq!(stamp::read(&block[..512], &[1], 8).next(), Some(Ok(Some(3))));
        assert_eq!(stamp::peek(&block[..512]), Some((1, 8, 3)));
        block[200] ^= 1;
        assert!(stamp::read(&block[..512], &[1], 8).all(|read| read.is_err()), "all of it is checked");
    }
}
