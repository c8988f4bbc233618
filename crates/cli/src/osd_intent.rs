//! `basalt osd out`, `in`, `drain` and `replace`: the intent of an administrator for OSDs, and the moves that follow.

use crate::address::Address;
use crate::admin::Admin;
use crate::args::{OsdFormat, OsdIntent};
use crate::duration;
use crate::errors::{Exit, UserError};
use crate::output::{json, table};
use crate::role::format::{self, Format, Place};
use crate::size::show;
use anyhow::Result;
use control::admin::{OsdSet, OsdView, PlannedMove, Status};
use serde_json::json;
use std::time::Duration;
use types::OsdId;
use types::codes;

/// Pause between two looks at the moves.
const AGAIN: Duration = Duration::from_secs(1);

/// The intent for some OSDs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    Out,
    In,
    Drain,
}

impl Intent {
    fn thing(self) -> &'static str {
        match self {
            Intent::Out => "osd.out",
            Intent::In => "osd.in",
            Intent::Drain => "osd.drain",
        }
    }

    fn words(self, many: bool) -> &'static str {
        match (self, many) {
            (Intent::Out, false) => "is out",
            (Intent::Out, true) => "are out",
            (Intent::In, false) => "is in",
            (Intent::In, true) => "are in",
            (Intent::Drain, false) => "is being drained",
            (Intent::Drain, true) => "are being drained",
        }
    }
}

/// Runs `basalt osd out`, `in` or `drain`.
pub fn run(admin: &Admin, intent: Intent, args: &OsdIntent, as_json: bool) -> Result<Exit> {
    let osds: Vec<OsdId> = args.osds.iter().map(|n| OsdId(*n)).collect();
    let (is_in, drain) = match intent {
        Intent::Out => (Some(false), None),
        Intent::In => (Some(true), Some(false)),
        Intent::Drain => (None, Some(true)),
    };
    let moves = admin.set_osds(OsdSet { osds: osds.clone(), is_in, drain, dry_run: args.dry_run })?;
    let names = osds.iter().map(OsdId::to_string).collect::<Vec<_>>().join(", ");
    if !as_json && args.dry_run {
        show_plan(&moves);
    } else if !as_json {
        out!("{names} {}: {}", intent.words(osds.len() > 1), summary(&moves));
    }
    if args.wait {
        wait(admin, intent, &osds, as_json)?;
    } else if !as_json && !args.dry_run && !moves.is_empty() {
        out!("`basalt status` shows the progress");
    }
    if as_json {
        json(intent.thing(), json!({ "osds": osds, "dry_run": args.dry_run, "waited": args.wait, "moves": moves }))?;
    }
    Ok(Exit::Done)
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn summary(moves: &[PlannedMove]) -> String {
    let placed = moves.iter().filter(|m| m.to.is_some());
    let (count, bytes) = placed.fold((0, 0u64), |(count, bytes), m| (count + 1, bytes.saturating_add(m.bytes)));
    let mut text = match count {
        0 => "no replica moves".to_owned(),
        _ => format!("{}, about {}", counted(count, "replica moves", "replicas move"), show(bytes)),
    };
    let unplaced = moves.len() - count;
    if unplaced > 0 {
        text.push_str(&format!("; {} no OSD to go to", counted(unplaced, "replica has", "replicas have")));
    }
    text
}

fn show_plan(moves: &[PlannedMove]) {
    if !moves.is_empty() {
        let to = |m: &PlannedMove| m.to.map_or_else(|| "-".to_owned(), |to| to.to_string());
        let rows = moves.iter().map(|m| vec![m.pg.to_string(), m.from.to_string(), to(m), show(m.bytes)]);
        table(&["pg", "from", "to", "about"], rows);
    }
    out!("nothing was changed; with the command: {}", summary(moves));
}

/// Looks without any move after which nothing will move: a plan is made every few seconds.
const STILL_MAX: u32 = 8;
/// Looks in a row that may fail: another metadata server takes the leadership meanwhile.
const FAILURES_MAX: u32 = 6;

/// Waits until the OSDs hold no replica, or until nothing moves any more. Prints each change of the progress.
#[allow(clippy::disallowed_methods, reason = "it looks again, at the pace of a reader")]
fn wait(admin: &Admin, intent: Intent, osds: &[OsdId], quiet: bool) -> Result<()> {
    let (mut last, mut still, mut failures, mut leading_since) = (String::new(), 0, 0, 0);
    loop {
        let (status, views) = match admin.status().and_then(|status| Ok((status, admin.osds()?))) {
            Ok(seen) => seen,
            Err(error) if failures >= FAILURES_MAX => return Err(error),
            Err(_) => {
                failures += 1;
                std::thread::sleep(AGAIN);
                continue;
            }
        };
        failures = 0;
        let moves = &status.moves;
        let held = views.iter().filter(|view| osds.contains(&view.osd)).map(|view| view.pgs).sum();
        let left = if intent == Intent::In { moves.running + moves.waiting } else { held };
        // A new leader has no plan yet, and does not know yet which PGs serve.
        let is_new = status.leading_since_ms != leading_since || status.pgs_waiting > 0 || status.health == "waiting";
        let moved = moves.running + moves.waiting > 0 || is_new;
        leading_since = status.leading_since_ms;
        still = if moved { 0 } else { still + 1 };
        match intent {
            Intent::Out | Intent::Drain if left == 0 => return Ok(()),
            Intent::Out | Intent::Drain if still > STILL_MAX => return Err(stuck(&status, &views, osds).into()),
            Intent::In if still > STILL_MAX => return Ok(()),
            _ => {}
        }
        let line = progress(&status, left);
        if line != last && !quiet {
            out!("{line}");
            crate::output::flush();
            last = line;
        }
        std::thread::sleep(AGAIN);
    }
}

fn progress(status: &Status, left: u32) -> String {
    let moves = &status.moves;
    let mut line = format!("{left} left, {} moving, {} waiting", moves.running, moves.waiting);
    if moves.left_bytes > 0 {
        line.push_str(&format!(", about {} at {}/s", show(moves.left_bytes), show(status.recovery.bytes_per_s)));
    }
    if let Some(eta) = moves.eta_ms {
        line.push_str(&format!(", {}", duration::show(Duration::from_millis(eta))));
    }
    line
}

fn stuck(status: &Status, views: &[OsdView], osds: &[OsdId]) -> UserError {
    let holds = views.iter().filter(|view| osds.contains(&view.osd) && view.pgs > 0);
    let holds: Vec<String> = holds.map(|view| format!("{} holds {} PGs", view.osd, view.pgs)).collect();
    let moves = &status.moves;
    let what = format!(
        "{}, and nothing moves: {} no OSD to go to, {} in PGs that do not serve",
        holds.join(", "),
        counted(moves.unplaced as usize, "replica has", "replicas have"),
        counted(moves.blocked as usize, "is", "are")
    );
    UserError::new(
        codes::CANNOT_PLACE,
        what,
        "`basalt health detail` names them; add an OSD, start those that are down, or `basalt osd in` lets them stay",
    )
}

/// Runs `basalt osd format`, and `basalt osd replace` with the OSD that is replaced.
pub fn format(args: OsdFormat, replaces: Option<OsdId>, metas: &[Address], as_json: bool) -> Result<Exit> {
    let mut default = Place::default();
    if let Some(old) = replaces {
        // It is where the old one was, unless the command says otherwise.
        let old = Admin::connect(metas)?.osds()?.into_iter().find(|osd| osd.osd == old);
        default = old.map_or(default, |old| Place { host: old.host, rack: old.rack, zone: old.zone });
    }
    let place = Place {
        host: args.host.unwrap_or(default.host),
        rack: args.rack.unwrap_or(default.rack),
        zone: args.zone.unwrap_or(default.zone),
    };
    let OsdFormat { device, size, log_size, force, erase_osd, .. } = args;
    let (metas, quiet, reuse) = (metas.to_vec(), as_json, false);
    let format = Format { device, size, log_size, force, erase_osd, reuse, metas, quiet, place, replaces };
    let formatted = format::format(&format)?;
    format::show(&formatted, as_json).map(|()| Exit::Done)
}
