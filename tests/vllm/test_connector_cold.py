# SPDX-License-Identifier: Apache-2.0
"""KvtierConnector on two hosts whose daemons share nothing but a store."""

import tempfile
import unittest

from cache_tests import BLOCK_TOKENS, CACHED_TOKENS, PROMPTS, EngineCase
from harness.private_daemon import PrivateDaemon
from harness.redis_server import SERVER, RedisServer


@unittest.skipUnless(SERVER, "no redis-server")
class TwoHostsTest(EngineCase, unittest.TestCase):
    """The daemon and the engine that all tests of engines have are those of the first host."""

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="kvtier-other-host-")
        cls.addClassCleanup(directory.cleanup)
        cls.store_of_hosts = RedisServer(directory.name, cls.addClassCleanup)
        super().setUpClass()
        cls.other = PrivateDaemon(directory.name, cls.settings())
        cls.addClassCleanup(cls.other.kill)
        cls.other.start()

    @classmethod
    def settings(cls):
        return [*super().settings(), *cls.store_of_hosts.settings()]

    def test_what_one_engine_computed_is_a_hit_of_the_other_host_s(self):
        self.store()
        self.assertEqual(self.generate(), [CACHED_TOKENS] * PROMPTS)  # used blocks are written
        rows = PROMPTS * CACHED_TOKENS // BLOCK_TOKENS
        while self.store_of_hosts.objects() < rows:
            self.daemon.settle()
        other = self.start_engine(socket=self.other.socket)
        self.assertEqual(self.generate(other), [CACHED_TOKENS] * PROMPTS)
        self.assertEqual(other.metrics()["lookup:cold"], rows)
        self.assertEqual(other.metrics()["load:copied"], rows)
        other.stop()


if __name__ == "__main__":
    unittest.main()
