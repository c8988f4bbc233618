"""nbdkit as a middle box over an export: how the checks start it, connect to it, and write data through it."""

import contextlib

import nbd
from harness import server
from world import MIB, noise

BASE = 8 * MIB


@contextlib.contextmanager
def kit(world, filters=(), options=(), plugin=(), more=()):
    """nbdkit over the export. Gives a way to connect to it."""
    socket = world.fresh("nbdkit.sock")
    command = ["nbdkit", "--foreground", "--exit-with-parent", "-U", socket, *more]
    command += [f"--filter={name}" for name in filters]
    command += ["nbd", *(plugin or (f"uri={world.kit.uri()}",)), *options]
    with server(*command, socket=socket), clients(socket) as connect:
        yield connect


@contextlib.contextmanager
def clients(socket):
    """Connects to a socket, and leaves it in the end: nbdkit waits for its clients."""
    handles = []

    def connect(name=""):
        handles.append(connected(socket, name))
        return handles[-1]

    try:
        yield connect
    finally:
        for handle in handles:
            handle.shutdown()


def connected(socket, name=""):
    handle = nbd.NBD()
    handle.add_meta_context("base:allocation")
    handle.connect_uri(f"nbd+unix:///{name}?socket={socket}")
    return handle


def refused(want, call, *args):
    try:
        call(*args)
    except nbd.Error as error:
        assert error.errnum == want, f"errno {error.errnum}, not {want}"
    else:
        raise AssertionError("it was not refused")


def refused_any(call):
    try:
        call()
    except nbd.Error:
        return
    raise AssertionError("it was not refused")


def exercise(handle, shift=0):
    """Writes, overwrites, zeroes, trims and reads through `handle`. Gives what BASE holds afterwards."""
    model = bytearray(noise(2 * MIB, shift))
    for at in range(0, len(model), 256 << 10):
        handle.pwrite(model[at : at + (256 << 10)], BASE + at)
    if handle.can_zero():
        handle.zero(128 << 10, BASE + 65536)
        model[65536 : 65536 + (128 << 10)] = bytes(128 << 10)
        handle.zero(65536, BASE + MIB, nbd.CMD_FLAG_NO_HOLE)
        model[MIB : MIB + 65536] = bytes(65536)
    patch = noise(4096, shift + 1)
    handle.pwrite(patch, BASE + 4096, nbd.CMD_FLAG_FUA if handle.can_fua() else 0)
    model[4096:8192] = patch
    if handle.can_flush():
        handle.flush()
    assert handle.pread(len(model), BASE) == model, "read through nbdkit"
    return model
