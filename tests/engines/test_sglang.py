# SPDX-License-Identifier: Apache-2.0
"""SGLang's own storage factory and host pools, and a real kvtierd."""

import dataclasses
import hashlib
import itertools
import os
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import sglang_modules  # noqa: F401 - imported because it makes `import sglang` find the wheel's
import torch
from harness.shared_daemon import SharedDaemonCase
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    HiCacheStorageFailureInjector,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.pool_host.common import get_allocator_from_storage
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

from kvtier import _settling
from kvtier.sglang import KvtierStorage, pages

PAGE_TOKENS, PAGES, BATCH = 16, 40, 12
LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
CONNECT_TIMEOUT_S = 120
seeds = itertools.count()
CONFIG = HiCacheStorageConfig(
    tp_rank=0,
    tp_size=2,
    pp_rank=0,
    pp_size=1,
    attn_cp_rank=0,
    attn_cp_size=1,
    is_mla_model=False,
    enable_storage_metrics=False,
    is_page_first_layout=True,
    model_name="some/model",
)


def host_pool(
    layout="page_first",
    allocator="shm",
    dtype=torch.bfloat16,
    page_tokens=PAGE_TOKENS,
    page_num=PAGES,
):
    """SGLang's pool of host memory, without the GPU's pool that it is made beside."""
    pool = MHATokenToKVPoolHost.__new__(MHATokenToKVPoolHost)
    pool.layout, pool.dtype, pool.device, pool.pin_memory = layout, dtype, "cpu", False
    pool.page_size, pool.page_num, pool.size = page_tokens, page_num, page_num * page_tokens
    pool.layer_num, pool.head_num, pool.head_dim, pool.v_head_dim = 3, 2, 8, 8
    pool.start_layer, pool.end_layer, pool.head_group_num = 0, 3, 1
    pool._transfer_device = torch.device("cpu")
    pool.allocator = get_allocator_from_storage(allocator)
    pool.kv_buffer = pool.init_kv_buffer()
    pool.fd = getattr(pool.allocator, "fd", None)
    return pool


def fill(pool, seed):
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 256, (pool.kv_buffer.nbytes,), generator=generator).to(torch.uint8)
    pool.kv_buffer.copy_(bits.view(pool.dtype).view(pool.kv_buffer.shape))


def page_bytes(pool, page):
    return bytes(pool.get_data_page(page * pool.page_size).view(torch.uint8).numpy())


def indices_of(numbers, page_tokens=PAGE_TOKENS):
    return torch.cat([torch.arange(n * page_tokens, (n + 1) * page_tokens) for n in numbers])


def keys_of(count=BATCH):
    """Keys like SGLang's, of a sequence that no other has the beginning of."""
    seed = next(seeds)
    return [hashlib.sha256(f"{seed} {i}".encode()).hexdigest() for i in range(count)]


class SglangTestCase(SharedDaemonCase, unittest.TestCase):
    def storage(self, pool, wait=True, **config):
        """As SGLang makes it."""
        extra = {
            "backend_name": "kvtier",
            "module_path": "kvtier.sglang",
            "class_name": "KvtierStorage",
            "interface_v1": 1,
            "socket": self.daemon.socket,
            "retry_max_ms": 50,
            "identity": "tests",
            **config.pop("extra", {}),
        }
        changed = dataclasses.replace(CONFIG, extra_config=extra, **config)
        storage = StorageBackendFactory.create_backend("dynamic", changed, pool)
        plain = getattr(storage, "_backend", storage)
        self.addCleanup(plain.close)
        storage.register_mem_pool_host(pool)
        storage.on_host_pools_registered()
        if wait:
            self.wait_until(lambda: all(one.connected for one in plain._pools.values()))
        return storage

    def wait_until(self, condition):
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.005)

    def stored(self, storage, pool, keys, first=0):
        """Stores pages `first`, ... under the keys; returns their bytes."""
        numbers = range(first, first + len(keys))
        extra = HiCacheStorageExtraInfo(prefix_keys=[])
        results = storage.batch_set_v1(keys, indices_of(numbers, pool.page_size), extra)
        self.assertTrue(all(results))
        return [page_bytes(pool, number) for number in numbers]


class PagesTest(SglangTestCase):
    def test_pages_of_every_layout_come_back_into_other_places(self):
        for layout, allocator in itertools.product(LAYOUTS, ("shm", "default")):
            with self.subTest(f"{layout}, {allocator}"):
                pool = host_pool(layout, allocator)
                storage, keys = self.storage(pool), keys_of()
                self.assertIsInstance(storage, KvtierStorage)
                self.assertEqual(storage._pools["kv"].in_place, allocator == "shm")
                fill(pool, 1)
                before = self.stored(storage, pool, keys)
                self.assertEqual(storage.batch_exists(keys), BATCH)
                pool.kv_buffer.zero_()
                places = list(reversed(range(20, 20 + BATCH)))
                self.assertEqual(storage.batch_get_v1(keys, indices_of(places)), [True] * BATCH)
                self.assertEqual([page_bytes(pool, place) for place in places], before)
                untouched = [page for page in range(PAGES) if page not in places]
                self.assertFalse(any(any(page_bytes(pool, page)) for page in untouched))
                storage.close()

    def test_hits_are_the_pages_from_the_first_on(self):
        pool = host_pool()
        storage, keys = self.storage(pool), keys_of()
        self.stored(storage, pool, keys[:5])
        self.stored(storage, pool, keys[7:], first=7)
        self.assertEqual(storage.batch_exists(keys), 5)
        self.assertEqual(storage.batch_exists(keys[5:]), 0)
        expected = [i < 5 or i >= 7 for i in range(BATCH)]
        self.assertEqual(storage.batch_get_v1(keys, indices_of(range(BATCH))), expected)

    def test_more_pages_than_one_call_of_the_daemon_takes(self):
        # Windows, as SGLang hands them over whole.
        for allocator, window in (("shm", 8_500), ("default", 150)):
            with self.subTest(allocator):
                options = {"page_tokens": 1, "page_num": 9_000, "allocator": allocator}
                pool, keys = host_pool(**options), keys_of(20_000)
                fill(pool, 1)
                storage = self.storage(pool)
                wanted = self.stored(storage, pool, keys[:window])
                self.assertEqual(storage.batch_exists(keys), window)
                into = host_pool(**options)
                indices = torch.arange(300, 300 + window)
                loaded = self.storage(into).batch_get_v1(keys[:window], indices)
                self.assertTrue(all(loaded))
                self.assertTrue(wanted == [page_bytes(into, page) for page in indices.tolist()])

    def test_a_pool_of_more_pages_than_a_region_has_blocks(self):
        """Pages of one token, SGLang's default, in a pool of some 17 GB."""
        pool, keys = host_pool(page_tokens=1, page_num=(1 << 20) + BATCH), keys_of()
        last = torch.arange(1 << 20, (1 << 20) + BATCH)
        pool.kv_buffer.flatten()[-1000:] = 1
        storage = self.storage(pool)
        before = self.stored(storage, pool, keys, first=1 << 20)
        self.assertEqual(storage.batch_get_v1(keys, last - BATCH), [True] * BATCH)
        self.assertEqual([page_bytes(pool, int(page) - BATCH) for page in last], before)

    def test_the_prefix_before_a_call_is_the_parent(self):
        pool = host_pool()
        storage, keys = self.storage(pool), keys_of()
        self.stored(storage, pool, keys[:4])
        extra = HiCacheStorageExtraInfo(prefix_keys=keys[:4])
        with mock.patch.object(pages.PagePool, "store", return_value=[True] * 8) as store:
            storage.batch_set_v1(keys[4:], indices_of(range(4, BATCH)), extra)
        _, _, parents, depth = store.call_args.args
        self.assertEqual(parents, [bytes.fromhex(key) for key in keys[3:-1]])
        self.assertEqual(depth, 4)

    def test_wrong_indices_fail_and_touch_nothing(self):
        pool = host_pool()
        storage, keys = self.storage(pool), keys_of(2)
        for indices in (indices_of([0]), indices_of([0, 1]) + 3, None):
            self.assertEqual(storage.batch_set_v1(keys, indices), [False] * 2)
            self.assertEqual(storage.batch_get_v1(keys, indices), [False] * 2)
        self.assertEqual(storage.batch_exists(keys), 0)

    def test_keys_of_any_form_are_told_apart(self):
        pool = host_pool()
        fill(pool, 2)
        storage, keys = self.storage(pool), ["a", "b", keys_of(1)[0] + ".suffix"]
        before = self.stored(storage, pool, keys)
        self.assertEqual(storage.batch_get_v1(keys, indices_of([5, 6, 7])), [True] * 3)
        self.assertEqual([page_bytes(pool, page) for page in (5, 6, 7)], before)

    def test_a_configuration_that_cannot_work_is_an_error_at_the_start(self):
        for extra, more in (({"interface_v1": 0}, {}), ({}, {"should_split_heads": True})):
            with self.assertRaises(ValueError):
                self.storage(host_pool(), extra=extra, **more)


class IdentityTest(SglangTestCase):
    def test_pages_of_other_engines_are_not_served(self):
        pool, keys = host_pool(), keys_of()
        self.stored(self.storage(pool), pool, keys)
        self.assertEqual(self.storage(host_pool()).batch_exists(keys), BATCH)
        others = [
            ({"tp_rank": 1}, host_pool()),
            ({"tp_size": 4}, host_pool()),
            ({"pp_rank": 1, "pp_size": 2}, host_pool()),
            ({"attn_cp_rank": 1, "attn_cp_size": 2}, host_pool()),
            ({"model_name": "other/model"}, host_pool()),
            ({"extra": {"identity": "other"}}, host_pool()),
            ({}, host_pool(dtype=torch.float16)),
            ({}, host_pool(layout="page_first_direct")),
            ({}, host_pool(page_tokens=32)),
        ]
        for config, other in others:
            with self.subTest(str(config)):
                self.assertEqual(self.storage(other, **config).batch_exists(keys), 0)

    def test_latent_pages_are_those_of_all_ranks(self):
        pool, keys = host_pool(), keys_of()
        self.stored(self.storage(pool, is_mla_model=True), pool, keys)
        other = self.storage(host_pool(), is_mla_model=True, tp_rank=1)
        self.assertEqual(other.batch_exists(keys), BATCH)


class PoolsTest(SglangTestCase):
    """The second interface: several pools, whose hit policies differ."""

    def setUp(self):
        self.pool, self.states, self.indexer = host_pool(), host_pool(), host_pool()
        self.backend = self.storage(self.pool, wait=False)
        self.backend.register_mem_host_pool_v2(self.pool, PoolName.KV)
        self.backend.register_mem_host_pool_v2(self.states, PoolName.MAMBA)
        self.backend.register_mem_host_pool_v2(self.indexer, PoolName.INDEXER)
        self.wait_until(lambda: all(one.connected for one in self.backend._pools.values()))
        self.keys = keys_of()

    def put(self, name, numbers):
        keys = [self.keys[number] for number in numbers]
        transfer = PoolTransfer(name=name, host_indices=indices_of(numbers), keys=keys)
        results = self.backend.batch_set_v2([transfer])
        self.assertEqual(results, {name: [True] * len(keys)})

    def ask(self, name, policy, **more):
        return self.backend.batch_exists_v2(
            self.keys, [PoolTransfer(name=name, hit_policy=policy, **more)]
        )

    def test_pages_of_pools_do_not_meet(self):
        for seed, pool in enumerate((self.pool, self.states, self.indexer)):
            fill(pool, seed)
        names = (PoolName.KV, PoolName.MAMBA, PoolName.INDEXER)
        for name in names:
            self.put(name, range(4))
        for name, pool in zip(names, (self.pool, self.states, self.indexer)):
            before = [page_bytes(pool, page) for page in range(4)]
            places = indices_of(range(8, 12))
            transfer = PoolTransfer(name=name, host_indices=places, keys=self.keys[:4])
            self.assertEqual(self.backend.batch_get_v2([transfer]), {name: [True] * 4})
            self.assertEqual([page_bytes(pool, page) for page in range(8, 12)], before)

    def test_a_pool_of_all_pages_shortens_the_prefix(self):
        self.put(PoolName.KV, range(10))
        self.put(PoolName.INDEXER, [0, 1, 2, 3, 5])
        result = self.ask(PoolName.INDEXER, PoolHitPolicy.ALL_PAGES)
        self.assertEqual(result.kv_hit_pages, 4)
        self.assertEqual(result.restorable_prefix_pages, [1, 2, 3, 4])
        self.assertEqual(result.extra_pool_hit_pages, {PoolName.KV: 10, PoolName.INDEXER: 4})

    def test_a_pool_of_trailing_pages_leaves_holes(self):
        self.put(PoolName.KV, range(10))
        self.put(PoolName.MAMBA, [2, 6, 7, 11])
        one = self.ask(PoolName.MAMBA, PoolHitPolicy.TRAILING_PAGES, keys=self.keys[:1])
        self.assertEqual((one.kv_hit_pages, one.restorable_prefix_pages), (8, [3, 7, 8]))
        two = self.ask(PoolName.MAMBA, PoolHitPolicy.TRAILING_PAGES, keys=self.keys[:2])
        self.assertEqual((two.kv_hit_pages, two.restorable_prefix_pages), (8, [8]))

    def test_a_pool_of_block_groups_says_only_what_it_has(self):
        self.put(PoolName.KV, range(10))
        self.put(PoolName.INDEXER, [0, 1, 4, 5, 8])
        result = self.ask(
            PoolName.INDEXER, PoolHitPolicy.BLOCK_GROUPS, block_pages=4, group_pages=2
        )
        self.assertEqual(result.kv_hit_pages, 10)
        self.assertEqual(result.extra_pool_hit_pages[PoolName.INDEXER], 8)

    def test_a_pool_without_pages_is_a_miss(self):
        self.backend.register_mem_host_pool_v2(object(), PoolName.SWA)
        self.put(PoolName.KV, range(4))
        self.assertEqual(self.ask(PoolName.SWA, PoolHitPolicy.ALL_PAGES).kv_hit_pages, 0)

    def test_a_pool_that_was_never_registered_is_a_miss(self):
        self.put(PoolName.KV, range(4))
        self.assertEqual(self.ask(PoolName.SWA, PoolHitPolicy.ALL_PAGES).kv_hit_pages, 0)
        transfer = PoolTransfer(PoolName.SWA, indices_of([0]), keys=self.keys[:1])
        self.assertEqual(self.backend.batch_get_v2([transfer]), {PoolName.SWA: [False]})


class RanksTest(SglangTestCase):
    """Two tensor-parallel ranks, which take the smallest of what they are told, as SGLang's
    controller does by all_reduce."""

    def setUp(self):
        self.pools = [host_pool(), host_pool()]
        self.ranks = [self.storage(pool, tp_rank=rank) for rank, pool in enumerate(self.pools)]
        self.keys = keys_of()
        for seed, pool in enumerate(self.pools):
            fill(pool, 40 + seed)

    def load(self, count):
        """Loads the first pages on both ranks; whether each page came, and their bytes."""
        places = range(20, 20 + count)
        came = [rank.batch_get_v1(self.keys[:count], indices_of(places)) for rank in self.ranks]
        return came, [[page_bytes(pool, place) for place in places] for pool in self.pools]

    def test_ranks_with_different_hits_load_the_shorter_prefix_each_its_own(self):
        stored = [
            self.stored(rank, pool, self.keys[:count])
            for rank, pool, count in zip(self.ranks, self.pools, (BATCH, 7))
        ]
        hits = [rank.batch_exists(self.keys) for rank in self.ranks]
        self.assertEqual(hits, [BATCH, 7])
        came, found = self.load(min(hits))
        self.assertEqual(came, [[True] * 7] * 2)
        self.assertEqual(found, [pages[:7] for pages in stored])
        self.assertNotEqual(found[0], found[1])

    def test_what_only_one_rank_lost_shortens_what_both_have(self):
        stored = [self.stored(rank, pool, self.keys) for rank, pool in zip(self.ranks, self.pools)]
        # Between the question and the load, as when the daemon evicted it.
        lost = self.keys[4]
        self.keys[4] = keys_of(1)[0]
        came = [
            self.ranks[0].batch_get_v1([*self.keys[:4], lost], indices_of(range(20, 25))),
            self.ranks[1].batch_get_v1(self.keys[:5], indices_of(range(20, 25))),
        ]
        self.assertEqual(came, [[True] * 5, [True] * 4 + [False]])
        usable = min(one.index(False) if False in one else len(one) for one in came)
        for pool, pages_stored in zip(self.pools, stored):
            found = [page_bytes(pool, 20 + page) for page in range(usable)]
            self.assertEqual(found, pages_stored[:usable])

    def test_ranks_with_different_states_agree_on_a_length_that_both_can_restore(self):
        transfers = []
        for rank, pages_stored in zip(self.ranks, ([2, 6, 9], [2, 4, 6])):
            states = host_pool()
            rank.register_mem_host_pool_v2(states, PoolName.MAMBA)
            self.wait_until(lambda rank=rank: rank._pools[PoolName.MAMBA.value].connected)
            keys = [self.keys[page] for page in pages_stored]
            transfer = PoolTransfer(PoolName.MAMBA, indices_of(pages_stored), keys=keys)
            self.assertEqual(rank.batch_set_v2([transfer]), {PoolName.MAMBA: [True] * 3})
            policy = PoolHitPolicy.TRAILING_PAGES
            transfers.append(PoolTransfer(PoolName.MAMBA, keys=self.keys[:1], hit_policy=policy))
        for rank, pool in zip(self.ranks, self.pools):
            self.stored(rank, pool, self.keys)
        told = [
            rank.batch_exists_v2(self.keys, [transfer])
            for rank, transfer in zip(self.ranks, transfers)
        ]
        self.assertEqual([one.kv_hit_pages for one in told], [10, 7])
        self.assertEqual([one.restorable_prefix_pages for one in told], [[3, 7, 10], [3, 5, 7]])
        agreed = set(told[0].restorable_prefix_pages) & set(told[1].restorable_prefix_pages)
        came, _ = self.load(max(agreed))
        self.assertEqual(came, [[True] * 7] * 2)
        for rank in self.ranks:
            state = PoolTransfer(PoolName.MAMBA, indices_of([30]), keys=[self.keys[6]])
            self.assertEqual(rank.batch_get_v2([state]), {PoolName.MAMBA: [True]})


class FailureTest(SglangTestCase):
    def setUp(self):
        self.addCleanup(self.daemon.start)
        self.addCleanup(self.daemon.kill)

    def test_without_a_daemon_all_is_a_miss_until_it_is_there(self):
        for allocator in ("shm", "default"):
            with self.subTest(allocator):
                self.daemon.kill()
                pool, keys = host_pool(allocator=allocator), keys_of()
                with self.assertLogs("sglang.kvtier", "WARNING") as log:
                    storage = self.storage(pool, wait=False)
                    self.wait_until(lambda: log.output)
                self.assertIn("no region: ", log.output[0])
                self.assertEqual(storage.batch_exists(keys), 0)
                for call in (storage.batch_set_v1, storage.batch_get_v1):
                    self.assertEqual(call(keys, indices_of(range(BATCH))), [False] * BATCH)
                self.daemon.start()
                self.wait_until(lambda: storage._pools["kv"].connected)
                self.stored(storage, pool, keys)
                self.assertEqual(storage.batch_exists(keys), BATCH)

    def test_memory_that_cannot_be_had_is_asked_for_again(self):
        refusals = itertools.chain([OSError("no memory")], itertools.repeat(mock.DEFAULT))
        create = mock.Mock(wraps=os.memfd_create, side_effect=refusals)
        with mock.patch.object(os, "memfd_create", create):
            self.storage(host_pool(allocator="default"))
        self.assertEqual(create.call_count, 2)

    def test_pages_survive_kill_9_on_disk(self):
        pool, keys = host_pool(), keys_of()
        fill(pool, 5)
        storage = self.storage(pool)
        before = self.stored(storage, pool, keys)
        self.daemon.drain()
        self.daemon.kill()
        self.wait_until(lambda: not storage._pools["kv"].connected)
        self.daemon.start()
        self.wait_until(lambda: storage._pools["kv"].connected)
        pool.kv_buffer.zero_()
        self.assertEqual(storage.batch_get_v1(keys, indices_of(range(BATCH))), [True] * BATCH)
        self.assertEqual([page_bytes(pool, page) for page in range(BATCH)], before)

    def test_a_daemon_that_dies_while_it_loads_fails_the_load(self):
        for allocator in ("shm", "default"):
            with self.subTest(allocator):
                pool, keys = host_pool(allocator=allocator), keys_of()
                storage = self.storage(pool)
                self.stored(storage, pool, keys)
                # It cannot answer before it is killed.
                self.daemon.pause()
                killer = threading.Timer(0.2, self.daemon.kill)
                killer.start()
                # No daemon of these tests outlives the connection to it.
                with mock.patch.object(pages, "wait_until_settled") as settled:
                    results = storage.batch_get_v1(keys, indices_of(range(BATCH)))
                self.assertEqual(results, [False] * BATCH)
                # Only the pool's own pages could still be written.
                self.assertEqual(settled.call_count, allocator == "shm")
                killer.join()
                self.daemon.start()

    def test_a_daemon_that_hangs_holds_no_call_for_ever(self):
        for allocator in ("shm", "default"):
            with self.subTest(allocator):
                threads = ThreadPoolExecutor(2)
                self.addCleanup(threads.shutdown)
                pool, keys = host_pool(allocator=allocator), keys_of()
                storage, others = self.storage(pool), keys_of()
                fill(pool, 6)
                before = self.stored(storage, pool, keys)
                self.daemon.pause()
                self.addCleanup(self.daemon.resume)
                places = indices_of(range(20, 20 + BATCH))
                with mock.patch.object(_settling, "LONGEST_S", 0):
                    load = threads.submit(storage.batch_get_v1, keys, places)
                    store = threads.submit(storage.batch_set_v1, others, indices_of(range(BATCH)))
                    for one in (load, store):
                        self.assertEqual(one.result(CONNECT_TIMEOUT_S), [False] * BATCH)
                    self.assertFalse(any(storage.batch_exists(keys) for _ in range(1000)))
                fill(pool, 7)
                left = [page_bytes(pool, page) for page in range(PAGES)]
                self.daemon.resume()
                self.wait_until(lambda: storage._pools["kv"].connected)
                self.assertEqual(storage.batch_exists(others), 0)
                self.assertEqual([page_bytes(pool, page) for page in range(PAGES)], left)
                self.assertEqual(storage.batch_get_v1(keys, places), [True] * BATCH)
                self.assertEqual([page_bytes(pool, 20 + page) for page in range(BATCH)], before)

    def test_only_the_first_lookup_waits_for_a_daemon_that_hangs(self):
        storage = self.storage(host_pool())
        self.daemon.pause()
        self.addCleanup(self.daemon.resume)
        asked = mock.patch.object(pages, "exists", wraps=pages.exists)
        with asked as exists:
            for _ in range(4):
                self.assertEqual(storage.batch_exists(keys_of()), 0)
        self.assertEqual(exists.call_count, 1)

    def test_sglangs_own_failures_change_no_bytes(self):
        prefix = "SGLANG_TEST_HICACHE_BACKEND_RANDOM"
        injected = {f"{prefix}_FAILURE": "0.3", f"{prefix}_DELAY": "0.002"}
        with mock.patch.dict(os.environ, injected):
            pool = host_pool()
            storage = self.storage(pool)
        self.assertIsInstance(storage, HiCacheStorageFailureInjector)
        kept = {}
        for seed in range(30):
            keys = keys_of(4)
            fill(pool, seed)
            storage.batch_set_v1(keys, indices_of(range(4)))
            kept.update((key, page_bytes(pool, i)) for i, key in enumerate(keys))
        loaded = 0
        for first in range(0, len(kept), 4):
            keys = list(kept)[first : first + 4]
            self.assertLessEqual(storage.batch_exists(keys), 4)
            results = storage.batch_get_v1(keys, indices_of(range(10, 14)))
            for place, (key, done) in enumerate(zip(keys, results)):
                if done:
                    loaded += 1
                    self.assertEqual(page_bytes(pool, 10 + place), kept[key])
        self.assertGreater(loaded, 0)


if __name__ == "__main__":
    unittest.main()
