//! Recovery and backup of records to and from protobuf.

use crate::convert::{Malformed, need, pg, uuid, watermarks_in, watermarks_out};
use crate::pb;
use control::StoredItem;
use control::admin::{
    AdminAsk, FoundAttach, FoundLength, FoundSegment, FoundSnapshot, RecoverAsk, RecoveryOsd, RecoveryReplica,
    StoreRecovery,
};
use types::{ClusterId, OsdId, ReplicaId, SegmentIndex, SnapshotId, VolumeId};

/// Returns the message of a recovery request.
pub(crate) fn recover_out(ask: RecoverAsk) -> pb::MetaRecoverRequest {
    let segment = |f: FoundSegment| pb::FoundSegment {
        volume: f.volume.0,
        segment: f.segment.0,
        pg: Some(f.pg.into()),
        column: f.column,
    };
    let attach = |f: FoundAttach| pb::FoundAttach { volume: f.volume.0, pg: Some(f.pg.into()) };
    let length =
        |f: FoundLength| pb::FoundLength { volume: f.volume.0, chunk_count: f.chunk_count, len_epoch: f.len_epoch };
    let snapshot = |f: FoundSnapshot| pb::FoundSnapshot {
        volume: f.volume.0,
        snapshot: f.snapshot.0,
        created_ms: f.created_ms,
        chunk_count: f.chunk_count,
        ended: f.ended,
    };
    pb::MetaRecoverRequest {
        dry_run: ask.dry_run,
        without: ask.without.into_iter().map(|osd| osd.0).collect(),
        segments: ask.segments.into_iter().map(segment).collect(),
        standing: ask.standing,
        attached: ask.attached.into_iter().map(attach).collect(),
        finish: ask.finish,
        lengths: ask.lengths.into_iter().map(length).collect(),
        snapshots: ask.snapshots.into_iter().map(snapshot).collect(),
    }
}

/// Returns the recovery request in a message.
///
/// # Errors
/// A segment or an attach record without a PG.
pub fn recover_in(request: pb::MetaRecoverRequest) -> Result<AdminAsk, Malformed> {
    let segment = |f: pb::FoundSegment| {
        let (volume, segment) = (VolumeId(f.volume), SegmentIndex(f.segment));
        Ok(FoundSegment { volume, segment, column: f.column, pg: pg(f.pg)? })
    };
    let attach = |f: pb::FoundAttach| Ok(FoundAttach { volume: VolumeId(f.volume), pg: pg(f.pg)? });
    let length = |f: pb::FoundLength| FoundLength {
        volume: VolumeId(f.volume),
        chunk_count: f.chunk_count,
        len_epoch: f.len_epoch,
    };
    let snapshot = |f: pb::FoundSnapshot| FoundSnapshot {
        volume: VolumeId(f.volume),
        snapshot: SnapshotId(f.snapshot),
        created_ms: f.created_ms,
        chunk_count: f.chunk_count,
        ended: f.ended,
    };
    Ok(AdminAsk::MetaRecover(RecoverAsk {
        dry_run: request.dry_run,
        without: request.without.into_iter().map(OsdId).collect(),
        standing: request.standing,
        segments: request.segments.into_iter().map(segment).collect::<Result<_, Malformed>>()?,
        attached: request.attached.into_iter().map(attach).collect::<Result<_, Malformed>>()?,
        lengths: request.lengths.into_iter().map(length).collect(),
        snapshots: request.snapshots.into_iter().map(snapshot).collect(),
        finish: request.finish,
    }))
}

impl From<StoreRecovery> for pb::MetaRecoverReply {
    fn from(r: StoreRecovery) -> Self {
        let osd = |o: RecoveryOsd| pb::RecoveryOsd {
            osd: o.osd.0,
            known: o.known,
            heard: o.heard,
            remembers: Some(watermarks_out(o.remembers)),
        };
        let replica =
            |r: RecoveryReplica| pb::RecoveryReplica { osd: r.osd.0, pg: Some(r.pg.into()), replica: r.replica.0 };
        pb::MetaRecoverReply {
            cluster: r.cluster.0.to_vec(),
            standing: r.standing,
            reasons: r.reasons,
            moved: r.moved,
            records: Some(watermarks_out(r.records)),
            highest: Some(watermarks_out(r.highest)),
            after: Some(watermarks_out(r.after)),
            osds: r.osds.into_iter().map(osd).collect(),
            replicas: r.replicas.into_iter().map(replica).collect(),
            held: r.held,
            recovering: r.recovering,
        }
    }
}

impl TryFrom<pb::MetaRecoverReply> for StoreRecovery {
    type Error = Malformed;

    fn try_from(r: pb::MetaRecoverReply) -> Result<Self, Malformed> {
        let osd = |o: pb::RecoveryOsd| {
            let remembers = watermarks_in(need(o.remembers, "remembers")?);
            Ok(RecoveryOsd { osd: OsdId(o.osd), known: o.known, heard: o.heard, remembers })
        };
        let replica = |r: pb::RecoveryReplica| {
            Ok(RecoveryReplica { osd: OsdId(r.osd), pg: pg(r.pg)?, replica: ReplicaId(r.replica) })
        };
        Ok(StoreRecovery {
            cluster: ClusterId(uuid(&r.cluster, "cluster")?),
            standing: r.standing,
            reasons: r.reasons,
            moved: r.moved,
            records: watermarks_in(need(r.records, "records")?),
            highest: watermarks_in(need(r.highest, "highest")?),
            after: watermarks_in(need(r.after, "after")?),
            osds: r.osds.into_iter().map(osd).collect::<Result<_, Malformed>>()?,
            replicas: r.replicas.into_iter().map(replica).collect::<Result<_, Malformed>>()?,
            held: r.held,
            recovering: r.recovering,
        })
    }
}

/// Bytes of values in one part of a backup.
const PART_BYTES: usize = 256 << 10;

/// Returns a backup in parts of bounded size.
pub fn backup_parts(items: Vec<StoredItem>) -> Vec<pb::MetaBackupPart> {
    let mut parts = vec![pb::MetaBackupPart::default()];
    let mut bytes = 0;
    for item in items {
        bytes += item.key.len() + item.value.len();
        if bytes > PART_BYTES {
            parts.push(pb::MetaBackupPart::default());
            bytes = 0;
        }
        let item = pb::StoredItem { key: item.key, version: item.version, value: item.value };
        parts.last_mut().expect("it begins with one").items.push(item);
    }
    parts
}

/// Returns the items of a part.
pub(crate) fn part_items(part: pb::MetaBackupPart) -> impl Iterator<Item = StoredItem> {
    part.items.into_iter().map(|i| StoredItem { key: i.key, version: i.version, value: i.value })
}
