# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV cache in memory that outlives the engine, and what a new engine finds in it.

Before vLLM's scheduler exists its workers warm up, for which they write some of the lowest blocks
as if those belonged to requests. Their former bytes are put back; blocks for which this cannot be
done are forgotten. Until then the table is empty, since the engine may be killed while it warms up,
too.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from .._facts import digest
from .._gpu_memory import gpu_uuid
from ..connection import connect
from ..errors import KvtierError, TimedOutError, WrongStateError
from ..regions import RegionMemory
from .kept_cache import KeptTable
from .kv_memory import BlockPieces, SharedAllocation
from .link import FIRST_CONNECT_S, logger

#: The version of everything below that changes the meaning of memory of the same name.
_FORMAT = 1
# So long a killed engine's workers may take to be gone.
_OWNER_PATIENCE_S = 5.0
_OWNER_PAUSE_S = 0.1
# Engines that can run side by side on one GPU and keep their KV caches.
_MOST_ENGINES = 8
# The bytes read at once: so few that next to the KV cache hardly any GPU memory is needed.
_CHUNK_BYTES = 32 << 20


def warm_up_blocks(engine: Any, kv_cache_config: Any) -> int:
    """Before which block all those lie that a warm-up of vLLM writes: some for each request that it
    can run at once, and those of one step of prefill, in each of the cache groups. engine: a
    VllmConfig."""
    groups = kv_cache_config.kv_cache_groups
    block_tokens = min(group.kv_cache_spec.block_size for group in groups)
    scheduler = engine.scheduler_config
    # A prompt and some steps of decode, each with its drafts.
    tokens = 9 * (1 + engine.num_speculative_tokens)
    blocks = scheduler.max_num_seqs * math.ceil(tokens / block_tokens)
    return 1 + len(groups) * (blocks + scheduler.max_num_batched_tokens // block_tokens + 4)


def memory_name(record: Any, groups: Sequence[BlockPieces], gpu: object) -> bytes:
    """32 bytes that name the memory of one rank: an engine that differs in the model, in the place
    of any block or in the GPU gets other memory. record: the model record of the rank, whose hash
    root is in the table instead, since workers do not know it yet. gpu: its uuid, or None."""
    places = [[group.pieces, group.blocks, group.memory_bytes, group.spec] for group in groups]
    return hashlib.sha256(digest([_FORMAT, repr(record), places, str(gpu)]).encode()).digest()


def open_memory(
    socket: str, name: bytes, byte_count: int, blocks: int, cuda_device: int | None
) -> Any:
    """The kvtier.KeptMemory of this name; if another engine still has it after some seconds, of a name
    made from this one. Without a daemon, and beside so many engines, a new one, which can be kept
    later. Raises KvtierError, LibraryNotFoundError."""
    from ..kept_memory import KeptMemory

    names = [name, *(hashlib.sha256(name + bytes([i])).digest() for i in range(1, _MOST_ENGINES))]
    gives_up = time.monotonic() + _OWNER_PATIENCE_S
    has_timed_out = False
    while True:
        connection = None
        try:
            timeout_ms = round(FIRST_CONNECT_S * 1000)
            connection = connect(
                socket, client_name="vllm", connect_timeout_ms=timeout_ms, reconnect_min_ms=-1
            )
        except KvtierError as error:
            logger.warning("kvtier: nothing is left of the last engine's KV cache: %s", error)
        try:
            return KeptMemory(names[0], byte_count, blocks, connection, cuda_device)
        except TimedOutError:
            # The daemon may have handed the memory over since: then this process has it.
            if has_timed_out:
                raise
            has_timed_out = True
            continue
        except WrongStateError as error:
            if error.reason != "memory_in_use":
                raise
            is_late = time.monotonic() >= gives_up
            if is_late and len(names) == 1:
                logger.warning("kvtier: other engines have the KV cache: %s", error)
                return KeptMemory(name, byte_count, blocks, None, cuda_device)
        finally:
            if connection is not None:
                connection.close()
        if is_late:
            names.pop(0)
        else:
            time.sleep(_OWNER_PAUSE_S)


class KeptAllocation(SharedAllocation):
    """Puts the KV cache into memory that `open_memory` gives. memory: it, once it was made; None
    if that failed, and then the KV cache is as without this. likely_written: how many of the lowest
    blocks a warm-up may write."""

    def __init__(
        self,
        groups: Sequence[BlockPieces],
        open_memory: Callable[[], Any],
        likely_written: int,
        device: str,
    ) -> None:
        super().__init__(groups[0].memory_bytes)
        self._groups = groups
        self._open_memory = open_memory
        self._likely_written = likely_written
        self._device = device
        self._guard: WarmUpGuard | None = None
        self.memory: Any = None

    def found(self) -> KeptTable | None:
        """The entries that are in the table and still true. Once, after the warm-up."""
        guard, self._guard = self._guard, None
        if guard is None:
            return None
        table = guard.table.without(set(guard.undo()))
        # In runs of one group, so that the oldest stay the oldest.
        ends = [*(np.nonzero(np.diff(table.groups))[0] + 1).tolist(), len(table.hashes)]
        for first, last in zip([0, *ends], ends):
            if first < last:
                blocks, hashes = table.blocks[first:last], table.hashes[first:last]
                self.memory.publish(int(table.groups[first]), blocks, hashes)
        return table

    def arguments(self, pieces: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
        if self.memory is None or self._device == "cpu":
            return super().arguments(pieces)
        return {
            "memory": RegionMemory.VMM,
            "fd": self.fd,
            "bytes": self.memory.byte_count,
            "pieces": pieces,
            "kept": self.memory.name,
            "gpu_uuid": gpu_uuid(torch.device("cuda", torch.cuda.current_device())),
        }

    def _allocate(self) -> torch.Tensor | None:
        try:
            memory = self._open_memory()
            tensor = tensor_over(memory, self.byte_count, self._device)
        except (KvtierError, OSError, ImportError, RuntimeError) as error:
            logger.warning("kvtier: the KV cache will not outlive this engine: %s", error)
            return super()._allocate() if self._device == "cpu" else None
        self.fd = memory.fd
        self.memory = memory
        kept = memory.entries()
        table = KeptTable(memory.root, kept.blocks, kept.groups, list(kept.hashes))
        try:
            self._guard = WarmUpGuard(tensor, self._groups, table, self._likely_written)
        except RuntimeError as error:  # torch's, also when there is too little memory
            logger.warning("kvtier: the last engine's memory is not used: %s", error)
            nothing = table.without(range(len(table.hashes)))
            self._guard = WarmUpGuard(tensor, self._groups, nothing, 0)
        memory.clear()
        return tensor


class WarmUpGuard:
    """Remembers the blocks of a table: a sum of each, and the bytes of those that are likely to be
    overwritten. It leaves out blocks for which the table's entry cannot be true."""

    def __init__(
        self,
        memory: torch.Tensor,
        groups: Sequence[BlockPieces],
        table: KeptTable,
        likely_written: int,
    ) -> None:
        sound = (table.groups < len(groups)) & (table.blocks < groups[0].blocks)
        self.table = table.without(set(np.nonzero(~sound)[0].tolist()))
        self._is_on_gpu = memory.is_cuda
        # By group: the places in the table, the blocks, each piece of all blocks.
        self._groups: list[tuple[np.ndarray, torch.Tensor, list[torch.Tensor]]] = []
        self._sums: list[torch.Tensor] = []
        self._saved: list[list[torch.Tensor]] = []
        self._likely_written = likely_written
        for index, group in enumerate(groups):
            (places,) = np.nonzero(self.table.groups == index)
            numbers = torch.from_numpy(self.table.blocks[places].astype(np.int64))
            blocks = numbers.to(memory.device)
            pieces = [_rows(memory, piece, group.blocks) for piece in group.pieces]
            self._groups.append((places, blocks, pieces))
            self._sums.append(_sums(pieces, blocks))
            saved = blocks[blocks < likely_written]
            self._saved.append([_copied(rows, saved) for rows in pieces])

    @torch.inference_mode()
    def undo(self) -> list[int]:
        """Puts back overwritten blocks. Returns the places in the table of those that could not be.
        """
        lost: list[int] = []
        for (places, blocks, pieces), sums, saved in zip(self._groups, self._sums, self._saved):
            changed = _sums(pieces, blocks) != sums
            is_saved = blocks < self._likely_written
            lost += places[(changed & ~is_saved).cpu().numpy()].tolist()
            (again,) = torch.nonzero(changed[is_saved], as_tuple=True)
            for rows, copies in zip(pieces, saved):
                for some in again.split(_rows_at_once(rows)):
                    rows[blocks[is_saved][some]] = copies[some.cpu()].to(rows.device)
        if self._is_on_gpu:
            torch.cuda.synchronize()  # the daemon copies from there, in no order with this
        return lost


class _GpuBytes:
    """Kept memory on a GPU for torch.as_tensor, which keeps this object, and with it the memory."""

    def __init__(self, memory: Any, byte_count: int) -> None:
        self._memory = memory
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (byte_count,),
            "strides": None,
            "typestr": "|i1",
            "data": (memory.pointer, False),
            "stream": None,
        }


def tensor_over(memory: Any, byte_count: int, device: str) -> torch.Tensor:
    """The bytes of a kvtier.KeptMemory, which the tensor keeps. device: "cpu" or "cuda". Raises
    OSError."""
    if device == "cpu":
        return torch.frombuffer(memory.buffer(), dtype=torch.int8, count=byte_count)
    tensor = torch.as_tensor(_GpuBytes(memory, byte_count), device="cuda")
    if tensor.data_ptr() != memory.pointer:
        raise OSError("torch has copied the kept memory")
    return tensor


def _rows(memory: torch.Tensor, piece: tuple[int, int, int], blocks: int) -> torch.Tensor:
    """One piece of all blocks, a row each, in the widest words that its place allows."""
    offset, stride, size = piece
    unit = math.gcd(8, offset, stride, size)
    words = memory[: len(memory) // unit * unit].view(
        {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[unit]
    )
    return words.as_strided((blocks, size // unit), (stride // unit, 1), offset // unit)


def _rows_at_once(rows: torch.Tensor) -> int:
    return max(1, _CHUNK_BYTES // (rows.shape[1] * rows.element_size()))


def _copied(rows: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """The rows of these blocks in host memory."""
    copies = torch.empty((len(blocks), rows.shape[1]), dtype=rows.dtype)
    step = _rows_at_once(rows)
    for first in range(0, len(blocks), step):
        copies[first : first + step] = rows.index_select(0, blocks[first : first + step])
    return copies


def _sums(pieces: Sequence[torch.Tensor], blocks: torch.Tensor) -> torch.Tensor:
    """The sums of the words of each block."""
    total = torch.zeros(len(blocks), dtype=torch.int64, device=blocks.device)
    for rows in pieces:
        step = _rows_at_once(rows)
        for first in range(0, len(blocks), step):
            chosen = rows.index_select(0, blocks[first : first + step])
            total[first : first + step] += chosen.sum(dim=1, dtype=torch.int64)
    return total
