//! Compares the present state with the one last recorded, and records the difference as events.
//!
//! It runs once a second. [`WatchRecord`] holds the state that the events so far report, and is written in one
//! transaction with them. So a new meta continues where the last one stopped, and an event is neither lost nor repeated.
//!
//! Invariant: an entity that changes all the time costs an event every `event_gap_max` at most (a volume one of each kind).
//! Many PGs of one pool that change together cost one event, and a tick writes at most [`EVENTS_PER_TICK`]. A change that
//! has to wait is not lost. A state is compared again at the next tick, and the last event of each kind of a volume is
//! kept.

use super::osds::Liveness;
use super::{Control, ControlAction, Now};
use crate::ControlConfig;
use crate::events::Note;
use crate::health::{self, NEARFULL_PERCENT};
use crate::records::{Key, Record, WatchRecord, Write};
use std::collections::BTreeMap;
use std::time::Duration;
use types::{OsdId, PgId, PoolId, Time, VolumeId};

/// Most events of one tick.
const EVENTS_PER_TICK: usize = 12;
/// Up to this many PGs of a pool that change in one tick have an event each; more have one together.
const PGS_ALONE: usize = 4;
/// Most PGs that a joint event names.
const PGS_NAMED: usize = 8;
/// Most PGs whose states are remembered across a change of the leading meta. The states of further PGs are lost with the
/// leader.
const PGS_REMEMBERED: usize = 1024;

/// Time at which an entity may have its next event.
struct Damper {
    next: Time,
    gap: Duration,
}

/// A change that no event has reported yet.
struct Untold {
    is: String,
    since_ms: u64,
    /// The tick that saw it last.
    seen: Time,
}

/// An event of a volume that has to wait.
struct Waiting {
    note: Note,
    /// Number of earlier events of its kind that it replaced.
    replaced: u64,
}

/// Volatile state of the leading meta for events.
#[derive(Default)]
pub(super) struct Watch {
    config: ControlConfig,
    at: Time,
    dampers: BTreeMap<String, Damper>,
    leaders: BTreeMap<PgId, OsdId>,
    /// States of PGs as last reported, beyond [`PGS_REMEMBERED`]; [`WatchRecord`] has the others.
    pgs: BTreeMap<PgId, String>,
    /// Changes of other entities that have to wait.
    untold: BTreeMap<String, Untold>,
    /// Events of volumes that have to wait: per volume the last of each kind, in the order in which they came.
    volumes: BTreeMap<VolumeId, Vec<Waiting>>,
    /// Address of the new leader, to be recorded first.
    pub takes_lead: Option<String>,
}

impl Watch {
    pub fn new(config: ControlConfig) -> Watch {
        Watch { config, ..Watch::default() }
    }

    fn may(&self, now: Time, entity: &str) -> bool {
        self.dampers.get(entity).is_none_or(|damper| damper.next <= now)
    }

    fn spend(&mut self, now: Time, entity: &str) {
        let ControlConfig { event_gap_min: min, event_gap_max: max, event_quiet: quiet, .. } = self.config;
        let damper = self.dampers.entry(entity.to_owned()).or_insert(Damper { next: now, gap: min / 2 });
        damper.gap = if now.since(damper.next) > quiet { min } else { (damper.gap * 2).min(max) };
        damper.next = now + damper.gap;
    }

    /// Whether an entity may have an event now. If so, the event counts as given.
    pub fn take(&mut self, now: Time, entity: &str) -> bool {
        let may = self.may(now, entity);
        if may {
            self.spend(now, entity);
        }
        may
    }
}

impl Watch {
    /// Returns since when the entity is in a state that no event has reported yet.
    fn untold_since(&mut self, entity: String, is: &str, now: Now) -> u64 {
        let known = self.untold.get(&entity).filter(|known| known.is == is);
        let since_ms = known.map_or(now.wall_ms, |known| known.since_ms);
        self.untold.insert(entity, Untold { is: is.to_owned(), since_ms, seen: now.mono });
        since_ms
    }
}

/// Returns how bad a state of a PG is.
fn rank(state: &str) -> u8 {
    match state {
        "active" => 0,
        s if s.contains("down") || s.contains("creating") => 3,
        s if s.contains("inconsistent") => 2,
        _ => 1,
    }
}

impl Control {
    /// Records an event in this turn's transaction; it is written to the log when that is committed.
    pub(super) fn note(&mut self, now: Now, note: Note) {
        let note = self.asked(note);
        let event = note.record(&self.records, now.wall_ms);
        self.record(vec![event.write()]);
        self.held.push(ControlAction::Event(event));
    }

    /// Returns the event with the administrator whose command is planned, unless it names another origin.
    fn asked(&self, note: Note) -> Note {
        let by = if note.by.is_empty() { self.asker.clone() } else { note.by };
        Note { by, ..note }
    }

    /// Records an event of a volume, at once or when the volume may have one again. The command of an administrator always has one.
    pub(super) fn note_volume(&mut self, now: Now, volume: VolumeId, note: Note) {
        if !self.asker.is_empty() {
            return self.note(now, note);
        }
        if !self.watch.volumes.contains_key(&volume) && self.watch.take(now.mono, &volume_entity(volume)) {
            return self.note(now, note);
        }
        let note = self.asked(note);
        let waiting = self.watch.volumes.entry(volume).or_default();
        let before = waiting.iter().position(|w| w.note.kind == note.kind).map(|at| waiting.remove(at));
        let replaced = before.map_or(0, |before| before.replaced.saturating_add(1));
        waiting.push(Waiting { note: Note { at_ms: Some(now.wall_ms), ..note }, replaced });
    }

    /// Records events of volumes that have waited long enough, each with its original time.
    fn watch_volumes(&mut self, now: Now, room: usize) {
        let mut told = 0;
        let volumes: Vec<VolumeId> = self.watch.volumes.keys().copied().collect();
        for volume in volumes {
            let count = self.watch.volumes.get(&volume).map_or(0, Vec::len);
            if told + count > room || !self.watch.take(now.mono, &volume_entity(volume)) {
                continue;
            }
            told += count;
            for Waiting { mut note, replaced } in self.watch.volumes.remove(&volume).unwrap_or_default() {
                if replaced > 0 {
                    note.text.push_str(&format!("; {replaced} more since the last event of this kind"));
                }
                self.note(now, note);
            }
        }
    }

    /// Marks a registered OSD as new: the event of its registration already says that it has not run.
    pub(super) fn watch_new_osd(&mut self, osd: OsdId) {
        let mut seen = self.records.watch.clone();
        seen.osds.insert(osd, "new".to_owned());
        self.record(vec![Write::Put(Record::Watch(seen))]);
    }

    pub(super) fn watch_cluster(&mut self, now: Now) {
        if self.watch.at > now.mono || self.batch.is_full() {
            return;
        }
        self.watch.at = now.mono + self.config.watch_every;
        // An answer may wait for a time, too.
        self.waits_due = true;
        self.watch.dampers.retain(|_, damper| now.mono.since(damper.next) <= self.config.event_quiet);
        if let Some(address) = self.watch.takes_lead.take() {
            self.note(now, Note::info("meta.leads", "meta", format!("the meta at {address} leads")));
        }
        self.watch_idle(now.mono);
        let mut seen = self.records.watch.clone();
        let mut notes = Vec::new();
        self.watch_health(now, &mut seen, &mut notes);
        self.watch_osds(now, &mut seen, &mut notes);
        self.watch_pgs(now, &mut seen, &mut notes);
        self.watch_leaders(now.mono, &mut notes);
        self.watch_mutes(now, &mut notes);
        let room = EVENTS_PER_TICK.saturating_sub(notes.len());
        for note in notes {
            self.note(now, note);
        }
        self.watch_volumes(now, room);
        self.watch.untold.retain(|_, untold| untold.seen == now.mono);
        if seen != self.records.watch {
            self.record(vec![Write::Put(Record::Watch(seen))]);
        }
    }

    /// Returns the state words of an OSD: words that are missing are false.
    fn osd_words(&self, now: Time, osd: OsdId, before: &str) -> Vec<&'static str> {
        let Some(record) = self.records.osds.get(&osd) else { return Vec::new() };
        let had = |word: &'static str| before.split(' ').any(|w| w == word).then_some(word);
        let liveness = self.liveness(now, osd);
        let live = match liveness {
            _ if record.addr.is_none() => Some("new"),
            Liveness::Unknown => had("down").or(had("new")),
            Liveness::Down => Some("down"),
            Liveness::Up => None,
        };
        let up = self.osds.get(&osd).filter(|live| liveness == Liveness::Up && live.reported);
        let full = up.map_or(had("full"), |live| live.full.then_some("full"));
        let percent = |used: u64, free: u64| (u128::from(used) * 100).checked_div(u128::from(used) + u128::from(free));
        let near = |used, free| percent(used, free).unwrap_or(0) >= u128::from(NEARFULL_PERCENT);
        let near = up.map_or(had("nearfull"), |l| near(l.used_bytes, l.free_bytes).then_some("nearfull"));
        let stopped = record.poisoned.as_ref().is_some_and(|p| p.incarnation == record.incarnation);
        let slow = up.map_or(had("slow"), |live| live.slow_device.as_ref().map(|_| "slow"));
        [live, full, near, stopped.then_some("stopped"), slow].into_iter().flatten().collect()
    }

    fn osd_note(&self, osd: OsdId, word: &str, begins: bool) -> Note {
        let Some(record) = self.records.osds.get(&osd) else { return Note::info("osd.up", osd, "") };
        let at = record.addr.map_or_else(|| "no address".to_owned(), |addr| addr.to_string());
        let why = record.poisoned.as_ref().map_or("", |p| p.reason.as_str());
        match (word, begins) {
            ("down", true) => Note::warning("osd.down", osd, format!("{osd} on {} ({at}) is down", record.host)),
            ("down", false) => Note::info("osd.up", osd, format!("{osd} on {} ({at}) is up", record.host)),
            ("new", _) => {
                Note::info("osd.up", osd, format!("{osd} on {} ({at}) is up for the first time", record.host))
            }
            ("full", true) => Note::warning("osd.full", osd, format!("{osd} is full")),
            ("full", false) => Note::info("osd.full_over", osd, format!("{osd} is no longer full")),
            ("nearfull", true) => {
                Note::warning("osd.nearfull", osd, format!("{osd} is filled to {NEARFULL_PERCENT} % or more"))
            }
            ("nearfull", false) => {
                Note::info("osd.nearfull_over", osd, format!("{osd} is filled to less than {NEARFULL_PERCENT} %"))
            }
            ("slow", true) => {
                let why =
                    self.osds.get(&osd).and_then(|live| live.slow_device.as_deref()).unwrap_or("a device is slow");
                Note::warning("osd.slow_device", osd, format!("{osd}: {why}"))
            }
            ("slow", false) => Note::info("osd.slow_device_over", osd, format!("no device of {osd} is slow any more")),
            (_, true) => Note::warning("osd.stopped", osd, format!("the store of {osd} stopped: {why}")),
            (_, false) => Note::info("osd.serves", osd, format!("the store of {osd} serves again")),
        }
    }

    fn watch_osds(&mut self, now: Now, seen: &mut WatchRecord, notes: &mut Vec<Note>) {
        let osds: Vec<OsdId> = self.records.osds.keys().copied().collect();
        seen.osds.retain(|osd, _| self.records.osds.contains_key(osd));
        for osd in osds {
            let before = seen.osds.get(&osd).cloned().unwrap_or_default();
            let is = self.osd_words(now.mono, osd, &before);
            let mut after: Vec<&str> = Vec::new();
            for word in ["new", "down", "full", "nearfull", "stopped", "slow"] {
                let had = before.split(' ').any(|w| w == word);
                let has = is.contains(&word);
                // The event of the registration already says that the OSD has not run.
                let silent = word == "new" && has || word == "down" && is.contains(&"new");
                let told = had == has || silent || self.tell_osd(now, osd, (word, has), notes);
                after.extend((if told { has } else { had }).then_some(word));
            }
            match after.is_empty() {
                true => seen.osds.remove(&osd),
                false => seen.osds.insert(osd, after.join(" ")),
            };
        }
    }

    /// Returns the state of the PG that the last event reported.
    pub(super) fn told_of(&self, pg: PgId) -> &str {
        self.records.watch.pgs.get(&pg).or(self.watch.pgs.get(&pg)).map_or("active", String::as_str)
    }

    /// Whether the OSD may have its event now. If so, the event is recorded.
    fn tell_osd(&mut self, now: Now, osd: OsdId, (word, begins): (&str, bool), notes: &mut Vec<Note>) -> bool {
        let entity = format!("{osd} {word}");
        let may = notes.len() < EVENTS_PER_TICK && self.watch.take(now.mono, &entity);
        let at_ms = Some(self.watch.untold_since(entity, if begins { "is" } else { "is not" }, now));
        if may {
            notes.push(Note { at_ms, ..self.osd_note(osd, word, begins) });
        }
        may
    }

    fn watch_pgs(&mut self, now: Now, seen: &mut WatchRecord, notes: &mut Vec<Note>) {
        seen.pgs.retain(|pg, _| self.records.pgs.contains_key(pg));
        self.watch.pgs.retain(|pg, _| self.records.pgs.contains_key(pg));
        let mut pools: BTreeMap<PoolId, Vec<(PgId, String, String, u64)>> = BTreeMap::new();
        for pg in self.records.pgs.values() {
            let mut state = self.pg_state(now.mono, pg);
            if state.contains(&"waiting") {
                continue;
            }
            state.retain(|word| *word != "recovering");
            let is = state.join("+");
            let (was, entity) = (self.told_of(pg.pg).to_owned(), format!("pg {}", pg.pg));
            if is == was {
                continue;
            }
            let may = self.watch.may(now.mono, &entity);
            let since_ms = self.watch.untold_since(entity, &is, now);
            if may {
                pools.entry(pg.pg.pool).or_default().push((pg.pg, was, is, since_ms));
            }
        }
        for (pool, changes) in pools {
            let mut groups: BTreeMap<(String, String), Vec<(PgId, u64)>> = BTreeMap::new();
            let alone = changes.len() <= PGS_ALONE;
            for (pg, was, is, since_ms) in changes {
                groups.entry((was, is)).or_default().push((pg, since_ms));
            }
            for ((was, is), pgs) in groups {
                let parts: Vec<Vec<(PgId, u64)>> =
                    if alone { pgs.iter().map(|pg| vec![*pg]).collect() } else { vec![pgs] };
                for part in parts.into_iter().take(EVENTS_PER_TICK.saturating_sub(notes.len())) {
                    let at_ms = part.iter().map(|(_, since_ms)| *since_ms).min();
                    let pgs: Vec<PgId> = part.into_iter().map(|(pg, _)| pg).collect();
                    notes.push(Note { at_ms, ..self.pg_note(pool, &pgs, &was, &is) });
                    for pg in pgs {
                        self.watch.spend(now.mono, &format!("pg {pg}"));
                        seen.pgs.remove(&pg);
                        self.watch.pgs.remove(&pg);
                        if is != "active" {
                            let has_room = seen.pgs.len() < PGS_REMEMBERED;
                            let told = if has_room { &mut seen.pgs } else { &mut self.watch.pgs };
                            told.insert(pg, is.clone());
                        }
                    }
                }
            }
        }
    }

    fn pool_name(&self, pool: PoolId) -> &str {
        self.records.pools.get(&pool).map_or("?", |pool| pool.name.as_str())
    }

    fn pg_note(&self, pool: PoolId, pgs: &[PgId], was: &str, is: &str) -> Note {
        let (subject, text) = match pgs {
            [pg] => (format!("pg {pg}"), format!("pg {pg} is {is} (was {was})")),
            _ => {
                let name = self.pool_name(pool);
                let text = format!("{} PGs of pool {name} are {is} (were {was}): {}", pgs.len(), names(pgs));
                (format!("pool {name}"), text)
            }
        };
        let note = if rank(is) > rank(was) { Note::warning } else { Note::info };
        note("pg.state", subject, text)
    }

    fn watch_leaders(&mut self, now: Time, notes: &mut Vec<Note>) {
        self.watch.leaders.retain(|pg, _| self.records.pgs.contains_key(pg));
        let mut pools: BTreeMap<PoolId, Vec<(PgId, OsdId, OsdId)>> = BTreeMap::new();
        for (pg, lead) in &self.leads {
            if !self.is_up(now, lead.osd) || !lead.report.active {
                continue;
            }
            let before = *self.watch.leaders.entry(*pg).or_insert(lead.osd);
            if before != lead.osd {
                pools.entry(pg.pool).or_default().push((*pg, before, lead.osd));
            }
        }
        for (pool, changes) in pools {
            if notes.len() >= EVENTS_PER_TICK || !self.watch.take(now, &format!("leaders of {pool}")) {
                continue;
            }
            let (pgs, name) = (changes.iter().map(|(pg, ..)| *pg).collect::<Vec<_>>(), self.pool_name(pool));
            notes.push(match &changes[..] {
                [(pg, from, to)] => {
                    Note::info("pg.leader", format!("pg {pg}"), format!("pg {pg} is led by {to} (was {from})"))
                }
                _ => {
                    let text = format!("{} PGs of pool {name} have another leader: {}", pgs.len(), names(&pgs));
                    Note::info("pg.leader", format!("pool {name}"), text)
                }
            });
            for (pg, _, to) in changes {
                self.watch.leaders.insert(pg, to);
            }
        }
    }

    /// Updates since when each check holds, and the health word. While reports are awaited, no check is taken back.
    fn watch_health(&mut self, now: Now, seen: &mut WatchRecord, notes: &mut Vec<Note>) {
        let found = self.findings(now);
        let waits = found.iter().any(|f| f.rule.code == health::WAITING);
        seen.checks.retain(|code, _| waits || found.iter().any(|f| f.rule.code == code));
        for finding in &found {
            seen.checks.entry(finding.rule.code.to_owned()).or_insert(now.wall_ms);
        }
        let checks = self.checks_of(now, found);
        let word = health::word(checks.iter());
        let was = if seen.health.is_empty() { "ok" } else { seen.health.as_str() };
        if word == was || word == "waiting" {
            return;
        }
        let at_ms = Some(self.watch.untold_since("health".to_owned(), word, now));
        if !self.watch.take(now.mono, "health") {
            return;
        }
        let codes: Vec<&str> =
            checks.iter().filter(|c| !c.muted && c.severity > health::Severity::Ok).map(|c| c.code.as_str()).collect();
        let because = if codes.is_empty() { String::new() } else { format!(": {}", codes.join(", ")) };
        let text = format!("the health is {word} (was {was}){because}");
        let worse = word == "down" || was == "ok";
        let note = if worse { Note::warning } else { Note::info };
        notes.push(Note { at_ms, ..note("health.changed", "cluster", text) });
        seen.health = word.to_owned();
    }

    /// Removes mutes whose time is over.
    fn watch_mutes(&mut self, now: Now, notes: &mut Vec<Note>) {
        let over = self.records.mutes.iter().filter(|(_, mute)| mute.until_ms.is_some_and(|at| at <= now.wall_ms));
        let over: Vec<&'static str> = over.map(|(code, _)| *code).take(EVENTS_PER_TICK).collect();
        for code in over {
            self.record(vec![Write::Delete(Key::Mute(code))]);
            notes.push(Note::info("health.unmuted", "cluster", format!("{code} counts again: its mute is over")));
        }
    }
}

fn volume_entity(volume: VolumeId) -> String {
    format!("volume {volume}")
}

fn names(pgs: &[PgId]) -> String {
    let mut text = pgs.iter().take(PGS_NAMED).map(PgId::to_string).collect::<Vec<_>>().join(" ");
    if pgs.len() > PGS_NAMED {
        text.push_str(" …");
    }
    text
}
