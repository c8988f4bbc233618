"""Checks of the transmission phase: every command with every flag, and every length and offset that is wrong."""

import random
import struct

from raw import *  # noqa: F403 - the protocol's constants
from world import MIB, noise

LEGAL = {
    READ: FUA | DF,
    WRITE: FUA,
    FLUSH: FUA,
    TRIM: FUA,
    ZEROES: FUA | NO_HOLE | FAST_ZERO,
    STATUS: FUA | REQ_ONE,
}
KEEP = 1 << 20
PAST = {READ: EINVAL, WRITE: ENOSPC, TRIM: EINVAL, ZEROES: ENOSPC, STATUS: EINVAL}


def alive(client):
    """The connection is still in step."""
    assert len(client.one(READ, KEEP, 4096).data) == 4096


def flag_check(export, kind, bit, structured):
    """A documented flag is taken, any other is EINVAL and changes nothing; the connection goes on."""
    flag = 1 << bit
    with export.enter(structured) as client:
        before = noise(8192, kind)
        assert client.one(WRITE, 0, 8192, payload=before).error == 0
        legal = bool(LEGAL[kind] & flag) and (structured or flag != DF) and (structured or kind != STATUS)
        offset, length = (0, 0) if kind == FLUSH else (0, 4096)
        answer = client.one(kind, offset, length, flag)
        assert answer.error == (0 if legal else EINVAL), f"error {answer.error}"
        after = client.one(READ, 0, 8192).data
        if not legal or kind in (READ, FLUSH, STATUS):
            assert after == before, "a refused request changed the data"
        elif kind in (WRITE, ZEROES):
            assert after == bytes(4096) + before[4096:]
        alive(client)


def range_check(export, kind, offset, length, expect):
    with export.enter() as client:
        assert client.one(kind, offset, length).error in expect
        alive(client)


def no_disconnect(export, kind, flags):
    """Length 0 is unspecified, and no reason to disconnect."""
    with export.enter() as client:
        assert client.one(kind, 4096, 0, flags).error in (0, EINVAL)
        alive(client)


def unknown_command(export, kind, flags):
    with export.enter() as client:
        assert client.one(kind, 0, 4096, flags).error == EINVAL
        alive(client)


def bad_magic(export, magic):
    with export.enter() as client:
        client.send(client.header(READ, 0, 512, magic=magic))
        client.expect_closed()


def cut_header(export, cut):
    with export.enter() as client:
        client.send(client.header(READ, 0, 512)[:cut])
    with export.enter() as client:
        alive(client)


def cut_payload(export, cut):
    """A write whose payload never came whole does not happen."""
    with export.enter() as client:
        before = noise(65536, cut)
        client.one(WRITE, 0, 65536, payload=before)
        client.send(client.header(WRITE, 0, 65536) + b"\xaa" * cut)
    with export.enter() as client:
        assert client.one(READ, 0, 65536).data == before


def big_write(export, length):
    """A write above the maximum is refused with EINVAL after its payload, or ends the connection."""
    with export.enter() as client:
        before = client.one(READ, 0, 4096).data
        try:
            assert client.one(WRITE, 0, length, payload=b"\xee" * length).error == EINVAL
            alive(client)
        except Closed:
            assert length > 32 * MIB + 512, "payloads up to 32 MiB are no attack"
    with export.enter() as client:
        assert client.one(READ, 0, 4096).data == before


def claimed_write(export):
    """A write that claims 4 GiB is not waited for."""
    with export.enter(seconds=5) as client:
        client.send(client.header(WRITE, 0, 0xFFFFFE00))
        client.expect_closed()


def largest(export, structured):
    with export.enter(structured) as client:
        data = noise(32 * MIB, 5)
        assert client.one(WRITE, 64 * MIB, len(data), payload=data).error == 0
        assert client.one(READ, 64 * MIB, len(data)).data == data
        if structured:
            assert client.one(READ, 64 * MIB, len(data), DF).error == 0
        assert client.one(ZEROES, 64 * MIB, len(data)).error == 0
        assert not any(client.one(READ, 64 * MIB, MIB).data)


def holes_in_read(export, flags):
    """Data beside a hole: chunks that fit together, or with DF one chunk with the zeros in it."""
    with export.enter() as client:
        client.one(ZEROES, 128 * MIB, MIB)
        data = noise(4096, 3)
        client.one(WRITE, 128 * MIB + 32768, 4096, payload=data)
        answer = client.one(READ, 128 * MIB, 65536, flags)
        assert answer.data == bytes(32768) + data + bytes(28672)
        if flags & DF:
            assert answer.chunks == [(128 * MIB, 65536, False)], answer.chunks


def whole_status(client, offset, end):
    """The map from `offset` to `end`, asked for until it is complete."""
    out = []
    while offset < end:
        answer = client.one(STATUS, offset, end - offset)
        assert answer.error == 0
        for size, flags in answer.extents:
            out.append((offset, size, flags))
            offset += size
    return out


def status_follows(export):
    """A hole is reported as one, data is not, NO_HOLE allocates, and zeroed or trimmed ranges read as zeros."""
    with export.enter() as client:
        base = 192 * MIB
        assert client.one(ZEROES, base, 8 * MIB).error == 0
        assert client.one(WRITE, base + MIB, MIB, payload=noise(MIB, 9)).error == 0
        assert client.one(ZEROES, base + 4 * MIB, MIB, NO_HOLE).error == 0
        flags_at = {}
        for at, size, flags in whole_status(client, base, base + 8 * MIB):
            for block in range(at, min(at + size, base + 8 * MIB), 65536):
                flags_at[block - base] = flags
        assert flags_at[MIB] == 0 and flags_at[2 * MIB - 65536] == 0, "data is neither hole nor zero"
        assert flags_at[0] == 3 and flags_at[7 * MIB] == 3, "what was never written is a hole"
        assert not flags_at[4 * MIB] & 1, "NO_HOLE provisions"
        assert not any(client.one(READ, base + 4 * MIB, MIB).data)
        client.one(TRIM, base + MIB, MIB)
        assert client.one(READ, base + MIB, MIB).error == 0


def status_alternates(export):
    """Consecutive extents differ, and REQ_ONE gives the first of them."""
    with export.enter() as client:
        base = 200 * MIB
        client.one(ZEROES, base, 40 * MIB)
        for n in range(0, 40, 2):
            client.one(WRITE, base + n * MIB, 65536, payload=noise(65536, n))
        found = client.one(STATUS, base, 40 * MIB).extents
        assert len(found) > 20, found
        assert all(a[1] != b[1] for a, b in zip(found, found[1:])), found
        first = client.one(STATUS, base, 40 * MIB, REQ_ONE).extents
        assert first == found[:1], (first, found[0])


def fast_zero(export, flags, expect):
    """FAST_ZERO succeeds, or fails with ENOTSUP and leaves the data alone."""
    with export.enter() as client:
        data = noise(MIB, 1)
        client.one(WRITE, 0, MIB, payload=data)
        error = client.one(ZEROES, 0, MIB, flags).error
        assert error in expect, error
        assert client.one(READ, 0, MIB).data == (data if error else bytes(MIB))


def small_writes(export):
    """Writes of 512 bytes and across the borders of blocks, parts and chunks, against a model."""
    with export.enter() as client:
        for border in (4096, 65536, 512 << 10, 16 * MIB):
            base = border - 8192 if border > 8192 else 0
            span = 16384
            client.one(ZEROES, base, span)
            model, draw = bytearray(span), random.Random(border)
            for _ in range(40):
                at = draw.randrange(span // 512) * 512
                length = draw.randrange(1, min(9, (span - at) // 512 + 1)) * 512
                data = draw.randbytes(length)
                assert client.one(WRITE, base + at, length, payload=data).error == 0
                model[at : at + length] = data
                assert client.one(READ, base, span).data == model


def random_operations(export, seed):
    """Two hundred operations of every kind against a model."""
    draw, span, base = random.Random(seed), 2 * MIB, 15 * MIB
    with export.enter() as client:
        client.one(ZEROES, base, span)
        model = bytearray(span)
        for _ in range(200):
            at = draw.randrange(span // 512) * 512
            length = min(draw.choice([512, 4096, 12288, 65536, 300032]), span - at)
            kind = draw.choice([READ, READ, WRITE, WRITE, ZEROES, FLUSH, STATUS])
            flags = draw.choice([0, FUA])
            if kind == WRITE:
                data = draw.randbytes(length)
                assert client.one(WRITE, base + at, length, flags, payload=data).error == 0
                model[at : at + length] = data
            elif kind == ZEROES:
                assert client.one(ZEROES, base + at, length, flags | draw.choice([0, NO_HOLE])).error == 0
                model[at : at + length] = bytes(length)
            elif kind == READ:
                assert client.one(READ, base + at, length).data == model[at : at + length]
            elif kind == STATUS:
                for start, size, state in whole_status(client, base + at, base + at + length):
                    start -= base
                    assert not state & 2 or not any(model[start : min(start + size, at + length)]), "zero, but it is not"
            else:
                assert client.one(FLUSH, flags=flags).error == 0
        assert client.one(READ, base, span).data == model


def cookies(export):
    with export.enter() as client:
        for cookie in (0, 1, 1 << 63, (1 << 64) - 1):
            assert client.one(READ, 0, 512, cookie=cookie).error == 0


def same_cookie(export):
    """Cookies that are not distinct get as many replies."""
    with export.enter(structured=False) as client:
        for _ in range(8):
            client.send(client.header(FLUSH, 0, 0, cookie=9))
        for _ in range(8):
            assert client.take(16) == struct.pack(">IIQ", SIMPLE_MAGIC, 0, 9)


def error_text(export):
    with export.enter() as client:
        answer = client.one(READ, export.size, 512)
        assert answer.structured and answer.error == EINVAL


def read_only(export, kind, flags):
    """A write to a read-only export is EPERM, its payload is taken, and the data stays."""
    with export.enter() as client:
        before = client.one(READ, KEEP, 8192).data
        answer = client.one(kind, KEEP, 4096, flags, payload=b"\x99" * 4096 if kind == WRITE else b"")
        assert answer.error == EPERM, answer.error
        assert client.one(READ, KEEP, 8192).data == before


def read_only_serves(export, writer):
    """A read-only opener sees what the writer beside it was acknowledged."""
    with export.enter() as client, writer.enter() as writing:
        for n in range(5):
            data = noise(4096, n)
            assert writing.one(WRITE, KEEP, 4096, payload=data).error == 0
            assert client.one(READ, KEEP, 4096).data == data
        assert client.one(FLUSH).error == 0
        assert client.one(STATUS, KEEP, 4096).extents[0][1] == 0
        assert client.one(READ, export.size, 512).error == EINVAL


def checks(world):
    export = world.unix
    for structured, how in [(True, "structured"), (False, "simple")]:
        for kind, name in NAMES.items():
            for bit in range(16):
                yield f"{name} with flag bit {bit}, {how}", flag_check, export, kind, bit, structured
        yield f"32 MiB at once, {how}", largest, export, structured
    end = export.size
    for kind, error in PAST.items():
        name = NAMES[kind]
        for title, offset in {"at": end, "across": end - 512, "far past": 1 << 62, "2^64-1024": (1 << 64) - 1024}.items():
            yield f"{name} {title} the end", range_check, export, kind, offset, 1024, (error,)
        yield f"{name} of the last sector", range_check, export, kind, end - 512, 512, (0,)
        for offset, length in [(1, 512), (511, 512), (0, 1), (0, 511), (0, 513), (100, 100)]:
            wrong = (EINVAL,)
            yield f"{name} unaligned {offset}+{length}", range_check, export, kind, offset, length, wrong
        for flags in (0, FUA):
            yield f"{name} of length 0, flags {flags}", no_disconnect, export, kind, flags
    for length in (32 * MIB + 512, 0xFFFFFE00):
        yield f"READ of {length}", range_check, export, READ, 0, length, (EINVAL,)
    for kind in (TRIM, ZEROES):
        whole = (0, EINVAL)
        yield f"{NAMES[kind]} of 4 GiB", range_check, export, kind, 0, 0xFFFFFE00, (PAST[kind], EINVAL)
        yield f"{NAMES[kind]} of the whole volume", range_check, world.tool, kind, 0, world.tool.size, whole
    yield "BLOCK_STATUS of the whole volume", range_check, export, STATUS, 0, end, (0,)
    for length in (32 * MIB + 512, 48 * MIB, 80 * MIB):
        yield f"WRITE of {length}", big_write, export, length
    yield "WRITE that claims 4 GiB", claimed_write, export
    for kind in (CACHE, 8, 9, 100, 65535):
        for flags in (0, FUA, DF):
            yield f"unknown command {kind}, flags {flags}", unknown_command, export, kind, flags
    for magic in (0, 0x25609514, 0x21E41C71, CHUNK_MAGIC):
        yield f"request magic {magic:#x} ends the connection", bad_magic, export, magic
    for cut in (1, 4, 16, 27):
        yield f"request header cut after {cut} bytes", cut_header, export, cut
    for cut in (0, 1, 4096, 65535):
        yield f"WRITE cut after {cut} bytes of payload", cut_payload, export, cut
    for flags in (0, DF):
        yield f"READ of data beside holes, flags {flags}", holes_in_read, export, flags
    yield "BLOCK_STATUS follows writes, zeroes and trims", status_follows, export
    yield "BLOCK_STATUS alternates, REQ_ONE gives the first", status_alternates, export
    yield "WRITE_ZEROES with FAST_ZERO", fast_zero, export, FAST_ZERO, (0, ENOTSUP)
    yield "WRITE_ZEROES with FAST_ZERO and NO_HOLE", fast_zero, export, FAST_ZERO | NO_HOLE, (0, ENOTSUP)
    yield "WRITE_ZEROES with NO_HOLE never fails with ENOTSUP", fast_zero, export, NO_HOLE, (0,)
    yield "sectors and borders against a model", small_writes, export
    for seed in range(3):
        yield f"random operations against a model, seed {seed}", random_operations, export, seed
    yield "any cookie", cookies, export
    yield "the same cookie eight times", same_cookie, export
    yield "errors of reads come in chunks", error_text, export
    for kind in (WRITE, TRIM, ZEROES):
        for flags in (0, FUA):
            yield f"read-only: {NAMES[kind]} with flags {flags}", read_only, world.read_only, kind, flags
    yield "read-only: reads follow the writer", read_only_serves, world.read_only, world.unix
