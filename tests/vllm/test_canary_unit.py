# SPDX-License-Identifier: Apache-2.0
"""Hits that the connector cuts short, without vLLM."""

import random
import types
import unittest

from kvtier import Presence
from kvtier._options import read_options
from kvtier.types import DType
from kvtier.vllm.cache_groups import prefix_unit
from kvtier.vllm.canary import LAST_BLOCKS, CanarySampler, are_told_by_hashes, number_type
from kvtier.vllm.connector_scheduler import SchedulerSide
from kvtier.vllm.options import CONNECTOR_OPTIONS
from test_connector_unit import BLOCK_TOKENS, FULL, WINDOW, SchedulerCase, request


class SamplerTest(unittest.TestCase):
    def test_the_default_costs_a_thousandth_of_the_computed_tokens_at_most(self):
        """Requests hit all but 32 tokens and generate 16: of these, hits cost the most."""
        chance = random.Random(1).random
        default = read_options("KvtierConnector", CONNECTOR_OPTIONS, {})["canary_per_million"]
        sampler = CanarySampler(default, chance)
        for _ in range(50_000):
            cut = sampler.draw() * BLOCK_TOKENS
            if cut:
                sampler.cut(cut)
            sampler.computed(32 + 16 + cut)
        self.assertGreater(sampler.hits, 20)
        share = sampler.cut_tokens / sampler.computed_tokens
        print(f"{sampler.hits} hits cut, {share:.5%} of computed tokens", end=" ")
        self.assertLessEqual(share, 0.001 + 1e-5)

    def test_a_million_in_a_million_is_every_hit(self):
        sampler = CanarySampler(1_000_000)
        sampler.computed(1)
        drawn = {sampler.draw() for _ in range(1000)}
        self.assertEqual(drawn, set(range(1, LAST_BLOCKS + 1)))

    def test_numbers_are_compared_only_where_all_are_of_one_type(self):
        def spec(**fields):
            return types.SimpleNamespace(**fields)

        self.assertEqual(number_type(spec(dtype="torch.bfloat16"), "auto"), DType.BFLOAT16)
        self.assertEqual(number_type(spec(dtype="torch.uint8"), "fp8_e5m2"), DType.FLOAT8_E5M2)
        self.assertIsNone(number_type(spec(dtype="torch.uint8"), "fp8_ds_mla"))
        latent = spec(dtype="torch.bfloat16", head_size_v=0)
        self.assertEqual(number_type(latent, "auto"), DType.BFLOAT16)
        self.assertIsNone(number_type(spec(dtype="torch.uint8", head_size_v=0), "fp8"))
        padded = spec(dtype="torch.bfloat16", page_size_padded=4096)
        self.assertIsNone(number_type(padded, "auto"))
        self.assertIsNone(number_type(spec(dtypes=("torch.float32", "torch.bfloat16")), "auto"))


    def test_blocks_with_a_drafter_s_part_are_not_compared(self):
        target, draft = object(), object()
        for drafts, are_told in (
            (None, True),
            ({}, True),
            ({"draft_model_config": target, "target_model_config": target}, True),  # by n-grams
            ({"draft_model_config": draft, "target_model_config": target}, False),
        ):
            speculative = None if drafts is None else types.SimpleNamespace(**drafts)
            engine = types.SimpleNamespace(speculative_config=speculative)
            self.assertIs(are_told_by_hashes(engine), are_told)


class CutCase(SchedulerCase):
    def setUp(self):
        super().setUp()
        self.draws = [0.0, 0.4]  # sampled; of 8 blocks the fourth
        self.canary = CanarySampler(1_000_000, lambda: self.draws.pop(0))
        self.side = SchedulerSide(self.lookups, self.groups, self.workers, canary=self.canary)
        self.side.bind(self.manager)


class CutTest(CutCase):
    def compute(self, one, found):
        """The engine loads the blocks that were found, and computes the rest; returns the stores."""
        self.side.allocated(one, self.manager.table("r", list(range(7, 27))), found)
        self.step(one, found)
        return self.step(one, one.num_tokens - found).stores + self.step().stores

    def test_a_sampled_hit_ends_before_one_of_its_last_blocks(self):
        self.have(*range(10))
        self.assertEqual(self.match(request(161)), 6 * BLOCK_TOKENS)
        self.assertEqual((self.canary.hits, self.canary.cut_tokens), (1, 4 * BLOCK_TOKENS))

    def test_it_is_cut_at_the_same_place_when_it_is_asked_for_again(self):
        self.have(*range(10))
        one = request(161)
        self.assertEqual([self.match(one), self.match(one)], [6 * BLOCK_TOKENS] * 2)
        self.assertEqual(self.canary.hits, 1)

    def test_its_blocks_are_compared_and_those_of_others_are_not(self):
        self.have(*range(10))
        one = request(161)
        stores = self.compute(one, self.match(one))
        self.assertTrue(all(store.compare for store in stores))
        self.draws = [0.0, 0.4]
        other = request(33, "other", first=100)
        self.assertEqual(self.match(other), 0)
        self.manager.table("other", [40, 41, 42])
        self.step(other, 33)
        (store,) = self.step().stores
        self.assertFalse(store.compare)

    def test_a_hit_that_is_shorter_than_the_cut_is_computed_whole(self):
        self.have(0, 1)
        self.assertEqual(self.match(request(161)), 0)
        self.assertEqual(self.canary.cut_tokens, 2 * BLOCK_TOKENS)

    def test_what_a_disk_has_is_not_cut(self):
        self.presence = Presence.DISK
        self.have(*range(10))
        self.side._prefixes._always_load = True
        self.assertEqual(self.match(request(161)), 10 * BLOCK_TOKENS)
        self.assertEqual(self.canary.hits, 0)

    def test_a_hit_that_is_not_sampled_is_whole(self):
        self.draws = [1.0]
        self.have(*range(10))
        self.assertEqual(self.match(request(161)), 10 * BLOCK_TOKENS)


class WindowCutTest(CutCase):
    groups = [FULL, WINDOW]

    def setUp(self):
        super().setUp()
        self.have(*range(10))

    def test_a_hit_ends_where_windows_can_be_restored(self):
        self.have(4, 5, 8, 9, group=1)
        self.assertEqual(prefix_unit(self.groups), BLOCK_TOKENS)
        self.assertEqual(self.match(request(161)), 6 * BLOCK_TOKENS)
        self.assertEqual(self.canary.cut_tokens, 4 * BLOCK_TOKENS)

    def test_it_is_shorter_where_the_windows_are_gone(self):
        self.have(2, 3, 8, 9, group=1)
        self.assertEqual(self.match(request(161)), 4 * BLOCK_TOKENS)
        self.assertEqual(self.canary.cut_tokens, 6 * BLOCK_TOKENS)

    def test_a_hit_of_which_too_much_would_be_computed_is_whole(self):
        self.have(0, 8, 9, group=1)
        self.assertEqual(self.match(request(161)), 10 * BLOCK_TOKENS)
        self.assertEqual(self.canary.hits, 0)

    def test_windows_that_a_disk_has_are_not_loaded_for_a_cut(self):
        self.have(8, 9, group=1)
        one = request(161)
        self.assertEqual(self.side.matched_tokens(one, 0), None)
        self.step()
        self.presence = Presence.DISK
        self.have(4, 5, group=1)
        self.assertEqual(self.match(one), 10 * BLOCK_TOKENS)
        self.assertEqual(self.canary.hits, 0)
