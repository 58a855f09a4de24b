# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV cache as memory that the daemon can map, and where the parts of its blocks lie.

vLLM allocates one tensor for the KV cache of all layers, in a context that the connector gives it.
On the CPU the context puts that tensor into a memory file.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..model import KvGroup
from .identity import MAX_BLOCK_TOKENS


class SharedAllocation(TorchFunctionMode):
    """While active, the allocation of the KV cache comes from a memory file; all other calls of
    torch are left alone. fd, byte_count: of the file, once it was made; fd is never closed, since
    the tensor lives as long as the process."""

    def __init__(self, byte_count: int) -> None:
        super().__init__()
        self.byte_count = byte_count
        self.fd: int | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.zeros and self.fd is None and args == (self.byte_count,):
            if kwargs.get("dtype") is torch.int8:
                return self._allocate()
        return func(*args, **kwargs)

    def _allocate(self) -> torch.Tensor:
        self.fd = os.memfd_create("kvtier-vllm", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.byte_count)
        memory = mmap.mmap(self.fd, self.byte_count)
        return torch.frombuffer(memory, dtype=torch.int8)


@dataclass(frozen=True)
class BlockPieces:
    """The parts of each block of one cache group, as (offset, block stride, bytes) in the order of
    the layers, and the group's blocks as the daemon sees them."""

    pieces: list[tuple[int, int, int]]
    group: KvGroup
    blocks: int
    memory_bytes: int


def block_pieces(kv_cache_config: Any, group_index: int) -> BlockPieces:
    """Where vLLM's KVCacheConfig puts the blocks of a group. Parts that follow each other are one.
    Raises ValueError for layers of different sizes, and for layouts in which a layer's part of a
    block is not in one place, which this does not know yet."""
    group = kv_cache_config.kv_cache_groups[group_index]
    spec = group.kv_cache_spec
    places = {
        name: (tensor.offset + i * tensor.layer_stride, tensor.block_stride)
        for tensor in kv_cache_config.kv_cache_tensors
        for i, name in enumerate(tensor.layers)
    }
    if hasattr(spec, "kv_cache_specs"):
        raise ValueError("the layers of the cache group differ")
    layout = getattr(kv_cache_config, "kv_cache_layout", None)
    if layout is not None and set(layout[:2]) != {"L", "B"}:
        raise ValueError(f"the KV cache layout {layout} spreads a layer's part of a block")
    page_bytes = spec.page_size_bytes
    return BlockPieces(
        pieces=_joined([(*places[name], page_bytes) for name in group.layer_names]),
        group=KvGroup(
            layers=len(group.layer_names),
            layer_bytes=page_bytes,
            block_tokens=min(spec.block_size, MAX_BLOCK_TOKENS),
        ),
        blocks=kv_cache_config.num_blocks,
        memory_bytes=kv_cache_config.kv_cache_tensors[0].size,
    )


def _joined(pieces: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The same bytes in the same order, in fewer pieces: where blocks are outermost, the parts of
    a block's layers follow each other."""
    joined: list[tuple[int, int, int]] = []
    for offset, stride, size in pieces:
        if joined and joined[-1][1] == stride and sum(joined[-1][::2]) == offset:
            offset, _, before = joined.pop()
            size += before
        joined.append((offset, stride, size))
    return joined
