# SPDX-License-Identifier: Apache-2.0
"""Wishes of requests in a real vLLM: which blocks the daemon has when others have needed their space."""

import unittest

from cache_tests import CACHED_TOKENS, PROMPTS, EngineCase, prompts_of

# Each batch of prompts has 4 MiB of blocks, of which a busy machine does not store all.
FLOODS = 24
HOUR_S = 3600


class WishesTest(EngineCase, unittest.TestCase):
    with_expected = False
    host_bytes = "8MiB"

    @classmethod
    def settings(cls):
        return [*super().settings(), "disk.bytes=32MiB"]

    def ask(self, batch, engine=None, **more):
        """How many tokens of each of the batch's prompts came from a cache."""
        return (engine or self.engine).generate(prompts_of(batch), tokens=1, **more)["cached"]

    def test_a_prompt_that_shall_be_kept_is_a_hit_when_others_are_gone(self):
        self.ask(100, hints={"retention": "extended", "keep_s": HOUR_S})
        self.ask(101)
        for batch in range(FLOODS):
            self.ask(200 + batch)
        counts = self.engine.metrics()
        self.assertEqual(counts["hint:kept"], PROMPTS * CACHED_TOKENS // 32)
        self.engine.kill()
        self.daemon.kill()
        self.daemon.start()
        engine = self.start_engine()
        self.wait_for_connection(engine)
        for batch in range(FLOODS):
            self.ask(300 + batch, engine)
        self.assertEqual(self.ask(100, engine), [CACHED_TOKENS] * PROMPTS)
        self.assertEqual(self.ask(101, engine), [0] * PROMPTS)


if __name__ == "__main__":
    unittest.main()
