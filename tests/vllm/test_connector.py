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


if __name__ == "__main__":
    unittest.main()
