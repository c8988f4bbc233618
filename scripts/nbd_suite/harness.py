"""Runs named checks, each with a time limit, and counts how they end."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

CHECK_SECONDS_MAX = 60


class Skip(Exception):
    """The machine lacks what a check needs."""


class Report:
    """What came of the checks so far."""

    def __init__(self, only=""):
        self.only = only
        self.passed = self.failed = self.skipped = 0

    def run(self, name, check, *args):
        """Runs one check in a thread, so that a hang is a failure and the rest goes on."""
        if self.only not in name:
            return
        problem = []
        thread = threading.Thread(target=_guard, args=(problem, check, args), daemon=True)
        begun = time.monotonic()
        thread.start()
        thread.join(CHECK_SECONDS_MAX)
        seconds = time.monotonic() - begun
        if thread.is_alive():
            problem = [AssertionError(f"no end after {CHECK_SECONDS_MAX} s")]
        if not problem:
            self.passed += 1
            print(f"ok      {name}" + (f" ({seconds:.1f} s)" if seconds > 1 else ""))
        elif isinstance(problem[0], Skip):
            self.skipped += 1
            print(f"skipped {name}: {problem[0]}")
        else:
            self.failed += 1
            print(f"FAILED  {name}: {explain(problem[0])}")
        sys.stdout.flush()

    def close(self):
        """Prints the sum; True when nothing failed."""
        if self.skipped:
            print(f"{self.skipped} skipped")
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        return self.failed == 0 and self.passed > 0


def _guard(problem, check, args):
    try:
        check(*args)
    except BaseException as error:  # noqa: BLE001 - every end of a check is a result
        problem.append(error)


def explain(error):
    """The error and the line of this suite that raised it."""
    here = os.path.dirname(__file__)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(here)]
    at = f" [{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}: {frames[-1].line}]" if frames else ""
    return f"{type(error).__name__}: {error}{at}"


def run(*command, fails=False, data=None, seconds=50, status=None):
    """Runs a tool to its end and gives its standard output. It must succeed, or fail when `fails` says so."""
    out, errors, code = finished(command, data, seconds)
    good = code == status if status is not None else (code != 0) == fails
    tail = errors[-600:].decode(errors="replace").strip()
    assert good, f"`{' '.join(command)[:300]}` ended with {code}: {tail}"
    assert code >= 0, f"`{command[0]}` was ended by signal {-code}"
    return out.decode(errors="replace")


def finished(command, data=None, seconds=50):
    """Standard output, standard error and exit code of a command; it ends with the suite at the latest."""
    source = subprocess.DEVNULL if data is None else subprocess.PIPE
    process = subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    OWN.add(process)
    try:
        out, errors = process.communicate(data, seconds)
    finally:
        end(process)
    return out, errors, process.returncode


def wait_for(condition, what, seconds=20):
    """Waits until `condition()` is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def server(*command, socket):
    """A server process that is ready when its unix socket, or what else `socket` names, is there."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=errors, stderr=errors, start_new_session=True)
        OWN.add(process)
        try:
            wait_for(lambda: os.path.exists(socket) or process.poll() is not None, socket)
            if process.poll() is not None:
                raise AssertionError(f"{command[0]} ended")
            yield process
        except Exception as error:
            errors.seek(0)
            said = errors.read()[-300:].decode(errors="replace").strip()
            raise AssertionError(f"{explain(error)}; {command[0]} said {said!r}") from error
        finally:
            end(process)
            with contextlib.suppress(OSError):
                os.unlink(socket)


# Every process that the suite started itself and that may still run.
OWN = set()


def end(process):
    """Ends a process of our own: gently, then for good."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    OWN.discard(process)
