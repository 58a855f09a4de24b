# SPDX-License-Identifier: Apache-2.0
"""Blocks that left the pool come back: from host memory, and from disk after a restart."""

import unittest
from unittest import mock

import numpy as np

from harness.daemon_test_case import BLOCK_BYTES, DaemonTestCase, prompt
from kvtier import (
    ALL_LAYERS,
    InvalidArgumentError,
    Load,
    Miss,
    NotFoundError,
    Presence,
    Status,
    Tier,
    UnsupportedError,
)

ALL_HITS = 0xFFFFFFFF


class TiersTest(DaemonTestCase):
    pool_blocks = 16
    host_blocks = 96
    disk_blocks = 192

    def push_out_of_the_pool(self, pool):
        """Fills the pool with other blocks until nothing older is in it."""
        for i in range(3):
            self.commit_prefix(pool, prompt(blocks=self.pool_blocks, seed=100 + i), fill=0)
            self.daemon.settle()

    def assert_filled(self, pool, got, fill):
        held = pool.memory().block_bytes()[got.block_table()]
        expected = fill + np.arange(len(held), dtype=np.uint8)
        np.testing.assert_array_equal(held, np.repeat(expected[:, None], BLOCK_BYTES, axis=1))

    def test_blocks_pushed_to_host_memory_are_loaded_back_in_prefix_order(self):
        pool = self.attach()
        hashes = self.commit_prefix(pool, prompt(blocks=8), fill=20)
        self.push_out_of_the_pool(pool)
        self.assertTrue(all(one & Presence.HOST for one in pool.lookup(hashes)))
        with pool.acquire(hashes) as got:
            self.assertIn(Tier.HOST, {hit.tier for hit in got.hits})
            self.assertIsNotNone(got.load)
            first = got.wait(up_to=1)
            self.assertGreaterEqual(first.ready, 1)
            last = got.wait()
            self.assertEqual((last.ready, last.finished, last.miss), (8, True, Miss.NONE))
            self.assertEqual(len(got.hits), 8)
            self.assert_filled(pool, got, 20)

    def test_blocks_come_back_layer_by_layer(self):
        pool = self.attach()
        hashes = self.commit_prefix(pool, prompt(blocks=8), fill=20)
        self.push_out_of_the_pool(pool)
        with pool.acquire(hashes, in_layers=True) as got:
            self.assertGreaterEqual(pool.wait_layers(got.load, 1).layers, 1)
            last = got.wait()
            self.assertEqual((last.ready, last.layers), (8, ALL_LAYERS))
            self.assert_filled(pool, got, 20)
            # Host memory has no streams.
            with self.assertRaises(UnsupportedError):
                pool.wait(got.load, stream=1)
            with self.assertRaises(InvalidArgumentError):
                pool.wait(got.load, stream="default")

    def test_a_stream_waits_for_the_whole_load_where_it_is_counted_in_the_other_unit(self):
        pool = self.attach()
        hashes = self.commit_prefix(pool, prompt(blocks=8), fill=20)
        for in_layers, steps in ((False, [3, ALL_HITS]), (True, [ALL_HITS, 1])):
            self.push_out_of_the_pool(pool)
            with pool.acquire(hashes, in_layers=in_layers) as got:
                with mock.patch.object(pool, "_status", return_value=Status.UNAVAILABLE) as status:
                    pool.wait(got.load, 3, stream=1)
                    pool.wait_layers(got.load, 1, stream=1)
                self.assertEqual([call.args[2] for call in status.call_args_list], steps)
                got.wait()

    def test_a_prefetched_prefix_is_in_the_pool(self):
        pool = self.attach()
        hashes = self.commit_prefix(pool, prompt(blocks=8), fill=20)
        self.push_out_of_the_pool(pool)
        # As many as the pool has room for without waiting.
        accepted = pool.prefetch(hashes)
        self.assertGreater(accepted, 0)
        self.daemon.settle()
        self.assertTrue(all(one & Presence.POOL for one in pool.lookup(hashes[:accepted])))
        with pool.acquire(hashes[:accepted]) as got:
            self.assertEqual({hit.tier for hit in got.hits}, {Tier.POOL})
            self.assert_filled(pool, got, 20)

    def test_what_was_drained_to_disk_is_served_after_the_daemon_was_killed(self):
        hashes = self.commit_prefix(self.attach(), prompt(blocks=8), fill=30)
        self.daemon.drain()
        self.daemon.kill()
        self.daemon.start()
        pool = self.attach()
        self.assertEqual(pool.lookup(hashes), [Presence.DISK] * 8)
        with pool.acquire(hashes) as got:
            self.assertEqual({hit.tier for hit in got.hits}, {Tier.DISK})
            self.assertTrue(got.wait(timeout_ms=30_000).finished)
            self.assert_filled(pool, got, 30)

    def test_a_sequence_waits_for_its_prefix_from_disk(self):
        tokens = prompt(blocks=8)
        self.commit_prefix(self.attach(), tokens, fill=40)
        self.daemon.drain()
        self.daemon.kill()
        self.daemon.start()
        pool = self.attach()
        with pool.open_sequence([*tokens, 9]) as sequence:
            while not sequence.wait(timeout_ms=50):
                self.assertTrue(sequence.check())
            self.assertEqual(sequence.info().disk_tokens, 8 * 16)
            first = sequence.memory().block_bytes()[sequence.block_table()[:8], 0]
            np.testing.assert_array_equal(first, 40 + np.arange(8))

    def test_a_load_that_does_not_exist_is_not_found(self):
        pool = self.attach()
        with self.assertRaises(NotFoundError):
            pool.wait(Load(12345, pool.info().attachment), timeout_ms=0)


if __name__ == "__main__":
    unittest.main()
