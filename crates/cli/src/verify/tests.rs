//! A comparison over HTTP with members whose answers a test decides: generations that end meanwhile, and names of what differs.

use super::*;
use crate::role::{http, tools};
use env::Waker;
use osd::{ToolAnswer, ToolAsk};
use std::sync::atomic::{AtomicU32, Ordering};
use telemetry::Registry;
use tokio::runtime::Runtime;
use types::control::PgReport;
use types::tree::Role;
use types::{GenerationId, Index, OsdUuid, PoolId, SnapshotId};

const PG: PgId = PgId { pool: PoolId(1), n: 0 };
const VOLUME: VolumeId = VolumeId(1);
const AT: Index = Index(10);
const SNAPSHOT: Role = Role::Snapshot(VOLUME, SnapshotId(12));

fn key(generation: u64, index: u32) -> ChunkKey {
    ChunkKey { generation: GenerationId(generation), index }
}

/// Serves the answers of one member.
fn member(runtime: &Runtime, n: u32, answer: impl FnMut(ToolAsk) -> ToolAnswer + Send + 'static) -> Member {
    let (counter, desk) = tools::desk(Waker::new(|| {}));
    std::thread::spawn(move || desk.answer_all(answer));
    let _entered = runtime.enter();
    let (listener, addr) = http::bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let uuid = OsdUuid([n as u8; 16]);
    http::serve(runtime.handle(), listener, addr, (Registry::default(), counter, uuid));
    Member { osd: OsdId(n), uuid, http: addr }
}

fn page(held: &[(ChunkKey, Role)]) -> ToolAnswer {
    let report = Box::new(PgReport { pg: PG, applied: AT, ..PgReport::default() });
    ToolAnswer::Pg { report, chunks: Vec::new(), held: held.to_vec(), attached: Vec::new(), snapshots: Vec::new() }
}

fn parts(first: u32) -> ToolAnswer {
    ToolAnswer::Digest { at: AT, parts: vec![first, 1] }
}

/// Compares three members. `answer` gets the number of the member, the number of its list, and the chunk; no chunk: it is to list them.
fn compare(answer: impl Fn(u32, u32, Option<ChunkKey>) -> ToolAnswer + Clone + Send + 'static) -> Verdict {
    let runtime = Runtime::new().expect("threads");
    let serve = |n| {
        let (answer, lists) = (answer.clone(), AtomicU32::new(0));
        member(&runtime, n, move |ask| match ask {
            ToolAsk::Pg { .. } => answer(n, lists.fetch_add(1, Ordering::Relaxed) + 1, None),
            ToolAsk::Digest { chunk, at, .. } if at == AT => answer(n, lists.load(Ordering::Relaxed), Some(chunk)),
            other => panic!("{other:?}"),
        })
    };
    let members: Vec<Member> = (1..=3).map(serve).collect();
    let mut plan = Plan { members, chunks: BTreeMap::new(), applied: 0, verdict: Verdict::new(PG) };
    assert!(plan.list().is_empty(), "all answer");
    let volumes = Volumes::from([(VOLUME, ("main/v".to_owned(), Stripe::NONE))]);
    compare_pg(plan, false, &volumes, &ProgressBar::hidden())
}

#[test]
fn difference_names_the_snapshot_or_the_hidden_generation() {
    let verdict = compare(|n, _, chunk| match chunk {
        None => {
            page(&[(key(1, 2), SNAPSHOT), (key(7, 0), Role::Hidden(VolumeId(9))), (key(12, 2), Role::Head(VOLUME))])
        }
        Some(_) => parts(n / 3),
    });
    let found =
        verdict.differences.iter().map(|d| (d.volume.as_str(), d.snapshot.as_deref(), d.chunk, d.odd.as_slice()));
    let odd = &[OsdId(3)][..];
    let want = [("main/v", Some("snap12"), 2, odd), ("v9", Some("g7"), 0, odd), ("main/v", None, 2, odd)];
    assert_eq!(found.collect::<Vec<_>>(), want);
    let lines: Vec<String> = verdict.differences.iter().map(|d| d.line(PG)).collect();
    assert!(lines[0].starts_with("pg 1.0: main/v snap12 differs at offset 33554432 (512 KiB, chunk 2)"), "{lines:?}");
    assert!(lines[2].starts_with("pg 1.0: main/v differs at offset 33554432"), "{lines:?}");
    let json = serde_json::to_value(&verdict).expect("JSON");
    assert_eq!(json["differences"][1]["snapshot"], "g7");
    assert!(json["differences"][2]["snapshot"].is_null() && verdict.unasked.is_empty(), "{json}");
}

#[test]
fn chunk_of_a_snapshot_that_ends_is_compared_in_its_heir() {
    let verdict = compare(|n, list, chunk| match chunk {
        None if list == 1 => page(&[(key(1, 0), SNAPSHOT), (key(12, 3), Role::Head(VOLUME))]),
        None => page(&[(key(12, 0), Role::Head(VOLUME)), (key(12, 3), Role::Head(VOLUME))]),
        Some(chunk) if chunk.generation == GenerationId(1) => ToolAnswer::Ended { at: AT },
        Some(chunk) => parts(if chunk.index == 0 { n / 3 } else { 5 }),
    });
    assert_eq!((verdict.chunks, verdict.difference_count), (2, 1), "{verdict:?}");
    assert_eq!((verdict.differences[0].chunk, &verdict.differences[0].snapshot), (0, &None));
    assert!(verdict.unasked.is_empty(), "{verdict:?}");
}

#[test]
fn generation_that_one_member_lacks_at_an_index_is_a_difference() {
    let verdict = compare(|n, _, chunk| match chunk {
        None => page(&[(key(1, 0), SNAPSHOT)]),
        Some(_) if n == 2 => ToolAnswer::Ended { at: AT },
        Some(_) => parts(4),
    });
    assert_eq!((verdict.chunks, verdict.difference_count), (1, 1), "{verdict:?}");
    assert_eq!(verdict.differences[0].odd, [OsdId(2)]);
}

#[test]
fn comparison_ends_when_generations_end_again_and_again() {
    let verdict = compare(|_, _, chunk| match chunk {
        None => page(&[(key(1, 0), SNAPSHOT)]),
        Some(_) => ToolAnswer::Ended { at: AT },
    });
    assert_eq!((verdict.chunks, verdict.unasked.len()), (0, 3), "{verdict:?}");
}
