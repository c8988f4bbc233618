//! A model of etcd: one linearizable store of keys with revisions, versions and leases.
//!
//! Input: requests, at the moment at which they take effect. Output: replies. Whether a request or its reply arrives, and when,
//! is decided by the caller. A store without elections (redb) uses the same keys.
//!
//! Invariant: a request takes effect as a whole, at one moment. A lease that is over has no key.

use control::etcd::{EtcdTxn, Kv, Reply, Request};
use control::{StoredItem, Txn};
use std::collections::BTreeMap;
use std::time::Duration;
use types::Time;

/// Prefix of all keys.
pub const PREFIX: &str = "/sim";
const RECORDS: &str = "/sim/records/";
const LEADER: &str = "/sim/leader";

#[derive(Clone)]
struct Item {
    value: Vec<u8>,
    create_revision: i64,
    version: i64,
    lease: i64,
}

struct Lease {
    ttl: Duration,
    until: Time,
}

/// The store.
#[derive(Default)]
pub struct Etcd {
    revision: i64,
    /// Every state of each key, by revision; `None`: it was deleted.
    history: BTreeMap<String, BTreeMap<i64, Option<Item>>>,
    leases: BTreeMap<i64, Lease>,
    last_lease: i64,
}

/// The records at one moment.
#[derive(Clone)]
pub struct Copy(Vec<(String, Item)>);

impl Etcd {
    fn at(&self, key: &str, revision: i64) -> Option<&Item> {
        self.history.get(key)?.range(..=revision).next_back()?.1.as_ref()
    }

    fn now(&self, key: &str) -> Option<&Item> {
        self.at(key, self.revision)
    }

    fn write(&mut self, key: &str, item: Option<Item>) {
        self.history.entry(key.to_owned()).or_default().insert(self.revision, item);
    }

    fn put(&mut self, key: &str, value: Vec<u8>, lease: i64) {
        let revision = self.revision;
        // A key that was deleted in the same transaction does not occur.
        let old = self.at(key, revision - 1);
        let (create_revision, version) = old.map_or((revision, 1), |old| (old.create_revision, old.version + 1));
        self.write(key, Some(Item { value, create_revision, version, lease }));
    }

    /// Returns the present create revision of the election key.
    pub fn election(&self) -> Option<i64> {
        self.now(LEADER).map(|item| item.create_revision)
    }

    /// Returns one record.
    pub fn record(&self, key: &str) -> Option<StoredItem> {
        let item = self.now(&format!("{RECORDS}{key}"))?;
        Some(StoredItem { key: key.to_owned(), version: item.version as u64, value: item.value.clone() })
    }

    /// Returns all records.
    pub fn load(&self) -> Vec<StoredItem> {
        let item = |(key, item): (String, Item)| StoredItem {
            key: key.strip_prefix(RECORDS).expect("a record").to_owned(),
            version: item.version as u64,
            value: item.value,
        };
        self.copy().0.into_iter().map(item).collect()
    }

    /// Commits a transaction of the only server of a store without elections; whether its checks hold.
    pub fn commit(&mut self, txn: &Txn) -> bool {
        let key = |key: &str| format!("{RECORDS}{key}");
        let txn = EtcdTxn {
            created: None,
            versions: txn.checks.iter().map(|c| (key(&c.key), c.version)).collect(),
            puts: txn.puts.iter().map(|(k, value)| (key(k), value.clone(), 0)).collect(),
            deletes: txn.deletes.iter().map(|k| key(k)).collect(),
            otherwise: None,
        };
        self.transact(txn).0
    }

    /// Returns a copy of the records.
    pub fn copy(&self) -> Copy {
        let keys = self.history.range(RECORDS.to_owned()..).take_while(|(key, _)| key.starts_with(RECORDS));
        let present = keys.filter_map(|(key, _)| Some((key.clone(), self.now(key)?.clone())));
        Copy(present.collect())
    }

    /// Replaces the records by an earlier copy.
    pub fn restore(&mut self, copy: Copy) {
        self.history.retain(|key, _| !key.starts_with(RECORDS));
        self.revision += 1;
        for (key, item) in copy.0 {
            self.write(&key, Some(item));
        }
    }

    /// Does what a request asks for, at this moment.
    pub fn handle(&mut self, now: Time, request: Request) -> Reply {
        self.expire(now);
        match request {
            Request::Get { key } => {
                let kvs = self.now(&key).map(|item| kv(&key, item)).into_iter().collect();
                Reply::Kvs { kvs, more: false, revision: self.revision }
            }
            Request::Range { from, end, limit, revision } => self.range(&from, &end, limit as usize, revision),
            Request::Grant { ttl_s } => {
                self.last_lease += 1;
                let lease = self.last_lease;
                let ttl = Duration::from_secs(ttl_s as u64);
                self.leases.insert(lease, Lease { ttl, until: now + ttl });
                Reply::Lease { lease, ttl_s }
            }
            Request::KeepAlive { lease } => {
                let kept = self.leases.get_mut(&lease).map(|kept| {
                    kept.until = now + kept.ttl;
                    kept.ttl.as_secs() as i64
                });
                Reply::Lease { lease, ttl_s: kept.unwrap_or(0) }
            }
            Request::Revoke { lease } => {
                self.end(lease);
                Reply::Revoked
            }
            Request::Txn(txn) => {
                let (succeeded, found) = self.transact(txn);
                Reply::Txn { succeeded, revision: self.revision, found }
            }
        }
    }

    fn range(&self, from: &[u8], end: &[u8], limit: usize, revision: i64) -> Reply {
        let revision = if revision == 0 { self.revision } else { revision };
        let inside = self.history.keys().filter(|key| (from..end).contains(&key.as_bytes()));
        let mut kvs: Vec<Kv> = inside.filter_map(|key| Some(kv(key, self.at(key, revision)?))).collect();
        let more = kvs.len() > limit;
        kvs.truncate(limit);
        Reply::Kvs { kvs, more, revision: self.revision }
    }

    fn transact(&mut self, txn: EtcdTxn) -> (bool, Option<Kv>) {
        let created = |key: &str| self.now(key).map_or(0, |item| item.create_revision);
        let version = |key: &str| self.now(key).map_or(0, |item| item.version as u64);
        let leased = |lease: i64| lease == 0 || self.leases.contains_key(&lease);
        let holds = txn.created.iter().all(|(key, revision)| created(key) == *revision)
            && txn.versions.iter().all(|(key, count)| version(key) == *count)
            && txn.puts.iter().all(|(_, _, lease)| leased(*lease));
        if !holds {
            let found = txn.otherwise.and_then(|key| Some(kv(&key, self.now(&key)?)));
            return (false, found);
        }
        self.revision += 1;
        txn.puts.into_iter().for_each(|(key, value, lease)| self.put(&key, value, lease));
        txn.deletes.iter().for_each(|key| self.write(key, None));
        (true, None)
    }

    fn expire(&mut self, now: Time) {
        let over = self.leases.iter().filter(|(_, lease)| lease.until <= now).map(|(id, _)| *id);
        over.collect::<Vec<i64>>().into_iter().for_each(|lease| self.end(lease));
    }

    fn end(&mut self, lease: i64) {
        self.leases.remove(&lease);
        let holds = |key: &&String| self.now(key).is_some_and(|item| item.lease == lease);
        let keys: Vec<String> = self.history.keys().filter(holds).cloned().collect();
        self.revision += i64::from(!keys.is_empty());
        keys.iter().for_each(|key| self.write(key, None));
    }
}

fn kv(key: &str, item: &Item) -> Kv {
    Kv {
        key: key.as_bytes().to_vec(),
        value: item.value.clone(),
        create_revision: item.create_revision,
        version: item.version,
    }
}
