"""The NBD suite: the protocol clause by clause, third-party clients, and nbdkit as a middle box, on a real cluster.

`scripts/nbd-suite [WORD]` runs the checks whose name holds WORD. BASALT_BIN names the binary,
NBD_SUITE_DIR the folder of its temporary files.
"""

import os
import signal
import sys
import time

import commands
import connections
import filesystems
import handshake
import layouts
import library
import middle
import tools
from harness import Report
from world import World


def main():
    begun = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    report = Report(sys.argv[1] if len(sys.argv) > 1 else "")
    world = World(os.environ["BASALT_BIN"])
    try:
        world.start()
        for part in (handshake, commands, library, connections, tools, filesystems, middle, layouts):
            for name, check, *args in part.checks(world):
                report.run(f"{part.__name__}: {name}", check, *args)
        report.run("all: the daemons live and the cluster is healthy", world.daemons_live)
    finally:
        world.close()
    print(f"{time.monotonic() - begun:.0f} s")
    good = report.close()
    # A check that hangs is a thread that never ends.
    os._exit(0 if good else 1)


main()
