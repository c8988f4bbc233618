//! `basalt disk cp`: chunks of a device in a sparse file.

use super::cat::remarks;
use super::device::Device;
use super::view::{Applied, Bytes, View, bad_block, volume_of};
use crate::disk_args::DiskCp;
use crate::errors::{Exit, UserError, unusable};
use crate::{output, size, stripes};
use anyhow::Result;
use engine::offline::Access;
use engine::{ChunkHeld, ReplicaUse};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use types::control::CHUNKS_KEPT;
use types::tree::{Node, Role, Tree};
use types::units::{CHUNK, CHUNKS_PER_SEGMENT};
use types::{BLOCK, ChunkKey, GenerationId, PgId, ReplicaId, Stripe, codes};

/// A copy that is being made.
struct Copy<'p> {
    file: File,
    path: &'p Path,
    /// Where a chunk address lies in the file; `None`: the chunk is the file.
    stripe: Option<Stripe>,
    written_bytes: u64,
    bad_blocks: u64,
}

/// Chunks to copy from one replica, each of the generation that shows all of its blocks.
type Part = (ReplicaUse, Vec<ChunkKey>);

/// Copies a chunk or all chunks of a volume or a snapshot.
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
            "device": args.store.device, "file": args.file, "volume": args.volume, "snapshot": args.snapshot,
            "chunks": chunks, "len_bytes": len,
            "written_bytes": copy.written_bytes, "bad_blocks": copy.bad_blocks,
        });
        output::json("disk.cp", body)?;
    } else {
        let (written, len) = (size::show(copy.written_bytes), size::show(len));
        out!("{}: {chunks} chunks of {}, {written} of data in {len}", args.file.display(), wanted(args));
        if copy.bad_blocks > 0 {
            out!("{} bad blocks are zeros in it", copy.bad_blocks);
        }
    }
    Ok(if copy.bad_blocks > 0 { Exit::Degraded } else { Exit::Done })
}

fn wanted(args: &DiskCp) -> String {
    let of = args.snapshot.map_or_else(String::new, |snapshot| format!("snapshot {snapshot} of "));
    format!("{of}volume {}", args.volume)
}

/// Returns the indexes of the chunks that the replica holds of these generations, below the index that comes with each.
fn held(view: &View<'_>, replica: &ReplicaUse, shown: &BTreeMap<GenerationId, u32>) -> BTreeSet<u32> {
    let held = view.store.engine().chunks_for_tools(replica.identity.replica);
    let is_shown = |held: &&ChunkHeld| {
        let through = held.owner.and_then(|(generation, _)| shown.get(&generation));
        through.is_some_and(|through| held.chunk.index < *through)
    };
    held.iter().filter(is_shown).map(|held| held.chunk.index).collect()
}

/// Whether the replica holds a chunk that the volume or one of its snapshots shows, or may do so: its decision state is damaged.
fn holds_some(view: &View<'_>, replica: &ReplicaUse, args: &DiskCp) -> bool {
    let shown = of_volume(&view.tree(replica.identity.replica), args);
    let unknown = |held: &ChunkHeld| held.owner.is_none() && volume_of(held) == args.volume;
    let all = view.store.engine().chunks_for_tools(replica.identity.replica);
    !held(view, replica, &shown).is_empty() || all.iter().any(unknown)
}

/// Returns the generations of which the volume or one of its snapshots shows blocks.
fn of_volume(tree: &Tree, args: &DiskCp) -> BTreeMap<GenerationId, u32> {
    tree.shown().remove(&args.volume).unwrap_or_default()
}

/// Returns the chunks to copy, by replica.
fn plan(view: &View<'_>, args: &DiskCp) -> Result<Vec<Part>> {
    let pgs: BTreeSet<PgId> = match args.pg {
        Some(pg) => BTreeSet::from([pg]),
        None => view.replicas().iter().map(|replica| replica.identity.pg).collect(),
    };
    let mut plan = Vec::new();
    for pg in pgs {
        // A PG without a chunk of the volume must not fail the copy.
        if args.pg.is_none() && holder(view, pg, args).is_none() {
            continue;
        }
        let replica = view.choose(pg, args.source)?;
        if let Some(text) = left_out(view, &replica, args).filter(|_| args.pg.is_none()) {
            output::remark(&text);
            continue;
        }
        let chunks = chunks_of(view, &replica, args)?;
        remarks(view, &replica, args.source.end.uncommitted);
        plan.push((replica, chunks));
    }
    if args.chunk.is_none() && plan.iter().all(|(_, chunks)| chunks.is_empty()) {
        let device = args.store.device.display();
        let what = format!("{device} holds no chunk of {}", wanted(args));
        return Err(UserError::new(codes::REPLICA_NOT_HERE, what, format!("basalt disk usage {device}")).into());
    }
    Ok(plan)
}

/// Returns a replica of the PG that holds a chunk of the volume.
fn holder(view: &View<'_>, pg: PgId, args: &DiskCp) -> Option<ReplicaUse> {
    let holds = |replica: &ReplicaUse| replica.identity.pg == pg && holds_some(view, replica, args);
    view.replicas().into_iter().find(holds)
}

/// Says that a PG is left out, because the replica that is read holds no chunk and another one does: the volume was removed since, or the
/// replica is being filled.
pub(super) fn left_out(view: &View<'_>, chosen: &ReplicaUse, args: &DiskCp) -> Option<String> {
    let (pg, newer) = (chosen.identity.pg, chosen.identity.replica);
    let older = holder(view, pg, args).filter(|_| !holds_some(view, chosen, args))?.identity.replica;
    let of = wanted(args);
    Some(format!(
        "PG {pg} is left out: {newer}, which is read, holds no chunk of {of}; {older} does: copy it with --pg and --replica"
    ))
}

/// Returns the chunks of a replica to copy: those that an older generation alone holds, too.
fn chunks_of(view: &View<'_>, replica: &ReplicaUse, args: &DiskCp) -> Result<Vec<ChunkKey>> {
    let Some(generation) = view.generation(replica, args.volume, args.snapshot)? else { return Ok(Vec::new()) };
    let indexes = match args.chunk {
        // A chunk that holds nothing is a chunk of zeros.
        Some(index) => BTreeSet::from([index]),
        None => held(view, replica, &view.tree(replica.identity.replica).path(generation).collect()),
    };
    Ok(indexes.into_iter().map(|index| ChunkKey { generation, index }).collect())
}

/// Returns the length of the file: the volume or the snapshot in whole chunks as its PGs know it, or one chunk.
fn len_of(view: &View<'_>, plan: &[Part], args: &DiskCp) -> u64 {
    if args.chunk.is_some() {
        return CHUNK;
    }
    let count = |(replica, applied): (&ReplicaId, &Applied)| match args.snapshot {
        None => applied.volumes.get(&args.volume).map(|attached| attached.chunk_count),
        Some(snapshot) => {
            let tree = view.tree(*replica);
            let is_its = |node: &&Node| node.role == Role::Snapshot(args.volume, snapshot);
            tree.snapshot(snapshot).and_then(|id| tree.get(id)).filter(is_its).map(|node| node.chunk_count)
        }
    };
    // In the middle of a recovery of the records no length is known.
    let known = view.applied.iter().filter_map(count).filter(|count| *count != CHUNKS_KEPT).max();
    let seen = plan.iter().flat_map(|(_, chunks)| chunks).map(|chunk| u64::from(chunk.index) + 1).max();
    known.map(u64::from).max(seen).unwrap_or(0) * CHUNK
}

/// Refuses a layout that the PGs of the chunks contradict; else names it. The device does not know the layout.
fn check_layout(view: &View<'_>, args: &DiskCp, stripe: Stripe) -> Result<()> {
    let chunks = view.replicas().into_iter().flat_map(|replica| {
        let shown = of_volume(&view.tree(replica.identity.replica), args);
        held(view, &replica, &shown).into_iter().map(move |index| (replica.identity.pg, index))
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
    fn all(&mut self, view: &mut View<'_>, plan: &[Part], args: &DiskCp) -> Result<()> {
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
