# SPDX-License-Identifier: Apache-2.0
"""The vLLM connector's decisions in the scheduler, without vLLM."""

import math
import random
import types
import unittest

from kvtier import HitRule, Presence
from kvtier._link import LinkState
from kvtier.vllm.cache_groups import CacheGroup, longest_prefix, prefix_unit
from kvtier.vllm.connector_scheduler import SchedulerSide
from kvtier.vllm.hit_prices import BELIEVED_S, MIN_STEP_TOKENS, TRIAL_TOKENS, HitPrices
from kvtier.vllm.lookups import Lookups
from kvtier.vllm.prefix_planner import STEP_WAIT_S
from kvtier.vllm.rows import key_of
from link_case import PATIENCE_S

BLOCK_TOKENS = 16
ONE_GROUP = [CacheGroup(0, BLOCK_TOKENS)]
# Blocks of twice the tokens have every other hash of a request.
FULL, WINDOW, STATE = (
    CacheGroup(0, BLOCK_TOKENS),
    CacheGroup(1, BLOCK_TOKENS, rule=HitRule.TRAILING, window_tokens=20),
    CacheGroup(2, 2 * BLOCK_TOKENS, hashes_per_block=2, rule=HitRule.STATE),
)


def hash_of(number):
    return number.to_bytes(32, "little")


class FakeBlock:
    """vLLM's KVCacheBlock, as far as the connector reads it."""

    def __init__(self, number):
        self.block_id = number
        self.is_null = number == 0
        self.block_hash = None
        self.references = 0


class FakeManager:
    """vLLM's KVCacheManager and its BlockPool: tables of blocks by request, and references."""

    num_gpu_blocks = 100_000
    cached_block_hash_to_block: dict = {}

    def __init__(self):
        self.tables = {}
        self.blocks = {}
        self.block_pool = self

    def table(self, name, *numbers_by_group):
        self.tables[name] = [
            [self.blocks.setdefault(one, FakeBlock(one)) for one in numbers]
            for numbers in numbers_by_group
        ]
        return self.tables[name]

    def get_num_free_blocks(self):
        return max(0, self.num_gpu_blocks - len(self.pinned()))

    def get_cached_block(self, block_hash, groups):
        return None

    def get_blocks(self, name):
        return types.SimpleNamespace(blocks=self.tables[name])

    def touch(self, blocks):
        for block in blocks:
            block.references += 1

    def free_blocks(self, blocks):
        for block in blocks:
            assert block.references > 0
            block.references -= 1

    def pinned(self):
        return {number for number, block in self.blocks.items() if block.references > 0}


def request(tokens, name="r", first=0, computed=0, skips=False):
    """A request whose full blocks have the hashes `first`, `first` + 1, ... skips: it must not read
    caches."""
    return types.SimpleNamespace(
        skip_reading_prefix_cache=skips,
        request_id=name,
        num_tokens=tokens,
        num_computed_tokens=computed,
        block_hashes=[hash_of(first + i) for i in range(tokens // BLOCK_TOKENS)],
    )


class SchedulerCase(unittest.TestCase):
    groups = ONE_GROUP
    workers = 1

    def setUp(self):
        self.cached = set()  # the keys that the daemon has
        self.presence = Presence.HOST
        self.asked = []
        self.now = 0.0
        self.manager = FakeManager()
        self.answers_at_once = False
        self.answer_s = 0.0  # what an answer takes
        self.lookups = Lookups(
            self.ask,
            lambda: LinkState.READY,
            lambda outcome, count: None,
            timeout_s=PATIENCE_S,
            yield_interpreter=self.answer,
        )
        self.side = SchedulerSide(self.lookups, self.groups, self.workers, clock=lambda: self.now)
        self.side.bind(self.manager)

    def ask(self, keys):
        self.asked.append(keys)
        if self.answers_at_once:
            self.now += self.answer_s
            self.answer()

    def answer(self):
        for keys in self.asked:
            presence = [self.presence if one in self.cached else 0 for one in keys]
            self.lookups.receive((keys, presence))
        self.asked.clear()

    def have(self, *numbers, group=0):
        """The daemon has the blocks with these hashes."""
        self.cached |= {key_of(hash_of(number), group) for number in numbers}

    def step(self, one=None, tokens=0):
        """Plans a step that computes so many tokens of the request, and lets it be computed."""
        scheduled = {} if one is None else {one.request_id: tokens}
        plan = self.side.plan_step(types.SimpleNamespace(num_scheduled_tokens=scheduled))
        if one is not None:
            one.num_computed_tokens += tokens
        return plan

    def match(self, one, local_tokens=0):
        """The tokens found, after as many steps as that takes."""
        found = self.side.matched_tokens(one, local_tokens)
        while found is None:
            self.step()
            found = self.side.matched_tokens(one, local_tokens)
        return found


class SchedulerSideTest(SchedulerCase):
    def test_it_asks_again_until_the_daemon_has_answered(self):
        self.assertIsNone(self.side.matched_tokens(request(64), 0))
        self.step()
        self.assertEqual(self.side.matched_tokens(request(64), 0), 0)

    def test_a_request_that_is_alone_waits_for_a_quick_answer(self):
        self.answers_at_once = True
        self.have(0, 1, 2)
        self.assertEqual(self.side.matched_tokens(request(48 + 5), 0), 48)

    def test_requests_beside_others_wait_for_a_moment_of_each_step(self):
        """Together, for all of them would be computed later."""
        self.side.matched_tokens(request(16 + 5, name="other", first=100), 0)
        self.answers_at_once = True
        self.answer_s = STEP_WAIT_S
        self.have(0, 1, 2)
        self.assertEqual(self.side.matched_tokens(request(48 + 5), 0), 48)
        third = request(16 + 5, name="third", first=200)
        self.assertIsNone(self.side.matched_tokens(third, 0))
        self.step()
        self.assertEqual(self.side.matched_tokens(third, 0), 0)

    def come(self, *requests):
        """vLLM gets these between two steps."""
        for one in requests:
            self.side.came(one)
        return requests

    def test_requests_that_came_together_are_answered_together(self):
        """One question takes all of the time that a step has for answers."""
        self.answers_at_once = True
        self.answer_s = STEP_WAIT_S
        self.have(*range(0, 3), *range(100, 102))
        names = enumerate(("first", "second", "third"))
        requests = self.come(*(request(48 + 5, name, first=100 * i) for i, name in names))
        self.assertEqual([self.side.matched_tokens(one, 0) for one in requests], [48, 32, 0])
        self.assertEqual(self.now, STEP_WAIT_S)

    def test_a_request_that_the_step_had_no_room_for_asks_anew(self):
        self.answers_at_once = True
        first, second = self.come(request(48 + 5), request(48 + 5, "second", first=100))
        self.side.matched_tokens(first, 0)
        self.step()
        self.have(100, 101)
        self.assertEqual(self.match(second), 32)

    def test_requests_that_a_step_had_no_room_for_are_answered_together_in_the_next(self):
        """One after the other would leave most of them to the step after that."""
        self.answers_at_once = True
        self.answer_s = STEP_WAIT_S
        requests = self.come(*(request(48 + 5, f"{i}", first=100 * i) for i in range(6)))
        for one in requests[:3]:
            self.side.matched_tokens(one, 0)
        self.step()
        self.have(*(100 * i for i in range(6)))
        self.assertEqual([self.side.matched_tokens(one, 0) for one in requests[3:]], [16] * 3)

    def test_of_a_long_queue_as_many_are_asked_about_as_a_step_looks_at(self):
        requests = self.come(*(request(48 + 5, f"{i}", first=100 * i) for i in range(9)))
        for one in requests[:2]:
            self.side.matched_tokens(one, 0)
        self.step()
        self.asked.clear()
        self.side.matched_tokens(requests[2], 0)
        self.assertEqual([len(keys) for keys in self.asked], [3 * 3])  # its own, and those of two

    def test_a_request_that_has_ended_is_not_asked_about(self):
        first, second = self.come(request(48 + 5), request(48 + 5, "second", first=100))
        self.side.finished(second)
        self.side.matched_tokens(first, 0)
        self.assertEqual([len(keys) for keys in self.asked], [3])

    def test_a_daemon_that_does_not_answer_is_waited_for_once(self):
        one = request(48 + 5)
        self.assertIsNone(self.side.matched_tokens(one, 0))
        self.assertEqual(len(self.asked), 1)
        self.lookups.wait = self.fail
        self.assertIsNone(self.side.matched_tokens(one, 0))

    def test_the_prefix_that_the_daemon_has_is_matched_after_the_engine_s_own(self):
        self.have(0, 1, 2, 4)
        self.assertEqual(self.match(request(100)), 48)
        self.assertEqual(self.match(request(100, "other"), local_tokens=32), 16)

    def test_one_token_at_least_is_left_to_compute(self):
        self.have(*range(4))
        self.assertEqual(self.match(request(64)), 48)
        self.assertEqual(self.match(request(65, "longer")), 64)

    def test_of_a_request_that_must_not_read_caches_the_daemon_is_not_asked(self):
        self.have(0, 1, 2)
        self.assertEqual(self.side.matched_tokens(request(64, skips=True), 0), 0)
        self.assertEqual(self.asked, [])

    def test_of_a_prompt_that_another_engine_has_prefilled_the_daemon_is_asked_only_after_that(self):
        self.have(0, 1, 2)
        one = request(64)
        one.kv_transfer_params = {"do_remote_prefill": True, "remote_block_ids": [[7, 8, 9, 10]]}
        self.assertEqual(self.side.matched_tokens(one, 0), 0)
        self.assertEqual(self.asked, [])
        # The connector that brings it has taken it on, and failed.
        one.kv_transfer_params["do_remote_prefill"] = False
        self.assertEqual(self.match(one), 48)

    def test_what_was_matched_is_loaded_into_the_blocks_that_the_engine_chose(self):
        self.have(*range(4))
        one = request(100)
        found = self.match(one, local_tokens=16)
        blocks = self.manager.table("r", [50, 51, 52, 53, 54, 55, 56])
        self.side.allocated(one, blocks, found)
        (load,) = self.step().loads["r"]
        self.assertEqual(load.blocks, [51, 52, 53])
        self.assertEqual(load.hashes, [hash_of(i) for i in (1, 2, 3)])
        self.assertEqual(self.step().loads, {})

    def test_blocks_on_a_disk_that_is_slower_than_computing_are_computed(self):
        self.presence = Presence.DISK
        self.have(*range(5))
        self.side.prices.computed(1000, 1.0)
        self.side.prices.loaded_from_disk(1000, 2.0)
        self.assertEqual(self.match(request(100)), 0)
        self.side.prices.computed(1000, 1000.0)
        one = request(100, name="other")
        self.assertEqual(self.match(one), 5 * BLOCK_TOKENS)
        self.side.allocated(one, self.manager.table("other", list(range(1, 8))), 5 * BLOCK_TOKENS)
        (load,) = self.step().loads["other"]
        self.assertEqual(load.disk_tokens, 5 * BLOCK_TOKENS)

    def test_what_could_not_be_loaded_is_not_matched_again(self):
        """Or the request would wait for it again and again."""
        self.have(*range(4))
        one = request(100)
        self.side.allocated(one, self.manager.table("r", [50, 51, 52, 53]), self.match(one))
        self.side.failed([key_of(hash_of(2), 0), key_of(hash_of(99), 0)])
        self.assertEqual(self.side.matched_tokens(one, 0), 32)

    def test_full_blocks_are_stored_one_step_after_they_were_computed(self):
        one = request(100)
        self.match(one)
        self.manager.table("r", [7, 8, 9, 10, 11, 12, 13])
        self.assertEqual(self.step(one, 40).stores, [])
        (store,) = self.step(one, 60).stores
        self.assertEqual((store.blocks, store.depths), ([7, 8], [0, 1]))
        self.assertEqual(store.parents, [None, hash_of(0)])
        (store,) = self.step().stores
        self.assertEqual((store.blocks, store.parents[0]), ([9, 10, 11, 12], hash_of(1)))

    def test_a_burst_of_prompts_is_stored_over_several_short_steps(self):
        """Each stores 256 blocks, and what makes them more; requests that end, and a long step, all."""
        burst = [request(1600, name=f"r{i}", first=1000 * i) for i in range(8)]
        for number, one in enumerate(burst):
            self.match(one)
            self.manager.table(one.request_id, list(range(100 * number + 1, 100 * number + 101)))
        tokens = {one.request_id: 1600 for one in burst}
        self.side.plan_step(types.SimpleNamespace(num_scheduled_tokens=tokens))
        for one in burst:
            one.num_computed_tokens = 1600
        self.assertEqual(self.step().stored_blocks(), 300)
        self.side.finished(burst[6])
        self.assertEqual(self.step().stored_blocks(), 300)
        self.assertTrue(self.manager.pinned())
        long = types.SimpleNamespace(num_scheduled_tokens={"another": 1024})
        self.assertEqual(self.side.plan_step(long).stored_blocks(), 200)

    def test_what_came_from_a_cache_is_not_stored_again(self):
        one = request(100, computed=48)
        self.match(one)
        self.manager.table("r", [7, 8, 9, 10, 11, 12, 13])
        self.step(one, 52)
        (store,) = self.step().stores
        self.assertEqual(store.blocks, [10, 11, 12])

    def test_a_block_is_pinned_from_its_step_until_its_store_has_ended(self):
        one = request(40)
        self.match(one)
        self.manager.table("r", [7, 8, 9])
        self.step(one, 40)
        self.assertEqual(self.manager.pinned(), {7, 8})
        (store,) = self.step().stores
        self.assertTrue(self.side.has_work())
        self.side.finished(one)
        self.assertEqual(self.manager.pinned(), {7, 8})
        self.side.stored({store.number: 1})
        self.assertEqual(self.manager.pinned(), set())
        self.assertFalse(self.side.has_work())

    def test_the_last_blocks_of_a_finished_request_are_stored(self):
        one = request(40)
        self.match(one)
        self.manager.table("r", [7, 8, 9])
        self.step(one, 40)
        self.side.finished(one)
        self.assertTrue(self.side.has_work())
        (store,) = self.step().stores
        self.assertEqual(store.blocks, [7, 8])

    def test_a_preempted_request_is_stored_from_its_new_blocks(self):
        one = request(100)
        self.match(one)
        self.manager.table("r", [7, 8])
        self.step(one, 32)
        one.num_computed_tokens = 0  # before the next step is planned
        self.assertEqual(self.step().stores, [])
        self.assertEqual(self.manager.pinned(), set())
        self.manager.table("r", [20, 21, 22, 23])
        self.step(one, 64)
        (store,) = self.step().stores
        self.assertEqual((store.blocks, store.depths), ([20, 21, 22, 23], [0, 1, 2, 3]))

    def test_a_block_whose_last_tokens_were_drafts_is_stored_when_it_was_computed(self):
        one = request(40)
        self.match(one)
        self.manager.table("r", [7, 8, 9])
        self.step(one, 17)
        one.num_computed_tokens = 15  # two drafts were rejected
        self.assertEqual(self.step(one, 1).stores, [])
        (store,) = self.step().stores
        self.assertEqual(store.blocks, [7])

    def test_a_block_waits_for_the_hash_of_its_last_token(self):
        one = request(31)
        self.match(one)
        self.manager.table("r", [7, 8, 9])
        self.step(one, 32)
        self.assertEqual(self.step().stores[0].blocks, [7])
        self.assertEqual(self.manager.pinned(), {7, 8})
        one.block_hashes.append(hash_of(1))
        self.assertEqual(self.step().stores[0].blocks, [8])

    def test_a_request_that_nobody_asked_about_is_left_alone(self):
        one = request(40, "unknown")
        self.assertEqual(self.step(one, 40).stores, [])
        self.side.finished(one)
        self.assertFalse(self.side.has_work())


class SeveralGroupsTest(SchedulerCase):
    """Full attention, a window of 20 tokens before the next one, and states every 32 tokens."""

    groups = [FULL, WINDOW, STATE]
    workers = 2

    def test_all_groups_must_have_what_the_prefix_needs(self):
        self.have(*range(6))
        self.have(2, 3, group=1)
        self.have(3, group=2)  # the state after 64 tokens has the hash of the second half
        self.assertEqual(self.match(request(100)), 64)
        self.assertEqual(self.match(request(100, "longer local"), local_tokens=64), 0)

    def test_a_request_that_is_alone_waits_for_the_second_answer_too(self):
        """The longest prefix lacks a state, so that shorter ones are asked for."""
        self.answers_at_once = True
        self.have(*range(6))
        self.have(2, 3, group=1)
        self.have(3, group=2)
        self.assertEqual(self.side.matched_tokens(request(100), 0), 64)

    def test_only_what_the_prefix_needs_is_loaded(self):
        self.have(*range(6))
        self.have(2, 3, group=1)
        self.have(3, group=2)
        one = request(100)
        blocks = self.manager.table("r", [1, 2, 3, 4], [0, 0, 5, 6], [0, 7])
        self.side.allocated(one, blocks, self.match(one))
        full, window, state = self.step().loads["r"]
        self.assertEqual((full.blocks, window.blocks, state.blocks), ([1, 2, 3, 4], [5, 6], [7]))
        self.assertEqual(window.hashes, [hash_of(2), hash_of(3)])
        self.assertEqual(state.hashes, [hash_of(3)])

    def test_each_group_stores_its_own_blocks(self):
        """It takes only those states that vLLM itself holds for the state at the block's end, and
        never null blocks, of which a window and states leave many."""
        one = request(100)
        self.match(one)
        blocks = self.manager.table("r", [1, 2, 3, 4, 8], [0, 9, 5, 6, 8], [10, 7])
        blocks[2][1].block_hash = key_of(hash_of(3), STATE.number)
        self.step(one, 64)
        full, window, state = self.step().stores
        self.assertEqual((full.group, window.group, state.group), (0, 1, 2))
        self.assertEqual((full.blocks, window.blocks, state.blocks), ([1, 2, 3, 4], [9, 5, 6], [7]))
        self.assertEqual(window.depths, [1, 2, 3])
        self.assertEqual(window.parents, [hash_of(0), hash_of(1), hash_of(2)])
        self.assertEqual((state.hashes, state.parents), ([hash_of(3)], [hash_of(1)]))

    def test_blocks_are_pinned_until_every_worker_has_stored_them(self):
        one = request(16)
        self.match(one)
        self.manager.table("r", [1], [2], [3])
        self.step(one, 16)
        stores = self.step().stores
        self.side.stored({store.number: 1 for store in stores})
        self.assertEqual(self.manager.pinned(), {1, 2})
        self.side.stored({store.number: 1 for store in stores})
        self.assertEqual(self.manager.pinned(), set())


class LongestPrefixTest(unittest.TestCase):
    """Against trying every length, with blocks that are there or not by chance."""

    def test_it_is_what_trying_every_length_finds(self):
        generator = random.Random(13)
        for _ in range(3000):
            groups = self.draw_groups(generator)
            unit = prefix_unit(groups)
            first = generator.randrange(3) * unit
            limit = first + generator.randrange(8 * unit)
            density = generator.choice([0.5, 0.8, 0.95, 1.0])
            here = [
                [generator.random() < density for _ in range(limit // group.block_tokens)]
                for group in groups
            ]
            expected = max(
                tokens
                for tokens in range(first, max(limit, first) + 1, unit)
                if tokens == first or self.restorable(groups, here, first, tokens)
            )
            self.assertEqual(*self.search(groups, here, first, limit, expected))

    def draw_groups(self, generator):
        groups = []
        for number in range(generator.randrange(1, 5)):
            tokens = generator.choice([4, 8, 12])
            rule = generator.choice(list(HitRule))
            window = segment = 0
            if rule is HitRule.TRAILING:
                window = generator.randrange(0, 40)
                segment = generator.choice([0, 0, 24])
            groups.append(CacheGroup(number, tokens, 1, rule, window, segment))
        return groups

    def restorable(self, groups, here, first, tokens):
        for group, present in zip(groups, here):
            for position in range(first // group.block_tokens, tokens // group.block_tokens):
                end = (position + 1) * group.block_tokens
                needed = {
                    HitRule.ALL: True,
                    HitRule.STATE: end == tokens,
                    HitRule.TRAILING: end > tokens - group.window_tokens,
                }[group.rule]
                if group.segment_tokens:
                    needed = end > tokens // group.segment_tokens * group.segment_tokens
                if needed and not present[position]:
                    return False
        return True

    def search(self, groups, here, first, limit, expected):
        """Answers come one round late. Also counts the rounds."""
        known, asked = set(), set()

        def look_up(index, begin, end):
            waiting = False
            for position in range(begin, end):
                if (index, position) not in known:
                    asked.add((index, position))
                    waiting = True
                elif not here[index][position]:
                    return position - begin, waiting
            return end - begin, waiting

        for rounds in range(5):
            found = longest_prefix(groups, first, limit, look_up)
            if found is not None:
                self.assertLessEqual(rounds, 3)
                return found, expected
            known |= asked
        self.fail("it asks again and again")


class HitPricesTest(unittest.TestCase):
    def setUp(self):
        self.now = 0.0
        self.prices = HitPrices(clock=lambda: self.now)

    def blocks(self, on_disk):
        """on_disk: a letter for each block, d for those on disk."""
        return self.prices.worthwhile_blocks([one == "d" for one in on_disk], BLOCK_TOKENS)

    def measure(self, compute_s, disk_s):
        self.prices.computed(1000, 1000 * compute_s)
        self.prices.loaded_from_disk(1000, 1000 * disk_s)

    def test_everything_is_loaded_while_nothing_is_known(self):
        self.assertEqual(self.blocks("mdmd"), 4)

    def test_blocks_in_memory_are_loaded_and_those_on_a_slow_disk_are_computed(self):
        self.measure(compute_s=0.001, disk_s=0.002)
        self.assertEqual(self.blocks("mm"), 2)
        self.assertEqual(self.blocks("mmdd"), 2)
        self.assertEqual(self.blocks("dd"), 0)

    def test_a_few_blocks_on_disk_are_loaded_for_the_many_in_memory_behind_them(self):
        self.measure(compute_s=0.001, disk_s=0.002)
        self.assertEqual(self.blocks("dmm"), 3)
        self.assertEqual(self.blocks("dmmddd"), 3)

    def test_a_fast_disk_is_read(self):
        self.measure(compute_s=0.002, disk_s=0.001)
        self.assertEqual(self.blocks("dddd"), 4)

    def test_what_is_not_known_is_tried_with_a_little(self):
        self.prices.computed(1000, 1.0)
        few = TRIAL_TOKENS // BLOCK_TOKENS
        self.assertEqual(self.blocks("d" * 100), few)
        self.measure(compute_s=0.001, disk_s=0.002)
        self.assertEqual(self.blocks("d" * 100), 0)
        self.now = BELIEVED_S
        self.assertEqual(self.blocks("d" * 100), few)

    def test_a_disk_that_is_faster_than_computing_is_believed_until_a_load_says_otherwise(self):
        self.measure(compute_s=0.001, disk_s=0.0002)
        self.now = 10 * BELIEVED_S
        self.assertEqual(self.blocks("d" * 100), 100)
        self.prices.loaded_from_disk(100_000, 200.0)
        self.assertEqual(self.blocks("d" * 100), 0)

    def test_the_step_in_which_a_load_s_end_is_seen_does_not_make_a_fast_disk_seem_slow(self):
        """The step is most of a short load's time; a far slower disk is tried with a little only."""
        few = TRIAL_TOKENS // BLOCK_TOKENS
        for disk_s, step_s, loaded in ((9e-6, 0.013, 2000), (9e-6, 0.03, 2000), (4e-3, 0.013, few)):
            with self.subTest(disk_s=disk_s, step_s=step_s):
                self.setUp()
                self.prices.computed(10_000, 10_000 * 38e-6)
                for _ in range(8):
                    blocks = self.blocks("d" * 2000)
                    tokens = blocks * BLOCK_TOKENS
                    steps = math.ceil(tokens * disk_s / step_s)
                    self.prices.loaded_from_disk(tokens, steps * step_s)
                    self.now += BELIEVED_S
                self.assertEqual(blocks, loaded)

    def test_short_steps_tell_nothing(self):
        self.prices.computed(MIN_STEP_TOKENS - 1, 100.0)
        self.assertIsNone(self.prices.compute_s(1))

    def test_before_the_first_prompt_is_computed_no_more_than_a_trial_is_waited_for(self):
        self.prices.loaded_from_disk(1000, 1.0)
        self.assertEqual(self.blocks("d" * 100), TRIAL_TOKENS // BLOCK_TOKENS)

    def test_short_prompts_do_not_make_a_long_one_seem_dear(self):
        """Each step costs 90 ms, whatever its size: computing 32,000 tokens takes a third of a
        second, and a disk that needs 0.8 s for them is not waited for."""
        for tokens in (2000, 10_000, 32_000):
            self.prices.computed(tokens, 0.09 + tokens * 7.5e-6)
        self.prices.loaded_from_disk(32_000, 0.8)
        self.assertLess(self.prices.compute_s(32_000), 0.4)
        self.assertEqual(self.blocks("d" * 2000), 0)


if __name__ == "__main__":
    unittest.main()
