//! `basalt pg move`: asks for the move of a replica, or gives moves up, and waits for their end.

use crate::admin::Admin;
use crate::errors::UserError;
use crate::output::json;
use crate::size::show;
use anyhow::Result;
use control::admin::{PgMove, PgView};
use serde_json::json;
use std::time::Duration;
use types::codes;
use types::{OsdId, PgId};

/// Pause between two looks at a move.
const AGAIN: Duration = Duration::from_millis(250);

/// Runs `basalt pg move`. `ends` are the OSDs; `None` gives up the moves of the PG.
pub fn run(admin: &Admin, pg: PgId, ends: Option<(OsdId, OsdId)>, wait: bool, as_json: bool) -> Result<()> {
    match ends {
        Some((from, to)) => _ = admin.move_pg(PgMove { pg, from, to, dry_run: false })?,
        None => admin.cancel_moves(pg)?,
    }
    let view = if wait { until_ended(admin, pg, as_json)? } else { view_of(admin, pg)? };
    if as_json {
        let ends = ends.map(|(from, to)| json!({ "from": from, "to": to }));
        return json("pg.move", json!({ "pg": pg, "move": ends, "change": view.change, "members": view.members }));
    }
    let members: Vec<String> = view.members.iter().map(|m| m.osd.to_string()).collect();
    match (&view.change, ends) {
        (Some(_), _) => out!("pg {pg}: {}; `basalt pg ls` shows its end", change_words(&view)),
        (None, Some((_, to))) if !view.members.iter().any(|m| m.osd == to) => {
            let what = format!("the move of PG {pg} was given up: its members are {}", members.join(", "));
            return Err(UserError::new(codes::BAD_MOVE, what, "`basalt events` has the reason").into());
        }
        (None, _) => out!("pg {pg} is on {}", members.join(", ")),
    }
    Ok(())
}

/// Runs `basalt pg move --dry-run`.
pub fn plan(admin: &Admin, pg: PgId, (from, to): (OsdId, OsdId), as_json: bool) -> Result<()> {
    let moves = admin.move_pg(PgMove { pg, from, to, dry_run: true })?;
    let view = view_of(admin, pg)?;
    if as_json {
        return json(
            "pg.move.plan",
            json!({ "pg": pg, "from": from, "to": to, "change": view.change, "moves": moves }),
        );
    }
    match moves.first() {
        Some(planned) => out!(
            "nothing was changed; with the command the replica of PG {pg} moves from {from} to {to}, about {}",
            show(planned.bytes)
        ),
        None => out!("pg {pg}: {}; the same move changes nothing", change_words(&view)),
    }
    Ok(())
}

/// Returns the change of a PG in words; empty without one.
pub fn change_words(view: &PgView) -> String {
    let Some(change) = &view.change else { return String::new() };
    let behind = if change.queued > 0 { format!(", {} more wait", change.queued) } else { String::new() };
    format!("moves from {} to {} ({}{behind})", change.from, change.to, change.step)
}

fn view_of(admin: &Admin, pg: PgId) -> Result<PgView> {
    let views = admin.pgs(None)?;
    let view = views.into_iter().find(|view| view.pg == pg);
    Ok(view.ok_or_else(|| {
        UserError::new(codes::PG_UNKNOWN, format!("there is no PG {pg}"), "`basalt pg ls` lists them")
    })?)
}

/// Waits for the end of the moves; prints each step.
#[allow(clippy::disallowed_methods, reason = "it looks again, at the pace of a reader")]
fn until_ended(admin: &Admin, pg: PgId, quiet: bool) -> Result<PgView> {
    let mut last = String::new();
    loop {
        let view = view_of(admin, pg)?;
        let words = change_words(&view);
        if words.is_empty() {
            return Ok(view);
        }
        if words != last && !quiet {
            out!("pg {pg}: {words}");
            last = words;
        }
        std::thread::sleep(AGAIN);
    }
}
