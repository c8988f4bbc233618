//! `basalt disk rm`: removes one replica from the device of a stopped OSD, with the engine's own records.
//!
//! Invariant: a replica leaves by a durable tombstone, or is marked as failed (R4). In both cases it never votes or
//! acknowledges again under its id, so for its PG the effect is that of a lost disk.

use super::device::{Device, offline_error};
use super::view::{View, part_word};
use crate::disk_args::{DiskRm, LogEnd};
use crate::errors::UserError;
use crate::output;
use anyhow::Result;
use engine::ReplicaUse;
use engine::offline::Access;
use serde_json::json;
use types::map::Membership;
use types::{OsdId, codes};

/// Reason of a failure that this command records.
const REASON: &str = "an administrator has given the replica up with basalt disk rm --replace";

/// Removes a replica, or says what would happen.
pub fn run(args: &DiskRm, as_json: bool) -> Result<()> {
    let (osd, replica, members) = find(args)?;
    let warnings = warnings(args, osd, &members);
    if !args.yes {
        let what = format!(
            "{}: {} of PG {} ({}, {} chunks, checkpoint index {}) is still there: without --yes nothing is changed. {}",
            args.store.device.display(),
            args.replica,
            args.pg,
            part_word(&replica.part),
            replica.chunks,
            replica.checkpoint.0.0,
            warnings.join(" ")
        );
        return Err(UserError::new(codes::BAD_USAGE, what, "the same command with --yes").into());
    }
    let failed = |error| offline_error(&args.store.device, error);
    let mut device = Device::open(&args.store, Access::Write)?;
    let (mut store, ..) = device.mount(Access::Write)?;
    let released = match args.replace {
        true => store.fail(args.replica, REASON).map(|()| false),
        false => store.destroy(args.replica),
    };
    let released = released.map_err(failed)?;
    if as_json {
        let body = json!({
            "device": args.store.device, "osd": osd, "pg": args.pg.to_string(), "replica": args.replica,
            "replaced": args.replace, "space_released": released, "warnings": warnings,
        });
        return output::json("disk.rm", body);
    }
    let done = if args.replace { "is marked as failed on" } else { "is removed from" };
    out!("{} of PG {} {done} {}", args.replica, args.pg, args.store.device.display());
    if !args.replace && !released {
        out!("its space is free after the first checkpoint of the OSD");
    }
    warnings.iter().for_each(|warning| output::remark(warning));
    Ok(())
}

/// Finds the replica by a mount that writes nothing. Returns it with the members of its PG at the end of its log.
fn find(args: &DiskRm) -> Result<(OsdId, ReplicaUse, Membership)> {
    let mut device = Device::open(&args.store, Access::Read)?;
    let view = View::open(&mut device, LogEnd { uncommitted: false })?;
    let is_meant = |r: &ReplicaUse| r.identity.pg == args.pg && r.identity.replica == args.replica;
    let found = view.replicas().into_iter().find(is_meant);
    let device = args.store.device.display();
    let found = found.ok_or_else(|| {
        let what = format!("{device} holds no {} of PG {}", args.replica, args.pg);
        UserError::new(codes::REPLICA_NOT_HERE, what, format!("basalt disk ls {device}"))
    })?;
    let members = view.applied.get(&args.replica).map(|applied| applied.members.clone());
    Ok((view.superblock.osd, found, members.unwrap_or_default()))
}

/// Returns what follows for the cluster.
fn warnings(args: &DiskRm, osd: OsdId, members: &Membership) -> Vec<String> {
    let others = members.iter().filter(|member| member.replica != args.replica);
    let others: Vec<String> = others.map(|member| member.osd.to_string()).collect();
    let copies = match others.is_empty() {
        true => format!("This device knows no other member of PG {}: then the data of the PG goes with it.", args.pg),
        false => format!(
            "The other members of PG {}, as far as this device knows, are on {}: make sure that a majority of the PG is \
             whole without this replica (`basalt pg ls`).",
            args.pg,
            others.join(", ")
        ),
    };
    let after = match args.replace {
        true => {
            "Its log is dropped: `basalt pg force-recover` cannot go on from this replica. When its OSD runs again, \
                 the metadata server replaces it under a new id."
                .to_owned()
        }
        false => format!(
            "The metadata server still expects it on {osd} and does not replace it by itself: PG {} stays degraded until \
             `basalt pg move {} --from {} --to OSD` gives its place to another OSD. A PG that was deleted needs nothing.",
            args.pg, args.pg, osd.0
        ),
    };
    let copy = "A device that was restored from a copy must not be changed before its OSD has started once: the metadata \
                server then finds out that it is older.";
    vec![copies, after, copy.to_owned()]
}
