# SPDX-License-Identifier: Apache-2.0
"""The canary with real engines of several kinds of models: it finds nothing in honest KV, and soon each
lie that an engine can tell under a true name."""

import unittest

from cache_tests import CACHED_TOKENS, PROMPTS, EngineCase, prompts_of
from engine import BLOCK_TOKENS
from kvtier import admin
from tiny_model import make_adapter, make_drafter, make_model, make_model_of_kind

ALL_HITS = {"canary_per_million": 1_000_000, "claims": "files:a claim"}
COMPARED = 200
MOST_HITS = 50
TOKENS = 4  # generated for each prompt


class CanaryCase(EngineCase):
    """One engine, which is honest until it is told to lie."""

    options = ALL_HITS
    with_expected = False
    lies = ("rope", "layers", "keys and values")
    cuts_hits = True

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.engine.ask({"op": "trust_weights"})
        if not cls.cuts_hits:
            cls.engine.ask({"op": "store_all"})

    def canaries(self):
        return self.daemon.status()["stats"]["canary"]

    def is_distrusted(self):
        return self.daemon.status()["distrusted"] != []

    def compute(self, prompts, **more):
        """As an engine computes that has none of them in its own cache."""
        reply = self.engine.generate(prompts, tokens=TOKENS, **more)
        self.engine.forget()
        return reply

    def hits_until_found(self, prompts, **more):
        """How many hits the lie takes that the engine tells now."""
        for hits in range(PROMPTS, MOST_HITS + 1, PROMPTS):
            self.compute(prompts, **more)
            self.daemon.settle()
            if self.is_distrusted():
                return hits
        self.fail(f"{MOST_HITS} hits found nothing: {self.canaries()}")

    def expect_found(self, lie, prompts, tell, **more):
        self.compute(prompts)
        tell()
        hits = self.hits_until_found(prompts, **more)
        print(f"{lie}: {hits} hits;", end=" ")
        # Engines compute all that they need from now on.
        self.assertEqual(self.compute(prompts, **more)["cached"], [0] * PROMPTS)
        self.tell("none")
        for one in {one["model"] for one in self.daemon.status()["distrusted"]}:
            admin({"op": "forget", "model": one}, self.daemon.admin_socket)
        self.assertFalse(self.is_distrusted())

    def tell(self, lie):
        self.engine.ask({"op": "lie", "lie": lie})

    def test_1_honest_blocks_raise_no_alarm(self):
        first = self.compute(self.prompts)
        for _ in range(COMPARED):
            again = self.compute(self.prompts)
            self.assertEqual(again["tokens"], first["tokens"])
            if self.cuts_hits:
                self.assertLess(sum(again["cached"]), PROMPTS * CACHED_TOKENS)
            self.daemon.settle()
            canaries = self.canaries()
            if canaries["equal"] + canaries["noise"] >= COMPARED:
                break
        print(f"compared {canaries}", end=" ")
        self.assertGreaterEqual(canaries["equal"] + canaries["noise"], COMPARED)
        self.assertEqual(canaries["different"], 0)
        self.assertFalse(self.is_distrusted())

    def test_2_lies_are_found(self):
        for number, lie in enumerate(self.lies):
            with self.subTest(lie):
                self.expect_found(lie, prompts_of(100 + number), lambda: self.tell(lie))

    def test_3_other_weights_under_the_same_name_are_found(self):
        other = self.make_other(self.directory / "other")
        self.expect_found("other weights", prompts_of(200), lambda: self.engine.reload(other))

    def make_other(self, path):
        return make_model_of_kind(path, self.kind, seed=1)


class LlamaTest(CanaryCase, unittest.TestCase):
    options = {**ALL_HITS, "engine": {"enable_lora": True, "max_lora_rank": 8}}

    def make_other(self, path):
        return make_model(path, seed=1)

    def test_2_other_tensors_of_an_adapter_under_its_name_are_found(self):
        path, prompts = self.directory / "adapter", prompts_of(300)
        adapters = [["an adapter", number, str(path)] for number in (1, 2)]
        make_adapter(path, seed=0)
        self.compute(prompts, adapter=adapters[0])
        self.expect_found(
            "another adapter", prompts, lambda: make_adapter(path, seed=1), adapter=adapters[1]
        )


class WindowsTest(CanaryCase, unittest.TestCase):
    """Each kind of layer is a group of one layer, so that none can take another's place."""

    kind = "windows"
    lies = ("rope", "keys and values")


class ExpertsTest(CanaryCase, unittest.TestCase):
    kind = "experts"


class LatentTest(CanaryCase, unittest.TestCase):
    """vLLM has no hits of latents on many CPUs, so that all that it stores is compared. Its fused kernel
    turns the keys of a step's first tokens only, so that they would depend on the step."""

    kind = "latent"
    cuts_hits = False
    options = {**ALL_HITS, "engine": {"compilation_config": {"custom_ops": ["none"]}}}


class DrafterCase(EngineCase):
    """Honest blocks with a drafter's KV differ, and are not compared."""

    with_expected = False

    @classmethod
    def start_engine(cls):
        drafts = {"model": str(cls.make(cls.directory / "drafter")), "num_speculative_tokens": 3}
        return super().start_engine(**ALL_HITS, engine={"speculative_config": {**drafts, **cls.drafts}})

    def expect_no_alarm(self):
        status = self.daemon.status()
        self.assertEqual((status["stats"]["canary"]["different"], status["distrusted"]), (0, []))


class NextTokenTest(DrafterCase, unittest.TestCase):
    """A drafter's KV at a position depends on the next token, which a block's hash does not tell of the
    block's last position."""

    make, drafts = staticmethod(make_drafter), {"method": "eagle"}

    def test_blocks_of_requests_that_go_on_in_other_ways_raise_no_alarm(self):
        for seed in range(12):
            prefix, *ends = prompts_of(1000 + seed, 10 * BLOCK_TOKENS)  # they part where a block ends
            cached = []
            for end in ends[:3]:
                cached += self.engine.generate([prefix + end[:8]], tokens=TOKENS)["cached"]
                self.engine.forget()
                self.daemon.settle()
            self.assertGreater(min(cached[1:]), 0)
            self.expect_no_alarm()


class SkippedDraftsTest(DrafterCase, unittest.TestCase):
    """vLLM's first runner computes no KV of the drafter's in a step in which one request reaches its end."""

    make = staticmethod(lambda path: make_model(path, seed=9, layers=1))
    drafts = {"method": "draft_model"}

    def test_requests_beside_one_that_ends_by_its_length_raise_no_alarm(self):
        shorts, (longer, *_) = prompts_of(1100, 50), prompts_of(1101, 2048)
        longs = [longer[end:] for end in (3, 7, 11, 15)]
        answers = self.engine.generate(longs + shorts, tokens=100)["tokens"][len(longs) :]
        self.engine.forget()
        self.daemon.settle()
        for _ in range(3):
            prompts = [one + answer + one[:8] for one, answer in zip(shorts, answers)]
            cached = self.engine.generate(prompts, tokens=TOKENS)["cached"]
            self.engine.forget()
            self.daemon.settle()
        self.expect_no_alarm()
        self.assertGreater(min(cached), 0)


if __name__ == "__main__":
    unittest.main()
