# SPDX-License-Identifier: Apache-2.0
"""Which blocks of vLLM's KV cache a new engine may take over as they are.

Beside the part of the KV cache that a worker has lies a table in shared memory (kvtier.KeptMemory):
which hash each block holds. Both outlive the engine, which may be killed between any two
instructions, so that the table's entry of a block must be true at every moment:

* A block is published when what wrote it has ended: computed blocks when their stores begin, since
  they are pinned until those have ended; loaded ones when the load has succeeded on all ranks.
* It is retracted with the plan of the step for which vLLM's block pool has handed it out anew,
  before the first kernel of that step is launched. The pool itself says so: it calls back when it
  hands out a block that came to it by `unpin_blocks`, and for all of those when it is reset.

Decided in the scheduler, carried out by each worker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import KvtierError
from .cache_groups import CacheGroup
from .link import logger
from .rows import key_of

_HASH_BYTES = 32


class Publication(NamedTuple):
    """Blocks that hold what their hashes name. group: as in BlockList."""

    group: int
    blocks: list[int]
    hashes: list[bytes]


@dataclass
class KeptChanges:
    """A step's changes of the tables. clear: none of their entries is true any more. written:
    blocks that the step may write. loaded: to be published at once; computed: with the step's
    stores, when the kernels of the steps before have ended."""

    clear: bool = False
    written: list[int] = field(default_factory=list)
    loaded: list[Publication] = field(default_factory=list)
    computed: list[Publication] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.clear or self.written or self.loaded or self.computed)


@dataclass
class KeptTable:
    """The entries that a worker found in its table, oldest first. root: as `table_root` says; None: the
    table is new. groups: as in BlockList."""

    root: bytes | None
    blocks: npt.NDArray[np.uint32]
    groups: npt.NDArray[np.uint32]
    hashes: list[bytes]

    def without(self, places: Collection[int]) -> KeptTable:
        left = [i for i in range(len(self.hashes)) if i not in places]
        hashes = [self.hashes[i] for i in left]
        return KeptTable(self.root, self.blocks[left], self.groups[left], hashes)


def table_root(hash_root: bytes, weights: str) -> bytes:
    """Stands in a table for the root of its hashes, so that blocks which were computed with other weights
    are not taken over. weights: as in a model record."""
    return hashlib.sha256(hash_root + weights.encode()).digest()


def why_not_kept(engine: Any, kv_cache_config: Any) -> str | None:
    """Why the KV cache of such an engine cannot be kept, in words; None: it can be. engine: a
    VllmConfig."""
    if not engine.cache_config.enable_prefix_caching:
        return "prefix caching is off"
    if getattr(engine.cache_config, "calculate_kv_scales", False):
        return "each engine finds scales of its own"
    if getattr(engine, "num_prefill_lookahead_tokens", 0) > 1:
        return "its drafts compute tokens of full blocks again"
    if getattr(engine.attention_config, "hisparse_config", None) is not None:
        return "HiSparse has another block pool"
    if engine.use_v2_model_runner and kv_cache_config.needs_kv_cache_zeroing:
        return "vLLM's second model runner clears new blocks before the connector hears of them"
    return None


class KeptCacheScheduler:
    """Belongs to the scheduler's thread. groups: the connector's. Blocks are vLLM's KVCacheBlocks.
    """

    def __init__(self, groups: Sequence[CacheGroup]) -> None:
        self._groups = groups
        self._pool: Any = None
        # Until it is known which blocks of the last engine are left, the tables stay as they are:
        # no step computes anything before the first request has come.
        self._changes = KeptChanges()
        # The tables that are not restored yet; None: it was not told of them.
        self._expected: set[int] | None = None
        self._loading: dict[str, list[tuple[int, Sequence[Any], list[bytes]]]] = {}

    def bind(self, pool: Any) -> None:
        """Gets vLLM's BlockPool."""
        self._pool = pool

    def is_bound(self) -> bool:
        return self._pool is not None

    def expect(self, tables: Sequence[KeptTable]) -> None:
        """These may be restored, but for blocks that the pool hands out before, and not after it was
        reset: an engine may get other weights before its first request."""
        numbers = {int(number) for table in tables for number in table.blocks}
        blocks = [self._pool.blocks[i] for i in sorted(numbers) if 0 < i < len(self._pool.blocks)]
        self._watch(blocks)
        self._expected = {block.block_id for block in blocks}

    def restore(self, tables: Sequence[KeptTable], root: bytes | None) -> int:
        """Gives vLLM's own cache the blocks of which the tables of all workers say the same, and
        returns how many. Once, before the first request is scheduled. tables: empty if some worker
        has none."""
        if not tables or root is None or any(table.root != root for table in tables):
            self._changes.clear |= not tables or any(table.hashes for table in tables)
            return 0
        first, *others = [
            dict(zip(table.blocks.tolist(), zip(table.groups.tolist(), table.hashes)))
            for table in tables
        ]
        restored = [
            self._pool.blocks[number]
            for number, (group, one) in first.items()
            if (self._expected is None or number in self._expected)
            and all(other.get(number) == (group, one) for other in others)
            and self._restore(number, group, one)
        ]
        # Moves them to the end of the free blocks, so that those that hold nothing are used first.
        self._watch(restored)
        left = {block.block_id for block in restored}
        self._changes.written += set(first).union(*others) - left
        logger.info(
            "kvtier: %d of %d blocks of the KV cache are as the last engine left them",
            len(restored),
            len(self._pool.blocks) - 1,
        )
        return len(restored)

    def computed(self, index: int, blocks: Sequence[Any], hashes: Sequence[bytes]) -> None:
        """Blocks of a group that the next plan stores. Blocks that vLLM does not cache are of no
        use to another engine, and some of them it may compute again."""
        group = self._groups[index]
        if group.is_state:
            return
        kept = [
            (block, one)
            for block, one in zip(blocks, hashes)
            if block.block_hash == key_of(one, group.number)
        ]
        if kept:
            self._watch([block for block, _ in kept])
            numbers = [block.block_id for block, _ in kept]
            self._changes.computed.append(Publication(index, numbers, [one for _, one in kept]))

    def loading(
        self, request: str, index: int, blocks: Sequence[Any], hashes: list[bytes]
    ) -> None:
        """A load into these blocks of a group is planned."""
        if not self._groups[index].is_state:
            self._loading.setdefault(request, []).append((index, blocks, hashes))

    def failed(self, keys: Collection[bytes]) -> None:
        """These could not be loaded by some worker: vLLM computes their requests' blocks anew, in
        place."""
        if not keys:
            return
        for request, loads in list(self._loading.items()):
            if any(key_of(one, index) in keys for index, _, hashes in loads for one in hashes):
                del self._loading[request]

    def loaded(self, requests: Iterable[str]) -> None:
        """The loads of these have ended on all workers. Their blocks are still theirs."""
        for request in requests:
            for index, blocks, hashes in self._loading.pop(request, ()):
                self._watch(blocks)
                numbers = [block.block_id for block in blocks]
                self._changes.loaded.append(Publication(index, numbers, hashes))

    def reset(self) -> None:
        """The engine has other weights."""
        self._changes = KeptChanges(clear=True)
        self._expected = set()
        self._loading.clear()

    def has_changes(self) -> bool:
        return bool(self._changes)

    def take_changes(self) -> KeptChanges:
        """For the step that was planned just now."""
        changes, self._changes = self._changes, KeptChanges()
        if changes.written and changes.loaded:
            # Its request may have ended since, and the step have got the block.
            written = set(changes.written)
            changes.loaded = [_without(one, written) for one in changes.loaded]
        return changes

    def _restore(self, number: int, index: int, one: bytes) -> bool:
        if index >= len(self._groups) or self._groups[index].is_state:
            return False
        if not 0 < number < len(self._pool.blocks) or len(one) != _HASH_BYTES:
            return False
        block = self._pool.blocks[number]
        if block.is_null or block.ref_cnt != 0 or block.block_hash is not None:
            return False
        key = key_of(one, self._groups[index].number)
        block.set_block_hash(key)
        self._pool.cached_block_hash_to_block.insert(key, block)
        return True

    def _watch(self, blocks: Sequence[Any]) -> None:
        """From now on the pool says when it hands one of these out anew. Free ones go to the end of
        its queue; for others nothing changes."""
        self._pool.touch(blocks)
        self._pool.unpin_blocks(blocks, self._reused)

    def _reused(self, block: Any) -> None:
        if self._expected is not None:
            self._expected.discard(block.block_id)
        self._changes.written.append(block.block_id)


class KeptCacheWorker:
    """Belongs to the worker's thread, but for `keep`. memory: a kvtier.KeptMemory."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._root: bytes | None = None
        self._is_clear = False
        self._refused: str | None = None

    def apply(self, changes: KeptChanges, root: bytes | None) -> None:
        """Before the step's kernels are launched."""
        if changes.clear and not self._is_clear:
            self._memory.clear()
            self._is_clear = True
        elif changes.written:
            self._memory.retract(np.array(changes.written, dtype=np.uint32))
        if root is not None and root != self._root:
            self._memory.set_root(root)
            self._root = root
        self.publish(changes.loaded)

    def publish(self, publications: Iterable[Publication]) -> None:
        """The last block of a prefix comes first, since the next engine lets go first of blocks
        published first."""
        for group, blocks, hashes in publications:
            if blocks and self._root is not None:
                self._is_clear = False
                self._memory.publish(group, np.array(blocks[::-1], dtype=np.uint32), hashes[::-1])

    def keep(self, connection: Any) -> None:
        """Hands the memory to the daemon, of the link's thread. One that does not keep it still
        stores and loads."""
        try:
            self._memory.keep(connection)
            self._refused = None
        except KvtierError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                logger.warning("kvtier: the daemon does not keep the KV cache: %s", error)


def _without(publication: Publication, written: set[int]) -> Publication:
    pairs = [
        (block, one)
        for block, one in zip(publication.blocks, publication.hashes)
        if block not in written
    ]
    return Publication(publication.group, [block for block, _ in pairs], [one for _, one in pairs])
