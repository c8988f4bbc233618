"""Checks of the handshake: every option, legal and malformed, over both transports."""

import contextlib
import functools
import struct

from raw import *  # noqa: F403 - the protocol's constants

CONTEXT = b"base:allocation"


def greeting(export):
    with export.raw(flags=None) as client:
        assert client.greeting == b"NBDMAGICIHAVEOPT\0\3", client.greeting


def client_flags_refused(export, flags):
    with export.raw(flags=flags) as client:
        with contextlib.suppress(Closed):
            client.option(OPT_LIST)
        client.expect_closed()


def export_name(export, flags, name):
    """The old way in: size, transmission flags, 124 zeros unless NO_ZEROES was agreed on, then transmission."""
    with export.raw(flags=flags) as client:
        client.option(OPT_EXPORT_NAME, name.encode())
        size, transmission = struct.unpack(">QH", client.take(10))
        assert size == export.size and transmission & HAS_FLAGS, (size, transmission)
        assert not transmission & SEND_DF, "DF needs structured replies"
        if not flags & 2:
            assert client.take(124) == bytes(124)
        assert len(client.one(READ, 0, 4096).data) == 4096


def export_name_refused(export, name):
    with export.raw() as client:
        with contextlib.suppress(Closed):
            client.option(OPT_EXPORT_NAME, name)
        client.expect_closed()
    greeting(export)


def export_name_structured(export):
    """Structured replies and a context are kept by the old way in."""
    with export.raw() as client:
        assert client.ask(OPT_STRUCTURED_REPLY)[0] == REP_ACK
        _, replies = client.ask(OPT_SET_META_CONTEXT, contexts(export.name, [CONTEXT]))
        client.context = struct.unpack(">I", replies[0][1][:4])[0]
        client.option(OPT_EXPORT_NAME, export.name.encode())
        size, flags = struct.unpack(">QH", client.take(10))
        assert size == export.size and flags & SEND_DF
        assert client.one(READ, 0, 4096).structured
        assert client.one(STATUS, 0, 4096).extents


def described(export, option, name, asked):
    with export.raw() as client:
        items = client.described(option, name, asked)
        assert struct.unpack(">Q", items[INFO_EXPORT][:8])[0] == export.size
        if INFO_NAME in items:
            assert items[INFO_NAME] == export.name.encode(), items
        if option == OPT_GO:
            assert client.one(READ, 0, 512).error == 0
        else:
            client.go(name)


def name_refused(export, option, name):
    """An unknown export is an error reply, and the next option is taken."""
    with export.raw() as client:
        kind, replies = client.ask(option, info(name))
        assert kind in (ERR_UNKNOWN, ERR_INVALID) and not replies, f"{kind:#x} {replies}"
        client.go(export.name)
        assert client.one(READ, 0, 512).error == 0


def malformed(export, option, data, structured):
    with export.raw() as client:
        if structured:
            client.ask(OPT_STRUCTURED_REPLY)
        kind, replies = client.ask(option, data)
        assert kind == ERR_INVALID and not replies, f"{kind:#x} {replies}"
        client.go()
        assert client.one(READ, 0, 512).error == 0


def info_and_go_agree(export):
    asked = [INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE]
    with export.raw() as client:
        assert client.described(OPT_INFO, "", asked) == client.described(OPT_GO, "", asked)


def block_sizes(export):
    """The announced sizes keep the rules of "Block size constraints"."""
    with export.raw() as client:
        items = client.described(OPT_GO, "", [INFO_BLOCK_SIZE])
        low, preferred, high = struct.unpack(">III", items[INFO_BLOCK_SIZE])
        assert low & (low - 1) == 0 and low <= 1 << 16 and export.size % low == 0
        assert preferred & (preferred - 1) == 0 and preferred >= max(low, 512)
        assert high % low == 0 and high >= max(preferred, 1 << 20)
        assert client.one(READ, 0, low).error == 0
        assert client.one(READ, 0, high).error == 0
        assert client.one(READ, 0, high + low).error == EINVAL
        assert client.one(READ, low // 2, low).error == EINVAL


def flags(export, structured, read_only):
    with export.raw() as client:
        _, have = client.go(structured=structured)
    assert have & HAS_FLAGS and have & SEND_FLUSH and have & SEND_FUA and have & MULTI_CONN
    assert bool(have & SEND_DF) == structured
    assert bool(have & READ_ONLY) == read_only
    assert not (read_only and have & (SEND_TRIM | SEND_ZEROES)), "a read-only export offers no writes"
    assert read_only or have & SEND_TRIM and have & SEND_ZEROES
    assert have & SEND_ZEROES or not have & SEND_FAST_ZERO
    assert not have & ~0xDFF, f"flags {have:#x} hold some that no standard feature has"


def listing(export):
    with export.raw() as client:
        kind, replies = client.ask(OPT_LIST)
        assert kind == REP_ACK
        names = []
        for kind, data in replies:
            assert kind == REP_SERVER
            length = struct.unpack(">I", data[:4])[0]
            names.append(data[4 : 4 + length].decode())
        assert names == [export.name], names
        client.go(names[0])


def abort(export, data):
    with export.raw() as client:
        client.option(OPT_ABORT, data)
        assert client.reply(OPT_ABORT) == (REP_ACK, b"")
        client.expect_closed()


def unsupported(export, option, size):
    with export.raw() as client:
        kind, _ = client.ask(option, bytes(size))
        allowed = (ERR_UNSUP, ERR_POLICY, ERR_INVALID) if option == OPT_STARTTLS else (ERR_UNSUP,)
        assert kind in allowed, f"{kind:#x}"
        client.go()
        assert client.one(READ, 0, 512).error == 0


def structured_reply(export, data, expect):
    """Data with OPT_STRUCTURED_REPLY refuses it: reads are then answered simply."""
    with export.raw() as client:
        assert client.ask(OPT_STRUCTURED_REPLY, data)[0] == expect
        client.described(OPT_GO)
        assert client.one(READ, 0, 4096).structured == (expect == REP_ACK)


def names_of(replies):
    assert all(kind == REP_META_CONTEXT for kind, _ in replies), replies
    return [data[4:] for _, data in replies]


def list_contexts(export, queries, expect):
    with export.raw() as client:
        client.ask(OPT_STRUCTURED_REPLY)
        kind, replies = client.ask(OPT_LIST_META_CONTEXT, contexts(export.name, queries))
        assert kind == REP_ACK and names_of(replies) == expect, f"{kind:#x} {replies}"
        client.described(OPT_GO)
        assert client.one(STATUS, 0, 4096).error == EINVAL, "a listed context is not a selected one"


def set_contexts(export, queries, expect):
    """BLOCK_STATUS works exactly when a context was selected."""
    with export.raw() as client:
        client.ask(OPT_STRUCTURED_REPLY)
        kind, replies = client.ask(OPT_SET_META_CONTEXT, contexts(export.name, queries))
        assert kind == REP_ACK and names_of(replies) == expect, f"{kind:#x} {replies}"
        if replies:
            client.context = struct.unpack(">I", replies[0][1][:4])[0]
        client.described(OPT_GO, export.name)
        answer = client.one(STATUS, 0, 4096)
        assert bool(answer.extents) == bool(expect) and answer.error == (0 if expect else EINVAL)


def contexts_refused(export, option, name, structured, expect):
    with export.raw() as client:
        if structured:
            client.ask(OPT_STRUCTURED_REPLY)
        kind, _ = client.ask(option, contexts(name, [CONTEXT]))
        assert kind in expect, f"{kind:#x}"
        client.go()
        assert client.one(STATUS, 0, 4096).extents


def set_replaces(export, second):
    """A later OPT_SET_META_CONTEXT replaces the selection, also when it fails or selects nothing."""
    with export.raw() as client:
        client.ask(OPT_STRUCTURED_REPLY)
        assert len(client.ask(OPT_SET_META_CONTEXT, contexts("", [CONTEXT]))[1]) == 1
        client.ask(OPT_SET_META_CONTEXT, second)
        client.described(OPT_GO)
        assert client.one(STATUS, 0, 4096).error == EINVAL


def oversize(export, option, size):
    """Data that is too long is an error reply, or the end of the connection when it looks like an attack."""
    with export.raw() as client:
        try:
            kind, _ = client.ask(option, bytes(size))
        except Closed:
            assert size > 1 << 16, f"{size} bytes are no attack"
        else:
            assert kind in (ERR_TOO_BIG, ERR_INVALID, ERR_UNSUP, ERR_UNKNOWN), f"{kind:#x}"
            client.go()
            assert client.one(READ, 0, 512).error == 0
    greeting(export)


def huge_length(export, option):
    """A length of 4 GiB does not make the server wait for it or hold it."""
    with export.raw(seconds=5) as client:
        client.option(option, b"", length=0xFFFFFFFF)
        client.expect_closed()
    greeting(export)


def wrong_magic(export, magic):
    with export.raw() as client:
        client.option(OPT_LIST, magic=magic)
        client.expect_closed()
    greeting(export)


def half_written(export, cut):
    data = struct.pack(">I", 3) + OPTION_MAGIC + struct.pack(">II", OPT_GO, len(info(export.name))) + info(export.name)
    with export.raw(flags=None) as client:
        client.send(data[:cut])
    with export.raw(flags=None) as client:
        client.send(data[:cut])
        client.reset()
    with export.enter() as client:
        assert client.one(READ, 0, 512).error == 0


def byte_by_byte(export):
    data = struct.pack(">I", 3) + OPTION_MAGIC + struct.pack(">II", OPT_GO, 6) + info("")
    with export.raw(flags=None) as client:
        for n in range(len(data)):
            client.send(data[n : n + 1])
        while client.reply(OPT_GO)[0] != REP_ACK:
            pass
        assert client.one(READ, 0, 512).error == 0


def all_at_once(export):
    """Flags, options and requests in one segment."""
    option = lambda kind, data=b"": OPTION_MAGIC + struct.pack(">II", kind, len(data)) + data
    with export.raw(flags=None) as client:
        begin = struct.pack(">I", 3) + option(OPT_LIST) + option(OPT_STRUCTURED_REPLY) + option(OPT_GO, info(""))
        client.sent[7] = (READ, 0, 4096, 0)
        client.send(begin + client.header(READ, 0, 4096, cookie=7) + client.header(DISC, 0, 0))
        for kind in (OPT_LIST, OPT_LIST, OPT_STRUCTURED_REPLY):
            client.reply(kind)
        while client.reply(OPT_GO)[0] != REP_ACK:
            pass
        assert list(client.answers(1)) == [7]
        client.expect_closed()


def many_options(export):
    with export.raw() as client:
        for _ in range(100):
            assert client.ask(OPT_LIST)[0] == REP_ACK
        client.go()


def endless_options(export):
    """A client that haggles for ever is an attack: it may be hung up on, and others are served."""
    with export.raw() as client, contextlib.suppress(Closed):
        for _ in range(2000):
            client.ask(OPT_LIST)
    greeting(export)


def checks(world):
    for export, where in [(world.unix, "unix"), (world.tcp, "tcp")]:
        for name, check, *args in transport_checks(export):
            yield f"{name}, {where}", functools.partial(check, export), *args
    for structured in (False, True):
        kind = "structured" if structured else "simple"
        yield f"transmission flags, {kind}", flags, world.unix, structured, False
        yield f"transmission flags, read-only, {kind}", flags, world.read_only, structured, True
    for option in (OPT_INFO, OPT_GO):
        yield f"option {option} describes a read-only export", described, world.read_only, option, "main/unix", []


def transport_checks(export):
    yield "greeting", greeting
    for bits in (4, 1 << 16, 1 << 31, 0xFFFFFFFF):
        yield f"unknown client flags {bits:#x} end the connection", client_flags_refused, bits
    for bits in range(4):
        for name in ("", export.name):
            yield f"EXPORT_NAME {name!r} with client flags {bits}", export_name, bits, name
    yield "EXPORT_NAME after structured replies and a context", export_name_structured
    full = export.name.encode()
    unknown = [b"other", full[:-1], full + b"/", full.upper(), full + b"\0", b"\xff\xfe", b"x" * 4096]
    for name in [*unknown, b"x" * 5000]:
        yield f"EXPORT_NAME {name[:12]!r}*{len(name)} is refused", export_name_refused, name
    for option, title in [(OPT_INFO, "INFO"), (OPT_GO, "GO")]:
        for name in ("", export.name):
            for asked in ([], [INFO_NAME], [INFO_DESCRIPTION], [INFO_BLOCK_SIZE], [0, 1, 2, 3], [77, 65535]):
                yield f"{title} {name!r} asks for {asked}", described, option, name, asked
        for name in [*unknown, b"x" * 5000]:
            yield f"{title} {name[:12]!r}*{len(name)} is refused", name_refused, option, name
        good = info(export.name, [1, 2])
        broken = {"empty": b"", "3 bytes": b"abc", "name past the end": string("a" * 9)[:8], "no count": string("")}
        broken |= {"count past the end": good[:-1], "trailing byte": good + b"x", "length 2^32-1": b"\xff" * 4 + good[4:]}
        for kind, data in broken.items():
            yield f"{title} malformed: {kind}", malformed, option, data, False
    yield "INFO and GO agree", info_and_go_agree
    yield "block sizes are announced and enforced", block_sizes
    yield "LIST", listing
    yield "LIST with data", malformed, OPT_LIST, b"x", False
    for data in (b"", b"bye"):
        yield f"ABORT with data {data!r}", abort, data
    for option in (OPT_STARTTLS, 0, 4, 11, 12, 255, 0xFFFFFFFF):
        for size in (0, 5, 4096):
            yield f"unknown option {option:#x} with {size} bytes", unsupported, option, size
    yield "STRUCTURED_REPLY", structured_reply, b"", REP_ACK
    yield "STRUCTURED_REPLY with data", structured_reply, b"x", ERR_INVALID
    yield from context_checks(export)
    for option in (OPT_LIST, OPT_GO, OPT_SET_META_CONTEXT, OPT_ABORT + 97):
        for size in (16 << 10, (16 << 10) + 1, 1 << 20, 4 << 20):
            yield f"option {option} with {size} bytes", oversize, option, size
    for option in (OPT_EXPORT_NAME, OPT_LIST, OPT_GO):
        yield f"option {option} announces 4 GiB", huge_length, option
    for magic in (b"\0" * 8, b"IHAVEOPU", struct.pack(">Q", REPLY_MAGIC)):
        yield f"option magic {magic.hex()}", wrong_magic, magic
    for cut in (0, 1, 3, 4, 5, 12, 16, 19, 20, 23, 25, 28):
        yield f"handshake cut after {cut} bytes", half_written, cut
    yield "handshake byte by byte", byte_by_byte
    yield "handshake and requests at once", all_at_once
    yield "100 options", many_options
    yield "options without end", endless_options


def context_checks(export):
    known = [CONTEXT]
    table = [
        ("nothing", [], known, []),
        ("base:", ["base:"], known, []),
        ("base:allocation", [CONTEXT], known, known),
        ("base:unknown", ["base:unknown"], [], []),
        ("an unknown namespace", ["x-other:", "qemu:dirty-bitmap:a"], [], []),
        ("known and unknown", ["x-other:z", CONTEXT, "base:more"], known, known),
        ("the same twice", [CONTEXT, CONTEXT], known, known),
        ("the wrong case", ["BASE:ALLOCATION", "base:Allocation"], [], []),
        ("50 unknown ones", [f"x-{n}:y" for n in range(50)], [], []),
        ("a long one", ["x-long:" + "y" * 4000], [], []),
    ]
    for title, queries, listed, selected in table:
        yield f"LIST_META_CONTEXT of {title}", list_contexts, queries, listed
        yield f"SET_META_CONTEXT of {title}", set_contexts, queries, selected
    good = contexts("", [CONTEXT])
    broken = {"empty": b"", "no count": string(""), "query past the end": good[:-1], "trailing byte": good + b"x"}
    broken |= {"more queries than sent": string("") + struct.pack(">I", 2) + string("base:")}
    broken |= {"2^32-1 queries": string("") + b"\xff" * 4, "length 2^32-1": string("") + b"\0\0\0\1" + b"\xff" * 4}
    for option, title in [(OPT_LIST_META_CONTEXT, "LIST"), (OPT_SET_META_CONTEXT, "SET")]:
        yield f"{title}_META_CONTEXT of an unknown export", contexts_refused, option, "other", True, (ERR_UNKNOWN,)
        soft = (ERR_INVALID,) if option == OPT_SET_META_CONTEXT else (ERR_INVALID, REP_ACK)
        yield f"{title}_META_CONTEXT without structured replies", contexts_refused, option, "", False, soft
        for kind, data in broken.items():
            yield f"{title}_META_CONTEXT malformed: {kind}", malformed, option, data, True
    second = {"nothing": contexts("", []), "an unknown one": contexts("", ["x-a:b"])}
    second |= {"a malformed one": good[:-1], "an unknown export": contexts("other", [CONTEXT])}
    for title, data in second.items():
        yield f"SET_META_CONTEXT is replaced by {title}", set_replaces, data
