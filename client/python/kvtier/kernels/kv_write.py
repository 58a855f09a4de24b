# SPDX-License-Identifier: Apache-2.0
"""Writing a step's keys and values into a paged cache, with rotary embedding and fp8 fused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._cheader import HeaderEnum, enum_of
from ..errors import invalid
from . import _launch, _tensors
from ._launch import abi
from .cache import PagedKv

if TYPE_CHECKING:
    import torch

_ROTARY_STEP = 16


@enum_of(abi, "KVT_ROPE_NONE")
class RopeStyle(HeaderEnum):
    """NEOX: element i turns with element i + rotary_dim / 2 (Llama, Qwen). GPTJ: element 2i turns
    with element 2i + 1. NONE: nothing is turned."""


@dataclass(frozen=True)
class Rope:
    """A rotary embedding of keys and queries.

    positions: int32 [tokens]. cos_sin: float32 [positions, rotary_dim], in each row rotary_dim / 2
    cosines and then as many sines. rotary_dim: a multiple of 16, at most head_dim; elements beyond
    it stay as they are.
    """

    style: RopeStyle
    positions: torch.Tensor
    cos_sin: torch.Tensor


def kv_write(
    key: torch.Tensor,
    value: torch.Tensor,
    cache: PagedKv,
    slot_mapping: torch.Tensor,
    *,
    rope: Rope | None = None,
    query: torch.Tensor | None = None,
    query_output: torch.Tensor | None = None,
    dynamic_scales: bool = False,
    stream: torch.cuda.Stream | None = None,
) -> None:
    """Writes each token's key, turned by the rope, and value to its slot, in the cache's dtype.

    key, value: [tokens, kv_heads, head_dim], bfloat16 or float16, as the cache unless that is
        float8. head_dim: a power of two from 16 to 256.
    slot_mapping: int64 [tokens], block * page_tokens + offset; negative: the token is not written.
        No two tokens share a slot.
    query: [tokens, q_heads, head_dim]: turned too, into query_output (None: in place), whatever the
        slots.
    dynamic_scales: each token and head gets a scale of its own, max(|x|) / 448, which is written to
        the cache's scales, which must be [blocks, page_tokens, kv_heads].
    stream: None: torch's current one.

    Raises InvalidArgumentError, UnsupportedError.
    """
    _tensors.check_device(key, "key")
    with _launch.on_device(key, stream) as handle:
        params = _params(key, value, cache, slot_mapping)
        if rope is not None:
            params.rope = _rope(rope, key)
        if query is not None:
            _add_query(params, query, query if query_output is None else query_output, key)
        if dynamic_scales and not cache.has_scales_by_token:
            raise invalid("bad_scales", "dynamic scales need key_scales, value_scales by token")
        params.dynamic_scales = dynamic_scales
        if key.shape[0] > 0:
            _launch.launch("kvt_kv_write", params, handle)


def _params(
    key: torch.Tensor, value: torch.Tensor, cache: PagedKv, slot_mapping: torch.Tensor
) -> Any:
    shape = (None, cache.kv_heads, cache.head_dim)
    dtypes = _tensors.SIXTEEN_BIT if cache.is_fp8 else (_tensors.dtype_name(cache.key),)
    _tensors.check(key, "key", shape, dtypes, cache.key)
    _tensors.check(value, "value", tuple(key.shape), (_tensors.dtype_name(key),), key)
    _tensors.check_list(slot_mapping, "slot_mapping", key.shape[0], "int64", key)
    key_strides, value_strides = _tensors.strides(key, "key"), _tensors.strides(value, "value")
    return abi.kvt_kv_write_params(
        key=key.data_ptr(),
        value=value.data_ptr(),
        dtype=_tensors.dtype_number(key),
        tokens=key.shape[0],
        key_token_stride=key_strides[0],
        key_head_stride=key_strides[1],
        value_token_stride=value_strides[0],
        value_head_stride=value_strides[1],
        slot_mapping=slot_mapping.data_ptr(),
        cache=cache.abi,
    )


def _rope(rope: Rope, key: torch.Tensor) -> Any:
    tokens, _, head_dim = key.shape
    _tensors.check_list(rope.positions, "positions", tokens, "int32", key)
    _tensors.check(rope.cos_sin, "cos_sin", (None, None), ("float32",), key)
    rotary_dim = rope.cos_sin.shape[1]
    if not 0 < rotary_dim <= head_dim or rotary_dim % _ROTARY_STEP != 0:
        raise invalid("bad_cos_sin", f"rotary_dim {rotary_dim} for heads of {head_dim}")
    if not rope.cos_sin.is_contiguous():
        raise invalid("bad_cos_sin", "it is not contiguous")
    return abi.kvt_rope(rope.style, rotary_dim, rope.positions.data_ptr(), rope.cos_sin.data_ptr())


def _add_query(params: Any, query: torch.Tensor, output: torch.Tensor, key: torch.Tensor) -> None:
    tokens, _, head_dim = key.shape
    dtypes = (_tensors.dtype_name(key),)
    _tensors.check(query, "query", (tokens, None, head_dim), dtypes, key)
    _tensors.check(output, "query_output", tuple(query.shape), dtypes, key)
    strides, results = _tensors.strides(query, "query"), _tensors.strides(output, "query_output")
    params.query, params.query_output = query.data_ptr(), output.data_ptr()
    params.query_heads = query.shape[1]
    params.query_token_stride, params.query_head_stride = strides[:2]
    params.query_output_token_stride, params.query_output_head_stride = results[:2]
