"""The cluster that the checks run against: three OSDs, four volumes, five exports, and how all of it goes away."""

import json
import os
import random
import shutil
import subprocess
import tempfile
from dataclasses import dataclass

import nbd
from harness import OWN, end, run
from raw import Raw

CLUSTER = "nbd-suite"
MIB = 1 << 20


@dataclass
class Export:
    """One export: `address` is a path or (host, port)."""

    name: str
    address: object
    size: int

    def raw(self, **more):
        """A raw connection, in the handshake."""
        return Raw(self.address, **more)

    def enter(self, structured=True, **more):
        """A raw connection in transmission."""
        client = Raw(self.address, **more)
        client.go(structured=structured)
        return client

    def uri(self, name=None):
        name = self.name if name is None else name
        if isinstance(self.address, str):
            return f"nbd+unix:///{name}?socket={self.address}"
        return f"nbd://{self.address[0]}:{self.address[1]}/{name}"

    def libnbd(self, strict=False):
        """A libnbd handle. Without `strict` it sends illegal requests as they are."""
        handle = nbd.NBD()
        handle.add_meta_context("base:allocation")
        if not strict:
            handle.set_strict_mode(0)
        handle.connect_uri(self.uri())
        return handle

    def read(self, offset=0, length=None):
        """Bytes of the export, over a connection of their own."""
        handle = self.libnbd()
        end = self.size if length is None else offset + length
        out = b"".join(bytes(handle.pread(min(32 * MIB, end - at), at)) for at in range(offset, end, 32 * MIB))
        handle.shutdown()
        return out

    def write(self, data, offset=0):
        handle = self.libnbd()
        for at in range(0, len(data), 32 * MIB):
            handle.pwrite(data[at : at + 32 * MIB], offset + at)
        handle.shutdown()

    def clear(self):
        """Makes the whole export a hole."""
        handle = self.libnbd()
        handle.zero(self.size, 0)
        handle.shutdown()


class World:
    """The cluster and its exports. `close` removes everything."""

    def __init__(self, binary):
        self.binary = binary
        # The devices are opened with O_DIRECT, which a tmpfs does not have.
        self.dir = tempfile.mkdtemp(prefix="basalt-nbd-suite.", dir=os.environ.get("NBD_SUITE_DIR", "/var/tmp"))
        os.environ["XDG_STATE_HOME"] = self.dir
        self.processes = []
        self.serial = 0

    def basalt(self, *args):
        return run(self.binary, "--cluster", CLUSTER, *args)

    def start(self):
        self.basalt("dev", "up", "--osds", "3", "--export", "main/unix", "--size", "256MiB")
        socket = self.basalt("dev", "socket", "main/unix").strip()
        self.unix = Export("main/unix", socket, 256 * MIB)
        for name, size in [("tcp", 256), ("tool", 96), ("kit", 64)]:
            self.basalt("volume", "create", f"main/{name}", f"{size}MiB")
        self.tcp = self.serve("main/tcp", "--listen", "127.0.0.1:0")
        self.tool = self.serve("main/tool", "--socket", self.path("tool.sock"))
        self.kit = self.serve("main/kit", "--socket", self.path("kit.sock"))
        self.read_only = self.serve("main/unix", "--read-only", "--socket", self.path("ro.sock"))

    def serve(self, volume, *args):
        """Exports a volume by a process of its own and waits until it says that it is ready."""
        command = [self.binary, "--cluster", CLUSTER, "--json", "nbd", volume, *args]
        log = open(self.path(f"export-{volume.replace('/', '-')}-{len(self.processes)}.log"), "wb")
        with log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
        OWN.add(process)
        self.processes.append(process)
        line = process.stdout.readline()
        assert line, f"{volume}: the export ended: {open(log.name, errors='replace').read()[-800:]}"
        ready = json.loads(line)
        address = args[args.index("--socket") + 1] if "--socket" in args else None
        if address is None:
            host, port = ready["uri"].removeprefix("nbd://").split("/")[0].rsplit(":", 1)
            address = (host, int(port))
        return Export(volume, address, ready["len_bytes"])

    def path(self, name):
        return os.path.join(self.dir, name)

    def fresh(self, name):
        """A path that no check has used."""
        self.serial += 1
        return self.path(f"{self.serial}-{name}")

    def daemons_live(self):
        """No export has ended, and the cluster is healthy."""
        ended = [process.args for process in self.processes if process.poll() is not None]
        assert not ended, f"ended: {ended}"
        with self.unix.enter() as client:
            assert client.one(0, 0, 512).error == 0
        self.basalt("health")

    def close(self):
        with open("/proc/mounts", encoding="utf-8") as file:
            mounts = [line.split()[1] for line in file if self.dir in line]
        for mount in reversed(mounts):
            subprocess.run(["fusermount3", "-u", "-z", mount], check=False, timeout=20)
        for process in list(OWN):
            end(process)
        command = [self.binary, "--cluster", CLUSTER, "dev", "destroy", "--yes"]
        subprocess.run(command, capture_output=True, timeout=60, check=False)
        shutil.rmtree(self.dir, ignore_errors=True)


def noise(length, seed):
    """Bytes that no compression or pattern explains."""
    return random.Random(seed).randbytes(length)
