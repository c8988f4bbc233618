"""Checks with libnbd: its view of the handshake, its commands, and pipelines of 128 requests."""

import errno
import random

import nbd
from kit import refused
from world import MIB, noise


def opened(export, prepare=lambda handle: None):
    handle = nbd.NBD()
    prepare(handle)
    handle.connect_uri(export.uri())
    return handle


def capabilities(export, read_only):
    handle = export.libnbd()
    assert handle.get_protocol() == "newstyle-fixed" and handle.get_structured_replies_negotiated()
    assert handle.get_size() == export.size and handle.is_read_only() == read_only
    assert handle.can_flush() and handle.can_fua() and handle.can_multi_conn() and handle.can_df()
    assert handle.can_trim() == handle.can_zero() == handle.can_fast_zero() == (not read_only)
    assert not handle.can_cache() and not handle.is_rotational() and not handle.get_tls_negotiated()
    assert handle.can_meta_context("base:allocation") and not handle.can_meta_context("base:other")
    sizes = [handle.get_block_size(n) for n in (nbd.SIZE_MINIMUM, nbd.SIZE_PREFERRED, nbd.SIZE_MAXIMUM)]
    assert sizes == [512, 4096, 32 * MIB], sizes
    handle.shutdown()


def option_mode(export):
    """List, info, contexts, and the way in, by hand."""
    handle = opened(export, lambda handle: (handle.set_opt_mode(True), handle.add_meta_context("base:allocation")))
    names = []
    assert handle.opt_list(lambda name, _: names.append(name)) == 1 and names == [export.name]
    found = []
    assert handle.opt_list_meta_context(lambda name: found.append(name)) == 1 and found == ["base:allocation"]
    handle.opt_info()
    assert handle.get_size() == export.size
    handle.set_export_name("missing")
    refused(errno.ENOENT, handle.opt_info)
    refused(errno.ENOENT, handle.opt_go)
    handle.set_export_name(export.name)
    handle.set_full_info(True)
    handle.opt_go()
    assert handle.get_canonical_export_name() == export.name
    assert len(handle.pread(512, 0)) == 512
    handle.shutdown()


def option_abort(export):
    handle = opened(export, lambda handle: handle.set_opt_mode(True))
    handle.opt_abort()
    assert handle.aio_is_closed()


def names(export):
    for name, good in {export.name: True, "": True, "missing": False, "main": False, export.name + "x": False}.items():
        handle = nbd.NBD()
        try:
            handle.connect_uri(export.uri(name))
        except nbd.Error:
            assert not good, f"{name!r} is refused"
        else:
            assert good, f"{name!r} is not refused"
            handle.shutdown()


def downgraded(export, structured, flags):
    """Old clients: without structured replies, without handshake flags."""

    def prepare(handle):
        handle.set_request_structured_replies(structured)
        handle.set_handshake_flags(flags)

    handle = opened(export, prepare)
    data = noise(128 << 10, flags)
    handle.pwrite(data, MIB, nbd.CMD_FLAG_FUA)
    assert handle.pread(len(data), MIB) == data
    handle.zero(4096, MIB)
    assert handle.pread(8192, MIB) == bytes(4096) + data[4096:8192]
    handle.flush()
    handle.shutdown()


def illegal(export, end, call, want):
    """A request that libnbd would not send by itself, and its errno."""
    handle = export.libnbd()
    refused(want, call, handle, end)
    assert len(handle.pread(512, 0)) == 512, "the connection goes on"
    handle.shutdown()


def read_only(export, call):
    handle = export.libnbd()
    refused(errno.EPERM, call, handle)
    handle.shutdown()


def block_status(export):
    """Extents agree with what was written, also with REQ_ONE."""
    handle = export.libnbd(strict=True)
    handle.zero(4 * MIB, 32 * MIB)
    handle.pwrite(noise(MIB, 4), 33 * MIB)
    extents = []
    handle.block_status(4 * MIB, 32 * MIB, lambda context, offset, entries, error: extents.extend(entries))
    assert extents[:6] == [MIB, 3, MIB, 0, 2 * MIB, 3], extents
    one = []
    flags = nbd.CMD_FLAG_REQ_ONE
    handle.block_status(4 * MIB, 32 * MIB, lambda context, offset, entries, error: one.extend(entries), flags)
    assert one == [MIB, 3], one
    handle.shutdown()


def structured_read(export, flags):
    handle = export.libnbd(strict=True)
    data = noise(8192, 6)
    handle.zero(MIB, 48 * MIB)
    handle.pwrite(data, 48 * MIB + 65536)
    seen = []
    chunk = lambda part, offset, status, error: seen.append((offset, len(part), status))
    got = handle.pread_structured(MIB, 48 * MIB, chunk, flags)
    assert got == bytes(65536) + data + bytes(MIB - 65536 - 8192)
    assert sum(length for _, length, _ in seen) == MIB
    assert not flags or len(seen) == 1, seen
    handle.shutdown()


def pipeline(export, structured, seed):
    """128 writes in flight, then 128 reads in flight in another order, then a mix."""
    handle = nbd.NBD()
    handle.set_request_structured_replies(structured)
    handle.connect_uri(export.uri())
    draw, slot, base = random.Random(seed), 64 << 10, 64 * MIB
    wanted, writes = {}, []
    for n in range(128):
        wanted[n] = draw.randbytes(draw.choice([512, 4096, 20480, slot]))
        writes.append(handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(wanted[n])), base + n * slot))
    drain(handle, writes)
    order, reads = list(wanted), {}
    draw.shuffle(order)
    buffers = {n: nbd.Buffer(len(wanted[n])) for n in order}
    for n in order:
        reads[n] = handle.aio_pread(buffers[n], base + n * slot)
    assert handle.aio_in_flight() == 128 or handle.aio_in_flight() > 0
    drain(handle, list(reads.values()))
    for n in order:
        assert buffers[n].to_bytearray() == wanted[n], f"slot {n}"
    mixed = []
    for n in order:
        half = nbd.Buffer.from_bytearray(bytearray(512))
        mixed.append(handle.aio_pwrite(half, base + n * slot) if n % 3 else handle.aio_flush())
    drain(handle, mixed)
    for n in order[:16]:
        expect = bytes(512) + wanted[n][512:] if n % 3 else wanted[n]
        assert handle.pread(len(expect), base + n * slot) == expect
    handle.shutdown()


def drain(handle, pending):
    """Waits for every command and takes its result."""
    pending = set(pending)
    while pending:
        handle.poll(5000)
        done = {cookie for cookie in pending if handle.aio_command_completed(cookie)}
        pending -= done


def overlapping(export):
    """Writes in flight to the same sectors: afterwards each block holds one of them, whole."""
    handle = export.libnbd()
    base, length = 80 * MIB, 16384
    fills = [bytes([n]) * length for n in range(1, 33)]
    pending = [handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(fill)), base) for fill in fills]
    drain(handle, pending)
    got = handle.pread(length, base)
    for at in range(0, length, 4096):
        assert len(set(got[at : at + 4096])) == 1 and got[at], "a block mixes two writes"
    assert handle.pread(length, base) == got
    handle.shutdown()


def checks(world):
    for export, where in [(world.unix, "unix"), (world.tcp, "tcp")]:
        yield f"capabilities, {where}", capabilities, export, False
        yield f"option mode, {where}", option_mode, export
        yield f"opt_abort, {where}", option_abort, export
        yield f"export names, {where}", names, export
        for structured in (False, True):
            for flags in range(4):
                yield f"structured {structured}, handshake flags {flags}, {where}", downgraded, export, structured, flags
            for seed in range(2):
                name = f"128 requests in flight, structured {structured}, seed {seed}, {where}"
                yield name, pipeline, export, structured, seed
        yield f"block status, {where}", block_status, export
        for flags in (0, nbd.CMD_FLAG_DF):
            yield f"pread_structured with flags {flags}, {where}", structured_read, export, flags
        yield f"overlapping writes in flight, {where}", overlapping, export
    yield "capabilities, read-only", capabilities, world.read_only, True
    end, ignore = world.unix.size, lambda *_: 0
    table = {
        "pread past the end": (lambda h, end: h.pread(1024, end - 512), errno.EINVAL),
        "pread unaligned": (lambda h, end: h.pread(100, 0), errno.EINVAL),
        "pread of 40 MiB": (lambda h, end: h.pread(40 * MIB, 0), errno.EINVAL),
        "pwrite past the end": (lambda h, end: h.pwrite(b"x" * 1024, end - 512), errno.ENOSPC),
        "pwrite unaligned": (lambda h, end: h.pwrite(b"x" * 100, 0), errno.EINVAL),
        "pwrite of 40 MiB": (lambda h, end: h.pwrite(b"x" * (40 * MIB), 0), errno.EINVAL),
        "pwrite with DF": (lambda h, end: h.pwrite(b"x" * 512, 0, nbd.CMD_FLAG_DF), errno.EINVAL),
        "trim past the end": (lambda h, end: h.trim(1024, end - 512), errno.EINVAL),
        "zero past the end": (lambda h, end: h.zero(1024, end - 512), errno.ENOSPC),
        "zero unaligned": (lambda h, end: h.zero(100, 7), errno.EINVAL),
        "cache": (lambda h, end: h.cache(512, 0), errno.EINVAL),
        "block_status past the end": (lambda h, end: h.block_status(1024, end - 512, ignore), errno.EINVAL),
    }
    for title, (call, want) in table.items():
        yield f"{title} is refused", illegal, world.unix, end, call, want
    for title, call in {
        "pwrite": lambda h: h.pwrite(b"x" * 512, 0),
        "trim": lambda h: h.trim(512, 0),
        "zero": lambda h: h.zero(512, 0),
    }.items():
        yield f"read-only: {title} is EPERM", read_only, world.read_only, call
