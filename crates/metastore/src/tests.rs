//! Rules of every store, tested on each form. etcd is a real one, on loopback; without its binary the test
//! prints a line.

mod secure;

use super::*;
use control::Check;
use std::path::PathBuf;

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("basalt-metastore-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a scratch directory");
    dir
}

fn put(key: &str, value: &str, version: u64) -> Txn {
    Txn {
        checks: vec![Check { key: key.into(), version }],
        puts: vec![(key.into(), value.as_bytes().to_vec())],
        deletes: Vec::new(),
    }
}

fn delete(key: &str, version: u64) -> Txn {
    Txn { checks: vec![Check { key: key.into(), version }], puts: Vec::new(), deletes: vec![key.into()] }
}

fn item(key: &str, value: &str, version: u64) -> StoredItem {
    StoredItem { key: key.into(), value: value.as_bytes().to_vec(), version }
}

async fn obeys_the_laws(store: &mut dyn Store) {
    assert_eq!(store.campaign("here:1").await.expect("campaign"), Campaign::Won);
    assert_eq!(store.load().await.expect("load"), vec![]);
    store.commit(&put("a", "1", 0)).await.expect("first");
    store.commit(&put("a", "2", 1)).await.expect("second");
    let both = Txn {
        checks: vec![Check { key: "a".into(), version: 2 }, Check { key: "b".into(), version: 7 }],
        puts: vec![("a".into(), b"3".to_vec()), ("b".into(), b"3".to_vec())],
        deletes: vec![],
    };
    let refused = store.commit(&both).await.expect_err("b is not at 7");
    assert!(matches!(refused, StoreError::Conflict { .. }), "{refused}");
    assert_eq!(store.load().await.expect("load"), vec![item("a", "2", 2)], "nothing of a refused transaction happened");
    store.commit(&put("b", "x", 0)).await.expect("b");
    store.commit(&delete("a", 2)).await.expect("delete");
    store.commit(&put("a", "again", 0)).await.expect("a deleted key starts at version 0 again");
    assert_eq!(store.load().await.expect("load"), vec![item("a", "again", 1), item("b", "x", 1)]);
    for i in 0..25u64 {
        let keys: Vec<String> = (0..control::TXN_WRITES_MAX).map(|k| format!("many/{i:04}/{k:04}")).collect();
        let txn = Txn {
            checks: keys.iter().map(|k| Check { key: k.clone(), version: 0 }).collect(),
            puts: keys.iter().map(|k| (k.clone(), b"v".to_vec())).collect(),
            deletes: vec![],
        };
        store.commit(&txn).await.expect("the largest transaction fits");
    }
    assert_eq!(store.load().await.expect("load").len(), 2 + 25 * control::TXN_WRITES_MAX);
    store.keep().await.expect("it still leads");
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(test);
}

#[test]
fn memory_obeys_the_laws_of_a_store() {
    run(async {
        let mut store = MemStore::new();
        obeys_the_laws(&mut store).await;
        let mut other = store.another();
        assert_eq!(other.campaign("there:2").await.expect("asks"), Campaign::Lost { leader: Some("here:1".into()) });
        other.seize("there:2");
        assert!(matches!(store.commit(&put("z", "late", 0)).await, Err(StoreError::Fenced)));
        other.fail_next(Outage::After);
        assert!(matches!(other.commit(&put("z", "x", 0)).await, Err(StoreError::Unavailable { .. })));
        assert!(other.load_now().iter().any(|i| i.key == "z"), "it happened, unheard");
    });
}

#[test]
fn redb_obeys_the_laws_of_a_store_and_keeps_what_it_committed() {
    run(async {
        let path = scratch("redb").join("meta.redb");
        let mut store = RedbStore::open(&path).expect("a new file");
        assert!(matches!(RedbStore::open(&path), Err(StoreError::Locked { .. })), "one meta has it");
        obeys_the_laws(&mut store).await;
        let before = store.load().await.expect("load");
        drop(store);
        let mut store = RedbStore::open(&path).expect("opens again");
        assert_eq!(store.load().await.expect("load"), before);
    });
}

mod real_etcd {
    use super::*;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

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

    fn start() -> Option<Etcd> {
        let dir = scratch("etcd");
        let free = |_| std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        let ports: Vec<u16> = [0, 1].map(free).to_vec();
        let (client, peer) = (format!("http://127.0.0.1:{}", ports[0]), format!("http://127.0.0.1:{}", ports[1]));
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

    async fn leader_of(config: &EtcdConfig, address: &str) -> EtcdStore {
        let mut store = EtcdStore::new(config.clone());
        let limit = tokio::time::Instant::now() + Duration::from_secs(15);
        loop {
            match store.campaign(address).await {
                Ok(Campaign::Won) => return store,
                other => assert!(tokio::time::Instant::now() < limit, "no leadership: {other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    #[test]
    fn etcd_obeys_the_laws_of_a_store_and_fences_a_leader_that_lost_its_lease() {
        let Some(etcd) = start() else { return };
        run(async {
            let config = EtcdConfig::new(vec![etcd.endpoint.clone()], "/basalt/laws");
            // A leader that is not sure of a commit campaigns again, and gets another fence.
            let mut first = leader_of(&config, "here:1").await;
            first.resign().await.expect("resigns");
            obeys_the_laws(&mut first).await;

            let mut second = EtcdStore::new(config.clone());
            let lost = second.campaign("there:2").await.expect("asks");
            assert_eq!(lost, Campaign::Lost { leader: Some("here:1".into()) });
            // `first` goes silent: it no longer calls keep, so its lease expires.
            let mut second = leader_of(&config, "there:2").await;
            second.commit(&put("c", "of the second", 0)).await.expect("the second leads");
            let late = first.commit(&put("d", "late", 0)).await.expect_err("the first is fenced");
            assert!(matches!(late, StoreError::Fenced), "{late}");
            assert!(matches!(first.keep().await, Err(StoreError::Fenced)));
            assert!(!second.load().await.expect("load").iter().any(|i| i.key == "d"));
        });
    }
}

#[test]
fn restored_backup_is_marked_and_replaces_a_store_only_when_told() {
    run(async {
        let mut store = MemStore::new();
        store.campaign("a:1").await.expect("campaign");
        let cluster = types::ClusterId([7; 16]);
        store.commit(&control::new_cluster(cluster, 1)).await.expect("a cluster");
        let backup = store.load_now();
        store.commit(&put("osd/x", "{}", 0)).await.expect("written after the backup");
        let refused = restore(&mut store, backup.clone(), false).await.expect_err("it is not empty");
        assert!(matches!(refused, RestoreError::NotEmpty { count: 3 }), "{refused}");
        store.another().seize("b:1");
        let refused = restore(&mut store, backup.clone(), true).await.expect_err("b leads");
        assert_eq!(refused.to_string(), "a metadata server runs on this store, at b:1");
        store.seize("a:1");
        let done = restore(&mut store, backup.clone(), true).await.expect("restored");
        assert_eq!(done, Restored { replaced: 3, written: 2 });
        let records = control::Records::load(store.load_now()).expect("sound");
        assert!(records.counters.restored && records.cluster_id() == cluster);
        let none = restore(&mut store, Vec::new(), true).await.expect_err("no backup");
        assert!(matches!(none, RestoreError::Backup(_)), "{none}");
    });
}

#[test]
fn a_restore_that_is_cut_off_never_leaves_an_empty_store() {
    run(async {
        let full = |id: u8| {
            let mut store = MemStore::new();
            store.seize("a");
            store.commit_now(&control::new_cluster(types::ClusterId([id; 16]), 1)).expect("a cluster");
            for n in 0..130 {
                store.commit_now(&put(&format!("event/{n:04}"), "x", 0)).expect("a record");
            }
            store
        };
        let mut from = MemStore::new();
        from.seize("a");
        from.commit_now(&control::new_cluster(types::ClusterId([1; 16]), 1)).expect("a cluster");
        let backup = from.load_now();
        for cut in 0.. {
            let mut old = full(2);
            old.resign().await.expect("it may");
            let mut store = Cut { store: old.another(), left: cut };
            let done = restore(&mut store, backup.clone(), true).await;
            let items = old.load_now();
            assert!(!items.is_empty(), "cut off after {cut} commits: a metadata server would begin a new cluster");
            if done.is_ok() {
                assert!(cut > 3, "records go in several commits");
                let records = control::Records::load(items).expect("it is whole");
                assert!(records.counters.restored && records.cluster_id() == types::ClusterId([1; 16]));
                break;
            }
            let is_cluster = items.iter().any(|item| item.key == "cluster");
            assert_eq!(is_cluster, cut == 0, "cut off after {cut} commits: half a store is no store");
        }
    });
}

/// A store whose user dies after some commits.
struct Cut {
    store: MemStore,
    left: u32,
}

impl Store for Cut {
    fn campaign<'a>(&'a mut self, address: &'a str) -> StoreFuture<'a, Campaign> {
        self.store.campaign(address)
    }

    fn load(&mut self) -> StoreFuture<'_, Vec<StoredItem>> {
        self.store.load()
    }

    fn commit<'a>(&'a mut self, txn: &'a Txn) -> StoreFuture<'a, ()> {
        if self.left == 0 {
            self.store.fail_next(Outage::Before);
        }
        self.left = self.left.saturating_sub(1);
        self.store.commit(txn)
    }

    fn keep(&mut self) -> StoreFuture<'_, ()> {
        self.store.keep()
    }

    fn resign(&mut self) -> StoreFuture<'_, ()> {
        self.store.resign()
    }
    fn is_leased(&self) -> bool {
        self.store.is_leased()
    }
}
