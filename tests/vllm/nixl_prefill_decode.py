# SPDX-License-Identifier: Apache-2.0
"""A prefill and a decode engine with NIXL's and kvtier's connectors under MultiConnector, over one daemon.
tools/test-nixl.sh runs it."""

import unittest

from cache_tests import BLOCK_TOKENS, CACHED_TOKENS, PROMPT_TOKENS, PROMPTS, EngineCase
from server_case import free_port

TO_BE_DECODED = {"do_remote_decode": True, "do_remote_prefill": False}
ANSWER_TOKENS = 64


def nixl():
    return {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
    }


class PrefillDecodeCase(EngineCase):
    """Mixed into a TestCase. `engine` is for prefill."""

    connectors: list = []

    @classmethod
    def start_engine(cls, model=None, **options):
        # Each engine tells others about its memory at a port of its own.
        environment = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())}
        options = {"connectors": cls.connectors, "environment": environment, **options}
        return super().start_engine(model, **options)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.decoder = cls.start_engine()

    def setUp(self):
        super().setUp()
        self.wait_for_connection(self.decoder)

    def prefill(self, prompts=None):
        prompts = prompts or self.prompts
        transfer = [dict(TO_BE_DECODED) for _ in prompts]
        return self.engine.generate(prompts, tokens=1, transfer=transfer)

    def decode(self, prefilled, tokens=16):
        return self.decoder.generate(self.prompts, tokens=tokens, transfer=prefilled["transfer"])

    def test_a_known_prefix_is_not_prefilled_and_the_decoder_gets_the_whole_prompt(self):
        for cached in (0, CACHED_TOKENS):
            before = self.decoder.metrics()
            prefilled = self.prefill()
            self.assertEqual(prefilled["cached"], [cached] * PROMPTS)
            self.check(self.decode(prefilled))
            after = self.decoder.metrics()
            # vLLM computes the last token of a prompt that it has wholly.
            brought = after["external"] - before["external"]
            self.assertGreaterEqual(brought, PROMPTS * (PROMPT_TOKENS - 1))
            self.assertEqual(after.get("load:copied", 0), before.get("load:copied", 0))
            self.engine.forget()
            self.decoder.forget()

    def test_the_prefill_engine_finds_what_the_decoder_has_computed(self):
        answers = self.decode(self.prefill(), tokens=ANSWER_TOKENS)["tokens"]
        self.decoder.forget()
        self.engine.forget()
        longer = [prompt + answer for prompt, answer in zip(self.prompts, answers)]
        # No engine has computed the last token of an answer.
        known = (PROMPT_TOKENS + ANSWER_TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        self.assertEqual(self.prefill(longer)["cached"], [known] * PROMPTS)

    def test_a_decoder_whose_prefill_engine_was_killed_gets_the_prompt_from_the_daemon(self):
        self.store()
        prefilled = self.prefill()
        self.engine.kill()
        before = self.decoder.metrics()
        self.check(self.decode(prefilled))
        after = self.decoder.metrics()
        loaded = after.get("load:copied", 0) - before.get("load:copied", 0)
        self.assertEqual(loaded, PROMPTS * CACHED_TOKENS // BLOCK_TOKENS)
        type(self).engine = self.start_engine()
        self.decoder.forget()
        self.check(self.decode(self.prefill()))

    def test_a_prefill_engine_whose_decoder_was_killed_serves_the_next(self):
        prefilled = self.prefill()
        self.decoder.send(
            {"op": "generate", "prompts": self.prompts, "transfer": prefilled["transfer"]}
        )
        self.decoder.kill()
        type(self).decoder = self.start_engine()
        prefilled = self.prefill()
        self.check(self.decode(prefilled))
        self.check(self.engine.generate(self.prompts))


class NixlFirstTest(PrefillDecodeCase, unittest.TestCase):
    connectors = [nixl(), "kvtier"]


class KvtierFirstTest(PrefillDecodeCase, unittest.TestCase):
    connectors = ["kvtier", nixl()]


if __name__ == "__main__":
    unittest.main()
