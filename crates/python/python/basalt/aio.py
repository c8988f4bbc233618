"""The interface for asyncio: the same classes, with awaitable methods.

    import asyncio
    from basalt import aio

    async def main():
        async with await aio.connect("meta1:7300") as cluster:
            async with await cluster.open("main/vm1") as volume:
                await asyncio.gather(*(volume.write(n * 4096, bytes(4096)) for n in range(64)))

    asyncio.run(main())

Requests to a volume use no thread: the event loop watches the queue of their completions. Calls of an administrator, ``connect``,
``open`` and ``close`` are rare, and run in the thread pool of asyncio.

A task that is cancelled stops waiting; its request goes on, and a write may take effect.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from basalt import _native, _sync
from basalt._errors import TryAgain, _closed

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

__all__ = ["Cluster", "Volume", "connect"]

P = ParamSpec("P")
R = TypeVar("R")


async def connect(
    meta: str | Iterable[str] | None = None,
    *,
    connect_timeout: float = 15.0,
    io_timeout: float | None = None,
    full_wait: float = 20.0,
) -> Cluster:
    """Connect to a cluster; see :func:`basalt.connect`."""
    blocking = await asyncio.to_thread(
        _sync.Cluster, meta, connect_timeout=connect_timeout, io_timeout=io_timeout, full_wait=full_wait
    )
    return Cluster(blocking)


def _awaitable(
    method: Callable[Concatenate[_sync.Cluster, P], R],
) -> Callable[Concatenate[Cluster, P], Coroutine[Any, Any, R]]:
    """Return a method that runs one of the blocking class in a thread."""

    @functools.wraps(method)
    async def call(self: Cluster, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self._blocking, *args, **kwargs)

    return call


class Cluster:
    """A cluster, from :func:`connect`. It is an asynchronous context manager that closes it."""

    def __init__(self, blocking: _sync.Cluster) -> None:
        self._blocking = blocking
        self._volumes: set[Volume] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._blocking.closed

    async def close(self) -> None:
        """Close the volumes that are open, and end the threads of the library."""
        try:
            await asyncio.gather(*(volume.close() for volume in list(self._volumes)))
        finally:
            await asyncio.to_thread(self._blocking.close)

    async def open(self, name: str, *, read_only: bool = False, steal: bool = False, depth: int = 128) -> Volume:
        """Open a volume for requests of this event loop; see :meth:`basalt.Cluster.open`.

        At most ``depth`` requests are in flight, and 64 MiB; more wait for their turn.
        """
        queue = _native.Queue(depth)
        blocking = await asyncio.to_thread(self._blocking.open, name, read_only=read_only, steal=steal)
        volume = Volume(blocking, queue, self._volumes.discard)
        self._volumes.add(volume)
        return volume

    status = _awaitable(_sync.Cluster.status)
    pools = _awaitable(_sync.Cluster.pools)
    create_volume = _awaitable(_sync.Cluster.create_volume)
    clone_volume = _awaitable(_sync.Cluster.clone_volume)
    volumes = _awaitable(_sync.Cluster.volumes)
    volume = _awaitable(_sync.Cluster.volume)
    set_volume = _awaitable(_sync.Cluster.set_volume)
    resize_volume = _awaitable(_sync.Cluster.resize_volume)
    rename_volume = _awaitable(_sync.Cluster.rename_volume)
    remove_volume = _awaitable(_sync.Cluster.remove_volume)
    trash = _awaitable(_sync.Cluster.trash)
    restore_volume = _awaitable(_sync.Cluster.restore_volume)
    purge_volume = _awaitable(_sync.Cluster.purge_volume)
    create_snapshots = _awaitable(_sync.Cluster.create_snapshots)
    create_snapshot = _awaitable(_sync.Cluster.create_snapshot)
    snapshots = _awaitable(_sync.Cluster.snapshots)
    snapshot = _awaitable(_sync.Cluster.snapshot)
    set_snapshot = _awaitable(_sync.Cluster.set_snapshot)
    rename_snapshot = _awaitable(_sync.Cluster.rename_snapshot)
    rollback_snapshot = _awaitable(_sync.Cluster.rollback_snapshot)
    remove_snapshot = _awaitable(_sync.Cluster.remove_snapshot)


class Volume:
    """An open volume, from :meth:`Cluster.open`. It is an asynchronous context manager that closes it.

    It belongs to the event loop that opened it. Requests in flight have no order among each other.
    """

    def __init__(self, blocking: _sync.Volume, queue: _native.Queue, forget: Callable[[Volume], None]) -> None:
        self._blocking = blocking
        self._queue = queue
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._token = 0
        #: Requests in flight: the future of each, and how it makes a result of its completion.
        self._flying: dict[int, tuple[asyncio.Future[Any], Callable[[_native.Completion], Any]]] = {}
        #: Tasks whose requests found the queue full.
        self._crowd: deque[asyncio.Future[None]] = deque()
        self._closing: asyncio.Future[None] | None = None
        self._fd = queue.fileno()
        self._loop.add_reader(self._fd, self._drain)
        #: As of :class:`basalt.Volume`.
        self.name = blocking.name
        self.size = blocking.size
        self.block_size = blocking.block_size
        self.preferred_block_size = blocking.preferred_block_size
        self.read_only = blocking.read_only

    def __repr__(self) -> str:
        return f"<basalt.aio.Volume {self.name}{' closed' if self.closed else ''}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closing is not None or self._blocking.closed

    async def close(self) -> None:
        """Close the volume; see :meth:`basalt.Volume.close`. Every request in flight has ended when this returns."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        # A caller that is cancelled does not cancel the close.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await asyncio.to_thread(self._blocking.close)
        finally:
            self._drain()
            self._loop.remove_reader(self._fd)
            self._forget(self)

    def _drain(self) -> None:
        """Hand out the completions that wait."""
        for completion in self._queue.take():
            future, finish = self._flying.pop(completion.token)
            if future.done():
                continue
            try:
                future.set_result(finish(completion))
            except Exception as error:  # noqa: BLE001
                future.set_exception(error)
        while self._crowd:
            waiter = self._crowd.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def _perform(self, submit: Callable[[_native.Volume, int], Any], finish: Callable[[_native.Completion], R]) -> R:
        """Start a request, and wait for its completion."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("the volume belongs to another event loop")
        while True:
            if self.closed:
                raise _closed("volume")
            self._token += 1
            token = self._token
            try:
                submit(self._blocking._opened(), token)
                break
            except TryAgain:
                waiter = self._loop.create_future()
                self._crowd.append(waiter)
                await waiter
        future: asyncio.Future[R] = self._loop.create_future()
        self._flying[token] = (future, finish)
        return await future

    def _done(self, completion: _native.Completion) -> None:
        completion.result(self.name)

    async def read(self, offset: int, length: int) -> bytes:
        """Read ``length`` bytes, 32 MiB at most."""
        return await self._perform(
            lambda native, token: native.submit_read(self._queue, token, offset, length),
            lambda completion: completion.result(self.name),
        )

    async def readinto(self, offset: int, buffer: Buffer) -> int:
        """Fill a writable, contiguous buffer; return its length in bytes. A read that is cancelled leaves it as it was."""
        return await self._perform(
            lambda native, token: native.submit_readinto(self._queue, token, offset, buffer),
            lambda completion: completion.into(self.name, buffer),
        )

    async def write(self, offset: int, data: Buffer) -> int:
        """Write all bytes of a contiguous buffer, 32 MiB at most; return their number.

        The bytes are copied when the request starts. It starts when the task runs, and later when ``depth`` others are in flight.
        """
        count = 0

        def submit(native: _native.Volume, token: int) -> None:
            nonlocal count
            count = native.submit_write(self._queue, token, offset, data)

        await self._perform(submit, self._done)
        return count

    async def flush(self) -> None:
        """Wait until every write that has returned is durable; see :meth:`basalt.Volume.flush`."""
        await self._perform(lambda native, token: native.submit_flush(self._queue, token), self._done)

    async def discard(self, offset: int, length: int) -> None:
        """Free the space of a range, which then reads as zeroes."""
        await self._perform(
            lambda native, token: native.submit_discard(self._queue, token, offset, length), self._done
        )

    async def write_zeroes(self, offset: int, length: int, *, allocate: bool = False) -> None:
        """Make a range read as zeroes; with ``allocate`` it takes its space."""
        await self._perform(
            lambda native, token: native.submit_write_zeroes(self._queue, token, offset, length, allocate), self._done
        )
