# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV cache as memory that the daemon can map, and where the parts of its blocks lie.

vLLM allocates one tensor for the KV cache of all layers, in a context that the connector gives it.
On the CPU the context puts that tensor into a memory file.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..model import MAX_BLOCK_TOKENS, KvGroup
from ..types import DType, HitRule
from .cache_groups import CacheGroup
from .canary import number_type
from .identity import described


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
                tensor = self._allocate()
                if tensor is not None:
                    return tensor
        return func(*args, **kwargs)

    def arguments(self, pieces: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
        """The arguments of `attach_regions` for a region in the file."""
        return {"fd": self.fd, "bytes": self.byte_count, "pieces": pieces}

    def _allocate(self) -> torch.Tensor | None:
        self.fd = os.memfd_create("kvtier-vllm", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.byte_count)
        memory = mmap.mmap(self.fd, self.byte_count)
        return torch.frombuffer(memory, dtype=torch.int8)


@dataclass(frozen=True)
class BlockPieces:
    """The parts of each block of one cache group, as (offset, block stride, bytes) in the order of
    the layers, and the group's blocks as the daemon sees them. layers: by name. spec: what vLLM
    says of them, for the model's identity; spec_kinds: the names of its classes. number_type: as
    canary.number_type."""

    pieces: list[tuple[int, int, int]]
    group: KvGroup
    blocks: int
    memory_bytes: int
    layers: list[str]
    spec: str
    number_type: DType | None = None
    spec_kinds: frozenset[str] = frozenset()


def block_pieces(
    kv_cache_config: Any, group: CacheGroup, replicated: bool, cache_dtype: str
) -> BlockPieces:
    """Where vLLM's KVCacheConfig puts the blocks of a group. Parts that follow each other are one.
    replicated: all tensor-parallel ranks have the same bytes. cache_dtype: as the user chose it. Raises ValueError for layers that lie
    elsewhere, and for layouts in which a layer's part of a block is not in one place, which this
    does not know yet."""
    layout = getattr(kv_cache_config, "kv_cache_layout", None)
    if layout is not None and set(layout[:2]) != {"L", "B"}:
        raise ValueError(f"the KV cache layout {layout} spreads a layer's part of a block")
    cache_group = kv_cache_config.kv_cache_groups[group.number]
    places = {}
    for tensor in kv_cache_config.kv_cache_tensors:
        if getattr(tensor, "host_resident", False):
            continue
        # One of the strides is the layer's page, the other one leads over many of them.
        page_bytes = min(tensor.layer_stride, tensor.block_stride)
        for i, name in enumerate(tensor.layers):
            offset = tensor.offset + i * tensor.layer_stride
            places[name] = (offset, tensor.block_stride, page_bytes)
    # Layers that share another's cache are listed once the worker has its model, without a place.
    layers = [name for name in cache_group.layer_names if name in places]
    if not layers:
        raise ValueError(f"the layers of cache group {group.number} have no place in the KV cache")
    pieces = [places[name] for name in layers]
    sizes = {size for _, _, size in pieces}
    # The scheduler knows only the first of specs that differ by layer.
    specs = list(getattr(cache_group.kv_cache_spec, "kv_cache_specs", {}).values())
    specs = specs or [cache_group.kv_cache_spec]
    types = {number_type(one, cache_dtype) for one in specs}
    is_trailing = group.rule is HitRule.TRAILING
    # Where blocks and layers lie does not matter to who may use them, only the order within a part.
    order = str(layout)[2:]
    return BlockPieces(
        _joined(pieces),
        KvGroup(
            layers=len(pieces) if len(sizes) == 1 else 1,
            layer_bytes=pieces[0][2] if len(sizes) == 1 else sum(size for _, _, size in pieces),
            block_tokens=min(group.block_tokens, MAX_BLOCK_TOKENS),
            hit_rule=group.rule,
            # A window of one token needs none of the tokens before it; a record names at least one.
            window_tokens=max(group.window_tokens, 1) if is_trailing else 0,
            replicated=replicated,
        ),
        kv_cache_config.num_blocks,
        kv_cache_config.kv_cache_tensors[0].size,
        layers,
        f"{order} {described(specs[0])}",
        types.pop() if len(types) == 1 and len(sizes) == 1 and not group.is_state else None,
        frozenset(type(one).__name__ for one in specs),
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
