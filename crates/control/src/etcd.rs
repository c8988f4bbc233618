//! [`Session`]: the requests by which a metadata server uses an etcd, without the connection.
//!
//! The election is one key under a lease. The server that creates the key leads; its create revision is the
//! fence that every transaction compares. A leader that is not sure of a commit gives the lease up and
//! campaigns for a key with another revision. Transactions that are still under way then fail their
//! comparison.
//!
//! Input: a [`Call`], and the reply to each request. Output: requests, one at a time, and then the answer.
//!
//! Invariant: a load is a snapshot at one revision of etcd, over however many pages.

use crate::batch::Txn;
use crate::lead::{Answer, Call};
use crate::records::StoredItem;
use std::time::Duration;
use types::planted::{Bug, on};

/// Usual lease of the leader in seconds: one that etcd has not heard for this long is replaced. etcd itself takes at least 2.
pub const LEASE_TTL_S: i64 = 3;
/// Usual timeout of a request; a later reply counts as none.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// A key with its value, as etcd returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kv {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    /// Revision at which the key was created.
    pub create_revision: i64,
    /// Number of writes since then.
    pub version: i64,
}

/// A transaction of etcd: all comparisons hold and all writes are done, or `otherwise` is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdTxn {
    /// A key, and the revision at which it must have been created; 0: it must not exist.
    pub created: Option<(String, i64)>,
    /// Keys, and the number of writes that each must have.
    pub versions: Vec<(String, u64)>,
    /// Keys, values, and the lease of each; 0: none.
    pub puts: Vec<(String, Vec<u8>, i64)>,
    pub deletes: Vec<String>,
    pub otherwise: Option<String>,
}

/// A request to etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Get {
        key: String,
    },
    /// Keys in `from..end`, in order, at most `limit`, as of a revision; 0: the present one.
    Range {
        from: Vec<u8>,
        end: Vec<u8>,
        limit: i64,
        revision: i64,
    },
    Grant {
        ttl_s: i64,
    },
    KeepAlive {
        lease: i64,
    },
    Revoke {
        lease: i64,
    },
    Txn(EtcdTxn),
}

/// Reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `revision`: the present one. `more`: the limit cut the range.
    Kvs {
        kvs: Vec<Kv>,
        more: bool,
        revision: i64,
    },
    /// `ttl_s`: 0 or less when the lease has ended.
    Lease {
        lease: i64,
        ttl_s: i64,
    },
    Revoked,
    /// `found`: the key of `otherwise`, when the transaction failed.
    Txn {
        succeeded: bool,
        revision: i64,
        found: Option<Kv>,
    },
}

/// Reason why etcd did not do what was called for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Another server was elected.
    Fenced,
    /// The version of a key differs: another process writes to the store.
    Conflict { key: String },
    /// A key or a reply that this program does not make.
    Foreign(String),
}

/// Next step after a reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    Ask(Request),
    Done(Answer),
    Refused(Refused),
}

/// An election that was won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Election {
    pub lease: i64,
    /// Create revision of the election key.
    pub fence: i64,
}

/// The request whose reply is due.
enum Due {
    Nothing,
    Leader,
    Grant,
    Elected { lease: i64 },
    GivenBack,
    Held(Election),
    Page { items: Vec<StoredItem>, revision: i64 },
    Committed { fence: i64, key: String },
    Kept,
    Resigned,
}

/// One server's use of an etcd.
pub struct Session {
    prefix: String,
    address: String,
    lease_ttl_s: i64,
    /// Most keys of one reply.
    page: i64,
    election: Option<Election>,
    due: Due,
}

impl Session {
    /// Returns a session that was not elected. `prefix`: of all keys, one per cluster.
    pub fn new(prefix: &str, lease_ttl_s: i64, page: i64) -> Session {
        let prefix = prefix.to_owned();
        Session { prefix, address: String::new(), lease_ttl_s, page, election: None, due: Due::Nothing }
    }

    /// Sets the address at which clients find this server once it is elected.
    pub fn set_address(&mut self, address: &str) {
        address.clone_into(&mut self.address);
    }

    /// Returns the election that this session has won and not given up; it may have ended since.
    pub fn election(&self) -> Option<Election> {
        self.election
    }

    fn key(&self, key: &str) -> String {
        format!("{}/records/{key}", self.prefix)
    }

    fn election_key(&self) -> String {
        format!("{}/leader", self.prefix)
    }

    /// Begins a call; one that is under way is forgotten.
    pub fn begin(&mut self, call: &Call) -> Next {
        self.due = Due::Nothing;
        match call {
            Call::Campaign => {
                self.election = None;
                // If there is a leader, no lease is granted in vain.
                self.ask(Due::Leader, Request::Get { key: self.election_key() })
            }
            Call::Load => {
                let from = self.key("").into_bytes();
                self.ask_page(from, Vec::new(), 0)
            }
            Call::Commit(txn) => self.commit(txn),
            Call::Keep => match self.election {
                Some(Election { lease, .. }) => self.ask(Due::Kept, Request::KeepAlive { lease }),
                None => Next::Refused(Refused::Fenced),
            },
            Call::Resign => match self.election.take() {
                Some(Election { lease, .. }) => self.ask(Due::Resigned, Request::Revoke { lease }),
                None => Next::Done(Answer::Done),
            },
        }
    }

    fn ask(&mut self, due: Due, request: Request) -> Next {
        self.due = due;
        Next::Ask(request)
    }

    fn ask_page(&mut self, from: Vec<u8>, items: Vec<StoredItem>, revision: i64) -> Next {
        let mut end = self.key("").into_bytes();
        *end.last_mut().expect("the prefix is not empty") += 1;
        self.ask(Due::Page { items, revision }, Request::Range { from, end, limit: self.page, revision })
    }

    fn commit(&mut self, txn: &Txn) -> Next {
        let Some(Election { fence, .. }) = self.election else { return Next::Refused(Refused::Fenced) };
        let election = self.election_key();
        let created = (!on(Bug::CommitUnfenced)).then(|| (election.clone(), fence));
        let request = EtcdTxn {
            created,
            versions: txn.checks.iter().map(|c| (self.key(&c.key), c.version)).collect(),
            puts: txn.puts.iter().map(|(key, value)| (self.key(key), value.clone(), 0)).collect(),
            deletes: txn.deletes.iter().map(|key| self.key(key)).collect(),
            otherwise: Some(election),
        };
        let key = txn.checks.first().map_or(String::new(), |c| c.key.clone());
        self.ask(Due::Committed { fence, key }, Request::Txn(request))
    }

    /// Takes the end of the wait for a reply. Returns the answer to the call: the request may have taken effect, or may still do so.
    pub fn handle_silence(&mut self) -> Answer {
        match std::mem::replace(&mut self.due, Due::Nothing) {
            // The lease ends by itself.
            Due::GivenBack => Answer::Lost { leader: None },
            _ => Answer::Failed,
        }
    }

    /// Takes the reply to the last request.
    pub fn handle_reply(&mut self, reply: Reply) -> Next {
        match (std::mem::replace(&mut self.due, Due::Nothing), reply) {
            (Due::Leader, Reply::Kvs { kvs, .. }) => match kvs.first() {
                None => self.ask(Due::Grant, Request::Grant { ttl_s: self.lease_ttl_s }),
                Some(kv) => {
                    let leader = String::from_utf8_lossy(&kv.value).into_owned();
                    // A former life of this server is no leader to send a client to.
                    Next::Done(Answer::Lost { leader: Some(leader).filter(|l| *l != self.address) })
                }
            },
            (Due::Grant, Reply::Lease { lease, .. }) => {
                let key = self.election_key();
                let elect = EtcdTxn {
                    created: Some((key.clone(), 0)),
                    versions: Vec::new(),
                    puts: vec![(key, self.address.clone().into_bytes(), lease)],
                    deletes: Vec::new(),
                    otherwise: None,
                };
                self.ask(Due::Elected { lease }, Request::Txn(elect))
            }
            (Due::Elected { lease }, Reply::Txn { succeeded: true, revision, .. }) => {
                self.ask(Due::Held(Election { lease, fence: revision }), Request::KeepAlive { lease })
            }
            (Due::Elected { lease }, Reply::Txn { .. }) => self.ask(Due::GivenBack, Request::Revoke { lease }),
            (Due::GivenBack, Reply::Revoked) => Next::Done(Answer::Lost { leader: None }),
            (Due::Held(election), Reply::Lease { ttl_s: 1.., .. }) => {
                self.election = Some(election);
                Next::Done(Answer::Won)
            }
            (Due::Page { items, revision }, Reply::Kvs { kvs, more, revision: present }) => {
                let revision = if revision == 0 { present } else { revision };
                self.take_page(items, kvs, more, revision)
            }
            (Due::Committed { .. }, Reply::Txn { succeeded: true, .. }) => Next::Done(Answer::Done),
            (Due::Committed { fence, key }, Reply::Txn { found, .. }) => {
                let leads = found.is_some_and(|kv| kv.create_revision == fence);
                Next::Refused(if leads { Refused::Conflict { key } } else { Refused::Fenced })
            }
            (Due::Kept, Reply::Lease { ttl_s: 1.., .. }) | (Due::Resigned, Reply::Revoked) => Next::Done(Answer::Done),
            (Due::Held(_) | Due::Kept, Reply::Lease { .. }) => Next::Refused(Refused::Fenced),
            (_, reply) => Next::Refused(Refused::Foreign(format!("a reply to another request: {reply:?}"))),
        }
    }

    fn take_page(&mut self, mut items: Vec<StoredItem>, kvs: Vec<Kv>, more: bool, revision: i64) -> Next {
        let prefix = self.key("");
        let mut last = None;
        for kv in kvs {
            let key = std::str::from_utf8(&kv.key).ok().and_then(|k| k.strip_prefix(&prefix));
            let (Some(key), Ok(version)) = (key, u64::try_from(kv.version)) else {
                let key = String::from_utf8_lossy(&kv.key).into_owned();
                return Next::Refused(Refused::Foreign(format!("key {key:?}")));
            };
            items.push(StoredItem { key: key.to_owned(), value: kv.value, version });
            last = Some(kv.key);
        }
        match last.filter(|_| more) {
            None => Next::Done(Answer::Items(items)),
            Some(mut from) => {
                from.push(0);
                self.ask_page(from, items, revision)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(key: &str, create_revision: i64) -> Kv {
        Kv { key: key.into(), value: b"there:2".to_vec(), create_revision, version: 1 }
    }

    fn won(session: &mut Session) {
        let ask = |next: Next| match next {
            Next::Ask(request) => request,
            other => panic!("{other:?}"),
        };
        ask(session.begin(&Call::Campaign));
        ask(session.handle_reply(Reply::Kvs { kvs: Vec::new(), more: false, revision: 4 }));
        ask(session.handle_reply(Reply::Lease { lease: 9, ttl_s: 3 }));
        let held = ask(session.handle_reply(Reply::Txn { succeeded: true, revision: 5, found: None }));
        assert_eq!(held, Request::KeepAlive { lease: 9 });
        assert_eq!(session.handle_reply(Reply::Lease { lease: 9, ttl_s: 3 }), Next::Done(Answer::Won));
        assert_eq!(session.election(), Some(Election { lease: 9, fence: 5 }));
    }

    #[test]
    fn later_pages_are_read_at_the_revision_of_the_first() {
        let mut session = Session::new("/b", 3, 2);
        let page = |revision, more, keys: [&str; 2]| Reply::Kvs { kvs: keys.map(|k| kv(k, 1)).into(), more, revision };
        assert!(matches!(session.begin(&Call::Load), Next::Ask(Request::Range { revision: 0, limit: 2, .. })));
        let next = session.handle_reply(page(7, true, ["/b/records/a", "/b/records/b"]));
        let (from, end) = (b"/b/records/b\0".to_vec(), b"/b/records0".to_vec());
        assert_eq!(next, Next::Ask(Request::Range { from, end, limit: 2, revision: 7 }));
        let next = session.handle_reply(page(9, true, ["/b/records/c", "/b/records/d"]));
        assert!(matches!(next, Next::Ask(Request::Range { revision: 7, .. })));
        let done = session.handle_reply(page(9, false, ["/b/records/e", "/b/records/f"]));
        assert!(matches!(done, Next::Done(Answer::Items(items)) if items.len() == 6 && items[5].key == "f"));
        session.begin(&Call::Load);
        assert!(matches!(
            session.handle_reply(page(9, false, ["/b/records/e", "/c"])),
            Next::Refused(Refused::Foreign(_))
        ));
    }

    #[test]
    fn failed_transaction_is_a_conflict_under_its_own_election_only() {
        let mut session = Session::new("/b", 3, 2);
        let txn = crate::new_cluster(types::ClusterId([1; 16]), 1);
        assert_eq!(session.begin(&Call::Commit(txn.clone())), Next::Refused(Refused::Fenced), "it was not elected");
        won(&mut session);
        for (found, fenced) in [(Some(kv("/b/leader", 5)), false), (Some(kv("/b/leader", 8)), true), (None, true)] {
            let Next::Ask(Request::Txn(asked)) = session.begin(&Call::Commit(txn.clone())) else { panic!("elected") };
            assert_eq!(asked.created, Some(("/b/leader".to_owned(), 5)));
            let next = session.handle_reply(Reply::Txn { succeeded: false, revision: 9, found });
            assert_eq!(matches!(next, Next::Refused(Refused::Fenced)), fenced, "{next:?}");
        }
    }

    #[test]
    fn ended_lease_confirms_nothing_and_a_lost_campaign_gives_its_lease_back() {
        let mut session = Session::new("/b", 3, 2);
        won(&mut session);
        session.begin(&Call::Keep);
        assert_eq!(session.handle_reply(Reply::Lease { lease: 9, ttl_s: 0 }), Next::Refused(Refused::Fenced));
        session.begin(&Call::Campaign);
        assert_eq!(session.election(), None);
        session.handle_reply(Reply::Kvs { kvs: Vec::new(), more: false, revision: 9 });
        session.handle_reply(Reply::Lease { lease: 10, ttl_s: 3 });
        let lost = session.handle_reply(Reply::Txn { succeeded: false, revision: 9, found: None });
        assert_eq!(lost, Next::Ask(Request::Revoke { lease: 10 }));
        assert_eq!(session.handle_silence(), Answer::Lost { leader: None });
        session.begin(&Call::Keep);
        assert_eq!(session.handle_silence(), Answer::Failed);
        let other = session.handle_reply(Reply::Revoked);
        assert!(matches!(other, Next::Refused(Refused::Foreign(_))), "a reply after the wait");
    }
}
