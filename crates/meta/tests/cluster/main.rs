//! A meta from the outside: real gRPC on loopback, and simple fake OSDs.

mod etcd;
mod fake;
mod silence;

use api::{AdminClient, AdminError, client_link};
use control::admin::{AdminAnswer, AdminAsk, PoolCreate, VolumeRemove, VolumeView};
use fake::{Cluster, eventually};
use meta::{Meta, MetaConfig, StoreConfig};
use metastore::MemStore;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use types::codes;
use types::control::{ClientAnswer, ClientAsk, Opened};
use types::{SEGMENT, SegmentIndex, SessionId};

const LOCAL: &str = "127.0.0.1:0";

pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        tokio::time::timeout(Duration::from_secs(60), test).await.expect("the test ends in time");
    });
}

pub(crate) fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("basalt-meta-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a scratch directory");
    dir
}

pub(crate) fn config(listen: &str, store: StoreConfig) -> MetaConfig {
    let listen: SocketAddr = listen.parse().expect("an address");
    MetaConfig {
        listen,
        http: Some(LOCAL.parse().expect("an address")),
        advertise: None,
        store,
        registry: telemetry::Registry::default(),
        version: "1.2.3".into(),
    }
}

pub(crate) async fn started(listen: &str, store: StoreConfig) -> Meta {
    meta::start(config(listen, store)).await.expect("a meta starts")
}

pub(crate) fn admin(metas: &[SocketAddr]) -> AdminClient {
    AdminClient::new(metas.iter().map(ToString::to_string).collect(), Duration::from_secs(20))
}

pub(crate) async fn volume(admin: &AdminClient, name: &str) -> VolumeView {
    match admin.ask(AdminAsk::VolumeInfo { name: name.into() }).await.expect("it is there") {
        AdminAnswer::Volume(volume) => volume,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn make_pool(admin: &AdminClient, name: &str, replicas: u32, pg_count: u32) -> Option<String> {
    let pool =
        PoolCreate { name: name.into(), replicas, domain: "host".into(), pg_count, force: false, device_class: None };
    match admin.ask(AdminAsk::PoolCreate(pool)).await.expect("a pool") {
        AdminAnswer::PoolCreated { pool, warning } => {
            assert_eq!((pool.state.as_str(), pool.pg_count), ("ready", pg_count));
            warning
        }
        other => panic!("{other:?}"),
    }
}

/// A client process: sends requests, and waits for the answers.
pub(crate) struct Client {
    link: client_link::ClientLink,
    next: u64,
}

impl Client {
    pub fn new(metas: &[SocketAddr], client: u64) -> Client {
        let metas = metas.iter().map(ToString::to_string).collect();
        let runtime = tokio::runtime::Handle::current();
        Client { link: client_link::start(&runtime, metas, client, Box::new(|| {})), next: 1 }
    }

    pub fn ask_only(&mut self, ask: ClientAsk) -> u64 {
        let id = self.next;
        self.next += 1;
        self.link.try_ask(id, ask).expect("the queue has room");
        id
    }

    pub async fn answer(&mut self, id: u64) -> ClientAnswer {
        let mut got = None;
        eventually("an answer", || {
            got = self.link.try_recv();
            got.is_some()
        })
        .await;
        let (to, answer) = got.expect("just seen");
        assert_eq!(to, id);
        answer
    }

    pub async fn ask(&mut self, ask: ClientAsk) -> ClientAnswer {
        let id = self.ask_only(ask);
        self.answer(id).await
    }

    pub async fn open(&mut self, name: &str, steal: bool) -> ClientAnswer {
        self.ask(ClientAsk::Open { name: name.into(), write: true, steal, holder: "test".into() }).await
    }

    pub async fn segments(&mut self, opened: &Opened, segments: &[u32]) -> ClientAnswer {
        let segments: Vec<SegmentIndex> = segments.iter().copied().map(SegmentIndex).collect();
        let (volume, session, epoch) = (opened.volume, opened.session, opened.epoch);
        loop {
            let segments = segments.clone();
            match self.ask(ClientAsk::Segments { volume, session, epoch, segments, allocate: true }).await {
                ClientAnswer::Segments { pending, .. } if !pending.is_empty() => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                answer => return answer,
            }
        }
    }
}

pub(crate) fn opened(answer: ClientAnswer) -> Opened {
    match answer {
        ClientAnswer::Opened(opened) => opened,
        other => panic!("not opened: {other:?}"),
    }
}

pub(crate) fn refusal(answer: ClientAnswer) -> types::control::Refusal {
    match answer {
        ClientAnswer::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_volume_lives_from_pool_creation_to_removal() {
    run(async {
        let dir = scratch("life");
        let meta = started(LOCAL, StoreConfig::Redb { path: dir.join("meta.redb") }).await;
        let metas = [meta.addr];
        let admin = admin(&metas);
        let cluster = Cluster::start(&admin, &metas, 3).await;
        let too_wide = PoolCreate {
            name: "wide".into(),
            replicas: 5,
            domain: "host".into(),
            pg_count: 8,
            force: false,
            device_class: None,
        };
        let refused = admin.ask(AdminAsk::PoolCreate(too_wide)).await.expect_err("three hosts");
        assert_eq!(refused.code(), codes::CANNOT_PLACE, "{refused}");
        assert!(make_pool(&admin, "two", 2, 8).await.is_some_and(|w| w.contains("two replicas")));
        assert_eq!(make_pool(&admin, "rbd", 3, 40).await, None);
        eventually("every member exists", || cluster.replica_count() == 2 * 8 + 3 * 40).await;

        let len_bytes = 3 * SEGMENT + 512;
        admin
            .ask(AdminAsk::VolumeCreate {
                name: "rbd/v1".into(),
                len_bytes,
                stripe: types::Stripe::NONE,
                text: Default::default(),
            })
            .await
            .expect("a volume");
        let mut first = Client::new(&metas, 1);
        let held = opened(first.open("rbd/v1", false).await);
        assert_eq!((held.len_bytes, held.segments.len(), held.write), (len_bytes, 0, true));
        let ClientAnswer::Segments { segments, view, .. } = first.segments(&held, &[0, 3]).await else {
            panic!("segments")
        };
        for place in &segments {
            let pg = place.pgs[0];
            let attach = cluster.attached(pg, held.volume).expect("its attach was committed before the answer");
            assert_eq!(
                (attach.only_session().expect("it is not shared"), attach.epoch, attach.chunk_count),
                (held.session, held.epoch, 193)
            );
            assert!(view.pgs.iter().any(|map| map.pg == pg) && view.osds.len() == 3);
        }
        let far = refusal(first.segments(&held, &[4]).await);
        assert_eq!(far.code, codes::OUT_OF_RANGE);

        // A second opener is told the holder; stealing fences the first client everywhere before it
        // returns.
        let mut second = Client::new(&metas, 2);
        let told = refusal(second.open("rbd/v1", false).await);
        assert_eq!(told.code, codes::VOLUME_HELD);
        assert!(told.message.contains("\"test\" at 127.0.0.1:"), "{told}");
        let stolen = opened(second.open("rbd/v1", true).await);
        assert!(stolen.epoch > held.epoch && stolen.session > held.session);
        assert_eq!(stolen.segments.len(), 2);
        for place in &stolen.segments {
            let attach = cluster.attached(place.pgs[0], held.volume).expect("attached");
            assert_eq!(
                (attach.only_session().expect("it is not shared"), attach.epoch),
                (stolen.session, stolen.epoch)
            );
        }
        assert_eq!(refusal(first.segments(&held, &[1]).await).code, codes::SESSION_FENCED);
        let alive = ClientAsk::Keepalive {
            volume: held.volume,
            session: held.session,
            unreached: Vec::new(),
            len_epoch: 0,
            len_bytes: 0,
        };
        assert_eq!(refusal(first.ask(alive).await).code, codes::SESSION_FENCED);

        // A held volume is not removed by accident; a closed one is removed without a trace.
        let rm = AdminAsk::VolumeRemove(VolumeRemove {
            name: "rbd/v1".into(),
            force: false,
            now: true,
            snapshots: true,
            detach: false,
        });
        assert_eq!(admin.ask(rm.clone()).await.expect_err("held").code(), codes::VOLUME_HELD);
        let close = ClientAsk::Close { volume: stolen.volume, session: stolen.session };
        assert_eq!(second.ask(close).await, ClientAnswer::Closed);
        let pgs: Vec<_> = stolen.segments.iter().flat_map(|s| s.pgs.clone()).collect();
        assert!(pgs.iter().all(|pg| cluster.attached(*pg, held.volume).is_some_and(|a| a.writers.is_empty())));
        admin.ask(rm).await.expect("removed");
        assert!(pgs.iter().all(|pg| cluster.attached(*pg, held.volume).is_some_and(|a| a.chunk_count == 0)));
        let gone = admin.ask(AdminAsk::VolumeInfo { name: "rbd/v1".into() }).await.expect_err("gone");
        assert_eq!(gone.code(), codes::VOLUME_UNKNOWN);
        admin.ask(AdminAsk::PoolRemove { name: "rbd".into() }).await.expect("an empty pool goes");
        eventually("its replicas are dropped", || cluster.replica_count() == 2 * 8).await;
        meta.stop().await.expect("stops");
        std::fs::remove_dir_all(dir).expect("cleans up");
    });
}

#[test]
fn restarted_meta_knows_its_records_and_gives_holders_their_lease() {
    run(async {
        let dir = scratch("restart");
        let store = StoreConfig::Redb { path: dir.join("meta.redb") };
        let meta = started(LOCAL, store.clone()).await;
        let metas = [meta.addr];
        let admin = admin(&metas);
        let cluster = Cluster::start(&admin, &metas, 3).await;
        make_pool(&admin, "rbd", 3, 8).await;
        admin
            .ask(AdminAsk::VolumeCreate {
                name: "rbd/v".into(),
                len_bytes: SEGMENT,
                stripe: types::Stripe::NONE,
                text: Default::default(),
            })
            .await
            .expect("a volume");
        let mut client = Client::new(&metas, 1);
        let held = opened(client.open("rbd/v", false).await);
        // This allocation cannot finish: the PGs do not answer.
        cluster.hold_attaches(true);
        let (volume, session, epoch) = (held.volume, held.session, held.epoch);
        let segments = vec![SegmentIndex(0)];
        let asked = ClientAsk::Segments { volume, session, epoch, segments, allocate: true };
        let ClientAnswer::Segments { segments, pending, .. } = client.ask(asked).await else { panic!("not pending") };
        assert_eq!((segments.len(), pending), (0, vec![SegmentIndex(0)]));
        eventually("the attach was sent", || cluster.asked_to_attach() > 0).await;
        let listen = meta.addr.to_string();
        meta.stop().await.expect("stops");
        cluster.hold_attaches(false);

        let meta = started(&listen, store).await;
        let ClientAnswer::Segments { segments, .. } = client.segments(&held, &[0]).await else { panic!("not placed") };
        let pg = segments[0].pgs[0];
        assert_eq!(cluster.attached(pg, held.volume).expect("committed by the next meta").epoch, held.epoch);
        // The holder is given its lease again.
        let mut other = Client::new(&metas, 2);
        assert_eq!(refusal(other.open("rbd/v", false).await).code, codes::VOLUME_HELD);
        assert_eq!(volume_of(&admin).await, held.session);
        meta.stop().await.expect("stops");
        std::fs::remove_dir_all(dir).expect("cleans up");
    });
}

async fn volume_of(admin: &AdminClient) -> SessionId {
    volume(admin, "rbd/v").await.session
}

#[test]
fn strangers_and_garbage_are_refused_with_a_code() {
    run(async {
        let meta = started(LOCAL, StoreConfig::Memory(MemStore::new())).await;
        let admin = admin(&[meta.addr]);
        for (name, code) in [("nopool/v", codes::POOL_UNKNOWN), ("x", codes::BAD_NAME), ("A/b", codes::BAD_NAME)] {
            let refused = admin
                .ask(AdminAsk::VolumeCreate {
                    name: name.into(),
                    len_bytes: SEGMENT,
                    stripe: types::Stripe::NONE,
                    text: Default::default(),
                })
                .await;
            let refused = refused.expect_err(name);
            assert!(matches!(refused, AdminError::Refused(_)) && refused.code() == code, "{name}: {refused}");
        }
        // The garbage is no gRPC at all, or a gRPC call with a malformed body.
        for garbage in
            [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff"]
        {
            use tokio::io::AsyncWriteExt;
            let mut socket = tokio::net::TcpStream::connect(meta.addr).await.expect("connects");
            socket.write_all(garbage).await.expect("is read");
        }
        let stranger = fake::hello_of_a_stranger(meta.addr).await;
        assert_eq!(stranger, codes::WRONG_CLUSTER);
        assert!(matches!(admin.ask(AdminAsk::Status).await, Ok(AdminAnswer::Status(_))), "it still serves");
        let http = meta.http.expect("http is on");
        assert!(fake::get(http, "/healthz").await.contains("leading"));
        assert!(fake::get(http, "/metrics").await.contains("basalt_meta_commits_total"));
        assert!(fake::get(http, "/status").await.contains("\"schema\":\"basalt.status/1\""));
        meta.stop().await.expect("stops");
    });
}
