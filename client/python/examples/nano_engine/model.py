# SPDX-License-Identifier: Apache-2.0
"""A Llama-like decoder with random weights: grouped queries, rotary embedding, gated MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

import kvtier

#: (layer, query, key, value), each [tokens, heads, head_dim] and not rotated; returns the mixed
#: values, as query. It keeps the keys and values.
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_EPSILON = 1e-6
_DTYPES = {
    torch.float32: kvtier.DType.FLOAT32,
    torch.float16: kvtier.DType.FLOAT16,
    torch.bfloat16: kvtier.DType.BFLOAT16,
}


@dataclass(frozen=True)
class Geometry:
    """Sizes of a model."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    q_heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    rope_theta: float = 500000.0
    positions: int = 4096


GEOMETRIES = {
    # With the gated MLP this has as many parameters as GPT-2's layers.
    "gpt2": Geometry("gpt2", 12, 768, 2048, 12, 12, 64, 50257),
    "llama-8b": Geometry("llama-8b", 32, 4096, 14336, 32, 8, 128, 128256, positions=131072),
    "tiny": Geometry("tiny", 3, 128, 256, 4, 2, 64, 512),
}


class Model:
    """Weights on one device. It holds no keys and values: `attend` does. One thread."""

    def __init__(
        self, geometry: Geometry, device: torch.device, dtype: torch.dtype, seed: int = 1
    ) -> None:
        self.geometry, self.device, self.dtype, self.seed = geometry, device, dtype, seed
        self._random = torch.Generator(device).manual_seed(seed)
        self._heads = (geometry.q_heads, geometry.kv_heads, geometry.kv_heads)
        hidden, inner = geometry.hidden, geometry.intermediate
        embedding = (geometry.vocabulary, hidden)
        qkv = (sum(self._heads) * geometry.head_dim, hidden)
        out = (hidden, geometry.q_heads * geometry.head_dim)
        self._embedding, self._head = self._weights(embedding, embedding)
        self._layers = [
            self._weights(qkv, out, (2 * inner, hidden), (hidden, inner))
            for _ in range(geometry.layers)
        ]

    def record(self) -> kvtier.ModelRecord:
        """The identity of the model's KV for the daemon; other weights have another revision."""
        geometry, dim = self.geometry, self.geometry.head_dim
        name = f"nano-engine-{geometry.name}"
        revision = f"random weights on {self.device.type}, seed {self.seed}"
        shape = (geometry.layers, geometry.kv_heads, dim, dim, _DTYPES[self.dtype])
        return kvtier.ModelRecord(name, *shape, revision=revision)

    def rope_table(self) -> torch.Tensor:
        """float32 [positions, head_dim]: in each row the cosines, then as many sines."""
        dim = self.geometry.head_dim
        frequencies = self.geometry.rope_theta ** (-torch.arange(0, dim, 2) / dim)
        angles = torch.arange(self.geometry.positions)[:, None] * frequencies
        return torch.cat([angles.cos(), angles.sin()], dim=1).to(self.device)

    @torch.inference_mode()
    def forward(self, tokens: torch.Tensor, attend: Attend, rows: torch.Tensor) -> torch.Tensor:
        """The most likely token after each of `rows`, which are places in `tokens`; int64 [rows].
        tokens: [tokens], of any number of sequences."""
        hidden = functional.embedding(tokens, self._embedding)
        for layer, (qkv, out, up, down) in enumerate(self._layers):
            heads = functional.linear(_normalize(hidden), qkv)
            parts = heads.unflatten(1, (sum(self._heads), -1)).split(self._heads, dim=1)
            hidden = hidden + functional.linear(attend(layer, *parts).flatten(1), out)
            gate, value = functional.linear(_normalize(hidden), up).chunk(2, dim=-1)
            hidden = hidden + functional.linear(functional.silu(gate) * value, down)
        return functional.linear(_normalize(hidden[rows]), self._head).argmax(dim=-1)

    def _weights(self, *shapes: tuple[int, int]) -> list[torch.Tensor]:
        empty = [torch.empty(*shape, device=self.device, dtype=self.dtype) for shape in shapes]
        return [one.normal_(0, one.shape[1] ** -0.5, generator=self._random) for one in empty]


def _normalize(hidden: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(hidden, hidden.shape[-1:], eps=_EPSILON)
