//! Limits and times of the client side. Sizes bound memory; times are those of design R3.

use std::time::Duration;

/// Most requests in flight on one volume.
pub const REQUESTS_MAX: usize = 1024;
/// Most bytes of writes and of answers to reads in flight on one volume.
pub const BYTES_MAX: u64 = 128 << 20;
/// Most parts in flight or waiting on one volume.
pub const PARTS_MAX: usize = 4094;
/// Further parts for fence checks, so that a volume at its limit can send one, too.
pub const FENCE_CHECK_PARTS: usize = 1;
/// The key of messages that belong to no part: reports of an unreached leader.
pub const REPORT_KEY: u32 = (1 << crate::ids::KEY_BITS) - 1;
/// Most parts of one PG that do not wait for space: a PG without quorum leaves parts for the others.
pub const PG_PARTS_MAX: u32 = 320;
/// Number of repetitions of a read that returns bytes with a wrong checksum.
pub const BAD_READS_MAX: u8 = 4;

/// A leader that sends nothing for this long is searched for elsewhere (R3).
pub const SILENT: Duration = Duration::from_millis(400);
/// Interval of the questions of a search (R3).
pub const PROBE: Duration = Duration::from_millis(100);
/// Pause between two reports of an unreached leader in one search, and the number of times that it is doubled at most.
pub const REPORT_PAUSE: Duration = Duration::from_millis(100);
pub const REPORT_PAUSE_DOUBLINGS: u32 = 5;
/// Longest wait of a search for the connection to the presumed leader before it asks others.
pub const LINK_WAIT: Duration = Duration::from_millis(50);
/// First and last pause after a refusal that is not final; doubled in between, and jittered.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(10);
pub const BACKOFF_LAST: Duration = Duration::from_millis(100);
/// Below this many refusals in a row the pause stays short, because an election takes no longer.
pub const BACKOFF_SHORT_COUNT: u32 = 16;
pub const BACKOFF_SHORT: Duration = Duration::from_millis(40);
/// Longest pause that a leader can ask for: a lying one stops a volume no longer than this.
pub const THROTTLE_MAX: Duration = Duration::from_secs(1);
/// Hints are followed at once, but at least this long after the one before.
pub const HINT_PAUSE: Duration = Duration::from_millis(20);
/// A copy without an answer keeps a search from asking its OSD again for this long.
pub const COPY_STALE: Duration = Duration::from_secs(1);
/// A part without an answer from a leader that answers others is sent again after this, doubled up to 8 times.
pub const RESEND: Duration = Duration::from_secs(2);
/// Interval of the scans for such parts.
pub const SCAN: Duration = Duration::from_secs(1);
/// A fence check goes to another PG after this, doubled up to 16 times. The time is longer
/// than [`SILENT`], so that a PG whose leader died is no longer preferred.
pub const FENCE_CHECK_PATIENCE: Duration = Duration::from_millis(500);
/// A PG that refused no write for lack of space for this long is not full any more, as on the OSD's side.
pub const FULL_FORGET: Duration = Duration::from_secs(10);
/// Number of waiting writes that are tried when a write that waited for space has found some.
pub const FULL_WAKES: usize = 2;
/// A search this long asks meta whether members have changed; then again at this interval.
pub const REFRESH: Duration = Duration::from_secs(1);
/// A question to meta without an answer is repeated after this.
pub const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// First and last pause after a refusal of meta.
pub const ASK_BACKOFF_FIRST: Duration = Duration::from_millis(50);
pub const ASK_BACKOFF_LAST: Duration = Duration::from_secs(2);

const _: () = assert!(FENCE_CHECK_PATIENCE.as_nanos() > SILENT.as_nanos());
const _: () = assert!(PG_PARTS_MAX as u64 > types::limits::SESSION_WINDOW);
const _: () = assert!(PARTS_MAX + FENCE_CHECK_PARTS <= REPORT_KEY as usize);
const _: () = assert!(BYTES_MAX >= device::REQUEST_LEN_MAX);
