# SPDX-License-Identifier: Apache-2.0
"""Kept memory without vLLM and without a daemon: vLLM's block pool, as far as the connector uses
it, and kvtier.KeptMemory, which outlives its engine because the test has it."""

from __future__ import annotations

import collections
import types

import numpy as np


class PoolBlock:
    def __init__(self, number):
        self.block_id = number
        self.is_null = number == 0
        self.ref_cnt = 0
        self.block_hash = None

    def set_block_hash(self, key, num_tokens=None):
        assert self.block_hash is None
        self.block_hash = key


class HashMap:
    """vLLM's BlockHashToBlockMap."""

    def __init__(self):
        self.blocks = collections.defaultdict(dict)

    def insert(self, key, block):
        self.blocks[key][block.block_id] = block

    def get(self, key):
        return next(iter(self.blocks.get(key, {}).values()), None)

    def pop(self, key, number):
        self.blocks[key].pop(number)


class FakeBlockPool:
    """vLLM's BlockPool. free: of those without a reference, the next to be handed out first."""

    def __init__(self, count):
        self.num_gpu_blocks = count
        self.blocks = [PoolBlock(number) for number in range(count)]
        self.free = self.blocks[1:]
        self.cached_block_hash_to_block = HashMap()
        self._watchers = {}

    def get_num_free_blocks(self):
        return len(self.free)

    def get_new_blocks(self, count):
        taken, self.free = self.free[:count], self.free[count:]
        assert len(taken) == count
        for block in taken:
            self._tell(block)
            if block.block_hash is not None:
                self.cached_block_hash_to_block.pop(block.block_hash, block.block_id)
                block.block_hash = None
            block.ref_cnt = 1
        return taken

    def cache(self, block, key):
        """As cache_full_blocks, before the block is computed."""
        block.set_block_hash(key)
        self.cached_block_hash_to_block.insert(key, block)

    def touch(self, blocks):
        for block in blocks:
            if block.ref_cnt == 0:
                self.free.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, blocks):
        released = self._released(blocks)
        self.free[:0] = [block for block in released if block.block_hash is None]
        self.free += [block for block in released if block.block_hash is not None]

    def unpin_blocks(self, blocks, on_reuse):
        for block in blocks:
            self._watchers[block.block_id] = on_reuse
        self.free += self._released(blocks)

    def reset_prefix_cache(self):
        assert len(self.free) == len(self.blocks) - 1
        self.cached_block_hash_to_block = HashMap()
        for block in self.blocks:
            self._tell(block)
            block.block_hash = None

    def _released(self, blocks):
        released = []
        for block in blocks:
            assert block.ref_cnt > 0 and not block.is_null
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                released.append(block)
        return released

    def _tell(self, block):
        watcher = self._watchers.pop(block.block_id, None)
        if watcher is not None:
            watcher(block)


class FakeKeptMemory:
    """kvtier.KeptMemory without bytes. order: of publishing, by block."""

    def __init__(self, blocks):
        self.root = None
        self.table = {}
        self.order = {}
        self.blocks = blocks
        self.calls = []
        self._sequence = 0

    def publish(self, group, blocks, hashes):
        assert self.root is not None and len(blocks) == len(hashes)
        for block, one in zip(blocks.tolist(), hashes):
            assert 0 < block < self.blocks
            # Memory that an entry vouches for is never changed while it does.
            assert self.table.get(block, (group, one)) == (group, one)
            self.table[block] = (group, one)
            self._sequence += 1
            self.order[block] = self._sequence

    def retract(self, blocks):
        for block in blocks.tolist():
            self.table.pop(block, None)

    def clear(self):
        self.calls.append("clear")
        self.table.clear()

    def set_root(self, root):
        if root != self.root:
            self.calls.append("set_root")
            self.table.clear()
        self.root = root

    def entries(self):
        blocks = sorted(self.table, key=lambda block: self.order[block])
        return types.SimpleNamespace(
            blocks=np.array(blocks, dtype=np.uint32),
            groups=np.array([self.table[block][0] for block in blocks], dtype=np.uint32),
            hashes=[self.table[block][1] for block in blocks],
        )
