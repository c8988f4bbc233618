"""Checks of many connections, and of connections that end badly."""

import contextlib
import socket
import time

from harness import wait_for
from raw import *  # noqa: F403 - the protocol's constants
from world import MIB, noise

CLIENTS = 100
DEPTH = 128


def hundred(export):
    """100 clients at once: each writes, flushes, and the next one reads it."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(export.raw()) for _ in range(CLIENTS)]
        for client in clients:
            client.go()
        for n, client in enumerate(clients):
            client.request(WRITE, n * 4096, 4096, payload=noise(4096, n))
        for client in clients:
            assert all(answer.error == 0 for answer in client.answers(1).values())
        for n, client in enumerate(clients):
            assert client.one(FLUSH).error == 0
            reader = clients[(n + 1) % CLIENTS]
            assert reader.one(READ, n * 4096, 4096).data == noise(4096, n)


def visible(export, flags, flush):
    """Multi-conn: what one connection flushed, or wrote with FUA, every other one reads."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(export.enter()) for _ in range(8)]
        for turn in range(24):
            writer = clients[turn % 8]
            data = noise(65536, turn)
            assert writer.one(WRITE, 4 * MIB, 65536, flags, payload=data).error == 0
            if flush:
                assert clients[(turn + 3) % 8].one(FLUSH).error == 0
            for client in clients:
                client.request(READ, 4 * MIB, 65536)
            for client in clients:
                assert next(iter(client.answers(1).values())).data == data


def killed_with_writes(export, how):
    """A client dies with 64 writes in flight: each block holds the old bytes or the new ones, and others go on."""
    old, new = noise(64 * 65536, 1), noise(64 * 65536, 2)
    base = 8 * MIB
    with export.enter() as other:
        assert other.one(WRITE, base, len(old), payload=old).error == 0
        client = export.enter()
        for n in range(64):
            client.request(WRITE, base + n * 65536, 65536, payload=new[n * 65536 : (n + 1) * 65536])
        if how == "cut payload":
            client.send(client.header(WRITE, base, 65536) + b"\xee" * 1000)
        client.reset() if how == "reset" else client.sock.close()
        assert other.one(FLUSH).error == 0
        got = other.one(READ, base, len(old)).data
        for at in range(0, len(old), 4096):
            block = got[at : at + 4096]
            assert block in (old[at : at + 4096], new[at : at + 4096]), f"the block at {at} is neither old nor new"


def killed_after_acknowledgement(export):
    """What was acknowledged stays, whatever becomes of the connection."""
    base = 16 * MIB
    with export.enter() as client:
        for n in range(32):
            client.request(WRITE, base + n * 4096, 4096, payload=noise(4096, n))
        acknowledged = client.answers(20)
        client.reset()
    with export.enter() as client:
        for cookie in acknowledged:
            n = cookie - 1
            assert client.one(READ, base + n * 4096, 4096).data == noise(4096, n)


def killed_with_reads(export):
    """Clients that die with large replies on their way leave nothing that blocks the others."""
    for _ in range(20):
        client = export.enter()
        for n in range(16):
            client.request(READ, n * MIB, MIB)
        client.reset()
    with export.enter() as client:
        assert client.one(READ, 0, MIB).error == 0


def disconnect(export, depth):
    """DISC with requests in flight: all of them are answered, then the connection ends."""
    with export.enter() as client:
        for n in range(depth):
            client.request(WRITE, 20 * MIB + n * 4096, 4096, payload=noise(4096, n))
        client.send(client.header(DISC, 0, 0))
        answers = client.answers(depth)
        assert len(answers) == depth and not any(answer.error for answer in answers.values())
        client.expect_closed()
    with export.enter() as client:
        for n in range(depth):
            assert client.one(READ, 20 * MIB + n * 4096, 4096).data == noise(4096, n)


def after_disconnect(export):
    """What follows DISC is not done."""
    with export.enter() as client:
        before = client.one(READ, 0, 4096).data
        header = client.header(WRITE, 0, 4096, cookie=5) + b"\x31" * 4096
        with contextlib.suppress(Closed):
            client.send(client.header(DISC, 0, 0) + header)
        client.expect_closed()
    with export.enter() as client:
        assert client.one(READ, 0, 4096).data == before


def slow_reader(export):
    """A client that does not take its replies holds up nobody else, and gets them all in the end."""
    with export.enter() as slow, export.enter() as quick:
        for n in range(96):
            slow.request(READ, (n % 32) * MIB, MIB)
        begun = time.monotonic()
        for n in range(50):
            assert quick.one(WRITE, 40 * MIB, 4096, payload=noise(4096, n)).error == 0
        assert time.monotonic() - begun < 20, "a slow reader stops other clients"
        assert len(slow.answers(96)) == 96


def idle_handshakes(export):
    """Clients that never end their handshake do not keep others out."""
    with contextlib.ExitStack() as stack:
        for n in range(20):
            client = stack.enter_context(export.raw(flags=None if n % 2 else 3))
            client.send(b"\0\0\0" if n % 2 else b"IHAVE")
        with export.enter() as client:
            assert client.one(READ, 0, 4096).error == 0


def connect_and_leave(export):
    """200 connections that end at once keep out nobody for longer than their ends take."""
    for _ in range(200):
        kind = socket.AF_UNIX if isinstance(export.address, str) else socket.AF_INET
        with socket.socket(kind) as sock:
            sock.connect(export.address)
    wait_for(lambda: serves(export), "the export to serve again")


def serves(export):
    """Whether a client gets in: an export over its limit of connections closes the next one."""
    try:
        with export.enter() as client:
            return client.one(READ, 0, 4096).error == 0
    except Closed:
        return False


def garbage(export, seed):
    """Random bytes in both phases: the connection ends or goes on, and other clients see nothing of it."""
    with export.enter() as other:
        marker = noise(4096, 99)
        assert other.one(WRITE, 255 * MIB, 4096, payload=marker).error == 0
        for phase in range(2):
            with export.raw(seconds=5) as client, contextlib.suppress(Closed):
                if phase:
                    client.go()
                client.send(noise(4096, seed * 2 + phase))
        assert other.one(READ, 255 * MIB, 4096).data == marker


def deep(export, structured):
    """128 requests in flight on each of four connections, replies in any order."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(export.enter(structured)) for _ in range(4)]
        for k, client in enumerate(clients):
            for n in range(DEPTH):
                client.request(WRITE, (k * DEPTH + n) * 8192 + 48 * MIB, 8192, payload=noise(8192, k * DEPTH + n))
        for client in clients:
            assert not any(answer.error for answer in client.answers(DEPTH).values())
        for k, client in enumerate(clients):
            asked = {}
            for n in reversed(range(DEPTH)):
                # The neighbour's blocks.
                block = (k + 1) % 4 * DEPTH + n
                asked[client.request(READ, block * 8192 + 48 * MIB, 8192)] = block
            for cookie, answer in client.answers(DEPTH).items():
                assert answer.data == noise(8192, asked[cookie]), f"block {asked[cookie]}"


def two_transports(world):
    """The read-only opener beside the writer: after a flush it reads what was written."""
    with world.unix.enter() as writer, world.read_only.enter() as reader:
        for n in range(8):
            assert writer.one(WRITE, 60 * MIB + n * MIB, 4096, FUA, payload=noise(4096, n)).error == 0
            assert reader.one(READ, 60 * MIB + n * MIB, 4096).data == noise(4096, n)


def checks(world):
    for export, where in [(world.unix, "unix"), (world.tcp, "tcp")]:
        yield f"{CLIENTS} connections at once, {where}", hundred, export
        yield f"multi-conn: flush makes writes visible, {where}", visible, export, 0, True
        yield f"multi-conn: FUA makes writes visible, {where}", visible, export, FUA, False
        for how in ("close", "reset", "cut payload"):
            yield f"killed with 64 writes in flight ({how}), {where}", killed_with_writes, export, how
        yield f"killed after acknowledgements, {where}", killed_after_acknowledgement, export
        yield f"killed with reads in flight, {where}", killed_with_reads, export
        for depth in (0, 1, DEPTH):
            yield f"DISC with {depth} requests in flight, {where}", disconnect, export, depth
        yield f"DISC and then a write, {where}", after_disconnect, export
        yield f"a slow reader, {where}", slow_reader, export
        yield f"handshakes that never end, {where}", idle_handshakes, export
        yield f"200 connections that end at once, {where}", connect_and_leave, export
        for seed in range(4):
            yield f"random bytes, seed {seed}, {where}", garbage, export, seed
        for structured in (False, True):
            kind = "structured" if structured else "simple"
            yield f"four connections with {DEPTH} requests each, {kind}, {where}", deep, export, structured
    yield "a read-only opener reads what the writer flushed", two_transports, world
