# SPDX-License-Identifier: Apache-2.0
"""KvtierConnector on vLLM's own KV cache."""

import unittest

from cache_tests import CACHED_TOKENS, PROMPTS, CacheTests, EngineCase


class ConnectorTest(CacheTests, unittest.TestCase):
    """A model of one cache group, with the connector's defaults."""


class WaitingRequestsTest(EngineCase, unittest.TestCase):
    """A step computes so few tokens that vLLM does not look at the requests behind a long prompt."""

    options = {
        "engine": {"max_num_batched_tokens": 64, "max_num_seqs": 8, "enable_chunked_prefill": True},
    }

    def test_blocks_on_disk_come_to_host_memory_while_requests_wait(self):
        self.store()
        self.daemon.drain()
        self.restart_daemon()
        before = self.engine.metrics()
        long_prompt = [3 + i % 500 for i in range(1900)]
        reply = self.engine.generate([long_prompt, *self.prompts])
        self.assertEqual(reply["tokens"][1:], self.expected[self.seed])
        self.assertEqual(reply["cached"][1:], [CACHED_TOKENS] * PROMPTS)
        self.assertGreater(self.daemon.status()["stats"]["host_prefetched_blocks"], 0)
        self.assertGreater(self.counted("lookup:host", before), 0)


class LongPromptsTest(EngineCase, unittest.TestCase):
    """A prompt has more blocks than may be in stores, which is a quarter of vLLM's."""

    options = {
        "engine": {"num_gpu_blocks_override": 120, "max_model_len": 1100, "max_num_batched_tokens": 256},
    }
    prompt_tokens = 1000
    with_expected = False

    def test_they_are_stored_whole_beside_others_where_stores_take_long(self):
        expected = self.tokens_of(self.model)[:2]
        before = self.engine.metrics()
        self.engine.ask({"op": "hold_stores", "held": True})
        others = [prompt[:100] for prompt in self.prompts[2:]]
        computed = self.engine.generate([*self.prompts[:2], *others])
        self.engine.ask({"op": "hold_stores", "held": False})
        self.engine.forget()
        served = self.engine.generate(self.prompts[:2])
        self.assertEqual(served["cached"], [992, 992])
        self.assertEqual([computed["tokens"][:2], served["tokens"]], [expected, expected])
        self.assertEqual(self.counted("store:late", before), 0)


if __name__ == "__main__":
    unittest.main()
