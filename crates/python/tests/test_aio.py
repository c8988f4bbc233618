"""The interface for asyncio."""

import asyncio
import inspect
import random
import time
import unittest

import basalt
from basalt import aio
from rig import MIB, ClusterCase, osds_stopped


class Aio(ClusterCase, unittest.IsolatedAsyncioTestCase):
    async def test_many_requests_in_flight_against_a_model(self) -> None:
        blocks = [random.Random(n).randbytes(4096) for n in range(512)]
        async with await aio.connect() as cluster, await cluster.open(self.volume(), depth=16) as volume:
            counts = await asyncio.gather(*(volume.write(n * 4096, data) for n, data in enumerate(blocks)))
            self.assertEqual(set(counts), {4096})
            buffers = [bytearray(4096) for _ in blocks]
            await asyncio.gather(*(volume.readinto(n * 4096, buffer) for n, buffer in enumerate(buffers)))
            self.assertEqual(buffers, blocks)
            await asyncio.gather(volume.discard(0, 65536), volume.write_zeroes(65536, 65536, allocate=True))
            await volume.flush()
            self.assertEqual(await volume.read(0, 3 * 65536), bytes(131072) + b"".join(blocks)[131072:196608])

    async def test_more_bytes_than_a_queue_holds_wait_for_their_turn(self) -> None:
        async with await aio.connect() as cluster, await cluster.open(self.volume(64 * MIB)) as volume:
            sizes = await asyncio.gather(*(volume.read(0, 30 * MIB) for _ in range(6)))
            self.assertEqual([len(data) for data in sizes], [30 * MIB] * 6)

    async def test_failures_are_those_of_the_blocking_interface(self) -> None:
        async with await aio.connect() as cluster:
            with self.assertRaises(basalt.NotFound):
                await cluster.open("main/missing")
            name = self.volume()
            async with await cluster.open(name) as volume:
                with self.assertRaises(basalt.InvalidArgument):
                    await volume.read(1, 512)
                with self.assertRaises(TypeError):
                    await volume.readinto(0, bytes(512))
                async with await cluster.open(name, steal=True):
                    with self.assertRaises(basalt.Fenced):
                        await volume.write(0, bytes(512))
            with self.assertRaises(basalt.Closed):
                await volume.read(0, 512)

    async def test_stuck_requests_are_cancelled_and_given_up(self) -> None:
        async with await aio.connect() as cluster:
            volume = await cluster.open(self.volume(), depth=2)
            await volume.write(0, b"a" * 512)
            with osds_stopped():
                buffer = bytearray(512)
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(volume.readinto(0, buffer), 0.2)
                # One is in flight, and two wait for its turn and that of the cancelled one.
                tasks = [asyncio.create_task(volume.read(0, 512)) for _ in range(3)]
                await asyncio.sleep(0.1)
                begin = time.monotonic()
                await volume.close()
                self.assertLess(time.monotonic() - begin, 8)
                ended = await asyncio.gather(*tasks, return_exceptions=True)
            self.assertEqual([type(error) for error in ended], [basalt.Closed] * 3)
            self.assertEqual(buffer, bytes(512), "a cancelled read fills nothing")

    async def test_a_volume_belongs_to_the_loop_that_opened_it(self) -> None:
        async with await aio.connect() as cluster, await cluster.open(self.volume()) as volume:

            def elsewhere() -> None:
                with self.assertRaisesRegex(RuntimeError, "another event loop"):
                    asyncio.run(volume.read(0, 512))

            await asyncio.to_thread(elsewhere)

    async def test_administration_has_the_same_methods_and_signatures(self) -> None:
        public = {name for name in vars(basalt.Cluster) if not name.startswith("_")}
        self.assertLessEqual(public, set(vars(aio.Cluster)))
        for name in public - {"open", "closed", "close"}:
            blocking, awaited = getattr(basalt.Cluster, name), getattr(aio.Cluster, name)
            self.assertTrue(inspect.iscoroutinefunction(awaited), name)
            self.assertEqual(inspect.signature(awaited), inspect.signature(blocking), name)
        requests = {name for name in vars(basalt.Volume) if not name.startswith("_")}
        self.assertLessEqual(requests, set(vars(aio.Volume)))

    async def test_calls_of_an_administrator_are_awaited(self) -> None:
        async with await aio.connect() as cluster:
            info = await cluster.create_volume("main/awaited", MIB)
            self.assertEqual([one.name for one in await cluster.volumes() if one.id == info.id], ["main/awaited"])
            await cluster.create_snapshot("main/awaited@a")
            await cluster.remove_snapshot("main/awaited@a")
            self.assertIsNone(await cluster.remove_volume("main/awaited", now=True))
        with self.assertRaises(basalt.Closed):
            await cluster.volumes()
