# SPDX-License-Identifier: Apache-2.0
"""Adapters (LoRA) whose tensors become others, without vLLM."""

import pathlib
import tempfile
import types
import unittest
from unittest import mock

from kvtier import Retention
from kvtier.vllm import adapters
from kvtier.vllm.adapters import LoadedAdapters
from kvtier.vllm.connector_scheduler import StepPlan, Tensors
from kvtier.vllm.connector_worker import WorkerSide
from kvtier.vllm.rows import key_of
from kvtier.vllm.transfers import Transfers
from link_case import LinkCase
from test_connector_unit import SchedulerCase, hash_of, request
from test_worker_unit import block_list

A = b"the first tensors"
B = b"others"


class FakeAdapterManager:
    """vLLM's WorkerLoRAManager: the adapters that a worker has loaded, by number."""

    def __init__(self):
        self.loaded = {}
        self.before_load = lambda: None

    def list_adapters(self):
        return set(self.loaded)

    def _load_adapter(self, adapter):
        self.before_load()
        return (pathlib.Path(adapter.lora_path) / "adapter_model.bin").read_bytes()

    def add(self, adapter):
        """As a step of its requests does, and vLLM's server."""
        if adapter.lora_int_id not in self.loaded or getattr(adapter, "load_inplace", False):
            self.loaded[adapter.lora_int_id] = self._load_adapter(adapter)


class AdapterCase:
    def set_up_adapters(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name)
        self.engine = FakeAdapterManager()
        self.loaded = LoadedAdapters(self.engine)
        self.write(A)

    def write(self, tensors, path=None):
        path = path or self.path
        path.mkdir(exist_ok=True)
        (path / "adapter_model.bin").write_bytes(tensors)

    def adapter(self, number=1, path=None, **more):
        path = str(path or self.path)
        return types.SimpleNamespace(lora_name="a", lora_int_id=number, lora_path=path, **more)


class LoadedAdaptersTest(AdapterCase, unittest.TestCase):
    def setUp(self):
        self.set_up_adapters()

    def news(self):
        return self.loaded.take_news()[0]

    def test_a_load_is_told_once_by_the_files_that_were_read(self):
        self.engine.add(self.adapter())
        one = self.news()[1]
        self.assertEqual(one, Tensors(1, adapters.files_digest(str(self.path), False)))
        self.assertEqual(self.news(), {})

    def test_what_was_unloaded_and_loads_again_is_news_only_if_it_has_other_tensors(self):
        self.engine.add(self.adapter())
        one = self.news()[1]
        for tensors, news in ((A, 0), (B, 1)):
            self.write(tensors)
            self.engine.loaded.clear()
            self.engine.add(self.adapter())
            self.assertEqual(len(self.news()), news)
        self.assertFalse(self.loaded.may_store((1, one)))

    def test_tensors_that_were_there_before_others_are_not_the_same_load(self):
        """Blocks of the others may still be about to be stored."""
        for tensors in (A, B, A):
            self.write(tensors)
            self.engine.add(self.adapter(load_inplace=True))
        again = self.news()[1]
        self.assertEqual(again.change, 3)
        self.assertFalse(self.loaded.may_store((1, Tensors(1, again.digest))))
        self.assertTrue(self.loaded.may_store((1, again)))

    def test_files_that_are_replaced_while_they_are_read_tell_nothing(self):
        self.engine.before_load = lambda: self.write(B)
        self.engine.add(self.adapter())
        self.assertEqual(self.news(), {1: Tensors(1, b"")})

    def test_files_that_the_load_brings_are_those_that_were_read(self):
        """As of the hub's adapters, which vLLM downloads."""
        path = self.path / "new"
        self.engine.before_load = lambda: self.write(A, path)
        self.engine.add(self.adapter(path=path))
        self.assertEqual(self.news()[1].digest, adapters.files_digest(str(self.path), False))

    def test_an_adapter_of_the_hub_that_has_moved_on_is_the_one_that_the_load_brings(self):
        older, newer = (self.path / name for name in ("older", "newer"))
        self.write(A, older)
        self.write(B, newer)
        here = [older]
        self.engine._load_adapter = lambda adapter: here.append(newer)
        self.loaded = LoadedAdapters(self.engine)
        with mock.patch.object(adapters, "directory_of", lambda *_: (here[-1], "")):
            self.engine.add(self.adapter(path="org/adapter"))
        self.assertEqual(self.news()[1].digest, adapters.files_digest(str(newer), False))

    def test_it_answers_whether_vllm_has_loaded_one(self):
        self.engine.add(self.adapter())
        self.loaded.ask({7: 1, 8: 2})
        self.assertEqual(self.loaded.take_news()[1], {7: True, 8: False})
        self.assertEqual(self.loaded.take_news(), ({}, {}))

    def test_blocks_may_be_loaded_for_an_adapter_that_vllm_will_read_yet(self):
        tensors = Tensors(1, adapters.files_digest(str(self.path), False))
        self.assertTrue(self.loaded.may_load((1, tensors)))
        self.assertFalse(self.loaded.may_store((1, tensors)))
        self.write(B)
        self.engine.add(self.adapter())
        self.assertFalse(self.loaded.may_load((1, tensors)))
        self.assertTrue(self.loaded.may_load(None))

    def test_where_loads_cannot_be_seen_nothing_is_stored_or_loaded(self):
        self.loaded = LoadedAdapters(None)
        self.loaded.ask({7: 1})
        self.assertEqual(self.loaded.take_news(), ({}, {7: True}))
        self.assertFalse(self.loaded.may_load((1, Tensors(1, A))))


class AdapterSchedulerTest(AdapterCase, SchedulerCase):
    """The first half of each prompt is common to all."""

    def setUp(self):
        super().setUp()
        self.set_up_adapters()
        self.answers_at_once = True

    def step(self, one=None, tokens=0):
        plan = super().step(one, tokens)
        self.loaded.ask(plan.questions)
        if one is not None and one.lora_request is not None:
            self.engine.add(one.lora_request)
        self.side.hear_of_adapters(*self.loaded.take_news())
        return plan

    def request(self, name, adapter):
        one = request(64 + 5, name)
        one.lora_request = adapter
        return one

    def compute(self, one, *blocks, local_tokens=0):
        """The hashes of the request's blocks that the worker stores."""
        found = self.match(one, local_tokens)
        self.side.allocated(one, self.manager.table(one.request_id, list(blocks)), found)
        one.num_computed_tokens = local_tokens + found
        self.step(one, 64 - one.num_computed_tokens)
        stores = self.step().stores
        self.side.stored({store.number: 1 for store in stores})
        self.side.finished(one)
        return [one for store in stores if self.loaded.may_store(store.adapter) for one in store.hashes]

    def serve(self, hashes):
        self.cached |= {key_of(one, 0) for one in hashes}

    def test_blocks_of_adapters_have_hashes_of_their_own(self):
        self.write(B, self.path / "b")
        hashes = self.compute(self.request("none", None), 1, 2, 3, 4)
        self.assertEqual(hashes, [hash_of(number) for number in range(4)])
        hashes += self.compute(self.request("a", self.adapter()), 1, 2, 3, 4)
        hashes += self.compute(self.request("b", self.adapter(2, self.path / "b")), 1, 2, 3, 4)
        self.assertEqual(len(set(hashes)), 12)
        self.assertEqual({len(one) for one in hashes}, {32})

    def test_an_adapter_s_blocks_are_found_and_loaded_by_its_requests_alone(self):
        hashes = self.compute(self.request("first", self.adapter()), 1, 2, 3, 4)
        self.serve(hashes)
        self.assertEqual(self.match(self.request("other", None)), 0)
        one = self.request("second", self.adapter(2))  # not loaded yet
        self.assertEqual(self.match(one), 64)
        self.side.allocated(one, self.manager.table("second", [5, 6, 7, 8]), 64)
        (load,) = self.step().loads["second"]
        self.assertEqual(load.hashes, hashes)
        self.assertTrue(self.loaded.may_load(load.adapter))

    def test_of_an_adapter_that_vllm_may_have_loaded_the_worker_is_asked_first(self):
        one = self.request("r", self.adapter())
        self.assertIsNone(self.side.matched_tokens(one, 0))
        self.assertIsNone(self.side.matched_tokens(one, 0))
        self.assertEqual((len(self.step().questions), len(self.step().questions)), (1, 0))
        self.assertEqual(self.side.matched_tokens(one, 0), 0)
        self.manager.table("r", [1, 2, 3, 4])
        self.step(one, 64)
        self.assertEqual(self.side.matched_tokens(self.request("s", self.adapter()), 0), 0)

    def test_files_that_were_replaced_since_the_load_do_not_name_its_tensors(self):
        """As between vLLM's server loading an adapter and its first request."""
        self.engine.add(self.adapter())
        self.write(B)
        with self.assertLogs("vllm.kvtier", "WARNING"):
            self.assertEqual(self.compute(self.request("r", self.adapter()), 1, 2, 3, 4), [])
        hashes = self.compute(self.request("s", self.adapter(2)), 5, 6, 7, 8)
        self.serve(hashes)
        self.assertEqual(len(hashes), 4)
        self.assertEqual(self.match(self.request("t", self.adapter())), 0)

    def test_files_that_are_replaced_before_they_are_read_do_not_name_the_tensors(self):
        one = self.request("r", self.adapter())
        self.match(one)
        self.write(B)
        self.manager.table("r", [1, 2, 3, 4])
        (store, *_) = self.run_late(one)
        self.assertFalse(self.loaded.may_store(store.adapter))
        self.assertEqual(self.step(one, 16).stores, [])
        self.assertEqual(self.manager.pinned(), set(store.blocks))

    def run_late(self, one):
        """vLLM plans the next step before it hears of the first one's load."""
        super().step(one, 32)
        plan = super().step(one, 16)
        self.engine.add(one.lora_request)
        self.side.hear_of_adapters(*self.loaded.take_news())
        return plan.stores

    def test_of_requests_whose_adapter_is_loaded_in_place_nothing_is_stored(self):
        """Neither of those that compute then, nor of those that wait."""
        one, waits = (self.request(name, self.adapter()) for name in ("computes", "waits"))
        self.match(one)
        self.manager.table("computes", [1, 2, 3, 4])
        self.step(one, 32)
        self.match(waits)
        self.write(B)
        self.engine.add(self.adapter(load_inplace=True))
        self.step()
        self.assertEqual(self.step(one, 32).stores, [])
        self.assertEqual(self.step().stores, [])
        self.side.finished(one)
        self.assertEqual(self.compute(waits, 5, 6, 7, 8), [])
        self.assertEqual(len(self.compute(self.request("new", self.adapter()), 1, 2, 3, 4)), 4)

    def test_what_the_daemon_has_of_the_adapter_before_is_not_loaded(self):
        self.serve(self.compute(self.request("first", self.adapter()), 1, 2, 3, 4))
        one = self.request("second", self.adapter())
        self.assertEqual(self.match(one), 64)
        self.write(B)
        self.assertEqual(self.match(one), 0)
        self.assertEqual(self.match(self.request("third", self.adapter(load_inplace=True))), 0)

    def test_nothing_is_stored_on_top_of_other_tensors_kv_in_vllm_s_own_cache(self):
        """It finds blocks by name and path, which stay the same."""
        for number, more in ((1, {"load_inplace": True}), (2, {})):
            with self.subTest(number=number):
                self.write(A)
                self.compute(self.request(f"a{number}", self.adapter(**more)), 1, 2, 3, 4)
                self.write(B)
                adapter = self.adapter(number, **more)
                one = self.request(f"b{number}", adapter)
                self.assertEqual(self.compute(one, 1, 2, 7, 8, local_tokens=32), [])
                one = self.request(f"c{number}", adapter)
                self.assertEqual(len(self.compute(one, 10, 11, 12, 13)), 4)
                one = self.request(f"d{number}", adapter)
                self.assertEqual(self.compute(one, 1, 2, 7, 8, local_tokens=32), [])
                # vLLM has emptied its cache.
                self.manager.get_num_free_blocks = lambda: self.manager.num_gpu_blocks - 1
                self.match(self.request(f"e{number}", None))
                del self.manager.get_num_free_blocks
                one = self.request(f"f{number}", adapter)
                self.assertEqual(len(self.compute(one, 10, 11, 12, 13)), 4)
                one = self.request(f"g{number}", adapter)
                self.assertEqual(len(self.compute(one, 10, 11, 7, 8, local_tokens=32)), 2)

    def test_the_rest_of_a_request_that_has_loaded_its_beginning_is_stored(self):
        """vLLM says after a load that the request has its blocks once more, with no external tokens."""
        adapter = self.adapter(load_inplace=True)
        self.compute(self.request("a", adapter), 1, 2, 3, 4)
        self.write(B)
        self.serve(self.compute(self.request("b", adapter), 10, 11, 12, 13)[:2])
        one = self.request("c", adapter)
        self.assertEqual(self.match(one), 32)
        blocks = self.manager.table("c", [14, 15, 16, 17])
        self.side.allocated(one, blocks, 32)
        one.num_computed_tokens = 32
        self.side.allocated(one, blocks, 0)
        self.step(one, 32)
        self.assertEqual([store.blocks for store in self.step().stores], [[16, 17]])

    def test_requests_that_end_before_their_load_is_heard_of_leave_other_kv_than_they_named(self):
        one = self.request("r", self.adapter())
        self.match(one)
        self.manager.table("r", [1, 2, 3, 4])
        self.write(B)
        SchedulerCase.step(self, one, 64)
        self.engine.add(one.lora_request)
        self.side.finished(one)
        self.step()
        self.write(A)
        one = self.request("s", self.adapter(load_inplace=True))
        self.assertEqual(self.compute(one, 1, 2, 7, 8, local_tokens=32), [])

    def test_one_whose_files_are_not_here_is_neither_stored_nor_loaded(self):
        self.have(0, 1, 2, 3)
        (self.path / "empty").mkdir()
        for number, path in enumerate((self.path / "empty", self.path / "nothing", "org/adapter"), 10):
            one = self.request(str(number), self.adapter(number, path))
            with self.assertLogs("vllm.kvtier", "WARNING"):
                self.assertEqual(self.match(one), 0)
            self.assertEqual(self.asked, [])


class AdapterWorkerTest(AdapterCase, LinkCase):
    def setUp(self):
        super().setUp()
        self.set_up_adapters()
        link = self.open_link()
        self.ask_until(link, [0])
        self.side = WorkerSide(
            Transfers(link, settle_s=0), [16], Retention.EXTENDED, adapters=self.loaded
        )
        self.engine.add(self.adapter())
        self.tensors = self.loaded.take_news()[0][1]

    def list_of(self, block, number=0):
        blocks = block_list(block, number=number)
        blocks.adapter = 1, self.tensors
        return blocks

    def replace(self):
        self.write(B)
        self.engine.add(self.adapter(load_inplace=True))

    def test_blocks_are_not_stored_by_the_name_of_tensors_that_vllm_has_no_more(self):
        self.side.begin(StepPlan(stores=[self.list_of(1)]))
        self.replace()
        self.side.begin(StepPlan(stores=[self.list_of(2, number=5)]))
        self.side.poll()
        self.assertEqual(self.side.take_stored()[5], 1)
        self.assertEqual(set(self.daemon.blocks), {hash_of(1)})

    def test_loads_of_tensors_that_vllm_has_no_more_fail(self):
        self.side.begin(StepPlan(stores=[self.list_of(1)]))
        self.daemon.region.hold = True
        self.side.begin(StepPlan(loads={"r": [self.list_of(1)]}))
        self.replace()
        self.daemon.region.release()
        self.side.poll()
        self.assertEqual(self.side.take_loaded(), ({"r"}, {"r"}))
        self.assertEqual(self.side.take_failed_blocks(), {1})
        self.side.begin(StepPlan(loads={"r": [self.list_of(1)]}))
        self.side.poll()
        self.assertEqual(self.side.take_loaded(), ({"r"}, {"r"}))
        self.engine.loaded.clear()  # vLLM will read files anew, as long as they are the named ones
        self.side.begin(StepPlan(loads={"r": [self.list_of(1)]}))
        self.side.poll()
        self.assertEqual(self.side.take_loaded(), ({"r"}, set()))


if __name__ == "__main__":
    unittest.main()
