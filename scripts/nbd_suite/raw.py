"""A raw NBD client: it sends what it is told, legal or not, and parses every reply strictly.

The constants and layouts are those of the protocol document (doc/proto.md of the NBD project).
"""

import socket
import struct
from dataclasses import dataclass, field

OPT_EXPORT_NAME, OPT_ABORT, OPT_LIST, OPT_STARTTLS, OPT_INFO, OPT_GO = 1, 2, 3, 5, 6, 7
OPT_STRUCTURED_REPLY, OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT = 8, 9, 10
REP_ACK, REP_SERVER, REP_INFO, REP_META_CONTEXT = 1, 2, 3, 4
ERR_UNSUP, ERR_POLICY, ERR_INVALID, ERR_UNKNOWN, ERR_TOO_BIG = (1 << 31 | n for n in (1, 2, 3, 6, 9))
INFO_EXPORT, INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE = 0, 1, 2, 3
READ, WRITE, DISC, FLUSH, TRIM, CACHE, ZEROES, STATUS = range(8)
NAMES = {READ: "READ", WRITE: "WRITE", FLUSH: "FLUSH", TRIM: "TRIM", ZEROES: "WRITE_ZEROES", STATUS: "BLOCK_STATUS"}
FUA, NO_HOLE, DF, REQ_ONE, FAST_ZERO = 1, 2, 4, 8, 16
HAS_FLAGS, READ_ONLY, SEND_FLUSH, SEND_FUA, ROTATIONAL, SEND_TRIM, SEND_ZEROES, SEND_DF, MULTI_CONN = (
    1 << n for n in range(9)
)
SEND_CACHE, SEND_FAST_ZERO = 1 << 10, 1 << 11
EPERM, EIO, EINVAL, ENOSPC, ENOTSUP = 1, 5, 22, 28, 95
ERRORS = {1, 5, 12, 22, 28, 75, 95, 108}
OPTION_MAGIC, REPLY_MAGIC, REQUEST_MAGIC = b"IHAVEOPT", 0x3E889045565A9, 0x25609513
SIMPLE_MAGIC, CHUNK_MAGIC = 0x67446698, 0x668E33EF
CHUNK_NONE, CHUNK_DATA, CHUNK_HOLE, CHUNK_STATUS, CHUNK_ERROR, CHUNK_ERROR_OFFSET = 0, 1, 2, 5, 0x8001, 0x8002


class Closed(Exception):
    """The server closed the connection."""


@dataclass
class Answer:
    """The whole reply to one request."""

    error: int = 0
    text: str = ""
    structured: bool = False
    data: bytes = b""
    # Content chunks of a read, as (offset, length, whether it is a hole).
    chunks: list = field(default_factory=list)
    # Extents of a block status reply, as (length, flags), and their context.
    extents: list = field(default_factory=list)
    context: int = 0


def string(text):
    """A string with its length before it."""
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack(">I", len(data)) + data


def info(name, asked=()):
    """Data of OPT_INFO and OPT_GO."""
    return string(name) + struct.pack(f">H{len(asked)}H", len(asked), *asked)


def contexts(name, queries):
    """Data of the two options for metadata contexts."""
    return string(name) + struct.pack(">I", len(queries)) + b"".join(map(string, queries))


class Raw:
    """One connection. `flags=None` leaves the handshake before the client flags."""

    def __init__(self, address, flags=3, seconds=20):
        self.sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        self.sock.settimeout(seconds)
        self.sock.connect(address)
        self.cookie = 0
        self.context = None
        self.sent = {}
        self.greeting = self.take(18)
        if flags is not None:
            self.send(struct.pack(">I", flags))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def send(self, data):
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Closed from error

    def take(self, count):
        """Exactly `count` bytes."""
        out = bytearray()
        while len(out) < count:
            try:
                now = self.sock.recv(min(count - len(out), 1 << 20))
            except ConnectionResetError as error:
                raise Closed from error
            if not now:
                raise Closed
            out += now
        return bytes(out)

    def expect_closed(self):
        """The next event is the end of the connection, not a byte."""
        try:
            byte = self.take(1)
        except Closed:
            return
        raise AssertionError(f"the server sent {byte!r} instead of closing")

    def reset(self):
        """Ends the connection with RST, as a killed client does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    # The handshake.

    def option(self, option, data=b"", length=None, magic=OPTION_MAGIC):
        length = len(data) if length is None else length
        self.send(magic + struct.pack(">II", option, length) + data)

    def reply(self, option):
        """One reply to `option`, as (type, data)."""
        magic, of, kind, length = struct.unpack(">QIII", self.take(20))
        assert magic == REPLY_MAGIC, f"reply magic {magic:#x}"
        assert of == option, f"a reply to option {of}, asked {option}"
        assert length <= 1 << 16, f"a reply of {length} bytes"
        data = self.take(length)
        if kind >> 31:
            data.decode()
        return kind, data

    def ask(self, option, data=b"", length=None):
        """All replies to an option: the type of the last, and the others as (type, data)."""
        self.option(option, data, length)
        out = []
        while True:
            kind, data = self.reply(option)
            if kind == REP_ACK or kind >> 31:
                assert kind != REP_ACK or not data, "an ACK carries no data"
                return kind, out
            out.append((kind, data))

    def described(self, option=OPT_GO, name="", asked=()):
        """OPT_INFO or OPT_GO that succeeds: its items by type."""
        kind, replies = self.ask(option, info(name, asked))
        assert kind == REP_ACK, f"option {option} for {name!r}: {kind:#x}"
        items = {}
        for kind, data in replies:
            assert kind == REP_INFO, f"reply type {kind:#x}"
            key = struct.unpack(">H", data[:2])[0]
            assert key not in items, f"information {key} came twice"
            items[key] = data[2:]
        assert len(items[INFO_EXPORT]) == 10, "the length of NBD_INFO_EXPORT"
        return items

    def go(self, name="", structured=True, status=True):
        """The usual way into transmission: gives (size, transmission flags)."""
        if structured:
            assert self.ask(OPT_STRUCTURED_REPLY)[0] == REP_ACK
            if status:
                kind, replies = self.ask(OPT_SET_META_CONTEXT, contexts(name, ["base:allocation"]))
                assert (kind, len(replies)) == (REP_ACK, 1), f"{kind:#x} {replies}"
                self.context = struct.unpack(">I", replies[0][1][:4])[0]
        return struct.unpack(">QH", self.described(OPT_GO, name, [INFO_BLOCK_SIZE])[INFO_EXPORT])

    # Transmission.

    def header(self, kind, offset, length, flags=0, cookie=0, magic=REQUEST_MAGIC):
        return struct.pack(">IHHQQI", magic, flags, kind, cookie, offset, length)

    def request(self, kind, offset=0, length=0, flags=0, payload=None, cookie=None):
        """Sends one request and gives its cookie. A write without `payload` carries zeros."""
        if cookie is None:
            self.cookie += 1
            cookie = self.cookie
        if payload is None:
            payload = bytes(length) if kind == WRITE else b""
        self.sent[cookie] = (kind, offset, length, flags)
        self.send(self.header(kind, offset, length, flags, cookie) + payload)
        return cookie

    def one(self, *args, **more):
        """Sends one request and gives its answer."""
        cookie = self.request(*args, **more)
        return self.answers(1)[cookie]

    def answers(self, count):
        """The next `count` whole replies, by cookie, in the order in which they ended."""
        begun, ended = {}, {}
        while len(ended) < count:
            magic = struct.unpack(">I", self.take(4))[0]
            if magic == SIMPLE_MAGIC:
                cookie, answer, done = self._simple()
            else:
                assert magic == CHUNK_MAGIC, f"reply magic {magic:#x}"
                cookie, answer, done = self._chunk(begun)
            if done:
                begun.pop(cookie, None)
                ended[cookie] = answer
                self._judge(cookie, answer)
        return ended

    def _simple(self):
        error, cookie = struct.unpack(">IQ", self.take(12))
        kind, _, length, _ = self.sent[cookie]
        answer = Answer(error)
        if kind == READ and not error:
            answer.data = self.take(length)
        return cookie, answer, True

    def _chunk(self, begun):
        flags, kind, cookie, length = struct.unpack(">HHQI", self.take(16))
        assert flags in (0, 1), f"chunk flags {flags:#x}"
        asked, start, asked_length, _ = self.sent[cookie]
        fresh = Answer(structured=True, data=bytes(asked_length) if asked == READ else b"")
        answer = begun.setdefault(cookie, fresh)
        if kind == CHUNK_DATA:
            assert asked == READ and length >= 9, "a data chunk answers a read with a byte or more"
            at = struct.unpack(">Q", self.take(8))[0]
            data = self.take(length - 8)
            answer.chunks.append((at, length - 8, False))
            at -= start
            answer.data = data if len(data) == asked_length else answer.data[:at] + data + answer.data[at + len(data) :]
        elif kind == CHUNK_HOLE:
            assert asked == READ and length == 12, "the length of a hole chunk"
            at, size = struct.unpack(">QI", self.take(12))
            answer.chunks.append((at, size, True))
        elif kind == CHUNK_STATUS:
            assert asked == STATUS and length % 8 == 4 and length > 4, f"a status chunk of {length} bytes"
            payload = self.take(length)
            assert not answer.extents, "one status chunk for a context"
            answer.context = struct.unpack(">I", payload[:4])[0]
            answer.extents = list(struct.iter_unpack(">II", payload[4:]))
        elif kind in (CHUNK_ERROR, CHUNK_ERROR_OFFSET):
            payload = self.take(length)
            answer.error, size = struct.unpack(">IH", payload[:6])
            assert answer.error and length == size + (6 if kind == CHUNK_ERROR else 14), "the length of an error chunk"
            answer.text = payload[6 : 6 + size].decode()
        else:
            assert kind == CHUNK_NONE and length == 0 and flags == 1, f"chunk type {kind:#x}"
        return cookie, answer, flags == 1

    def _judge(self, cookie, answer):
        """What the protocol demands of any whole reply."""
        kind, offset, length, flags = self.sent.pop(cookie)
        assert answer.error == 0 or answer.error in ERRORS, f"error value {answer.error}"
        if kind == READ and self.context is not None:
            assert answer.structured, "a read is answered in chunks once that was negotiated"
        if kind == READ and answer.structured and not answer.error:
            at = offset
            for start, size, _ in sorted(answer.chunks):
                assert start == at and size > 0, f"chunks {answer.chunks} of a read at {offset}+{length}"
                at += size
            assert at == offset + length, f"chunks {answer.chunks} of a read at {offset}+{length}"
            assert not flags & DF or len(answer.chunks) == 1, "DF allows one content chunk"
        if kind == STATUS and not answer.error:
            assert answer.structured and answer.context == self.context, f"context {answer.context}"
            sizes = [size for size, _ in answer.extents]
            assert sizes and all(size and size % 512 == 0 for size in sizes), f"extents {answer.extents}"
            assert not flags & REQ_ONE or len(sizes) == 1 and sizes[0] <= length, "REQ_ONE: one extent, inside the request"
