# SPDX-License-Identifier: Apache-2.0
"""How the connector's requests share a disk, without vLLM."""

import unittest

from kvtier import Presence, Retention
from kvtier.vllm.connector_scheduler import BlockList, StepPlan
from kvtier.vllm.connector_worker import WorkerSide
from kvtier.vllm.disk_turns import LOADS, STUCK_S
from kvtier.vllm.lookups import DISK_STUCK
from kvtier.vllm.transfers import EndedJob
from test_connector_unit import BLOCK_TOKENS, SchedulerCase, request

BLOCKS = 5
TOKENS = BLOCKS * BLOCK_TOKENS


class DiskTurnsTest(SchedulerCase):
    """Every request finds five blocks, all of them on disk."""

    def setUp(self):
        super().setUp()
        self.presence = Presence.DISK
        self.requests = 0

    def prices(self, compute_s, disk_s):
        """The prices of a request's blocks."""
        self.side.prices.computed(1000, 1000 * compute_s / TOKENS)
        self.side.prices.loaded_from_disk(1000, 1000 * disk_s / TOKENS)

    def new_request(self, tokens=TOKENS + 5, cached=BLOCKS):
        first = self.requests * 1000
        self.requests += 1
        self.have(*range(first, first + cached))
        return request(tokens, name=f"r{self.requests}", first=first)

    def found(self, one):
        """The request's answer when the daemon's is known; None: to wait."""
        found = self.side.matched_tokens(one, 0)
        if found is None:
            self.step()
            found = self.side.matched_tokens(one, 0)
        return found

    def schedule(self, one, found):
        blocks = self.manager.table(one.request_id, list(range(1, one.num_tokens // 16 + 2)))
        self.side.allocated(one, blocks, found)

    def begin_load(self):
        one = self.new_request()
        self.assertEqual(self.found(one), TOKENS)
        self.schedule(one, TOKENS)
        return one

    def begin_loads(self):
        """As many as are under way at once."""
        return [self.begin_load() for _ in range(LOADS)]

    def test_a_request_waits_until_a_load_before_it_has_ended(self):
        self.prices(compute_s=100.0, disk_s=1.0)
        loading = self.begin_loads()
        waiting = self.new_request()
        self.assertIsNone(self.found(waiting))
        self.side.loaded({loading[1].request_id})
        self.assertEqual(self.found(waiting), TOKENS)

    def test_turns_are_taken_in_the_order_in_which_requests_came(self):
        self.prices(compute_s=100.0, disk_s=1.0)
        loading = self.begin_loads()
        first, second = self.new_request(), self.new_request()
        self.assertIsNone(self.found(first))
        self.assertIsNone(self.found(second))
        self.side.loaded({loading[0].request_id})
        self.assertIsNone(self.side.matched_tokens(second, 0))
        # It keeps its turn while vLLM has no blocks for it.
        for _ in range(3):
            self.assertEqual(self.found(first), TOKENS)
            self.assertIsNone(self.side.matched_tokens(second, 0))
            self.step()
        self.schedule(first, TOKENS)
        self.assertIsNone(self.found(second))
        self.side.loaded({first.request_id})
        self.assertEqual(self.found(second), TOKENS)

    def test_a_request_that_vllm_asks_about_no_more_holds_up_no_other(self):
        """As one whose adapter has no place, or that others keep from its turn by their priority."""
        self.prices(compute_s=100.0, disk_s=1.0)
        loading = self.begin_loads()
        left_out, other = self.new_request(), self.new_request()
        self.assertIsNone(self.found(left_out))
        self.side.loaded({one.request_id for one in loading})
        self.step()
        self.assertEqual(self.found(other), TOKENS)
        self.schedule(other, TOKENS)
        self.assertEqual(self.found(left_out), TOKENS)

    def test_a_request_is_computed_where_its_turn_would_come_too_late(self):
        self.prices(compute_s=LOADS + 0.5, disk_s=1.0)
        self.begin_loads()
        self.assertEqual(self.found(self.new_request()), 0)
        self.now += 1.0
        self.assertIsNone(self.found(self.new_request()))

    def test_a_request_waits_for_the_disk_while_it_would_wait_for_the_gpu_as_long(self):
        self.prices(compute_s=LOADS + 0.5, disk_s=1.0)
        self.begin_loads()
        busy = self.new_request(tokens=100 * TOKENS, cached=0)
        self.schedule(busy, self.found(busy))
        waiting = self.new_request()
        self.assertIsNone(self.found(waiting))
        busy.num_computed_tokens = busy.num_tokens
        self.step()
        self.assertEqual(self.found(waiting), 0)

    def test_a_disk_slower_than_the_gpu_is_read_while_the_gpu_is_busy(self):
        self.prices(compute_s=1.0, disk_s=2.0)
        self.assertEqual(self.found(self.new_request()), 0)
        busy = self.new_request(tokens=100 * TOKENS, cached=0)
        self.schedule(busy, self.found(busy))
        self.assertEqual(self.found(self.new_request()), TOKENS)

    def test_an_aborted_request_that_waits_gives_up_its_turn(self):
        self.prices(compute_s=100.0, disk_s=1.0)
        loading = self.begin_loads()
        first, second = self.new_request(), self.new_request()
        self.assertIsNone(self.found(first))
        self.assertIsNone(self.found(second))
        self.side.finished(first)
        self.side.loaded({loading[0].request_id})
        self.assertEqual(self.found(second), TOKENS)

    def test_an_aborted_request_s_load_is_under_way_until_it_has_ended(self):
        self.prices(compute_s=100.0, disk_s=1.0)
        loading = self.begin_loads()
        waiting = self.new_request()
        self.side.finished(loading[0])
        self.assertIsNone(self.found(waiting))
        self.side.loaded({loading[0].request_id})
        self.assertEqual(self.found(waiting), TOKENS)

    def test_a_disk_that_answers_no_more_holds_requests_up_for_a_while_only(self):
        stuck = []
        self.lookups._count = lambda outcome, blocks: stuck.append((outcome, blocks))
        self.prices(compute_s=100.0, disk_s=1.0)
        self.begin_loads()
        waiting = self.new_request()
        self.assertIsNone(self.found(waiting))
        self.now += LOADS + STUCK_S
        self.assertIsNone(self.found(waiting))
        self.now += 0.1
        stuck.clear()
        self.assertEqual(self.found(waiting), 0)
        self.assertEqual(stuck, [(DISK_STUCK, BLOCKS)])

    def test_nothing_is_begun_behind_a_load_that_is_stuck(self):
        self.prices(compute_s=100.0, disk_s=1.0)
        self.begin_load()
        self.now += 1.1 + STUCK_S
        self.assertEqual(self.found(self.new_request()), 0)

    def test_waiting_costs_no_lookups(self):
        self.prices(compute_s=100.0, disk_s=1.0)
        self.begin_loads()
        waiting = self.new_request()
        self.assertIsNone(self.found(waiting))
        self.lookups.look_up_run = self.fail
        self.assertIsNone(self.side.matched_tokens(waiting, 0))

    def test_a_request_of_which_vllm_computed_more_meanwhile_plans_anew(self):
        self.prices(compute_s=100.0, disk_s=1.0)
        loading = self.begin_loads()
        waiting = self.new_request()
        self.assertIsNone(self.found(waiting))
        self.side.loaded({loading[0].request_id})
        local_tokens = 2 * BLOCK_TOKENS
        self.assertEqual(self.side.matched_tokens(waiting, local_tokens), TOKENS - local_tokens)

    def test_a_turn_that_is_needed_no_more_is_the_next_one_s(self):
        """vLLM found no room for the request, and meanwhile computed its prefix for another."""
        self.prices(compute_s=100.0, disk_s=1.0)
        first, second = self.new_request(), self.new_request()
        self.assertEqual(self.found(first), TOKENS)
        self.assertIsNone(self.found(second))
        self.assertEqual(self.side.matched_tokens(first, TOKENS), 0)
        self.assertEqual(self.found(second), TOKENS)

    def test_blocks_in_memory_wait_for_no_turn(self):
        self.prices(compute_s=100.0, disk_s=1.0)
        self.begin_loads()
        self.presence = Presence.HOST
        self.assertEqual(self.found(self.new_request()), TOKENS)


class FakeTransfers:
    """Transfers whose loads end when a test says so."""

    def __init__(self):
        self.jobs, self.ended = [], []

    def load(self, job, rows, hashes):
        self.jobs.append(job)

    def take_ended(self):
        ended, self.ended = self.ended, []
        return ended

    def end(self, position, seconds):
        self.ended.append(EndedJob(self.jobs[position], {}, 0, seconds))


class DiskSecondsTest(unittest.TestCase):
    """A load's time, of which the price of the disk is made."""

    def setUp(self):
        self.now = 100.0
        self.transfers = FakeTransfers()
        self.side = WorkerSide(
            self.transfers, [BLOCK_TOKENS], Retention.EXTENDED, clock=lambda: self.now
        )

    def begin(self, name):
        load = BlockList(name, 0, [1], [b"h"], disk_tokens=BLOCK_TOKENS)
        self.side.begin(StepPlan(loads={name: [load]}))

    def test_loads_of_the_same_time_share_the_disk(self):
        self.begin("first")
        self.begin("second")
        self.now += 2.0
        self.transfers.end(0, seconds=2.0)
        self.side.poll()
        self.assertEqual(self.side.take_disk_loads(), [(BLOCK_TOKENS, 2.0)])
        self.now += 1.0
        self.transfers.end(1, seconds=3.0)
        self.side.poll()
        self.assertEqual(self.side.take_disk_loads(), [(BLOCK_TOKENS, 1.0)])

    def test_loads_that_end_together_are_one(self):
        self.begin("first")
        self.begin("second")
        self.now += 2.0
        self.transfers.end(0, seconds=2.0)
        self.transfers.end(1, seconds=2.0)
        self.side.poll()
        self.assertEqual(self.side.take_disk_loads(), [(2 * BLOCK_TOKENS, 2.0)])


if __name__ == "__main__":
    unittest.main()
