//! `basalt volume` and `basalt trash`.

use crate::admin::Admin;
use crate::args::{Trash, Volume};
use crate::diff;
use crate::du;
use crate::duration::moment;
use crate::errors::{advise, has_code};
use crate::faults;
use crate::flatten;
use crate::output::{json, table};
use crate::resize;
use crate::size::show;
use anyhow::Result;
use control::admin::{HolderView, Resizing, TrashView, VolumeClone, VolumeRemove, VolumeView, WriterName};
use serde_json::{json, to_value};
use types::{SessionId, Stripe, WhenFull, codes};

/// Runs `basalt volume ...`.
pub fn volume(admin: &Admin, command: &Volume, as_json: bool) -> Result<()> {
    match command {
        Volume::Create { name, size, stripes, texts, limits, policies } => {
            let text = policies.of(texts.change(&[], limits.change(false)));
            let volume = admin.create_volume(name, *size, stripes.layout(), text)?;
            if as_json {
                return json("volume.create", to_value(&volume)?);
            }
            match volume.stripe {
                Some(stripe) => out!("volume {name}: {}, {}", show(volume.len_bytes), stripes_of(stripe)),
                None => out!("volume {name}: {}", show(volume.len_bytes)),
            }
            Ok(())
        }
        Volume::Clone { snapshot, name, texts, limits, policies } => {
            let (snapshot, name) = (snapshot.clone(), name.clone());
            let text = policies.of(texts.change(&[], limits.change(false)));
            clone(admin, VolumeClone { snapshot, name, text }, as_json)
        }
        Volume::Flatten { name, cancel, no_wait } => flatten::run(admin, name, (*cancel, *no_wait), as_json),
        Volume::Fault(command) => faults::run(admin, command, as_json),
        Volume::Ls { pool, labels } => {
            let mut volumes = admin.volumes(pool.as_deref())?;
            volumes.retain(|volume| labels.iter().all(|label| label.fits(&volume.labels)));
            if as_json {
                return json("volume.ls", json!({ "volumes": volumes }));
            }
            table(&["volume", "size", "allocated", "state", "client"], volumes.iter().map(volume_row));
            Ok(())
        }
        Volume::Info { name } => {
            let volume = admin.volume_info(name)?;
            if as_json {
                return json("volume.info", to_value(&volume)?);
            }
            show_info(&volume);
            Ok(())
        }
        Volume::Diff(args) => diff::run(admin, args, as_json),
        Volume::Du { name } => du::run(admin, name, as_json),
        Volume::Fence { name, client, session } => fence(admin, name, (client.as_deref(), *session), as_json),
        Volume::Rename { name, new } => {
            let volume = admin.rename_volume(name, new)?;
            if as_json {
                return json("volume.rename", to_value(&volume)?);
            }
            out!("volume {name} is now {}", volume.name);
            Ok(())
        }
        Volume::Set { name, texts, removed, limits, policies, pool_limits } => {
            let change = texts.change(removed, limits.change(*pool_limits));
            let volume = admin.set_volume(name, policies.of(change))?;
            if as_json {
                return json("volume.set", to_value(&volume)?);
            }
            show_info(&volume);
            Ok(())
        }
        Volume::Resize { name, size, shrink, discard_data, force } => {
            let (len_bytes, shrink, discard, force) = (*size, *shrink, *discard_data, *force);
            resize::run(admin, name, Resizing { len_bytes, shrink, discard, force }, as_json)
        }
        Volume::Rm { name, force, now, snapshots, detach } => {
            let (name, force, now, snapshots, detach) = (name.clone(), *force, *now, *snapshots, *detach);
            remove(admin, &VolumeRemove { name, force, now, snapshots, detach }, as_json)
        }
    }
}

fn fence(admin: &Admin, name: &str, of: (Option<&str>, Option<SessionId>), as_json: bool) -> Result<()> {
    let client = || WriterName::Client(of.0.unwrap_or_default().to_owned());
    let volume = admin.fence_writers(name, of.1.map_or_else(client, WriterName::Session))?;
    if as_json {
        return json("volume.fence", to_value(&volume)?);
    }
    let others = match volume.writers.len() {
        0 => "nobody has it open for writing now".to_owned(),
        1 => "1 other client writes to it".to_owned(),
        others => format!("{others} other clients write to it"),
    };
    out!("volume {name}: fenced; {others}");
    Ok(())
}

fn clone(admin: &Admin, ask: VolumeClone, as_json: bool) -> Result<()> {
    let volume = admin.clone_volume(ask)?;
    if as_json {
        return json("volume.clone", to_value(&volume)?);
    }
    let (size, parent) = (show(volume.len_bytes), volume.parent.as_deref().unwrap_or("a snapshot"));
    out!("volume {}: {size}, a clone of {parent}", volume.name);
    Ok(())
}

fn remove(admin: &Admin, ask: &VolumeRemove, as_json: bool) -> Result<()> {
    let name = ask.name.as_str();
    let volume = admin.volume_info(name)?;
    let removed = admin.remove_volume(ask.clone());
    let trash = removed.map_err(|error| advise(error, codes::VOLUME_HELD, || held_by_another(name)))?;
    if as_json {
        let until_ms = trash.as_ref().map(|trash| trash.until_ms);
        let (volume, len_bytes, trashed) = (volume.volume, volume.len_bytes, trash.is_some());
        let body = json!({
            "done": true, "volume": volume, "name": name, "len_bytes": len_bytes, "trashed": trashed, "until_ms": until_ms,
        });
        return json("volume.rm", body);
    }
    match trash {
        Some(trash) => {
            out!(
                "volume {name} is in the trash until {}: basalt trash restore {}",
                moment(trash.until_ms),
                trash.volume.0
            );
        }
        None => out!("volume {name} is removed"),
    }
    Ok(())
}

/// Prints the page of one volume.
fn show_info(volume: &VolumeView) {
    out!("volume     {} ({})", volume.name, volume.volume);
    let resize = volume.resize_bytes.map(|to| format!(", being resized to {}", show(to))).unwrap_or_default();
    let resize = format!("{resize}{}", volume.shrink_step.as_deref().map_or("", resize::step));
    out!("size       {}{resize}", show(volume.len_bytes));
    out!("allocated  {} (segments of 1 GiB that were written to)", show(volume.allocated_bytes));
    out!("stripes    {}", volume.stripe.map_or_else(|| "none".to_owned(), stripes_of));
    let clones = match volume.clones {
        0 => String::new(),
        1 => ", 1 clone".to_owned(),
        many => format!(", {many} clones"),
    };
    out!("snapshots  {}{clones}", volume.snapshots);
    if let Some(parent) = &volume.parent {
        out!("parent     {parent} (depth {}){}", volume.depth, flatten::progress(volume));
    }
    let rollback = volume.rollback_to.as_ref().map(|to| format!(", being rolled back to @{to}")).unwrap_or_default();
    out!("state      {}{rollback}", volume.state);
    out!("created    {}", moment(volume.created_ms));
    out!("epoch      {}", volume.epoch.0);
    for line in clients(volume) {
        out!("client     {line}");
    }
    if volume.multi_writer {
        out!("writers    several at a time");
    }
    let of_pool = if volume.limits_of == "pool" { " (of the pool)" } else { "" };
    out!("limits     {}{of_pool}", crate::limit_args::in_words(&volume.limits));
    match volume.when_full {
        WhenFull::Client => out!("when full  as its client says: writes wait 20 s by default"),
        WhenFull::Wait => out!("when full  writes wait"),
        WhenFull::Error => out!("when full  writes fail at once"),
    }
    faults::show_all(volume);
    if !volume.description.is_empty() {
        out!("about      {}", volume.description);
    }
    for (key, value) in &volume.labels {
        out!("label      {key}={value}");
    }
}

/// Runs `basalt trash ...`.
pub fn trash(admin: &Admin, command: &Trash, as_json: bool) -> Result<()> {
    match command {
        Trash::Ls { pool } => {
            let volumes = admin.trash(pool.as_deref())?;
            if as_json {
                return json("trash.ls", json!({ "volumes": volumes }));
            }
            table(
                &["id", "volume", "size", "allocated", "state", "removed", "until", "by"],
                volumes.iter().map(trash_row),
            );
            Ok(())
        }
        Trash::Restore { which, name } => {
            let volume = admin.restore_volume(which, name.as_deref()).map_err(|error| {
                advise(error, codes::VOLUME_EXISTS, || "give the volume another name with --name".to_owned())
            })?;
            if as_json {
                return json("trash.restore", to_value(&volume)?);
            }
            out!("volume {} is back: {}", volume.name, show(volume.len_bytes));
            Ok(())
        }
        Trash::Purge { which: Some(which), .. } => {
            admin.purge_volume(which)?;
            if as_json {
                return json("trash.purge", json!({ "done": true, "purged": [which] }));
            }
            out!("volume {which} is deleted");
            Ok(())
        }
        Trash::Purge { expired, pool, .. } => purge(admin, *expired, pool.as_deref(), as_json),
    }
}

/// Deletes all volumes of the trash, or those whose time is over.
fn purge(admin: &Admin, expired: bool, pool: Option<&str>, as_json: bool) -> Result<()> {
    let volumes = admin.trash(pool)?;
    let (mut purged, mut failed) = (Vec::new(), None);
    for volume in volumes.into_iter().filter(|volume| !expired || volume.expired) {
        let id = volume.volume.0.to_string();
        match admin.purge_volume(&id) {
            Ok(()) => purged.push(volume),
            // Its time was over meanwhile, or it was restored.
            Err(error) if has_code(&error, codes::NOT_IN_TRASH) => {}
            // A PG without a leader must not keep the others.
            Err(error) => _ = failed.get_or_insert(error),
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    if as_json {
        let ids: Vec<String> = purged.iter().map(|volume| volume.volume.0.to_string()).collect();
        return json("trash.purge", json!({ "done": true, "purged": ids }));
    }
    purged.iter().for_each(|volume| out!("volume {} ({}) is deleted", volume.name, volume.volume));
    if purged.is_empty() {
        out!("no volume in the trash is to be deleted");
    }
    Ok(())
}

fn trash_row(v: &TrashView) -> Vec<String> {
    let until = if v.expired { "now".to_owned() } else { moment(v.until_ms) };
    vec![
        v.volume.0.to_string(),
        v.name.clone(),
        show(v.len_bytes),
        show(v.allocated_bytes),
        v.state.clone(),
        moment(v.since_ms),
        until,
        v.by.clone(),
    ]
}

/// Returns the advice for the removal of a volume that is in use.
fn held_by_another(name: &str) -> String {
    format!(
        "close it there (`basalt volume info {name}` names the client), or give --force: reads and writes of that \
         client then fail"
    )
}

fn stripes_of(stripe: Stripe) -> String {
    format!("units of {} over {} PGs in each segment", show(stripe.unit_bytes()), stripe.count())
}

fn volume_row(v: &VolumeView) -> Vec<String> {
    vec![v.name.clone(), show(v.len_bytes), show(v.allocated_bytes), v.state.clone(), clients(v).join(", ")]
}

/// Returns the clients that have a volume open for writing, one a line.
fn clients(v: &VolumeView) -> Vec<String> {
    let session = |h: &HolderView| if v.multi_writer { format!(", session {}", h.session.0) } else { String::new() };
    let shown =
        |h: &HolderView| format!("{} at {}{}{}", h.name, h.address, session(h), if h.alive { "" } else { " (silent)" });
    let leaves = |h: &HolderView| format!("{} at {}{} (being fenced)", h.name, h.address, session(h));
    let all: Vec<String> = v.writers.iter().map(shown).chain(v.being_fenced.iter().map(leaves)).collect();
    if all.is_empty() { vec!["-".to_owned()] } else { all }
}
