//! Requests of administrators.

use super::clients::WaitFor;
use super::{Control, ControlAction, Now, Token};
use crate::admin::{AdminAnswer, AdminAsk, EventsPage, OsdRegister, PoolCreate};
use crate::events::{EVENTS_PER_ANSWER_MAX, Note, size};
use crate::health;
use crate::plan;
use crate::records::{Key, MuteRecord, Record, Write};
use crate::refusal::refuse;
use crate::settings::NOOUT;
use types::OsdId;
use types::codes;
use types::control::Refusal;

impl Control {
    pub(super) fn take_admin(&mut self, now: Now, token: Token, ask: AdminAsk) {
        let is_read = ask.is_read();
        match self.plan_admin(now, token, ask) {
            Ok(Some(answer)) => self.held.push(ControlAction::AdminAnswer { token, answer: Ok(answer), is_read }),
            Ok(None) => {}
            Err(refusal) => self.answer_admin(token, Err(refusal)),
        }
    }

    /// Plans the answer to a request; `None` when the answer waits.
    fn plan_admin(&mut self, now: Now, token: Token, ask: AdminAsk) -> Result<Option<AdminAnswer>, Refusal> {
        match ask {
            AdminAsk::Status => return Ok(Some(AdminAnswer::Status(self.status(now)))),
            AdminAsk::OsdList => return Ok(Some(AdminAnswer::Osds(self.osd_views(now.mono)))),
            AdminAsk::PoolList => return Ok(Some(AdminAnswer::Pools(self.pool_views(now.mono)))),
            AdminAsk::PgList { pool } => return Ok(Some(AdminAnswer::Pgs(self.pg_views(now.mono, &pool)?))),
            AdminAsk::VolumeList { pool } => {
                return Ok(Some(AdminAnswer::Volumes(self.volume_views(now.mono, &pool)?)));
            }
            AdminAsk::VolumeInfo { name } => {
                let volume = self.records.volume(&name)?;
                return Ok(Some(AdminAnswer::Volume(self.volume_view(now.mono, volume))));
            }
            AdminAsk::OsdReserve => return self.reserve_osd().map(Some),
            AdminAsk::OsdRemove { osd } => return self.remove_osd(now, osd).map(Some),
            AdminAsk::OsdRegister(ask) => return self.register(now, &ask).map(Some),
            AdminAsk::PgMove(ask) => return self.move_pg(now, &ask).map(|moves| Some(AdminAnswer::Moves(moves))),
            AdminAsk::PgMoveCancel { pg } => return self.cancel_move(now, pg).map(|()| Some(AdminAnswer::Done)),
            AdminAsk::PgForce(ask) => return self.force_pg(now, &ask).map(|view| Some(AdminAnswer::Forced(view))),
            AdminAsk::OsdSet(ask) => return self.set_osds(now, &ask).map(|moves| Some(AdminAnswer::Moves(moves))),
            AdminAsk::ConfigList => return Ok(Some(self.settings())),
            AdminAsk::ConfigSet { name, value } => return self.change_setting(now, &name, value.as_deref()).map(Some),
            AdminAsk::VolumeCreate { name, len_bytes, stripe, text } => {
                return self.create_volume(now, &name, (len_bytes, stripe), &text).map(Some);
            }
            AdminAsk::PoolRename { name, new } => return self.rename_pool(now, &name, &new).map(Some),
            AdminAsk::PoolSet(ask) => return self.set_pool(now, &ask).map(Some),
            AdminAsk::VolumeRename { name, new } => return self.rename_volume(now, &name, &new).map(Some),
            AdminAsk::VolumeFence { name, which } => return self.fence_writers(now, token, &name, &which),
            AdminAsk::VolumeSet { name, text } => return self.set_volume(now, &name, &text).map(Some),
            AdminAsk::VolumeResize { name, to } => return self.resize_volume(now, token, &name, &to),
            AdminAsk::TrashList { pool } => return Ok(Some(AdminAnswer::Trash(self.trash_views(now, &pool)?))),
            AdminAsk::TrashRestore { which, name } => {
                return self.restore_volume(now, &which, name.as_deref()).map(Some);
            }
            AdminAsk::TrashPurge { which } => return self.purge_volume(now, token, &which),
            AdminAsk::MetaRecover(ask) => return Ok(Some(AdminAnswer::Recovery(self.recover(now, &ask)?))),
            AdminAsk::MetaBackup => return Ok(Some(AdminAnswer::Backup(self.backup()))),
            AdminAsk::PoolCreate(ask) => self.create_pool(now, token, &ask)?,
            AdminAsk::PoolRemove { name } => {
                let (writes, pool) = plan::pool_remove(&self.records, &name)?;
                if !writes.is_empty() {
                    self.write(writes);
                    let text = format!("pool {name} is removed");
                    self.note(now, Note::info("pool.removed", format!("pool {name}"), text));
                }
                self.pools_at = types::Time::ZERO;
                self.wait(token, WaitFor::PoolGone { pool });
            }
            AdminAsk::VolumeRemove(ask) => return self.remove_volume(now, token, &ask),
            AdminAsk::SnapshotCreate(ask) => self.create_snapshots(now, token, ask)?,
            AdminAsk::SnapshotRemove { name, detach } => self.remove_snapshot(now, token, &name, detach)?,
            AdminAsk::VolumeFlatten { name, cancel } => {
                return self.flatten_volume(now, &name, cancel).map(|id| Some(self.volume_answer(now.mono, id)));
            }
            AdminAsk::VolumeFaultAdd { name, fault } => return self.add_fault(now, &name, &fault).map(Some),
            AdminAsk::VolumeFaultRemove { name, id } => return self.remove_faults(now, &name, id).map(Some),
            AdminAsk::VolumeClone(ask) => self.clone_volume(now, token, &ask)?,
            AdminAsk::SnapshotRollback { name, force } => self.roll_back(now, token, &name, force)?,
            AdminAsk::SnapshotSet { name, change } => return self.set_snapshot(now, &name, &change).map(Some),
            AdminAsk::SnapshotList { of } => return Ok(Some(AdminAnswer::Snapshots(self.snapshot_views(&of)?))),
            AdminAsk::HealthMute { code, for_ms } => return self.mute(now, &code, for_ms).map(Some),
            AdminAsk::HealthUnmute { code } => return self.unmute(now, &code).map(Some),
            AdminAsk::Events { after, age_ms_max } => {
                return Ok(Some(AdminAnswer::Events(self.events_page(now, after, age_ms_max))));
            }
        }
        Ok(None)
    }

    /// Begins a pool; the answer waits until it has its PGs.
    fn create_pool(&mut self, now: Now, token: Token, ask: &PoolCreate) -> Result<(), Refusal> {
        let up = |osd: OsdId| self.is_up(now.mono, osd);
        let (writes, (pool, warning)) = plan::pool_create(&self.records, ask, &up, now.wall_ms)?;
        self.write(writes);
        let text = format!("pool {} is created: {} replicas, failure domain {}", ask.name, ask.replicas, ask.domain);
        self.note(now, Note::info("pool.created", format!("pool {}", ask.name), text));
        self.pools_at = types::Time::ZERO;
        self.wait(token, WaitFor::PoolReady { pool, warning });
        Ok(())
    }

    fn reserve_osd(&mut self) -> Result<AdminAnswer, Refusal> {
        let (writes, osd) = plan::osd_reserve(&self.records)?;
        self.write(writes);
        Ok(AdminAnswer::OsdRegistered { cluster: self.records.cluster_id(), osd })
    }

    fn register(&mut self, now: Now, ask: &OsdRegister) -> Result<AdminAnswer, Refusal> {
        let (writes, osd) = plan::osd_register(&self.records, ask, now.wall_ms)?;
        if !writes.is_empty() {
            self.write(writes);
            let text = format!("{osd} is registered: {} on {}", size(ask.capacity_bytes), ask.host);
            self.note(now, Note::info("osd.added", osd, text));
            if let Some(old) = ask.replaces {
                self.note(now, Note::info("osd.set", old, format!("{old} is out: {osd} takes over its replicas")));
                self.moves_at = types::Time::ZERO;
            }
            self.watch_new_osd(osd);
        }
        self.osds.entry(osd).or_default();
        Ok(AdminAnswer::OsdRegistered { cluster: self.records.cluster_id(), osd })
    }

    pub(super) fn remove_osd(&mut self, now: Now, osd: OsdId) -> Result<AdminAnswer, Refusal> {
        let up = self.liveness(now.mono, osd) != super::osds::Liveness::Down;
        let counts = self.records.osds.get(&osd).is_some_and(|o| o.elector);
        if counts && !self.electorate_stands() {
            let text = "fewer than a majority of the OSDs have confirmed the last OSD that came or went; try again \
                in a moment";
            return Err(refuse(codes::NO_MAJORITY, text));
        }
        let (writes, map_changed) = plan::osd_remove(&self.records, osd, up)?;
        if counts {
            self.note_electorate();
        }
        self.write(writes);
        self.forget_osd(osd, map_changed);
        self.note(now, Note::info("osd.removed", osd, format!("{osd} is removed: it held no PG")));
        Ok(AdminAnswer::Done)
    }

    fn settings(&self) -> AdminAnswer {
        AdminAnswer::Config(self.records.config.views(&self.config))
    }

    fn change_setting(&mut self, now: Now, name: &str, value: Option<&str>) -> Result<AdminAnswer, Refusal> {
        let mut new = self.records.config.with(name, value)?;
        if new != self.records.config {
            if self.records.config.is_on(NOOUT) && !new.is_on(NOOUT) {
                new.away_from_ms = now.wall_ms;
                self.restart_away(now);
            }
            self.write(vec![Write::Put(Record::Config(new))]);
            let is = self.records.config.views(&self.config).into_iter().find(|view| view.name == name);
            let is = is.map_or_else(String::new, |view| view.value);
            self.note(now, Note::info("config.set", "cluster", format!("{name} is {is}")));
            self.moves_at = types::Time::ZERO;
        }
        Ok(self.settings())
    }

    fn mute(&mut self, now: Now, code: &str, for_ms: Option<u64>) -> Result<AdminAnswer, Refusal> {
        let rule = known_check(code)?;
        let until_ms = for_ms.map(|ms| now.wall_ms.saturating_add(ms));
        let mute = MuteRecord { code: rule.code.to_owned(), since_ms: now.wall_ms, until_ms };
        self.record(vec![Write::Put(Record::Mute(mute))]);
        let how_long = for_ms.map_or_else(|| "until it is unmuted".to_owned(), |ms| format!("for {} s", ms / 1000));
        let text = format!("{} does not count {how_long}", rule.code);
        self.note(now, Note::info("health.muted", "cluster", text));
        Ok(AdminAnswer::Done)
    }

    fn unmute(&mut self, now: Now, code: &str) -> Result<AdminAnswer, Refusal> {
        let rule = known_check(code)?;
        if self.records.mutes.contains_key(rule.code) {
            self.record(vec![Write::Delete(Key::Mute(rule.code))]);
            self.note(now, Note::info("health.unmuted", "cluster", format!("{} counts again", rule.code)));
        }
        Ok(AdminAnswer::Done)
    }

    /// Returns a page of events. The answer leaves after this turn's transaction, so every event in it
    /// is committed.
    fn events_page(&self, now: Now, after: u64, age_ms_max: Option<u64>) -> EventsPage {
        let oldest = age_ms_max.map_or(0, |age| now.wall_ms.saturating_sub(age));
        let above = self.records.events.range(after.saturating_add(1)..).map(|(_, event)| event);
        let events = above.filter(|event| event.at_ms >= oldest).take(EVENTS_PER_ANSWER_MAX).cloned().collect();
        EventsPage { events, last: self.records.last_event() }
    }
}

fn known_check(code: &str) -> Result<&'static health::Rule, Refusal> {
    let known = health::find_rule(code);
    known.ok_or_else(|| refuse(codes::CHECK_UNKNOWN, format!("{code:?} is not a health check")))
}
