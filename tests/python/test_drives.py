# SPDX-License-Identifier: Apache-2.0
"""Directories of the disk tier are added, taken away, exchanged, copied and lost, with `kill -9` between:
what lies on the others is served, and never with wrong bytes."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest

import kvtier
from kvtier import Presence

from harness.daemon_test_case import BLOCK_BYTES, DaemonTestCase, prompt
from harness.paths import daemon_program
from harness.private_daemon import DaemonFailedError, PrivateDaemon, settings

BLOCKS = 24
#: Slabs of a drive; a slab has three blocks.
SLABS = 24
FIRST_SLAB = 1 << 20


class DrivesTest(DaemonTestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="kvtier-python-")
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name)
        for name in ("a", "b"):
            self.directory(name).mkdir()
        self.daemon = PrivateDaemon(directory.name, [])
        self.fills = {}
        self.addCleanup(lambda: self.daemon.kill())

    def directory(self, name):
        return self.path / name

    def settings(self, *names):
        directories = json.dumps([str(self.directory(name)) for name in names])
        return [
            *settings(32, 64, 0, "host"),
            f"disk.bytes={len(names) * (FIRST_SLAB + SLABS * 64 * 1024)}B",
            f"disk.directories={directories}",
        ]

    def start(self, *names):
        self.daemon.kill()
        self.daemon = PrivateDaemon(str(self.path), self.settings(*names))
        self.daemon.start()

    def store(self, seed, fill):
        """Blocks that follow no other, so that each can be a hit alone; all are on disk."""
        pool = self.attach()
        for i in range(BLOCKS):
            [block] = self.commit_prefix(pool, prompt(blocks=1, seed=1000 * seed + i), fill + i)
            self.fills[block] = fill + i
        self.daemon.drain()

    def hits(self):
        """The blocks that are served, whose bytes are right."""
        pool = self.attach()
        served = set()
        for block, fill in self.fills.items():
            with pool.acquire([block]) as got:
                if got.hits and got.wait(timeout_ms=30_000).ready == 1:
                    held = pool.memory().block_bytes()[got.block_table()[0]]
                    self.assertEqual(bytes(held), bytes([fill]) * BLOCK_BYTES)
                    served.add(block)
        return served

    def disk(self):
        return self.daemon.status()["disk"]

    def states(self):
        return {
            pathlib.Path(drive["directory"]).name: drive["state"]
            for drive in self.disk()["drives"]
        }

    def on_disk(self):
        """The blocks that the index has, without reading them."""
        blocks = list(self.fills)
        where = self.attach().lookup(blocks)
        return {block for block, one in zip(blocks, where) if one & Presence.DISK}

    def test_a_directory_is_added_with_all_blocks_kept_and_is_used(self):
        self.start("a")
        self.store(1, fill=10)
        self.start("a", "b")
        self.assertEqual(self.on_disk(), set(self.fills))
        self.assertFalse(self.disk()["degraded"])
        self.store(2, fill=40)
        used = {drive["number"]: drive["used_bytes"] for drive in self.disk()["drives"]}
        self.assertGreater(used[1], 0)
        self.start("b", "a")
        self.assertEqual(self.hits(), set(self.fills))

    def test_blocks_of_a_drive_that_is_away_are_misses_until_it_is_back(self):
        self.start("a", "b")
        self.store(1, fill=10)
        for away in ("b", "a"):
            aside = self.path / "aside"
            self.directory(away).rename(aside)
            self.start("a", "b")
            self.assertTrue(self.disk()["degraded"])
            self.assertEqual(self.states()[away], "left_out")
            left = self.hits()
            self.assertEqual(len(left), BLOCKS // 2)
            self.assertIn("disk.drive_left_out", self.daemon.log)
            aside.rename(self.directory(away))
            self.start("a", "b")
            self.assertFalse(self.disk()["degraded"])
            self.assertEqual(self.hits(), set(self.fills))
            self.daemon.drain()

    def test_so_are_those_of_a_directory_that_was_taken_from_the_list(self):
        self.start("a", "b")
        self.store(1, fill=10)
        for left in ("a", "b"):
            self.start(left)
            self.assertTrue(self.disk()["degraded"])
            self.assertEqual(self.disk()["drives_away"], 1)
            self.assertEqual(len(self.hits()), BLOCKS // 2)
            self.start("a", "b")
            self.assertEqual(self.hits(), set(self.fills))

    def test_drives_in_each_others_place_are_known_by_what_is_on_them(self):
        self.start("a", "b")
        self.store(1, fill=10)
        self.daemon.kill()
        self.directory("a").rename(self.path / "aside")
        self.directory("b").rename(self.directory("a"))
        (self.path / "aside").rename(self.directory("b"))
        self.start("a", "b")
        self.assertEqual(self.on_disk(), set(self.fills))
        self.assertEqual(self.hits(), set(self.fills))

    def test_a_drive_from_an_old_copy_serves_what_has_not_changed(self):
        self.start("a", "b")
        self.store(1, fill=10)
        self.daemon.kill()
        shutil.copytree(self.directory("b"), self.path / "old")
        self.start("a", "b")
        self.store(2, fill=40)
        self.store(3, fill=70)
        self.daemon.kill()
        shutil.rmtree(self.directory("b"))
        (self.path / "old").rename(self.directory("b"))
        self.start("a", "b")
        self.assertGreaterEqual(len(self.hits()), BLOCKS)

    def test_a_directory_of_another_daemon_is_left_out_and_not_touched(self):
        self.directory("other").mkdir()
        self.start("other")
        self.store(9, fill=100)
        foreign = dict(self.fills)
        self.fills.clear()
        self.start("a", "b")
        self.store(1, fill=10)
        self.start("a", "b", "other")
        self.assertEqual(self.states(), {"a": "serving", "b": "serving", "other": "left_out"})
        self.assertIn("foreign_drive", self.daemon.log)
        self.assertEqual(self.hits(), set(self.fills))
        self.fills = foreign
        self.start("other")
        self.assertEqual(self.hits(), set(self.fills))

    def test_a_drive_whose_directory_is_deleted_is_given_up_and_the_other_goes_on(self):
        self.start("a", "b")
        self.store(1, fill=10)
        shutil.rmtree(self.directory("b"))
        # It looks at the directories, too.
        with contextlib.suppress(kvtier.KvtierError):
            self.daemon.admin("verify")
        self.wait_for_log("disk.drive_failed")
        self.assertTrue(self.disk()["degraded"])
        self.store(2, fill=40)
        self.assertEqual(self.states(), {"a": "serving", "b": "failed"})
        self.start("a", "b")
        self.assertEqual(self.states(), {"a": "serving", "b": "left_out"})
        self.assertEqual(len(self.hits()), BLOCKS + BLOCKS // 2)

    def test_the_check_of_the_configuration_tells_what_is_wrong_with_the_directories(self):
        os.symlink(self.directory("a"), self.directory("link"))

        def told(*more):
            command = [daemon_program(), "--check-config"]
            for setting in more:
                command += ["--set", setting]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return done.stdout + done.stderr

        size = "disk.bytes=256MiB"

        def directories(*names):
            return "disk.directories=" + json.dumps([str(self.directory(name)) for name in names])

        self.assertIn("names", told(size, directories("a", "a")))
        self.assertIn("are one directory", told(size, directories("a", "link")))
        self.assertIn("missing: No such file", told(size, directories("a", "missing")))
        self.assertIn(
            "both given", told(size, directories("a"), f"disk.directory={self.directory('b')}")
        )

    def wait_for_log(self, text):
        deadline = time.monotonic() + 60
        while text not in self.daemon.log:
            self.assertLess(time.monotonic(), deadline, f"{text} is not in the log")
            time.sleep(0.1)

    def starts(self, *names):
        """Whether the daemon comes up; `self.daemon.log` says why not."""
        self.daemon.kill()
        self.daemon = PrivateDaemon(str(self.path), self.settings(*names))
        try:
            self.daemon.start()
        except DaemonFailedError:
            return False
        return True

    def test_one_directory_by_two_paths_is_refused_and_keeps_its_blocks(self):
        self.start("a", "b")
        self.store(1, fill=10)
        os.symlink(self.directory("a"), self.directory("link"))
        self.assertFalse(self.starts("a", "b", "link"))
        self.assertIn("are one directory", self.daemon.log)
        self.start("a", "b")
        self.assertEqual(self.hits(), set(self.fills))

    def test_a_drive_by_another_path_is_the_same_drive(self):
        self.start("a", "b")
        self.store(1, fill=10)
        os.symlink(self.directory("b"), self.directory("link"))
        self.start("link", "a")
        self.assertFalse(self.disk()["degraded"])
        self.assertEqual(self.disk()["drives_away"], 0)
        self.assertEqual(self.hits(), set(self.fills))

    def test_a_directory_that_another_daemon_has_ends_the_start(self):
        self.start("a", "b")
        self.store(1, fill=10)
        second = self.path / "second"
        second.mkdir()
        other = PrivateDaemon(str(second), self.settings("b", "c"))
        self.addCleanup(other.kill)
        self.directory("c").mkdir()
        with self.assertRaises(DaemonFailedError):
            other.start()
        self.assertIn("directory_locked", other.log)
        self.assertEqual(self.hits(), set(self.fills))

    def test_a_directory_that_cannot_be_used_is_left_out_until_it_can(self):
        self.start("a")
        self.store(1, fill=10)
        self.directory("b").rmdir()
        for unusable in (pathlib.Path.touch, lambda path: os.symlink(path.name, path)):
            unusable(self.directory("b"))
            self.start("a", "b")
            self.assertTrue(self.disk()["degraded"])
            self.assertEqual(self.states(), {"a": "serving", "b": "left_out"})
            self.assertEqual(self.hits(), set(self.fills))
            self.directory("b").unlink()
        self.start("a", "b")
        self.assertEqual(self.states(), {"a": "serving", "b": "left_out"})
        self.directory("b").mkdir()
        self.wait_for_log("disk.drive_back")
        self.start("a", "b")
        self.assertFalse(self.disk()["degraded"])

    def test_without_any_directory_it_serves_from_memory_until_a_start_that_has_them(self):
        self.start("a", "b")
        self.store(1, fill=10)
        self.daemon.kill()
        for name in ("a", "b"):
            self.directory(name).rename(self.path / f"{name} aside")
        self.start("a", "b")
        self.assertFalse(self.disk()["enabled"])
        self.assertIn("disk.unavailable", self.daemon.log)
        for name in ("a", "b"):
            (self.path / f"{name} aside").rename(self.directory(name))
        self.start("a", "b")
        self.assertEqual(self.hits(), set(self.fills))

    def test_an_index_that_is_older_than_the_drives_is_made_anew(self):
        self.start("a", "b")
        self.store(1, fill=10)
        self.daemon.kill()
        shutil.copytree(self.directory("a") / "index", self.path / "old index")
        self.start("a", "b")
        self.store(2, fill=40)
        self.daemon.kill()
        shutil.rmtree(self.directory("a") / "index")
        (self.path / "old index").rename(self.directory("a") / "index")
        self.start("a", "b")
        self.assertEqual(self.hits(), set(self.fills))

    def test_a_drive_that_vanishes_while_blocks_are_written_costs_only_its_own(self):
        self.start("a", "b")
        self.store(1, fill=10)
        pool = self.attach()
        for i in range(BLOCKS):
            self.commit_prefix(pool, prompt(blocks=1, seed=5000 + i), 40 + i)
            if i == BLOCKS // 2:
                shutil.rmtree(self.directory("b"))
        self.daemon.drain()
        with contextlib.suppress(kvtier.KvtierError):
            self.daemon.admin("verify")
        self.start("a")
        self.assertGreaterEqual(len(self.hits()), BLOCKS // 2)

    def test_the_check_refuses_too_many_directories_and_relative_paths(self):
        def told(*names):
            setting = "disk.directories=" + json.dumps(list(names))
            command = [daemon_program(), "--check-config", "--set", "disk.bytes=8GiB", "--set", setting]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return done.returncode, done.stdout + done.stderr

        many = [str(self.directory(f"drive{i}")) for i in range(33)]
        code, text = told(*many)
        self.assertNotEqual(code, 0)
        self.assertIn("32", text)
        self.assertIn("name it from the root on", told("relative/a", "relative/b")[1])


if __name__ == "__main__":
    unittest.main()
