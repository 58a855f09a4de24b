# SPDX-License-Identifier: Apache-2.0
"""Stores of the vLLM connector that do not end, as with a daemon that hangs, without vLLM."""

import types
import unittest
from unittest import mock

from kvtier import HitRule
from kvtier.vllm.cache_groups import CacheGroup
from kvtier.vllm.store_planner import SHORT_STEP_STORES
from kvtier.vllm.stores import AWAITED_S, LATE_S, MOST_BLOCKS, PATIENCE_S, STEP_S
from test_connector_unit import BLOCK_TOKENS, SchedulerCase, request

POOL_BLOCKS = 64


class StoresCase(SchedulerCase):
    """vLLM has 64 blocks, and gives each request others."""

    def setUp(self):
        super().setUp()
        self.manager.num_gpu_blocks = POOL_BLOCKS
        self.side.bind(self.manager)
        self.requests = 0

    def begin(self, blocks):
        """A request whose blocks a step has computed."""
        first = 1000 * self.requests
        self.requests += 1
        one = request(blocks * BLOCK_TOKENS, f"r{first}", first)
        one.num_prompt_tokens = one.num_tokens
        self.match(one)
        table = self.manager.table(one.request_id, range(first + 1, first + 1 + blocks))
        self.side.allocated(one, table, 0)
        self.step(one, one.num_tokens)
        return one

    def run_request(self, blocks):
        """One that computes blocks, is stored with the next step, and ends."""
        one = self.begin(blocks)
        plan = self.step()
        self.side.finished(one)
        return plan.stores

    def wait(self, seconds, steps):
        for _ in range(steps):
            self.now += seconds / steps
            self.step()

    def end(self, *stores):
        self.side.stored({store.number: 1 for store in stores})

    def check_that_a_part_of_the_pool_stays_free(self, compute):
        """Each of 40 calls of `compute` makes 12 blocks, and every other one of them a store ends."""
        for number in range(1, 41):
            compute()
            self.now += STEP_S
            if number % 2 == 0:
                self.end(types.SimpleNamespace(number=number // 2))
            self.assertLessEqual(len(self.manager.pinned()), POOL_BLOCKS - POOL_BLOCKS // 4 + 12)
        self.assertGreater(self.side.storing.late_blocks, 0)


class StoresTest(StoresCase):
    def test_vllm_waits_for_the_blocks_of_stores_only_as_long_as_stores_take(self):
        self.assertFalse(self.side.frees_blocks_soon())
        self.run_request(1)
        self.assertTrue(self.side.frees_blocks_soon())
        self.now += PATIENCE_S
        self.assertFalse(self.side.frees_blocks_soon())

    def test_stores_that_do_not_end_hold_a_quarter_of_vllm_s_blocks_at_most(self):
        for _ in range(20):
            self.run_request(6)
            self.wait(LATE_S / 15, steps=1)
            if self.now > PATIENCE_S:
                self.assertLessEqual(len(self.manager.pinned()), POOL_BLOCKS // 4)
        self.assertEqual(len(self.manager.pinned()), POOL_BLOCKS // 4)
        self.assertEqual(self.side.storing.late_blocks, 20 * 6 - POOL_BLOCKS // 4)

    def test_nothing_more_is_stored_while_a_store_is_late(self):
        (store,) = self.run_request(1)
        self.wait(LATE_S - STEP_S, steps=20)
        waits = self.begin(2)
        self.now += STEP_S
        self.assertEqual(self.step().stores, [])
        self.assertEqual(self.begin(3).num_computed_tokens, 3 * BLOCK_TOKENS)
        self.assertEqual(len(self.manager.pinned()), 1)
        self.assertEqual(self.side.storing.late_blocks, 2 + 3)
        self.end(store)
        self.assertEqual(self.manager.pinned(), set())
        self.assertEqual(len(self.run_request(2)), 1)
        self.side.finished(waits)

    def test_stores_are_not_late_since_steps_take_long(self):
        for _ in range(8):
            self.run_request(1)
            self.now += 10 * LATE_S
        self.assertEqual((len(self.manager.pinned()), self.side.storing.late_blocks), (8, 0))

    def test_blocks_for_which_there_is_no_room_are_stored_when_others_have_been(self):
        one = self.begin(20)
        (first,) = self.step().stores
        self.assertEqual(first.depths, list(range(16)))
        self.end(first)
        (second,) = self.step().stores
        self.assertEqual(second.depths, list(range(16, 20)))
        self.end(second)
        self.side.finished(one)
        self.assertEqual((self.manager.pinned(), self.side.storing.late_blocks), (set(), 0))

    def test_so_are_those_of_requests_that_have_ended(self):
        """As requests do with their prefill. Their wishes are told when all of their blocks are stored."""
        told = []
        wishes = types.SimpleNamespace(retention=None)
        self.side.storing.wishes = types.SimpleNamespace(
            of=lambda request: wishes, ended=lambda *args: told.append(args[-1]), stored=lambda one: None
        )
        one = self.begin(20)
        self.side.finished(one)
        (first,) = self.step().stores
        self.assertEqual((first.depths, told), (list(range(16)), []))
        self.assertEqual((self.step().stores, self.side.has_work()), ([], True))
        self.end(first)
        (second,) = self.step().stores
        self.assertEqual((second.depths, told), (list(range(16, 20)), [{second.number}]))
        self.end(second)
        self.assertEqual((self.manager.pinned(), self.side.storing.late_blocks), (set(), 0))
        self.assertFalse(self.side.has_work())

    def test_they_wait_while_stores_end_however_long_the_oldest_has_taken(self):
        """Its chunks of a long prompt were steps of a second each, and the daemon copies in order."""
        (earlier,) = self.run_request(10)
        long = self.begin(20)
        stores = self.step().stores
        self.assertEqual(len(stores[0].blocks), POOL_BLOCKS // 4 - 10)
        self.wait(STEP_S, steps=1)
        self.end(earlier)
        self.now += PATIENCE_S - STEP_S
        self.side.finished(long)
        stores += self.step().stores
        self.end(stores[0])
        stores += self.step().stores
        self.assertEqual([one for store in stores for one in store.depths], list(range(20)))
        self.assertEqual(self.side.storing.late_blocks, 0)

    def test_blocks_of_ended_requests_leave_a_part_of_vllm_s_pool(self):
        """Where the engine makes more blocks than the daemon stores, though stores end."""
        self.check_that_a_part_of_the_pool_stays_free(lambda: self.side.finished(self.begin(12)))

    def test_blocks_of_ended_requests_do_not_keep_another_waiting(self):
        """vLLM begins a request when the pool has room for all of its prompt, and no end of a store may
        come until then."""
        stores = [store for _ in range(POOL_BLOCKS // 4) for store in self.run_request(1)]
        self.side.finished(self.begin(20))
        other = request(60 * BLOCK_TOKENS, "other", first=10**6)
        for store in stores[:2]:
            self.assertEqual(len(self.manager.pinned()), POOL_BLOCKS // 4 + 20 - stores.index(store))
            self.match(other)
            self.now += PATIENCE_S / 2
            self.end(store)
            self.step()
        self.assertEqual(len(self.manager.pinned()), POOL_BLOCKS // 4)

    def test_a_request_that_had_most_of_vllm_s_pool_is_stored_whole(self):
        """vLLM may free its blocks only when another step has been planned since it said that the request
        has ended."""
        one = self.begin(20)
        with mock.patch.object(self.manager, "get_num_free_blocks", return_value=0):
            self.side.finished(one)
            (first,) = self.step().stores
        self.end(first)
        (second,) = self.step().stores
        self.assertEqual([*first.depths, *second.depths], list(range(20)))

    def test_blocks_that_a_short_step_does_not_store_wait_also_where_the_pool_is_full(self):
        """There is room for more stores."""
        self.manager.num_gpu_blocks = 8 * SHORT_STEP_STORES
        self.side.bind(self.manager)
        self.begin(2 * SHORT_STEP_STORES)
        first = self.step().stores
        ended = [self.begin(SHORT_STEP_STORES) for _ in range(2)]
        for one in ended:
            self.side.finished(one)
        self.step()
        self.end(*first)
        with mock.patch.object(self.manager, "get_num_free_blocks", return_value=0):
            stored = [len(store.blocks) for _ in ended for store in self.step().stores]
        self.assertEqual(stored, [SHORT_STEP_STORES] * 2)

    def test_a_store_has_so_few_blocks_that_ends_come_soon(self):
        self.manager.num_gpu_blocks = 8 * MOST_BLOCKS
        self.side.bind(self.manager)
        self.begin(MOST_BLOCKS + 3)
        sizes = [len(store.blocks) for store in self.step().stores]
        self.assertEqual(sizes, [MOST_BLOCKS, 3])

    def test_other_weights_end_the_wait_of_requests_that_have_ended(self):
        self.side.finished(self.begin(20))
        self.side.turn()
        self.assertEqual((self.step().stores, self.manager.pinned()), ([], set()))

    def test_the_engine_steps_until_blocks_are_stored_whose_requests_go_on(self):
        """A pause that keeps requests resets the cache once the engine has no work."""
        one = self.begin(2)
        self.assertTrue(self.side.has_work())
        (store,) = self.step().stores
        self.end(store)
        self.assertEqual((self.manager.pinned(), self.side.has_work()), (set(), False))
        self.manager.table(one.request_id, range(7, 10))
        self.step(one, BLOCK_TOKENS)
        self.assertFalse(self.side.has_work())  # its last token is not known yet

    def test_a_request_that_begins_anew_is_not_stored_from_the_blocks_that_it_had(self):
        """Drafts that were rejected are in one, and no step has let go of it in between."""
        one = request(2 * BLOCK_TOKENS, "drafted")
        self.match(one)
        self.manager.table("drafted", [1, 2])
        self.step(one, 2 * BLOCK_TOKENS)
        # The last tokens are rejected; vLLM preempts it, resumes it on its own prefix, and goes on.
        one.num_computed_tokens = 0
        self.match(one, local_tokens=BLOCK_TOKENS)
        self.side.allocated(one, self.manager.table("drafted", [1, 7]), 0)
        one.num_computed_tokens = 2 * BLOCK_TOKENS
        self.assertEqual((self.step().stores, self.manager.pinned()), ([], set()))

    def test_nothing_is_stored_on_top_of_a_load_that_another_connector_may_still_fail(self):
        """One that vLLM waits for, as NIXL's, has ended by then."""
        for is_waited_for, stored in ((False, []), (True, [2])):
            one = request(3 * BLOCK_TOKENS + 5, f"{is_waited_for}")
            self.match(one)
            table = self.manager.table(one.request_id, [1, 2, 3, 4])
            self.side.allocated(one, table, 0)
            one.num_computed_tokens = 2 * BLOCK_TOKENS
            if is_waited_for:
                self.side.allocated(one, table, 0)
            plans = [self.step(one, BLOCK_TOKENS), self.step(one, 5)]
            depths = [depth for plan in plans for store in plan.stores for depth in store.depths]
            self.assertEqual(depths, stored)

    def test_the_engine_steps_for_stores_only_as_long_as_they_end(self):
        """Or it would never pause."""
        first, second = self.run_request(1) + self.run_request(1)
        self.step()
        asked = 0
        while self.side.has_work():
            asked += 1
            self.now += AWAITED_S / 40
            if asked == 20:
                self.end(first)
            self.assertLessEqual(asked, 60)
        self.assertEqual(asked, 60)
        self.assertEqual(len(self.manager.pinned()), 1)
        # When it is to pause again, the daemon may have gone on.
        self.now += 1000.0
        self.assertTrue(self.side.has_work())
        self.end(second)
        self.assertFalse(self.side.has_work())

    def test_wishes_of_requests_do_not_wait_for_stores_that_are_late(self):
        ended = []
        wishes = types.SimpleNamespace(retention=None)
        self.side.storing.wishes = types.SimpleNamespace(
            of=lambda request: wishes, ended=lambda *_: ended.append(None)
        )
        self.run_request(1)
        self.assertEqual(len(ended), 1)
        self.wait(LATE_S, steps=20)
        self.run_request(1)
        self.assertEqual((len(ended), self.side.storing.late_wishes), (1, 1))


class WindowStoresTest(StoresCase):
    """A request's attention sees two blocks, and vLLM drops the others."""

    groups = [CacheGroup(0, BLOCK_TOKENS, rule=HitRule.TRAILING, window_tokens=2 * BLOCK_TOKENS)]

    def test_blocks_that_left_the_window_leave_a_part_of_vllm_s_pool(self):
        """Where the request makes more blocks than the daemon stores, though stores end."""
        one = request(40 * 12 * BLOCK_TOKENS)
        self.match(one)
        self.side.allocated(one, self.manager.table("r", range(1, 1 + 40 * 12)), 0)
        self.check_that_a_part_of_the_pool_stays_free(lambda: self.step(one, 12 * BLOCK_TOKENS))


if __name__ == "__main__":
    unittest.main()
