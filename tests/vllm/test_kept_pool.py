# SPDX-License-Identifier: Apache-2.0
"""Kept memory's effects on vLLM's own block pool, which the unit tests only imitate."""

import unittest

from kvtier.vllm.cache_groups import CacheGroup
from kvtier.vllm.kept_cache import KeptCacheScheduler, KeptChanges
from test_kept_unit import ROOT, hash_of, table_of

BLOCKS = 24
GROUPS = [CacheGroup(0, 16), CacheGroup(1, 16)]


class KeptPoolTest(unittest.TestCase):
    def setUp(self):
        from vllm.v1.core.block_pool import BlockPool
        from vllm.v1.core.kv_cache_metrics import KVCacheMetricsCollector

        metrics = KVCacheMetricsCollector(1)
        self.pool = BlockPool(
            BLOCKS, True, 16, enable_kv_cache_events=True, metrics_collector=metrics
        )
        self.kept = KeptCacheScheduler(GROUPS)
        self.kept.bind(self.pool)

    def restore(self, *entries):
        return self.kept.restore([table_of(*entries)], ROOT)

    def cached(self, number, groups=(0,)):
        found = self.pool.get_cached_block(hash_of(number), list(groups))
        return None if found is None else [block.block_id for block in found]

    def test_restored_blocks_are_cached_and_free(self):
        self.assertEqual(self.restore((5, 0, 50), (6, 1, 50), (7, 0, 70)), 3)
        self.assertEqual(self.cached(50, (0, 1)), [5, 6])
        self.assertIsNone(self.cached(70, (0, 1)))
        self.assertEqual(self.pool.get_num_free_blocks(), BLOCKS - 1)
        self.assertEqual(self.pool.get_usage(), 0)
        self.assertEqual({block.ref_cnt for block in self.pool.blocks}, {0})
        self.assertEqual(self.pool.take_events(), [])

    def test_they_are_handed_out_last_and_the_oldest_first(self):
        self.restore((9, 0, 1), (3, 0, 2), (5, 1, 3))
        taken = [block.block_id for block in self.pool.get_new_blocks(BLOCKS - 1)]
        self.assertEqual(taken[-3:], [9, 3, 5])
        self.assertEqual(sorted(taken), list(range(1, BLOCKS)))
        self.assertEqual(self.kept.take_changes().written, [9, 3, 5])
        self.assertIsNone(self.cached(1))
        self.assertEqual(len(self.pool.take_events()), 3)

    def test_the_null_block_is_never_restored(self):
        self.assertEqual(self.restore((0, 0, 1), (1, 0, 2)), 1)
        self.assertIsNone(self.cached(1))

    def test_a_hit_takes_a_restored_block_and_its_end_gives_it_back(self):
        self.restore((5, 0, 50))
        (block,) = self.pool.get_cached_block(hash_of(50), [0])
        self.pool.touch([block])
        self.assertEqual(self.pool.get_num_free_blocks(), BLOCKS - 2)
        self.pool.free_blocks([block])
        self.assertEqual(self.cached(50), [5])
        self.assertEqual(self.kept.take_changes(), KeptChanges())

    def test_a_published_block_in_use_stays_in_use(self):
        (block,) = self.pool.get_new_blocks(1)
        key = hash_of(1) + bytes(4)
        block.set_block_hash(key)
        self.pool.cached_block_hash_to_block.insert(key, block)
        self.kept.computed(0, [block], [hash_of(1)])
        self.assertEqual(block.ref_cnt, 1)
        self.assertEqual(self.pool.get_num_free_blocks(), BLOCKS - 2)
        self.assertEqual(len(self.kept.take_changes().computed), 1)

    def compute(self, number):
        """A block that a request has computed and the plan of a step publishes."""
        (block,) = self.pool.get_new_blocks(1)
        key = hash_of(number) + bytes(4)
        block.set_block_hash(key)
        self.pool.cached_block_hash_to_block.insert(key, block)
        self.kept.computed(0, [block], [hash_of(number)])
        self.kept.take_changes()
        return block

    def test_a_published_block_is_retracted_when_it_is_handed_out_anew(self):
        block = self.compute(1)
        # Hits take it, and their ends give it back, which changes nothing.
        self.pool.free_blocks([block])
        for _ in range(3):
            self.pool.touch([block])
            self.pool.free_blocks([block])
        self.assertEqual(self.kept.take_changes(), KeptChanges())
        taken = self.pool.get_new_blocks(BLOCKS - 1)
        self.assertIn(block, taken)
        self.assertEqual(self.kept.take_changes().written, [block.block_id])

    def test_a_published_block_that_is_taken_from_vllm_s_cache_is_retracted_before_it_is_written(self):
        block = self.compute(1)
        self.pool.free_blocks([block])
        self.pool.evict_blocks({block.block_id})
        self.assertIsNone(self.cached(1))
        self.assertIn(block, self.pool.get_new_blocks(BLOCKS - 1))
        self.assertEqual(self.kept.take_changes().written, [block.block_id])

    def test_a_reset_of_vllm_s_cache_retracts_everything(self):
        self.restore((5, 0, 50), (6, 0, 60))
        self.assertTrue(self.pool.reset_prefix_cache())
        self.assertEqual(sorted(self.kept.take_changes().written), [5, 6])
        self.assertIsNone(self.cached(50))

    def test_what_was_reset_before_it_was_restored_is_not_restored(self):
        table = table_of((5, 0, 50), (6, 0, 60))
        self.kept.expect([table])
        self.assertTrue(self.pool.reset_prefix_cache())
        self.assertEqual(sorted(self.kept.take_changes().written), [5, 6])
        self.assertEqual(self.kept.restore([table], ROOT), 0)
        self.assertIsNone(self.cached(50))

    def test_a_block_that_was_handed_out_before_is_not_restored(self):
        table = table_of((5, 0, 50), (6, 0, 60))
        self.kept.expect([table])
        # The expected ones come last, in the order of their numbers.
        self.pool.free_blocks(self.pool.get_new_blocks(BLOCKS - 2))
        self.assertEqual(self.kept.restore([table], ROOT), 1)
        self.assertIsNone(self.cached(50))
        self.assertEqual(self.cached(60), [6])

    def test_new_weights_before_the_first_request_leave_nothing(self):
        table = table_of((5, 0, 50))
        self.kept.expect([table])
        self.kept.reset()
        self.assertEqual(self.kept.restore([table], ROOT), 0)
        self.assertTrue(self.kept.take_changes().clear)


if __name__ == "__main__":
    unittest.main()
