//! [`Control`]: the records, the volatile state, and the order of the turns.
//!
//! In a turn every input is planned, one after another, on the records in memory. Then upkeep advances
//! unfinished work, and all writes become one transaction. Until it is committed no other input is read and
//! nothing is sent. So plans see only records that are committed or in their own turn's transaction, and a
//! transaction carries many requests when many wait.

mod admin;
mod aim;
mod attach;
mod clients;
mod cuts;
mod faults;
mod flattens;
mod floors;
mod flow;
mod force;
mod leaders;
mod leases;
mod limits;
mod members;
mod older;
mod osds;
mod past;
mod reach;
mod rebalance;
mod recover;
mod shrinks;
mod snapshots;
mod status;
mod upkeep;
mod view;
mod volumes;
mod watch;

use crate::admin::{AdminAnswer, AdminAsk};
use crate::batch::{Batch, Txn};
use crate::config::ControlConfig;
use crate::events::Event;
use crate::records::{Records, Write};
use crate::refusal::refuse;
use attach::Attaching;
use clients::Wait;
use cuts::Cuts;
use flattens::Flattens;
use leases::Leases;
use osds::{Lead, OsdLive};
use past::Past;
pub use past::Standing;
use rebalance::Planned;
use shrinks::Shrinks;
use snapshots::Removals;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use types::codes;
use types::control::{ClientAnswer, ClientAsk, OsdDown, OsdUp, PgReport, Refusal};
use types::{Index, OsdId, PgId, ReplicaId, Term, Time, VolumeId};
use watch::Watch;

/// The present time: a monotonic clock for deadlines, and the wall clock for records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    pub mono: Time,
    pub wall_ms: u64,
}

/// One stream of one OSD. The owner of a `Control` never reuses an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// The asker of a request: the owner chooses the token, and it is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub u64);

/// A client's request. `client` and `id` name it: a client that repeats it after a lost connection uses the
/// same two, and an open is then not taken twice.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientReq {
    pub token: Token,
    pub client: u64,
    pub id: u64,
    /// The address that it comes from, shown to the next opener.
    pub address: String,
    pub ask: ClientAsk,
}

/// Actions of the owner, in this order.
#[allow(clippy::large_enum_variant)] // short-lived
#[derive(Clone, Debug, PartialEq)]
pub enum ControlAction {
    /// Commit this, then call [`Control::handle_committed`]; drop the `Control` when the commit fails.
    Commit(Txn),
    ToOsd {
        stream: StreamId,
        down: OsdDown,
    },
    /// Close the stream after the messages that were sent on it.
    CloseOsd {
        stream: StreamId,
    },
    Answer {
        token: Token,
        answer: ClientAnswer,
    },
    AdminAnswer {
        token: Token,
        answer: Result<AdminAnswer, Refusal>,
        /// The request changes nothing, so its answer goes out as the records are now.
        is_read: bool,
    },
    /// An event was recorded: write it to the log.
    Event(Event),
}

#[allow(clippy::large_enum_variant)] // short-lived, and a Hello is rare
enum Input {
    Osd { stream: StreamId, up: OsdUp, at: Time },
    OsdGone { stream: StreamId },
    Client(ClientReq),
    ClientGone { address: String },
    Admin { token: Token, by: String, ask: AdminAsk },
    Cancel(Token),
}

/// Decisions and state of the leading meta.
pub struct Control {
    config: ControlConfig,
    records: Records,
    batch: Batch,
    committing: bool,
    inbox: VecDeque<Input>,
    /// Actions that go out when the transaction of this turn is committed.
    held: Vec<ControlAction>,
    /// Orders that rest on earlier transactions, and do not wait for the one of this turn.
    urgent: Vec<ControlAction>,
    started: Now,
    osds: BTreeMap<OsdId, OsdLive>,
    streams: BTreeMap<StreamId, OsdId>,
    leads: BTreeMap<PgId, Lead>,
    reports: BTreeMap<ReplicaId, PgReport>,
    leases: Leases,
    attaching: Attaching,
    cuts: Cuts,
    removals: Removals,
    flattens: Flattens,
    shrinks: Shrinks,
    /// Volumes whose attach record is not known to be in all their PGs, and those that are being erased.
    unsettled: BTreeSet<VolumeId>,
    /// Clones with all their segments, whose PGs have been told to begin them.
    begun_clones: BTreeSet<VolumeId>,
    waits: Vec<Wait>,
    /// Whether a record was written since the waits were last evaluated.
    waits_due: bool,
    past: Past,
    pools_at: Time,
    leaders_at: Time,
    /// Version of this meta's program, for display only.
    version: String,
    /// Transfers that were requested a short while ago.
    moved: BTreeMap<PgId, (Time, OsdId)>,
    /// PGs with a change of their members that stands or waits, and when it is looked at next.
    changing: BTreeMap<PgId, Time>,
    /// When failed replicas are looked at next; when one of a PG on an OSD was last replaced, and how often in a
    /// row before.
    replace_at: Time,
    replaced: BTreeMap<(PgId, OsdId), (Time, u32)>,
    /// Floors that replicas have reported and no order explains, until they are recorded.
    floors: BTreeMap<PgId, ReplicaId>,
    /// Ends of the logs that dry runs of forced recoveries have shown, of a PG with the OSD that was named.
    shown: BTreeMap<(PgId, Option<OsdId>), (Term, Index)>,
    /// OSDs that neither report nor serve: when this leader saw that first, and for how many milliseconds it was so before.
    away: BTreeMap<OsdId, (Time, u64)>,
    /// When so many OSDs were away for the last time that none goes out by itself.
    guarded_at: Option<Time>,
    /// OSDs that are no targets for a while: a move to them was given up.
    avoided: BTreeMap<OsdId, Time>,
    /// Changes whose leader cannot reach the target, and since when.
    cut_off: BTreeMap<PgId, Time>,
    /// Moves by the last plan that have not begun, and when the next plan is made.
    moves: Vec<Planned>,
    moves_at: Time,
    /// OSDs that are out, drained or replaced, and had a replica at the last plan.
    emptying: BTreeSet<OsdId>,
    /// PGs that are new, and have time to report.
    born: BTreeMap<PgId, Time>,
    /// PGs whose leader gave up, and when: an election of another one is expected.
    unled: BTreeMap<PgId, Time>,
    /// PGs that are not active, and since when.
    idle: BTreeMap<PgId, Time>,
    watch: Watch,
    /// The administrator whose command is being planned; empty otherwise.
    asker: String,
    /// Volumes that became longer under this leader, with the revision of that change. Before them, the revision of its start.
    lengthened: BTreeMap<VolumeId, u64>,
    lengths_from: u64,
    /// Volumes whose limits have changed since OSDs were told.
    limits_due: BTreeSet<VolumeId>,
    /// When the trash is searched next.
    trash_at: Time,
    /// When faults whose time is over are searched next.
    faults_at: Time,
}

impl Control {
    /// Takes up the records of a new leader. OSDs get time to report, and holders to send a keepalive,
    /// before they are judged.
    ///
    /// # Panics
    /// When the configuration has a fault; the message names all.
    pub fn new(config: ControlConfig, records: Records, now: Now) -> Control {
        config.validate().unwrap_or_else(|faults| panic!("{faults}"));
        let mut control = Control {
            config,
            records,
            batch: Batch::default(),
            committing: false,
            inbox: VecDeque::new(),
            held: Vec::new(),
            urgent: Vec::new(),
            started: now,
            osds: BTreeMap::new(),
            streams: BTreeMap::new(),
            leads: BTreeMap::new(),
            reports: BTreeMap::new(),
            leases: Leases::default(),
            attaching: Attaching::default(),
            cuts: Cuts::default(),
            removals: Removals::default(),
            flattens: Flattens::default(),
            shrinks: Shrinks::default(),
            unsettled: BTreeSet::new(),
            begun_clones: BTreeSet::new(),
            waits: Vec::new(),
            waits_due: false,
            past: Past::default(),
            pools_at: Time::ZERO,
            leaders_at: now.mono + config.leaders_every,
            version: String::new(),
            moved: BTreeMap::new(),
            changing: BTreeMap::new(),
            replace_at: Time::ZERO,
            replaced: BTreeMap::new(),
            floors: BTreeMap::new(),
            shown: BTreeMap::new(),
            away: BTreeMap::new(),
            guarded_at: None,
            avoided: BTreeMap::new(),
            cut_off: BTreeMap::new(),
            moves: Vec::new(),
            moves_at: Time::ZERO,
            emptying: BTreeSet::new(),
            born: BTreeMap::new(),
            unled: BTreeMap::new(),
            idle: BTreeMap::new(),
            watch: Watch::new(config),
            asker: String::new(),
            lengthened: BTreeMap::new(),
            lengths_from: 0,
            limits_due: BTreeSet::new(),
            trash_at: Time::ZERO,
            faults_at: Time::ZERO,
        };
        control.lengths_from = control.records.counters.revision;
        control.take_up(now.mono);
        control
    }

    /// Sets the version of the program.
    pub fn set_version(&mut self, version: &str) {
        version.clone_into(&mut self.version);
    }

    fn take_up(&mut self, now: Time) {
        for osd in self.records.osds.keys() {
            self.osds.insert(*osd, OsdLive::default());
        }
        let mut unfinished = Vec::new();
        for volume in self.records.volumes.values() {
            for (of, _) in volume.holders() {
                self.leases.renew(now, (volume.id, of.session), None);
            }
            if !volume.settled || volume.changes_contents() {
                self.unsettled.insert(volume.id);
                let pgs = crate::plan::pgs_of_volume(&self.records, volume.id);
                unfinished.extend(pgs.into_iter().map(|pg| (volume.id, pg)));
            }
        }
        let pending = self.records.segments.values().filter(|s| s.pending);
        unfinished.extend(pending.flat_map(|s| s.pgs().map(|pg| (s.volume, pg))));
        for (volume, pg) in unfinished {
            self.attaching.begin(volume, pg);
        }
        self.take_up_cuts();
        self.take_up_removals();
        self.take_up_flattens();
        self.take_up_shrinks();
        self.take_up_changes();
        self.take_up_past(now);
    }

    /// Sets the address of this leader, for the events. Call it once, after [`Control::new`].
    pub fn lead_as(&mut self, address: &str) {
        self.watch.takes_lead = Some(address.to_owned());
    }

    /// Returns the records, with the planned changes.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Takes a message of an OSD's stream.
    pub fn handle_osd(&mut self, now: Now, stream: StreamId, up: OsdUp) {
        if self.inbox.len() >= self.config.inbox_max {
            self.held.push(ControlAction::CloseOsd { stream });
            self.inbox.push_back(Input::OsdGone { stream });
            return;
        }
        self.inbox.push_back(Input::Osd { stream, up, at: now.mono });
    }

    /// Takes the end of an OSD's stream.
    pub fn handle_osd_gone(&mut self, stream: StreamId) {
        self.inbox.push_back(Input::OsdGone { stream });
    }

    /// Takes a request of a client.
    pub fn handle_client(&mut self, req: ClientReq) {
        if self.inbox.len() >= self.config.inbox_max {
            let answer = ClientAnswer::Refused(busy());
            self.held.push(ControlAction::Answer { token: req.token, answer });
            return;
        }
        self.inbox.push_back(Input::Client(req));
    }

    /// Takes the end of the connection of a client at this address.
    pub fn handle_client_gone(&mut self, address: String) {
        self.inbox.push_back(Input::ClientGone { address });
    }

    /// Takes a request of an administrator.
    pub fn handle_admin(&mut self, token: Token, ask: AdminAsk) {
        self.handle_admin_of(token, String::new(), ask);
    }

    /// Takes a request of the administrator `by`, which its events name.
    pub fn handle_admin_of(&mut self, token: Token, by: String, ask: AdminAsk) {
        if self.inbox.len() >= self.config.inbox_max {
            self.answer_admin(token, Err(busy()));
            return;
        }
        self.inbox.push_back(Input::Admin { token, by, ask });
    }

    /// Drops a waiting answer whose asker is gone. Work that was begun goes on.
    pub fn handle_cancel(&mut self, token: Token) {
        self.inbox.push_back(Input::Cancel(token));
    }

    /// Releases the actions that rest on the transaction of the last [`ControlAction::Commit`], which is
    /// committed.
    ///
    /// # Panics
    /// When none was in flight.
    pub fn handle_committed(&mut self, out: &mut Vec<ControlAction>) {
        assert!(self.committing, "committed without a commit in flight");
        self.committing = false;
        self.release(out);
    }

    /// Whether a transaction is in flight.
    pub fn is_committing(&self) -> bool {
        self.committing
    }

    /// Does what can be done now. Call it after inputs, after [`Control::handle_committed`], and at
    /// [`Control::next_deadline`], until it returns no action.
    pub fn poll(&mut self, now: Now, out: &mut Vec<ControlAction>) {
        if self.committing {
            return;
        }
        while !self.batch.is_full() {
            let Some(input) = self.inbox.pop_front() else { break };
            if let Some(input) = self.admit(now, input) {
                self.take(now, input);
            }
        }
        self.watch_past(now.mono);
        if self.standing() == Standing::Sound {
            self.upkeep(now);
        }
        self.watch_cluster(now);
        self.answer_waits(now);
        self.say_limit_changes();
        out.append(&mut self.urgent);
        if self.batch.len() > 0 {
            self.raise_revision();
            let txn = self.batch.close(&mut self.records.versions);
            self.committing = true;
            out.push(ControlAction::Commit(txn));
        } else {
            self.release(out);
        }
    }

    /// Returns when to poll again if no input comes.
    pub fn next_deadline(&self, now: Now) -> Time {
        if self.committing {
            return Time::NEVER;
        }
        if !self.inbox.is_empty() {
            return now.mono;
        }
        let idle = now.mono + Duration::from_millis(500);
        let snapshots = self.cuts.wake().min(self.removals.wake()).min(self.flattens.wake());
        let orders = self.attaching.wake().min(snapshots).min(self.shrinks.wake());
        idle.min(orders).max(now.mono + Duration::from_millis(1))
    }

    fn take(&mut self, now: Now, input: Input) {
        match input {
            Input::Osd { stream, up, at } => self.take_osd(now, stream, up, at),
            Input::OsdGone { stream } => self.take_osd_gone(stream),
            Input::Client(req) => self.take_client(now, req),
            Input::ClientGone { address } => self.leases.take_client_gone(now.mono, &address),
            Input::Admin { token, by, ask } => {
                self.asker = by;
                self.take_admin(now, token, ask);
                self.asker.clear();
            }
            Input::Cancel(token) => {
                self.waits.retain(|w| w.token != token);
                self.past.cancel(token);
                self.cuts.cancel(token);
            }
        }
    }

    /// Plans a change, which raises the revision of the records.
    fn write(&mut self, writes: Vec<Write>) {
        self.past.changed |= !writes.is_empty();
        self.record(writes);
    }

    /// Plans to record an OSD's report of itself: the OSD repeats it after a loss, and no answer rests on
    /// it.
    fn record(&mut self, writes: Vec<Write>) {
        self.waits_due |= !writes.is_empty();
        for write in writes {
            self.note_limits(&write);
            self.records.apply(&write);
            self.batch.add(write);
        }
    }

    fn say(&mut self, stream: StreamId, down: OsdDown) {
        self.held.push(ControlAction::ToOsd { stream, down });
    }

    fn answer(&mut self, token: Token, answer: ClientAnswer) {
        self.held.push(ControlAction::Answer { token, answer });
    }

    fn answer_admin(&mut self, token: Token, answer: Result<AdminAnswer, Refusal>) {
        self.held.push(ControlAction::AdminAnswer { token, answer, is_read: false });
    }
}

fn busy() -> Refusal {
    refuse(codes::META_BUSY, "too many changes are queued for the metadata store")
}

#[cfg(test)]
mod tests;
