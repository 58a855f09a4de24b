# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests with transformers: a daemon, prompts, and the tokens that come without a cache."""

import itertools
import random
import unittest

import torch
from harness.shared_daemon import SharedDaemonCase
from tiny_models import DEVICE, VOCABULARY
from transformers import DynamicCache

from kvtier.transformers import KvtierCache, Outcome

PROMPT_TOKENS, NEW_TOKENS = 300, 24
BLOCK_TOKENS, STATE_TOKENS = 16, 64
# Threads that wait for each other's turns make a small machine slow.
torch.set_num_threads(1)
seeds = itertools.count()


def prompt_of(tokens=PROMPT_TOKENS):
    """A prompt that no other has the beginning of."""
    generator = random.Random(next(seeds))
    tokens_drawn = [generator.randrange(3, VOCABULARY) for _ in range(tokens)]
    return torch.tensor([tokens_drawn], device=DEVICE)


def generate(model, prompt, cache=None, **more):
    cache = DynamicCache(config=model.config) if cache is None else cache
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **more}
    return model.generate(prompt, past_key_values=cache, **options)


class KvtierTestCase(SharedDaemonCase, unittest.TestCase):
    host_bytes = "96MiB"

    def cache(self, model, prompt, **more):
        options = {"state_tokens": STATE_TOKENS, "checkpoint_tokens": 128, **more}
        return KvtierCache.for_model(model, prompt, socket=self.daemon.socket, **options)

    def check(self, model, prompt, **more):
        """Generates with a cache, expects the tokens that come without, and stores them."""
        cache = self.cache(model, prompt, **more)
        output = generate(model, prompt, cache)
        self.assertEqual(output.tolist(), generate(model, prompt).tolist())
        self.assertEqual(cache.restored_tokens > 0, cache.outcome == Outcome.RESTORED)
        cache.store(output)
        return cache, output
