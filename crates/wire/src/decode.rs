//! Decoding of frames. Input: a verified [`Header`] and the blocks that it announces, from `bus`.
//! Output: messages whose payloads are slices of the payload block.
//!
//! Invariant: every count is compared with the bytes that are there before memory is allocated for it. Every reserved
//! byte is zero and every list is exactly as long as its record says, so that a decoded frame, encoded again, gives
//! the same bytes. Decoding does not judge the *meaning* of a message.

use crate::frame::{FrameKind, Header, WireError};
use crate::message::{
    CONTEXT_MAX, Contents, Extent, Hello, LeaseAck, LeaseRenewal, Message, PassedOn, Peer, REASON_MAX, RaftKind,
    RaftMsg, Refuse, Reject, RenewalItem, Reply, ReplyBody, Request, RequestBody, USED_MAX, Used,
};
use crate::record::*;
use bytes::Bytes;
use types::limits::{DESCRIPTOR_MAX, FRAGMENTS_MAX, PART_MAX};
use types::store::Crcs;
use types::units::{SECTOR, SECTORS_PER_BLOCK};
use types::{
    ClusterId, CrcList, Entry, EntryKind, Epoch, Errno, Incarnation, Index, IoBuf, OsdId, PgId, PoolId, ReplicaId,
    SectorRange, SessionId, SnapshotId, Term, VolumeChunk, VolumeId,
};
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// Head blocks up to this size are copied once, and all descriptors of the frame share the copy. Descriptors of a
/// larger block are copied one by one, so that a single descriptor keeps at most this much memory alive.
const SHARED_HEAD_MAX: usize = 16 << 10;

/// Reads a hello frame. Bytes after the part that this version knows belong to a later version and are ignored.
///
/// # Errors
/// When the frame is of another kind, is damaged, or has a field value that no version uses.
pub fn decode_hello(header: &Header, head: &[u8]) -> Result<Hello, WireError> {
    if header.kind() != FrameKind::Hello {
        return Err(WireError::Unexpected);
    }
    header.check_head(head)?;
    let (r, _) = HelloRecord::ref_from_prefix(head).map_err(|_| WireError::Truncated("hello"))?;
    let osd = |v: u64| u32::try_from(v).ok().filter(|v| *v != 0).map(OsdId);
    let peer = match r.role {
        role::OSD => Peer::Osd(osd(r.peer.get()).ok_or(WireError::Value { what: "an OSD id", value: r.peer.get() })?),
        role::CLIENT => Peer::Client(Incarnation(r.peer.get())),
        other => return Err(WireError::Value { what: "a role", value: other.into() }),
    };
    let expects = match (r.has_expects, r.expects.get()) {
        (0, 0) => None,
        (1, id) => Some(OsdId(id)),
        (_, id) => return Err(WireError::Value { what: "an expected OSD", value: id.into() }),
    };
    Ok(Hello {
        version_min: r.version_min.get(),
        version_max: r.version_max.get(),
        cluster: ClusterId(r.cluster),
        peer,
        incarnation: Incarnation(r.incarnation.get()),
        expects,
        features: r.features.get(),
        credit_ops: r.credit_ops.get(),
        credit_bytes: r.credit_bytes.get(),
    })
}

/// Reads a refuse frame.
///
/// # Errors
/// When the frame is of another kind or damaged.
pub fn decode_refuse(header: &Header, head: &[u8]) -> Result<Refuse, WireError> {
    if header.kind() != FrameKind::Refuse {
        return Err(WireError::Unexpected);
    }
    header.check_head(head)?;
    let (r, tail) = RefuseRecord::ref_from_prefix(head).map_err(|_| WireError::Truncated("refusal"))?;
    let len = limited("a reason", r.reason_len.get() as usize, REASON_MAX)?;
    let text = tail.get(..len).ok_or(WireError::Truncated("refusal"))?;
    let reason = std::str::from_utf8(text).map_err(|_| WireError::Text)?.to_owned();
    Ok(Refuse { code: r.code.get(), reason })
}

/// Reads a batch frame and appends its messages to `out`; on an error `out` is unchanged.
///
/// # Errors
/// When the frame is of another kind or damaged, or a record in it differs from any that encoding makes.
pub fn decode_batch(header: &Header, head: &[u8], payload: IoBuf, out: &mut Vec<Message>) -> Result<(), WireError> {
    if header.kind() != FrameKind::Batch {
        return Err(WireError::Unexpected);
    }
    header.check_head(head)?;
    if payload.len() != header.payload_len() {
        return Err(WireError::Truncated("payload block"));
    }
    let before = out.len();
    let result = read_batch(header, head, payload, out);
    if result.is_err() {
        out.truncate(before);
    }
    result
}

fn read_batch(header: &Header, head: &[u8], payload: IoBuf, out: &mut Vec<Message>) -> Result<(), WireError> {
    let mut input = Input { head, at: 0, end: head.len(), payload, payload_at: 0, shared: None };
    for _ in 0..header.record_count() {
        let record: RecordHeader = input.take("record header")?;
        if record.flags != 0 || record.reserved.get() != 0 {
            return Err(WireError::Reserved("record header"));
        }
        let end = input.at.checked_add(record.len_bytes.get() as usize).filter(|end| *end <= head.len());
        input.end = end.ok_or(WireError::Truncated("record"))?;
        out.push(read_message(record.kind, &mut input)?);
        if input.at != input.end {
            return Err(WireError::Trailing(input.end - input.at));
        }
        input.end = head.len();
    }
    match (head.len() - input.at) + (input.payload.len() - input.payload_at) {
        0 => Ok(()),
        left => Err(WireError::Trailing(left)),
    }
}

/// The unread rest of the blocks: `at..end` of the head belongs to the present record.
pub(crate) struct Input<'a> {
    head: &'a [u8],
    at: usize,
    end: usize,
    payload: IoBuf,
    payload_at: usize,
    shared: Option<Bytes>,
}

impl<'a> Input<'a> {
    fn bytes(&mut self, what: &'static str, len: usize) -> Result<&'a [u8], WireError> {
        if len > self.end - self.at {
            return Err(WireError::Truncated(what));
        }
        self.at += len;
        Ok(&self.head[self.at - len..self.at])
    }

    pub(crate) fn take<T: FromBytes + KnownLayout + Immutable>(&mut self, what: &'static str) -> Result<T, WireError> {
        let bytes = self.bytes(what, size_of::<T>())?;
        T::read_from_bytes(bytes).map_err(|_| WireError::Truncated(what))
    }

    /// Reads `count` records and turns each into a value. No memory is allocated unless all their bytes are there.
    fn list<T: FromBytes + KnownLayout + Immutable, V>(
        &mut self,
        what: &'static str,
        count: usize,
        make: impl Fn(T) -> Result<V, WireError>,
    ) -> Result<Vec<V>, WireError> {
        if count > (self.end - self.at) / size_of::<T>() {
            return Err(WireError::Truncated(what));
        }
        (0..count).map(|_| make(self.take(what)?)).collect()
    }

    pub(crate) fn crcs(&mut self, count: usize) -> Result<CrcList, WireError> {
        let bytes = self.bytes("checksum list", count.saturating_mul(4))?;
        Ok(bytes.as_chunks().0.iter().map(|c| u32::from_le_bytes(*c)).collect())
    }

    /// Reads bytes that outlive the head block.
    pub(crate) fn kept(&mut self, what: &'static str, len: usize) -> Result<Bytes, WireError> {
        let at = self.at;
        let bytes = self.bytes(what, len)?;
        if len == 0 {
            return Ok(Bytes::new());
        }
        if self.head.len() > SHARED_HEAD_MAX {
            return Ok(Bytes::copy_from_slice(bytes));
        }
        let shared = self.shared.get_or_insert_with(|| Bytes::copy_from_slice(self.head));
        Ok(shared.slice(at..at + len))
    }

    pub(crate) fn payload(&mut self, len: usize) -> Result<IoBuf, WireError> {
        if len == 0 {
            return Ok(IoBuf::EMPTY);
        }
        limited("a payload", len, PART_MAX as usize)?;
        if !len.is_multiple_of(SECTOR as usize) {
            return Err(WireError::Trailing(len % SECTOR as usize));
        }
        if len > self.payload.len() - self.payload_at {
            return Err(WireError::Truncated("payload block"));
        }
        self.payload_at += len;
        Ok(self.payload.slice(self.payload_at - len..self.payload_at))
    }
}

pub(crate) fn limited(what: &'static str, value: usize, max: usize) -> Result<usize, WireError> {
    match value <= max {
        true => Ok(value),
        false => Err(WireError::Limit { what, value: value as u64, max: max as u64 }),
    }
}

fn flag(what: &'static str, value: u8) -> Result<bool, WireError> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(WireError::Value { what, value: other.into() }),
    }
}

pub(crate) fn zero(what: &'static str, clear: bool) -> Result<(), WireError> {
    if clear { Ok(()) } else { Err(WireError::Reserved(what)) }
}

pub(crate) fn pg_id(r: PgRecord) -> PgId {
    PgId { pool: PoolId(r.pool.get()), n: r.n.get() }
}

/// Counts the fragments of a payload that begins at sector `start` of its chunk. An empty payload has none
/// and begins at zero. `None`: no entry has a payload of this start and length.
pub(crate) fn fragments_of(start: u32, payload_len: usize) -> Option<usize> {
    if payload_len == 0 {
        return (start == 0).then_some(0);
    }
    let sectors = u32::try_from(payload_len / SECTOR as usize).ok()?;
    let count = SectorRange::checked(start, sectors)?.fragment_count();
    (payload_len.is_multiple_of(SECTOR as usize) && count <= FRAGMENTS_MAX).then_some(count)
}

/// Whether this number of CRCs can belong to a payload of this length whose start in its chunk is unknown.
pub(crate) fn crcs_fit(crcs: usize, payload_len: usize) -> bool {
    let sectors = payload_len / SECTOR as usize;
    let least = sectors.div_ceil(SECTORS_PER_BLOCK as usize);
    // A payload that begins at the last sector of a block has one fragment more, if it has at least two sectors.
    let most = if sectors < 2 { sectors } else { (sectors - 2) / SECTORS_PER_BLOCK as usize + 2 };
    (least..=most).contains(&crcs)
}

fn read_message(kind: u8, input: &mut Input<'_>) -> Result<Message, WireError> {
    match kind {
        kind::WRITE | kind::ZERO | kind::SKIP | kind::READ | kind::EXTENTS | kind::FENCE_CHECK | kind::UNREACHED => {
            read_request(kind, input).map(Message::Request)
        }
        kind::REPLY_DONE | kind::REPLY_DATA | kind::REPLY_EXTENTS | kind::REPLY_REJECT => {
            read_reply(kind, input).map(Message::Reply)
        }
        kind::RAFT => read_raft(input).map(Message::Raft),
        kind::LEASE_RENEWAL => read_lease_renewal(input).map(Message::LeaseRenewal),
        kind::LEASE_ACK => {
            let r: LeaseAckRecord = input.take("lease ack")?;
            let device_full = flag("a device's state", r.device_full)?;
            let (sent_at, granted_aus) = (r.sent_at.get(), r.granted_aus.get());
            let renewed = input.list("lease ack", r.count.get() as usize, |r: RenewedRecord| {
                zero("lease ack", r.reserved == [0; 3])?;
                let room_kib = r.room_kib.get();
                let contents = match r.contents {
                    0 | 2 => Contents::Filling { room_kib, is_short: r.contents == 2 },
                    1 if room_kib == 0 => Contents::Whole,
                    other => return Err(WireError::Value { what: "a replica's contents", value: other.into() }),
                };
                Ok((pg_id(r.pg), Term(r.term.get()), contents))
            })?;
            let (log_share_mib, pace) = (r.log_share_mib, r.pace.get());
            Ok(Message::LeaseAck(LeaseAck { sent_at, granted_aus, device_full, log_share_mib, pace, renewed }))
        }
        kind::LEASE_RELEASE => {
            let r: LeaseReleaseRecord = input.take("lease release")?;
            zero("lease release", r.reserved.get() == 0)?;
            input.list("lease release", r.count.get() as usize, |pg| Ok(pg_id(pg))).map(Message::LeaseRelease)
        }
        kind::PASSED_ON => input.take("a passed on message").map(|r: PassedOnRecord| Message::PassedOn(passed_on(&r))),
        kind::USED => {
            let r: UsedRecord = input.take("used")?;
            zero("used", r.reserved.get() == 0)?;
            let count = r.count.get() as usize;
            if count > USED_MAX {
                return Err(WireError::Value { what: "a number of volumes", value: count as u64 });
            }
            input.list("used", count, |used| Ok(used_from(&used))).map(Message::Used)
        }
        kind::PING => {
            let r: PingRecord = input.take("ping")?;
            zero("ping", r.reserved == [0; 7])?;
            flag("a ping's direction", r.answer).map(|answer| Message::Ping { answer })
        }
        kind::STREAM => crate::stream::read(input).map(Message::Stream),
        kind::REPAIR => crate::repair::read(input).map(Message::Repair),
        kind::MEND => crate::mend::read(input).map(Message::Mend),
        other => Err(WireError::RecordKind(other)),
    }
}

fn used_from(r: &UsedVolumeRecord) -> Used {
    Used {
        volume: VolumeId(r.volume.get()),
        read_bytes: r.read_bytes.get(),
        write_bytes: r.write_bytes.get(),
        read_ops: r.read_ops.get(),
        write_ops: r.write_ops.get(),
    }
}

fn passed_on(r: &PassedOnRecord) -> PassedOn {
    PassedOn {
        pg: pg_id(r.pg),
        from: ReplicaId(r.from.get()),
        to: ReplicaId(r.to.get()),
        term: Term(r.term.get()),
        volume: VolumeId(r.volume.get()),
        session: SessionId(r.session.get()),
        epoch: Epoch(r.epoch.get()),
    }
}

fn read_lease_renewal(input: &mut Input<'_>) -> Result<LeaseRenewal, WireError> {
    let r: LeaseRenewalRecord = input.take("lease renewal")?;
    zero("lease renewal", r.reserved == [0; 3])?;
    let full = flag("a lease renewal's kind", r.full)?;
    let items = input.list("lease renewal", r.count.get() as usize, |item: RenewalItemRecord| {
        Ok(RenewalItem {
            pg: pg_id(item.pg),
            from: ReplicaId(item.from.get()),
            to: ReplicaId(item.to.get()),
            term: Term(item.term.get()),
            commit: Index(item.commit.get()),
            complete: Index(item.complete.get()),
        })
    })?;
    Ok(LeaseRenewal { sent_at: r.sent_at.get(), full, spent_aus: r.spent_aus.get(), items })
}

fn read_request(kind: u8, input: &mut Input<'_>) -> Result<Request, WireError> {
    let r: RequestRecord = input.take("request")?;
    zero("request", r.reserved.get() == 0)?;
    let (seq, watermark) = (r.seq.get(), r.watermark.get());
    let chunk = VolumeChunk { volume: VolumeId(r.volume.get()), index: r.chunk.get() };
    let bad_range = WireError::Range { start: r.start.get(), count: r.count.get() };
    let range = SectorRange::checked(r.start.get(), r.count.get()).ok_or(bad_range);
    let body = match kind {
        kind::WRITE => {
            let range = range?;
            let fragments = range.fragment_count();
            if fragments > FRAGMENTS_MAX || range.len_bytes() as u64 > PART_MAX {
                return Err(bad_range);
            }
            let crcs = input.crcs(fragments)?;
            let payload = input.payload(range.len_bytes())?;
            RequestBody::Write { chunk, range, seq, watermark, crcs, payload }
        }
        kind::ZERO => RequestBody::Zero { chunk, range: range?, seq, watermark },
        kind::SKIP => {
            zero("skip", (r.chunk.get(), r.start.get(), r.count.get()) == (0, 0, 0))?;
            RequestBody::Skip { volume: chunk.volume, seq, watermark }
        }
        kind::FENCE_CHECK => {
            let nothing = (r.chunk.get(), r.start.get(), r.count.get(), seq, watermark);
            zero("fence check", nothing == (0, 0, 0, 0, 0))?;
            RequestBody::FenceCheck { volume: chunk.volume }
        }
        kind::UNREACHED => {
            zero("an unreached leader", (r.start.get(), r.count.get(), seq, watermark) == (0, 0, 0, 0))?;
            RequestBody::Unreached { volume: chunk.volume, leader: OsdId(chunk.index) }
        }
        kind::READ | kind::EXTENTS => {
            zero("read", watermark == 0 || kind == kind::EXTENTS)?;
            let range = range?;
            // The field of the sequence number names a snapshot, that of the watermark the older one; 0: none.
            let named = |id: u64| (id != 0).then_some(SnapshotId(id));
            let (snapshot, since) = (named(seq), named(watermark));
            if kind == kind::EXTENTS {
                RequestBody::Extents { chunk, range, snapshot, since }
            } else if range.len_bytes() as u64 > PART_MAX {
                return Err(bad_range);
            } else {
                RequestBody::Read { chunk, range, snapshot }
            }
        }
        other => return Err(WireError::RecordKind(other)),
    };
    Ok(Request {
        id: r.id.get(),
        pg: pg_id(r.pg),
        session: SessionId(r.session.get()),
        epoch: Epoch(r.epoch.get()),
        body,
    })
}

fn read_reply(kind: u8, input: &mut Input<'_>) -> Result<Reply, WireError> {
    let r: ReplyRecord = input.take("reply")?;
    zero("reply", r.reserved == [0; 10])?;
    let (count, payload_len) = (r.count.get() as usize, r.payload_len.get() as usize);
    zero("reply", kind == kind::REPLY_REJECT || (r.status, r.errno, r.value.get()) == (0, 0, 0))?;
    zero("reply", kind == kind::REPLY_DATA || payload_len == 0)?;
    zero("reply", matches!(kind, kind::REPLY_DATA | kind::REPLY_EXTENTS) || count == 0)?;
    let result = match kind {
        kind::REPLY_DONE => Ok(ReplyBody::Done),
        kind::REPLY_DATA => {
            if !crcs_fit(count, payload_len) {
                return Err(WireError::Crcs { crcs: count, payload_len });
            }
            let crcs = input.crcs(count)?;
            Ok(ReplyBody::Data { crcs, payload: input.payload(payload_len)? })
        }
        kind::REPLY_EXTENTS => Ok(ReplyBody::Extents(input.list("extent list", count, |e: ExtentRecord| {
            zero("extent", e.reserved == [0; 3])?;
            Ok(Extent { sectors: e.sectors.get(), data: flag("an extent's kind", e.data)? })
        })?)),
        _ => Err(read_reject(&r)?),
    };
    Ok(Reply { id: r.id.get(), result })
}

fn read_reject(r: &ReplyRecord) -> Result<Reject, WireError> {
    let has_value = matches!(r.status, status::NOT_LEADER | status::THROTTLED);
    zero("reject", has_value || r.value.get() == 0)?;
    zero("reject", r.status == status::FAILED || r.errno == 0)?;
    Ok(match r.status {
        status::NOT_LEADER => Reject::NotLeader { hint: Some(OsdId(r.value.get())).filter(|osd| osd.0 != 0) },
        status::NOT_READY => Reject::NotReady,
        status::BUSY => Reject::Busy,
        status::THROTTLED => Reject::Throttled { wait_us: r.value.get() },
        status::NO_SUCH_PG => Reject::NoSuchPg,
        status::FAILED => {
            let errno = Errno::from_u8(r.errno);
            Reject::Failed(errno.ok_or(WireError::Value { what: "an errno", value: r.errno.into() })?)
        }
        other => return Err(WireError::Value { what: "a reject", value: other.into() }),
    })
}

fn raft_kind(value: u8) -> Result<RaftKind, WireError> {
    use RaftKind::*;
    let kinds = [
        Append,
        AppendResponse,
        Vote,
        VoteResponse,
        PreVote,
        PreVoteResponse,
        Heartbeat,
        HeartbeatResponse,
        TimeoutNow,
    ];
    let found = kinds.into_iter().find(|k| *k as u8 == value);
    found.ok_or(WireError::Value { what: "a raft message's kind", value: value.into() })
}

fn read_raft(input: &mut Input<'_>) -> Result<RaftMsg, WireError> {
    let r: RaftRecord = input.take("raft")?;
    zero("raft message", r.reserved == 0 && r.flags & !raft_flag::REJECT == 0)?;
    let kind = raft_kind(r.kind)?;
    let context_len = limited("a raft context", r.context_len.into(), CONTEXT_MAX)?;
    let context = input.kept("raft", context_len)?;
    let entry_count = r.entry_count.get() as usize;
    if entry_count > (input.end - input.at) / size_of::<EntryRecord>() {
        return Err(WireError::Truncated("raft"));
    }
    let mut entries = Vec::with_capacity(entry_count);
    for _ in 0..entry_count {
        entries.push(read_entry(input)?);
    }
    Ok(RaftMsg {
        pg: pg_id(r.pg),
        from: ReplicaId(r.from.get()),
        to: ReplicaId(r.to.get()),
        term: Term(r.term.get()),
        kind,
        log_term: Term(r.log_term.get()),
        index: Index(r.index.get()),
        commit: Index(r.commit.get()),
        commit_term: Term(r.commit_term.get()),
        reject: r.flags & raft_flag::REJECT != 0,
        reject_hint: Index(r.reject_hint.get()),
        context,
        entries,
    })
}

fn read_entry(input: &mut Input<'_>) -> Result<Entry, WireError> {
    let r: EntryRecord = input.take("entry")?;
    zero("entry", r.reserved == [0; 5])?;
    let kind = match r.kind {
        0 => EntryKind::Normal,
        1 => EntryKind::ConfChange,
        2 => EntryKind::ConfChangeV2,
        other => return Err(WireError::Value { what: "an entry's kind", value: other.into() }),
    };
    let start = r.start.get();
    let payload_len = r.payload_len.get() as usize;
    let fragments = fragments_of(start, payload_len)
        .ok_or(WireError::Range { start, count: r.payload_len.get() / SECTOR as u32 })?;
    let descriptor_len = limited("a descriptor", r.descriptor_len.get().into(), DESCRIPTOR_MAX)?;
    let descriptor = input.kept("entry", descriptor_len)?;
    let crcs = Crcs { start, values: input.crcs(fragments)? };
    let payload = input.payload(payload_len)?;
    Ok(Entry { term: Term(r.term.get()), index: Index(r.index.get()), kind, descriptor, payload, crcs })
}
