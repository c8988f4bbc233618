//! `basalt snapshot`.

use crate::admin::Admin;
use crate::args::{Protect, Snapshot};
use crate::du;
use crate::duration::moment;
use crate::errors::{Exit, UserError};
use crate::output::{json, table};
use crate::size::show;
use anyhow::{Context, Result};
use control::admin::{SnapshotChange, SnapshotView};
use serde_json::{Value, json, to_value};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use types::codes;
use types::qos::QosChange;

/// Runs `basalt snapshot ...`.
pub fn snapshot(admin: &Admin, command: &Snapshot, as_json: bool) -> Result<Exit> {
    perform(admin, command, as_json).map(|()| Exit::Done)
}

/// Refuses two snapshots of one volume in one command.
fn check_twice(names: &[String]) -> Result<()> {
    let mut seen = BTreeSet::new();
    let volumes = names.iter().map(|name| name.split('@').next().unwrap_or(name));
    for volume in volumes {
        if !seen.insert(volume) {
            let what = format!("volume {volume} is named twice: one command makes one snapshot of a volume");
            return Err(UserError::new(codes::BAD_USAGE, what, "name each volume once").into());
        }
    }
    Ok(())
}

fn perform(admin: &Admin, command: &Snapshot, as_json: bool) -> Result<()> {
    match command {
        Snapshot::Create { names, texts } => {
            check_twice(names)?;
            let made = admin.create_snapshots(names, texts.change(&[], QosChange::default()))?;
            if as_json {
                return json("snapshot.create", json!({ "snapshots": made }));
            }
            made.iter().for_each(|s| out!("snapshot {} ({}) is made", s.name, s.snapshot));
            Ok(())
        }
        Snapshot::Ls { of, usage: true } => with_usage(admin, of.as_deref().unwrap_or(""), as_json),
        Snapshot::Ls { of, usage: false } => {
            let snapshots = admin.snapshots(of.as_deref().unwrap_or(""))?;
            if as_json {
                return json("snapshot.ls", json!({ "snapshots": snapshots }));
            }
            table(&["snapshot", "size", "created", "state", "protected", "by"], snapshots.iter().map(row));
            Ok(())
        }
        Snapshot::Info { name } => {
            let found = info(admin, name)?;
            if as_json {
                return json("snapshot.info", to_value(&found)?);
            }
            show_info(&found);
            Ok(())
        }
        Snapshot::Rename { name, new } => {
            let change = SnapshotChange { name: Some(new.clone()), ..SnapshotChange::default() };
            let changed = admin.set_snapshot(name, change)?;
            if as_json {
                return json("snapshot.rename", to_value(&changed)?);
            }
            out!("snapshot {name} is now {}", changed.name);
            Ok(())
        }
        Snapshot::Set { name, protect, texts, removed } => {
            let text = texts.change(removed, QosChange::default());
            let protect = protect.map(|protect| protect == Protect::On);
            let changed = admin.set_snapshot(name, SnapshotChange { protect, name: None, text })?;
            if as_json {
                return json("snapshot.set", to_value(&changed)?);
            }
            show_info(&changed);
            Ok(())
        }
        Snapshot::Rollback { name, force } => {
            let volume = admin.roll_back(name, *force)?;
            if as_json {
                return json("snapshot.rollback", to_value(&volume)?);
            }
            out!("volume {} has the contents of {name}", volume.name);
            Ok(())
        }
        Snapshot::Rm { name, detach } => {
            // The record is gone when the command ends, so the answer names the snapshot by what it was.
            let was = info(admin, name)?;
            admin.remove_snapshot(name, *detach)?;
            if as_json {
                return json("snapshot.rm", json!({ "done": true, "name": name, "snapshot": was.snapshot }));
            }
            out!("snapshot {name} is deleted");
            Ok(())
        }
    }
}

pub(crate) fn info(admin: &Admin, name: &str) -> Result<SnapshotView> {
    // A name without `@` would list the snapshots of a volume.
    let asked = if name.contains('@') { name.to_owned() } else { format!("{name}@") };
    admin.snapshots(&asked)?.into_iter().next().context("meta answered with no snapshot")
}

/// Lists snapshots with the space of each.
fn with_usage(admin: &Admin, of: &str, as_json: bool) -> Result<()> {
    let snapshots = admin.snapshots(of)?;
    let volume = |s: &SnapshotView| s.name.split('@').next().unwrap_or("").to_owned();
    let mut measured = BTreeMap::new();
    for name in snapshots.iter().map(volume) {
        if let Entry::Vacant(vacant) = measured.entry(name) {
            let volume = admin.volume_info(vacant.key())?;
            vacant.insert(du::measure(admin, &volume)?);
        }
    }
    let bytes = |s: &SnapshotView| measured[&volume(s)].of_snapshot(s.snapshot);
    if as_json {
        let view = |s: &SnapshotView| -> Result<Value> {
            let (stored, frees) = bytes(s);
            let mut view = to_value(s)?;
            view["stored_bytes"] = stored.into();
            view["frees_bytes"] = frees.into();
            Ok(view)
        };
        return json("snapshot.ls", json!({ "snapshots": snapshots.iter().map(view).collect::<Result<Vec<_>>>()? }));
    }
    let row = |s: &SnapshotView| {
        let (stored, frees) = bytes(s);
        [row(s), vec![show(stored), show(frees)]].concat()
    };
    table(
        &["snapshot", "size", "created", "state", "protected", "by", "stored", "freed by its deletion"],
        snapshots.iter().map(row),
    );
    Ok(())
}

fn row(s: &SnapshotView) -> Vec<String> {
    let protected = if s.protected { "yes" } else { "no" };
    vec![s.name.clone(), show(s.len_bytes), moment(s.created_ms), s.state.clone(), protected.to_owned(), s.by.clone()]
}

/// Prints the page of one snapshot.
fn show_info(s: &SnapshotView) {
    out!("snapshot   {} ({})", s.name, s.snapshot);
    out!("volume     {}", s.volume);
    out!("size       {}", show(s.len_bytes));
    out!("created    {}, by {}", moment(s.created_ms), if s.by.is_empty() { "unknown" } else { s.by.as_str() });
    out!("state      {}{}", s.state, if s.protected { ", protected" } else { "" });
    if s.clones > 0 {
        out!("clones     {}", s.clones);
    }
    if !s.description.is_empty() {
        out!("about      {}", s.description);
    }
    s.labels.iter().for_each(|(key, value)| out!("label      {key}={value}"));
}
