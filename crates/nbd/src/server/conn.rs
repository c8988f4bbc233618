//! One connection: received bytes, replies to send, and limits.
//!
//! Headers and small payloads arrive together in one *staging* buffer, so that a deep queue costs one
//! receive for many requests. The payload of a write lies in an aligned buffer of its own. The part that
//! is in staging already is copied once. The rest is received straight into that buffer, with staging
//! after it for the following bytes.
//!
//! Invariant: a request is charged when its header is taken and released when its reply was sent. Over the
//! limits the header stays in staging and nothing is received.

use super::outbox::{Charge, Outbox, charged_bytes};
use super::{EXTENTS_LEN_MAX, EXTENTS_ONE_LEN_MAX, NbdConfig};
use crate::proto::request::{HEADER_LEN, RequestError};
use crate::proto::{Command, Export, Handshake, HandshakeError, Header, NbdError, Progress, Session};
use device::Request;
use env::{ConnId, Op, Token};
use types::{IoBuf, IoBufMut, Time};

/// Most bytes of headers and small payloads in one receive.
const STAGING_LEN: usize = 256 << 10;
/// Staging after a large payload. The next bytes are most likely a header and another large payload, which
/// should not be copied.
const STAGING_SMALL_LEN: usize = 4 << 10;
/// Length of a remaining payload from which the small staging is used.
const PAYLOAD_LARGE: usize = 64 << 10;

enum Phase {
    Handshake {
        handshake: Handshake,
        deadline: Time,
    },
    Transmission(Session),
    /// The client disconnects: requests in flight are answered, then the connection closes.
    Leaving(Session),
}

/// Condition that the unprocessed bytes wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waiting {
    /// More bytes are needed.
    Bytes,
    /// Space under the limits is needed.
    Room,
}

/// A write whose payload is being received.
enum Payload {
    Keep {
        header: Header,
        command: Command,
        buf: IoBufMut,
        have: usize,
    },
    /// The write was refused; its payload is received and dropped first.
    Drain {
        header: Header,
        error: NbdError,
        left: usize,
    },
}

/// Result of processing the received bytes.
pub enum Step {
    /// Nothing now: more bytes or more space under the limits are needed.
    Wait,
    Refused {
        header: Header,
        error: NbdError,
    },
    Request {
        header: Header,
        command: Command,
        request: Request,
    },
}

/// Reason why the connection is closed.
#[derive(Debug, thiserror::Error)]
pub enum ConnError {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// The connection of one client.
pub struct Conn {
    pub id: ConnId,
    pub generation: u32,
    pub outbox: Outbox,
    export: Export,
    phase: Phase,
    waiting: Waiting,
    /// The staging buffer; bytes `at..filled` are not processed yet. `None` while the env has it.
    staging: Option<IoBufMut>,
    at: usize,
    filled: usize,
    payload: Option<Payload>,
    receiving: bool,
    /// Charge that is released when the send in flight completes.
    sending: Option<Charge>,
    in_flight: Charge,
    spare: Vec<IoBufMut>,
}

impl Conn {
    pub fn new(id: ConnId, generation: u32, export: Export, deadline: Time) -> Conn {
        let mut outbox = Outbox::default();
        let handshake = Handshake::new(&mut outbox.head);
        Conn::with(id, generation, export, outbox, Phase::Handshake { handshake, deadline })
    }

    /// A connection without a handshake, to the kernel's client: plain replies alone.
    pub fn negotiated(id: ConnId, generation: u32, export: Export) -> Conn {
        let session = Session { structured: false, block_status: false };
        Conn::with(id, generation, export, Outbox::default(), Phase::Transmission(session))
    }

    fn with(id: ConnId, generation: u32, export: Export, outbox: Outbox, phase: Phase) -> Conn {
        Conn {
            id,
            generation,
            outbox,
            export,
            phase,
            waiting: Waiting::Bytes,
            staging: None,
            at: 0,
            filled: 0,
            payload: None,
            receiving: false,
            sending: None,
            in_flight: Charge::default(),
            spare: Vec::new(),
        }
    }

    /// Returns the negotiated session.
    ///
    /// # Panics
    /// During the handshake: no request can be in flight there.
    pub fn session(&self) -> Session {
        match self.phase {
            Phase::Transmission(session) | Phase::Leaving(session) => session,
            Phase::Handshake { .. } => panic!("{:?} has no session yet", self.id),
        }
    }

    /// The export has another length from now on, and the client knows it.
    pub fn resize(&mut self, len_bytes: u64) {
        self.export.len_bytes = len_bytes;
    }

    /// Whether an error reply to `header` is a chunk: for reads and block status once structured replies
    /// were negotiated.
    pub fn answers_in_chunks(&self, header: &Header) -> bool {
        use crate::proto::request::{CMD_BLOCK_STATUS, CMD_READ};
        self.session().structured && matches!(header.kind, CMD_READ | CMD_BLOCK_STATUS)
    }

    /// Returns when the handshake must be over.
    pub fn deadline(&self) -> Time {
        match self.phase {
            Phase::Handshake { deadline, .. } => deadline,
            _ => Time::NEVER,
        }
    }

    /// Whether received bytes wait for space under the limits.
    pub fn is_paused(&self) -> bool {
        self.waiting == Waiting::Room && !self.receiving
    }

    /// Whether the connection is finished: the client disconnected, and every request was answered.
    pub fn is_over(&self) -> bool {
        let leaving = matches!(self.phase, Phase::Leaving(_));
        leaving && self.in_flight.requests == 0 && self.sending.is_none() && self.outbox.is_empty()
    }

    /// Handles a completed receive, which returns `bufs` with `count` bytes in them.
    pub fn received(&mut self, mut bufs: Vec<IoBufMut>, count: usize) {
        assert!(self.receiving, "{:?} was not receiving", self.id);
        self.receiving = false;
        let mut count = count;
        let mut staging = bufs.pop().expect("staging is the last buffer of every receive");
        if let Some(Payload::Keep { buf, have, .. }) = &mut self.payload {
            *buf = bufs.pop().expect("the payload came before staging");
            let now = count.min(buf.len());
            buf.unhide();
            *have += now;
            count -= now;
        }
        staging.unhide();
        self.filled += count;
        assert!(self.filled <= staging.len(), "{} of {} bytes of staging", self.filled, staging.len());
        self.staging = Some(staging);
        self.spare = bufs;
    }

    /// Handles the completion of the send in flight.
    pub fn sent(&mut self) {
        let charge = self.sending.take().expect("a send was in flight");
        self.in_flight.requests -= charge.requests;
        self.in_flight.bytes -= charge.bytes;
    }

    /// Sends all waiting replies, unless a send is in flight.
    pub fn start_send(&mut self, token: Token, ops: &mut Vec<Op>) {
        if self.sending.is_some() || self.outbox.is_empty() {
            return;
        }
        let (bufs, charge) = self.outbox.take();
        self.sending = Some(charge);
        let quiet = self.outbox.is_empty() && self.waiting != Waiting::Room && !matches!(self.phase, Phase::Leaving(_));
        ops.push(Op::Send { token, conn: self.id, bufs, quiet });
    }

    /// Receives again if more bytes are needed.
    pub fn start_receive(&mut self, token: Token, ops: &mut Vec<Op>) {
        if self.receiving || self.waiting == Waiting::Room || matches!(self.phase, Phase::Leaving(_)) {
            return;
        }
        let mut bufs = std::mem::take(&mut self.spare);
        assert!(bufs.is_empty(), "both buffers were taken out");
        let (mut min, mut len) = (1, STAGING_LEN);
        if let Some(Payload::Keep { buf, have, .. }) = &mut self.payload {
            assert!(*have < buf.len(), "a complete payload is taken up, not received");
            // An empty buffer holds the place while the env has the real one.
            let mut buf = std::mem::replace(buf, IoBufMut::new(0));
            buf.hide(*have);
            min = buf.len();
            if min >= PAYLOAD_LARGE {
                len = STAGING_SMALL_LEN;
            }
            bufs.push(buf);
        }
        bufs.push(self.fresh_staging(len));
        self.receiving = true;
        ops.push(Op::Recv { token, conn: self.id, bufs, min });
    }

    /// Returns a staging buffer with the unprocessed bytes at its front, hidden.
    fn fresh_staging(&mut self, len: usize) -> IoBufMut {
        let left = self.filled - self.at;
        assert!(left < len, "{left} bytes are left over, more than any header or option");
        let mut staging = match self.staging.take() {
            Some(mut same) if same.len() == len => {
                same.copy_within(self.at..self.filled, 0);
                same
            }
            other => {
                let mut fresh = IoBufMut::new(len);
                if let Some(other) = other {
                    fresh[..left].copy_from_slice(&other[self.at..self.filled]);
                }
                fresh
            }
        };
        staging.hide(left);
        self.at = 0;
        self.filled = left;
        staging
    }

    /// Processes received bytes; called until it returns `Wait`. With `busy` no request is taken now.
    ///
    /// # Errors
    /// When the client broke the protocol: the connection must be closed.
    pub fn step(&mut self, config: &NbdConfig, busy: bool) -> Result<Step, ConnError> {
        self.waiting = Waiting::Bytes;
        let Some(staging) = &self.staging else { return Ok(Step::Wait) };
        match &mut self.phase {
            Phase::Leaving(_) => return Ok(Step::Wait),
            Phase::Handshake { handshake, .. } => {
                let input = &staging[self.at..self.filled];
                let (taken, progress) = handshake.feed(input, &self.export, &mut self.outbox.head)?;
                self.at += taken;
                match progress {
                    Progress::More => return Ok(Step::Wait),
                    Progress::Enter(session) => self.phase = Phase::Transmission(session),
                    Progress::Leave => {
                        self.phase = Phase::Leaving(Session { structured: false, block_status: false });
                        return Ok(Step::Wait);
                    }
                }
            }
            Phase::Transmission(_) => {}
        }
        if busy {
            self.waiting = Waiting::Room;
            return Ok(Step::Wait);
        }
        if self.payload.is_none()
            && let Some(step) = self.take_header(config)?
        {
            return Ok(step);
        }
        Ok(self.take_payload())
    }

    /// Takes the next header: a request without payload, or the start of a write (`None`).
    fn take_header(&mut self, config: &NbdConfig) -> Result<Option<Step>, ConnError> {
        let staging = self.staging.as_ref().expect("the caller has seen it");
        let Some(bytes) = staging[self.at..self.filled].first_chunk::<HEADER_LEN>() else {
            return Ok(Some(Step::Wait));
        };
        let header = Header::parse(bytes)?;
        let bytes = self.in_flight.bytes + charged_bytes(&header);
        let requests = self.in_flight.requests;
        if requests >= config.requests_max || (requests > 0 && bytes > config.bytes_max) {
            self.waiting = Waiting::Room;
            return Ok(Some(Step::Wait));
        }
        self.at += HEADER_LEN;
        let session = self.session();
        let verdict = header.judge(session, &self.export);
        if verdict == Ok(Command::Disconnect) {
            self.phase = Phase::Leaving(session);
            return Ok(Some(Step::Wait));
        }
        self.in_flight.requests += 1;
        self.in_flight.bytes = bytes;
        let left = header.payload_len();
        match verdict {
            Err(error) if left == 0 => return Ok(Some(Step::Refused { header, error })),
            Err(error) => self.payload = Some(Payload::Drain { header, error, left }),
            Ok(command @ Command::Write { .. }) => {
                self.payload = Some(Payload::Keep { header, command, buf: IoBufMut::new(left), have: 0 });
            }
            Ok(command) => {
                return Ok(Some(Step::Request { header, command, request: request(&header, command, None) }));
            }
        }
        Ok(None)
    }

    /// Consumes payload bytes; a complete payload completes its request.
    fn take_payload(&mut self) -> Step {
        let staging = self.staging.as_ref().expect("the caller has seen it");
        let input = &staging[self.at..self.filled];
        match self.payload.take() {
            None => Step::Wait,
            Some(Payload::Keep { header, command, mut buf, have }) => {
                let now = input.len().min(buf.len() - have);
                buf[have..have + now].copy_from_slice(&input[..now]);
                self.at += now;
                let have = have + now;
                if have < buf.len() {
                    self.payload = Some(Payload::Keep { header, command, buf, have });
                    return Step::Wait;
                }
                Step::Request { header, command, request: request(&header, command, Some(buf.freeze())) }
            }
            Some(Payload::Drain { header, error, left }) => {
                let now = input.len().min(left);
                self.at += now;
                if now < left {
                    self.payload = Some(Payload::Drain { header, error, left: left - now });
                    return Step::Wait;
                }
                Step::Refused { header, error }
            }
        }
    }
}

fn request(header: &Header, command: Command, payload: Option<IoBuf>) -> Request {
    let (offset, len) = (header.offset, u64::from(header.len));
    match command {
        Command::Read { .. } => Request::Read { offset, len },
        Command::Write { fua } => Request::Write { offset, buf: payload.expect("a write has a payload"), fua },
        Command::Flush => Request::Flush,
        Command::Trim => Request::Trim { offset, len },
        Command::WriteZeroes { no_hole } => Request::WriteZeroes { offset, len, no_hole },
        Command::BlockStatus { one } => {
            let max = if one { EXTENTS_ONE_LEN_MAX } else { EXTENTS_LEN_MAX };
            Request::Extents { offset, len: len.min(max), since: None }
        }
        Command::Disconnect => panic!("a disconnect is no request to the device"),
    }
}
