# SPDX-License-Identifier: Apache-2.0
"""A daemon with two devices: host memory twice, which is the same to clients as two GPUs."""

import unittest

import kvtier
from harness.daemon_test_case import BLOCK_BYTES, RECORD, DaemonTestCase, prompt


class DevicesTest(DaemonTestCase):
    device = '["host", "host"]'

    def attach_on(self, device):
        connection = self.connect()
        return connection.attach(connection.register_model(RECORD), device)

    def test_the_daemon_tells_them(self):
        devices = self.connect().devices()
        self.assertEqual([one.kind for one in devices], [kvtier.DeviceKind.HOST] * 2)
        self.assertEqual([one.pool_bytes for one in devices], [self.pool_blocks * BLOCK_BYTES] * 2)
        self.assertEqual([one.uuid for one in devices], [None, None])

    def test_what_one_has_computed_the_other_is_served(self):
        tokens = prompt(3)
        hashes = self.commit_prefix(self.attach_on(0), tokens, fill=5)
        other = self.attach_on(1)
        with other.acquire(hashes) as got:
            self.assertEqual([hit.tier for hit in got.hits], [kvtier.Tier.HOST] * 3)
            self.assertEqual(other.wait(got.load).ready, 3)
            memory = other.memory().block_bytes()
            for i, hit in enumerate(got.hits):
                self.assertTrue((memory[hit.block.index] == 5 + i).all())

    def test_somebody_must_say_which(self):
        with self.assertRaises(kvtier.NotFoundError) as raised:
            self.attach_on(None)
        self.assertEqual(raised.exception.reason, "device_ambiguous")
        with self.assertRaises(kvtier.NotFoundError):
            self.attach_on(2)


if __name__ == "__main__":
    unittest.main()
