# SPDX-License-Identifier: Apache-2.0
"""Decode attention over a latent cache (multi-head latent attention, MLA)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import invalid
from . import _launch, _tensors
from ._launch import Workspace, abi
from .cache import SequenceTables, check_page

if TYPE_CHECKING:
    import torch

_LATENT_DIM = 512
_ROPE_DIM = 64
_QUERY_DIM = _LATENT_DIM + _ROPE_DIM
_TILE_HEADS = 64
_FP8 = "float8_e4m3fn"


def mla_decode(
    query: torch.Tensor,
    latent: torch.Tensor,
    tables: SequenceTables,
    softmax_scale: float,
    *,
    latent_scales: torch.Tensor | None = None,
    split_tokens: int = 0,
    tables_settled: bool = False,
    output: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    workspace: Workspace | None = None,
    stream: torch.cuda.Stream | None = None,
) -> torch.Tensor:
    """Attention of one query token for each sequence; all heads share one row of 576 numbers for
    each cached token. The up-projections are absorbed in query and output. Returns output.

    query: [sequences, q_heads, 576], bfloat16 or float16: the latent part, then the part that the
        rope has turned; q_heads 1 to 128. latent: [blocks, page_tokens, 576] in the same order,
        of query's dtype or float8_e4m3fn.
    latent_scales: the factors that turn a float8 latent's values into the real ones, float32: one
        value, or [blocks, page_tokens]. None: 1.
    output: [sequences, q_heads, 512]. lse: float32 [sequences, q_heads], contiguous.

    The other parameters and errors are as for `decode`.
    """
    _tensors.check(query, "query", (len(tables), None, _QUERY_DIM), _tensors.SIXTEEN_BIT)
    dtypes = (_tensors.dtype_name(query),)
    rows, heads = query.shape[:2]
    if not 0 < heads <= abi.KVT_MLA_MAX_HEADS:
        raise invalid("bad_query", f"{heads} heads, 1 to {abi.KVT_MLA_MAX_HEADS} can be")
    _tensors.check(latent, "latent", (None, None, _QUERY_DIM), (*dtypes, _FP8), query)
    check_page(latent.shape[1], "latent")
    scales = _scales(latent_scales, latent)
    _tensors.check_lse(lse, rows, heads, query)
    pairs, most = rows * -(-heads // _TILE_HEADS), abi.KVT_MLA_MAX_PAIRS
    if pairs > most:
        built = f"{most} pairs of sequence and {_TILE_HEADS} heads"
        raise _tensors.unsupported("sequences", f"{rows} with {heads} heads", built)
    with _launch.on_device(query, stream) as handle:
        result = query.new_empty((rows, heads, _LATENT_DIM)) if output is None else output
        _tensors.check(result, "output", (rows, heads, _LATENT_DIM), dtypes, query)
        own, results = _tensors.strides(query, "query"), _tensors.strides(result, "output")
        blocks = _tensors.strides(latent, "latent")
        params = abi.kvt_mla_decode_params(
            query=query.data_ptr(),
            output=result.data_ptr(),
            lse=_tensors.address(lse),
            dtype=_tensors.dtype_number(query),
            q_heads=heads,
            query_sequence_stride=own[0],
            query_head_stride=own[1],
            output_sequence_stride=results[0],
            output_head_stride=results[1],
            latent=latent.data_ptr(),
            block_stride=blocks[0],
            token_stride=blocks[1],
            page_tokens=latent.shape[1],
            latent_dtype=_tensors.dtype_number(latent),
            latent_scales=scales,
            sequences=tables.abi(latent.shape[1], latent.device),
            softmax_scale=_tensors.real(softmax_scale, "softmax_scale"),
            split_tokens=_tensors.split(split_tokens),
            tables_settled=tables_settled,
        )
        if rows > 0:
            _launch.launch_with_workspace("kvt_mla_decode", params, handle, workspace, query)
    return result


def _scales(scales: torch.Tensor | None, latent: torch.Tensor) -> Any:
    if scales is None:
        return abi.kvt_scales()
    if _tensors.dtype_name(latent) != _FP8:
        raise invalid("bad_latent_scales", f"scales for a {_tensors.dtype_name(latent)} latent")
    one = scales.numel() == 1 and len(scales.shape) < 2
    shape = tuple(scales.shape) if one else tuple(latent.shape[:2])
    _tensors.check(scales, "latent_scales", shape, ("float32",), latent)
    block, token = (0, 0) if one else tuple(scales.stride())
    return abi.kvt_scales(scales.data_ptr(), block, token, 0)
