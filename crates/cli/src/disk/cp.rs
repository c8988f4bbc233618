//! `basalt disk cp`: chunks of a device in a sparse file.

use super::cat::remarks;
use super::device::Device;
use super::view::{Bytes, View, bad_block};
use crate::disk_args::DiskCp;
use crate::errors::{Exit, UserError, unusable};
use crate::{output, size, stripes};
use anyhow::Result;
use engine::ReplicaUse;
use engine::offline::Access;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use types::control::CHUNKS_KEPT;
use types::units::{CHUNK, CHUNKS_PER_SEGMENT};
use types::{BLOCK, ChunkKey, PgId, Stripe, VolumeChunk, codes};

/// A copy that is being made.
struct Copy<'p> {
    file: File,
    path: &'p Path,
    /// Where a chunk address lies in the file; `None`: the chunk is the file.
    stripe: Option<Stripe>,
    written_bytes: u64,
    bad_blocks: u64,
}

/// Copies a chunk or all chunks of a volume.
pub fn run(args: &DiskCp, as_json: bool) -> Result<Exit> {
    let refused = |error: std::io::Error| unusable(&args.file, &error);
    if args.file.exists() {
        return Err(refused(std::io::ErrorKind::AlreadyExists.into()).into());
    }
    let mut device = Device::open(&args.store, Access::Read)?;
    let mut view = View::open(&mut device, args.source.end)?;
    let plan = plan(&view, args)?;
    let stripe = args.chunk.is_none().then(|| stripes::layout(args.stripe_unit, args.stripe_count));
    stripe.map_or(Ok(()), |stripe| check_layout(&view, args, stripe))?;
    let len = len_of(&view, &plan, args);
    let mut options = File::options();
    let file = options.write(true).create_new(true).mode(0o600).open(&args.file).map_err(refused)?;
    let mut copy = Copy { file, path: &args.file, stripe, written_bytes: 0, bad_blocks: 0 };
    let copied = copy.all(&mut view, &plan, args).and_then(|()| copy.finish(len));
    if copied.is_err() {
        // A part of a volume must not be taken for the whole.
        let _ = std::fs::remove_file(&args.file);
    }
    copied?;
    let chunks: usize = plan.iter().map(|(_, chunks)| chunks.len()).sum();
    if as_json {
        let body = json!({
            "device": args.store.device, "file": args.file, "volume": args.volume, "chunks": chunks, "len_bytes": len,
            "written_bytes": copy.written_bytes, "bad_blocks": copy.bad_blocks,
        });
        output::json("disk.cp", body)?;
    } else {
        let (written, len) = (size::show(copy.written_bytes), size::show(len));
        out!("{}: {chunks} chunks of volume {}, {written} of data in {len}", args.file.display(), args.volume);
        if copy.bad_blocks > 0 {
            out!("{} bad blocks are zeros in it", copy.bad_blocks);
        }
    }
    Ok(if copy.bad_blocks > 0 { Exit::Degraded } else { Exit::Done })
}

/// Returns the chunks to copy, by replica.
fn plan(view: &View<'_>, args: &DiskCp) -> Result<Vec<(ReplicaUse, Vec<ChunkKey>)>> {
    let pgs: BTreeSet<PgId> = match args.pg {
        Some(pg) => BTreeSet::from([pg]),
        None => view.replicas().iter().map(|replica| replica.identity.pg).collect(),
    };
    let mut plan = Vec::new();
    for pg in pgs {
        let holds = |replica: &ReplicaUse| -> Vec<ChunkKey> {
            let held = view.store.engine().chunks_for_tools(replica.identity.replica);
            let chunks = held.iter().map(|held| held.chunk).filter(|chunk| chunk.of_first().volume == args.volume);
            chunks.filter(|chunk| args.chunk.is_none_or(|index| index == chunk.index)).collect()
        };
        // A PG without a chunk of the volume must not fail the copy.
        let concerns = view.replicas().iter().any(|replica| replica.identity.pg == pg && !holds(replica).is_empty());
        if !concerns && args.pg.is_none() {
            continue;
        }
        let replica = view.choose(pg, args.source)?;
        let chunks = match args.chunk {
            // A chunk that holds nothing is a chunk of zeros.
            Some(index) => vec![VolumeChunk { volume: args.volume, index }.in_first()],
            None => holds(&replica),
        };
        remarks(view, &replica, args.source.end.uncommitted);
        plan.push((replica, chunks));
    }
    if plan.iter().all(|(_, chunks)| chunks.is_empty()) {
        let device = args.store.device.display();
        let what = format!("{device} holds no chunk of volume {}", args.volume);
        return Err(UserError::new(codes::REPLICA_NOT_HERE, what, format!("basalt disk usage {device}")).into());
    }
    Ok(plan)
}

/// Returns the length of the file: the volume in whole chunks as its PGs know it, or one chunk.
fn len_of(view: &View<'_>, plan: &[(ReplicaUse, Vec<ChunkKey>)], args: &DiskCp) -> u64 {
    if args.chunk.is_some() {
        return CHUNK;
    }
    let counts = view.applied.values().filter_map(|applied| applied.volumes.get(&args.volume));
    // In the middle of a recovery of the records no length is known.
    let attached = counts.filter(|count| **count != CHUNKS_KEPT).max();
    let seen = plan.iter().flat_map(|(_, chunks)| chunks).map(|chunk| u64::from(chunk.index) + 1).max();
    attached.map(|count| u64::from(*count)).max(seen).unwrap_or(0) * CHUNK
}

/// Refuses a layout that the PGs of the chunks contradict; else names it. The device does not know the layout.
fn check_layout(view: &View<'_>, args: &DiskCp, stripe: Stripe) -> Result<()> {
    let chunks = view.replicas().into_iter().flat_map(|replica| {
        let held = view.store.engine().chunks_for_tools(replica.identity.replica);
        let of_volume = held.into_iter().map(|held| held.chunk).filter(|chunk| chunk.of_first().volume == args.volume);
        of_volume.map(|chunk| (replica.identity.pg, chunk.index)).collect::<Vec<_>>()
    });
    let (volume, unit, count) = (args.volume, size::show(stripe.unit_bytes()), stripe.count());
    if let Some([(pg, chunk), (other_pg, other)]) = contradiction(stripe, chunks) {
        let layout = if stripe.is_striped() { format!("{count} stripes") } else { "no stripes".to_owned() };
        let what = format!(
            "volume {volume} is striped in another way: chunk {chunk} in PG {pg} and chunk {other} in PG {other_pg} would \
             be of one PG with {layout}, and the copy would be scrambled"
        );
        let next = "add --stripe-unit and --stripe-count, as `basalt volume info` prints them";
        return Err(UserError::new(codes::BAD_USAGE, what, next).into());
    }
    output::remark(&match stripe.is_striped() {
        true => format!("volume {volume} is copied as one of {count} stripes with units of {unit}"),
        false => format!(
            "volume {volume} is copied as one without stripes; if `basalt volume info` prints a stripe count above 1, \
             add --stripe-unit and --stripe-count"
        ),
    });
    Ok(())
}

/// Returns two chunks in different PGs that the layout puts into one: each column of a segment has one PG.
fn contradiction(stripe: Stripe, chunks: impl Iterator<Item = (PgId, u32)>) -> Option<[(PgId, u32); 2]> {
    let mut columns: BTreeMap<(u32, u32), (PgId, u32)> = BTreeMap::new();
    for (pg, chunk) in chunks {
        let column = (chunk / CHUNKS_PER_SEGMENT, stripe.column_of(chunk));
        let first = *columns.entry(column).or_insert((pg, chunk));
        if first.0 != pg {
            return Some([first, (pg, chunk)]);
        }
    }
    None
}

impl Copy<'_> {
    fn all(&mut self, view: &mut View<'_>, plan: &[(ReplicaUse, Vec<ChunkKey>)], args: &DiskCp) -> Result<()> {
        let device = view.path().to_owned();
        for (replica, chunks) in plan {
            for chunk in chunks {
                view.each_piece(replica, *chunk, &mut |range, Bytes { bytes, bad }| {
                    for block in &bad {
                        let error = bad_block(&device, replica, block);
                        if !args.source.force {
                            return Err(error.into());
                        }
                        self.bad_blocks += 1;
                        output::remark(&error.what);
                    }
                    let Some(bytes) = bytes else { return Ok(()) };
                    self.put(*chunk, range.offset_bytes(), &bytes)
                })?;
            }
        }
        Ok(())
    }

    /// Gives the file its length, and makes it durable.
    fn finish(&self, len: u64) -> Result<()> {
        let done = self.file.set_len(len).and_then(|()| self.file.sync_all());
        done.map_err(|error| unusable(self.path, &error).into())
    }

    /// Writes the blocks that are not zeros: the others stay holes.
    fn put(&mut self, chunk: ChunkKey, offset: u64, bytes: &[u8]) -> Result<()> {
        let start = if self.stripe.is_some() { u64::from(chunk.index) * CHUNK + offset } else { offset };
        for (nth, block) in bytes.chunks(BLOCK as usize).enumerate() {
            if block.iter().all(|byte| *byte == 0) {
                continue;
            }
            let at = start + nth as u64 * BLOCK;
            let at = self.stripe.map_or(at, |stripe| stripe.volume_address(at));
            self.file.write_all_at(block, at).map_err(|error| unusable(self.path, &error))?;
            self.written_bytes += block.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::PoolId;

    #[test]
    fn chunks_of_one_column_in_two_pgs_contradict_the_layout() {
        let pg = |n| PgId { pool: PoolId(1), n };
        let found = |stripe, chunks: &[(PgId, u32)]| contradiction(stripe, chunks.iter().copied());
        let striped = |count| Stripe::with_count(count).expect("a layout");
        let next = CHUNKS_PER_SEGMENT;
        // One PG for each segment, and replicas of one PG with the same chunk.
        let plain = [(pg(1), 0), (pg(1), 1), (pg(1), 0), (pg(2), next), (pg(2), 2 * next - 1)];
        assert_eq!(found(Stripe::NONE, &plain), None);
        let half = next / 2;
        let columns = [(pg(1), 0), (pg(1), half - 1), (pg(2), half), (pg(2), next - 1)];
        assert_eq!(found(Stripe::NONE, &columns), Some([columns[0], columns[2]]));
        assert_eq!(found(striped(2), &columns), None);
        assert_eq!(found(striped(4), &columns), None, "columns may share a PG");
        assert_eq!(found(striped(2), &[(pg(1), 0), (pg(2), 1)]), Some([(pg(1), 0), (pg(2), 1)]));
    }
}
