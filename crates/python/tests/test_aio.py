"""The interface for asyncio."""

import asyncio
import contextlib
import inspect
import random
import threading
import time
import unittest
import unittest.mock
from collections.abc import Callable
from typing import Any

import basalt
from basalt import _native, aio
from rig import MIB, PATIENCE_S, ClusterCase, eventually, metas_stopped, osds_stopped, wait_until


class Recorder:
    """Stands for the native volume of one of `aio`, and notes the offset of each read that is submitted."""

    def __init__(self, volume: aio.Volume) -> None:
        self.native = volume._blocking._native
        self.offsets: list[int] = []
        volume._blocking._opened = lambda: self  # type: ignore[method-assign, assignment, return-value]

    def submit_read(self, queue: _native.Queue, token: int, offset: int, length: int) -> None:
        self.offsets.append(offset)
        self.native.submit_read(queue, token, offset, length)


class Finished:
    """Stands for a completion."""

    def __init__(self, token: int) -> None:
        self.token = token


class Interrupt(BaseException):
    """What a handler of a signal raises."""


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

    async def test_a_task_in_a_crowd_submits_its_request_once(self) -> None:
        count = 20_000
        async with await aio.connect() as cluster, await cluster.open(self.volume(), depth=128) as volume:
            recorder = Recorder(volume)
            await asyncio.gather(*(volume.read(n % 4096 * 512, 512) for n in range(count)))
            self.assertEqual(len(recorder.offsets), count)
            self.assertEqual((volume._room, volume._held, len(volume._crowd), volume._flying), (128, 0, 0, {}))

    async def test_requests_start_in_the_order_of_their_tasks(self) -> None:
        async with await aio.connect() as cluster, await cluster.open(self.volume(), depth=1) as volume:
            recorder = Recorder(volume)

            async def twice() -> None:
                await volume.read(0, 512)
                # Others wait: this one comes behind them.
                await volume.read(9 * 512, 512)

            await asyncio.gather(twice(), volume.read(512, 512), volume.read(1024, 512))
            self.assertEqual([offset // 512 for offset in recorder.offsets], [0, 1, 2, 9])

    async def test_a_task_that_is_cancelled_passes_its_place_on(self) -> None:
        async with await aio.connect() as cluster, await cluster.open(self.volume(), depth=1) as volume:
            recorder = Recorder(volume)
            second: asyncio.Task[bytes]

            async def first() -> None:
                await volume.read(0, 512)
                # It has got the place, and has not run.
                second.cancel()

            begun = asyncio.create_task(first())
            await asyncio.sleep(0)
            second = asyncio.create_task(volume.read(512, 512))
            third = asyncio.create_task(volume.read(1024, 512))
            self.assertEqual(await asyncio.wait_for(third, PATIENCE_S), bytes(512))
            await begun
            self.assertEqual((second.cancelled(), [offset // 512 for offset in recorder.offsets]), (True, [0, 2]))
            self.assertEqual((volume._room, len(volume._crowd)), (1, 0))

    async def test_an_interrupt_loses_no_completion(self) -> None:
        async with await aio.connect() as cluster, await cluster.open(self.volume()) as volume:

            def interrupted(_completion: object) -> None:
                raise Interrupt

            futures: list[asyncio.Future[Any]] = [asyncio.get_running_loop().create_future() for _ in range(2)]
            endings: list[Callable[[object], object]] = [interrupted, lambda _completion: 2]
            queue = volume._queue
            for token, (future, finish) in enumerate(zip(futures, endings, strict=True), 1):
                volume._enter(512)
                volume._flying[token] = (future, finish, 512)
            with unittest.mock.patch.object(volume, "_queue") as taken:
                taken.take.side_effect = [[Finished(1), Finished(2)], [], []]
                self.assertRaises(Interrupt, volume._drain)
                volume._flying[1] = (futures[0], lambda _completion: 1, 512)
                self.assertEqual(await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S), [1, 2])
                await asyncio.sleep(0)
            self.assertEqual((volume._room, volume._held, volume._queue), (128, 0, queue))

    async def test_a_request_that_fails_to_start_leaves_no_trace(self) -> None:
        async with await aio.connect() as cluster, await cluster.open(self.volume()) as volume:
            with unittest.mock.patch.object(volume._blocking, "_opened", side_effect=Interrupt):
                with self.assertRaises(Interrupt):
                    await volume.write(0, bytes(512))
            self.assertEqual((volume._room, volume._held, volume._flying), (128, 0, {}))

    async def test_extents_since_a_snapshot_are_those_of_the_blocking_interface(self) -> None:
        name = self.volume(8 * MIB)
        async with await aio.connect() as cluster, await cluster.open(name) as volume:
            await volume.write(0, b"a" * 65536)
            snapshot = await cluster.create_snapshot(f"{name}@a")
            await volume.write(MIB, b"b" * 65536)
            changed = await volume.extents(since=snapshot)
            self.assertEqual([one for one in changed if one.data], [basalt.Extent(MIB, 65536, True)])
            self.assertEqual(changed, await asyncio.to_thread(volume._blocking.extents, since=snapshot.id))
            self.assertEqual(await volume.extents(MIB, 65536), [basalt.Extent(MIB, 65536, True)])
            with self.assertRaises(basalt.InvalidArgument):
                await volume.extents(0, 0)

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

    async def test_a_second_close_waits_for_the_first(self) -> None:
        async with await aio.connect() as cluster:
            volume = await cluster.open(self.volume())
            await volume.write(0, bytes(512))
            with osds_stopped():
                reader = asyncio.create_task(volume.read(0, 512))
                await asyncio.sleep(0)
                # The blocking one has begun in another thread.
                first = threading.Thread(target=volume._blocking.close)
                first.start()
                wait_until(lambda: volume.closed, "the close does not begin")
                await volume.close()
                with self.assertRaises(basalt.Closed):
                    await asyncio.wait_for(reader, PATIENCE_S)
                first.join()

    async def test_a_close_that_is_slow_keeps_the_cancellation(self) -> None:
        name = self.volume()

        async def body() -> None:
            async with await aio.connect() as cluster:
                volumes.append(await cluster.open(name))
                clusters.append(cluster)
                stop.__enter__()

        volumes: list[aio.Volume] = []
        clusters: list[aio.Cluster] = []
        stop = metas_stopped()
        task = asyncio.create_task(body())
        try:
            while not clusters or not clusters[0].closed:
                await asyncio.sleep(0.01)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
        finally:
            stop.__exit__(None, None, None)
        await clusters[0].close()
        self.assertTrue(clusters[0]._blocking._native is None and volumes[0].closed)

    async def test_an_open_that_is_cancelled_is_given_up(self) -> None:
        name = self.volume()
        with contextlib.ExitStack() as stack:
            with self.assertRaises(asyncio.TimeoutError):
                async with await aio.connect() as cluster:
                    stack.enter_context(metas_stopped())
                    begin = time.monotonic()
                    await asyncio.wait_for(cluster.open(name), 0.2)
            self.assertLess(time.monotonic() - begin, PATIENCE_S, "an open takes 15 s")
        await asyncio.to_thread(eventually, lambda: self.cluster.open(name).close(), basalt.Busy)

    async def test_an_open_after_a_cancelled_one_is_not_fenced(self) -> None:
        name = self.volume()
        async with await aio.connect() as cluster:
            with metas_stopped():
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(cluster.open(name, steal=True), 0.2)
                with self.assertRaises(basalt.TryAgain):
                    await cluster.open(name)
                again = asyncio.create_task(cluster.open(name, steal=True))
                await asyncio.sleep(0.2)
            async with await again as volume:
                self.assertEqual(await volume.write(0, b"x" * 512), 512)

    async def test_calls_of_an_administrator_are_awaited(self) -> None:
        async with await aio.connect() as cluster:
            info = await cluster.create_volume("main/awaited", MIB)
            self.assertEqual([one.name for one in await cluster.volumes() if one.id == info.id], ["main/awaited"])
            await cluster.create_snapshot("main/awaited@a")
            await cluster.remove_snapshot("main/awaited@a")
            self.assertIsNone(await cluster.remove_volume("main/awaited", now=True))
        with self.assertRaises(basalt.Closed):
            await cluster.volumes()
