//! Limits of the data plane. `*_MAX` bounds bytes or counts that a peer or a user can ask for.

use crate::units::{BLOCK, CHUNK, SEGMENT};

/// Largest frame on a data connection: headers, head block and payload together.
pub const FRAME_LEN_MAX: usize = 2 << 20;
/// Largest payload of one frame.
pub const FRAME_PAYLOAD_MAX: usize = 1 << 20;
/// Most records in one frame.
pub const FRAME_RECORDS_MAX: usize = 4096;
/// A write part never crosses a border of this size, so it is also the largest payload of one entry.
pub const PART_MAX: u64 = 512 << 10;
/// Most fragments (and CRCs) of one part: one for each aligned block that it touches.
pub const FRAGMENTS_MAX: usize = (PART_MAX / BLOCK) as usize;
/// Largest descriptor of one raft entry, without its payload.
pub const DESCRIPTOR_MAX: usize = 1 << 10;
/// Largest payload of one log batch.
pub const BATCH_PAYLOAD_MAX: usize = 1 << 20;
/// Most bytes that one log batch places at home besides (ADR 0030).
pub const BATCH_PLACED_MAX: usize = 4 << 20;
/// Most bytes of the decision state of a PG, in a checkpoint and in a stream.
pub const DECISION_LEN_MAX: usize = 4 << 20;
/// Most bytes of a decision state at which a log begins before its contents are whole (R16): a log record has it.
pub const FILL_DECISION_MAX: usize = 64 << 10;
/// Most bytes of the list of dissolved generations of a replica, in a checkpoint.
pub const DISSOLVED_LEN_MAX: usize = 1 << 20;
/// Payload that a leader proposes for one PG in one turn.
pub const PROPOSE_PAYLOAD_MAX: usize = 1 << 20;
/// Payload in flight from a leader to one follower of one PG.
pub const INFLIGHT_PAYLOAD_MAX: usize = 16 << 20;
/// Append messages in flight from a leader to one follower of one PG.
pub const INFLIGHT_MSGS_MAX: usize = 16;
/// Client operations in flight on one connection.
pub const CREDIT_OPS_MAX: u32 = 1024;
/// Client payload bytes in flight on one connection.
pub const CREDIT_BYTES_MAX: u64 = 64 << 20;
/// Applied sequence numbers remembered above the watermark, per session and PG.
pub const SESSION_WINDOW: u64 = 256;
/// Smallest volume.
pub const VOLUME_LEN_MIN: u64 = 1 << 20;
/// Largest volume: 64 TiB.
pub const VOLUME_LEN_MAX: u64 = 64 << 40;
/// Most replicas of a PG.
pub const REPLICAS_MAX: usize = 5;
/// Most bytes of a name of a pool or volume.
pub const NAME_LEN_MAX: usize = 63;
/// Most bytes of the description of a volume.
pub const DESCRIPTION_LEN_MAX: usize = 512;
/// Most labels of a volume, and most bytes of the key and of the value of one.
pub const LABELS_MAX: usize = 32;
pub const LABEL_KEY_LEN_MAX: usize = 63;
pub const LABEL_VALUE_LEN_MAX: usize = 127;
/// Bounds of the rates of a volume's I/O limits, per second: operations and bytes. One part of a request is at most 8 s of the least rate.
pub const IOPS_MIN: u64 = 10;
pub const IOPS_MAX: u64 = 100_000_000;
pub const BANDWIDTH_MIN: u64 = 64 << 10;
pub const BANDWIDTH_MAX: u64 = 1 << 40;
/// Longest burst above such a rate.
pub const BURST_SECONDS_MAX: u32 = 3_600;
/// Bounds of rehearsed faults: how many a volume has, how long one lasts, and how far it delays a request.
pub const FAULTS_MAX: usize = 8;
pub const FAULT_MS_MIN: u64 = 1_000;
pub const FAULT_MS_MAX: u64 = 24 * 3_600_000;
pub const FAULT_LATENCY_MS_MAX: u32 = 60_000;
/// Most bytes of the name of a host, a rack or a zone.
pub const LOCATION_LEN_MAX: usize = 255;
/// Most bytes that are kept and reported of the reason why a store is poisoned; a longer one is cut.
pub const POISON_REASON_LEN_MAX: usize = 512;
/// Most bytes that are kept of the name of a volume's holder; a longer one is cut.
pub const HOLDER_LEN_MAX: usize = 200;

/// A write is sampled when its number in its session and PG is a multiple of this, and so is each read whose number at its OSD is.
pub const SAMPLE_EVERY: u64 = 128;

/// Whether the stations of the write with this number are recorded. 0 is the number of no write.
pub const fn is_sampled(seq: u64) -> bool {
    seq.is_multiple_of(SAMPLE_EVERY) && seq != 0
}

/// Returns the longest prefix of `text` that has at most `len_max` bytes and ends between two characters.
pub fn clip(text: &str, len_max: usize) -> &str {
    let end = (0..=text.len().min(len_max)).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

const _: () = assert!(CHUNK.is_multiple_of(PART_MAX));
const _: () = assert!(PART_MAX as usize <= FRAME_PAYLOAD_MAX);
const _: () = assert!(FRAME_PAYLOAD_MAX < FRAME_LEN_MAX);
const _: () = assert!(FRAGMENTS_MAX * 4 + 128 <= DESCRIPTOR_MAX);
const _: () = assert!(VOLUME_LEN_MAX / CHUNK <= u32::MAX as u64 && VOLUME_LEN_MAX.is_multiple_of(SEGMENT));

#[cfg(test)]
mod tests {
    use super::{SAMPLE_EVERY, clip, is_sampled};

    #[test]
    fn one_write_in_so_many_is_sampled_and_no_unnumbered_part() {
        let sampled: Vec<u64> = (0..=2 * SAMPLE_EVERY).filter(|seq| is_sampled(*seq)).collect();
        assert_eq!(sampled, [SAMPLE_EVERY, 2 * SAMPLE_EVERY]);
    }

    #[test]
    fn truncated_text_ends_at_a_character_border() {
        assert_eq!([clip("zürich", 6), clip("zürich", 7), clip("ü", 1), clip("", 0)], ["züric", "zürich", "", ""]);
    }
}
