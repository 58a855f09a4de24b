# SPDX-License-Identifier: Apache-2.0
"""Pools of several kinds below kvtier's linker, as SGLang has them, and parts of their layers."""

import itertools
import random
import time
import unittest
from unittest import mock

import sglang_cache
import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import DevicePoolEntry
from sglang_cache import PAGE_TOKENS, ComponentType, mha_pool
from sglang_linker_case import LinkerTestCase, equal, prompt_of, rows, seeds

from kvtier.sglang import device_pools, device_transfers, linker_pools, prefixes, promises


class DevicePagesTest(unittest.TestCase):
    def assert_comes_back(self, components, layer_mapping, rows_are_pages):
        entry = DevicePoolEntry(
            name=PoolName.KV,
            indices_from_pool=PoolName.KV,
            device_pool=None,
            components=components,
            layer_mapping=layer_mapping,
            page_size=4,
            rows_are_pages=rows_are_pages,
        )
        device_pages = device_pools.DevicePages(entry, sorted(layer_mapping))
        for component in components:
            for buffer in component:
                buffer.copy_(torch.randint(0, 100, buffer.shape))
        kept = [[buffer.clone() for buffer in component] for component in components]
        pages = device_pages.numbers(torch.tensor([*range(8, 12), *range(0, 4)]))
        self.assertEqual(pages.tolist(), [2, 0])
        memory = torch.zeros(3, device_pages.page_bytes, dtype=torch.uint8)[1:]
        device_pages.gather(pages, memory)
        for buffer in itertools.chain(*components):
            buffer[:12] = 0
        for layer in device_pages.layers:
            device_pages.scatter(layer, pages, memory)
        span = 1 if rows_are_pages else 4
        for buffers, before in zip(components, kept):
            for buffer, was in zip(buffers, before):
                self.assertTrue(torch.equal(buffer[:span], was[:span]))
                self.assertFalse(buffer[span : 2 * span].any())
                self.assertTrue(torch.equal(buffer[2 * span : 3 * span], was[2 * span : 3 * span]))
        return device_pages

    def test_rows_of_any_size_and_distance(self):
        wide = [torch.zeros(16, 9, dtype=torch.uint8)[:, 2:7] for _ in range(2)]
        self.assert_comes_back([wide], {0: 0, 1: 1}, rows_are_pages=False)
        whole = [torch.zeros(4, 3, 8, dtype=torch.bfloat16) for _ in range(2)]
        self.assert_comes_back([whole], {5: 1, 2: 0}, rows_are_pages=True)

    def test_layers_of_different_sizes_come_at_once(self):
        buffers = [torch.zeros(4, 3 + i, dtype=torch.float32) for i in range(3)]
        packed = self.assert_comes_back([buffers], {0: (0, 2), 1: 1}, rows_are_pages=True)
        self.assertFalse(packed.in_layers)
        self.assertEqual((packed.group().layers, packed.group().layer_bytes), (1, 48))

    def test_rows_that_are_not_contiguous_are_refused(self):
        turned = torch.zeros(8, 4, 3).transpose(1, 2)
        with self.assertRaisesRegex(ValueError, "contiguous"):
            self.assert_comes_back([[turned]], {0: 0}, rows_are_pages=True)


class PrefixesTest(unittest.TestCase):
    def ends(self, window, found):
        policy = PoolHitPolicy.TRAILING_PAGES
        transfer = PoolTransfer(name=PoolName.SWA, keys=[""] * window, hit_policy=policy)
        return prefixes.restorable_prefixes(transfer, found)

    def test_prefixes_of_trailing_pages_are_those_whose_last_pages_are_there(self):
        draw = random.Random(1)
        for window in (0, 1, 2, 5, 30):
            for share in (0.5, 0.9, 1):
                found = [draw.random() < share for _ in range(40)]
                last = [found[max(0, end - max(1, window)) : end] for end in range(1, 41)]
                expected = {end for end, pages in enumerate(last, 1) if all(pages)}
                self.assertEqual(self.ends(window, found), expected)

    def test_a_long_prompt_of_pages_of_one_token_takes_no_seconds(self):
        began_s = time.process_time()
        self.assertEqual(len(self.ends(4096, [True] * 128_000)), 128_000)
        self.assertLess(time.process_time() - began_s, 1)


class AloneTestCase(LinkerTestCase):
    """A linker without the radix cache. Derived: `open`, which returns it."""

    def setUp(self):
        self.linker = self.open()
        self.addCleanup(self.linker.close)
        self.wait_until(lambda: self.linker.connected)
        first = next(seeds) << 20
        self.keys = [f"{first + i:064x}" for i in range(10)]

    @staticmethod
    def transfer(name, keys, pages=()):
        """Pages of tokens, or states, which have no pages."""
        tokens = 1 if name == PoolName.MAMBA else PAGE_TOKENS
        slots = [torch.arange(n * tokens, (n + 1) * tokens) for n in pages]
        trailing = PoolHitPolicy.TRAILING_PAGES
        return PoolTransfer(
            name=name,
            device_indices=torch.cat(slots) if slots else None,
            keys=keys,
            hit_policy=PoolHitPolicy.ALL_PAGES if name == PoolName.KV else trailing,
        )

    def put(self, *transfers):
        self.assertTrue(self.linker.offload(list(transfers)))
        self.wait_until(self.linker.num_completed_offloads)
        self.assertTrue(self.linker.pop_completed_offload())

    def get(self, *transfers):
        self.assertTrue(self.linker.load("one", list(transfers)))
        index = self.linker.start_layer_wise_loading()
        self.assertTrue(self.linker.finish_layer_wise_loading(index))

    def assert_came(self, before, buffers, tokens, places):
        """places: the page, or the state, that each was loaded from."""
        for was, now in zip(before, buffers):
            for new, old in places.items():
                some, other = (slice(n * tokens, (n + 1) * tokens) for n in (old, new))
                self.assertTrue(torch.equal(now[other], was[some]))


class WindowsTest(AloneTestCase):
    """Sliding windows of two pages beside full attention."""

    def open(self):
        self.pool = sglang_cache.window_pool()
        components = {ComponentType.FULL, ComponentType.SWA}
        return sglang_cache.linker_alone(self.pool, components, self.daemon.socket)

    def put_pages(self, kv_pages, window_pages):
        pools = {PoolName.KV: kv_pages, PoolName.SWA: window_pages}
        keys = self.keys
        self.put(*(self.transfer(name, [keys[n] for n in of], of) for name, of in pools.items()))

    def asked(self, count):
        windows = self.transfer(PoolName.SWA, self.keys[count - 2 : count])
        return [self.transfer(PoolName.KV, self.keys[:count]), windows]

    def test_all_lengths_whose_windows_are_there_are_offered_and_come_back(self):
        full, windows = (
            [*half.k_buffer, *half.v_buffer]
            for half in (self.pool.full_kv_pool, self.pool.swa_kv_pool)
        )
        for buffer in [*full, *windows]:
            buffer.copy_(torch.randn(buffer.shape))
        kept = [[buffer.clone() for buffer in half] for half in (full, windows)]
        self.put_pages(range(8), [1, 2, 3, 6, 7])
        self.assertEqual(self.linker.lookup("one", self.asked(10)), [3, 4, 8])
        for buffer in [*full, *windows]:
            buffer.zero_()
        self.get(
            self.transfer(PoolName.KV, self.keys[:8], range(20, 28)),
            self.transfer(PoolName.SWA, self.keys[6:8], [30, 31]),
        )
        self.assert_came(kept[0], full, PAGE_TOKENS, {20 + page: page for page in range(8)})
        self.assert_came(kept[1], windows, PAGE_TOKENS, {30: 6, 31: 7})

    def test_a_page_that_leaves_before_it_is_promised_is_a_miss(self):
        self.put_pages(range(4), range(4))
        with mock.patch.object(promises.Promises, "make", return_value=False):
            self.assertEqual(self.linker.lookup("one", self.asked(4)), [])
        self.assertEqual(self.linker.lookup("one", self.asked(4)), [1, 2, 3, 4])


class StatesTest(AloneTestCase):
    """States beside latent attention, in pools that SGLang itself describes."""

    def open(self):
        self.kv_cache, self.requests = sglang_cache.state_pools()
        components = {ComponentType.FULL, ComponentType.MAMBA}
        return sglang_cache.linker_alone(
            self.kv_cache, components, self.daemon.socket, self.requests
        )

    def test_states_are_offered_where_they_were_stored_and_come_back(self):
        self.assertEqual(self.requests.counters, [self.linker.layer_done_counter])
        cache = self.requests.mamba_pool.mamba_cache
        states, latent = [*cache.temporal, *cache.conv[0]], self.kv_cache.full_kv_pool.kv_buffer
        for buffer in [*states, *latent]:
            buffer.copy_(torch.randn(buffer.shape))
        kept = [[buffer.clone() for buffer in half] for half in (states, latent)]
        # Nodes of the radix cache with three and two pages, with a state at the end of each.
        for first, last, state in ((0, 3, 5), (3, 5, 9)):
            pages = self.transfer(PoolName.KV, self.keys[first:last], range(first, last))
            self.put(pages, self.transfer(PoolName.MAMBA, [self.keys[last - 1]], [state]))
        asked = [
            self.transfer(PoolName.KV, self.keys),
            self.transfer(PoolName.MAMBA, self.keys[-1:]),
        ]
        self.assertEqual(self.linker.lookup("one", asked), [3, 5])
        for buffer in [*states, *latent]:
            buffer.zero_()
        self.get(
            self.transfer(PoolName.KV, self.keys[:5], range(20, 25)),
            self.transfer(PoolName.MAMBA, [self.keys[4]], [17]),
        )
        self.assert_came(kept[0], states, 1, {17: 9})
        self.assert_came(kept[1], latent, PAGE_TOKENS, {20 + page: page for page in range(5)})


class PartsTest(LinkerTestCase):
    """Layers in parts, each of which has regions and rows of its own."""

    def setUp(self):
        smallest = mock.patch.object(device_pools, "_MIN_PART_BYTES", 1)
        smallest.start()
        self.addCleanup(smallest.stop)

    def parts_of(self, engine):
        return engine.linker._pools._pools[PoolName.KV]

    def test_parts_of_all_numbers_come_back(self):
        for most, sizes in ((1, [3]), (2, [1, 2]), (3, [1, 1, 1]), (9, [1, 1, 1])):
            for staging_bytes in (1 << 20, 30_000):
                with self.subTest(f"{most} parts, {staging_bytes} bytes"):
                    engine = self.engine(layer_parts=most, staging_bytes=staging_bytes)
                    layers = [len(part.pages.layers) for part in self.parts_of(engine)]
                    self.assertEqual(layers, sizes)
                    prompt = prompt_of(17)
                    kv = self.stored(engine, prompt)
                    self.assertTrue(equal(self.loaded(engine, prompt), kv))

    def test_the_first_layers_are_there_before_the_rows_of_the_last_ones_are_used_again(self):
        engine, prompt = self.engine(layer_parts=3, staging_bytes=30_000), prompt_of(17)
        self.stored(engine, prompt)
        log = []
        scatter = device_pools.DevicePages.scatter

        def copy(pages, layer, *more):
            log.append(layer)
            scatter(pages, layer, *more)

        with mock.patch.object(device_pools.DevicePages, "scatter", copy):
            self.loaded(engine, prompt)
        self.assertEqual(log, sorted(log))
        self.assertGreater(len(log), 3)

    def test_pages_that_lack_a_part_are_not_offered(self):
        engine, prompt = self.engine(layer_parts=2), prompt_of()
        kv = self.stored(engine, prompt)
        longer = prompt_of(pages=4, after=prompt)
        whole = self.parts_of(engine)[0]

        def store(part, *more, **names):
            return part is whole and device_transfers.store(part, *more, **names)

        with mock.patch.object(linker_pools, "store", store):
            self.stored(engine, longer)
        found = self.loaded(engine, longer)
        self.assertTrue(equal(found, rows(kv, slice(0, len(prompt)))))

    def test_pools_are_split_as_far_as_parts_are_worth_a_block(self):
        pool = mha_pool()
        params = sglang_cache.linker_parameters(pool)
        (entry,) = device_pools.device_pool_group(pool, params, {ComponentType.FULL}).entries
        self.assertEqual(device_pools.split_layers(entry, 2), [[0], [1, 2]])
        with mock.patch.object(device_pools, "_MIN_PART_BYTES", 512 << 10):
            self.assertEqual(device_pools.split_layers(entry, 2), [[0, 1, 2]])


if __name__ == "__main__":
    unittest.main()
