# SPDX-License-Identifier: Apache-2.0
"""Daemon and engines in containers of their own, of which only the socket's directory is shared."""

import os
import pathlib
import tempfile
import time
import unittest

from harness.contained import ContainedClient, command_in_container, why_not
from harness.private_daemon import PrivateDaemon, settings

POOL_BLOCKS = 16
PATIENCE_S = 60
ENGINE_USER = 12345
OTHER_USER = 12346


class ContainersTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="kvtier-containers-")
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        self.root.chmod(0o755)
        # The daemon's own directories, and the paths where each client would see them if they were
        # shared.
        self.run = self.root / "run"
        self.disk = self.root / "disk"
        self.elsewhere = self.root / "elsewhere"
        for path in (self.run, self.disk, self.elsewhere):
            path.mkdir()
        if reason := why_not(self.elsewhere):
            self.skipTest(reason)

    def start_daemon(self, contain=None):
        sizes = settings(POOL_BLOCKS, host_blocks=48, disk_blocks=96, device="host")
        sizes.append(f"disk.directory={self.disk}")
        self.daemon = PrivateDaemon(str(self.run), sizes, contain or self.in_container)
        self.addCleanup(self.daemon.kill)
        self.daemon.start()

    def in_container(self, program):
        return command_in_container(program, hide=self.elsewhere)

    def client(self, uid=0):
        client = ContainedClient(str(self.run / "kvtier.sock"), hide=self.disk, uid=uid)
        self.addCleanup(client.kill)
        return client

    def attached(self, *size, uid=0):
        client = self.client(uid)
        self.assertEqual(client.ask("attach", *size), "")
        return client

    def until(self, what, expected):
        """Asks again until the answer is `expected`: what depends on a process's end takes a moment."""
        deadline = time.monotonic() + PATIENCE_S
        while (answer := what()) != expected and time.monotonic() < deadline:
            time.sleep(0.005)
        self.assertEqual(answer, expected)

    def test_engines_share_blocks_and_see_neither_each_other_nor_the_disk_tier(self):
        self.start_daemon()
        first, second = self.attached(), self.attached()
        self.assertEqual(first.ask("whoami"), [0, 1])
        self.assertFalse(first.ask("sees", str(self.disk / "blocks.kvt")))
        self.assertTrue(os.listdir(self.disk))
        self.assertFalse(first.ask("can_write", str(self.run)), "it could replace the socket")
        self.assertEqual(first.ask("store", 8, 7), 8)
        self.assertEqual(second.ask("load", 8), [8, 7])
        self.assertEqual(second.ask("region", 9), [9])

    def test_blocks_of_a_killed_engine_are_free_and_what_it_computed_is_kept(self):
        self.start_daemon()
        first, second = self.attached(), self.attached()
        first.ask("store", 4, 7)
        self.assertEqual(first.ask("take", POOL_BLOCKS - 4), POOL_BLOCKS - 4)
        self.assertEqual(second.ask("take", 5), 0)
        first.kill()
        self.assertEqual(second.ask("load", 4), [4, 7])
        self.until(lambda: second.ask("take", POOL_BLOCKS), POOL_BLOCKS)

    def quarantined(self):
        return self.daemon.status()["sessions"]["quarantined"]

    def test_blocks_of_an_engine_that_only_lost_its_connection_stay_out_of_use(self):
        """The daemon knows neither process by a number, and must not take one for the other."""
        self.start_daemon()
        first, second, third = self.attached(), self.attached(), self.attached()
        self.assertEqual(first.ask("take", 8), 8)
        self.assertEqual(second.ask("take", 8), 8)
        first.ask("disconnect")
        second.ask("disconnect")
        self.until(self.quarantined, 2)
        self.assertEqual(third.ask("take", 1), 0)
        first.kill()
        self.until(lambda: third.ask("take", 8), 8)
        self.assertEqual(third.ask("take", 1), 0, "the second may still write to its blocks")
        second.kill()
        self.until(lambda: third.ask("take", 8), 8)

    def test_an_engine_outlives_the_daemon_and_finds_its_blocks_again(self):
        self.start_daemon()
        engine = self.attached()
        engine.ask("store", 8, 7)
        self.daemon.drain()
        self.daemon.kill()
        self.assertEqual(engine.ask("load", 8), [0])
        self.daemon.start()
        self.until(lambda: engine.ask("load", 8), [8, 7])

    def test_the_user_outside_the_container_decides_which_tenant_an_engine_is(self):
        """Inside both are root. Tenants do not see each other's blocks."""
        config = self.root / "kvtierd.toml"
        config.write_text(
            f'[[tenant]]\nname = "one"\nuids = [{ENGINE_USER}]\n'
            f'[[tenant]]\nname = "two"\nuids = [{OTHER_USER}, 0]\n'
        )
        self.start_daemon(contain=lambda program: [*program, "--config", str(config)])
        first = self.attached(POOL_BLOCKS // 2, uid=ENGINE_USER)
        second = self.attached(POOL_BLOCKS // 2, uid=OTHER_USER)
        self.assertEqual(first.ask("whoami"), [0, 1])
        first.ask("store", 4, 7)
        self.assertEqual(first.ask("load", 4), [4, 7])
        self.assertEqual(second.ask("load", 4), [0])

    def test_a_user_that_the_daemons_container_does_not_map_is_refused(self):
        self.start_daemon()
        self.assertIn("unknown_user", self.client(ENGINE_USER).ask("attach"))


if __name__ == "__main__":
    unittest.main()
