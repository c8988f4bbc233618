//! Encoding of frames. Input: the messages of one frame, from `bus`. Output: a list of buffers for one gathering
//! send: header and head block in the first, every payload unchanged after it.
//!
//! Invariant: payload bytes are never copied. A message that breaks a limit here is a bug of this process (the
//! crate that made it broke its contract), so encoding panics. `decode` makes the same checks and returns errors,
//! because there the bytes are a peer's.

use crate::frame::{FrameKind, HEADER_LEN, Header, VERSION_GREETING};
use crate::message::{
    CONTEXT_MAX, Contents, Hello, LeaseAck, MendBody, MendMsg, Message, Peer, REASON_MAX, RaftMsg, Refuse, Reject,
    RepairBody, RepairMsg, Reply, ReplyBody, Request, RequestBody, StreamBody, StreamMsg, USED_MAX, Used,
};
use crate::record::*;
use types::limits::{DESCRIPTOR_MAX, FRAGMENTS_MAX, PART_MAX};
use types::units::SECTOR;
use types::{Entry, IoBuf, IoBufMut, PgId, SectorRange, VolumeChunk};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes};

const RECORD: usize = size_of::<RecordHeader>();
const CRC: usize = size_of::<u32>();

impl Message {
    /// Returns the bytes that the message takes in a head block.
    pub fn head_len(&self) -> usize {
        RECORD
            + match self {
                Message::Request(r) => size_of::<RequestRecord>() + request_tail(r),
                Message::Reply(r) => size_of::<ReplyRecord>() + reply_tail(r),
                Message::Raft(m) => size_of::<RaftRecord>() + raft_tail(m),
                Message::LeaseRenewal(l) => {
                    size_of::<LeaseRenewalRecord>() + l.items.len() * size_of::<RenewalItemRecord>()
                }
                Message::LeaseAck(e) => size_of::<LeaseAckRecord>() + e.renewed.len() * size_of::<RenewedRecord>(),
                Message::LeaseRelease(pgs) => size_of::<LeaseReleaseRecord>() + pgs.len() * size_of::<PgRecord>(),
                Message::PassedOn(_) => size_of::<PassedOnRecord>(),
                Message::Used(used) => size_of::<UsedRecord>() + used.len() * size_of::<UsedVolumeRecord>(),
                Message::Ping { .. } => size_of::<PingRecord>(),
                Message::Stream(m) => crate::stream::head_len(&m.body),
                Message::Repair(m) => crate::repair::head_len(&m.body),
                Message::Mend(m) => crate::mend::head_len(&m.body),
            }
    }

    /// Returns the bytes that the message takes in a payload block.
    pub fn payload_len(&self) -> usize {
        match self {
            Message::Request(Request { body: RequestBody::Write { payload, .. }, .. }) => payload.len(),
            Message::Reply(Reply { result: Ok(ReplyBody::Data { payload, .. }), .. }) => payload.len(),
            Message::Raft(m) => m.entries.iter().map(|e| e.payload.len()).sum(),
            Message::Stream(StreamMsg { body: StreamBody::Blocks { payload, .. }, .. }) => payload.len(),
            Message::Repair(RepairMsg { body: RepairBody::Payload { payload, .. }, .. }) => payload.len(),
            Message::Mend(MendMsg { body: MendBody::Blocks { payload, .. }, .. }) => payload.len(),
            Message::Mend(MendMsg { body: MendBody::Ask { older, .. }, .. }) => older.len(),
            _ => 0,
        }
    }
}

fn request_tail(request: &Request) -> usize {
    match &request.body {
        RequestBody::Write { crcs, .. } => crcs.len() * CRC,
        _ => 0,
    }
}

fn reply_tail(reply: &Reply) -> usize {
    match &reply.result {
        Ok(ReplyBody::Data { crcs, .. }) => crcs.len() * CRC,
        Ok(ReplyBody::Extents(extents)) => extents.len() * size_of::<ExtentRecord>(),
        Ok(ReplyBody::Done) | Err(_) => 0,
    }
}

fn raft_tail(msg: &RaftMsg) -> usize {
    let entry = |e: &Entry| size_of::<EntryRecord>() + e.descriptor.len() + e.crcs.values.len() * CRC;
    msg.context.len() + msg.entries.iter().map(entry).sum::<usize>()
}

/// Appends the buffers of one frame that carries `messages`, in order, to `bufs`.
///
/// # Panics
/// When there is no message, or the messages together or one of them break a limit of a frame.
pub fn encode_batch(version: u16, messages: &[Message], bufs: &mut Vec<IoBuf>) {
    let head_len: usize = messages.iter().map(Message::head_len).sum();
    let payload_len: usize = messages.iter().map(Message::payload_len).sum();
    let mut frame = IoBufMut::new(HEADER_LEN + head_len);
    let first = bufs.len();
    bufs.push(IoBuf::EMPTY); // the place of header and head
    let mut out = Out { to: &mut frame[HEADER_LEN..], at: 0 };
    for message in messages {
        put_message(&mut out, message, bufs);
    }
    assert_eq!(out.at, head_len, "a message's records differ from their announced length");
    let header = Header::new(FrameKind::Batch, version, messages.len(), payload_len, &frame[HEADER_LEN..]);
    frame[..HEADER_LEN].copy_from_slice(&header.to_bytes());
    bufs[first] = frame.freeze();
}

/// Returns the bytes of a hello frame.
pub fn encode_hello(hello: &Hello) -> IoBuf {
    let (role, peer) = match hello.peer {
        Peer::Osd(osd) => (role::OSD, u64::from(osd.0)),
        Peer::Client(incarnation) => (role::CLIENT, incarnation.0),
    };
    let record = HelloRecord {
        version_min: U16::new(hello.version_min),
        version_max: U16::new(hello.version_max),
        role,
        has_expects: u8::from(hello.expects.is_some()),
        cluster: hello.cluster.0,
        peer: U64::new(peer),
        incarnation: U64::new(hello.incarnation.0),
        expects: U32::new(hello.expects.map_or(0, |osd| osd.0)),
        credit_ops: U32::new(hello.credit_ops),
        credit_bytes: U64::new(hello.credit_bytes),
        features: U64::new(hello.features),
        ..HelloRecord::default()
    };
    greeting(FrameKind::Hello, record.as_bytes(), &[])
}

/// Returns the bytes of a refuse frame. A reason longer than `REASON_MAX` is cut.
pub fn encode_refuse(refuse: &Refuse) -> IoBuf {
    let reason = &refuse.reason[..refuse.reason.floor_char_boundary(REASON_MAX)];
    let record = RefuseRecord { code: U32::new(refuse.code), reason_len: U32::new(reason.len() as u32) };
    greeting(FrameKind::Refuse, record.as_bytes(), reason.as_bytes())
}

fn greeting(kind: FrameKind, record: &[u8], tail: &[u8]) -> IoBuf {
    let mut frame = IoBufMut::new(HEADER_LEN + record.len() + tail.len());
    let (header, head) = frame.split_at_mut(HEADER_LEN);
    head[..record.len()].copy_from_slice(record);
    head[record.len()..].copy_from_slice(tail);
    header.copy_from_slice(&Header::new(kind, VERSION_GREETING, 1, 0, head).to_bytes());
    frame.freeze()
}

/// Position of the next record in the head block.
pub(crate) struct Out<'a> {
    to: &'a mut [u8],
    at: usize,
}

impl Out<'_> {
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.to[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    pub(crate) fn record(&mut self, record: &(impl IntoBytes + Immutable)) {
        self.put(record.as_bytes());
    }

    pub(crate) fn header(&mut self, kind: u8, len: usize) {
        let len_bytes = U32::new(u32::try_from(len).expect("a record is smaller than a frame"));
        self.record(&RecordHeader { kind, len_bytes, ..RecordHeader::default() });
    }

    pub(crate) fn crcs(&mut self, crcs: &[u32]) {
        for crc in crcs {
            self.put(&crc.to_le_bytes());
        }
    }
}

/// Appends a payload to the payload block.
pub(crate) fn put_payload(payload: &IoBuf, bufs: &mut Vec<IoBuf>) {
    assert!(payload.len() as u64 <= PART_MAX, "a payload of {} B", payload.len());
    assert!(payload.len().is_multiple_of(SECTOR as usize), "a payload of {} B", payload.len());
    let joined = bufs.last_mut().is_some_and(|last| last.join(payload));
    if !payload.is_empty() && !joined {
        bufs.push(payload.clone());
    }
}

pub(crate) fn pg_record(pg: PgId) -> PgRecord {
    PgRecord { pool: U32::new(pg.pool.0), n: U32::new(pg.n) }
}

pub(crate) fn count(len: usize) -> U32 {
    U32::new(u32::try_from(len).expect("a list is shorter than a frame"))
}

fn put_message(out: &mut Out<'_>, message: &Message, bufs: &mut Vec<IoBuf>) {
    let len = message.head_len() - RECORD;
    match message {
        Message::Request(request) => put_request(out, len, request, bufs),
        Message::Reply(reply) => put_reply(out, len, reply, bufs),
        Message::Raft(msg) => put_raft(out, len, msg, bufs),
        Message::LeaseRenewal(renewal) => {
            out.header(kind::LEASE_RENEWAL, len);
            out.record(&LeaseRenewalRecord {
                sent_at: U64::new(renewal.sent_at),
                spent_aus: U64::new(renewal.spent_aus),
                count: count(renewal.items.len()),
                full: u8::from(renewal.full),
                ..LeaseRenewalRecord::default()
            });
            for item in &renewal.items {
                out.record(&RenewalItemRecord {
                    pg: pg_record(item.pg),
                    from: U64::new(item.from.0),
                    to: U64::new(item.to.0),
                    term: U64::new(item.term.0),
                    commit: U64::new(item.commit.0),
                    complete: U64::new(item.complete.0),
                });
            }
        }
        Message::LeaseAck(ack) => put_lease_ack(out, len, ack),
        Message::LeaseRelease(pgs) => {
            out.header(kind::LEASE_RELEASE, len);
            out.record(&LeaseReleaseRecord { count: count(pgs.len()), ..LeaseReleaseRecord::default() });
            for pg in pgs {
                out.record(&pg_record(*pg));
            }
        }
        Message::PassedOn(msg) => {
            out.header(kind::PASSED_ON, len);
            out.record(&PassedOnRecord {
                pg: pg_record(msg.pg),
                from: U64::new(msg.from.0),
                to: U64::new(msg.to.0),
                term: U64::new(msg.term.0),
                volume: U64::new(msg.volume.0),
                session: U64::new(msg.session.0),
                epoch: U64::new(msg.epoch.0),
            });
        }
        Message::Used(used) => put_used(out, len, used),
        Message::Ping { answer } => {
            out.header(kind::PING, len);
            out.record(&PingRecord { answer: u8::from(*answer), ..PingRecord::default() });
        }
        Message::Stream(msg) => crate::stream::put(out, len, msg, bufs),
        Message::Repair(msg) => crate::repair::put(out, len, msg, bufs),
        Message::Mend(msg) => crate::mend::put(out, len, msg, bufs),
    }
}

fn put_used(out: &mut Out<'_>, len: usize, used: &[Used]) {
    assert!(used.len() <= USED_MAX, "{} volumes in one message", used.len());
    out.header(kind::USED, len);
    out.record(&UsedRecord { count: count(used.len()), ..UsedRecord::default() });
    for used in used {
        out.record(&UsedVolumeRecord {
            volume: U64::new(used.volume.0),
            read_bytes: U64::new(used.read_bytes),
            write_bytes: U64::new(used.write_bytes),
            read_ops: U32::new(used.read_ops),
            write_ops: U32::new(used.write_ops),
        });
    }
}

fn put_lease_ack(out: &mut Out<'_>, len: usize, ack: &LeaseAck) {
    out.header(kind::LEASE_ACK, len);
    out.record(&LeaseAckRecord {
        sent_at: U64::new(ack.sent_at),
        granted_aus: U64::new(ack.granted_aus),
        count: count(ack.renewed.len()),
        device_full: u8::from(ack.device_full),
        log_share_mib: ack.log_share_mib,
        pace: U16::new(ack.pace),
    });
    for (pg, term, contents) in &ack.renewed {
        let (contents, room_kib) = match *contents {
            Contents::Filling { room_kib, is_short } => (if is_short { 2 } else { 0 }, room_kib),
            Contents::Whole => (1, 0),
        };
        let (pg, term, room_kib) = (pg_record(*pg), U64::new(term.0), U32::new(room_kib));
        out.record(&RenewedRecord { pg, term, contents, reserved: [0; 3], room_kib });
    }
}

fn put_request(out: &mut Out<'_>, len: usize, request: &Request, bufs: &mut Vec<IoBuf>) {
    let mut record = RequestRecord {
        id: U64::new(request.id),
        pg: pg_record(request.pg),
        session: U64::new(request.session.0),
        epoch: U64::new(request.epoch.0),
        ..RequestRecord::default()
    };
    let place = |record: &mut RequestRecord, chunk: VolumeChunk, range: SectorRange| {
        record.volume = U64::new(chunk.volume.0);
        record.chunk = U32::new(chunk.index);
        record.start = U32::new(range.start);
        record.count = U32::new(range.count);
    };
    let stamp = |record: &mut RequestRecord, seq: u64, watermark: u64| {
        record.seq = U64::new(seq);
        record.watermark = U64::new(watermark);
    };
    let (kind, crcs): (u8, &[u32]) = match &request.body {
        RequestBody::Write { chunk, range, seq, watermark, crcs, payload } => {
            assert_eq!(payload.len(), range.len_bytes(), "the payload of a write of {range}");
            assert_eq!(crcs.len(), range.fragment_count(), "the checksums of a write of {range}");
            assert!(crcs.len() <= FRAGMENTS_MAX, "a write of {range} crosses a part's border");
            place(&mut record, *chunk, *range);
            stamp(&mut record, *seq, *watermark);
            put_payload(payload, bufs);
            (kind::WRITE, crcs)
        }
        RequestBody::Zero { chunk, range, seq, watermark } => {
            place(&mut record, *chunk, *range);
            stamp(&mut record, *seq, *watermark);
            (kind::ZERO, &[])
        }
        RequestBody::Skip { volume, seq, watermark } => {
            record.volume = U64::new(volume.0);
            stamp(&mut record, *seq, *watermark);
            (kind::SKIP, &[])
        }
        RequestBody::Read { chunk, range, snapshot } => {
            assert!(range.len_bytes() as u64 <= PART_MAX, "a read of {range}");
            place(&mut record, *chunk, *range);
            stamp(&mut record, snapshot.map_or(0, |id| id.0), 0);
            (kind::READ, &[])
        }
        RequestBody::Extents { chunk, range, snapshot, since } => {
            place(&mut record, *chunk, *range);
            stamp(&mut record, snapshot.map_or(0, |id| id.0), since.map_or(0, |id| id.0));
            (kind::EXTENTS, &[])
        }
        RequestBody::FenceCheck { volume } => {
            record.volume = U64::new(volume.0);
            (kind::FENCE_CHECK, &[])
        }
        RequestBody::Unreached { volume, leader } => {
            record.volume = U64::new(volume.0);
            record.chunk = U32::new(leader.0);
            (kind::UNREACHED, &[])
        }
    };
    out.header(kind, len);
    out.record(&record);
    out.crcs(crcs);
}

fn put_reply(out: &mut Out<'_>, len: usize, reply: &Reply, bufs: &mut Vec<IoBuf>) {
    let mut record = ReplyRecord { id: U64::new(reply.id), ..ReplyRecord::default() };
    match &reply.result {
        Ok(ReplyBody::Done) => {
            out.header(kind::REPLY_DONE, len);
            out.record(&record);
        }
        Ok(ReplyBody::Data { crcs, payload }) => {
            assert!(crate::decode::crcs_fit(crcs.len(), payload.len()), "the checksums of a read");
            record.payload_len = count(payload.len());
            record.count = count(crcs.len());
            out.header(kind::REPLY_DATA, len);
            out.record(&record);
            out.crcs(crcs);
            put_payload(payload, bufs);
        }
        Ok(ReplyBody::Extents(extents)) => {
            record.count = count(extents.len());
            out.header(kind::REPLY_EXTENTS, len);
            out.record(&record);
            for extent in extents {
                out.record(&ExtentRecord {
                    sectors: U32::new(extent.sectors),
                    data: u8::from(extent.data),
                    ..ExtentRecord::default()
                });
            }
        }
        Err(reject) => {
            put_reject(&mut record, *reject);
            out.header(kind::REPLY_REJECT, len);
            out.record(&record);
        }
    }
}

fn put_reject(record: &mut ReplyRecord, reject: Reject) {
    record.status = match reject {
        Reject::NotLeader { hint } => {
            assert!(hint.is_none_or(|osd| osd.0 != 0), "OSD ids begin at 1");
            record.value = U32::new(hint.map_or(0, |osd| osd.0));
            status::NOT_LEADER
        }
        Reject::NotReady => status::NOT_READY,
        Reject::Busy => status::BUSY,
        Reject::Throttled { wait_us } => {
            record.value = U32::new(wait_us);
            status::THROTTLED
        }
        Reject::NoSuchPg => status::NO_SUCH_PG,
        Reject::Failed(errno) => {
            record.errno = errno as u8;
            status::FAILED
        }
    };
}

fn put_raft(out: &mut Out<'_>, len: usize, msg: &RaftMsg, bufs: &mut Vec<IoBuf>) {
    assert!(msg.context.len() <= CONTEXT_MAX, "a raft context of {} B", msg.context.len());
    out.header(kind::RAFT, len);
    out.record(&RaftRecord {
        pg: pg_record(msg.pg),
        from: U64::new(msg.from.0),
        to: U64::new(msg.to.0),
        term: U64::new(msg.term.0),
        log_term: U64::new(msg.log_term.0),
        index: U64::new(msg.index.0),
        commit: U64::new(msg.commit.0),
        commit_term: U64::new(msg.commit_term.0),
        reject_hint: U64::new(msg.reject_hint.0),
        kind: msg.kind as u8,
        flags: if msg.reject { raft_flag::REJECT } else { 0 },
        context_len: msg.context.len() as u8,
        reserved: 0,
        entry_count: count(msg.entries.len()),
    });
    out.put(&msg.context);
    for entry in &msg.entries {
        put_entry(out, entry, bufs);
    }
}

fn put_entry(out: &mut Out<'_>, entry: &Entry, bufs: &mut Vec<IoBuf>) {
    assert!(entry.descriptor.len() <= DESCRIPTOR_MAX, "a descriptor of {} B", entry.descriptor.len());
    assert!(
        crate::decode::fragments_of(entry.crcs.start, entry.payload.len()) == Some(entry.crcs.values.len()),
        "entry {} has {} B of payload and {} checksums from sector {}",
        entry.index,
        entry.payload.len(),
        entry.crcs.values.len(),
        entry.crcs.start
    );
    out.record(&EntryRecord {
        term: U64::new(entry.term.0),
        index: U64::new(entry.index.0),
        payload_len: count(entry.payload.len()),
        start: U32::new(entry.crcs.start),
        descriptor_len: U16::new(entry.descriptor.len() as u16),
        kind: entry.kind as u8,
        ..EntryRecord::default()
    });
    out.put(&entry.descriptor);
    out.crcs(&entry.crcs.values);
    put_payload(&entry.payload, bufs);
}
