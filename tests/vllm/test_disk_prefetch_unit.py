# SPDX-License-Identifier: Apache-2.0
"""Blocks that come from disk to host memory while requests wait in vLLM's queue, without vLLM."""

import queue
import threading
import unittest

import numpy as np

import kvtier
from kvtier import HitRule, Presence
from kvtier._link import Attachment
from kvtier.vllm.cache_groups import CacheGroup
from kvtier.vllm.connector_scheduler import SchedulerSide
from kvtier.vllm.disk_prefetch import PIECE_BLOCKS, DiskPrefetch
from kvtier.vllm.disk_turns import LOADS
from kvtier.vllm.rows import key_of
from test_connector_unit import BLOCK_TOKENS, SchedulerCase, hash_of, request

DEADLINE_S = 300.0
BLOCKS = 5
TOKENS = BLOCKS * BLOCK_TOKENS


class FakeRegion:
    """answers: for each call how many blocks are in memory then, or an exception to raise; all of
    them without one. A call waits until `answering` is set."""

    def __init__(self, answers=()):
        self.answers = list(answers)
        self.calls, self.lookups = [], queue.SimpleQueue()
        self.answering = threading.Event()
        self.answering.set()

    def prefetch(self, hashes, timeout_ms):
        self.calls.append(list(hashes))
        assert self.answering.wait(DEADLINE_S)
        answer = self.answers.pop(0) if self.answers else len(hashes)
        if isinstance(answer, BaseException):
            raise answer
        return answer


    def lookup(self, hashes):
        self.lookups.put(list(hashes))
        return np.ones(len(hashes), np.uint8)


def error(kind, status):
    return kind(status, "reason")


class DiskPrefetchTest(unittest.TestCase):
    def start(self, *regions, ranks=1, keep_s=DEADLINE_S):
        self.regions = regions or (FakeRegion(),)
        self.attachment = Attachment(self.regions, lambda: None, lambda: True, ranks)
        self.lost = []
        self.prefetch = DiskPrefetch(self.borrow, self.lost.append, keep_s)
        self.addCleanup(self.prefetch.close)
        return self.prefetch

    def borrow(self):
        return self.attachment if self.attachment and self.attachment.borrow() else None

    def keys(self, first, count):
        return [key_of(hash_of(first + i), 0) for i in range(count)]

    def wait_for(self, *requests):
        """The blocks of these requests that have arrived; the requests all end at once."""
        arrived = {}
        with self.prefetch._changed:
            done = self.prefetch._changed.wait_for(
                lambda: not self.prefetch._waiting, DEADLINE_S
            )
        self.assertTrue(done)
        for name, keys in self.prefetch.take_arrived():
            arrived.setdefault(name, []).extend(keys)
        return [arrived.get(name, []) for name in requests]

    def test_a_request_s_blocks_are_told_when_they_are_in_memory(self):
        self.start().want("a", [(0, self.keys(0, 3))])
        self.assertEqual(self.wait_for("a"), [self.keys(0, 3)])
        self.assertEqual(self.regions[0].calls, [[hash_of(i) for i in range(3)]])
        self.assertEqual(self.prefetch.take_arrived(), [])

    def test_many_blocks_are_asked_for_piece_by_piece(self):
        self.start().want("a", [(0, self.keys(0, PIECE_BLOCKS + 1))])
        self.assertEqual(self.wait_for("a"), [self.keys(0, PIECE_BLOCKS + 1)])
        self.assertEqual(list(map(len, self.regions[0].calls)), [PIECE_BLOCKS, 1])

    def test_requests_are_served_in_the_order_in_which_they_came(self):
        region = FakeRegion()
        region.answering.clear()
        self.start(region)
        for number, name in enumerate("abc"):
            self.prefetch.want(name, [(0, self.keys(10 * number, 2))])
        region.answering.set()
        self.wait_for()
        self.assertEqual([call[0] for call in region.calls], list(map(hash_of, (0, 10, 20))))

    def test_a_request_that_begins_gives_way_after_the_piece_under_way(self):
        region = FakeRegion()
        region.answering.clear()
        self.start(region)
        self.prefetch.want("a", [(0, self.keys(0, 10 * PIECE_BLOCKS))])
        self.prefetch.want("b", [(0, self.keys(10_000, 2))])
        while not region.calls:
            threading.Event().wait(0.001)
        self.prefetch.drop("a")
        region.answering.set()
        self.assertEqual(self.wait_for("b"), [self.keys(10_000, 2)])
        self.assertEqual(len(region.calls), 2)

    def test_nothing_is_asked_for_behind_a_block_that_does_not_come(self):
        self.start(FakeRegion([3])).want("a", [(0, self.keys(0, 10 * PIECE_BLOCKS))])
        self.assertEqual(self.wait_for("a"), [self.keys(0, 3)])
        self.assertEqual(len(self.regions[0].calls), 1)

    def test_all_ranks_must_have_a_block(self):
        regions = FakeRegion([4]), FakeRegion(), FakeRegion([2]), FakeRegion()
        self.start(*regions, ranks=2)
        self.prefetch.want("a", [(0, self.keys(0, 4)), (1, self.keys(20, 4))])
        self.assertEqual(self.wait_for("a"), [self.keys(0, 2) + self.keys(20, 4)])
        self.assertEqual([len(region.calls) for region in regions], [1, 1, 1, 1])

    def test_an_answer_that_takes_long_is_waited_for_again(self):
        late = error(kvtier.TimedOutError, kvtier.Status.TIMEOUT)
        self.start(FakeRegion([late, late])).want("a", [(0, self.keys(0, 2))])
        self.assertEqual(self.wait_for("a"), [self.keys(0, 2)])
        self.assertEqual(len(self.regions[0].calls), 3)

    def test_a_daemon_that_is_lost_or_refuses_ends_the_request_alone(self):
        lost = error(kvtier.UnavailableError, kvtier.Status.UNAVAILABLE)
        refused = error(kvtier.InvalidArgumentError, kvtier.Status.INVALID_ARGUMENT)
        self.start(FakeRegion([lost, refused]))
        with self.assertLogs("vllm.kvtier"):
            self.prefetch.want("a", [(0, self.keys(0, 2))])
            self.prefetch.want("b", [(0, self.keys(10, 2))])
            self.prefetch.want("c", [(0, self.keys(20, 2))])
            self.assertEqual(self.wait_for("a", "b", "c"), [[], [], self.keys(20, 2)])
        self.assertEqual(self.lost, [self.attachment])

    def test_requests_that_wait_are_looked_up_now_and_then_the_first_of_them_last(self):
        region = FakeRegion([2])
        region.answering.clear()
        self.start(region, keep_s=0.0)
        self.prefetch.want("a", [(0, self.keys(0, 3))])
        self.prefetch.want("b", [(0, self.keys(10, 4))])
        region.answering.set()
        self.wait_for()
        looked_up = [region.lookups.get(timeout=DEADLINE_S) for _ in range(20)]
        both = looked_up[looked_up.index([hash_of(10 + i) for i in range(4)]) :]
        self.assertEqual([one[0] for one in both[:4]], [hash_of(10), hash_of(0)] * 2)

    def test_a_request_that_has_begun_is_looked_up_no_more(self):
        region = FakeRegion()
        self.start(region, keep_s=0.0)
        self.prefetch.want("a", [(0, self.keys(0, 3))])
        self.wait_for()
        self.prefetch.drop("a")
        self.prefetch.want("b", [(0, self.keys(10, 4))])
        while region.lookups.get(timeout=DEADLINE_S)[0] != hash_of(10):
            pass
        for _ in range(10):
            self.assertEqual(region.lookups.get(timeout=DEADLINE_S)[0], hash_of(10))

    def test_without_a_daemon_nothing_comes(self):
        self.start()
        self.attachment = None
        self.prefetch.want("a", [(0, self.keys(0, 2))])
        self.assertEqual(self.wait_for("a"), [[]])

    def test_nothing_is_begun_after_it_was_closed(self):
        self.start().close()
        self.prefetch.want("a", [(0, self.keys(0, 2))])
        self.assertEqual(self.wait_for("a"), [[]])
        self.assertEqual(self.regions[0].calls, [])


class FakePrefetch:
    def __init__(self):
        self.wanted, self.arrived = {}, []

    def want(self, name, keys):
        self.wanted[name] = [key for _, of_group in keys for key in of_group]

    def drop(self, name):
        self.wanted.pop(name, None)

    def take_arrived(self):
        arrived, self.arrived = self.arrived, []
        return arrived


class PrefetchingCase(SchedulerCase):
    def setUp(self):
        super().setUp()
        self.presence = Presence.DISK
        self.prefetch = FakePrefetch()
        self.side = SchedulerSide(
            self.lookups, self.groups, clock=lambda: self.now, prefetch=self.prefetch
        )
        self.local = set()  # hashes of blocks that vLLM's own cache has
        self.manager.get_cached_block = lambda one, _: [one] if one in self.local else None
        self.side.bind(self.manager)
        self.requests = 0

    def new_request(self, cached=BLOCKS, skips=False):
        first = 100 * self.requests
        self.requests += 1
        self.have(*range(first, first + cached))
        one = request(TOKENS + 5, name=f"r{self.requests}", first=first)
        one.is_finished = lambda: False
        one.skip_reading_prefix_cache = skips
        self.side.came(one)
        return one

    def schedule(self, one, found):
        self.side.allocated(one, self.manager.table(one.request_id, list(range(1, 8))), found)


class PrefetchingSchedulerTest(PrefetchingCase):
    def test_a_request_that_is_not_in_the_next_step_is_prefetched(self):
        self.new_request()
        self.assertEqual(self.prefetch.wanted, {})
        self.step()
        self.assertEqual(self.prefetch.wanted, {"r1": [key_of(hash_of(i), 0) for i in range(5)]})

    def test_a_request_that_begins_at_once_is_not(self):
        one = self.new_request()
        self.schedule(one, self.match(one))
        self.step()
        self.assertEqual(self.prefetch.wanted, {})

    def test_a_request_that_has_begun_or_ended_is_dropped(self):
        first, second = self.new_request(), self.new_request()
        self.step()
        self.assertEqual(set(self.prefetch.wanted), {"r1", "r2"})
        self.schedule(first, self.match(first))
        self.side.finished(second)
        self.assertEqual(self.prefetch.wanted, {})

    def test_what_vllm_has_itself_is_left_out(self):
        self.local = {hash_of(0), hash_of(1), hash_of(3)}
        self.new_request()
        self.step()
        self.assertEqual(self.prefetch.wanted["r1"], [key_of(hash_of(i), 0) for i in (2, 3, 4)])

    def test_a_request_that_reads_no_cache_is_not_prefetched(self):
        self.new_request(skips=True)
        self.step()
        self.assertEqual(self.prefetch.wanted, {})

    def test_a_request_that_waits_for_its_turn_loads_at_once_what_came_to_memory(self):
        self.side.prices.computed(1000, 1000 * 100.0 / TOKENS)
        self.side.prices.loaded_from_disk(1000, 1000 * 1.0 / TOKENS)
        for _ in range(LOADS):
            one = self.new_request()
            self.schedule(one, self.match(one))
        waiting = self.new_request()
        self.assertIsNone(self.side.matched_tokens(waiting, 0))
        self.step()
        self.assertIsNone(self.side.matched_tokens(waiting, 0))
        keys = self.prefetch.wanted[waiting.request_id]
        self.prefetch.arrived.append((waiting.request_id, keys[:3]))
        self.assertIsNone(self.side.matched_tokens(waiting, 0), "two blocks are on disk yet")
        self.prefetch.arrived.append((waiting.request_id, keys[3:]))
        self.assertEqual(self.match(waiting), TOKENS)
        self.schedule(waiting, TOKENS)
        self.assertEqual(self.step().loads[waiting.request_id][0].disk_tokens, 0)

    def test_what_came_for_a_request_that_has_ended_is_no_hit_that_is_kept(self):
        one = self.new_request()
        self.step()
        self.side.finished(one)
        self.prefetch.arrived.append(("r1", [key_of(hash_of(0), 0)]))
        other = self.new_request(cached=0)
        self.assertEqual(self.match(other), 0)
        self.assertFalse(self.lookups.is_hit(key_of(hash_of(0), 0)))


class PrefetchedGroupsTest(PrefetchingCase):
    groups = [
        CacheGroup(0, BLOCK_TOKENS),
        CacheGroup(1, BLOCK_TOKENS, rule=HitRule.TRAILING, window_tokens=20),
    ]

    def test_groups_without_full_attention_are_left_out(self):
        self.new_request()
        self.step()
        self.assertEqual(self.prefetch.wanted["r1"], [key_of(hash_of(i), 0) for i in range(5)])


if __name__ == "__main__":
    unittest.main()
