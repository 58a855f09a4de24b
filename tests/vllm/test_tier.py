# SPDX-License-Identifier: Apache-2.0
"""KvtierTier below vLLM's own offloading to host memory."""

import unittest

from cache_tests import CACHED_TOKENS, PROMPTS, CacheTests
from engine import BLOCK_TOKENS
from tiny_model import make_model


class TierTest(CacheTests, unittest.TestCase):
    def test_groups_of_layers_with_and_without_windows_are_served(self):
        model = make_model(self.directory / "windows", window=2 * BLOCK_TOKENS)
        hybrid = self.start_engine(model)
        computed = hybrid.generate(self.prompts)
        self.assertEqual(computed["cached"], [0] * PROMPTS)
        self.assertNotEqual(computed["tokens"], self.expected[self.seed])
        hybrid.forget()
        served = hybrid.generate(self.prompts)
        self.assertEqual(served["cached"], [CACHED_TOKENS] * PROMPTS)
        self.assertEqual(served["tokens"], computed["tokens"])
        hybrid.stop()


if __name__ == "__main__":
    unittest.main()
