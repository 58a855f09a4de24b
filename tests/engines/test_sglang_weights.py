# SPDX-License-Identifier: Apache-2.0
"""KvtierStorage and the weights that a server of SGLang has, at its start and later."""

import os
import pathlib
import tempfile
import types
import unittest
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import sglang_modules  # noqa: F401 - imported because it makes `import sglang` find the wheel's
import torch
from test_sglang import BATCH, CONFIG, SglangTestCase, host_pool, indices_of, keys_of

from kvtier.sglang import configuration, live_weights, pages
from kvtier.sglang import storage as storage_module


class WeightsTest(unittest.TestCase):
    """Which weights a model's name stands for, where SGLang's arguments do not say it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def weights(self, model_path, served_name="chat", label="", **arguments):
        server = types.SimpleNamespace(model_path=model_path, **arguments)
        given = configuration.arguments_of(server)
        return configuration.loaded_weights(served_name, given, label)

    def test_a_directory_that_is_served_under_another_name(self):
        weights = self.folder / "model.safetensors"
        weights.write_bytes(b"one")
        before = self.weights(str(self.folder))
        os.utime(weights, (1, 1))
        self.assertEqual(self.weights(str(self.folder)), before)
        weights.write_bytes(b"two")
        os.utime(weights, (1, 1))
        self.assertNotEqual(self.weights(str(self.folder)), before)

    def test_a_directory_says_nothing_by_its_path(self):
        names, weights = set(), set()
        for path in (self.folder / "here", self.folder / "there"):
            path.mkdir()
            (path / "model.safetensors").write_bytes(b"one")
            (path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
            names.add(configuration.record_options(str(path))["name"])
            weights.add(self.weights(str(path)))
        self.assertEqual((len(names), len(weights)), (1, 1))
        self.assertTrue(names.pop().startswith("LlamaForCausalLM-"))

    def test_adapters_are_told_apart_by_their_tensors(self):
        """SGLang's hashes have the name and path of those that a server is started with."""
        adapter = types.SimpleNamespace(lora_name="a", lora_path=str(self.folder))
        facts = []
        for tensors in (b"one", b"one", b"two"):
            (self.folder / "adapter_model.safetensors").write_bytes(tensors)
            for given in ({}, {"lora_paths": [adapter]}):
                server = types.SimpleNamespace(model_path="org/model", **given)
                arguments = configuration.arguments_of(server)
                facts.append(configuration.page_facts(CONFIG, "kv", "layout", arguments, ""))
        bare, one, _, again, _, two = facts
        self.assertEqual(one, again)
        self.assertNotEqual(one, two)
        self.assertNotIn(bare, (one, two))

    def test_scales_of_the_cache_are_told_apart_by_their_content(self):
        scales = self.folder / "scales.json"
        facts = []
        for content in ("{}", "{}", '{"k": 2}'):
            scales.write_text(content)
            server = types.SimpleNamespace(
                model_path="org/model", quantization_param_path=str(scales)
            )
            arguments = configuration.arguments_of(server)
            facts.append(configuration.page_facts(CONFIG, "kv", "layout", arguments, ""))
        self.assertEqual(facts[0], facts[1])
        self.assertNotEqual(facts[0], facts[2])

    def test_a_name_of_the_hub_whose_branch_has_moved(self):
        for with_draft in (False, True):
            name = "org/draft" if with_draft else "org/model"
            model = self.folder / ("models--" + name.replace("/", "--"))
            (model / "refs").mkdir(parents=True)
            more = {"speculative_draft_model_path": name} if with_draft else {}
            seen = []
            for commit in ("a" * 40, "b" * 40):
                (model / "snapshots" / commit).mkdir(parents=True)
                (model / "refs/main").write_text(commit)
                with mock.patch.dict(os.environ, HF_HUB_CACHE=str(self.folder)):
                    seen.append(self.weights("org/model", **more))
            self.assertNotEqual(*seen)
            self.assertNotIn(None, seen)

    def test_what_this_machine_does_not_have(self):
        with mock.patch.dict(os.environ, HF_HUB_CACHE=str(self.folder)):
            with self.assertLogs("sglang.kvtier", "WARNING"):
                self.assertIsNone(self.weights("org/model", revision="v1"))
            self.assertEqual(self.weights("org/model", label="mine"), "named:mine")
            commit = "c" * 40
            self.assertEqual(self.weights("org/model", revision=commit), f"commit:{commit}")


class LiveWeightsTest(SglangTestCase):
    """SGLang updates weights in place, and tells its storage backend nothing."""

    def scheduler(self, model, make):
        """In place of SGLang's, which makes the storage as it starts, or attaches one later."""
        runner = types.SimpleNamespace(model_runner=types.SimpleNamespace(model=model))

        class Scheduler:
            def __init__(self):
                self.tp_worker = runner
                self.storage = make()

            def attach(self):
                self.storage = make()

        return Scheduler()

    def test_pages_of_the_weights_before_are_not_found_and_those_of_now_are(self):
        model = torch.nn.Linear(8, 8)
        pool, keys = host_pool(), keys_of()
        storage = self.scheduler(model, lambda: self.storage(pool)).storage
        self.stored(storage, pool, keys)
        self.assertEqual(storage.batch_exists(keys), BATCH)
        model.weight.data.add_(1)
        self.assertEqual(storage.batch_exists(keys), 0)
        plain = getattr(storage, "_backend", storage)
        self.wait_until(lambda: all(one.connected for one in plain._pools.values()))
        self.assertEqual(storage.batch_exists(keys), 0)
        self.stored(storage, pool, keys)
        self.assertEqual(storage.batch_exists(keys), BATCH)
        self.assertEqual(self.storage(host_pool()).batch_exists(keys), BATCH)  # of those before

    def test_threads_that_have_not_been_flushed_store_no_pages_of_before(self):
        """SGLang updates weights first, and flushes then, which ends its threads."""
        model = torch.nn.Linear(8, 8)
        pool, keys = host_pool(), keys_of()
        storage = self.scheduler(model, lambda: self.storage(pool)).storage
        with ThreadPoolExecutor(1) as prefetches, ThreadPoolExecutor(1) as backups:
            prefetches.submit(storage.batch_exists, keys).result()
            backups.submit(int).result()
            model.weight.data.add_(1)
            prefetches.submit(storage.batch_exists, keys).result()
            plain = getattr(storage, "_backend", storage)
            self.wait_until(lambda: all(one.connected for one in plain._pools.values()))
            old = backups.submit(
                storage.batch_set_v1, keys, indices_of(range(BATCH), pool.page_size)
            )
            self.assertEqual(old.result(), [False] * BATCH)
        with ThreadPoolExecutor(1) as new:
            new.submit(self.stored, storage, pool, keys).result()
            self.assertEqual(new.submit(storage.batch_exists, keys).result(), BATCH)

    def test_a_load_that_an_update_overtakes_brings_nothing(self):
        model = torch.nn.Linear(8, 8)
        pool, keys = host_pool(), keys_of()
        storage = self.scheduler(model, lambda: self.storage(pool)).storage
        self.stored(storage, pool, keys)
        load = pages.PagePool.load

        def overtaken(one, *arguments):
            loaded = load(one, *arguments)
            model.weight.data.add_(1)
            return loaded

        with mock.patch.object(pages.PagePool, "load", overtaken):
            results = storage.batch_get_v1(keys, indices_of(range(BATCH), pool.page_size))
        self.assertEqual(results, [False] * BATCH)

    def test_a_storage_that_is_attached_after_an_update_is_not_named_by_the_files(self):
        with tempfile.TemporaryDirectory() as directory:
            (pathlib.Path(directory) / "model.safetensors").write_bytes(b"one")
            arguments = mock.patch.object(
                storage_module, "running_arguments", lambda: {"model_path": directory}
            )
            with arguments:
                model, pool, keys = torch.nn.Linear(8, 8), host_pool(), keys_of()
                unnamed = {"identity": ""}
                server = self.scheduler(model, lambda: self.storage(pool, extra=unnamed))
                self.stored(server.storage, pool, keys)
                again = self.storage(host_pool(), extra=unnamed)
                self.assertEqual(again.batch_exists(keys), BATCH)
                getattr(server.storage, "_backend", server.storage).close()
                model.weight.data.add_(1)
                server.attach()
                others = keys_of()
                self.assertEqual(server.storage.batch_exists(keys), 0)
                self.stored(server.storage, pool, others)
                self.assertEqual(again.batch_exists(others), 0)

    def test_experts_that_are_moved_are_no_other_weights(self):
        model = torch.nn.Sequential()
        model.add_module("attention", torch.nn.Linear(8, 8))
        model.add_module("experts", torch.nn.Linear(8, 8))
        pool, keys = host_pool(), keys_of()
        with mock.patch.object(live_weights, "_moves_experts", lambda: True):
            storage = self.scheduler(model, lambda: self.storage(pool)).storage
        self.stored(storage, pool, keys)
        model.experts.weight.data.add_(1)
        self.assertEqual(storage.batch_exists(keys), BATCH)
        model.attention.weight.data.add_(1)
        self.assertEqual(storage.batch_exists(keys), 0)

    def test_a_storage_that_is_cleared_finds_nothing_of_before(self):
        pool, keys = host_pool(), keys_of()
        storage = self.storage(pool)
        self.stored(storage, pool, keys)
        plain = getattr(storage, "_backend", storage)
        self.assertTrue(plain.clear())
        self.wait_until(lambda: all(one.connected for one in plain._pools.values()))
        self.assertEqual(storage.batch_exists(keys), 0)
        self.assertEqual(self.storage(host_pool()).batch_exists(keys), BATCH)


if __name__ == "__main__":
    unittest.main()
