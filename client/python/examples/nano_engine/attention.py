# SPDX-License-Identifier: Apache-2.0
"""Attention of one step's tokens over the daemon's pool, which is read and written in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import kvtier


@dataclass(frozen=True)
class Chunk:
    """Tokens [first, first + count) of a sequence: all of its blocks, and these tokens' slots."""

    first: int
    count: int
    table: np.ndarray[Any, np.dtype[np.int32]]
    slots: np.ndarray[Any, np.dtype[np.int64]]


class KernelAttention:
    """By libkvtier_kernels, on one memory of the pool, in a GPU. For each step `begin` takes its
    chunks in the order of its tokens, those of one token first; `attend` then writes a layer's keys
    and values to their slots, and attends."""

    def __init__(self, memory: kvtier.PoolMemory, layers: int, rope_table: torch.Tensor) -> None:
        from kvtier import kernels

        self._kernels, self._device = kernels, rope_table.device
        self._rope_table = rope_table
        views = [memory.torch_layer(layer) for layer in range(layers)]
        self._caches = [kernels.PagedKv(view.k, view.v) for view in views]
        self._workspace = kernels.Workspace()

    def begin(self, chunks: list[Chunk]) -> None:
        self._decoded = sum(chunk.count == 1 for chunk in chunks)
        decoded, rest = chunks[: self._decoded], chunks[self._decoded :]
        self._decode_tables = self._tables(decoded) if decoded else None
        self._prefill_tables = self._tables(rest) if rest else None
        self._query_starts = self._send(np.cumsum([0] + [chunk.count for chunk in rest]), np.int32)
        self._slots = self._send(np.concatenate([chunk.slots for chunk in chunks]), np.int64)
        positions = self._send(_positions(chunks), np.int32)
        self._rope = self._kernels.Rope(self._kernels.RopeStyle.NEOX, positions, self._rope_table)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        kernels, cache, split = self._kernels, self._caches[layer], self._decoded
        kernels.kv_write(key, value, cache, self._slots, rope=self._rope, query=query)
        output = query.new_empty(query.shape)
        common: Any = {"workspace": self._workspace, "tables_settled": layer > 0}
        if split > 0:
            tables, out = self._decode_tables, output[:split]
            kernels.decode(query[:split], cache, tables, output=out, **common)
        if split < len(query):
            tables, out = self._prefill_tables, output[split:]
            kernels.prefill(query[split:], cache, tables, self._query_starts, output=out, **common)
        return output

    def _tables(self, chunks: list[Chunk]) -> Any:
        table = np.zeros((len(chunks), max(len(chunk.table) for chunk in chunks)))
        for row, chunk in zip(table, chunks):
            row[: len(chunk.table)] = chunk.table
        lengths = [chunk.first + chunk.count for chunk in chunks]
        tables = self._send(table, np.int32), self._send(lengths, np.int32)
        return self._kernels.SequenceTables(*tables, max(lengths))

    def _send(self, array: Any, dtype: Any) -> torch.Tensor:
        return torch.from_numpy(np.asarray(array, dtype)).to(self._device)


class TorchAttention:
    """The same by torch, in host memory: each sequence's keys and values are gathered."""

    def __init__(self, memory: kvtier.PoolMemory, layers: int, rope_table: torch.Tensor) -> None:
        self._views = [memory.torch_layer(layer) for layer in range(layers)]
        self._rope_table = rope_table

    def begin(self, chunks: list[Chunk]) -> None:
        self._chunks = chunks
        slots = torch.from_numpy(np.concatenate([chunk.slots for chunk in chunks]))
        page = self._views[0].k.shape[1]
        self._index = (slots // page, slots % page)
        turns = self._rope_table[torch.from_numpy(_positions(chunks))]
        self._cos, self._sin = turns[:, None].chunk(2, dim=-1)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        view = self._views[layer]
        view.k[self._index] = self._turn(key)
        view.v[self._index] = value
        queries = self._turn(query).split([chunk.count for chunk in self._chunks])
        return torch.cat([_mix(q, view, chunk) for q, chunk in zip(queries, self._chunks)])

    def _turn(self, heads: torch.Tensor) -> torch.Tensor:
        first, second = heads.float().chunk(2, dim=-1)
        turned = [first * self._cos - second * self._sin, second * self._cos + first * self._sin]
        return torch.cat(turned, dim=-1).to(heads.dtype)


def _mix(query: torch.Tensor, view: kvtier.KvView[torch.Tensor], chunk: Chunk) -> torch.Tensor:
    end = chunk.first + chunk.count
    table = torch.from_numpy(chunk.table)
    keys, values = (part[table].flatten(0, 1)[:end].transpose(0, 1) for part in (view.k, view.v))
    visible = torch.ones(chunk.count, end, dtype=torch.bool).tril(chunk.first)
    mixed = functional.scaled_dot_product_attention(
        query.transpose(0, 1), keys, values, attn_mask=visible, enable_gqa=True
    )
    return mixed.transpose(0, 1)


def _positions(chunks: list[Chunk]) -> Any:
    return np.concatenate([np.arange(one.first, one.first + one.count) for one in chunks])
