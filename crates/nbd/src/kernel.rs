//! Devices of the Linux kernel (`/dev/nbdN`), which are connected, resized and disconnected by generic netlink.
//!
//! Input: a device to make, and the kernel's end of a socket pair. Output: the number of the device, or the kernel's reason. The kernel is
//! the NBD client at its end of the pair, without a handshake: see [`crate::NbdServer::attach`]. Source: `linux/nbd-netlink.h` and
//! `drivers/block/nbd.c`, Linux 5.19 or later.
//!
//! Invariant: all calls block, and a new size waits for the requests that the kernel has in flight. So they are made on another thread
//! than the one that answers requests.

use crate::proto::{BLOCK_MIN, Export};
use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLA_F_NESTED, NLM_F_ACK, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable, Nla, NlasIterator, Parseable,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// The controller of generic netlink: its family, its command, and the attributes for the id and the name of another family.
const CONTROLLER: u16 = 0x10;
const CONTROLLER_GET_FAMILY: u8 = 3;
const CONTROLLER_ID: u16 = 1;
const CONTROLLER_NAME: u16 = 2;

/// Version of the messages to the controller and to the family `nbd`.
const VERSION: u8 = 1;
const GENERIC_HEADER_LEN: usize = 4;

/// `NBD_CMD_*`.
mod command {
    pub const CONNECT: u8 = 1;
    pub const DISCONNECT: u8 = 2;
    pub const RECONFIGURE: u8 = 3;
}

/// `NBD_ATTR_*`, `NBD_SOCK_ITEM` and `NBD_SOCK_FD`.
mod attribute {
    pub const INDEX: u16 = 1;
    pub const SIZE_BYTES: u16 = 2;
    pub const BLOCK_SIZE_BYTES: u16 = 3;
    pub const SERVER_FLAGS: u16 = 5;
    pub const SOCKETS: u16 = 7;
    pub const DEAD_CONN_TIMEOUT: u16 = 8;
    pub const BACKEND_IDENTIFIER: u16 = 10;
    pub const SOCK_ITEM: u16 = 1;
    pub const SOCK_FD: u16 = 1;
}

/// Reason why the kernel does not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("the kernel has no NBD client: its module nbd is not loaded")]
    NoModule,
    #[error("the kernel refused: {0}")]
    Refused(io::Error),
    #[error("netlink: {0}")]
    Socket(io::Error),
    #[error("netlink: an answer of the kernel is not understood: {0}")]
    Answer(String),
}

/// A device to make.
#[derive(Clone, Debug)]
pub struct KernelDevice {
    /// Name of what it shows. A later process connects again to a device with the same name.
    pub backend: String,
    pub len_bytes: u64,
    pub read_only: bool,
    /// Time that new requests wait for another process when this one has ended without a disconnect. Those that it had wait without an end.
    pub dead_wait: Duration,
}

/// A link to the kernel's NBD client.
pub struct Kernel {
    socket: Socket,
    family: u16,
    sequence: u32,
}

impl Kernel {
    /// Opens a link.
    ///
    /// # Errors
    /// `NoModule`, `Socket`, `Answer`.
    pub fn open() -> Result<Kernel, KernelError> {
        let mut socket = Socket::new(NETLINK_GENERIC).map_err(KernelError::Socket)?;
        socket.bind_auto().map_err(KernelError::Socket)?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(KernelError::Socket)?;
        let mut kernel = Kernel { socket, family: 0, sequence: 0 };
        let name = string(CONTROLLER_NAME, "nbd");
        let asked = Message { family: CONTROLLER, command: CONTROLLER_GET_FAMILY, attributes: vec![name] };
        let answers = match kernel.ask(asked) {
            Err(KernelError::Refused(error)) if error.kind() == ErrorKind::NotFound => {
                return Err(KernelError::NoModule);
            }
            other => other?,
        };
        kernel.family = answers.iter().find_map(|answer| answer.number(CONTROLLER_ID)).ok_or_else(|| nothing("id"))?;
        Ok(kernel)
    }

    /// Connects a device, the first free one unless `index` names one, and returns its number. `end` is the kernel's end of a pair.
    ///
    /// # Errors
    /// `Refused`: EBUSY when the device is in use, EPERM without `CAP_SYS_ADMIN`. `Socket`, `Answer`.
    pub fn connect(&mut self, index: Option<u32>, device: &KernelDevice, end: &UnixStream) -> Result<u32, KernelError> {
        let export = Export {
            name: String::new(),
            description: String::new(),
            len_bytes: device.len_bytes,
            read_only: device.read_only,
        };
        let mut attributes = vec![
            u64(attribute::SIZE_BYTES, device.len_bytes),
            u64(attribute::BLOCK_SIZE_BYTES, u64::from(BLOCK_MIN)),
            u64(attribute::SERVER_FLAGS, u64::from(export.flags(false))),
            u64(attribute::DEAD_CONN_TIMEOUT, device.dead_wait.as_secs()),
            string(attribute::BACKEND_IDENTIFIER, &device.backend),
            sockets(end),
        ];
        attributes.extend(index.map(|index| u32(attribute::INDEX, index)));
        let answers = self.ask_client(command::CONNECT, attributes)?;
        let told = answers.iter().find_map(|answer| answer.number(attribute::INDEX)).or(index);
        told.ok_or_else(|| nothing("number"))
    }

    /// Gives a device of the same backend another connection, if the one that it has is dead. Returns whether the kernel took it; `ours` is
    /// the other end of the pair.
    ///
    /// # Errors
    /// `Refused`: the device has another backend, or is not connected. `Socket`, `Answer`.
    pub fn reconnect(
        &mut self,
        index: u32,
        device: &KernelDevice,
        end: UnixStream,
        mut ours: &UnixStream,
    ) -> Result<bool, KernelError> {
        // Without a size: the kernel would wait for the requests that wait for this connection.
        let attributes = vec![
            u32(attribute::INDEX, index),
            u64(attribute::DEAD_CONN_TIMEOUT, device.dead_wait.as_secs()),
            string(attribute::BACKEND_IDENTIFIER, &device.backend),
            sockets(&end),
        ];
        self.ask_client(command::RECONFIGURE, attributes)?;
        // The kernel says nothing when no connection is dead; then this was the only owner of the end.
        drop(end);
        Ok(ours.write(&[]).is_ok())
    }

    /// Tells the kernel the present length of a device.
    ///
    /// # Errors
    /// `Refused`, `Socket`, `Answer`.
    pub fn resize(&mut self, index: u32, backend: &str, len_bytes: u64) -> Result<(), KernelError> {
        let attributes = vec![
            u32(attribute::INDEX, index),
            string(attribute::BACKEND_IDENTIFIER, backend),
            u64(attribute::SIZE_BYTES, len_bytes),
        ];
        self.ask_client(command::RECONFIGURE, attributes).map(drop)
    }

    /// Disconnects a device. What it has in flight fails.
    ///
    /// # Errors
    /// `Refused`, `Socket`, `Answer`.
    pub fn disconnect(&mut self, index: u32) -> Result<(), KernelError> {
        self.ask_client(command::DISCONNECT, vec![u32(attribute::INDEX, index)]).map(drop)
    }

    fn ask_client(&mut self, command: u8, attributes: Vec<DefaultNla>) -> Result<Vec<Message>, KernelError> {
        self.ask(Message { family: self.family, command, attributes })
    }

    /// Sends a request, and returns what the kernel says before it acknowledges.
    fn ask(&mut self, message: Message) -> Result<Vec<Message>, KernelError> {
        self.sequence += 1;
        let mut request = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::InnerMessage(message));
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK;
        request.header.sequence_number = self.sequence;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map_err(KernelError::Socket)?;
        let mut answers = Vec::new();
        loop {
            let received = match self.socket.recv_from_full() {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                other => other.map_err(KernelError::Socket)?.0,
            };
            if let Some(result) = take(&received, self.sequence, &mut answers)? {
                return result.map(|()| answers).map_err(KernelError::Refused);
            }
        }
    }
}

/// Takes the messages of a datagram that answer a request. Returns its result when it is there.
fn take(
    mut bytes: &[u8],
    sequence: u32,
    answers: &mut Vec<Message>,
) -> Result<Option<Result<(), io::Error>>, KernelError> {
    while !bytes.is_empty() {
        let message = NetlinkMessage::<Message>::deserialize(bytes)
            .map_err(|error: DecodeError| KernelError::Answer(error.to_string()))?;
        let len = (message.header.length as usize).next_multiple_of(4);
        bytes = bytes.get(len..).unwrap_or_default();
        if message.header.sequence_number != sequence {
            continue;
        }
        match message.payload {
            NetlinkPayload::Error(error) => {
                let result = error.code.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(-code.get())));
                return Ok(Some(result));
            }
            NetlinkPayload::InnerMessage(answer) => answers.push(answer),
            _ => {}
        }
    }
    Ok(None)
}

fn nothing(what: &str) -> KernelError {
    KernelError::Answer(format!("it has no {what}"))
}

/// Returns the devices that are connected and have a backend: number and backend, in order.
pub fn devices() -> Vec<(u32, String)> {
    let names = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix("nbd").and_then(|number| number.parse().ok());
    let mut numbers: Vec<u32> = names.filter_map(|entry| entry.file_name().to_str().and_then(number)).collect();
    numbers.sort_unstable();
    numbers.into_iter().filter_map(|index| Some((index, shows(index, "backend")?))).collect()
}

/// Returns the length in bytes that the kernel shows of a device.
pub fn device_len(index: u32) -> Option<u64> {
    shows(index, "size").and_then(|sectors| sectors.parse::<u64>().ok()).map(|sectors| sectors * types::SECTOR)
}

/// Reads a line about a device.
fn shows(index: u32, what: &str) -> Option<String> {
    let line = std::fs::read_to_string(PathBuf::from(format!("/sys/block/nbd{index}/{what}"))).ok()?;
    Some(line.trim_end().to_owned())
}

/// A message of generic netlink.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Message {
    family: u16,
    command: u8,
    attributes: Vec<DefaultNla>,
}

impl Message {
    /// Returns the value of an attribute that is a number of the machine's order.
    fn number<T: TryFrom<u32>>(&self, kind: u16) -> Option<T> {
        let found = self.attributes.iter().find(|attribute| attribute.kind() == kind)?;
        let mut value = vec![0; found.value_len()];
        found.emit_value(&mut value);
        let number = match *value.as_slice() {
            [a, b] => u32::from(u16::from_ne_bytes([a, b])),
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]),
            _ => return None,
        };
        number.try_into().ok()
    }
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        GENERIC_HEADER_LEN + self.attributes.as_slice().buffer_len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        let (header, rest) = buffer.split_at_mut(GENERIC_HEADER_LEN);
        header.copy_from_slice(&[self.command, VERSION, 0, 0]);
        self.attributes.as_slice().emit(rest);
    }
}

impl NetlinkDeserializable for Message {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Message, DecodeError> {
        let Some((generic, rest)) = payload.split_first_chunk::<GENERIC_HEADER_LEN>() else {
            return Err(DecodeError::from("a message is shorter than its header"));
        };
        let attributes = NlasIterator::new(rest).map(|one| DefaultNla::parse(&one?)).collect::<Result<_, _>>()?;
        Ok(Message { family: header.message_type, command: generic[0], attributes })
    }
}

fn u32(kind: u16, value: u32) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

fn u64(kind: u16, value: u64) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

fn string(kind: u16, value: &str) -> DefaultNla {
    DefaultNla::new(kind, [value.as_bytes(), &[0]].concat())
}

fn nested(kind: u16, inner: &[DefaultNla]) -> DefaultNla {
    let mut value = vec![0; inner.buffer_len()];
    inner.emit(&mut value);
    DefaultNla::new(kind | NLA_F_NESTED, value)
}

/// Names one connection: the descriptor of the kernel's end.
fn sockets(end: &UnixStream) -> DefaultNla {
    let fd = u32(attribute::SOCK_FD, end.as_raw_fd().unsigned_abs());
    nested(attribute::SOCKETS, &[nested(attribute::SOCK_ITEM, &[fd])])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes are those of `linux/netlink.h`, `linux/genetlink.h` and `linux/nbd-netlink.h`.
    #[test]
    fn a_request_has_the_bytes_of_the_kernels_headers() {
        let attributes = vec![
            u32(attribute::INDEX, 3),
            u64(attribute::SIZE_BYTES, 0x1_0000_0200),
            string(attribute::BACKEND_IDENTIFIER, "v"),
            nested(attribute::SOCKETS, &[nested(attribute::SOCK_ITEM, &[u32(attribute::SOCK_FD, 9)])]),
        ];
        let message = Message { family: 0x21, command: command::RECONFIGURE, attributes };
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        let mut wanted = vec![3, 1, 0, 0];
        wanted.extend([8, 0, 1, 0, 3, 0, 0, 0]);
        wanted.extend([12, 0, 2, 0, 0, 2, 0, 0, 1, 0, 0, 0]);
        wanted.extend([6, 0, 10, 0, b'v', 0, 0, 0]);
        wanted.extend([16, 0, 7, 0x80, 12, 0, 1, 0x80, 8, 0, 1, 0, 9, 0, 0, 0]);
        assert_eq!(bytes, wanted);
        let mut header = NetlinkHeader::default();
        header.message_type = 0x21;
        assert_eq!(Message::deserialize(&header, &bytes).expect("it is whole").number(attribute::INDEX), Some(3));
    }

    /// An answer that comes in one datagram with its acknowledgement, and a refusal.
    #[test]
    fn an_answer_counts_with_the_number_of_its_request() {
        let datagram = |sequence: u8, index: u8| {
            let mut bytes = vec![28, 0, 0, 0, 0x21, 0, 0, 0, sequence, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0];
            bytes.extend([8, 0, 1, 0, index, 0, 0, 0]);
            bytes
        };
        let result = |sequence: u8, errno: i32| {
            let mut bytes = vec![36, 0, 0, 0, 2, 0, 0, 0, sequence, 0, 0, 0, 0, 0, 0, 0];
            bytes.extend((-errno).to_ne_bytes());
            bytes.extend([0; 16]);
            bytes
        };
        let mut answers = Vec::new();
        let bytes = [datagram(4, 8), datagram(5, 9), result(5, 0)].concat();
        assert!(matches!(take(&bytes, 5, &mut answers), Ok(Some(Ok(())))));
        assert_eq!(answers.iter().map(|answer| answer.number(attribute::INDEX)).collect::<Vec<_>>(), [Some(9u32)]);
        assert!(matches!(take(&result(4, 1), 5, &mut answers), Ok(None)));
        let refused = take(&result(5, 16), 5, &mut answers).expect("it is whole").expect("it is its result");
        assert_eq!(refused.expect_err("EBUSY").raw_os_error(), Some(16));
        for cut in 1..36 {
            let _ = take(&bytes[..cut], 5, &mut answers);
        }
        assert!(matches!(take(&[7; 15], 5, &mut answers), Err(KernelError::Answer(_))));
    }

    #[test]
    fn an_end_that_the_kernel_did_not_keep_is_noticed() {
        let (mut ours, end) = UnixStream::pair().expect("a pair");
        let kept = end.try_clone().expect("a descriptor");
        drop(end);
        assert!(ours.write(&[]).is_ok(), "another descriptor has the end");
        drop(kept);
        assert!(ours.write(&[]).is_err());
    }
}
