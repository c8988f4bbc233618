"""What the tests share: the cluster of `scripts/python test`, a volume of each test, OSDs that stop for a while."""

import contextlib
import os
import pathlib
import signal
import socket
import time
import types
import unittest
from collections.abc import Callable, Iterator

import basalt

MIB = 1 << 20
#: Longest wait for what happens in the background.
PATIENCE_S = 8.0


class ClusterCase(unittest.TestCase):
    """A test with a cluster handle. Its volumes begin with its own name."""

    cluster: basalt.Cluster

    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = basalt.connect()
        cls.addClassCleanup(cls.cluster.close)

    def volume(self, size: int = 16 * MIB, **options: object) -> str:
        """Make a volume, which is removed after the test; return its name."""
        name = f"main/{self._testMethodName.removeprefix('test_').replace('_', '-')[:40]}"
        self.cluster.create_volume(name, size, **options)  # type: ignore[arg-type]
        self.addCleanup(self.remove, name)
        return name

    def remove(self, name: str) -> None:
        for snapshot in self.cluster.snapshots(name):
            if snapshot.protected:
                self.cluster.set_snapshot(snapshot.name, protect=False)
        self.cluster.remove_volume(name, force=True, now=True, snapshots=True)

    def assert_raises_code(self, kind: type[basalt.Error], code: str, call: Callable[[], object]) -> basalt.Error:
        with self.assertRaises(kind) as caught:
            call()
        self.assertEqual(caught.exception.code, code, caught.exception)
        return caught.exception


@contextlib.contextmanager
def stopped(kind: str) -> Iterator[None]:
    """Stop all processes of a kind, ``osd`` or ``meta``: they give no answer meanwhile."""
    pids = [int(path.read_text().split()[0]) for path in pathlib.Path(os.environ["BASALT_DEV_PIDS"]).glob(f"{kind}.*")]
    assert pids, kind
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def osds_stopped() -> contextlib.AbstractContextManager[None]:
    return stopped("osd")


def metas_stopped() -> contextlib.AbstractContextManager[None]:
    return stopped("meta")


def wait_until(done: Callable[[], object], what: str) -> None:
    """Wait for what another thread does."""
    begin = time.monotonic()
    while not done():
        assert time.monotonic() - begin < PATIENCE_S, what
        time.sleep(0.01)


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """Yield the address of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def alarm(
    after_s: float, handler: Callable[[int, types.FrameType | None], object] = signal.default_int_handler
) -> Iterator[None]:
    """Let the handler of a signal raise KeyboardInterrupt in the main thread, as Ctrl-C does."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def eventually(call: Callable[[], object], kind: type[Exception]) -> float:
    """Repeat a call until it no longer raises an exception of this kind; return the seconds that it took."""
    begin = time.monotonic()
    while True:
        try:
            call()
            return time.monotonic() - begin
        except kind:
            if time.monotonic() - begin > PATIENCE_S:
                raise
            time.sleep(0.05)
