"""Administration: each request, its answer, and the exceptions."""

import dataclasses
import errno
import functools
import re
import unittest

import basalt
from rig import MIB, ClusterCase


class Admin(ClusterCase):
    def test_a_volume_is_made_changed_listed_and_removed(self) -> None:
        name = self.volume(8 * MIB, description="first", labels={"tier": "front", "old": "1"}, when_full="wait")
        self.cluster.set_volume(name, description="second", labels={"tier": "back"}, removed_labels=["old"])
        info = self.cluster.volume(name)
        self.assertEqual((info.size, info.state, info.description, info.labels), (8 * MIB, "ready", "second", {"tier": "back"}))
        self.assertEqual((info.stripe_unit, info.stripe_count, info.holder, info.snapshots), (None, 1, None, 0))
        self.assertEqual((info.when_full, self.cluster.set_volume(name, when_full="error").when_full), ("wait", "error"))
        self.assertIsNotNone(info.created.tzinfo)
        self.assertEqual(self.cluster.resize_volume(name, 12 * MIB).size, 12 * MIB)
        self.assertEqual(self.cluster.resize_volume(name, 10 * MIB, shrink=True).size, 10 * MIB)
        self.assertEqual(self.cluster.resize_volume(name, 12 * MIB).size, 12 * MIB)
        self.assertEqual(self.cluster.set_volume(name).description, "second", "what is not given stays")
        self.assertIn(name, [one.name for one in self.cluster.volumes("main")])
        other = self.cluster.rename_volume(name, "renamed").name
        self.assertEqual(other, "main/renamed")
        self.assertEqual(self.cluster.rename_volume(other, name.removeprefix("main/")).id, info.id)

    def test_limits_are_set_shown_and_removed(self) -> None:
        name = self.volume(8 * MIB, limits={"iops": 500})
        self.assertEqual(self.cluster.volume(name).limits, {"iops": basalt.Limit(500)})
        burst = basalt.Limit(64 * MIB, burst=128 * MIB, burst_seconds=30)
        info = self.cluster.set_volume(name, limits={"write-bandwidth": burst, "iops": 0})
        self.assertEqual((info.limits, info.limits_of), ({"write-bandwidth": burst}, "volume"))
        self.assertEqual(self.cluster.set_volume(name, limits_base="pool").limits_of, "none")
        self.assertEqual(self.cluster.set_volume(name, limits_base="none", limits={"read-iops": 50}).limits, {"read-iops": basalt.Limit(50)})
        self.assertEqual(self.cluster.set_volume(name).limits, {"read-iops": basalt.Limit(50)}, "what is not given stays")
        with self.assertRaises(basalt.Error) as refused:
            self.cluster.set_volume(name, limits={"iops": 1})
        self.assertEqual(refused.exception.code, "BSLT-2070")
        self.assertRaises(ValueError, self.cluster.set_volume, name, limits={"iop": 100})
        self.assertRaises(ValueError, self.cluster.set_volume, name, limits_base="mine")
        self.assertRaises(TypeError, self.cluster.set_volume, name, limits={"iops": "many"})

    def test_stripes_are_as_asked_for(self) -> None:
        info = self.cluster.volume(self.volume(stripe_count=4, stripe_unit=65536))
        self.assertEqual((info.stripe_count, info.stripe_unit), (4, 65536))

    def test_the_trash_gives_a_volume_back(self) -> None:
        name = self.volume()
        trashed = self.cluster.remove_volume(name)
        assert trashed is not None
        self.assertEqual((trashed.name, trashed.state, trashed.expired), (name, "trashed", False))
        self.assertGreater(trashed.until, trashed.since)
        self.assertIn("python on ", trashed.by)
        self.assertIn(trashed, self.cluster.trash("main"))
        self.assertEqual(self.cluster.restore_volume(trashed.id).name, name)
        again = self.cluster.remove_volume(name)
        assert again is not None
        self.assertEqual(self.cluster.restore_volume(name, name="back").name, "main/back")
        self.cluster.rename_volume("main/back", name.removeprefix("main/"))

    def test_a_purged_volume_is_gone(self) -> None:
        self.cluster.create_volume("main/purged", MIB)
        trashed = self.cluster.remove_volume("main/purged")
        assert trashed is not None
        self.cluster.purge_volume(trashed.id)
        self.assertNotIn(trashed.id, [one.id for one in self.cluster.trash() if one.state == "trashed"])

    def test_snapshots_are_made_together_changed_and_removed(self) -> None:
        name = self.volume()
        self.cluster.create_volume("main/second", MIB)
        self.addCleanup(self.remove, "main/second")
        made = self.cluster.create_snapshots([f"{name}@a", "main/second@a"], description="both", labels={"keep": "7d"})
        self.assertEqual(len({one.cut for one in made}), 1)
        first = self.cluster.snapshot(f"{name}@a")
        self.assertEqual((first.size, first.description, first.labels, first.protected), (16 * MIB, "both", {"keep": "7d"}, False))
        renamed = self.cluster.rename_snapshot(f"{name}@a", "b")
        self.assertEqual((renamed.name, renamed.id), (f"{name}@b", first.id))
        self.assertTrue(self.cluster.set_snapshot(f"{name}@b", protect=True, removed_labels=["keep"]).protected)
        self.assert_raises_code(basalt.Busy, "BSLT-2052", lambda: self.cluster.remove_snapshot(f"{name}@b"))
        self.assertEqual(self.cluster.set_snapshot(f"{name}@b", protect=False).labels, {})
        self.assertEqual([one.name for one in self.cluster.snapshots(name)], [f"{name}@b"])
        self.cluster.remove_snapshot(f"{name}@b")
        self.assert_raises_code(basalt.NotFound, "BSLT-2050", lambda: self.cluster.snapshot(f"{name}@b"))
        self.assertRaises(basalt.Error, self.cluster.snapshot, name)

    def test_space_is_that_of_the_volume_and_its_snapshots(self) -> None:
        name = self.volume()
        self.assertEqual((self.cluster.space(name).allocated, self.cluster.space(name).snapshots), (0, []))
        with self.cluster.open(name) as volume:
            volume.write(0, b"a" * 512)
        self.assertEqual(self.cluster.space(name).exclusive, 65536)
        self.cluster.create_snapshot(f"{name}@a")
        space = self.cluster.space(name)
        self.assertEqual((space.allocated, space.exclusive, space.shared, space.stored), (65536, 0, 65536, 65536))
        self.assertEqual((space.removed, space.replicas), (0, 3))
        self.assertEqual([(one.name, one.stored, one.freed) for one in space.snapshots], [(f"{name}@a", 65536, 0)])
        self.assert_raises_code(basalt.NotFound, "BSLT-2011", lambda: self.cluster.space("main/missing"))

    def test_a_clone_and_a_rollback_have_the_contents_of_the_snapshot(self) -> None:
        name = self.volume()
        with self.cluster.open(name) as volume:
            volume.write(0, b"a" * 512)
            self.cluster.create_snapshot(f"{name}@a")
            volume.write(0, b"b" * 512)
        clone = self.cluster.clone_volume(f"{name}@a", "main/clone", labels={"of": "a"})
        self.assertEqual((clone.parent, clone.labels), (f"{name}@a", {"of": "a"}))
        with self.cluster.open("main/clone") as volume:
            self.assertEqual(volume.read(0, 512), b"a" * 512)
        self.remove("main/clone")
        self.cluster.rollback_snapshot(f"{name}@a")
        with self.cluster.open(name) as volume:
            self.assertEqual(volume.read(0, 512), b"a" * 512)

    def test_a_rehearsed_fault_is_shown_met_and_removed(self) -> None:
        name = self.volume()
        fault = self.cluster.add_fault(name, "latency", 90.0, latency=0.25, percent=10, writes=False)
        self.assertEqual((fault.id, fault.kind, fault.latency, fault.percent), (1, "latency", 0.25, 10))
        self.assertEqual((fault.reads, fault.writes, (fault.until - fault.since).total_seconds()), (True, False, 90.0))
        self.cluster.remove_fault(name, 1)
        self.cluster.add_fault(name, "error", 60.0)
        with self.cluster.open(name) as volume:
            self.assert_raises_code(basalt.Error, "BSLT-5009", lambda: volume.write(0, b"a" * 512))
        self.assertEqual([one.id for one in self.cluster.volume(name).faults], [2])
        self.assertEqual(self.cluster.remove_fault(name).faults, ())
        wrong: list[functools.partial[basalt.FaultInfo]] = [
            functools.partial(self.cluster.add_fault, name, "error", 60.0, percent=300),
            functools.partial(self.cluster.add_fault, name, "error", 60.0, percent=0),
            functools.partial(self.cluster.add_fault, name, "error", 0.0),
            functools.partial(self.cluster.add_fault, name, "panic", 60.0),  # type: ignore[arg-type]
            functools.partial(self.cluster.add_fault, name, "error", 60.0, latency=1.0),
        ]
        for add in wrong:
            self.assert_raises_code(basalt.InvalidArgument, "BSLT-2080", add)
        self.assert_raises_code(basalt.NotFound, "BSLT-2081", lambda: self.cluster.remove_fault(name, 9))

    def test_events_tell_what_was_done_and_who_asked(self) -> None:
        before = self.cluster.events()[-1].number
        name = self.volume()
        self.cluster.set_volume(name, description="told")
        new = self.cluster.events(before)
        self.assertTrue(all(one.number > before for one in new))
        mine = [one for one in new if one.subject == f"volume {name}"]
        self.assertEqual(mine[0].kind, "volume.created")
        self.assertTrue(all(one.by.startswith("python on ") and one.level == "info" for one in mine), mine)
        self.assertEqual([one.number for one in self.cluster.events(max_age=3600)][-len(new) :], [one.number for one in new])
        self.assertEqual(self.cluster.events(new[-1].number + 1000), [])

    def test_status_and_pools_describe_the_cluster(self) -> None:
        status = self.cluster.status()
        self.assertEqual((status.osds, status.osds_up, status.pools), (3, 3, 1))
        self.assertEqual(status.capacity, status.used + status.free)
        (pool,) = self.cluster.pools()
        self.assertEqual((pool.name, pool.replicas, pool.state, pool.quota), ("main", 3, "ready", None))


class Errors(ClusterCase):
    def test_a_refusal_is_a_class_with_code_message_and_hint(self) -> None:
        missing = self.assert_raises_code(basalt.NotFound, "BSLT-2011", lambda: self.cluster.volume("main/missing"))
        self.assertEqual(missing.message, 'volume "main/missing" does not exist')
        self.assertEqual(missing.hint, "list volumes with `basalt volume ls`")
        self.assertEqual(missing.errno, errno.ENOENT)
        self.assertEqual(str(missing), f"BSLT-2011: {missing.message}; {missing.hint}")

    def test_each_kind_of_refusal_has_its_class(self) -> None:
        name = self.volume()
        create, c = self.cluster.create_volume, self.cluster
        self.assert_raises_code(basalt.AlreadyExists, "BSLT-2013", lambda: create(name, MIB))
        self.assert_raises_code(basalt.NotFound, "BSLT-2010", lambda: create("nopool/x", MIB))
        self.assert_raises_code(basalt.InvalidArgument, "BSLT-2014", lambda: create("No Name", MIB))
        self.assert_raises_code(basalt.InvalidArgument, "BSLT-2049", lambda: create("main/x", MIB, stripe_count=3))
        for size in (5, -1, 1 << 70):
            self.assert_raises_code(basalt.InvalidArgument, "BSLT-2015", functools.partial(create, "main/x", size))
        self.assert_raises_code(basalt.InvalidArgument, "BSLT-2059", lambda: c.resize_volume(name, MIB))
        self.assert_raises_code(basalt.NotFound, "BSLT-2060", lambda: c.restore_volume("main/missing"))
        self.cluster.remove_volume(name)
        create(name, MIB)
        trashed = self.cluster.remove_volume(name)
        assert trashed is not None
        create(name, 2 * MIB)
        self.assert_raises_code(basalt.AlreadyExists, "BSLT-2013", lambda: c.restore_volume(trashed.id))
        self.assert_raises_code(basalt.InvalidArgument, "BSLT-2061", lambda: c.restore_volume(name, name="other"))
        self.assert_raises_code(basalt.InvalidArgument, "BSLT-2061", lambda: c.purge_volume(name))
        self.cluster.create_snapshot(f"{name}@a")
        self.assert_raises_code(basalt.AlreadyExists, "BSLT-2051", lambda: c.create_snapshot(f"{name}@a"))
        self.assert_raises_code(basalt.Busy, "BSLT-2053", lambda: c.remove_volume(name, now=True))
        self.assertTrue(issubclass(basalt.InvalidArgument, ValueError))

    def test_wrong_types_are_type_errors(self) -> None:
        self.assertRaises(TypeError, self.cluster.create_volume, "main/x", 1.5)
        self.assertRaises(TypeError, self.cluster.create_volume, 7, MIB)
        self.assertRaises(TypeError, self.cluster.volume, None)
        self.assertRaises(TypeError, self.cluster._opened().admin, "no such request", {})

    def test_addresses_are_checked_and_silence_is_told(self) -> None:
        for wrong in ("", "host", "host:0", ["host"]):
            self.assert_raises_code(basalt.InvalidArgument, "BSLT-6003", functools.partial(basalt.connect, wrong))
        self.assert_raises_code(basalt.InvalidArgument, "BSLT-6003", lambda: basalt.connect(io_timeout=-1.0))
        down = self.assert_raises_code(
            basalt.Unavailable, "BSLT-2001", lambda: basalt.connect(["127.0.0.1:1", "127.0.0.1:2"], connect_timeout=0.3)
        )
        self.assertRegex(down.message, re.escape("no metadata server answered"))

    def test_an_exception_for_every_errno_is_public(self) -> None:
        classes = {kind.__name__ for kind in basalt.Error.__subclasses__()}
        self.assertLessEqual(classes, set(basalt.__all__))
        self.assertTrue(all(dataclasses.is_dataclass(kind) for kind in (basalt.VolumeInfo, basalt.Status)))


if __name__ == "__main__":
    unittest.main()
