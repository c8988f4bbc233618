//! Replica equality (what must never happen, 4): at one applied index all replicas of a PG hold the same
//! bytes, in each generation: a volume as it is, its snapshots, and what its clones need of it.
//!
//! Each replica is read through its own OSD's engine, like a client's read, while nothing changes.

use crate::cluster::Cluster;
use std::collections::{BTreeMap, BTreeSet};
use types::limits::PART_MAX;
use types::tree::Tree;
use types::units::{SECTOR, SECTORS_PER_CHUNK};
use types::{ChunkKey, GenerationId, IoBuf, OsdId, PgId, SectorRange, VolumeId};

/// Bytes of one range on one OSD; zeros are `None`.
type Bytes = Option<IoBuf>;

/// Compares every chunk of `volume` in every PG, in each of its generations. Returns the number of bytes compared.
///
/// A range that an OSD cannot read goes to `unread` if peers can repair what its device lied about. The OSD knows of
/// the damage now at the latest, and must repair it soon.
///
/// # Errors
/// Two replicas differ, or a range could not be read.
pub fn check(
    cluster: &mut Cluster,
    volume: VolumeId,
    chunks: u32,
    pgs: &[(PgId, Vec<OsdId>)],
    unread: &mut Vec<String>,
) -> Result<u64, String> {
    let mut compared = 0;
    for (pg, members) in pgs {
        for chunk in chunks_of(cluster, (*pg, members), volume, chunks) {
            for range in ranges_with_data(cluster, *pg, members, chunk) {
                let mut seen: BTreeMap<OsdId, Bytes> = BTreeMap::new();
                for osd in members {
                    match cluster.read_replica(*osd, *pg, chunk, range) {
                        Ok(bytes) => _ = seen.insert(*osd, bytes),
                        // The disk has lied: the OSD may refuse the read, and must not answer it wrongly.
                        Err(_) if cluster.budget.is_spent() || cluster.budget.may_lack(osd.0 as usize - 1) => {}
                        Err(what) if cluster.budget.has_lied(osd.0 as usize - 1) => unread.push(what),
                        Err(what) => return Err(what),
                    }
                }
                if seen.is_empty() {
                    // Beyond the budget it is possible that no member has the bytes. Then a member must report it.
                    if !cluster.says_lost(*pg) {
                        unread.push(format!("pg {pg}: no member can read {range} of {chunk}, and none says so"));
                    }
                    continue;
                }
                compared += range.len_bytes() as u64;
                differences(*pg, chunk, range, &seen)?;
            }
        }
    }
    Ok(compared)
}

/// Returns the chunks of the generations that the members have of the volume. Members that have applied the same have the same ones.
fn chunks_of(cluster: &Cluster, (pg, members): (PgId, &[OsdId]), volume: VolumeId, chunks: u32) -> Vec<ChunkKey> {
    let running = cluster.running().filter(|(id, _)| members.contains(id));
    let of_volume = |tree: &Tree| -> Vec<GenerationId> {
        tree.iter().filter(|(_, node)| node.role.volume() == volume).map(|(id, _)| id).collect()
    };
    let trees = running.filter_map(|(_, osd)| osd.tree_for_tools(pg));
    let generations: BTreeSet<GenerationId> = trees.flat_map(|tree| of_volume(&tree)).collect();
    generations
        .into_iter()
        .flat_map(|generation| (0..chunks).map(move |index| ChunkKey { generation, index }))
        .collect()
}

/// Returns the parts of the chunk where some member may hold data.
fn ranges_with_data(cluster: &Cluster, pg: PgId, members: &[OsdId], chunk: ChunkKey) -> Vec<SectorRange> {
    let part = (PART_MAX / SECTOR) as u32;
    let whole = SectorRange { start: 0, count: SECTORS_PER_CHUNK };
    let mut parts: BTreeSet<u32> = BTreeSet::new();
    for (_, osd) in cluster.running().filter(|(id, _)| members.contains(id)) {
        let mut at = 0;
        for (count, data) in osd.extents_for_tools(pg, chunk, whole) {
            if data && count > 0 {
                parts.extend(at / part..=(at + count - 1) / part);
            }
            at += count;
        }
    }
    parts.into_iter().map(|n| SectorRange { start: n * part, count: part }).collect()
}

fn differences(pg: PgId, chunk: ChunkKey, range: SectorRange, seen: &BTreeMap<OsdId, Bytes>) -> Result<(), String> {
    let mut all = seen.iter();
    let (first, expected) = all.next().expect("some member could read it");
    for (osd, bytes) in all {
        if bytes == expected {
            continue;
        }
        let sector = |bytes: &Bytes, n: usize| {
            let at = n * SECTOR as usize;
            bytes.as_ref().map_or_else(|| vec![0; SECTOR as usize], |b| b[at..at + SECTOR as usize].to_vec())
        };
        let differ = |n: &usize| sector(bytes, *n) != sector(expected, *n);
        if let Some(n) = (0..range.count as usize).find(differ) {
            let at = range.start as usize + n;
            let count = (0..range.count as usize).filter(differ).count();
            let heads: Vec<String> =
                seen.iter().map(|(osd, bytes)| format!("{osd} {:02x?}", &sector(bytes, n)[..16])).collect();
            return Err(format!(
                "pg {pg}: {first} and {osd} differ at sector {at} of {chunk} and {} more; {}",
                count - 1,
                heads.join(", ")
            ));
        }
    }
    Ok(())
}
