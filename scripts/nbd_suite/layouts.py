"""Checks with nbdkit's filters that show a part of the export: ranges, partitions, archives, encrypted images.

Data is verified twice: through nbdkit, and as the export itself holds it.
"""

import errno
import gzip
import io
import os
import struct
import tarfile

from harness import run
from kit import BASE, exercise, kit, refused
from world import MIB, noise


def offset(world):
    with kit(world, ["offset"], ["offset=4M", "range=16M"]) as connect:
        handle = connect()
        assert handle.get_size() == 16 * MIB
        model = exercise(handle, 11)
    assert world.kit.read(BASE + 4 * MIB, len(model)) == model


def truncate(world):
    """A longer export reads zeros past the end and refuses to write there; a shorter one ends early."""
    world.kit.write(noise(4096, 2), world.kit.size - 4096)
    with kit(world, ["truncate"], [f"truncate={world.kit.size + MIB}"]) as connect:
        handle = connect()
        assert handle.get_size() == world.kit.size + MIB
        assert handle.pread(8192, world.kit.size - 4096) == noise(4096, 2) + bytes(4096)
        refused(errno.ENOSPC, handle.pwrite, b"\1" * 4096, world.kit.size)
    with kit(world, ["truncate"], ["truncate=40M"]) as connect:
        handle = connect()
        assert handle.get_size() == 40 * MIB
        exercise(handle, 12)


def partition(world):
    """A table with two partitions, each of them an export of its own."""
    entry = lambda start, count: struct.pack("<B3sB3sII", 0, b"\0\2\0", 0x83, b"\0\2\0", start, count)
    table = bytearray(512)
    table[446:478] = entry(2048, 2 * MIB // 512) + entry(2048 + 4096, 40 * MIB // 512)
    table[510:] = b"\x55\xaa"
    world.kit.write(bytes(table), 0)
    with kit(world, ["partition"], ["partition=2"]) as connect:
        handle = connect()
        assert handle.get_size() == 40 * MIB
        model = exercise(handle, 13)
    assert world.kit.read(BASE + (2048 + 4096) * 512, len(model)) == model
    assert world.kit.read(0, 512) == table


def tar_entry(world):
    """A file inside a tar archive on the volume."""
    archive, data = io.BytesIO(), noise(3 * MIB, 19)
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in [("first", b"x" * 1000), ("disk", data)]:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    world.kit.clear()
    world.kit.write(archive.getvalue(), 0)
    # The offset of an entry is any multiple of 512.
    with kit(world, ["tar"], ["tar-entry=disk"]) as connect:
        handle = connect()
        assert handle.get_size() == len(data) and handle.pread(len(data), 0) == data
        handle.pwrite(b"\7" * 4096, MIB)
        handle.flush()
    assert world.kit.read(0, len(archive.getvalue())).count(b"\7" * 4096) == 1


def ext2_file(world):
    """A file inside an ext4 file system on the volume."""
    source, image = world.fresh("source"), world.fresh("ext4")
    os.mkdir(source)
    with open(os.path.join(source, "disk"), "wb") as file:
        file.write(noise(MIB, 21))
    run("/sbin/mkfs.ext4", "-q", "-F", "-O", "^metadata_csum", "-N", "64", "-d", source, image, "24M")
    world.kit.clear()
    with open(image, "rb") as file:
        world.kit.write(file.read(), 0)
    os.unlink(image)
    # The filter reads the file system byte by byte.
    with kit(world, ["ext2", "blocksize"], ["ext2file=/disk", "minblock=512"]) as connect:
        handle = connect()
        assert handle.pread(MIB, 0) == noise(MIB, 21)
        handle.pwrite(b"\3" * 65536, 65536)
        handle.flush()
        assert handle.pread(65536, 65536) == b"\3" * 65536


def luks(world):
    """An encrypted image, made by qemu-img through the export, opened by nbdkit."""
    secret = world.fresh("secret")
    with open(secret, "wb") as file:
        file.write(b"basalt")
    run(
        *("qemu-img", "create", "-q", "-f", "luks", "--object", f"secret,id=s,file={secret}"),
        *("-o", "key-secret=s,iter-time=10", world.kit.uri(), "16M"),
    )
    with kit(world, ["luks", "blocksize"], [f"passphrase=+{secret}", "minblock=512"]) as connect:
        handle = connect()
        data = noise(65536, 22)
        handle.pwrite(data, 0)
        handle.flush()
        assert handle.pread(len(data), 0) == data
    assert data[:4096] not in world.kit.read()


def gzipped(world):
    """A compressed image on the volume, cut to its length by `offset`."""
    data = gzip.compress(noise(MIB, 23) + bytes(MIB))
    world.kit.write(data + bytes(-len(data) % 512), 0)
    filters, options = ["gzip", "offset", "blocksize"], ["offset=0", f"range={len(data)}", "minblock=512"]
    with kit(world, filters, options) as connect:
        handle = connect()
        assert handle.get_size() == 2 * MIB and handle.pread(2 * MIB, 0) == noise(MIB, 23) + bytes(MIB)


def swab(world):
    data = noise(65536, 18)
    with kit(world, ["swab"], ["swab-bits=16"]) as connect:
        handle = connect()
        handle.pwrite(data, BASE)
        assert handle.pread(len(data), BASE) == data
    swapped = bytearray(len(data))
    swapped[::2], swapped[1::2] = data[1::2], data[::2]
    assert world.kit.read(BASE, len(data)) == swapped


def checks(world):
    yield "offset", offset, world
    yield "truncate", truncate, world
    yield "partition", partition, world
    yield "tar", tar_entry, world
    yield "ext2", ext2_file, world
    yield "luks", luks, world
    yield "gzip", gzipped, world
    yield "swab", swab, world
