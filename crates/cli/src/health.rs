//! The commands that show the health and the events of the cluster.

use crate::address::Address;
use crate::admin::Admin;
use crate::args::Health;
use crate::duration;
use crate::errors::Exit;
use crate::output::{self, json, json_line, table};
use crate::size::show;
use anyhow::Result;
use control::admin::{EventsPage, Moves, Recovery, Status};
use control::events::{EVENTS_MAX, Event};
use control::health::Check;
use serde_json::{json, to_value};
use std::io::Write;
use std::time::Duration;

/// Most lines of one check in `health detail`; JSON has more.
const DETAILS_MAX: usize = 20;
/// Interval at which `events --follow` asks for new events.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

fn exit(health: &str) -> Exit {
    match health {
        "ok" | "waiting" => Exit::Done,
        "down" => Exit::Down,
        _ => Exit::Degraded,
    }
}

fn age(since_ms: u64) -> String {
    duration::show(Duration::from_millis(duration::now_ms().saturating_sub(since_ms)))
}

fn row(check: &Check) -> Vec<String> {
    let mute = match (check.muted, check.muted_until_ms) {
        (false, _) => String::new(),
        (true, None) => ", muted".to_owned(),
        (true, Some(at)) => format!(", muted until {}", duration::moment(at)),
    };
    let summary = format!("{} (for {}{mute})", check.summary, age(check.since_ms));
    vec![check.severity.name().to_owned(), check.code.clone(), summary]
}

fn checks(checks: &[Check]) {
    if !checks.is_empty() {
        table(&["severity", "check", "what"], checks.iter().map(row));
    }
}

/// Runs `basalt status`. The health determines the exit code.
pub fn status(admin: &Admin, metas: &[Address], as_json: bool) -> Result<Exit> {
    let status = admin.status()?;
    let (metas, each) = crate::metas::summary(metas)?;
    let versions = crate::show::versions(&status.version, &admin.osds()?);
    if as_json {
        let mut body = to_value(&status)?;
        let row = |(version, daemons)| json!({ "version": version, "daemons": daemons });
        body["versions"] = versions.into_iter().map(row).collect();
        body["metas"] = each.into();
        json("status", body)?;
        return Ok(exit(&status.health));
    }
    out!("cluster   {}", status.cluster);
    out!("health    {}", status.health);
    out!("metas     {metas}");
    let unstarted = if status.osds_new == 0 { String::new() } else { format!(", {} never started", status.osds_new) };
    out!("osds      {} ({} up, {} in){unstarted}", status.osds, status.osds_up, status.osds_in);
    out!("pgs       {}", pgs(&status));
    if let Some(line) = progress(&status.recovery) {
        out!("recovery  {line}");
    }
    if let Some(line) = moves(&status.moves) {
        out!("moves     {line}");
    }
    let io = &status.io;
    out!(
        "client    {} reads/s ({}/s), {} writes/s ({}/s)",
        io.reads_per_s,
        show(io.read_bytes_per_s),
        io.writes_per_s,
        show(io.write_bytes_per_s)
    );
    out!("volumes   {} in {} pools, {} segments of 1 GiB", status.volumes, status.pools, status.segments);
    out!(
        "space     {} used of {}, {} free",
        show(status.used_bytes),
        show(status.capacity_bytes),
        show(status.free_bytes)
    );
    let mixed = if versions.len() > 1 { " (mixed versions)" } else { "" };
    for (version, daemons) in versions {
        out!("version   {version}: {}{mixed}", daemons.join(", "));
    }
    checks(&status.checks);
    Ok(exit(&status.health))
}

fn pgs(status: &Status) -> String {
    let mut parts = vec![match status.pgs_degraded {
        0 => format!("{} active", status.pgs_active),
        degraded => format!("{} active, of them {degraded} degraded", status.pgs_active),
    }];
    let more = [(status.pgs_down, "down"), (status.pgs_waiting, "waiting for reports")];
    parts.extend(more.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    format!("{} ({})", status.pgs, parts.join(", "))
}

fn progress(recovery: &Recovery) -> Option<String> {
    if recovery.pgs == 0 && recovery.streams == 0 {
        return None;
    }
    let mut line = format!("{} PGs, {} backfills", recovery.pgs, recovery.streams);
    if recovery.left_bytes > 0 {
        line.push_str(&format!(", {} left at {}/s", show(recovery.left_bytes), show(recovery.bytes_per_s)));
    }
    if let Some(eta) = recovery.eta_ms {
        line.push_str(&format!(", about {}", duration::show(Duration::from_millis(eta))));
    }
    Some(line)
}

fn moves(moves: &Moves) -> Option<String> {
    let parts = [
        (moves.running, "running"),
        (moves.waiting, "waiting"),
        (moves.blocked, "in PGs that do not serve"),
        (moves.unplaced, "without an OSD to go to"),
    ];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    let mut line = parts.collect::<Vec<_>>().join(", ");
    if line.is_empty() {
        return None;
    }
    if moves.left_bytes > 0 {
        line.push_str(&format!(", about {} left", show(moves.left_bytes)));
    }
    if let Some(eta) = moves.eta_ms {
        line.push_str(&format!(", {}", duration::show(Duration::from_millis(eta))));
    }
    Some(line)
}

/// Runs `basalt health ...`.
pub fn health(admin: &Admin, command: Option<&Health>, as_json: bool) -> Result<Exit> {
    match command {
        None => print_health(&admin.status()?, false, as_json),
        Some(Health::Detail) => print_health(&admin.status()?, true, as_json),
        Some(Health::Mute { code, time }) => {
            admin.mute(code, *time)?;
            let how_long = time
                .map_or_else(|| "until `basalt health unmute`".to_owned(), |t| format!("for {}", duration::show(t)));
            said("health.mute", code, &format!("{code} does not count {how_long}"), as_json)
        }
        Some(Health::Unmute { code }) => {
            admin.unmute(code)?;
            said("health.unmute", code, &format!("{code} counts"), as_json)
        }
    }
}

fn said(thing: &str, code: &str, text: &str, as_json: bool) -> Result<Exit> {
    if as_json {
        json(thing, json!({ "code": code, "done": true }))?;
    } else {
        out!("{text}");
    }
    Ok(Exit::Done)
}

fn print_health(status: &Status, detail: bool, as_json: bool) -> Result<Exit> {
    if as_json {
        json("health", json!({ "health": status.health, "checks": status.checks }))?;
        return Ok(exit(&status.health));
    }
    out!("health {}", status.health);
    if !detail {
        checks(&status.checks);
        return Ok(exit(&status.health));
    }
    for check in &status.checks {
        out!("{}", row(check).join("  "));
        let lines = &check.details[..check.details.len().min(DETAILS_MAX)];
        lines.iter().for_each(|line| out!("    {line}"));
        let more = check.count.saturating_sub(lines.len() as u64);
        if more > 0 {
            out!("    … and {more} more");
        }
        out!("    next: {}", check.next);
    }
    Ok(exit(&status.health))
}

fn event_line(event: &Event) -> String {
    let level = event.level.name().to_uppercase();
    let width = control::events::KINDS.iter().map(|kind| kind.name.len()).max().unwrap_or(0);
    // The texts of some kinds name the client.
    let is_told = event.by.is_empty() || event.text.contains(&event.by);
    let by = if is_told { String::new() } else { format!(", by {}", event.by) };
    format!("{}  {level:7}  {:width$}  {}{by}", duration::moment(event.at_ms), event.kind, event.text)
}

/// Whether an event names a thing: a volume is also named with one of its snapshots.
fn names(event: &Event, of: &str) -> bool {
    let is_it = |word: &str| {
        let word = word.trim_end_matches([',', ':', ';']);
        word.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('@'))
    };
    event.subject.split_whitespace().chain(event.text.split_whitespace()).any(is_it)
}

/// Whether events of the time that was asked for may be gone: its oldest one is the oldest that is kept.
fn is_cut(oldest: Option<u64>, last: u64) -> bool {
    oldest.is_some_and(|seq| seq > 1 && seq + EVENTS_MAX <= last + 1)
}

/// Runs `basalt events`. Following continues over changes of the leading meta.
pub fn events(admin: &Admin, (since, of): (Duration, Option<&str>), follow: bool, as_json: bool) -> Result<()> {
    if follow {
        return follow_events(admin, (since, of), as_json);
    }
    let (mut all, mut after) = (EventsPage { events: Vec::new(), last: 0 }, 0);
    let mut oldest = None;
    loop {
        let page = admin.events(after, Some(since))?;
        oldest = oldest.or(page.events.first().map(|event| event.seq));
        let is_last = page.events.last().is_none_or(|event| event.seq >= page.last);
        all.last = page.last;
        after = page.events.last().map_or(after, |event| event.seq);
        all.events.extend(page.events.into_iter().filter(|event| of.is_none_or(|of| names(event, of))));
        if is_last {
            break;
        }
    }
    if as_json {
        return json("events", to_value(&all)?);
    }
    if is_cut(oldest, all.last) {
        output::remark(&format!("older events of this time are gone: the newest {EVENTS_MAX} are kept"));
    }
    all.events.iter().for_each(|event| out!("{}", event_line(event)));
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "a command that follows waits between two looks")]
fn follow_events(admin: &Admin, (since, of): (Duration, Option<&str>), as_json: bool) -> Result<()> {
    let mut page = admin.events(0, Some(since))?;
    let mut is_lost = false;
    loop {
        for event in page.events.iter().filter(|event| of.is_none_or(|of| names(event, of))) {
            match as_json {
                true => json_line("event", to_value(event)?)?,
                false => out!("{}", event_line(event)),
            }
        }
        let after = page.events.last().map_or(page.last, |event| event.seq);
        if after >= page.last {
            std::thread::sleep(FOLLOW_EVERY);
        }
        match admin.events(after, None) {
            Ok(next) => (page, is_lost) = (next, false),
            Err(error) => {
                if !std::mem::replace(&mut is_lost, true) {
                    // Standard error may be closed, and there is no other place for the message.
                    let _ = writeln!(std::io::stderr(), "basalt: {error:#}; retrying");
                }
                page = EventsPage { events: Vec::new(), last: after };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{is_cut, names};
    use control::events::{Event, Level};

    #[test]
    fn a_listing_that_reaches_the_oldest_kept_event_may_be_cut() {
        assert!(!is_cut(None, 50_000) && !is_cut(Some(1), 10_000) && !is_cut(Some(40_002), 50_000));
        assert!(is_cut(Some(40_001), 50_000) && is_cut(Some(2), 10_001));
    }

    #[test]
    fn events_are_found_by_what_they_name() {
        let event = |subject: &str, text: &str| Event {
            seq: 1,
            at_ms: 0,
            kind: "volume.renamed".into(),
            level: Level::Info,
            subject: subject.into(),
            by: String::new(),
            text: text.into(),
        };
        let renamed = event("volume main/new", "volume main/old is now main/new");
        assert!(names(&renamed, "main/old") && names(&renamed, "main/new"));
        assert!(!names(&renamed, "main/ol") && !names(&renamed, "main") && !names(&renamed, "old"));
        let cut = event("volume main/a", "snapshot main/a@s, main/b@s is made");
        assert!(names(&cut, "main/a") && names(&cut, "main/b") && names(&cut, "main/b@s") && !names(&cut, "main/b@"));
        assert!(names(&event("osd.3", "osd.3: its store has stopped"), "osd.3"));
        assert!(!names(&event("osd.31", "osd.31 is down"), "osd.3"));
        assert!(names(&event("pool fast", "pool fast is made"), "fast"));
    }
}
