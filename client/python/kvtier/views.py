# SPDX-License-Identifier: Apache-2.0
"""The shapes and strides under which a pool's bytes are seen as K and V."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from .errors import Status, error_of, invalid
from .model import Layout, ModelRecord

Array = TypeVar("Array")


class ArraySpec(NamedTuple):
    """A strided array within a pool. offset: bytes from the pool's first byte; strides: bytes."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class KvView(Generic[Array]):
    """One layer of a whole pool, in place.

    k: [blocks, tokens, heads, k_head_dim]; v: [blocks, tokens, heads, v_head_dim], empty if that is
    0. The KV of a token with slot s is at [s // block_tokens, s % block_tokens].
    """

    k: Array
    v: Array


class ViewPlan:
    """Where each layer of a pool of `blocks` blocks lies."""

    def __init__(self, record: ModelRecord, layout: Layout, blocks: int) -> None:
        self._record = record
        self._layout = layout
        self._blocks = blocks

    def k(self, layer: int) -> ArraySpec:
        """[blocks, tokens, heads, k_head_dim]. Raises InvalidArgumentError."""
        layout = self._layout
        return self._spec(
            self._layer_offset(layer),
            self._record.k_head_dim,
            layout.k_token_stride,
            layout.k_head_stride,
        )

    def v(self, layer: int) -> ArraySpec:
        """[blocks, tokens, heads, v_head_dim]. Raises InvalidArgumentError."""
        layout = self._layout
        return self._spec(
            self._layer_offset(layer) + layout.v_offset,
            self._record.v_head_dim,
            layout.v_token_stride,
            layout.v_head_stride,
        )

    def kv(self, layer: int) -> ArraySpec:
        """[blocks, 2, tokens, heads, dim]. Raises UnsupportedError if K and V differ in size."""
        record = self._record
        if record.k_head_dim != record.v_head_dim:
            raise error_of(
                Status.UNSUPPORTED,
                "head_dims_differ",
                f"K has {record.k_head_dim}, V has {record.v_head_dim}",
            )
        k = self.k(layer)
        shape = (k.shape[0], 2, *k.shape[1:])
        strides = (k.strides[0], self._layout.v_offset, *k.strides[1:])
        return ArraySpec(k.offset, shape, strides)

    def blocks(self) -> ArraySpec:
        """[blocks, layers, 2, tokens, heads, dim]. Raises UnsupportedError as `kv`."""
        layer = self.kv(0)
        shape = (layer.shape[0], self._record.layers, *layer.shape[1:])
        strides = (layer.strides[0], self._layout.layer_stride, *layer.strides[1:])
        return ArraySpec(0, shape, strides)

    def _layer_offset(self, layer: int) -> int:
        if not 0 <= layer < self._record.layers:
            raise invalid("bad_layer", f"{layer} of {self._record.layers}")
        return layer * self._layout.layer_stride

    def _spec(self, offset: int, head_dim: int, token_stride: int, head_stride: int) -> ArraySpec:
        record, layout = self._record, self._layout
        shape = (self._blocks, record.block_tokens, record.kv_heads, head_dim)
        strides = (layout.block_stride, token_stride, head_stride, layout.element_bytes)
        return ArraySpec(offset, shape, strides)
