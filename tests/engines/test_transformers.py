# SPDX-License-Identifier: Apache-2.0
"""A real transformers and a real kvtierd: the same tokens, always."""

import functools
import itertools
import json
import os
import pathlib
import subprocess
import sys
import unittest
from unittest import mock

import numpy as np
import torch
from tiny_models import MODELS, WINDOW, llama
from transformers import DynamicCache
from transformers_case import (
    BLOCK_TOKENS,
    PROMPT_TOKENS,
    STATE_TOKENS,
    KvtierTestCase,
    generate,
    prompt_of,
)

import kvtier
from kvtier import HitRule, KvGroup
from kvtier.transformers import Outcome, transfer
from kvtier.transformers.layers import Group

HERE = pathlib.Path(__file__).resolve().parent
PROCESS_TIMEOUT_S = 600


@functools.lru_cache(maxsize=None)
def model_of(name):
    return MODELS[name]()


def step_of(name):
    """The number of tokens that a restored prefix of the model is a multiple of."""
    return STATE_TOKENS if name == "qwen3-next" else BLOCK_TOKENS


def restorable(name, tokens):
    """The longest prefix of so many cached tokens, with one left to compute."""
    return (tokens - 1) // step_of(name) * step_of(name)


class ReuseTest(KvtierTestCase):
    def test_a_prompt_that_was_computed_is_restored(self):
        for name in MODELS:
            with self.subTest(name):
                model, prompt = model_of(name), prompt_of()
                cold, _ = self.check(model, prompt)
                self.assertEqual((cold.outcome, cold.restored_tokens), (Outcome.MISS, 0))
                for _ in range(2):
                    warm, _ = self.check(model, prompt)
                    self.assertEqual(warm.restored_tokens, restorable(name, PROMPT_TOKENS))

    def test_prompts_share_the_beginning_that_they_have_in_common(self):
        for name in MODELS:
            with self.subTest(name):
                model, prompt = model_of(name), prompt_of()
                self.check(model, prompt)
                # Further from the first prompt's end than a window reaches.
                other = torch.cat([prompt[:, :150], prompt_of(150)], dim=1)
                cache, _ = self.check(model, other)
                self.assertEqual(cache.restored_tokens, 128 if name == "qwen3-next" else 144)

    def test_an_answer_is_restored_as_part_of_the_next_prompt(self):
        for name in MODELS:
            with self.subTest(name):
                model, prompt = model_of(name), prompt_of()
                cache = self.cache(model, prompt)
                answer = generate(model, prompt, cache, max_new_tokens=90)
                cache.store(answer)
                following = torch.cat([answer, prompt_of(20)], dim=1)
                cache, _ = self.check(model, following)
                # All that went through the model: the last token of an answer did not.
                self.assertEqual(cache.restored_tokens, restorable(name, answer.shape[1]))

    def test_one_cache_serves_a_whole_conversation(self):
        for name in MODELS:
            with self.subTest(name):
                model, prompt = model_of(name), prompt_of()
                plain, cache = DynamicCache(config=model.config), self.cache(model, prompt)
                for turn in range(3):
                    expected = generate(model, prompt, plain, max_new_tokens=50)
                    output = generate(model, prompt, cache, max_new_tokens=50)
                    self.assertEqual(output.tolist(), expected.tolist())
                    stored = cache.store(output)
                    if turn > 0:
                        self.assertLess(stored, 20)
                    prompt = torch.cat([output, prompt_of(20)], dim=1)
                self.check(model, prompt)

    def test_an_answer_that_is_generated_anew_is_stored_again(self):
        model, prompt = llama(seed=30), prompt_of()
        cache = self.cache(model, prompt)
        cache.store(generate(model, prompt, cache, max_new_tokens=64))
        for tokens in (64, 120):
            # Less than the prompt, all of which transformers would compute again behind itself.
            cache.crop(PROMPT_TOKENS - 1 - cache.get_seq_length())
            torch.manual_seed(tokens)
            more = {"max_new_tokens": tokens, "do_sample": True, "temperature": 5.0}
            answer = generate(model, prompt, cache, **more)
            self.assertGreater(cache.store(answer), 3)
            following = torch.cat([answer, prompt_of(20)], dim=1)
            restored = self.check(model, following)[0].restored_tokens
            self.assertEqual(restored, restorable("llama", answer.shape[1]))

    def test_blocks_that_the_daemon_has_lost_are_stored_again(self):
        for name, begun in itertools.product(MODELS, (False, True)):
            with self.subTest(f"{name}, {begun}"):
                model, prompt = model_of(name), prompt_of(330)
                if begun:
                    self.check(model, prompt)
                cache = self.cache(model, prompt)
                self.assertEqual(cache.restored_tokens > 0, begun)
                answer = generate(model, prompt, cache)
                cache.store(answer)
                erase = {"op": "erase", "tenant": "default", "without_proof": True}
                kvtier.admin(erase, self.daemon.admin_socket)
                following = torch.cat([answer, prompt_of(8)], dim=1)
                answer = generate(model, following, cache, max_new_tokens=4)
                self.assertGreater(cache.store(answer), 0)
                following = torch.cat([answer, prompt_of(20)], dim=1)
                cache, _ = self.check(model, following)
                self.assertEqual(cache.restored_tokens, restorable(name, answer.shape[1]))

    def test_short_and_odd_prompts(self):
        for name, tokens in itertools.product(MODELS, (1, 16, 17, WINDOW, 65, 128)):
            with self.subTest(f"{name}, {tokens}"):
                model, prompt = model_of(name), prompt_of(tokens)
                self.check(model, prompt)
                cache, _ = self.check(model, prompt)
                self.assertEqual(cache.restored_tokens, restorable(name, tokens))

    def test_bfloat16_is_restored_bit_by_bit(self):
        model, prompt = llama(seed=3).to(torch.bfloat16), prompt_of()
        with self.cache(model, prompt) as cold:
            generate(model, prompt, cold)
        warm = self.cache(model, prompt)
        for first, second in zip(cold.layers, warm.layers):
            kept = warm.restored_tokens
            self.assertTrue(torch.equal(first.keys[:, :, :kept], second.keys))
            self.assertTrue(torch.equal(first.values[:, :, :kept], second.values))

    def test_leaving_the_block_stores_the_prompt(self):
        model, prompt = model_of("llama"), prompt_of()
        with self.cache(model, prompt) as cache:
            generate(model, prompt, cache)
        self.assertEqual(self.cache(model, prompt).restored_tokens, 288)
        with self.assertRaises(KeyError), self.cache(model, prompt_of()) as cache:
            raise KeyError("of the user's program: stores nothing, hides nothing")


class FailureTest(KvtierTestCase):
    def setUp(self):
        self.addCleanup(self.daemon.start)
        self.addCleanup(self.daemon.kill)

    def test_without_a_daemon_all_is_computed(self):
        for name in MODELS:
            with self.subTest(name):
                model, prompt = model_of(name), prompt_of()
                self.daemon.kill()
                cache, output = self.check(model, prompt)
                self.assertEqual(cache.outcome, Outcome.UNAVAILABLE)
                self.assertEqual(cache.store(output), 0)
                # It need not be there when the cache is made.
                self.daemon.start()
                self.assertGreater(cache.store(output), 0)
                self.assertEqual(self.cache(model, prompt).outcome, Outcome.RESTORED)

    def test_a_daemon_that_ends_meanwhile_costs_only_the_store(self):
        model, prompt = model_of("gemma3"), prompt_of()
        self.check(model, prompt)
        cache = self.cache(model, prompt)
        self.daemon.kill()
        output = generate(model, prompt, cache)
        self.assertEqual(output.tolist(), generate(model, prompt).tolist())
        self.assertEqual(cache.store(output), 0)

    def test_a_daemon_that_does_not_answer_is_a_miss(self):
        model, prompt = model_of("llama"), prompt_of()
        self.check(model, prompt)
        self.daemon.pause()
        cache = self.cache(model, prompt, timeout_ms=100)
        self.assertEqual(cache.outcome, Outcome.UNAVAILABLE)
        self.daemon.resume()
        self.assertEqual(self.cache(model, prompt).outcome, Outcome.RESTORED)

    def test_a_daemon_that_dies_while_it_loads_is_a_miss(self):
        model, prompt = model_of("qwen3-next"), prompt_of()
        self.check(model, prompt)
        begin = transfer.Region.load_many

        def load_and_die(*arguments, **more):
            number = begin(*arguments, **more)
            self.daemon.kill()
            return number

        with mock.patch.object(transfer.Region, "load_many", load_and_die):
            self.check(model, prompt)

    def test_all_comes_back_from_disk_after_both_were_restarted(self):
        prompt = prompt_of()[0].tolist()
        for name, make in MODELS.items():
            make().save_pretrained(self.directory / name)
        cold = self.run_process(prompt)
        self.assertEqual([one["outcome"] for one in cold], ["miss"] * len(MODELS))
        self.daemon.drain()
        self.daemon.kill()
        self.daemon.start()
        for name, before, after in zip(MODELS, cold, self.run_process(prompt)):
            with self.subTest(name):
                self.assertEqual(after["restored"], restorable(name, PROMPT_TOKENS))
                self.assertEqual(after["tokens"], before["tokens"])

    def test_damaged_blocks_end_the_prefix_before_them(self):
        for name in MODELS:
            with self.subTest(name):
                model, prompt = model_of(name), prompt_of()
                self.check(model, prompt)
                self.daemon.drain()
                self.daemon.kill()
                self.daemon.corrupt_disk(first=(1 << 20) + 6_000, step=8 << 10)
                self.daemon.start()
                cache, _ = self.check(model, prompt)
                self.assertLess(cache.restored_tokens, restorable(name, PROMPT_TOKENS))
                cache, _ = self.check(model, prompt)
                self.assertEqual(cache.restored_tokens, restorable(name, PROMPT_TOKENS))

    def run_process(self, prompt):
        command = [sys.executable, str(HERE / "cached_model.py"), self.daemon.socket]
        command += [json.dumps(prompt), *(str(self.directory / name) for name in MODELS)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=PROCESS_TIMEOUT_S
        )
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return json.loads(done.stdout)


class LongestPrefixTest(unittest.TestCase):
    def test_it_is_what_the_hit_rules_define(self):
        groups = [
            Group(KvGroup(1, 1, 8, 8, block_tokens=16)),
            Group(KvGroup(1, 1, 8, 8, hit_rule=HitRule.TRAILING, window_tokens=39)),
            Group(KvGroup(1, layer_bytes=8, block_tokens=32, hit_rule=HitRule.STATE)),
        ]
        random_bits = np.random.default_rng(7)
        for _ in range(200):
            limit = int(random_bits.integers(1, 400))
            presence = [
                (random_bits.random(400 // group.kv.block_tokens) < 0.8).astype(np.uint8)
                for group in groups
            ]
            presence[0][: int(random_bits.integers(1, 26))] = 1
            expected = 0
            for tokens in range(32, min(limit, 384) + 1, 32):
                ends = [
                    all(presence[0][: tokens // 16]),
                    all(presence[1][max(0, tokens - 39) // 16 : tokens // 16]),
                    presence[2][tokens // 32 - 1],
                ]
                expected = tokens if all(ends) else expected
            self.assertEqual(transfer.longest_prefix(groups, presence, limit), expected)


if __name__ == "__main__":
    unittest.main()
