# SPDX-License-Identifier: Apache-2.0
"""KvtierConnector with keep_kv_cache: what a killed engine had, the next one has."""

import random
import unittest

from cache_tests import CACHED_TOKENS, PROMPTS, EngineCase, prompts_of
from engine import BLOCK_TOKENS

# Fewer blocks than the prompts need together, prompts in several steps.
FEW_BLOCKS = {
    "num_gpu_blocks_override": 44,
    "max_model_len": 640,
    "max_num_batched_tokens": 128,
    "max_num_seqs": 8,
}


class KeptCase(EngineCase):
    options = {"keep_kv_cache": True}

    def restart_engine(self, **options):
        self.engine.kill()
        type(self).engine = self.start_engine(**options)

    def kept_blocks(self):
        return self.engine.metrics().get("restore:kept", 0)

    def loaded_blocks(self):
        return self.engine.metrics().get("load:copied", 0)

    def serve_until_killed(self, rounds, **options):
        """Engines that are killed while they compute prompts, some of which an engine before them
        has computed, too. How many blocks their caches had from the engine before, in each round.

        How many of these a request finds depends on the machine: an engine that ends its prompts
        before it is killed leaves the last ones, which the first ones of the next engine evict.
        """
        generator = random.Random(7)
        kept, self.seed = [], 0
        for _ in range(rounds):
            self.restart_engine(**options)
            self.prompts = prompts_of(self.seed, self.prompt_tokens)
            self.generate()
            kept.append(self.kept_blocks())
            for _ in range(3):
                self.seed = generator.randrange(3)
                self.prompts = prompts_of(self.seed, self.prompt_tokens)
                self.generate()
            self.seed = generator.randrange(3)
            prompts = prompts_of(self.seed, self.prompt_tokens)
            self.engine.send({"op": "generate", "prompts": prompts})
            self.engine.wait_for_reply(generator.uniform(0, 0.4))
        self.restart_engine()
        return kept


class KeptCacheTest(KeptCase, unittest.TestCase):
    def test_the_next_engine_s_own_cache_has_what_a_killed_one_had(self):
        """But nothing of what that one had forgotten."""
        self.store()
        self.prompts = prompts_of(self.seed + 1)
        self.seed += 1
        self.generate()
        self.restart_engine()
        self.assertEqual(self.generate(), [CACHED_TOKENS] * PROMPTS)
        self.assertEqual(self.loaded_blocks(), 0)
        blocks = PROMPTS * CACHED_TOKENS // BLOCK_TOKENS
        self.assertLess(abs(self.kept_blocks() - blocks), blocks // 2)
        self.assertIn("blocks of the KV cache are as the last engine left them", self.engine.log)

    def test_it_outlives_the_daemon_too(self):
        self.generate()
        self.restart_daemon()
        self.restart_engine()
        self.assertEqual(self.generate(), [CACHED_TOKENS] * PROMPTS)
        self.assertEqual(self.loaded_blocks(), 0)

    def test_an_engine_that_began_without_a_daemon_is_kept_once_there_is_one(self):
        self.daemon.kill()
        self.restart_engine()
        self.assertEqual(self.generate(), [0] * PROMPTS)
        self.daemon.start()
        self.wait_for_connection()
        self.restart_engine()
        self.assertEqual(self.generate(), [CACHED_TOKENS] * PROMPTS)
        self.assertEqual(self.loaded_blocks(), 0)

    def test_an_engine_of_another_identity_or_size_gets_nothing(self):
        self.generate()
        self.restart_engine(identity="other")
        self.assertEqual(self.generate(), [0] * PROMPTS)
        self.restart_engine(engine={"num_gpu_blocks_override": 500})
        self.generate()
        self.assertEqual(self.kept_blocks(), 0)
        self.assertGreater(self.loaded_blocks(), 0)

    def test_engines_killed_while_they_write_the_few_blocks_they_have(self):
        """And which the daemon's loads write, too."""
        kept = self.serve_until_killed(8, engine=FEW_BLOCKS)
        self.assertGreater(sum(kept), CACHED_TOKENS // BLOCK_TOKENS)


class KeptWindowsTest(KeptCase, unittest.TestCase):
    """Blocks that a window has left behind are used anew while their request runs."""

    kind = "windows"

    def test_engines_killed_while_windows_move(self):
        kept = self.serve_until_killed(4, engine={**FEW_BLOCKS, "num_gpu_blocks_override": 80})
        self.assertGreater(sum(kept), CACHED_TOKENS // BLOCK_TOKENS)

    def test_the_next_engine_s_own_cache_has_the_windows_that_a_killed_one_left(self):
        self.generate()
        self.restart_engine()
        self.assertEqual(self.generate(), [CACHED_TOKENS] * PROMPTS)
        self.assertEqual(self.loaded_blocks(), 0)


if __name__ == "__main__":
    unittest.main()
