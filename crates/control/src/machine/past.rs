//! R17, rollback detection: compares the revision of the records with the revisions on OSDs (ADR 0011).
//!
//! Every change raises the revision of the records. The electors are the OSDs whose recorded revision counts. An answer or command
//! that depends on a change goes out when a majority of the electors has recorded its revision. A new leader changes nothing
//! before a majority of the electors said Hello, and nothing at all when one of them has recorded a higher revision.
//! The two majorities share an OSD, so a store that lost a change with any effect is detected.

use super::{Control, ControlAction, Input, Now, Token};
use crate::admin::{AdminAnswer, AdminAsk, PgForce, PgMove};
use crate::health::{self, Finding};
use crate::records::{OsdRecord, Record, Write};
use crate::refusal::refuse;
use std::collections::{BTreeMap, VecDeque};
use types::codes;
use types::control::{ClientAnswer, ClientAsk, OsdDown, OsdHello, Refusal, Watermarks};
use types::cut::SnapshotOrder;
use types::planted::{Bug, on};
use types::{ClusterId, OsdId, Time};

/// Most OSDs that the records do not know, and OSDs of other clusters, that are kept for the status.
const STRANGERS_MAX: usize = 64;
/// Most reasons that are kept.
const REASONS_MAX: usize = 8;
/// Watermarks of an OSD that lie further above the records than this are malformed: no cluster makes that many changes after a
/// copy. The limit prevents one faulty OSD from using up the number space.
const AHEAD_MAX: u64 = 1 << 40;
/// The same for ids of OSDs and pools, which have 32 bits.
const AHEAD_MAX_32: u32 = 1 << 20;

/// This leader's judgement of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Standing {
    /// Fewer than a majority of the electors said Hello.
    #[default]
    Waiting,
    /// No OSD that counts remembers more.
    Sound,
    /// The store went back in time: nothing is changed before a recovery.
    Behind,
}

struct Gated {
    revision: u64,
    since: Time,
    action: ControlAction,
}

/// State of the comparison with the OSDs; lost when another meta leads.
#[derive(Default)]
pub(super) struct Past {
    pub standing: Standing,
    pub reasons: Vec<String>,
    /// Whether this turn raises the revision.
    pub changed: bool,
    /// The highest revision that an OSD may remember if the records are whole.
    told: u64,
    /// Watermarks that the registered OSDs remember, by their Hello and their answers.
    pub heard: BTreeMap<OsdId, Watermarks>,
    /// The revisions that Hellos of registered OSDs remembered, also of those that were not let in.
    claims: BTreeMap<OsdId, u64>,
    /// OSDs of this cluster that the records do not know.
    pub strangers: BTreeMap<OsdId, OsdHello>,
    foreign: BTreeMap<(ClusterId, OsdId), std::net::SocketAddr>,
    gate: VecDeque<Gated>,
    deferred: VecDeque<(Time, Input)>,
    /// The revision of the last change of the electorate.
    electorate_at: u64,
    now: Time,
}

/// Verdict on a Hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weighed {
    /// The records judge the OSD.
    Judge,
    /// The records do not know the OSD and are not trusted yet: it is left alone, and asks again.
    Later,
    /// No OSD of this cluster can remember these watermarks.
    Malformed,
}

impl Past {
    /// Drops the request of an asker that went away.
    pub fn cancel(&mut self, token: Token) {
        self.deferred.retain(|(_, input)| !matches!(input, Input::Client(r) if r.token == token));
        self.deferred.retain(|(_, input)| !matches!(input, Input::Admin { token: t, .. } if *t == token));
    }
}

/// Whether an action may go out before a majority remembers its revision: it gives no id away and takes no data away.
/// Orders of a cut are free: the intent stood before the first one, and during a hold none may wait. `FailReplicas` is free, too, while
/// the records are sound: older records hold lower positions, so no lost change makes a current device an older one. The close of its
/// stream follows it, and would otherwise overtake it.
fn is_free(action: &ControlAction, sound: bool) -> bool {
    match action {
        ControlAction::Commit(_) | ControlAction::CloseOsd { .. } | ControlAction::Event(_) => true,
        ControlAction::ToOsd { down: OsdDown::FailReplicas { .. }, .. } => sound,
        ControlAction::ToOsd { down, .. } => !matches!(
            down,
            OsdDown::EnsureReplica { .. }
                | OsdDown::ChangeMembers { .. }
                | OsdDown::DropReplica { .. }
                | OsdDown::Attach { .. }
                | OsdDown::Snapshots { order: SnapshotOrder::Remove { .. }, .. }
                | OsdDown::ReplicaFloor(_)
        ),
        ControlAction::Answer { answer, .. } => {
            matches!(answer, ClientAnswer::Refused(_) | ClientAnswer::Alive { .. } | ClientAnswer::Refreshed(_))
        }
        ControlAction::AdminAnswer { is_read: true, .. } => true,
        ControlAction::AdminAnswer { answer, .. } => !matches!(
            answer,
            Ok(AdminAnswer::Done
                | AdminAnswer::OsdRegistered { .. }
                | AdminAnswer::PoolCreated { .. }
                | AdminAnswer::Pool(_)
                | AdminAnswer::Volume(_)
                | AdminAnswer::Trashed(_)
                | AdminAnswer::SnapshotsChanged(_)
                | AdminAnswer::Moves(_)
                | AdminAnswer::Config(_)
                | AdminAnswer::Recovery(_))
        ),
    }
}

/// Whether a request of an administrator that is no read may be worked on before the records are trusted: a recovery is what makes them so,
/// a dry run leaves them as they are, and a muted health check costs no data.
fn is_harmless(ask: &AdminAsk) -> bool {
    matches!(
        ask,
        AdminAsk::MetaRecover(_)
            | AdminAsk::HealthMute { .. }
            | AdminAsk::HealthUnmute { .. }
            | AdminAsk::PgMove(PgMove { dry_run: true, .. })
            | AdminAsk::PgForce(PgForce { dry_run: true, .. })
    )
}

impl Control {
    /// Returns this leader's judgement of its records.
    pub fn standing(&self) -> Standing {
        self.past.standing
    }

    /// Returns the reasons why the records are behind, one line each.
    pub fn behind_reasons(&self) -> &[String] {
        &self.past.reasons
    }

    pub(super) fn take_up_past(&mut self, now: Time) {
        self.past.now = now;
        self.past.told = self.records.counters.revision;
        self.past.electorate_at = self.records.counters.revision;
        if self.records.counters.restored {
            self.fall_behind("the records come from a backup".to_string());
        }
        self.judge(now);
    }

    /// Returns the OSDs whose memory counts.
    fn electors(&self) -> impl Iterator<Item = OsdId> {
        self.records.osds.values().filter(|o| o.elector).map(|o| o.id)
    }

    /// Returns the OSDs that a new leader hears before it trusts the records: the electors. In records from before the first
    /// elector was admitted it is every OSD that ever said Hello.
    fn witnesses(&self) -> Vec<OsdId> {
        let none = self.electors().next().is_none();
        self.records.osds.values().filter(|o| o.elector || none && o.addr.is_some()).map(|o| o.id).collect()
    }

    /// Whether a majority remembers the last change of the electorate. Only then may the next one be made, so that majorities of
    /// neighbouring electorates share an OSD.
    pub(super) fn electorate_stands(&self) -> bool {
        self.agreed() >= self.past.electorate_at
    }

    /// Takes note that the turn's transaction changes the electorate.
    pub(super) fn note_electorate(&mut self) {
        self.past.electorate_at = self.records.counters.revision.saturating_add(1);
    }

    /// Returns how many electors are a majority; 0 without electors.
    fn majority(&self) -> usize {
        match self.electors().count() {
            0 => 0,
            count => count / 2 + 1,
        }
    }

    /// Checks that a majority of the witnesses that are not in `without` said Hello to this leader.
    ///
    /// # Errors
    /// BSLT-2031.
    pub(super) fn heard_without(&self, without: &[OsdId]) -> Result<(), Refusal> {
        let all = self.witnesses();
        let left: Vec<OsdId> = all.iter().copied().filter(|osd| !without.contains(osd)).collect();
        let silent: Vec<String> =
            left.iter().filter(|osd| !self.past.heard.contains_key(osd)).map(OsdId::to_string).collect();
        let heard = left.len() - silent.len();
        // Fewer than a majority of all suffice only when every silent witness is named: one that comes later could know
        // more.
        if silent.is_empty() || heard > all.len() / 2 {
            return Ok(());
        }
        let text = format!(
            "{heard} of the {} OSDs that must confirm the records have reported, {} are needed; start {}, or name \
             those that are lost for good with --without",
            all.len(),
            all.len() / 2 + 1,
            silent.join(", ")
        );
        Err(refuse(codes::NO_MAJORITY, text))
    }

    /// Returns the revision that a majority of the electors remembers.
    pub(super) fn agreed(&self) -> u64 {
        let remembers = |osd| self.past.heard.get(&osd).map_or(0, |seen| seen.revision);
        let mut revisions: Vec<u64> = self.electors().map(remembers).collect();
        revisions.sort_unstable_by(|a, b| b.cmp(a));
        self.majority().checked_sub(1).map_or(u64::MAX, |at| revisions[at])
    }

    /// Returns the least revision that a current device remembers: the one that half of the witnesses, rounded up, remember. So
    /// devices must go back on more than half of the OSDs to pass for current ones. While some witnesses have said nothing that
    /// counts, it is the highest revision that any remembers, because the silent ones may be those that know.
    pub(super) fn proof(&self) -> u64 {
        let witnesses = self.witnesses();
        let mut claims: Vec<u64> = witnesses.iter().filter_map(|osd| self.past.claims.get(osd)).copied().collect();
        claims.sort_unstable_by(|a, b| b.cmp(a));
        let at = if claims.len() == witnesses.len() { claims.len().saturating_sub(1) / 2 } else { 0 };
        claims.get(at).copied().unwrap_or(0)
    }

    /// Whether the watermarks that an OSD sends can be those of this cluster.
    fn is_plausible(&self, seen: &Watermarks) -> bool {
        let ours = self.records.counters.watermarks();
        let Watermarks { revision, next_osd, next_pool, next_replica, next_volume, next_session, map_epoch } = *seen;
        let wide = [
            (revision, ours.revision),
            (next_replica, ours.next_replica),
            (next_volume, ours.next_volume),
            (next_session, ours.next_session),
            (map_epoch, ours.map_epoch),
        ];
        let narrow = [(next_osd, ours.next_osd), (next_pool, ours.next_pool)];
        wide.iter().all(|(seen, ours)| *seen <= ours.saturating_add(AHEAD_MAX))
            && narrow.iter().all(|(seen, ours)| *seen <= ours.saturating_add(AHEAD_MAX_32))
    }

    /// Compares the watermarks of a Hello with the records.
    pub(super) fn weigh(&mut self, now: Time, hello: &OsdHello) -> Weighed {
        if hello.cluster != self.records.cluster_id() {
            if self.past.foreign.len() < STRANGERS_MAX {
                self.past.foreign.insert((hello.cluster, hello.osd), hello.addr);
            }
            return Weighed::Judge;
        }
        if !self.is_plausible(&Watermarks { next_osd: hello.osd.0, ..hello.seen }) || !self.is_plausible(&hello.seen) {
            return Weighed::Malformed;
        }
        let known = self.records.osds.get(&hello.osd).is_some_and(|o| o.uuid == hello.uuid);
        if self.is_surpassed_by(&hello.seen) {
            let (seen, ours) = (hello.seen.revision, self.records.counters.revision);
            self.fall_behind(format!("{} has recorded revision {seen}, the records are at {ours}", hello.osd));
        } else if !known && hello.osd.0 >= self.records.counters.next_osd {
            self.fall_behind(format!("{} was registered in this cluster, and the records do not know it", hello.osd));
        }
        if known {
            match self.has_forgotten(hello) {
                true => drop(self.past.claims.remove(&hello.osd)),
                false => drop(self.past.claims.insert(hello.osd, hello.seen.revision)),
            }
            return Weighed::Judge;
        }
        self.judge(now);
        if self.past.standing == Standing::Sound {
            return Weighed::Judge;
        }
        if self.past.strangers.len() < STRANGERS_MAX {
            self.past.strangers.insert(hello.osd, hello.clone());
        }
        Weighed::Later
    }

    /// Whether the memory of an OSD counts for nothing: its device went back, and no meta has let it in since. A run with
    /// `--after-restore` clears the memory. A later run without the flag is recognised by that: an elector has remembered
    /// something.
    fn has_forgotten(&self, hello: &OsdHello) -> bool {
        let elector = self.records.osds.get(&hello.osd).is_some_and(|o| o.elector);
        let older = hello.device.restored || hello.device.behind;
        older && !hello.device.let_in || elector && hello.seen.revision == 0
    }

    /// Takes the watermarks of a registered OSD whose Hello was accepted, if its memory counts.
    pub(super) fn hear(&mut self, hello: &OsdHello) {
        if self.has_forgotten(hello) {
            self.past.heard.remove(&hello.osd);
            return;
        }
        let seen = self.past.heard.entry(hello.osd).or_default();
        *seen = seen.max(hello.seen);
    }

    /// Whether the OSD remembers more than the records ever gave out.
    fn is_surpassed_by(&self, seen: &Watermarks) -> bool {
        seen.revision > self.past.told && !on(Bug::RevisionNotCompared)
    }

    pub(super) fn take_remembers(&mut self, osd: OsdId, seen: Watermarks) {
        if !self.is_plausible(&seen) {
            return;
        }
        if self.is_surpassed_by(&seen) {
            let ours = self.records.counters.revision;
            self.fall_behind(format!("{osd} has recorded revision {}, the records are at {ours}", seen.revision));
        }
        let known = self.past.heard.entry(osd).or_default();
        *known = known.max(seen);
    }

    pub(super) fn fall_behind(&mut self, reason: String) {
        self.past.standing = Standing::Behind;
        if self.past.reasons.len() < REASONS_MAX && !self.past.reasons.contains(&reason) {
            self.past.reasons.push(reason);
        }
        self.hold_unproven();
        // Actions that have not gone out never do, and inputs that wait are refused.
        for gated in std::mem::take(&mut self.past.gate) {
            self.refuse_action(gated.action, &self.behind());
        }
        for (_, input) in std::mem::take(&mut self.past.deferred) {
            self.refuse_input(input, &self.behind());
        }
        self.drop_cuts(&self.behind());
    }

    pub(super) fn behind(&self) -> Refusal {
        let reasons = self.past.reasons.join("; ");
        refuse(codes::STORE_BEHIND, format!("the metadata store went back in time ({reasons})"))
    }

    fn no_majority(&self) -> Refusal {
        let witnesses = self.witnesses();
        let (all, needed) = (witnesses.len(), witnesses.len() / 2 + 1);
        let heard = witnesses.iter().filter(|osd| self.past.heard.contains_key(osd)).count();
        let text = match self.past.standing {
            Standing::Waiting => {
                format!("{heard} of {all} OSDs have reported to this metadata server, {needed} are needed")
            }
            _ => format!("fewer than {needed} of {all} OSDs confirm the change; check its effect before you repeat it"),
        };
        refuse(codes::NO_MAJORITY, text)
    }

    /// Trusts the records once a majority is heard and none of them is ahead: they are the cluster's own.
    pub(super) fn judge(&mut self, now: Time) {
        if self.past.standing != Standing::Waiting || self.heard_without(&[]).is_err() {
            return;
        }
        self.trust(now);
    }

    /// Accepts changes and welcomes the OSDs from now on.
    pub(super) fn trust(&mut self, now: Time) {
        self.past.standing = Standing::Sound;
        self.past.reasons.clear();
        self.past.strangers.clear();
        self.past.now = now;
        let osds: Vec<OsdId> = self.osds.keys().copied().collect();
        osds.into_iter().for_each(|osd| self.welcome(osd));
        for (_, input) in std::mem::take(&mut self.past.deferred).into_iter().rev() {
            self.inbox.push_front(input);
        }
    }

    fn changes(&self, input: &Input) -> bool {
        match input {
            Input::Osd { .. } | Input::OsdGone { .. } | Input::ClientGone { .. } | Input::Cancel(_) => false,
            Input::Client(req) => match &req.ask {
                ClientAsk::Refresh { .. } => false,
                ClientAsk::Keepalive { volume, session, .. } => {
                    self.records.volumes.get(volume).is_none_or(|v| v.holder_of(*session).is_none())
                }
                ClientAsk::Open { .. } | ClientAsk::Segments { .. } | ClientAsk::Close { .. } => true,
            },
            Input::Admin { ask, .. } => !ask.is_read() && !is_harmless(ask),
        }
    }

    /// Returns the input when it may be worked on now.
    pub(super) fn admit(&mut self, now: Now, input: Input) -> Option<Input> {
        self.past.now = now.mono;
        let full = self.past.gate.len() >= self.config.gate_max;
        if self.past.standing == Standing::Sound && !full || !self.changes(&input) {
            return Some(input);
        }
        match self.past.standing {
            Standing::Behind => self.refuse_input(input, &self.behind()),
            Standing::Waiting if self.past.deferred.len() < self.config.inbox_max => {
                self.past.deferred.push_back((now.mono, input));
            }
            Standing::Waiting | Standing::Sound => self.refuse_input(input, &self.no_majority()),
        }
        None
    }

    fn refuse_input(&mut self, input: Input, refusal: &Refusal) {
        match input {
            Input::Client(req) => self.answer(req.token, ClientAnswer::Refused(refusal.clone())),
            Input::Admin { token, .. } => self.answer_admin(token, Err(refusal.clone())),
            Input::Osd { .. } | Input::OsdGone { .. } | Input::ClientGone { .. } | Input::Cancel(_) => {}
        }
    }

    fn refuse_action(&mut self, action: ControlAction, refusal: &Refusal) {
        match action {
            ControlAction::Answer { token, .. } => self.answer(token, ClientAnswer::Refused(refusal.clone())),
            ControlAction::AdminAnswer { token, .. } => self.answer_admin(token, Err(refusal.clone())),
            ControlAction::Commit(_)
            | ControlAction::Event(_)
            | ControlAction::ToOsd { .. }
            | ControlAction::CloseOsd { .. } => {}
        }
    }

    /// Refuses answers that have waited too long for a majority; commands to OSDs wait on.
    pub(super) fn watch_past(&mut self, now: Time) {
        self.past.now = now;
        let patience = self.config.majority_patience;
        while self.past.deferred.front().is_some_and(|(since, _)| now.since(*since) >= patience) {
            let (_, input) = self.past.deferred.pop_front().expect("just seen");
            self.refuse_input(input, &self.no_majority());
        }
        let late = |g: &Gated| now.since(g.since) >= patience && !matches!(g.action, ControlAction::ToOsd { .. });
        if !self.past.gate.iter().any(late) {
            return;
        }
        let (late, rest): (Vec<_>, _) = std::mem::take(&mut self.past.gate).into_iter().partition(late);
        self.past.gate = rest.into();
        late.into_iter().for_each(|gated| self.refuse_action(gated.action, &self.no_majority()));
    }

    /// Writes the new revision into the turn's transaction.
    pub(super) fn raise_revision(&mut self) {
        if !std::mem::take(&mut self.past.changed) {
            return;
        }
        let mut counters = self.records.counters.clone();
        counters.revision = counters.revision.checked_add(1).expect("fewer than 2^64 changes");
        self.record(vec![Write::Put(Record::Counters(counters))]);
    }

    /// Releases the actions that may go out: everything in this turn is committed.
    pub(super) fn release(&mut self, out: &mut Vec<ControlAction>) {
        let (revision, since) = (self.records.counters.revision, self.past.now);
        let sound = self.past.standing == Standing::Sound;
        for action in std::mem::take(&mut self.held) {
            match (is_free(&action, sound), sound) {
                (true, _) => out.push(action),
                (false, true) => self.gate(Gated { revision, since, action }, out),
                // The report about a store that went back gives nothing away.
                (false, false)
                    if matches!(action, ControlAction::AdminAnswer { answer: Ok(AdminAnswer::Recovery(_)), .. }) =>
                {
                    out.push(action);
                }
                // The action was planned in the turn in which the store was found to be behind.
                (false, false) => self.refuse_action(action, &self.not_sound()),
            }
        }
        out.append(&mut self.held);
        // The watermarks follow the Welcome: before it an OSD keeps nothing.
        if sound && revision > self.past.told {
            self.past.told = revision;
            let told = OsdDown::Remember(self.records.counters.watermarks());
            let streams = self.osds.values().filter_map(|live| live.stream);
            out.extend(streams.map(|stream| ControlAction::ToOsd { stream, down: told.clone() }));
        }
        let agreed = self.agreed();
        while self.past.gate.front().is_some_and(|g| g.revision <= agreed) {
            out.extend(self.past.gate.pop_front().map(|g| g.action));
        }
    }

    /// Holds an action back until a majority remembers its revision.
    fn gate(&mut self, gated: Gated, out: &mut Vec<ControlAction>) {
        match gated.action {
            // Commands are repeated when the OSD connects again.
            ControlAction::ToOsd { stream, .. } if self.past.gate.len() >= self.config.gate_max => {
                out.push(ControlAction::CloseOsd { stream });
            }
            _ => self.past.gate.push_back(gated),
        }
    }

    pub(super) fn not_sound(&self) -> Refusal {
        match self.past.standing {
            Standing::Behind => self.behind(),
            Standing::Waiting | Standing::Sound => self.no_majority(),
        }
    }

    /// Admits one more elector. Electors are admitted one at a time, and only when all changes stand. Then any two majorities of
    /// neighbouring electorates share an OSD. An older copy of the records has a smaller electorate, and it still meets an OSD
    /// that knows more. The OSD must have shown that it remembers.
    pub(super) fn admit_elector(&mut self) {
        let revision = self.records.counters.revision;
        if self.past.standing != Standing::Sound
            || !self.past.gate.is_empty()
            || self.batch.is_full()
            || self.agreed() < revision
        {
            return;
        }
        let remembers = |osd: &OsdId| {
            let live = self.osds.get(osd).is_some_and(|live| live.stream.is_some());
            live && self.past.heard.get(osd).is_some_and(|seen| seen.revision >= revision)
        };
        let next = self.records.osds.values().find(|o| !o.elector && remembers(&o.id));
        let Some(next) = next.map(|o| OsdRecord { elector: true, ..o.clone() }) else { return };
        self.note_electorate();
        self.write(vec![Write::Put(Record::Osd(next))]);
    }

    /// Returns the findings about the records themselves.
    pub(super) fn past_findings(&self, now: Time) -> Vec<Finding> {
        let meta = |code, detail: String| Finding {
            rule: health::find_rule(code).expect("every code has a rule"),
            count: 1,
            summary: health::find_rule(code).map_or("", |rule| rule.what).to_string(),
            entities: vec!["meta".to_string()],
            details: vec![detail],
        };
        let mut found = Vec::new();
        match self.past.standing {
            Standing::Sound => {}
            Standing::Behind => {
                found.push(meta(health::META_BEHIND, self.behind().to_string()));
            }
            // A new leader gives the OSDs time before it complains.
            Standing::Waiting if now.since(self.started.mono) < self.config.grace => {}
            Standing::Waiting => {
                let refusal = self.no_majority();
                found.push(meta(health::META_NO_MAJORITY, refusal.to_string()));
            }
        }
        let recovering = self.records.volumes.values().filter(|v| v.recovering).count();
        if recovering > 0 {
            let detail = format!("{}: {recovering} volumes cannot be opened", codes::label(codes::VOLUME_RECOVERING));
            found.push(meta(health::META_RECOVERING, detail));
        }
        found.extend(self.foreign_words().map(|words| meta(health::META_FOREIGN, words)));
        found
    }

    /// Names OSDs of another cluster that said Hello: the store may be the wrong one, or empty by mistake.
    pub fn foreign_words(&self) -> Option<String> {
        let ((cluster, osd), addr) = self.past.foreign.first_key_value()?;
        let ours = self.records.cluster_id();
        let count = self.past.foreign.len();
        let empty = match self.records.osds.is_empty() {
            true => {
                "; this metadata store is new and empty: if it should hold that cluster, stop this metadata server and give it the right --dir, --etcd or --etcd-prefix"
            }
            false => "",
        };
        Some(format!(
            "{count} OSDs of another cluster connect ({osd} at {addr} belongs to {cluster}, the records are of \
             {ours}){empty}"
        ))
    }
}
