# SPDX-License-Identifier: Apache-2.0
"""What the vLLM connector decides in the scheduler and does in the worker, without vLLM."""

import threading
import types
import unittest

import numpy as np

from kvtier import Presence, Retention
from kvtier.vllm.connector_scheduler import BlockList, SchedulerSide, StepPlan
from kvtier.vllm.connector_worker import WorkerSide
from kvtier.vllm.link import LinkState
from kvtier.vllm.lookups import Lookups
from kvtier.vllm.transfers import Transfers
from test_tier_unit import PATIENCE_S, LinkCase

BLOCK_TOKENS = 16


def hash_of(number):
    return number.to_bytes(32, "little")


def request(tokens, name="r", first=0, computed=0):
    """A request whose full blocks have the hashes `first`, `first` + 1, ..."""
    return types.SimpleNamespace(
        request_id=name,
        num_tokens=tokens,
        num_computed_tokens=computed,
        block_hashes=[hash_of(first + i) for i in range(tokens // BLOCK_TOKENS)],
    )


def step(new=(), cached=(), resumed=()):
    """A SchedulerOutput. new: (name, blocks, computed tokens); cached: the same, with blocks that
    are new, or None."""
    return types.SimpleNamespace(
        scheduled_new_reqs=[
            types.SimpleNamespace(req_id=name, block_ids=(blocks,), num_computed_tokens=computed)
            for name, blocks, computed in new
        ],
        scheduled_cached_reqs=types.SimpleNamespace(
            req_ids=[name for name, _, _ in cached],
            new_block_ids=[None if blocks is None else (blocks,) for _, blocks, _ in cached],
            num_computed_tokens=[computed for _, _, computed in cached],
            resumed_req_ids=set(resumed),
        ),
    )


class SchedulerSideTest(unittest.TestCase):
    def setUp(self):
        self.cached = set()  # what the daemon has
        self.asked = []
        self.lookups = Lookups(
            self.asked.append,
            lambda: LinkState.READY,
            lambda outcome: None,
            timeout_s=PATIENCE_S,
            yield_interpreter=self.answer,
        )
        self.side = SchedulerSide(self.lookups, BLOCK_TOKENS)

    def answer(self):
        for keys in self.asked:
            presence = [Presence.HOST if one[:32] in self.cached else 0 for one in keys]
            self.lookups.receive((keys, presence))
        self.asked.clear()

    def match(self, one, local_tokens=0):
        """The tokens found, in the step after they were first asked for."""
        self.side.matched_tokens(one, local_tokens)
        self.side.plan_step(step())
        return self.side.matched_tokens(one, local_tokens)

    def test_it_asks_again_until_the_daemon_has_answered(self):
        self.assertIsNone(self.side.matched_tokens(request(64), 0))
        self.side.plan_step(step())
        self.assertEqual(self.side.matched_tokens(request(64), 0), 0)

    def test_the_prefix_that_the_daemon_has_is_matched_after_the_engine_s_own(self):
        self.cached = {hash_of(i) for i in (0, 1, 2, 4)}
        self.assertEqual(self.match(request(100)), 48)
        self.assertEqual(self.match(request(100, "other"), local_tokens=32), 16)

    def test_one_token_at_least_is_left_to_compute(self):
        self.cached = {hash_of(i) for i in range(4)}
        self.assertEqual(self.match(request(64)), 48)
        self.assertEqual(self.match(request(65, "longer")), 64)

    def test_what_was_matched_is_loaded_into_the_blocks_that_the_engine_chose(self):
        self.cached = {hash_of(i) for i in range(4)}
        one = request(100)
        found = self.match(one, local_tokens=16)
        self.side.allocated(one, [50, 51, 52, 53, 54, 55, 56], found)
        (load,) = self.side.plan_step(step()).loads
        self.assertEqual(load.blocks, [51, 52, 53])
        self.assertEqual(load.hashes, [hash_of(i) for i in (1, 2, 3)])
        self.assertEqual(self.side.plan_step(step()).loads, [])

    def test_what_could_not_be_loaded_is_not_matched_again(self):
        """Or the request would wait for it again and again."""
        self.cached = {hash_of(i) for i in range(4)}
        one = request(100)
        self.side.allocated(one, [50, 51, 52, 53], self.match(one))
        self.side.failed([52, 99])
        self.assertEqual(self.side.matched_tokens(one, 0), 32)

    def test_full_blocks_are_stored_one_step_after_they_were_computed(self):
        self.match(request(100))
        plan = self.side.plan_step(step(new=[("r", [7, 8, 9], 0)]))
        self.assertEqual(plan.stores, [])
        plan = self.side.plan_step(step(cached=[("r", [10, 11, 12, 13], 40)]))
        (store,) = plan.stores
        self.assertEqual((store.blocks, store.depths), ([7, 8], [0, 1]))
        self.assertEqual(store.parents, [None, hash_of(0)])
        (store,) = self.side.plan_step(step(cached=[("r", None, 100)])).stores
        self.assertEqual((store.blocks, store.parents[0]), ([9, 10, 11, 12], hash_of(1)))

    def test_what_came_from_a_cache_is_not_stored_again(self):
        self.match(request(100))
        self.side.plan_step(step(new=[("r", [7, 8, 9, 10, 11, 12, 13], 48)]))
        (store,) = self.side.plan_step(step(cached=[("r", None, 100)])).stores
        self.assertEqual(store.blocks, [10, 11, 12])

    def test_a_preempted_request_comes_back_with_other_blocks(self):
        self.match(request(100))
        self.side.plan_step(step(new=[("r", [7, 8], 0)]))
        self.side.plan_step(step(cached=[("r", None, 32)]))
        again = [("r", [20, 21, 22, 23], 0)]
        self.assertEqual(self.side.plan_step(step(cached=again, resumed=["r"])).stores, [])
        (store,) = self.side.plan_step(step(cached=[("r", None, 64)])).stores
        self.assertEqual((store.blocks, store.depths), ([22, 23], [2, 3]))

    def test_blocks_of_a_finished_request_stay_until_its_stores_have_ended(self):
        self.match(request(40))
        self.side.plan_step(step(new=[("r", [7, 8, 9], 0)]))
        self.assertFalse(self.side.has_work())
        self.assertTrue(self.side.finished(request(40, computed=40), [7, 8, 9]))
        self.assertTrue(self.side.has_work())
        plan = self.side.plan_step(step())
        self.assertEqual(([one.blocks for one in plan.stores], plan.finished), ([[7, 8]], ["r"]))
        self.assertTrue(self.side.has_work())
        self.side.sent(["r"])
        self.assertFalse(self.side.has_work())

    def test_a_request_without_stores_is_free_at_once(self):
        self.match(request(10))
        self.side.plan_step(step(new=[("r", [7], 0)]))
        self.assertFalse(self.side.finished(request(10, computed=10), [7]))
        self.assertFalse(self.side.finished(request(10, "unknown"), [7]))
        self.assertFalse(self.side.has_work())


class WorkerSideTest(LinkCase):
    def setUp(self):
        super().setUp()
        self.link = self.open_link()
        self.ask_until(self.link, [0])
        self.region = self.daemon.region
        transfers = Transfers(self.link, settle_s=0)
        self.side = WorkerSide(transfers, BLOCK_TOKENS, Retention.EXTENDED)

    def blocks(self, *numbers, name="r"):
        hashes = [hash_of(number) for number in numbers]
        return BlockList(name, list(numbers), hashes, [None] * len(numbers), [0] * len(numbers))

    def test_a_finished_request_is_reported_when_its_last_store_has_ended(self):
        self.region.hold = True
        self.side.begin(StepPlan(stores=[self.blocks(1), self.blocks(2)]))
        self.side.begin(StepPlan(stores=[self.blocks(3)], finished=["r"]))
        self.assertEqual(self.side.take_finished(), (set(), set()))
        self.region.release()
        self.assertEqual(self.side.take_finished(), ({"r"}, set()))
        self.assertEqual(self.side.take_finished(), (set(), set()))
        self.assertEqual(self.side.counts["store", "copied"], 3)

    def test_a_load_brings_the_bytes_that_were_stored(self):
        self.rows[1], self.rows[2] = 11, 22
        self.side.begin(StepPlan(stores=[self.blocks(1, 2)]))
        self.rows[:] = 0
        self.side.begin(StepPlan(loads=[self.blocks(2, 1)]))
        self.assertEqual(self.side.take_finished(), (set(), {"r"}))
        self.assertEqual(self.side.take_failed_blocks(), set())
        np.testing.assert_array_equal(self.rows[:3, 0], [0, 11, 22])

    def test_blocks_that_did_not_load_are_told_with_their_request(self):
        self.side.begin(StepPlan(stores=[self.blocks(1)]))
        self.side.begin(StepPlan(loads=[self.blocks(1, 5)]))
        self.assertEqual(self.side.take_finished()[1], {"r"})
        self.assertEqual(self.side.take_failed_blocks(), {5})
        self.assertEqual(self.side.take_failed_blocks(), set())

    def test_without_a_daemon_loads_fail_and_stores_end(self):
        self.daemon.die()
        self.side.begin(
            StepPlan(loads=[self.blocks(1, name="l")], stores=[self.blocks(2)], finished=["r"])
        )
        self.assertEqual(self.side.take_finished(), ({"r"}, {"l"}))
        self.assertEqual(self.side.take_failed_blocks(), {1})

    def test_stores_of_preempted_requests_are_waited_for(self):
        self.region.hold = True
        self.side.begin(StepPlan(stores=[self.blocks(1)]))
        self.side.wait_for_stores(["another"])
        waiting = threading.Thread(target=self.side.wait_for_stores, args=(["r"],))
        waiting.start()
        self.region.release()
        waiting.join(PATIENCE_S)
        self.assertFalse(waiting.is_alive())


if __name__ == "__main__":
    unittest.main()
