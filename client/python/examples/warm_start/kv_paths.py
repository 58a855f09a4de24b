# SPDX-License-Identifier: Apache-2.0
"""The two ways in which an engine can use the pool: in place, or with a cache of its own."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from decoder import Decoder
from torch_decoder import causal_attention

import kvtier


class KvPath(Protocol):
    """Computes tokens of one sequence at a time, over the KV that the pool holds of the others."""

    def begin(self, sequence: kvtier.Sequence) -> None:
        """Another sequence: its cached tokens are in the pool."""

    def forward(self, tokens: list[int], first: int) -> torch.Tensor:
        """Computes the sequence's tokens from `first` on. Returns the last one's logits, float32
        [vocabulary]; its KV is in the pool when the device's queue has run so far."""


class Slots:
    """Where tokens of a sequence lie in the pool, as tensors on its device."""

    def __init__(self, sequence: kvtier.Sequence, first: int, count: int, device: Any) -> None:
        slots = torch.from_numpy(sequence.slot_mapping(first, count))
        self.flat = slots.to(device, non_blocking=True)

    def index(self, block_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """For a view [blocks, tokens, ..]."""
        return self.flat // block_tokens, self.flat % block_tokens


class CopyingPath:
    """The engine computes in its own cache: what was cached is copied out of the pool first, and
    what was computed is copied into it."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def begin(self, sequence: kvtier.Sequence) -> None:
        self._sequence = sequence
        memory = sequence.memory()
        self._layers = [memory.torch_layer(i) for i in range(self._decoder.geometry.layers)]
        self._cache = self._decoder.new_cache()
        cached = sequence.cached_tokens
        if cached == 0:
            return
        table = torch.from_numpy(sequence.block_table()).long().to(self._decoder.device)
        blocks = table[: -(-cached // self._layers[0].k.shape[1])]
        for i, layer in enumerate(self._layers):
            k, v = (
                x[blocks].flatten(0, 1)[None, :cached].transpose(1, 2) for x in (layer.k, layer.v)
            )
            self._cache.update(k, v, i)

    def forward(self, tokens: list[int], first: int) -> torch.Tensor:
        logits = self._decoder.forward(tokens, first, self._cache)
        slots = Slots(self._sequence, first, len(tokens), self._decoder.device)
        index = slots.index(self._layers[0].k.shape[1])
        for own, layer in zip(self._cache.layers, self._layers):
            layer.k[index] = own.keys[0, :, first:].transpose(0, 1)
            layer.v[index] = own.values[0, :, first:].transpose(0, 1)
        return logits


class InPlacePath:
    """The pool is the engine's cache: keys and values are written to their slots, and attention
    reads the blocks where they lie. On a GPU by the daemon's kernels, elsewhere by torch."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._memory: kvtier.PoolMemory | None = None

    def begin(self, sequence: kvtier.Sequence) -> None:
        self._sequence = sequence
        memory = sequence.memory()
        if memory is not self._memory:
            self._memory = memory
            on_gpu = memory.device_kind == kvtier.DeviceKind.CUDA
            layers = [memory.torch_layer(i) for i in range(self._decoder.geometry.layers)]
            self._attention = KernelAttention(layers) if on_gpu else TorchAttention(layers)
        self._decoder.attend = self._attention.attend

    def forward(self, tokens: list[int], first: int) -> torch.Tensor:
        self._attention.begin_step(self._sequence, first, len(tokens))
        return self._decoder.forward(tokens, first, None)


class KernelAttention:
    """Of libkvtier_kernels, over the pool in a GPU's memory."""

    def __init__(self, layers: list[kvtier.KvView[torch.Tensor]]) -> None:
        from kvtier import kernels

        self._kernels = kernels
        self._caches = [kernels.PagedKv(layer.k, layer.v) for layer in layers]
        self._device = layers[0].k.device
        self._workspace = kernels.Workspace()

    def begin_step(self, sequence: kvtier.Sequence, first: int, count: int) -> None:
        """The same for all layers."""
        self._slots = Slots(sequence, first, count, self._device).flat
        table = torch.from_numpy(sequence.block_table())[None].to(self._device)
        lengths = torch.tensor([first + count], dtype=torch.int32, device=self._device)
        self._tables = self._kernels.SequenceTables(table, lengths, first + count)
        self._starts = torch.tensor([0, count], dtype=torch.int32, device=self._device)

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """query, key, value: [1, heads, tokens, dim]. Returns [1, tokens, q_heads, dim]."""
        layer: int = module.layer_idx  # type: ignore[assignment]
        cache = self._caches[layer]
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        self._kernels.kv_write(k, v, cache, self._slots)
        if q.shape[0] == 1:
            out = self._kernels.decode(
                q,
                cache,
                self._tables,
                softmax_scale=scaling,
                tables_settled=layer > 0,
                workspace=self._workspace,
            )
        else:
            out = self._kernels.prefill(
                q,
                cache,
                self._tables,
                self._starts,
                softmax_scale=scaling,
                workspace=self._workspace,
            )
        return out[None], None


class TorchAttention:
    """Of torch, over the pool in host memory, which it gathers."""

    def __init__(self, layers: list[kvtier.KvView[torch.Tensor]]) -> None:
        self._layers = layers

    def begin_step(self, sequence: kvtier.Sequence, first: int, count: int) -> None:
        """The same for all layers."""
        block_tokens = self._layers[0].k.shape[1]
        self._new = Slots(sequence, first, count, "cpu").index(block_tokens)
        self._all = Slots(sequence, 0, first + count, "cpu").index(block_tokens)

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """query, key, value: [1, heads, tokens, dim]. Returns [1, tokens, q_heads, dim]."""
        layer = self._layers[module.layer_idx]  # type: ignore[index]
        layer.k[self._new] = key[0].transpose(0, 1)
        layer.v[self._new] = value[0].transpose(0, 1)
        k, v = (x[self._all].transpose(0, 1)[None] for x in (layer.k, layer.v))
        return causal_attention(query, k, v, scaling), None
