"""The life of handles: closed, dropped, left open at the end of a program, inherited by a fork."""

import gc
import os
import pathlib
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import basalt
from rig import ClusterCase, eventually


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
        with self.cluster.open(self.volume()) as volume:
            volume.write(0, b"p" * 512)
            child = os.fork()
            if child == 0:
                # Only this tells the parent: exit codes of the child, and no clean-up of the test.
                os._exit(self.in_child(volume))
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            self.assertEqual(volume.read(0, 512), b"p" * 512)

    def in_child(self, volume: basalt.Volume) -> int:
        calls: list[Callable[[], object]] = [
            lambda: volume.read(0, 512),
            volume.close,
            self.cluster.volumes,
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
