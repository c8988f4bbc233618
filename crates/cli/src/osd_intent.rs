//! `basalt osd out`, `in`, `drain` and `replace`: the intent of an administrator for OSDs, and the moves that follow.

use crate::address::Address;
use crate::admin::Admin;
use crate::args::{OsdFormat, OsdIntent, OsdReplace};
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
#[derive(Clone, PartialEq, Eq)]
pub enum Intent {
    Out,
    In,
    Drain,
    Class(String),
}

impl Intent {
    fn thing(&self) -> &'static str {
        match self {
            Intent::Out => "osd.out",
            Intent::In => "osd.in",
            Intent::Drain => "osd.drain",
            Intent::Class(_) => "osd.set-class",
        }
    }

    fn words(&self, many: bool) -> String {
        let what = match self {
            Intent::Out => "out",
            Intent::In => "in",
            Intent::Drain => "being drained",
            Intent::Class(class) => &format!("of device class {class}"),
        };
        format!("{} {what}", if many { "are" } else { "is" })
    }
}

/// Runs `basalt osd out`, `in`, `drain` or `set-class`.
pub fn run(admin: &Admin, intent: &Intent, args: &OsdIntent, as_json: bool) -> Result<Exit> {
    let osds: Vec<OsdId> = args.osds.iter().map(|n| OsdId(*n)).collect();
    let (is_in, drain, device_class) = match intent {
        Intent::Out => (Some(false), None, None),
        Intent::In => (Some(true), Some(false), None),
        Intent::Drain => (None, Some(true), None),
        Intent::Class(class) => (None, None, Some(class.clone())),
    };
    let ask = OsdSet { osds: osds.clone(), is_in, drain, device_class, dry_run: args.dry_run };
    let moves = admin.set_osds(ask)?;
    let names = osds.iter().map(OsdId::to_string).collect::<Vec<_>>().join(", ");
    if !as_json && args.dry_run {
        show_plan(&moves);
    } else if !as_json {
        out!("{names} {}: {}", intent.words(osds.len() > 1), summary(&moves));
    }
    if args.wait {
        let empty = if matches!(intent, Intent::Out | Intent::Drain) { &osds[..] } else { &[] };
        wait(admin, Goal { empty, runs: None }, as_json)?;
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

/// The end of a wait.
struct Goal<'a> {
    /// OSDs that are to hold no replica; without any, nothing is to move any more.
    empty: &'a [OsdId],
    /// An OSD that has to be started before anything moves.
    runs: Option<OsdId>,
}

/// Waits until the OSDs hold no replica, or until nothing moves any more. Prints each change of the progress.
#[allow(clippy::disallowed_methods, reason = "it looks again, at the pace of a reader")]
fn wait(admin: &Admin, goal: Goal, quiet: bool) -> Result<()> {
    let osds = goal.empty;
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
        let left = if osds.is_empty() { moves.running + moves.waiting } else { held };
        // A new leader has no plan yet, and does not know yet which PGs serve.
        let is_new = status.leading_since_ms != leading_since || status.pgs_waiting > 0 || status.health == "waiting";
        let starts = views.iter().find(|view| Some(view.osd) == goal.runs && view.live == "new");
        let moved = moves.running + moves.waiting > 0 || is_new || starts.is_some();
        leading_since = status.leading_since_ms;
        still = if moved { 0 } else { still + 1 };
        match osds.is_empty() {
            false if left == 0 => return Ok(()),
            false if still > STILL_MAX => return Err(stuck(&status, &views, osds).into()),
            true if still > STILL_MAX => return Ok(()),
            _ => {}
        }
        let line = starts.map_or_else(|| progress(&status, left), |new| format!("{} is to be started", new.osd));
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

/// Runs `basalt osd format`.
pub fn format(args: OsdFormat, metas: &[Address], as_json: bool) -> Result<Exit> {
    let formatted = format::format(&options(args, Defaults::default(), metas, as_json))?;
    format::show(&formatted, as_json).map(|()| Exit::Done)
}

/// Runs `basalt osd replace`.
pub fn replace(args: OsdReplace, metas: &[Address], as_json: bool) -> Result<Exit> {
    let OsdReplace { osd, format: args, dry_run, wait: waits } = args;
    let (old, admin) = (OsdId(osd), Admin::connect(metas)?);
    // The new one is where the old one was, and of its class, unless the command says otherwise.
    let known = admin.osds()?.into_iter().find(|osd| osd.osd == old);
    let defaults = known.map_or_else(Defaults::default, |old| Defaults {
        place: Place { host: old.host, rack: old.rack, zone: old.zone },
        device_class: old.device_class,
        replaces: None,
    });
    let format = options(args, Defaults { replaces: Some(old), ..defaults }, metas, as_json);
    if dry_run {
        format::check(&format)?;
        return plan_replacement(&admin, old, &format, as_json);
    }
    let formatted = format::format(&format)?;
    format::show(&formatted, as_json)?;
    if waits {
        wait(&admin, Goal { empty: &[old], runs: Some(formatted.osd) }, as_json)?;
    }
    Ok(Exit::Done)
}

/// Shows the replicas that a new OSD takes over.
fn plan_replacement(admin: &Admin, old: OsdId, format: &Format, as_json: bool) -> Result<Exit> {
    let ask = OsdSet { osds: vec![old], is_in: Some(false), dry_run: true, ..OsdSet::default() };
    let mut moves = admin.set_osds(ask)?;
    moves.retain(|planned| planned.from == old);
    if as_json {
        let moves: Vec<_> = moves.iter().map(|m| json!({ "pg": m.pg, "from": m.from, "bytes": m.bytes })).collect();
        json("osd.replace.plan", json!({ "device": format.device, "replaces": old, "moves": moves }))?;
        return Ok(Exit::Done);
    }
    if !moves.is_empty() {
        let rows = moves.iter().map(|m| vec![m.pg.to_string(), m.from.to_string(), show(m.bytes)]);
        table(&["pg", "from", "about"], rows);
    }
    let bytes = moves.iter().fold(0u64, |sum, m| sum.saturating_add(m.bytes));
    let count = counted(moves.len(), "replica moves", "replicas move");
    out!(
        "nothing was changed; with the command {count} from {old} to the new OSD on {}, about {}",
        format.device.display(),
        show(bytes)
    );
    Ok(Exit::Done)
}

/// Values of options that are not given.
#[derive(Default)]
struct Defaults {
    place: Place,
    device_class: Option<String>,
    replaces: Option<OsdId>,
}

fn options(args: OsdFormat, defaults: Defaults, metas: &[Address], quiet: bool) -> Format {
    let Defaults { place: default, device_class: class_before, replaces } = defaults;
    let place = Place {
        host: args.host.unwrap_or(default.host),
        rack: args.rack.unwrap_or(default.rack),
        zone: args.zone.unwrap_or(default.zone),
    };
    let OsdFormat { device, size, log_device, log_size, force, erase_osd, device_class, .. } = args;
    let device_class = device_class.or(class_before);
    let (metas, reuse) = (metas.to_vec(), false);
    Format { device, size, log_device, log_size, force, erase_osd, reuse, metas, quiet, place, device_class, replaces }
}
