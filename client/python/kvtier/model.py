# SPDX-License-Identifier: Apache-2.0
"""Models: a KV geometry with its identity, and where its bytes lie in a pool."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _abi, _convert, _library
from .errors import check


class DType(enum.IntEnum):
    """What the elements of K and V are."""

    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    FLOAT8_E4M3 = 4
    FLOAT8_E5M2 = 5
    INT8 = 6

    @property
    def numpy(self) -> npt.DTypeLike:
        """The dtype of numpy views. What numpy lacks shows as unsigned integers of its size:
        bfloat16 as uint16, float8 as uint8."""
        return _NUMPY[self]

    @property
    def torch_name(self) -> str:
        """The attribute of `torch` that is this dtype."""
        return _TORCH[self]

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(np.dtype(self.numpy).itemsize)


_NUMPY = {
    DType.FLOAT32: np.float32,
    DType.FLOAT16: np.float16,
    DType.BFLOAT16: np.uint16,
    DType.FLOAT8_E4M3: np.uint8,
    DType.FLOAT8_E5M2: np.uint8,
    DType.INT8: np.int8,
}
_TORCH = {
    DType.FLOAT32: "float32",
    DType.FLOAT16: "float16",
    DType.BFLOAT16: "bfloat16",
    DType.FLOAT8_E4M3: "float8_e4m3fn",
    DType.FLOAT8_E5M2: "float8_e5m2",
    DType.INT8: "int8",
}


@dataclass(frozen=True)
class ModelRecord:
    """A KV geometry with its identity: blocks of models that differ in any field never meet.

    name: required. revision: of the weights. kv_heads: stored by this tensor-parallel rank.
    v_head_dim: 0 for one tensor without values beside the keys, as in a latent (MLA) cache.
    block_tokens: tokens of a full block. extra: whatever else changes the bytes (rope,
    quantization), texts by unique keys.
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
    extra: Mapping[str, str] = field(default_factory=dict)

    def layout(self) -> Layout:
        """Where K and V lie in a block. Needs no daemon. Raises InvalidArgumentError naming the
        field that is out of its range."""
        layout = _abi.sized(_abi.Layout)
        check(_library.load().kvt_layout_of(ctypes.byref(to_abi(self)), ctypes.byref(layout)))
        return Layout(
            element_bytes=layout.element_bytes,
            block_stride=layout.block_stride,
            layer_stride=layout.layer_stride,
            v_offset=layout.v_offset,
            k_token_stride=layout.k_token_stride,
            k_head_stride=layout.k_head_stride,
            v_token_stride=layout.v_token_stride,
            v_head_stride=layout.v_head_stride,
        )


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
    result = _abi.ModelRecord()
    _library.load().kvt_model_record_init(ctypes.byref(result))
    result.name = _convert.text(record.name, "name")
    result.revision = _convert.text(record.revision, "revision")
    for name in (
        "layers",
        "kv_heads",
        "k_head_dim",
        "v_head_dim",
        "block_tokens",
        "tensor_parallel_rank",
        "tensor_parallel_size",
    ):
        setattr(result, name, _convert.unsigned(getattr(record, name), 32, name))
    result.dtype = record.dtype
    extra = (_abi.KeyValue * len(record.extra))()
    for target, (key, value) in zip(extra, record.extra.items()):
        target.key = _convert.text(key, "extra")
        target.value = _convert.text(value, "extra")
    result.extra = extra
    result.extra_count = len(extra)
    return result
