# SPDX-License-Identifier: Apache-2.0
"""KvtierConnector where an engine's weights become others: no engine is served the KV of weights that it
does not have, and each engine that has the same weights is served."""

import functools
import json
import os
import shutil
import unittest

from cache_tests import CACHED_TOKENS, PROMPTS, EngineCase
from engine_process import EngineProcess
from tiny_model import ADAPTER_RANK, HEAD_DIM, make_adapter, make_model, make_model_of_kind

ALL = [CACHED_TOKENS] * PROMPTS
NONE = [0] * PROMPTS


class FilesTest(EngineCase, unittest.TestCase):
    """A model's files count as they were when the engine loaded them."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.other = make_model(cls.directory / "other", seed=1)

    def copy(self, model, name, times=None):
        """To a directory that is replaced file by file, as deployments do it."""
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        for file in model.iterdir():
            new = shutil.copyfile(file, directory / f"{file.name}.new")
            os.replace(new, directory / file.name)
            if times is not None:
                os.utime(directory / file.name, times)
        return directory

    def check_that_it_is_other(self, engine):
        """No engine has computed the prompts with the other weights yet."""
        reply = engine.generate(self.prompts)
        self.assertEqual(reply["cached"], NONE)
        self.assertEqual(reply["tokens"], self.tokens_of(self.other))
        engine.stop()

    def test_files_that_are_replaced_below_a_running_engine_are_not_what_it_has(self):
        model = self.copy(self.model, "replaced")
        engine = self.start_engine(model)
        self.wait_for_connection(engine)
        self.copy(self.other, "replaced")
        self.restart_daemon()
        self.wait_for_connection(engine)
        self.generate(engine)
        engine.stop()
        self.check_that_it_is_other(self.start_engine(model))

    def test_files_of_the_same_size_and_times_are_other_weights(self):
        model = self.copy(self.model, "reproducible", (1, 1))
        engine = self.start_engine(model)
        self.generate(engine)
        engine.stop()
        self.copy(self.other, "reproducible", (1, 1))
        self.check_that_it_is_other(self.start_engine(model))

    def test_the_same_files_copied_anew_are_the_same_weights(self):
        self.store()
        for name in ("here", "there"):
            engine = self.start_engine(self.copy(self.model, name))
            self.assertEqual(self.generate(engine), ALL)
            engine.stop()


class AdaptersTest(EngineCase, unittest.TestCase):
    """Adapters are told apart by their tensors, beside the name and path that vLLM goes by."""

    options = {
        "engine": {"enable_lora": True, "max_loras": 2, "max_lora_rank": ADAPTER_RANK},
    }

    def tokens_with(self, *adapter):
        plain = EngineProcess(
            self.model, self.directory / "plain.log", {"engine": dict(self.options["engine"])}
        )
        tokens = plain.generate(self.prompts, adapter=adapter)["tokens"]
        plain.stop()
        return tokens

    def check_with(self, engine, adapter, expected, cached):
        reply = engine.generate(self.prompts, adapter=adapter)
        self.assertEqual(reply["tokens"], expected)
        self.assertEqual(reply["cached"], cached)
        engine.forget()

    def test_an_adapter_that_is_replaced_at_its_path_is_another_one(self):
        path = str(make_adapter(self.directory / "adapter", seed=1))
        one = self.tokens_with("a", 1, path)
        for cached in (NONE, ALL):
            self.check_with(self.engine, ("a", 1, path), one, cached)
        self.generate()  # without the adapter
        make_adapter(self.directory / "adapter", seed=2)
        other = self.tokens_with("a", 1, path)
        self.assertNotEqual(one, other)
        new = self.start_engine()
        for cached in (NONE, ALL):
            self.check_with(new, ("a", 1, path), other, cached)
        new.stop()
        # The running engine still has the first one, and no name for it.
        self.check_with(self.engine, ("a", 1, path), one, NONE)
        self.check_with(self.engine, ("a", 2, path), other, ALL)

    def test_files_that_are_replaced_after_the_load_do_not_name_its_tensors(self):
        path = str(make_adapter(self.directory / "adapter", seed=3))
        one, engine = self.tokens_with("b", 3, path), self.start_engine()
        self.wait_for_connection(engine)
        engine.ask({"op": "load_adapter", "adapter": ("b", 3, path)})
        make_adapter(self.directory / "adapter", seed=4)
        other = self.tokens_with("b", 3, path)
        self.check_with(engine, ("b", 3, path), one, NONE)
        engine.stop()
        for cached in (NONE, ALL):
            self.check_with(self.engine, ("b", 3, path), other, cached)

    def test_what_was_computed_on_top_of_the_adapter_before_is_not_served(self):
        """vLLM finds KV of its own by the adapter's name and path."""
        for number, in_place in ((4, ("in place",)), (5, ())):
            path = str(make_adapter(self.directory / f"adapter{number}", seed=5))
            adapter, prompts = ("c", number, path, *in_place), self.prompts
            generate = functools.partial(self.engine.generate, adapter=adapter)
            generate([one[:160] for one in prompts])
            make_adapter(self.directory / f"adapter{number}", seed=6)
            if not in_place:
                adapter = ("c", number + 10, path)
                generate = functools.partial(self.engine.generate, adapter=adapter)
            self.assertEqual(generate([one[:280] for one in prompts])["cached"], [160] * PROMPTS)
            self.engine.forget()
            generate([one[:160] + one[200:] for one in prompts])
            self.engine.forget()
            self.check_with(self.engine, adapter, self.tokens_with("c", number, path), [160] * PROMPTS)


class UnsaidUpdateTest(EngineCase, unittest.TestCase):
    """The caller replaces the weights and says nothing to the connector."""

    def test_the_worker_notices_it_and_uses_nothing_of_before(self):
        other = make_model(self.directory / "other", seed=1)
        expected = self.tokens_of(other)
        self.store()
        self.engine.reload(other)
        cached = []
        for _ in range(4):
            reply = self.engine.generate(self.prompts)
            self.assertEqual(reply["tokens"], expected)
            cached.append(reply["cached"])
            self.engine.forget()
        self.assertEqual(cached[-1], ALL)
        self.assertIn("the weights have changed, and the caches were not reset", self.engine.log)
        self.engine.kill()
        type(self).engine = self.start_engine()
        self.assertEqual(self.generate(), ALL)


class NamedWeightsTest(EngineCase, unittest.TestCase):
    """As training does it: engines get new weights in place, and the trainer says which."""

    options = {"weights_run": "a run"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.steps = [make_model(cls.directory / f"step {i}", seed=10 + i) for i in range(2)]

    def update(self, engine, step):
        engine.reset()
        engine.reload(self.steps[step], version=str(step))
        self.wait_for_connection(engine)

    def check_step(self, step, reply, cached):
        self.assertEqual(reply["tokens"], self.tokens_of(self.steps[step]))
        self.assertEqual(reply["cached"], cached)

    def test_engines_with_the_same_step_share_and_others_do_not(self):
        other = self.start_engine()
        for step, engine, cached in [
            (0, self.engine, NONE),
            (0, other, ALL),
            (1, other, NONE),
            (0, other, ALL),  # which it has had before
            (1, self.engine, ALL),
        ]:
            self.update(engine, step)
            self.check_step(step, engine.generate(self.prompts), cached)
            engine.forget()
        other.stop()


class KeptEpochsTest(EngineCase, unittest.TestCase):
    options = {"keep_kv_cache": True}

    def test_memory_that_is_kept_is_not_taken_over_with_other_weights(self):
        other = make_model(self.directory / "other", seed=1)
        self.generate()
        self.engine.reset()
        self.engine.reload(other)
        expected = self.tokens_of(other)
        self.assertEqual(self.engine.generate(self.prompts)["tokens"], expected)
        self.engine.kill()
        type(self).engine = self.start_engine()
        self.assertEqual(self.generate(), ALL)  # from the daemon
        self.assertEqual(self.engine.metrics().get("restore:kept", 0), 0)


class TwoRanksEpochsTest(EngineCase, unittest.TestCase):
    """Ranks are processes, which hear of other weights with the next step."""

    options = {"engine": {"tensor_parallel_size": 2}}
    kind = "windows and experts"
    with_expected = False

    def test_all_ranks_turn_to_other_weights_at_once(self):
        other = make_model_of_kind(self.directory / "other", self.kind, seed=1)
        before = self.engine.generate(self.prompts)["tokens"]
        self.engine.reset()
        self.engine.reload(other)
        self.wait_for_connection()
        computed = self.engine.generate(self.prompts)
        self.assertEqual(computed["cached"], NONE)
        self.assertNotEqual(computed["tokens"], before)
        self.engine.forget()
        served = self.engine.generate(self.prompts)
        self.assertEqual(served["cached"], ALL)
        self.assertEqual(served["tokens"], computed["tokens"])
        self.engine.stop()


class UsedBlocksTest(EngineCase, unittest.TestCase):
    """vLLM empties its own cache only when no block is in use. Else it goes on with the KV of the weights
    before, and nothing that it computes on top of that may come back."""

    def test_what_is_computed_on_top_of_blocks_of_the_weights_before_is_not_stored(self):
        other = make_model(self.directory / "other", seed=1)
        engine = self.start_engine()
        self.wait_for_connection(engine)
        engine.generate([prompt[:160] for prompt in self.prompts], tokens=33)
        self.assertFalse(engine.ask({"op": "turn"})["done"])  # they are being stored
        engine.reload(other)
        self.wait_for_connection(engine)
        for _ in range(3):
            reply = engine.generate(self.prompts)
            engine.forget()
        engine.stop()
        self.assertEqual(reply["cached"], ALL)
        self.assertEqual(reply["tokens"], self.tokens_of(other))


class LongestSequenceTest(EngineCase, unittest.TestCase):
    """vLLM takes a rope's long factors in engines whose longest sequence is longer than those that the
    model was first trained with, also for sequences that are shorter."""

    with_expected = False
    options = {"engine": {"max_model_len": 1024}}

    @classmethod
    def scaled(cls, model):
        path = model / "config.json"
        rope = {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0] * (HEAD_DIM // 2),
            "long_factor": [4.0] * (HEAD_DIM // 2),
            "original_max_position_embeddings": 1024,
        }
        configuration = json.loads(path.read_text())
        del configuration["rope_theta"]
        path.write_text(json.dumps({**configuration, "rope_parameters": rope}))
        return model

    def test_an_engine_of_longer_sequences_is_served_no_keys_of_the_short_factors(self):
        model = self.scaled(make_model(self.directory / "scaled"))
        short = self.start_engine(model)
        short.generate(self.prompts)
        short.stop()
        long = self.start_engine(model, engine={"max_model_len": 2048})
        reply = long.generate(self.prompts)
        long.stop()
        self.assertEqual(reply["cached"], NONE)
        self.assertEqual(reply["tokens"], self.tokens_of(model, max_model_len=2048))


if __name__ == "__main__":
    unittest.main()
