# SPDX-License-Identifier: Apache-2.0
"""The blocks that a new engine finds in kept memory after vLLM has warmed up in it. Needs torch,
not vLLM."""

import contextlib
import itertools
import mmap
import os
import types
import unittest
import weakref
from unittest import mock

import numpy as np
import torch

from fake_kept_memory import FakeKeptMemory
from kvtier import KvGroup, KvtierError, Status, TimedOutError, WrongStateError
from kvtier.vllm import kept_allocation
from kvtier.vllm.kept_allocation import KeptAllocation, memory_name, warm_up_blocks
from kvtier.vllm.kv_memory import BlockPieces

BLOCKS, LAYERS, PAGE_BYTES = 12, 3, 24
MEMORY_BYTES = BLOCKS * LAYERS * PAGE_BYTES
BLOCK_BYTES = LAYERS * PAGE_BYTES
# A block's layers together, and each layer's blocks together: two groups share the memory.
TOGETHER = [(0, BLOCK_BYTES, BLOCK_BYTES)]
APART = [(layer * BLOCKS * PAGE_BYTES, PAGE_BYTES, PAGE_BYTES) for layer in range(LAYERS)]


def group_of(pieces, spec="full"):
    group = KvGroup(layers=LAYERS, layer_bytes=PAGE_BYTES, block_tokens=16)
    return BlockPieces(pieces, group, BLOCKS, MEMORY_BYTES, ["a", "b", "c"], spec)


class Memory(FakeKeptMemory):
    """With bytes, and with entries that an earlier engine has left."""

    def __init__(self, entries):
        super().__init__(BLOCKS)
        self.fd = os.memfd_create("kept")
        os.ftruncate(self.fd, MEMORY_BYTES)
        self._map = mmap.mmap(self.fd, MEMORY_BYTES)
        self.bytes = np.frombuffer(self._map, dtype=np.uint8)
        self.bytes[:] = np.random.default_rng(0).integers(0, 256, MEMORY_BYTES)
        self.root = b"r" * 32
        for block, group in entries:
            self.publish(group, np.array([block]), [block.to_bytes(32, "little")])

    def buffer(self):
        return memoryview(self._map)


class KeptAllocationTest(unittest.TestCase):
    def allocate(self, pieces, entries, likely_written):
        self.memory = Memory(entries)
        self.addCleanup(os.close, self.memory.fd)
        self.allocation = KeptAllocation(
            [group_of(one) for one in pieces], lambda: self.memory, likely_written, "cpu"
        )
        with self.allocation:
            self.tensor = torch.zeros(MEMORY_BYTES, dtype=torch.int8, device="cpu")
        self.before = self.memory.bytes.copy()

    def write(self, pieces, *blocks):
        for block in blocks:
            for offset, stride, size in pieces:
                first = offset + block * stride
                self.tensor[first : first + size] += 1

    def found(self):
        table = self.allocation.found()
        return sorted(table.blocks.tolist())

    def test_the_cache_is_the_memory_as_it_was_left(self):
        self.allocate([TOGETHER], [(3, 0)], 4)
        np.testing.assert_array_equal(self.tensor.numpy().view(np.uint8), self.memory.bytes)
        self.assertEqual(self.found(), [3])
        self.assertIsNone(self.allocation.found())

    def test_what_a_warm_up_wrote_is_put_back_or_forgotten(self):
        for pieces in (TOGETHER, APART):
            self.allocate([pieces], [(block, 0) for block in (1, 2, 5, 9, 11)], 6)
            self.write(pieces, 1, 3, 5, 9)
            self.assertEqual(self.found(), [1, 2, 5, 11])
            self.assertEqual(sorted(self.memory.table), [1, 2, 5, 11])
            for block in (1, 2, 5, 11):
                for offset, stride, size in pieces:
                    part = slice(offset + block * stride, offset + block * stride + size)
                    np.testing.assert_array_equal(self.memory.bytes[part], self.before[part])

    def test_an_engine_killed_while_it_warms_up_leaves_nothing(self):
        self.allocate([TOGETHER], [(3, 0), (9, 0)], 4)
        self.assertEqual(self.memory.table, {})

    def test_the_oldest_stay_the_oldest(self):
        entries = [(9, 0), (3, 1), (4, 1), (2, 0), (8, 1)]
        self.allocate([TOGETHER, APART], entries, 4)
        self.allocation.found()
        kept = self.memory.entries()
        self.assertEqual(list(zip(kept.blocks.tolist(), kept.groups.tolist())), entries)

    def test_it_is_done_piecemeal(self):
        with mock.patch.object(kept_allocation, "_CHUNK_BYTES", 2 * PAGE_BYTES):
            self.allocate([APART], [(block, 0) for block in range(1, BLOCKS)], BLOCKS)
            self.write(APART, *range(1, BLOCKS))
            self.assertEqual(self.found(), list(range(1, BLOCKS)))
        np.testing.assert_array_equal(self.memory.bytes, self.before)

    def test_each_group_s_blocks_are_looked_for_where_they_lie(self):
        self.allocate([TOGETHER, APART], [(1, 0), (8, 1), (9, 1)], 2)
        self.write(APART, 9)
        self.assertEqual(self.found(), [1, 8])

    def test_a_change_of_one_byte_in_the_last_layer_is_seen(self):
        self.allocate([APART], [(10, 0)], 0)
        offset, stride, size = APART[-1]
        self.tensor[offset + 10 * stride + size - 1] ^= 1
        self.assertEqual(self.found(), [])

    def test_what_cannot_be_in_a_table_is_left_out(self):
        self.allocate([TOGETHER], [(3, 0), (4, 7)], 4)
        self.assertEqual(self.found(), [3])

    def test_an_engine_without_kept_memory_has_a_cache_as_ever(self):
        def fail():
            raise KvtierError(Status.RESOURCE_EXHAUSTED, "no_memory")

        allocation = KeptAllocation([group_of(TOGETHER)], fail, 4, "cpu")
        with self.assertLogs("vllm.kvtier", "WARNING"), allocation:
            tensor = torch.zeros(MEMORY_BYTES, dtype=torch.int8, device="cpu")
        self.assertEqual(int(tensor.abs().sum()), 0)
        self.assertIsNotNone(allocation.fd)
        self.assertIsNone(allocation.memory)
        self.assertIsNone(allocation.found())

    def test_a_tensor_on_a_gpu_keeps_the_memory(self):
        memory = FakeKeptMemory(BLOCKS)
        memory.pointer = 4096

        def as_tensor(given, device):
            # torch's has the object for as long as the tensor.
            return types.SimpleNamespace(given=given, data_ptr=lambda: 4096)

        with mock.patch.object(torch, "as_tensor", as_tensor):
            tensor = kept_allocation.tensor_over(memory, MEMORY_BYTES, "cuda")
        kept = weakref.ref(memory)
        del memory
        self.assertIsNotNone(kept())
        del tensor
        self.assertIsNone(kept())

    def test_other_allocations_are_left_alone(self):
        allocation = KeptAllocation([group_of(TOGETHER)], self.fail, 4, "cpu")
        with allocation:
            torch.zeros(MEMORY_BYTES, dtype=torch.uint8)
            torch.zeros(MEMORY_BYTES + 1, dtype=torch.int8)
            torch.ones(MEMORY_BYTES, dtype=torch.int8)
        self.assertIsNone(allocation.memory)


class NameTest(unittest.TestCase):
    def test_memories_of_one_name_mean_the_same(self):
        names = {
            memory_name(record, [group_of(pieces, spec)], gpu)
            for record in ("one model", "another")
            for pieces in (TOGETHER, APART)
            for spec in ("full", "window")
            for gpu in (None, "a GPU")
        }
        self.assertEqual(len(names), 16)
        again = memory_name("one model", [group_of(list(TOGETHER))], None)
        self.assertIn(again, names)
        self.assertEqual(len(again), 32)


class WarmUpBlocksTest(unittest.TestCase):
    def test_it_is_what_all_requests_and_a_prefill_need_in_all_groups(self):
        engine = types.SimpleNamespace(
            num_speculative_tokens=0,
            scheduler_config=types.SimpleNamespace(max_num_seqs=256, max_num_batched_tokens=8192),
        )
        spec = types.SimpleNamespace(block_size=16)
        groups = [types.SimpleNamespace(kv_cache_spec=spec)] * 2
        cache = types.SimpleNamespace(kv_cache_groups=groups)
        self.assertEqual(warm_up_blocks(engine, cache), 1 + 2 * (256 + 512 + 4))


class OpenMemoryTest(unittest.TestCase):
    """Engines of one model on one GPU, of which each name belongs to one."""

    def open(self, in_use, late=0):
        """The names that were tried, and whether a daemon keeps the memory. late: its first answers."""
        tried, answers = [], itertools.count()

        def memory(name, byte_count, blocks, connection, cuda_device):
            if next(answers) < late:
                raise TimedOutError(Status.TIMEOUT, "timeout")
            if name not in tried:
                tried.append(name)
            if connection is not None and tried.index(name) < in_use:
                raise WrongStateError(Status.WRONG_STATE, "memory_in_use")
            return connection is not None

        patches = [
            mock.patch("kvtier.kept_memory.KeptMemory", memory),
            mock.patch.object(kept_allocation, "connect"),
            mock.patch.object(kept_allocation, "_OWNER_PATIENCE_S", 0.0),
        ]
        with contextlib.ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            kept = kept_allocation.open_memory("socket", b"n" * 32, 64, 4, 0)
        return tried, kept

    def test_the_only_engine_has_the_name_itself(self):
        self.assertEqual(self.open(0), ([b"n" * 32], True))

    def test_memory_that_the_daemon_may_have_handed_over_too_late_is_taken_once_more(self):
        self.assertEqual(self.open(0, late=1), ([b"n" * 32], True))
        with self.assertRaises(TimedOutError):
            self.open(0, late=2)

    def test_an_engine_beside_two_others_has_a_third_name(self):
        tried, kept = self.open(2)
        self.assertTrue(kept)
        self.assertEqual(len(tried), 3)
        # A later one, that finds the same names taken, tries the same.
        self.assertEqual(self.open(2)[0], tried)

    def test_an_engine_beside_too_many_runs_with_memory_that_is_not_kept(self):
        tried, kept = self.open(100)
        self.assertFalse(kept)
        self.assertEqual(len(tried), 8)


if __name__ == "__main__":
    unittest.main()
