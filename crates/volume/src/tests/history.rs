//! Results that a read may return. Each sector that is written holds the token of its write and its own
//! number, so a read names the write that it saw.

use device::{Answer, Request};
use types::{Errno, IoBuf, IoBufMut, Time};

#[derive(Debug)]
struct Op {
    token: u64,
    start: u64,
    end: u64,
    kind: Kind,
    began: Time,
    ended: Time,
    ok: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    Zero,
    Read,
    Extents,
    Flush,
}

#[derive(Debug, Default)]
pub(super) struct History {
    ops: Vec<Op>,
}

/// Returns the contents of sector `sector` after the write `token`.
fn stamp(token: u64, sector: u64) -> u64 {
    ((token + 1) << 24) | sector
}

impl History {
    pub fn payload(&self, token: u64, offset: u64, len: u64) -> IoBuf {
        let mut buf = IoBufMut::new(len as usize);
        for (n, sector) in buf.chunks_exact_mut(512).enumerate() {
            let stamp = stamp(token, offset / 512 + n as u64).to_le_bytes();
            sector.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&stamp));
        }
        buf.freeze()
    }

    pub fn begin(&mut self, now: Time, token: u64, request: &Request) {
        let kind = match request {
            Request::Write { .. } => Kind::Data,
            Request::Trim { .. } | Request::WriteZeroes { .. } => Kind::Zero,
            Request::Read { .. } => Kind::Read,
            Request::Extents { .. } => Kind::Extents,
            Request::Flush => Kind::Flush,
        };
        let (offset, len) = request.span().unwrap_or((0, 0));
        let (start, end) = (offset / 512, (offset + len) / 512);
        self.ops.push(Op { token, start, end, kind, began: now, ended: Time::NEVER, ok: false });
    }

    pub fn end(&mut self, now: Time, token: u64, result: &Result<Answer, Errno>) {
        let at = self.ops.iter().position(|op| op.token == token).expect("it has begun");
        assert_eq!(self.ops[at].ended, Time::NEVER, "request {token} ended twice");
        self.ops[at].ended = now;
        self.ops[at].ok = result.is_ok();
        let op = &self.ops[at];
        match (op.kind, result) {
            (_, Err(_)) => {}
            (Kind::Read, Ok(Answer::Data(pieces))) => self.check_read(op, pieces),
            (Kind::Extents, Ok(Answer::Extents(extents))) => self.check_extents(op, extents),
            (Kind::Flush | Kind::Data | Kind::Zero, Ok(Answer::Done)) => {}
            (kind, answer) => panic!("{kind:?} was answered with {answer:?}"),
        }
    }

    fn check_read(&self, read: &Op, pieces: &[IoBuf]) {
        let mut at = read.start;
        let mut run: Option<(u64, u64)> = None;
        for sector in pieces.iter().flat_map(|piece| piece.chunks_exact(512)) {
            let word = u64::from_le_bytes(sector[..8].try_into().expect("8 bytes"));
            assert!(sector.chunks_exact(8).all(|w| w == word.to_le_bytes()), "sector {at} is a mixture");
            assert!(word == 0 || word & 0xff_ffff == at, "sector {at} holds {word:#x}");
            let token = (word >> 24).wrapping_sub(1);
            match &mut run {
                Some((current, _)) if *current == token => {}
                _ => {
                    if let Some((token, from)) = run {
                        self.check_run(read, token, from, at);
                    }
                    run = Some((token, at));
                }
            }
            at += 1;
        }
        assert_eq!(at, read.end, "the length of read {}", read.token);
        let (token, from) = run.expect("a read is not empty");
        self.check_run(read, token, from, at);
    }

    /// Checks that the read may see `from..to` as `token` left it (`u64::MAX`: zeros).
    fn check_run(&self, read: &Op, token: u64, from: u64, to: u64) {
        let zeros = token == u64::MAX;
        if !zeros {
            let write = self.ops.iter().find(|op| op.token == token).expect("a write has this token");
            assert!(write.kind == Kind::Data && write.start <= from && to <= write.end);
        }
        let seen_began = |op: &&Op| if zeros { op.kind == Kind::Zero } else { op.token == token };
        for later in &self.ops {
            let change = matches!(later.kind, Kind::Data | Kind::Zero) && later.ok && later.ended < read.began;
            let (start, end) = (later.start.max(from), later.end.min(to));
            if !change || start >= end || seen_began(&later) {
                continue;
            }
            // The seen write must not be certainly older than `later`, sector by sector.
            let mut open = vec![(start, end)];
            for seen in self.ops.iter().filter(seen_began).filter(|op| op.ended >= later.began) {
                open = open.into_iter().flat_map(|(s, e)| [(s, e.min(seen.start)), (s.max(seen.end), e)]).collect();
                open.retain(|(s, e)| s < e);
            }
            assert!(open.is_empty(), "read {} saw {token} at {open:?} after {later:?}", read.token);
        }
    }

    /// Checks that there is data where a write has ended and no zeroing has begun.
    fn check_extents(&self, read: &Op, extents: &[(u64, bool)]) {
        let mut at = read.start;
        for (len, data) in extents {
            let end = at + len / 512;
            for op in self.ops.iter().filter(|op| op.kind == Kind::Data && op.ok && op.ended < read.began && !data) {
                let zeroed = |z: &Op| z.kind == Kind::Zero && z.ended >= op.began && z.start < end && at < z.end;
                let hidden = op.end <= at || end <= op.start || self.ops.iter().any(zeroed);
                assert!(hidden, "extents {} call {at}..{end} a hole after {op:?}", read.token);
            }
            at = end;
        }
        assert_eq!(at, read.end);
    }
}
