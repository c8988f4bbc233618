//! Scripts of repairs: each file of `testdata/repairs` gives inputs to the repairs of replica 1 on OSD 1, and holds their actions.
//! Replica N is on OSD N.
//!
//! | command | effect |
//! |---|---|
//! | `payloads A-B of N, commit C` | begins: the log lacks the payloads of entries A to B; the PG has N members |
//! | `blocks of N` | begins: a running replica at applied index 10 of a PG of N members |
//! | `at S` | S seconds have passed since the start; one step of all repairs follows |
//! | `down N`, `up N` | the connection to OSD N |
//! | `led`, `not led` | whether a leader of the PG was heard lately |
//! | `peers N…` | meta names OSDs that hold replicas of the PGs of this OSD |
//! | `N gives I`, `N has other bytes at I` | replica N sends the payload of entry I, or other bytes |
//! | `N says I lost\|freed\|other\|unsure\|gone` | replica N lacks the payload of entry I; `any N says …`: OSD N, asked for any replica |
//! | `bad B` | the engine cannot read block B of home. B is a block, or blocks A to B as `A-B` |
//! | `N sends B as of L..H`, `N says B not-now\|damaged\|no-part` | replica N answers a query of B |
//! | `engine accepts\|finds it ahead\|finds it behind\|sees a difference` | the verdict on all copies that it was given |
//! | `applied I` | the replica has applied entry I |
//! | `reads well`, `reads badly` | the result of the last read |
//! | `client reads B` | a client's read met bad block B |
//! | `N asks B` | replica N queries B here |
//! | `bad B of G` | the same with block B of generation G; `client reads B over G`: of the ordinary chunk, which shows blocks of G |
//! | `G goes to H` | generation G is dissolved here, and H is its heir |
//! | `open` | the ordinary chunk is open here where other members have blocks |
//! | `full`, `full of others`, `not full` | whether the log is full; every bad block delays a destage round, or none does |

use crate::host::{CHUNK, Fake, ME, PG, member, number};
use recovery::{ANY_REPLICA, Action, BlockKey, BlockRepairs, HeldRead, Named, PayloadRepairs, Read};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;
use types::control::LostExtent;
use types::map::Member;
use types::store::{
    Crcs, DecisionState, HardState, Lost, MendRefusal, ReadData, ReadError, Recovered, ReplicaIdentity,
};
use types::{ChunkKey, Epoch, GenerationId, Index, IoBuf, OsdId, SectorRange, Term, Time, block_hash, crc32c};
use wire::{Lack, MendBody, MendMsg, Message, RepairBody, RepairMsg};

const READ: u64 = 77;

struct Script {
    host: Fake,
    payloads: PayloadRepairs,
    blocks: BlockRepairs,
    /// Number of the last query that begins with each block, and the chunk that it names.
    ids: BTreeMap<u16, (u64, ChunkKey)>,
    /// The copies that the engine judges, and the read that is under way.
    offered: Vec<BlockKey>,
    reading: usize,
    told: String,
}

#[test]
fn repairs_act_as_the_testdata_scripts_record() {
    script::check(env!("CARGO_MANIFEST_DIR"), "repairs", 3, || {
        let mut script = Script::new(3);
        move |command| {
            script.run(command);
            std::mem::take(&mut script.told)
        }
    });
}

/// Returns the first block and the number of blocks of `B` or `A-B`.
fn run(blocks: &str) -> (u16, u16) {
    let (first, last) = blocks.split_once('-').unwrap_or((blocks, blocks));
    (number(first) as u16, (number(last) - number(first) + 1) as u16)
}

fn generation(word: &str) -> GenerationId {
    GenerationId(number(word))
}

fn blocks(first: u16, count: u16) -> String {
    if count == 1 { format!("block {first}") } else { format!("blocks {first}-{}", first + count - 1) }
}

impl Script {
    fn new(count: u64) -> Script {
        let (payloads, blocks) = (PayloadRepairs::default(), BlockRepairs::default());
        let (ids, told) = (BTreeMap::new(), String::new());
        Script { host: Fake::new(count), payloads, blocks, ids, offered: Vec::new(), reading: 0, told }
    }

    fn run(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["payloads", entries, "of", count, "commit", commit] => {
                *self = Script::new(number(count));
                self.lose_payloads(entries, number(commit));
            }
            ["blocks", "of", count] => *self = Script::new(number(count)),
            ["at", seconds] => {
                let seconds = seconds.parse().expect("seconds");
                self.host.now = Time::ZERO + Duration::from_secs_f64(seconds);
                self.payloads.step(&mut self.host);
                self.blocks.offer_copies(&mut self.host);
                self.blocks.step(&mut self.host);
            }
            ["down", n] => _ = self.host.down.insert(OsdId(number(n) as u32)),
            ["up", n] => _ = self.host.down.remove(&OsdId(number(n) as u32)),
            ["led"] => self.host.is_led = true,
            ["fills", "over", base] => {
                let base = member(number(base)).replica;
                (self.host.fills, self.host.base) = (true, (base.0 > 0).then_some(base));
            }
            ["log", "makes", "the", "block"] => self.host.in_log = Some(IoBuf::copy_of(&[7; 4096])),
            ["not", "led"] => self.host.is_led = false,
            ["full"] => (self.host.is_full, self.host.delays_destage) = (true, true),
            ["full", "of", "others"] => (self.host.is_full, self.host.delays_destage) = (true, false),
            ["not", "full"] => self.host.is_full = false,
            ["applied", index] => self.host.applied = Index(number(index)),
            ["peers", ref osds @ ..] => self.payloads.handle_peers(osds.iter().map(|n| OsdId(number(n) as u32))),
            [from, "gives", index] => self.payload(from, index, 7),
            [from, "has", "other", "bytes", "at", index] => self.payload(from, index, 8),
            ["bad", block] => self.bad(block, CHUNK),
            ["bad", block, "of", id] => self.bad(block, ChunkKey { generation: generation(id), ..CHUNK }),
            [id, "goes", "to", heir] => _ = self.host.heirs.insert(generation(id), generation(heir)),
            ["open"] => _ = self.host.open.insert(CHUNK.generation),
            ["client", "reads", block, "over", id] => {
                self.host.older = vec![generation(id)];
                self.run(&format!("client reads {block}"));
            }
            [from, "sends", block, "as", "of", range] => {
                let (low, high) = range.split_once("..").expect("a range");
                let (low, high, count) = (Index(number(low)), Index(number(high)), usize::from(run(block).1));
                let (crcs, payload) = (vec![crc32c(&[0; 4096]); count], IoBuf::zeros(count * 4096));
                self.block(from, block, MendBody::Blocks { low, high, crcs: crcs.into(), payload });
            }
            [from, "asks", blocks] => self.asked(from, blocks, IoBuf::EMPTY),
            [from, "asks", blocks, "from", "older", "contents"] => self.asked(from, blocks, IoBuf::zeros(4096)),
            [from, "says", block, "not-now"] => self.block(from, block, MendBody::NotNow),
            [from, "says", block, "damaged"] => self.block(from, block, MendBody::Damaged),
            [from, "says", block, "no-part"] => self.block(from, block, MendBody::NoPart),
            ["any", osd, "says", index, why] => {
                let from = Member { replica: ANY_REPLICA, ..member(number(osd)) };
                self.lack(from, index, why);
            }
            [from, "says", index, why] => self.lack(member(number(from)), index, why),
            ["engine", ref verdict @ ..] => {
                let verdict = match verdict.join(" ").as_str() {
                    "accepts" => Ok(()),
                    "finds it ahead" => Err(MendRefusal::Ahead),
                    "finds it behind" => Err(MendRefusal::Behind),
                    "sees a difference" => Err(MendRefusal::Differs),
                    other => panic!("the engine never says {other}"),
                };
                assert!(!self.offered.is_empty(), "no copy was offered");
                for key in std::mem::take(&mut self.offered) {
                    self.blocks.handle_mended(&mut self.host, key, verdict);
                }
            }
            ["reads", how] => {
                let bad = ReadError::Damaged { replica: ME, chunk: CHUNK, reason: "a checksum".into() };
                let result = if how == "well" { Ok(ReadData::Zeros) } else { Err(bad) };
                self.blocks.handle_read(&mut self.host, self.reading, result);
            }
            ["client", "reads", block] => {
                let range = SectorRange::new(number(block) as u32 * 8, 8);
                let read = HeldRead { replica: ME, read: READ, chunk: CHUNK, range };
                self.blocks.hold_read(&mut self.host, read);
            }
            _ => panic!("no command: {line}"),
        }
        std::mem::take(&mut self.host.actions).into_iter().for_each(|action| self.tell(action));
    }

    fn bad(&mut self, block: &str, chunk: ChunkKey) {
        let (block, count) = run(block);
        let range = SectorRange::new(u32::from(block) * 8, u32::from(count) * 8);
        self.blocks.blocks_are_bad(&mut self.host, (ME, chunk, range), "a checksum", true);
    }

    fn lose_payloads(&mut self, entries: &str, commit: u64) {
        let (first, last) = entries.split_once('-').expect("entries");
        let crcs = Crcs { start: 0, values: vec![crc32c(&[7; 512])].into() };
        let lost = (number(first)..=number(last)).map(Index);
        let extent =
            |index: Index| LostExtent { chunk: CHUNK.of_first(), offset_bytes: index.0 as u32 * 512, len_bytes: 512 };
        let extents = lost.clone().map(|index| (index, extent(index))).collect();
        let lost = lost.map(|index| Lost { index, term: Term(2), len_bytes: 512, crcs: crcs.clone() });
        let checkpoint = DecisionState { replica: ME, index: Index(0), term: Term(0), bytes: bytes::Bytes::new() };
        let recovered = Recovered {
            identity: ReplicaIdentity {
                pg: PG,
                replica: ME,
                conf_epoch: Epoch(1),
                members: self.host.members.iter().collect(),
            },
            hard_state: HardState { term: Term(2), vote: None, commit: Index(commit) },
            checkpoint,
            before: (Index(0), Term(0)),
            entries: Vec::new(),
            lost: lost.collect(),
            failure: None,
            fills: false,
        };
        self.payloads.begin(recovered, self.host.members.clone(), &extents, OsdId(1));
    }

    fn repair(&mut self, from: Member, body: RepairBody) {
        let msg = RepairMsg { pg: PG, from: from.replica, to: ME, body };
        self.payloads.handle_answer(&mut self.host, from.osd, msg);
    }

    fn payload(&mut self, from: &str, index: &str, byte: u8) {
        let bytes = [byte; 512];
        let (index, crcs, payload) = (Index(number(index)), vec![crc32c(&bytes)], IoBuf::copy_of(&bytes));
        let body = RepairBody::Payload { index, term: Term(2), start: 0, crcs: crcs.into(), payload };
        self.repair(member(number(from)), body);
    }

    fn lack(&mut self, from: Member, index: &str, why: &str) {
        let why = match why {
            "lost" => Lack::Lost,
            "freed" => Lack::Freed,
            "other" => Lack::Other,
            "unsure" => Lack::Unsure,
            "gone" => Lack::Gone,
            _ => panic!("no member says {why}"),
        };
        self.repair(from, RepairBody::Lack { index: Index(number(index)), term: Term(2), why });
    }

    fn block(&mut self, from: &str, block: &str, body: MendBody) {
        let (from, (block, count)) = (member(number(from)), run(block));
        let (id, chunk) = self.ids[&block];
        let msg = MendMsg { pg: PG, from: from.replica, to: ME, id, chunk, block, count, body };
        self.blocks.handle_answer(&mut self.host, from.osd, msg);
    }

    fn asked(&mut self, from: &str, blocks: &str, older: IoBuf) {
        let ((block, count), from) = (run(blocks), member(number(from)));
        let body = MendBody::Ask { hash: block_hash(CHUNK.in_own_family(block), &[7; 4096]), older };
        let msg = MendMsg { pg: PG, from: from.replica, to: ME, id: 1, chunk: CHUNK, block, count, body };
        self.blocks.handle_query(&mut self.host, from.osd, msg);
    }

    fn tell(&mut self, action: Action) {
        let text = match action {
            Action::Send { to, message: Message::Repair(msg) } => {
                let RepairBody::Fetch { index, .. } = msg.body else { panic!("{msg:?}") };
                let whose = if msg.to == ANY_REPLICA { "any replica on " } else { "" };
                format!("ask {whose}{} for entry {index}", to.0)
            }
            Action::Send {
                to,
                message: Message::Mend(MendMsg { block, count, body: MendBody::Ask { older, .. }, id, chunk, .. }),
            } => {
                self.ids.insert(block, (id, chunk));
                let from = if older.is_empty() { "" } else { ", from older contents" };
                let of = if chunk == CHUNK { String::new() } else { format!(" of {}", chunk.generation) };
                format!("ask {} for {}{of}{from}", to.0, blocks(block, count))
            }
            Action::Send { to, message: Message::Mend(MendMsg { block, count, body, .. }) } => match body {
                MendBody::Blocks { low, high, crcs, payload } => {
                    let (kib, crcs) = (payload.len() >> 10, crcs.len());
                    format!("send {} {} as of {low}..{high}: {kib} KiB, {crcs} CRCs", to.0, blocks(block, count))
                }
                body => format!("answer {} {body:?}", to.0),
            },
            Action::Refill { index, .. } => format!("give the engine the payload of entry {index}"),
            Action::FailBefore { from, reason, .. } => format!("fail, with the log before {from}: {reason}"),
            Action::Fail { reason, .. } => format!("fail: {reason}"),
            Action::Report => {
                let lost = self.payloads.get(ME).map_or(Vec::new(), |(_, lost)| lost.to_vec());
                let [unread, everywhere] =
                    [Named::Here, Named::Everywhere].map(|n| self.blocks.named(ME, n, |_, chunk| chunk.of_first()));
                let lost = [&lost[..], &everywhere[..]].concat();
                format!("report {} lost and {} unread extents", lost.len(), unread.len())
            }
            Action::Read { read: Read::Block(key) | Read::BaseBlock(key), replica, range, .. } => {
                self.reading = key;
                let of = if replica == ME { String::new() } else { format!(" of {replica}") };
                format!("read {} blocks from block {} on{of}", range.count / 8, range.start / 8)
            }
            Action::Mend { key, copy } => {
                self.offered.push(key);
                let of = if key.1 == CHUNK { String::new() } else { format!(" of {}", key.1.generation) };
                format!("offer the engine a copy of block {}{of} as of {}..{}", key.2, copy.low, copy.high)
            }
            Action::ForgetBlock((.., block)) => format!("forget block {block}"),
            Action::FailRead { .. } => "fail the client's read".to_owned(),
            Action::StartRead(_) => "start the client's read again".to_owned(),
            Action::HandOver { avoid, .. } => {
                format!("hand the PG over, not to {:?}", avoid.iter().map(|osd| osd.0).collect::<Vec<_>>())
            }
            other => format!("{other:?}"),
        };
        let seconds = self.host.now.since(Time::ZERO).as_secs_f64();
        writeln!(self.told, "{seconds:6.2} s  {text}").expect("a string grows");
    }
}
