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
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use types::units::CHUNK;
use types::{BLOCK, ChunkKey, PgId, Stripe, codes};

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
    let mut device = Device::open(&args.device, Access::Read)?;
    let mut view = View::open(&mut device, args.source.end)?;
    let plan = plan(&view, args)?;
    let mut options = File::options();
    let file = options.write(true).create_new(true).mode(0o600).open(&args.file).map_err(refused)?;
    let stripe = args.chunk.is_none().then(|| stripes::layout(args.stripe_unit, args.stripe_count));
    let mut copy = Copy { file, path: &args.file, stripe, written_bytes: 0, bad_blocks: 0 };
    let copied = copy.all(&mut view, &plan, args);
    if copied.is_err() {
        // A part of a volume must not be taken for the whole.
        let _ = std::fs::remove_file(&args.file);
    }
    copied?;
    let len = len_of(&view, &plan, args);
    copy.file.set_len(len).and_then(|()| copy.file.sync_all()).map_err(refused)?;
    let chunks: usize = plan.iter().map(|(_, chunks)| chunks.len()).sum();
    if as_json {
        let body = json!({
            "device": args.device, "file": args.file, "volume": args.volume, "chunks": chunks, "len_bytes": len,
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
            let chunks = held.iter().map(|held| held.chunk).filter(|chunk| chunk.volume == args.volume);
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
            Some(index) => vec![ChunkKey { volume: args.volume, index }],
            None => holds(&replica),
        };
        remarks(view, &replica, args.source.end.uncommitted);
        plan.push((replica, chunks));
    }
    if plan.iter().all(|(_, chunks)| chunks.is_empty()) {
        let device = args.device.display();
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
    let attached = view.applied.values().filter_map(|applied| applied.volumes.get(&args.volume)).max();
    let seen = plan.iter().flat_map(|(_, chunks)| chunks).map(|chunk| chunk.index + 1).max();
    u64::from(attached.copied().max(seen).unwrap_or(0)) * CHUNK
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
