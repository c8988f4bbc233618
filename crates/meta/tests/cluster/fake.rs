//! OSDs without data: they take PGs, lead those that prefer them, and commit attach records as a PG does.

use api::{AdminClient, osd_link};
use control::admin::{AdminAnswer, AdminAsk, OsdRegister};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use types::control::{Attach, AttachRefusal, LeadReport, OsdDown, OsdHeartbeat, OsdHello, OsdUp, PgReport, Watermarks};
use types::map::PgMap;
use types::{ClusterId, Incarnation, Index, OsdId, OsdUuid, PgId, ReplicaId, Term, VolumeId};

/// Waits until `condition` holds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(15);
    while !condition() {
        assert!(Instant::now() < end, "waited too long for: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[derive(Default)]
struct Shared {
    /// Replicated state: the attach records that each PG has committed.
    attached: BTreeMap<(PgId, VolumeId), Attach>,
    orders: BTreeMap<PgId, u64>,
    asked: usize,
    hold: bool,
    /// Watermarks that the devices keep.
    seen: BTreeMap<OsdId, Watermarks>,
    pgs: BTreeMap<(OsdId, PgId), PgMap>,
}

/// All fake OSDs of a test.
pub struct Cluster {
    shared: Arc<Mutex<Shared>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Osd {
    id: OsdId,
    cluster: ClusterId,
    shared: Arc<Mutex<Shared>>,
    link: osd_link::OsdLink,
}

fn uuid(n: u32) -> OsdUuid {
    OsdUuid([n as u8; 16])
}

impl Cluster {
    /// Registers and starts `count` OSDs, a host each, and waits until all are up.
    pub async fn start(admin: &AdminClient, metas: &[SocketAddr], count: u32) -> Cluster {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let mut tasks = Vec::new();
        for n in 1..=count {
            let register = OsdRegister {
                osd: None,
                uuid: uuid(n),
                host: format!("host{n}"),
                rack: "rack".into(),
                zone: "zone".into(),
                capacity_bytes: 4 << 30,
                device_class: None,
                replaces: None,
            };
            let answer = admin.ask(AdminAsk::OsdRegister(register)).await.expect("registered");
            let AdminAnswer::OsdRegistered { cluster, osd } = answer else { panic!("{answer:?}") };
            assert_eq!(osd, OsdId(n));
            let runtime = tokio::runtime::Handle::current();
            let metas = metas.iter().map(ToString::to_string).collect();
            let link = osd_link::start(&runtime, metas, Box::new(|| {}));
            let osd = Osd { id: osd, cluster, shared: Arc::clone(&shared), link };
            tasks.push(tokio::spawn(osd.run()));
        }
        let cluster = Cluster { shared, tasks };
        cluster.all_up(admin, count).await;
        cluster
    }

    pub async fn all_up(&self, admin: &AdminClient, count: u32) {
        let end = Instant::now() + Duration::from_secs(15);
        loop {
            let answer = admin.ask(AdminAsk::Status).await.expect("status");
            let AdminAnswer::Status(status) = answer else { panic!("{answer:?}") };
            if status.osds_up == count {
                return;
            }
            assert!(Instant::now() < end, "not all OSDs come up: {status:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn replica_count(&self) -> usize {
        lock(&self.shared).pgs.len()
    }

    pub fn attached(&self, pg: PgId, volume: VolumeId) -> Option<Attach> {
        lock(&self.shared).attached.get(&(pg, volume)).copied()
    }

    pub fn asked_to_attach(&self) -> usize {
        lock(&self.shared).asked
    }

    pub fn hold_attaches(&self, hold: bool) {
        lock(&self.shared).hold = hold;
    }
}

impl Osd {
    async fn run(mut self) {
        let mut beat = Instant::now();
        loop {
            while let Some(down) = self.link.try_recv() {
                self.take(down);
            }
            if beat.elapsed() > Duration::from_secs(1) {
                beat = Instant::now();
                self.heartbeat();
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    fn say(&self, up: OsdUp) {
        assert!(self.link.try_send(up).is_ok(), "the queue has room");
    }

    fn heartbeat(&self) {
        let shared = lock(&self.shared);
        let report = |map: &PgMap| PgReport {
            pg: map.pg,
            replica: map.members.iter().find(|m| m.osd == self.id).expect("it is a member").replica,
            term: Term(1),
            applied: Index(1),
            end: Some((Term(1), Index(1))),
            floor: ReplicaId(0),
            quarantined: false,
            repairing: false,
            lost: Vec::new(),
            unread: Vec::new(),
            hears: None,
            leading: (map.members[0].osd == self.id).then_some(LeadReport {
                active: true,
                followers_in_sync: map.members.len() as u8 - 1,
                ..LeadReport::default()
            }),
        };
        let own = shared.pgs.range((self.id, PgId::default())..).take_while(|((osd, _), _)| *osd == self.id);
        let pgs = own.map(|(_, map)| report(map)).collect();
        drop(shared);
        self.say(OsdUp::Heartbeat(OsdHeartbeat { free_bytes: 1 << 30, pgs, ..OsdHeartbeat::default() }));
    }

    fn take(&self, down: OsdDown) {
        match down {
            OsdDown::Connected => {
                let seen = lock(&self.shared).seen.get(&self.id).copied().unwrap_or_default();
                self.say(OsdUp::Hello(OsdHello { seen, ..hello(self.cluster, self.id, uuid(self.id.0)) }));
                self.heartbeat();
            }
            OsdDown::ChangeMembers { .. } | OsdDown::ForceMembers { .. } | OsdDown::Peers(_) => {}
            OsdDown::EnsureReplica { created: map, .. } => {
                lock(&self.shared).pgs.insert((self.id, map.pg), map);
                self.heartbeat();
            }
            OsdDown::DropReplica { pg, .. } => drop(lock(&self.shared).pgs.remove(&(self.id, pg))),
            OsdDown::Attach { pg, attach } => {
                let result = self.commit(pg, attach);
                if let Some(result) = result {
                    self.say(OsdUp::Attached { pg, order: attach.order, result });
                }
            }
            OsdDown::Remember(told) => {
                let mut shared = lock(&self.shared);
                let seen = shared.seen.entry(self.id).or_default();
                *seen = seen.max(told);
                let seen = *seen;
                drop(shared);
                self.say(OsdUp::Remembers(seen));
            }
            OsdDown::Welcome { .. }
            | OsdDown::Osds { .. }
            | OsdDown::TransferLeader { .. }
            | OsdDown::Limits { .. }
            | OsdDown::Snapshots { .. }
            | OsdDown::Behind { .. }
            | OsdDown::ReplicaFloor(_) => {}
            OsdDown::FailReplicas { reason, .. } => panic!("its device is never older: {reason}"),
            OsdDown::Refused { code, reason } => panic!("refused: BSLT-{code}: {reason}"),
        }
    }

    fn commit(&self, pg: PgId, attach: Attach) -> Option<Result<(), AttachRefusal>> {
        let mut shared = lock(&self.shared);
        shared.asked += 1;
        if shared.hold {
            return None;
        }
        let leader = shared.pgs.get(&(self.id, pg)).map(|map| map.members[0].osd);
        if leader != Some(self.id) {
            return Some(Err(AttachRefusal::NotLeader { hint: leader }));
        }
        let last = shared.orders.get(&pg).copied().unwrap_or(0);
        if attach.order <= last {
            return Some(Err(AttachRefusal::StaleOrder { last }));
        }
        shared.orders.insert(pg, attach.order);
        let old = shared.attached.insert((pg, attach.volume), attach);
        assert!(old.is_none_or(|old| old.epoch <= attach.epoch), "an attach of an old epoch came late");
        Some(Ok(()))
    }
}

fn hello(cluster: ClusterId, osd: OsdId, uuid: OsdUuid) -> OsdHello {
    OsdHello {
        cluster,
        osd,
        uuid,
        incarnation: Incarnation(1),
        addr: SocketAddr::from(([127, 0, 0, 1], 7400 + osd.0 as u16)),
        http: None,
        capacity_bytes: 4 << 30,
        host: Some(format!("host{}", osd.0)),
        rack: Some("rack".into()),
        zone: Some("zone".into()),
        version: "1.2.3".into(),
        replicas: vec![],
        seen: Watermarks::default(),
        device: types::control::DevicePosition::default(),
    }
}

/// Says Hello as an OSD of another cluster; returns the code of the refusal.
pub async fn hello_of_a_stranger(meta: SocketAddr) -> u32 {
    let runtime = tokio::runtime::Handle::current();
    let mut link = osd_link::start(&runtime, vec![meta.to_string()], Box::new(|| {}));
    let mut code = None;
    eventually("the refusal", || {
        match link.try_recv() {
            Some(OsdDown::Connected) => {
                let stranger = hello(ClusterId([9; 16]), OsdId(1), uuid(9));
                assert!(link.try_send(OsdUp::Hello(stranger)).is_ok());
            }
            Some(OsdDown::Refused { code: c, .. }) => code = Some(c),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        code.is_some()
    })
    .await;
    code.expect("just seen")
}

/// Sends one HTTP request; returns the whole response.
pub async fn get(addr: SocketAddr, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut socket = tokio::net::TcpStream::connect(addr).await.expect("connects");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.expect("sent");
    let mut text = String::new();
    socket.read_to_string(&mut text).await.expect("an answer");
    text
}
