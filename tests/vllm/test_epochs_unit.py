# SPDX-License-Identifier: Apache-2.0
"""The connector when the engine gets other weights, without vLLM."""

import types
import unittest

from kvtier import Retention
from kvtier._epochs import WeightEpochs
from kvtier.vllm.connector_scheduler import StepPlan
from kvtier.vllm.connector_worker import WorkerSide
from kvtier.vllm.kept_cache import table_root
from kvtier.vllm.transfers import Transfers
from test_connector_unit import BLOCK_TOKENS, SchedulerCase, hash_of, request
from test_lookups_unit import LookupsCase, Verdict
from link_case import LinkCase
from test_worker_unit import block_list


class WeightEpochsTest(unittest.TestCase):
    def setUp(self):
        self.version = "default"

    def epochs(self, first="files:1", run="run"):
        return WeightEpochs(first, run, lambda: self.version)

    def test_an_engine_begins_with_the_weights_that_it_has_loaded(self):
        epochs = self.epochs()
        self.assertFalse(epochs.begin())
        self.assertEqual(epochs.current, "files:1")

    def test_weights_that_cannot_be_told_are_nobody_else_s(self):
        self.assertNotEqual(self.epochs(None).current, self.epochs(None).current)

    def test_all_ranks_call_them_the_same(self):
        """As SGLang's linkers, of which one stores the latents that all of them load."""
        epochs = WeightEpochs(None, unnamed=lambda: "unnamed:of all ranks")
        self.assertEqual(epochs.current, "unnamed:of all ranks")

    def test_each_turn_is_to_weights_that_nobody_has_had(self):
        epochs, names = self.epochs(), set()
        for _ in range(100):
            names.add(epochs.current)
            self.assertTrue(epochs.turn(may_be_named=True))
            self.assertFalse(epochs.begin())
        self.assertEqual(len(names), 100)

    def test_turns_without_a_request_between_them_are_one(self):
        epochs = self.epochs()
        self.assertTrue(epochs.turn(may_be_named=False))
        current = epochs.current
        self.assertFalse(epochs.turn(may_be_named=True))
        self.assertEqual(epochs.current, current)
        self.version = "17"
        self.assertTrue(epochs.begin())

    def turned(self, epochs, version, may_be_named=True):
        epochs.turn(may_be_named)
        self.version = version
        epochs.begin()
        return epochs.current

    def test_a_version_names_the_weights_of_a_run(self):
        one, other = self.epochs(), self.epochs(first="files:2")
        first = self.turned(one, "17")
        self.assertEqual(first, "named:run/17")
        self.version = "default"
        self.assertEqual(self.turned(other, "17"), first)
        self.assertEqual(self.turned(other, "18"), "named:run/18")
        self.assertEqual(self.turned(other, "17"), first)

    def test_a_version_that_was_set_before_the_reset_names_them_too(self):
        epochs = self.epochs()
        self.version = "17"
        self.assertEqual(self.turned(epochs, "17"), "named:run/17")

    def test_the_version_of_the_weights_before_names_no_others(self):
        epochs = self.epochs()
        self.turned(epochs, "17")
        self.assertRegex(self.turned(epochs, "17"), "^unnamed:")

    def test_weights_are_not_named_while_kv_of_others_is_left_in_the_engine(self):
        epochs = self.epochs()
        self.assertRegex(self.turned(epochs, "17", may_be_named=False), "^unnamed:")
        self.assertEqual(self.turned(epochs, "18"), "named:run/18")

    def test_without_a_run_versions_name_nothing(self):
        self.assertRegex(self.turned(self.epochs(run=""), "17"), "^unnamed:")

    def test_a_version_that_comes_when_the_epoch_has_begun_names_nothing(self):
        epochs = self.epochs()
        epochs.turn(may_be_named=True)
        epochs.begin()
        self.version = "17"
        self.assertFalse(epochs.begin())
        self.assertRegex(epochs.current, "^unnamed:")

    def test_kept_tables_are_told_apart_by_weights_and_by_hashes(self):
        roots = {table_root(bytes([root]) * 32, one) for root in (1, 2) for one in ("a", "b")}
        self.assertEqual(len(roots), 4)
        self.assertEqual({len(root) for root in roots}, {32})


class LookupsTurnTest(LookupsCase):
    def test_what_was_known_is_asked_anew(self):
        self.look_up(1)
        self.lookups.flush()
        self.answer(1)
        self.assertEqual(self.look_up(1), [Verdict.HIT])
        self.lookups.turn()
        self.assertEqual(self.look_up(1), [Verdict.RETRY])
        self.lookups.flush()
        self.assertEqual(len(self.asked), 2)

    def test_an_answer_to_a_question_of_before_says_nothing(self):
        self.look_up(1)
        self.lookups.flush()
        self.lookups.turn()
        self.assertEqual(self.look_up(1), [Verdict.RETRY])
        self.lookups.flush()
        self.lookups.receive((self.asked[0], [1]))
        self.assertEqual(self.look_up(1), [Verdict.RETRY])
        self.lookups.receive((self.asked[1], [0]))
        self.assertEqual(self.look_up(1), [Verdict.MISS])

    def test_what_was_not_asked_yet_is_not_asked_for_those_of_before(self):
        self.look_up(1)
        self.lookups.turn()
        self.lookups.flush()
        self.assertEqual(self.asked, [])

    def test_requests_of_before_are_forgotten_as_others_are(self):
        self.look_up(1, request="old")
        self.lookups.turn()
        self.look_up(1, request="new")
        self.lookups.forget("old")
        self.lookups.flush()
        self.answer(1)
        self.assertEqual(self.look_up(1, request="new"), [Verdict.HIT])


class SchedulerTurnTest(SchedulerCase):
    def setUp(self):
        super().setUp()
        self.answers_at_once = True

    def begin(self, one, *blocks):
        """The request is scheduled with these blocks."""
        table = self.manager.table(one.request_id, list(blocks))
        self.side.allocated(one, table, self.match(one))

    def test_nothing_of_before_is_a_hit_for_a_request_that_waits(self):
        self.have(0, 1, 2, 3)
        one = request(64)
        self.assertEqual(self.match(one), 48)
        self.side.turn()
        self.cached.clear()
        self.assertEqual(self.match(one), 0)

    def test_what_was_computed_and_not_stored_yet_is_not_stored(self):
        for is_finished in (False, True):
            one = request(64)
            self.begin(one, 1, 2, 3, 4)
            self.step(one, 64)
            if is_finished:
                self.side.finished(one)
            self.side.turn()
            self.assertEqual(self.manager.pinned(), set())
            self.assertEqual(self.step().stores, [])
            self.assertFalse(self.side.has_work())
            self.side.finished(one)

    def test_a_request_with_blocks_of_before_stores_none_of_what_follows(self):
        one = request(64)
        self.begin(one, 1, 2, 3, 4)
        self.step(one, 32)
        self.side.turn()
        self.step(one, 32)
        self.assertEqual(self.manager.pinned(), set())
        self.assertEqual(self.step().stores, [])

    def test_a_request_that_begins_anew_stores_its_blocks(self):
        one = request(64)
        self.begin(one, 1, 2, 3, 4)
        self.step(one, 32)
        self.side.turn()
        one.num_computed_tokens = 0  # it was preempted
        self.begin(one, 5, 6, 7, 8)
        self.step(one, 64)
        (store,) = self.step().stores
        self.assertEqual(store.blocks, [5, 6, 7, 8])

    def test_a_request_on_top_of_vllm_s_own_blocks_of_before_stores_none(self):
        """vLLM cannot empty its cache while blocks are in use, and goes on with its blocks."""
        for is_empty, stored in ((False, []), (True, [3, 4])):
            with self.subTest(is_empty=is_empty):
                self.side.turn(is_empty)
                one = request(64, name=f"{is_empty}", computed=32)
                table = self.manager.table(one.request_id, [1, 2, 3, 4])
                self.side.allocated(one, table, self.match(one, local_tokens=32))
                self.step(one, 32)
                self.assertEqual([n for store in self.step().stores for n in store.blocks], stored)
                self.side.finished(one)

    def test_stores_under_way_are_still_waited_for(self):
        one = request(64)
        self.begin(one, 1, 2, 3, 4)
        self.step(one, 64)
        (store,) = self.step().stores
        self.side.turn()
        self.assertEqual(self.manager.pinned(), {1, 2, 3, 4})
        self.side.stored({store.number: 1})
        self.assertEqual(self.manager.pinned(), set())

    def test_plans_say_how_often_the_weights_had_changed(self):
        self.assertEqual(self.step().epoch, 0)
        self.side.turn()
        self.side.turn()
        self.assertEqual([self.step().epoch, self.step().epoch], [2, 2])

    def test_vllm_s_cache_is_empty_when_no_block_is_used_or_cached(self):
        self.manager.num_gpu_blocks = 10
        self.manager.cached_block_hash_to_block = {}
        for free_blocks, cached, is_empty in ((9, {}, True), (8, {}, False), (9, {1: 2}, False)):
            self.manager.get_num_free_blocks = lambda free_blocks=free_blocks: free_blocks
            self.manager.cached_block_hash_to_block = cached
            self.assertEqual(self.side.holds_nothing(), is_empty)


    def test_nothing_is_stored_on_top_of_a_part_of_an_old_block(self):
        """vLLM tells connectors whole blocks that its own cache has, and uses the beginning of another."""
        for is_empty, stored in ((False, []), (True, [0, 1])):
            self.side.turn(is_empty)
            one = request(2 * BLOCK_TOKENS + 5, f"{is_empty}")
            self.match(one)
            self.side.allocated(one, self.manager.table(one.request_id, [1, 2, 3]), 0)
            one.num_computed_tokens = 12
            plans = [self.step(one, 10), self.step(one, 10), self.step()]
            depths = [depth for plan in plans for store in plan.stores for depth in store.depths]
            self.assertEqual(depths, stored)


class WorkerTurnTest(LinkCase):
    def setUp(self):
        super().setUp()
        self.link = self.open_link()
        self.ask_until(self.link, [0])
        self.side = WorkerSide(
            Transfers(self.link, settle_s=0), [BLOCK_TOKENS], Retention.EXTENDED
        )

    def turn(self, epoch):
        self.side.turn(epoch)
        self.link.reopen()

    def test_plans_of_before_that_begin_late_are_not_carried_out(self):
        """As on a GPU, where a plan begins when kernels have ended that were launched before."""
        stores = StepPlan(0, stores=[block_list(1, number=5)])
        loads = StepPlan(0, loads={"r": [block_list(2)]})
        self.turn(1)
        self.side.begin(stores)
        self.side.begin(loads)
        self.side.poll()
        self.assertEqual(self.side.take_stored(), {5: 1})
        self.assertEqual(self.side.take_loaded(), ({"r"}, {"r"}))
        self.assertEqual(self.side.take_failed_blocks(), {2})
        self.assertEqual(self.daemon.blocks, {})
        self.assertEqual(self.side.counts["store", "old_epoch"], 1)
        self.assertEqual(self.side.counts["load", "old_epoch"], 1)

    def test_a_late_plan_publishes_nothing_to_the_next_engine(self):
        published = []
        kept = types.SimpleNamespace(publish=published.append)
        self.side = WorkerSide(
            Transfers(self.link, settle_s=0), [BLOCK_TOKENS], Retention.EXTENDED, kept
        )
        plan = StepPlan(0)
        self.turn(1)
        self.side.begin(plan)
        self.assertEqual(published, [])
        self.side.begin(StepPlan(1))
        self.assertEqual(len(published), 1)

    def test_a_load_that_was_overtaken_is_no_load_of_its_request(self):
        self.side.begin(StepPlan(0, stores=[block_list(1)]))
        self.daemon.region.hold = True
        self.side.begin(StepPlan(0, loads={"r": [block_list(1)]}))
        old = self.daemon.region
        self.turn(1)
        old.release()
        self.side.poll()
        self.assertEqual(self.side.take_loaded(), ({"r"}, {"r"}))

    def test_what_is_computed_afterwards_is_stored_and_loaded(self):
        self.turn(1)
        self.rows[1] = 11
        self.side.begin(StepPlan(1, stores=[block_list(1)]))
        while not self.side.take_stored():
            self.side.poll()
        self.rows[:] = 0
        self.side.begin(StepPlan(1, loads={"r": [block_list(1)]}))
        self.side.poll()
        self.assertEqual(self.side.take_loaded(), ({"r"}, set()))
        self.assertEqual(self.rows[1, 0], 11)
        self.assertEqual(set(self.daemon.blocks), {hash_of(1)})


if __name__ == "__main__":
    unittest.main()
