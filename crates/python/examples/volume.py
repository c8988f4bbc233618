"""Create a volume, write to it, make a snapshot, write again, read the snapshot, delete both.

Run it with the environment variable BASALT_META, or name the metadata servers: volume.py HOST:PORT
"""

import sys

import basalt

BLOCK = 4096


def main(meta: str | None) -> None:
    with basalt.connect(meta) as cluster:
        cluster.create_volume("main/py-example", 64 << 20, description="an example", labels={"app": "example"})
        try:
            use(cluster)
        finally:
            # Without `now` the volume would go to the trash, with its snapshots.
            cluster.remove_volume("main/py-example", now=True, snapshots=True)


def use(cluster: basalt.Cluster) -> None:
    with cluster.open("main/py-example") as volume:
        print(f"{volume.name} has {volume.size} bytes")
        volume.write(0, b"before".ljust(BLOCK))
        # Any contiguous buffer: bytes, bytearray, memoryview, an array of numpy.
        volume.write(BLOCK, memoryview(bytearray(BLOCK)))
        snapshot = cluster.create_snapshot("main/py-example@monday")
        print(f"{snapshot.name} was made at {snapshot.created:%Y-%m-%d %H:%M}")
        volume.write(0, b"after".ljust(BLOCK))

        with cluster.open("main/py-example@monday") as old:
            print("the snapshot has:", old.read(0, BLOCK).split()[0].decode())
        buffer = bytearray(BLOCK)
        volume.readinto(0, buffer)
        print("the volume has:", buffer.split()[0].decode())
        volume.discard(0, BLOCK)
        assert volume.read(0, BLOCK) == bytes(BLOCK)

    try:
        cluster.open("main/missing")
    except basalt.NotFound as error:
        print(f"{error.code}: {error.message}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
