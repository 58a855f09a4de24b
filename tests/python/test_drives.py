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
import unittest

import kvtier
from kvtier import Presence

from harness.daemon_test_case import BLOCK_BYTES, DaemonTestCase, prompt
from harness.paths import daemon_program
from harness.private_daemon import PrivateDaemon, settings

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
        self.assertIn("disk.drive_failed", self.daemon.log)
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
        self.assertIn("is not there", told(size, directories("a", "missing")))
        self.assertIn(
            "both given", told(size, directories("a"), f"disk.directory={self.directory('b')}")
        )


if __name__ == "__main__":
    unittest.main()
