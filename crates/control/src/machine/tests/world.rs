//! A store, some OSDs that commit what they are told, and clients and administrators that ask.

use super::super::*;
use super::pg_cuts::CutPgs;
use super::tails::Tails;
use crate::admin::OsdRegister;
use crate::records::{StoredItem, VolumeRecord, new_cluster};
use std::collections::BTreeSet;
use types::control::{
    Attach, AttachRefusal, CHUNKS_KEPT, DevicePosition, LeadReport, LimitsPart, Opened, OsdHeartbeat, OsdHello,
    Watermarks,
};
use types::cut::{CutRefusal, SnapshotAnswer, SnapshotOrder};
use types::map::{ForceMembers, MemberChange, MembersStep, Membership};
use types::rng::Rng;
use types::writers::Writers;
use types::{ClusterId, Epoch, GenerationId, Incarnation, Index, OsdUuid, QosLimits, SessionId, Term};

pub const CLUSTER: ClusterId = ClusterId([7; 16]);

pub struct Osd {
    pub id: OsdId,
    pub incarnation: u64,
    pub replicas: BTreeSet<(PgId, ReplicaId)>,
    /// PGs of which it was told to keep the contents of a removed replica.
    pub kept: BTreeSet<PgId>,
    pub stream: StreamId,
    /// Watermarks that its device keeps.
    pub seen: Watermarks,
    /// Whether it receives nothing: its answers do not come.
    pub deaf: bool,
    /// Whether meta has let this very process in before.
    pub let_in: bool,
    /// Whether meta has said Welcome on this stream: before that the OSD keeps no watermarks.
    pub welcomed: bool,
    /// The last durable batch of its log.
    pub log_seq: u64,
    /// OSDs that this process is to be connected with.
    pub peers: BTreeSet<OsdId>,
    /// Limits that it was told, and the volumes of a list of all that has begun.
    pub limits: BTreeMap<VolumeId, QosLimits>,
    pub listed: BTreeSet<VolumeId>,
}

impl Osd {
    fn new(id: OsdId) -> Osd {
        Osd {
            id,
            incarnation: 1,
            replicas: BTreeSet::new(),
            kept: BTreeSet::new(),
            stream: StreamId(0),
            seen: Watermarks::default(),
            deaf: false,
            let_in: false,
            welcomed: false,
            log_seq: 1,
            peers: BTreeSet::new(),
            limits: BTreeMap::new(),
            listed: BTreeSet::new(),
        }
    }

    fn take_limits(&mut self, part: LimitsPart, volumes: Vec<(VolumeId, QosLimits)>) {
        if part.begins {
            self.listed.clear();
        }
        for (volume, limits) in volumes {
            self.listed.insert(volume);
            match limits.is_none() {
                true => self.limits.remove(&volume),
                false => self.limits.insert(volume, limits),
            };
        }
        if part.ends {
            let listed = std::mem::take(&mut self.listed);
            self.limits.retain(|volume, _| listed.contains(volume));
        }
    }
}

/// The moment when a leading meta dies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Death {
    Never,
    /// The leader dies at one commit of so many, before or after the commit took effect.
    OneIn(u64),
}

pub struct World {
    pub control: Control,
    pub store: BTreeMap<String, (Vec<u8>, u64)>,
    pub osds: Vec<Osd>,
    pub now: Now,
    pub rng: Rng,
    /// Messages on the way to OSDs.
    pub queue: VecDeque<(StreamId, OsdDown)>,
    /// Streams of refused processes that were closed: they carry nothing any more.
    closed: BTreeSet<StreamId>,
    /// Whether the delivery of messages is suspended.
    pub hold: bool,
    /// PGs without a leader: they take no attach record.
    pub leaderless: BTreeSet<PgId>,
    /// The highest order that each PG has committed.
    pub orders: BTreeMap<PgId, u64>,
    pub attached: BTreeMap<(PgId, VolumeId), Attach>,
    pub cut_pgs: CutPgs,
    /// The length of a volume in a PG, with its epoch. A later record with fewer chunks under the same epoch would unmap data.
    pub chunks: BTreeMap<(PgId, VolumeId), (u32, u32)>,
    /// The records went back in time: PGs keep lengths that these do not know.
    pub went_back: bool,
    pub tails: Tails,
    /// Session and epoch that an opener was told: no older attach record may take effect any more.
    pub told: BTreeMap<VolumeId, Attach>,
    pub answers: BTreeMap<Token, ClientAnswer>,
    pub admin_answers: BTreeMap<Token, Result<AdminAnswer, Refusal>>,
    pub commits: usize,
    pub attaches: usize,
    pub largest_txn: usize,
    pub death: Death,
    pub deaths: usize,
    /// Leaders of PGs where that is not the first member, and their terms.
    pub leaders: BTreeMap<PgId, (OsdId, u64)>,
    pub transfers: usize,
    /// Whether PGs elect another leader when theirs is silent or leaves.
    pub elects: bool,
    /// Members that the leader reports, of PGs that have changed them.
    pub members: BTreeMap<PgId, Membership>,
    /// Members that these replicas report in place of those: of a timeline of their own.
    pub own_members: BTreeMap<ReplicaId, Membership>,
    /// Orders to change members, and whether the leaders carry them out.
    pub changes: Vec<MemberChange>,
    pub changes_stand_still: bool,
    /// Replicas that report that they have failed, and that they are under repair.
    pub failed: BTreeSet<ReplicaId>,
    pub repairing: BTreeSet<ReplicaId>,
    /// Ends of the replicas' logs where they are not 0. A failed replica without one has nothing that can be kept.
    pub ends: BTreeMap<ReplicaId, (Term, Index)>,
    /// Orders of forced recovery.
    pub forces: Vec<ForceMembers>,
    /// Events that were written to the log.
    pub events: Vec<Event>,
    next: u64,
}

/// Returns the session of the only writer of a volume; 0: it has none.
pub fn session_of(volume: &VolumeRecord) -> SessionId {
    volume.writers().as_slice().first().map_or(SessionId(0), |writer| writer.session)
}

/// The answer to the holder of a volume without limits, faults and a policy for a full pool.
pub fn alive(len_bytes: u64) -> ClientAnswer {
    let (limits, faults) = (types::QosLimits::NONE, Vec::new());
    ClientAnswer::Alive { len_epoch: 0, len_bytes, limits, faults, when_full: types::WhenFull::Client }
}

pub fn opened(answer: ClientAnswer) -> Opened {
    match answer {
        ClientAnswer::Opened(opened) => opened,
        other => panic!("not opened: {other:?}"),
    }
}

pub fn refused(answer: ClientAnswer) -> Refusal {
    match answer {
        ClientAnswer::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

pub fn hello(osd: OsdId) -> OsdHello {
    OsdHello {
        cluster: CLUSTER,
        osd,
        uuid: OsdUuid([osd.0 as u8; 16]),
        incarnation: Incarnation(1),
        addr: std::net::SocketAddr::from(([127, 0, 0, 1], 7400 + osd.0 as u16)),
        http: None,
        capacity_bytes: 1 << 40,
        host: Some(format!("h{}", osd.0)),
        rack: Some("r".into()),
        zone: Some("z".into()),
        version: "1.2.3".into(),
        replicas: Vec::new(),
        seen: Watermarks::default(),
        device: DevicePosition { mount: 1, log_seq: 1, durable_seq: 1, restored: false, let_in: false, behind: false },
    }
}

fn load(store: &BTreeMap<String, (Vec<u8>, u64)>) -> Records {
    let item = |(key, (value, version)): (&String, &(Vec<u8>, u64))| StoredItem {
        key: key.clone(),
        value: value.clone(),
        version: *version,
    };
    Records::load(store.iter().map(item)).expect("what was committed can be read")
}

impl World {
    pub fn new(seed: u64, osd_count: u32) -> World {
        let mut store = BTreeMap::new();
        commit(&mut store, &new_cluster(CLUSTER, 1));
        let now = Now { mono: Time(3_600_000_000_000), wall_ms: 1_000_000 };
        let mut world = World {
            control: Control::new(crate::ControlConfig::default(), load(&store), now),
            store,
            osds: Vec::new(),
            now,
            rng: Rng::new(seed),
            queue: VecDeque::new(),
            closed: BTreeSet::new(),
            hold: false,
            leaderless: BTreeSet::new(),
            orders: BTreeMap::new(),
            attached: BTreeMap::new(),
            cut_pgs: CutPgs::default(),
            chunks: BTreeMap::new(),
            went_back: false,
            tails: Tails::default(),
            told: BTreeMap::new(),
            answers: BTreeMap::new(),
            admin_answers: BTreeMap::new(),
            commits: 0,
            attaches: 0,
            largest_txn: 0,
            death: Death::Never,
            deaths: 0,
            leaders: BTreeMap::new(),
            transfers: 0,
            elects: false,
            members: BTreeMap::new(),
            own_members: BTreeMap::new(),
            changes: Vec::new(),
            changes_stand_still: false,
            failed: BTreeSet::new(),
            repairing: BTreeSet::new(),
            ends: BTreeMap::new(),
            forces: Vec::new(),
            events: Vec::new(),
            next: 1,
        };
        for n in 1..=osd_count {
            let register = OsdRegister {
                osd: None,
                uuid: OsdUuid([n as u8; 16]),
                host: format!("h{n}"),
                rack: "r".into(),
                zone: "z".into(),
                capacity_bytes: 1 << 40,
                device_class: None,
                replaces: None,
            };
            world.admin(AdminAsk::OsdRegister(register)).expect("registered");
            world.osds.push(Osd::new(OsdId(n)));
            world.connect(OsdId(n));
        }
        world
    }

    fn end_of(&self, replica: ReplicaId) -> Option<(Term, Index)> {
        self.ends.get(&replica).copied().or_else(|| (!self.failed.contains(&replica)).then(Default::default))
    }

    /// Returns the members that a replica reports when it leads.
    fn members_of(&self, pg: PgId, replica: ReplicaId) -> Membership {
        self.own_members.get(&replica).or(self.members.get(&pg)).cloned().unwrap_or_default()
    }

    /// Returns the floor that a replica reports: that of the members that it is one of.
    fn floor_of(&self, pg: PgId, replica: ReplicaId) -> ReplicaId {
        let members = self.members_of(pg, replica);
        if members.osd_of(replica).is_some() { members.floor } else { ReplicaId(0) }
    }

    pub fn osd(&mut self, osd: OsdId) -> &mut Osd {
        &mut self.osds[osd.0 as usize - 1]
    }

    pub fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn fresh_token(&mut self) -> Token {
        Token(self.fresh())
    }

    pub fn connect(&mut self, osd: OsdId) {
        let stream = StreamId(self.fresh());
        let it = self.osd(osd);
        (it.stream, it.welcomed) = (stream, false);
        let (incarnation, seen, let_in) = (Incarnation(it.incarnation), it.seen, it.let_in);
        let replicas = it.replicas.iter().copied().collect();
        let device = DevicePosition {
            mount: it.incarnation,
            log_seq: it.log_seq,
            durable_seq: it.log_seq,
            restored: false,
            let_in,
            behind: false,
        };
        let hello = OsdHello { incarnation, replicas, seen, device, ..hello(osd) };
        self.control.handle_osd(self.now, stream, OsdUp::Hello(hello));
        self.beat(osd);
    }

    /// Kills the process of an OSD and ends its stream; the next process begins on the same device.
    pub fn restart(&mut self, osd: OsdId) {
        let stream = self.osd(osd).stream;
        self.control.handle_osd_gone(stream);
        self.osd(osd).incarnation += 1;
        self.connect(osd);
    }

    /// Sends a Hello with another position of the device. Returns the messages of meta on the new
    /// stream.
    pub fn hello_at(&mut self, osd: OsdId, incarnation: u64, device: DevicePosition) -> Vec<OsdDown> {
        let stream = StreamId(self.fresh());
        let replicas = self.osd(osd).replicas.clone();
        let addr = std::net::SocketAddr::from(([127, 0, 0, 2], 7400 + osd.0 as u16));
        let (incarnation, seen) = (Incarnation(incarnation), self.osd(osd).seen);
        let (host, rack, zone) = (None, None, None);
        let replicas = replicas.into_iter().collect();
        let hello = OsdHello { incarnation, addr, host, rack, zone, replicas, seen, device, ..hello(osd) };
        self.hold = true;
        self.control.handle_osd(self.now, stream, OsdUp::Hello(hello));
        self.settle();
        self.hold = false;
        let said = self.queue.iter().filter(|(to, _)| *to == stream).map(|(_, down)| down.clone()).collect();
        self.queue.retain(|(to, _)| *to != stream);
        said
    }

    pub fn connect_all(&mut self) {
        (1..=self.osds.len() as u32).for_each(|n| self.connect(OsdId(n)));
    }

    pub fn beat(&mut self, osd: OsdId) {
        self.heartbeat(osd, |_| {});
    }

    pub fn heartbeat(&mut self, osd: OsdId, change: impl FnOnce(&mut OsdHeartbeat)) {
        let it = self.osd(osd);
        let (stream, replicas, log_seq) = (it.stream, it.replicas.clone(), it.log_seq);
        let report = |(pg, replica): (PgId, ReplicaId)| {
            let (leader, term) = self.leader(pg);
            let first = leader == Some(osd);
            let members = self.members_of(pg, replica);
            let lead = LeadReport { active: true, members, followers_in_sync: 2, ..LeadReport::default() };
            let leading = first.then_some(lead);
            PgReport {
                pg,
                replica,
                term: Term(term),
                applied: Index(1),
                end: self.end_of(replica),
                floor: self.floor_of(pg, replica),
                quarantined: self.failed.contains(&replica),
                repairing: self.repairing.contains(&replica),
                lost: Vec::new(),
                unread: Vec::new(),
                hears: None,
                leading,
            }
        };
        let pgs = replicas.into_iter().map(report).collect();
        let mut beat = OsdHeartbeat { pgs, log_seq, free_bytes: 1 << 40, ..OsdHeartbeat::default() };
        change(&mut beat);
        self.osd(osd).log_seq = beat.log_seq;
        self.control.handle_osd(self.now, stream, OsdUp::Heartbeat(beat));
        self.settle();
    }

    pub fn pass(&mut self, time: Duration) {
        self.now.mono = self.now.mono + time;
        self.now.wall_ms += time.as_millis() as u64;
        self.cut_pgs.lapse(self.now.mono);
        self.settle();
    }

    /// Passes so many seconds, in which all OSDs but these report.
    pub fn seconds(&mut self, count: u32, silent: &[u32]) {
        let live: Vec<u32> = (1..=self.osds.len() as u32).filter(|n| !silent.contains(n)).collect();
        if self.elects {
            self.osds.iter_mut().for_each(|osd| osd.deaf = silent.contains(&osd.id.0));
        }
        for _ in 0..count {
            let deaths = self.deaths;
            self.pass(Duration::from_secs(1));
            if self.elects {
                self.elect(silent);
            }
            live.iter().for_each(|n| self.beat(OsdId(*n)));
            if self.deaths > deaths {
                live.iter().for_each(|n| self.connect(OsdId(*n)));
            }
        }
    }

    /// Lets a live member lead each PG whose leader is silent or no member any more.
    pub fn elect(&mut self, silent: &[u32]) {
        let pgs: Vec<(PgId, Vec<OsdId>)> =
            self.control.records().pgs.values().map(|pg| (pg.pg, pg.everyone().map(|m| m.osd).collect())).collect();
        for (pg, members) in pgs {
            let live = |osd: &OsdId| members.contains(osd) && !silent.contains(&osd.0);
            let (leader, term) = self.leader(pg);
            if let (false, Some(next)) = (leader.is_some_and(|osd| live(&osd)), members.iter().find(|osd| live(osd))) {
                self.leaders.insert(pg, (*next, term + 1));
            }
        }
    }

    /// Changes a setting of the cluster.
    pub fn set(&mut self, name: &str, value: Option<&str>) {
        let ask = AdminAsk::ConfigSet { name: name.into(), value: value.map(str::to_owned) };
        self.admin(ask).expect("a known setting");
    }

    /// Registers a device that takes over another OSD, and lets it run on the host of that one.
    pub fn replace(&mut self, old: OsdId) -> OsdId {
        let n = self.osds.len() as u32 + 1;
        let (uuid, host) = (OsdUuid([n as u8; 16]), format!("h{}", old.0));
        let (rack, zone) = ("r".into(), "z".into());
        let register = OsdRegister {
            osd: None,
            uuid,
            host,
            rack,
            zone,
            capacity_bytes: 1 << 40,
            device_class: None,
            replaces: Some(old),
        };
        self.admin(AdminAsk::OsdRegister(register)).expect("registered");
        self.osds.push(Osd::new(OsdId(n)));
        OsdId(n)
    }

    pub fn admin(&mut self, ask: AdminAsk) -> Result<AdminAnswer, Refusal> {
        let token = self.fresh_token();
        self.control.handle_admin(token, ask);
        self.until(|world| world.admin_answers.remove(&token))
    }

    pub fn req(&mut self, client: u64, ask: ClientAsk) -> ClientReq {
        let token = self.fresh_token();
        ClientReq { token, client, id: token.0, address: "10.0.0.1:999".into(), ask }
    }

    /// Asks until no segment is pending.
    pub fn ask(&mut self, client: u64, ask: ClientAsk) -> ClientAnswer {
        self.until(|world| {
            let req = world.req(client, ask.clone());
            let answer = world.answer_to(req);
            let waits = matches!(&answer, ClientAnswer::Segments { pending, .. } if !pending.is_empty());
            (!waits).then_some(answer)
        })
    }

    pub fn answer_to(&mut self, req: ClientReq) -> ClientAnswer {
        let token = req.token;
        self.control.handle_client(req);
        self.until(|world| world.answers.remove(&token))
    }

    fn until<T>(&mut self, mut done: impl FnMut(&mut World) -> Option<T>) -> T {
        for _ in 0..100 {
            self.settle();
            if let Some(value) = done(self) {
                return value;
            }
            self.pass(Duration::from_millis(50));
        }
        panic!("no answer came");
    }

    /// Runs turns until nothing moves without time passing.
    pub fn settle(&mut self) {
        while self.step() {}
    }

    /// Runs one turn of meta and one delivery; `false` when neither had anything to do.
    pub fn step(&mut self) -> bool {
        let mut out = Vec::new();
        self.control.poll(self.now, &mut out);
        let polled = !out.is_empty();
        while !out.is_empty() {
            let action = out.remove(0);
            if let ControlAction::Commit(txn) = action {
                if !self.commit(&txn) {
                    return true;
                }
                self.control.handle_committed(&mut out);
            } else {
                self.perform(action);
            }
        }
        self.deliver() || polled
    }

    /// Commits a transaction; `false` when meta died at it.
    fn commit(&mut self, txn: &Txn) -> bool {
        self.largest_txn = self.largest_txn.max(txn.checks.len());
        let dies = matches!(self.death, Death::OneIn(n) if self.rng.chance(1, n));
        if !dies || self.rng.chance(1, 2) {
            commit(&mut self.store, txn);
            self.commits += 1;
        }
        if dies {
            self.crash();
        }
        !dies
    }

    /// Lets the leader die; the next one takes up the records. Messages on the way to OSDs may still
    /// arrive.
    pub fn crash(&mut self) {
        self.lead_on(self.store.clone());
    }

    /// Replaces the store by this copy of itself, and another leader takes it up.
    pub fn lead_on(&mut self, store: BTreeMap<String, (Vec<u8>, u64)>) {
        self.store = store;
        self.deaths += 1;
        self.control = Control::new(crate::ControlConfig::default(), load(&self.store), self.now);
    }

    fn perform(&mut self, action: ControlAction) {
        match action {
            ControlAction::Commit(_) => panic!("commits are taken by the caller"),
            ControlAction::ToOsd { stream, down } if !self.closed.contains(&stream) => {
                self.queue.push_back((stream, down))
            }
            ControlAction::ToOsd { .. } => {}
            // An OSD of this world connects again at once, as if its stream went on.
            ControlAction::CloseOsd { stream } if self.osds.iter().any(|osd| osd.stream == stream) => {}
            ControlAction::CloseOsd { stream } => drop(self.closed.insert(stream)),
            ControlAction::Answer { token, answer } => {
                self.check(&answer);
                assert!(self.answers.insert(token, answer).is_none(), "answered twice");
            }
            ControlAction::Event(event) => self.events.push(event),
            ControlAction::AdminAnswer { token, answer, .. } => {
                assert!(self.admin_answers.insert(token, answer).is_none(), "answered twice");
            }
        }
    }

    /// Checks that the PGs keep what an answer promises.
    fn check(&mut self, answer: &ClientAnswer) {
        let ClientAnswer::Opened(opened) = answer else { return };
        if !opened.write {
            return;
        }
        for place in &opened.segments {
            assert_eq!(place.pgs.len(), opened.stripe.count() as usize, "only allocated segments are listed");
            for pg in &place.pgs {
                let attach = self.attached.get(&(*pg, opened.volume)).expect("an opened volume is attached everywhere");
                let newer = attach.epoch > opened.epoch;
                let named = attach.writers.has(opened.session, opened.epoch);
                assert!(if opened.multi_writer { named } else { named || newer }, "{opened:?}: {attach:?}");
            }
        }
        if opened.multi_writer {
            return;
        }
        let (order, chunk_count) = (0, 0);
        let (volume, session, epoch) = (opened.volume, opened.session, opened.epoch);
        let told = Attach {
            order,
            volume,
            writers: Writers::one(session, epoch),
            epoch,
            chunk_count,
            len_epoch: 0,
            head: GenerationId::first_of(volume),
            base: None,
        };
        self.told.insert(opened.volume, told);
    }

    pub fn deliver(&mut self) -> bool {
        if self.hold || self.queue.is_empty() {
            return false;
        }
        let (stream, down) = self.queue.pop_front().expect("just seen");
        self.arrive(stream, down);
        true
    }

    pub fn arrive(&mut self, stream: StreamId, down: OsdDown) {
        let Some(at) = self.osds.iter().position(|o| o.stream == stream) else {
            // The stream is gone, but the OSD may have read what was sent on it.
            match down {
                OsdDown::Attach { pg, attach } => drop(self.take_attach(pg, attach)),
                OsdDown::Snapshots { pg, order } => drop(self.take_order(pg, &order)),
                _ => {}
            }
            return;
        };
        let osd = self.osds[at].id;
        if self.osds[at].deaf {
            return;
        }
        match down {
            OsdDown::Welcome { .. } => self.osds[at].welcomed = true,
            OsdDown::Remember(_) if !self.osds[at].welcomed => {}
            OsdDown::Remember(told) => {
                let seen = self.osds[at].seen.max(told);
                self.osds[at].seen = seen;
                self.control.handle_osd(self.now, stream, OsdUp::Remembers(seen));
            }
            OsdDown::EnsureReplica { created, replica } => {
                assert!(created.member(replica).is_none_or(|m| m.osd == osd), "{replica} belongs elsewhere");
                if self.osds[at].replicas.insert((created.pg, replica)) {
                    self.beat_one(osd, created.pg, replica);
                }
            }
            OsdDown::ChangeMembers { pg, change } => self.take_change(osd, pg, change),
            OsdDown::ForceMembers { pg, force } => self.take_force(osd, pg, force),
            OsdDown::Peers(peers) => self.osds[at].peers.extend(peers),
            OsdDown::DropReplica { pg, replica, keep } => {
                self.osds[at].replicas.remove(&(pg, replica));
                if keep {
                    self.osds[at].kept.insert(pg);
                }
            }
            OsdDown::Attach { pg, attach } => {
                let result = self.take_attach(pg, attach);
                let up = OsdUp::Attached { pg, order: attach.order, result };
                self.control.handle_osd(self.now, stream, up);
            }
            OsdDown::Refused { code, reason } => panic!("refused: {code}: {reason}"),
            OsdDown::FailReplicas { reason, .. } => panic!("its device is never older: {reason}"),
            OsdDown::TransferLeader { pg, to } => self.transfer(osd, pg, to),
            OsdDown::Limits { part, volumes } => self.osds[at].take_limits(part, volumes),
            OsdDown::Snapshots { pg, order } => {
                let up = OsdUp::Snapshots { pg, answer: self.take_order(pg, &order) };
                self.control.handle_osd(self.now, stream, up);
            }
            OsdDown::Connected | OsdDown::Osds { .. } | OsdDown::Behind { .. } | OsdDown::ReplicaFloor(_) => {}
        }
    }

    /// Returns the limits that each OSD knows.
    pub fn limits_known(&self) -> Vec<BTreeMap<VolumeId, QosLimits>> {
        self.osds.iter().map(|osd| osd.limits.clone()).collect()
    }

    /// Returns the leader of a PG and its term.
    fn leader(&self, pg: PgId) -> (Option<OsdId>, u64) {
        let first = self.control.records().pgs.get(&pg).map(|r| r.members[0].osd);
        self.leaders.get(&pg).map_or((first, 1), |(osd, term)| (Some(*osd), *term))
    }

    fn transfer(&mut self, from: OsdId, pg: PgId, to: OsdId) {
        let (leader, term) = self.leader(pg);
        let is_member = |osd: &Osd| osd.replicas.iter().any(|(p, _)| *p == pg) && !osd.deaf;
        if leader != Some(from) || self.elects && !is_member(self.osd(to)) {
            return;
        }
        self.transfers += 1;
        self.leaders.insert(pg, (to, term + 1));
        for osd in [from, to] {
            let replica = self.osd(osd).replicas.iter().find(|(p, _)| *p == pg).map(|(_, replica)| *replica);
            self.beat_one(osd, pg, replica.expect("both are members"));
        }
    }

    fn beat_one(&mut self, osd: OsdId, pg: PgId, replica: ReplicaId) {
        let (leader, term) = self.leader(pg);
        let first = leader == Some(osd);
        let members = self.members_of(pg, replica);
        let lead = LeadReport { active: true, members, followers_in_sync: 2, ..LeadReport::default() };
        let leading = first.then_some(lead);
        let report = PgReport {
            pg,
            replica,
            term: Term(term),
            applied: Index(1),
            end: self.end_of(replica),
            floor: self.floor_of(pg, replica),
            quarantined: self.failed.contains(&replica),
            repairing: self.repairing.contains(&replica),
            lost: Vec::new(),
            unread: Vec::new(),
            hears: None,
            leading,
        };
        let log_seq = self.osd(osd).log_seq;
        let beat = OsdHeartbeat { pgs: vec![report], log_seq, free_bytes: 1 << 40, ..OsdHeartbeat::default() };
        let stream = self.osd(osd).stream;
        self.control.handle_osd(self.now, stream, OsdUp::Heartbeat(beat));
    }

    /// Takes one step of a change for each order, as a leader does, and reports it.
    fn take_change(&mut self, osd: OsdId, pg: PgId, change: MemberChange) {
        self.changes.push(change);
        let record = self.control.records().pgs.get(&pg).expect("a known PG");
        let created = Membership::fresh(Epoch(1), &record.created_map().members);
        let members = self.members.entry(pg).or_insert(created);
        if self.changes_stand_still || change.expected != members.change_base() {
            return;
        }
        let step = match (change.add, members.learners.first()) {
            _ if members.is_joint() => MembersStep::Leave,
            _ if members.left => MembersStep::Done,
            _ if change.cancel => MembersStep::Abort,
            (Some(add), None) => MembersStep::AddLearner(add),
            (add, _) => MembersStep::Enter { add: add.map(|m| m.replica), remove: change.remove },
        };
        *members = members.after(members.epoch, step).expect("a step that fits");
        let replica = self.osd(osd).replicas.iter().find(|(p, _)| *p == pg).map(|(_, replica)| *replica);
        if let Some(replica) = replica {
            self.beat_one(osd, pg, replica);
        }
    }

    /// Makes a replica the only member, which then leads and reports it.
    fn take_force(&mut self, osd: OsdId, pg: PgId, force: ForceMembers) {
        self.forces.push(force);
        let holds = self.osd(osd).replicas.contains(&(pg, force.keep.replica));
        let has_all = self.end_of(force.keep.replica) >= Some(force.end);
        if self.changes_stand_still
            || !holds
            || !has_all
            || self.members.get(&pg).is_some_and(|m| m.floor >= force.floor)
        {
            return;
        }
        let (keep, floor, fence) = (force.keep, force.floor, force.fence);
        let forced = self.members.get(&pg).cloned().unwrap_or_default();
        let forced = forced.after(force.epoch, MembersStep::Force { keep, floor, fence }).expect("a new floor");
        self.members.insert(pg, forced);
        let (_, term) = self.leader(pg);
        self.leaders.insert(pg, (osd, term + 1));
        self.leaderless.remove(&pg);
        self.beat_one(osd, pg, keep.replica);
    }

    pub fn take_order(&mut self, pg: PgId, order: &SnapshotOrder) -> SnapshotAnswer {
        match self.leaderless.contains(&pg) {
            true => order.refuse(CutRefusal::NotLeader { hint: None }),
            false => {
                let here = |volume| self.chunks.get(&(pg, volume)).copied();
                let answer = self.tails.take(pg, here, order);
                answer.unwrap_or_else(|| self.cut_pgs.take(self.now.mono, pg, order))
            }
        }
    }

    fn take_attach(&mut self, pg: PgId, attach: Attach) -> Result<(), AttachRefusal> {
        if self.leaderless.contains(&pg) {
            return Err(AttachRefusal::NotLeader { hint: None });
        }
        let last = self.orders.get(&pg).copied().unwrap_or(0);
        if attach.order <= last {
            return Err(AttachRefusal::StaleOrder { last });
        }
        if !self.cut_pgs.has_base(pg, &attach) {
            return Err(AttachRefusal::NoBase);
        }
        self.orders.insert(pg, attach.order);
        self.attaches += 1;
        self.cut_pgs.attached(pg, &attach);
        if let Some(told) = self.told.get(&attach.volume) {
            assert!(
                attach.epoch >= told.epoch,
                "{attach:?} takes effect after {told:?} was told that it owns the volume"
            );
        }
        let most = self.chunks.entry((pg, attach.volume)).or_default();
        let length = (attach.len_epoch, attach.chunk_count);
        let is_later = length >= *most || attach.chunk_count == 0;
        assert!(is_later || self.went_back, "{attach:?} unmaps chunks of {most:?}");
        if attach.chunk_count != CHUNKS_KEPT && is_later {
            *most = length;
        }
        if let Some(old) = self.attached.insert((pg, attach.volume), attach) {
            // A new leader repeats the removal, because it does not know how far the last one came.
            let removed = old.chunk_count == 0 && attach.chunk_count != 0;
            assert!(old.epoch <= attach.epoch && !removed, "{old:?} then {attach:?}");
        }
        Ok(())
    }
}

fn commit(store: &mut BTreeMap<String, (Vec<u8>, u64)>, txn: &Txn) {
    for check in &txn.checks {
        let version = store.get(&check.key).map_or(0, |(_, version)| *version);
        assert_eq!(version, check.version, "{} is not as the transaction says", check.key);
    }
    for (key, value) in &txn.puts {
        let version = store.get(key).map_or(0, |(_, version)| *version);
        store.insert(key.clone(), (value.clone(), version + 1));
    }
    for key in &txn.deletes {
        store.remove(key);
    }
}
