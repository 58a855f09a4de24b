# SPDX-License-Identifier: Apache-2.0
"""A decoder in torch alone, for trials of this program where transformers is not installed."""

from __future__ import annotations

from typing import Any

import torch
from decoder import Decoder, Geometry
from torch import nn

_SEED = 1
_EPSILON = 1e-6


class TorchDecoder(Decoder):
    """Llama's architecture with any torch from 1.13 on; plain, not fast."""

    def __init__(self, geometry: Geometry, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(geometry, device, dtype)
        torch.manual_seed(_SEED)
        self._embed = nn.Embedding(geometry.vocabulary, geometry.hidden)
        self._layers = nn.ModuleList(_Layer(geometry, i) for i in range(geometry.layers))
        self._head = nn.Linear(geometry.hidden, geometry.vocabulary, bias=False)
        for module in (self._embed, self._layers, self._head):
            module.to(device=device, dtype=dtype)

    def new_cache(self) -> Any:
        return _Cache(self.geometry.layers)

    @torch.inference_mode()
    def forward(self, tokens: list[int], first: int, cache: Any | None) -> torch.Tensor:
        hidden = self._embed(torch.tensor([tokens], device=self.device))
        angles = self._angles(first, len(tokens))
        for layer in self._layers:
            hidden = layer(hidden, angles, self.attend if cache is None else cache.attend)
        logits: torch.Tensor = self._head(_normalize(hidden[0, -1]))
        return logits.float()

    def _angles(self, first: int, count: int) -> torch.Tensor:
        """Of the rotary embedding, [tokens, dim / 2]."""
        dim = self.geometry.head_dim
        frequency = self.geometry.rope_theta ** (-torch.arange(0, dim, 2, device=self.device) / dim)
        return torch.arange(first, first + count, device=self.device)[:, None] * frequency


class _Layer(nn.Module):
    def __init__(self, geometry: Geometry, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self._dim = geometry.head_dim
        self._heads = (geometry.q_heads, geometry.kv_heads, geometry.kv_heads)
        rows = sum(self._heads) * geometry.head_dim
        self._qkv = nn.Linear(geometry.hidden, rows, bias=False)
        self._out = nn.Linear(geometry.q_heads * geometry.head_dim, geometry.hidden, bias=False)
        self._up = nn.Linear(geometry.hidden, 2 * geometry.intermediate, bias=False)
        self._down = nn.Linear(geometry.intermediate, geometry.hidden, bias=False)

    def forward(self, hidden: torch.Tensor, angles: torch.Tensor, attend: Any) -> torch.Tensor:
        """hidden: [1, tokens, hidden]."""
        heads = self._qkv(_normalize(hidden)).unflatten(-1, (sum(self._heads), self._dim))
        query, key, value = heads.transpose(1, 2).split(self._heads, dim=1)
        scaling = self._dim**-0.5
        query, key = _turn(query, angles), _turn(key, angles)
        attended, _ = attend(self, query, key, value, None, scaling=scaling)
        hidden = hidden + self._out(attended.flatten(2))
        gate, up = self._up(_normalize(hidden)).chunk(2, dim=-1)
        return torch.add(hidden, self._down(nn.functional.silu(gate) * up))


class _CacheLayer:
    keys: torch.Tensor
    values: torch.Tensor


class _Cache:
    def __init__(self, layers: int) -> None:
        self.layers = [_CacheLayer() for _ in range(layers)]

    def update(self, key: torch.Tensor, value: torch.Tensor, layer: int) -> None:
        held = self.layers[layer]
        if hasattr(held, "keys"):
            key = torch.cat([held.keys, key], dim=2)
            value = torch.cat([held.values, value], dim=2)
        held.keys, held.values = key.contiguous(), value.contiguous()

    def attend(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: None,
        scaling: float,
    ) -> tuple[torch.Tensor, None]:
        self.update(key, value, module.layer_idx)
        held = self.layers[module.layer_idx]
        return causal_attention(query, held.keys, held.values, scaling), None


def causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Of the last tokens, those of query, over all: [1, heads, tokens, dim] each. Returns
    [1, tokens, q_heads, dim]."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    tokens, length = query.shape[2], key.shape[2]
    position = torch.arange(length - tokens, length, device=query.device)[:, None]
    hidden = torch.arange(length, device=query.device)[None] > position
    scores = (query @ key.transpose(2, 3) * scaling).masked_fill(hidden, -torch.inf)
    return (scores.softmax(dim=-1) @ value).transpose(1, 2)


def _normalize(hidden: torch.Tensor) -> torch.Tensor:
    return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + _EPSILON)


def _turn(heads: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """The rotary embedding of [1, heads, tokens, dim]."""
    first, second = heads.chunk(2, dim=-1)
    cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
