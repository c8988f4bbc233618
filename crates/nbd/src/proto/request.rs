//! Request headers of the transmission phase, and the check whether a request is allowed.
//!
//! Input: 28 bytes. Output: a [`Command`] that is aligned, in range and permitted, or the error for the
//! client. Source: "Request types", "Command flags" and "Error values" of the protocol.

use super::{BLOCK_MIN, Export, NbdError, PAYLOAD_DRAIN_MAX, REQUEST_LEN_MAX, Reader, Session};

/// Length of a request header.
pub const HEADER_LEN: usize = 28;
const REQUEST_MAGIC: u32 = 0x2560_9513;

pub const CMD_READ: u16 = 0;
pub const CMD_WRITE: u16 = 1;
pub const CMD_DISC: u16 = 2;
pub const CMD_FLUSH: u16 = 3;
pub const CMD_TRIM: u16 = 4;
pub const CMD_WRITE_ZEROES: u16 = 6;
pub const CMD_BLOCK_STATUS: u16 = 7;

pub const FLAG_FUA: u16 = 1;
pub const FLAG_NO_HOLE: u16 = 1 << 1;
pub const FLAG_DF: u16 = 1 << 2;
pub const FLAG_REQ_ONE: u16 = 1 << 3;
pub const FLAG_FAST_ZERO: u16 = 1 << 4;

/// One request as it was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub flags: u16,
    pub kind: u16,
    /// Chosen by the client, returned with the reply.
    pub cookie: u64,
    pub offset: u64,
    pub len: u32,
}

/// Reason why the connection is closed in the transmission phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RequestError {
    #[error("not an NBD request: magic {0:#x}")]
    Magic(u32),
    #[error("a write that claims {0} bytes of payload")]
    TooLong(u32),
}

/// A request that may go to the device: aligned, inside the export, permitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// `whole`: the reply is one content chunk, holes written out (`NBD_CMD_FLAG_DF`).
    Read {
        whole: bool,
    },
    Write {
        fua: bool,
    },
    Flush,
    Trim,
    WriteZeroes {
        no_hole: bool,
    },
    /// `one`: the reply has at most one extent (`NBD_CMD_FLAG_REQ_ONE`).
    BlockStatus {
        one: bool,
    },
    Disconnect,
}

impl Header {
    /// Parses a header.
    ///
    /// # Errors
    /// When the bytes are no NBD request, or a write claims more payload than is drained.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Header, RequestError> {
        let mut reader = Reader(bytes);
        let magic = reader.u32().unwrap_or(0);
        if magic != REQUEST_MAGIC {
            return Err(RequestError::Magic(magic));
        }
        let header = Header {
            flags: reader.u16().unwrap_or(0),
            kind: reader.u16().unwrap_or(0),
            cookie: reader.u64().unwrap_or(0),
            offset: reader.u64().unwrap_or(0),
            len: reader.u32().unwrap_or(0),
        };
        if header.kind == CMD_WRITE && header.len > PAYLOAD_DRAIN_MAX {
            return Err(RequestError::TooLong(header.len));
        }
        Ok(header)
    }

    /// Returns the kind of the request in words.
    pub fn what(&self) -> &'static str {
        match self.kind {
            CMD_READ => "read",
            CMD_WRITE => "write",
            CMD_FLUSH => "flush",
            CMD_TRIM => "trim",
            CMD_WRITE_ZEROES => "write-zeroes",
            CMD_BLOCK_STATUS => "block status",
            _ => "request of an unknown kind",
        }
    }

    /// Returns how many bytes follow the header, whether or not the request is valid.
    pub fn payload_len(&self) -> usize {
        if self.kind == CMD_WRITE { self.len as usize } else { 0 }
    }

    /// Checks whether the request is allowed.
    ///
    /// # Errors
    /// The error that the client gets for it.
    pub fn judge(&self, session: Session, export: &Export) -> Result<Command, NbdError> {
        let command = self.command(session)?;
        let fua_or = |allowed: u16| self.flags & !(allowed | FLAG_FUA) == 0;
        let flags_fit = match command {
            Command::Read { .. } => fua_or(if session.structured { FLAG_DF } else { 0 }),
            Command::WriteZeroes { .. } => fua_or(FLAG_NO_HOLE | FLAG_FAST_ZERO),
            Command::BlockStatus { .. } => fua_or(FLAG_REQ_ONE),
            Command::Write { .. } | Command::Flush | Command::Trim => fua_or(0),
            // The client does not wait for an answer, so none of its fields can matter.
            Command::Disconnect => return Ok(command),
        };
        if !flags_fit {
            return Err(NbdError::Invalid);
        }
        if command != Command::Flush {
            self.check_range(command, export)?;
        }
        if self.flags & FLAG_FAST_ZERO != 0 && self.flags & FLAG_NO_HOLE != 0 {
            // Provisioned zeros are written out, which is no faster than a write.
            return Err(NbdError::NotSupported);
        }
        Ok(command)
    }

    fn command(&self, session: Session) -> Result<Command, NbdError> {
        Ok(match self.kind {
            CMD_READ => Command::Read { whole: self.flags & FLAG_DF != 0 },
            CMD_WRITE => Command::Write { fua: self.flags & FLAG_FUA != 0 },
            CMD_DISC => Command::Disconnect,
            CMD_FLUSH => Command::Flush,
            CMD_TRIM => Command::Trim,
            CMD_WRITE_ZEROES => Command::WriteZeroes { no_hole: self.flags & FLAG_NO_HOLE != 0 },
            CMD_BLOCK_STATUS if session.block_status => Command::BlockStatus { one: self.flags & FLAG_REQ_ONE != 0 },
            _ => return Err(NbdError::Invalid),
        })
    }

    fn check_range(&self, command: Command, export: &Export) -> Result<(), NbdError> {
        let changes = matches!(command, Command::Write { .. } | Command::Trim | Command::WriteZeroes { .. });
        if changes && export.read_only {
            return Err(NbdError::Perm);
        }
        let aligned = self.offset.is_multiple_of(u64::from(BLOCK_MIN)) && self.len.is_multiple_of(BLOCK_MIN);
        if !aligned || self.len == 0 {
            return Err(NbdError::Invalid);
        }
        let carries = matches!(command, Command::Read { .. } | Command::Write { .. });
        if carries && self.len > REQUEST_LEN_MAX {
            return Err(NbdError::Invalid);
        }
        let inside = self.offset.checked_add(u64::from(self.len)).is_some_and(|end| end <= export.len_bytes);
        match command {
            _ if inside => Ok(()),
            Command::Write { .. } | Command::WriteZeroes { .. } => Err(NbdError::NoSpace),
            _ => Err(NbdError::Invalid),
        }
    }
}
