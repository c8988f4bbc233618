//! Two metas on a real etcd. Without its binary the test prints so and ends.

use crate::fake::{Cluster, eventually};
use crate::{Client, LOCAL, admin, make_pool, opened, run, scratch, started};
use api::AdminClient;
use control::admin::{AdminAnswer, AdminAsk};
use meta::StoreConfig;
use metastore::EtcdConfig;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::time::Instant;
use types::SEGMENT;
use types::control::{ClientAnswer, ClientAsk};

struct Etcd {
    child: Child,
    endpoint: String,
    dir: PathBuf,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Starts an etcd for the test of this name.
fn start(name: &str) -> Option<Etcd> {
    let dir = scratch(name);
    let free = || std::net::TcpListener::bind(LOCAL).and_then(|l| l.local_addr()).expect("a port").port();
    let (client, peer) = (format!("http://127.0.0.1:{}", free()), format!("http://127.0.0.1:{}", free()));
    let child = Command::new("etcd")
        .args(["--name", "m", "--data-dir"])
        .arg(dir.join("data"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("m={peer}")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    match child {
        Ok(child) => Some(Etcd { child, endpoint: client, dir }),
        Err(e) => {
            println!("skipped: there is no etcd to run ({e})");
            None
        }
    }
}

#[test]
fn when_the_leading_meta_dies_the_other_serves_within_five_seconds() {
    let Some(etcd) = start("etcd-failover") else { return };
    run(async {
        let store = || StoreConfig::Etcd(EtcdConfig::new(vec![etcd.endpoint.clone()], "/basalt/failover"));
        let mut first = started(LOCAL, store()).await;
        first.leading().await;
        let second = started(LOCAL, store()).await;
        // Clients know the follower first: it redirects them.
        let metas = [second.addr, first.addr];
        let admin = admin(&metas);
        let cluster = Cluster::start(&admin, &metas, 3).await;
        assert!(first.is_leading() && !second.is_leading());
        make_pool(&admin, "rbd", 3, 16).await;
        admin
            .ask(AdminAsk::VolumeCreate {
                name: "rbd/v".into(),
                len_bytes: 4 * SEGMENT,
                stripe: types::Stripe::NONE,
                text: Default::default(),
            })
            .await
            .expect("a volume");
        let mut client = Client::new(&metas, 1);
        let held = opened(client.open("rbd/v", false).await);
        let ClientAnswer::Segments { segments: before, .. } = client.segments(&held, &[0, 1]).await else {
            panic!("not placed")
        };

        // An interactive command gives up soon when nothing answers; the follower answers.
        let addrs = metas.iter().map(ToString::to_string).collect();
        let command = AdminClient::new(addrs, Duration::from_secs(20)).impatient(Duration::from_millis(100));
        let killed = Instant::now();
        first.kill();
        let answer = command.ask(AdminAsk::PoolList).await.expect("the second answers");
        let took = killed.elapsed();
        assert!(matches!(&answer, AdminAnswer::Pools(pools) if pools.len() == 1), "{answer:?}");
        println!("admin commands worked again after {took:?}");
        assert!(took < Duration::from_secs(5), "{took:?}");
        eventually("the second leads", || second.is_leading()).await;

        // The hold survives, and so does every segment.
        let alive = ClientAsk::Keepalive {
            volume: held.volume,
            session: held.session,
            unreached: Vec::new(),
            len_epoch: 0,
            len_bytes: 0,
        };
        assert_eq!(
            client.ask(alive).await,
            ClientAnswer::Alive {
                len_epoch: 0,
                len_bytes: 4 * SEGMENT,
                limits: types::QosLimits::NONE,
                faults: Vec::new(),
                when_full: types::WhenFull::Client,
            }
        );
        cluster.all_up(&admin, 3).await;
        let ClientAnswer::Segments { segments: after, .. } = client.segments(&held, &[0, 1, 2]).await else {
            panic!("not placed")
        };
        assert_eq!(after[..2], before[..]);
        assert!(!after[2].pgs.is_empty());
        second.stop().await.expect("stops");
    });
}

#[test]
fn silent_etcd_is_named_in_the_error_and_its_return_is_noticed() {
    let Some(etcd) = start("etcd-outage") else { return };
    run(async {
        let store = StoreConfig::Etcd(EtcdConfig::new(vec![etcd.endpoint.clone()], "/basalt/outage"));
        let mut meta = started(LOCAL, store).await;
        meta.leading().await;
        let signal = |name: &str| {
            let sent = Command::new("kill").args([name, &etcd.child.id().to_string()]).status();
            assert!(sent.expect("kill runs").success());
        };
        signal("-STOP");
        eventually("the leadership to end", || !meta.is_leading()).await;
        // The first campaign after that has to fail before the cause is known.
        let asked = AdminClient::new(vec![meta.addr.to_string()], Duration::from_secs(6));
        let refused = asked.ask(AdminAsk::PoolList).await.expect_err("nothing leads").to_string();
        let cause = format!("the metadata store (etcd at {}) does not answer", etcd.endpoint);
        assert!(refused.starts_with("BSLT-2001") && refused.contains(&cause), "{refused}");
        signal("-CONT");
        meta.leading().await;
        admin(&[meta.addr]).ask(AdminAsk::PoolList).await.expect("it leads again");
        meta.stop().await.expect("stops");
    });
}
