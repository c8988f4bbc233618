//! `basalt disk cat`: the bytes of a chunk on standard output.

use super::device::Device;
use super::view::{View, bad_block};
use crate::disk_args::DiskCat;
use crate::errors::{Exit, UserError};
use crate::output;
use anyhow::Result;
use engine::ReplicaUse;
use engine::offline::Access;
use types::units::CHUNK;
use types::{BLOCK, SECTOR, SectorRange, codes};

/// Most bytes of one read.
const STEP: u64 = 512 << 10;

/// Prints bytes.
pub fn run(args: &DiskCat, as_json: bool) -> Result<Exit> {
    if as_json {
        let next = "leave --json out; `basalt disk ls --chunks --json` describes chunks";
        return Err(UserError::new(codes::BAD_USAGE, "`basalt disk cat` prints bytes and no JSON", next).into());
    }
    read(args, &mut output::bytes)
}

/// Gives the bytes to `put`, in order.
pub(super) fn read(args: &DiskCat, put: &mut dyn FnMut(&[u8])) -> Result<Exit> {
    let end = args.len.map_or(Some(CHUNK), |len| args.offset.checked_add(len));
    let Some(end) = end.filter(|end| *end <= CHUNK && args.offset <= *end) else {
        let what = format!("--offset and --len reach beyond the chunk, which has {CHUNK} bytes");
        return Err(UserError::new(codes::BAD_USAGE, what, "basalt disk cat --help").into());
    };
    let mut device = Device::open(&args.store, Access::Read)?;
    let mut view = View::open(&mut device, args.source.end)?;
    let replica = view.choose(args.pg, args.source)?;
    remarks(&view, &replica, args.source.end.uncommitted);
    let generation = view.generation(&replica, args.volume, args.snapshot)?;
    let (mut at, mut bad) = (args.offset, 0);
    while at < end {
        let from = at / BLOCK * BLOCK;
        let to = end.next_multiple_of(BLOCK).min(from + STEP);
        let range = SectorRange::new((from / SECTOR) as u32, ((to - from) / SECTOR) as u32);
        let found = view.read_of(&replica, generation, args.chunk, range)?;
        for block in &found.bad {
            let error = bad_block(view.path(), &replica, block);
            if !args.source.force {
                return Err(error.into());
            }
            bad += 1;
            output::remark(&error.what);
        }
        let part = (at - from) as usize..(end.min(to) - from) as usize;
        at = from + part.end as u64;
        match found.bytes {
            Some(bytes) => put(&bytes[part]),
            None => put(&vec![0; part.len()]),
        }
    }
    Ok(if bad > 0 { Exit::Degraded } else { Exit::Done })
}

/// Tells on standard error which part of the log the bytes do not show.
pub fn remarks(view: &View<'_>, replica: &ReplicaUse, uncommitted: bool) {
    let (id, pg) = (replica.identity.replica, replica.identity.pg);
    let Some(applied) = view.applied.get(&id) else { return };
    if let Some(reason) = &applied.stale {
        let index = replica.checkpoint.0.0;
        output::remark(&format!(
            "{id} of PG {pg}: contents of its checkpoint, index {index}, without the log: {reason}"
        ));
    } else if applied.last > applied.commit {
        let (first, last) = (applied.commit.0 + 1, applied.last.0);
        let shown = if uncommitted { "are shown" } else { "are not shown; --uncommitted shows them" };
        output::remark(&format!(
            "{id} of PG {pg}: entries {first} to {last} of the log, which may be committed or not, {shown}"
        ));
    }
}
