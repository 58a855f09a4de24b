# SPDX-License-Identifier: Apache-2.0
"""The layers of transformers' DynamicCache as the daemon's groups of layers.

A layer's state is found by running a few tokens through the model, not from its configuration, so
that every model whose layers are of the classes below is known, whatever its sizes. A layer of any
other class makes the model one that is not cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import cache_utils
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ..model import KvGroup
from ..types import DType, HitRule

# States of many layers may exceed the daemon's limit for one block (64 MiB by default), and are
# then several groups.
_MAX_STATE_BYTES = 32 << 20
# The daemon's limit of groups of a record.
_MAX_GROUPS = 16
_DTYPES = {getattr(torch, one.torch_name): one for one in DType if hasattr(torch, one.torch_name)}
# Releases before 5.17 have no such layers, or cannot continue their states with several tokens.
_LinearLayer: Any = getattr(cache_utils, "LinearAttentionLayer", ())
_MixedLayer: Any = getattr(cache_utils, "LinearAttentionAndFullAttentionLayer", ())


class UnsupportedModelError(Exception):
    """The model has layers whose memory this package does not know how to keep."""


class WindowLayer(DynamicSlidingWindowLayer):
    """A layer with a sliding window that also keeps what leaves the window, until `drop_past`:
    other prompts may share only the beginning of this one."""

    def __init__(self, sliding_window: int) -> None:
        super().__init__(sliding_window=sliding_window)
        self._past: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        # Copies, since these may be views that would keep far larger tensors alive.
        self._past.append((key_states.clone(), value_states.clone()))
        return super().update(key_states, value_states, *args, **kwargs)

    def crop(self, *args: Any, **kwargs: Any) -> None:
        before = self.get_seq_length()
        super().crop(*args, **kwargs)
        removed = before - self.get_seq_length()
        if removed > 0 and self._past:
            keys, values = self._joined()
            kept = max(0, keys.shape[-2] - removed)
            self._past = [(keys[:, :, :kept], values[:, :, :kept])]

    def reset(self) -> None:
        super().reset()
        self._past = []

    def keep(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Takes all of this as the past, and for the next pass no more of it than the layer keeps."""
        self._past = [(keys, values)]
        first = -min(keys.shape[-2], self.sliding_window - 1)
        self.keys, self.values = keys[:, :, first:], values[:, :, first:]

    def past(self) -> tuple[int, torch.Tensor, torch.Tensor] | None:
        """Keys and values of the tokens from a position, which comes first, to the sequence's end;
        None if there are none."""
        if not self._past:
            return None
        keys, values = self._joined()
        self._past = [(keys, values)]
        return self.get_seq_length() - keys.shape[-2], keys, values

    def drop_past(self, position: int) -> None:
        """Forgets everything before a position."""
        if self._past:
            keys, values = self._joined()
            first = max(0, position - self.get_seq_length() + keys.shape[-2])
            keys, values = (one[:, :, first:].clone() for one in (keys, values))
            self._past = [(keys, values)]

    def _joined(self) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = zip(*self._past)
        return torch.cat(keys, dim=-2), torch.cat(values, dim=-2)


@dataclass(frozen=True)
class StatePart:
    """One tensor of a layer's state. kind: "conv" or "recurrent"; number: of several in a layer."""

    layer: int
    kind: str
    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def byte_count(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def of(self, layers: list[Any]) -> torch.Tensor:
        """The tensor in a cache's layers."""
        states: dict[int, torch.Tensor] = getattr(layers[self.layer], f"{self.kind}_states")
        return states[self.number]


@dataclass(frozen=True)
class Group:
    """Layers whose blocks are stored together: attention with `kv`, or states with `parts`.

    layers: their numbers in the cache, in the order in which they are in a block. device: of each.
    window: of sliding ones, else 0.
    """

    kv: KvGroup
    layers: tuple[int, ...] = ()
    devices: tuple[torch.device, ...] = ()
    dtype: torch.dtype = torch.float32
    window: int = 0
    parts: tuple[StatePart, ...] = ()

    def piece_bytes(self) -> list[int]:
        """The bytes of a block's parts, in its order: keys, then values of each layer; or states.
        """
        if self.parts:
            return [part.byte_count for part in self.parts]
        row = self.kv.block_tokens * self.kv.kv_heads * self.dtype.itemsize
        return [row * self.kv.k_head_dim, row * self.kv.v_head_dim] * len(self.layers)


def groups_of(cache: DynamicCache, block_tokens: int, state_tokens: int) -> tuple[Group, ...]:
    """The groups of a cache that some tokens of one sequence went through. Raises
    UnsupportedModelError."""
    attention: dict[Any, list[int]] = {}
    parts: list[StatePart] = []
    for number, layer in enumerate(cache.layers):
        kind = type(layer)
        known = (DynamicLayer, DynamicSlidingWindowLayer, WindowLayer, _LinearLayer, _MixedLayer)
        if kind not in known:
            raise UnsupportedModelError(f"layer {number} is a {kind.__name__}")
        if _MixedLayer and kind in (_LinearLayer, _MixedLayer):
            parts += _state_parts(number, layer)
        if isinstance(layer, DynamicLayer) and layer.get_seq_length() > 0:
            attention.setdefault(_geometry(number, layer), []).append(number)
    if not attention:
        raise UnsupportedModelError("no layer has attention, and without one no position is known")
    groups = [
        _attention_group(cache, geometry, layers, block_tokens)
        for geometry, layers in attention.items()
    ]
    groups += _state_groups(parts, state_tokens)
    if len(groups) > _MAX_GROUPS:
        raise UnsupportedModelError(f"{len(groups)} groups of layers, at most {_MAX_GROUPS}")
    return tuple(groups)


def _geometry(number: int, layer: Any) -> tuple[int, int, int, torch.dtype, int]:
    keys, values = layer.keys, layer.values
    if keys.dtype not in _DTYPES or keys.dtype != values.dtype or keys.shape[1] != values.shape[1]:
        raise UnsupportedModelError(f"layer {number} has {keys.dtype} {tuple(keys.shape)}")
    window = layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else 0
    return keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, window


def _attention_group(
    cache: DynamicCache,
    geometry: tuple[int, int, int, torch.dtype, int],
    layers: list[int],
    block_tokens: int,
) -> Group:
    heads, key_dim, value_dim, dtype, window = geometry
    kv = KvGroup(
        layers=len(layers),
        kv_heads=heads,
        k_head_dim=key_dim,
        v_head_dim=value_dim,
        dtype=_DTYPES[dtype],
        block_tokens=block_tokens,
        hit_rule=HitRule.TRAILING if window else HitRule.ALL,
        # A token sees itself and window - 1 before it.
        window_tokens=max(1, window - 1) if window else 0,
    )
    devices = tuple(cache.layers[number].keys.device for number in layers)
    return Group(kv, tuple(layers), devices, dtype, window)


def _state_parts(number: int, layer: Any) -> list[StatePart]:
    """None for layers that have no state, such as those of experts alone."""
    if not isinstance(layer.has_previous_state, dict):
        raise UnsupportedModelError("this release of transformers cannot continue states")
    found = []
    for kind in ("conv", "recurrent"):
        for i, state in getattr(layer, f"{kind}_states").items():
            if state is not None:
                part = StatePart(number, kind, i, tuple(state.shape), state.dtype, state.device)
                found.append(part)
    return found


def _state_groups(parts: list[StatePart], state_tokens: int) -> list[Group]:
    """Wider elements come first in a block, so that each part begins where its type may."""
    chunks: list[list[StatePart]] = []
    for part in sorted(parts, key=lambda one: -one.dtype.itemsize):
        if not chunks or sum(one.byte_count for one in chunks[-1]) >= _MAX_STATE_BYTES:
            chunks.append([])
        chunks[-1].append(part)
    return [
        Group(
            KvGroup(
                layers=1,
                layer_bytes=sum(part.byte_count for part in chunk),
                block_tokens=state_tokens,
                hit_rule=HitRule.STATE,
            ),
            parts=tuple(chunk),
        )
        for chunk in chunks
    ]


def restore_attention(layer: Any, keys: torch.Tensor, values: torch.Tensor, tokens: int) -> None:
    """Gives an empty attention layer its state after `tokens` tokens. keys, values: [1, heads,
    tokens, dim]; of windows, the blocks that the last window - 1 tokens are in."""
    DynamicLayer.lazy_initialization(layer, keys, values)
    layer.keys, layer.values = keys, values
    if isinstance(layer, WindowLayer):
        layer._sliding_window_tensor = layer._sliding_window_tensor.to(keys.device)
        layer.cumulative_length = tokens
        layer.keep(keys, values)


def restore_state(layer: Any, part: StatePart, state: torch.Tensor) -> None:
    """Gives an empty layer one tensor of its state."""
    layer.lazy_initialization(**{f"{part.kind}_states": state, "state_idx": part.number})
    part_of = getattr(layer, f"{part.kind}_states")
    part_of[part.number].copy_(state)
    layer.has_previous_state[part.number] = True
