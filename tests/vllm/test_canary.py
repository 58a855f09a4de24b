# SPDX-License-Identifier: Apache-2.0
"""The canary with real engines: the daemon finds KV of other weights under one identity, and nothing
in honest KV."""

import unittest

from cache_tests import CACHED_TOKENS, PROMPTS, EngineCase, prompts_of
from tiny_model import make_model

ALL_HITS = {"canary_per_million": 1_000_000}


class CanaryCase(EngineCase):
    options = ALL_HITS

    def canaries(self):
        return self.daemon.status()["stats"]["canary"]

    def compare_until(self, blocks):
        """Cuts hits until so many blocks have been compared."""
        for _ in range(blocks):
            if sum(self.canaries().values()) >= blocks:
                return
            self.engine.generate(self.prompts)
            self.engine.forget()
        self.fail(f"compared {self.canaries()}")


class HonestTest(CanaryCase, unittest.TestCase):
    def test_cut_hits_give_the_same_tokens_and_no_false_alarm(self):
        self.store()
        self.assertLess(sum(self.generate()), PROMPTS * CACHED_TOKENS)
        self.engine.forget()
        self.compare_until(200)
        canaries = self.canaries()
        print(f"compared {canaries}", end=" ")
        self.assertEqual(canaries["different"], 0)
        self.assertEqual(self.daemon.status()["distrusted"], [])


class WindowsTest(CanaryCase, unittest.TestCase):
    """A shorter hit would need blocks that lie before the windows, which are not kept."""

    kind = "windows"

    def test_hits_are_not_cut(self):
        self.store()
        self.generate()
        self.assertEqual(sum(self.canaries().values()), 0)


class LatentTest(WindowsTest):
    """Blocks of latents are long: a cut would cost most hits whole."""

    kind = "latent"


class LieTest(CanaryCase, unittest.TestCase):
    options = {**ALL_HITS, "claims": "files:a lie"}

    def test_other_weights_under_the_same_name_are_found(self):
        other = self.start_engine(make_model(self.directory / "other", seed=1))
        for hits in range(PROMPTS, 51, PROMPTS):
            self.prompts = prompts_of(100 + hits)
            self.engine.generate(self.prompts)
            self.engine.forget()
            other.generate(self.prompts)
            other.forget()
            if self.daemon.status()["distrusted"]:
                break
        self.assertEqual(len(self.daemon.status()["distrusted"]), 1, self.canaries())
        print(f"found within {hits} hits", end=" ")
        # Engines compute all blocks that they need from now on.
        reply = other.generate(self.prompts)
        self.assertEqual(reply["tokens"], self.tokens_of(self.directory / "other"))
        self.assertEqual(reply["cached"], [0] * PROMPTS)
        other.stop()
