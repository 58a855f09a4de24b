# SPDX-License-Identifier: Apache-2.0
"""Engines of two hosts, each with a region of its own daemon, and a store that both daemons share."""

import pathlib
import tempfile
import unittest

import numpy as np

import kvtier
from harness.daemon_test_case import RECORD
from harness.private_daemon import PrivateDaemon, settings
from harness.redis_server import SERVER, RedisServer
from kvtier import Miss, Presence
from test_regions import ROWS, SharedRows, hashes_of

BLOCKS = 8


class Host:
    """A daemon and an engine's region."""

    def __init__(self, test, directory, store):
        directory.mkdir()
        sizes = settings(64, 128, 0, "host")
        self.daemon = PrivateDaemon(str(directory), [*sizes, *store.settings()])
        test.addCleanup(self.daemon.kill)
        self.daemon.start()
        connection = kvtier.connect(self.daemon.socket, request_timeout_ms=30_000)
        test.addCleanup(connection.close)
        self.memory = SharedRows(test)
        self.region = connection.open_region(
            RECORD, fd=self.memory.fd, bytes=self.memory.byte_count, blocks=ROWS
        )
        test.addCleanup(self.region.close)

    def load(self, hashes):
        end = self.region.wait(self.region.load(list(enumerate(hashes))))
        assert end.error is None
        return end


@unittest.skipUnless(SERVER, "no redis-server")
class ColdRegionsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="kvtier-cold-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.store = RedisServer(directory.name, self.addCleanup)

    def host(self, name):
        return Host(self, self.directory / name, self.store)

    def test_what_one_engine_computed_the_other_host_s_engine_loads(self):
        first, hashes = self.host("first"), hashes_of(BLOCKS)
        before = first.memory.fill(1)
        transfer = first.region.store_many(
            np.arange(BLOCKS),
            b"".join(hashes),
            [None, *hashes[:-1]],
            depths=np.arange(BLOCKS),
        )
        self.assertEqual(first.region.wait(transfer).copied, BLOCKS)
        self.assertEqual(first.load(hashes).copied, BLOCKS)  # used blocks are written to the store
        second = self.host("second")
        while not all(second.region.lookup(hashes) == Presence.COLD):
            self.assertTrue(first.daemon.is_running())
        self.assertEqual(second.region.lookup(hashes_of(2, seed=9)).tolist(), [0, 0])
        end = second.load([*hashes, *hashes_of(1, seed=9)])
        self.assertEqual((end.copied, end.failed), (BLOCKS, {BLOCKS: Miss.UNKNOWN}))
        np.testing.assert_array_equal(second.memory.rows[:BLOCKS], before[:BLOCKS])
        self.assertTrue(all(second.region.lookup(hashes) & Presence.HOST))


if __name__ == "__main__":
    unittest.main()
