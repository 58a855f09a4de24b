# SPDX-License-Identifier: Apache-2.0
"""What the engine needs of a model: a decoder with random weights."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch

import kvtier

#: (module, query, key, value, attention_mask, scaling=..) as in the attention interface of the
#: transformers library: query, key, value [1, heads, tokens, dim]; returns the output,
#: [1, tokens, q_heads, dim], and None. module.layer_idx is the layer.
Attend = Callable[..., "tuple[torch.Tensor, None]"]


@dataclass(frozen=True)
class Geometry:
    """Sizes of a Llama model."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    q_heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    rope_theta: float = 500000.0


LLAMA_8B = Geometry("llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128256)
SMALL = Geometry("small", 4, 256, 512, 8, 4, 32, 512)


class Decoder(abc.ABC):
    """Runs tokens of one sequence through the model. One thread.

    Attention is the decoder's own over a cache of its own, or that of `attend`, which keeps keys
    and values itself.
    """

    def __init__(self, geometry: Geometry, device: torch.device, dtype: torch.dtype) -> None:
        self.geometry = geometry
        self.device = device
        self.dtype = dtype
        self.attend: Optional[Attend] = None

    def record(self, revision: str) -> kvtier.ModelRecord:
        """What the daemon is told of the model's KV."""
        geometry = self.geometry
        names = {torch.bfloat16: kvtier.DType.BFLOAT16, torch.float32: kvtier.DType.FLOAT32}
        return kvtier.ModelRecord(
            name=geometry.name,
            revision=revision,
            layers=geometry.layers,
            kv_heads=geometry.kv_heads,
            k_head_dim=geometry.head_dim,
            v_head_dim=geometry.head_dim,
            dtype=names[self.dtype],
        )

    @abc.abstractmethod
    def new_cache(self) -> Any:
        """An empty one, with update(key, value, layer), and layers[i].keys and .values, all
        [1, kv_heads, tokens, dim]."""

    @abc.abstractmethod
    def forward(self, tokens: list[int], first: int, cache: Any | None) -> torch.Tensor:
        """Logits after the last of `tokens`, which stand from position `first` on: float32
        [vocabulary]. cache: holds the tokens before and takes these; None: `attend` does."""
