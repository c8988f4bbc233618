"""Checks of file systems on a volume: nbdfuse shows it as a file, e2fsprogs and fuse2fs use it."""

import os
import shutil

from harness import Skip, run, server, wait_for
from tools import bytes_of
from world import noise


def ext4_image(world, use, through=()):
    """nbdfuse shows the volume as a file; mkfs, `use`, and e2fsck work on it."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise Skip("/dev/fuse cannot be opened")
    world.tool.clear()
    folder = world.fresh("fuse")
    os.mkdir(folder)
    image = os.path.join(folder, "disk")
    source = ["[", *through, world.tool.uri(), "]"] if through else [world.tool.uri()]
    with server("nbdfuse", image, *source, socket=image):
        try:
            assert os.path.getsize(image) == world.tool.size
            # Few inodes: their tables are most of what mkfs and e2fsck would write and read.
            run("/sbin/mkfs.ext4", "-q", "-F", "-N", "256", image, "40M")
            use(world, image)
            run("/sbin/e2fsck", "-f", "-n", image)
        finally:
            run("fusermount3", "-u", folder)
    with open(world.fresh("ext4"), "wb") as file:
        file.write(world.tool.read())
    run("/sbin/e2fsck", "-f", "-n", file.name)
    os.unlink(file.name)


def tree(folder):
    """A file tree, and what it holds by path."""
    held = {}
    for n in range(40):
        path = os.path.join(folder, f"d{n % 7}", f"e{n % 3}", f"file{n}")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        data = noise(1 + n * 700, n)
        with open(path, "wb") as file:
            file.write(data)
        held[os.path.relpath(path, folder)] = data
    return held


def tree_by_fuse2fs(world, image):
    """A mounted file system in user space: files written, moved, removed, unmounted, mounted, read."""
    mount = world.fresh("mount")
    os.mkdir(mount)
    mounted(mount, image)
    try:
        held = tree(mount)
        os.rename(os.path.join(mount, "d0"), os.path.join(mount, "moved"))
        shutil.rmtree(os.path.join(mount, "d1"))
    finally:
        unmounted(mount)
    mounted(mount, image)
    try:
        for name, data in held.items():
            path = os.path.join(mount, name.replace("d0/", "moved/"))
            assert os.path.exists(path) != name.startswith("d1/"), path
            assert name.startswith("d1/") or bytes_of(path) == data, f"{name} differs"
    finally:
        unmounted(mount)


def mounted(mount, image):
    run("fuse2fs", "-o", "fakeroot", image, mount)
    wait_for(lambda: os.path.ismount(mount), mount)


def unmounted(mount):
    run("fusermount3", "-u", mount)
    # fuse2fs writes back after the unmount has returned.
    wait_for(lambda: not busy(mount), f"the end of fuse2fs at {mount}")


def busy(mount):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mount.encode() in bytes_of(f"/proc/{pid}/cmdline"):
                return True
        except OSError:
            pass
    return False


def tree_by_debugfs(world, image):
    """A tree that mkfs puts in and debugfs takes out."""
    source, out = world.fresh("tree"), world.fresh("dump")
    os.mkdir(source), os.mkdir(out)
    held = tree(source)
    run("/sbin/mkfs.ext4", "-q", "-F", "-N", "256", "-d", source, image, "40M")
    run("/sbin/debugfs", "-R", f"rdump / {out}", image)
    for name, data in held.items():
        assert bytes_of(os.path.join(out, name)) == data, f"{name} differs"


def checks(world):
    yield "nbdfuse: a file tree of mkfs and debugfs", ext4_image, world, tree_by_debugfs
    # fuse2fs writes single bytes, which libnbd does not send to an export with blocks of 512 bytes.
    blocks = ("nbdkit", "--exit-with-parent", "--filter=blocksize", "nbd", "minblock=512")
    yield "nbdfuse: a file tree of fuse2fs, through nbdkit", ext4_image, world, tree_by_fuse2fs, blocks
