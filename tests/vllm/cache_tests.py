# SPDX-License-Identifier: Apache-2.0
"""Tests for each way in which a real vLLM uses a real kvtierd: the same tokens, always."""

import atexit
import functools
import itertools
import json
import pathlib
import random
import shutil
import tempfile

from engine import BLOCK_TOKENS
from engine_process import EngineProcess
from harness.shared_daemon import SharedDaemonCase
from tiny_model import VOCABULARY, make_model, make_model_of_kind

PROMPT_TOKENS = 300
# vLLM computes at least the last token, and finds whole blocks.
CACHED_TOKENS = (PROMPT_TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS
PROMPTS = 6
LLAMA = "llama"
SEEDS = 16
# A machine that does more than one thing is no reason to miss, and a hit is as long as expected.
PATIENT = {"lookup_timeout_ms": 30_000, "retry_max_ms": 50}
WHOLE_HITS = {"canary_per_million": 0}
# The limit of tests that wait for something by steps of the engine.
MANY_STEPS = 4_000
AN_HOUR_S = 3600


def prompts_of(seed, tokens=PROMPT_TOKENS):
    """Prompts that no other seed has the beginnings of."""
    generator = random.Random(seed)
    return [[generator.randrange(3, VOCABULARY) for _ in range(tokens)] for _ in range(PROMPTS)]


@functools.lru_cache(maxsize=None)
def shared_model(kind, tokens, engine):
    """The model, and for each seed's prompts of so many tokens what an engine generates that has
    nothing to do with kvtier. engine: as JSON, more arguments of the engine; "": no tokens are
    needed."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="kvtier-vllm-"))
    atexit.register(shutil.rmtree, directory)
    model = directory / "model"
    if kind == LLAMA:
        make_model(model)
    else:
        make_model_of_kind(model, kind)
    if not engine:
        return model, []
    plain = EngineProcess(model, directory / "plain.log", {"engine": json.loads(engine)})
    try:
        expected = [plain.generate(prompts_of(seed, tokens))["tokens"] for seed in range(SEEDS)]
        plain.stop()
    finally:
        plain.kill()
    return model, expected


class EngineCase(SharedDaemonCase):
    """Mixed into a TestCase that sets `options`, of the connector, and the `kind` of model. One daemon
    and one engine for all tests, each of which has prompts of its own."""

    options: dict = {}
    kind = LLAMA
    prompt_tokens = PROMPT_TOKENS
    with_expected = True  # whether an engine without kvtier gives the expected tokens

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        engine = json.dumps(cls.options.get("engine", {})) if cls.with_expected else ""
        cls.model, cls.expected = shared_model(cls.kind, cls.prompt_tokens, engine)
        cls.seeds = itertools.count()
        cls.engine = cls.start_engine()

    @classmethod
    def start_engine(cls, model=None, **options):
        options = {"socket": cls.daemon.socket, **WHOLE_HITS, **cls.options, **PATIENT, **options}
        engine = EngineProcess(model or cls.model, cls.directory / "engine.log", options)
        cls.addClassCleanup(engine.kill)
        return engine

    def setUp(self):
        self.seed = next(self.seeds)
        self.prompts = prompts_of(self.seed, self.prompt_tokens)
        self.wait_for_connection()

    def generate(self, engine=None):
        """Generates, compares the tokens, and returns how many of each prompt's were cached."""
        reply = (engine or self.engine).generate(self.prompts)
        self.check(reply)
        return reply["cached"]

    def check(self, reply):
        self.assertEqual(reply["tokens"], self.expected[self.seed])

    def store(self):
        """Computes the prompts and leaves them to the daemon."""
        self.generate()
        self.engine.forget()

    def tokens_of(self, model, **engine):
        """The tokens of an engine of this model that has nothing to do with kvtier."""
        engine = {**self.options.get("engine", {}), **engine}
        plain = EngineProcess(model, self.directory / "plain.log", {"engine": engine})
        tokens = plain.generate(self.prompts)["tokens"]
        plain.stop()
        return tokens

    def wait_for_connection(self, engine=None):
        """Steps the engine until the connector has said that it is connected."""
        engine = engine or self.engine
        for prompt in range(MANY_STEPS):
            engine.generate([[prompt % 1000 + 3] * 40], tokens=1)
            if engine.metrics().get("connected"):
                return
        self.fail(f"no connection:\n{engine.log[-3000:]}")

    def start_engine_that_notices_by_use(self):
        """A connected one, which learns by a request alone that the daemon was restarted: between
        requests its links do not look."""
        engine = self.start_engine(idle_check_s=AN_HOUR_S)
        self.wait_for_connection(engine)
        return engine

    def restart_daemon(self):
        self.daemon.kill()
        self.step_until_disconnected()
        self.daemon.start()
        self.wait_for_connection()

    def step_until_disconnected(self):
        for prompt in range(MANY_STEPS):
            self.engine.generate([[prompt % 1000 + 3] * 40], tokens=1)
            if not self.engine.metrics().get("connected"):
                return
        self.fail("the engine did not notice that the daemon is gone")

    def counted(self, outcome, before):
        return self.engine.metrics().get(outcome, 0) - before.get(outcome, 0)


class CacheTests(EngineCase):
    """The tests of a model of one cache group."""

    def test_the_model_s_tokens_depend_on_the_whole_prompt(self):
        """Or else equal tokens would prove nothing."""
        changed = [[prompt[0] ^ 1, *prompt[1:]] for prompt in self.prompts]
        tokens = self.engine.generate(changed)["tokens"]
        for one, other in zip(tokens, self.expected[self.seed]):
            self.assertNotEqual(one, other)
            self.assertGreater(len(set(other)), len(other) // 2)

    def test_what_vllm_forgets_the_daemon_serves(self):
        before = self.engine.metrics()
        self.assertEqual(self.generate(), [0] * PROMPTS)
        self.engine.forget()
        self.assertEqual(self.generate(), [CACHED_TOKENS] * PROMPTS)
        rows = PROMPTS * CACHED_TOKENS // BLOCK_TOKENS
        self.assertGreaterEqual(self.counted("store:copied", before), rows)
        self.assertEqual(self.counted("load:copied", before), rows)
        self.assertEqual(self.counted("lookup:timeout", before), 0)

    def test_an_engine_that_was_killed_is_served_at_its_first_request(self):
        self.store()
        self.engine.kill()
        type(self).engine = self.start_engine()
        self.assertEqual(self.generate(), [CACHED_TOKENS] * PROMPTS)

    def test_a_daemon_that_was_killed_serves_from_disk(self):
        self.store()
        self.daemon.drain()
        self.restart_daemon()
        before = self.engine.metrics()
        self.assertEqual(self.generate(), [CACHED_TOKENS] * PROMPTS)
        self.assertGreater(self.counted("lookup:disk", before), 0)

    def test_a_restart_of_the_daemon_between_two_requests_costs_no_hit(self):
        """Neither the scheduler nor the worker has noticed when the next request comes."""
        engine = self.start_engine_that_notices_by_use()
        self.generate(engine)
        engine.forget()
        self.daemon.drain()
        self.daemon.kill()
        self.daemon.start()
        self.assertEqual(self.generate(engine), [CACHED_TOKENS] * PROMPTS)
        engine.stop()

    def test_what_is_computed_after_a_restart_that_no_step_has_noticed_is_stored(self):
        engine = self.start_engine_that_notices_by_use()
        engine.forget()  # nothing is left to be stored by which the worker would notice
        self.daemon.kill()
        self.daemon.start()
        self.generate(engine)
        engine.forget()
        self.assertEqual(self.generate(engine), [CACHED_TOKENS] * PROMPTS)
        engine.stop()

    def test_without_a_daemon_every_block_is_a_miss(self):
        self.store()
        self.daemon.kill()
        self.addCleanup(self.daemon.start)
        self.assertEqual(self.generate(), [0] * PROMPTS)
        self.engine.forget()
        self.assertEqual(self.generate(), [0] * PROMPTS)
        self.assertGreater(self.engine.metrics()["lookup:unavailable"], 0)

    def test_a_daemon_killed_in_the_midst_of_loads_costs_no_token(self):
        self.store()
        self.daemon.drain()
        generator = random.Random(0)
        before = self.engine.metrics()
        outcomes = {"copied": 0, "unavailable": 0}
        for _ in range(8):
            self.restart_daemon()
            self.engine.forget()
            self.engine.send({"op": "generate", "prompts": self.prompts})
            # A request of 6 prompts takes about 100 ms; no event says that loads are under way.
            self.engine.wait_for_reply(generator.uniform(0, 0.05))
            self.daemon.kill()
            self.check(self.engine.receive())
        for outcome in outcomes:
            outcomes[outcome] = self.counted(f"load:{outcome}", before)
        print(f"blocks loaded and not loaded: {outcomes}", end=" ")
        self.daemon.start()

    def test_a_corrupted_block_on_disk_is_a_miss(self):
        self.store()
        self.daemon.drain()
        self.daemon.kill()
        self.step_until_disconnected()
        self.assertGreater(self.daemon.corrupt_disk(first=(1 << 20) + 40_000, step=64 << 10), 0)
        self.daemon.start()
        self.wait_for_connection()
        before = self.engine.metrics()
        cached = self.generate()
        self.assertLess(sum(cached), PROMPTS * CACHED_TOKENS)
        self.assertGreater(self.counted("load:checksum_mismatch", before), 0)

    def test_other_weights_are_not_served(self):
        self.store()
        other = self.start_engine(make_model(self.directory / "other", seed=1))
        reply = other.generate(self.prompts)
        self.assertEqual(reply["cached"], [0] * PROMPTS)
        self.assertNotEqual(reply["tokens"], self.expected[self.seed])
        other.stop()

    def test_a_reset_engine_finds_nothing_of_before_and_a_new_one_does(self):
        self.store()
        engine = self.start_engine()
        self.assertEqual(self.generate(engine), [CACHED_TOKENS] * PROMPTS)
        engine.reset()
        self.wait_for_connection(engine)  # under the new epoch, so that it is stored
        self.assertEqual(self.generate(engine), [0] * PROMPTS)
        engine.forget()
        self.assertEqual(self.generate(engine), [CACHED_TOKENS] * PROMPTS)
        engine.stop()
        self.assertEqual(self.generate(), [CACHED_TOKENS] * PROMPTS)

    def test_weights_that_are_replaced_in_a_running_engine_are_served_no_others(self):
        other = make_model(self.directory / "replacement", seed=1)
        expected = self.tokens_of(other)
        engine = self.start_engine()
        self.wait_for_connection(engine)
        self.generate(engine)
        engine.reset()
        engine.reload(other)
        self.wait_for_connection(engine)
        for cached in (0, CACHED_TOKENS):
            reply = engine.generate(self.prompts)
            self.assertEqual(reply["tokens"], expected)
            self.assertEqual(reply["cached"], [cached] * PROMPTS)
            engine.forget()
        engine.stop()
        self.assertEqual(self.generate(), [CACHED_TOKENS] * PROMPTS)  # of the weights before

    def test_a_slow_daemon_is_a_miss_in_time(self):
        self.store()
        impatient = self.start_engine(lookup_timeout_ms=20)
        self.daemon.pause()
        self.addCleanup(self.daemon.resume)
        self.assertEqual(self.generate(impatient), [0] * PROMPTS)
        self.daemon.resume()
        impatient.stop()
