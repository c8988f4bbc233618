//! Compares one chunk of one generation of a PG: every member is asked for it at the same applied index, until all have
//! answered.
//!
//! The index is the highest one that a member reported as applied. Under load it lies ahead of that, and
//! further ahead each time that a member had already passed it.

use osdpages::http;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use types::control::{AttachedVolume, HeldSnapshot};
use types::{ChunkKey, Epoch, GenerationId, OsdId, OsdUuid, PgId, SnapshotId, VolumeChunk, VolumeId};

/// Rounds after which a chunk that changes all the time is given up.
const ROUNDS_MAX: u32 = 60;
/// Most entries that the index lies ahead.
const AHEAD_MAX: u64 = 1 << 14;
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// A member that can be asked.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub osd: OsdId,
    pub uuid: OsdUuid,
    pub http: SocketAddr,
}

/// The state of a PG as one member reports it.
#[derive(Clone, Debug)]
pub struct Table {
    pub applied: u64,
    /// Whether the member leads the PG and serves: it has applied all committed entries.
    pub leading: bool,
    /// The chunks that attached volumes and their snapshots show.
    pub chunks: Vec<VolumeChunk>,
    /// The chunks of each generation.
    pub held: BTreeMap<ChunkKey, Owner>,
    /// The attach records of volumes; an OSD of an older version does not tell them.
    pub attached: Option<Vec<AttachedVolume>>,
    pub snapshots: Vec<HeldSnapshot>,
}

/// The volume or the snapshot to which a generation belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub volume: VolumeId,
    /// The snapshot, as `snap12`; a removed one that clones need, as `g12`. `None`: the generation is the head.
    pub snapshot: Option<String>,
}

/// The parts of one chunk at one index, with a row for each member in the order of asking.
#[derive(Debug)]
pub struct Digests {
    pub at: u64,
    pub parts: Vec<Vec<u32>>,
}

/// Reason why a member returns no answer.
#[derive(Debug)]
pub struct Silence {
    pub reason: String,
    /// Whether it has failed: its bytes cannot be trusted.
    pub damaged: bool,
    /// Whether the OSD has no replica of the PG.
    pub absent: bool,
    /// Whether nothing answers at the address of the OSD, or something else.
    pub unreached: bool,
}

impl From<String> for Silence {
    fn from(reason: String) -> Silence {
        Silence { reason, damaged: false, absent: false, unreached: false }
    }
}

/// Reason why a chunk was not compared.
#[derive(Debug)]
pub enum Undone {
    /// This member cannot be asked any more.
    Member(OsdId, Silence),
    /// This member found damage in these parts of the chunk.
    Damaged(OsdId, Vec<(usize, String)>),
    /// The PG does not have the generation any more: its blocks are gone, or those of another one.
    Ended,
    /// The members never answered at one index.
    Restless,
}

/// Answer of one member to a digest request.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Parts(Vec<u32>),
    Passed(u64),
    Late(u64),
    Ended,
    Busy,
    Damaged(Vec<(usize, String)>),
}

/// Asks a member for its chunks.
pub fn table(member: Member, pg: PgId) -> Result<Table, Silence> {
    let unreached = |reason: String| Silence { unreached: true, ..Silence::from(reason) };
    let (status, body) = http::get(member.http, &format!("/pg/{pg}")).map_err(|e| unreached(e.to_string()))?;
    if body["osd"].as_str().is_some_and(|osd| osd != member.uuid.to_string()) {
        return Err(unreached(format!("{} is the address of another OSD now", member.http)));
    }
    if status != 200 {
        // Only an OSD that names itself can say that it has no replica.
        return Err(Silence { absent: status == 404 && body["osd"].is_string(), ..silence(&body) });
    }
    parse(&body)
}

fn parse(body: &Value) -> Result<Table, Silence> {
    let chunks: Vec<(u64, u32)> = serde_json::from_value(body["chunks"].clone()).map_err(|e| e.to_string())?;
    let chunks = chunks.into_iter().map(|(volume, index)| VolumeChunk { volume: VolumeId(volume), index }).collect();
    let held = held(body)?;
    let applied = body["applied"].as_u64().ok_or_else(|| silence(body))?;
    let attached: Option<Vec<(u64, u64)>> =
        serde_json::from_value(body["attached"].clone()).map_err(|e| e.to_string())?;
    let counts: Option<Vec<u32>> =
        serde_json::from_value(body["attached_chunks"].clone()).map_err(|e| e.to_string())?;
    let counts = counts.unwrap_or_default().into_iter().chain(std::iter::repeat(0));
    let epochs: Option<Vec<u32>> =
        serde_json::from_value(body["attached_len_epochs"].clone()).map_err(|e| e.to_string())?;
    let epochs = epochs.unwrap_or_default().into_iter().chain(std::iter::repeat(0));
    let heads: Vec<(GenerationId, GenerationId)> =
        serde_json::from_value(body["attached_heads"].clone()).map_err(|e| e.to_string())?;
    type Numbers = ((u64, u64), (u32, u32));
    let record = |((at, (chunk_count, len_epoch)), (first, last)): (Numbers, (GenerationId, GenerationId))| {
        let (volume, epoch) = (VolumeId(at.0), Epoch(at.1));
        AttachedVolume { volume, epoch, chunk_count, len_epoch, first, last }
    };
    let attached = attached.map(|all| all.into_iter().zip(counts.zip(epochs)).zip(heads).map(record).collect());
    let snapshots: Vec<(VolumeId, SnapshotId, u64, u32)> =
        serde_json::from_value(body["snapshots"].clone()).map_err(|e| e.to_string())?;
    let snapshot =
        |(volume, snapshot, created_ms, chunk_count)| HeldSnapshot { volume, snapshot, created_ms, chunk_count };
    let snapshots = snapshots.into_iter().map(snapshot).collect();
    Ok(Table { applied, leading: body["leading"] == true, chunks, held, attached, snapshots })
}

fn held(body: &Value) -> Result<BTreeMap<ChunkKey, Owner>, String> {
    let generations: Vec<(u64, u64, String)> =
        serde_json::from_value(body["generations"].clone()).map_err(|e| e.to_string())?;
    let owner = |(id, volume, role): (u64, u64, String)| {
        let snapshot = match role.as_str() {
            "head" => None,
            "hidden" => Some(GenerationId(id).to_string()),
            _ => Some(role),
        };
        (id, Owner { volume: VolumeId(volume), snapshot })
    };
    let owners: BTreeMap<u64, Owner> = generations.into_iter().map(owner).collect();
    let held: Vec<(u64, u32)> = serde_json::from_value(body["held"].clone()).map_err(|e| e.to_string())?;
    let of_owner = |(id, index): (u64, u32)| {
        let owner = owners.get(&id).cloned().ok_or_else(|| format!("the OSD names no volume of generation {id}"))?;
        Ok((ChunkKey { generation: GenerationId(id), index }, owner))
    };
    held.into_iter().map(of_owner).collect()
}

fn silence(body: &Value) -> Silence {
    let reason = body["error"].as_str().unwrap_or("no reason was given").to_owned();
    Silence { reason, damaged: body["quarantined"] == true, absent: false, unreached: false }
}

fn digest(member: Member, pg: PgId, chunk: ChunkKey, at: u64, table: bool) -> Result<Told, Silence> {
    let path = format!("/pg/{pg}/digest?generation={}&chunk={}&at={at}&table={table}", chunk.generation.0, chunk.index);
    let (status, body) = http::get(member.http, &path).map_err(|e| e.to_string())?;
    let applied = || body["applied"].as_u64().ok_or_else(|| silence(&body));
    match status {
        200 => Ok(Told::Parts(serde_json::from_value(body["parts"].clone()).map_err(|e| e.to_string())?)),
        409 => Ok(Told::Passed(applied()?)),
        504 => Ok(Told::Late(applied()?)),
        410 => Ok(Told::Ended),
        503 => Ok(Told::Busy),
        500 if body["damaged"].is_array() => {
            Ok(Told::Damaged(serde_json::from_value(body["damaged"].clone()).map_err(|e| e.to_string())?))
        }
        _ => Err(silence(&body)),
    }
}

/// Asks all members for a chunk at one index. `applied` is the highest applied index seen, and is updated.
pub fn chunk(members: &[Member], pg: PgId, chunk: ChunkKey, table: bool, applied: &mut u64) -> Result<Digests, Undone> {
    let mut ahead = 0;
    for _ in 0..ROUNDS_MAX {
        let at = *applied + ahead;
        let told = ask_all(members, |member| digest(member, pg, chunk, at, table));
        let mut parts = Vec::with_capacity(members.len());
        let (mut passed, mut late, mut busy, mut ended) = (false, false, false, true);
        for (member, answer) in members.iter().zip(told) {
            match answer.map_err(|why| Undone::Member(member.osd, why))? {
                Told::Parts(row) => {
                    ended = false;
                    parts.push(row);
                }
                // At one index all members have the same generations: a row without parts differs from any other.
                Told::Ended => parts.push(Vec::new()),
                Told::Passed(now) => (passed, *applied) = (true, now.max(*applied)),
                Told::Late(now) => (late, *applied) = (true, now.max(*applied)),
                Told::Busy => busy = true,
                Told::Damaged(parts) => return Err(Undone::Damaged(member.osd, parts)),
            }
        }
        if parts.len() == members.len() {
            // All members have applied this index; the next chunk begins here.
            *applied = at.max(*applied);
            return if ended { Err(Undone::Ended) } else { Ok(Digests { at, parts }) };
        }
        ahead = match (passed, late) {
            (true, _) => (ahead * 2).clamp(8, AHEAD_MAX),
            // The client has stopped writing.
            (false, true) => 0,
            (false, false) => ahead,
        };
        if busy {
            pause();
        }
    }
    Err(Undone::Restless)
}

/// Runs `ask` for every member at the same time.
pub fn ask_all<T: Send>(members: &[Member], ask: impl Fn(Member) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let ask = &ask;
        let threads: Vec<_> = members.iter().map(|member| scope.spawn(move || ask(*member))).collect();
        threads.into_iter().map(|t| t.join().expect("a question does not panic")).collect()
    })
}

#[allow(clippy::disallowed_methods, reason = "an OSD asked for a retry, and sends no event when it is ready")]
fn pause() {
    std::thread::sleep(BUSY_PAUSE);
}

/// Returns runs of parts in which members differ: first part, count.
pub fn differing(parts: &[Vec<u32>]) -> Vec<(usize, usize)> {
    let count = parts.iter().map(Vec::len).max().unwrap_or(0);
    let differs = |n: usize| parts.iter().any(|row| row.get(n) != parts[0].get(n));
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for n in (0..count).filter(|n| differs(*n)) {
        match runs.last_mut() {
            Some((first, len)) if *first + *len == n => *len += 1,
            _ => runs.push((n, 1)),
        }
    }
    runs
}

/// Returns the members whose value is not that of more than half of all; all of them when no value is.
pub fn odd_ones(told: &[(OsdId, u32)]) -> Vec<OsdId> {
    let votes = |value: u32| told.iter().filter(|(_, v)| *v == value).count();
    let agreed = told.iter().map(|(_, value)| *value).find(|value| votes(*value) * 2 > told.len());
    told.iter().filter(|(_, value)| Some(*value) != agreed).map(|(osd, _)| *osd).collect()
}

#[cfg(test)]
mod tests {
    use super::{OsdId, differing, odd_ones};

    #[test]
    fn odd_ones_are_the_minority_and_all_members_without_a_majority() {
        let told = |values: &[u32]| odd_ones(&(1..).map(OsdId).zip(values.iter().copied()).collect::<Vec<_>>());
        assert_eq!(told(&[7, 8, 7]), [OsdId(2)]);
        assert_eq!(told(&[7, 8, 7, 9, 7]), [OsdId(2), OsdId(4)]);
        assert_eq!(told(&[7, 8]), [OsdId(1), OsdId(2)]);
        assert_eq!(told(&[7, 8, 9]), [OsdId(1), OsdId(2), OsdId(3)]);
    }

    #[test]
    fn differing_parts_are_named_in_runs_and_a_missing_part_differs() {
        let equal = vec![vec![1, 2, 3]; 3];
        assert!(differing(&equal).is_empty());
        let one = vec![vec![1, 2, 3, 4], vec![1, 9, 8, 4], vec![1, 2, 3, 4]];
        assert_eq!(differing(&one), vec![(1, 2)]);
        assert_eq!(differing(&[vec![1, 2], vec![1]]), vec![(1, 1)]);
    }
}
