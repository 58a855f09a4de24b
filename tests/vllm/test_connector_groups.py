# SPDX-License-Identifier: Apache-2.0
"""KvtierConnector with models whose layers form several cache groups, with states, with a latent
cache, and on two ranks."""

import unittest

from cache_tests import CACHED_TOKENS, EngineCase, prompts_of

# The block size of "states", whose blocks vLLM makes as long as a state is large.
STATE_BLOCK_TOKENS = 160


class GroupTests(EngineCase):
    """block_tokens: the number that the length of a prefix is a multiple of."""

    block_tokens = 32

    def cached(self, tokens):
        """How much of a prompt can come from a cache."""
        return (tokens - 1) // self.block_tokens * self.block_tokens

    def test_the_model_s_tokens_depend_on_the_beginning_of_the_prompt(self):
        half = len(self.prompts[0]) // 2
        changed = [[*reversed(prompt[:half]), *prompt[half:]] for prompt in self.prompts]
        self.assertNotEqual(self.engine.generate(changed)["tokens"], self.expected[self.seed])

    def test_what_vllm_forgets_the_daemon_serves(self):
        before = self.engine.metrics()
        self.assertEqual(set(self.generate()), {0})
        self.engine.forget()
        self.assertEqual(set(self.generate()), {self.cached(self.prompt_tokens)})
        self.assertGreater(self.counted("load:copied", before), 0)

    def test_a_prefix_that_ends_within_what_was_stored_is_served(self):
        """Windows and states are needed at other places than at the end."""
        self.store()
        common = self.prompt_tokens * 2 // 3
        other = prompts_of(1000 + self.seed, self.prompt_tokens)
        mixed = [[*prompt[:common], *more[common:]] for prompt, more in zip(self.prompts, other)]
        served = self.engine.generate(mixed)
        self.assertEqual(set(served["cached"]), {self.cached(common + 1)})
        self.restart_daemon_empty()
        self.engine.forget()
        alone = self.engine.generate(mixed)
        self.assertEqual(set(alone["cached"]), {0})
        self.assertEqual(served["tokens"], alone["tokens"])

    def test_an_engine_that_was_killed_is_served_at_its_first_request(self):
        self.store()
        self.engine.kill()
        type(self).engine = self.start_engine()
        cached = set(self.generate())
        self.assertEqual(cached, {self.cached(self.prompt_tokens)}, self.engine.metrics())

    def test_without_a_daemon_every_block_is_a_miss(self):
        self.store()
        self.daemon.kill()
        self.addCleanup(self.daemon.start)
        self.assertEqual(set(self.generate()), {0})

    def test_a_corrupted_block_of_one_group_costs_no_token(self):
        """Each round flips a byte of every seventh block, and of others than the last one."""
        self.store()
        self.daemon.drain()
        before = self.engine.metrics()
        for shift in range(3):
            self.daemon.kill()
            self.step_until_disconnected()
            first = (1 << 20) + 40_000 + (shift << 16)
            self.assertGreater(self.daemon.corrupt_disk(first, 7 << 16), 0)
            self.daemon.start()
            self.wait_for_connection()
            self.engine.forget()
            self.generate()
        self.assertGreater(self.counted("load:checksum_mismatch", before), 0)

    def restart_daemon_empty(self):
        self.daemon.kill()
        self.step_until_disconnected()
        self.daemon.corrupt_disk(first=1 << 20, step=4096)
        self.daemon.start()
        self.wait_for_connection()


class WindowsTest(GroupTests, unittest.TestCase):
    kind = "windows"

    def test_requests_that_are_preempted_generate_the_same(self):
        expected = self.engine.generate(self.prompts, tokens=200)["tokens"]
        few_blocks = {
            "num_gpu_blocks_override": 100,
            "max_model_len": 640,
            "max_num_batched_tokens": 320,
        }
        small = self.start_engine(engine=few_blocks)
        for _ in range(2):
            self.assertEqual(small.generate(self.prompts, tokens=200)["tokens"], expected)
            small.forget()
        self.assertGreater(small.metrics()["preemptions"], 0)
        small.stop()


class StatesTest(GroupTests, unittest.TestCase):
    """Tests of a model with experts. By default vLLM keeps no states but the last of a prompt, and
    their numbers are those that the processor is quick at, so that a state is as large as it likes.
    """

    options = {
        "engine": {
            "mamba_ssm_cache_dtype": "float32",
            "prefix_cache_retention_interval": STATE_BLOCK_TOKENS,
            "max_num_batched_tokens": STATE_BLOCK_TOKENS + 32,
        },
    }
    kind = "states"
    block_tokens = STATE_BLOCK_TOKENS
    prompt_tokens = 700


class OwnProcessTest(EngineCase, unittest.TestCase):
    """The worker is a process of its own, in which the model changes its configuration when it is made."""

    options = {"engine": {"distributed_executor_backend": "mp"}}
    kind = "parallel"
    with_expected = False

    def test_what_vllm_forgets_the_daemon_serves(self):
        computed = self.engine.generate(self.prompts)
        self.engine.forget()
        served = self.engine.generate(self.prompts)
        self.assertEqual(set(served["cached"]), {CACHED_TOKENS})
        self.assertEqual(served["tokens"], computed["tokens"])


class TwoRanksTest(EngineCase, unittest.TestCase):
    """Each rank has blocks of its own, and what one of them lacks is of no use to the other. Two
    ranks round otherwise than one does, so that their tokens are compared with their own."""

    options = {
        "keep_kv_cache": True,
        "engine": {"tensor_parallel_size": 2},
    }
    kind = "windows and experts"
    with_expected = False

    def test_what_vllm_forgets_the_daemon_serves_to_both(self):
        before = self.engine.metrics()
        computed = self.engine.generate(self.prompts)
        self.assertEqual(set(computed["cached"]), {0})
        self.engine.forget()
        served = self.engine.generate(self.prompts)
        self.assertEqual(set(served["cached"]), {CACHED_TOKENS})
        self.assertEqual(served["tokens"], computed["tokens"])
        looked_up = self.counted("lookup:host", before)
        self.assertEqual(self.counted("load:copied", before), 2 * looked_up)
        self.check_that_the_next_engine_has_it(computed)

    def check_that_the_next_engine_has_it(self, computed):
        """Which both ranks have loaded in part, and computed in part."""
        self.engine.kill()
        type(self).engine = self.start_engine()
        kept = self.engine.generate(self.prompts)
        self.assertEqual(set(kept["cached"]), {CACHED_TOKENS})
        self.assertEqual(kept["tokens"], computed["tokens"])
        self.assertEqual(self.engine.metrics().get("load:copied", 0), 0)
        self.engine.stop()


class LatentTest(EngineCase, unittest.TestCase):
    """Where vLLM cannot continue a prefix, as its reference kernel for MLA on CPUs, it turns prefix
    caching off, and nothing may be loaded."""

    kind = "latent"

    def test_nothing_is_served(self):
        for _ in range(2):
            self.assertEqual(set(self.generate()), {0})
            self.engine.forget()
        self.assertEqual(self.engine.metrics().get("load:copied", 0), 0)


if __name__ == "__main__":
    unittest.main()
