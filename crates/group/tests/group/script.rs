//! Scripts: each file of `crates/group/testdata` gives commands to a `rig`, and holds the trace of its replicas.
//!
//! The crate `script` says how a file is read. `UPDATE_GOLDEN=1 cargo test -p group script` writes the traces again.
//!
//! Time, network and disks stand still between commands. R, A and B are replicas, by the number of their OSD.
//!
//! | command | effect |
//! |---|---|
//! | `new-group N` | makes a PG of N fresh replicas at time 0 |
//! | `new-group N led` | the same, until replica 1 leads under a lease with the volume attached to session 1 |
//! | `submit R write SEQ [session S]` | a client of session S (1 if absent) sends its write SEQ to replica R |
//! | `submit R read` | a client sends a read to replica R |
//! | `attach R session S order O` | meta sends an attach record for session S, with epoch S, to replica R |
//! | `cut R N` | meta orders the begin of cut N of the volume from replica R |
//! | `release R N`, `abort R N` | meta orders the end of cut N from replica R |
//! | `remove R N` | meta orders the removal of snapshot N from replica R |
//! | `submit R read snapshot N` | a client sends a read of snapshot N to replica R |
//! | `deliver [A->B]` | the messages on the network arrive, those of one direction or all |
//! | `persist [R]` | the disk of one replica, or all disks, have written everything that they were given |
//! | `settle` | repeats `deliver` and `persist` until nothing is left to do |
//! | `tick Tms` | T milliseconds pass; a replica wakes in each of them |
//! | `renew R` | leader R sends its lease renewals, and the acknowledgements come back at once |
//! | `finish-reads R` | the engine of replica R has read what it was asked for |
//! | `drop A->B` | messages from A to B are lost from now on |
//! | `heal` | no message is lost any more |
//! | `crash R` | replica R is gone; the others notice that its connections closed |
//! | `transfer A->B` | meta orders leader A to hand leadership to B |
//! | `show` | prints the state of each replica |
//!
//! At the end of a command every replica ends its turn (`Group::poll`). A line of the trace says at which time a
//! replica did something, in the order in which it happened.

use crate::rig::{CHUNK, Rig, write};
use crate::words::told;
use group::Group;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use types::cut::{Cut, CutEnd, CutItem, SnapshotOrder};
use types::{CutId, GenerationId, OsdId, SectorRange, SnapshotId};
use wire::{Message, RequestBody};

const LEFT_OVER: usize = 100;

/// Facts about a replica that a line tells when they change: its term, its leader, and whether it holds the lease.
type Known = (u64, Option<OsdId>, bool);

struct Script {
    rig: Rig,
    known: BTreeMap<u32, Known>,
    told: String,
}

#[test]
fn replicas_behave_as_the_testdata_scripts_record() {
    script::check(env!("CARGO_MANIFEST_DIR"), "", 5, || {
        let mut script = Script { rig: Rig::new(1, true), known: BTreeMap::new(), told: String::new() };
        move |command| {
            script.run(command);
            std::mem::take(&mut script.told)
        }
    });
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word} is no number"))
}

fn link(word: &str) -> (u32, u32) {
    let (from, to) = word.split_once("->").unwrap_or_else(|| panic!("{word} is no A->B"));
    (number(from), number(to))
}

fn items(n: &str) -> Arc<[CutItem]> {
    [CutItem { volume: CHUNK.volume, to: GenerationId(number(n)) }].into()
}

impl Script {
    fn order(&mut self, at: u32, order: SnapshotOrder) {
        self.rig.call(at, |g, now, actions| g.handle_snapshot_order(now, order, actions));
    }

    fn run(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let rig = &mut self.rig;
        match words[..] {
            ["new-group", count] => self.begin(Rig::new(number(count), true)),
            ["new-group", count, "led"] => self.begin(Rig::led(number(count), true)),
            ["submit", at, "write", seq] => self.submit(1, number(at), write(number(seq))),
            ["submit", at, "write", seq, "session", of] => self.submit(number(of), number(at), write(number(seq))),
            ["submit", at, "read"] => {
                let body = RequestBody::Read { chunk: CHUNK, range: SectorRange::new(0, 1), snapshot: None };
                self.submit(1, number(at), body);
            }
            ["submit", at, "read", "snapshot", n] => {
                let snapshot = Some(SnapshotId(number(n)));
                let body = RequestBody::Read { chunk: CHUNK, range: SectorRange::new(0, 1), snapshot };
                self.submit(1, number(at), body);
            }
            ["cut", at, n] => {
                let (id, items) = (CutId(number(n)), items(n));
                self.order(number(at), SnapshotOrder::Cut(Cut { id, created_ms: 0, items }));
            }
            ["release", at, n] => {
                let (cut, items) = (CutId(number(n)), items(n));
                self.order(number(at), SnapshotOrder::Release { cut, end: CutEnd::Release, items });
            }
            ["abort", at, n] => {
                let (cut, items) = (CutId(number(n)), items(n));
                self.order(number(at), SnapshotOrder::Release { cut, end: CutEnd::Abort, items });
            }
            ["remove", at, n] => {
                let snapshot = SnapshotId(number(n));
                self.order(number(at), SnapshotOrder::Remove { volume: CHUNK.volume, snapshot });
            }
            ["attach", at, "session", of, "order", order] => rig.attach(number(at), number(order), number(of)),
            ["deliver"] => self.deliver(None),
            ["deliver", way] => self.deliver(Some(link(way))),
            ["persist"] => self.persist(None),
            ["persist", at] => self.persist(Some(number(at))),
            ["settle"] => {
                for round in 0.. {
                    assert!(round < LEFT_OVER, "it does not settle");
                    if self.rig.wire.is_empty() && self.rig.held.is_empty() {
                        break;
                    }
                    self.deliver(None);
                    self.persist(None);
                }
            }
            ["tick", time] => {
                for _ in 0..number::<u64>(time.strip_suffix("ms").expect("a time in ms")) {
                    self.rig.advance(1);
                    self.tell();
                }
            }
            ["renew", at] => drop(rig.list(number(at))),
            ["finish-reads", at] => {
                let at = number(at);
                let mut reads = rig.engine_reads(at);
                reads.retain(|read| rig.groups[&at].is_reading(*read));
                reads.into_iter().for_each(|read| rig.finish_read(at, read));
            }
            ["drop", way] => rig.cut.extend([link(way)]),
            ["heal"] => rig.cut.clear(),
            ["crash", at] => rig.crash(number(at)),
            ["transfer", way] => {
                let (from, to) = link(way);
                rig.call(from, |g, now, actions| g.handle_transfer(now, OsdId(to), actions));
            }
            ["show"] => self.show(),
            _ => panic!("no such command: {line}"),
        }
        self.rig.pump();
        self.tell();
    }

    fn begin(&mut self, rig: Rig) {
        self.rig = rig;
        (self.rig.hold_net, self.rig.hold_disks) = (true, true);
        self.rig.steps.clear();
        self.known = self.rig.groups.iter().map(|(osd, group)| (*osd, self.facts(group))).collect();
        self.show();
    }

    fn facts(&self, group: &Group) -> Known {
        (group.term().0, group.leader(), group.reads_under_lease(self.rig.at()))
    }

    fn submit(&mut self, session: u64, at: u32, body: RequestBody) {
        let what = match &body {
            RequestBody::Write { seq, .. } => format!("write {seq}"),
            _ => "a read".to_owned(),
        };
        let (id, now) = (self.rig.request_of(session, at, body), self.rig.now);
        let _ = writeln!(self.told, "{now:>4} ms  session {session} sends to replica {at}: {what}, as request {id}");
    }

    fn deliver(&mut self, only: Option<(u32, u32)>) {
        let wire = std::mem::take(&mut self.rig.wire);
        let arrives = |(from, to, _): &(u32, u32, Message)| only.is_none_or(|only| only == (*from, *to));
        let (now, later): (Vec<_>, Vec<_>) = wire.into_iter().partition(arrives);
        self.rig.wire = later.into();
        now.into_iter().for_each(|(from, to, message)| self.rig.deliver(from, to, message));
        self.rig.pump();
        self.tell();
    }

    fn persist(&mut self, only: Option<u32>) {
        let held = std::mem::take(&mut self.rig.held);
        let (now, later): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|(osd, _)| only.is_none_or(|only| only == *osd));
        self.rig.held = later;
        now.into_iter().for_each(|(osd, ticket)| self.rig.complete(osd, ticket));
        self.rig.pump();
        self.tell();
    }

    /// Adds the new steps of all replicas to the trace, then the facts that changed.
    fn tell(&mut self) {
        for (now, osd, step) in std::mem::take(&mut self.rig.steps) {
            let _ = writeln!(self.told, "{now:>4} ms  replica {osd} {}", told(step));
        }
        for (osd, group) in &self.rig.groups {
            let new = self.facts(group);
            let old = self.known.insert(*osd, new).expect("it is known");
            let mut say = |what: &str| {
                let _ = writeln!(self.told, "{:>4} ms  replica {osd} {what}", self.rig.now);
            };
            if old.0 != new.0 {
                say(&format!("is in term {}", new.0));
            }
            match new.1 {
                Some(leader) if old.1 != new.1 && leader.0 != *osd => say(&format!("follows replica {}", leader.0)),
                None if old.1.is_some() => say("knows no leader"),
                _ => {}
            }
            if old.2 != new.2 {
                say(if new.2 { "holds the lease" } else { "no longer holds the lease" });
            }
        }
    }

    fn show(&mut self) {
        for (osd, group) in &self.rig.groups {
            let role = match (group.report(self.rig.at()).leading, group.leader()) {
                (Some(report), _) if report.active => "leads and serves".to_owned(),
                (Some(_), _) => "leads and does not serve".to_owned(),
                (None, Some(leader)) => format!("follows replica {}", leader.0),
                (None, None) => "knows no leader".to_owned(),
            };
            let lease = if group.reads_under_lease(self.rig.at()) { ", holds the lease" } else { "" };
            let (last, durable) = (group.last_index().0, group.durable_end().0);
            let (commit, applied, term) = (group.commit().0, group.applied().0, group.term().0);
            let _ = writeln!(
                self.told,
                "{:>4} ms  replica {osd} {role} in term {term}{lease}; log ends at {last}, durable {durable}, \
                 committed {commit}, applied {applied}",
                self.rig.now,
            );
        }
    }
}
