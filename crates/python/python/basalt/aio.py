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
import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

from basalt import _native, _sync
from basalt._errors import Error, _closed
from basalt._views import Extent, SnapshotInfo, _Extents

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
    on_unavailable: float | Literal["freeze", "wait", "error"] = "freeze",
) -> Cluster:
    """Connect to a cluster; see :func:`basalt.connect`."""
    blocking = await asyncio.to_thread(
        _sync.Cluster,
        meta,
        connect_timeout=connect_timeout,
        io_timeout=io_timeout,
        full_wait=full_wait,
        on_unavailable=on_unavailable,
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
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _close_after(self.close, error)

    @property
    def closed(self) -> bool:
        """Whether it was closed; also while that goes on."""
        return self._closing is not None or self._blocking.closed

    async def close(self) -> None:
        """Close the volumes that are open, and end the threads of the library. A second call waits for the first."""
        if self._closing is None or self._closing.cancelled():
            self._closing = asyncio.get_running_loop().create_task(self._close())
        # A caller that is cancelled does not cancel the close.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        # The thread closes all by itself, also when this task is cancelled at the end of its loop.
        everything = asyncio.to_thread(self._blocking.close)
        volumes = [volume.close() for volume in list(self._volumes)]
        for outcome in await asyncio.gather(everything, *volumes, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def open(self, name: str, *, read_only: bool = False, steal: bool = False, depth: int = 128) -> Volume:
        """Open a volume for requests of this event loop; see :meth:`basalt.Cluster.open`.

        At most ``depth`` requests are in flight, and 64 MiB; more wait for their turn. A task that is cancelled gives the open up: a
        volume that is opened nevertheless is closed.
        """
        queue = _native.Queue(depth)
        opening = self._blocking._begin_open(name, read_only, steal)
        try:
            opened = await asyncio.to_thread(opening.wait)
        except BaseException:
            # The thread ends, and the next open knows that this one is of no use.
            opening.abandon()
            raise
        volume = Volume(self._blocking._adopt(opened), queue, depth, self._volumes.discard)
        self._volumes.add(volume)
        return volume

    status = _awaitable(_sync.Cluster.status)
    pools = _awaitable(_sync.Cluster.pools)
    events = _awaitable(_sync.Cluster.events)
    space = _awaitable(_sync.Cluster.space)
    create_volume = _awaitable(_sync.Cluster.create_volume)
    clone_volume = _awaitable(_sync.Cluster.clone_volume)
    flatten_volume = _awaitable(_sync.Cluster.flatten_volume)
    add_fault = _awaitable(_sync.Cluster.add_fault)
    remove_fault = _awaitable(_sync.Cluster.remove_fault)
    volumes = _awaitable(_sync.Cluster.volumes)
    volume = _awaitable(_sync.Cluster.volume)
    set_volume = _awaitable(_sync.Cluster.set_volume)
    resize_volume = _awaitable(_sync.Cluster.resize_volume)
    fence_volume = _awaitable(_sync.Cluster.fence_volume)
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

    def __init__(
        self, blocking: _sync.Volume, queue: _native.Queue, depth: int, forget: Callable[[Volume], None]
    ) -> None:
        self._blocking = blocking
        self._queue = queue
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._token = 0
        #: Requests in flight: the future of each, how it makes a result of its completion, and the bytes that it holds.
        self._flying: dict[int, tuple[asyncio.Future[Any], Callable[[_native.Completion], Any], int]] = {}
        #: Completions that were taken from the queue and not handed out.
        self._taken: deque[_native.Completion] = deque()
        #: Places that are free in the queue, and the bytes that are held: the queue has the same rule, so it refuses none.
        self._room = depth
        self._held = 0
        #: Tasks that wait for their turn, the first one first, with the bytes of their requests.
        self._crowd: OrderedDict[asyncio.Future[None], int] = OrderedDict()
        self._closing: asyncio.Task[None] | None = None
        self._has_ended = False
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
        await _close_after(self.close, error)

    @property
    def closed(self) -> bool:
        """Whether it was closed; also while that goes on."""
        return self._closing is not None or self._blocking.closed

    async def close(self) -> None:
        """Close the volume; see :meth:`basalt.Volume.close`. Every request in flight has ended when this returns."""
        if self._closing is None:
            # Tasks that wait for their turn find the volume closed.
            self._blocking._native.begin_close()
            self._closing = self._loop.create_task(self._close())
            self._admit()
        # A caller that is cancelled does not cancel the close.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            # This waits also for a close that another thread has begun.
            await asyncio.to_thread(self._blocking.close)
        finally:
            self._has_ended = True
            self._drain()

    def _drain(self) -> None:
        """Hand out the completions that wait."""
        self._taken.extend(self._queue.take())
        try:
            while self._taken:
                self._hand_out(self._taken[0])
                self._taken.popleft()
        finally:
            # An interrupt loses no completion.
            if self._taken:
                self._loop.call_soon(self._drain)
        if self._has_ended and not self._flying:
            self._loop.remove_reader(self._fd)
            self._forget(self)

    def _hand_out(self, completion: _native.Completion) -> None:
        future, finish, size = self._flying.get(completion.token, (None, None, 0))
        if future is None or finish is None:
            return
        if not future.done():
            try:
                future.set_result(finish(completion))
            except Exception as error:  # noqa: BLE001
                future.set_exception(error)
        del self._flying[completion.token]
        self._leave(size)

    def _fits(self, size: int) -> bool:
        return self._room > 0 and (self._held == 0 or self._held + size <= _native.QUEUE_BYTES_MAX)

    def _enter(self, size: int) -> None:
        self._room -= 1
        self._held += size

    def _leave(self, size: int) -> None:
        self._room += 1
        self._held -= size
        self._admit()

    def _admit(self) -> None:
        """Give places to the first tasks that wait, as many as there are; to all when the volume is closed."""
        while self._crowd:
            waiter, size = next(iter(self._crowd.items()))
            if not waiter.done():
                if not self.closed and not self._fits(size):
                    return
                self._enter(size)
                waiter.set_result(None)
            del self._crowd[waiter]

    async def _turn(self, size: int) -> None:
        """Wait for a place behind the tasks that wait for one."""
        waiter = self._loop.create_future()
        self._crowd[waiter] = size
        self._admit()
        try:
            await waiter
        except BaseException:
            # A place that it has got passes to the next task.
            if self._crowd.pop(waiter, None) is None and not waiter.cancelled():
                self._leave(size)
            else:
                self._admit()
            raise

    async def _perform(
        self, size: int, submit: Callable[[_native.Volume, int], Any], finish: Callable[[_native.Completion], R]
    ) -> R:
        """Start a request that holds some bytes, and wait for its completion."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("the volume belongs to another event loop")
        if self.closed:
            raise _closed("volume")
        if not self._crowd and self._fits(size):
            self._enter(size)
        else:
            await self._turn(size)
        self._token += 1
        token = self._token
        future: asyncio.Future[R] = self._loop.create_future()
        # First, so that no completion is without its task.
        self._flying[token] = (future, finish, size)
        try:
            submit(self._blocking._opened(), token)
        except BaseException:
            if self._flying.pop(token, None) is not None:
                self._leave(size)
            raise
        return await future

    def _done(self, completion: _native.Completion) -> None:
        completion.result(self.name)

    async def read(self, offset: int, length: int) -> bytes:
        """Read ``length`` bytes, 32 MiB at most."""
        return await self._perform(
            _size(length),
            lambda native, token: native.submit_read(self._queue, token, offset, length),
            lambda completion: completion.result(self.name),
        )

    async def readinto(self, offset: int, buffer: Buffer) -> int:
        """Fill a writable, contiguous buffer; return its length in bytes. A read that is cancelled leaves it as it was."""
        return await self._perform(
            _size(memoryview(buffer).nbytes),
            lambda native, token: native.submit_readinto(self._queue, token, offset, buffer),
            lambda completion: completion.into(self.name, buffer),
        )

    async def write(self, offset: int, data: Buffer) -> int:
        """Write all bytes of a contiguous buffer, 32 MiB at most; return their number.

        The bytes are copied when the request starts: when the task runs, or later, when others have left it a place in the queue.
        Until then the buffer must neither be changed nor be resized.
        """
        count = 0

        def submit(native: _native.Volume, token: int) -> None:
            nonlocal count
            count = native.submit_write(self._queue, token, offset, data)

        await self._perform(_size(memoryview(data).nbytes), submit, self._done)
        return count

    async def flush(self) -> None:
        """Wait until every write that has returned is durable; see :meth:`basalt.Volume.flush`."""
        await self._perform(0, lambda native, token: native.submit_flush(self._queue, token), self._done)

    async def discard(self, offset: int, length: int) -> None:
        """Free the space of a range, which then reads as zeroes."""
        await self._perform(
            0, lambda native, token: native.submit_discard(self._queue, token, offset, length), self._done
        )

    async def write_zeroes(self, offset: int, length: int, *, allocate: bool = False) -> None:
        """Make a range read as zeroes; with ``allocate`` it takes its space."""
        await self._perform(
            0, lambda native, token: native.submit_write_zeroes(self._queue, token, offset, length, allocate), self._done
        )

    async def extents(
        self, offset: int = 0, length: int | None = None, *, since: SnapshotInfo | int | None = None
    ) -> list[Extent]:
        """Return the runs of bytes of a range, and whether each has data; see :meth:`basalt.Volume.extents`."""
        found, snapshot = _Extents(self.size, offset, length), _sync._snapshot_id(since)
        while True:
            runs = await self._perform(
                0,
                lambda native, token: native.submit_extents(
                    self._queue, token, found.at, found.end - found.at, snapshot
                ),
                lambda completion: completion.extents(self.name),
            )
            if not found.add(runs):
                return found.joined


def _size(length: int) -> int:
    """Return the bytes that a request holds. A length that is wrong is refused when the request starts."""
    try:
        return min(max(operator.index(length), 0), _native.REQUEST_BYTES_MAX)
    except TypeError:
        return 0


async def _close_after(close: Callable[[], Coroutine[Any, Any, None]], error: BaseException | None) -> None:
    """Close at the end of a block. A failure of the close does not hide the exception that has ended the block."""
    try:
        await close()
    except Error:
        if error is None:
            raise
