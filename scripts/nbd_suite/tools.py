"""Checks with other people's clients: libnbd's tools, qemu's, and fio."""

import json
import os

from harness import finished, run, server
from world import MIB, noise

IMAGE = 64 * MIB
QEMU_RAW = ("-f", "raw")


def sparse_image(world, seed):
    """A file of 64 MiB with data at its start, in its middle and at its end."""
    path = world.fresh("image")
    with open(path, "wb") as file:
        file.truncate(IMAGE)
        for at, length in [(0, 3 * MIB), (20 * MIB + 4096, MIB + 512), (40 * MIB, 8 * MIB), (IMAGE - 512, 512)]:
            file.seek(at)
            file.write(noise(length, seed + at))
    return path


def bytes_of(path):
    with open(path, "rb") as file:
        return file.read()


# nbdinfo


def info_text(world):
    text = run("nbdinfo", world.unix.uri())
    for line in ("export-size: 268435456", "base:allocation", "block_size_maximum: 33554432", "can_multi_conn: true"):
        assert line in text, f"{line!r} is not in {text}"


def info_json(world):
    found = json.loads(run("nbdinfo", "--json", world.unix.uri()))
    assert found["protocol"] == "newstyle-fixed" and found["structured"]
    export = found["exports"][0]
    assert export["export-name"] == "main/unix" and export["export-size"] == world.unix.size
    assert export["contexts"] == ["base:allocation"] and export["block_size_minimum"] == 512
    assert export["can_fast_zero"] and not export["can_cache"] and not export["is_read_only"]


def info_list(world):
    assert 'export="main/tcp"' in run("nbdinfo", "--list", world.tcp.uri(""))
    found = json.loads(run("nbdinfo", "--list", "--json", world.tcp.uri("")))
    assert [export["export-name"] for export in found["exports"]] == ["main/tcp"]


def info_size(world):
    for export in (world.unix, world.tcp, world.tool):
        assert run("nbdinfo", "--size", export.uri()).strip() == str(export.size)


def info_map(world):
    world.tool.clear()
    world.tool.write(noise(2 * MIB, 1), 8 * MIB)
    world.tool.write(noise(65536, 2), 90 * MIB)
    found = json.loads(run("nbdinfo", "--map", "--json", world.tool.uri()))
    runs = [(row["offset"], row["length"], row["type"]) for row in found]
    middle = 80 * MIB
    tail = 6 * MIB - 65536
    assert runs == [
        (0, 8 * MIB, 3),
        (8 * MIB, 2 * MIB, 0),
        (10 * MIB, middle, 3),
        (90 * MIB, 65536, 0),
        (90 * MIB + 65536, tail, 3),
    ], runs
    text = run("nbdinfo", "--map", "--totals", world.tool.uri())
    assert str(2 * MIB + 65536) in text and "data" in text and "hole,zero" in text, text


def info_question(world, export, question, what, answer):
    """`--is` and `--can` answer by exit status: 0 is yes, 2 is no."""
    run("nbdinfo", f"--{question}", what, export(world).uri(), status=0 if answer else 2)


def info_unknown(world):
    for name in ("missing", "main/missing", "main/unix2"):
        run("nbdinfo", world.unix.uri(name), fails=True)


# nbdcopy, nbdsh


def copied(world, options, back):
    """A file to the volume and back."""
    image, copy = sparse_image(world, len(options)), world.fresh("copy")
    if not any("is-zero" in option for option in options):
        world.tool.write(noise(4 * MIB, 5), 30 * MIB)
    else:
        world.tool.clear()
    run("nbdcopy", *options, image, world.tool.uri())
    run("nbdcopy", *back, world.tool.uri(), copy)
    got = bytes_of(copy)
    assert len(got) == world.tool.size and got[:IMAGE] == bytes_of(image), "the copy differs"
    assert world.tool.read(0, IMAGE) == bytes_of(image)
    os.unlink(image), os.unlink(copy)


def copied_allocated(world):
    """`--allocated` asks for zeros that have space: the map holds no hole where the file ends."""
    image = sparse_image(world, 1)
    world.tool.clear()
    run("nbdcopy", "--allocated", image, world.tool.uri())
    assert world.tool.read(0, IMAGE) == bytes_of(image)
    found = json.loads(run("nbdinfo", "--map", "--json", world.tool.uri()))
    assert not any(row["type"] & 1 for row in found if row["offset"] < IMAGE), found
    os.unlink(image)


def copied_sparse(world):
    """Holes of the file stay holes of the volume."""
    image = sparse_image(world, 2)
    world.tool.clear()
    run("nbdcopy", "--destination-is-zero", image, world.tool.uri())
    found = json.loads(run("nbdinfo", "--map", "--json", world.tool.uri()))
    data = sum(row["length"] for row in found if not row["type"] & 1)
    assert 12 * MIB <= data < 14 * MIB, data
    os.unlink(image)


def copied_between(world):
    """One export to another, over two transports."""
    image = sparse_image(world, 3)
    world.tool.clear()
    world.tcp.clear()
    run("nbdcopy", image, world.tool.uri())
    run("nbdcopy", "--connections=4", world.tool.uri(), world.tcp.uri())
    assert world.tcp.read(0, IMAGE) == bytes_of(image)
    run("qemu-img", "compare", *QEMU_RAW, "-F", "raw", world.tool.uri(), world.tcp.uri())
    os.unlink(image)


def copied_pipes(world):
    image = sparse_image(world, 4)
    data = bytes_of(image)
    run("nbdcopy", "--", "-", world.tool.uri(), data=data)
    got, _, _ = finished(("nbdcopy", world.tool.uri(), "-"))
    assert got[:IMAGE] == data
    run("nbdcopy", world.tool.uri(), "null:")
    os.unlink(image)


def shell(world, code, expect):
    # With the system's Python, for which Debian packages the module.
    command = ("env", "PATH=/usr/bin:/bin", "nbdsh", "-u", world.tool.uri(), "-c", code)
    assert run(*command).strip() == expect


# qemu-img, qemu-io, qemu-nbd


def image_info(world):
    found = json.loads(run("qemu-img", "info", "--output=json", *QEMU_RAW, world.tool.uri()))
    assert found["virtual-size"] == world.tool.size and found["format"] == "raw"


def image_map(world):
    world.tool.clear()
    world.tool.write(noise(MIB, 1), 16 * MIB)
    found = json.loads(run("qemu-img", "map", "--output=json", *QEMU_RAW, world.tool.uri()))
    data = [(row["start"], row["length"]) for row in found if row["data"]]
    assert data == [(16 * MIB, MIB)], found
    assert all(row["zero"] for row in found if not row["data"]), found


def image_convert(world, options, format):
    """A raw image to the volume, and from the volume to an image of `format`."""
    image, out = sparse_image(world, 6), world.fresh("out")
    os.truncate(image, world.tool.size)
    run("qemu-img", "convert", "-n", *QEMU_RAW, "-O", "raw", *options, image, world.tool.uri())
    run("qemu-img", "compare", *QEMU_RAW, "-F", "raw", image, world.tool.uri())
    run("qemu-img", "convert", *QEMU_RAW, "-O", format, world.tool.uri(), out)
    run("qemu-img", "compare", *QEMU_RAW, "-F", format, world.tool.uri(), out)
    run("qemu-img", "compare", *QEMU_RAW, "-F", format, image, out)
    world.tool.write(b"\x55" * 512, 50 * MIB)
    run("qemu-img", "compare", *QEMU_RAW, "-F", "raw", image, world.tool.uri(), status=1)
    os.unlink(image), os.unlink(out)


def image_qcow2(world):
    """A qcow2 image inside the volume."""
    world.tool.clear()
    run("qemu-img", "create", "-f", "qcow2", world.tool.uri(), "48M")
    io = ["-c", "write -P 1 0 1M", "-c", "write -P 2 20M 3M", "-c", "discard 21M 1M", "-c", "flush"]
    run("qemu-io", "-f", "qcow2", *io, world.tool.uri())
    run("qemu-img", "check", "-f", "qcow2", world.tool.uri())
    run("qemu-img", "snapshot", "-c", "one", world.tool.uri())
    run("qemu-io", "-f", "qcow2", "-c", "write -P 3 0 64k", world.tool.uri())
    run("qemu-img", "snapshot", "-a", "one", world.tool.uri())
    patterns(world, "qcow2", ["read -P 1 0 1M", "read -P 2 20M 1M", "read -P 0 21M 1M", "read -P 2 22M 1M"])
    run("qemu-img", "check", "-f", "qcow2", world.tool.uri())


def image_bench(world, options):
    world.tool.clear()
    assert "Run completed" in run("qemu-img", "bench", *QEMU_RAW, "-c", "500", "-d", "32", *options, world.tool.uri())


def image_bench_writes(world):
    image_bench(world, ("-w", "--pattern=119", "-s", "16k", "--flush-interval=50"))
    assert world.tool.read(0, 500 * 16384) == b"\x77" * (500 * 16384)


def image_dd(world):
    world.tool.write(noise(MIB, 8), 0)
    out = world.fresh("dd")
    run("qemu-img", "dd", *QEMU_RAW, "-O", "raw", "bs=64k", "count=16", f"if={world.tool.uri()}", f"of={out}")
    assert bytes_of(out) == noise(MIB, 8)
    os.unlink(out)


def patterns(world, format, commands):
    args = [arg for command in commands for arg in ("-c", command)]
    text = run("qemu-io", "-f", format, "-t", "none", *args, world.tool.uri())
    assert "failed" not in text.lower() and "mismatch" not in text.lower(), text


PATTERNS = {
    "writes": ["write -P 7 1M 3M", "write -f -P 8 2M 512", "read -P 7 1M 1M", "read -P 8 2M 512", "read -P 7 2098176 512"],
    "zeroes": ["write -P 9 8M 2M", "write -z 8M 64k", "read -P 0 8M 64k", "write -z -u 9M 64k", "read -P 0 9M 64k"],
    "zeroes without fallback": ["write -P 9 8M 2M", "write -z -u -n 8M 64k", "read -P 0 8M 64k"],
    "discards": ["write -P 4 12M 2M", "discard 12M 1M", "read -P 4 13M 1M", "flush", "write -P 5 12M 1M", "read -P 5 12M 1M"],
    "vectors": ["writev -P 3 20M 4k 8k 16k 512", "readv -P 3 20M 512 4k 8k 16k"],
    "asynchronous": [*(f"aio_write -P {n} {n}M 1M" for n in range(1, 40)), "aio_flush", "read -P 17 17M 1M", "read -P 39 39M 1M"],
    "small pieces": [*(f"write -P {n} {30 * 1024 + n}k 1k" for n in range(1, 30)), "read -P 11 30731k 1k"],
    "large": ["write -P 6 0 64M", "read -P 6 0 64M", "write -z 1M 62M", "read -P 0 1M 62M", "read -P 6 63M 1M"],
    "unaligned": ["write -P 2 0 64k", "write -P 3 100 1000", "read -P 2 0 100", "read -P 3 100 1000", "read -P 2 1100 5000"],
}


def proxied(world):
    """qemu-nbd serves the volume again; its clients read what was written, and the volume holds it."""
    socket = world.fresh("qemu.sock")
    command = ("qemu-nbd", *QEMU_RAW, "-t", "-e", "4", "--discard=unmap", "-k", socket, world.tool.uri())
    with server(*command, socket=socket):
        image, uri = sparse_image(world, 9), f"nbd+unix:///?socket={socket}"
        run("nbdcopy", "--flush", image, uri)
        run("nbdcopy", uri, "null:")
        got, _, _ = finished(("nbdcopy", uri, "-"))
        assert got[:IMAGE] == bytes_of(image)
        os.unlink(image)
    assert world.tool.read(0, IMAGE) == got[:IMAGE]


# fio


def fio(world, name, *options, export=None):
    export = export or world.tool
    # fio writes the state of its verification into the working directory.
    command = ["fio", f"--name={name}", "--ioengine=nbd", f"--uri={export.uri()}", "--randseed=3", "--verify_fatal=1"]
    command += ["--verify_state_save=0", f"--aux-path={world.dir}", *options]
    text = run(*command)
    assert "err= 0" in text, text


FIO = {
    "random writes": ("--rw=randwrite", "--bsrange=512-64k", "--iodepth=32", "--size=48m", "--verify=crc32c"),
    "random writes at depth 128": ("--rw=randwrite", "--bs=4k", "--iodepth=128", "--size=16m", "--verify=crc32c"),
    "sequential writes": ("--rw=write", "--bs=1m", "--iodepth=8", "--size=64m", "--verify=xxhash"),
    "sectors": ("--rw=randwrite", "--bs=512", "--iodepth=16", "--size=2m", "--verify=crc32c"),
    "reads and writes": ("--rw=randrw", "--bs=8k", "--iodepth=16", "--size=16m", "--verify=md5"),
    "trims and writes": ("--rw=randtrimwrite", "--bs=64k", "--iodepth=8", "--size=32m"),
    "with flushes": ("--rw=randwrite", "--bs=4k", "--iodepth=4", "--fsync=8", "--size=4m", "--verify=crc32c"),
    "four jobs": (
        *("--rw=randwrite", "--bs=4k", "--iodepth=8", "--numjobs=4", "--size=8m", "--offset_increment=16m"),
        *("--verify=crc32c", "--group_reporting"),
    ),
}


def checks(world):
    unix, read_only = (lambda world: world.unix), (lambda world: world.read_only)
    yield "nbdinfo", info_text, world
    yield "nbdinfo --json", info_json, world
    yield "nbdinfo --list", info_list, world
    yield "nbdinfo --size", info_size, world
    yield "nbdinfo --map", info_map, world
    yield "nbdinfo of an unknown export", info_unknown, world
    for what in ("connect", "read", "write", "flush", "fua", "multi-conn", "df", "trim", "zero", "fast-zero", "structured-reply"):
        yield f"nbdinfo --can {what}", info_question, world, unix, "can", what, True
    for what in ("trim", "zero", "fast-zero", "write"):
        yield f"nbdinfo --can {what}, read-only", info_question, world, read_only, "can", what, False
    yield "nbdinfo --can cache", info_question, world, unix, "can", "cache", False
    for what in ("rotational", "tls", "read-only"):
        yield f"nbdinfo --is {what}", info_question, world, unix, "is", what, False
    yield "nbdinfo --is read-only, read-only", info_question, world, read_only, "is", "read-only", True
    for options in (
        (),
        ("--flush",),
        ("--connections=1", "--requests=1"),
        ("--connections=8", "--threads=4", "--requests=64"),
        ("--synchronous",),
        ("--destination-is-zero",),
        ("--no-extents",),
        ("--sparse=0",),
        ("--sparse=65536", "--request-size=1048576"),
        ("--request-size=4096", "--queue-size=1048576"),
        ("--request-size=33554432",),
        ("--allocated",),
    ):
        back = tuple(option for option in options if "zero" not in option and option not in ("--flush", "--allocated"))
        yield f"nbdcopy {' '.join(options)}", copied, world, options, back
    yield "nbdcopy --allocated leaves no hole", copied_allocated, world
    yield "nbdcopy keeps holes", copied_sparse, world
    yield "nbdcopy between two exports", copied_between, world
    yield "nbdcopy through pipes", copied_pipes, world
    yield "nbdsh: size", shell, world, "print(h.get_size())", str(world.tool.size)
    yield "nbdsh: write and read", shell, world, "h.pwrite(b'abcd' * 128, 0); print(h.pread(512, 0)[:4])", "bytearray(b'abcd')"
    yield "nbdsh: zero and trim", shell, world, "h.zero(4096, 0); h.trim(4096, 4096); print(any(h.pread(4096, 0)))", "False"
    yield "nbdsh: FUA and flush", shell, world, "h.pwrite(bytes(512), 0, nbd.CMD_FLAG_FUA); h.flush(); print(1)", "1"
    yield "qemu-img info", image_info, world
    yield "qemu-img map", image_map, world
    for options in ((), ("-S", "0"), ("-W", "-m", "16"), ("-t", "writeback"), ("-S", "64k", "-T", "none")):
        yield f"qemu-img convert {' '.join(options)}", image_convert, world, options, "raw" if options else "qcow2"
    yield "qemu-img create, check, snapshot of qcow2", image_qcow2, world
    yield "qemu-img bench, reads", image_bench, world, ()
    yield "qemu-img bench, writes", image_bench_writes, world
    yield "qemu-img dd", image_dd, world
    for title, commands in PATTERNS.items():
        yield f"qemu-io {title}", patterns, world, "raw", commands
    yield "qemu-nbd as a proxy", proxied, world
    for title, options in FIO.items():
        yield f"fio {title}", fio, world, title.replace(" ", "-"), *options
