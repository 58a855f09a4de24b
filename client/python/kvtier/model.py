# SPDX-License-Identifier: Apache-2.0
"""Models: a KV geometry with its identity, and where the bytes of its layers lie in a pool."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, NamedTuple, TypeVar

from . import _library, _native
from ._library import abi
from .errors import Status, check, error_of, invalid
from .hashing import DEFAULT_RECIPE
from .types import DType


@dataclass(frozen=True)
class ModelRecord:
    """A KV geometry with its identity: blocks of models that differ in any field never meet.

    name: required. revision: of the weights. kv_heads: stored by this tensor-parallel rank.
    v_head_dim: 0 for one tensor without values beside the keys, as in a latent (MLA) cache.
    block_tokens: tokens of a full block. hash_recipe: name and version of how its blocks are
    hashed; one of RECIPES, by which sequences and Pool.acquire(tokens=...) hash then, or any other
    for hashes of the engine's own. extra: whatever else changes the bytes (rope, quantization),
    texts by unique keys.
    """

    name: str
    layers: int
    kv_heads: int
    k_head_dim: int
    v_head_dim: int
    dtype: DType = DType.BFLOAT16
    block_tokens: int = 16
    revision: str = ""
    tensor_parallel_rank: int = 0
    tensor_parallel_size: int = 1
    hash_recipe: str = DEFAULT_RECIPE
    extra: Mapping[str, str] = field(default_factory=dict)

    def layout(self) -> Layout:
        """Where K and V lie in a block. Needs no daemon. Raises InvalidArgumentError naming the
        field that is out of its range."""
        layout = _library.sized(abi.kvt_layout)
        check(_library.load().kvt_layout_of(ctypes.byref(to_abi(self)), ctypes.byref(layout)))
        return Layout(*(getattr(layout, field.name) for field in fields(Layout)))


@dataclass(frozen=True)
class Layout:
    """Byte strides of a model's pool, [block][layer][K,V][token][head][dim].

    block_stride: the bytes of one block. v_offset: from a layer's K to its V.
    """

    element_bytes: int
    block_stride: int
    layer_stride: int
    v_offset: int
    k_token_stride: int
    k_head_stride: int
    v_token_stride: int
    v_head_stride: int


@dataclass(frozen=True)
class Model:
    """A model as one connection knows it.

    number: names it there, also after reconnecting. block_bytes: one block's KV. fingerprint:
    SHA-256 of the canonical record, 32 bytes.
    """

    record: ModelRecord
    layout: Layout
    number: int
    block_bytes: int
    fingerprint: bytes


def to_abi(record: ModelRecord) -> Any:
    """The record as a kvt_model_record, which keeps what it points to. Raises
    InvalidArgumentError."""
    result = abi.kvt_model_record()
    _library.load().kvt_model_record_init(ctypes.byref(result))
    result.name = _native.text(record.name, "name")
    result.revision = _native.text(record.revision, "revision")
    result.hash_recipe = _native.text(record.hash_recipe, "hash_recipe")
    for name in (
        "layers",
        "kv_heads",
        "k_head_dim",
        "v_head_dim",
        "block_tokens",
        "tensor_parallel_rank",
        "tensor_parallel_size",
    ):
        setattr(result, name, _native.unsigned(getattr(record, name), 32, name))
    result.dtype = record.dtype
    extra = (abi.kvt_key_value * len(record.extra))()
    for target, (key, value) in zip(extra, record.extra.items()):
        target.key = _native.text(key, "extra")
        target.value = _native.text(value, "extra")
    result.extra, result.extra_count = ctypes.addressof(extra), len(extra)
    result.kept = extra
    return result


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
