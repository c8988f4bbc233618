//! The nodes of one simulated cluster, and the messages between them.
//!
//! The cluster starts, stops and turns its nodes. It decides nothing that a node should decide.

mod clients;
mod failed;
mod joined;
mod metas;
mod older;

use crate::check::claims;
use crate::check::durable;
use crate::check::linear::Linear;
use crate::client::ClientNode;
use crate::families::Families;
use crate::faults;
use crate::faults::Given;
use crate::faults::budget::Budget;
pub use crate::hurt::Region;
use crate::mail::{Mail, Post};
use crate::meta::{self, Metas};
use crate::observe::Observers;
use crate::options::Options;
use crate::sharing::Sharing;
use crate::snapshots::Snapshots;
use crate::stranger::Stranger;
use crate::tenants::Tenants;
use crate::trace;
use control::find::Finder;
use engine::ReadData;
use env::{DiskKind, DiskSpec, Env, NetAddr};
pub use older::Older;
use osd::{Osd, OsdConfig};
use simenv::{DiskFaults, DiskImage, DiskWatch, NetWatch, NodeId, SimEnv, World};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;
use telemetry::Registry;
use types::control::OsdDown;
use types::rng::Rng;
use types::{ChunkKey, ClusterId, Incarnation, IoBuf, OsdId, OsdUuid, PgId, ReplicaId, SectorRange, Time, VolumeId};

/// The device's name on every OSD node.
pub(crate) const DEVICE: &str = "device";
/// Number of machines that open the volume for writing, and number of all, with those that only read.
const WRITERS: usize = 2;
pub(crate) const CLIENTS: usize = 3;

/// One OSD node: its machine, and the process on it while one runs.
pub struct OsdNode {
    pub node: NodeId,
    pub id: OsdId,
    uuid: OsdUuid,
    addr: SocketAddr,
    pub(crate) life: u32,
    pub(crate) running: Option<(Osd, SimEnv)>,
    stream: Option<u64>,
    /// The search for the leading metadata server.
    metas: Finder,
    /// The accounting of this life's mount was audited.
    pub(crate) audited: bool,
    /// The lowest last batch that a mount has found since this OSD served.
    pub(crate) tail_found: u64,
    /// The last log batch that was durable in any life of this disk.
    pub(crate) durable_batch: u64,
    /// Replicas whose contents were compared with the device in this life.
    pub(crate) scanned: BTreeSet<ReplicaId>,
    /// Why its last process ended by itself.
    pub(crate) ended: Option<String>,
    /// Set if this life's mount must be refused, because the device carries a poison mark. Its value is the number of
    /// read faults that had struck by then: one more may have hidden the mark.
    pub(crate) must_refuse: Option<u64>,
    /// An operator has read the refusal and confirmed the device: the next life starts with `after_poison`.
    pub(crate) poison_confirmed: bool,
    /// Meta has found that the device is an older copy: the next life starts with all replicas failed, and a mount number above this.
    pub(crate) restores: Option<u64>,
    /// This life started so.
    pub(crate) restored: bool,
}

/// A whole simulated cluster.
pub struct Cluster {
    pub world: World,
    pub options: Options,
    pub cluster: ClusterId,
    pub(crate) osds: Vec<OsdNode>,
    pub meta: Metas,
    clients: Vec<ClientNode>,
    /// Number of the client that holds the volume, or asks for it.
    owner: usize,
    pub linear: Linear,
    /// OSDs whose disks may lie.
    pub budget: Budget,
    /// Replicas that have failed for good.
    failed: BTreeSet<ReplicaId>,
    /// OSDs that another one has taken over: they must become empty.
    pub(crate) replaced: BTreeSet<OsdId>,
    /// An OSD that cannot hold what the others took while it was away.
    pub(crate) overfull: Option<OsdId>,
    /// OSDs whose devices were made to rot outside the budget: they must become whole again.
    pub(crate) rotten: BTreeSet<OsdId>,
    /// OSDs among them whose log lost records.
    pub(crate) rotten_logs: BTreeSet<OsdId>,
    /// OSDs with damaged payloads in the log.
    rotten_payloads: BTreeSet<OsdId>,
    post: Post,
    /// Ids that were given out since the set was first needed, and ids that only lost records knew.
    pub(crate) given: Given,
    pub(crate) lost_ids: Vec<Given>,
    /// One direction between the owner and an OSD is broken on purpose.
    pub path_broken: bool,
    stranger: Option<Stranger>,
    /// Set in runs with many volumes.
    tenants: Option<Tenants>,
    /// Set in runs with snapshots.
    snapshots: Option<Snapshots>,
    /// Set in runs with clones.
    families: Option<Families>,
    sharing: Option<Sharing>,
    rng: Rng,
    next_stream: u64,
    pub turns: u64,
    /// Poisoned stores that were refused, and then confirmed by an operator.
    pub poison_confirmed: u64,
    pub(crate) observers: Observers,
    /// Claims of replicas on the network, and the logs on their devices.
    pub(crate) claims: claims::Shared,
}

impl Cluster {
    /// Formats the devices and starts everything.
    pub fn new(seed: u64, options: Options) -> Cluster {
        let world = World::new(seed);
        let mut rng = world.fork_rng();
        world.net(|net| *net = options.net.clone());
        let cluster = ClusterId(u128::from(rng.next_u64()).to_le_bytes());
        let budget = Budget::draw(options.osds as usize, options.replicas as usize, &mut rng);
        let osds = (1..=options.osds).map(|n| OsdNode::new(&world, n, &options, &mut rng)).collect();
        let client = |n| {
            let node = world.add_node(&format!("client.{n}"));
            let mut client = ClientNode::new(node, n, n < WRITERS, world.fork_rng());
            (client.full_wait, client.tuning) = (options.full_wait, options.tuned.client);
            client.tuning.volume.holds_limits = options.clients_hold_limits;
            client
        };
        let clients = (0..CLIENTS).map(client).collect();
        let mut sim = Cluster {
            cluster,
            osds,
            meta: Metas::new(cluster, options.tuned.control, options.metas),
            clients,
            owner: 0,
            linear: Linear::default(),
            budget,
            failed: BTreeSet::new(),
            replaced: BTreeSet::new(),
            overfull: None,
            rotten: BTreeSet::new(),
            rotten_logs: BTreeSet::new(),
            rotten_payloads: BTreeSet::new(),
            post: Post::new(world.fork_rng()),
            given: Given::default(),
            lost_ids: Vec::new(),
            path_broken: false,
            stranger: None,
            tenants: None,
            snapshots: None,
            families: None,
            sharing: None,
            rng,
            next_stream: 0,
            turns: 0,
            poison_confirmed: 0,
            observers: Observers::default(),
            claims: claims::Shared::default(),
            options,
            world,
        };
        let majority = sim.options.replicas as usize / 2 + 1;
        sim.linear.durable = Some(durable::Watch::new(&sim.world, DEVICE, majority));
        sim.world.watch_disks(Rc::clone(&sim.claims) as Rc<RefCell<dyn DiskWatch>>);
        sim.world.watch_net(Rc::clone(&sim.claims) as Rc<RefCell<dyn NetWatch>>);
        sim.start_meta();
        for i in 0..sim.osds.len() {
            sim.format(i);
            sim.watch_log(i);
        }
        for i in 0..sim.osds.len() {
            sim.start_osd(i);
        }
        sim
    }

    fn format(&mut self, i: usize) {
        let osd = &self.osds[i];
        self.meta.register(self.world.now(), osd.uuid, osd.id, self.options.device_bytes, &mut self.post);
        self.format_device(i);
    }

    fn format_device(&mut self, i: usize) {
        let osd = &self.osds[i];
        let mut env = self.world.env(osd.node);
        let disk = env.open_disk(&spec()).expect("the simulated disk is there");
        let params = engine::FormatParams {
            cluster: self.cluster,
            osd: osd.id,
            uuid: osd.uuid,
            log_bytes: self.options.log_bytes_of(i),
            segment_bytes: self.options.segment_bytes,
            force: true,
            prezero: self.options.disk_kind == DiskKind::File,
            unix_s: 0,
            part: engine::DevicePart::Whole,
        };
        let mut driven = crate::drive::Driven { env: &mut env, world: &self.world };
        engine::format_device(&mut driven, &disk, &params, &mut |_, _| {}).expect("a fresh disk is formatted");
    }

    pub fn osd_count(&self) -> usize {
        self.osds.len()
    }

    pub fn osd_node(&self, i: usize) -> NodeId {
        self.osds[i].node
    }

    /// Returns the node of another OSD than the i-th, or of the owner.
    pub fn other_node(&self, i: usize, rng: &mut Rng) -> NodeId {
        let count = self.osds.len();
        let k = 1 + rng.below(count as u64) as usize;
        if k == count { self.clients[self.owner].node } else { self.osds[(i + k) % count].node }
    }

    /// Returns the running OSDs.
    pub fn running(&self) -> impl Iterator<Item = (OsdId, &Osd)> {
        self.osds.iter().filter_map(|o| o.running.as_ref().map(|(osd, _)| (o.id, osd)))
    }

    pub fn start_osd(&mut self, i: usize) {
        if self.osds[i].running.is_some() {
            return;
        }
        self.note_lost_tail(i);
        if self.budget.is_lost(i) {
            return;
        }
        let must_refuse = self.is_marked(i).then(|| self.read_faults());
        let node = &mut self.osds[i];
        node.ended = None;
        node.life += 1;
        let after_poison = std::mem::take(&mut node.poison_confirmed);
        node.must_refuse = must_refuse.filter(|_| !after_poison);
        let restores = node.restores.take();
        let (after_restore, mount_above) = (restores.is_some(), restores.unwrap_or(0));
        node.restored = after_restore;
        let behind = self.is_marked_behind(i);
        let node = &mut self.osds[i];
        let mut env = self.world.env(node.node);
        let disk = env.open_disk(&spec()).expect("the lock died with the process");
        let config = OsdConfig {
            cluster: self.cluster,
            osd: node.id,
            uuid: node.uuid,
            incarnation: Incarnation(u64::from(node.id.0) << 32 | u64::from(node.life)),
            listen: NetAddr::Tcp(node.addr),
            advertise: None,
            http: None,
            host: Some(format!("host{}", node.id.0)),
            rack: None,
            zone: None,
            version: String::new(),
            engine: engine::EngineConfig { after_poison, after_restore, mount_above, ..self.options.engine.clone() },
            behind,
            timing: self.options.tuned.timing,
            tuning: self.options.tuned.osd,
            lease_reads: self.options.lease_reads,
        };
        let seed = env.random();
        node.audited = false;
        node.scanned.clear();
        node.running = Some((Osd::new(config, disk, &Registry::default(), seed), env));
        self.post.send(self.world.now(), Mail::Dial { osd: i, life: node.life });
        self.turn_osd(i);
    }

    /// Ends the process, by `kill -9` or with its machine's power.
    pub fn stop_osd(&mut self, i: usize, power: bool) {
        let node = &mut self.osds[i];
        if power {
            self.world.power_cut(node.node);
        } else if node.running.is_some() {
            self.world.crash(node.node);
        }
        self.gone(i);
    }

    /// Notes that the process is gone; meta learns it from the broken stream.
    fn gone(&mut self, i: usize) {
        self.examine_claims(i);
        let node = &mut self.osds[i];
        node.running = None;
        self.observers.laws.gone(node.id);
        if let Some(stream) = node.stream.take() {
            self.post.send(self.world.now(), Mail::StreamGone { stream });
        }
    }

    /// Returns the node of the owner, of a preempted client, or of a reader.
    pub fn any_client(&self, rng: &mut Rng) -> NodeId {
        self.clients[rng.below(CLIENTS as u64) as usize].node
    }

    /// Tells some leader to transfer its leadership to some other member.
    pub fn transfer(&mut self, rng: &mut Rng) {
        let Some(records) = self.meta.records() else { return };
        let all: Vec<PgId> = records.pgs.keys().copied().collect();
        if !all.is_empty() {
            self.transfer_pg(all[rng.below(all.len() as u64) as usize], None, rng);
        }
    }

    /// Tells the leader of the PG to transfer its leadership: to the i-th OSD, or to any member.
    pub fn transfer_pg(&mut self, pg: PgId, to: Option<usize>, rng: &mut Rng) {
        let Some(record) = self.meta.records().and_then(|r| r.pgs.get(&pg)) else { return };
        let any = record.members[rng.below(record.members.len() as u64) as usize].osd;
        let to = to.map_or(any, |i| self.osds[i].id);
        self.order(pg, &OsdDown::TransferLeader { pg, to });
    }

    /// Gives the leader of a PG an order, as meta does.
    pub fn order(&mut self, pg: PgId, order: &OsdDown) {
        let leader = self.osds.iter_mut().filter_map(|o| o.running.as_mut()).map(|(osd, _)| osd);
        for osd in leader.filter(|osd| osd.leading().contains_key(&pg)) {
            osd.handle_control(order.clone());
        }
        (0..self.osds.len()).for_each(|i| self.turn_osd(i));
    }

    /// Makes another machine preempt the owner, which goes on meanwhile.
    pub fn steal(&mut self) {
        if !self.clients[self.owner].is_open() {
            return;
        }
        self.clients[self.owner].preempted();
        self.owner = (self.owner + 1) % WRITERS;
        self.clients[self.owner].restart(&self.world);
    }

    /// Returns the client that holds the volume, or asks for it.
    pub fn owner(&mut self) -> &mut ClientNode {
        &mut self.clients[self.owner]
    }

    pub(crate) fn owner_number(&self) -> usize {
        self.owner
    }

    pub(crate) fn identity(&self, i: usize) -> (ClusterId, OsdId, OsdUuid) {
        (self.cluster, self.osds[i].id, self.osds[i].uuid)
    }

    pub(crate) fn osd_addr(&self, i: usize) -> SocketAddr {
        self.osds[i].addr
    }

    pub(crate) fn stranger(&mut self) -> &mut Option<Stranger> {
        &mut self.stranger
    }

    pub fn clients(&self) -> &[ClientNode] {
        &self.clients
    }

    /// Gives every client its work; the first one opens.
    pub fn begin(&mut self, volumes: &[VolumeId], over: Duration, rng: &mut Rng) {
        let (kind, mut shape) = (self.options.workload, self.options.shape.clone());
        if let Some(forger) = &mut shape.forger {
            forger.devices = self.osds.iter().map(|osd| (osd.node, osd.uuid)).collect();
        }
        let all = kind.clients(volumes, (WRITERS, CLIENTS), &shape, rng);
        for (client, workload) in self.clients.iter_mut().zip(all) {
            if let Some(workload) = workload {
                client.begin(workload, over);
            }
        }
        self.restart_client(false);
    }

    /// Returns the next moment at which something happens by itself.
    pub fn next(&self) -> Option<Time> {
        let clients = self.clients.iter().filter(|c| !self.world.is_paused(c.node)).filter_map(ClientNode::next_wanted);
        let tenants = self.tenants.as_ref().and_then(Tenants::next);
        let snapshots = self.snapshots.as_ref().and_then(Snapshots::next);
        let families = self.families.as_ref().and_then(Families::next);
        let sharing = self.sharing.as_ref().and_then(Sharing::next);
        let admins = tenants.into_iter().chain(snapshots).chain(families).chain(sharing);
        clients.chain(self.world.next_turn_time()).chain(self.post.next()).chain(admins).min()
    }

    /// Names what is due now, for a failure's text.
    pub fn due(&self) -> String {
        let now = self.world.now();
        let is_due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        let mut due: Vec<String> = Vec::new();
        due.extend(self.clients.iter().filter(|c| is_due(c.next_wanted())).map(|c| self.world.node_name(c.node)));
        let ready = self.world.ready_nodes();
        due.extend(ready.iter().map(|node| self.world.node_name(*node)));
        let others = [
            ("a turn", self.world.next_turn_time()),
            ("mail", self.post.next()),
            ("tenants", self.tenants.as_ref().and_then(Tenants::next)),
            ("snapshots", self.snapshots.as_ref().and_then(Snapshots::next)),
            ("families", self.families.as_ref().and_then(Families::next)),
            ("sharing", self.sharing.as_ref().and_then(Sharing::next)),
        ];
        due.extend(others.into_iter().filter(|(_, at)| is_due(*at)).map(|(what, _)| what.to_owned()));
        due.join(", ")
    }

    /// Delivers mail and turns every node that is ready, until nothing more happens at this moment.
    pub fn settle(&mut self) {
        let now = self.world.now();
        let lenient = self.budget.is_spent();
        self.clients.iter_mut().for_each(|c| c.lenient = lenient);
        self.tend(now);
        while let Some(mail) = self.post.take_due(now) {
            self.deliver(now, mail);
        }
        for client in &mut self.clients {
            client.pump(&self.world, &mut self.linear, &mut self.post);
        }
        self.note_opens();
        self.start_reader();
        for node in self.world.ready_nodes() {
            match self.osds.iter().position(|o| o.node == node) {
                Some(i) => self.turn_osd(i),
                None if self.stranger.as_ref().is_some_and(|s| s.node == node) => {
                    self.stranger.as_mut().expect("it was there just now").turn();
                }
                None => {
                    let client =
                        self.clients.iter_mut().find(|c| c.node == node).expect("a node is an OSD or a client");
                    client.turn(&self.world, &mut self.linear, &mut self.post);
                    self.note_opens();
                }
            }
        }
    }

    fn turn_osd(&mut self, i: usize) {
        trace::at(self.world.now(), trace::Speaker::Osd(self.osds[i].id.0));
        let node = &mut self.osds[i];
        if self.world.is_paused(node.node) {
            return;
        }
        let Some((osd, env)) = &mut node.running else { return };
        // Events that have arrived come first: a real turn begins with the events that ended its wait.
        let mut turn = osd.wait(env);
        // A process that died while it submitted does nothing more: the clock is that of the next one already.
        while turn.is_ok() && env.is_alive() {
            self.turns += 1;
            turn = osd.work(env).and_then(|()| osd.wait(env));
            if !osd.has_events() {
                break;
            }
        }
        let (mut refused, mut log_lost) = (false, false);
        if let Err(error) = turn {
            // The real process logs the error and ends, too.
            tracing::error!("{error}");
            refused = matches!(error, osd::OsdError::Mount(engine::MountError::Poisoned { .. }));
            log_lost = matches!(error, osd::OsdError::Mount(engine::MountError::LogLost));
            node.ended = Some(error.to_string());
            self.world.crash(node.node);
        }
        if !self.world.is_up(node.node) {
            self.gone(i);
            if refused {
                self.confirm_poison(i);
            }
            if log_lost {
                self.note_lost_log(i);
            }
            return;
        }
        self.observe(i);
        let node = &mut self.osds[i];
        let Some((osd, _)) = &mut node.running else { return };
        if let Some(again) = osd.starts_again() {
            return self.start_older(i, again);
        }
        let reports = osd.take_reports();
        let Some(stream) = node.stream else { return };
        for up in reports {
            self.post.send(self.world.now(), Mail::ToMeta { osd: i, stream, up });
        }
    }

    fn deliver(&mut self, now: Time, mail: Mail) {
        trace::at(now, trace::Speaker::Sim);
        tracing::trace!(?mail, "delivered");
        match mail {
            Mail::ToOsd { osd, stream, down } => {
                let node = &mut self.osds[osd];
                if node.stream == Some(stream)
                    && self.meta.carries(stream)
                    && let Some((running, _)) = &mut node.running
                {
                    running.handle_control(down);
                    self.turn_osd(osd);
                }
            }
            Mail::Dial { osd, life } => self.dial(now, osd, life),
            Mail::Answer { client, life, id, answer } => {
                self.clients[client].answer(&self.world, life, id, answer, &mut self.linear, &mut self.post);
                self.note_opens();
            }
            to_meta => self.deliver_to_meta(now, to_meta),
        }
    }

    /// Reads a range of a PG from one OSD, while nothing else is in flight. `None`: zeros.
    ///
    /// # Errors
    /// The range cannot be read.
    pub fn read_replica(
        &mut self,
        osd: OsdId,
        pg: PgId,
        chunk: ChunkKey,
        range: SectorRange,
    ) -> Result<Option<IoBuf>, String> {
        let i = osd.0 as usize - 1;
        let what = format!("{osd} cannot read {chunk} of pg {pg}");
        let (running, _) = self.osds[i].running.as_mut().ok_or_else(|| format!("{what}: it is down"))?;
        if !running.read_for_tools(pg, chunk, range) {
            return Err(format!("{what}: no such replica serves"));
        }
        self.turn_osd(i);
        loop {
            let (running, _) = self.osds[i].running.as_mut().expect("it runs");
            if let Some(result) = running.take_tool_reads().pop() {
                return match result {
                    Ok(ReadData::Zeros) => Ok(None),
                    Ok(ReadData::Bytes { payload, .. }) => Ok(Some(payload)),
                    Err(error) => Err(format!("{what}: {error}")),
                };
            }
            self.step(Time::NEVER);
        }
    }

    /// Moves to the next moment at which something happens, at most to `until`.
    pub fn step(&mut self, until: Time) {
        let next = self.next().map_or(until, |t| t.min(until));
        assert!(next != Time::NEVER, "nothing will ever happen again");
        self.world.advance_to(next.max(self.world.now()));
        self.settle();
    }

    /// Ends all faults.
    pub fn mend(&mut self) {
        self.world.heal_all();
        self.world.net(|net| (net.loss_ppm, net.reset_ppm, net.corrupt_ppm) = (0, 0, 0));
        self.post.slow(1);
        for client in &self.clients {
            self.world.resume(client.node);
        }
        self.mend_metas();
        if let Some(tenants) = &mut self.tenants {
            tenants.close(self.world.now());
        }
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.close(self.world.now());
        }
        if let Some(families) = &mut self.families {
            families.close(self.world.now());
        }
        if let Some(sharing) = &mut self.sharing {
            sharing.close(self.world.now());
        }
        for i in 0..self.osds.len() {
            let node = self.osds[i].node;
            self.world.resume(node);
            self.world.doom(node, None);
            self.world.slow_node(node, 1);
            self.disk_faults(i, |f| *f = DiskFaults { watch: f.watch, slow: 1, ..DiskFaults::default() });
            self.start_osd(i);
        }
    }

    /// Returns how long failed replicas wait until meta replaces them.
    pub fn replacement_pause(&self) -> Duration {
        self.meta.control().map_or(Duration::ZERO, |c| c.replacement_pause_for_tools(self.world.now()))
    }

    /// Whether some member reports that bytes of this PG may be lost, that no member here has them, or that the PG is
    /// out of service.
    pub fn says_lost(&self, pg: PgId) -> bool {
        let says = |what: &str| ["inconsistent", "unread", "quarantined"].iter().any(|word| what.starts_with(word));
        self.running().any(|(_, osd)| osd.complaints_for_tools().iter().any(|(of, what)| *of == pg && says(what)))
    }

    /// Looks for a failure that no fault of this simulator explains.
    ///
    /// # Errors
    /// A violation that an observer or a client saw, an OSD that has stopped, or a replica that was quarantined.
    pub fn failure(&self) -> Result<(), String> {
        self.observed()?;
        self.ids_are_new()?;
        if let Some(what) = self.clients.iter().find_map(|c| c.failure.clone()) {
            return Err(what);
        }
        if let Some(replica) = self.failed.iter().find(|replica| self.runs(**replica)) {
            return Err(format!("{replica} has failed, and takes part again"));
        }
        let honest = |id: OsdId| self.is_honest(id);
        if let Some(o) = self.osds.iter().find(|o| o.ended.is_some() && honest(o.id)) {
            return Err(format!("{} has ended: {}", o.id, o.ended.as_deref().unwrap_or_default()));
        }
        for (id, osd) in self.running() {
            let forgotten = |r: &types::control::PgReport| self.budget.has_forgotten(id.0 as usize - 1, r.replica);
            if let Some(r) = osd.reports_for_tools().into_iter().find(forgotten) {
                return Err(format!("{id} lost its disk and serves pg {} as {} again", r.pg, r.replica));
            }
        }
        for (id, osd) in self.running().filter(|(id, _)| honest(*id)) {
            if let Some(reason) = osd.stopped() {
                return Err(format!("{id} has stopped: {reason}"));
            }
        }
        for (id, osd) in self.running().filter(|(id, _)| self.keeps_its_word(*id)) {
            // The loss of log records fails the replicas of an OSD; they are replaced, and at rest none is left.
            if let Some((pg, reason)) = osd.quarantined().first().filter(|_| !self.rotten_logs.contains(&id)) {
                return Err(format!("{id} has quarantined pg {pg}: {reason}"));
            }
            // Peers repair all of this, but an honest disk must not have caused it.
            if let Some((pg, chunk, block, _)) = osd.bad_blocks().first().filter(|_| !self.is_rotten(id)) {
                return Err(format!("{id} has a bad block on an honest disk: {block} of {chunk}, pg {pg}"));
            }
            if osd.fill_for_tools().0.lost_homes > 0 && !self.is_rotten(id) {
                return Err(format!("{id} has lost pages of home on an honest disk"));
            }
            let rotten = self.is_rotten(id) || self.rotten_payloads.contains(&id);
            if osd.fill_for_tools().0.lost_payloads > 0 && !rotten {
                return Err(format!("{id} has lost a payload of its log on an honest disk"));
            }
            if let Some(reason) = osd.lost_records().filter(|_| !self.is_rotten(id)) {
                return Err(format!("{id} has lost records on an honest disk: {reason}"));
            }
        }
        Ok(())
    }

    /// Checks that within the budget a device costs no replica by lies that peers can repair: at rest each replica
    /// takes part again (ADR 0004, 0005), or has been replaced (ADR 0017).
    ///
    /// # Errors
    /// A replica that does not take part.
    pub fn lies_are_mended(&self) -> Result<(), String> {
        let lied = |i: usize| self.budget.has_mendable_lies_only(i) && !self.budget.is_spent();
        for (_, node) in self.osds.iter().enumerate().filter(|(i, _)| lied(*i)) {
            let (id, lies) = (node.id, self.budget.describe());
            if let Some(why) = &node.ended {
                return Err(format!("the device of {id} has lied, and it does not run: {why} ({lies})"));
            }
            let Some((osd, _)) = &node.running else { continue };
            if let Some((pg, reason)) = osd.quarantined().first() {
                return Err(format!("the device of {id} has lied, and pg {pg} is quarantined: {reason} ({lies})"));
            }
            if let Some((pg, lost)) = osd.repairing().iter().find(|(pg, _)| !self.asks_in_vain(*pg, id)) {
                return Err(format!("the device of {id} has lied, and pg {pg} is still repaired: {lost:?} ({lies})"));
            }
        }
        Ok(())
    }

    /// Whether this OSD repairs its replica after its disk has lied, while another member's disk is lost for good: payload repair
    /// queries all other members (ADR 0004), and a lost one answers only when membership changes.
    pub fn asks_in_vain(&self, pg: PgId, id: OsdId) -> bool {
        let says = |osd: &Osd| osd.repairing().iter().any(|(repaired, _)| *repaired == pg);
        let gone = |osd: OsdId| osd != id && self.budget.never_returns(osd.0 as usize - 1);
        let members = self.meta.records().and_then(|records| records.pgs.get(&pg).map(|r| r.members.clone()));
        self.budget.has_lied(id.0 as usize - 1)
            && self.running().any(|(running, osd)| running == id && says(osd))
            && members.is_some_and(|members| members.iter().any(|m| gone(m.osd)))
    }

    /// Describes the changes of members that have not ended: the record of meta, and the members at each replica.
    fn describe_changes(&self) -> String {
        let mut text = String::new();
        let pgs = self.meta.records().into_iter().flat_map(|records| records.pgs.values());
        for pg in pgs.filter(|pg| pg.change.is_some() || !pg.queue.is_empty()) {
            let _ = write!(text, "{} of {}: {:?}, {:?}", pg.pg, pg.conf_epoch, pg.change, pg.queue);
            for (id, osd) in self.running() {
                let group = osd.groups_for_tools().find(|g| g.identity().pg == pg.pg);
                let _ = group.map(|g| write!(text, ", {id} {}: {:?}", g.identity().replica, g.members()));
            }
            text.push_str("; ");
        }
        text
    }

    /// Describes the state of every node, for a failure's text.
    pub fn describe(&self) -> String {
        let mut text = format!("{}; {}", self.budget.describe(), self.describe_changes());
        for (id, osd) in self.running() {
            let _ = write!(text, "{id} {:?}:", osd.phase());
            for r in osd.reports_for_tools() {
                let lead = r.leading.map_or("", |l| if l.active { " leads" } else { " leads, not active" });
                let _ = write!(text, " [{} term {} applied {}{lead}]", r.pg, r.term, r.applied);
            }
            text.push_str("; ");
        }
        for osd in &self.osds {
            let _ = osd
                .ended
                .as_ref()
                .filter(|_| osd.running.is_none())
                .map(|why| write!(text, "{} ended: {why}; ", osd.id));
        }
        for client in &self.clients {
            let waits = client.workload.as_ref().map(|w| w.waiting()).unwrap_or_default();
            let _ = write!(text, "client: open {}, waits for {waits}; ", client.is_open());
        }
        text.extend(self.tenants.iter().map(|tenants| tenants.describe(self)));
        text.extend(self.snapshots.iter().map(Snapshots::describe));
        text.extend(self.families.iter().map(|families| families.describe(self)));
        text.extend(self.sharing.iter().map(|sharing| sharing.describe(self)));
        text
    }

    /// Returns the i-th OSD's device, and marks it as rotten outside the budget.
    pub fn rotting_image(&mut self, i: usize) -> DiskImage {
        self.rotten.insert(self.osds[i].id);
        self.image(i)
    }

    /// Flips a bit in the payload of every log entry on the i-th OSD's device that `which` chooses, by replica and
    /// index. Returns the number of damaged payloads. The process does not run.
    pub fn rot_payloads(&mut self, i: usize, which: impl Fn(types::ReplicaId, types::Index) -> bool) -> u64 {
        let node = &self.osds[i];
        assert!(node.running.is_none(), "its device is at rest");
        self.rotten_payloads.insert(node.id);
        crate::rot::payloads(&self.world.disk_image(node.node, DEVICE), which)
    }

    /// Returns dice for the run's own choices.
    pub fn fork_rng(&mut self) -> Rng {
        self.rng.fork()
    }

    pub fn post(&mut self) -> &mut Post {
        &mut self.post
    }
}

impl OsdNode {
    fn new(world: &World, n: u32, options: &Options, rng: &mut Rng) -> OsdNode {
        let node = world.add_node(&format!("osd.{n}"));
        world.create_disk(node, DEVICE, options.device_bytes, options.volatile_cache);
        world.disk_kind(node, DEVICE, options.disk_kind);
        world.disk_faults(node, DEVICE, |f| *f = options.disk.clone());
        if options.drift {
            world.set_clock_rate(node, faults::draw_rate(rng));
        }
        OsdNode {
            node,
            id: OsdId(n),
            uuid: OsdUuid(u128::from(rng.next_u64()).to_le_bytes()),
            addr: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, n as u8)), 7400),
            life: 0,
            running: None,
            stream: None,
            metas: meta::finder(options.metas.unwrap_or(1)),
            audited: false,
            tail_found: u64::MAX,
            durable_batch: 0,
            scanned: BTreeSet::new(),
            ended: None,
            must_refuse: None,
            poison_confirmed: false,
            restores: None,
            restored: false,
        }
    }
}

fn spec() -> DiskSpec {
    DiskSpec { path: DEVICE.into(), assume_plp: false, read_only: false }
}
