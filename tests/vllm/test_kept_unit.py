# SPDX-License-Identifier: Apache-2.0
"""The entries that the connector writes into the tables of kept memory and takes from them, without
vLLM."""

import random
import types
import unittest

import numpy as np

from fake_kept_memory import FakeBlockPool, FakeKeptMemory
from kvtier import HitRule, KvtierError, Status
from kvtier._link import LinkState
from kvtier.vllm.cache_groups import CacheGroup
from kvtier.vllm.connector_scheduler import SchedulerSide, StepPlan
from kvtier.vllm.kept_cache import (
    KeptCacheScheduler,
    KeptCacheWorker,
    KeptChanges,
    KeptTable,
    Publication,
    why_not_kept,
)
from kvtier.vllm.lookups import Lookups
from kvtier.vllm.rows import key_of

BLOCK_TOKENS = 16
BLOCKS = 24
ROOT = b"r" * 32
FULL = CacheGroup(0, BLOCK_TOKENS)
# Not the second place in the list of groups: vLLM has groups that are not cached.
WINDOW = CacheGroup(2, BLOCK_TOKENS, rule=HitRule.TRAILING, window_tokens=20)
STATE = CacheGroup(3, BLOCK_TOKENS, rule=HitRule.STATE)


def hash_of(number):
    return number.to_bytes(32, "little")


def table_of(*entries, root=ROOT):
    """A table of entries (block, group, number of the hash)."""
    blocks, groups, hashes = zip(*entries) if entries else ((), (), ())
    return KeptTable(
        root,
        np.array(blocks, dtype=np.uint32),
        np.array(groups, dtype=np.uint32),
        [hash_of(one) for one in hashes],
    )


class KeptCase(unittest.TestCase):
    groups = [FULL, WINDOW, STATE]

    def setUp(self):
        self.pool = FakeBlockPool(BLOCKS)
        self.kept = KeptCacheScheduler(self.groups)
        self.kept.bind(self.pool)

    def restore(self, *tables, root=ROOT):
        return self.kept.restore(tables, root)

    def cached(self, number, group=FULL):
        """The block that vLLM finds by a hash, or None."""
        key = key_of(hash_of(number), group.number)
        block = self.pool.cached_block_hash_to_block.get(key)
        return None if block is None else block.block_id

    def new_block(self, number, group=FULL):
        """As vLLM has it when it is about to be computed."""
        (block,) = self.pool.get_new_blocks(1)
        self.pool.cache(block, key_of(hash_of(number), group.number))
        return block


class RestoreTest(KeptCase):
    def test_vllm_finds_what_the_table_says(self):
        self.assertEqual(self.restore(table_of((5, 0, 50), (6, 1, 60))), 2)
        self.assertEqual(self.cached(50), 5)
        self.assertEqual(self.cached(60, WINDOW), 6)
        self.assertEqual(self.kept.take_changes(), KeptChanges())

    def test_blocks_that_hold_nothing_are_used_first_and_of_the_others_the_oldest(self):
        self.restore(table_of((9, 0, 1), (3, 0, 2), (5, 0, 3)))
        free = [block.block_id for block in self.pool.free]
        self.assertEqual(free[-3:], [9, 3, 5])
        self.assertEqual(len(free), BLOCKS - 1)

    def test_only_what_all_ranks_agree_on_is_taken_over(self):
        ours = table_of((5, 0, 50), (6, 0, 60), (7, 0, 70))
        theirs = table_of((5, 0, 50), (6, 0, 61), (8, 0, 80))
        self.assertEqual(self.restore(ours, theirs), 1)
        self.assertEqual(self.cached(50), 5)
        self.assertEqual([self.cached(one) for one in (60, 61, 70, 80)], [None] * 4)
        changes = self.kept.take_changes()
        self.assertEqual(sorted(changes.written), [6, 7, 8])
        self.assertFalse(changes.clear)

    def test_hashes_from_another_root_are_forgotten(self):
        others = [[table_of((5, 0, 50), root=root)] for root in (b"x" * 32, None)]
        for tables in [*others, []]:
            self.assertEqual(self.restore(*tables), 0)
            self.assertTrue(self.kept.take_changes().clear)
        self.assertEqual(self.restore(table_of((5, 0, 50)), root=None), 0)
        self.assertIsNone(self.cached(50))

    def test_a_first_engine_has_nothing_to_forget(self):
        self.assertEqual(self.restore(table_of(root=None), table_of(root=None)), 0)
        self.assertFalse(self.kept.has_changes())

    def test_what_cannot_be_in_a_table_is_retracted(self):
        wrong = [(0, 0, 1), (BLOCKS, 0, 2), (7, 3, 3), (8, 2, 4)]
        self.assertEqual(self.restore(table_of(*wrong, (5, 0, 50))), 1)
        self.assertEqual(set(self.kept.take_changes().written), {0, BLOCKS, 7, 8})

    def test_two_blocks_of_one_hash_are_both_kept(self):
        self.assertEqual(self.restore(table_of((5, 0, 50), (6, 0, 50))), 2)
        self.assertIn(self.cached(50), (5, 6))

    def test_an_engine_whose_caching_was_turned_off_keeps_nothing(self):
        lookups = Lookups(lambda keys: None, lambda: LinkState.DOWN, lambda *_: None, 1.0)
        side = SchedulerSide(lookups, self.groups, kept=self.kept)
        side.bind(types.SimpleNamespace(enable_caching=False, block_pool=self.pool))
        plan = side.plan_step(types.SimpleNamespace(num_scheduled_tokens={}))
        self.assertTrue(plan.kept.clear)

    def test_before_it_is_known_what_is_left_nothing_is_changed(self):
        self.assertEqual(self.kept.take_changes(), KeptChanges())


class ChangesTest(KeptCase):
    groups = [FULL, STATE]

    def test_what_vllm_hands_out_anew_is_retracted(self):
        self.restore(table_of(*[(number, 0, number) for number in range(1, BLOCKS)]))
        blocks = self.pool.get_new_blocks(3)
        self.assertEqual(self.kept.take_changes().written, [one.block_id for one in blocks])
        self.pool.free_blocks(blocks)
        self.pool.get_new_blocks(3)
        self.assertEqual(self.kept.take_changes(), KeptChanges())

    def test_a_hit_is_not_retracted(self):
        self.restore(table_of((5, 0, 50)))
        block = self.pool.blocks[5]
        for _ in range(3):
            self.pool.touch([block])
            self.pool.free_blocks([block])
        self.assertEqual(self.kept.take_changes(), KeptChanges())
        self.pool.get_new_blocks(BLOCKS - 1)
        self.assertEqual(self.kept.take_changes().written, [5])

    def test_computed_blocks_are_published_where_vllm_caches_them(self):
        cached, other = self.new_block(1), self.pool.get_new_blocks(1)[0]
        state = self.new_block(2, STATE)
        self.kept.computed(0, [cached, other], [hash_of(1), hash_of(9)])
        self.kept.computed(1, [state], [hash_of(2)])
        (published,) = self.kept.take_changes().computed
        self.assertEqual(published, Publication(0, [cached.block_id], [hash_of(1)]))
        self.assertEqual(cached.ref_cnt, 1)

    def test_a_published_block_is_retracted_when_it_is_used_anew(self):
        block = self.new_block(1)
        self.kept.computed(0, [block], [hash_of(1)])
        self.kept.take_changes()
        self.pool.free_blocks([block])
        self.assertEqual(self.kept.take_changes(), KeptChanges())
        self.pool.get_new_blocks(BLOCKS - 1)
        self.assertEqual(self.kept.take_changes().written, [block.block_id])

    def test_loaded_blocks_are_published_when_all_workers_have_them(self):
        blocks = self.pool.get_new_blocks(2)
        self.kept.loading("r", 0, blocks, [hash_of(1), hash_of(2)])
        self.assertFalse(self.kept.has_changes())
        self.kept.loaded(["r", "others"])
        (published,) = self.kept.take_changes().loaded
        self.assertEqual(published.hashes, [hash_of(1), hash_of(2)])
        self.kept.loaded(["r"])
        self.assertFalse(self.kept.has_changes())

    def test_a_load_that_failed_somewhere_is_not_published(self):
        blocks = self.pool.get_new_blocks(3)
        self.kept.loading("failed", 0, blocks[:2], [hash_of(1), hash_of(2)])
        self.kept.loading("well", 0, blocks[2:], [hash_of(3)])
        self.kept.failed({key_of(hash_of(2), 0)})
        self.kept.loaded(["failed", "well"])
        (published,) = self.kept.take_changes().loaded
        self.assertEqual(published.hashes, [hash_of(3)])

    def test_a_loaded_block_whose_request_has_ended_since_is_not_published_but_retracted(self):
        blocks = self.pool.get_new_blocks(2)
        self.kept.loading("r", 0, blocks, [hash_of(1), hash_of(2)])
        self.kept.loaded(["r"])
        self.pool.free_blocks(blocks[:1])
        self.pool.get_new_blocks(1)
        changes = self.kept.take_changes()
        self.assertEqual(changes.written, [blocks[0].block_id])
        self.assertEqual(changes.loaded, [Publication(0, [blocks[1].block_id], [hash_of(2)])])

    def test_what_vllm_forgets_is_not_kept(self):
        self.restore(table_of((5, 0, 50), (6, 0, 60)))
        self.pool.reset_prefix_cache()
        self.assertEqual(sorted(self.kept.take_changes().written), [5, 6])

    def test_a_reset_of_the_connector_clears_the_tables(self):
        block = self.new_block(1)
        self.kept.computed(0, [block], [hash_of(1)])
        self.kept.reset()
        self.assertEqual(self.kept.take_changes(), KeptChanges(clear=True))


class WorkerTest(unittest.TestCase):
    def setUp(self):
        self.memory = FakeKeptMemory(BLOCKS)
        self.worker = KeptCacheWorker(self.memory)

    def test_loaded_blocks_are_published_at_once_and_computed_ones_when_told(self):
        changes = KeptChanges(
            loaded=[Publication(0, [3], [hash_of(3)])], computed=[Publication(1, [4], [hash_of(4)])]
        )
        self.worker.apply(changes, ROOT)
        self.assertEqual(self.memory.table, {3: (0, hash_of(3))})
        self.worker.publish(changes.computed)
        self.assertEqual(self.memory.table[4], (1, hash_of(4)))

    def test_of_a_prefix_the_end_is_let_go_of_first(self):
        hashes = [hash_of(number) for number in range(3)]
        self.worker.apply(KeptChanges(loaded=[Publication(0, [7, 5, 9], hashes)]), ROOT)
        self.assertEqual(self.memory.entries().blocks.tolist(), [9, 5, 7])

    def test_what_a_step_may_write_is_retracted(self):
        both = Publication(0, [3, 4], [hash_of(3), hash_of(4)])
        self.worker.apply(KeptChanges(loaded=[both]), ROOT)
        self.worker.apply(KeptChanges(written=[3, 9]), ROOT)
        self.assertEqual(list(self.memory.table), [4])

    def test_nothing_is_published_before_the_root_is_known(self):
        self.worker.apply(KeptChanges(loaded=[Publication(0, [3], [hash_of(3)])]), None)
        self.assertEqual(self.memory.table, {})

    def test_another_root_clears_the_table(self):
        self.memory.root, self.memory.table[3] = b"x" * 32, (0, hash_of(3))
        self.worker.apply(KeptChanges(), ROOT)
        self.assertEqual((self.memory.table, self.memory.root), ({}, ROOT))

    def test_a_scheduler_that_keeps_nothing_costs_one_clearing(self):
        self.memory.root, self.memory.table[3] = ROOT, (0, hash_of(3))
        for _ in range(3):
            self.worker.apply(StepPlan().kept, ROOT)
        self.assertEqual(self.memory.calls, ["clear"])
        self.assertEqual(self.memory.table, {})

    def test_a_daemon_that_refuses_costs_a_warning(self):
        def refuse(connection):
            raise KvtierError(Status.WRONG_STATE, "memory_in_use")

        self.memory.keep = refuse
        with self.assertLogs("vllm.kvtier", "WARNING") as log:
            self.worker.keep(None)
            self.worker.keep(None)
        self.assertEqual(len(log.records), 1)


class WhyNotKeptTest(unittest.TestCase):
    def why(self, zeroing=False, **changes):
        engine = {"caching": True, "lookahead": 0, "hisparse": None, "second_runner": True}
        engine.update(changes)
        return why_not_kept(
            types.SimpleNamespace(
                cache_config=types.SimpleNamespace(enable_prefix_caching=engine["caching"]),
                num_prefill_lookahead_tokens=engine["lookahead"],
                attention_config=types.SimpleNamespace(hisparse_config=engine["hisparse"]),
                use_v2_model_runner=engine["second_runner"],
            ),
            types.SimpleNamespace(needs_kv_cache_zeroing=zeroing),
        )

    def test_engines_of_which_it_is_not_known_when_they_write_a_block_are_not_kept(self):
        self.assertIsNone(self.why())
        self.assertIsNone(self.why(zeroing=True, second_runner=False))
        self.assertIn("clears new blocks", self.why(zeroing=True))
        self.assertIn("prefix caching", self.why(caching=False))
        self.assertIn("drafts", self.why(lookahead=2))
        self.assertIn("HiSparse", self.why(hisparse=object()))


class SimulatedRequest:
    """As vLLM's Request. is_loading: its last blocks are being loaded."""

    def __init__(self, name, hashes):
        self.request_id = name
        self.block_hashes = hashes
        self.num_tokens = len(hashes) * BLOCK_TOKENS + 1
        self.num_computed_tokens = 0
        self.blocks = []
        self.is_loading = False
        self.skip_reading_prefix_cache = False


class SimulatedRank:
    """A worker: its kernels and loads write `contents`, by block the hash of its content, or None
    while something writes it. Both outlive it."""

    def __init__(self, memory, contents):
        self.memory, self.contents = memory, contents
        self.worker = KeptCacheWorker(memory)
        self.launched, self.after_kernels = [], []

    def table(self):
        found = self.memory.entries()
        return KeptTable(self.memory.root, found.blocks, found.groups, found.hashes)

    def run(self, plan, writes):
        """Up to the launch of the step's kernels."""
        self.worker.apply(plan.kept, ROOT)
        self.check()
        if plan.stores:
            self.after_kernels.append((len(self.launched), plan))
        self.launched.append(writes)
        loads = [block for lists in plan.loads.values() for one in lists for block in one.blocks]
        for block in [*loads, *(block for block, _ in writes)]:
            self.contents[block] = None
        self.check()

    def kernels_end(self, left):
        """All but those of the last `left` steps. The numbers of the stores that begin then."""
        done = len(self.launched) - left
        for number in range(max(0, done)):
            self.contents.update(self.launched[number])
            self.launched[number] = []
        stored = []
        while self.after_kernels and self.after_kernels[0][0] <= done:
            _, plan = self.after_kernels.pop(0)
            self.worker.publish(plan.kept.computed)
            self.check()
            stored += [store.number for store in plan.stores]
        return stored

    def check(self):
        for block, (_, one) in self.memory.table.items():
            assert self.contents.get(block) == one, f"block {block} is not what the table says"


class SimulatedEngine:
    """A scheduler that plans ahead of two workers, whose kernels end at random steps later, and
    loads, some of which fail on one of them."""

    def __init__(self, memories, contents, generator):
        self.generator = generator
        self.pool = self.block_pool = FakeBlockPool(BLOCKS)
        self.enable_caching = True
        lookups = Lookups(lambda keys: None, lambda: LinkState.DOWN, lambda *_: None, 1.0)
        self.kept = KeptCacheScheduler([FULL])
        self.scheduler = SchedulerSide(lookups, [FULL], workers=2, kept=self.kept)
        self.scheduler.bind(self)
        self.ranks = [SimulatedRank(*both) for both in zip(memories, contents)]
        self.requests, self.loading = [], []
        self.restored = self.kept.restore([rank.table() for rank in self.ranks], ROOT)

    def get_blocks(self, name):
        (request,) = [one for one in self.requests if one.request_id == name]
        return types.SimpleNamespace(blocks=[request.blocks])

    def admit(self, name):
        """How many of the request's blocks vLLM's own cache had."""
        start = self.generator.randrange(6)
        hashes = [hash_of(100 * start + i) for i in range(self.generator.randrange(1, 6))]
        request = SimulatedRequest(name, hashes)
        for one in hashes:
            block = self.pool.cached_block_hash_to_block.get(key_of(one, 0))
            if block is None:
                break
            # The hash that vLLM has for a block must be the block's, now or in time.
            for rank in self.ranks:
                assert rank.contents.get(block.block_id) == one or block.ref_cnt > 0
            self.pool.touch([block])
            request.blocks.append(block)
        hits = len(request.blocks)
        request.num_computed_tokens = hits * BLOCK_TOKENS
        self.scheduler.matched_tokens(request, hits * BLOCK_TOKENS)
        self.requests.append(request)
        wanted = self.generator.randrange(len(hashes) - hits + 1)
        if wanted and wanted <= len(self.pool.free) and self.generator.random() < 0.6:
            request.blocks += self.pool.get_new_blocks(wanted)
            request.is_loading = True
            self.scheduler.allocated(request, [request.blocks], wanted * BLOCK_TOKENS)
        return hits

    def plan(self):
        """Requests compute some blocks each; one that finds no free block is preempted."""
        steps = []
        for request in [one for one in self.requests if not one.is_loading]:
            first = request.num_computed_tokens // BLOCK_TOKENS
            count = min(len(request.block_hashes) - first, self.generator.randrange(1, 3))
            missing = max(0, first + count - len(request.blocks))
            if count == 0 or missing > len(self.pool.free) or self.generator.random() < 0.1:
                self.end(request)
                continue
            request.blocks += self.pool.get_new_blocks(missing)
            self.cache(request, first, first + count)
            steps.append((request, first, first + count))
        tokens = {one.request_id: (end - first) * BLOCK_TOKENS for one, first, end in steps}
        plan = self.scheduler.plan_step(types.SimpleNamespace(num_scheduled_tokens=tokens))
        self.loading += [one for one in self.requests if one.request_id in plan.loads]
        writes = []
        for request, first, end in steps:
            request.num_computed_tokens = end * BLOCK_TOKENS
            for block, one in zip(request.blocks[first:end], request.block_hashes[first:end]):
                writes.append((block.block_id, one))
        return plan, writes

    def cache(self, request, first, end):
        for block, one in zip(request.blocks[first:end], request.block_hashes[first:end]):
            self.pool.cache(block, key_of(one, 0))

    def end(self, request):
        self.scheduler.finished(request)
        self.requests.remove(request)
        self.pool.free_blocks(reversed(request.blocks))

    def step(self):
        plan, writes = self.plan()
        for rank in self.ranks:
            rank.run(plan, writes)
        for rank in self.ranks:
            for number in rank.kernels_end(self.generator.randrange(3)):
                self.scheduler.stored({number: 1})
        for request in list(self.loading):
            if self.generator.random() < 0.5:
                self.loading.remove(request)
                self.load_ends(request)

    def load_ends(self, request):
        """vLLM computes all blocks after one that failed, in place."""
        first, end = request.num_computed_tokens // BLOCK_TOKENS, len(request.blocks)
        failed = self.generator.randrange(first, end) if self.generator.random() < 0.3 else end
        unlucky = self.generator.choice(self.ranks)
        for rank in self.ranks:
            for position in range(first, end):
                if rank is not unlucky or position != failed:
                    block = request.blocks[position].block_id
                    rank.contents[block] = request.block_hashes[position]
        if failed < end:
            self.scheduler.failed({key_of(request.block_hashes[failed], 0)})
        self.kept.loaded([request.request_id])
        self.cache(request, first, failed)
        request.num_computed_tokens = failed * BLOCK_TOKENS
        request.is_loading = False


class KilledAtAnyMomentTest(unittest.TestCase):
    def test_no_table_ever_says_what_is_not_true(self):
        restored = hits = 0
        for seed in range(60):
            generator = random.Random(seed)
            memories = [FakeKeptMemory(BLOCKS), FakeKeptMemory(BLOCKS)]
            contents = [{}, {}]
            for _ in range(6):
                engine = SimulatedEngine(memories, contents, generator)
                restored += engine.restored
                for step in range(generator.randrange(1, 25)):
                    if len(engine.requests) < 4:
                        hits += engine.admit(f"{seed}.{step}")
                    engine.step()
                # Killed: a block that is still being written has neither its old nor its new bytes.
        self.assertGreater(restored, 1000)
        self.assertGreater(hits, 1000)


if __name__ == "__main__":
    unittest.main()
