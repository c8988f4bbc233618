//! The commands that show the cluster or change its records.

use crate::admin::Admin;
use crate::args::Pool;
use crate::errors::UserError;
use crate::output::{json, table};
use crate::size::show;
use anyhow::Result;
use control::admin::{OsdView, PgView, PoolCreate, PoolSet, PoolView, QuotaChange};
use serde_json::{json, to_value};
use std::collections::BTreeMap;
use types::codes;

/// Returns versions with the daemons that run them: the leading meta, and the OSDs that have connected
/// to it.
pub fn versions(meta: &str, osds: &[OsdView]) -> BTreeMap<String, Vec<String>> {
    let mut versions = BTreeMap::from([(meta.to_owned(), vec!["meta".to_owned()])]);
    for osd in osds.iter().filter(|osd| !osd.version.is_empty()) {
        versions.entry(osd.version.clone()).or_default().push(osd.osd.to_string());
    }
    versions
}

/// Runs `basalt osd ls`.
pub fn osds(admin: &Admin, as_json: bool) -> Result<()> {
    let osds = admin.osds()?;
    if as_json {
        return json("osd.ls", json!({ "osds": osds }));
    }
    let rows = osds.into_iter().map(|o| {
        let fill = control::health::fill_percent(&o);
        let live = if o.live == "new" { "never started".to_owned() } else { o.live };
        let place = match (o.is_in, o.auto_out) {
            (true, _) => "in",
            (false, true) => "out (was down)",
            (false, false) => "out",
        };
        let mut state = vec![live, place.to_owned()];
        state.extend(o.replaces.map(|old| format!("replaces {old}")));
        state.extend(o.drain.then(|| "drain".to_owned()));
        state.extend(o.full.then(|| "full".to_owned()));
        state.extend(o.poisoned.map(|why| format!("failed: {why}")));
        vec![
            o.osd.to_string(),
            state.join(" "),
            o.addr.map_or_else(String::new, |a| a.to_string()),
            format!("{}/{}/{}", o.zone, o.rack, o.host),
            o.device_class.unwrap_or_else(|| "-".to_owned()),
            format!("{} of {} ({fill} %)", show(o.used_bytes), show(o.capacity_bytes)),
            format!("{} ({} led)", o.pgs, o.leads),
            if o.version.is_empty() { "-".to_owned() } else { o.version },
        ]
    });
    table(&["osd", "state", "address", "zone/rack/host", "class", "used", "pgs", "version"], rows);
    Ok(())
}

/// Runs `basalt osd rm`.
pub fn remove_osd(admin: &Admin, osd: u32, as_json: bool) -> Result<()> {
    let known = admin.osds()?.into_iter().find(|known| known.osd.0 == osd);
    admin.remove_osd(types::OsdId(osd))?;
    if as_json {
        return json("osd.rm", json!({ "done": true, "osd": osd }));
    }
    match known.filter(|known| known.live != "new") {
        Some(OsdView { uuid, .. }) => {
            out!("osd.{osd} is removed; its device can be formatted with --force --erase-osd {uuid}");
        }
        None => out!("osd.{osd} is removed"),
    }
    Ok(())
}

/// Runs `basalt pg ls`.
pub fn pgs(admin: &Admin, pool: Option<&str>, as_json: bool) -> Result<()> {
    let pgs = admin.pgs(pool)?;
    if as_json {
        return json("pg.ls", json!({ "pgs": pgs }));
    }
    table(&["pg", "state", "leader", "members", "applied", "segments"], pgs.iter().map(pg_row));
    for (pg, lost) in pgs.iter().flat_map(|pg| pg.lost.iter().map(move |lost| (pg.pg, lost))) {
        out!("pg {pg}: no good copy of {lost}");
    }
    for pg in pgs.iter().filter(|pg| pg.change.is_some()) {
        out!("pg {}: {}", pg.pg, crate::pg_move::change_words(pg));
    }
    Ok(())
}

fn pg_row(pg: &PgView) -> Vec<String> {
    let members = pg.members.iter().map(|m| {
        let mark = match (m.up, m.quarantined, m.repairing) {
            (_, true, _) => "!",
            (false, ..) => "?",
            (_, _, true) => "~",
            _ => "",
        };
        format!("{}{mark}", m.osd.0)
    });
    vec![
        pg.pg.to_string(),
        pg.state.join(" "),
        pg.leader.map_or_else(|| "-".to_owned(), |l| l.to_string()),
        members.collect::<Vec<_>>().join(","),
        pg.members.iter().map(|m| m.applied.to_string()).collect::<Vec<_>>().join(","),
        pg.segments.to_string(),
    ]
}

/// Runs `basalt pool ...`.
pub fn pool(admin: &Admin, command: &Pool, as_json: bool) -> Result<()> {
    match command {
        Pool::Create { name, replicas, pgs, domain, device_class, force } => {
            let ask = PoolCreate {
                name: name.clone(),
                replicas: *replicas,
                domain: format!("{domain:?}").to_lowercase(),
                pg_count: *pgs,
                force: *force,
                device_class: device_class.clone(),
            };
            let (pool, warning) = admin.create_pool(ask)?;
            if as_json {
                return json("pool.create", json!({ "pool": pool, "warning": warning }));
            }
            out!("pool {name}: {} PGs of {} replicas, failure domain {}", pool.pg_count, pool.replicas, pool.domain);
            if let Some(warning) = warning {
                out!("warning: {warning}");
            }
            Ok(())
        }
        Pool::Ls => {
            let pools = admin.pools()?;
            if as_json {
                return json("pool.ls", json!({ "pools": pools }));
            }
            let rows = pools.into_iter().map(|p| {
                let numbers = [p.replicas.to_string(), p.domain, p.pg_count.to_string(), p.volumes.to_string()];
                [vec![p.name, p.pool.0.to_string(), p.state], numbers.to_vec()].concat()
            });
            table(&["pool", "id", "state", "replicas", "domain", "pgs", "volumes"], rows);
            Ok(())
        }
        Pool::Info { name } => pool_info(&known_pool(admin, name)?, as_json),
        Pool::Set { name, quota_bytes, quota_volumes, quota_overcommit, device_class, backup_compression, limits } => {
            let quota =
                QuotaChange { bytes: *quota_bytes, volumes: *quota_volumes, overcommit_percent: *quota_overcommit };
            let (name, device_class, limits) = (name.clone(), device_class.clone(), limits.change(false));
            let ask = PoolSet { name, limits, quota, device_class, backup_compression: *backup_compression };
            let pool = admin.set_pool(ask)?;
            if as_json {
                return json("pool.set", to_value(&pool)?);
            }
            pool_info(&pool, false)
        }
        Pool::Rename { name, new } => {
            let pool = admin.rename_pool(name, new)?;
            if as_json {
                return json("pool.rename", to_value(&pool)?);
            }
            out!("pool {name} is now {}", pool.name);
            Ok(())
        }
        Pool::Rm { name } => {
            let pool = known_pool(admin, name)?;
            admin.remove_pool(name)?;
            if as_json {
                return json("pool.rm", json!({ "done": true, "pool": pool.pool, "name": name }));
            }
            out!("pool {name} is removed");
            Ok(())
        }
    }
}

fn known_pool(admin: &Admin, name: &str) -> Result<PoolView> {
    let unknown = || UserError::new(codes::POOL_UNKNOWN, format!("pool {name:?} does not exist"), "basalt pool ls");
    Ok(admin.pool(name)?.ok_or_else(unknown)?)
}

fn pool_info(pool: &PoolView, as_json: bool) -> Result<()> {
    if as_json {
        return json("pool.info", to_value(pool)?);
    }
    out!("pool       {}", pool.name);
    out!(
        "id         {} (its PGs are {}.0 to {}.{:x})",
        pool.pool,
        pool.pool,
        pool.pool,
        pool.pg_count.saturating_sub(1)
    );
    out!("state      {}", pool.state);
    let class = pool.device_class.as_ref().map(|class| format!(", on OSDs of device class {class}"));
    out!("replicas   {}, each in a different {}{}", pool.replicas, pool.domain, class.unwrap_or_default());
    out!("pgs        {}", pool.pg_count);
    let trashed =
        if pool.trashed > 0 { format!(", {} in the trash (basalt trash ls)", pool.trashed) } else { String::new() };
    out!("limits     {} (of volumes without their own)", crate::limit_args::in_words(&pool.limits));
    out!("volumes    {}{trashed}; {} segments of 1 GiB", pool.volumes, pool.segments);
    let of = pool.overcommit_percent.map_or_else(String::new, |percent| {
        format!("; with other pools, they could take {percent} % of what the OSDs have")
    });
    out!("sizes      {} together{of}", show(pool.provisioned_bytes));
    out!("available  {}", pool.available_bytes.map_or_else(|| "unknown: no OSD has reported".to_owned(), show));
    let bytes = pool.quota_bytes.map(show);
    let volumes = pool.quota_volumes.map(|most| format!("{most} volumes"));
    let overcommit = pool.quota_overcommit_percent.map(|percent| format!("over-commit of {percent} %"));
    let quota: Vec<String> = bytes.into_iter().chain(volumes).chain(overcommit).collect();
    out!("quota      {}", if quota.is_empty() { "none".to_owned() } else { quota.join(", ") });
    out!("backups    compression {}, unless one is made with --compress", pool.backup_compression);
    Ok(())
}
