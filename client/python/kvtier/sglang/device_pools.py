# SPDX-License-Identifier: Apache-2.0
"""SGLang's device pools as kvtier's linker serves them, and the bytes of their pages.

SGLang itself describes the pools of the hybrid models that it lets linkers serve. Plain pools of
keys and values, and those with sliding windows beside them, are described here in the same terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import (
    DevicePoolEntry,
    DevicePoolGroup,
    resolve_hybrid_device_pool_group,
)

from .._facts import digest
from ..model import MAX_BLOCK_TOKENS, KvGroup

_MIN_PART_BYTES = 512 << 10
# Types that every backend of torch can copy by index, the widest first.
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


def device_pool_group(kv_cache: Any, params: Any, components: Any) -> DevicePoolGroup:
    """The pools that belong to a cache. kv_cache: of SGLang's allocator. params: its
    CacheInitParams. components: of its tree. Raises ValueError for pools that cannot be served."""
    kinds = {component.name for component in components}
    name, page_size = type(kv_cache).__name__, params.page_size
    if kinds == {"FULL"} and name in ("MHATokenToKVPool", "MLATokenToKVPool"):
        layers = {layer: layer for layer in range(kv_cache.layer_num)}
        entries = [_entry(PoolName.KV, kv_cache, layers, page_size)]
    elif kinds == {"FULL", "SWA"} and name == "SWAKVPool":
        entries = [
            _entry(pool_name, pool, _layers_of(kv_cache, is_window), page_size)
            for pool_name, pool, is_window in (
                (PoolName.KV, kv_cache.full_kv_pool, False),
                (PoolName.SWA, kv_cache.swa_kv_pool, True),
            )
        ]
    else:
        try:
            return resolve_hybrid_device_pool_group(
                kvcache=kv_cache, page_size=page_size, params=params, components=components
            )
        except AssertionError as error:
            raise ValueError(f"SGLang describes no such pools to linkers: {error}") from error
    if params.mtp_draft_device_pools or params.sidecar_draft_device_pools:
        raise ValueError("kvtier's linker does not serve the draft models of plain pools")
    return DevicePoolGroup(
        entries, kv_cache.layer_num, page_size, rank_replicated=name == "MLATokenToKVPool"
    )


def _layers_of(kv_cache: Any, is_window: bool) -> dict[int, int]:
    """For a pool with windows, the layer of one half by the layer of the model."""
    return {
        layer - kv_cache.start_layer: place
        for layer, (place, windowed) in kv_cache.layers_mapping.items()
        if windowed == is_window
    }


def _entry(name: Any, pool: Any, layers: dict[int, int], page_size: int) -> DevicePoolEntry:
    kind = type(pool).__name__
    if kind == "MLATokenToKVPool":
        if pool.kv_scale_buffer is not None:
            raise ValueError("kvtier's linker does not serve scaled KV caches")
        components, rows_are_pages = [list(pool.kv_buffer)], False
    elif kind == "MHATokenToKVPool":
        if pool.k_scale_buffer is not None or pool.native_k_scale_buffer is not None:
            raise ValueError("kvtier's linker does not serve scaled KV caches")
        components = [list(pool.k_buffer), list(pool.v_buffer)]
        rows_are_pages = pool.kv_cache_layout != "nhd"
    else:
        raise ValueError(f"kvtier's linker does not serve pools of {kind}")
    return DevicePoolEntry(
        name=name,
        indices_from_pool=name,
        device_pool=pool,
        components=components,
        layer_mapping=dict(layers),
        page_size=page_size,
        rows_are_pages=rows_are_pages,
    )


class _Part(NamedTuple):
    """One buffer's part of every page. words: [pages, rows, words of a row]; offset, bytes: of the
    part in a page as the daemon has it."""

    words: torch.Tensor
    offset: int
    bytes: int


def split_layers(entry: Any, most_parts: int) -> list[list[int]]:
    """The layers of a pool, in the order in which they are computed, in parts of nearly one size.
    entry: a DevicePoolEntry. Parts are not so small that their blocks cost more than they bring."""
    layers = sorted(entry.layer_mapping)
    page_bytes = sum(size for metas in entry.buffer_meta for _, _, size in metas)
    parts = max(1, min(most_parts, len(layers), page_bytes // _MIN_PART_BYTES))
    ends = [len(layers) * part // parts for part in range(parts + 1)]
    return [layers[first:end] for first, end in zip(ends, ends[1:])]


class DevicePages:
    """Some layers of the pages of one pool, each page as one row of bytes: layer after layer, in
    the order in which layers are computed."""

    def __init__(self, entry: Any, layers: Sequence[int]) -> None:
        """entry: a DevicePoolEntry. layers: in that order. Raises ValueError for buffers that are
        not as expected."""
        self._entry = entry
        self.layers = list(layers)
        self._parts: dict[int, list[_Part]] = {}
        buffers = [
            (layer, component[index], metas[index][2])
            for layer in self.layers
            for component, metas in zip(entry.components, entry.buffer_meta)
            for index in _indices(entry.layer_mapping[layer])
        ]
        self.page_bytes = sum(part_bytes for _, _, part_bytes in buffers)
        offset = 0
        for layer, buffer, part_bytes in buffers:
            part = _part(buffer, part_bytes, offset, self.page_bytes)
            self._parts.setdefault(layer, []).append(part)
            offset += part_bytes
        first = self._parts[self.layers[0]][0]
        self.pages = first.words.shape[0]
        # How many rows of a buffer are a page, which the pool tells only by their sizes.
        self._span = first.words.shape[1]
        sizes = {sum(part.bytes for part in parts) for parts in self._parts.values()}
        #: Whether layers can come one by one: the daemon counts layers of one size.
        self.in_layers = len(sizes) == 1
        self.device = first.words.device

    def group(self) -> KvGroup:
        """The pages as the daemon sees them."""
        count = len(self.layers) if self.in_layers else 1
        return KvGroup(
            layers=count,
            layer_bytes=self.page_bytes // count,
            block_tokens=min(self._entry.page_size, MAX_BLOCK_TOKENS),
        )

    def layout(self) -> str:
        """The layout of a page, for the model's identity."""
        parts = [
            [str(buffer.dtype), list(buffer.shape[1:])]
            for component in self._entry.components
            for buffer in component
        ]
        layers = [[layer, self._entry.layer_mapping[layer]] for layer in self.layers]
        kind = type(self._entry.device_pool).__name__
        order = getattr(self._entry.device_pool, "kv_cache_layout", None)
        facts = [kind, order, self._entry.page_size, self._span, self.page_bytes, parts, layers]
        return f"device page_size={self._entry.page_size} {digest(facts)}"

    def numbers(self, indices: torch.Tensor) -> torch.Tensor:
        """The pages that SGLang's indices name, on the pool's device. Raises ValueError for
        indices that are not those of whole pages."""
        rows = torch.tensor(self._entry.prepare_locations(indices), dtype=torch.int64)
        return (rows // self._span).to(self.device)

    def gather(self, pages: torch.Tensor, rows: torch.Tensor) -> None:
        """Copies pages out of the pool. rows: uint8 [pages, page_bytes]."""
        for parts in self._parts.values():
            for part in parts:
                _place(rows, part).copy_(part.words.index_select(0, pages))

    def scatter(self, layer: int, pages: torch.Tensor, rows: torch.Tensor) -> None:
        """Copies one layer of pages into the pool."""
        for part in self._parts[layer]:
            part.words.index_copy_(0, pages, _place(rows, part))


def _indices(mapped: int | Sequence[int]) -> Sequence[int]:
    return [mapped] if isinstance(mapped, int) else mapped


def _part(buffer: torch.Tensor, part_bytes: int, offset: int, page_bytes: int) -> _Part:
    row_bytes = buffer.nbytes // buffer.shape[0]
    stride = buffer.stride(0) * buffer.element_size()
    if not buffer[0].is_contiguous() or part_bytes % row_bytes != 0:
        raise ValueError("the rows of a device pool are not contiguous")
    span = part_bytes // row_bytes
    at = buffer.storage_offset() * buffer.element_size()
    places = (row_bytes, stride, at, offset, page_bytes)
    dtype = next(one for one in _WORDS if all(place % one.itemsize == 0 for place in places))
    whole = torch.empty(0, dtype=dtype, device=buffer.device).set_(buffer.untyped_storage())
    words = whole.as_strided(
        (buffer.shape[0] // span, span, row_bytes // dtype.itemsize),
        (span * stride // dtype.itemsize, stride // dtype.itemsize, 1),
        at // dtype.itemsize,
    )
    return _Part(words, offset, part_bytes)


def _place(rows: torch.Tensor, part: _Part) -> torch.Tensor:
    """Where a part of pages lies in rows, as [pages, rows of a page, words]."""
    _, span, words = part.words.shape
    piece = rows[:, part.offset : part.offset + part.bytes].view(part.words.dtype)
    return piece.unflatten(1, (span, words))
