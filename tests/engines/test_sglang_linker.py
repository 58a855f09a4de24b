# SPDX-License-Identifier: Apache-2.0
"""SGLang's own radix cache, pools and linker factory, and a real kvtierd."""

import concurrent.futures
import threading
import types
import unittest
from unittest import mock

import sglang_modules
import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang_cache import (
    PAGE_TOKENS,
    ComponentType,
    Group,
    linker_parameters,
    mha_pool,
    mla_pool,
)
from sglang_linker_case import CONNECT_TIMEOUT_S, LinkerTestCase, equal, prompt_of, rows, seeds

import kvtier
from kvtier import _settling
from kvtier.sglang import device_pools, device_transfers, linker, linker_pools, promises


class LoadTest(LinkerTestCase):
    def test_a_prompt_that_left_the_device_comes_back_into_other_slots(self):
        for shape in ({}, {"v_head_dim": 4}, {"dtype": torch.float32}, {"layers": 1}):
            with self.subTest(str(shape)):
                pool = mha_pool(**shape)
                engine, prompt = self.engine(pool=pool), prompt_of()
                kv = self.stored(engine, prompt)
                taken = engine.allocator.alloc(3 * PAGE_TOKENS)
                self.assertTrue(equal(self.loaded(engine, prompt), kv))
                self.assertFalse(any(layer.any() for layer in engine.kv_of(taken)))

    def test_another_engine_gets_it_too(self):
        prompt = prompt_of()
        kv = self.stored(self.engine(), prompt)
        self.assertTrue(equal(self.loaded(self.engine(), prompt), kv))

    def test_prompts_that_differ_share_their_beginning(self):
        engine, prompt = self.engine(), prompt_of()
        kv = self.stored(engine, prompt)
        other = prompt_of(pages=4, after=prompt[: 5 * PAGE_TOKENS])
        found = self.loaded(engine, other)
        self.assertTrue(equal(found, rows(kv, slice(0, 5 * PAGE_TOKENS))))

    def test_what_the_device_still_has_is_not_loaded(self):
        engine, prompt = self.engine(), prompt_of()
        kv = self.stored(engine, prompt)
        half = prompt[: 6 * PAGE_TOKENS]
        engine.compute(half, next(seeds))
        self.take_stored(engine)
        found = self.loaded(engine, prompt)
        self.assertTrue(equal(found, rows(kv, slice(len(half), None))))

    def test_more_pages_than_rows_come_in_turn(self):
        pool = mha_pool()
        page_bytes = sum(buffer[:PAGE_TOKENS].nbytes for buffer in [*pool.k_buffer, *pool.v_buffer])
        engine, prompt = self.engine(pool=pool, staging_bytes=2 * 5 * page_bytes), prompt_of(17)
        kv = self.stored(engine, prompt)
        self.assertTrue(equal(self.loaded(engine, prompt), kv))

    def test_requests_of_one_batch_load_together(self):
        engine, prompts = self.engine(), [prompt_of(3), prompt_of(4)]
        kept = [self.stored(engine, prompt) for prompt in prompts]
        admitted = [engine.match(prompt)[0] for prompt in prompts]
        for request in admitted:
            engine.admit(request)
        engine.start_loading()
        for request, kv in zip(admitted, kept):
            self.assertTrue(equal(engine.forward(request.slots), kv))
        self.assertFalse(engine.failed(admitted[0]))

    def test_requests_of_one_batch_may_load_the_same_pages(self):
        engine, prompt = self.engine(), prompt_of(3)
        kv = self.stored(engine, prompt)
        admitted = [engine.match(prompt)[0] for _ in range(2)]
        for request in admitted:
            engine.admit(request)
        engine.start_loading()
        for request in admitted:
            self.assertTrue(equal(engine.forward(request.slots), kv))
        self.assertFalse(engine.failed(admitted[0]))

    def test_a_layer_can_be_read_before_the_next_one_is_there(self):
        engine, prompt = self.engine(), prompt_of()
        kv = self.stored(engine, prompt)
        go_on = threading.Event()
        scatter = device_pools.DevicePages.scatter

        def slow(pages, layer, *more):
            if layer == 2:
                self.assertTrue(go_on.wait(CONNECT_TIMEOUT_S))
            scatter(pages, layer, *more)

        with mock.patch.object(device_pools.DevicePages, "scatter", slow):
            request = self.begin(engine, prompt)
            for layer in (0, 1):
                found = [buffer[request.slots] for buffer in engine.pool.get_kv_buffer(layer)]
                self.assertTrue(equal(found, kv[2 * layer : 2 * layer + 2]))
            index = engine.linker.layer_done_counter.consumer_index
            self.assertFalse(engine.linker.layer_done_counter.futures[index][2].done())
            go_on.set()
            self.assertTrue(equal(engine.forward(request.slots), kv))
        self.assertFalse(engine.failed(request))

    def test_a_layer_is_copied_once_it_has_come(self):
        engine, prompt = self.engine(), prompt_of()
        self.stored(engine, prompt)
        log = []
        scatter, wait_layers = device_pools.DevicePages.scatter, kvtier.Region.wait_layers

        def copy(pages, layer, *more):
            log.append(f"copy {layer}")
            scatter(pages, layer, *more)

        def wait(region, transfer, layers, timeout_ms):
            wait_layers(region, transfer, layers, timeout_ms)
            log.append(f"has {layers}")

        with mock.patch.object(device_pools.DevicePages, "scatter", copy):
            with mock.patch.object(kvtier.Region, "wait_layers", wait):
                self.loaded(engine, prompt)
        self.assertEqual(log, ["has 1", "copy 0", "has 2", "copy 1", "has 3", "copy 2"])

    def test_a_request_that_ends_before_its_load_begins_loads_nothing(self):
        engine, prompt = self.engine(), prompt_of()
        self.stored(engine, prompt)
        request, _ = engine.match(prompt)
        engine.admit(request)
        engine.cache.linker.release_request(request.rid)
        self.assertEqual(engine.start_loading(), -1)
        self.assertFalse(engine.failed(request))
        self.assertFalse(any(layer.any() for layer in engine.kv_of(request.slots)))

    def test_a_reset_waits_for_copies_and_forgets_what_was_queued(self):
        """Stored tokens go, too, for SGLang resets its caches when it has updated the weights."""
        engine, other, prompt = self.engine(), self.engine(), prompt_of()
        kv = engine.compute(prompt, next(seeds))
        engine.cache.reset()
        self.assertEqual(engine.linker.num_completed_offloads(), 0)
        self.wait_until(lambda: engine.linker.connected)
        self.assertEqual(engine.match(prompt)[1], 0)
        self.assertTrue(equal(self.loaded(other, prompt), kv))
        kv = self.stored(engine, prompt)
        self.assertTrue(equal(self.loaded(engine, prompt), kv))

    def test_a_version_of_the_weights_names_them_for_other_engines(self):
        engine, prompt = self.engine(weights_run="a run"), prompt_of()
        other = self.engine(weights_run="a run")

        def update(one, version):
            with mock.patch.object(linker, "weight_version", lambda: version):
                one.cache.reset()
                one.cache.reset()  # as trainers do that flush by hand, too
                one.match(prompt_of())
            self.wait_until(lambda: one.linker.connected)

        update(engine, "1")
        kv = self.stored(engine, prompt)
        self.assertEqual(other.match(prompt)[1], 0)
        update(other, "1")
        self.assertTrue(equal(self.loaded(other, prompt), kv))
        update(other, "2")
        self.assertEqual(other.match(prompt)[1], 0)


class PromiseTest(LinkerTestCase):
    """Offered pages stay until they are loaded, and no longer."""

    def setUp(self):
        longer = mock.patch.object(promises, "_PROMISE_MS", 600_000)  # none ends by itself
        longer.start()
        self.addCleanup(longer.stop)

    def pinned(self):
        self.daemon.settle()
        return self.daemon.status()["pinned_blocks"]

    def test_pages_are_pinned_from_their_lookup_until_their_load_has_ended(self):
        engine, prompt = self.engine(), prompt_of()
        self.stored(engine, prompt)
        request, _ = engine.match(prompt)
        self.assertGreater(self.pinned(), 0)
        engine.admit(request)
        engine.start_loading()
        engine.forward(request.slots)
        self.wait_until(lambda: self.pinned() == 0)

    def test_a_request_that_is_looked_up_again_and_again_while_it_waits_leaves_no_page_pinned(self):
        engine, prompt = self.engine(), prompt_of()
        self.stored(engine, prompt)
        request, offered = engine.match(prompt)
        for _ in range(3):
            self.assertEqual(engine.match(prompt, request)[1], offered)
        # Others have left some of its pages on the device meanwhile.
        engine.compute(prompt[: 4 * PAGE_TOKENS], next(seeds))
        engine.match(prompt, request)
        engine.admit(request)
        engine.start_loading()
        engine.forward(request.slots)
        self.wait_until(lambda: self.pinned() == 0)

    def test_pages_that_another_request_was_promised_stay_pinned(self):
        engine, prompt = self.engine(), prompt_of()
        self.stored(engine, prompt)
        engine.match(prompt)
        self.loaded(engine, prompt)
        self.assertGreater(self.pinned(), 0)


class FewPinsTest(LinkerTestCase):
    @classmethod
    def settings(cls):
        """Half of the disk's blocks may be pinned, which are fewer than the pages of a prompt."""
        return [*super().settings(), "cache.slab_bytes=64KiB", "disk.bytes=1152KiB"]

    def test_where_not_all_pages_may_be_pinned_a_shorter_prefix_is_offered(self):
        engine, prompt = self.engine(layer_parts=1), prompt_of()
        kv = self.stored(engine, prompt)
        loaded = self.loaded(engine, prompt)
        half = len(prompt) // 2
        self.assertTrue(equal(loaded, rows(kv, slice(0, half))))


class StoreTest(LinkerTestCase):
    def test_pages_are_read_once_the_streams_that_write_them_have_come_so_far(self):
        engine = self.engine()
        gather = device_pools.DevicePages.gather

        def logged(*arguments):
            sglang_modules.Event.log.append(("read", None))
            gather(*arguments)

        sglang_modules.Event.log.clear()
        with mock.patch.object(device_pools.DevicePages, "gather", logged):
            self.stored(engine, prompt_of())
        streams = [("recorded", None), ("recorded", "the forward's stream")]
        waits = [("waited", None)] * 2
        self.assertEqual(sglang_modules.Event.log, [*streams, *waits, ("read", None)])

    def test_pages_that_were_not_stored_are_stored_when_they_are_used_again(self):
        engine, prompt = self.engine(), prompt_of()
        with mock.patch.object(linker_pools, "store", return_value=False):
            engine.compute(prompt, next(seeds))
            self.take_stored(engine)
        self.assertEqual(self.engine().match(prompt)[1], 0)
        engine.compute(prompt, next(seeds))
        self.take_stored(engine)
        self.assertEqual(self.engine().match(prompt)[1], len(prompt))


class IdentityTest(LinkerTestCase):
    def test_pages_of_other_engines_are_not_offered(self):
        prompt = prompt_of()
        self.stored(self.engine(), prompt)
        self.assertEqual(self.engine().match(prompt)[1], len(prompt))
        others = [
            {"model": "other/model"},
            {"identity": "other"},
            {"pool": mha_pool(torch.float16)},
            {"pool": mha_pool(v_head_dim=4)},
            {"pool": mha_pool(layers=2)},
            {"group": Group(1, 2)},
        ]
        for other in others:
            with self.subTest(str(other)):
                engine = self.engine(**other)
                # One rank alone, without those that it would ask.
                engine.cache.attn_tp_group = None
                self.assertEqual(engine.match(prompt)[1], 0)

    def test_pools_that_cannot_be_served_are_an_error_at_the_start(self):
        for argument, reason in (
            ({"enable_memory_saver": True}, "memory-saver"),
            ({"dcp_size": 2}, "dcp-size"),
        ):
            server = types.SimpleNamespace(model_path="some/model", **argument)
            with self.assertRaisesRegex(ValueError, reason):
                linker.KvtierLinker(server, linker_parameters(mha_pool()), components={ComponentType.FULL})
        scaled = mha_pool()
        scaled.k_scale_buffer = scaled.k_buffer
        with self.assertRaisesRegex(ValueError, "scaled"):
            self.engine(pool=scaled)
        params = types.SimpleNamespace(page_size=PAGE_TOKENS)
        components = {ComponentType.FULL}
        with self.assertRaises(ValueError):
            device_pools.device_pool_group(object(), params, components)
        for pools in ({ComponentType.MAMBA}, {*components, ComponentType.SWA}):
            with self.assertRaisesRegex(ValueError, "no such pools"):
                device_pools.device_pool_group(mha_pool(), params, pools)
        params.mtp_draft_device_pools = (mha_pool(),)
        with self.assertRaisesRegex(ValueError, "draft"):
            device_pools.device_pool_group(mha_pool(), params, components)


class RanksTest(LinkerTestCase):
    """Two tensor-parallel ranks, which agree as SGLang's do."""

    def setUp(self):
        self.executor = concurrent.futures.ThreadPoolExecutor(2)
        self.addCleanup(self.executor.shutdown)

    def ranks(self, make_pool=mha_pool):
        return [self.engine(pool=make_pool(), group=group) for group in Group.of_threads(2)]

    def together(self, call, *arguments):
        """On both ranks at once; each argument has a value for each rank."""
        futures = [self.executor.submit(call, *one) for one in zip(*arguments)]
        return [future.result(CONNECT_TIMEOUT_S) for future in futures]

    def test_ranks_with_different_hits_load_the_shorter_prefix_each_its_own(self):
        ranks, prompt = self.ranks(), prompt_of()
        kept = self.together(self.stored, ranks, [prompt] * 2)
        longer = prompt_of(pages=4, after=prompt)
        # Only one of them has the end, for it fails to be stored on the other.
        with mock.patch.object(linker_pools, "store", side_effect=self.only(ranks[0])):
            self.together(self.stored, ranks, [longer] * 2)
        found = self.together(self.loaded, ranks, [longer] * 2)
        self.assertTrue(all(map(equal, found, kept)))
        self.assertFalse(equal(*found))

    def only(self, engine):
        """A `store` of one rank that works."""
        own = engine.linker._pools._pools[PoolName.KV][0]
        return lambda pool, *more, **names: pool is own and device_transfers.store(
            pool, *more, **names
        )

    def test_a_load_that_fails_on_one_rank_fails_on_both(self):
        ranks, prompt = self.ranks(), prompt_of()
        self.together(self.stored, ranks, [prompt] * 2)
        matched = self.together(lambda rank: rank.match(prompt), ranks)
        first = ranks[0].linker._pools._pools[PoolName.KV][0].pages
        scatter = device_pools.DevicePages.scatter

        def broken(pages, *more):
            if pages is first:
                raise RuntimeError("broken")
            scatter(pages, *more)

        with mock.patch.object(device_pools.DevicePages, "scatter", broken):
            with self.assertLogs("sglang.kvtier", "ERROR") as log:
                for rank, (request, offered) in zip(ranks, matched):
                    self.assertEqual(rank.admit(request), offered)
                    rank.start_loading()
                requests = [request for request, _ in matched]
                failed = self.together(lambda rank, one: rank.failed(one), ranks, requests)
                # SGLang is told first.
                self.wait_until(lambda: log.output)
        self.assertEqual(failed, [True, True])

    def test_latent_pages_are_stored_by_one_rank_and_loaded_by_all(self):
        ranks = self.ranks(mla_pool)
        self.check_latent_pages(ranks)
        self.together(lambda rank: rank.cache.reset(), ranks)
        for rank in ranks:
            self.wait_until(lambda rank=rank: rank.linker.connected)
        self.check_latent_pages(ranks)

    def check_latent_pages(self, ranks):
        prompt = prompt_of()
        kv = torch.randn(len(prompt), *ranks[0].pool.kv_buffer[0].shape[1:]).bfloat16()

        def compute(rank):
            slots = rank.allocator.alloc(len(prompt))
            for buffer in rank.pool.kv_buffer:
                buffer[slots] = kv
            rank.insert(prompt, slots)
            self.take_stored(rank)
            rank.forget()

        with mock.patch.object(linker_pools, "store", wraps=device_transfers.store) as store:
            self.together(compute, ranks)
        self.assertEqual(store.call_count, 1)
        requests = self.together(lambda rank: self.begin(rank, prompt), ranks)
        for rank, request in zip(ranks, requests):
            for layer in range(rank.pool.layer_num):
                self.assertTrue(torch.equal(rank.pool.get_key_buffer(layer)[request.slots], kv))


class FailureTest(LinkerTestCase):
    def setUp(self):
        self.addCleanup(self.daemon.start)
        self.addCleanup(self.daemon.kill)

    def test_without_a_daemon_all_is_a_miss_until_it_is_there(self):
        self.daemon.kill()
        engine, prompt = self.engine(wait=False), prompt_of()
        engine.compute(prompt, next(seeds))
        self.take_stored(engine)
        engine.forget()
        self.assertEqual(engine.match(prompt)[1], 0)
        self.daemon.start()
        self.wait_until(lambda: engine.linker.connected)
        kv = self.stored(engine, prompt)
        self.assertTrue(equal(self.loaded(engine, prompt), kv))

    def test_pages_survive_kill_9_on_disk(self):
        engine, prompt = self.engine(), prompt_of()
        kv = self.stored(engine, prompt)
        self.daemon.drain()
        self.daemon.kill()
        self.wait_until(lambda: not engine.linker.connected)
        self.daemon.start()
        self.wait_until(lambda: engine.linker.connected)
        self.assertTrue(equal(self.loaded(engine, prompt), kv))

    def test_a_daemon_that_dies_while_it_loads_costs_the_requests_of_the_batch(self):
        engine, prompt = self.engine(), prompt_of()
        self.stored(engine, prompt)
        request, _ = engine.match(prompt)
        engine.admit(request)
        # It cannot answer before it is killed.
        self.daemon.pause()
        killer = threading.Timer(0.2, self.daemon.kill)
        killer.start()
        # No daemon of these tests outlives the connection to it.
        with mock.patch.object(_settling, "LONGEST_S", 0):
            engine.start_loading()
            engine.forward(request.slots)
            self.assertTrue(engine.failed(request))
            killer.join()
            self.daemon.start()
            self.wait_until(lambda: engine.linker.connected)
        kv = self.stored(engine, prompt_again := prompt_of())
        self.assertTrue(equal(self.loaded(engine, prompt_again), kv))

    def test_a_daemon_that_hangs_holds_a_forward_for_a_limited_time(self):
        engine, prompt = self.engine(load_timeout_ms=2000), prompt_of()
        kv = self.stored(engine, prompt)
        first, second = (engine.match(prompt)[0] for _ in range(2))
        self.daemon.pause()
        self.addCleanup(self.daemon.resume)
        engine.admit(first)
        engine.start_loading()
        engine.forward(first.slots)
        self.assertTrue(engine.failed(first))
        # One that was promised its pages before.
        engine.admit(second)
        engine.start_loading()
        engine.forward(second.slots)
        self.assertTrue(engine.failed(second))
        self.assertEqual(engine.match(prompt)[1], 0)
        self.daemon.resume()
        self.wait_until(lambda: engine.linker.connected and engine.match(prompt)[1])
        self.assertTrue(equal(self.loaded(engine, prompt), kv))

    def test_a_daemon_that_hangs_holds_stores_and_a_flush_for_a_limited_time(self):
        engine, prompt = self.engine(load_timeout_ms=1000), prompt_of()
        self.stored(engine, prompt)
        self.daemon.pause()
        self.addCleanup(self.daemon.resume)
        for seed in (5, 6):
            engine.compute(prompt_of(), seed)
        self.take_stored(engine)
        engine.compute(prompt_of(), 7)
        waiting = engine.linker._storer.take_waiting()
        self.assertLessEqual(len(waiting), 1)  # of those from before it was known to hang
        engine.cache.reset()
        self.daemon.resume()
        self.wait_until(lambda: engine.linker.connected)
        # The flush leaves nothing of before to be found, and stores go on.
        self.assertEqual(engine.match(prompt)[1], 0)
        kv = self.stored(engine, prompt)
        self.assertTrue(equal(self.loaded(engine, prompt), kv))


if __name__ == "__main__":
    unittest.main()
