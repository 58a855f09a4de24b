# SPDX-License-Identifier: Apache-2.0
"""The example engine with a tiny model on the CPU, and a real kvtierd."""

import itertools
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import nano_engine_modules
import torch
from harness.shared_daemon import SharedDaemonCase
from nano_engine_modules import Engine, Steps, tiny_model
from torch.nn import functional

import kvtier

VOCABULARY, BLOCK_TOKENS = 512, 16
SIZES_AND_ANSWERS = ((1, 30), (15, 5), (16, 20), (17, 9), (200, 25))
prompt_seeds, model_seeds = itertools.count(), itertools.count(100)


def prompt_of(tokens):
    source = random.Random(next(prompt_seeds))
    return [source.randrange(VOCABULARY) for _ in range(tokens)]


def turned(heads, table):
    cos, sin = table[: heads.shape[0], None].chunk(2, dim=-1)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def plain_answer(model, prompt, new_tokens):
    """The model's tokens when it computes the whole sequence for each token, without any cache."""
    table, tokens = model.rope_table(), list(prompt)

    def attend(layer, query, key, value):
        parts = (turned(query, table), turned(key, table), value)
        mixed = functional.scaled_dot_product_attention(
            *(part.transpose(0, 1) for part in parts), is_causal=True, enable_gqa=True
        )
        return mixed.transpose(0, 1)

    for _ in range(new_tokens):
        rows = torch.tensor([len(tokens) - 1])
        tokens += model.forward(torch.tensor(tokens), attend, rows).tolist()
    return tokens[len(prompt) :]


class NanoEngineCase(SharedDaemonCase, unittest.TestCase):
    def connect(self):
        connection = kvtier.connect(
            self.daemon.socket, client_name="test", reconnect_min_ms=0, reconnect_max_ms=0
        )
        self.addCleanup(connection.close)
        return connection

    def engine(self, model, blocks=100, **options):
        """The pool of a model is as large as its first engine asked for."""
        pool_bytes = blocks * model.record().layout().block_stride
        engine = Engine(model, self.connect(), pool_bytes=pool_bytes, **options)
        self.addCleanup(engine.close)
        return engine

    def check(self, model, requests):
        for request in requests:
            prompt = request.tokens[: request.prompt_tokens]
            self.assertEqual(request.answer, plain_answer(model, prompt, request.new_tokens))


class AnswersTest(NanoEngineCase):
    def test_answers_are_those_of_the_model_alone(self):
        model = tiny_model()
        for options in ({"cache": True}, {"cache": False}, {"step_tokens": 48}):
            with self.subTest(**options):
                engine = self.engine(model, **options)
                self.check(model, engine.generate(list(map(prompt_of, (1, 15, 16, 17, 200))), 20))

    def test_steps_that_are_repeated_give_the_same_answers(self):
        # As on a GPU, where short steps are CUDA graphs: the call that is repeated here reads its
        # inputs where they were the first time.
        made = []

        def repeating(model, attention, _):
            made.append(Steps(model, attention, lambda call: call))
            return made[-1]

        model = tiny_model()
        with mock.patch("engine.Steps", repeating):
            engine = self.engine(model)
            engine.generate([prompt_of(20)], 1)
            engine.prepare(5, 300)
            requests = [engine.submit(prompt_of(size), new) for size, new in SIZES_AND_ANSWERS]
            while not all(request.is_finished for request in requests):
                engine.step()
        self.check(model, requests)
        # Five sequences, then fewer, with empty ones beside them; and steps with prompts in them.
        kinds = {(one_each, rows) for one_each, _, rows, _ in made[0]._repeated}
        self.assertLessEqual({(True, rows) for rows in (1, 2, 4, 8)} | {(False, 8)}, kinds)

    def test_answers_depend_on_the_beginning_of_the_prompt(self):
        engine, end = self.engine(tiny_model()), prompt_of(32)
        first, second = engine.generate([prompt_of(64) + end, prompt_of(64) + end], 8)
        self.assertNotEqual(first.answer, second.answer)

    def test_requests_that_arrive_later_join_those_that_run(self):
        model = tiny_model()
        engine = self.engine(model)
        requests = [engine.submit(prompt_of(100), 30)]
        for _ in range(5):
            engine.step()
        requests.append(engine.submit(prompt_of(100), 5))
        while not requests[1].is_finished:
            engine.step()
        self.assertFalse(requests[0].is_finished)
        while not requests[0].is_finished:
            engine.step()
        self.check(model, requests)

    def test_what_no_pool_could_hold_is_refused(self):
        model = tiny_model(next(model_seeds))
        engine = self.engine(model, blocks=8)
        for prompt, new_tokens in (([], 1), ([1], 0), ([1] * 120, 9)):
            with self.assertRaises(ValueError):
                engine.submit(prompt, new_tokens)
        self.assertEqual(len(engine.generate([[1] * 120], 8)[0].answer), 8)


class CacheTest(NanoEngineCase):
    def test_a_shared_prefix_is_computed_once_by_requests_that_arrive_together(self):
        model, shared = tiny_model(), prompt_of(160)
        engine = self.engine(model)
        requests = engine.generate([shared + prompt_of(10) for _ in range(6)], 4)
        self.check(model, requests)
        self.assertEqual([one.cached_tokens for one in requests], [0] + [160] * 5)
        self.assertEqual(engine.computed_tokens, 160 + 6 * (10 + 3))

    def test_an_answer_is_a_prefix_of_the_next_question(self):
        model = tiny_model()
        engine = self.engine(model)
        tokens = prompt_of(50)
        for _ in range(3):
            request = engine.generate([tokens], 25)[0]
            self.check(model, [request])
            # All full blocks of it; the last token of an answer is not computed.
            known = request.prompt_tokens - 21 if len(tokens) > 50 else 0
            self.assertEqual(request.cached_tokens, known // BLOCK_TOKENS * BLOCK_TOKENS)
            tokens = request.tokens + prompt_of(20)

    def test_another_process_finds_the_prefix(self):
        model, shared = tiny_model(), prompt_of(128)
        self.engine(model).generate([shared], 1)
        prompts = [shared + prompt_of(9), prompt_of(40)]
        command = [sys.executable, nano_engine_modules.__file__, self.daemon.socket]
        printed = subprocess.run(
            [*command, json.dumps(prompts), "6"], check=True, capture_output=True, text=True
        ).stdout
        (first, first_cached), (second, second_cached) = json.loads(printed)
        self.assertEqual((first_cached, second_cached), (128, 0))
        self.assertEqual(first, plain_answer(model, prompts[0], 6))
        self.assertEqual(second, plain_answer(model, prompts[1], 6))

    def test_an_engine_without_the_cache_finds_and_leaves_nothing(self):
        model, prompt = tiny_model(), prompt_of(128)
        for _ in range(2):
            request = self.engine(model, cache=False).generate([prompt], 2)[0]
            self.assertEqual(request.cached_tokens, 0)
        self.assertEqual(self.engine(model).generate([prompt], 2)[0].cached_tokens, 0)
        self.assertEqual(self.engine(model, cache=False).generate([prompt], 2)[0].cached_tokens, 0)


class PreemptionTest(NanoEngineCase):
    def test_a_pool_that_is_too_small_for_all_preempts_and_answers_the_same(self):
        for cache in (True, False):
            with self.subTest(cache=cache):
                model = tiny_model(next(model_seeds))
                # All four prompts fit, but only two of them with their answers.
                engine = self.engine(model, cache=cache, blocks=18)
                requests = engine.generate([prompt_of(64) for _ in range(4)], 64)
                self.assertGreater(sum(one.preemptions for one in requests), 0)
                self.check(model, requests)

    def test_what_a_preempted_request_had_computed_is_not_computed_again(self):
        again = {}
        for cache in (True, False):
            model = tiny_model(next(model_seeds))
            engine = self.engine(model, cache=cache, blocks=18)
            requests = engine.generate([prompt_of(64) for _ in range(4)], 64)
            preemptions = sum(one.preemptions for one in requests)
            self.assertGreater(preemptions, 0)
            again[cache] = (engine.computed_tokens - 4 * 127) / preemptions
        # With the cache the tokens of a block that was not full.
        self.assertLessEqual(again[True], BLOCK_TOKENS)
        self.assertGreater(again[False], 64)

    def test_two_engines_share_a_pool_that_is_too_small_for_both(self):
        model = tiny_model(next(model_seeds))
        engines = [self.engine(model, blocks=18) for _ in range(2)]
        requests = [engine.submit(prompt_of(64), 48) for engine in engines for _ in range(3)]
        while not all(one.is_finished for one in requests):
            for engine in engines:
                engine.step()
        self.check(model, requests)


class LostDaemonTest(NanoEngineCase):
    def setUp(self):
        self.addCleanup(self.restart)

    def restart(self):
        self.daemon.kill()
        self.daemon.start()

    def test_answers_survive_a_daemon_that_is_killed_and_started_again(self):
        model, known = tiny_model(), prompt_of(160)
        engine = self.engine(model)
        engine.generate([known], 1)
        engine.generate([prompt_of(16)], 1)
        self.daemon.drain()
        requests = [engine.submit(known + prompt_of(20), 40), engine.submit(prompt_of(70), 40)]
        while len(requests[0].answer) < 10:
            engine.step()
        self.restart()
        computed = engine.computed_tokens
        while not all(one.is_finished for one in requests):
            engine.step()
        self.check(model, requests)
        # The drained prefix came from disk; the rest of both was computed again.
        self.assertLess(engine.computed_tokens - computed, (20 + 40) + (70 + 40) + 2 * BLOCK_TOKENS)

    def test_an_engine_that_was_idle_uses_the_pool_of_the_new_daemon(self):
        model, prompt = tiny_model(), prompt_of(100)
        engine = self.engine(model)
        self.check(model, engine.generate([prompt], 5))
        self.restart()
        self.check(model, engine.generate([prompt, prompt_of(100)], 5))
        self.check(model, self.engine(model).generate([prompt], 5))

    def test_without_a_daemon_the_engine_says_so_when_its_patience_ends(self):
        engine = self.engine(tiny_model(), patience_s=0.05)
        request = engine.submit(prompt_of(20), 5)
        self.daemon.kill()
        with self.assertRaisesRegex(TimeoutError, "nothing went on for 0.05 s"):
            while not request.is_finished:
                engine.step()


class BenchmarkTest(unittest.TestCase):
    def test_the_benchmark_runs_and_finds_the_same_answers(self):
        with tempfile.TemporaryDirectory() as directory:
            figures = pathlib.Path(directory) / "figures.json"
            program = nano_engine_modules.SOURCE / "tools/bench/engine/nano_engine.py"
            command = [sys.executable, program, "--model", "tiny"]
            subprocess.run(
                [*command, "--new-tokens", "2", "--json", figures], check=True, capture_output=True
            )
            report = json.loads(figures.read_text())
        self.assertTrue(report["holds"])
        self.assertEqual(
            [(one["name"], one["cached_tokens"], one["preemptions"]) for one in report["runs"]],
            [
                ("without the cache", 0, 0),
                ("prefix not known yet", 15 * 896, 0),
                ("prefix known", 16 * 896, 0),
            ],
        )


if __name__ == "__main__":
    unittest.main()
