//! The fixed newstyle handshake: greeting, option haggling, and the transition to transmission.
//!
//! Input: the client's bytes, in pieces of any size. Output: reply bytes, and at the end a [`Session`] or the
//! reason to close.
//!
//! Invariant: a client never hangs for lack of a feature: an unknown option is answered with `NBD_REP_ERR_UNSUP`
//! and haggling continues. The number of options and the bytes of each are limited.

use super::{BLOCK_MIN, BLOCK_PREFERRED, CONTEXT_ALLOCATION, CONTEXT_ALLOCATION_ID, Export, REQUEST_LEN_MAX, Reader};

const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

const FLAG_FIXED_NEWSTYLE: u16 = 1;
const FLAG_NO_ZEROES: u16 = 2;

/// Option header: magic, option, length.
const OPTION_HEAD: usize = 16;
/// Most option data that is held at once: a name, and a few queries.
const OPTION_LEN_MAX: u32 = 16 << 10;
/// Longer data is dropped as it arrives and refused; beyond this length the connection is closed.
const OPTION_SKIP_MAX: u32 = 1 << 20;
/// Most options of a handshake: a client with more of them does not intend to finish.
const OPTIONS_MAX: u32 = 256;

const OPT_EXPORT_NAME: u32 = 1;
const OPT_ABORT: u32 = 2;
const OPT_LIST: u32 = 3;
const OPT_INFO: u32 = 6;
const OPT_GO: u32 = 7;
const OPT_STRUCTURED_REPLY: u32 = 8;
const OPT_LIST_META_CONTEXT: u32 = 9;
const OPT_SET_META_CONTEXT: u32 = 10;

const REP_ACK: u32 = 1;
const REP_SERVER: u32 = 2;
const REP_INFO: u32 = 3;
const REP_META_CONTEXT: u32 = 4;
const REP_ERR_UNSUP: u32 = 1 << 31 | 1;
const REP_ERR_INVALID: u32 = 1 << 31 | 3;
const REP_ERR_UNKNOWN: u32 = 1 << 31 | 6;
const REP_ERR_TOO_BIG: u32 = 1 << 31 | 9;

const INFO_EXPORT: u16 = 0;
const INFO_NAME: u16 = 1;
const INFO_DESCRIPTION: u16 = 2;
const INFO_BLOCK_SIZE: u16 = 3;

/// Negotiated properties of the transmission phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Session {
    /// Whether reads are answered in chunks, and errors carry a text.
    pub structured: bool,
    /// Whether `base:allocation` was selected: `NBD_CMD_BLOCK_STATUS` is allowed.
    pub block_status: bool,
}

/// Progress of a handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// More bytes are needed.
    More,
    /// Transmission begins with the next byte.
    Enter(Session),
    /// The client disconnects; close once the replies are sent.
    Leave,
}

/// Reason why the connection is closed during a handshake.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("the client has handshake flags that we do not know: {0:#x}")]
    Flags(u32),
    #[error("not an NBD option: magic {0:#x}")]
    Magic(u64),
    #[error("an option with {0} bytes of data")]
    TooLong(u32),
    #[error("more than {OPTIONS_MAX} options")]
    TooMany,
    #[error("no export named {0:?}")]
    NoExport(String),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    ClientFlags,
    OptionHead,
    OptionData {
        option: u32,
        len: u32,
    },
    /// Drops the data of an option that was refused.
    Skip {
        left: u32,
    },
}

/// One client's handshake.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    no_zeroes: bool,
    structured: bool,
    block_status: bool,
    option_count: u32,
}

impl Handshake {
    /// Begins a handshake with the server's greeting.
    pub fn new(out: &mut Vec<u8>) -> Handshake {
        out.extend_from_slice(&NBDMAGIC.to_be_bytes());
        out.extend_from_slice(&IHAVEOPT.to_be_bytes());
        out.extend_from_slice(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
        Handshake {
            state: State::ClientFlags,
            no_zeroes: false,
            structured: false,
            block_status: false,
            option_count: 0,
        }
    }

    /// Consumes bytes from the front of `input`. Returns how many it consumed, and the progress. After `Enter`
    /// the rest of `input` belongs to the transmission phase.
    ///
    /// # Errors
    /// The reason ([`HandshakeError`]) why the connection must be closed.
    pub fn feed(
        &mut self,
        input: &[u8],
        export: &Export,
        out: &mut Vec<u8>,
    ) -> Result<(usize, Progress), HandshakeError> {
        let mut reader = Reader(input);
        loop {
            let taken = input.len() - reader.0.len();
            match self.state {
                State::ClientFlags => {
                    let Some(flags) = reader.u32() else { return Ok((taken, Progress::More)) };
                    self.client_flags(flags)?;
                }
                State::OptionHead => {
                    if reader.0.len() < OPTION_HEAD {
                        return Ok((taken, Progress::More));
                    }
                    self.option_head(&mut reader, out)?;
                }
                State::OptionData { option, len } => {
                    let Some(data) = reader.take(len as usize) else { return Ok((taken, Progress::More)) };
                    self.state = State::OptionHead;
                    let progress = self.option(option, data, export, out)?;
                    if progress != Progress::More {
                        return Ok((input.len() - reader.0.len(), progress));
                    }
                }
                State::Skip { left } => {
                    let now = reader.0.len().min(left as usize);
                    reader.take(now);
                    let left = left - now as u32;
                    self.state = if left == 0 { State::OptionHead } else { State::Skip { left } };
                    if left > 0 {
                        return Ok((input.len(), Progress::More));
                    }
                }
            }
        }
    }

    fn client_flags(&mut self, flags: u32) -> Result<(), HandshakeError> {
        if flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
            return Err(HandshakeError::Flags(flags));
        }
        self.no_zeroes = flags & u32::from(FLAG_NO_ZEROES) != 0;
        self.state = State::OptionHead;
        Ok(())
    }

    fn option_head(&mut self, reader: &mut Reader<'_>, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        let magic = reader.u64().unwrap_or(0);
        let option = reader.u32().unwrap_or(0);
        let len = reader.u32().unwrap_or(0);
        if magic != IHAVEOPT {
            return Err(HandshakeError::Magic(magic));
        }
        self.option_count += 1;
        if self.option_count > OPTIONS_MAX {
            return Err(HandshakeError::TooMany);
        }
        if len <= OPTION_LEN_MAX {
            self.state = State::OptionData { option, len };
        } else if len <= OPTION_SKIP_MAX && option != OPT_EXPORT_NAME {
            refuse(out, option, REP_ERR_TOO_BIG, "the option's data is too long");
            self.state = State::Skip { left: len };
        } else {
            return Err(HandshakeError::TooLong(len));
        }
        Ok(())
    }

    fn option(
        &mut self,
        option: u32,
        data: &[u8],
        export: &Export,
        out: &mut Vec<u8>,
    ) -> Result<Progress, HandshakeError> {
        match option {
            OPT_EXPORT_NAME => return self.export_name(data, export, out),
            OPT_ABORT => {
                reply(out, option, REP_ACK, &[]);
                return Ok(Progress::Leave);
            }
            OPT_LIST if data.is_empty() => {
                let name = export.name.as_bytes();
                reply(out, option, REP_SERVER, &[&(name.len() as u32).to_be_bytes(), name]);
                reply(out, option, REP_ACK, &[]);
            }
            OPT_STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                reply(out, option, REP_ACK, &[]);
            }
            OPT_LIST | OPT_STRUCTURED_REPLY => refuse(out, option, REP_ERR_INVALID, "this option takes no data"),
            OPT_INFO | OPT_GO => {
                if self.info(option, data, export, out) && option == OPT_GO {
                    return Ok(Progress::Enter(self.session()));
                }
            }
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => self.meta_context(option, data, export, out),
            // NBD_OPT_STARTTLS is among them: without TLS the right answer is "unsupported", and the client
            // decides.
            _ => refuse(out, option, REP_ERR_UNSUP, "this server does not have that option"),
        }
        Ok(Progress::More)
    }

    fn session(&self) -> Session {
        Session { structured: self.structured, block_status: self.block_status }
    }

    /// Answers `NBD_OPT_EXPORT_NAME`, which has no error reply: an unknown name ends the connection.
    fn export_name(&self, name: &[u8], export: &Export, out: &mut Vec<u8>) -> Result<Progress, HandshakeError> {
        if !export.answers_to(name) {
            return Err(HandshakeError::NoExport(String::from_utf8_lossy(name).chars().take(80).collect()));
        }
        out.extend_from_slice(&export.len_bytes.to_be_bytes());
        out.extend_from_slice(&export.flags(self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        Ok(Progress::Enter(self.session()))
    }

    /// Answers `NBD_OPT_INFO` and `NBD_OPT_GO`. Returns true when the export was described and acknowledged.
    fn info(&mut self, option: u32, data: &[u8], export: &Export, out: &mut Vec<u8>) -> bool {
        let Some((name, asked)) = parse_info(data) else {
            refuse(out, option, REP_ERR_INVALID, "malformed option");
            return false;
        };
        if !export.answers_to(name) {
            refuse(out, option, REP_ERR_UNKNOWN, "no such export");
            return false;
        }
        let flags = export.flags(self.structured).to_be_bytes();
        reply(out, option, REP_INFO, &[&INFO_EXPORT.to_be_bytes(), &export.len_bytes.to_be_bytes(), &flags]);
        if asked.contains(&INFO_NAME) {
            reply(out, option, REP_INFO, &[&INFO_NAME.to_be_bytes(), export.name.as_bytes()]);
        }
        if asked.contains(&INFO_DESCRIPTION) && !export.description.is_empty() {
            reply(out, option, REP_INFO, &[&INFO_DESCRIPTION.to_be_bytes(), export.description.as_bytes()]);
        }
        // The block size is sent without a request, too: a client that understands it may obey it.
        let [min, preferred, max] = [BLOCK_MIN, BLOCK_PREFERRED, REQUEST_LEN_MAX].map(u32::to_be_bytes);
        reply(out, option, REP_INFO, &[&INFO_BLOCK_SIZE.to_be_bytes(), &min, &preferred, &max]);
        reply(out, option, REP_ACK, &[]);
        true
    }

    fn meta_context(&mut self, option: u32, data: &[u8], export: &Export, out: &mut Vec<u8>) {
        let set = option == OPT_SET_META_CONTEXT;
        if set {
            // A failed selection leaves no context selected, as the protocol requires.
            self.block_status = false;
        }
        if !self.structured {
            return refuse(out, option, REP_ERR_INVALID, "structured replies must be agreed on first");
        }
        let Some((name, queries)) = parse_contexts(data) else {
            return refuse(out, option, REP_ERR_INVALID, "malformed option");
        };
        if !export.answers_to(name) {
            return refuse(out, option, REP_ERR_UNKNOWN, "no such export");
        }
        let exact = queries.contains(&CONTEXT_ALLOCATION.as_bytes());
        let listed = !set && (queries.is_empty() || queries.contains(&b"base:".as_slice()));
        if exact || listed {
            let id = if set { CONTEXT_ALLOCATION_ID } else { 0 };
            reply(out, option, REP_META_CONTEXT, &[&id.to_be_bytes(), CONTEXT_ALLOCATION.as_bytes()]);
        }
        self.block_status |= set && exact;
        reply(out, option, REP_ACK, &[]);
    }
}

/// Parses name and information requests of `NBD_OPT_INFO` and `NBD_OPT_GO`.
fn parse_info(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let mut reader = Reader(data);
    let name = reader.string()?;
    let count = reader.u16()?;
    // The count is compared with the available bytes before anything is allocated by it.
    let asked = reader.take(usize::from(count) * 2)?;
    let asked = asked.chunks_exact(2).map(|two| u16::from_be_bytes([two[0], two[1]])).collect();
    reader.0.is_empty().then_some((name, asked))
}

/// Parses export name and queries of the metadata options.
fn parse_contexts(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let mut reader = Reader(data);
    let name = reader.string()?;
    let count = reader.u32()?;
    let mut queries = Vec::new();
    for _ in 0..count {
        queries.push(reader.string()?);
    }
    reader.0.is_empty().then_some((name, queries))
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(len as u32).to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

fn refuse(out: &mut Vec<u8>, option: u32, kind: u32, why: &str) {
    reply(out, option, kind, &[why.as_bytes()]);
}
