"""Blocking I/O: buffers, ranges, threads, one writer, and requests that get no answer."""

import array
import random
import threading
import time

import basalt
from basalt import _native
from rig import MIB, ClusterCase, alarm, osds_stopped, silent_server


class Buffers(ClusterCase):
    def test_any_contiguous_buffer_is_written_and_filled(self) -> None:
        numbers = array.array("d", [n / 3 for n in range(512)])
        matrix = memoryview(bytes(range(256)) * 16).cast("B", (64, 64))
        with self.cluster.open(self.volume()) as volume:
            for data in (b"x" * 512, bytearray(b"y" * 1024), memoryview(b"z" * 2048)[512:1536], numbers, matrix):
                raw = memoryview(data).tobytes()
                self.assertEqual(volume.write(4096, data), len(raw))
                self.assertEqual(volume.read(4096, len(raw)), raw)
            target = array.array("d", bytes(4096))
            volume.write(8192, numbers)
            self.assertEqual(volume.readinto(8192, target), 4096)
            self.assertEqual(target, numbers)
            part = bytearray(2048)
            self.assertEqual(volume.readinto(8192, memoryview(part)[512:1024]), 512)
            self.assertEqual(part, bytes(512) + numbers.tobytes()[:512] + bytes(1024))

    def test_large_requests_are_joined_from_their_parts(self) -> None:
        data = random.Random(7).randbytes(3 * MIB)
        with self.cluster.open(self.volume()) as volume:
            volume.write(512, data)
            self.assertEqual(volume.read(512, len(data)), data)
            target = bytearray(len(data))
            self.assertEqual(volume.readinto(512, target), len(data))
            self.assertEqual(target, data)

    def test_objects_without_bytes_are_type_errors(self) -> None:
        with self.cluster.open(self.volume()) as volume:
            self.assertRaises(TypeError, volume.write, 0, "text")
            self.assertRaises(TypeError, volume.write, 0, memoryview(bytes(2048))[::2])
            self.assertRaises(TypeError, volume.write, 0, 512)
            self.assertRaises(TypeError, volume.readinto, 0, bytes(512))
            self.assertRaises(TypeError, volume.read, 0.5, 512)


class Ranges(ClusterCase):
    def test_a_wrong_range_is_named_before_anything_is_sent(self) -> None:
        with self.cluster.open(self.volume(MIB)) as volume:
            wrong = [
                (lambda: volume.read(1, 512), "not multiples of 512"),
                (lambda: volume.write(0, b"abc"), "not multiples of 512"),
                (lambda: volume.write(0, b""), "empty"),
                (lambda: volume.read(MIB, 512), "outside its 1048576 bytes"),
                (lambda: volume.read(MIB - 512, 1024), "outside"),
                (lambda: volume.discard(0, 2 * MIB), "outside"),
                (lambda: volume.write_zeroes(512, 0), "empty"),
                (lambda: volume.read(0, basalt.REQUEST_BYTES_MAX + 512), "more than 33554432"),
                (lambda: volume.read(-512, 512), "offset is -512"),
                (lambda: volume.read(1 << 64, 512), "not in 0..2^64"),
                (lambda: volume.read((1 << 64) - 512, 512), "outside"),
            ]
            for call, words in wrong:
                error = self.assert_raises_code(basalt.InvalidArgument, "BSLT-6003", call)
                self.assertIn(words, error.message)

    def test_discarded_and_zeroed_ranges_read_as_zeroes(self) -> None:
        with self.cluster.open(self.volume()) as volume:
            volume.write(0, b"x" * (3 * 65536))
            volume.discard(0, 65536)
            volume.write_zeroes(65536, 65536, allocate=True)
            volume.flush()
            self.assertEqual(volume.read(0, 3 * 65536), bytes(2 * 65536) + b"x" * 65536)

    def test_threads_against_a_model(self) -> None:
        blocks, failures = 64, []

        def work(volume: basalt.Volume, thread: int) -> None:
            draw, model = random.Random(thread), {}
            base = thread * blocks
            try:
                for _ in range(150):
                    at = base + draw.randrange(blocks)
                    if draw.random() < 0.5:
                        model[at] = draw.randbytes(4096)
                        volume.write(at * 4096, model[at])
                    elif (got := volume.read(at * 4096, 4096)) != model.get(at, bytes(4096)):
                        raise AssertionError(f"block {at} has {got[:8].hex()}")
            except Exception as error:  # noqa: BLE001
                failures.append(error)

        with self.cluster.open(self.volume()) as volume:
            threads = [threading.Thread(target=work, args=(volume, n)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(failures, [])


class Extents(ClusterCase):
    def test_extents_tell_data_from_holes(self) -> None:
        with self.cluster.open(self.volume(8 * MIB)) as volume:
            self.assertEqual(volume.extents(), [basalt.Extent(0, 8 * MIB, False)])
            volume.write(MIB, b"x" * MIB)
            expected = [(0, MIB, False), (MIB, MIB, True), (2 * MIB, 6 * MIB, False)]
            self.assertEqual(volume.extents(), [basalt.Extent(*one) for one in expected])
            self.assertEqual(volume.extents(MIB + 4096, 4096), [basalt.Extent(MIB + 4096, 4096, True)])
            for call in (lambda: volume.extents(1), lambda: volume.extents(0, 0), lambda: volume.extents(since=-1)):
                self.assert_raises_code(basalt.InvalidArgument, "BSLT-6003", call)
            self.assertRaises(TypeError, volume.extents, "0", 512)

    def test_extents_of_more_than_one_answer_are_joined(self) -> None:
        size = 2 * _native.EXTENTS_BYTES_MAX + MIB
        with self.cluster.open(self.volume(size)) as volume:
            self.assertEqual(volume.extents(), [basalt.Extent(0, size, False)])
            at = _native.EXTENTS_BYTES_MAX
            volume.write(at - 65536, b"x" * 131072)
            expected = [(0, at - 65536, False), (at - 65536, 131072, True), (at + 65536, size - at - 65536, False)]
            self.assertEqual(volume.extents(), [basalt.Extent(*one) for one in expected])

    def test_extents_since_a_snapshot_are_those_that_changed(self) -> None:
        name = self.volume(8 * MIB)
        with self.cluster.open(name) as volume:
            volume.write(0, b"a" * MIB)
            first = self.cluster.create_snapshot(f"{name}@a")
            self.assertEqual(volume.extents(since=first), [basalt.Extent(0, 8 * MIB, False)])
            volume.write(4 * MIB, b"b" * 65536)
            second = self.cluster.create_snapshot(f"{name}@b")
            volume.write(MIB, b"c" * 65536)
            changed = [basalt.Extent(4 * MIB, 65536, True)]
            self.assertEqual([one for one in volume.extents(since=second.id) if one.data], [basalt.Extent(MIB, 65536, True)])
            both = [basalt.Extent(MIB, 65536, True), *changed]
            self.assertEqual([one for one in volume.extents(since=first) if one.data], both)
            with self.cluster.open(f"{name}@b") as snapshot:
                self.assertEqual([one for one in snapshot.extents(since=first.id) if one.data], changed)
            self.assertRaises(basalt.NotFound, volume.extents, since=1 << 40)


class Access(ClusterCase):
    def test_a_volume_has_one_writer_and_any_number_of_readers(self) -> None:
        name = self.volume()
        with self.cluster.open(name) as writer, self.cluster.open(name, read_only=True) as reader:
            writer.write(0, b"w" * 512)
            self.assertEqual(reader.read(0, 512), b"w" * 512)
            self.assertTrue(reader.read_only and not writer.read_only)
            self.assert_raises_code(basalt.ReadOnly, "BSLT-2023", lambda: reader.write(0, b"r" * 512))
            busy = self.assert_raises_code(basalt.Busy, "BSLT-2020", lambda: self.cluster.open(name))
            self.assertIn("python on ", busy.message)
            self.assertIn("python on ", self.cluster.volume(name).holder or "")
            with self.cluster.open(name, steal=True) as thief:
                thief.write(0, b"t" * 512)
                self.assert_raises_code(basalt.Fenced, "BSLT-5002", lambda: writer.write(0, b"w" * 512))
                self.assertEqual(thief.read(0, 512), b"t" * 512)
        self.assertRaises(basalt.InvalidArgument, self.cluster.open, name, read_only=True, steal=True)

    def test_several_writers_see_each_other_and_are_fenced_one_by_one(self) -> None:
        name = self.volume(8 * MIB, multi_writer=True)
        with basalt.connect() as other, self.cluster.open(name) as one, other.open(name) as two:
            # A place that neither has touched: what one writes there, the other one sees.
            self.assertEqual(two.read(0, 4096), bytes(4096))
            one.write(0, b"1" * 4096)
            self.assertEqual(two.read(0, 4096), b"1" * 4096)
            two.write(0, b"2" * 512)
            self.assertEqual(one.read(0, 1024), b"2" * 512 + b"1" * 512)
            info = self.cluster.volume(name)
            self.assertTrue(info.multi_writer and all(writer.alive for writer in info.writers))
            self.assertRaises(basalt.Busy, self.cluster.set_volume, name, multi_writer=False)
            left = self.cluster.fence_volume(name, session=info.writers[0].session)
            self.assertEqual([writer.session for writer in left.writers], [info.writers[1].session])
            self.assertRaises(basalt.Fenced, one.write, 0, bytes(512))
            two.write(0, b"3" * 512)
            self.assertEqual(two.read(0, 512), b"3" * 512)
            self.assertRaises(basalt.NotFound, self.cluster.fence_volume, name, "nobody")
            self.assertRaises(ValueError, self.cluster.fence_volume, name)
        self.assertFalse(self.cluster.set_volume(name, multi_writer=False).multi_writer)

    def test_a_snapshot_is_only_read_and_keeps_its_contents(self) -> None:
        name = self.volume()
        with self.cluster.open(name) as volume:
            volume.write(0, b"a" * 512)
            self.cluster.create_snapshot(f"{name}@a")
            volume.write(0, b"b" * 512)
            with self.cluster.open(f"{name}@a") as snapshot:
                self.assertEqual((snapshot.read(0, 512), snapshot.read_only), (b"a" * 512, True))
                self.assertRaises(basalt.ReadOnly, snapshot.write, 0, b"c" * 512)


class Waiting(ClusterCase):
    def test_a_blocking_call_lets_other_threads_run(self) -> None:
        ticks = 0
        with silent_server() as address:
            call = threading.Thread(
                target=lambda: self.assertRaises(basalt.Unavailable, basalt.connect, address, connect_timeout=0.5)
            )
            call.start()
            while call.is_alive():
                ticks += 1
                time.sleep(0.01)
        self.assertGreater(ticks, 10)

    def test_a_signal_ends_a_wait_for_a_metadata_server(self) -> None:
        begin = time.monotonic()
        with silent_server() as address, alarm(0.2):
            self.assertRaises(KeyboardInterrupt, basalt.connect, address, connect_timeout=30.0)
        self.assertLess(time.monotonic() - begin, 5)

    def test_stuck_requests_are_interrupted_timed_out_and_given_up(self) -> None:
        name = self.volume()
        ended: list[BaseException] = []
        with basalt.connect(io_timeout=0.5) as impatient, self.cluster.open(name) as volume:
            reader = impatient.open(name, read_only=True)
            volume.write(0, b"a" * 512)
            reader.read(0, 512)
            with osds_stopped():
                self.assert_raises_code(basalt.TimedOut, "BSLT-5007", lambda: reader.read(0, 512))
                buffer = bytearray(512)
                with alarm(0.2):
                    self.assertRaises(KeyboardInterrupt, volume.readinto, 0, buffer)
                self.assertEqual(buffer, bytes(512), "an interrupted read fills nothing")
                stuck = threading.Thread(target=lambda: self.catch(ended, lambda: volume.read(0, 512)))
                stuck.start()
                # This one is in flight for certain, wherever the thread is.
                queue = _native.Queue(1)
                volume._native.submit_read(queue, 1, 0, 512)
                self.assertEqual(queue.take(), [])
                begin = time.monotonic()
                volume.close()
                stuck.join()
                self.assertLess(time.monotonic() - begin, 8)
                (completion,) = queue.take()
                self.assert_raises_code(basalt.Closed, "BSLT-5007", lambda: completion.result(name))
        self.assertEqual([type(error) for error in ended], [basalt.Closed], ended)
        with self.cluster.open(name) as volume:
            self.assertEqual(volume.read(0, 512), b"a" * 512)

    def test_a_write_that_waits_leaves_its_buffer_to_the_program(self) -> None:
        data, resized = bytearray(512), []

        def handler(_number: int, _frame: object) -> None:
            resized.append(self.resizes(data))
            raise KeyboardInterrupt

        with self.cluster.open(self.volume()) as volume, osds_stopped(), alarm(0.3, handler):
            self.assertRaises(KeyboardInterrupt, volume.write, 0, data)
        self.assertEqual(resized, [True])

    @staticmethod
    def resizes(data: bytearray) -> bool:
        try:
            data.append(0)
            del data[-1]
        except BufferError:
            return False
        return True

    @staticmethod
    def catch(ended: list[BaseException], call: object) -> None:
        try:
            call()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001
            ended.append(error)
