//! Calls of a server to the store: requests and replies under way, lost ones, and late ones.

use super::etcd::PREFIX;
use super::{Metas, server};
use crate::mail::{Mail, Post};
use control::Records;
use control::etcd::{Next, Reply, Request, TIMEOUT};
use control::lead::{Answer, Call};
use std::time::Duration;
use types::Time;

/// Fault of a request that commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    #[default]
    None,
    /// The request never arrives.
    AskLost,
    /// The request takes effect so much later.
    AskLate(Duration),
    /// The request takes effect, and its reply never arrives.
    ReplyLost,
    ReplyLate(Duration),
    /// The process dies when the request has taken effect.
    Dies,
}

impl Metas {
    /// Sets the fault of the next commit of a server.
    pub fn set_fate(&mut self, n: usize, fate: Fate) {
        self.fates.insert(n, fate);
    }

    /// Returns the server whose process dies now.
    pub fn take_doomed(&mut self) -> Option<usize> {
        self.doomed.take()
    }

    pub(super) fn stored_revision(&self) -> u64 {
        let items = ["cluster", "counters"].into_iter().filter_map(|key| self.etcd.record(key));
        Records::load(items).expect("the store holds what control wrote").counters.revision
    }

    pub(super) fn call(&mut self, n: usize, now: Time, call: Call, post: &mut Post) {
        let server = &mut self.servers[n];
        let Some(session) = &mut server.session else { return self.call_alone(n, now, call, post) };
        let next = session.begin(&call);
        server.call = Some(call);
        self.follow(n, now, next, post);
    }

    /// Makes a call to a store without elections: only a commit takes time.
    fn call_alone(&mut self, n: usize, now: Time, call: Call, post: &mut Post) {
        let answer = match &call {
            Call::Campaign => Answer::Won,
            Call::Load => Answer::Items(self.etcd.load()),
            Call::Keep | Call::Resign => Answer::Done,
            Call::Commit(_) => {
                post.send(now, Mail::Committed { meta: n, life: self.servers[n].life });
                self.servers[n].call = Some(call);
                return;
            }
        };
        self.answer(n, now, answer);
    }

    /// Ends the process of a store without elections while a commit may be under way: half the time it takes effect.
    pub(super) fn settle_commit(&mut self, n: usize) {
        if let Some(Call::Commit(txn)) = self.servers[n].call.take().filter(|_| !self.elects)
            && self.next_token.is_multiple_of(2)
        {
            self.etcd.commit(&txn);
        }
    }

    /// Takes the reply of a store without elections.
    pub fn committed(&mut self, now: Time, (n, life): (usize, u32), post: &mut Post) {
        if life != self.servers[n].life {
            return;
        }
        let Some(Call::Commit(txn)) = self.servers[n].call.take() else { return };
        assert!(self.etcd.commit(&txn), "one meta writes, so its transactions never conflict");
        self.answer(n, now, Answer::Done);
        self.drive(n, now, post);
    }

    fn answer(&mut self, n: usize, now: Time, answer: Answer) {
        let server = &mut self.servers[n];
        if let Answer::Lost { leader } = &answer {
            server.named.clone_from(leader);
        }
        let moment = server.moment(now);
        server.call = None;
        let leader = server.leader.as_mut().expect("it runs");
        leader.handle_answer(moment, answer).expect("the store holds what control wrote");
    }

    fn follow(&mut self, n: usize, now: Time, mut next: Next, post: &mut Post) {
        loop {
            match next {
                Next::Ask(request) if self.at_once => {
                    let reply = self.take_effect((n, self.servers[n].life), now, request);
                    next = self.servers[n].session.as_mut().expect("over etcd").handle_reply(reply);
                }
                Next::Ask(request) => return self.ask_store(n, now, request, post),
                Next::Done(answer) => return self.answer(n, now, answer),
                Next::Refused(_) => return self.answer(n, now, Answer::Failed),
            }
        }
    }

    fn ask_store(&mut self, n: usize, now: Time, request: Request, post: &mut Post) {
        let server = &mut self.servers[n];
        server.request += 1;
        server.due = true;
        let (life, number) = (server.life, server.request);
        let timeout = server.clock.global(server.moment(now).mono + TIMEOUT);
        post.put(timeout, Mail::StoreSilent { meta: n, life, number });
        let commits = matches!(server.call, Some(Call::Commit(_)));
        let fate = if commits { self.fates.remove(&n).unwrap_or_default() } else { Fate::None };
        if server.cut.store {
            return;
        }
        let mail = Mail::ToStore { meta: n, life, number, request, fate };
        match fate {
            Fate::AskLost => {}
            Fate::AskLate(by) => post.put(now + by, mail),
            _ => post.send(now, mail),
        }
    }

    /// Takes a request that has reached the store. The process that sent it may be gone.
    pub fn at_store(
        &mut self,
        now: Time,
        by: (usize, u32),
        number: u64,
        (request, fate): (Request, Fate),
        post: &mut Post,
    ) {
        let (meta, life) = by;
        let reply = self.take_effect(by, now, request);
        let mail = Mail::FromStore { meta, life, number, reply };
        match fate {
            _ if self.servers[meta].cut.store => {}
            Fate::ReplyLost => {}
            Fate::ReplyLate(late) => post.put(now + late, mail),
            Fate::Dies => self.doomed = Some(meta).filter(|n| self.servers[*n].life == life),
            _ => post.send(now, mail),
        }
    }

    fn take_effect(&mut self, by: server::Process, now: Time, request: Request) -> Reply {
        let txn = match &request {
            Request::Txn(txn) => Some(txn.puts.iter().any(|(key, ..)| *key == format!("{PREFIX}/leader"))),
            _ => None,
        };
        let reply = self.etcd.handle(now, request);
        match (&reply, txn) {
            (Reply::Txn { succeeded: true, revision, .. }, Some(true)) => self.laws.elected(*revision, by, now),
            (Reply::Txn { succeeded: true, .. }, Some(false)) => {
                let (fence, revision) = (self.etcd.election(), self.stored_revision());
                self.laws.committed(by, fence, revision);
            }
            _ => {}
        }
        reply
    }

    /// Takes a reply that has reached the process.
    pub fn replied(&mut self, now: Time, (n, life): (usize, u32), number: u64, reply: Reply, post: &mut Post) {
        let server = &mut self.servers[n];
        if server.life != life || server.request != number || !server.due || server.cut.store {
            return;
        }
        if server.paused.is_some() {
            return server.held.push(Mail::FromStore { meta: n, life, number, reply });
        }
        server.due = false;
        let Some(session) = &mut server.session else { return };
        let next = session.handle_reply(reply);
        self.follow(n, now, next, post);
        self.drive(n, now, post);
    }

    /// Takes the end of the wait for a reply.
    pub fn store_silent(&mut self, now: Time, (n, life): (usize, u32), number: u64, post: &mut Post) {
        let server = &mut self.servers[n];
        if server.life != life || server.request != number || !server.due {
            return;
        }
        if server.paused.is_some() {
            return server.held.push(Mail::StoreSilent { meta: n, life, number });
        }
        server.due = false;
        let Some(session) = &mut server.session else { return };
        let answer = session.handle_silence();
        self.answer(n, now, answer);
        self.drive(n, now, post);
    }
}
