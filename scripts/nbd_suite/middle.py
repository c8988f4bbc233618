"""Checks with nbdkit between the client and the export, as its `nbd` plugin with one filter after another.

Data is verified twice: through nbdkit, and as the export itself holds it.
"""

import contextlib
import errno
import json
import os

import nbd
from harness import run, server, wait_for
from kit import BASE, clients, exercise, kit, refused, refused_any
from world import MIB, noise


def passes(world, filters, options):
    """The data of every operation arrives, read through nbdkit and from the export."""
    with kit(world, filters, options) as connect:
        handle = connect()
        model = exercise(handle)
    assert world.kit.read(BASE, len(model)) == model, "read from the export"


def errors(world):
    """Injected errors reach the client as such, and what then succeeds is right."""
    options = ["error-pread-rate=50%", "error-pwrite-rate=50%", "error=EIO"]
    data, failed = noise(65536, 3), 0
    with kit(world, ["error"], options) as connect:
        handle = connect()
        for n in range(60):
            for call in (lambda: handle.pwrite(data, BASE + n * 65536), lambda: handle.pread(65536, BASE + n * 65536)):
                while True:
                    try:
                        got = call()
                        break
                    except nbd.Error as error:
                        assert error.errnum == errno.EIO
                        failed += 1
            assert got == data
    assert failed > 20, failed
    assert world.kit.read(BASE, 60 * 65536) == data * 60


def retried(world, over):
    """A filter that retries hides the errors of the one below it."""
    options = ["error-rate=20%", "error=EIO"]
    options += {"retry": ["retries=20", "retry-delay=1", "retry-exponential=no"]}.get(over, ["retry-request-retries=30"])
    options += ["retry-request-delay=1"] if over == "retry-request" else []
    with kit(world, [over, "error"], options) as connect:
        handle = connect()
        data = noise(4096, 1)
        for n in range(2 if over == "retry" else 10):
            handle.pwrite(data, BASE + n * 4096)
            assert handle.pread(4096, BASE + n * 4096) == data


def reconnects(world):
    """The plugin's own retries: nbdkit is there before the export, and connects once it is."""
    socket = world.path("late.sock")
    world.basalt("volume", "create", "main/late", "32MiB")
    plugin = (f"uri=nbd+unix:///main/late?socket={socket}", "retry=20", "shared=true")
    with kit_in_background(world, plugin) as ready:
        export = world.serve("main/late", "--socket", socket)
        handle = ready()
        data = noise(MIB, 4)
        handle.pwrite(data, 0)
        handle.flush()
        assert export.read(0, MIB) == data


@contextlib.contextmanager
def kit_in_background(world, plugin):
    """As `kit`, for a plugin that connects before nbdkit listens."""
    socket = world.fresh("nbdkit.sock")
    marker = world.fresh("started")
    open(marker, "wb").close()
    with server("nbdkit", "--foreground", "--exit-with-parent", "-U", socket, "nbd", *plugin, socket=marker):
        with clients(socket) as connect:
            yield lambda: (wait_for(lambda: os.path.exists(socket), socket), connect())[1]


def checkwrite(world):
    """checkwrite compares writes with what the export holds: the same data passes, other data is EIO."""
    data = noise(4 * MIB, 5)
    world.kit.clear()
    world.kit.write(data, BASE)
    with kit(world, ["checkwrite"]) as connect:
        handle = connect()
        handle.pwrite(data, BASE)
        handle.zero(MIB, 32 * MIB)
        handle.trim(MIB, 33 * MIB)
        refused(errno.EIO, handle.pwrite, b"\0" + data[1:4096], BASE)
        refused(errno.EIO, handle.zero, 4096, BASE)
    assert world.kit.read(BASE, len(data)) == data


def blocksize(world, options, pieces):
    """Requests of any alignment become aligned ones by read-modify-write."""
    data = noise(256 << 10, 6)
    world.kit.write(data, BASE)
    model = bytearray(data)
    with kit(world, ["blocksize"], options) as connect:
        handle = connect()
        for at, length in pieces:
            patch = noise(length, at)
            handle.pwrite(patch, BASE + at)
            model[at : at + length] = patch
            assert handle.pread(length + 2, BASE + at) == model[at : at + length + 2]
        handle.zero(1000, BASE + 100_001)
        model[100_001:101_001] = bytes(1000)
        assert handle.pread(len(model), BASE) == model
    assert world.kit.read(BASE, len(model)) == model


def blocksize_policy(world):
    options = ["blocksize-minimum=4096", "blocksize-preferred=65536", "blocksize-maximum=1M", "blocksize-error-policy=error"]
    with kit(world, ["blocksize-policy"], options) as connect:
        handle = connect()
        sizes = [handle.get_block_size(n) for n in (nbd.SIZE_MINIMUM, nbd.SIZE_PREFERRED, nbd.SIZE_MAXIMUM)]
        assert sizes == [4096, 65536, MIB], sizes
        handle.set_strict_mode(0)
        refused(errno.EINVAL, handle.pread, 512, 0)
        handle.pwrite(noise(MIB, 2), BASE)
        assert handle.pread(MIB, BASE) == noise(MIB, 2)


def block_sizes_pass(world):
    """The plugin tells its clients the block sizes of the export."""
    with kit(world) as connect:
        handle = connect()
        assert handle.get_block_size(nbd.SIZE_MINIMUM) == 512 and handle.get_block_size(nbd.SIZE_PREFERRED) == 4096
        assert handle.get_size() == world.kit.size and handle.can_multi_conn() and handle.can_fast_zero()


def cow(world):
    """Writes over cow stay in nbdkit; the export keeps what it has."""
    data = noise(2 * MIB, 7)
    world.kit.write(data, BASE)
    with kit(world, ["cow"]) as connect:
        handle = connect()
        model = exercise(handle, 20)
        assert handle.pread(len(model), BASE) == model
    assert world.kit.read(BASE, len(data)) == data


def cached(world, mode):
    """A write-back cache holds writes until the flush; the other modes write through."""
    data = noise(2 * MIB, 8)
    world.kit.write(bytes(2 * MIB), BASE)
    with kit(world, ["cache"], [f"cache={mode}", "cache-on-read=true"]) as connect:
        handle = connect()
        handle.pwrite(data, BASE)
        assert handle.pread(len(data), BASE) == data
        if mode == "writeback":
            assert world.kit.read(BASE, len(data)) == bytes(len(data)), "it is still in the cache"
        if mode != "unsafe":
            handle.flush()
            assert world.kit.read(BASE, len(data)) == data


def fua(world, mode):
    with kit(world, ["fua"], [f"fuamode={mode}"]) as connect:
        handle = connect()
        assert handle.can_fua()
        model = exercise(handle, 9)
    assert world.kit.read(BASE, len(model)) == model


def without(world, name, options, able):
    """A filter that takes a feature away."""
    with kit(world, [name], options) as connect:
        handle = connect()
        for question, answer in able.items():
            assert getattr(handle, question)() == answer, question
        model = exercise(handle, 10)
    assert world.kit.read(BASE, len(model)) == model


def extents(world, filters):
    """The map through nbdkit has the bounds of the export's own map."""
    world.kit.clear()
    world.kit.write(noise(MIB, 1), 16 * MIB)
    with kit(world, filters) as connect:
        handle = connect()
        found, at = [], 0
        while at < world.kit.size:
            entries = []
            handle.block_status(world.kit.size - at, at, lambda context, offset, part, error: entries.extend(part))
            for length, flags in zip(entries[::2], entries[1::2]):
                found.append((at, length, flags))
                at += length
    merged = [(start, flags) for n, (start, _, flags) in enumerate(found) if n == 0 or flags != found[n - 1][2]]
    assert merged == [(0, 3), (16 * MIB, 0), (17 * MIB, 3)], found


def statistics(world):
    path = world.fresh("stats")
    with kit(world, ["stats"], [f"statsfile={path}"]) as connect:
        handle = connect()
        model = exercise(handle, 14)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert "read:" in text and "write:" in text and "zero:" in text, text
    assert world.kit.read(BASE, len(model)) == model


def logged(world):
    path = world.fresh("log")
    with kit(world, ["log"], [f"logfile={path}"]) as connect:
        handle = connect()
        exercise(handle, 15)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert "Write" in text and "Zero" in text and "Flush" in text and "fua=1" in text
    assert "return=-1" not in text, "an operation failed"


def protect(world):
    """A protected range cannot be changed, the rest can."""
    data = noise(MIB, 16)
    world.kit.write(data, 0)
    with kit(world, ["protect"], ["protect=0-1048575"]) as connect:
        handle = connect()
        refused(errno.EPERM, handle.pwrite, b"\1" * 4096, 4096)
        model = exercise(handle, 17)
    assert world.kit.read(0, MIB) == data and world.kit.read(BASE, len(model)) == model


def limited(world):
    with kit(world, ["limit"], ["limit=2"]) as connect:
        one, two = connect(), connect()
        refused_any(connect)


def shared(world, value):
    """One connection for all clients, or one for each: what a client flushed, the others read."""
    with kit(world, plugin=(f"uri={world.kit.uri()}", f"shared={value}")) as connect:
        handles = [connect() for _ in range(6)]
        for n, handle in enumerate(handles):
            handle.pwrite(noise(65536, n), BASE)
            handle.flush()
            assert all(other.pread(65536, BASE) == noise(65536, n) for other in handles)


def by_socket(world):
    """The plugin's other way to name the export, over both transports."""
    for plugin, export in [
        ((f"socket={world.kit.address}", "export=main/kit"), world.kit),
        ((f"hostname={world.tcp.address[0]}", f"port={world.tcp.address[1]}", "export=main/tcp"), world.tcp),
    ]:
        with kit(world, plugin=plugin) as connect:
            handle = connect()
            assert handle.get_size() == export.size
            model = exercise(handle, 24)
        assert export.read(BASE, len(model)) == model


def dynamic_export(world):
    """nbdkit passes on its client's export name, and a wrong one fails."""
    with kit(world, plugin=(f"socket={world.kit.address}", "dynamic-export=true")) as connect:
        handle = connect("main/kit")
        assert handle.get_size() == world.kit.size
        refused_any(lambda: connect("main/none"))


def copied(world):
    """nbdcopy through nbdkit with a delay, and the map of both is the same."""
    image = world.fresh("image")
    with open(image, "wb") as file:
        file.truncate(32 * MIB)
        file.seek(5 * MIB)
        file.write(noise(3 * MIB, 25))
    socket = world.fresh("nbdkit.sock")
    command = ("nbdkit", "--foreground", "-U", socket, "--filter=delay", "nbd", f"uri={world.kit.uri()}", "wdelay=1ms")
    with server(*command, socket=socket):
        run("nbdcopy", image, f"nbd+unix:///?socket={socket}")
        through = run("nbdinfo", "--map", "--json", f"nbd+unix:///?socket={socket}")
    assert world.kit.read(0, 32 * MIB) == open(image, "rb").read()
    assert json.loads(through) == json.loads(run("nbdinfo", "--map", "--json", world.kit.uri()))


PASSING = {
    "no filter": ([], []),
    "delay": (["delay"], ["rdelay=5ms", "wdelay=5ms"]),
    "delay of zeroes and extents": (["delay"], ["delay-zero=20ms", "delay-extents=20ms", "delay-open=50ms"]),
    "rate": (["rate"], ["rate=200M"]),
    "rate of each connection": (["rate"], ["connection-rate=200M"]),
    "nocache": (["nocache"], ["cachemode=none"]),
    "noparallel": (["noparallel"], ["serialize=all-requests"]),
    "nofilter": (["nofilter"], []),
    "readahead": (["readahead"], []),
    "readahead over cache": (["readahead", "cache"], []),
    "scan": (["scan"], ["scan-size=1M"]),
    "cacheextents": (["cacheextents"], []),
    "multi-conn off": (["multi-conn"], ["multi-conn-mode=disable"]),
    "multi-conn emulated": (["multi-conn"], ["multi-conn-mode=emulate"]),
    "exitlast": (["exitlast"], []),
    "blocksize of 64 KiB": (["blocksize"], ["maxdata=64k", "maxlen=64k"]),
    "five at once": (["log", "stats", "delay", "blocksize", "fua"], ["logfile=/dev/null", "statsfile=/dev/null", "fuamode=force"]),
}


def checks(world):
    for title, (filters, options) in PASSING.items():
        yield title, passes, world, filters, options
    yield "error", errors, world
    for over in ("retry-request", "retry"):
        yield f"{over} over error", retried, world, over
    yield "the plugin waits for the export", reconnects, world
    yield "checkwrite", checkwrite, world
    odd = [(0, 1), (1, 1), (511, 2), (4095, 4098), (10_000, 33_333), (65_535, 3)]
    for options in (["minblock=512"], ["minblock=4096"], ["minblock=64k", "maxdata=64k"]):
        yield f"blocksize {' '.join(options)}", blocksize, world, options, odd
    yield "blocksize-policy", blocksize_policy, world
    yield "block sizes pass", block_sizes_pass, world
    yield "cow", cow, world
    for mode in ("writeback", "writethrough", "unsafe"):
        yield f"cache {mode}", cached, world, mode
    for mode in ("native", "emulate", "force", "pass", "discard"):
        yield f"fua {mode}", fua, world, mode
    yield "noextents", without, world, "noextents", [], {}
    for mode, able in {"none": False, "emulate": True, "notrim": True, "plugin": True}.items():
        yield f"nozero {mode}", without, world, "nozero", [f"zeromode={mode}"], {"can_zero": able}
    yield "nozero without fast zeroes", without, world, "nozero", ["fastzeromode=none"], {"can_fast_zero": False}
    for filters in ([], ["cacheextents"], ["delay"], ["cache"]):
        yield f"extents, {filters or 'no filter'}", extents, world, filters
    for title, check in {
        "stats": statistics,
        "log": logged,
        "protect": protect,
        "limit": limited,
        "socket, host and port": by_socket,
        "dynamic export": dynamic_export,
        "nbdcopy through delay": copied,
    }.items():
        yield title, check, world
    for value in ("true", "false"):
        yield f"six clients, shared={value}", shared, world, value
