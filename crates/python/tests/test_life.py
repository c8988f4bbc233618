"""The life of handles: closed, dropped, left open at the end of a program, inherited by a fork."""

import contextlib
import gc
import os
import pathlib
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable

import basalt
from basalt import _native, _sync
from rig import ClusterCase, alarm, eventually, metas_stopped, osds_stopped, wait_until

#: A child that has threads of its own, lets go of its handles, and ends as a program does.
FORKED = """
import gc, os, sys, threading, warnings
import basalt

warnings.simplefilter("ignore")
cluster = basalt.connect()
volume = cluster.open({name!r})
volume.write(0, b"p" * 512)
child = os.fork()
if child == 0:
    threads = [threading.Thread(target=sum, args=(range(1000),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        volume.read(0, 512)
        sys.exit(3)
    except basalt.NotSupported:
        pass
    del cluster, volume
    gc.collect()
    sys.exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("child", status, "parent", volume.read(0, 512) == b"p" * 512)
volume.close()
"""


def library_threads() -> int:
    names = (path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm"))
    return sum(name == "basalt-io" for name in names)


class Life(ClusterCase):
    def test_a_closed_handle_refuses_calls_and_closes_once(self) -> None:
        name = self.volume()
        before = library_threads()
        with basalt.connect() as cluster:
            self.assertEqual(library_threads(), before + 1)
            volume = cluster.open(name)
            self.assertEqual(repr(volume), f"<basalt.Volume {name}>")
        self.assertTrue(volume.closed and cluster.closed, "a cluster closes its volumes")
        self.assertEqual(library_threads(), before)
        self.assertRaises(basalt.Closed, volume.read, 0, 512)
        self.assertRaises(basalt.Closed, cluster.volumes)
        self.assertRaises(basalt.Closed, cluster.open, name)
        volume.close()
        cluster.close()
        self.cluster.open(name).close()

    def test_a_dropped_volume_is_closed_in_the_background(self) -> None:
        name = self.volume()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            volume = self.cluster.open(name)
            volume.write(0, b"x" * 512)
            del volume
            gc.collect()
        self.assertEqual([one.category for one in told], [ResourceWarning])
        # A warning refers to its source.
        told.clear()
        # Its lease would last for 10 s.
        self.assertLess(eventually(lambda: self.cluster.open(name).close(), basalt.Busy), 5)

    def test_a_dropped_cluster_ends_its_thread(self) -> None:
        before = library_threads()
        cluster = basalt.connect()
        native = cluster._native
        del cluster, native
        gc.collect()
        deadline = time.monotonic() + 5
        while library_threads() > before and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual(library_threads(), before)

    def test_a_program_that_ends_leaves_no_volume_open(self) -> None:
        name = self.volume()
        program = f"import basalt; v = basalt.connect().open({name!r}); v.write(0, b'e' * 512); print(v.size)"
        out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
        self.assertEqual((out.returncode, out.stdout.strip()), (0, str(16 << 20)), out.stderr)
        with self.cluster.open(name) as volume:
            self.assertEqual(volume.read(0, 512), b"e" * 512)

    def test_ctrl_c_ends_a_program_in_a_blocking_call(self) -> None:
        program = (
            "import basalt, socket\n"
            "s = socket.create_server(('127.0.0.1', 0))\n"
            "print('ready', flush=True)\n"
            "basalt.connect(f'127.0.0.1:{s.getsockname()[1]}', connect_timeout=60)"
        )
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen([sys.executable, "-c", program], **pipes) as process:  # type: ignore[call-overload]
            self.assertEqual(process.stdout.readline(), "ready\n")
            time.sleep(0.2)
            process.send_signal(2)
            _, error = process.communicate(timeout=10)
        self.assertIn("KeyboardInterrupt", error)

    def test_a_forked_child_is_refused_and_its_parent_goes_on(self) -> None:
        held, over = threading.Event(), threading.Event()

        def hold() -> None:
            """Keep the lock of a close, as a thread does that closes the cluster."""
            with self.cluster._ending:
                held.set()
                over.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        self.addCleanup(over.set)
        held.wait()
        with self.cluster.open(self.volume()) as volume:
            volume.write(0, b"p" * 512)
            with warnings.catch_warnings():
                # From Python 3.12 on, a fork beside threads is told.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                # Only this tells the parent: exit codes of the child, and no clean-up of the test.
                os._exit(self.in_child(volume))
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            over.set()
            holder.join()
            self.assertEqual(volume.read(0, 512), b"p" * 512)

    def test_a_forked_child_with_threads_ends_normally(self) -> None:
        program = FORKED.format(name=self.volume())
        out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((out.returncode, out.stdout.strip()), (0, "child 0 parent True"), out.stderr)

    def in_child(self, volume: basalt.Volume) -> int:
        calls: list[Callable[[], object]] = [
            lambda: volume.read(0, 512),
            volume.close,
            self.cluster.volumes,
            self.cluster.close,
            basalt.connect,
        ]
        for number, call in enumerate(calls, 1):
            try:
                call()
                return number
            except basalt.NotSupported as error:
                if "forked" not in error.message:
                    return number
        return 0


class Close(ClusterCase):
    """The close of a cluster while volumes are opened and closed, and when it is interrupted."""

    def test_a_cluster_closes_beside_a_volume_that_was_dropped(self) -> None:
        name = self.volume()
        with contextlib.ExitStack() as stack, warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            with basalt.connect() as cluster:
                volume = cluster.open(name)
                stack.enter_context(metas_stopped())
                # Its close in the background waits for the metadata server.
                del volume
                gc.collect()
            self.assertTrue(cluster.closed)

    def test_an_interrupted_open_keeps_its_exception(self) -> None:
        name, before = self.volume(), library_threads()
        with contextlib.ExitStack() as stack, self.assertRaises(KeyboardInterrupt), basalt.connect() as cluster:
            stack.enter_context(metas_stopped())
            begin = time.monotonic()
            with alarm(0.2):
                cluster.open(name)
        self.assertLess(time.monotonic() - begin, 8, "an open takes 15 s")
        self.assertEqual((library_threads(), cluster.closed), (before, True))

    def test_an_interrupted_close_of_a_volume_goes_on(self) -> None:
        name, before = self.volume(), library_threads()
        with contextlib.ExitStack() as stack, self.assertRaises(KeyboardInterrupt), basalt.connect() as cluster:
            volume = cluster.open(name)
            stack.enter_context(metas_stopped())
            with alarm(0.2):
                volume.close()
        self.assertEqual((library_threads(), volume.closed), (before, True))

    def test_an_interrupted_close_of_a_cluster_can_be_awaited(self) -> None:
        before = library_threads()
        cluster = basalt.connect()
        volume = cluster.open(self.volume())
        with metas_stopped():
            with alarm(0.2):
                self.assertRaises(KeyboardInterrupt, cluster.close)
            self.assertTrue(volume.closed and cluster in _sync._closing)
            self.assertRaises(basalt.Closed, cluster.volumes)
            cluster.close()
        self.assertEqual((library_threads(), cluster in _sync._closing), (before, False))

    def test_a_second_close_of_a_volume_waits_for_the_first(self) -> None:
        with contextlib.ExitStack() as stack, self.cluster.open(self.volume()) as volume:
            volume.write(0, bytes(512))
            stack.enter_context(osds_stopped())
            queue = _native.Queue(1)
            volume._native.submit_read(queue, 1, 0, 512)
            first = threading.Thread(target=volume.close)
            first.start()
            wait_until(lambda: volume.closed, "the close does not begin")
            self.assertEqual(queue.take(), [])
            volume.close()
            self.assertEqual(len(queue.take()), 1, "requests in flight have ended when a close returns")
            first.join()

    def test_a_cluster_closes_beside_a_thread_that_closes_its_volume(self) -> None:
        cluster = basalt.connect()
        volume = cluster.open(self.volume())
        with metas_stopped():
            first = threading.Thread(target=volume.close)
            first.start()
            wait_until(lambda: volume.closed, "the close does not begin")
            cluster.close()
            first.join()
        self.assertTrue(cluster.closed)

    def test_a_failure_of_one_close_leaves_no_volume_open(self) -> None:
        before = library_threads()
        cluster = basalt.connect()
        name = self.volume()
        volumes = [cluster.open(name, read_only=True) for _ in range(3)]
        failure = basalt.Closed("BSLT-6003", "the test", "", 9)

        def fails() -> None:
            raise failure

        for volume in volumes[:2]:
            volume.close = fails  # type: ignore[method-assign]
        with self.assertRaises(basalt.Closed) as caught:
            cluster.close()
        self.assertIs(caught.exception, failure)
        self.assertTrue(all(volume.closed for volume in volumes))
        self.assertEqual((library_threads(), cluster in _sync._clusters), (before, False))

    def test_a_failure_of_a_close_does_not_hide_an_exception(self) -> None:
        def fails() -> None:
            raise basalt.Closed("BSLT-6003", "the test", "", 9)

        with self.assertRaises(ZeroDivisionError), self.cluster.open(self.volume()) as volume:
            close, volume.close = volume.close, fails  # type: ignore[method-assign]
            self.addCleanup(close)
            raise ZeroDivisionError

    def test_threads_open_while_the_cluster_closes(self) -> None:
        name, unexpected = self.volume(), []

        def work(cluster: basalt.Cluster) -> None:
            try:
                while True:
                    cluster.open(name, read_only=True).close()
            except basalt.Closed:
                pass
            except BaseException as error:  # noqa: BLE001
                unexpected.append(error)

        for _ in range(5):
            cluster = basalt.connect()
            threads = [threading.Thread(target=work, args=(cluster,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            cluster.open(name, read_only=True).close()
            cluster.close()
            for thread in threads:
                thread.join()
        self.assertEqual(unexpected, [])
