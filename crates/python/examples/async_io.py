"""Write and read at depth 16 with asyncio.

Run it with the environment variable BASALT_META, or name the metadata servers: async_io.py HOST:PORT
"""

import asyncio
import sys
import time

from basalt import aio

BLOCK = 4096
BLOCKS = 2048
DEPTH = 16


def pattern(block: int) -> bytes:
    return block.to_bytes(8, "little") * (BLOCK // 8)


async def main(meta: str | None) -> None:
    async with await aio.connect(meta) as cluster:
        await cluster.create_volume("main/py-async", 64 << 20)
        try:
            # At most DEPTH requests are in flight; the others wait for their turn.
            async with await cluster.open("main/py-async", depth=DEPTH) as volume:
                await use(volume)
        finally:
            await cluster.remove_volume("main/py-async", now=True)


async def use(volume: aio.Volume) -> None:
    begin = time.monotonic()
    await asyncio.gather(*(volume.write(block * BLOCK, pattern(block)) for block in range(BLOCKS)))
    written = time.monotonic()
    blocks = await asyncio.gather(*(volume.read(block * BLOCK, BLOCK) for block in range(BLOCKS)))
    read = time.monotonic()
    assert all(data == pattern(block) for block, data in enumerate(blocks))
    print(f"{BLOCKS / (written - begin):.0f} writes and {BLOCKS / (read - written):.0f} reads of 4 KiB per second")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
