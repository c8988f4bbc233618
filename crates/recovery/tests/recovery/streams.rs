//! Scripts of streams: each file of `testdata/streams` gives inputs to the streams of two OSDs, and holds their actions. Replica 1 on
//! OSD 1 leads, at index 10 with blocks 0 to 255 of a chunk; replica 2 on OSD 2 follows and is behind the log.
//!
//! | command | effect |
//! |---|---|
//! | `begin` | begins, one second after the start of both OSDs |
//! | `leader holds A-B` | the leader has these blocks and no others |
//! | `holds A-B` | the follower has older contents: blocks A to B, equal to the leader's |
//! | `differs N` | block N of the follower has other bytes |
//! | `behind` | raft finds the follower behind the log |
//! | `open` | the same, then steps and messages until the follower's log is to begin |
//! | `at S` | S seconds have passed since the start |
//! | `step` | one step of both OSDs |
//! | `deliver` | the messages on the network arrive |
//! | `read` | all reads that were issued end; `read badly`, `read bad blocks` with an error |
//! | `staged` | all pieces that the engine was given are written |
//! | `go` | repeats the four before until nothing is left to do |
//! | `begun`, `installed` | the follower's log begins, or its contents are installed; durably |
//! | `refused` | the engine cannot do so |
//! | `write N` | the leader applies a write of block N |
//! | `merged` | the leader applies entries that begin generation 2 and remove the snapshot below it, whose blocks become those of 2 |
//! | `matched` | the follower's log has everything that the leader has applied |
//! | `in reach` | the follower's next entry is in the leader's log |
//! | `uncounted` | no majority is known to have all contents without the follower |
//! | `needed, room K KiB`, `needed no more` | whether the PG cannot commit without the follower, and what its log takes |
//! | `no space`, `space` | whether the follower's device takes pieces |
//! | `bad blocks`, `good blocks` | whether blocks of the leader are bad |
//! | `deposed` | the leader leads no more |
//! | `link lost` | the connection ends |
//!
//! When contents are installed, the test compares them: what was brought, with the entries of the follower's log above them.

use crate::host::{CHUNK, Fake, ME, PG, blocks_of, member, number};
use recovery::{Action, Follow, Lead, Read, StreamTuning, Streams};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::time::Duration;
use types::store::{Effect, ReadError};
use types::tree::Change;
use types::units::SECTORS_PER_BLOCK;
use types::{ChunkKey, GenerationId, Index, OsdId, ReplicaId, SectorRange, Term, Time};
use wire::{Message, StreamBody, StreamMsg};

const FOLLOWER: ReplicaId = ReplicaId(2);
const STEPS_MAX: usize = 200;
/// So many steps without an action are the end.
const QUIET: usize = 3;

struct End {
    host: Fake,
    streams: Streams,
    reads: VecDeque<(Read, SectorRange)>,
}

struct Script {
    leader: End,
    follower: End,
    /// Messages, each with the OSD that gets it.
    net: VecDeque<(u32, StreamMsg)>,
    /// Writes since the start, and the index behind which the follower's log begins.
    written: Vec<(Index, u32, u8)>,
    begins_at: Index,
    installs: bool,
    told: String,
}

#[test]
fn streams_act_as_the_testdata_scripts_record() {
    script::check(env!("CARGO_MANIFEST_DIR"), "streams", 7, || {
        let mut script = Script::new();
        move |command| {
            script.run(command);
            std::mem::take(&mut script.told)
        }
    });
}

impl End {
    fn new(seed: u64) -> End {
        let host = Fake { now: Time(1_000_000_000), ..Fake::new(2) };
        // Streams begin at an eighth of the limit, 64 MiB/s.
        let tuning = StreamTuning { bytes_per_s: 512 << 20, ..StreamTuning::default() };
        End { host, streams: Streams::new(tuning, seed), reads: VecDeque::new() }
    }
}

/// Returns blocks of equal bytes.
fn equal(blocks: &str) -> BTreeMap<u32, u8> {
    let (first, last) = blocks.split_once('-').expect("blocks");
    (number(first) as u32..=number(last) as u32).map(|n| (n, 1)).collect()
}

/// Describes blocks by their numbers.
fn said(range: SectorRange) -> String {
    let blocks = blocks_of(range);
    format!("blocks {}-{}", blocks.start, blocks.end - 1)
}

impl Script {
    fn new() -> Script {
        let (mut leader, mut follower) = (End::new(7), End::new(9));
        leader.host.lead = Some(Lead {
            term: Term(2),
            applied: Index(10),
            first: Index(8),
            is_behind: true,
            matched: None,
            needs_follower: false,
            may_fill: true,
            has_contents: false,
            room: None,
            pace: None,
            has_bad_blocks: false,
        });
        leader.host.blocks = (0..256).map(|n| (n, 1)).collect();
        follower.host.follow = Some(Follow {
            pg: PG,
            term: Term(2),
            commit: Index(3),
            applied: Index(3),
            end: Index(3),
            is_elected: false,
            leads: false,
            is_paused: false,
            fills_from: Index(0),
        });
        let (net, written) = (VecDeque::new(), Vec::new());
        Script { leader, follower, net, written, begins_at: Index(0), installs: false, told: String::new() }
    }

    fn lead(&mut self) -> &mut Lead {
        self.leader.host.lead.as_mut().expect("it leads")
    }

    fn follow(&mut self) -> &mut Follow {
        self.follower.host.follow.as_mut().expect("it is there")
    }

    fn run(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["begin"] => *self = Script::new(),
            ["leader", "holds", blocks] => self.leader.host.blocks = equal(blocks),
            ["holds", blocks] => {
                self.follower.host.blocks = equal(blocks);
                self.follower.host.base = Some(FOLLOWER);
            }
            ["differs", block] => _ = self.follower.host.blocks.insert(number(block) as u32, 9),
            ["behind"] => self.leader.streams.want(self.leader.host.now, PG, OsdId(2)),
            ["open"] => {
                self.leader.streams.want(self.leader.host.now, PG, OsdId(2));
                for _ in 0..4 {
                    self.step();
                    self.deliver();
                }
            }
            ["at", seconds] => {
                let now = Time::ZERO + Duration::from_secs_f64(seconds.parse().expect("seconds"));
                (self.leader.host.now, self.follower.host.now) = (now, now);
            }
            ["step"] => self.step(),
            ["deliver"] => self.deliver(),
            ["read"] => self.read(None),
            ["read", "badly"] => self.read(Some(ReadError::Poisoned)),
            ["read", "bad", "blocks"] => {
                let (chunk, range, reason) = (CHUNK, SectorRange::CHUNK, String::new());
                self.read(Some(ReadError::BadBlocks { replica: ME, chunk, range, reason }));
            }
            ["staged"] => self.staged(),
            ["go"] => {
                let (mut quiet, mut len) = (0, self.told.len());
                for _ in 0..STEPS_MAX {
                    self.step();
                    self.deliver();
                    self.read(None);
                    self.staged();
                    quiet = if len == self.told.len() { quiet + 1 } else { 0 };
                    len = self.told.len();
                    if quiet == QUIET {
                        return;
                    }
                }
                panic!("it goes on for ever: {}", self.told);
            }
            ["begun"] => {
                assert!(std::mem::take(&mut self.follow().is_paused), "no log is to begin: {}", self.told);
                let at = self.begins_at;
                (self.follow().applied, self.follow().commit, self.follow().fills_from) = (at, at, at);
                let stands = (Term(2), at);
                self.at_follower(|end| end.streams.handle_begun(&mut end.host, FOLLOWER, stands));
            }
            ["installed"] => self.installed(),
            ["refused"] => {
                self.follow().is_paused = false;
                let reason = wire::StreamAbort::Full;
                self.at_follower(|end| end.streams.handle_refused(&mut end.host, FOLLOWER, reason));
            }
            ["write", block] => {
                let block = number(block) as u32;
                self.lead().applied.0 += 1;
                let index = self.lead().applied;
                let value = index.0 as u8;
                self.leader.host.blocks.insert(block, value);
                self.written.push((index, block, value));
                let range = SectorRange::new(block * SECTORS_PER_BLOCK, SECTORS_PER_BLOCK);
                let chunk = self.leader.host.chunk;
                self.leader.streams.applied(ME, &Effect::Write { chunk, range });
            }
            ["merged"] => {
                self.lead().applied.0 += 2;
                let (from, into) = (CHUNK.generation, GenerationId(2));
                self.leader.host.chunk.generation = into;
                let changes = [Change::Merge { from, into, through: u32::MAX }];
                self.at_leader(|end| end.streams.tree_changed(&mut end.host, ME, &changes));
            }
            ["matched"] => {
                let applied = self.lead().applied;
                self.lead().matched = Some(applied);
                (self.follow().applied, self.follow().commit) = (applied, applied);
            }
            ["in", "reach"] => self.lead().is_behind = false,
            ["out", "of", "reach"] => self.lead().is_behind = true,
            ["uncounted"] => (self.leader.host.counts, self.lead().may_fill) = (false, false),
            ["needed,", "room", kib, "KiB"] => {
                let room = Some((number(kib) << 10, false));
                (self.lead().needs_follower, self.lead().room) = (true, room);
            }
            ["needed", "no", "more"] => self.lead().needs_follower = false,
            ["no", "space"] => self.follower.host.has_space = false,
            ["space"] => self.follower.host.has_space = true,
            ["bad", "blocks"] => self.lead().has_bad_blocks = true,
            ["good", "blocks"] => self.lead().has_bad_blocks = false,
            ["deposed"] => self.leader.host.lead = None,
            ["link", "lost"] => {
                self.net.clear();
                self.at_leader(|end| end.streams.handle_link_lost(&mut end.host, OsdId(2)));
                self.at_follower(|end| end.streams.handle_link_lost(&mut end.host, OsdId(1)));
            }
            _ => panic!("no command: {line}"),
        }
    }

    fn at_leader(&mut self, f: impl FnOnce(&mut End)) {
        f(&mut self.leader);
        std::mem::take(&mut self.leader.host.actions).into_iter().for_each(|action| self.act("leader", action));
    }

    fn at_follower(&mut self, f: impl FnOnce(&mut End)) {
        f(&mut self.follower);
        std::mem::take(&mut self.follower.host.actions).into_iter().for_each(|action| self.act("follower", action));
    }

    fn step(&mut self) {
        self.at_leader(|end| end.streams.lift_paces(&mut end.host));
        self.at_leader(|end| end.streams.step(&mut end.host));
        self.at_follower(|end| end.streams.step(&mut end.host));
    }

    fn deliver(&mut self) {
        for (to, msg) in std::mem::take(&mut self.net) {
            if let (StreamBody::Filling { .. } | StreamBody::Done { .. }, Some(lead)) =
                (&msg.body, &mut self.leader.host.lead)
            {
                lead.is_behind = false;
            }
            match to {
                1 => self.at_leader(|end| end.streams.handle_message(&mut end.host, OsdId(2), msg)),
                _ => self.at_follower(|end| end.streams.handle_message(&mut end.host, OsdId(1), msg)),
            }
        }
    }

    fn read(&mut self, error: Option<ReadError>) {
        for (read, range) in std::mem::take(&mut self.leader.reads) {
            let result = error.clone().map_or_else(|| Ok(self.leader.host.read(range)), Err);
            let Read::Part(read) = read else { panic!("{read:?}") };
            self.at_leader(|end| end.streams.handle_part(&mut end.host, &read, result));
        }
        for (read, range) in std::mem::take(&mut self.follower.reads) {
            let result = error.clone().map_or_else(|| Ok(self.follower.host.read(range)), Err);
            let Read::Base(read) = read else { panic!("{read:?}") };
            self.at_follower(|end| end.streams.handle_base(&mut end.host, &read, result));
        }
    }

    fn staged(&mut self) {
        for token in std::mem::take(&mut self.follower.host.writing) {
            self.at_follower(|end| end.streams.handle_staged(&mut end.host, token));
        }
    }

    fn installed(&mut self) {
        assert!(std::mem::take(&mut self.installs), "nothing is to be installed: {}", self.told);
        let mut ours = self.follower.host.brought();
        let logged = self.written.iter().filter(|(index, ..)| *index > self.begins_at);
        logged.for_each(|(_, block, value)| _ = ours.insert(*block, *value));
        assert!(
            ours == self.leader.host.blocks,
            "the contents differ: {:?}",
            differences(&ours, &self.leader.host.blocks)
        );
        (self.follow().is_paused, self.follow().fills_from) = (false, Index(0));
        let stands = (Term(2), self.follow().commit.max(self.begins_at));
        self.at_follower(|end| end.streams.handle_installed(&mut end.host, FOLLOWER, stands));
    }

    fn act(&mut self, end: &str, action: Action) {
        let text = match action {
            Action::Send { to, message: Message::Stream(msg) } => {
                assert!(to == OsdId(msg.to.0 as u32) && member(msg.from.0).osd != to, "{msg:?} to {to}");
                let text = told(&msg.body);
                self.net.push_back((to.0, msg));
                text
            }
            Action::Read { read, range, chunk, .. } if end == "leader" => {
                self.leader.reads.push_back((read, range));
                format!("reads {}{}", said(range), of(chunk))
            }
            Action::Read { read, range, .. } => {
                self.follower.reads.push_back((read, range));
                format!("reads older {}", said(range))
            }
            Action::SetPace { pace, .. } => {
                self.lead().pace = pace;
                pace.map_or("lifts the pace".to_owned(), |bytes| format!("may propose {} KiB", bytes >> 10))
            }
            Action::NoteFilling { .. } => "counts the follower as one without its contents".to_owned(),
            Action::Fill(state) => {
                (self.begins_at, self.follow().is_paused) = (state.index, true);
                format!("has its log begin behind {}", state.index)
            }
            Action::Install { .. } => {
                self.installs = true;
                "installs".to_owned()
            }
            Action::InstallAsOf(state) => {
                (self.begins_at, self.follow().is_paused, self.installs) = (state.index, true, true);
                format!("installs, as of {}", state.index)
            }
            Action::BadPeer { reason, .. } => format!("closes the connection: {reason}"),
            other => format!("{other:?}"),
        };
        let seconds = self.leader.host.now.since(Time::ZERO).as_secs_f64();
        writeln!(self.told, "{seconds:6.2} s  {end:8}  {text}").expect("a string grows");
    }
}

fn differences(ours: &BTreeMap<u32, u8>, theirs: &BTreeMap<u32, u8>) -> Vec<u32> {
    (0..4096).filter(|n| ours.get(n) != theirs.get(n)).collect()
}

/// Names a chunk other than the ordinary one.
fn of(chunk: ChunkKey) -> String {
    if chunk == CHUNK { String::new() } else { format!(" of {chunk}") }
}

fn told(body: &StreamBody) -> String {
    match body {
        StreamBody::Blocks { seq, range, payload, .. } if payload.is_empty() => {
            format!("> {seq}: zeros, {}", said(*range))
        }
        StreamBody::Blocks { seq, range, chunk, .. } => format!("> {seq}: {}{}", said(*range), of(*chunk)),
        StreamBody::Digests { seq, start, digests, .. } => {
            format!("> {seq}: {} digests from block {}", digests.len() / wire::DIGEST_LEN, start / SECTORS_PER_BLOCK)
        }
        StreamBody::Wants { seq, blocks } => format!("> wants {} blocks of {seq}", blocks.count_ones()),
        StreamBody::Decision { seq, .. } => format!("> {seq}: decision state"),
        StreamBody::Fill { seq, index, .. } => format!("> {seq}: the log begins behind {index}"),
        StreamBody::End { seq, index, .. } => format!("> {seq}: end, as of {index}"),
        StreamBody::Accept { commit, compare, fills_from, .. } => {
            format!("> accept, commit {commit}, compare {compare}, fills from {fills_from}")
        }
        StreamBody::Ack { seq } => format!("> acknowledge {seq}"),
        StreamBody::Abort(reason) => format!("> abort: {reason:?}"),
        StreamBody::Open { needed } => format!("> open{}", if *needed { ", needed" } else { "" }),
        StreamBody::Filling { commit, .. } => format!("> filling, commit {commit}"),
        StreamBody::Done { commit, .. } => format!("> done, commit {commit}"),
    }
}
