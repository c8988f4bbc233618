//! Conversions of the orders about snapshots, of their answers, and of the snapshots that administrators see.

use crate::convert::{Malformed, need, osd, pg};
use crate::pb;
use control::admin::SnapshotView;
use std::sync::Arc;
use types::cut::{
    Cut, CutEnd, CutItem, CutRefusal, CutStep, FlattenStep, SnapshotAnswer, SnapshotOrder, TAIL_PARTS_MAX, Tail,
    TailStep, are_items,
};
use types::{CutId, GenerationId, PgId, SectorRange, SnapshotId, VolumeId};

fn items_out(items: &[CutItem]) -> Vec<pb::CutItem> {
    items.iter().map(|item| pb::CutItem { volume: item.volume.0, to: item.to.0 }).collect()
}

fn items_in(items: Vec<pb::CutItem>) -> Result<Arc<[CutItem]>, Malformed> {
    let item = |item: pb::CutItem| CutItem { volume: VolumeId(item.volume), to: GenerationId(item.to) };
    let items: Arc<[CutItem]> = items.into_iter().map(item).collect();
    if are_items(&items) { Ok(items) } else { Err(Malformed::Range("items")) }
}

fn part_out((chunk, range): (u32, SectorRange)) -> pb::TailPart {
    pb::TailPart { chunk, start: range.start, count: range.count }
}

fn part_in(part: &pb::TailPart) -> Result<(u32, SectorRange), Malformed> {
    let range = SectorRange::checked(part.start, part.count).ok_or(Malformed::Range("part"))?;
    Ok((part.chunk, range))
}

fn name_out(volume: VolumeId, snapshot: SnapshotId) -> pb::SnapshotName {
    pb::SnapshotName { volume: volume.0, snapshot: snapshot.0 }
}

pub(crate) fn order_out(of: PgId, order: SnapshotOrder) -> pb::SnapshotOrder {
    use pb::snapshot_order::Order;
    let order = match order {
        SnapshotOrder::Cut(Cut { id, created_ms, items }) => {
            Order::Begin(pb::BeginCut { cut: id.0, created_ms, items: items_out(&items) })
        }
        SnapshotOrder::Release { cut, end, items } => {
            let end = match end {
                CutEnd::Release => pb::CutEnd::Release,
                CutEnd::TimedOut => pb::CutEnd::TimedOut,
                CutEnd::Abort => pb::CutEnd::Abort,
            };
            Order::End(pb::EndCut { cut: cut.0, end: end.into(), items: items_out(&items) })
        }
        SnapshotOrder::Remove { volume, snapshot } => Order::Remove(name_out(volume, snapshot)),
        SnapshotOrder::Flatten { volume } => Order::Flatten(volume.0),
        SnapshotOrder::Find { volume, len_epoch, tail } => Order::Find(pb::FindTail {
            volume: volume.0,
            len_epoch,
            from_chunk: tail.from_chunk,
            parts: tail.parts.iter().copied().map(part_out).collect(),
        }),
        SnapshotOrder::Wipe { volume, len_epoch, chunk, range } => {
            Order::Wipe(pb::WipeTail { volume: volume.0, len_epoch, part: Some(part_out((chunk, range))) })
        }
    };
    pb::SnapshotOrder { pg: Some(of.into()), order: Some(order) }
}

pub(crate) fn order_in(order: pb::SnapshotOrder) -> Result<(PgId, SnapshotOrder), Malformed> {
    use pb::snapshot_order::Order;
    let of = pg(order.pg)?;
    let order = match need(order.order, "order")? {
        Order::Begin(begin) => SnapshotOrder::Cut(Cut {
            id: CutId(begin.cut),
            created_ms: begin.created_ms,
            items: items_in(begin.items)?,
        }),
        Order::End(end) => {
            let how = match end.end() {
                pb::CutEnd::Release => CutEnd::Release,
                pb::CutEnd::TimedOut => CutEnd::TimedOut,
                pb::CutEnd::Abort => CutEnd::Abort,
                pb::CutEnd::Unknown => return Err(Malformed::Range("end")),
            };
            SnapshotOrder::Release { cut: CutId(end.cut), end: how, items: items_in(end.items)? }
        }
        Order::Remove(name) => {
            SnapshotOrder::Remove { volume: VolumeId(name.volume), snapshot: SnapshotId(name.snapshot) }
        }
        Order::Flatten(volume) => SnapshotOrder::Flatten { volume: VolumeId(volume) },
        Order::Find(find) if find.parts.len() > TAIL_PARTS_MAX => return Err(Malformed::Range("parts")),
        Order::Find(find) => {
            let parts = find.parts.iter().map(part_in).collect::<Result<_, _>>()?;
            let tail = Tail { from_chunk: find.from_chunk, parts };
            SnapshotOrder::Find { volume: VolumeId(find.volume), len_epoch: find.len_epoch, tail }
        }
        Order::Wipe(wipe) => {
            let (chunk, range) = part_in(&need(wipe.part, "part")?)?;
            SnapshotOrder::Wipe { volume: VolumeId(wipe.volume), len_epoch: wipe.len_epoch, chunk, range }
        }
    };
    Ok((of, order))
}

fn refused(refusal: CutRefusal) -> pb::snapshot_answer::Result {
    use pb::snapshot_answer::Result as R;
    let refusal = match refusal {
        CutRefusal::NotLeader { hint } => return R::NotLeader(pb::NotLeading { hint: hint.map(|osd| osd.0) }),
        CutRefusal::LaterLength { len_epoch, chunk_count } => {
            return R::LaterLength(pb::LaterLength { len_epoch, chunk_count });
        }
        CutRefusal::Busy => pb::CutRefusal::Busy,
        CutRefusal::Open => pb::CutRefusal::Open,
        CutRefusal::Stale => pb::CutRefusal::Stale,
        CutRefusal::TooMany => pb::CutRefusal::TooMany,
        CutRefusal::Invalid => pb::CutRefusal::Invalid,
        CutRefusal::Absent => pb::CutRefusal::Absent,
    };
    R::Refused(refusal.into())
}

pub(crate) fn answer_out(of: PgId, answer: SnapshotAnswer) -> pb::SnapshotAnswer {
    use pb::snapshot_answer::{Order, Result as R};
    let (order, result) = match answer {
        SnapshotAnswer::Cut { cut, result } => {
            let step = |step| match step {
                CutStep::Snapped => pb::CutStep::Snapped,
                CutStep::Released => pb::CutStep::Released,
                CutStep::Lapsed => pb::CutStep::Lapsed,
                CutStep::Aborted => pb::CutStep::Aborted,
            };
            (Order::Cut(cut.0), result.map_or_else(refused, |done| R::Step(step(done).into())))
        }
        SnapshotAnswer::Removed { volume, snapshot, result } => {
            let result = result.map_or_else(refused, |()| R::Done(pb::Empty {}));
            (Order::Removed(name_out(volume, snapshot)), result)
        }
        SnapshotAnswer::Flatten { volume, result } => {
            let step = |step| match step {
                FlattenStep::Copying { done, chunks } => R::Copying(pb::FlattenProgress { done, chunks }),
                FlattenStep::Flat => R::Done(pb::Empty {}),
            };
            (Order::Flatten(volume.0), result.map_or_else(refused, step))
        }
        SnapshotAnswer::Found { volume, len_epoch, result } => {
            let step = |step| match step {
                TailStep::Empty => R::Done(pb::Empty {}),
                TailStep::Data { chunk } => R::Data(chunk),
                TailStep::Searched { next } => R::Searched(next),
            };
            let name = pb::TailName { volume: volume.0, len_epoch, chunk: 0 };
            (Order::Found(name), result.map_or_else(refused, step))
        }
        SnapshotAnswer::Wiped { volume, len_epoch, chunk, result } => {
            let name = pb::TailName { volume: volume.0, len_epoch, chunk };
            (Order::Wiped(name), result.map_or_else(refused, |()| R::Done(pb::Empty {})))
        }
    };
    pb::SnapshotAnswer { pg: Some(of.into()), order: Some(order), result: Some(result) }
}

pub(crate) fn answer_in(answer: pb::SnapshotAnswer) -> Result<(PgId, SnapshotAnswer), Malformed> {
    use pb::snapshot_answer::{Order, Result as R};
    let of = pg(answer.pg)?;
    let (order, result) = (need(answer.order, "order")?, need(answer.result, "result")?);
    let refusal = match &result {
        R::NotLeader(not) => Some(CutRefusal::NotLeader { hint: not.hint.map(|hint| osd(hint, "hint")).transpose()? }),
        R::LaterLength(later) => {
            Some(CutRefusal::LaterLength { len_epoch: later.len_epoch, chunk_count: later.chunk_count })
        }
        R::Refused(refusal) => Some(match pb::CutRefusal::try_from(*refusal) {
            Ok(pb::CutRefusal::Busy) => CutRefusal::Busy,
            Ok(pb::CutRefusal::Open) => CutRefusal::Open,
            Ok(pb::CutRefusal::Stale) => CutRefusal::Stale,
            Ok(pb::CutRefusal::TooMany) => CutRefusal::TooMany,
            Ok(pb::CutRefusal::Invalid) => CutRefusal::Invalid,
            Ok(pb::CutRefusal::Absent) => CutRefusal::Absent,
            Ok(pb::CutRefusal::Unknown) | Err(_) => return Err(Malformed::Range("refused")),
        }),
        R::Step(_) | R::Done(_) | R::Copying(_) | R::Data(_) | R::Searched(_) => None,
    };
    let answer = match (order, &result, refusal) {
        (Order::Cut(cut), _, Some(refusal)) => SnapshotAnswer::Cut { cut: CutId(cut), result: Err(refusal) },
        (Order::Cut(cut), R::Step(step), None) => {
            let step = match pb::CutStep::try_from(*step) {
                Ok(pb::CutStep::Snapped) => CutStep::Snapped,
                Ok(pb::CutStep::Released) => CutStep::Released,
                Ok(pb::CutStep::Lapsed) => CutStep::Lapsed,
                Ok(pb::CutStep::Aborted) => CutStep::Aborted,
                Ok(pb::CutStep::Unknown) | Err(_) => return Err(Malformed::Range("step")),
            };
            SnapshotAnswer::Cut { cut: CutId(cut), result: Ok(step) }
        }
        (Order::Removed(name), R::Done(_), None) => removed(&name, Ok(())),
        (Order::Removed(name), _, Some(refusal)) => removed(&name, Err(refusal)),
        (Order::Flatten(volume), _, Some(refusal)) => flattened(volume, Err(refusal)),
        (Order::Flatten(volume), R::Done(_), None) => flattened(volume, Ok(FlattenStep::Flat)),
        (Order::Flatten(volume), R::Copying(pb::FlattenProgress { done, chunks }), None) => {
            flattened(volume, Ok(FlattenStep::Copying { done: *done, chunks: *chunks }))
        }
        (Order::Found(name), _, Some(refusal)) => found(&name, Err(refusal)),
        (Order::Found(name), R::Done(_), None) => found(&name, Ok(TailStep::Empty)),
        (Order::Found(name), R::Data(chunk), None) => found(&name, Ok(TailStep::Data { chunk: *chunk })),
        (Order::Found(name), R::Searched(next), None) => found(&name, Ok(TailStep::Searched { next: *next })),
        (Order::Wiped(name), _, Some(refusal)) => wiped(&name, Err(refusal)),
        (Order::Wiped(name), R::Done(_), None) => wiped(&name, Ok(())),
        _ => return Err(Malformed::Range("result")),
    };
    Ok((of, answer))
}

fn found(name: &pb::TailName, result: Result<TailStep, CutRefusal>) -> SnapshotAnswer {
    SnapshotAnswer::Found { volume: VolumeId(name.volume), len_epoch: name.len_epoch, result }
}

fn wiped(name: &pb::TailName, result: Result<(), CutRefusal>) -> SnapshotAnswer {
    SnapshotAnswer::Wiped { volume: VolumeId(name.volume), len_epoch: name.len_epoch, chunk: name.chunk, result }
}

fn removed(name: &pb::SnapshotName, result: Result<(), CutRefusal>) -> SnapshotAnswer {
    SnapshotAnswer::Removed { volume: VolumeId(name.volume), snapshot: SnapshotId(name.snapshot), result }
}

fn flattened(volume: u64, result: Result<FlattenStep, CutRefusal>) -> SnapshotAnswer {
    SnapshotAnswer::Flatten { volume: VolumeId(volume), result }
}

/// Returns the message of some snapshots.
pub fn snapshots_out(views: Vec<SnapshotView>) -> pb::SnapshotsReply {
    let view = |v: SnapshotView| pb::SnapshotView {
        volume: v.volume.0,
        snapshot: v.snapshot.0,
        name: v.name,
        len_bytes: v.len_bytes,
        created_ms: v.created_ms,
        state: v.state,
        cut: v.cut.0,
        protected: v.protected,
        by: v.by,
        description: v.description,
        labels: v.labels.into_iter().collect(),
        clones: v.clones,
    };
    pb::SnapshotsReply { snapshots: views.into_iter().map(view).collect() }
}

/// Returns the snapshots of a message.
pub(crate) fn snapshots(reply: pb::SnapshotsReply) -> Vec<SnapshotView> {
    let view = |v: pb::SnapshotView| SnapshotView {
        volume: VolumeId(v.volume),
        snapshot: SnapshotId(v.snapshot),
        name: v.name,
        len_bytes: v.len_bytes,
        created_ms: v.created_ms,
        state: v.state,
        cut: CutId(v.cut),
        protected: v.protected,
        by: v.by,
        description: v.description,
        labels: v.labels.into_iter().collect(),
        clones: v.clones,
    };
    reply.snapshots.into_iter().map(view).collect()
}
