# SPDX-License-Identifier: Apache-2.0
"""A library and a daemon of different releases: they work together, or all is a miss and one line
says why."""

import logging
import os
import threading
import unittest

import kvtier
from harness.daemon_test_case import BLOCK_TOKENS, RECORD, DaemonTestCase, prompt
from harness.version_proxy import VersionProxy
from kvtier import Presence
from kvtier._link import Link

# The version that both speak today.
MAJOR, MINOR = 1, 0


class VersionsTest(DaemonTestCase):
    def proxy(self, **versions):
        path = os.path.join(os.path.dirname(self.daemon.socket), "proxy.sock")
        proxy = VersionProxy(path, self.daemon.socket, **versions)
        self.addCleanup(proxy.close)
        return proxy

    def refusal(self, **versions):
        with self.assertRaises(kvtier.KvtierError) as raised:
            kvtier.connect(self.proxy(**versions).path)
        return str(raised.exception)

    def expect_use(self, proxy):
        with kvtier.connect(proxy.path) as connection:
            pool = connection.attach(connection.register_model(RECORD))
            with pool.open_sequence(prompt(2)) as sequence:
                self.assertTrue(sequence.available)
            self.assertEqual(pool.lookup([bytes(32)]), [Presence(0)])
            self.assertEqual(pool.info().block_tokens, BLOCK_TOKENS)

    def test_a_library_of_the_release_before_is_told_both_versions(self):
        self.assertEqual(
            self.refusal(says=(MAJOR - 1, 7)),
            "unsupported: version_mismatch (the other side speaks 0.7, this side 1.0)",
        )

    def test_a_library_of_the_next_release_is_told_both_versions(self):
        self.assertEqual(
            self.refusal(says=(MAJOR + 1, 0)),
            "unsupported: version_mismatch (the other side speaks 2.0, this side 1.0)",
        )

    def test_a_daemon_that_answers_in_another_version_is_not_used(self):
        for version in ((MAJOR + 1, MINOR), (MAJOR - 1, MINOR), (MAJOR, MINOR + 1)):
            with self.subTest(version=version):
                path = f"{self.daemon.socket}.proxy"
                proxy = VersionProxy(path, self.daemon.socket, answers=version)
                with self.assertRaises(kvtier.KvtierError) as raised:
                    kvtier.connect(proxy.path)
                proxy.close()
                os.unlink(path)
                self.assertEqual(
                    str(raised.exception),
                    f"unsupported: version_mismatch (the daemon speaks protocol version "
                    f"{version[0]}.{version[1]}, this library 1.0)",
                )

    def test_a_library_that_knows_more_works_as_before(self):
        self.expect_use(self.proxy(says=(MAJOR, MINOR + 1)))

    def test_the_proxy_itself_changes_nothing(self):
        self.expect_use(self.proxy())

    def test_an_engine_has_misses_and_says_why_once(self):
        proxy = self.proxy(says=(MAJOR + 1, 0))
        tried = threading.Semaphore(0)

        def open_attachment():
            try:
                kvtier.connect(proxy.path)
            finally:
                tried.release()

        logger = logging.getLogger("kvtier.test_versions")
        with self.assertLogs(logger, "WARNING") as logged:
            link = Link(open_attachment, logger, retry_min_s=0.001, retry_max_s=0.001)
            for _ in range(20):
                self.assertTrue(tried.acquire(timeout=30))
                self.assertIsNone(link.borrow())
            link.close()
        self.assertGreaterEqual(proxy.connections, 20)
        self.assertEqual(
            [record.getMessage() for record in logged.records],
            [
                "kvtier: no region: unsupported: version_mismatch (the other side speaks 2.0, "
                "this side 1.0); its blocks are misses"
            ],
        )


if __name__ == "__main__":
    unittest.main()
